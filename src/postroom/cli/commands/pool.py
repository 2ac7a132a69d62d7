"""`postroom pool check [PHASE...]`: does a pool of workers do what it must, on this machine? With the change since last time."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from postroom.cli import exit_codes, output
from postroom.core.clock import SYSTEM, iso
from postroom.errors import ModelMissing

if TYPE_CHECKING:
    from postroom.cli.call import Invocation

#: The phases in their order; what they do is loaded when they are run.
PHASE_NAMES: Final = ("skeleton", "evaluation", "inference", "integration")
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
    folder = call.room.folder
    reports = []
    for name in names:
        report = check(name)
        before = _last(folder, name)
        kept = _keep(folder, name, report)
        report["change"] = change(before, report)
        report["file"] = str(kept) if kept is not None else None
        reports.append(report)
        if not call.json:
            _show(report)
    if call.json:
        output.document(reports)
    return exit_codes.DONE if all(each["passRate"] == "100%" for each in reports) else exit_codes.FAILED


def _phases(words: list[str]) -> list[str]:
    unknown = [word for word in words if word not in (*PHASE_NAMES, "all")]
    if unknown:
        raise exit_codes.UsageError(f"there is no phase {unknown[0]!r}; there are: {', '.join(PHASE_NAMES)}, all")
    return list(PHASE_NAMES) if not words or "all" in words else [name for name in PHASE_NAMES if name in words]


def check(name: str) -> dict[str, Any]:
    """Run one phase. Returns what is kept of it."""
    from .pool_scenarios import PHASES, Finding

    phase = PHASES[name]
    details = []
    missing = ""
    for scenario, run in phase.scenarios.items():
        try:
            passed, notes, metrics = Finding(passed=False, notes=missing, metrics={}) if missing else run()
        except ModelMissing as error:
            passed, notes, metrics = False, f"not run: {error}", {}
            missing = "not run: there is no model"
        except Exception as error:  # noqa: BLE001  whatever it is, the scenario failed, and the others are still of interest
            passed, notes, metrics = False, f"{type(error).__name__}: {error}", {}
        rounded = {key: round(value, 4) for key, value in metrics.items()}
        details.append({"scenario": scenario, "passed": passed, "metrics": rounded, "notes": notes})
    good = sum(detail["passed"] for detail in details)  # type: ignore[misc]
    return {
        "timestamp": iso(SYSTEM.wall_ms()),
        "phase": phase.title,
        "passRate": f"{good * 100 // len(details)}%",
        "details": details,
    }


def path_of(folder: Path, name: str) -> Path:
    """Where the latest results of a phase are kept."""
    return folder / FOLDER / f"worker-{name}-results-latest.json"


def _last(folder: Path | None, name: str) -> dict[str, Any] | None:
    """The results of the last time, if there are any that can be read."""
    if folder is None:
        return None
    try:
        last = json.loads(path_of(folder, name).read_text(encoding="utf-8"))
        return last if isinstance(last.get("details"), list) else None
    except (OSError, ValueError, AttributeError):
        return None


def _keep(folder: Path | None, name: str, report: dict[str, Any]) -> Path | None:
    """Write the results where the next run finds them: whole, or not at all."""
    if folder is None:
        return None
    path = path_of(folder, name)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    draft.replace(path)
    return path


def change(before: dict[str, Any] | None, now: dict[str, Any]) -> dict[str, str]:
    """What is different from the last time, by scenario."""
    if before is None:
        return {}
    known = {
        detail["scenario"]: detail for detail in before["details"] if isinstance(detail, dict) and "scenario" in detail
    }
    found = {}
    for detail in now["details"]:
        last = known.get(detail["scenario"])
        if last is None:
            found[detail["scenario"]] = "new"
        elif bool(last.get("passed")) != detail["passed"]:
            found[detail["scenario"]] = "passes now" if detail["passed"] else "passed before"
        else:
            found[detail["scenario"]] = _figures(last.get("metrics") or {}, detail["metrics"])
    return found


def _figures(before: dict[str, Any], now: dict[str, float]) -> str:
    parts = []
    for name, value in now.items():
        last = before.get(name)
        if isinstance(last, int | float) and last:
            parts.append(f"{name} {(value - last) / abs(last):+.0%}")
    return ", ".join(parts)


def _show(report: dict[str, Any]) -> None:
    changes = report["change"]
    rows = [
        (
            "pass" if detail["passed"] else "FAIL",
            detail["scenario"],
            detail["notes"],
            changes.get(detail["scenario"], ""),
        )
        for detail in report["details"]
    ]
    output.table(("", "scenario", "found", "since last time"), rows, title=f"{report['phase']}: {report['passRate']}")
    output.write(f"kept in {report['file']}" if report["file"] else "not kept: this room has no folder")
