"""Train the zoo: each task with three seeds, beside Stable-Baselines3 where it has the algorithm, and draw the page.

Run it from the repository root. It needs `pip install -r examples/zoo/requirements.txt`:

    python -m examples.zoo.train                          # all that has no curves yet: hours
    python -m examples.zoo.train hopper_ppo --seeds 1     # one task
    python -m examples.zoo.train --draw                   # pictures and docs/zoo.md, from the curves that are there

A curve is the mean return of the last episodes, as each library reports it, over environment steps. Curves are rows of
`curves/TASK.LIBRARY.csv`; `curves/runs.csv` has the processor's seconds of each run, its start included.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from examples.zoo.page import CURVES, RUNS, rows_of, settings_of, write

BUILD = Path("build/zoo")
WRITING = Lock()


@dataclass(frozen=True)
class Job:
    """One seed of one task with one library."""

    task: str
    library: str
    seed: int

    @property
    def steps(self) -> int:
        """Environment steps of the run."""
        return int(settings_of(self.task)["stop"]["num_env_steps_sampled_lifetime"])

    @property
    def curve(self) -> Path:
        """The file of the task's curves."""
        return CURVES / f"{self.task}.{self.library}.csv"

    @property
    def is_done(self) -> bool:
        """True if its curve is there."""
        return any(row[0] == str(self.seed) for row in rows_of(self.curve))

    @property
    def folder(self) -> Path:
        """The folder of the run; the names of its other files begin with it."""
        return BUILD / f"{self.task}.{self.library}.{self.seed}"

    @property
    def command(self) -> list[str]:
        """The command that trains."""
        if self.library == "epibatch":
            words = ["epibatch", "train", f"examples/zoo/{self.task}.yaml", "--run", str(self.folder)]
            words += ["--seed", str(self.seed), "--allow-imports"]
        else:
            words = ["examples.zoo.peers", self.task, str(self.seed), str(self.steps), f"{self.folder}.csv"]
        return [sys.executable, "-m", *words]

    def run(self) -> None:
        """Train in a process of its own, and add its curve."""
        folder, command = self.folder, self.command
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was interrupted
        with Path(f"{folder}.log").open("w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
            _, status, usage = os.wait4(process.pid, 0)
        if os.waitstatus_to_exitcode(status) not in {0, 1}:
            print(f"{self}: failed, see {folder}.log")
            return
        curve = results_of(folder) if self.library == "epibatch" else rows_of(Path(f"{folder}.csv"))
        seconds = usage.ru_utime + usage.ru_stime
        with WRITING:
            add(self.curve, [[self.seed, steps, f"{float(value):.6g}"] for steps, value in curve])
            add(RUNS, [[self.task, self.library, self.seed, curve[-1][0], f"{seconds:.1f}"]])
        print(f"{time.strftime('%H:%M')} {self}: {float(curve[-1][1]):.1f} after {curve[-1][0]} steps, {seconds:.0f} s")


def add(path: Path, rows: list[list[Any]]) -> None:
    """Add rows to a CSV file."""
    with path.open("a", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def results_of(folder: Path) -> list[list[str]]:
    """Return steps and mean return of a run's iterations, about a hundred; without an environment, of evaluations."""
    with (folder / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    name = "env_runners/episode_return_mean"
    value = name if any(row[name] for row in rows) else f"evaluation/{name}"
    curve = [[row["num_env_steps_sampled_lifetime"], row[value]] for row in rows if row[value]]
    kept = curve[:: max(1, len(curve) // 100)]
    return kept if kept[-1] == curve[-1] else [*kept, curve[-1]]


def record(run: str, episodes: int) -> None:
    """Write the data that a task learns from, unless it is there; train what acts in it, unless its run is there."""
    if not (BUILD / "data").exists():
        teacher = Job(run, "epibatch", 0)
        if not teacher.folder.exists():
            subprocess.run(teacher.command, check=False)  # code 1: the limit of steps is reached, as it is to be
        words = ["record", str(teacher.folder), "--to", f"{BUILD}/data", "--episodes", str(episodes), "--seed", "0"]
        subprocess.run([sys.executable, "-m", "epibatch", *words], check=True)


def main() -> None:
    """Train what is asked for, then draw."""
    tasks = settings_of("tasks")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help="names of tasks.yaml; default: all", default=list(tasks))
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--workers", type=int, default=1, help="runs at the same time")
    parser.add_argument("--draw", action="store_true", help="draw only")
    options = parser.parse_args()
    if unknown := [name for name in options.tasks if name not in tasks]:
        parser.error(f"expected tasks of tasks.yaml ({', '.join(tasks)}), found {', '.join(unknown)}")
    if not options.draw:
        train(tasks, options)
    write()


def train(tasks: dict[str, Any], options: argparse.Namespace) -> None:
    """Train what has no curve yet."""
    BUILD.mkdir(parents=True, exist_ok=True)
    for later in (False, True):
        jobs = []
        for name in (name for name in options.tasks if ("data" in tasks[name]) is later):
            entry = tasks[name]
            own = []
            for seed in range(options.seeds):
                own += [Job(task, "epibatch", seed) for task in (name, *entry.get("beside", {}))]
                own += [Job(name, "sb3", seed)] if "sb3" in entry else []
            own = [job for job in own if not job.is_done]
            if later and own:
                record(entry["data"]["run"], entry["data"]["episodes"])
            jobs += own
        with ThreadPoolExecutor(options.workers) as pool:
            list(pool.map(Job.run, dict.fromkeys(jobs)))


if __name__ == "__main__":
    main()
