"""A real llama.cpp and real tokens, of a model that knows nothing: cancelling, deadlines, concurrency, kills.

What it says is noise, so this is a test of the way to a server and back, not of inference.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import ollama
import pytest

from postroom import Coordinator, ModelError, ModelMissing, ModelTimeout, WorkerPool
from postroom.inference import open_model, throttle
from postroom.pools.decide import Denial, Trigger

from .llama_server import NAME
from .real_server import RealServer, need_llama
from .tiny_model import write_tiny_model

pytestmark = [pytest.mark.model, pytest.mark.slow]

MESSAGE = {"id": "m1", "content": "Which index?", "sender_id": "carl"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_llama()
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_tiny_model(path)
    return path


@pytest.fixture(scope="module")
def server(tiny: Path) -> Iterator[RealServer]:
    with RealServer(tiny) as running:
        yield running


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(throttle, "BACKOFF_BASE_S", 0.01)


@pytest.fixture(params=["ollama", "openai"])
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_tokens_are_counted_and_capped(server: RealServer, dialect: str) -> None:
    said = open_model(server.spec(dialect)).complete("hello", max_tokens=17, timeout_s=30)

    assert said.tokens is not None
    assert 1 <= said.tokens <= 17
    assert said.prompt_tokens is not None
    assert said.prompt_tokens > 5
    assert 0 < said.first_byte_ms <= said.total_ms


def test_the_same_question_gets_the_same_answer(server: RealServer, dialect: str) -> None:
    model = open_model(server.spec(dialect))

    said = {model.complete("hello", system="You are Ada.", max_tokens=40, timeout_s=30).text for _ in range(3)}

    assert len(said) == 1


def test_a_deadline_in_mid_sentence_ends_the_work_of_the_server_too(server: RealServer, dialect: str) -> None:
    model = open_model(server.spec(dialect))
    for _ in range(4):  # all its slots: had they not been given up, nobody else would be served in time
        with pytest.raises(ModelTimeout):
            model.complete("go on for ever", max_tokens=1_000_000, timeout_s=0.1)

    assert model.complete("hello", max_tokens=2, timeout_s=30).tokens is not None


def test_many_ask_at_once_and_all_are_answered(server: RealServer, dialect: str) -> None:
    model = open_model(server.spec(dialect))
    said: list[str] = []
    threads = [
        threading.Thread(target=lambda n=n: said.append(model.complete(f"{n}?", max_tokens=20, timeout_s=60).text))
        for n in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert len(said) == 12


def test_ollamas_own_client_finds_its_way(server: RealServer) -> None:
    client = ollama.Client(host=server.ollama, headers={"Connection": "close"})

    assert [model.model for model in client.list().models] == [NAME]
    asked = [{"role": "user", "content": "hello"}]
    assert client.chat(NAME, asked, options={"num_predict": 5}).message.content is not None
    assert client.generate(NAME, "hello", options={"num_predict": 5}).done
    with pytest.raises(ModelMissing, match="has no model 'other'.*get it with: ollama pull other"):
        open_model(f"ollama:other@{server.ollama}").complete("hello", timeout_s=30)


def test_a_server_that_is_killed_is_missed_and_one_that_is_back_is_found(tiny: Path, dialect: str) -> None:
    with RealServer(tiny) as first:
        model = open_model(first.spec(dialect))
        failed: list[ModelError] = []

        def ask() -> None:
            try:
                model.complete("go on for ever", max_tokens=1_000_000, timeout_s=60)
            except ModelError as error:
                failed.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        time.sleep(0.3)
        first.kill()
        thread.join(30)
        assert len(failed) == 1  # in the middle of its answer, well before the deadline
        with pytest.raises(ModelMissing):
            model.complete("hello", timeout_s=30)
    with RealServer(tiny) as second:
        assert open_model(second.spec(dialect)).complete("hello", max_tokens=2, timeout_s=30).tokens is not None


def test_workers_ask_a_real_server_and_noise_is_no_verdict(server: RealServer) -> None:
    with WorkerPool("postroom.inference:ollama") as pool:
        settings = {"model": NAME, "url": server.ollama, "max_tokens": 30, "timeout_s": 30}
        pool.initialize_workers({name: {**settings, "prompt": f"You are {name}."} for name in ("ada", "bob")})
        judged = pool.evaluate_message(MESSAGE, timeout_s=60)
        decision = Coordinator(pool, deadline_s=60).consider(MESSAGE)

    assert {getattr(each, "state", each) for each in judged.values()} <= {"ok", "unparsed"}
    assert decision.trigger is Trigger.ALL_IN
    assert all(
        outcome.granted or outcome.reason in (Denial.UNPARSED, Denial.DECLINED, Denial.OUTRANKED)
        for outcome in decision.outcomes.values()
    )
