"""Put faults into copies of the product, one at a time, and see which layer of the tests finds each, and how fast.

    python -m tests.proof.mutants                     all of them (an hour); a table in Markdown
    python -m tests.proof.mutants "fence"             those with that word in their file or name
    python -m tests.proof.mutants stores/sqlite --layer simulation
    python -m tests.proof.mutants --unspoilt          the layers on the code as it is: none may find anything
    python -m tests.proof.mutants --list              the mutants, without running them

The layers are tried in turn, and the first that finds the fault ends it: simulated schedules (60 s), traces of the
specification, the contract of stores and models, histories of processes, the tests of the package.

Ends with 1 when a mutant is found by no layer, with 130 on Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from typing import NamedTuple

from tests.proof.mutants import MUTANTS, Mutant
from tests.proof.mutants.layers import AREAS, LAYERS, SIMULATED_S, Layer, LayerFailed, Look, look, spoilt

_SEEN_CHARS = 110


class Trial(NamedTuple):
    """A mutant, and what each layer that was tried came to."""

    mutant: Mutant
    looks: list[Look]
    trouble: str = ""

    @property
    def find(self) -> Look | None:
        return next((each for each in self.looks if each.found), None)

    @property
    def missed_by(self) -> list[str]:
        return [f"{each.layer} (hangs)" if each.hangs else each.layer for each in self.looks if not each.found]

    def to_dict(self) -> dict[str, object]:
        find = self.find
        return {
            "file": self.mutant.file,
            "name": self.mutant.name,
            "found": find is not None,
            "layer": None if find is None else find.layer,
            "seconds": None if find is None else round(find.seconds, 1),
            "said": None if find is None else find.said,
            "missed_by": self.missed_by,
            "trouble": self.trouble or None,
        }

    def to_row(self) -> str:
        find = self.find
        layer = "**none**" if find is None else find.layer
        seconds = "" if find is None else f"{find.seconds:.1f} s"
        said = self.trouble.partition("\n")[0] or (
            f"passed: {', '.join(self.missed_by)}" if find is None else find.said
        )
        return f"| `{self.mutant.file}` | {self.mutant.name} | {layer} | {seconds} | {_cell(said)} |"


def _cell(text: str) -> str:
    text = text.replace("|", "/")
    return text if len(text) <= _SEEN_CHARS else text[: _SEEN_CHARS - 1] + "…"


HEAD = "| file | fault | found by | after | what was seen |\n| --- | --- | --- | ---: | --- |"


def attempt(mutant: Mutant, layers: tuple[Layer, ...]) -> Trial:
    """Look for a mutant, layer by layer, until one finds it."""
    looks: list[Look] = []
    with spoilt(mutant) as folder:
        for layer in layers:
            words = layer.words(mutant)
            if not words:
                continue
            try:
                looks.append(look(layer, words, folder))
            except LayerFailed as trouble:
                return Trial(mutant, looks, str(trouble))
            if looks[-1].found:
                break
    return Trial(mutant, looks)


def summary(trials: list[Trial], within_s: float = SIMULATED_S) -> str:
    """How many were found, and by which layers."""
    finds = Counter(trial.find.layer for trial in trials if trial.find is not None)
    by_layer = ", ".join(f"{finds[layer.name]} by {layer.name}" for layer in LAYERS if finds[layer.name])
    simulated = finds[LAYERS[0].name]
    share = f"{simulated} ({100 * simulated / len(trials):.0f} %) by simulation within {within_s:g} s" if trials else ""
    return f"{finds.total()} of {len(trials)} mutants found: {by_layer or 'none'}; {share}"


def try_unspoilt(layers: tuple[Layer, ...]) -> bool:
    """Run every layer on the code as it is. Returns whether none found anything."""
    good = True
    seen: set[tuple[str, ...]] = set()
    with spoilt(None) as folder:
        for layer in layers:
            for start in AREAS:
                words = layer.words(Mutant(start, "", "", ""))
                if not words or tuple(words) in seen:
                    continue
                seen.add(tuple(words))
                seen_there = look(layer, words, folder)
                good = good and not (seen_there.found or seen_there.hangs)
                verdict = "FOUND" if seen_there.found else "HANGS" if seen_there.hangs else "nothing"
                print(f"{verdict:8} {layer.name} of {start}: {seen_there.seconds:.0f} s {seen_there.said}", flush=True)
    return good


def main() -> int:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.proof.mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", help="only mutants with one of these in their file or name")
    parser.add_argument("--layer", action="append", choices=[layer.name for layer in LAYERS], help="only this layer")
    parser.add_argument(
        "--within", type=float, default=SIMULATED_S, metavar="SECONDS", help="how long is simulated (default: 60)"
    )
    parser.add_argument("--list", action="store_true", help="list the mutants")
    parser.add_argument("--unspoilt", action="store_true", help="run the layers on the code as it is")
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    asked = parser.parse_args()
    chosen = [each for each in MUTANTS if not asked.words or any(word in each.title for word in asked.words)]
    if not chosen:
        print(
            f"mutants: none has {' or '.join(map(repr, asked.words))} in its file or name; --list shows them",
            file=sys.stderr,
        )
        return 2
    simulation = LAYERS[0]._replace(limit_s=asked.within)
    layers = tuple(layer for layer in (simulation, *LAYERS[1:]) if not asked.layer or layer.name in asked.layer)
    if asked.list:
        print("\n".join(each.title for each in chosen))
        return 0
    trials: list[Trial] = []
    try:
        if asked.unspoilt:
            return 0 if try_unspoilt(layers) else 1
        if not asked.json:
            print(HEAD, flush=True)
        for mutant in chosen:
            trials.append(attempt(mutant, layers))
            if not asked.json:
                print(trials[-1].to_row(), flush=True)
    except LayerFailed as trouble:
        print(f"mutants: {trouble}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        _tell(trials, asked.within, in_json=asked.json)
        return 130
    _tell(trials, asked.within, in_json=asked.json)
    return 0 if all(trial.find is not None for trial in trials) else 1


def _tell(trials: list[Trial], within_s: float, *, in_json: bool) -> None:
    if in_json:
        print(
            json.dumps(
                {"mutants": [trial.to_dict() for trial in trials], "summary": summary(trials, within_s)}, indent=2
            )
        )
    else:
        print(f"\n{summary(trials, within_s)}")


if __name__ == "__main__":
    sys.exit(main())
