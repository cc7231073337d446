"""A slow model of episodes of several agents, by the rules: lists of lives, trimmed row by row; and what ours holds."""

from __future__ import annotations

import copy
from typing import Any

from oracle.agents import Schedule
from oracle.compare import stack
from oracle.probes import in_lists

AT_WHICH = {"observations": "obs", "infos": "infos", "actions": "actions", "rewards": "rewards"}


class SlowAgents:
    """What each agent saw, did and got, as lists of lives with a row per observation or step."""

    def __init__(self, schedule: Schedule, until: int | None = None) -> None:
        self.lives: dict[str, list[dict[str, Any]]] = {}
        self.open: dict[str, dict[str, Any]] = {}
        self.rewards: dict[str, float] = {}
        self.infos: dict[str, dict[str, Any]] = {}
        self.left: dict[str, float] = {}
        self.t = 0
        for agent, obs in schedule.reset["observations"].items():
            self.begin(agent, obs, schedule.reset["infos"].get(agent, {}))
        for step in schedule.steps[:until]:
            self.t += 1
            self.add(step)

    def begin(self, agent: str, obs: Any, info: dict[str, Any]) -> None:
        life: dict[str, Any] = {"obs": [obs], "infos": [info], "at": [self.t], "actions": [], "rewards": []}
        life.update(outputs=[], ended=None, flags=(False, False))
        self.lives.setdefault(agent, []).append(life)

    def living(self, agent: str) -> dict[str, Any] | None:
        lives = self.lives.get(agent)
        return lives[-1] if lives and lives[-1]["ended"] is None else None

    def add(self, step: dict[str, Any]) -> None:
        ends = [step["terminateds"], step["truncateds"]]
        for agent in sorted({*self.lives, *(a for rows in step.values() for a in rows if a != "__all__")}):
            if agent in step["rewards"]:
                self.rewards[agent] = self.rewards.get(agent, 0.0) + step["rewards"][agent]
            if agent in step["actions"]:
                self.open[agent] = {"action": step["actions"][agent], "outputs": step["extra_model_outputs"][agent]}
            if agent in step["infos"]:
                self.infos[agent] = {**self.infos.get(agent, {}), **step["infos"][agent]}
        for agent, obs in step["observations"].items():
            self.observe(agent, obs)
        for agent in [*self.lives]:
            flags = tuple(bool(end.get(agent) or end.get("__all__")) for end in ends)
            life = self.living(agent)
            if life is not None and any(flags):
                if agent in self.open:
                    self.infos.setdefault(agent, life["infos"][-1])
                    self.observe(agent, life["obs"][-1])
                life["flags"], life["ended"] = flags, self.t
                self.left[agent] = self.left.get(agent, 0.0) + self.rewards.pop(agent, 0.0)

    def observe(self, agent: str, obs: Any) -> None:
        info, life = self.infos.pop(agent, {}), self.living(agent)
        if life is None:
            self.begin(agent, obs, info)
            return
        taken = self.open.pop(agent)
        life["obs"].append(obs)
        life["infos"].append(info)
        life["at"].append(self.t)
        life["actions"].append(taken["action"])
        life["rewards"].append(self.rewards.pop(agent, 0.0))
        life["outputs"].append(taken["outputs"])

    def at(self, name: str, agent: str, lives: int = 0) -> dict[int, Any]:
        """The rows of a column by env step, those of the last so many lives (0: all), the open step's included."""
        rows: dict[int, Any] = {}
        for life in self.lives.get(agent, [])[-lives:]:
            rows.update(zip(life["at"], life[AT_WHICH.get(name, "outputs")]))
        life = self.living(agent)
        if life is not None and agent in self.open and name not in ("observations", "infos"):
            pending = {"actions": self.open[agent]["action"], "rewards": self.rewards.get(agent, 0.0)}
            rows[life["at"][-1]] = pending.get(name, self.open[agent]["outputs"])
        return rows


ROW_MAP = ("obs", "infos", "at")
STEPS = ("actions", "rewards", "outputs")


