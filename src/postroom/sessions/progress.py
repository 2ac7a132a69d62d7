"""The progress of a delegation, in one line: workers that are done, that run, that wait and for what."""

from __future__ import annotations

from collections.abc import Sequence

from .deadlock import stuck, wait_words
from .members import Standing
from .runners import WorkerRun


def progress_line(posts: Sequence[WorkerRun], members: Sequence[Standing]) -> str:
    """For instance: `1 of 3 done · running: fetcher · analyzer waits on mailbox tasks`."""
    done = sum(post.over for post in posts)
    by_id = {member.id: member for member in members}
    running, waiting = [], []
    for post in posts:
        member = by_id.get(post.member_id)
        if post.over:
            continue
        if member is None or not member.waits:
            running.append(post.name)
        else:
            waiting += [f"{post.name} waits {wait_words(wait)}" for wait in member.waits]
    parts = [f"{done} of {len(posts)} done"]
    if running:
        parts.append(f"running: {', '.join(running)}")
    if waiting and not running and stuck(members):
        parts.append("stuck until a time-out")
    return " · ".join([*parts, *waiting])
