"""Several environments that step together: of one agent in this process, of several in one or more."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import isfinite
from typing import Any, NamedTuple, final

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import (
    CloudpickleWrapper,
    batch_space,
    concatenate,
    create_empty_array,
    create_shared_memory,
    iterate,
    read_from_shared_memory,
)

from epibatch.core.errors import (
    ConfigError,
    EpibatchWarning,
    NotAvailableError,
    RunnerError,
    SpaceError,
    UnknownNameError,
    add_context,
    nearest,
)
from epibatch.core.spaces import check_row, get_base_struct_from_space
from epibatch.core.structs import flatten, flatten_like, map_struct, unflatten

from ...episodes.arrays import object_leaf, owned
from ...episodes.env_infos import ENV_INFOS
from .agent_batches import AgentBatches
from .env_calls import AgentStep, MultiAgentCalls, SingleAgentCalls, attribute_of, copied_info
from .env_checks import (
    as_flag,
    as_reward,
    check_info,
    check_multi_agent_env,
    check_space,
    has_objects,
    is_objects,
    reward_shape,
    unjoined,
    with_both_flags,
)
from .env_workers import LocalEnvs, WorkerEnvs
from .multi_agent_base import MultiAgentEnv

_NUMBERS = frozenset({float, np.float64, np.float32})  # rewards of these types, and
_FLAGS = frozenset({bool, np.bool_})  # flags of these types need no further check


def _set_info(infos: dict[str, Any], count: int, env: int, info: dict[str, Any]) -> None:
    """Put one environment's info into the list of those of all; there is none while all are empty."""
    if ENV_INFOS not in infos:
        if not info:
            return
        infos[ENV_INFOS] = [{} for _ in range(count)]
    infos[ENV_INFOS][env] = info


def _set_final(infos: dict[str, Any], count: int, env: int, observation: Any, info: dict[str, Any]) -> None:
    """Put one environment's terminal observation and info among those of all."""
    if "final_obs" not in infos:
        infos["final_obs"] = np.full(count, None, object)
        infos["_final_obs"] = np.zeros(count, np.bool_)
        infos["final_info"] = [{} for _ in range(count)]
    infos["final_obs"][env], infos["final_info"][env] = observation, info
    infos["_final_obs"][env] = True