class SlowEpisode(SlowAgents):
    """An episode, or a chunk of it.

    A life has besides its rows `skipped`, how many of its first rows the chunk has forgotten, and `typed`, a row of
    each column of steps that a chunk once had: a column without rows keeps the type of the rows before.

    Attributes:
        start: env step at which the chunk starts.
        lookback: how many env steps before that it remembers.
        born: agents in the order of their first observations, with how their latest life ended; None while it lasts.
        terminated, truncated: how the episode ended.
        custom: its custom data.
    """

    def __init__(self, schedule: Schedule, until: int | None = None) -> None:
        self.start = self.lookback = 0
        self.born: dict[str, tuple[bool, bool] | None] = {}
        self.terminated = self.truncated = False
        self.custom: dict[str, Any] = {}
        super().__init__(schedule, until)

    @property
    def length(self) -> int:
        return self.t - self.start

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated

    def begin(self, agent: str, obs: Any, info: dict[str, Any]) -> None:
        super().begin(agent, obs, info)
        self.lives[agent][-1].update(skipped=0, typed={})
        self.born[agent] = None
        self._in_order()

    def _in_order(self) -> None:
        self.lives = {agent: self.lives[agent] for agent in self.born if self.lives.get(agent)}

    def step(self, step: dict[str, Any]) -> None:
        """One env step more."""
        self.t += 1
        self.add(step)

    def add(self, step: dict[str, Any]) -> None:
        super().add(step)
        for agent, lives in self.lives.items():
            self.born[agent] = None if lives[-1]["ended"] is None else lives[-1]["flags"]
        self.terminated, self.truncated = (bool(step[kind].get("__all__")) for kind in ("terminateds", "truncateds"))
        if not self.done and self.born and None not in self.born.values():
            self.terminated = any(terminated for terminated, _ in filter(None, self.born.values()))
            self.truncated = not self.terminated

    # -- parts ---------------------------------------------------------------------------------

    def cut(self, k: int) -> SlowEpisode:
        """The chunk behind."""
        wanted = k
        for agent in self.open if k else ():
            before = [at for at in self.lives[agent][-1]["at"] if at <= self.t - (k - 1)]
            wanted = max([wanted, *(self.t - at for at in before[-1:])])
        return self._part(self.t, self.t, wanted)

    def sliced(self, low: int, high: int, k: int | None) -> SlowEpisode:
        """The env steps from `low` to before `high`, counted from the chunk's start."""
        return self._part(self.start + low, self.start + high, self.lookback if k is None else k)

    def _part(self, start: int, stop: int, k: int) -> SlowEpisode:
        part = copy.deepcopy(self)
        going = [life for lives in self.lives.values() for life in lives if life["at"][0] <= start < _end(life)]
        reach = [start - max(at for at in life["at"] if at <= start) for life in going]
        part.start, part.t = start, stop
        part.lookback = max([min(k, self.lookback + start - self.start), *reach])
        if stop < self.t:
            part.open, part.rewards, part.infos, part.left = {}, {}, {}, {}
            part.terminated = part.truncated = False
            unheard = {agent: end for agent, end in self.born.items() if agent not in self.lives}
            part.born = {**unheard, **dict.fromkeys(self.lives)}
        part.lives = {agent: [life for life in lives if start < _end(life)] for agent, lives in part.lives.items()}
        for agent, lives in self.lives.items():
            before = [life for life in lives if life["at"][0] <= stop]
            if stop == self.t:
                continue
            if not before:
                del part.born[agent]
                continue
            part.born[agent] = before[-1]["flags"] if _end(before[-1]) <= stop else None
            self._under_way(agent, before[-1], stop, part)
        part.lives = {agent: [life for life in lives if life["at"][0] <= stop] for agent, lives in part.lives.items()}
        for life in [life for lives in part.lives.values() for life in lives]:
            _trim(life, start - part.lookback, stop)
        part._in_order()
        return part

    def _under_way(self, agent: str, life: dict[str, Any], stop: int, part: SlowEpisode) -> None:
        """A step that began before `stop` and ends after it waits in the part, with all that is known of it."""
        row = max(i for i, at in enumerate(life["at"]) if at <= stop)
        if _end(life) <= stop or life["at"][row] == stop:
            return
        if row < len(life["actions"]):
            part.open[agent] = {"action": life["actions"][row], "outputs": life["outputs"][row]}
            part.rewards[agent] = life["rewards"][row]
        elif life is self.living(agent):
            for name in ("open", "rewards"):
                waiting = getattr(self, name)
                if agent in waiting:
                    getattr(part, name)[agent] = copy.deepcopy(waiting[agent])

    def join(self, other: SlowEpisode) -> None:
        """Add the chunk behind."""
        for agent, lives in copy.deepcopy(other.lives).items():
            mine = self.lives.setdefault(agent, [])
            for life in lives:
                if self.born.get(agent, (True, True)) is None and mine and mine[-1]["ended"] is None:
                    _lengthen(mine[-1], life)
                else:
                    mine.append(life)
                self.born[agent] = None if life["ended"] is None else life["flags"]
        for agent, end in other.born.items():
            self.born[agent] = end
        self._in_order()
        for name in ("open", "rewards", "infos", "left", "t", "terminated", "truncated"):
            setattr(self, name, copy.deepcopy(getattr(other, name)))
        self.custom.update(copy.deepcopy(other.custom))

    # -- facts ---------------------------------------------------------------------------------

    def kept(self, life: dict[str, Any]) -> int:
        """How many of a life's rows are lookback: those before its newest one at the chunk's start."""
        return max(sum(at <= self.start for at in life["at"]) - 1, 0)

    def total(self, name: str) -> int:
        """Env steps at which a column may have rows."""
        return self.lookback + self.length + (name in ("observations", "infos"))

    def pending_rewards(self) -> dict[str, float]:
        """Sums that are not 0."""
        agents = {**self.rewards, **self.left}
        sums = {agent: self.rewards.get(agent, 0.0) + self.left.get(agent, 0.0) for agent in agents}
        return {agent: reward for agent, reward in sums.items() if reward}


