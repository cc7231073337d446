"""Trained modules between their two acting pipelines, without environments or a learner; for one agent and several."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import concatenate, create_empty_array

from epibatch.core import DEFAULT_MODULE_ID
from epibatch.core.checkpoints import arrays_size
from epibatch.core.columns import Columns
from epibatch.core.errors import (
    ConfigError,
    EpibatchError,
    EpisodeStateError,
    UnknownNameError,
    add_context,
    nearest,
)
from epibatch.core.lazy import MovedAttribute
from epibatch.core.random_streams import runner_stream
from epibatch.core.restoring import check_count, restoring
from epibatch.core.runtime import evaluation_mode
from epibatch.core.spaces import get_base_struct_from_space
from epibatch.core.structs import flatten, map_struct

from ..connectors.authoring.column_transform import acted_at_random, undo_actions
from ..connectors.views.view import as_views
from ..env_runner.acting.acting_modules import (
    AgentActions,
    ToAct,
    act,
    act_for_agents,
    explores,
    sample_masked_actions,
    sample_masked_actions_of_agents,
    spread,
)
from ..episodes.acting_history import ActingHistory
from ..episodes.multi_agent_episode import MultiAgentEpisode
from .checkpoint import ACTING, build_for_acting, config_from_checkpoint, read_checkpoint
from .config.module_specs import config_with_views
from .config.pipelines import FrozenStates
from .other_libraries import ACT
from .policy_inputs import PolicyInputs
from .run.saved_checkpoints import read_newest

if TYPE_CHECKING:
    from ..connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
    from ..connectors.module_to_env.module_to_env_pipeline import ModuleToEnvPipeline
    from .algorithm_config import AlgorithmConfig


class PolicyPipelines(ABC):
    """A module between two acting pipelines, which are frozen and draw from streams of their own.

    Args:
        module: The module, or several; the policy acts with their weights as they are at each call.
        env_to_module: The pipeline before it. The policy takes ownership of it.
        module_to_env: The pipeline after it, likewise.
        lookback: Earlier steps to keep, if undeclared pieces read further back than recorded so far.
        steps: Environment steps that the module was trained for; the module's exploration gets it as `t`.
        before_acting: Called with the policy at the beginning of each `act`, to bring it up to date.

    Raises:
        ConfigError: the env-to-module pipeline has no input spaces.
    """

    if not TYPE_CHECKING:  # names of other libraries
        predict = MovedAttribute(ACT)
        compute_single_action = MovedAttribute(ACT)
        compute_actions = MovedAttribute(ACT)
        load = MovedAttribute("use from_checkpoint(path)")
        save = MovedAttribute("use the algorithm's save_to_path(path)")

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
        self._pipelines = {"env_to_module": env_to_module, "module_to_env": module_to_env}
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
        self._owner = uuid4().hex  # of all copies
        # What pieces read without declaring it is seen only as they run.
        self._watched = [pipeline for pipeline in (env_to_module, module_to_env) if pipeline.plan().trusting]
        self._declared = max(env_to_module.lookback_needed, module_to_env.lookback_needed)
        env_to_module.freeze()
        module_to_env.freeze()
        self._frozen = FrozenStates(env_to_module, module_to_env)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy or a pickle has: weights and statistics as of now, without the algorithm they are from."""
        if self._before_acting is not None:
            self._before_acting(self)
        return {**vars(self), "_before_acting": None}

    @abstractmethod
    def __repr__(self) -> str:
        """The class, and what it maps to what."""

    def _history_needed(self) -> int:
        """Return the number of earlier steps that the pieces read."""
        return max(self.lookback, self._declared, *(pipeline.lookback_needed for pipeline in self._watched))

    @staticmethod
    def from_checkpoint(path: str | Path, *, config: AlgorithmConfig | None = None, allow_imports: bool = False) -> Any:
        """Load a policy from what training saved; no environment is made.

        Args:
            path: A folder that `save_to_path` wrote, or that of a run; then its newest whole checkpoint is used.
            config: The original config, needed where a piece or the module is code that the checkpoint cannot hold;
                functions in it are called with `env=None`, and with the spaces.
            allow_imports: Whether pieces and module may be imported by path; importing runs code.

        Raises:
            CheckpointError: no checkpoint, a damaged one, one of an earlier version, or one that needs `config` or
                `allow_imports`; the message says for what.
        """
        from epibatch.core.rl_module.module_data import weight_limit

        path, (description, state) = read_newest(path, lambda chosen: (chosen, read_checkpoint(chosen)))
        where, full_config = f"checkpoint {path}", config
        with nullcontext() if config else restoring(where, "description"):
            if full_config is None:
                do = "pass it: Policy.from_checkpoint(path, config=config)"
                full_config = config_from_checkpoint(
                    path, description, allow_imports=allow_imports, needed=ACTING, do=do
                )
            views = as_views(state.get("added_views", {}), where)
            full_config = config_with_views(full_config, full_config.view_requirements, views, where)
            with nullcontext() if config else weight_limit(arrays_size(state)):
                pipelines, module = build_for_acting(where, description, full_config)
            if hasattr(module, "eval"):
                module.eval()  # the policy's own, and only ever acting
            runner, weights = state["env_runner"], state["learner"]["module"]
            module.set_state(weights if full_config.is_multi_agent else weights[DEFAULT_MODULE_ID])
            policy = policy_for(
                full_config,
                module,
                *pipelines,
                lookback=check_count(f"{where}, lookback", description["lookback"]),
                steps=check_count(f"{where}, steps", runner["num_env_steps_sampled_lifetime"]),
            )
        with restoring(where, "description"):
            policy.set_connector_states(runner["env_to_module_connector"], runner["module_to_env_connector"])
        return policy

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
        self._sequence = runner_stream(int(seed), 0)
        self._seed_pieces()

    @contextmanager
    def _acting(self) -> Iterator[None]:
        """Act in evaluation mode, with frozen states of the pipelines."""
        with evaluation_mode(self.module), self._frozen.checked(f"{type(self).__name__}.act"):
            yield

    def _seed_pieces(self) -> None:
        if self._sequence is not None:
            to_module, to_env = self._sequence.spawn(2)
            self._env_to_module.seed(to_module)
            self._module_to_env.seed(to_env)

    def set_connector_states(self, env_to_module: Mapping[str, Any], module_to_env: Mapping[str, Any]) -> None:
        """Restore the states of a runner's pipelines; a seeded policy keeps its own random streams.

        Args:
            env_to_module: The state of the pipeline before the module.
            module_to_env: The state of the pipeline after it.

        Raises:
            UnknownNameError: a state of a piece that is not there.
        """
        self._env_to_module.set_state(dict(env_to_module))
        self._module_to_env.set_state(dict(module_to_env))
        self._seed_pieces()


