"""Histories judged from outside: what processes saw of a room, and whether it can have happened.

    recorder = Recorder("history", "worker-1")
    store = RecordedStore(store, recorder)          # in each process; every payload has a "label" of its own
    ...
    verdict = judge(read("history"))                # when all of them are gone
    assert not verdict.impossible, str(verdict)

A history is possible when there is one order of its calls, each at some moment between its beginning and its return,
in which every message lives as `specification` says: delivered at least once, to one owner at a time, fenced by tokens.
Messages and cells are judged one by one, since none knows of the other; the order of claims is judged after that.
"""

from __future__ import annotations

from .judging import HistoryVerdict, Impossible, judge
from .record import RecordedCall, RecordedStore, Recorder, read

__all__ = ["HistoryVerdict", "Impossible", "RecordedCall", "RecordedStore", "Recorder", "judge", "read"]
