"""How well PPO learns CartPole on each side: the return after twenty iterations, once per seed.

    python -m benchmarks.ppo_seeds                            # all sides, five seeds each, minutes
    python -m benchmarks.ppo_seeds --side RLlib --seeds 0,1   # some

from the root of the repository. What it finds is kept in ppo_seeds.json, with versions and command.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime, timezone
from multiprocessing import get_context
from pathlib import Path
from typing import Any

RECORD = Path(__file__).with_name("ppo_seeds.json")


def read_record() -> dict[str, dict[str, Any]]:
    """What was found so far: side to `returns` by seed, `versions`, `command`, `when`."""
    record: dict[str, dict[str, Any]] = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {}
    return record


def final_return(side: str, seed: int) -> float:
    """Train with a seed; the mean return that the side reports at the end."""
    from benchmarks.one_thread import use_one_thread

    use_one_thread()
    from benchmarks.row import Options
    from benchmarks.rows.training import ITERATIONS, trainers

    train = trainers(Options())[side](seed)
    return [train() for _ in range(ITERATIONS)][-1]


def main() -> None:
    """Train, and keep what came out."""
    from benchmarks.results import versions
    from benchmarks.row import FLOOR, OURS, RLLIB

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", choices=(OURS, RLLIB, FLOOR), action="append", help="all of them if none")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    options = parser.parse_args()
    for side in options.side or (OURS, FLOOR, RLLIB):
        returns: dict[str, float] = {}
        for seed in map(int, options.seeds.split(",")):
            with ProcessPoolExecutor(1, get_context("spawn")) as process:  # one each: seeds are the process's
                returns[str(seed)] = process.submit(final_return, side, seed).result()
            print(f"{side}, seed {seed}: {returns[str(seed)]:.1f}", flush=True)
            record = read_record()
            known = record.get(side, {}).get("returns", {})
            record[side] = {
                "returns": {**known, **returns},
                "versions": versions(),
                "command": shlex.join(["python", "-m", "benchmarks.ppo_seeds", *sys.argv[1:]]),
                "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            }
            RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