@final
class SyncEnvs(gym.vector.SyncVectorEnv):
    """Gymnasium's `SyncVectorEnv`, with the same results except for the infos, and less overhead.

    Each environment's info stays a dict of its own: `infos["env_infos"]` is a list of copies, one for each environment.
    There is no such key while all of them are empty. With SAME_STEP, `infos["final_info"]` is such a list, and
    `infos["final_obs"]` has the terminal observations, None for the others.

    The next call overwrites the returned observations. Meaningless values that Gymnasium's class would convert, such as
    the text "False" as a flag or an additional key in a Dict observation, are errors.

    Args:
        env_fns: Functions that make the environments.
        resets_itself: True if the environments reset themselves inside `step`: no reset follows an end (SAME_STEP).
        **settings: `observation_mode` and `autoreset_mode`, as of `SyncVectorEnv`.

    Attributes:
        failures: Errors of environments in the last call, by their numbers.
        raises: True if `step` raises the first of them; if not, `step` is `try_step`.
        reward_shape: Shape of a reward: () for numbers, else that of the environments' `reward_space`.

    Examples:
        >>> envs = SyncEnvs([lambda: gym.make("CartPole-v1")] * 2)
        >>> envs.reset(seed=0)[0].shape, envs.step(np.array([0, 1]))[1]
        ((2, 4), array([1., 1.]))
        >>> envs.close()
    """

    raises = True

    def __init__(self, env_fns: Any, *, resets_itself: bool = False, **settings: Any) -> None:
        self._env_fns, self._resets_itself = list(env_fns), resets_itself
        try:
            super().__init__(self._env_fns, **{**settings, "copy": False})
        except AssertionError as error:
            if not hasattr(self, "envs"):  # an environment raised it
                raise
            raise SpaceError(
                "environments of one runner",
                expected="the same observation and action space in all of them",
                found=str(error),
                do="let every call of the function make an environment with equal spaces; give a class of spaces of "
                "your own __eq__, or call epibatch.core.registry.register_space(...)",
            ) from error
        count, space = self.num_envs, self.single_observation_space
        self._count = count
        self._rows: list[Any] = [None] * count
        self._ended: set[int] = set()
        self._joined: Any = create_empty_array(space, n=count, fn=np.zeros)
        self._shape = space.shape
        self._nested = isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple))
        self._has_objects = has_objects(space)
        self.failures: dict[int, Exception] = {}
        self.reward_shape = reward_shape(self.envs[0])
        self._rewards_shape = (count, *self.reward_shape)
        self._numbers = frozenset() if self.reward_shape else _NUMBERS
        joined = self._joined
        self._flat: Any = joined.reshape(-1) if isinstance(joined, np.ndarray) and joined.ndim == 2 else None

    def reset(
        self,
        *,
        seed: int | list[int | None] | None = None,
        options: dict[str, Any] | None = None,
        mask: Any = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or some.

        Args:
            seed: For the first environment, the others get the following numbers; or one for each.
            options: Passed to the environments, except for Gymnasium's `reset_mask`, which counts as `mask`.
            mask: The environments to reset: bool, [N]; None: all. The observations of the others stay as they were.

        Raises:
            RunnerError: not one seed per environment, or a mask of another type or shape, or without any environment.
        """
        calls = _reset_calls(self, seed, options, mask)
        infos: dict[str, Any] = {}
        self.failures = {}
        for i, (seed_of_env, settings) in calls.items():
            try:
                self._rows[i], info = self.envs[i].reset(seed=seed_of_env, options=settings)
                _set_info(infos, self._count, i, _checked_copy(self.envs[i], "reset", info))
            except Exception as error:
                self.failures[i] = error
                if self.raises:
                    raise
        self._ended = self._ended.difference(calls)
        joined = self._together()
        if self.raises:
            _raise_first(self.failures)
        return joined, infos

    def restart(self, index: int, seed: int | None, infos: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Replace an environment by a new one, and reset that.

        Args:
            index: Its number.
            seed: For its reset.
            infos: Infos of all environments, in which that of the reset takes the place of its own.

        Returns:
            The newest observations of all environments, and the infos.
        """
        with contextlib.suppress(Exception):
            self.envs[index].close()  # type: ignore[no-untyped-call]
        env = self._env_fns[index]()
        _check_same_spaces(self, index, env.observation_space, env.action_space)
        self.envs[index] = env
        self._rows[index], info = env.reset(seed=seed)
        check_row(self.single_observation_space, self._rows[index], _place(env))
        _set_info(infos, self._count, index, _checked_copy(env, "reset", info))
        self._ended.discard(index)
        return self._together(), infos

    def call(self, name: str | Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return an attribute or the result of a method of every environment; or a function's value for each."""
        return tuple(attribute_of(env, name, args, kwargs) for env in self.envs)

    def step(self, actions: Any, mask: Any = None) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments, or some.

        Args:
            actions: One per environment, as `action_space` says.
            mask: The environments to step: bool, [N]; None: all. The others keep their observations, and have reward 0
                and no flags. One that has ended waits for its reset.

        Raises:
            RunnerError: in mode DISABLED, an environment has ended and was not reset; or a mask of another type or
                shape.
            SpaceError: an observation of another nesting or shape than the observation space.
            EnvironmentContractError: a reward that is no number, or a flag that is neither True nor False.
        """
        result = self.try_step(actions, mask)
        if self.raises:
            _raise_first(self.failures)
        return result

    def try_step(self, actions: Any, mask: Any = None) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step as `step` does, but keep the results of the other environments if some fail.

        `failures` has the errors. An environment that failed has reward 0, no flags, and a meaningless observation. If
        it failed in the reset after its episode's end, only the reset observation is missing.
        """
        at_once = self.autoreset_mode is gym.vector.AutoresetMode.SAME_STEP
        resets = at_once and not self._resets_itself
        ended = self._ended
        _refuse_ended(self, ended, mask)
        infos: dict[str, Any] = {}
        rows, self.failures, self._ended = self._rows, {}, set()
        rewards, flags, numbers = np.zeros(self._rewards_shape), np.zeros((2, self._count), np.bool_), self._numbers
        action_rows = actions if type(actions) is np.ndarray else iterate(self.action_space, actions)
        stepped: Any = enumerate(zip(self.envs, action_rows, strict=True))
        if mask is not None:
            chosen = _chosen(mask, self._count, "SyncEnvs.step")
            stepped = [item for item in stepped if item[0] in chosen]
            self._ended = ended.difference(chosen)
        for i, (env, action) in stepped:
            try:
                if i in ended:
                    rows[i], info = env.reset()
                else:
                    result: Any = env.step(action)
                    try:
                        rows[i], reward, terminated, truncated, info = result
                    except ValueError:
                        if len(result) != 4:
                            raise
                        rows[i], reward, terminated, truncated, info = with_both_flags(_call(env), result, False)
                    usual = type(reward) in numbers and isfinite(reward)
                    rewards[i] = reward if usual else as_reward(_call(env), reward, self.reward_shape)
                    if terminated is not False or truncated is not False:
                        ends = _flags(env, terminated, truncated)
                        if ends != (False, False):
                            flags[:, i] = ends
                            self._ended.add(i)
                    if resets and i in self._ended:
                        _check_alone(self.single_observation_space, rows[i], _place(env))
                        _set_final(infos, self._count, i, rows[i], _checked_copy(env, "step", info))
                        rows[i], info = env.reset()
                if info or type(info) is not dict:
                    was_reset = i in ended or (resets and i in self._ended)
                    info = _checked_copy(env, "reset" if was_reset else "step", info)
                    _set_info(infos, self._count, i, info)
            except Exception as error:
                self.failures[i] = error
                self._ended.discard(i)
                if not infos.get("_final_obs", {i: False})[i]:  # else the end is noted, and its reset failed
                    rewards[i], flags[:, i] = 0.0, False
        if at_once:
            self._ended = set()
        return self._together(None if at_once else flags), rewards, flags[0], flags[1], infos

    def _together(self, flags: Any = None) -> Any:
        """Return the newest observations of all environments; vectors of the space's shape are copied once."""
        try:
            rows = self._rows
            if self._flat is not None and [getattr(row, "shape", None) for row in rows].count(self._shape) == len(rows):
                np.concatenate(rows, out=self._flat)
                return self._joined
            if not self._nested or all(_as_long(self.single_observation_space, row) for row in rows):
                return self._stacked(rows)
        except Exception:
            if not self._replace_misfits(flags):
                raise
        else:
            self._replace_misfits(flags)
        return self._stacked(rows)

    def _stacked(self, rows: Any) -> Any:
        if self._has_objects:
            return with_objects(self.single_observation_space, rows)
        self._joined = concatenate(self.single_observation_space, rows, self._joined)
        return self._joined

    def _replace_misfits(self, flags: Any) -> bool:
        """Note observations that do not fit the space as failures; replace each, and clear its environment's flags."""
        space, found = self.single_observation_space, []
        for i, (env, row) in enumerate(zip(self.envs, self._rows)):
            try:
                _check_alone(space, row, _place(env))
            except SpaceError as problem:
                self.failures.setdefault(i, problem)
                found.append(i)
        spare = next(iter(iterate(batch_space(space, 1), create_empty_array(space, n=1))))
        for i in found:
            self._rows[i] = spare
            if flags is not None:
                flags[:, i] = False
        return bool(found)


def _raise_first(failures: dict[int, Exception]) -> None:
    for error in failures.values():
        raise error


def with_objects(space: Any, rows: Sequence[Any]) -> Any:
    """Stack observations with text or any number of rows in them: each leaf is an array [N, ...], such ones of objects.

    Raises:
        SpaceError: text, or rows of a space, are expected, and another object found.
    """
    parts = get_base_struct_from_space(space)
    leaves, form = flatten(parts)
    columns = zip(*(flatten_like(form, row) for row in rows))
    stacked: list[Any] = []
    for leaf, column in zip(leaves, columns):
        if is_objects(leaf):
            for row in column:
                check_row(leaf, row, "observation")
            stacked.append(object_leaf(column))
        else:
            stacked.append(concatenate(leaf, column, create_empty_array(leaf, n=len(column))))
    return unflatten(form, stacked)


def _check_alone(space: Any, row: Any, where: str) -> None:
    """Check that an observation can be stacked.

    Raises:
        SpaceError: it is of another nesting, shape or type than the space.
    """
    if type(row) is np.ndarray and (row.shape, row.dtype) == (space.shape, space.dtype):
        return
    try:
        check_row(space, row, where)
        concatenate(space, [row], create_empty_array(space, n=1))
    except SpaceError:
        raise
    except Exception as error:
        raise unjoined(space, where, error) from error


def _checked_copy(env: Any, call: str, info: Any) -> dict[str, Any]:
    """Return a copy of an info.

    Raises:
        EnvironmentContractError: it is no dict.
    """
    check_info(f"{type(env.unwrapped).__name__}.{call}()", info)
    return copied_info(info)


def _flags(env: Any, terminated: Any, truncated: Any) -> tuple[bool, bool]:
    if type(terminated) in _FLAGS and type(truncated) in _FLAGS:
        return terminated, truncated
    where = _call(env)
    return as_flag(where, "terminated", terminated), as_flag(where, "truncated", truncated)


def _as_long(space: Any, row: Any) -> bool:
    """True if a row has as many entries as its space, in all Dicts and Tuples; stacking finds other errors."""
    if not isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)):
        return True
    if not hasattr(row, "__len__") or len(row) != len(space.spaces):
        return False
    if isinstance(space, gym.spaces.Tuple):
        return all(map(_as_long, space.spaces, row))
    return all(key in row and _as_long(subspace, row[key]) for key, subspace in space.spaces.items())


