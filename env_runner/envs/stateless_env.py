"""Environments whose state goes in and out of `step`: pure functions of rows, and learned models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from epibatch.core.errors import EnvironmentContractError
from epibatch.core.structs import flatten, flatten_like, unflatten

from .one_of_vector import OneOfVector
from .tensor_envs import is_tensor, to_tensor

if TYPE_CHECKING:
    import torch
    from torch import nn

DISABLED, SAME_STEP = gym.vector.AutoresetMode.DISABLED, gym.vector.AutoresetMode.SAME_STEP

StatelessStep = tuple[Any, Any, Any, Any, Any]


class StatelessEnv(ABC):
    """An environment that keeps nothing: `step` takes the state, and returns the next one, of any number of rows.

    States, observations and actions are arrays or tensors [rows, ...], or dicts and tuples of them. In a loop of your
    own, call `initial` and `step` with as many rows as you like, the same environment now with 3 and then with 5. For a
    runner, `as_vector` makes a vector environment of it that keeps the states, and `as_env` a single one.

    Attributes:
        observation_space: Space of one row of observations.
        action_space: Space of one row of actions.
        device: Of the tensors; None: rows are arrays.

    Examples:
        >>> class Line(StatelessEnv):
        ...     observation_space, action_space = gym.spaces.Box(-9, 9, (1,)), gym.spaces.Discrete(2)
        ...
        ...     def initial(self, count, rng):
        ...         state = rng.uniform(-1, 1, (count, 1)).astype(np.float32)
        ...         return state, state
        ...
        ...     def step(self, state, action):
        ...         state = state + 2 * action[:, None] - 1
        ...         return state, state, -np.abs(state[:, 0]), np.abs(state[:, 0]) > 8, np.zeros(len(state), bool)
        >>> state, obs = Line().initial(5, np.random.default_rng(0))
        >>> state, obs, reward, terminated, truncated = Line().step(state, np.array([0, 1, 1, 0, 1]))
        >>> obs.shape, reward.shape
        ((5, 1), (5,))
    """

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    device: Any = None

    @abstractmethod
    def initial(self, count: int, rng: Any) -> tuple[Any, Any]:
        """Return states and observations of the beginnings of episodes.

        Args:
            count: Rows.
            rng: A `numpy.random.Generator`; a `torch.Generator` on `device` if there is one.
        """

    @abstractmethod
    def step(self, state: Any, action: Any) -> StatelessStep:
        """Return the next states, their observations, rewards, terminateds and truncateds; change nothing in place.

        Args:
            state: Rows of states.
            action: As many rows of actions.
        """

    def as_vector(
        self,
        num_envs: int,
        *,
        max_episode_steps: int | None = None,
        autoreset_mode: gym.vector.AutoresetMode = SAME_STEP,
    ) -> StatelessVectorEnv:
        """Return a vector environment of it.

        Args:
            num_envs: Rows.
            max_episode_steps: Steps after which an episode is truncated; None: as `step` says.
            autoreset_mode: SAME_STEP or DISABLED.
        """
        return StatelessVectorEnv(self, num_envs, max_episode_steps=max_episode_steps, autoreset_mode=autoreset_mode)

    def as_env(self, *, max_episode_steps: int | None = None) -> gym.Env[Any, Any]:
        """Return a single environment of it, which takes and returns arrays.

        Args:
            max_episode_steps: Steps after which an episode is truncated; None: as `step` says.
        """
        return OneOfVector(self.as_vector(1, max_episode_steps=max_episode_steps, autoreset_mode=DISABLED))


class StatelessVectorEnv(gym.vector.VectorEnv[Any, Any, Any]):
    """A vector environment that keeps the states of a `StatelessEnv`.

    `reset(options={"state": state, "obs": obs})` begins with these rows.

    Args:
        env: The environment.
        num_envs: Rows.
        max_episode_steps: Steps after which an episode is truncated; None: as `env` says.
        autoreset_mode: SAME_STEP or DISABLED.

    Attributes:
        state: The states, rows of arrays or tensors; they may be set.
    """

    def __init__(
        self,
        env: StatelessEnv,
        num_envs: int,
        *,
        max_episode_steps: int | None = None,
        autoreset_mode: gym.vector.AutoresetMode = SAME_STEP,
    ) -> None:
        self.stateless, self.num_envs, self.max_episode_steps = env, num_envs, max_episode_steps
        if autoreset_mode not in (SAME_STEP, DISABLED):
            raise self._error("autoreset_mode", "SAME_STEP or DISABLED", str(autoreset_mode), "take one of these")
        self.single_observation_space, self.single_action_space = env.observation_space, env.action_space
        self.observation_space = gym.vector.utils.batch_space(env.observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(env.action_space, num_envs)
        self.metadata = {"autoreset_mode": autoreset_mode}
        self.device = env.device
        self.state: Any = None
        self._rng: Any = None

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin episodes: all, or with `options={"reset_mask": mask}` those of a mask."""
        options = options or {}
        if seed is not None or self._rng is None:
            self._rng = self._generator(seed)
        mask = options.get("reset_mask")
        if mask is None and "state" in options:
            self.state, obs = options["state"], options["obs"]
            self._check("reset", {"state": self.state, "obs": obs})
        elif mask is None:
            self.state, obs = self._initial()
        else:
            obs = self._begin(mask if self.device is None else to_tensor(mask, self.device))
        if mask is None:
            self._steps = np.zeros(self.num_envs, np.int64)
            self._steps = self._steps if self.device is None else to_tensor(self._steps, self.device)
        self._obs = obs
        return obs, {}

    def step(self, actions: Any) -> Any:
        """Step all rows."""
        result = self.stateless.step(self.state, actions)
        if not isinstance(result, tuple) or len(result) != 5:
            found = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
            expected = "(state, obs, rewards, terminateds, truncateds)"
            raise self._error("step()", expected, found, "return these five")
        self.state, obs, rewards, terminateds, truncateds = result
        names = ("state", "obs", "rewards", "terminateds", "truncateds")
        self._check("step", dict(zip(names, result)))
        self._obs, self._steps = obs, self._steps + 1
        if self.max_episode_steps is not None:
            truncateds = truncateds | ((self._steps >= self.max_episode_steps) & ~terminateds)
        ended, infos = terminateds | truncateds, dict[str, Any]()
        if self.metadata["autoreset_mode"] == SAME_STEP and (is_tensor(ended) or ended.any()):
            infos = {"final_obs": obs, "_final_obs": ended}
            obs = self._begin(ended)
        return obs, rewards, terminateds, truncateds, infos

    def _begin(self, mask: Any) -> Any:
        """Begin the episodes of a mask, and return all observations."""
        state, obs = self._initial()
        self.state, self._obs = _where(mask, state, self.state), _where(mask, obs, self._obs)
        self._steps = self._steps * ~mask
        return self._obs

    def _initial(self) -> tuple[Any, Any]:
        state, obs = self.stateless.initial(self.num_envs, self._rng)
        self._check("initial", {"state": state, "obs": obs})
        return state, obs

    def _generator(self, seed: Any) -> Any:
        if self.device is None:
            return np.random.default_rng(seed)
        import torch

        generator = torch.Generator(self.device)
        numbers = np.random.SeedSequence(seed).generate_state(1, np.uint64)
        return generator.manual_seed(int(numbers[0]) >> 1)

    def _check(self, method: str, values: dict[str, Any]) -> None:
        for name, value in values.items():
            for leaf in flatten(value)[0]:
                shape = tuple(getattr(leaf, "shape", ()))
                if shape[:1] != (self.num_envs,):
                    expected = f"{name} with {self.num_envs} rows, as many as there are environments"
                    found = f"shape {shape}" if hasattr(leaf, "shape") else type(leaf).__name__
                    raise self._error(f"{method}()", expected, found, "return a row for each that came in")

    def _error(self, where: str, expected: str, found: str, do: str) -> EnvironmentContractError:
        place = f"{type(self.stateless).__name__}, {where}"
        return EnvironmentContractError(place, expected=expected, found=found, do=do)


