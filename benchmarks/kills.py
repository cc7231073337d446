"""Processes that sample and learn are killed at random times, and what learners are given is checked.

    python -m benchmarks.kills                     # 200 kills in 10 runs, some 20 minutes; `make kills`
    python -m benchmarks.kills --algorithm appo    # the same with APPO: `make kills ARGS="--algorithm appo"`

from the root of the repository. The figures go into the page. Each kill is a SIGKILL of a process of a runner or a
learner, at a random time of a call of `train()`. The environment puts each observation into its infos too, before a
connector rewrites it. It also appends the first ones of its episodes to a file: filters count those of episodes without
a step, which no chunk has.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import typer

from benchmarks.faults import time_limit
from benchmarks.results import FIGURES, REPOSITORY
from epibatch.algorithms import APPOConfig, PPOConfig
from epibatch.connectors.env_to_module import MeanStdFilter
from epibatch.core.errors import EpibatchWarning

PAGE = Path("docs/internals/kills.md")
MOST_SECONDS = 120
PAUSE = 10.0  # seconds between two kills in a call at most; processes start in about half of that
KINDS = {"EnvRunner": "runner", "Learner": "learner"}
COLUMNS = {"ppo": "PPO", "appo": "APPO"}


class TellingCartPole(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole that repeats each observation in its infos, and appends those of resets to a file.

    Args:
        config: `log`, the file.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self._log = Path(config["log"])

    def reset(self, **arguments: Any) -> Any:
        """Reset it."""
        observation, info = self.env.reset(**arguments)
        with self._log.open("ab", buffering=0) as log:
            log.write(observation.tobytes())
        return observation, {**info, "told": observation.copy()}

    def step(self, action: Any) -> Any:
        """Step it."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, {**info, "told": observation.copy()}


class Figures(NamedTuple):
    """Counts of a run."""

    kills: int
    runners: int
    learners: int
    calls: int
    unreturned: int
    raised: int
    restarts: int
    steps: int
    episodes: int
    overlapping: int
    missing: int
    without_step: int
    gap: float
    slowest: float

    def __or__(self, other: Figures) -> Figures:  # `+` joins tuples
        sums = [mine + its for mine, its in zip(self[:-2], other[:-2])]
        return Figures(*sums, max(self.gap, other.gap), max(self.slowest, other.slowest))


