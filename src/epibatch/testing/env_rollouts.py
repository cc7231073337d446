"""Rollouts of one environment for `check_env`: what each call returns is compared with the declared spaces."""

from __future__ import annotations

import contextlib
import copy
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from epibatch.connectors.authoring.row_spaces import bounds_of
from epibatch.core.errors import (
    ConfigError,
    EnvironmentContractError,
    EpibatchError,
    MissingExtraError,
    SpaceError,
    UnknownNameError,
)
from epibatch.core.spaces import check_row, choice_counts, get_base_struct_from_space, random_legal_actions
from epibatch.core.structs import map_struct
from epibatch.env_runner.envs.env_calls import MultiAgentCalls
from epibatch.env_runner.envs.env_checks import (
    as_flag,
    as_reward,
    autoreset_mode,
    check_info,
    check_multi_agent_env,
    check_single_env,
    check_space,
    check_vector_env,
    described,
    name_of,
    reward_shape,
    unpack_reset,
    unpack_step,
)
from epibatch.env_runner.pettingzoo_env import ParallelPettingZooEnv, PettingZooEnv
from epibatch.testing.comparing import difference, differences

ERROR, WARNING = "error", "warning"
CONSTRUCTOR = "its constructor"
NOT_MADE = (ConfigError, UnknownNameError, MissingExtraError)
"""Errors of the caller, not of the environment."""
_MEND = {
    "reset()": "mend what raises it; reset takes the keywords seed and options",
    "step()": "mend what raises it; step takes every member of the action space",
    "close()": "mend what raises it",
}
_ROUNDING = 4  # units in the last place by which a float may miss a bound
_CHOSEN = (gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)
_BOUNDED = (gym.spaces.Box, *_CHOSEN)


@dataclass(frozen=True)
class EnvFinding:
    """One fault of an environment.

    Args:
        level: "error", or "warning" for what works but may surprise.
        path: The value, as an index expression into what the call returned: `observation['camera']`.
        step: The step of the episode that returned it first; 0: the reset. Of a vector environment: its step.
        episode: The number of the episode, from 1; 0: it was no call of an episode.
        environment: The number of the environment in a vector environment; None: it is a single one.
        expected: The expected value.
        found: The actual value.
        do: The way to fix it.
        times: The number of steps with this fault.
    """

    level: str
    path: str
    step: int
    episode: int
    environment: int | None
    expected: str
    found: str
    do: str
    times: int = 1

    def __str__(self) -> str:
        place = [f"{self.level}: {self.path}"]
        if self.episode:
            place.append(f"step {self.step} of episode {self.episode}" if self.step else f"reset {self.episode}")
        if self.environment is not None:
            place.append(f"environment {self.environment}")
        if self.times > 1:
            place.append(f"{self.times} times")
        return str(EnvironmentContractError(", ".join(place), expected=self.expected, found=self.found, do=self.do))


class Progress(NamedTuple):
    """The state of a check before the next call of the environment.

    Args:
        call: The next call; "" if there is none.
        episode: The number of its episode; 0: it belongs to none.
        step: The number of its step, 0 for a reset.
        num_steps: Steps of the first rollout so far.
        num_episodes: Ended episodes of the first rollout so far.
        findings: What the last call has shown.
    """

    call: str = CONSTRUCTOR
    episode: int = 0
    step: int = 0
    num_steps: int = 0
    num_episodes: int = 0
    findings: tuple[EnvFinding, ...] = ()


