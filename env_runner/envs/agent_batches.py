"""A vector environment of several agents, behind the calls of single environments."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import concatenate, create_empty_array

from epibatch.core.errors import ConfigError, EnvironmentContractError, RunnerError, SpaceError, nearest
from epibatch.core.structs import flatten, map_struct

from ...episodes.env_infos import ENV_INFOS, env_infos
from .env_calls import AgentStep, EnvFacts, attribute_of, copied_info
from .env_checks import autoreset_mode, check_space, mark_environment, reward_shape, unpack_reset, unpack_step
from .env_workers import Answers, Calls
from .tensor_envs import copied, device_of, infos_to_arrays, to_arrays, to_tensor, with_final_obs

_ALL, _COMMON = "__all__", "__common__"
_FINAL = frozenset({"final_obs", "_final_obs", "final_info", "_final_info"})
_METHODS = ("reset", "step", "close")


class AgentBatches:
    """Calls a vector environment of N environments with A agents each, all of them at once.

    Values are dicts from agent to arrays or tensors `[N, ...]`, or arrays or tensors `[N, A, ...]` in the order of
    `possible_agents`. Rewards and flags may also be `[N]`, for all agents. Agents that have ended are left out until
    their environment's reset, whatever their rows hold.

    Args:
        maker: Makes the environment. It has `num_envs` and `possible_agents`. Its spaces are Dicts by agent, as
            `single_observation_space` or `observation_spaces`, or with an axis of agents the spaces of one agent.
        name: Its name in errors.
        episode_end: As for `MultiAgentCalls`.
    """

    broken = False

    def __init__(self, maker: Callable[[], Any], name: str, *, episode_end: str) -> None:
        self._maker, self._where, self._any_ends = maker, name, episode_end == "any"
        self.env: Any = None

    def start(self) -> Answers:
        """Make the environment; its facts are those of each."""
        env = self._maker()
        _check_made(env, self._where)
        self.env = env
        self._count, self._mode = int(env.num_envs), autoreset_mode(env)
        self.agents, self._has_axis, spaces = _agents_and_spaces(env, self._where)
        self._reward_axes = 1 + len(reward_shape(env))
        self._space, self._action_spaces, self._device = spaces[0][self.agents[0]], spaces[1], None
        drawn = {agent: copy.deepcopy(space) for agent, space in spaces[1].items()}
        for space in drawn.values():
            space.seed(0)
        self._spare = {agent: space.sample() for agent, space in drawn.items()}  # of agents that do not act
        self._alive = np.zeros((self._count, len(self.agents)), np.bool_)
        metadata = dict(getattr(env, "metadata", None) or {})
        facts = EnvFacts(spaces[0], spaces[1], getattr(env, "render_mode", None), metadata)
        return dict.fromkeys(range(self._count), facts), {}

    def ask(self, calls: Calls) -> Answers:
        """Reset, step or ask all environments.

        Raises:
            RunnerError: a call of some environments only, which this one cannot do.
            EnvironmentContractError: values of another shape, or of an agent that there is not.
            SpaceError: a space of one agent that has an axis of all.
        """
        kinds = {call[0] for call in calls.values()}
        if not calls:
            return {}, {}
        try:
            if "get" in kinds:
                _, name, arguments, keywords = next(iter(calls.values()))
                return dict.fromkeys(calls, attribute_of(self.env, name, arguments, keywords)), {}
            return (self._step(calls) if "step" in kinds else self._reset(calls)), {}
        except Exception as error:
            mark_environment(error)
            raise

    def remake(self, index: int) -> Any:
        """Raise an error: single environments cannot be made again."""
        raise RunnerError(self._where, expected="single environments", found="one vector environment", do="reset it")

    def close(self) -> None:
        """Close the environment."""
        if self.env is not None:
            self.env.close()

    # -- calls of all ------------------------------------------------------------------------------

    def _reset(self, calls: Calls) -> dict[int, Any]:
        _, seed, options, *_ = *next(iter(calls.values())), None, None
        if len(calls) < self._count:
            self._check_some("reset of some environments", self._mode == "disabled")
            mask = np.zeros(self._count, np.bool_)
            mask[list(calls)] = True
            options = {**(options or {}), "reset_mask": mask}
        observations, infos = self._arrays("reset", self.env.reset(seed=seed, options=options))
        shape, axes = self._space.shape or (), getattr(observations, "shape", ())
        if self._has_axis and shape and axes == (self._count, *shape):
            raise SpaceError(
                f"{self._where}, single_observation_space",
                expected=f"the space of one of the agents {self.agents}, without their axis",
                found=f"shape {list(shape)}, and observations of all with shape {list(axes)}",
                do=f"set it to one of shape {list(shape[1:])}; so too single_action_space",
            )
        self._alive[list(calls)], self._waits = True, np.zeros(self._count, np.bool_)
        rows, info_rows = self._rows("observations", observations), self._infos(infos)
        return {env: (rows[env], info_rows[env]) for env in calls}

    def _step(self, calls: Calls) -> dict[int, Any]:
        begun = [env for env, call in calls.items() if call[0] == "reset"]  # NEXT_STEP: in this step
        good = len(calls) == self._count and bool(self._waits[begun].all())
        self._check_some("step of some environments", good)
        actions = self._joined([calls[env][1] if calls[env][0] == "step" else {} for env in range(self._count)])
        observations, rewards, *flags, infos = self._arrays("step", self.env.step(actions))
        self._alive[begun] = True
        before = self._alive.copy()
        by_agent, of_env = zip(*(self._flags(name, each) for name, each in zip(("terminateds", "truncateds"), flags)))
        for flag in (*by_agent, *of_env):
            flag[begun] = False
        ends = by_agent[0] | by_agent[1]
        over: Any = of_env[0] | of_env[1] | ~(self._alive & ~ends).any(1)
        if self._any_ends:
            over |= (ends & self._alive).any(1)
        over[begun] = False
        self._alive &= ~ends | over[:, None]  # those of ended environments begin again, now or in the next step
        self._waits = over & (self._mode == "next_step")
        seen, info_rows = self._rows("observations", observations, before), self._infos(infos)
        paid, resets = self._rewards(rewards, before), self._resets(seen, before, observations, over, infos, info_rows)
        answers: dict[int, Any] = {}
        for env in range(self._count):
            if env in begun:
                answers[env] = seen[env], info_rows[env]
                continue
            kinds = [{_ALL: bool(flag[env])} for flag in of_env]
            if ends[env].any():
                for kind, flag in zip(kinds, by_agent):
                    kind.update({agent: True for i, agent in enumerate(self.agents) if flag[env, i] and before[env, i]})
                if self._any_ends and (cause := next((kind for kind in kinds if any(kind.values())), None)):
                    cause[_ALL] = True
            own = kinds[0], kinds[1], info_rows[env]
            answers[env] = AgentStep(seen[env], paid[env], *own, bool(over[env]), resets.get(env))
        return answers

    def _resets(
        self,
        seen: list[dict[Any, Any]],
        before: Any,
        observations: Any,
        over: Any,
        infos: dict[str, Any],
        info_rows: list[dict[Any, Any]],
    ) -> dict[int, tuple[dict[Any, Any], dict[Any, Any]]]:
        """Return observations and infos of environments that were reset in this step; the ended ones get their own."""
        envs = np.flatnonzero(over).tolist()
        if not envs or self._mode == "next_step":
            return {}
        self._alive[envs] = True
        if self._mode == "disabled":
            ended = self._rows("observations", map_struct(copied, observations), before)
            new, new_infos = self._arrays("reset", self.env.reset(options={"reset_mask": over.copy()}))
            rows, new_rows = self._rows("observations", new), self._infos(new_infos)
            seen[:] = ended  # the reset may have written into the arrays
            return {env: (rows[env], new_rows[env]) for env in envs}
        rows = self._rows("observations", observations)
        final, of_end = infos.get("final_obs"), infos.get("final_info")
        new_rows = [{}] * self._count if of_end is None else list(info_rows)
        if isinstance(final, np.ndarray) and final.dtype == object:
            last: Any = [{} if row is None else self._by_agent("final_obs", row, 0) for row in final]
        else:  # without them an agent that terminated has the one before, and one that is truncated is an error
            last = [{}] * self._count if final is None else self._rows("final_obs", final)
        for env in envs:
            seen[env] = {agent: last[env][agent] for agent in seen[env] if agent in last[env]}
            if of_end is not None:
                info_rows[env] = self._split(env_infos(of_end, env, self._count))
        return {env: (rows[env], new_rows[env]) for env in envs}

    # -- values of all ------------------------------------------------------------------------------

    def _arrays(self, call: str, result: Any) -> Any:
        """Return the values of a reset or a step, with arrays in place of tensors."""
        values: Any = (unpack_reset if call == "reset" else unpack_step)(f"{self._where}, {call}()", result)
        infos = values[-1] or {}
        values = (*values[:-1], copied_info(infos if isinstance(infos, dict) else {ENV_INFOS: infos}))
        if call == "reset":
            self._device = device_of(values[0])
        elif self._mode == "same_step" and values[-1]:
            values = (*values[:-1], with_final_obs(values[0], values[-1]))
        if self._device is None:
            return values
        return (*to_arrays(tuple(values[:-1])), infos_to_arrays(values[-1], self._count))

    def _by_agent(self, what: str, values: Any, axis: int) -> dict[Any, Any]:
        """Return values by agent, of which arrays may have an axis of agents."""
        if not (self._has_axis or isinstance(values, np.ndarray)):
            unknown = [agent for agent in values if agent not in self.agents] if isinstance(values, Mapping) else None
            if unknown or unknown is None:
                found = type(values).__name__ if unknown is None else f"agent {unknown[0]!r}"
                hint = nearest(str(unknown[0]), map(str, self.agents)) if unknown else "return {agent: array}"
                raise self._misfit(what, f"a dict by agent of {self.agents}", found, hint)
            return dict(values)
        lead = (self._count, len(self.agents))[1 - axis :]
        for leaf in flatten(values)[0]:
            if _shape(leaf)[: len(lead)] != lead:
                found = f"{type(leaf).__name__} of shape {[*_shape(leaf)]}"
                raise self._misfit(
                    what, f"an array of shape {[*lead]} + [...]", found, f"return a row for each of {self.agents}"
                )
        return {
            agent: map_struct(lambda leaf, i=i: leaf[(slice(None),) * axis + (i,)], values)
            for i, agent in enumerate(self.agents)
        }

    def _columns(self, what: str, values: Any) -> dict[Any, list[Any]]:
        """Return for each agent a list of N rows."""
        columns: dict[Any, list[Any]] = {}
        for agent, value in self._by_agent(what, values, 1).items():
            for leaf in flatten(value)[0]:
                if _shape(leaf)[:1] != (self._count,):
                    found = f"{type(leaf).__name__} of shape {[*_shape(leaf)]}"
                    expected = f"an array of shape [{self._count}] + [...]"
                    raise self._misfit(f"{what}[{agent!r}]", expected, found, "return N rows")
            if isinstance(value, np.ndarray):
                columns[agent] = list(value)
            else:
                columns[agent] = [map_struct(lambda leaf, n=n: leaf[n], value) for n in range(self._count)]
        return columns

    def _rows(self, what: str, values: Any, there: Any = None) -> list[dict[Any, Any]]:
        """Return for each environment a dict of its agents' rows."""
        return self._of_living(self._columns(what, values), self._alive if there is None else there)

    def _of_living(self, columns: dict[Any, list[Any]], there: Any) -> list[dict[Any, Any]]:
        rows = [dict(zip(columns, row)) for row in zip(*columns.values())] or [{}] * self._count
        for env in np.flatnonzero(~there.all(1)).tolist():
            here = dict(zip(self.agents, there[env]))
            rows[env] = {agent: value for agent, value in rows[env].items() if here[agent]}
        return rows

    def _rewards(self, rewards: Any, there: Any) -> list[dict[Any, Any]]:
        if not isinstance(rewards, Mapping):
            rewards = np.asarray(rewards)
            is_common = rewards.ndim == self._reward_axes
            rewards = dict.fromkeys(self.agents, rewards) if is_common else self._by_agent("rewards", rewards, 1)
        columns = {}
        for agent, column in rewards.items():
            column = np.asarray(column)
            fits = column.ndim == self._reward_axes and len(column) == self._count and column.dtype.kind in "fiub"
            fits = fits and agent in self.agents
            if not fits or not np.isfinite(column[there[:, self.agents.index(agent)]]).all():
                expected = f"finite numbers [{self._count}" + (
                    ", ...], as reward_space says" * (self._reward_axes > 1) or "]"
                )
                found = f"agent {agent!r}, {column.dtype} of shape {list(column.shape)}"
                raise self._misfit("rewards", f"{expected}, of agents among {self.agents}", found, "correct them")
            columns[agent] = column.tolist() if column.ndim == 1 else list(column.astype(np.float64))
        return self._of_living(columns, there)

    def _flags(self, name: str, flags: Any) -> tuple[Any, Any]:
        """Return flags of agents, bool [N, A], and of environments, bool [N]."""
        agents, envs = np.zeros_like(self._alive), np.zeros(self._count, np.bool_)
        if not isinstance(flags, Mapping):
            flags = np.asarray(flags)
            flags = {_ALL: flags} if flags.ndim == 1 else self._by_agent(name, flags, 1)
        for agent, flag in flags.items():
            flag = np.asarray(flag)
            if flag.shape != (self._count,) or (agent != _ALL and agent not in self.agents):
                found = f"{agent!r}: shape {list(flag.shape)}"
                expected = f"bools [{self._count}], of agents among {self.agents} or {_ALL!r}"
                raise self._misfit(name, expected, found, "return one flag for each environment")
            if agent == _ALL:
                envs = flag != 0
            else:
                agents[:, self.agents.index(agent)] = flag != 0
        return agents, envs

    def _infos(self, infos: Any) -> list[dict[Any, Any]]:
        own = {key: value for key, value in infos.items() if key not in _FINAL}
        if not own:
            return [{}] * self._count
        return [self._split(env_infos(own, env, self._count)) for env in range(self._count)]

    def _split(self, info: dict[Any, Any]) -> dict[Any, Any]:
        """Return an environment's info by agent; the keys that are no agents belong to none."""
        own = {agent: info.pop(agent) for agent in self.agents if isinstance(info.get(agent), dict)}
        return {**own, **({_COMMON: info} if info else {})}

    def _joined(self, actions: Sequence[dict[Any, Any]]) -> Any:
        """Return the actions of all environments as the environment takes them."""
        columns = {}
        for agent, space in self._action_spaces.items():
            rows = [by_agent.get(agent, self._spare[agent]) for by_agent in actions]
            columns[agent] = concatenate(space, rows, create_empty_array(space, n=self._count))
        joined: Any = columns
        if self._has_axis:
            joined = map_struct(lambda *leaves: np.stack(leaves, 1), *columns.values())
        return joined if self._device is None else map_struct(partial(to_tensor, device=self._device), joined)

    def _check_some(self, call: str, good: bool) -> None:
        if not good:
            raise RunnerError(
                f"{self._where}, {call}",
                expected="a call of all of them; with autoreset mode 'disabled' some can be reset",
                found=f"a vector environment with autoreset mode {self._mode!r}",
                do="reset or step all of them; or make single environments, of MultiAgentEnv, in mode 'sync'",
            )

    def _misfit(self, what: str, expected: str, found: str, do: str) -> EnvironmentContractError:
        return EnvironmentContractError(f"{self._where}, {what}", expected=expected, found=found, do=do)