class Delivered:
    """All chunks that learners were given, and what must be true of them.

    Args:
        log: The file with the first observations of all episodes.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._ends: dict[str, int] = {}
        self._counted: list[np.ndarray] = []
        self._first: set[bytes] = set()
        self.without_step: list[bytes] = []
        self.steps = self.overlapping = self.missing = 0

    def add(self, episodes: Sequence[Any]) -> None:
        """Add the chunks of an update: each must begin where the earlier one with its id ended."""
        for episode in episodes:
            end = self._ends.get(episode.id_, 0)
            self.overlapping += max(end - episode.t_started, 0)
            self.missing += max(episode.t_started - end, 0)
            self._ends[episode.id_] = episode.t
            self.steps += len(episode)
            told = [info["told"] for info in episode.get_infos()]
            if episode.t_started == 0:
                self._first.add(told[0].tobytes())
            self._counted.append(np.asarray(told[episode.t_started > 0 :], np.float64))  # a cut's is in both chunks

    @property
    def episodes(self) -> int:
        """Number of episodes."""
        return len(self._ends)

    def gap(self, state: dict[str, Any]) -> float:
        """Return the largest relative gap between a filter's statistics and those of all observations here.

        First observations of episodes without a step are found out: those in the file that close the gap.
        """
        data = np.frombuffer(self._log.read_bytes(), np.float32).reshape(-1, 4)
        known = [first for first in self.without_step if first not in self._first]
        begun = [row.tobytes() for row in data]  # some before the sample that counts them was delivered
        open_ones = [first for first in begun if first not in self._first and first not in known]
        count, mean, deviation = _moments_of(state)
        rows = np.concatenate(self._counted)
        gaps = {(): np.inf}
        for more in itertools.combinations(open_ones, max(count - len(rows) - len(known), 0)):
            extra = np.frombuffer(b"".join([*known, *more]), np.float32).reshape(-1, 4)
            together = np.concatenate([rows, extra]).astype(np.float64)
            expected = together.std(axis=0)
            differences = [np.abs(mean - together.mean(axis=0)), np.abs(deviation - expected)]
            gaps[more] = float(np.max(np.array(differences) / expected)) if len(together) == count else np.inf
        best = min(gaps, key=lambda more: gaps[more])
        self.without_step = [*known, *best]
        return gaps[best]


def _moments_of(state: dict[str, Any]) -> tuple[int, np.ndarray, np.ndarray]:
    """Return count, means and deviations of a filter."""
    count, mean, squares = 0, np.zeros(4), np.zeros(4)
    for part in (state["synchronised"], state["since"]):
        if part["count"]:
            total, shift = count + part["count"], part["mean"] - mean
            squares = squares + part["squares"] + shift**2 * count * part["count"] / total
            mean, count = mean + shift * part["count"] / total, total
    return count, mean, np.sqrt(squares / count)


def processes_of(driver: int) -> list[tuple[int, str]]:
    """Return the processes of runners and learners of a driver with a Ray of its own: ids and kinds."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, IndexError):  # a process that ended meanwhile
            if folder.name.isdigit() and (title := (folder / "cmdline").read_text()).startswith("ray::"):
                kind = KINDS.get(title[5:].split("\0")[0].split(".")[0])
                if kind is not None and _parent(_parent(int(folder.name))) == driver:
                    found.append((int(folder.name), kind))
    return found


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@contextlib.contextmanager
def kills_at_random(rng: random.Random, within: float, killed: list[str], count: int) -> Iterator[None]:
    """Kill a process after a random time, and more after random times if there still is time; note what they were.

    One of `count` places is drawn. If its process is gone and not there again, nothing is killed: otherwise those that
    still run would be hit the more often, the fewer they are.
    """
    ended = threading.Event()

    def kill() -> None:
        delay = rng.uniform(0, within)
        while not ended.wait(delay):
            processes, drawn = processes_of(os.getpid()), rng.randrange(count)
            if drawn < len(processes):
                pid, kind = processes[drawn]
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(kind)
            delay = rng.uniform(0, PAUSE)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class BriefAPPOConfig(APPOConfig):
    """APPO with iterations as short as PPO's."""

    min_env_steps_per_iteration = 600


def config(num_runners: int, num_learners: int, seed: int, log: Path, algorithm: str = "ppo") -> Any:
    """Return a small PPO or APPO whose observations are filtered; APPO's queue drops nothing."""
    own: dict[str, Any] = {"minibatch_size": 100, "num_epochs": 2}
    if algorithm == "appo":
        own = {"use_circular_buffer": False, "simple_queue_size": 1000}
    return (
        {"ppo": PPOConfig, "appo": BriefAPPOConfig}[algorithm]()
        .environment(TellingCartPole, env_config={"log": str(log)})
        .env_runners(num_env_runners=num_runners, num_envs_per_env_runner=2, rollout_fragment_length=50)
        .env_runners(env_to_module_connector=lambda *_, **__: MeanStdFilter())
        .learners(num_learners=num_learners)
        .training(train_batch_size=300, **own)
        .rl_module(model_config={"fcnet_hiddens": [16]})
        .fault_tolerance(max_num_env_runner_restarts=1000, max_num_learner_restarts=1000)
        .debugging(seed=seed)
    )


