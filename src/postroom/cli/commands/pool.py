"""`postroom pool check [PHASE...]`: does a pool of workers work on this machine? With the change since last time."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any, Final

from postroom.cli import exit_codes, output
from postroom.cli.call import Invocation
from postroom.core.clock import SYSTEM, iso
from postroom.core.config import URL_VARIABLE
from postroom.core.system.files import write_file
from postroom.errors import ModelMissing, RoomNotFound

from .pool_scenarios import PHASES

FOLDER: Final = "validation"


def pool_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", metavar="ACTION", choices=["check"], help="check")
    parser.add_argument(
        "phases",
        metavar="PHASE",
        nargs="*",
        help="skeleton, evaluation, inference (needs a model: POSTROOM_MODEL or OLLAMA_HOST), integration, or all (default)",
    )


def pool(call: Invocation) -> int:
    names = _phases(call.args.phases)
    folder, not_kept = _folder(call)
    reports = []
    for name in names:
        report = check(name)
        place = None if folder is None else path_of(folder, name)
        before = None if place is None else _last(place)
        if place is not None:
            place.parent.mkdir(mode=0o700, exist_ok=True)
            kept = {
                "passRate" if key == "pass_rate" else key: value for key, value in report.items()
            }  # the file's word
            write_file(place, (json.dumps(kept, indent=2, ensure_ascii=False) + "\n").encode())
        report |= {"change": change(before, report), "file": place and str(place)}
        reports.append(report)
        if not call.json:
            _show(report, not_kept)
    if call.json:
        output.document(reports)
    return exit_codes.DONE if all(each["pass_rate"] == "100%" for each in reports) else exit_codes.FAILED  # noqa: S105  no password


def _folder(call: Invocation) -> tuple[Path | None, str]:
    """Where results are kept; or None, and why they are not. The check itself needs no room."""
    try:
        return call.room.folder, "not saved: this room has no folder"
    except RoomNotFound:
        if call.args.room or os.environ.get(URL_VARIABLE):
            raise
        return None, "not saved: there is no room here; `postroom init` makes one"


def _phases(words: list[str]) -> list[str]:
    unknown = [word for word in words if word not in (*PHASES, "all")]
    if unknown:
        raise exit_codes.UsageError(f"there is no phase {unknown[0]!r}; choose from {', '.join(PHASES)}, all")
    return list(PHASES) if not words or "all" in words else [name for name in PHASES if name in words]


def check(name: str) -> dict[str, Any]:
    """Run one phase. Returns what is kept of it."""
    phase = PHASES[name]
    details: list[dict[str, Any]] = []
    missing = ""
    for scenario, run in phase.scenarios.items():
        passed, notes, metrics = False, missing, dict[str, float]()
        try:
            if not missing:
                passed, notes, metrics = run()
        except ModelMissing as error:
            notes, missing = f"not run: {error}", "not run: no model is configured"
        except Exception as error:  # noqa: BLE001  the scenario failed; the others are still of interest
            notes = f"{type(error).__name__}: {error}"
        rounded = {key: round(value, 4) for key, value in metrics.items()}
        details.append({"scenario": scenario, "passed": passed, "metrics": rounded, "notes": notes})
    good = sum(detail["passed"] for detail in details)
    return {
        "timestamp": iso(SYSTEM.wall_ms()),
        "phase": phase.title,
        "pass_rate": f"{good * 100 // len(details)}%",
        "details": details,
    }


def path_of(folder: Path, name: str) -> Path:
    """Where the latest results of a phase are kept."""
    return folder / FOLDER / f"worker-{name}-results-latest.json"


def _last(place: Path) -> dict[str, Any] | None:
    """The results of the last time, if there are any that can be read."""
    try:
        last = json.loads(place.read_text(encoding="utf-8"))
        return last if isinstance(last.get("details"), list) else None
    except (OSError, ValueError, AttributeError):
        return None


def change(before: dict[str, Any] | None, now: dict[str, Any]) -> dict[str, str]:
    """The change since the last time, by scenario."""
    if before is None:
        return {}
    known = {each["scenario"]: each for each in before["details"] if isinstance(each, dict) and "scenario" in each}
    return {detail["scenario"]: _change(known.get(detail["scenario"]), detail) for detail in now["details"]}


def _change(last: dict[str, Any] | None, now: dict[str, Any]) -> str:
    if last is None:
        return "new"
    if bool(last.get("passed")) != now["passed"]:
        return "passes now" if now["passed"] else "passed before"
    return _figures(last.get("metrics") or {}, now["metrics"])


def _figures(before: dict[str, Any], now: dict[str, float]) -> str:
    known = {name: last for name in now if isinstance(last := before.get(name), int | float) and last}
    return ", ".join(f"{name} {(now[name] - last) / abs(last):+.0%}" for name, last in known.items())


def _show(report: dict[str, Any], not_kept: str) -> None:
    changes = report["change"]
    rows = [
        ("pass" if each["passed"] else "FAIL", each["scenario"], each["notes"], changes.get(each["scenario"], ""))
        for each in report["details"]
    ]
    output.table(("", "scenario", "found", "since last time"), rows, title=f"{report['phase']}: {report['pass_rate']}")
    output.write(f"saved in {report['file']}" if report["file"] else not_kept)