class EnvRollouts:
    """Steps an environment at random, one call at a time, so that a call that hangs is known.

    The first rollout compares every value with the spaces. The second has the same seed and the same actions, and must
    be equal to the first. The third is equal to it too, in two environments that take turns.

    Args:
        make: Makes the environment.
        name: Its name in messages.
        num_steps: Steps of a rollout.
        seed: Of the first reset, and of the actions.
        given: True if `make` returns the user's own environment, of which there is one, and which is not closed.

    Attributes:
        facts: None.
        memory: None.
    """

    facts = memory = None

    def __init__(self, make: Callable[[], Any], name: str, num_steps: int, seed: int, *, given: bool) -> None:
        self._make, self._name, self._given = make, name, given
        self._num_steps, self._seed = num_steps, seed
        self._findings: list[EnvFinding] = []
        self._rollouts: list[_Rollout] = []
        self._calls = self._every_call()

    def advance(self) -> Progress:
        """Make the call that the last result has named, and return what it has shown, and the next one.

        Raises:
            ConfigError: no environment, or a wrong config.
        """
        call, rollout = next(self._calls, ("", None))
        findings = tuple(self._findings)
        self._findings.clear()
        place = (rollout.episode, rollout.step) if rollout else (0, 0)
        counts = [(first.num_steps, first.num_episodes) for first in self._rollouts[:1]] or [(0, 0)]
        return Progress(call, *place, *counts[0], findings)

    def close(self) -> None:
        """Close the environments that were made."""
        for rollout in [] if self._given else self._rollouts:
            with contextlib.suppress(Exception):
                rollout.env.close()

    def _every_call(self) -> Iterator[tuple[str, _Rollout | None]]:
        """Make all calls, each after its name was yielded."""
        yield CONSTRUCTOR, None
        first = self._new_rollout()
        if first is None:
            return
        first.warn_of_space()
        yield from first.play(self._num_steps, self._seed)
        records = first.records
        if not first.raised and not getattr(first.env.unwrapped.spec, "nondeterministic", False):
            yield from first.play(self._num_steps, self._seed, expected=records)
        if self._given:
            return
        if first.records is not records and not first.differs:
            yield CONSTRUCTOR, None
            both = first, self._new_rollout()
            turns = [each.play(self._num_steps, self._seed, expected=records, beside=True) for each in both if each]
            yield from filter(None, chain.from_iterable(zip_longest(*turns)))
        for rollout in self._rollouts:
            yield from rollout.end()

    def _new_rollout(self) -> _Rollout | None:
        """Make an environment; return None if that fails."""
        try:
            env, kind = _checked(self._make(), self._name)
        except NOT_MADE:
            raise
        except Exception as error:
            self._findings.append(constructor_finding(error))
            return None
        self._rollouts.append(kind(env, self._findings))
        return self._rollouts[-1]


def _checked(env: Any, name: str) -> tuple[Any, type[_Rollout]]:
    """Return an environment, and the class of its rollouts.

    Raises:
        ConfigError: it is no environment, or has no spaces.
    """
    base = getattr(env, "unwrapped", env)
    if isinstance(env, gym.vector.VectorEnv):
        return check_vector_env(env, env.num_envs), _VectorRollout
    if hasattr(env, "agent_iter") and hasattr(env, "last"):
        env = base = PettingZooEnv(env)
    elif hasattr(env, "possible_agents") and callable(getattr(env, "observation_space", None)):
        env = base = ParallelPettingZooEnv(env)
    if hasattr(base, "get_observation_space"):
        with contextlib.suppress(SpaceError):  # warn_of_space says so
            check_multi_agent_env(env, name)
        return env, _MultiAgentRollout
    return check_single_env(env, name), _Rollout


