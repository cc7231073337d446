"""`Policy`: a trained module between its two acting pipelines, without environments or a learner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import ConfigError, EpibatchError, EpisodeStateError, add_context, explain
from epibatch.core.spaces import get_base_struct_from_space
from epibatch.core.structs import flatten, map_struct

from ..env_runner.acting import act
from ..env_runner.sample_amounts import explores
from ..episodes.acting_history import ActingHistory
from .policy_inputs import PolicyInputs

if TYPE_CHECKING:
    from ..connectors.env_to_module import EnvToModulePipeline
    from ..connectors.module_to_env import ModuleToEnvPipeline
    from .algorithm_config import AlgorithmConfig

__all__ = ["Policy", "PolicyState"]


@dataclass(frozen=True, eq=False, repr=False)
class PolicyState:
    """What `Policy.act` needs to know of the steps before, to be handed back to it.

    It is a value: `act` returns a new one and leaves the one it was given as it is. There is nothing in it to be
    read or set by hand.

    Attributes:
        rows: How many environments it is about.
        batched: Whether they came as a batch; False for a single observation.
    """

    rows: int
    batched: bool
    _owner: object
    _history: ActingHistory
    _actions: Any
    _outputs: dict[str, Any]

    def __repr__(self) -> str:
        return f"PolicyState({f'{self.rows} rows' if self.batched else 'one environment'})"


class Policy:
    """Acts with a trained module: an observation in, an action for the environment out.

    Both acting pipelines run as they do in the runner, so that the same observations give the same actions as in
    training: pieces see the newest observations with as much of the episode before them as they look back at, and a
    recurrent module its state. All of that is in the `state` that `act` returns and takes. Running statistics are
    frozen.

    Args:
        module: The module; the policy acts with its weights as they are at each call.
        env_to_module: The pipeline in front of it, built for one environment's spaces. It becomes the policy's own.
        module_to_env: The pipeline behind it, likewise.
        lookback: Earlier steps to keep, if pieces that do not declare it read further back than they were seen to.
        steps: Environment steps that the module was trained for; the module's exploration gets it as `t`.
        before_acting: Called with the policy at the beginning of each `act`, to bring it up to date.

    Raises:
        ConfigError: the env-to-module pipeline has no input spaces.
        SpaceError: an observation space with parts that have no shape.

    Example:
        >>> from epibatch.algorithms.ppo import PPOConfig
        >>> algo = PPOConfig().environment("CartPole-v1").debugging(seed=0).build_algo()
        >>> policy = algo.get_policy()
        >>> action, state = policy.act(np.zeros(4))
        >>> actions, states = policy.act(np.zeros((3, 4)), explore=True)
        >>> action.shape, actions.shape
        ((), (3,))
        >>> algo.stop()
    """

    def __init__(
        self,
        module: Any,
        env_to_module: EnvToModulePipeline,
        module_to_env: ModuleToEnvPipeline,
        *,
        lookback: int = 0,
        steps: int = 0,
        before_acting: Callable[[Policy], None] | None = None,
    ) -> None:
        self.module = module
        self.steps = steps
        self._env_to_module, self._module_to_env = env_to_module, module_to_env
        spaces = env_to_module.input_observation_space, env_to_module.input_action_space
        if spaces[0] is None or spaces[1] is None:
            raise ConfigError(
                explain(
                    "Policy(module, env_to_module, ...)",
                    expected="a pipeline with the spaces of one environment",
                    found="an observation or action space of None",
                    do="build it with input_observation_space= and input_action_space=",
                )
            )
        self.observation_space, self.action_space = self._spaces = spaces
        self._inputs = PolicyInputs(spaces[0])
        self.lookback = lookback
        self._before_acting = before_acting
        self._sequence: np.random.SeedSequence | None = None
        self._owner = object()
        # What pieces read without declaring it is seen only as they run.
        self._watched = [pipeline for pipeline in (env_to_module, module_to_env) if pipeline.plan().trusting]
        self._declared = max(env_to_module.lookback_needed, module_to_env.lookback_needed)
        env_to_module.freeze()
        module_to_env.freeze()

    @classmethod
    def from_checkpoint(
        cls, path: str | Path, *, config: AlgorithmConfig | None = None, allow_imports: bool = False
    ) -> Policy:
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

    def act(
        self,
        obs: Any,
        state: PolicyState | None = None,
        *,
        explore: bool = False,
        reward: Any = None,
        info: dict[str, Any] | None = None,
        starts: Any = None,
    ) -> tuple[Any, PolicyState]:
        """The action for an observation, or the actions for a batch of them.

        Which of both is told by the shape: that of the observation space, or with one axis more in front. A batch is
        what a vector environment returns, of Dict and Tuple spaces a dict or tuple of arrays.

        Args:
            obs: One observation, or N of them.
            state: What the call before returned; None at the beginning of an episode, of all N for a batch. It is not
                changed: acting again from it gives the same greedy action.
            explore: Whether to draw the action rather than to take the most likely one.
            reward: Of the step that led to `obs`: a number, or shape [N]. Needed if a piece reads rewards, as those
                do that show them to the module. At the beginning of an episode it is not looked at.
            info: The info dict that came with `obs`, if a piece reads infos.
            starts: For rows of which episodes ended: bool, [N], True where `obs` is the first of a new episode.

        Returns:
            The action as the environment takes it (in its bounds, type and shape), or N of them along a first axis;
            and the state for the next call.

        Raises:
            SpaceError: an observation that does not fit the observation space.
            ColumnError: `reward` or `starts` without one value per row, no `reward` though a piece reads it, or NaN
                among the module's outputs.
            EpisodeStateError: a state of another policy, or of another number of rows.
        """
        explore = explores(explore, False)
        if self._before_acting is not None:
            self._before_acting(self)
        observations, batched = self._inputs.observations(obs)
        rows = len(flatten(observations)[0][0])
        received = (
            self._inputs.rewards(reward, rows, batched),
            self._inputs.infos(info, batched),
            self._inputs.starts(starts, rows, batched),
        )
        history = self._history(state, observations, batched, received)
        try:
            columns = self._columns(history, explore)
        except EpibatchError as error:
            add_context(error, "in Policy.act:")
            raise
        actions = columns.pop(Columns.ACTIONS)
        for_env = columns.pop(Columns.ACTIONS_FOR_ENV, actions)
        after = PolicyState(rows, batched, self._owner, history, actions, columns)
        return self._for_env(for_env, batched), after

    def _history(self, state: Any, observations: Any, batched: bool, received: tuple[Any, Any, Any]) -> ActingHistory:
        """The episodes with the newest observations."""
        rewards, infos, starts = received
        if state is None:
            return ActingHistory.start(observations, self._spaces, infos)
        if not isinstance(state, PolicyState) or state._owner is not self._owner:
            found = "one of another policy" if isinstance(state, PolicyState) else type(state).__name__
            raise _unfit_state("the state that this policy's last act returned", found)
        if (state.rows, state.batched) != (len(rewards), batched):
            given = f"{len(rewards)} rows" if batched else "one environment"
            raise _unfit_state(f"a state of {given}, as many as observations", repr(state))
        if starts is not None and starts.all():
            return ActingHistory.start(observations, self._spaces, infos)
        return state._history.after(
            observations=observations,
            actions=state._actions,
            rewards=rewards,
            outputs=state._outputs,
            lookback=max(self.lookback, self._declared, *(pipeline.lookback_needed for pipeline in self._watched)),
            starts=starts,
            infos=infos,
        )

    def _columns(self, history: ActingHistory, explore: bool) -> dict[str, Any]:
        """The module-to-env pipeline's columns for the newest observations."""
        shared: dict[str, Any] = {}
        batch = self._env_to_module(
            rl_module=self.module, batch={}, episodes=history.episodes, explore=explore, shared_data=shared
        )
        history.commit()
        return act(
            self.module,
            self._module_to_env,
            batch,
            history.episodes,
            explore=explore,
            t=self.steps,
            shared_data=shared,
        )

    def _for_env(self, actions: Any, batched: bool) -> Any:
        """Copies of the actions in the action space's types."""

        def rows(leaf: Any, own: Any) -> Any:
            array = np.array(own, dtype=leaf.dtype)
            if batched:
                return array
            return array[0, ...] if isinstance(leaf, gym.spaces.Box) else array[0]  # Boxes hold arrays, of no axes too

        return map_struct(rows, get_base_struct_from_space(self.action_space), actions)

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
                explain("Policy.seed", expected="an integer of at least 0", found=repr(seed), do="pass seed=0, say")
            )
        self._sequence = np.random.SeedSequence(int(seed))
        self._seed_pieces()

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

    def __repr__(self) -> str:
        return f"Policy({type(self.module).__name__}, {self.observation_space} -> {self.action_space})"


def _unfit_state(expected: str, found: str) -> EpisodeStateError:
    return EpisodeStateError(
        explain(
            "state for Policy.act",
            expected=expected,
            found=found,
            do="hand back what act returned; None begins new episodes, and `starts` those of single rows",
        )
    )
