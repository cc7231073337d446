"""Episodes of simulators that ask for actions, as a vector environment."""

from __future__ import annotations

import math
import secrets
import threading
import time
import warnings
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space, create_empty_array, iterate

from epibatch.core.errors import EpibatchWarning, RunnerError
from epibatch.core.spaces import get_base_struct_from_space
from epibatch.core.structs import flatten, flatten_like, map_struct, paths_of, unflatten

from ...episodes.env_infos import ENV_INFOS
from .env_calls import copied_info
from .env_checks import as_flag, as_reward, check_info, check_space

Flags = np.ndarray[Any, np.dtype[np.bool_]]

_PATIENCE_S = 60.0
"""Seconds without a simulator's call before the runner warns."""


@dataclass
class _Message:
    """A simulator's observation, and what led to it."""

    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


@dataclass(eq=False)
class _Episode:
    """An episode of a simulator.

    Args:
        env: The environment that shows it.
        answered: Notified when `asks` becomes False.
        has_begun: True if the runner has its first observation.
        message: What the runner has not taken yet.
        asks: True while the simulator waits for an answer.
        action: The answer; None: the episode is over.
        is_lost: True if its simulator has gone.
    """

    env: int
    answered: threading.Condition
    has_begun: bool = False
    message: _Message | None = None
    asks: bool = False
    action: Any = None
    is_lost: bool = False

    @property
    def is_over(self) -> bool:
        """True if its simulator has gone, and the runner has taken its last message."""
        return self.is_lost and self.message is None