def _shape(leaf: Any) -> tuple[int, ...]:
    return tuple(getattr(leaf, "shape", ()))


def _check_made(env: Any, where: str) -> None:
    missing = [name for name in _METHODS if not callable(getattr(env, name, None))]
    if missing or not isinstance(getattr(env, "num_envs", None), (int, np.integer)):
        raise ConfigError(
            f"{where}, gym_env_vectorize_mode='vector_entry_point'",
            expected=f"a vector environment with num_envs, {', '.join(_METHODS)}",
            found=f"{type(env).__name__} without {missing[0] if missing else 'num_envs'}",
            do="return a gymnasium.vector.VectorEnv; for single environments use 'sync'",
        )


def _agents_and_spaces(env: Any, where: str) -> tuple[list[Any], bool, list[dict[Any, Any]]]:
    """Return the agents, whether arrays have an axis of them, and observation and action space of each."""
    agents = list(getattr(env, "possible_agents", None) or ())
    given = [
        getattr(env, f"{kind}_spaces", None) or getattr(env, f"single_{kind}_space", None)
        for kind in ("observation", "action")
    ]
    of_each: Any = [getattr(spaces, "spaces", spaces) for spaces in given]
    by_agent = all(isinstance(spaces, Mapping) and (not agents or {*agents} == spaces.keys()) for spaces in of_each)
    if not by_agent and not (agents and all(isinstance(space, gym.Space) for space in given)):
        raise ConfigError(
            f"{where}, possible_agents",
            expected="Dict spaces by agent, or the names of the agents along axis 1 and the spaces of one agent",
            found=f"possible_agents = {agents}, {given[0]}, {given[1]}",
            do='set self.possible_agents = ["red", "blue"], say, and both single spaces',
        )
    agents = agents or list(of_each[0])
    spaces = [{a: of_each[i][a] for a in agents} if by_agent else dict.fromkeys(agents, given[i]) for i in (0, 1)]
    for agent, space in spaces[0].items():
        check_space(space, f"{where}, observation space of agent {agent!r}")
    return agents, not by_agent, spaces
