"""Train batches: as many sampled steps as an iteration needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from epibatch.core.errors import RunnerError

from ..episodes import count_steps, join_episodes

if TYPE_CHECKING:
    from .algorithm_config import AlgorithmConfig


_PATIENCE = 1000
"""Train batches of env steps without a step of an agent before `sample` raises."""


class TrainBatches:
    """Samples the train batches of an algorithm, one after the other.

    What was sampled stays if a later sample fails, and is part of the batch of the next call.

    Args:
        group: The runners, an `EnvRunnerGroup`.
        config: The algorithm's.

    Attributes:
        is_late: True if steps of the newest batch acted with weights of before the last update.
    """

    def __init__(self, group: Any, config: AlgorithmConfig) -> None:
        self._group = group
        self._config = config
        self._parts: list[tuple[int, Sequence[Any]]] = []
        self._steps = 0
        self.is_late = self._next_is_late = False

    @property
    def _by_agent(self) -> bool:
        return bool(self._config.is_multi_agent and self._config.count_steps_by == "agent_steps")

    @property
    def _ahead(self) -> bool:
        return bool(self._config.sample_while_learning and self._config.num_env_runners)

    def sample(self) -> Sequence[Any]:
        """Return chunks with `train_batch_size` steps, or a few more; one `sample()` unless fragments are shorter.

        If no agent has completed a step in them, because all wait for their next observations, sampling goes on.

        No request is left in flight, so that no step is older than one update.

        Raises:
            RunnerError: a sample has no steps, though no runner failed; or no agent completes a step in very many.
        """
        wanted, is_first = self._config.total_train_batch_size, not self._parts
        while self._steps < wanted or (self._ahead and self._group.num_in_flight_async_reqs()):
            before, faults = self._steps, self._faults()
            self._take_part(wanted)
            if self._steps == before < wanted and not is_first and self._faults() == faults:
                raise RunnerError(
                    "Algorithm.train",
                    expected=f"{wanted} {'agent' if self._by_agent else 'env'} steps",
                    found=f"{self._steps}, and a sample without any",
                    do="check that the environment's steps succeed",
                )
            is_first = False
            if self._steps >= wanted and not self._has_agent_steps():
                if wanted >= _PATIENCE * self._config.total_train_batch_size:
                    raise RunnerError(
                        "Algorithm.train",
                        expected="an agent that acts and observes again",
                        found=f"none in {self._steps} env steps",
                        do="let the environment return observations of agents that acted",
                    )
                wanted += self._config.total_train_batch_size
        self.is_late = self._next_is_late
        parts = [part for _, part in sorted(self._parts, key=lambda pair: pair[0])]
        self.forget()
        return join_episodes(parts)

    def _has_agent_steps(self) -> bool:
        several = self._config.is_multi_agent
        return not several or any(chunk.agent_steps() for _, part in self._parts for chunk in part)

    def sample_ahead(self) -> None:
        """Let the runners sample the next batch from now on, with `sample_while_learning`; does not wait for it."""
        if self._ahead:
            self._request(self._config.total_train_batch_size)
            self._next_is_late = True

    def forget(self) -> None:
        """Drop what was sampled for a batch that is not complete."""
        self._parts, self._steps, self._next_is_late = [], 0, False

    def _take_part(self, wanted: int) -> None:
        """Sample once, or take what was sampled meanwhile."""
        if self._ahead:
            arrived = self._group.ready(timeout=0.0)
            for index, part in arrived:
                self._add(index, part)
            self._request(wanted)
            for index, part in [] if arrived else self._group.ready():
                self._add(index, part)
            return
        # A runner also counts observations that end no step, so that a sample may have a few steps less than asked for.
        has_short_samples = self._by_agent or self._config.num_env_runners > 0
        if self._parts and has_short_samples and self._asks_for_steps():
            self._add(0, self._group.sample(num_timesteps=wanted - self._steps))
        else:
            self._add(0, self._group.sample())

    def _request(self, wanted: int) -> None:
        """Let the runners sample what the batch lacks beside their requests in flight, and not more."""
        each = self._steps_of_sample()
        lacks = wanted - self._steps - self._group.num_in_flight_async_reqs() * each
        if lacks <= 0:
            return
        arguments = {}
        if self._parts and self._asks_for_steps():
            each = -(-lacks // self._config.num_env_runners)
            arguments["num_timesteps"] = each
        self._group.request(at_most=-(-lacks // each), **arguments)

    def _faults(self) -> Any:
        """Counts of what has happened to the runners' processes so far."""
        return self._group.fault_report() if self._config.num_env_runners else None

    def _asks_for_steps(self) -> bool:
        """True if the rest of a batch may be shorter than the fragments are."""
        config = self._config
        is_cut = config.batch_mode == "truncate_episodes"
        return is_cut and (self._by_agent or config.rollout_fragment_length == "auto")

    def _steps_of_sample(self) -> int:
        """The steps of one runner's `sample()`, about."""
        config = self._config
        return int(config.get_rollout_fragment_length()) * int(config.num_envs_per_env_runner)

    def _add(self, index: int, part: Sequence[Any]) -> None:
        self._parts.append((index, part))
        self._steps += sum(chunk.agent_steps() for chunk in part) if self._by_agent else count_steps(part)
