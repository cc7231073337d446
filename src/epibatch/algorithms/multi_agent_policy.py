"""Trained modules between their two acting pipelines, for an environment of several agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from epibatch.core.errors import EpibatchError, EpisodeStateError, UnknownNameError, add_context, nearest

from ..env_runner.agent_acting import AgentActions, ToAct, act_for_agents, spread
from ..env_runner.sample_amounts import explores
from ..episodes.multi_agent_episode import MultiAgentEpisode
from .policy_pipelines import PolicyPipelines

__all__ = ["MultiAgentPolicy", "MultiAgentPolicyState"]


@dataclass(frozen=True, eq=False, repr=False)
class MultiAgentPolicyState:
    """What `MultiAgentPolicy.act` needs to know of the steps before; a value, as `PolicyState` is.

    Attributes:
        is_done: Whether the episode has ended; the next one begins with None.
        is_terminated: Whether it ended by itself, and was not cut off.
    """

    _owner: object
    _episode: MultiAgentEpisode
    _acts: AgentActions

    @property
    def is_done(self) -> bool:
        """Whether the episode has ended."""
        return self._episode.is_done

    @property
    def is_terminated(self) -> bool:
        """Whether the episode ended by itself."""
        return self._episode.is_terminated

    def __repr__(self) -> str:
        return f"MultiAgentPolicyState(step {self._episode.env_t})"


class MultiAgentPolicy(PolicyPipelines):
    """Acts for several agents with trained modules: observations by agent in, actions by agent out.

    Both acting pipelines run as they do in the runner. Which module acts for an agent is asked of the mapping
    function when the agent first appears. Running statistics are frozen.

    Args:
        module: The modules.
        env_to_module: The pipeline in front of them, built for the agents' spaces. It becomes the policy's own.
        module_to_env: The pipeline behind them, likewise.
        mapping: The mapping function.
        **options: As for `Policy`.

    Example:
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
        explore: bool = False,
        rewards: Mapping[Any, Any] | None = None,
        infos: Mapping[Any, Any] | None = None,
        terminateds: Mapping[Any, bool] | None = None,
        truncateds: Mapping[Any, bool] | None = None,
    ) -> tuple[dict[Any, Any], MultiAgentPolicyState]:
        """The actions of the agents that observe.

        Args:
            obs: Observations by agent, as the environment's reset or step returned them.
            state: What the call before returned; None at the beginning of an episode. It is not changed.
            explore: Whether to draw actions rather than to take the most likely ones.
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
        explore = explores(explore, False)
        if self._before_acting is not None:
            self._before_acting(self)
        try:
            self._check_agents(obs)
            if state is None:
                episode = self._begun(obs, infos)
            else:
                episode = self._continued(state, obs, rewards, infos, (terminateds or {}, truncateds or {}))
            with self._acting():
                acts = self._acts(ToAct([0], [episode], [episode.get_agents_to_act()]), explore)
        except EpibatchError as error:
            add_context(error, "in MultiAgentPolicy.act:")
            raise
        return acts.for_env[0], MultiAgentPolicyState(self._owner, episode, acts)

    def _check_agents(self, obs: Any) -> None:
        known = self.observation_space.spaces
        strangers = [agent for agent in obs if agent not in known] if isinstance(obs, Mapping) else []
        if strangers:
            raise UnknownNameError(
                "observations",
                expected=f"those of agents {list(known)}",
                found=f"one of {type(strangers[0]).__name__} {strangers[0]!r}",
                do=nearest(str(strangers[0]), map(str, known)),
            )

    def _begun(self, obs: Mapping[Any, Any], infos: Mapping[Any, Any] | None) -> MultiAgentEpisode:
        episode = MultiAgentEpisode(
            observation_space=self.observation_space,
            action_space=self.action_space,
            agent_to_module_mapping_fn=self._mapping,
        )
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
        if not isinstance(state, MultiAgentPolicyState) or state._owner is not self._owner or state.is_done:
            known = isinstance(state, MultiAgentPolicyState)
            found = type(state).__name__ if not known else "one of another policy"
            if known and state._owner is self._owner:
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

    def _acts(self, to_act: ToAct, explore: bool) -> AgentActions:
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
        return spread(columns, to_act, 1, {})

    def __repr__(self) -> str:
        return f"MultiAgentPolicy({', '.join(self.module)})"
