"""Vector environments whose values are torch tensors: conversions, and an adapter to Gymnasium's class."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.masked_column import MaskedColumn
from epibatch.core.structs import convert_to_numpy, flatten

_METHODS = ("reset", "step")
_FACTS = ("num_envs", "single_observation_space", "single_action_space")


class VectorEnvAdapter(gym.vector.VectorEnv[Any, Any, Any]):
    """A `gymnasium.vector.VectorEnv` of an environment that has its methods, but is no such class.

    Isaac Lab's environments are `gymnasium.Env`s of many robots, for example. If the metadata name no autoreset mode,
    it is SAME_STEP, as in all simulators of this kind. Other attributes are those of the environment.

    Args:
        env: Has `num_envs`, `single_observation_space` and `single_action_space`, `reset` and `step`.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        inner = env.unwrapped if hasattr(env, "unwrapped") else env
        self.num_envs = int(inner.num_envs)
        self.single_observation_space, self.single_action_space = (getattr(inner, name) for name in _FACTS[1:])
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, self.num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, self.num_envs)
        self.metadata = {
            "autoreset_mode": gym.vector.AutoresetMode.SAME_STEP,
            **(getattr(inner, "metadata", None) or {}),
        }
        self.render_mode = getattr(inner, "render_mode", None)
        self.spec = getattr(inner, "spec", None)

    @classmethod
    def fits(cls, env: Any) -> bool:
        """True if an environment has what the adapter needs."""
        inner = getattr(env, "unwrapped", env)
        methods = all(callable(getattr(env, name, None)) for name in _METHODS)
        return methods and all(getattr(inner, name, None) is not None for name in _FACTS)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Reset all environments."""
        return self.env.reset(seed=seed, options=options)

    def step(self, actions: Any) -> Any:
        """Step all environments."""
        return self.env.step(actions)

    def render(self) -> Any:
        """Return the environment's image."""
        return self.env.render()

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environment, if it can be."""
        close = getattr(self.env, "close", None)
        if close is not None:
            close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)


def is_tensor(value: Any) -> bool:
    """True if a value is a torch tensor; torch is not loaded."""
    return hasattr(value, "detach")


def to_tensor(array: Any, device: Any) -> Any:
    """Return an array as a tensor of its type on a device."""
    import torch

    return torch.as_tensor(array, device=device)


def device_of(struct: Any) -> Any:
    """Return the device of the tensors in a structure; None if there are none."""
    return next((leaf.device for leaf in flatten(struct)[0] if is_tensor(leaf)), None)


def shapes_of(struct: Any, path: str = "") -> dict[str, Any]:
    """Return the shapes of the leaves of a structure of arrays, tensors or spaces, by path; a `MaskedColumn` is a dict.

    Examples:
        >>> shapes_of({"a": np.zeros(2), "b": MaskedColumn(np.ones((3, 1)), np.ones(3))})
        {"['a']": (2,), "['b']['value']": (3, 1), "['b']['mask']": (3,)}
    """
    if isinstance(struct, MaskedColumn):
        struct = struct._asdict()
    if isinstance(struct, (dict, tuple)):
        parts = struct.items() if isinstance(struct, dict) else enumerate(struct)
        return {name: shape for key, part in parts for name, shape in shapes_of(part, f"{path}[{key!r}]").items()}
    return {path: struct.shape if hasattr(struct, "shape") else np.shape(struct)}


def to_arrays(values: Any) -> Any:
    """Return values of an environment with arrays in place of tensors, those in object arrays included.

    A `MaskedColumn` becomes a dict of its two parts, as its space is one.
    """
    if isinstance(values, MaskedColumn):
        return to_arrays(values._asdict())
    if isinstance(values, tuple):
        return tuple(map(to_arrays, values))
    if isinstance(values, dict):
        return {key: to_arrays(value) for key, value in values.items()}
    if isinstance(values, np.ndarray) and values.dtype.kind == "O":
        out = np.empty(values.shape, object)
        for place, value in np.ndenumerate(values):
            out[place] = to_arrays(value)
        return out
    return convert_to_numpy(values)


def infos_to_arrays(infos: Any, num_envs: int) -> Any:
    """Return infos with arrays in place of tensors that have a row for each environment.

    Simulators also log values of all environments: a tensor without axes becomes a number, any other one is copied to
    the CPU, and each environment's info has it whole.
    """
    if isinstance(infos, dict):
        return {key: infos_to_arrays(value, num_envs) for key, value in infos.items()}
    if is_tensor(infos) and (infos.ndim == 0 or len(infos) != num_envs):
        return infos.item() if infos.ndim == 0 else infos.detach().cpu()
    return to_arrays(infos)
