"""What policies have in common: a module between two acting pipelines of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from epibatch.core.errors import ConfigError
from epibatch.core.lazy import Elsewhere
from epibatch.core.rl_module.rl_module import evaluation_mode

from .frozen_states import FrozenStates
from .other_libraries import ACT

if TYPE_CHECKING:
    from ..connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
    from ..connectors.module_to_env.module_to_env_pipeline import ModuleToEnvPipeline
    from .algorithm_config import AlgorithmConfig

__all__ = ["PolicyPipelines"]


class PolicyPipelines(ABC):
    """A module between two acting pipelines, which are frozen and draw from streams of their own.

    Args:
        module: The module, or several; the policy acts with their weights as they are at each call.
        env_to_module: The pipeline in front of it. It becomes the policy's own.
        module_to_env: The pipeline behind it, likewise.
        lookback: Earlier steps to keep, if pieces that do not declare it read further back than they were seen to.
        steps: Environment steps that the module was trained for; the module's exploration gets it as `t`.
        before_acting: Called with the policy at the beginning of each `act`, to bring it up to date.

    Raises:
        ConfigError: the env-to-module pipeline has no input spaces.
    """

    if not TYPE_CHECKING:  # names of other libraries
        predict = Elsewhere(ACT)
        compute_single_action = Elsewhere(ACT)
        compute_actions = Elsewhere(ACT)
        load = Elsewhere("use from_checkpoint(path)")
        save = Elsewhere("use the algorithm's save_to_path(path)")

        def __call__(self, *args, **kwargs):
            """Raise: calling a policy could mean an action alone, or with the state."""
            raise TypeError(f"a {type(self).__name__} is not called: {ACT}")

    def __init__(
        self,
        module: Any,
        env_to_module: EnvToModulePipeline,
        module_to_env: ModuleToEnvPipeline,
        *,
        lookback: int = 0,
        steps: int = 0,
        before_acting: Callable[[Any], None] | None = None,
    ) -> None:
        self.module = module
        self.steps = steps
        self._env_to_module, self._module_to_env = env_to_module, module_to_env
        spaces = env_to_module.input_observation_space, env_to_module.input_action_space
        if spaces[0] is None or spaces[1] is None:
            raise ConfigError(
                f"{type(self).__name__}(module, env_to_module, ...)",
                expected="a pipeline with the spaces of one environment",
                found="an observation or action space of None",
                do="build it with input_observation_space= and input_action_space=",
            )
        self.observation_space: Any
        self.action_space: Any
        self.observation_space, self.action_space = self._spaces = spaces
        self.lookback = lookback
        self._before_acting = before_acting
        self._sequence: np.random.SeedSequence | None = None
        self._owner = object()
        # What pieces read without declaring it is seen only as they run.
        self._watched = [pipeline for pipeline in (env_to_module, module_to_env) if pipeline.plan().trusting]
        self._declared = max(env_to_module.lookback_needed, module_to_env.lookback_needed)
        env_to_module.freeze()
        module_to_env.freeze()
        self._frozen = FrozenStates(env_to_module, module_to_env)

    @abstractmethod
    def __repr__(self) -> str:
        """The class, and what it maps to what."""

    def _history_needed(self) -> int:
        """How many earlier steps the pieces read."""
        return max(self.lookback, self._declared, *(pipeline.lookback_needed for pipeline in self._watched))

    @staticmethod
    def from_checkpoint(path: str | Path, *, config: AlgorithmConfig | None = None, allow_imports: bool = False) -> Any:
        """Load a policy from what training saved; no environment is made.

        Args:
            path: A folder that `save_to_path` wrote, or that of a run, whose newest whole checkpoint is taken.
            config: The original config, needed where a piece or the module is code that the checkpoint cannot hold;
                functions in it are called with `env=None`, and with the spaces.
            allow_imports: Whether pieces and module may be imported by path; importing runs code.

        Raises:
            CheckpointError: no checkpoint, a damaged one, one of an earlier version, or one that needs `config` or
                `allow_imports`; the message says for what.
        """
        from .policy_checkpoint import load_policy

        return load_policy(Path(path), config, allow_imports=allow_imports)

    def seed(self, seed: int) -> None:
        """Seed what the pieces draw, as a runner with this seed does: exploring actions are then reproducible.

        Args:
            seed: An integer of at least 0.

        Raises:
            ConfigError: something else.
        """
        if self._before_acting is not None:
            self._before_acting(self)
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
            raise ConfigError(
                f"{type(self).__name__}.seed",
                expected="an integer of at least 0",
                found=repr(seed),
                do="pass seed=0, say",
            )
        self._sequence = np.random.SeedSequence(int(seed))
        self._seed_pieces()

    @contextmanager
    def _acting(self) -> Iterator[None]:
        """Act in evaluation mode, with pipelines whose states stay as they are."""
        with evaluation_mode(self.module), self._frozen.checked(f"{type(self).__name__}.act"):
            yield

    def _seed_pieces(self) -> None:
        if self._sequence is not None:
            to_module, to_env = self._sequence.spawn(2)
            self._env_to_module.seed(to_module)
            self._module_to_env.seed(to_env)

    def set_connector_states(self, env_to_module: Mapping[str, Any], module_to_env: Mapping[str, Any]) -> None:
        """Take over the states of a runner's pipelines; a policy that was seeded goes on with streams of its own.

        Args:
            env_to_module: The state of the pipeline in front of the module.
            module_to_env: The state of the one behind it.

        Raises:
            UnknownNameError: a state of a piece that is not there.
        """
        self._env_to_module.set_state(dict(env_to_module))
        self._module_to_env.set_state(dict(module_to_env))
        self._seed_pieces()
