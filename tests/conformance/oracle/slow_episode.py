"""A slow model of an episode of several agents that is cut, sliced and joined: lists of lives, trimmed row by row."""

from __future__ import annotations

import copy
from typing import Any

from oracle.agents import Schedule
from oracle.slow_agents import SlowAgents

ROWS = ("obs", "infos", "at")
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

    def stepped(self) -> list[str]:
        return [agent for agent, lives in self.lives.items() if lives[-1]["at"][-1] == self.t]

    def to_act(self) -> list[str]:
        return [agent for agent in self.stepped() if self.living(agent) is not None]

    def pending_rewards(self) -> dict[str, float]:
        """Sums that are not 0."""
        agents = {**self.rewards, **self.left}
        sums = {agent: self.rewards.get(agent, 0.0) + self.left.get(agent, 0.0) for agent in agents}
        return {agent: reward for agent, reward in sums.items() if reward}

    def steps_of_agents(self) -> list[tuple[dict[str, Any], int]]:
        """(life, rows that are lookback) of every life."""
        return [(life, self.kept(life)) for lives in self.lives.values() for life in lives]


def _end(life: dict[str, Any]) -> float:
    return float("inf") if life["ended"] is None else life["ended"]


def _trim(life: dict[str, Any], low: int, stop: int) -> None:
    """Leave the rows at env steps from `low` to `stop`."""
    if life["actions"]:
        life["typed"] = {name: life[name][0] for name in STEPS}
    first = sum(at < low for at in life["at"])
    rows = sum(at <= stop for at in life["at"])
    for name in ROWS:
        life[name] = life[name][first:rows]
    for name in STEPS:
        life[name] = life[name][first : rows - 1]
    life["skipped"] += first
    if _end(life) > stop:
        life["ended"], life["flags"] = None, (False, False)


def _lengthen(life: dict[str, Any], behind: dict[str, Any]) -> None:
    known = life["skipped"] + len(life["at"]) - behind["skipped"]  # rows of `behind` that are there already
    for name in ROWS:
        life[name] += behind[name][known:]
    for name in STEPS:
        life[name] += behind[name][known - 1 :]
    life["ended"], life["flags"], life["typed"] = behind["ended"], behind["flags"], behind["typed"] or life["typed"]