def _end(life: dict[str, Any]) -> float:
    return float("inf") if life["ended"] is None else life["ended"]


def _trim(life: dict[str, Any], low: int, stop: int) -> None:
    """Leave the rows at env steps from `low` to `stop`."""
    if life["actions"]:
        life["typed"] = {name: life[name][0] for name in STEPS}
    first = sum(at < low for at in life["at"])
    rows = sum(at <= stop for at in life["at"])
    for name in ROW_MAP:
        life[name] = life[name][first:rows]
    for name in STEPS:
        life[name] = life[name][first : rows - 1]
    life["skipped"] += first
    if _end(life) > stop:
        life["ended"], life["flags"] = None, (False, False)


def _lengthen(life: dict[str, Any], behind: dict[str, Any]) -> None:
    known = life["skipped"] + len(life["at"]) - behind["skipped"]  # rows of `behind` that are there already
    for name in ROW_MAP:
        life[name] += behind[name][known:]
    for name in STEPS:
        life[name] += behind[name][known - 1 :]
    life["ended"], life["flags"], life["typed"] = behind["ended"], behind["flags"], behind["typed"] or life["typed"]


COLUMNS = {"observations": "obs", "actions": "actions", "rewards": "rewards"}


def facts(episode: Any) -> dict[str, Any]:
    """What an episode of either library says of itself."""
    pending = episode.pending_actions if hasattr(episode, "pending_actions") else episode._hanging_actions_end
    return {
        "env steps": [episode.env_t_started, episode.env_t, len(episode), episode.env_steps(), episode.agent_steps()],
        "ends": [episode.is_terminated, episode.is_truncated, episode.is_done],
        "custom data": dict(episode.custom_data),
        "maps": {agent: [list(row.data), row.lookback] for agent, row in episode.env_t_to_agent_t.items()},
        "pending": {agent: in_lists(action) for agent, action in pending.items()},
        "agents": [set(episode.get_agents_to_act()), set(episode.get_agents_that_stepped())],
        "returns": [float(episode.get_return(hanging)) for hanging in (False, True)],
        "terminateds": episode.get_terminateds(),
    }


