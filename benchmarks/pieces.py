"""Times every piece beside its bare expression, and writes docs/piece-table.md.

    python -m benchmarks.pieces                        # everything, some minutes; `make piece-table`
    python -m benchmarks.pieces --only clip_rewards    # some pieces; the others' figures stay
    python -m benchmarks.pieces --page                 # the page alone, of the code and the figures there are

from the root of the repository.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any


def measured(names: Sequence[str], rounds: int, seconds: float) -> dict[str, Any]:
    """Figures of pieces.

    Args:
        names: Registered names; those without an expression have no figures.
        rounds: Turns of each side.
        seconds: About how long a turn is.
    """
    import gc

    from benchmarks.piece_costs import SIZES, sides
    from benchmarks.piece_facts import Bare, all_facts
    from benchmarks.timing import measure, ratios, spread

    facts, found = all_facts(), {}
    gc.freeze()
    for name in names:
        bare = facts[name].bare
        if not isinstance(bare, Bare):
            continue
        found[name] = {}
        for rows in SIZES:
            times = measure(sides(name, bare, rows), rounds=rounds, seconds=seconds)
            ratio = vars(spread(ratios(times["piece"], times["bare"])))
            medians = {side: _short(spread(own).median) for side, own in times.items()}
            found[name][str(rows)] = {**medians, "ratio": {key: _short(value) for key, value in ratio.items()}}
        largest = found[name][str(SIZES[-1])]
        print(f"{name}: {largest['ratio']['median']:.2f} x {1e6 * largest['bare']:.1f} us", flush=True)
    return found


def _short(value: float) -> float:
    return float(f"{value:.3g}")


def joined(before: Mapping[str, Any], found: Mapping[str, Any], known: Sequence[str]) -> dict[str, Any]:
    """The figures of a run with those of earlier ones, which have to be of this machine.

    Args:
        before: As they were saved; {} if there are none.
        found: Of this run.
        known: Names of the pieces that there are.
    """
    from benchmarks.machine import processor, versions

    here = {"machine": {"processor": processor(), "cores used": 1, "threads": 1}, "versions": versions()}
    stays = before.get("pieces", {}) if all(before.get(key) == value for key, value in here.items()) else {}
    pieces = {name: own for name, own in sorted({**stays, **found}.items()) if name in known}
    return {"when": datetime.now(timezone.utc).isoformat(timespec="seconds"), **here, "pieces": pieces}


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    from benchmarks.piece_facts import all_facts
    from benchmarks.piece_page import FIGURES, PAGE, beyond, page

    parser = argparse.ArgumentParser(prog="python -m benchmarks.pieces", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="names of pieces, with commas between; all if none")
    parser.add_argument("--page", action="store_true", help="write the page, and measure nothing")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each side")
    given = parser.parse_args(arguments)
    known, names = list(all_facts()), [name for name in given.only.split(",") if name]
    if strangers := [name for name in names if name not in known]:
        parser.error(f"no facts about {', '.join(strangers)}: add a line in benchmarks/piece_facts/")
    figures = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.is_file() else {}
    if not given.page:
        figures = joined(figures, measured(names or known, given.rounds, seconds=0.02), known)
        FIGURES.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(figures), encoding="utf-8")
    print(f"{PAGE.name}: written; beyond the target: {', '.join(beyond(figures)) or 'none'}")


if __name__ == "__main__":
    from benchmarks.one_thread import use_one_thread

    use_one_thread()
    main()
