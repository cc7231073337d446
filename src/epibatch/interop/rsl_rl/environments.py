"""Environments with the methods of rsl_rl's `VecEnv` as Gymnasium vector environments."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch

from epibatch.core.errors import EnvironmentContractError
from epibatch.core.spaces import get_base_struct_from_space
from epibatch.core.structs import form_of, form_text, map_struct


def as_vector_env(
    env: Any,
    *,
    single_observation_space: gym.Space[Any] | None = None,
    single_action_space: gym.Space[Any] | None = None,
) -> gym.vector.VectorEnv[Any, Any, Any]:
    """Return a vector environment of tensors that steps an environment made for rsl_rl.

    Its `dones` become two flags: `truncateds` are `extras["time_outs"]`, `terminateds` all other ends. Such an
    environment resets itself and gives no terminal observations. So `TensorEnvRunner` bootstraps truncated episodes
    from the value of the observation before, as rsl_rl does, and warns once. `infos` are empty; `extras` of the newest
    step are an attribute.

    Args:
        env: Has `num_envs`, `num_actions`, `get_observations()`, which returns a tensor `[N, ...]` or a TensorDict or
            dict of observation groups, and `step(actions)`, which returns observations, rewards `[N]`, dones `[N]` and
            extras. In the form of rsl_rl 2, which gives a tensor and other groups in `extras["observations"]`, the
            tensor is the group `policy`. If it has `reset()`, a reset calls it; otherwise running episodes go on.
        single_observation_space: Space of one environment's observations; None: Boxes of the shapes and types that
            `get_observations()` gives, without bounds.
        single_action_space: Space of one environment's actions; None: `num_actions` numbers without bounds.

    Raises:
        EnvironmentContractError: an environment without these methods.

    Examples:
        >>> class Still:
        ...     num_envs, num_actions = 2, 1
        ...     def get_observations(self):
        ...         return {"policy": torch.zeros(2, 3)}
        ...     def step(self, actions):
        ...         return self.get_observations(), torch.ones(2), torch.tensor([0, 1]), {"time_outs": torch.ones(2)}
        >>> env = as_vector_env(Still())
        >>> env.single_action_space.shape, list(env.single_observation_space)
        ((1,), ['policy'])
        >>> env.step(torch.zeros(2, 1))[2:4]
        (tensor([False, False]), tensor([False,  True]))
    """
    missing = [name for name in ("num_envs", "num_actions", "get_observations", "step") if not hasattr(env, name)]
    if missing:
        raise EnvironmentContractError(
            f"as_vector_env({type(env).__name__})",
            expected="an environment with num_envs, num_actions, get_observations() and step(actions)",
            found=f"no {', '.join(missing)}",
            do="a gymnasium vector environment needs no adapter; the config takes it as it is",
        )
    return _RslRlVectorEnv(env, single_observation_space, single_action_space)


class _RslRlVectorEnv(gym.vector.VectorEnv[Any, Any, Any]):
    metadata = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}  # noqa: RUF012  # as the base class has it

    def __init__(self, env: Any, observation_space: Any, action_space: Any) -> None:
        self.env, self.num_envs, self.extras = env, int(env.num_envs), dict[str, Any]()
        self.device = torch.device(getattr(env, "device", "cpu"))
        self.single_observation_space = observation_space or _space_of(_groups(env.get_observations()))
        self.single_action_space = action_space or gym.spaces.Box(-np.inf, np.inf, (int(env.num_actions),), np.float32)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, self.num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, self.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment, if it can be, and return its observations; seeds are not passed on."""
        if hasattr(self.env, "reset"):
            self.env.reset()
        return self._ordered(_groups(self.env.get_observations())), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the environment."""
        returned = self.env.step(actions)
        if not isinstance(returned, tuple) or len(returned) not in (3, 4):
            raise EnvironmentContractError(
                f"{type(self.env).__name__}.step",
                expected="observations, rewards, dones and extras",
                found=f"{len(returned)} values" if isinstance(returned, tuple) else type(returned).__name__,
                do="return these four; observations for the critic are a group of a dict of observations",
            )
        obs, rewards, dones, *extras = returned
        self.extras = dict(extras[-1]) if extras else {}
        done = dones.reshape(self.num_envs) != 0
        time_outs = self.extras.get("time_outs")
        truncated = torch.zeros_like(done) if time_outs is None else done & (time_outs.reshape(self.num_envs) != 0)
        observed = self._ordered(_groups(obs if isinstance(obs, tuple) else (obs, self.extras)))
        return observed, rewards.reshape(self.num_envs), done & ~truncated, truncated, {}

    def _ordered(self, obs: Any) -> Any:
        """Return observations whose groups have the order of the space, which gymnasium sorts."""
        spaces = get_base_struct_from_space(self.single_observation_space)
        plain = obs.get("policy", obs) if isinstance(obs, dict) and not isinstance(spaces, dict) else obs
        try:
            return map_struct(lambda _, leaf: leaf, spaces, plain)
        except (KeyError, IndexError, TypeError):
            raise EnvironmentContractError(
                f"{type(self.env).__name__}, observations",
                expected=form_text(form_of(spaces)),
                found=form_text(form_of(plain)),
                do="return the same groups of observations at each step, those of single_observation_space",
            ) from None

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environment, if it can be."""
        if hasattr(self.env, "close"):
            self.env.close()


def _plain(obs: Any) -> Any:
    """Return observations as tensors in dicts."""
    return {name: _plain(part) for name, part in obs.items()} if hasattr(obs, "items") else obs


def _groups(obs: Any) -> Any:
    """Return observations, or a pair of them and extras, whose other observations become groups beside `policy`."""
    obs, extras = obs if isinstance(obs, tuple) else (obs, {})
    obs, others = _plain(obs), _plain(extras.get("observations") or {}) if hasattr(extras, "items") else {}
    alone = isinstance(obs, dict) or not others.keys() - {"policy"}
    return obs if alone else {**others, "policy": obs}


def _space_of(obs: Any) -> Any:
    if isinstance(obs, dict):
        return gym.spaces.Dict({name: _space_of(part) for name, part in obs.items()})
    dtype, shape = np.dtype(str(obs.dtype).removeprefix("torch.")), tuple(obs.shape[1:])
    if dtype.kind == "b":
        return gym.spaces.MultiBinary(shape)
    low, high = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return gym.spaces.Box(low, high, shape, dtype.type)