class _Rollout:
    """Steps an environment of one agent.

    Args:
        env: The environment.
        findings: The list to which faults are added.

    Attributes:
        env: The environment.
        records: Observations, rewards and flags of each call.
        differs: True if a rollout was not equal to the expected one.
        raised: True if a call raised.
        episode: The number of the episode, from 1.
        step: The number of its step, 0 for the reset.
        num_steps: Steps of the first rollout.
        num_episodes: Episodes that ended in it.
    """

    _is_vector = False

    def __init__(self, env: Any, findings: list[EnvFinding]) -> None:
        self.env, self._findings = env, findings
        self.records: list[dict[str, Any]] = []
        self.differs = self.raised = False
        self.episode = self.step = 0
        self.num_steps = self.num_episodes = self._num_actions = 0
        self._examines, self._ended = True, True
        self._action: Any = None
        self._kept: Any = None
        self._prepare()

    def _prepare(self) -> None:
        self._spaces = {None: (self.env.observation_space, copy.deepcopy(self.env.action_space))}

    def warn_of_space(self) -> None:
        """Note a space whose values the runner does not take as they are."""
        for agent, (space, _) in self._spaces.items():
            try:
                check_space(space, "observation_space" if agent is None else f"observation_spaces[{agent!r}]")
            except SpaceError as error:
                self._note_error(error, level=WARNING)

    def play(
        self, num_steps: int, seed: int, *, expected: list[dict[str, Any]] | None = None, beside: bool = False
    ) -> Iterator[tuple[str, _Rollout]]:
        """Play episodes, and name each call before it is made.

        Args:
            num_steps: The number of steps.
            seed: Of the first reset, and of the actions.
            expected: The calls' results; None: results are compared with the spaces instead.
            beside: True if another environment takes steps in between.
        """
        self.records, self.episode, self.step, self._num_actions = [], 0, 0, 0
        self._examines, self._ended, self._kept = expected is None, True, None
        for _, space in self._spaces.values():
            space.seed(seed)
        while self._num_actions < num_steps:
            self.episode, self.step = (self.episode + 1, 0) if self._ended else (self.episode, self.step + 1)
            yield ("reset()" if self._ended else "step()"), self
            resets = self._ended
            self._call(seed if not self.records else None)
            if expected is not None and not self._equals(expected, seed, beside):
                return
            if resets and self._ended:  # it failed
                return

    def _call(self, seed: int | None) -> None:
        """Reset or step the environment, and record what that returns or raises."""
        resets, self._action, self._num_ends = self._ended, None, 0
        try:
            record = self._reset(seed) if resets else self._step()
        except Exception as error:
            self._note_raised("reset()" if resets else "step()", error)
            record = {"raised": f"{type(error).__name__}: {error}"}
            self._ended = self.raised = True
        self.records.append(record)
        self._num_actions += not resets
        if self._examines:
            self.num_steps += not resets
            self.num_episodes += self._num_ends

    def end(self) -> Iterator[tuple[str, _Rollout]]:
        """Close the environment."""
        self.episode, self._action, self._examines = 0, None, True
        yield "close()", self
        try:
            self.env.close()
        except Exception as error:
            self._note_raised("close()", error)

    # -- the calls, which return copies of what is to be compared ----------------------------------------

    def _reset(self, seed: int | None) -> dict[str, Any]:
        observation, info = unpack_reset("reset()", self.env.reset(seed=seed, options=None))
        self._ended = False
        self._look({"observation": (None, observation)}, {None: info})
        self._check(check_info, "info", info)
        return {"observation": copy.deepcopy(observation)}

    def _step(self) -> dict[str, Any]:
        self._action = self._draw(None)
        observation, reward, terminated, truncated, info = unpack_step("step()", self.env.step(self._action))
        self._look({"observation": (None, observation)}, {None: info})
        self._check(check_info, "info", info)
        self._check(as_reward, "reward", reward, reward_shape(self.env))
        flags = {"terminated": terminated, "truncated": truncated}
        ends = [self._check(as_flag, name, name, flag) for name, flag in flags.items()]
        self._ended = any(ends)
        self._num_ends = int(self._ended)
        return {"observation": copy.deepcopy(observation), "reward": reward, **flags}

    def _look(self, observations: dict[str, tuple[Any, Any]], infos: Any) -> None:
        """Compare observations with their spaces, and keep them for the next actions.

        Args:
            observations: Path -> agent and observation.
            infos: By agent.
        """
        if self._kept is not None:
            self._check_kept(*self._kept)
        kept = {path: observation for path, (_, observation) in observations.items()}
        self._kept = kept, copy.deepcopy(kept)
        self._seen = {agent: (row, infos.get(agent)) for agent, row in observations.values()}
        for path, (agent, observation) in observations.items():
            self._check_observation(self._spaces[agent][0], observation, path)

    def _draw(self, agent: Any) -> Any:
        """Draw an action; a mask of legal actions is heeded. The first two are the bounds of Boxes."""
        space = self._spaces[agent][1]
        for holder in self._seen.get(agent, ()):
            mask = holder.get("action_mask") if isinstance(holder, dict) else None
            if mask is not None and isinstance(space, _CHOSEN) and np.size(mask) == sum(choice_counts(space)):
                return random_legal_actions(space, np.reshape(mask, (1, -1)) != 0, space.np_random)[0]
        action = space.sample()
        if self._num_actions > 1:
            return action
        bound = "high" if self._num_actions else "low"

        def at_bound(leaf: Any, value: Any) -> Any:
            return getattr(leaf, bound).copy() if isinstance(leaf, gym.spaces.Box) and leaf.is_bounded() else value

        return map_struct(at_bound, get_base_struct_from_space(space), action)

    # -- findings --------------------------------------------------------------------------------------

    def _note(
        self, path: str, *, expected: str, found: str, do: str, level: str = ERROR, environment: int | None = None
    ) -> None:
        if self._examines:
            self._findings.append(EnvFinding(level, path, self.step, self.episode, environment, expected, found, do))

    def _note_error(self, error: EpibatchError, *, level: str = ERROR, environment: int | None = None) -> None:
        path = str(error.where).rpartition("(), ")[2].removeprefix(f"{name_of(self.env)}.")
        parts = {"expected": str(error.expected), "found": str(error.found), "do": str(error.do)}
        self._note(path, level=level, environment=environment, **parts)

    def _note_raised(self, call: str, error: Exception) -> None:
        if isinstance(error, EpibatchError) and error.expected is not None:
            self._note_error(error)
            return
        at = "" if self._action is None else f", with action {self._action!r}"
        self._note(call, expected="no exception", found=raised_text(error) + at, do=_MEND[call])

    def _check(self, check: Callable[..., Any], *arguments: Any, environment: int | None = None) -> Any:
        """Return the result of one of the runner's checks; note its error instead if there is one."""
        try:
            return check(*arguments)
        except EpibatchError as error:
            self._note_error(error, environment=environment)
            return None

    def _check_observation(self, space: Any, observation: Any, path: str) -> None:
        try:
            check_row(space, observation, path)
        except SpaceError as error:
            self._note_error(error)
            return
        for where, leaf, value in _leaves(space, observation, path):
            for level, index, expected, found, do in leaf_problems(leaf, value):
                number = index[0] if self._is_vector and index else None
                self._note(where, level=level, environment=number, expected=expected, found=found, do=do)

    def _check_kept(self, kept: Any, copies: Any) -> None:
        mismatch = difference(copies, kept)
        if mismatch:
            self._note(
                _index_expression(mismatch),
                level=WARNING,
                expected="an array that stays as it was when the next call returns",
                found="the call has overwritten the observation before",
                do="return a copy: code that keeps observations would see all of them change; the runner copies them",
            )

    def _equals(self, expected: list[dict[str, Any]], seed: int, beside: bool) -> bool:
        """Compare the newest call with the one of the first rollout; note the first difference."""
        if len(self.records) > len(expected):
            return True
        now, before = self.records[-1], expected[len(self.records) - 1]
        names = ("the first time", "beside a second environment" if beside else "now")
        mismatch = next(differences(before, now, names, rtol=1e-5, atol=1e-6), "")
        if not mismatch:
            return True
        self.differs = self._examines = True  # so the difference is noted
        do = "call super().reset(seed=seed) and draw from self.np_random alone; register an environment that is random "
        do += "on purpose with nondeterministic=True"
        self._note(
            _index_expression(mismatch),
            expected=f"the same as the first time: reset(seed={seed}), then the same actions",
            found=now.get("raised", mismatch.partition(": ")[2] or mismatch),
            do="keep all state in self: not in the class, the module or a file" if beside else do,
        )
        return False