@dataclass(frozen=True, eq=False, repr=False)
class PolicyState:
    """State of `Policy.act` after a step; pass it to the next call.

    It is immutable: `act` returns a new state and does not change the given one. It has no attributes to read or set.

    Attributes:
        rows: How many environments it is about.
        batched: Whether they came as a batch; False for a single observation.
    """

    rows: int
    batched: bool
    _owner: str
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
        env_to_module: The pipeline before it, built for one environment's spaces. The policy takes ownership of it.
        module_to_env: The pipeline after it, likewise.
        lookback: Earlier steps to keep, if undeclared pieces read further back than recorded so far.
        steps: Environment steps that the module was trained for; the module's exploration gets it as `t`.
        before_acting: Called with the policy at the beginning of each `act`, to bring it up to date.

    Raises:
        ConfigError: the env-to-module pipeline has no input spaces.
        SpaceError: an observation space with parts that have no shape.

    Examples:
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
        explore: bool | str = False,
        reward: Any = None,
        info: dict[str, Any] | None = None,
        starts: Any = None,
    ) -> tuple[Any, PolicyState]:
        """Return the action for an observation, or the actions for a batch of observations.

        An observation has the shape of the observation space; a batch has one more axis before it. A batch has the
        form of a vector environment's observations: for Dict and Tuple spaces a dict or tuple of arrays.

        Args:
            obs: One observation, or N of them.
            state: What the call before returned; None at the beginning of an episode, of all N for a batch. It is not
                changed: acting again from it gives the same greedy action.
            explore: Whether to draw the action rather than to take the most likely one: True, or "sample"; False, or
                "mode"; "mean" takes the distribution's mean, and "random" draws from the action space.
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
        kind = explores(explore, False)
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
                columns = self._columns(history, kind)
        except EpibatchError as error:
            add_context(error, "in Policy.act:")
            raise
        actions = columns.pop(Columns.ACTIONS)
        for_env = columns.pop(Columns.ACTIONS_FOR_ENV, actions)
        after = PolicyState(rows, batched, self._owner, history, actions, columns)
        return self._for_env(for_env, batched), after

    def export(self, path: str | Path) -> None:
        """Write the whole greedy acting path as one file: env-to-module pieces, module, module-to-env pieces.

        The file's inputs are the observations and states, its outputs the actions and the next states; the batch is of
        any size. States are what `act` keeps: the recurrent state, stacked frames, earlier actions and rewards. Running
        statistics are constants in it. Before the file is written, its actions are compared with those of `act`.

        Args:
            path: A file; folders that are missing are made. One that ends in .onnx runs in any ONNX runtime, without
                epibatch; .pt2 is a program of `torch.export`, which `epibatch.algorithms.load_exported` loads.

        Raises:
            ConfigError: another ending.
            MissingExtraError: ONNX without `pip install 'epibatch[export]'`.
            NotAvailableError: a piece or the module cannot be exported; the message names it.
            StorageError: the file cannot be written.

        Examples:
            >>> import tempfile
            >>> from epibatch.algorithms import load_exported
            >>> from epibatch.algorithms.ppo import PPOConfig
            >>> algo = PPOConfig().environment("CartPole-v1").debugging(seed=0).build_algo()
            >>> path = Path(tempfile.mkdtemp()) / "policy.pt2"
            >>> algo.get_policy().export(path)
            >>> algo.stop()
            >>> exported = load_exported(path)
            >>> import torch
            >>> actions, states = exported.program({"obs": torch.zeros(3, 4)}, exported.initial_states(3))
            >>> actions["actions"].shape
            torch.Size([3])
        """
        from .exported_policy import ActingStep, write_policy  # loads torch

        twin = copy.deepcopy(self)
        write_policy(Path(path), ActingStep(twin.module, twin._env_to_module, twin._module_to_env), self.act)

    def _history(self, state: Any, observations: Any, batched: bool, received: tuple[Any, Any, Any]) -> ActingHistory:
        """The episodes with the newest observations."""
        rewards, infos, starts = received
        if state is None:
            return ActingHistory.start(observations, self._spaces, infos)
        if not isinstance(state, PolicyState) or state._owner != self._owner:
            found = "one of another policy" if isinstance(state, PolicyState) else type(state).__name__
            raise _unfit_state("the state that this policy's last act returned", found)
        if (state.rows, state.batched) != (len(rewards), batched):
            size = f"{len(rewards)} rows" if batched else "one environment"
            raise _unfit_state(f"a state of {size}, as many as observations", repr(state))
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

    def _columns(self, history: ActingHistory, explore: Any) -> dict[str, Any]:
        """The module-to-env pipeline's columns for the newest observations."""
        shared: dict[str, Any] = {}
        batch = self._env_to_module(
            rl_module=self.module, batch={}, episodes=history.episodes, explore=explore, shared_data=shared
        )
        history.commit()
        columns = act(
            self.module,
            self._module_to_env,
            batch,
            history.episodes,
            explore=explore,
            t=self.steps,
            shared_data=shared,
        )
        if explore == "random":
            rows = [self.action_space.sample() for _ in history.episodes]
            drawn = concatenate(self.action_space, rows, create_empty_array(self.action_space, len(rows)))
            random, space = self.action_space.np_random, self._env_to_module.action_space
            legal = sample_masked_actions(self._env_to_module, batch, space, random)
            chosen = legal or acted_at_random(self._pipelines, drawn)
            columns[Columns.ACTIONS], columns[Columns.ACTIONS_FOR_ENV] = chosen
        return columns

    def _for_env(self, actions: Any, batched: bool) -> Any:
        """Copies of the actions in the action space's types."""

        def rows(leaf: Any, value: Any) -> Any:
            array = np.array(value, dtype=leaf.dtype)
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


