"""A room on NATS servers: copies, settings, clocks, versions, and whether changes reach the disk."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import urlopen

from postroom.cli.pages import see

from . import FAIL, OK, WARN, Check

#: The first version with all repairs that a room was tested with.
GOOD_VERSION: Final = (2, 14)
#: Clocks of this machine and of the servers may differ by this before it is worth a word, in seconds.
CLOCK_APART_S: Final = 1.0
SLOW_MS: Final = 50.0
#: From this share of their account's limit on, sends are refused (stores/nats/reserve.py).
NEARLY_FULL: Final = 0.9
_ADVICE_SYNC: Final = f"`sync_interval: always` in each server's jetstream block; see {see('operations/nats')}"


def nats_checks(store: Any, monitors: Sequence[str]) -> Iterator[Check]:
    """The checks of a room's servers."""
    report = store.servers_report()
    yield version(report)
    yield copies(report)
    yield settings(report)
    yield storage(report)
    yield clock(report)
    yield distance(report)
    yield sync(monitors)


def version(report: dict[str, Any]) -> Check:
    """Whether the server is one that rooms were tested with."""
    said = str(report["version"])
    number = tuple(int(part) for part in said.split("-", maxsplit=1)[0].split(".")[:2])
    if number >= GOOD_VERSION:
        return Check("server", OK, f"nats-server {said}")
    wanted = ".".join(map(str, GOOD_VERSION))
    return Check("server", WARN, f"nats-server {said}", f"upgrade to {wanted} or later, one server after the other")


def copies(report: dict[str, Any]) -> Check:
    """Whether the room outlives a server."""
    wanted = int(report["copies"])
    others: list[dict[str, Any]] = report["others"]
    if wanted == 1:
        says = "one copy: the room is lost with that server's disk, and unavailable while the server is down"
        return Check("copies", WARN, says, "run three servers (`postroom nats config --nodes 3`)")
    late = [str(each["name"]) for each in others if not each.get("current") or each.get("offline")]
    says = f"{wanted} copies; {report['leader']} leads"
    if report["leader"] is None or 1 + len(others) - len(late) <= wanted // 2:
        return Check(
            "copies", FAIL, f"{wanted} copies, but no majority of them is reachable", "start the other servers"
        )
    if late:
        advice = "start it, or wait until it has caught up"
        return Check("copies", WARN, f"{says}; not current: {', '.join(late)}", advice)
    return Check("copies", OK, f"{says}, all are current")


def settings(report: dict[str, Any]) -> Check:
    """Whether the room's stream still is as Postroom made it."""
    wrong = [f"{name} is {there!r} instead of {wanted!r}" for name, (there, wanted) in report["differences"].items()]
    if wrong:
        advice = "the stream was changed; set it back with `nats stream edit`, or messages may be dropped"
        return Check("stream", FAIL, "; ".join(wrong), advice)
    size_mb = report["bytes"] / 1024**2
    return Check("stream", OK, f"unchanged; {report['entries']} entries, {size_mb:.1f} MB")


def storage(report: dict[str, Any]) -> Check:
    """Whether there is space, and whether the servers can bear it when there is none."""
    used, limit = int(report["account_bytes"]), int(report["account_limit_bytes"])
    if limit > 0:
        says = f"{used / 1024**2:.1f} of {limit / 1024**2:.1f} MB of the room's account are used"
        if used <= limit * NEARLY_FULL:
            return Check("storage", OK, says)
        return Check("storage", WARN, f"{says}; sends are refused", "purge finished messages, or raise the limit")
    if report["copies"] == 1:
        return Check("storage", OK, "bounded by the server's max_file; sends are refused when that is reached")
    says = (
        "the room's account has no limit, and clustered servers that reach their max_file can no longer elect a leader"
    )
    return Check("storage", WARN, says, "give it one: jetstream: { max_file: … }, as `postroom nats config` writes it")


def clock(report: dict[str, Any]) -> Check:
    """Whether this machine and the servers agree on the time."""
    apart_s = float(report["clock_apart_s"])
    says = f"{abs(apart_s):.3f} s between this machine's clock and the server's"
    if abs(apart_s) <= CLOCK_APART_S:
        return Check("server clock", OK, says)
    advice = "use NTP on both; leases follow the servers' time, but the times that ledgers show do not"
    return Check("server clock", WARN, says, advice)


def distance(report: dict[str, Any]) -> Check:
    """How long the leader takes to answer."""
    took_ms = float(report["round_trip_ms"])
    says = f"the leader answers in {took_ms:.1f} ms"
    if took_ms <= SLOW_MS:
        return Check("distance", OK, says)
    return Check("distance", WARN, says, "every send, claim and ack takes at least this long: use a nearer server")


def sync(monitors: Sequence[str]) -> Check:
    """Whether changes are on the disk before they are confirmed. Only a server's monitoring port tells."""
    if not monitors:
        says = "clients cannot tell whether changes are on disk before they are confirmed"
        advice = "ask each server's monitoring port: postroom doctor --monitor http://HOST:8222"
        return Check("sync", WARN, says, advice)
    without, unreachable = [], []
    for monitor in monitors:
        try:
            if not _sync_always(monitor):
                without.append(monitor)
        except (OSError, ValueError, KeyError) as error:
            unreachable.append(f"{monitor} ({error})")
    if unreachable:
        return Check("sync", FAIL, f"no answer from {', '.join(unreachable)}", "is that the server's `http` port?")
    if without:
        says = (
            f"{', '.join(without)}: confirmed changes may be only in memory for two minutes, and a power cut loses them"
        )
        return Check("sync", FAIL, says, _ADVICE_SYNC)
    return Check("sync", OK, "every change is on disk before it is confirmed")


def _sync_always(monitor: str) -> bool:
    if urlsplit(monitor).scheme not in ("http", "https"):
        raise ValueError("an address begins with http://")
    with urlopen(f"{monitor.rstrip('/')}/varz", timeout=5) as reply:  # noqa: S310  (the scheme was looked at)
        varz: dict[str, Any] = json.loads(reply.read())
    return bool(varz["jetstream"]["config"].get("sync_always"))
