"""`Policy`: a trained module between its two acting pipelines, without environments or a learner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import EpibatchError, EpisodeStateError, add_context
from epibatch.core.space_checks import get_base_struct_from_space
from epibatch.core.structs import flatten, map_struct

from ..env_runner.acting import act
from ..env_runner.sample_amounts import explores
from ..episodes._parts.acting_history import ActingHistory
from .policy_inputs import PolicyInputs
from .policy_pipelines import PolicyPipelines

if TYPE_CHECKING:
    from ..connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
    from ..connectors.module_to_env.module_to_env_pipeline import ModuleToEnvPipeline

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


class Policy(PolicyPipelines):
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
        super().__init__(
            module, env_to_module, module_to_env, lookback=lookback, steps=steps, before_acting=before_acting
        )
        self._inputs = PolicyInputs(self.observation_space)

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
            with self._acting():
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
            lookback=self._history_needed(),
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

    def __repr__(self) -> str:
        return f"Policy({type(self.module).__name__}, {self.observation_space} -> {self.action_space})"


def _unfit_state(expected: str, found: str) -> EpisodeStateError:
    return EpisodeStateError(
        "state for Policy.act",
        expected=expected,
        found=found,
        do="hand back what act returned; None begins new episodes, and `starts` those of single rows",
    )