def _call(env: Any) -> str:
    return f"{type(env.unwrapped).__name__}.step()"


def _place(env: Any) -> str:
    return f"observation of {type(env.unwrapped).__name__}"


def _misfit(envs: Any, argument: str, expected: str, found: str) -> RunnerError:
    where = f"{type(envs).__name__}.reset, {argument}"
    return RunnerError(where, expected=expected, found=found, do=f"give {expected}")


def _chosen(mask: Any, count: int, where: str) -> set[int]:
    """Return the numbers of the environments in a mask.

    Raises:
        RunnerError: it is no bool array of shape [count].
    """
    return set(np.flatnonzero(checked_mask(mask, count, where)).tolist())


def checked_mask(
    mask: Any, count: int, where: str, do: str = "give one for each environment: True for those that take part"
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return a mask of environments.

    Args:
        mask: What should be one.
        count: Its length.
        where: The call, for the message.
        do: What to do, for the message.

    Raises:
        RunnerError: it is no bool array of shape [count].
    """
    array = mask if isinstance(mask, np.ndarray) else np.asarray(mask if isinstance(mask, (list, tuple)) else None)
    if array.dtype != np.bool_ or array.shape != (count,):
        raise RunnerError(
            f"{where}, mask",
            expected=f"bools of shape ({count},)",
            found=f"{array.dtype} of shape {array.shape}" if isinstance(mask, np.ndarray) else repr(mask),
            do=do,
        )
    return array


def masks_of_agents(
    mask: Mapping[Any, Any], agents: Sequence[Any], count: int, where: str
) -> tuple[np.ndarray[Any, np.dtype[np.bool_]], dict[int, list[Any]]]:
    """Return the environments that a mask by agent names as a whole, bool [N], and the agents of each of the others.

    Args:
        mask: From agent to a mask of environments; that of `__all__` has precedence over those of agents.
        agents: All agents.
        count: N.
        where: The call, for messages.

    Raises:
        UnknownNameError: an agent that does not exist.
        RunnerError: a mask that is no bool array of shape [N].
    """
    masks = {agent: checked_mask(each, count, f"{where} of agent {agent!r}") for agent, each in mask.items()}
    whole = masks.pop(_ALL, np.zeros(count, np.bool_))
    for agent in masks:
        if agent not in agents:
            do = nearest(str(agent), [*map(str, agents), _ALL])
            expected = f"masks of agents among {list(agents)}, or of {_ALL!r}"
            raise UnknownNameError(f"{where}, mask", expected=expected, found=repr(agent), do=do)
    rest = np.flatnonzero(~whole).tolist()
    alone = {env: [agent for agent, each in masks.items() if each[env]] for env in rest}
    return whole, {env: names for env, names in alone.items() if names}


def _reset_calls(
    envs: Any, seed: int | list[int | None] | None, options: dict[str, Any] | None, mask: Any
) -> dict[int, tuple[int | None, dict[str, Any] | None]]:
    """Return the seed and the options for each environment that is to be reset."""
    count = envs.num_envs
    if seed is None or isinstance(seed, (int, np.integer)):
        seed = [None if seed is None else int(seed) + i for i in range(count)]
    if len(seed) != count:
        raise _misfit(envs, "seed", f"a number, or one for each of {count} environments", f"{len(seed)} of them")
    settings = dict(options) if options is not None else None
    if mask is not None:
        mask = checked_mask(mask, count, f"{type(envs).__name__}.reset")
    else:
        mask = np.ones(count, np.bool_) if settings is None else settings.pop("reset_mask", np.ones(count, np.bool_))
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (count,) or not mask.any():
        expected = f"an array, bool of shape ({count},), True somewhere"
        raise _misfit(envs, "mask or options['reset_mask']", expected, repr(mask))
    return {i: (seed[i], settings) for i in np.flatnonzero(mask).tolist()}


def _refuse_ended(envs: Any, ended: set[int], mask: Any) -> None:
    if not ended or envs.autoreset_mode is not gym.vector.AutoresetMode.DISABLED:
        return
    if mask is None or any(mask[env] for env in ended):
        raise RunnerError(
            f"{type(envs).__name__}.step, autoreset mode DISABLED",
            expected="that environments which have ended are reset first",
            found=f"environments {sorted(ended)} ended in the step before",
            do="call reset(options={'reset_mask': terminateds | truncateds})",
        )


def _check_same_spaces(envs: Any, index: int, observation_space: Any, action_space: Any) -> None:
    for kind, space, made in (
        ("observation", envs.single_observation_space, observation_space),
        ("action", envs.single_action_space, action_space),
    ):
        if space != made:
            raise SpaceError(
                f"environment number {index}, {kind} space",
                expected=f"that of the other environments: {space}",
                found=f"{made}",
                do="let every call of the function make an environment with the same spaces",
            )


@final
class AsyncEnvs(gym.vector.VectorEnv[Any, Any, Any]):
    """N environments of one agent in worker processes, with the results of `SyncEnvs`.

    Observations come through shared memory, and the next call overwrites them. A reset with a seed also seeds the
    global generators of `random` and `np.random` in the environment's process. The processes are daemons, so an
    environment cannot start a `multiprocessing.Process`; it can use `subprocess`. Every return value is checked. An
    environment that fails, hangs past a time limit or loses its process does not affect those in other processes.

    `step` waits for all environments. `send` starts steps and `send_reset` starts resets; `recv` returns those of the
    environments that have answered. So fast environments do not wait for slow ones.

    Args:
        env_fns: Functions that make the environments. The first is also called once in this process, for the spaces.
        autoreset_mode: When environments are reset.
        resets_itself: As for `SyncEnvs`.
        per_process: How many environments a process has.
        context: Start method of `multiprocessing`; None: the platform's.
        timeout: Seconds that a process may take for a call of its environments; None: no limit.

    Attributes:
        failures: Errors of environments in the last call, by their numbers.
        raises: True if `reset` and `step` raise the first of them.
        was_reset: bool [N]: the environments of the last `recv` that were reset instead of stepped.

    Raises:
        ConfigError: no functions.
        RunnerError: a process ended before it had made its environments, or a function cannot be sent to one.
        SpaceError: environments with different spaces, or observations without one shape.

    Examples:
        >>> envs = AsyncEnvs([lambda: gym.make("CartPole-v1")] * 2)
        >>> envs.reset(seed=0)[0].shape, envs.step(np.array([0, 1]))[1]
        ((2, 4), array([1., 1.]))
        >>> envs.send(np.array([0, 1]), mask=np.array([False, True]))
        >>> observations, rewards, terminateds, truncateds, infos, mask = envs.recv()
        >>> rewards, mask
        (array([0., 1.]), array([False,  True]))
        >>> envs.close()
    """

    raises = True

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        *,
        autoreset_mode: gym.vector.AutoresetMode = gym.vector.AutoresetMode.NEXT_STEP,
        resets_itself: bool = False,
        per_process: int = 1,
        context: str | None = None,
        timeout: float | None = None,
    ) -> None:
        self.closed = True  # until there is something to close
        if not env_fns:
            do = "pass a list of functions, each of which makes one"
            raise ConfigError("AsyncEnvs", expected="environments", found="none", do=do)
        self.env_fns, self.num_envs = env_fns, len(env_fns)
        self.autoreset_mode, self._resets_itself = autoreset_mode, resets_itself
        sample = env_fns[0]()
        if isinstance(sample.unwrapped, MultiAgentEnv):
            found, do = (
                f"{type(sample.unwrapped).__name__}, of several agents",
                "pass the functions to VectorMultiAgentEnv(env_fns, mode='async')",
            )
            raise ConfigError("AsyncEnvs", expected="environments of one agent", found=found, do=do)
        self.single_observation_space, self.single_action_space = sample.observation_space, sample.action_space
        self.observation_space = batch_space(sample.observation_space, self.num_envs)
        self.action_space = batch_space(sample.action_space, self.num_envs)
        self.metadata = {**sample.metadata, "autoreset_mode": autoreset_mode}
        self.render_mode, self.spec = sample.render_mode, sample.unwrapped.spec
        self.reward_shape = reward_shape(sample)
        _close_sample(sample, timeout)
        check_space(sample.observation_space, f"environment {type(sample.unwrapped).__name__}, observation space")
        self.failures: dict[int, Exception] = {}
        self._ended: set[int] = set()
        self._sent: dict[int, tuple[Any, ...]] = {}
        self.was_reset = np.zeros(self.num_envs, np.bool_)
        self._kept: Any = None  # results of environments beside one whose failure was raised
        space, memory = self.single_observation_space, None
        self._objects: list[Any] | None = None  # observations with objects come with the answers
        if has_objects(space):
            self._objects = list(iterate(self.observation_space, create_empty_array(space, n=self.num_envs)))
        else:
            memory = create_shared_memory(space, n=self.num_envs, ctx=multiprocessing.get_context(context))
            self._observations = read_from_shared_memory(space, memory, n=self.num_envs)
        makers = [partial(_single_agent_calls, env_fn, i, self.num_envs) for i, env_fn in enumerate(env_fns)]
        self._workers = WorkerEnvs(makers, per_process=per_process, context=context, timeout=timeout, memory=memory)
        try:
            facts, failures = self._workers.start()
            for index, error in failures.items():
                add_context(error, f"environment number {index} of {self.num_envs}:")
                raise error
            for index in range(self.num_envs):
                _check_same_spaces(self, index, *facts[index][:2])
        except BaseException:
            self._workers.close()
            raise
        self.closed = False

    @property
    def broken(self) -> bool:
        """True if a process has ended, or still works on a call that was interrupted."""
        return self._workers.broken

    def reset(
        self,
        *,
        seed: int | list[int | None] | None = None,
        options: dict[str, Any] | None = None,
        mask: Any = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or some; as `SyncEnvs.reset`."""
        self._check_answered("reset")
        calls = _reset_calls(self, seed, options, mask)
        answers, self.failures = self._noted(self._workers.ask({i: ("reset", *args) for i, args in calls.items()}))
        self._ended = self._ended.difference(calls)
        infos: dict[str, Any] = {}
        for i, (_, info) in answers.items():
            _set_info(infos, self.num_envs, i, info)
        if self.raises:
            _raise_first(self.failures)
        return self._observations, infos

    def restart(self, index: int, seed: int | None, infos: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Replace an environment by a new one, and reset that; as `SyncEnvs.restart`."""
        _check_same_spaces(self, index, *self._workers.remake(index)[:2])
        answers, failures = self._noted(self._workers.ask({index: ("reset", seed, None)}))
        if failures:
            raise failures[index]
        self._ended.discard(index)
        _set_info(infos, self.num_envs, index, answers[index][1])
        return self._observations, infos

    def step(self, actions: Any, mask: Any = None) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments, or some; as `SyncEnvs.step`."""
        self._check_answered("step")
        calls = self._calls(actions, mask, "step")
        answers, self.failures = self._noted(self._workers.ask(calls))
        result = self._result(calls, answers)
        if self.raises:
            _raise_first(self.failures)
        return result

    @property
    def free(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """The environments that `send` takes, bool [N]: nothing in their processes is at work."""
        free = np.ones(self.num_envs, np.bool_)
        free[list(self._workers.together(self._sent))] = False
        return free

    def send(self, actions: Any, mask: Any = None) -> None:
        """Start a step of all environments, or some, without waiting for the results.

        Args:
            actions: As in `step`.
            mask: The environments to step: bool, [N]; None: all.

        Raises:
            RunnerError: an environment of the mask has not answered yet, or another one in its process; or as `step`.
        """
        self._check_answered("send", mask)
        calls = self._calls(actions, mask, "send")
        self._workers.send(calls)
        self._sent.update(calls)

    def send_reset(
        self, mask: Any = None, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> None:
        """Start a reset of all environments, or some, without waiting for the results.

        `recv` returns them with a reward of 0, flags that are False, and `was_reset`.

        Args:
            mask: The environments to reset: bool, [N]; None: all.
            seed: As in `reset`.
            options: As in `reset`.

        Raises:
            RunnerError: as `send`.
        """
        calls = _reset_calls(self, seed, options, mask)
        self._check_answered("send_reset", np.isin(range(self.num_envs), list(calls)))
        requests = {i: ("reset", *arguments) for i, arguments in calls.items()}
        self._workers.send(requests)
        self._sent.update(requests)
        self._ended = self._ended.difference(calls)

    def recv(self, count: int = 1) -> tuple[Any, Any, Any, Any, dict[str, Any], np.ndarray[Any, np.dtype[np.bool_]]]:
        """Wait until an environment has answered, and return the results of all that have.

        Args:
            count: Wait for so many, or for all that are at work if these are fewer.

        Returns:
            The values of `step`, and the environments that they are about: bool, [N]. Rows of the others mean nothing.

        Raises:
            RunnerError: nothing was sent. If an environment failed, its error is raised, and the next call returns
                the results of all steps that had succeeded; that of its own, too, if it failed in the reset afterwards.
        """
        if not self._sent:
            do = "call send(actions) or send_reset() before recv()"
            raise RunnerError("AsyncEnvs.recv", expected="environments at work", found="none", do=do)
        kept, self._kept, self.failures = self._kept, None, {}
        if kept is None:
            answers, failures = self._noted(self._workers.receive(self._workers.ready(count)))
            for i in failures:
                del self._sent[i]
            self.failures = dict(failures)  # those of resets are added
            mask = np.zeros(self.num_envs, np.bool_)
            mask[[*answers, *(() if self.raises else failures)]] = True
            kept = (*self._result(self._sent, answers), mask)
            if self.raises and self.failures:
                self._kept = kept if answers else None
                _raise_first(self.failures)
        self.was_reset = np.zeros(self.num_envs, np.bool_)
        for i in np.flatnonzero(kept[-1]).tolist():
            self.was_reset[i] = self._sent.pop(i, ("",))[0] == "reset"
        return kept  # type: ignore[no-any-return]

    def _check_answered(self, call: str, mask: Any = None) -> None:
        """Refuse a call of environments whose processes are at work on another one."""
        if not self._sent:
            return
        chosen = range(self.num_envs) if mask is None else _chosen(mask, self.num_envs, f"AsyncEnvs.{call}")
        busy = self._workers.together(self._sent).intersection(chosen)
        if busy:
            raise RunnerError(
                f"AsyncEnvs.{call}",
                expected="environments that have answered",
                found=f"environments {sorted(busy)} at work on send() or send_reset(), or beside one in a process",
                do="call recv() until its masks had them",
            )

    def _calls(self, actions: Any, mask: Any, call: str) -> dict[int, tuple[Any, ...]]:
        """Return the calls of a step: those of environments that have ended are resets."""
        rows = self._for_each(call, "actions", list(iterate(self.action_space, actions)))
        chosen = range(self.num_envs) if mask is None else _chosen(mask, self.num_envs, f"AsyncEnvs.{call}")
        _refuse_ended(self, self._ended, mask)
        ended, self._ended = self._ended, self._ended.difference(chosen)
        return {i: ("reset",) if i in ended else ("step", rows[i]) for i in chosen}

    def _result(
        self, calls: dict[int, tuple[Any, ...]], answers: dict[int, Any]
    ) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Return the values of `step` from the answers to calls; with SAME_STEP reset the environments that ended."""
        rewards, flags = np.zeros((self.num_envs, *self.reward_shape)), np.zeros((2, self.num_envs), np.bool_)
        infos: dict[str, Any] = {}
        ended = []
        for i, answer in answers.items():
            if calls[i][0] == "reset":
                info = answer[1]
            else:
                _, rewards[i], flags[0, i], flags[1, i], info = answer
            if not self._resets_itself and flags[:, i].any():
                ended.append(i)
                if self.autoreset_mode is gym.vector.AutoresetMode.SAME_STEP:
                    final = map_struct(lambda leaf, i=i: owned(leaf[i]), self._observations)
                    _set_final(infos, self.num_envs, i, final, info)
                    continue
            if info:
                _set_info(infos, self.num_envs, i, info)
        if self.autoreset_mode is not gym.vector.AutoresetMode.SAME_STEP:
            self._ended.update(ended)
        elif ended:
            answers, failures = self._noted(self._workers.ask(dict.fromkeys(ended, ("reset",))))
            self.failures |= failures
            for i, (_, info) in answers.items():
                _set_info(infos, self.num_envs, i, info)
        return self._observations, rewards, flags[0], flags[1], infos

    def _noted(self, result: tuple[dict[int, Any], Any]) -> tuple[dict[int, Any], Any]:
        """Return answers and failures; objects in the answers are the newest from now on."""
        if self._objects is not None:
            for i, answer in result[0].items():
                self._objects[i] = answer[0]
            self._observations = with_objects(self.single_observation_space, self._objects)
        return result

    def call(self, name: str | Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return an attribute or the result of a method of every environment; or a function's value for each."""
        self._check_answered("call")
        call = ("get", CloudpickleWrapper(name) if callable(name) else name, args, kwargs)
        answers, failures = self._workers.ask(dict.fromkeys(range(self.num_envs), call))
        _raise_first(failures)
        return tuple(answers[i] for i in range(self.num_envs))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of every environment."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every environment.

        Args:
            name: Its name.
            values: One value for all, or a list or tuple of one for each.
        """
        self._check_answered("set_attr")
        given = values if isinstance(values, (list, tuple)) else [values] * self.num_envs
        each = self._for_each("set_attr", "values", given)
        calls: Any = {i: ("get", "set_wrapper_attr", (name, value), {}) for i, value in enumerate(each)}
        _raise_first(self._workers.ask(calls)[1])

    def render(self) -> tuple[Any, ...]:
        """Return the image of every environment."""
        return self.call("render")

    def close_extras(self, **kwargs: Any) -> None:
        """End the processes; one that does not respond is killed."""
        self._workers.close()

    def _for_each(self, call: str, what: str, values: Sequence[Any]) -> Sequence[Any]:
        if len(values) == self.num_envs:
            return values
        raise RunnerError(
            f"AsyncEnvs.{call}",
            expected=f"{self.num_envs} {what}, one per environment",
            found=f"{len(values)}",
            do="give one for each",
        )


def _close_sample(env: Any, timeout: float | None) -> None:
    """Close an environment of which only the spaces were needed; warn if it raises, or does not return in time."""
    failures: list[str] = []

    def close() -> None:
        try:
            env.close()
        except Exception as error:
            failures.append(f"{type(error).__name__}: {error}")

    if timeout is None:
        close()
    else:
        thread = threading.Thread(target=close, daemon=True)
        thread.start()
        thread.join(timeout)
        if thread.is_alive():
            failures.append(f"no return within {timeout:g} s")
    if failures:
        warning = EpibatchWarning(
            f"{type(env.unwrapped).__name__}.close()",
            expected="an environment that can be closed",
            found=failures[0],
            do="correct close(); the environments in worker processes are ended with these",
        )
        warnings.warn(warning, stacklevel=3)


def _single_agent_calls(env_fn: Callable[[], Any], index: int, count: int) -> SingleAgentCalls:
    return SingleAgentCalls(env_fn(), index, count)


def _multi_agent_calls(env_fn: Callable[[], Any], copy: bool, episode_end: str) -> MultiAgentCalls:
    return MultiAgentCalls(check_multi_agent_env(env_fn(), env_fn), copy=copy, episode_end=episode_end)


_ALL = "__all__"
_MODES = ("sync", "async", "vector_entry_point")


class VectorAgentStep(NamedTuple):
    """Result of one step of several multi-agent environments: a dict by agent for each of them.

    Args:
        observations: Of the agents that act next, or ended; reset observations where `was_reset`.
        rewards: A number for each agent that got one.
        terminateds: Flags, `__all__` among them.
        truncateds: The same.
        infos: Info dicts.
        was_reset: bool, [N]: which environments were reset instead of stepped.
        failures: Environment -> the error that it raised; it has empty dicts, and is reset by the next step.
        resets: Environment -> observations and infos by agent of its reset, if it ended and was reset in this step.
    """

    observations: list[dict[Any, Any]]
    rewards: list[dict[Any, Any]]
    terminateds: list[dict[Any, bool]]
    truncateds: list[dict[Any, bool]]
    infos: list[dict[Any, dict[str, Any]]]
    was_reset: np.ndarray[Any, np.dtype[np.bool_]]
    failures: dict[int, Exception]
    resets: dict[int, tuple[dict[Any, Any], dict[Any, Any]]]


@final
class VectorMultiAgentEnv:
    """N multi-agent environments that step together.

    The step after an environment's end resets it (Gymnasium's mode NEXT_STEP): it ignores the actions and returns reset
    observations. So terminal observations are in the step that ended the episode. Returned arrays are never
    overwritten later.

    Args:
        env_fns: One function per environment, which makes it.
        mode: "sync": one after the other in this process; "async": in worker processes; "vector_entry_point": the one
            function makes all of them, as a vector environment of several agents.
        copy: Whether observations are copied ("sync"). Without it, those of environments that write into the same
            arrays again are right until the next call only.
        per_process: How many environments a worker process has.
        context: How processes are started (`multiprocessing.get_context`); None: the platform's way.
        timeout: Seconds that a process may take for a call of its environments; None: no limit.
        name: The environments' name in error messages.
        episode_end: "all": without `__all__`, an environment ends when all agents that appeared have; "any": when any
            agent does, and the others with the same flag.

    Attributes:
        num_envs: N.
        possible_agents: All agents, in the order in which the environments name them.
        observation_spaces: Space of each agent.
        action_spaces: The same for actions.
        single_observation_space: All of them as one Dict space.
        single_action_space: The same for actions.
        ended: bool, [N]: which environments the next step resets.

    Raises:
        ConfigError: no environment, an unknown mode, or something made that is no `MultiAgentEnv`.
        SpaceError: an agent has different spaces in different environments.

    Examples:
        >>> from epibatch.env_runner.multi_agent_env import make_multi_agent
        >>> cart_poles = make_multi_agent("CartPole-v1")
        >>> envs = VectorMultiAgentEnv([lambda: cart_poles({"num_agents": 2})] * 3)
        >>> observations, infos = envs.reset(seed=0)
        >>> envs.step([{agent: 0 for agent in each} for each in observations])[1]
        [{0: 1.0, 1: 1.0}, {0: 1.0, 1: 1.0}, {0: 1.0, 1: 1.0}]
        >>> envs.close()
    """

    def __init__(
        self,
        env_fns: Iterable[Callable[[], Any]],
        *,
        mode: str = "sync",
        copy: bool = True,
        per_process: int = 1,
        context: str | None = None,
        timeout: float | None = None,
        name: Any = None,
        episode_end: str = "all",
    ) -> None:
        for setting, value, known in (("mode", mode, _MODES), ("episode_end", episode_end, ("all", "any"))):
            if value not in known:
                raise ConfigError(setting, expected=f"one of {known}", found=repr(value), do=nearest(value, known))
        self.mode = mode
        self.name = "environment" if name is None else f"environment {name!r}"
        self.closed, env_fns = False, list(env_fns)
        makers = [partial(_multi_agent_calls, env_fn, copy, episode_end) for env_fn in env_fns]
        if not makers:
            do = "pass a list of functions, each of which makes one"
            raise ConfigError("VectorMultiAgentEnv", expected="environments", found="none", do=do)
        self.num_envs = len(makers)
        self._envs: LocalEnvs | WorkerEnvs | AgentBatches = LocalEnvs(makers)
        if mode == "async":
            self._envs = WorkerEnvs(makers, per_process=per_process, context=context, timeout=timeout)
        elif mode == "vector_entry_point":
            self._envs = AgentBatches(env_fns[0], self.name, episode_end=episode_end)
        try:
            answers, failures = self._envs.start()
            self.num_envs = len(answers) or self.num_envs
            for index, error in failures.items():
                add_context(error, f"{self.name}, number {index} of {self.num_envs}:")
                raise error
            facts = [answers[index] for index in range(self.num_envs)]
            self.observation_spaces = self._together([item.observation_space for item in facts], "observation")
            self.action_spaces = self._together([item.action_space for item in facts], "action")
        except BaseException:
            self.close()
            raise
        self.possible_agents = list(self.observation_spaces)
        self.single_observation_space = gym.spaces.Dict(self.observation_spaces)
        self.single_action_space = gym.spaces.Dict(self.action_spaces)
        self.render_mode = facts[0].render_mode
        self.metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP, **facts[0].metadata}
        self.ended = np.ones(self.num_envs, np.bool_)
        self._counts = [0] * self.num_envs  # steps of the episodes
        self._sent: dict[int, tuple[Any, ...]] = {}  # calls whose results were not received

    @property
    def envs(self) -> list[Any]:
        """The environments themselves, in this process: the one vector environment if there is one; none in others."""
        if isinstance(self._envs, AgentBatches):
            return [self._envs.env]
        return [calls.env for calls in self._envs.calls] if isinstance(self._envs, LocalEnvs) else []

    def _together(self, spaces: Sequence[dict[Any, Any]], kind: str) -> dict[Any, Any]:
        """Join the agents' spaces of all environments; an agent must have equal spaces, which become one object."""
        every: dict[Any, Any] = {}
        for index, by_agent in enumerate(spaces):
            for agent, space in by_agent.items():
                if every.setdefault(agent, space) != space:
                    raise SpaceError(
                        f"{self.name}, number {index}, agent {agent!r}",
                        expected=f"the {kind} space that it has in the environments before: {every[agent]}",
                        found=f"{space}",
                        do="give an agent the same space in every copy of the environment",
                    )
        unique: list[Any] = []
        for agent, space in every.items():
            same = next((other for other in unique if other is space or other == space), None)
            if same is None:
                unique.append(space)
            else:
                every[agent] = same
        return every

    @property
    def unwrapped(self) -> VectorMultiAgentEnv:
        """The environments themselves: nothing is wrapped around all of them."""
        return self

    @property
    def observation_space(self) -> gym.Space[Any]:
        """Space of one observation of each agent in each environment."""
        return batch_space(self.single_observation_space, self.num_envs)

    @property
    def action_space(self) -> gym.Space[Any]:
        """The same for actions."""
        return batch_space(self.single_action_space, self.num_envs)

    @property
    def broken(self) -> bool:
        """True if a process has ended or still works on another call, so that the environments must be made again."""
        return self._envs.broken

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
        indices: Sequence[int] | None = None,
        mask: Any = None,
    ) -> tuple[list[dict[Any, Any]], list[dict[Any, Any]]]:
        """Reset all environments, or some.

        Args:
            seed: For the environment number 0, number i gets `seed + i`; or one for each of the N.
            options: Passed to the environments.
            indices: Numbers of the environments; default: all.
            mask: The environments to reset, in another form: bool, [N]. Or such a mask for each agent, in a dict: the
                agent is reset alone, see `MultiAgentEnv.reset_agents`. Where `__all__` is True, all agents are.

        Returns:
            Observations and infos: a dict by agent for each environment that was reset, in the order of `indices`. With
            a mask, one for each of the N, empty for the others.

        Raises:
            UnknownNameError: a mask of an agent that does not exist.
            NotAvailableError: a mask of single agents, which the environments cannot reset.
            RunnerError: closed environments, a seed or index too many or too few, a mask of another type or shape.
        """
        observations, infos, failures = self.try_reset(seed=seed, options=options, indices=indices, mask=mask)
        _raise_first(failures)
        return observations, infos

    def try_reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
        indices: Sequence[int] | None = None,
        mask: Any = None,
    ) -> tuple[list[dict[Any, Any]], list[dict[Any, Any]], dict[int, Exception]]:
        """Reset as `reset` does, but keep the results of the other environments if some fail.

        Returns:
            Observations and infos, empty for environments that failed, and the errors of these by their numbers.
        """
        listed = list(range(self.num_envs)) if indices is None else self._checked_indices(indices)
        alone: dict[int, list[Any]] = {}
        if isinstance(mask, Mapping):
            mask, alone = masks_of_agents(mask, self.possible_agents, self.num_envs, f"{self.name}, reset()")
            self.check_resets_of_agents(alone)
        chosen = listed if mask is None else self._chosen(mask, "reset()")
        seeds = self._seeds(seed)
        calls = {index: ("reset_agents", agents) for index, agents in alone.items()}
        answers, failures = self._ask({**calls, **{index: ("reset", seeds[index], options) for index in chosen}})
        self.ended[list(failures)] = True
        for index in chosen:
            self.ended[index], self._counts[index] = index in failures, 0
        rows = [answers.get(index, ({}, {})) for index in listed]
        return [row[0] for row in rows], [row[1] for row in rows], failures

    def check_resets_of_agents(self, agents: Mapping[int, Sequence[Any]]) -> None:
        """Check that single agents can be reset: those of a vector environment cannot.

        Args:
            agents: The agents to reset, by environment.

        Raises:
            NotAvailableError: there are some, and they cannot.
        """
        if agents and isinstance(self._envs, AgentBatches):
            raise NotAvailableError(
                f"{self.name}, reset of single agents",
                expected="single environments of MultiAgentEnv, with the method reset_agents",
                found=f"agents {next(iter(agents.values()))} of one vector environment, whose reset takes whole "
                "environments",
                do="reset all environments with mask=None, or some with a mask for '__all__' (mode 'disabled' only); "
                "or make single environments that define reset_agents, in mode 'sync' or 'async'",
            )

    def restart(self, index: int, seed: int | None) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Replace an environment by a new one, and reset that; return its observations and infos by agent.

        Args:
            index: Its number.
            seed: For its reset.
        """
        facts = self._envs.remake(index)
        self._together([dict(self.observation_spaces), facts.observation_space], "observation")
        self._together([dict(self.action_spaces), facts.action_space], "action")
        answers, failures = self._envs.ask({index: ("reset", seed)})
        if failures:
            raise failures[index]
        self.ended[index], self._counts[index] = False, 0
        observations, infos = answers[index]
        return observations, infos

    def step(
        self, actions: Sequence[dict[Any, Any]], mask: Any = None
    ) -> tuple[list[Any], list[Any], list[Any], list[Any], list[Any]]:
        """Step all environments, or some, and reset those of them that ended in their step before.

        Args:
            actions: For each environment a dict of the acting agents' actions.
            mask: The environments to step: bool, [N]; None: all.

        Returns:
            Observations, rewards, terminateds, truncateds and infos: a dict by agent for each environment, empty for
            those that were not stepped.

        Raises:
            RunnerError: closed environments, not one dict per environment. An environment's error begins with its
                number.
        """
        result = self.try_step(actions, mask)
        _raise_first(result.failures)
        return result[:5]

    def try_step(self, actions: Sequence[dict[Any, Any]], mask: Any = None) -> VectorAgentStep:
        """Step as `step` does, but keep the results of the other environments if some fail.

        Args:
            actions: For each environment a dict of the acting agents' actions.
            mask: The environments to step: bool, [N]; None: all.

        Raises:
            RunnerError: closed environments, not one dict per environment, or a mask of another type or shape.
        """
        self._check_actions(actions)
        chosen = range(self.num_envs) if mask is None else self._chosen(mask, "step()")
        calls = self._steps(actions, chosen)
        return self._result(calls, *self._ask(calls))

    def _steps(self, actions: Sequence[dict[Any, Any]], chosen: Sequence[int]) -> dict[int, tuple[Any, ...]]:
        """Return the calls of a step of some environments: those of ended ones are resets."""
        calls = {i: ("reset", None, None) if self.ended[i] else ("step", actions[i]) for i in chosen}
        self.ended[chosen] = True  # Ctrl-C from here on: an interrupted step is not recorded
        return calls

    @property
    def at_work(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """The environments that `exchange` has sent actions to and that have not answered, bool [N]."""
        at_work = np.zeros(self.num_envs, np.bool_)
        at_work[list(self._sent)] = True
        return at_work

    def exchange(
        self, actions: Sequence[dict[Any, Any]], mask: Any = None, count: int = 1, resets: Any = None
    ) -> tuple[VectorAgentStep, np.ndarray[Any, np.dtype[np.bool_]]]:
        """Send actions to environments in processes, and return the results of those that answer first.

        Args:
            actions: For each environment a dict of the acting agents' actions.
            mask: The environments to step: bool, [N]; None: all that are not at work, nor beside one in its process.
            count: Wait for so many, or for all at work if these are fewer.
            resets: The environments of these to reset in place of a step: bool, [N]. Those that ended are, anyway.

        Returns:
            The values of `try_step`, and the environments that they are about: bool, [N]. Others have empty dicts.

        Raises:
            RunnerError: environments that are not in processes of their own; or as `try_step`.
        """
        self._check_actions(actions)
        if not isinstance(self._envs, WorkerEnvs):
            found = f"mode={self.mode!r}"
            raise RunnerError(
                f"{self.name}, exchange()", expected="mode='async'", found=found, do="use this mode, or step()"
            )
        busy = self._envs.together(self._sent)
        chosen = range(self.num_envs) if mask is None else self._chosen(mask, "exchange()")
        free = [env for env in chosen if env not in busy]
        if resets is not None:
            self.ended[list(set(self._chosen(resets, "exchange()")).intersection(free))] = True
        calls = self._steps(actions, free)
        if calls:
            self._envs.send(calls)
            self._sent.update(calls)
        answers, failures = self._envs.receive(self._envs.ready(count))
        done = {env: self._sent.pop(env) for env in sorted([*answers, *failures])}
        answered = np.zeros(self.num_envs, np.bool_)
        answered[list(done)] = True
        return self._result(done, answers, self._named(done, failures)), answered

    def _result(
        self, calls: dict[int, tuple[Any, ...]], answers: dict[int, Any], failures: dict[int, Exception]
    ) -> VectorAgentStep:
        was_reset = np.zeros(self.num_envs, np.bool_)
        was_reset[[index for index, call in calls.items() if call[0] == "reset"]] = True
        rows = [AgentStep({}, {}, {_ALL: False}, {_ALL: False}, {}, False)] * self.num_envs
        for index in calls:
            answer = answers.get(index, ({}, {}))
            if was_reset[index] or index in failures:
                answer = AgentStep(answer[0], {}, {_ALL: False}, {_ALL: False}, answer[1], index in failures)
            self.ended[index] = answer.ended and answer.reset is None
            self._counts[index] = 0 if was_reset[index] else self._counts[index] + 1
            rows[index] = answer
        return VectorAgentStep(
            [row.observations for row in rows],
            [row.rewards for row in rows],
            [row.terminateds for row in rows],
            [row.truncateds for row in rows],
            [row.infos for row in rows],
            was_reset,
            failures,
            {index: row.reset for index, row in enumerate(rows) if row.reset is not None},
        )

    def call(self, name: str | Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return an attribute or the result of a method of every environment; or a function's value for each.

        Args:
            name: Name of the method or attribute, or the function.
            *args: For the method or function.
            **kwargs: The same.

        Raises:
            RunnerError: closed environments, or a worker process that has ended.
        """
        if self._sent:
            found = f"environments {sorted(self._sent)} at work on exchange()"
            raise RunnerError(f"{self.name}, call()", expected="all have answered", found=found, do="step all of them")
        call = ("get", CloudpickleWrapper(name) if callable(name) else name, args, kwargs)
        answers, failures = self._ask(dict.fromkeys(range(self.num_envs), call))
        _raise_first(failures)
        return tuple(answers[i] for i in range(self.num_envs))

    def render(self) -> Any:
        """Return the image of every environment; what a vector environment returns is not changed."""
        return self._envs.env.render() if isinstance(self._envs, AgentBatches) else self.call("render")

    def close(self) -> None:
        """Close the environments; processes that do not respond are ended."""
        self.closed = True
        self._envs.close()

    # -- the environments, all at once -------------------------------------------------------------

    def _ask(self, calls: dict[int, tuple[Any, ...]]) -> tuple[dict[int, Any], dict[int, Exception]]:
        """Call environments, in parallel if possible; return their results, and the errors of those that fail."""
        if self.closed:
            raise RunnerError(self.name, expected="environments to call", found="closed ones", do="make new ones")
        if self._sent and isinstance(self._envs, WorkerEnvs):  # results of steps that are not needed
            self._envs.receive(self._envs.ready(len(self._sent)))
            self._sent.clear()
        answers, failures = self._envs.ask(calls)
        return answers, self._named(calls, failures)

    def _named(self, calls: dict[int, tuple[Any, ...]], failures: dict[int, Exception]) -> dict[int, Exception]:
        """Return failures of calls, which name the environment and the call."""
        for index, error in failures.items():
            call, where = calls[index], f"{self.name}, number {index} of {self.num_envs},"
            if call[0] == "step":
                what = f"{self._counts[index]} steps into its episode, failed in step() with actions {call[1]}:"
            else:
                what = f"failed in {getattr(call[1], 'fn', call[1]) if call[0] == 'get' else call[0]}():"
            add_context(error, f"{where} {what}")
        return failures

    def _check_actions(self, actions: Any) -> None:
        right = isinstance(actions, (list, tuple)) and len(actions) == self.num_envs
        if not right or not all(isinstance(item, dict) for item in actions):
            found = type(actions).__name__
            if isinstance(actions, (list, tuple)):
                found = f"{len(actions)}: {', '.join(sorted({type(item).__name__ for item in actions}))}"
            raise RunnerError(
                f"{self.name}, step()",
                expected=f"a list of {self.num_envs} dicts, each from agent to action",
                found=found,
                do="pass {} for an environment in which no agent acts",
            )

    def _chosen(self, mask: Any, call: str) -> list[int]:
        return sorted(_chosen(mask, self.num_envs, f"{self.name}, {call}"))

    def _checked_indices(self, indices: Sequence[int]) -> list[int]:
        chosen = [int(index) for index in indices]
        if not chosen or len(set(chosen)) != len(chosen) or not all(0 <= index < self.num_envs for index in chosen):
            expected = f"numbers of environments, each once, from 0 to {self.num_envs - 1}"
            raise RunnerError(
                f"{self.name}, reset(), indices", expected=expected, found=repr(indices), do="name some of them"
            )
        return chosen

    def _seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        if seed is None or isinstance(seed, (int, np.integer)):
            return [None if seed is None else int(seed) + index for index in range(self.num_envs)]
        if len(seed) != self.num_envs:
            expected = f"a number, or one for each of {self.num_envs} environments"
            raise RunnerError(
                f"{self.name}, reset(), seed", expected=expected, found=f"{len(seed)} of them", do="give those"
            )
        return list(seed)

    def __repr__(self) -> str:
        return f"VectorMultiAgentEnv({self.name}, num_envs={self.num_envs}, mode={self.mode!r})"
