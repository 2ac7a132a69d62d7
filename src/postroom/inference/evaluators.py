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
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from postroom.core.clock import SYSTEM
from postroom.errors import ModelError
from postroom.pools.evaluation import RESPOND_ABOVE, Evaluation, Stage

from .mock_model import chances
from .model import Completion, Model, ModelRefused
from .once import OncePerKey
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


def model_evaluator(spec_of: Callable[[Context], str]) -> Callable[..., Judged]:
    """Decorator: an evaluator that asks a model, from the function that tells by the settings which one: its spec."""

    def evaluate(message: Message, context: Context | None = None) -> Judged:
        settings = context or {}
        spec = spec_of(settings)
        return _judged(message, settings, lambda: ask(_model(spec), message, settings))

    def prepare(context: Context) -> None:
        """Before a worker is ready: settings that can never work are found out now, not at the first message."""
        _model(spec_of(context))
        quick = context.get("quick")
        if quick and quick != "words":
            _model(str(quick))

    # not functools.wraps, which shows the signature of `spec_of`
    evaluate.__name__, evaluate.__qualname__ = spec_of.__name__, spec_of.__qualname__
    evaluate.__doc__ = spec_of.__doc__
    evaluate.prepare = prepare  # type: ignore[attr-defined]
    return evaluate


def mock(message: Message, context: Context | None = None) -> Judged:
    """By chance that is a function of seed, persona and message id, after some time to think.

    Never of the message's words.
    """
    settings = context or {}
    chance = chances(settings.get("seed", 0), persona_of(settings), message.get("id"))
    low, high = _span(settings.get("think_ms", THINK_MS))
    think_ms = low + next(chance) * (high - low)
    confidence = round(0.3 + next(chance) * 0.6, 4)
    facts = _facts(message, settings, "mock")

    def deep() -> Evaluation:
        SYSTEM.sleep(think_ms / 1000)
        said = f"Mock evaluation ({think_ms:.0f} ms of thought)"
        return Evaluation(confidence=confidence, should_respond=confidence > RESPOND_ABOVE, reasoning=said, **facts)

    return _judged(message, settings, deep)


@model_evaluator
def ollama(settings: Context) -> str:
    """A model of an Ollama server: `model` (llama3.2:3b) at `url` (or OLLAMA_HOST)."""
    name = str(settings.get("model") or "llama3.2:3b").removeprefix("ollama:")
    url = settings.get("url")
    return f"ollama:{name}" if not url or name_and_url(name)[1] is not None else f"ollama:{name}@{url}"


@model_evaluator
def openai(settings: Context) -> str:
    """A model of a server with OpenAI's chat completions: `model` (or NAME@URL) at `url` (or OPENAI_BASE_URL)."""
    name = str(settings.get("model") or "default").removeprefix("openai:")
    if name_and_url(name)[1] is not None:  # an @ alone may be of the name: @cf/meta/llama
        return f"openai:{name}"
    url = settings.get("url") or os.environ.get("OPENAI_BASE_URL")
    return f"openai:{name}@{url or ''}"


@model_evaluator
def claude(settings: Context) -> str:
    """The program `claude` of this machine, headless; `model` if another than its own."""
    return _spec_host("claude", settings)


@model_evaluator
def codex(settings: Context) -> str:
    """The program `codex` of this machine, headless; `model` if another than its own."""
    return _spec_host("codex", settings)


@model_evaluator
def by_spec(settings: Context) -> str:
    """The model that `model` names as a whole spec, such as "ollama:llama3.2:3b"; without it, the surroundings' own."""
    return _spec_any(settings)


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


def _spec_host(kind: str, settings: Context) -> str:
    name = str(settings.get("model") or "").removeprefix(kind).removeprefix(":")
    return f"{kind}:{name}" if name else kind


def _spec_any(settings: Context) -> str:
    return str(settings.get("model") or default_spec())


@OncePerKey
def _model(spec: str) -> Model:
    """The model behind a spec, opened once in this process."""
    return open_model(spec)


# Judging


def _judged(message: Message, settings: Context, deep: Callable[[], Evaluation]) -> Judged:
    """One evaluation; or, where a quick look is wanted, that one and then the deep one."""
    quick = settings.get("quick")
    return _in_two_steps(message, settings, str(quick), deep) if quick else _timed(deep)


def _in_two_steps(
    message: Message, settings: Context, quick: str, deep: Callable[[], Evaluation]
) -> Iterator[Evaluation]:
    look = _by_words if quick == "words" else partial(_by_fast_model, quick)
    first = _timed(lambda: look(message, settings))
    yield first
    least = float(settings.get("quick_below", QUICK_BELOW))
    if first.confidence is not None and first.confidence < least:
        why = f"the quick look found a relevance of {first.confidence:.2f}, below {least:g}: not examined further"
        yield first.with_times(confidence=0.0, should_respond=False, stage="deep", reasoning=why)
    else:
        yield _timed(deep)


def _timed(judge: Callable[[], Evaluation]) -> Evaluation:
    started_ns = SYSTEM.steady_ns()
    return judge().with_times(processing_time_ms=_passed_ms(started_ns))


def _by_fast_model(spec: str, message: Message, settings: Context) -> Evaluation:
    timeout_s = float(settings.get("quick_timeout_s", QUICK_TIMEOUT_S))
    return ask(_model(spec), message, {**settings, "timeout_s": timeout_s}, stage="quick")


def _by_words(message: Message, settings: Context) -> Evaluation:
    """The share of longer words that message and persona have in common; a persona called by name has them all."""
    said = set(_words(content_of(message)))
    known = set(_words(str(settings.get("prompt") or "")))
    called = persona_of(settings).lower() in said
    shared = said & known
    relevance = 1.0 if called else min(1.0, len(shared) / 3)
    reason = "called by name" if called else f"words in common: {', '.join(sorted(shared)[:5]) or 'none'}"
    facts = _facts(message, settings, "words", "quick")
    return Evaluation(confidence=relevance, should_respond=relevance > RESPOND_ABOVE, reasoning=reason, **facts)


def _words(text: str) -> list[str]:
    cleaned = "".join(c if c.isalnum() else " " for c in text.lower())
    return [word for word in cleaned.split() if len(word) > 3]


def ask(model: Model, message: Message, settings: Context, stage: Stage = "deep") -> Evaluation:
    """Ask a model for its verdict on a message. Never raises for what the model or its server does."""
    system, prompt = evaluation_prompt(message, settings.get("prompt"), quick=stage == "quick")
    facts = _facts(message, settings, model.spec, stage)
    try:
        said = _complete(model, prompt, system, settings)
    except ModelError as error:
        return Evaluation.failed(error=error, **facts)
    try:
        verdict = read_verdict(said.text)
    except NoVerdict as why:
        return Evaluation.unparsed(said=said.text, why=str(why), **facts)
    return Evaluation(**{**facts, "model": said.model}, **verdict._asdict())


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


def _facts(message: Message, settings: Context, model: str, stage: Stage = "deep") -> dict[str, Any]:
    """What every evaluation tells of itself, whatever came of it."""
    persona = persona_of(settings) or None
    return {"message_id": str(message.get("id", "")), "stage": stage, "persona_id": persona, "model": model}


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


mock.prepare = lambda context: _span(context.get("think_ms", THINK_MS))  # type: ignore[attr-defined]
