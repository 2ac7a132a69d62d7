"""Prompts: `think { }` asks a language model, `ask { }` asks a person, `askMany()` agents of the room.

A prompt that wants a value of some shape asks for JSON and checks what comes; what does not fit is sent back once, with
what is wrong. The steps of a prompt (`do { code }`) are run when the model asks for them; it gets their results.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from postroom import inference
from postroom.errors import RoomClosed, SessionEnded, SessionFailed
from postroom.lang.values import values
from postroom.lang.values.kinds import shown
from postroom.lang.values.raised import NoAnswer, WrongValue
from postroom.lang.values.schemas import Schema, from_text, is_text, said

from . import human, transcript
from .context import Context, current

MAX_TOKENS: Final = 4096
TIMEOUT_S: Final = 600.0
#: How often a model may run steps before it answers.
MAX_STEPS: Final = 50
#: So many characters of a step's result are shown to the model.
MAX_SHOWN: Final = 20_000
#: How often a person is asked again for an answer that does not fit.
MAX_ASKED: Final = 3

_STEP: Final = re.compile(r"\s*`*\s*DO\s+(\d+)\s*`*\s*", re.IGNORECASE)
_FENCED: Final = re.compile(r"\s*```[\w-]*\n(.*?)\n?```\s*", re.DOTALL)
_FENCE_INSIDE: Final = re.compile(r"```(?:json)?\s*\n(.*?)\n?```", re.DOTALL)

Step = Callable[[], Any]


def think(prompt: str, schema: Schema | None = None, steps: Sequence[Step] = ()) -> Any:
    """The answer of the model: text, or a value of that shape; null, or an empty text, when it answered nothing.

    Raises NoAnswer when the answer is not of that shape even after one more try.
    """
    shape = schema or {}
    told = prompt + _about_steps(len(steps)) + _about_shape(shape)
    repaired = False
    for _ in range(MAX_STEPS + 2):
        answer = _complete(told, {} if steps else shape)
        number = _step_asked_for(answer, len(steps))
        if number:
            told += f"\n\nYou asked for step {number}. {_run_step(steps[number - 1])}\nGo on."
            continue
        if is_text(shape):
            return _unwrapped(answer)
        if not answer.strip():
            return None
        try:
            return _shaped(answer, shape)
        except ValueError as error:
            if repaired:
                raise NoAnswer(f"the model's answer is not {said(shape)}: {error}; it was: {_short(answer)}") from None
            repaired = True
            told += f"\n\nYou answered:\n{answer}\n\nThat does not fit: {error}.{_about_shape(shape)}"
    raise NoAnswer(f"the model asked for steps {MAX_STEPS} times and gave no answer")


def ask(prompt: str, schema: Schema | None = None, steps: Sequence[Step] = ()) -> Any:
    """The answer of the person: text, or a value of that shape. They may run steps too, by writing DO and its number.

    Raises NoAnswer when nobody can be asked, or when no answer of that shape came.
    """
    shape = schema or {}
    told = prompt
    tries = 0
    while tries < MAX_ASKED:
        answer = _ask_somebody(told)
        number = _step_asked_for(answer, len(steps))
        if number:
            told = _run_step(steps[number - 1])
            continue
        tries += 1
        try:
            return from_text(answer.strip(), shape) if not is_text(shape) else answer
        except ValueError as error:
            told = f"That does not fit: {error}. It must be {said(shape)}.\n{prompt}"
    raise NoAnswer(f"no answer was {said(shape)}")


def askMany(names: Any, question: Any, enough: Any = "all", milliseconds: Any = None) -> dict[str, Any]:  # noqa: N802
    """The answers of several agents of the room, by name, and why the others gave none; see `Agent.ask_many`.

    Raises WrongValue for names, a number or a time that are none. An agent that does not answer raises nothing.
    """
    context = current()
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise WrongValue('askMany() takes a list of the names of agents, such as ["bob", "cy"]')
    if milliseconds is not None and (isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float)):
        raise WrongValue(f"askMany() takes milliseconds as its fourth value, not {shown(milliseconds)}")
    text = question if isinstance(question, str) else values.compact(question)
    payload = question if isinstance(question, dict) else {"text": text, "worker": context.name}
    timeout_s = context.settings.answer_timeout_s if milliseconds is None else milliseconds / 1000

    def get() -> str:
        room, who = context.settings.room, context.name
        return values.compact(human.ask_many_in_room(room, names, who, payload, enough, timeout_s))

    given: dict[str, Any] = json.loads(_answered(context, "askMany", text, get))
    return given


# The model


def _complete(prompt: str, schema: Schema) -> str:
    context = current()
    settings = context.settings

    def get() -> str:
        model: inference.Model = context.keep("model", lambda: _open_model(settings.model))
        timeout_s = settings.answer_timeout_s or TIMEOUT_S
        return model.complete(prompt, schema=schema or None, max_tokens=MAX_TOKENS, timeout_s=timeout_s).text

    return _answered(context, "think", prompt, get)


def _open_model(spec: str | None) -> inference.Model:
    return inference.open_model(spec)


def _answered(context: Context, kind: str, prompt: str, get: Callable[[], str]) -> str:
    """An answer from the transcript, or a new one, which is recorded."""
    settings = context.settings
    if settings.replay:
        path = settings.replay
        recorded: transcript.Transcript = context.keep("transcript", lambda: transcript.Transcript(path, context.name))
        return recorded.answer(kind, prompt)
    answer = get()
    if settings.record:
        transcript.record(settings.record, context.name, kind, prompt, answer)
    return answer


def _about_shape(shape: Schema) -> str:
    if is_text(shape):
        return ""
    return f"\n\nAnswer with JSON alone, without any other words, that obeys this JSON schema:\n{json.dumps(shape)}"


def _about_steps(count: int) -> str:
    if not count:
        return ""
    which = "[step 1]" if count == 1 else f"[step 1] to [step {count}]"
    return (
        f"\n\n{which} in the text above stand for work that is ready to be run. To run one, answer with DO and its number"
        " and nothing else, for instance: DO 1\nYou will be told what it gave. When you need none any more, give your answer."
    )


def _step_asked_for(answer: str, count: int) -> int:
    match = _STEP.fullmatch(answer)
    number = int(match[1]) if match and count else 0
    return number if 1 <= number <= count else 0


def _run_step(step: Step) -> str:
    """Run a step; its result, or why it failed, in words for the model or person that asked for it."""
    try:
        given = step()
    except (SessionFailed, SessionEnded, RoomClosed):
        raise
    except Exception as error:  # noqa: BLE001  the model or person decides what follows from it
        return f"It failed: {_short(str(error))}"
    if given is None:
        return "It is done."
    text = given if isinstance(given, str) else values.pretty(given)
    return f"It gave:\n{_short(text)}"


def _short(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + f"\n(and {len(text) - MAX_SHOWN} characters more)"


def _unwrapped(answer: str) -> str:
    """The answer without the fence that some models put around all they say."""
    match = _FENCED.fullmatch(answer)
    return match[1] if match else answer.strip()


def _shaped(answer: str, shape: Schema) -> Any:
    """The value in an answer; a fenced one counts when there are words around it."""
    try:
        return from_text(_unwrapped(answer), shape)
    except ValueError:
        inside = _FENCE_INSIDE.findall(answer)
        if len(inside) != 1:
            raise
        return from_text(inside[0], shape)


# The person


def _ask_somebody(question: str) -> str:
    context = current()
    settings = context.settings

    def get() -> str:
        whom = settings.human or (settings.terminal if context.worker else None)
        if whom is not None:
            return human.ask_in_room(settings.room, whom, context.name, question, settings.answer_timeout_s)
        return human.TERMINAL.ask(question, context.name)

    return _answered(context, "ask", question, get)