class _MultiAgentRollout(_Rollout):
    """Steps an environment of several agents."""

    def _prepare(self) -> None:
        self._calls = MultiAgentCalls(self.env, copy=False)
        facts = self._calls.facts
        actions = copy.deepcopy(facts.action_space)
        self._spaces = {agent: (space, actions[agent]) for agent, space in facts.observation_space.items()}

    def _reset(self, seed: int | None) -> dict[str, Any]:
        observations, infos = self._calls.reset(seed)
        self._ended, self._acting = False, list(observations)
        self._look_at_all(observations, infos)
        return {"observations": copy.deepcopy(observations)}

    def _step(self) -> dict[str, Any]:
        self._action = {agent: self._draw(agent) for agent in self._acting}
        step = self._calls.step(self._action)
        self._ended, self._num_ends = step.ended, int(step.ended)
        flags = {"terminateds": step.terminateds, "truncateds": step.truncateds}
        self._acting = [agent for agent in step.observations if not any(flag.get(agent) for flag in flags.values())]
        self._look_at_all(step.observations, step.infos)
        return {"observations": copy.deepcopy(step.observations), "rewards": step.rewards, **flags}

    def _look_at_all(self, observations: dict[Any, Any], infos: Any) -> None:
        for agent, info in infos.items():
            self._check(check_info, f"infos[{agent!r}]", info)
        self._look({f"observations[{agent!r}]": (agent, row) for agent, row in observations.items()}, infos)


