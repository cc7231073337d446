"""What an algorithm saves, and how it goes on from it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from epibatch.core.checkpoints import arrays_size
from epibatch.core.errors import CheckpointError
from epibatch.core.restoring import check_count, restoring
from epibatch.core.state_codec import state_parts

from .checkpoint import config_data, config_from_checkpoint, read_checkpoint, write_checkpoint
from .module_views import set_added_views
from .policy_checkpoint import acting_data
from .random_state import get_random_state, set_random_state
from .saved_checkpoints import read_newest

if TYPE_CHECKING:
    from ..connectors.views.view import View
    from ..learner.learner import Learner
    from .algorithm import Algorithm
    from .algorithm_callbacks import AlgorithmCallbacks
    from .algorithm_config import AlgorithmConfig
    from .evaluation import Evaluation
    from .piece_reports import PieceReports

__all__ = ["SavedAlgorithm"]

AlgorithmT = TypeVar("AlgorithmT", bound="SavedAlgorithm")


class SavedAlgorithm(ABC):
    """The state of an algorithm: everything that training changes."""

    config: AlgorithmConfig
    env_runner: Any
    learner: Learner
    metrics: Any
    training_iteration: int
    _time_total_s: float
    _env_steps: int
    _callbacks: AlgorithmCallbacks
    _evaluation: Evaluation
    _reports: PieceReports
    added_views: Mapping[str, View] = MappingProxyType({})
    """The views that `add_view` gave, beside those of the config that it was built with."""

    @abstractmethod
    def stop(self) -> None:
        """Close the environments."""

    @abstractmethod
    def _forget_policy(self) -> None:
        """Let the policy take over the newest state."""

    def get_state(self) -> dict[str, Any]:
        """Everything that changes: module, optimiser, connectors, runner, counters, generators, views added later."""
        return {
            "learner": self.learner.get_state(),
            "env_runner": self.env_runner.get_state(not_components="rl_module"),  # the learner's state has it
            "counters": {
                "training_iteration": self.training_iteration,
                "time_total_s": self._time_total_s,
                "num_env_steps_sampled_lifetime": self._env_steps,
                "logged_metrics": self._reports.logged.get_state(),
                "callback_metrics": self.metrics.get_state(),
            },
            "evaluation": self._evaluation.get_state(),
            "added_views": {name: view.to_dict() for name, view in self.added_views.items()},
            "random": get_random_state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over what `get_state` gave; the runner starts new episodes.

        Raises:
            CheckpointError: a part of the state is missing, or is something else; nothing was taken over.
        """
        state_parts(f"{type(self).__name__}.set_state", state)
        missing = [part for part in ("learner", "env_runner", "counters", "random") if part not in state]
        if missing:
            raise CheckpointError(
                f"{type(self).__name__}.set_state",
                expected="the parts learner, env_runner, counters and random",
                found=f"no {', '.join(missing)}",
                do="use a state that get_state of the same algorithm gave",
            )
        before = self.get_state()
        try:
            self._take_over(state)
        except Exception:
            self._take_over({part: own for part, own in before.items() if part != "env_runner"})
            raise
        self.env_runner.checkpoint_reset()
        self._forget_policy()

    def _take_over(self, state: Mapping[str, Any]) -> None:
        where = f"{type(self).__name__}.set_state"
        takers: dict[str, Any] = {
            # first: they are pieces; checkpoints of earlier versions have none
            "added_views": lambda views: set_added_views(cast("Algorithm", self), views, where),
            "learner": self.learner.set_state,
            "counters": self._set_counters,
            "evaluation": self._evaluation.set_state,  # checkpoints of earlier versions have none
            "random": set_random_state,
            "env_runner": self.env_runner.set_state,  # last: one that is refused leaves the running episodes alone
        }
        for part in (name for name in takers if name in state):
            with restoring(where, part):
                takers[part](state[part])

    def _set_counters(self, counters: Mapping[str, Any]) -> None:
        names = ("training_iteration", "num_env_steps_sampled_lifetime")
        iteration, steps = (check_count(f"state of an algorithm, {name!r}", counters[name]) for name in names)
        seconds = float(counters["time_total_s"])
        if not 0 <= seconds < math.inf:
            raise ValueError(f"{seconds} seconds")
        self.training_iteration, self._env_steps, self._time_total_s = iteration, steps, seconds
        self._reports.logged.set_state(counters["logged_metrics"])
        self.metrics.set_state(counters.get("callback_metrics", {"metrics": {}}))  # earlier versions have none

    def save_to_path(self, path: str | Path, *, end_episodes: bool = False) -> str:
        """Save everything into a folder; a checkpoint that is there already is replaced in one step.

        Saving changes nothing about this run, however often it saves. A restored run starts new episodes, because
        environments cannot be saved; so from there on its numbers differ from those of this run.

        Args:
            path: the folder.
            end_episodes: True ends the running episodes after saving. If the config has a seed, this run and a
                restored one then both start new episodes with the same seeds, and go on alike, bit for bit. Episodes
                that last longer than the time between two such saves never end, so save rarely.

        Returns:
            The folder.

        Raises:
            CheckpointError: the folder holds something other than a checkpoint.
            StorageError: the disk is full, say; the checkpoint that may be there is still whole.
        """
        saved = write_checkpoint(Path(path), self._description(), self.get_state())
        if end_episodes:
            self.env_runner.checkpoint_reset()
        return str(saved)

    def _description(self) -> dict[str, Any]:
        """What a checkpoint says about itself: the config as data, or why it is none."""
        runner = self.env_runner
        spaces = runner.get_spaces()
        data, not_data = config_data(self.config, runner.env, spaces)
        acting = acting_data(spaces["__env_single__"], runner.pipelines, runner.module)
        return {"algorithm": self.config.algorithm, "config": data, "not_data": not_data, "acting": acting}

    def restore_from_path(self, path: str | Path) -> None:
        """Take over everything from a checkpoint of the same config; the runner starts new episodes.

        Args:
            path: the folder that `save_to_path` wrote, or that of a run, whose newest whole checkpoint is taken.

        Raises:
            CheckpointError: the checkpoint is incomplete, damaged, or of another algorithm or network, or it has a
                view that this config has another one of by its name; nothing was taken over.
        """
        description, state = read_checkpoint(Path(path))
        if not isinstance(description["algorithm"], str) or description["algorithm"] != self.config.algorithm:
            raise CheckpointError(
                f"checkpoint {path}",
                expected=f"one of {self.config.algorithm!r}",
                found=repr(description["algorithm"]),
                do="restore it with the algorithm that saved it",
            )
        self.set_state(state)
        self._callbacks.checkpoint_loaded()

    @classmethod
    def from_checkpoint(
        cls: type[AlgorithmT],
        path: str | Path,
        *,
        config: AlgorithmConfig | None = None,
        allow_imports: bool = False,
    ) -> AlgorithmT:
        """Build an algorithm from a checkpoint.

        Args:
            path: the folder that `save_to_path` wrote, or that of a run, whose newest whole checkpoint is taken.
            config: the original config; needed if it holds code, such as a function or a class.
            allow_imports: whether pieces may be imported by path; importing runs code.

        Raises:
            CheckpointError: the config cannot be rebuilt from data; the message names what is code.
        """
        path, (description, state) = read_newest(path, lambda chosen: (chosen, read_checkpoint(chosen)))
        algorithm = config.build_algo() if config else _rebuilt(path, description, state, allow_imports)
        if not isinstance(algorithm, cls):
            raise CheckpointError(
                f"{cls.__name__}.from_checkpoint({str(path)!r})",
                expected=f"a checkpoint of {cls.__name__}",
                found=type(algorithm).__name__,
                do=f"use {type(algorithm).__name__}.from_checkpoint",
            )
        try:
            algorithm.set_state(state)
            algorithm._callbacks.checkpoint_loaded()
        except BaseException:
            algorithm.stop()
            raise
        return algorithm


def _rebuilt(path: Path, description: Mapping[str, Any], state: Any, allow_imports: bool) -> Any:
    """The algorithm of a config that came with a checkpoint; its networks are no larger than the checkpoint."""
    from epibatch.core.rl_module.module_checkpoints import weights_at_most

    config = config_from_checkpoint(path, description, allow_imports=allow_imports)
    with weights_at_most(arrays_size(state)):
        return config.build_algo()
