"""A model is named by a spec, or found in the surroundings; what is missing is said, with what to do."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from postroom import ModelMissing
from postroom.inference import default_spec, http, open_model
from postroom.inference.openai_model import OpenAIModel

SCHEMA = {
    "type": "object",
    "properties": {
        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
        "should_respond": {"type": "boolean"},
        "mood": {"enum": ["calm", "cross"]},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2},
        "age": {"type": "integer", "minimum": 3, "maximum": 4},
    },
    "required": ["confidence"],
}


@pytest.mark.parametrize(
    ("surroundings", "spec"),
    [
        ({"POSTROOM_MODEL": "mock:3", "CLAUDECODE": "1", "OLLAMA_HOST": "x"}, "mock:3"),
        ({"CLAUDECODE": "1", "OLLAMA_HOST": "x"}, "claude"),
        ({"CODEX_THREAD_ID": "t"}, "codex"),
        ({"PLUGIN_ROOT": "/p", "CLAUDE_PLUGIN_ROOT": "/p"}, "codex"),
        ({"CLAUDE_PLUGIN_ROOT": "/p"}, "claude"),
        ({"OLLAMA_HOST": "127.0.0.1:11434"}, "ollama:llama3.2:3b"),
    ],
)
def test_the_surroundings_choose_the_model(surroundings: dict[str, str], spec: str) -> None:
    assert default_spec(surroundings) == spec


def test_without_any_the_sentence_says_how_to_set_one() -> None:
    with pytest.raises(ModelMissing, match="Set POSTROOM_MODEL to one of ollama:NAME"):
        default_spec({})


@pytest.mark.parametrize("spec", ["", "gpt", "llama3.2:3b", "mocking:1"])
def test_a_spec_that_names_no_model_is_refused(spec: str) -> None:
    with pytest.raises(ModelMissing, match="is not a language model"):
        open_model(spec)


SECRET = "http://bob:s3cret@127.0.0.1:9/v1"


@pytest.mark.parametrize(
    ("deed", "said"),
    [
        (lambda: open_model(f"openai:tiny@{SECRET}"), "set POSTROOM_MODEL_KEY to the key"),
        (lambda: OpenAIModel("tiny", SECRET), "set POSTROOM_MODEL_KEY to the key"),
        (lambda: OpenAIModel("tiny", "bob:s3cret@127.0.0.1:9"), "set POSTROOM_MODEL_KEY to the key"),
        (lambda: open_model(f"ollama:tiny@{SECRET}"), "set OLLAMA_API_KEY to the key"),
        (lambda: open_model("ollama:tiny"), "set OLLAMA_API_KEY to the key"),
        (lambda: open_model(f"openia:tiny@{SECRET}"), "'openia:…' is not a language model"),
        (lambda: open_model(SECRET), "'http:…' is not a language model"),
        (
            lambda: http.send("GET", SECRET, b"", {}, 10),
            "no model server answers at http://127.0.0.1:9 ",
        ),
    ],
)
def test_an_address_with_a_password_is_refused_and_the_password_not_shown(
    deed: Callable[[], object], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_HOST", SECRET)

    with pytest.raises(ModelMissing, match=said) as caught:
        deed()

    assert "s3cret" not in str(caught.value)
    assert "bob" not in str(caught.value)


def test_the_mock_says_the_same_to_the_same_and_not_to_everybody() -> None:
    said = [open_model(f"mock:{seed}").complete(prompt).text for seed in "1122" for prompt in ("a", "b")]

    assert said[:2] == said[2:4]
    assert said[4:6] == said[6:]
    assert len(set(said)) == 4


def test_the_mock_obeys_a_schema() -> None:
    for number in range(200):
        value = json.loads(open_model("mock").complete(f"question {number}", schema=SCHEMA).text)

        assert set(value) == set(SCHEMA["properties"])
        assert 0 <= value["confidence"] <= 1
        assert isinstance(value["should_respond"], bool)
        assert value["mood"] in ("calm", "cross")
        assert len(value["tags"]) == 2
        assert value["age"] in (3, 4)
