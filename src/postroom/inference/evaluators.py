"""Evaluators: functions that judge a message as a persona would, for workers of a pool or for anybody.

Each takes the message as a dict (`id`, `content`, `sender_id`) and a `context`, the worker's settings:

    model        the model's name at its server or program (for `by_spec`: a whole spec, see opening.py)
    url          the server's address
    prompt       who the persona is, in words that are trusted
    quick        a first look before the deep one: a spec of a fast model, or "words" for one without a model
    quick_below  a relevance under which the deep look is spared (0.3)
    max_tokens, timeout_s        caps of each answer
    seed, think_ms               of the mock: chance, and how long it thinks (a number, or from and to)

What a model or its server does wrong becomes an evaluation that is "error" or "unparsed"; only settings that can never
work raise.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from postroom.core.clock import SYSTEM
from postroom.errors import ModelError
from postroom.pools.evaluation import RESPOND_ABOVE, Evaluation, Stage

from .mock import chances
from .model import Completion, Model, ModelRefused
from .prompt import VERDICT_SCHEMA, content_of, evaluation_prompt, reply_prompt
from .specs import default_spec, name_and_url, open_model
from .verdict import NoVerdict, read_verdict

Message = Mapping[str, Any]
Context = Mapping[str, Any]
Judged = Evaluation | Iterator[Evaluation]

MAX_TOKENS: Final = 200
TIMEOUT_S: Final = 60.0
QUICK_TIMEOUT_S: Final = 5.0
QUICK_BELOW: Final = 0.3
#: How long the mock thinks, in milliseconds: anything between these.
THINK_MS: Final = (100.0, 500.0)

_lock = threading.Lock()
_models: dict[str, Model] = {}


def mock(message: Message, context: Context | None = None) -> Judged:
    """By chance that is a function of seed, persona and message id, after some time to think.

    Never of the message's words.
    """
    settings = context or {}
    chance = chances(settings.get("seed", 0), persona_of(settings), message.get("id"))
    low, high = _span(settings.get("think_ms", THINK_MS))
    think_ms = low + next(chance) * (high - low)
    confidence = round(0.3 + next(chance) * 0.6, 4)

    def deep() -> Evaluation:
        started_ns = SYSTEM.steady_ns()
        SYSTEM.sleep(think_ms / 1000)
        said = f"Mock evaluation ({think_ms:.0f} ms of thought)"
        return _done(message, settings, "mock", started_ns, confidence, confidence > RESPOND_ABOVE, said)

    return _judged(message, settings, deep)


def ollama(message: Message, context: Context | None = None) -> Judged:
    """A model of an Ollama server: `model` (llama3.2:3b) at `url` (or OLLAMA_HOST)."""
    return _by_model(message, context, _spec_ollama)


def openai(message: Message, context: Context | None = None) -> Judged:
    """A model of a server with OpenAI's chat completions: `model` (or NAME@URL) at `url` (or OPENAI_BASE_URL)."""
    return _by_model(message, context, _spec_openai)


def claude(message: Message, context: Context | None = None) -> Judged:
    """The program `claude` of this machine, headless; `model` if another than its own."""
    return _by_model(message, context, lambda settings: _spec_host("claude", settings))


def codex(message: Message, context: Context | None = None) -> Judged:
    """The program `codex` of this machine, headless; `model` if another than its own."""
    return _by_model(message, context, lambda settings: _spec_host("codex", settings))


def by_spec(message: Message, context: Context | None = None) -> Judged:
    """The model that `model` names as a whole spec, such as "ollama:llama3.2:3b"; without it, the surroundings' own."""
    return _by_model(message, context, _spec_any)


def compose(message: Message, context: Context | None = None) -> str:
    """What the persona answers to the message, in its own words. Raises ModelError and its kinds."""
    settings = context or {}
    system, prompt = reply_prompt(message, settings.get("prompt"))
    model = _model(_spec_any(settings))
    said = model.complete(
        prompt, system=system, max_tokens=_max_tokens(settings), timeout_s=float(settings.get("timeout_s", TIMEOUT_S))
    )
    return said.text.strip()


# How a context names a model


def _spec_ollama(settings: Context) -> str:
    name = str(settings.get("model") or "llama3.2:3b").removeprefix("ollama:")
    url = settings.get("url")
    return f"ollama:{name}" if not url or name_and_url(name)[1] is not None else f"ollama:{name}@{url}"


def _spec_openai(settings: Context) -> str:
    name = str(settings.get("model") or "default").removeprefix("openai:")
    if name_and_url(name)[1] is not None:  # an @ alone may be of the name: @cf/meta/llama
        return f"openai:{name}"
    url = settings.get("url") or os.environ.get("OPENAI_BASE_URL")
    return f"openai:{name}@{url or ''}"


def _spec_host(kind: str, settings: Context) -> str:
    name = str(settings.get("model") or "").removeprefix(kind).removeprefix(":")
    return f"{kind}:{name}" if name else kind


def _spec_any(settings: Context) -> str:
    return str(settings.get("model") or default_spec())


def _model(spec: str) -> Model:
    """The model behind a spec, opened once in this process."""
    with _lock:
        if spec not in _models:
            _models[spec] = open_model(spec)
        return _models[spec]


# Judging


def _by_model(message: Message, context: Context | None, spec_of: Callable[[Context], str]) -> Judged:
    settings = context or {}
    spec = spec_of(settings)
    return _judged(message, settings, lambda: ask(_model(spec), message, settings))


def _judged(message: Message, settings: Context, deep: Callable[[], Evaluation]) -> Judged:
    """One evaluation; or, where a quick look is wanted, that one and then the deep one."""
    quick = settings.get("quick")
    return _in_two_steps(message, settings, str(quick), deep) if quick else deep()