def _where(mask: Any, new: Any, old: Any) -> Any:
    """Rows of `new` where a mask is True, in the types of `old`."""
    leaves, form = flatten(old)
    out = []
    for leaf, other in zip(leaves, flatten_like(form, new)):
        rows = mask.reshape(-1, *[1] * (leaf.ndim - 1))
        if is_tensor(leaf):
            out.append(other.to(leaf.dtype).where(rows, leaf))
        else:
            out.append(np.where(rows, np.asarray(other).astype(leaf.dtype), leaf))
    return unflatten(form, out)


class LearnedEnv(StatelessEnv):
    """An environment whose steps are those of a learned model, a world model say: imagined episodes.

    Subclass it, and override `observe` if observations are not the states; or give both as functions.

    Args:
        model: Called with rows of states and actions, tensors on its device. It returns a dict with `state` and
            `rewards`, and if it knows of ends `terminateds` and `truncateds`, bool.
        observation_space: Space of one row of observations.
        action_space: Space of one row of actions.
        initial: Function of a count and a `torch.Generator` that returns rows of states, say states of replayed steps.
        observe: Function of states that returns observations, a decoder say; None: the states.
        gradients: True to let gradients flow through the steps.

    Examples:
        >>> import torch
        >>> class Dynamics(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.net = torch.nn.Linear(3, 2)
        ...
        ...     def forward(self, state, action):
        ...         state = self.net(torch.cat([state, action], 1))
        ...         return {"state": state, "rewards": state[:, 0]}
        >>> spaces = gym.spaces.Box(-np.inf, np.inf, (2,)), gym.spaces.Box(-1, 1, (1,))
        >>> env = LearnedEnv(Dynamics(), *spaces, initial=lambda count, rng: torch.zeros(count, 2))
        >>> state, obs = env.initial(4, None)
        >>> state, obs, rewards, terminateds, truncateds = env.step(state, torch.zeros(4, 1))
        >>> obs.shape, rewards.shape, bool(terminateds.any())
        (torch.Size([4, 2]), torch.Size([4]), False)
    """

    def __init__(
        self,
        model: nn.Module,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        initial: Callable[[int, torch.Generator], Any],
        observe: Callable[[Any], Any] | None = None,
        *,
        gradients: bool = False,
    ) -> None:
        self.model, self.observation_space, self.action_space = model, observation_space, action_space
        self.gradients = gradients
        self._initial, self._observe = initial, observe

    @property
    def device(self) -> Any:
        """The device of the model."""
        import torch

        return next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))

    def initial(self, count: int, rng: Any) -> tuple[Any, Any]:
        """Return the states that the function gives, and their observations."""
        import torch

        with torch.set_grad_enabled(self.gradients):
            state = self._initial(count, rng)
            return state, self.observe(state)

    def observe(self, state: Any) -> Any:
        """Return the observations of states."""
        return state if self._observe is None else self._observe(state)

    def step(self, state: Any, action: Any) -> StatelessStep:
        """Return what the model predicts."""
        import torch

        with torch.set_grad_enabled(self.gradients):
            out = self.model(state, action)
            missing = [name for name in ("state", "rewards") if name not in out]
            if missing:
                raise EnvironmentContractError(
                    f"{type(self).__name__}, model {type(self.model).__name__}",
                    expected="a dict with state and rewards",
                    found=f"one with {', '.join(map(str, out)) or 'nothing'}",
                    do=f"let forward(state, action) return {' and '.join(missing)} too",
                )
            no = torch.zeros(len(out["rewards"]), dtype=torch.bool, device=out["rewards"].device)
            ends = (out.get(name, no) for name in ("terminateds", "truncateds"))
            return out["state"], self.observe(out["state"]), out["rewards"], *ends