class _VectorRollout(_Rollout):
    """Steps a vector environment."""

    _is_vector = True

    def _prepare(self) -> None:
        super()._prepare()
        self._mode = autoreset_mode(self.env)
        self._done = np.zeros(self.env.num_envs, np.bool_)

    def _reset(self, seed: int | None) -> dict[str, Any]:
        options = {"reset_mask": self._done} if seed is None and self._done.any() else None
        observations, infos = unpack_reset("reset()", self.env.reset(seed=seed, options=options))
        return self._seen_by_all(observations, infos)

    def _step(self) -> dict[str, Any]:
        self._action, self._done = self._draw(None), np.zeros(self.env.num_envs, np.bool_)
        observations, rewards, terminateds, truncateds, infos = unpack_step("step()", self.env.step(self._action))
        columns = {"rewards": rewards, "terminateds": terminateds, "truncateds": truncateds}
        if None not in [self._check(self._check_count, name, column) for name, column in columns.items()]:
            for i in range(self.env.num_envs):
                self._check(as_reward, f"rewards[{i}]", rewards[i], reward_shape(self.env), environment=i)
                for name in ("terminateds", "truncateds"):
                    flag = self._check(as_flag, f"{name}[{i}]", name, columns[name][i], environment=i)
                    self._done[i] |= bool(flag)
        self._num_ends = int(self._done.sum())
        record = self._seen_by_all(observations, infos)
        if self._mode == "same_step" and self._num_ends and isinstance(infos, dict) and "final_obs" not in infos:
            self._note(
                "infos",
                level=WARNING,
                environment=int(self._done.argmax()),
                expected="'final_obs' where episodes end, as autoreset mode SAME_STEP says",
                found=f"the keys {list(infos)}",
                do="add the terminal observations: values at truncations are made of them; or set missing_final_obs",
            )
        self._ended = self._mode == "disabled" and self._num_ends > 0
        return record | {name: np.array(column) for name, column in columns.items()}

    def _seen_by_all(self, observations: Any, infos: Any) -> dict[str, Any]:
        self._ended, self._kept = False, None  # vector environments may reuse their arrays
        self._look({"observations": (None, observations)}, {})
        self._check(check_info, "infos", infos)
        return {"observations": map_struct(np.array, observations)}

    def _check_count(self, name: str, column: Any) -> bool:
        shape = (self.env.num_envs, *(reward_shape(self.env) if name == "rewards" else ()))
        if np.shape(column) != shape:
            do = "return one entry per environment"
            raise EnvironmentContractError(name, expected=f"shape {shape}", found=described(column), do=do)
        return True


