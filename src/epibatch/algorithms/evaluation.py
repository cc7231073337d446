"""Measuring what was trained, in environments of its own."""

from __future__ import annotations

import copy
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from epibatch.core.errors import ConfigError
from epibatch.core.metrics import MetricsLogger, merge_logged
from epibatch.core.random_state import random_state_apart
from epibatch.core.random_streams import random_stream, seed_of
from epibatch.core.restoring import check_count
from epibatch.core.spaces import get_base_struct_from_space
from epibatch.core.structs import map_struct

from ..env_runner.env_runner_group import EnvRunnerGroup
from ..env_runner.group.make_runner import make_runner
from ..env_runner.metrics import AgentMetrics
from ..episodes.multi_agent_episode import MultiAgentEpisode
from ..episodes.vector_episodes import env_numbers
from .config.pipelines import FrozenStates, check_same_pieces

if TYPE_CHECKING:
    from .algorithm_config import AlgorithmConfig

_AT_ONCE = 16
"""Steps that each environment takes between two looks at which episodes have ended."""
_BY_AGENT = ("agent_episode_returns_mean", "module_episode_returns_mean", "agent_steps")


class Evaluation:
    """Evaluates in each set of environments of a config: one after the other, or all at once in other processes.

    Args:
        config: The training's.

    Attributes:
        has_begun: True between `begin` and the end of `run`.
    """

    def __init__(self, config: AlgorithmConfig) -> None:
        self.has_begun = False
        self._sets = {name: EvaluationSet(config, name) for name in config.evaluation_sets or ("",)}

    def begin(self, training: Any) -> None:
        """Let other processes evaluate the present weights from now on, without waiting for them.

        Args:
            training: The runner with the weights and states to use.

        Raises:
            ConfigError: an evaluation environment has other spaces than the training's.
            PipelineError: the training's pipelines have other pieces than the config gives them.
        """
        try:
            for each in self._sets.values():
                each.begin(training)
        except BaseException:
            self.stop()  # what is half done must not become part of the next round
            raise
        self.has_begun = True

    def run(self, training: Any) -> dict[str, Any]:
        """Evaluate once, or end what has begun.

        Args:
            training: The runner with the weights and states to use.

        Returns:
            `env_runners`: counts, means, minima and maxima of the episodes' returns and lengths, and what pieces and
            callbacks logged; with several agents also means by agent and by module, as the runner has them. If the sets
            have names, all this below each name.

        Raises:
            ConfigError: as `begin`.
            PipelineError: as `begin`.
        """
        if not self.has_begun:
            self.begin(training)
        try:
            results = {name: each.finish() for name, each in self._sets.items()}
        except BaseException:
            self.stop()
            raise
        self.has_begun = False
        return results.get("", results)

    def get_state(self) -> dict[str, Any]:
        """Return the number of rounds, lifetime counts, and values that pieces and callbacks logged, of each set."""
        states = {name: each.get_state() for name, each in self._sets.items()}
        return states.get("", {"sets": states})

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` gave; sets that it lacks stay as they are."""
        states = state.get("sets", {"": state})
        for name in self._sets.keys() & states.keys():
            self._sets[name].set_state(states[name])

    def stop(self) -> None:
        """Close the environments, and end the processes; the next round makes new ones."""
        self.has_begun = False
        for each in self._sets.values():
            each.stop()


class EvaluationSet:
    """Samples with runners of its own, which get the training runner's weights and pipeline states each time.

    Their pipelines are frozen. Nothing of the training changes: module, pipelines and environments are its own, and the
    process's random generators are put back. With a seed in the config each round has seeds of its own, whatever
    was sampled in between; which round it is is the whole state.

    Of N environments the first contributes its first episodes, and so does each other one: how many is fixed before.
    Taking those that end first instead would favour short episodes. So each of several processes has a share of the
    round, which another one samples in the same way if the first is lost.

    Args:
        config: The training's.
        name: The set's; "" for the only one.
    """

    def __init__(self, config: AlgorithmConfig, name: str) -> None:
        self._config, self._name = config, name
        self._runner: Any = None
        self._group: Any = None
        self._shares: list[Callable[[Any], EvaluatedEpisodes]] = []  # of the round that has begun
        self._rounds = self._steps = self._episodes = 0
        self._logged: dict[str, Any] | None = None  # what the runner's metrics begin a round with

    def begin(self, training: Any) -> None:
        """Begin a round with the newest weights and states; other processes sample from now on.

        Args:
            training: The runner that has them.
        """
        config, path = self._config, [self._name] if self._name else []
        stream = random_stream(config.seed, "evaluation", self._rounds, *path)
        is_first = self._runner is None
        if is_first:
            with random_state_apart(seed_of(stream)):
                self._build(training)
        if self._logged is not None:
            self._runner.metrics.set_state(self._logged)
        names = ("rl_module", "weights_seq_no", "env_to_module_connector", "module_to_env_connector", "reset_seeds")
        state = copy.deepcopy(training.get_state((*names, "num_env_steps_sampled_lifetime")))
        amount, unit = config.evaluation_duration, config.evaluation_duration_unit
        count = 1 if self._group is None else self._group.num_remote_env_runners()
        self._shares = []
        for number in range(min(count, amount)):
            own = random_stream(stream, "runner", number) if number else stream
            share = -(-(amount - number) // count)
            self._shares.append(partial(_sample, amount=share, unit=unit, stream=own, state=state, is_first=is_first))
        if self._group is not None:
            self._ask({})

    def _build(self, training: Any) -> None:
        config = self._config.get_evaluation_config_object(self._name)
        if not config.acts:
            do = 'name one: .evaluation(evaluation_config={"env": "CartPole-v1"})'
            raise ConfigError("Algorithm.evaluate", expected="an environment", found="none", do=do)
        if config.num_env_runners:
            self._group = EnvRunnerGroup(config=config)
        runner = self._runner = make_runner(config, 1) if self._group is None else self._group.local_env_runner
        found, expected = (_shapes(source.get_spaces()["__env_single__"]) for source in (runner, training))
        if found != expected:
            setting = f"evaluation_sets.{self._name}" if self._name else "evaluation_config"
            raise ConfigError(
                f"evaluation.{setting}, environment",
                expected=f"the observations and actions of the training: {expected}",
                found=str(found),
                do="evaluate in an environment with the same spaces",
            )
        check_same_pieces(runner.pipelines, training.pipelines, "evaluation")

    def _ask(self, answers: Mapping[int, Any]) -> None:
        """Let other processes sample the shares that none works on: those of a new round, or of a lost process."""
        indexes = self._group.healthy_env_runner_ids()
        for number, share in enumerate(self._shares) if indexes else ():
            if number not in answers and not self._group.num_in_flight_async_reqs(str(number)):
                self._group.foreach_env_runner_async(
                    _sample_apart,
                    tag=str(number),
                    kwargs={"number": number, "share": share},
                    remote_worker_ids=[indexes[number % len(indexes)]],
                )

    def finish(self) -> dict[str, Any]:
        """Sample the round that has begun, or wait for the processes that do, and return its results."""
        episodes = EvaluatedEpisodes(1)
        for part in self._sampled():
            episodes.join(part)
        self._rounds += 1
        self._steps += episodes.steps
        self._episodes += len(episodes.returns)
        results = {
            **_summary("episode_return", episodes.returns),
            **_summary("episode_len", episodes.lengths),
            **episodes.by_agent(),
            "num_episodes": len(episodes.returns),
            "num_episodes_lifetime": self._episodes,
            "num_env_steps_sampled": episodes.steps,
            "num_env_steps_sampled_lifetime": self._steps,
            "sample": episodes.seconds,
        }
        results = merge_logged(results, self._runner.metrics, "evaluation's environment runner")
        self._logged = self._runner.metrics.get_state()
        return {"env_runners": results}

    def _sampled(self) -> list[EvaluatedEpisodes]:
        """Return the episodes of all shares in their order, and count what other processes logged."""
        if self._group is None:
            return [share(self._runner) for share in self._shares]
        answers: dict[int, tuple[EvaluatedEpisodes, Any]] = {}
        while len(answers) < len(self._shares):
            self._ask(answers)
            answers.update(answer for _, answer in self._group.fetch_ready_async_reqs(timeout_seconds=None))
        parts = [answers[number] for number in sorted(answers)]
        for _, logged in parts:
            self._runner.metrics.add_from(logged)
        return [episodes for episodes, _ in parts]

    def get_state(self) -> dict[str, Any]:
        """Return the number of rounds, lifetime counts, and the values that pieces and callbacks logged."""
        counts = {"rounds": self._rounds, "steps": self._steps, "episodes": self._episodes}
        return {**counts, "logged_metrics": self._logged}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` gave."""
        names = ("rounds", "steps", "episodes")
        rounds, steps, episodes = (check_count(f"state of the evaluation, {name!r}", state[name]) for name in names)
        logged = state.get("logged_metrics")  # earlier versions have none
        if logged is not None:
            MetricsLogger().set_state(logged)  # it is used in the next round
        self._rounds, self._steps, self._episodes, self._logged = rounds, steps, episodes, logged
        if self._logged is None and self._runner is not None:
            self._logged = {"metrics": {}}

    def stop(self) -> None:
        """Close the environments, and end the processes; the next round makes new ones."""
        source, self._runner, self._group = self._group or self._runner, None, None
        if source is not None:
            source.stop()


def _sample(
    runner: Any, *, amount: int, unit: str, stream: np.random.SeedSequence, state: Any, is_first: bool
) -> EvaluatedEpisodes:
    """Sample a share of a round, and return the episodes that count.

    Args:
        runner: The runner that samples it.
        amount: Number of episodes or timesteps.
        unit: "episodes" or "timesteps".
        stream: The random numbers of the environments, of the pieces, and of the process.
        state: The training runner's weights and states.
        is_first: True if the runner is new; then it is checked that the frozen pipelines stay as they are.
    """
    started = time.perf_counter()
    pipelines = runner.pipelines.values()
    for pipeline in pipelines:
        pipeline.freeze()
    with random_state_apart(seed_of(stream)):
        runner.set_state(copy.deepcopy(state))  # arrays from another process are read-only
        runner.seed(stream)
        with FrozenStates(*(pipelines if is_first else ())).checked("Algorithm.evaluate"):
            episodes = (_sample_steps if unit == "timesteps" else _sample_episodes)(runner, amount)
    episodes.seconds = time.perf_counter() - started
    return episodes


def _sample_steps(runner: Any, amount: int) -> EvaluatedEpisodes:
    episodes = EvaluatedEpisodes(runner.num_envs)
    chunks = runner.sample(num_timesteps=amount, force_reset=True)
    for env, chunk in _with_envs(runner, chunks):
        episodes.add(env, chunk)
    episodes.steps = sum(len(chunk) for chunk in chunks)
    return episodes


def _sample_episodes(runner: Any, amount: int) -> EvaluatedEpisodes:
    episodes = EvaluatedEpisodes(runner.num_envs)
    for env, chunk in sample_whole_episodes(runner, amount):
        episodes.add(env, chunk)
    return episodes


def sample_whole_episodes(runner: Any, amount: int, **arguments: Any) -> Iterator[tuple[Any, Any]]:
    """Sample episodes from their beginning to their end: the first ones of each environment, alike many of each.

    Args:
        runner: The runner that samples.
        amount: The number of episodes.
        arguments: Further ones of its `sample`.

    Returns:
        The chunks of these episodes, of each environment in the order of time, with the environment's number; or with
        the episode's id if a runner of one's own returns episodes that do not know it, of which the first are taken.
    """
    count = runner.num_envs
    left = [(amount + env) // count for env in range(count)]
    first, steps = True, 0
    while any(left):
        before = sum(left)
        for env, chunk in _with_envs(
            runner, runner.sample(num_timesteps=count * _AT_ONCE, force_reset=first, **arguments)
        ):
            place = env if isinstance(env, int) else left.index(max(left))
            if left[place]:
                left[place] -= chunk.is_done
                yield env, chunk
        first = False
        steps = steps + count * _AT_ONCE if sum(left) == before else 0
        runner.warn_if_endless(steps)


def _sample_apart(runner: Any, number: int, share: Any) -> tuple[int, tuple[EvaluatedEpisodes, Any]]:
    """Sample a share in another process; return its number, and its episodes with what was logged meanwhile."""
    return number, (share(runner), runner.metrics.take())


class EvaluatedEpisodes:
    """Counts whole episodes of each environment.

    Args:
        num_envs: Number of environments.

    Attributes:
        agents: Returns and steps of the agents, if there are several.
        returns: Of the episodes that count.
        lengths: Their env steps.
        steps: Env steps in all of them.
        seconds: Time that sampling them took.
    """

    def __init__(self, num_envs: int) -> None:
        self._running: dict[Any, list[tuple[float, int]]] = defaultdict(list)
        self.agents = AgentMetrics(num_envs, sys.maxsize)
        self.returns: list[float] = []
        self.lengths: list[int] = []
        self.steps = 0
        self.seconds = 0.0

    def add(self, env: Any, chunk: Any) -> None:
        """Take in a chunk.

        Args:
            env: Its environment, or with one agent its id.
            chunk: The next one of this environment.
        """
        self._running[env].append((_return_of(chunk), len(chunk)))
        if isinstance(chunk, MultiAgentEpisode):
            (self.agents.end if chunk.is_done else self.agents.cut)(env, chunk)
        if chunk.is_done:
            parts = self._running.pop(env)
            self.returns.append(float(sum(part[0] for part in parts)))
            self.lengths.append(sum(part[1] for part in parts))
            self.steps += self.lengths[-1]

    def join(self, others: EvaluatedEpisodes) -> None:
        """Count the episodes of another runner, too, which sampled at the same time."""
        self.agents.add_from(others.agents.take())
        self.returns += others.returns
        self.lengths += others.lengths
        self.steps += others.steps
        self.seconds = max(self.seconds, others.seconds)

    def by_agent(self) -> dict[str, Any]:
        """Means of each agent's and each module's returns, and of the agents' steps; nothing with one agent."""
        report = self.agents.report()
        return {name: report[name] for name in _BY_AGENT if report[name]}


def _with_envs(runner: Any, chunks: Any) -> Iterator[tuple[Any, Any]]:
    """Each chunk with the number of its environment, or with its id if it does not know the number."""
    if hasattr(runner, "env_of"):
        return zip(map(runner.env_of, chunks), chunks)
    numbers = env_numbers(chunks)
    return ((chunk.id_ if number is None else number, chunk) for number, chunk in zip(numbers, chunks))


def _return_of(chunk: Any) -> float:
    """Return a chunk's return; at the episode's end with rewards outside of steps."""
    if isinstance(chunk, MultiAgentEpisode) and chunk.is_done:
        return float(chunk.get_return(include_hanging_rewards=True))
    return float(chunk.get_return())


def _shapes(spaces: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return the facts that must be equal: the shapes of observations, and the whole action space."""
    observation = map_struct(
        lambda leaf: f"{type(leaf).__name__} of shape {leaf.shape}", get_base_struct_from_space(spaces[0])
    )
    return observation, spaces[1]


def _summary(name: str, values: list[Any]) -> dict[str, float]:
    array = np.array(values or [np.nan], np.float64)
    return {f"{name}_mean": float(array.mean()), f"{name}_min": float(array.min()), f"{name}_max": float(array.max())}