class ExternalEnvs(gym.vector.VectorEnv[Any, Any, Any]):
    """N environments for the episodes of simulators, which run on their own and ask for actions.

    A simulator calls `start_episode`, then `observe` for each action, then `end_episode`, from a thread other than the
    runner's. Each episode takes one of the N environments. Calls wait until the runner samples.

    Args:
        num_envs: N, the number of episodes that can run at once.
        observation_space: Space of one observation: Box, Discrete, MultiDiscrete, MultiBinary, Dicts and Tuples.
        action_space: Space of one action.

    Raises:
        SpaceError: an observation space with text, sequences or graphs.

    Examples:
        >>> envs = ExternalEnvs(2, gym.spaces.Box(0.0, 1.0, (3,)), gym.spaces.Discrete(2))
        >>> episode_id = envs.start_episode()
        >>> envs.observe(episode_id, np.zeros(2))
        Traceback (most recent call last):
        epibatch.core.errors.RunnerError: observe(), observation
          expected: numbers of shape (3,), as Box(0.0, 1.0, (3,), float32)
          found:    float64 array of shape (2,)
          do:       send observations of the config's observation_space
    """

    def __init__(self, num_envs: int, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> None:
        self._episodes: dict[str, _Episode] = {}
        self._dropped: set[str] = set()
        self._lock = threading.RLock()
        self._called = threading.Condition(self._lock)  # a simulator called
        check_space(observation_space, "observation space of external environments", text=False)
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = observation_space, action_space
        self.observation_space = batch_space(observation_space, num_envs)
        self.action_space = batch_space(action_space, num_envs)
        self.metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}
        self._leaves, self._form = flatten(get_base_struct_from_space(observation_space))

    # -- calls of simulators, in their threads -----------------------------------------------------

    def start_episode(self) -> str:
        """Begin an episode, and return its id.

        Raises:
            RunnerError: N episodes are running, or the runner was stopped.
        """
        with self._lock:
            self._check_open("start_episode()")
            taken = {episode.env for episode in self._episodes.values() if not episode.is_over}
            if len(taken) == self.num_envs:
                raise RunnerError(
                    "start_episode()",
                    expected=f"at most {self.num_envs} episodes at once",
                    found="another one",
                    do="end one first, or raise env_runners.num_envs_per_env_runner",
                )
            env = next(env for env in range(self.num_envs) if env not in taken)
            episode_id = secrets.token_hex(8)
            self._episodes[episode_id] = _Episode(env, threading.Condition(self._lock))
            return episode_id

    def observe(self, episode_id: str, observation: Any, reward: float = 0.0, info: Any = None) -> Any:
        """Wait for the runner, and return the action for an observation.

        Args:
            episode_id: What `start_episode` returned.
            observation: The observation that the action is for.
            reward: Of the action before; 0 with the first observation.
            info: Kept in the episode: a dict.

        Returns:
            The action; None if the runner dropped the episode, as a reset does. Start another one then.

        Raises:
            RunnerError: values that do not fit, an unknown episode, or the runner was stopped.
        """
        return self._ask("observe()", episode_id, observation, reward, False, False, info)

    def end_episode(
        self,
        episode_id: str,
        observation: Any,
        reward: float = 0.0,
        terminated: bool | None = None,
        truncated: bool = False,
        info: Any = None,
    ) -> None:
        """End an episode, and wait until the runner has taken its end.

        Args:
            episode_id: What `start_episode` returned.
            observation: The terminal one.
            reward: Of the last action.
            terminated: True if the task is over; None: unless it is truncated.
            truncated: True if the episode was stopped early.
            info: Kept in the episode: a dict.

        Raises:
            RunnerError: neither flag, no action was taken, or as `observe`.
        """
        terminated = not truncated if terminated is None else terminated
        self._ask("end_episode()", episode_id, observation, reward, terminated, truncated, info)

    def lose_episode(self, episode_id: str) -> None:
        """End an episode whose simulator has gone: it is truncated at its last observation."""
        with self._lock:
            self._dropped.discard(episode_id)
            episode = self._episodes.get(episode_id)
            if episode is not None and (episode.has_begun or episode.message is not None):
                episode.is_lost = True
                self._called.notify_all()
            elif episode is not None:
                del self._episodes[episode_id]

    def _ask(
        self, call: str, episode_id: str, observation: Any, reward: Any, terminated: Any, truncated: Any, info: Any
    ) -> Any:
        info = {} if info is None else info
        check_info(call, info)
        message = _Message(
            self._checked(observation, f"{call}, observation"),
            as_reward(call, reward),
            as_flag(call, "terminated", terminated),
            as_flag(call, "truncated", truncated),
            copied_info(info),
        )
        with self._lock:
            self._check_open(call)
            if episode_id in self._dropped:
                self._dropped.remove(episode_id)
                return None
            episode = self._following(call, episode_id, message)
            episode.message, episode.asks, episode.action = message, True, None
            self._called.notify_all()
            while episode.asks:
                self._check_open(call)
                episode.answered.wait()
            return episode.action

    def _following(self, call: str, episode_id: str, message: _Message) -> _Episode:
        """Return the episode that a message continues.

        Raises:
            RunnerError: there is none, or the message does not follow the one before.
        """
        episode, ends = self._episodes.get(episode_id), message.terminated or message.truncated
        if episode is None or episode.is_lost:
            problem = (
                "an episode that runs",
                f"the id {episode_id!r}",
                "call start_episode(), and pass the id it returns",
            )
        elif episode.asks:
            problem = "one call at a time", "a second one of the same episode", "wait until the first one returns"
        elif call == "end_episode()" and not ends:
            problem = "terminated or truncated", "neither", "set the one that is true"
        elif not episode.has_begun and (ends or message.reward):
            problem = "a first observation", "a reward or an end before the first action", "call observe(id, obs) first"
        else:
            return episode
        expected, found, do = problem
        raise RunnerError(call, expected=expected, found=found, do=do)

    def _checked(self, observation: Any, where: str) -> Any:
        """Return an observation as its space has it: its nesting, shapes and types, and finite numbers.

        Raises:
            RunnerError: it does not fit.
        """
        try:
            values = flatten_like(self._form, observation)
        except Exception:
            space = self.single_observation_space
            _refuse(where, f"the nesting of {space}", type(observation).__name__)
        leaves = map(_fitting, self._leaves, values, (where + path for path in paths_of(self._form)))
        return unflatten(self._form, list(leaves))

    def _check_open(self, call: str) -> None:
        if self.closed:
            do = "end the simulator; the training is over"
            raise RunnerError(call, expected="a runner", found="one that was stopped", do=do)

    # -- calls of the runner -----------------------------------------------------------------------

    def wait(self) -> tuple[Flags, Flags, list[int]]:
        """Wait for simulators; return which environments begin an episode, which have a step, and which are lost.

        Raises:
            RunnerError: the environments were closed.
        """
        patience = time.monotonic() + _PATIENCE_S
        with self._lock:
            while True:
                self._check_open("sample()")
                begins, steps = np.zeros((2, self.num_envs), np.bool_)
                lost = [key for key, episode in self._episodes.items() if episode.is_over]
                for episode in self._episodes.values():
                    if episode.message is not None:
                        (steps if episode.has_begun else begins)[episode.env] = True
                if lost or begins.any() or steps.any():
                    return begins, steps, self._forget(lost)
                self._called.wait(1.0)
                if time.monotonic() > patience:
                    patience = math.inf
                    self._warn()

    def _warn(self) -> None:
        warning = EpibatchWarning(
            "sample() of external environments",
            expected="simulators that call observe()",
            found=f"none for {_PATIENCE_S:g} s, with {len(self._episodes)} episodes running",
            do="start a simulator, or look at what the running ones wait for",
        )
        warnings.warn(warning, stacklevel=4)

    def send(self, actions: Any) -> None:
        """Answer the simulators whose observations the runner has taken.

        Args:
            actions: Those of all environments, arrays [N, ...].
        """
        with self._lock:
            asking = [episode for episode in self._episodes.values() if episode.asks and episode.message is None]
            rows = list(iterate(self.action_space, actions)) if asking else []
            for episode in asking:
                episode.action = map_struct(lambda leaf: np.array(leaf)[()], rows[episode.env])
                self._answer(episode)

    def _answer(self, episode: _Episode) -> None:
        episode.asks = False
        episode.answered.notify_all()

    def reset(
        self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Take the first observations of the episodes that begin, or drop all that have begun.

        Args:
            seed: Not used: simulators have seeds of their own.
            options: `reset_mask`: the environments that begin an episode, bool [N]; without it running ones are dropped
                and their simulators get None as the next action.
        """
        mask = (options or {}).get("reset_mask")
        with self._lock:
            if mask is None:
                dropped = {key: episode for key, episode in self._episodes.items() if episode.has_begun}
                self._dropped.update(key for key, episode in dropped.items() if not (episode.asks or episode.is_lost))
                self._forget(dropped)
                mask = np.zeros(self.num_envs, np.bool_)
            observations, _, _, _, infos = self._taken(mask)
            return observations, infos

    def step(self, actions: Any, mask: Any = None) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take the steps that simulators have sent.

        Args:
            actions: Not used: `send` has answered with them.
            mask: The environments that have a step: bool, [N].
        """
        with self._lock:
            result = self._taken(mask)
            ended = set(np.flatnonzero(result[2] | result[3]).tolist())
            self._forget([key for key, episode in self._episodes.items() if episode.env in ended])
            return result

    def _taken(self, mask: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take the messages of some environments; rows of the others are zeros."""
        observations = create_empty_array(self.single_observation_space, n=self.num_envs)
        rows = flatten_like(self._form, observations)
        rewards, flags = np.zeros(self.num_envs), np.zeros((2, self.num_envs), np.bool_)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for episode in self._episodes.values():
            message, env = episode.message, episode.env
            if message is None or not mask[env]:
                continue
            episode.message, episode.has_begun = None, True
            for row, leaf in zip(rows, flatten_like(self._form, message.observation)):
                row[env] = leaf
            rewards[env], flags[:, env], infos[env] = (
                message.reward,
                (message.terminated, message.truncated),
                message.info,
            )
        return observations, rewards, flags[0], flags[1], {ENV_INFOS: infos}

    def _forget(self, keys: Collection[str]) -> list[int]:
        """Remove episodes, and return their environments; a simulator that waits for an action gets None."""
        forgotten = [self._episodes.pop(key) for key in list(keys)]
        for episode in forgotten:
            self._answer(episode)
        return [episode.env for episode in forgotten]

    def close_extras(self, **kwargs: Any) -> None:
        """Let the waiting calls of simulators raise."""
        with self._lock:
            self.closed = True
            self._called.notify_all()
            for episode in self._episodes.values():
                episode.answered.notify_all()


def _fitting(space: gym.Space[Any], value: Any, where: str) -> Any:
    """Return a part of an observation as an array of its space's type.

    Raises:
        RunnerError: another shape, numbers that are not finite, or that the space's type does not have.
    """
    expected = f"numbers of shape {space.shape}, as {space}"
    try:
        array = np.asarray(value)
    except Exception:
        _refuse(where, expected, type(value).__name__)
    if array.shape != space.shape or array.dtype.kind not in "biuf":
        _refuse(where, expected, f"{array.dtype} array of shape {array.shape}")
    with np.errstate(all="ignore"):
        cast = array.astype(space.dtype)
    if not np.isfinite(cast).all() or (cast.dtype.kind in "biu" and not np.array_equal(cast, array)):
        _refuse(where, f"finite numbers of type {space.dtype}, as {space}", np.array2string(array, threshold=10))
    if not isinstance(space, gym.spaces.Box) and not space.contains(cast[()]):
        _refuse(where, f"a member of {space}", np.array2string(array, threshold=10))
    return cast


def _refuse(where: str, expected: str, found: str) -> NoReturn:
    do = "send observations of the config's observation_space"
    raise RunnerError(where, expected=expected, found=found, do=do)