def run(
    num_kills: int = 200, num_runners: int = 3, num_learners: int = 2, seed: int = 0, algorithm: str = "ppo"
) -> Figures:
    """Train until so many processes were killed, and compare after each call of `train()`."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", EpibatchWarning)  # one for each restart
        log = Path(folder, "resets")
        log.touch()
        made = config(num_runners, num_learners, seed, log, algorithm).build_algo()
        return _run_with_log(log, num_kills, random.Random(seed), made)


def _watched(algorithm: Any, log: Path) -> tuple[Delivered, Delivered]:
    """Return what runners deliver and what learners are given; with PPO the two are the same."""
    delivered = learned = Delivered(log)
    update, ready = algorithm.learner_group.update, algorithm.env_runner_group.ready

    def noted_update(*, episodes: Any, **arguments: Any) -> Any:
        learned.add(episodes)
        return update(episodes=episodes, **arguments)

    def noted_ready(timeout: float | None = None) -> Any:
        parts = ready(timeout)
        for _, part in parts:
            delivered.add(part)
        return parts

    algorithm.learner_group.update = noted_update
    if isinstance(algorithm.config, APPOConfig):  # deliveries wait in its queue
        learned, algorithm.env_runner_group.ready = Delivered(log), noted_ready
    return delivered, learned


def _run_with_log(log: Path, num_kills: int, rng: random.Random, algorithm: Any) -> Figures:
    killed, (delivered, learned) = list[str](), _watched(algorithm, log)
    count = algorithm.config.num_env_runners + algorithm.config.num_learners
    calls = unreturned = raised = restarts = 0
    slowest = gap = 0.0
    within = 1.0
    try:
        while len(killed) < num_kills and unreturned < 3:
            calls += 1
            start = time.perf_counter()
            try:
                with time_limit(MOST_SECONDS), kills_at_random(rng, within, killed, count):
                    results = algorithm.train()
                report = results["fault_tolerance"]
                restarts = report["num_env_runner_restarts"] + report.get("num_learner_restarts", 0)
                gap = max(gap, delivered.gap(_filter_of(algorithm).get_state()))
            except Exception as error:
                raised += 1
                print(f"train() {calls} raised {type(error).__name__}: {error}")
            seconds = time.perf_counter() - start
            unreturned += seconds >= MOST_SECONDS
            slowest = max(slowest, seconds)
            within = min(within, seconds)  # of a call without losses: kills fall anywhere in it, and into restarts
    finally:
        algorithm.stop()
    kinds = [killed.count(kind) for kind in KINDS.values()]
    wrong = (max(delivered.overlapping, learned.overlapping), max(delivered.missing, learned.missing))
    chunks = (learned.steps, learned.episodes, *wrong)
    others = (len(delivered.without_step), gap, slowest)
    return Figures(len(killed), *kinds, calls, unreturned, raised, restarts, *chunks, *others)


def _filter_of(algorithm: Any) -> MeanStdFilter:
    pipeline = algorithm.env_runner.pipelines["env_to_module"]
    return next(piece for piece in pipeline if isinstance(piece, MeanStdFilter))


def table(columns: dict[str, dict[str, str]]) -> str:
    """Return a table in Markdown with a row for each figure, and these columns."""
    lines = [("figure", *columns), ("---",) * (1 + len(columns))]
    lines += [(name, *(column[name] for column in columns.values())) for name in Figures._fields]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def texts(figures: Figures) -> dict[str, str]:
    """Return the figures as texts."""
    return {n: f"{value:,}" if isinstance(value, int) else f"{value:.2g}" for n, value in figures._asdict().items()}


def main(runs: int = 10, kills: int = 20, runners: int = 3, learners: int = 2, algorithm: str = "ppo") -> None:
    """Kill processes in several runs, print the figures, and put them into the page if there were 200 kills or more."""
    total = run(kills, runners, learners, algorithm=algorithm)
    for seed in range(1, runs):
        total |= run(kills, runners, learners, seed, algorithm)
    print(table({COLUMNS[algorithm]: texts(total)}))
    if total.kills >= 200:
        write(total, algorithm)


def write(figures: Figures, algorithm: str) -> None:
    """Write an algorithm's column of the table in the page."""
    text, _, before = (REPOSITORY / PAGE).read_text(encoding="utf-8").partition(FIGURES)
    rows = [line.strip("| ").split(" | ") for line in before.split("\n") if line.startswith("| ")]
    columns = {head: {row[0]: row[place] for row in rows} for place, head in enumerate(rows[0]) if place}
    columns[COLUMNS[algorithm]] = texts(figures)
    (REPOSITORY / PAGE).write_text(f"{text}{FIGURES}\n\n{table(columns)}\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
