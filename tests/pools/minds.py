"""Evaluators for tests of the pool: each does one thing that minds do, or should not."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from postroom.pools.evaluation import Evaluation

Message = dict[str, Any]


def plain(message: Message) -> Evaluation:
    return Evaluation(message["id"], 0.7, True, f"about {message.get('content')}")


def echo(message: Message, context: dict[str, Any]) -> dict[str, Any]:
    return {"confidence": 0.9, "reasoning": f"{context}"}


def act(message: Message) -> Any:
    """Does what the message says: sleep, raise, hang, die, …"""
    word, _, rest = str(message.get("content", "")).partition(" ")
    return getattr(_Acts, word)(message, rest)


def _fine(message: Message, why: str = "") -> Evaluation:
    return Evaluation(message["id"], 0.6, True, why)


class _Acts:
    @staticmethod
    def say(message: Message, rest: str) -> Any:
        return _fine(message, rest)

    @staticmethod
    def pid(message: Message, rest: str) -> Any:
        return _fine(message, str(os.getpid()))

    @staticmethod
    def hire(message: Message, rest: str) -> Any:
        """Starts a program that stays."""
        _hired.append(subprocess.Popen(["sleep", "600"]))
        return _fine(message, str(_hired[-1].pid))

    @staticmethod
    def sleep(message: Message, rest: str) -> Any:
        time.sleep(float(rest))
        return _fine(message, "slept")

    @staticmethod
    def meet(message: Message, rest: str) -> Any:
        """Waits in a folder until so many are there."""
        count, folder = rest.split(maxsplit=1)
        Path(folder, str(os.getpid())).touch()
        while len(os.listdir(folder)) < int(count):
            time.sleep(0.005)
        return _fine(message, "met")

    @staticmethod
    def spin(message: Message, rest: str) -> Any:
        """Uses the processor, in Python."""
        until = time.monotonic() + float(rest)
        while time.monotonic() < until:
            pass
        return _fine(message, "spun")

    @staticmethod
    def stubborn(message: Message, rest: str) -> Any:
        """Goes on when it is told to stop."""
        until = time.monotonic() + float(rest)
        while time.monotonic() < until:
            try:
                time.sleep(0.05)
            except BaseException:
                print("not now")
        return _fine(message, "at last")

    @staticmethod
    def deaf(message: Message, rest: str) -> Any:
        """Hangs in C code that holds the interpreter."""
        import re

        re.match(r"(a+)+$", "a" * 64 + "b")

    @staticmethod
    def stop(message: Message, rest: str) -> Any:
        os.kill(os.getpid(), signal.SIGSTOP)

    @staticmethod
    def die(message: Message, rest: str) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    @staticmethod
    def exit(message: Message, rest: str) -> Any:
        print("I have had enough")
        raise SystemExit(int(rest))

    @staticmethod
    def raises(message: Message, rest: str) -> Any:
        raise ValueError(rest)

    @staticmethod
    def nonsense(message: Message, rest: str) -> Any:
        return 7

    @staticmethod
    def too_sure(message: Message, rest: str) -> Any:
        return {"confidence": 1.5}

    @staticmethod
    def half_an_emoji(message: Message, rest: str) -> Any:
        return {"confidence": 0.5, "reasoning": "cut \ud83d"}

    @staticmethod
    def half_an_emoji_at_first(message: Message, rest: str) -> Iterator[Any]:
        yield Evaluation(message["id"], 0.4, False, "cut \ud83d", stage="quick")

    @staticmethod
    def raises_half_an_emoji(message: Message, rest: str) -> Any:
        raise ValueError("cut \ud83d")

    @staticmethod
    def raises_speechless(message: Message, rest: str) -> Any:
        raise _SpeechlessError

    @staticmethod
    def wrong_id(message: Message, rest: str) -> Any:
        return Evaluation("another", 0.5)

    @staticmethod
    def hang_up(message: Message, rest: str) -> Any:
        os.closerange(3, 100)
        time.sleep(600)

    @staticmethod
    def two_looks(message: Message, rest: str) -> Iterator[Any]:
        yield Evaluation(message["id"], 0.4, False, "at first sight", stage="quick")
        time.sleep(float(rest))
        yield Evaluation(message["id"], 0.9, True, "on reflection")

    @staticmethod
    def one_look(message: Message, rest: str) -> Iterator[Any]:
        yield Evaluation(message["id"], 0.2, False, "not for me", stage="quick")

    @staticmethod
    def no_look(message: Message, rest: str) -> Iterator[Any]:
        return iter(())

    @staticmethod
    def grow(message: Message, rest: str) -> Any:
        _kept.append(bytearray(os.urandom(1) * (1 << 20)))
        return _fine(message, str(len(_kept)))

    @staticmethod
    def note(message: Message, rest: str) -> Any:
        """Leaves a line in a file: how often was it run?"""
        with open(rest, "a", encoding="utf-8") as file:
            file.write(f"{message['id']}\n")
        return _fine(message)


class _SpeechlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


_kept: list[bytearray] = []
_hired: list[subprocess.Popen[bytes]] = []


def task(message: Message) -> Evaluation:
    """A task from a room: notes that it begins, works for a moment, notes that it is done."""
    payload = message["payload"]
    with open(payload["journal"], "ab", buffering=0) as file:
        file.write(f"began {payload['n']} {os.getpid()}\n".encode())
        time.sleep(payload.get("work_s", 0))
        file.write(f"ended {payload['n']} {os.getpid()}\n".encode())
    return Evaluation(message["id"], 1.0, True, str(payload["n"]))


def not_there_yet(message: Message) -> Evaluation:
    return plain(message)


def _slow_start(context: dict[str, Any]) -> None:
    print("loading a large model")
    time.sleep(60)


def _broken_start(context: dict[str, Any]) -> None:
    print("the model's file is damaged")
    raise RuntimeError("no model")


def _once_start(context: dict[str, Any]) -> None:
    """Starts well once."""
    mark = Path(context["mark"])
    if mark.exists():
        raise RuntimeError("no model any more")
    mark.touch()


def _note_start(context: dict[str, Any]) -> None:
    with open(context["journal"], "a", encoding="utf-8") as file:
        file.write(f"{os.getpid()}\n")


def slow_to_start(message: Message) -> Evaluation:
    return plain(message)


def broken_from_the_start(message: Message) -> Evaluation:
    return plain(message)


def starts_once(message: Message) -> Any:
    return act(message)


def noted_start(message: Message) -> Any:
    return act(message)


slow_to_start.prepare = _slow_start  # type: ignore[attr-defined]
broken_from_the_start.prepare = _broken_start  # type: ignore[attr-defined]
starts_once.prepare = _once_start  # type: ignore[attr-defined]
noted_start.prepare = _note_start  # type: ignore[attr-defined]
