"""Environments that raise, die or hang: their own log of each step is compared with the episodes that a runner returns.

    python -m benchmarks.faults            # everything, some minutes; the table goes into the page; `make faults`

from the root of the repository. An environment appends each step to a file before it returns it. So the file also has
the steps of processes that were killed. A failure comes in place of a step or reset, which is then not in the file.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import typer

from benchmarks.results import FIGURES, REPOSITORY
from epibatch.algorithms.ppo import PPOConfig
from epibatch.core.errors import RunnerError
from epibatch.env_runner import MultiAgentEnv, MultiAgentEnvRunner, SingleAgentEnvRunner

PAGE = Path("docs/internals/faults.md")
EVERY = (*range(1, 21), *range(30, 201, 10))
MODES = ("next_step", "same_step", "disabled")
SPACE = gym.spaces.Box(-np.inf, np.inf, (4,), np.float64)
AGENTS = ("a", "b")
HANGS_FOR, TIME_LIMIT, MOST_SECONDS = 3600, 1.0, 120


class Faulty:
    """An environment that fails in every k-th step or reset of its process, and logs the steps that it takes.

    Its observations are its process, its number there, the number of the episode, and the step.
    """

    made = calls = 0

    def set_up(self, config: dict[str, Any]) -> None:
        """Begin with a number of its own."""
        Faulty.made += 1
        self.config, self.number, self.episode = config, Faulty.made, 0
        in_worker = multiprocessing.parent_process() is not None
        self.offset = os.getpid() if in_worker else 0  # or all processes would fail after the same number of steps

    def fail(self, where: str) -> None:
        """Fail if it is time."""
        if where != self.config["where"]:
            return
        Faulty.calls += 1
        if (Faulty.calls + self.offset) % self.config["every"]:
            return
        if self.config["how"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.config["how"] == "hang":
            time.sleep(HANGS_FOR)
        raise ValueError("planted")

    def begin(self) -> np.ndarray:
        """Begin an episode of 1 to 12 steps."""
        self.fail("reset")
        self.episode, self.t = self.episode + 1, 0
        self.rng = np.random.default_rng((os.getpid(), self.number, self.episode))
        self.length = int(self.rng.integers(1, 13))
        return self.observation()

    def advance(self) -> tuple[np.ndarray, np.ndarray, bool]:
        """Take a step; return observation, the rewards of both agents, and whether the episode has ended."""
        self.fail("step")
        self.t += 1
        observation, rewards, ended = self.observation(), self.rng.normal(size=2), self.t == self.length
        with Path(self.config["log"]).open("ab", buffering=0) as log:
            log.write(np.array([*observation, *rewards, ended]).tobytes())
        return observation, rewards, ended

    def observation(self) -> np.ndarray:
        """Return the newest observation."""
        return np.array([os.getpid(), self.number, self.episode, self.t], np.float64)


class OneAgent(Faulty, gym.Env[np.ndarray, int]):
    """Such an environment of one agent."""

    observation_space, action_space = SPACE, gym.spaces.Discrete(2)

    def __init__(self, config: dict[str, Any]) -> None:
        self.set_up(config)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset it."""
        return self.begin(), {}

    def step(self, action: int) -> Any:
        """Step it."""
        observation, rewards, ended = self.advance()
        return observation, rewards[0], ended, False, {}


class TwoAgents(Faulty, MultiAgentEnv):
    """Such an environment of two agents, both of which act in every step."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.set_up(config)
        self.agents = self.possible_agents = list(AGENTS)
        self.observation_spaces = dict.fromkeys(AGENTS, SPACE)
        self.action_spaces = dict.fromkeys(AGENTS, gym.spaces.Discrete(2))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset it."""
        return dict.fromkeys(AGENTS, self.begin()), {}

    def step(self, action_dict: dict[str, Any]) -> Any:
        """Step it."""
        observation, rewards, ended = self.advance()
        terminateds = {"__all__": ended}
        return dict.fromkeys(AGENTS, observation), dict(zip(AGENTS, rewards)), terminateds, {"__all__": False}, {}


class Figures(NamedTuple):
    """Counts of one or several runs.

    Args:
        runs: Runners.
        calls: Calls of `sample()`.
        unreturned: Those that did not return in two minutes.
        refused: Those that ended with an error, because the budget of restarts was spent.
        failures: Restarts of environments.
        finished: Episodes that environments finished.
        lost: Those of them that were not returned, or not to their ends.
        steps: Steps of environments, by their logs.
        differing: Steps that are in the log but not in the episodes, or the other way round, or twice, or with another
            reward. Steps of unfinished episodes are dropped by a call that ends with an error, and not counted here.
    """

    runs: int = 0
    calls: int = 0
    unreturned: int = 0
    refused: int = 0
    failures: int = 0
    finished: int = 0
    lost: int = 0
    steps: int = 0
    differing: int = 0

    def __or__(self, other: Figures) -> Figures:
        """Return the sums of both."""
        return Figures(*map(sum, zip(self, other)))


class Run(NamedTuple):
    """One runner.

    Args:
        agents: One or two.
        how: "raise", "kill" or "hang"; "outside": processes are killed between two calls.
        where: "step" or "reset".
        every: The k of the failures.
        num_envs: N.
        mode: The autoreset mode.
        failures: Calls go on until there were so many failures; 0: four calls.
        steps: Timesteps of a call.
        per_process: Environments in a process. With several, use "outside" only: a process that dies at work takes the
            newest steps of its other environments with it, which are in their logs.
    """

    agents: int
    how: str
    where: str
    every: int
    num_envs: int
    mode: str | None = None
    failures: int = 0
    steps: int = 60
    per_process: int = 1

    @property
    def row(self) -> tuple[str, ...]:
        """What the runs of one row of the table share."""
        places = {"outside": "a process is killed between two calls", "kill": "a process is killed in `{}`"}
        kinds = {"raise": "`{}` raises", "hang": "`{}` hangs"}
        return {**places, **kinds}[self.how].format(self.where), str(self.agents)


