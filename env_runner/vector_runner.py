"""The base class of all runners: their parts, seeds, metrics and state."""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from epibatch.core import DEFAULT_MODULE_ID
from epibatch.core.columns import Columns
from epibatch.core.errors import ConfigError, EpibatchWarning, RunnerError, SpaceError
from epibatch.core.metrics import WEIGHTS_SEQ_NO, MetricsLogger
from epibatch.core.random_streams import random_stream, runner_stream
from epibatch.core.restoring import check_count, restore_on_error, restoring
from epibatch.core.state_codec import require_mapping, select_components

from ..connectors.authoring.column_transform import undo_actions
from .env_context import EnvContext
from .envs.env_checks import check_space
from .envs.env_restarts import EnvRestarts
from .envs.make_env import make_vector_env, wrappers_of
from .envs.reset_seeds import ResetSeeds
from .envs.vector_envs import AsyncEnvs, SyncEnvs, VectorMultiAgentEnv
from .metrics import SamplingMetrics
from .runner_state import ActingPolicy, Running

if TYPE_CHECKING:
    from .runner_config import AnyRunnerConfig


class VectorRunner(ABC):
    """N environments that step together, and a module between two connector pipelines.

    A subclass makes the parts, and samples. Its stepper has the methods of `EnvStepper` that are called here.

    Args:
        config: Environment, pipelines and module.
        worker_index: Distinguishes the runners of one algorithm; each has a seed of its own.
    """

    _several_agents = False

    def __init__(self, *, config: AnyRunnerConfig, worker_index: int = 0) -> None:
        self.config = config
        self.worker_index = worker_index
        self.env = self.make_env()
        self.num_envs: int = self.env.num_envs
        self.spaces: dict[str, Any] = {
            "__env__": (self.env.observation_space, self.env.action_space),
            "__env_single__": (self.env.single_observation_space, self.env.single_action_space),
        }
        self._env_to_module = config.build_env_to_module_connector(env=self.env, spaces=self.spaces)
        if self._env_to_module.observation_space is None:
            raise _without_space(self._env_to_module)
        self.spaces.update(self._module_spaces())
        for name in self.spaces.keys() - {"__env__", "__env_single__", "__episodes__"}:
            check_space(self.spaces[name][0], f"observation space of module {name!r}", text=False)
        self._module_to_env = config.build_module_to_env_connector(env=self.env, spaces=self.spaces)
        undo_actions(self._env_to_module, self._module_to_env)
        self.pipelines: dict[str, Any] = {"env_to_module": self._env_to_module, "module_to_env": self._module_to_env}
        self.module = self.make_module()
        _warn_of_unread_masks(self._env_to_module, self.spaces, self.module)
        if config.torch_compile_worker:
            parts = getattr(self.module, "as_multi_rl_module", None)
            for module in [self.module] if parts is None else parts().values():
                if not hasattr(module, "compile_acting"):
                    raise ConfigError(
                        "torch_compile_worker",
                        expected="modules that are TorchRLModules, which compile how they act",
                        found=type(module).__name__,
                        do="leave torch_compile_worker out, or derive the module from TorchRLModule",
                    )
                module.compile_acting(
                    backend=config.torch_compile_worker_dynamo_backend, mode=config.torch_compile_worker_dynamo_mode
                )
        self._reset_seeds = ResetSeeds(self.num_envs)
        self._restarts = EnvRestarts(config, self._reset_seeds.draw)
        self._stepper = self._make_stepper()
        window = config.metrics_num_episodes_for_smoothing
        self._metrics = SamplingMetrics(self.num_envs, window, several_agents=self._several_agents)
        if config.seed is not None:
            self.seed(runner_stream(config.seed, worker_index))
        self._running = Running.NONE
        self._policy = ActingPolicy()
        self._sampling = threading.Lock()

    # -- the parts -----------------------------------------------------------------------------

    @abstractmethod
    def make_env(self) -> Any:
        """Make the vector environment."""

    def _make_vector_env(self, mode: str, autoreset: Any) -> Any:
        """Make a `gymnasium.vector.VectorEnv` as the config says, in a vectorize mode and an autoreset mode."""
        config = self.config
        return make_vector_env(
            config.env,
            config.num_envs_per_env_runner,
            mode,
            self.env_context,
            autoreset=autoreset,
            wrappers=wrappers_of(config, mode),
            resets_itself=config.env_resets_itself,
            per_process=config.num_envs_per_worker,
            timeout=config.sub_environment_timeout_s,
        )

    @abstractmethod
    def make_module(self) -> Any:
        """Make the module."""

    def _module_spaces(self) -> dict[str, Any]:
        """Return the spaces of episodes and modules; the env-to-module pipeline must exist."""
        pipeline = self._env_to_module
        return {
            "__episodes__": (pipeline.episode_observation_space, pipeline.episode_action_space),
            DEFAULT_MODULE_ID: (pipeline.observation_space, pipeline.action_space),
        }

    @abstractmethod
    def _make_stepper(self) -> Any:
        """Make the stepper of `self.env`."""

    def get_spaces(self) -> dict[str, Any]:
        """Return observation and action spaces by name.

        Returns:
            `__env__` (vector), `__env_single__`, `__episodes__` (as pieces write observations back), and each module's.
        """
        return self.spaces

    @property
    def env_context(self) -> EnvContext:
        """The `env_config` as environments get it."""
        config = self.config
        return EnvContext(config.env_config, self.worker_index, num_workers=config.num_env_runners)

    def foreach_env(self, func: Callable[[Any], Any]) -> list[Any]:
        """Return a function's value for each single environment; one value for a vector environment of another library.

        Args:
            func: Called with the environment and its wrappers, in its process.

        Raises:
            RunnerError: the runner was stopped or samples, or environments of a pool are at work.
        """
        with self._only_call("foreach_env"):
            single = isinstance(self.env, (SyncEnvs, AsyncEnvs, VectorMultiAgentEnv))
            return list(self.env.call(func)) if single else [func(self.env)]

    def seed(self, stream: np.random.SeedSequence) -> None:
        """Seed environments and pieces from a stream; the environments at their next reset.

        Args:
            stream: Every environment and every pipeline gets a stream of its own from it.
        """
        self._reset_seeds.seed(stream)
        for pipeline, child in zip(self.pipelines.values(), random_stream(stream).spawn(2)):
            pipeline.seed(child)

    @contextlib.contextmanager
    def _only_call(self, method: str) -> Iterator[None]:
        """Let no other call step the environments meanwhile.

        Raises:
            RunnerError: another call has not returned yet, or the runner was stopped.
        """
        if not self._sampling.acquire(blocking=False):
            raise RunnerError(
                f"{type(self).__name__}.{method}",
                expected="one call at a time",
                found="a call while another one has not returned, from a callback or in another thread",
                do="make a runner for each thread; in a callback use the episodes that it is given",
            )
        started = time.perf_counter()
        try:
            self.assert_healthy()
            yield
        finally:
            self._metrics.seconds += time.perf_counter() - started
            self._sampling.release()

    def assert_healthy(self) -> None:
        """Check that the runner has an environment.

        Raises:
            RunnerError: it was stopped.
        """
        if self.env is None:
            raise RunnerError(
                type(self).__name__,
                expected="a runner that has its environments",
                found="one that was stopped, and so has closed them: stop() was called, on it or its Algorithm",
                do="make a new runner, or a new Algorithm (config.build_algo(), from_checkpoint(path)); "
                "call stop() only at the end",
            )

    def stop(self) -> None:
        """Close the environments."""
        if self.env is not None:
            self._stepper.close()
            self.env = None

    # -- metrics and state ---------------------------------------------------------------------

    @property
    def metrics(self) -> MetricsLogger:
        """The logger of pieces and callbacks; `get_metrics()` contains its values."""
        return self._metrics.logged

    @property
    def num_env_steps_sampled_lifetime(self) -> int:
        """Environment steps taken so far, including those before a restore."""
        return self._metrics.steps

    def get_metrics(self) -> dict[str, Any]:
        """Return metrics of sampling: counts since the last call and over the lifetime, returns, seconds."""
        seconds, self._stepper.seconds = self._stepper.seconds, 0.0
        sequence = {WEIGHTS_SEQ_NO: self._policy.weights_seq_no, "env_step_timer": seconds}
        return {**self._metrics.report(), **self._restarts.report(), **sequence}

    def weights_updated(self) -> None:
        """Count that the module's weights changed."""
        self._policy.weights_seq_no += 1

    def checkpoint_reset(self) -> None:
        """Start new episodes at the next call, from new seeds of the environments' streams.

        An environment's inner state cannot be saved in general. A run that calls this when it
        saves therefore continues exactly like one that is restored from the checkpoint.
        """
        self._reset_seeds.draw_all()
        self._running = Running.NONE

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """Return module weights, pipeline states, counters and random streams; not the environments' inner state.

        The state of a runner of tensors fits one of arrays, and the other way round.

        Args:
            components: Names of the parts to return; default: all.
            not_components: Names of parts to leave out.
        """
        return select_components(self._state_parts(), components, not_components)

    def _state_parts(self) -> dict[str, Callable[[], Any]]:
        parts: dict[str, Callable[[], Any]] = {
            "rl_module": self.module.get_state,
            **{f"{name}_connector": pipeline.get_state for name, pipeline in self.pipelines.items()},
            WEIGHTS_SEQ_NO: lambda: self._policy.weights_seq_no,
        }
        for counts in (self._metrics.get_state(), self._reset_seeds.get_state(), self._restarts.get_state()):
            parts.update({name: partial(counts.get, name) for name in counts})
        return parts

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state from `get_state`, or a part of it; after a whole one the next call resets the environments.

        From a part, weights are restored unless their sequence number is older than the runner's. A state that does not
        fit leaves pipelines, counters and random streams as they were.

        Raises:
            CheckpointError: a state that does not fit.
        """
        is_complete = "reset_seeds" in require_mapping(f"{type(self).__name__}.set_state", state)
        before, running = self.get_state(not_components="rl_module"), self._running

        def put_back() -> None:
            self._restore(before, True)
            self._running = running

        with restore_on_error(put_back), restoring(f"{type(self).__name__}.set_state", "runner"):
            self._restore(state, is_complete)

    def _restore(self, state: dict[str, Any], is_complete: bool) -> None:
        for name, pipeline in self.pipelines.items():
            if f"{name}_connector" in state:
                pipeline.set_state(state[f"{name}_connector"])
        policy = self._policy
        sequence = check_count(f"state of a runner, {WEIGHTS_SEQ_NO!r}", state.get(WEIGHTS_SEQ_NO, 0))
        if "rl_module" in state and (is_complete or sequence == 0 or sequence >= policy.weights_seq_no):
            self.module.set_state(state["rl_module"])
            policy.weights_seq_no = sequence or policy.weights_seq_no
        if is_complete:
            policy.weights_seq_no = sequence if WEIGHTS_SEQ_NO in state else policy.weights_seq_no
            self._reset_seeds.set_state(state)
            self._running = Running.NONE
        self._metrics.set_state(state)
        self._restarts.set_state(state)


def _warn_of_unread_masks(pipeline: Any, spaces: Any, module: Any) -> None:
    """Warn of observations with a mask of legal actions that neither a piece nor a user's own network may read."""
    reads_mask = any(piece.reads is None or Columns.ACTION_MASK in piece.writes for piece in pipeline.pieces())
    parts = getattr(module, "as_multi_rl_module", None)
    for name, network in [] if reads_mask or parts is None else parts().items():
        space = spaces[name][0]
        has_mask = isinstance(space, gym.spaces.Dict) and Columns.ACTION_MASK in space.spaces
        if has_mask and type(network).__module__.startswith("epibatch.core."):
            warning = EpibatchWarning(
                f"observation space of module {name!r}",
                expected=f"a piece that reads the mask of legal actions, part {Columns.ACTION_MASK!r}",
                found="none, so that the module draws illegal actions too",
                do="put ActionMask (action_mask in a file) into env_to_module",
            )
            warnings.warn(warning, stacklevel=3)


def _without_space(pipeline: Any) -> SpaceError:
    """Return the error of a pipeline with a piece that makes observations of which no space is known."""
    pieces = enumerate(pipeline.pieces())
    position, piece = next((i, p) for i, p in pieces if p.observation_space is None)
    name = type(piece).__name__
    return SpaceError(
        f"{type(pipeline).__name__}, piece {position} ({name})",
        expected="observations of a known space, for which the module is built",
        found=f"none, after {piece.input_observation_space}: complex numbers, text and other objects have no Box",
        do=f"return real numbers in {name}, with np.abs(x) or x.astype(np.float32), say; or let the piece return its "
        "space in output_space or recompute_output_observation_space",
    )
