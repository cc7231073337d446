"""Measuring what was trained, in environments of its own."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from epibatch.core.errors import ConfigError
from epibatch.core.metrics import MetricsLogger, merge_logged
from epibatch.core.random_state import random_state_apart
from epibatch.core.random_streams import random_stream, seed_of
from epibatch.core.restoring import check_count
from epibatch.core.spaces import get_base_struct_from_space
from epibatch.core.structs import map_struct

from ..env_runner.group.make_runner import make_runner
from ..env_runner.metrics import AgentMetrics
from ..episodes.multi_agent_episode import MultiAgentEpisode
from .config.pipelines import FrozenStates, check_same_pieces

if TYPE_CHECKING:
    from .algorithm_config import AlgorithmConfig

_AT_ONCE = 16
"""Steps that each environment takes between two looks at which episodes have ended."""
_BY_AGENT = ("agent_episode_returns_mean", "module_episode_returns_mean", "agent_steps")


class Evaluation:
    """Samples with a runner of its own, which gets the training runner's weights and pipeline states each time.

    Its pipelines are frozen. Nothing of the training changes: module, pipelines and environments are its own, and the
    process's random generators are put back. With a seed in the config each round has seeds of its own, whatever
    was sampled in between; which round it is is the whole state.

    Of N environments the first contributes its first episodes, and so does each other one: how many is fixed before.
    Taking those that end first instead would favour short episodes.

    Args:
        config: The training's.
    """

    def __init__(self, config: AlgorithmConfig) -> None:
        self._config = config
        self._runner: Any = None
        self._frozen = FrozenStates()
        self._rounds = self._steps = self._episodes = 0
        self._logged: dict[str, Any] | None = None  # what a runner's metrics begin a round with

    def run(self, training: Any) -> dict[str, Any]:
        """Evaluate once.

        Args:
            training: The runner with the weights and states to use.

        Returns:
            `env_runners`: counts, means, minima and maxima of the episodes' returns and lengths, and what pieces and
            callbacks logged; with several agents also means by agent and by module, as the runner has them.

        Raises:
            ConfigError: the evaluation environment has other spaces than the training's.
            PipelineError: the training's pipelines have other pieces than the config gives them.
        """
        stream = random_stream(self._config.seed, "evaluation", self._rounds)
        started = time.perf_counter()
        try:
            drawn = seed_of(stream)
            with random_state_apart(drawn):
                runner = self._prepared(training, stream)
            # Again: a runner that had to be built has drawn its weights.
            with random_state_apart(drawn), self._frozen.checked("Algorithm.evaluate"):
                episodes = self._sample(runner)
        except BaseException:
            self.stop()  # what is half done must not become part of the next round
            raise
        self._rounds += 1
        self._steps += episodes.steps
        self._episodes += len(episodes.returns)
        counts = {
            "num_episodes": len(episodes.returns),
            "num_episodes_lifetime": self._episodes,
            "num_env_steps_sampled": episodes.steps,
            "num_env_steps_sampled_lifetime": self._steps,
            "sample": time.perf_counter() - started,
        }
        results = {
            **_summary("episode_return", episodes.returns),
            **_summary("episode_len", episodes.lengths),
            **episodes.by_agent(),
            **counts,
        }
        results = merge_logged(results, runner.metrics, "evaluation's environment runner")
        self._logged = runner.metrics.get_state()
        return {"env_runners": results}

    def _prepared(self, training: Any, stream: np.random.SeedSequence) -> Any:
        """The runner with the newest weights and states, and the random streams of this round."""
        runner = self._runner or self._build(training)
        if self._logged is not None:
            runner.metrics.set_state(self._logged)
        names = ("rl_module", "weights_seq_no", "env_to_module_connector", "module_to_env_connector", "reset_seeds")
        runner.set_state(training.get_state((*names, "num_env_steps_sampled_lifetime")))
        runner.seed(stream)
        return runner

    def _build(self, training: Any) -> Any:
        config = self._config.get_evaluation_config_object()
        if config.env is None:
            do = 'name one: .evaluation(evaluation_config={"env": "CartPole-v1"})'
            raise ConfigError("Algorithm.evaluate", expected="an environment", found="none", do=do)
        runner = self._runner = make_runner(config, 1)
        found, expected = (_shapes(source.get_spaces()["__env_single__"]) for source in (runner, training))
        if found != expected:
            raise ConfigError(
                "evaluation.evaluation_config, environment",
                expected=f"the observations and actions of the training: {expected}",
                found=str(found),
                do="evaluate in an environment with the same spaces",
            )
        check_same_pieces(runner.pipelines, training.pipelines, "evaluation")
        for pipeline in runner.pipelines.values():
            pipeline.freeze()
        self._frozen = FrozenStates(*runner.pipelines.values())
        return runner

    def _sample(self, runner: Any) -> EvaluatedEpisodes:
        """The episodes that count."""
        duration = self._config.evaluation_duration
        episodes = EvaluatedEpisodes(runner)
        if self._config.evaluation_duration_unit == "timesteps":
            chunks = runner.sample(num_timesteps=duration, force_reset=True)
            episodes.add(chunks, [len(chunks)] * runner.num_envs)
            episodes.steps = sum(len(chunk) for chunk in chunks)
            return episodes
        count = runner.num_envs
        left = [(duration + env) // count for env in range(count)]
        first, steps = True, 0
        while any(left):
            ended = len(episodes.returns)
            episodes.add(runner.sample(num_timesteps=count * _AT_ONCE, force_reset=first), left)
            first = False
            steps = steps + count * _AT_ONCE if len(episodes.returns) == ended else 0
            runner.warn_if_endless(steps)
        return episodes

    def get_state(self) -> dict[str, Any]:
        """Return the number of rounds, lifetime counts, and the values that pieces and callbacks logged."""
        counts = {"rounds": self._rounds, "steps": self._steps, "episodes": self._episodes}
        return {**counts, "logged_metrics": self._logged}

    def set_state(self, state: dict[str, Any]) -> None:
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
        """Close the environments; the next round makes new ones."""
        if self._runner is not None:
            self._runner.stop()
            self._runner = None


class EvaluatedEpisodes:
    """Counts whole episodes of each environment.

    Args:
        runner: What samples them.

    Attributes:
        returns: Of the episodes that count.
        lengths: Their env steps.
        steps: Env steps in all of them.
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._running: dict[int, list[tuple[float, int]]] = defaultdict(list)
        self._agents = AgentMetrics(runner.num_envs, sys.maxsize)
        self.returns: list[float] = []
        self.lengths: list[int] = []
        self.steps = 0

    def add(self, chunks: Sequence[Any], left: list[int]) -> None:
        """Take in what a `sample()` returned.

        Args:
            chunks: Of one environment in the order of time.
            left: How many episodes of each environment still count; changed.
        """
        for env, chunk in self._with_envs(chunks):
            if not left[env]:
                continue
            self._running[env].append((_return_of(chunk), len(chunk)))
            if isinstance(chunk, MultiAgentEpisode):
                (self._agents.end if chunk.is_done else self._agents.cut)(env, chunk)
            if chunk.is_done:
                left[env] -= 1
                parts = self._running.pop(env)
                self.returns.append(float(sum(part[0] for part in parts)))
                self.lengths.append(sum(part[1] for part in parts))
                self.steps += self.lengths[-1]

    def _with_envs(self, chunks: Any) -> Iterator[tuple[int, Any]]:
        """Each chunk with the number of its environment."""
        if hasattr(chunks, "chunks"):
            return zip((chunk.env for chunk in chunks.chunks), chunks)
        return zip(map(self._runner.env_of, chunks), chunks)

    def by_agent(self) -> dict[str, Any]:
        """Means of each agent's and each module's returns, and of the agents' steps; nothing with one agent."""
        report = self._agents.report()
        return {name: report[name] for name in _BY_AGENT if report[name]}


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