def figures_of(run: Run) -> Figures:
    """Sample, and compare the episodes with the environments' logs."""
    Faulty.made = Faulty.calls = 0
    episodes: list[Any] = []
    calls = unreturned = refused = 0
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "steps"
        log.touch()
        runner = _runner(run, log)
        restarts = 0
        while restarts < run.failures if run.failures else calls < 4:
            if run.how == "outside" and calls:
                os.kill(random.choice(multiprocessing.active_children()).pid or 0, signal.SIGKILL)
            calls += 1
            try:
                with time_limit(MOST_SECONDS):
                    episodes += runner.sample(num_timesteps=run.steps)
            except RunnerError:
                refused += 1
            except TimeoutError:
                unreturned += 1
                break
            restarts = runner.get_metrics()["num_env_restarts_lifetime"]
        runner.stop()
        finished, lost, steps, differing = compare(np.fromfile(log).reshape(-1, 7), episodes, run.agents, refused > 0)
    return Figures(1, calls, unreturned, refused, restarts, finished, lost, steps, differing)


def _runner(run: Run, log: Path) -> Any:
    faults = {"log": str(log), "every": run.every, "how": run.how, "where": run.where if run.how != "outside" else ""}
    in_processes = run.how != "raise"
    config = (
        PPOConfig()
        .environment(OneAgent if run.agents == 1 else TwoAgents, env_config=faults)
        .env_runners(num_envs_per_env_runner=run.num_envs, gym_env_autoreset_mode=run.mode)
        .env_runners(gym_env_vectorize_mode="async" if in_processes else "sync", num_envs_per_worker=run.per_process)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .fault_tolerance(
            restart_failed_sub_environments=True, sub_environment_timeout_s=TIME_LIMIT if run.how == "hang" else None
        )
    )
    if run.agents == 1:
        return SingleAgentEnvRunner(config=config)
    config.multi_agent(policies=["p"], policy_mapping_fn=lambda agent_id, episode, **kwargs: "p")
    return MultiAgentEnvRunner(config=config)


def compare(log: np.ndarray, episodes: Iterable[Any], agents: int, refused: bool) -> tuple[int, int, int, int]:
    """Compare a log with what was returned.

    Args:
        log: A row per step: process, environment, episode, step, rewards of both agents, 1 if the episode ended.
        episodes: What `sample()` returned.
        agents: One or two.
        refused: True if a call ended with an error.

    Returns:
        Finished and lost episodes, steps and differing steps.
    """
    returned: Counter[tuple[Any, ...]] = Counter()
    ends: Counter[tuple[float, ...]] = Counter()
    for episode in episodes:
        chunks = {None: episode} if agents == 1 else episode.agent_episodes
        for agent, chunk in chunks.items():
            observations = chunk.get_observations()
            for observation, reward in zip(observations[1:].tolist(), chunk.get_rewards().tolist()):
                returned[(agent, *observation, reward)] += 1
            ends[tuple(observations[-1, :3].tolist())] += chunk.is_terminated
    logged: Counter[tuple[Any, ...]] = Counter()
    for *observation, first, second, _ in log.tolist():
        rewards = {None: first} if agents == 1 else {"a": first, "b": second}
        logged.update((agent, *observation, reward) for agent, reward in rewards.items())
    finished = {tuple(row) for row in log[log[:, 6] == 1, :3].tolist()}
    missing, unknown = logged - returned, returned - logged
    lost = {step[1:4] for step in missing} & finished | {episode for episode in finished if ends[episode] != agents}
    dropped = sum(count for step, count in missing.items() if refused and step[1:4] not in finished)
    return len(finished), len(lost), len(log), missing.total() + unknown.total() - dropped


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise a TimeoutError in the main thread after so many seconds."""

    def give_up(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def all_runs(
    every: Sequence[int] = EVERY, nums_envs: Sequence[int] = (1, 4, 16), kills: int = 60, hangs: int = 25
) -> list[Run]:
    """Return the runs: those with errors for each k and N, six runs with kills, and four with hangs."""
    runs = []
    for where, agents in itertools.product(("step", "reset"), (1, 2)):
        for k, num_envs, mode in itertools.product(every, nums_envs, MODES if agents == 1 else (None,)):
            runs.append(Run(agents, "raise", where, k, num_envs, mode))
    for how, where, failures in (("kill", "step", kills), ("kill", "reset", kills), ("outside", "", kills)):
        runs += [Run(agents, how, where, 17 if where == "step" else 3, 4, failures=failures) for agents in (1, 2)]
    for where in ("step", "reset"):
        k = 40 if where == "step" else 7
        runs += [Run(agents, "hang", where, k, 4, failures=hangs, steps=200) for agents in (1, 2)]
    return runs


def table(runs: Iterable[Run]) -> str:
    """Make the runs, and return the table in Markdown."""
    rows: dict[tuple[str, ...], Figures] = {}
    for run in runs:
        rows[run.row] = rows.get(run.row, Figures()) | figures_of(run)
    names = ("what fails", "agents", *Figures._fields)
    lines = [names, ("---",) * len(names), *((*row, *map("{:,}".format, own)) for row, own in rows.items())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Make all runs, print the table, and write it into the page."""
    text, _, _ = (REPOSITORY / PAGE).read_text(encoding="utf-8").partition(FIGURES)
    figures = table(all_runs())
    print(figures)
    (REPOSITORY / PAGE).write_text(f"{text}{FIGURES}\n\n{figures}\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