def content(episode: Any) -> dict[str, Any]:
    """What ours holds."""
    by_agent: dict[str, list[Any]] = {agent: [] for agent in episode.agent_ids}
    for segment in episode.segments:
        by_agent[segment.agent_id].append(_of_segment(segment))
    return {
        **facts(episode),
        "name": [episode.id_, episode.is_reset, episode.lookback],
        "order": list(episode.agent_ids),
        "lives": by_agent,
        "pending outputs": {agent: in_lists(row) for agent, row in episode.pending_extra_model_outputs.items()},
        "pending rewards": {agent: float(r) for agent, r in episode.pending_rewards.items() if r},
        "truncateds": episode.get_truncateds(),
        "t_started": dict(episode.agent_t_started),
        "modules": {agent: episode.module_for(agent) for agent in episode.agent_ids},
    }


def _of_segment(segment: Any) -> dict[str, Any]:
    single = segment.episode
    single.validate()
    columns = {name: getattr(single, name) for name in COLUMNS}
    if single.actions.len_incl_lookback():
        columns.update(single.extra_model_outputs)
    return {
        "columns": {key: column.data if column.len_incl_lookback() else None for key, column in columns.items()},
        "infos": list(single.infos.data),
        "at": segment.env_steps.tolist(),
        "kept": {column.lookback for column in columns.values()},
        "t_started": single.t_started,
        "ended": segment.ended_at,
        "flags": (single.is_terminated, single.is_truncated),
        "names": [single.agent_id, single.multi_agent_episode_id, single.module_id],
    }


def slow_content(slow: SlowEpisode) -> dict[str, Any]:
    """What the slow model says of it."""
    lives = [(life, slow.kept(life)) for held in slow.lives.values() for life in held]
    pending = slow.pending_rewards()
    latest = {agent: held[-1] for agent, held in slow.lives.items()}
    returned = sum(sum(life["rewards"][kept:]) for life, kept in lives)
    steps = sum(len(life["actions"]) - kept for life, kept in lives)
    stepped = {agent for agent, life in latest.items() if life["at"][-1] == slow.t}
    ends = [{agent: life["flags"][i] for agent, life in latest.items()} for i in (0, 1)]
    return {
        "env steps": [slow.start, slow.t, slow.length, slow.length, steps],
        "ends": [slow.terminated, slow.truncated, slow.done],
        "custom data": slow.custom,
        "maps": {agent: [agent_map(slow, agent), slow.lookback] for agent in slow.lives},
        "pending": {agent: in_lists(taken["action"]) for agent, taken in slow.open.items()},
        "agents": [{agent for agent in stepped if slow.living(agent) is not None}, stepped],
        "returns": [float(returned), float(returned + sum(pending.values()))],
        "terminateds": {**ends[0], "__all__": slow.terminated},
        "name": ["game", True, slow.lookback],
        "order": list(slow.lives),
        "lives": {agent: [_of_life(slow, agent, life) for life in held] for agent, held in slow.lives.items()},
        "pending outputs": {agent: in_lists(taken["outputs"]) for agent, taken in slow.open.items()},
        "pending rewards": pending,
        "truncateds": {**ends[1], "__all__": slow.truncated},
        "t_started": {agent: life["skipped"] + slow.kept(life) for agent, life in latest.items()},
        "modules": dict.fromkeys(slow.lives, "default_policy"),
    }


def _of_life(slow: SlowEpisode, agent: str, life: dict[str, Any]) -> dict[str, Any]:
    columns = {name: stack(life[key]) if life[key] else None for name, key in COLUMNS.items()}
    outputs = stack(life["outputs"]) if life["outputs"] else {}
    return {
        "columns": {**columns, **outputs},
        "infos": life["infos"],
        "at": life["at"],
        "kept": {slow.kept(life)},
        "t_started": life["skipped"] + slow.kept(life),
        "ended": life["ended"],
        "flags": life["flags"],
        "names": [agent, "game", "default_policy"],
    }


def agent_map(slow: SlowEpisode, agent: str) -> list[Any]:
    """For each env step, lookback included, the agent's own step, or "S"."""
    row: list[Any] = ["S"] * (slow.lookback + slow.length + 1)
    for life in slow.lives[agent]:
        for i, at in enumerate(life["at"]):
            row[at - slow.start + slow.lookback] = life["skipped"] + i
    return row