def _in_two_steps(
    message: Message, settings: Context, quick: str, deep: Callable[[], Evaluation]
) -> Iterator[Evaluation]:
    first = _by_words(message, settings) if quick == "words" else _by_fast_model(message, settings, quick)
    yield first
    least = float(settings.get("quick_below", QUICK_BELOW))
    if first.confidence is not None and first.confidence < least:
        why = f"the quick look found a relevance of {first.confidence:.2f}, below {least:g}: not looked at more closely"
        yield first.with_times(confidence=0.0, should_respond=False, stage="deep", reasoning=why)
    else:
        yield deep()


def _by_fast_model(message: Message, settings: Context, spec: str) -> Evaluation:
    timeout_s = float(settings.get("quick_timeout_s", QUICK_TIMEOUT_S))
    return ask(_model(spec), message, {**settings, "timeout_s": timeout_s}, stage="quick")


def _by_words(message: Message, settings: Context) -> Evaluation:
    """The share of longer words that message and persona have in common; a persona called by name has them all."""
    started_ns = SYSTEM.steady_ns()
    said = set(_words(content_of(message)))
    known = set(_words(str(settings.get("prompt") or "")))
    called = persona_of(settings).lower() in said
    shared = said & known
    relevance = 1.0 if called else min(1.0, len(shared) / 3)
    reason = "called by name" if called else f"words in common: {', '.join(sorted(shared)[:5]) or 'none'}"
    return _done(message, settings, "words", started_ns, relevance, relevance > RESPOND_ABOVE, reason, stage="quick")


def _words(text: str) -> list[str]:
    cleaned = "".join(c if c.isalnum() else " " for c in text.lower())
    return [word for word in cleaned.split() if len(word) > 3]


def ask(model: Model, message: Message, settings: Context, stage: Stage = "deep") -> Evaluation:
    """Ask a model for its verdict on a message. Never raises for what the model or its server does."""
    started_ns = SYSTEM.steady_ns()
    system, prompt = evaluation_prompt(message, settings.get("prompt"), quick=stage == "quick")
    facts: dict[str, Any] = {"stage": stage, "persona_id": persona_of(settings) or None, "model": model.spec}
    id = str(message.get("id", ""))
    try:
        said = _complete(model, prompt, system, settings)
    except ModelError as error:
        return Evaluation.failed(id, error, processing_time_ms=_passed_ms(started_ns), **facts)
    try:
        verdict = read_verdict(said.text)
    except NoVerdict as why:
        return Evaluation.unparsed(id, said.text, str(why), processing_time_ms=_passed_ms(started_ns), **facts)
    return _done(message, settings, said.model, started_ns, *verdict, stage=stage)


def _complete(model: Model, prompt: str, system: str, settings: Context) -> Completion:
    """What the model says; a server that refuses to hold it to a schema is asked without one."""
    started_ns = SYSTEM.steady_ns()
    timeout_s = float(settings.get("timeout_s", TIMEOUT_S))
    asked: dict[str, Any] = {"system": system, "max_tokens": _max_tokens(settings)}
    try:
        return model.complete(prompt, schema=VERDICT_SCHEMA, timeout_s=timeout_s, **asked)
    except ModelRefused:
        left_s = timeout_s - _passed_ms(started_ns) / 1000
        return model.complete(prompt, timeout_s=max(0.001, left_s), **asked)


def _done(
    message: Message,
    settings: Context,
    model: str,
    started_ns: int,
    confidence: float,
    should_respond: bool,
    reasoning: str,
    stage: Stage = "deep",
) -> Evaluation:
    return Evaluation(
        str(message.get("id", "")),
        confidence,
        should_respond,
        reasoning,
        _passed_ms(started_ns),
        stage=stage,
        persona_id=persona_of(settings) or None,
        model=model,
    )


def persona_of(settings: Context) -> str:
    """Whose settings these are."""
    return str(settings.get("persona_id") or settings.get("name") or settings.get("worker") or "")


def _max_tokens(settings: Context) -> int:
    return int(settings.get("max_tokens", MAX_TOKENS))


def _passed_ms(started_ns: int) -> float:
    return (SYSTEM.steady_ns() - started_ns) / 1e6


def _span(said: Any) -> tuple[float, float]:
    low, high = (said, said) if isinstance(said, int | float) else said
    if not 0 <= low <= high:
        raise ValueError(f"think_ms must be a number of milliseconds, or two of them, the smaller first; not {said!r}")
    return float(low), float(high)


# Before a worker is ready: what can never work is found out now, not at the first message.


def _prepare_with(spec_of: Callable[[Context], str]) -> Callable[[Context], None]:
    def prepare(context: Context) -> None:
        _model(spec_of(context))
        quick = context.get("quick")
        if quick and quick != "words":
            _model(str(quick))

    return prepare


def _prepare_mock(context: Context) -> None:
    _span(context.get("think_ms", THINK_MS))


mock.prepare = _prepare_mock  # type: ignore[attr-defined]
ollama.prepare = _prepare_with(_spec_ollama)  # type: ignore[attr-defined]
openai.prepare = _prepare_with(_spec_openai)  # type: ignore[attr-defined]
claude.prepare = _prepare_with(lambda settings: _spec_host("claude", settings))  # type: ignore[attr-defined]
codex.prepare = _prepare_with(lambda settings: _spec_host("codex", settings))  # type: ignore[attr-defined]
by_spec.prepare = _prepare_with(_spec_any)  # type: ignore[attr-defined]
