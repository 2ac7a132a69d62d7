"""Settings of the test run: which share of the long tests is to be run, failures told at once, figures at its end.

The storms (`@pytest.mark.long`) take minutes each. CI runs them in turns: with `--long-share 2/7`, or
POSTROOM_LONG_SHARE=2/7, only every seventh of them runs, beginning with the third. All shares together are all tests.
With `--long-for 600`, or POSTROOM_LONG_FOR_S=600, none of them begins after ten minutes. `--share`, or POSTROOM_SHARE, is
the same for all other tests: CI runs a share of them each day with POSTROOM_PORTABLE=1.
"""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes to make depends on what else the machine does, and is no fault of a test.
settings.register_profile("postroom", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("postroom")

# A run that was started in the background of a script has SIGINT ignored, and so would every program that it starts:
# those that test a Ctrl-C would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Programs of tests whose processes share one pipe must write each line in one write: an unbuffered `print` writes its
# parts, and the end of the line, apart.
os.environ.pop("PYTHONUNBUFFERED", None)

# What tests leave among the temporary files goes with the run: a session that failed keeps its folder, for people to look
# at, and rooms without a folder have it there. pytest's own folders stay where it keeps the last three of them.
if "PYTEST_XDIST_WORKER" not in os.environ:  # which has those of the run that started it
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="postroom-tests-")
    os.chmod(os.environ["TMPDIR"], 0o711)  # noqa: S103  tests act as other users in folders below
    tempfile.tempdir = None  # looked up anew
    atexit.register(shutil.rmtree, os.environ["TMPDIR"], ignore_errors=True)

# Rooms that tests make are trusted in a configuration of the run's own, not in that of its user.
os.environ["POSTROOM_CONFIG"] = tempfile.mkdtemp(prefix="config-")


def parse_share(text: str) -> tuple[int, int]:
    """`k/n` as two numbers, k from 0 up to n - 1."""
    first, slash, second = text.partition("/")
    if not (slash and first.isdigit() and second.isdigit() and int(first) < int(second)):
        raise pytest.UsageError(f"a share is written k/n with k from 0 to n - 1, for instance 2/7; not {text!r}")
    return int(first), int(second)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the share be given on the command line; the environment is the default."""
    parser.addoption(
        "--long-share",
        metavar="K/N",
        default=os.environ.get("POSTROOM_LONG_SHARE") or "0/1",
        help="of the long tests, run every Nth, beginning with number K (default: all of them)",
    )
    parser.addoption(
        "--share",
        metavar="K/N",
        default=os.environ.get("POSTROOM_SHARE") or "0/1",
        help="of the tests that are not long, run every Nth, beginning with number K (default: all of them)",
    )
    parser.addoption(
        "--long-for",
        metavar="SECONDS",
        type=float,
        default=float(os.environ.get("POSTROOM_LONG_FOR_S") or "inf"),
        help="begin no long test when the run has taken that long; those that are left out are named (default: no end)",
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:  # noqa: ARG001  (its name is given)
    """What is collected stays for the whole run: nobody looks through it for garbage, now or in the middle of a test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of other shares, counted in the order of their names."""
    others: set[str] = set()
    for option, is_long in (("--long-share", True), ("--share", False)):
        k, n = parse_share(config.getoption(option))
        of_kind = sorted(item.nodeid for item in items if bool(item.get_closest_marker("long")) is is_long)
        others |= {nodeid for index, nodeid in enumerate(of_kind) if index % n != k}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in others])
    items[:] = [item for item in items if item.nodeid not in others]
    # The share is this run's own: a pytest that one of its tests starts runs all that the test names.
    for name in ("POSTROOM_SHARE", "POSTROOM_LONG_SHARE", "POSTROOM_LONG_FOR_S"):
        os.environ.pop(name, None)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """In the process that shows the results, tell failures as they come."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if isinstance(terminal, pytest.TerminalReporter):
        config.pluginmanager.register(_FailuresAtOnce(terminal), "failures-at-once")


class _FailuresAtOnce:
    """Shows a failure when it happens, not only at the end: a run that is cut off in between has still told it."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._terminal.ensure_newline()
            self._terminal.section(f"{report.when} of {report.nodeid} failed", sep="_")
            self._terminal.write_line(report.longreprtext)


_BEGUN_S = time.monotonic()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a long test for which there is no time left: on a slow machine a share ends early, and says so."""
    limit_s = item.config.getoption("--long-for")
    if item.get_closest_marker("long") and time.monotonic() - _BEGUN_S > limit_s:
        pytest.skip(f"not run: the {limit_s:g} s for long tests are over; make test-long runs all of them")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """What a test ignores of the destructors that it upsets comes while it is ignored, not in the middle of a later test."""
    try:
        return (yield)
    finally:
        if any(_IGNORES in given for mark in item.iter_markers("filterwarnings") for given in mark.args):
            gc.collect()


_IGNORES = "ignore::pytest.PytestUnraisableExceptionWarning"


@pytest.fixture(scope="module", autouse=True)
def _what_a_file_left_is_collected_with_it() -> Iterator[None]:
    """A socket that a test did not close is told of at the end of its file, not in the middle of a test of another."""
    yield
    gc.collect()


_figures: list[str] = []


@pytest.fixture
def figure() -> Callable[[str], None]:
    """Tell a measured figure; it is shown at the end of the run."""
    return _figures.append


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:  # noqa: ARG001  (the plugin names its arguments)
    """One of several processes that run the tests has ended: its figures are shown with the others."""
    _figures.extend(getattr(node, "workeroutput", {}).get("figures", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what the tests measured."""
    if _figures:
        terminalreporter.section("figures of the fault tests")
        for line in _figures:
            terminalreporter.line(line)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Hand figures on to the process that shows them. An empty share is not a failure: there may be few long tests."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["figures"] = _figures
    if (
        exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED
        and parse_share(session.config.getoption("--long-share"))[1] > 1
    ):
        session.exitstatus = pytest.ExitCode.OK
