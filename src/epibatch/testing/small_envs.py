"""Three small environments, for tests and first steps: a game of two, words, and a pendulum without state."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from epibatch.core.errors import RunnerArgumentError
from epibatch.env_runner import MultiAgentEnv, StatelessEnv

_LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


class TicTacToe(MultiAgentEnv):
    """Tic-tac-toe: the agents `x` and `o` take turns. Observations have the legal squares as `action_mask`.

    The agent whose turn it is observes: 1 for its own marks, -1 for the other's. The winner's reward is 1, the loser's
    -1. Both observe the end.

    Raises:
        RunnerArgumentError: a square is taken.

    Examples:
        >>> game = TicTacToe()
        >>> observations, infos = game.reset()
        >>> for square in (0, 3, 1, 4, 2):
        ...     (agent,) = observations
        ...     observations, rewards, terminateds, truncateds, infos = game.step({agent: square})
        >>> rewards, terminateds["__all__"]
        ({'x': 1.0, 'o': -1.0}, True)
    """

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = self.agents = ["x", "o"]
        space = gym.spaces.Dict(
            observation=gym.spaces.Box(-1.0, 1.0, (9,), np.float32), action_mask=gym.spaces.Box(0, 1, (9,), np.int8)
        )
        self.observation_spaces = dict.fromkeys(self.agents, space)
        self.action_spaces = dict.fromkeys(self.agents, gym.spaces.Discrete(9))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Begin a game, with `x`."""
        super().reset(seed=seed)
        self._board = np.zeros(9, np.float32)  # 1: x, -1: o
        self._sign = 1
        return self._seen(self._sign), {}

    def step(self, action_dict: dict[Any, Any]) -> Any:
        """Mark a square."""
        ((agent, square),) = action_dict.items()
        if self._board[square]:
            do = "let the module or the piece ActionMask use action_mask"
            raise RunnerArgumentError(
                f"TicTacToe, agent {agent!r}", expected="a free square", found=f"square {square}", do=do
            )
        self._board[square] = self._sign
        won = any(self._board[list(line)].sum() == 3 * self._sign for line in _LINES)
        over = won or bool(self._board.all())
        other = "o" if agent == "x" else "x"
        rewards = {agent: float(won), other: -float(won)} if over else {agent: 0.0}
        self._sign = -self._sign
        observations = {**self._seen(self._sign), **(self._seen(-self._sign) if over else {})}
        return observations, rewards, {"__all__": over}, {"__all__": False}, {}

    def _seen(self, sign: int) -> dict[str, Any]:
        mask = (self._board == 0).astype(np.int8)
        return {"x" if sign == 1 else "o": {"observation": sign * self._board, "action_mask": mask}}


class SpokenWords(gym.Env[str, Any]):
    """Says a word at each of ten steps, as text; the action is its number, and the reward 1 if it is right.

    Examples:
        >>> env = SpokenWords()
        >>> word, info = env.reset(seed=0)
        >>> word in env.words, env.step(env.words.index(word))[1]
        (True, 1.0)
    """

    words: ClassVar[tuple[str, ...]] = ("left", "right", "up", "down")

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Text(5, charset="abcdefghijklmnopqrstuvwxyz")
        self.action_space = gym.spaces.Discrete(len(self.words))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin with a word."""
        super().reset(seed=seed)
        self._said = 0
        return self._say(), {}

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Compare, and say the next word."""
        reward = float(action == self._number)
        self._said += 1
        return self._say(), reward, self._said == 10, False, {}

    def _say(self) -> str:
        self._number = int(self.np_random.integers(len(self.words)))
        return self.words[self._number]


class StatelessPendulum(StatelessEnv):
    """Gymnasium's Pendulum as a pure function: any number of rows, arrays or tensors.

    A state is an array [rows, 2] of angle and speed.

    Args:
        device: Of tensors; None: arrays.

    Examples:
        >>> env = StatelessPendulum()
        >>> state = np.array([[0.0, 0.0], [math.pi, 1.0], [1.0, -1.0]], np.float32)
        >>> state, obs, reward, terminated, truncated = env.step(state, np.zeros((3, 1), np.float32))
        >>> obs.shape, [f"{value + 0:.2f}" for value in reward]
        ((3, 3), ['0.00', '-9.97', '-1.10'])
    """

    observation_space = gym.spaces.Box(np.array([-1, -1, -8], np.float32), np.array([1, 1, 8], np.float32))
    action_space = gym.spaces.Box(-2.0, 2.0, (1,), np.float32)

    def __init__(self, device: Any = None) -> None:
        self.device = device
        self._math: Any = np
        if device is not None:
            import torch

            self._math = torch

    def initial(self, count: int, rng: Any) -> tuple[Any, Any]:
        """Draw angles and speeds."""
        if self.device is None:
            drawn = rng.random((count, 2), np.float32)
        else:
            drawn = self._math.rand(count, 2, generator=rng, device=self.device)
        angle, speed = math.pi * (2 * drawn[:, 0] - 1), 2 * drawn[:, 1] - 1
        state = self._math.stack([angle, speed], 1)
        return state, self._observed(state)

    def step(self, state: Any, action: Any) -> Any:
        """Push with a torque."""
        angle, speed = state[:, 0], state[:, 1]
        torque = action[:, 0].clip(-2.0, 2.0)
        cost = ((angle + math.pi) % (2 * math.pi) - math.pi) ** 2 + 0.1 * speed**2 + 0.001 * torque**2
        speed = (speed + 0.05 * (15 * self._math.sin(angle) + 3 * torque)).clip(-8.0, 8.0)
        state = self._math.stack([angle + 0.05 * speed, speed], 1)
        never = cost < 0
        return state, self._observed(state), -cost, never, never

    def _observed(self, state: Any) -> Any:
        angle, speed = state[:, 0], state[:, 1]
        return self._math.stack([self._math.cos(angle), self._math.sin(angle), speed], 1)