def _index_expression(mismatch: str) -> str:
    """Return the path at the start of a difference, `observation/camera: ...`, as `observation['camera']`."""
    name, *keys = mismatch.partition(": ")[0].split("/")
    return name + "".join(f"[{key}]" if key.isdigit() else f"[{key!r}]" for key in keys)


def constructor_finding(error: Exception) -> EnvFinding:
    """Return the finding about an environment that could not be made."""
    parts = "an environment", raised_text(error), "mend it; one that starts processes itself needs timeout_s=None"
    if isinstance(error, EpibatchError) and error.expected is not None:
        parts = str(error.expected), str(error.found), str(error.do)
    return EnvFinding(ERROR, CONSTRUCTOR, 0, 0, None, *parts)


def raised_text(error: BaseException) -> str:
    """Return an exception with the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__}: {error}" + (f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else "")


def _leaves(space: gym.Space[Any], value: Any, path: str) -> Iterator[tuple[str, gym.Space[Any], Any]]:
    """Yield path, space and value of each part of a value that is neither Dict nor Tuple."""
    if isinstance(space, gym.spaces.Dict):
        for key, part in space.spaces.items():
            yield from _leaves(part, value[key], f"{path}[{key!r}]")
    elif isinstance(space, gym.spaces.Tuple):
        for i, part in enumerate(space.spaces):
            yield from _leaves(part, value[i], f"{path}[{i}]")
    else:
        yield path, space, value


def leaf_problems(space: gym.Space[Any], value: Any) -> Iterator[tuple[str, tuple[int, ...], str, str, str]]:
    """Yield what `check_row` leaves out, as it costs time in every step: the type, NaN, infinity and bounds.

    Floats may miss a bound by rounding.

    Args:
        space: A space that is neither Dict nor Tuple.
        value: A value that has passed `check_row`.

    Returns:
        Level, index of the first entry, expected, found, do.

    Examples:
        >>> next(leaf_problems(gym.spaces.Box(0, 1, (2,)), np.float32([1.0, 1.5])))[2:4]
        ('numbers from 0.0 to 1.0, as in Box(0.0, 1.0, (2,), float32)', '1.5 at (1,)')
    """
    do = "correct the observation or the space"
    if not isinstance(space, _BOUNDED):
        if not space.contains(value):
            yield ERROR, (), f"a member of {space}", described(value), do
        return
    array = np.asarray(value)
    is_box = isinstance(space, gym.spaces.Box)
    if is_box and hasattr(value, "dtype") and space.dtype is not None and not np.can_cast(array.dtype, space.dtype):
        cast = f"return it as {space.dtype}, np.asarray(observation, np.{space.dtype}), or declare {array.dtype}"
        yield ERROR, (), f"{space.dtype}, as in {space}", f"{array.dtype}", cast
    low, high = (np.broadcast_to(bound, array.shape) for bound in bounds_of(space, "check_env"))
    slack_low, slack_high = (_rounding(bound) if is_box else 0 for bound in (low, high))
    outside = (array < low - slack_low) | (array > high + slack_high)
    floats = array.dtype.kind == "f"
    for level, bad, expected in (
        (ERROR, np.isnan(array) if floats else None, "numbers"),
        (ERROR, outside, ""),
        (WARNING, np.isinf(array) & ~outside if floats else None, "finite numbers, though the space has infinity"),
    ):
        if bad is not None and bad.any():
            index = tuple(map(int, np.argwhere(bad)[0]))
            expected = expected or f"numbers from {low[index]!s} to {high[index]!s}, as in {space}"
            yield level, index, expected, f"{array[index]!s}" + (f" at {index}" if index else ""), do


def _rounding(bound: Any) -> Any:
    return _ROUNDING * np.finfo(bound.dtype).eps * np.maximum(1, np.abs(bound)) if bound.dtype.kind == "f" else 0
