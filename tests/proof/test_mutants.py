"""The mutants: each still has its place in the code, some are found here, and a run of them leaves nothing behind.

`make mutants` tries all of them; see tests/proof/mutants.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.proof.mutants import MUTANTS
from tests.proof.mutants.__main__ import attempt
from tests.proof.mutants.layers import AREAS, LAYERS, Layer, LayerFailed, look
from tests.support import ROOT
from tests.support.patience import PATIENCE_S, until

SOURCE = ROOT / "src" / "postroom"
COMMAND = (sys.executable, "-m", "tests.proof.mutants")


def test_every_mutant_replaces_what_stands_once_in_its_file() -> None:
    texts = {file: (SOURCE / file).read_text(encoding="utf-8") for file in {each.file for each in MUTANTS}}
    lost = {each.title: texts[each.file].count(each.right) for each in MUTANTS}
    assert {title: count for title, count in lost.items() if count != 1} == {}
    assert [each.title for each in MUTANTS if each.right == each.wrong] == []


def test_there_are_more_than_fifty_mutants_in_every_part_of_the_product_and_no_two_have_one_name() -> None:
    assert len(MUTANTS) >= 50
    assert len({each.title for each in MUTANTS}) == len(MUTANTS)
    assert [start for start in AREAS if not any(each.file.startswith(start) for each in MUTANTS)] == []


def test_every_test_that_a_layer_names_is_there() -> None:
    named = {word for area in AREAS.values() for words in area[1:] for word in words if word.startswith("tests/")}
    assert len(named) > 10
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "title",
    [
        "stores/tables/steps.py: the fence is forgotten",
        "stores/sqlite/putting.py: a plain send rings nobody",
    ],
)
def test_a_mutant_is_found_by_simulation(title: str) -> None:
    (mutant,) = (each for each in MUTANTS if each.title == title)
    trial = attempt(mutant, (LAYERS[0]._replace(limit_s=10 * PATIENCE_S),))
    assert trial.find is not None, trial
    assert trial.find.said


@pytest.mark.slow
def test_a_mutant_that_the_first_layers_pass_is_found_by_a_later_one_which_is_named() -> None:
    (mutant,) = (each for each in MUTANTS if each.title == "pools/decide.py: a chain of messages is one hop too long")
    passes = Layer("nothing", PATIENCE_S, lambda _: ["-c", ""])
    tests = Layer("units", PATIENCE_S, lambda _: ["-m", "pytest", "-q", "-x", "tests/pools/test_decide.py"])
    trial = attempt(mutant, (passes, tests))
    assert trial.missed_by == ["nothing"]
    assert trial.find is not None
    assert trial.find.said.startswith("test_")


def test_a_layer_that_does_not_end_hangs_and_is_ended(tmp_path: Path) -> None:
    layer = Layer("sleeper", 0.5, lambda _: [])
    seen = look(layer, ["-c", "import time; time.sleep(10_000)"], tmp_path)
    assert (seen.found, seen.hangs) == (False, True)


def test_a_layer_that_cannot_run_is_not_taken_for_a_find(tmp_path: Path) -> None:
    layer = Layer("broken", PATIENCE_S, lambda _: [])
    with pytest.raises(LayerFailed, match=r"broken ended with 4"):
        look(layer, ["-c", "raise SystemExit(4)"], tmp_path)


STARTER = """
import subprocess, sys
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(10_000)"], start_new_session=True).pid)
sys.exit(1)
"""


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="this system does not tell what others started")
def test_what_a_run_has_started_ends_with_it(tmp_path: Path) -> None:
    seen = look(Layer("starter", PATIENCE_S, lambda _: []), ["-c", STARTER], tmp_path)
    assert seen.found
    until(lambda: has_ended(int(seen.said)), "what the layer had started still runs")


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


# From a shell


def test_the_command_lists_mutants_by_their_words() -> None:
    done = subprocess.run([*COMMAND, "--list", "fence"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "stores/sqlite/schema.sql: the fence is forgotten" in done.stdout.splitlines()
    assert all("fence" in line for line in done.stdout.splitlines())


def test_a_word_that_no_mutant_has_is_refused() -> None:
    done = subprocess.run([*COMMAND, "unicorn"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "none has 'unicorn' in its file or name; --list shows them" in done.stderr


@pytest.mark.slow
def test_ctrl_c_ends_the_command_and_leaves_nothing_behind(tmp_path: Path) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    words = [*COMMAND, "pools/queue.py: an answer to an earlier try counts", "--layer", "units"]
    with subprocess.Popen(words, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert b"found by" in process.stdout.readline()
        until(lambda: list(tmp_path.glob("mutant-*/tmp/*")), "pytest has not begun")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert b"interrupted" in err
    assert b"Traceback" not in err
    assert b"0 of 0 mutants found" in out
    assert list(tmp_path.iterdir()) == []