@dataclass(frozen=True, eq=False, repr=False)
class MultiAgentPolicyState:
    """State of `MultiAgentPolicy.act` after a step; immutable, as `PolicyState` is.

    Attributes:
        is_done: True if the episode has ended; the next one begins with None.
        is_terminated: True if it terminated, and was not truncated.
    """

    _owner: str
    _episode: MultiAgentEpisode
    _acts: AgentActions

    @property
    def is_done(self) -> bool:
        """True if the episode has ended."""
        return self._episode.is_done

    @property
    def is_terminated(self) -> bool:
        """True if the episode terminated."""
        return self._episode.is_terminated

    def __repr__(self) -> str:
        return f"MultiAgentPolicyState(step {self._episode.env_t})"


class MultiAgentPolicy(PolicyPipelines):
    """Acts for several agents with trained modules: observations by agent in, actions by agent out.

    Both acting pipelines run as they do in the runner. Which module acts for an agent is asked of the mapping
    function when the agent first appears. Running statistics are frozen.

    Args:
        module: The modules.
        env_to_module: The pipeline before them, built for the agents' spaces. The policy takes ownership of it.
        module_to_env: The pipeline after them, likewise.
        mapping: The mapping function.
        **options: As for `Policy`.

    Examples:
        >>> from epibatch.algorithms.ppo import PPOConfig
        >>> from epibatch.env_runner.multi_agent_env import make_multi_agent
        >>> config = PPOConfig().environment(make_multi_agent("CartPole-v1"), env_config={"num_agents": 2})
        >>> algo = config.multi_agent(policies=["main"]).build_algo()
        >>> actions, state = algo.act({0: np.zeros(4), 1: np.ones(4)})
        >>> list(actions)
        [0, 1]
        >>> algo.stop()
    """

    def __init__(
        self, module: Any, env_to_module: Any, module_to_env: Any, *, mapping: Callable[..., Any], **options: Any
    ) -> None:
        super().__init__(module, env_to_module, module_to_env, **options)
        self._mapping = mapping

    def act(
        self,
        obs: Mapping[Any, Any],
        state: MultiAgentPolicyState | None = None,
        *,
        explore: bool | str = False,
        rewards: Mapping[Any, Any] | None = None,
        infos: Mapping[Any, Any] | None = None,
        terminateds: Mapping[Any, bool] | None = None,
        truncateds: Mapping[Any, bool] | None = None,
    ) -> tuple[dict[Any, Any], MultiAgentPolicyState]:
        """The actions of the agents that observe.

        Args:
            obs: Observations by agent, as the environment's reset or step returned them.
            state: What the call before returned; None at the beginning of an episode. It is not changed.
            explore: As for `Policy.act`.
            rewards: Of the step that led to `obs`, by agent. Needed if a piece reads rewards.
            infos: The infos that came with `obs`, if a piece reads infos.
            terminateds: Which agents ended, as the step said; those do not act, and may come back. Without, every
                agent that observes acts.
            truncateds: The same for agents that were cut off.

        Returns:
            Actions as the environment takes them, by agent, none when the episode has ended; and the state for the
            next call.

        Raises:
            SpaceError: an observation that does not fit its agent's space.
            EpisodeError: observations that are not by agent.
            EpisodeStateError: a state of another policy, or of an episode that has ended.
            UnknownNameError: an agent that has no space, or that the mapping has no module for.
        """
        kind = explores(explore, False)
        if self._before_acting is not None:
            self._before_acting(self)
        try:
            self._check_agents(obs)
            if state is None:
                episode = self._begun(obs, infos)
            else:
                episode = self._continued(state, obs, rewards, infos, (terminateds or {}, truncateds or {}))
            with self._acting():
                acts = self._acts(ToAct([0], [episode], [episode.get_agents_to_act()]), kind)
        except EpibatchError as error:
            add_context(error, "in MultiAgentPolicy.act:")
            raise
        return acts.for_env[0], MultiAgentPolicyState(self._owner, episode, acts)

    def _check_agents(self, obs: Any) -> None:
        spaces = self.observation_space.spaces
        strangers = [agent for agent in obs if agent not in spaces] if isinstance(obs, Mapping) else []
        if strangers:
            raise UnknownNameError(
                "observations",
                expected=f"those of agents {list(spaces)}",
                found=f"one of {type(strangers[0]).__name__} {strangers[0]!r}",
                do=nearest(str(strangers[0]), map(str, spaces)),
            )

    def _begun(self, obs: Mapping[Any, Any], infos: Mapping[Any, Any] | None) -> MultiAgentEpisode:
        episode = MultiAgentEpisode(
            observation_space=self.observation_space,
            action_space=self._env_to_module.episode_action_space,
            agent_to_module_mapping_fn=self._mapping,
        )
        episode.checks_actions = False
        episode.add_env_reset(observations=obs, infos=dict(infos or {}))
        return episode

    def _continued(
        self,
        state: Any,
        obs: Mapping[Any, Any],
        rewards: Mapping[Any, Any] | None,
        infos: Mapping[Any, Any] | None,
        flags: tuple[Mapping[Any, bool], Mapping[Any, bool]],
    ) -> MultiAgentEpisode:
        """The next chunk of a state's episode, one step further; the state keeps its own."""
        if not isinstance(state, MultiAgentPolicyState) or state._owner != self._owner or state.is_done:
            is_state = isinstance(state, MultiAgentPolicyState)
            found = type(state).__name__ if not is_state else "one of another policy"
            if is_state and state._owner == self._owner:
                found = "one of an episode that has ended"
            raise EpisodeStateError(
                "state for MultiAgentPolicy.act",
                expected="the state that this policy's last act returned, of an episode that goes on",
                found=found,
                do="hand back what act returned; None begins a new episode",
            )
        lookback = self._history_needed()
        episode = state._episode.cut(lookback, agent_steps=lookback)
        acted = state._acts.stored[0]
        episode.add_env_step(
            obs,
            acted,
            dict.fromkeys(acted, np.nan) if rewards is None else dict(rewards),
            dict(infos or {}),
            terminateds=dict(flags[0]),
            truncateds=dict(flags[1]),
            extra_model_outputs=state._acts.outputs[0],
        )
        return episode

    def _acts(self, to_act: ToAct, explore: Any) -> AgentActions:
        shared: dict[str, Any] = {}
        columns: dict[str, Any] = {}
        if any(to_act.agents):
            batch = self._env_to_module(
                rl_module=self.module, batch={}, episodes=to_act.episodes, explore=explore, shared_data=shared
            )
            columns = act_for_agents(
                self.module,
                self._module_to_env,
                batch,
                to_act,
                explore=explore,
                t=self.steps,
                shared_data=shared,
                metrics=None,
            )
        acts = spread(columns, to_act, 1, {})
        if explore == "random" and columns:
            spaces = {key: (module.observation_space, module.action_space) for key, module in self.module.items()}
            random = self.action_space.np_random
            legal = sample_masked_actions_of_agents(self._env_to_module, batch, spaces, shared, random)
            for agent in acts.stored[0]:
                drawn = self.action_space[agent].sample()
                chosen = legal.get((0, agent)) or acted_at_random(self._pipelines, drawn, agent)
                acts.stored[0][agent], acts.for_env[0][agent] = chosen
        return acts

    def __repr__(self) -> str:
        return f"MultiAgentPolicy({', '.join(self.module)})"


def policy_for(
    config: AlgorithmConfig, module: Any, env_to_module: Any, module_to_env: Any, **options: Any
) -> Policy | MultiAgentPolicy:
    """A policy for one agent or for several, as the config says.

    Args:
        config: The config.
        module: The module, or all of them.
        env_to_module: The pipeline before it; the policy takes ownership of it.
        module_to_env: The pipeline after it, likewise.
        **options: As for `Policy`.
    """
    undo_actions(env_to_module, module_to_env)
    if config.is_multi_agent:
        return MultiAgentPolicy(module, env_to_module, module_to_env, mapping=config.policy_mapping_fn, **options)
    return Policy(module, env_to_module, module_to_env, **options)
