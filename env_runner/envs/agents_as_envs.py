"""Agents of one policy as environments, for vector environments with an axis of agents."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.errors import ConfigError, EnvironmentContractError, EpibatchWarning
from epibatch.core.structs import map_struct

from .env_checks import autoreset_mode
from .tensor_envs import is_tensor, with_final_obs

_STEPS_TO_A_LOOK, _SUSPECT = 64, 10  # a look at flags on a device waits for it


class AgentsAsEnvs(gym.vector.VectorEnv[Any, Any, Any]):
    """Shows N environments of A agents with one policy as N * A environments, for the runners of one agent.

    Environment i of these is agent i % A of environment i // A, and each agent has episodes of its own. All agents of
    an environment end together, unless its flags are `[N, A]`. Then an agent begins a new episode after each step with
    its flag, so the environment must reset it by itself. If the flag of an ended agent stays up until its team ends,
    use `MultiAgentEnvRunner` with `possible_agents`, which leaves the agent out until then. The class warns once of
    such flags. Arrays and tensors stay what they are.

    Args:
        env: A vector environment of arrays or tensors, with observations, actions and rewards `[N, A, ...]`, flags
            `[N]` or `[N, A]`, and the single spaces of one agent. It resets in the step of an end (SAME_STEP), and may
            give `infos["final_obs"]`, `[N, A, ...]`, under any name that runners take. Other infos are left out.
        num_agents: A.

    Raises:
        ConfigError: the environment has another autoreset mode.

    Examples:
        >>> class Pairs(gym.vector.VectorEnv):
        ...     num_envs, metadata = 3, {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}
        ...     single_observation_space, single_action_space = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2)
        ...     def reset(self, *, seed=None, options=None):
        ...         return np.zeros((3, 2, 4), np.float32), {}
        >>> AgentsAsEnvs(Pairs(), 2).reset()[0].shape
        (6, 4)
    """

    def __init__(self, env: Any, num_agents: int) -> None:
        self.env, self.num_agents, self.num_envs = env, num_agents, env.num_envs * num_agents
        if autoreset_mode(env) != "same_step":
            raise ConfigError(
                "AgentsAsEnvs",
                expected="an environment that resets in the step of an end, as its metadata say",
                found=f"autoreset mode {autoreset_mode(env)!r}",
                do="set metadata['autoreset_mode'] = gymnasium.vector.AutoresetMode.SAME_STEP if it does so",
            )
        self._steps, self._ended, self._again, self._reset_alone = 0, None, 0, 0
        self.metadata, self.device = env.metadata, getattr(env, "device", None)
        self.single_observation_space, self.single_action_space = env.single_observation_space, env.single_action_space
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, self.num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, self.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all environments."""
        observations, _ = self.env.reset(seed=seed, options=options)
        self._ended = None
        return self._flat(observations), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments; agents that act together are next to one another."""
        lead = self.env.num_envs, self.num_agents
        *values, infos = self.env.step(map_struct(lambda leaf: leaf.reshape(*lead, *leaf.shape[1:]), actions))
        observations, rewards, *flags = values
        of_agents = [self._of_agents(flag) for flag in flags]
        if self._steps >= 0 and max(flag.ndim for flag in flags) > 1:
            self._look_for_dead_agents((of_agents[0] + of_agents[1] > 0).reshape(lead))
        infos = with_final_obs(observations, infos or {})
        shown = {"final_obs": self._flat, "_final_obs": self._of_agents}
        infos = {name: flat(infos[name]) for name, flat in shown.items() if infos.get(name) is not None}
        return self._flat(observations), self._flat(rewards), *of_agents, infos

    def _look_for_dead_agents(self, ended: Any) -> None:
        """Warn once if flags `[N, A]` stay up until all agents of an environment have ended."""
        if self._ended is not None:
            alone = self._ended & ~self._ended.all(1)[:, None]  # while others of the environment go on
            self._again = self._again + (alone & ended & ~ended.all(1)[:, None]).sum()
            self._reset_alone = self._reset_alone + (alone & ~ended).sum()
        self._ended, self._steps = ended, self._steps + 1
        if self._steps % _STEPS_TO_A_LOOK:
            return
        if self._reset_alone > 0:
            self._steps = -1
        elif self._again >= _SUSPECT:
            self._steps = -1
            warning = EpibatchWarning(
                "AgentsAsEnvs",
                expected="flags that are True in one step only, after which the agent begins a new episode",
                found=f"flags that stay up until the team ends: {int(self._again)} episodes of a single step",
                do="give the environment possible_agents and the config .multi_agent(policies={'shared'}, ...): "
                "MultiAgentEnvRunner leaves an agent out after its end",
            )
            warnings.warn(warning, stacklevel=2)

    def _of_agents(self, flags: Any) -> Any:
        """Return flags of each agent, of which there may be one for each environment."""
        if flags.ndim > 1:
            return self._flat(flags)
        return flags.repeat_interleave(self.num_agents) if is_tensor(flags) else np.repeat(flags, self.num_agents)

    def _flat(self, struct: Any) -> Any:
        """Return a structure of arrays or tensors `[N, A, ...]` as `[N * A, ...]`.

        Raises:
            EnvironmentContractError: a part has another shape.
        """
        lead = self.env.num_envs, self.num_agents

        def flat(leaf: Any) -> Any:
            if tuple(leaf.shape[:2]) != lead:
                raise EnvironmentContractError(
                    "AgentsAsEnvs",
                    expected=f"observations, rewards and final_obs with shape {[*lead]} + [...]",
                    found=f"shape {list(leaf.shape)}",
                    do="return one row for each environment and agent, or correct num_agents",
                )
            return leaf.reshape(self.num_envs, *leaf.shape[2:])

        return map_struct(flat, struct)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environment."""
        if hasattr(self.env, "close"):
            self.env.close()
