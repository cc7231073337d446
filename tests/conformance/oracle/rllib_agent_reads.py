"""What RLlib's getters of several agents give: the slow model's reading with each listed difference switched on.

A mismatch is explained if both sides give what the model says, by those differences that change what it says.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium as gym
import numpy as np

from oracle.agent_reads import BEYOND, NOTHING, OF_OBSERVATIONS, AgentRead, SlowReader
from oracle.columns import leaves
from oracle.compare import Mismatch, Outcome, outcome
from oracle.differences import IDS, difference
from oracle.libraries import RLLIB
from oracle.reads import SWITCHES as OF_COLUMNS
from oracle.reads import Read, expected
from oracle.slow_episode import SlowEpisode

ON_THE_MAP = ("O20", "O58", "O59")
REWARDS = gym.spaces.Box(-np.inf, np.inf, (), np.float32)
SWITCHES = (
    *OF_COLUMNS,
    *("O21", "filled-infos", "agent-steps-open", "agents-without-rows", "agents-return", "pending-rewards-shown"),
    *("agent-ids", "no-agents-read", "one-in-a-list", "O17", "all-outputs", "O53", "O54"),
)


class Refused(Exception):
    """RLlib raises something here."""


@dataclass(frozen=True)
class AgentReading:
    """A getter's call on an episode.

    Attributes:
        slow: what the episode holds.
        spaces: its spaces by column.
        arrays: whether RLlib's columns are arrays.
    """

    slow: SlowEpisode = field(repr=False)
    read: AgentRead
    spaces: dict[str, Any]
    arrays: bool

    def expected(self, on: frozenset[str]) -> Outcome:
        """What it gives with these differences switched on."""
        if not on:
            return outcome(SlowReader(self.slow, self.read, self.spaces).get)
        return outcome(RllibReader(self, on).get)


class RllibReader(SlowReader):
    """One read of RLlib's, with some differences switched on."""

    def __init__(self, reading: AgentReading, on: frozenset[str]) -> None:
        super().__init__(reading.slow, reading.read, reading.spaces)
        self.on, self.arrays, self.agent, self.reading = on, reading.arrays, "", reading
        self.lives = 1 if "agents-return" in on else 0
        wanted = self.read.agent_ids
        if wanted == [] and "agent-ids" in on:
            self.read = replace(self.read, agent_ids=None)

    def part(self, key: str) -> RllibReader:
        return RllibReader(replace(self.reading, read=replace(self.read, key=key), spaces={}), self.on)

    def agents(self) -> list[str]:
        wanted = self.read.agent_ids
        return [a for a in self.slow.lives if wanted is None or a == wanted or a in list(wanted)]

    def get(self) -> Any:
        read, agents = self.read, self.agents()
        if not agents and "no-agents-read" in self.on:
            if not read.env_steps and read.return_list:
                raise ValueError("both")
            return [] if read.return_list else {}
        if read.return_list and read.env_steps and not read.several and "one-in-a-list" in self.on:
            raise Refused
        if read.name == "extra_model_outputs" and ("all-outputs" if read.key is None else "O17") in self.on:
            self._outputs(agents)
        return super().get()

    def _check_key(self) -> None:
        if "O17" not in self.on:
            super()._check_key()

    def _outputs(self, agents: list[str]) -> None:
        """RLlib looks into each agent's outputs before it looks whether there are any."""
        read = self.read
        if not read.env_steps:
            if read.return_list:
                return
            if read.key is None or any(a not in self.slow.open or not self._whole(a) for a in agents):
                raise Refused
            return
        at = self._env_steps() if read.several else [self._env_steps()]
        if not at and read.return_list:
            return
        if read.key == "nothing" or (read.key and not all(map(self._whole, agents))):
            raise Refused
        if any(self._looks_wrong(agent, at) for agent in agents):
            raise Refused

    def _looks_wrong(self, agent: str, at: list[Any]) -> bool:
        """Whether RLlib takes the dict of all outputs for a column."""
        read, rows, fill = self.read, self.where(agent), self.read.fill is not None
        seen = any(env_t in self.slow.lives[agent][-1]["at"] for env_t in at)
        missing, there = (any((env_t in rows) is kind for env_t in at) for kind in (False, True))
        if read.key is not None:
            return fill and read.several and not read.return_list and missing and there
        if not read.several:
            return (fill and missing) or (not self._whole(agent) and not rows and seen)
        if read.return_list:
            return fill and missing and bool(rows)
        return bool(at) and (fill or there or (not self._whole(agent) and seen))

    def _whole(self, agent: str) -> int:
        """Steps of the latest life that have ended."""
        return len(self.slow.lives[agent][-1]["actions"])

    def _env_steps(self) -> Any:
        read, slow = self.read, self.slow
        on = self.on.intersection(ON_THE_MAP)
        every = list(range(slow.start - slow.lookback, slow.start - slow.lookback + slow.total(read.name)))
        beyond = read.fill is not None or (read.return_list and read.several)
        options = {"neg_index_as_lookback": read.neg_index_as_lookback, "fill": "outside" if beyond else None}
        found = expected(Read(every, None, slow.lookback, None, None, False, read.indices, objects=True, **options), on)
        if found.error is not None:
            raise found.error
        return found.value

    # -- the rows of one agent -----------------------------------------------------------------

    def column(self, agent: str, rows: list[Any], **options: Any) -> Any:
        """RLlib does not always count the open step, and puts vectors of it behind flattened ones."""
        if len(rows) > self._whole(agent) and self.read.name not in OF_OBSERVATIONS:
            if not self.read.env_steps and "agent-steps-open" in self.on:
                rows, options = self._without_open(rows, options)
            flat = self.arrays and self._is_array(agent) and self.read.key == "state_out"
            if flat and self.read.name == "extra_model_outputs" and options["indices"] is not None and "O54" in self.on:
                rows, options = self._flattened(rows, options)
        return super().column(agent, rows, **options)

    def _without_open(self, rows: list[Any], options: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        indices, lookback = options["indices"], options["lookback"]
        if indices is None:
            return rows[:-1], options
        if options["neg_index_as_lookback"] and not isinstance(indices, slice):
            before = lambda i: len(rows) - 1 - lookback if i + lookback < 0 else i  # noqa: E731
            indices = list(map(before, indices)) if isinstance(indices, list) else before(indices)
        return rows, {**options, "indices": indices}

    def _flattened(self, rows: list[Any], options: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        if isinstance(options["indices"], slice):
            places = Read(list(range(len(rows))), None, 0, None, None, False, objects=True, **{"fill": None, **options})
            at = expected(replace(places, fill=self.read.fill and BEYOND), self.on.intersection(ON_THE_MAP)).value
            options = {"indices": at}
        return [{"state_out": {"h": number}} for row in rows for number in row["state_out"]["h"]], options

    def _column(self, read: Read) -> Outcome:
        """By RLlib's rules for single agents."""
        name, agent = self.read.name, self.agent
        life = self.slow.lives[agent][-1]
        steps = len(life["actions"]) - self.slow.kept(life)
        arrays = self.arrays and name != "infos" and (name == "observations" or steps > 0)
        space = REWARDS if name == "rewards" else self.space
        return expected(replace(read, arrays=arrays, space=space), self.on.intersection(OF_COLUMNS))

    def _one(self, agent: str, env_t: Any) -> Any:
        self.agent = agent
        return super()._one(agent, env_t)

    def _many(self, agent: str, env_ts: list[Any]) -> Any:
        self.agent, read = agent, self.read
        if self.arrays and read.fill is not None and any(env_t not in self.rows_at(agent) for env_t in env_ts):
            if "O21" in self.on and len({self._is_array(one) for one in self.slow.lives}) > 1:
                raise Refused
            first = env_ts[0] in self.where(agent)  # it says how the others are to be nested
            if read.name == "infos" and "filled-infos" in self.on and self._is_array(agent) and first:
                raise Refused
            if "O21" in self.on and not self._is_array(agent):
                where, rows = self.where(agent), self.rows(agent)
                return [self.column(agent, rows, indices=where.get(env_t, BEYOND)) for env_t in env_ts]
        return super()._many(agent, env_ts)

    def _is_array(self, agent: str) -> bool:
        life = self.slow.lives[agent][-1]
        return len(life["actions"]) > self.slow.kept(life)

    def _by_agent_steps(self, agent: str) -> Any:
        self.agent = agent
        if isinstance(self.read.indices, slice) and "agent-steps-open" in self.on and self._waits(agent):
            return self._put_behind(agent)
        return super()._by_agent_steps(agent)

    def _waits(self, agent: str) -> bool:
        """Whether there is something of the agent's that no step of it has yet."""
        shown = self.read.name == "rewards" and "pending-rewards-shown" in self.on
        waiting = agent in self.slow.open or (shown and agent in self.slow.rewards)
        return waiting and self.read.name not in OF_OBSERVATIONS and self.slow.living(agent) is not None

    def _put_behind(self, agent: str) -> Any:
        """What RLlib's own column of an agent's steps gives of a slice when it gets what waits for it."""
        read, lookback = self.read, self.slow.kept(self.slow.lives[agent][-1])
        *rows, waits = self.rows_at(agent, 1).values()
        if read.key is not None and read.name == "extra_model_outputs":
            *rows, waits = (row[read.key] for row in (*rows, waits))
        column = RLLIB.InfiniteLookbackBuffer(rows, lookback, REWARDS if read.name == "rewards" else self.space)
        if self.arrays and self._is_array(agent):
            column.finalize()
        options = {"neg_index_as_lookback": read.neg_index_as_lookback, "fill": read.fill}
        hot = read.one_hot and read.name == "actions"
        found = column.get(read.indices, one_hot_discrete=hot, _add_last_ts_value=waits, **options)
        return NOTHING if isinstance(found, list) and not found else found

    def nothing(self, found: Any) -> bool:
        if self.arrays and "agents-without-rows" in self.on and isinstance(leaves(found)[0], np.ndarray):
            return False
        return super().nothing(found)

    def where(self, agent: str) -> dict[int, int]:
        """RLlib compares steps of the whole life with the number of rows that the chunk holds, but not for lists."""
        where, life = super().where(agent), self.slow.lives[agent][-1]
        name = self.read.name
        if "O53" not in self.on or self.read.return_list or name in OF_OBSERVATIONS:
            return where
        if name == "extra_model_outputs" and not self._whole(agent):
            return where
        rows = len(self.rows(agent))
        return {at: row for row, at in enumerate(life["at"]) if life["skipped"] + row != rows}

    def rows_at(self, agent: str, lives: int = 0) -> dict[int, Any]:
        rows = super().rows_at(agent, lives or self.lives)
        slow, life = self.slow, self.slow.lives[agent][-1]
        alive = life["ended"] is None
        if self.read.name == "rewards" and "pending-rewards-shown" in self.on and alive and agent in slow.rewards:
            rows[life["at"][-1]] = slow.rewards[agent]
        return rows


def values(found: Any) -> Any:
    """What a getter gave as floats in lists: types and layouts are compared where single agents' columns are."""
    if isinstance(found, list):
        return [values(by_agent) for by_agent in found]
    return {agent: _rows(rows) for agent, rows in found.items()}


def _rows(rows: Any) -> Any:
    if isinstance(rows, np.ndarray) and rows.dtype == object:
        rows = list(rows)
    if isinstance(rows, list) and rows and all(isinstance(row, dict) and row.keys() == rows[0].keys() for row in rows):
        rows = {key: [row[key] for row in rows] for key in rows[0]}
    if isinstance(rows, dict):
        return {key: _rows(part) for key, part in rows.items()}
    if isinstance(rows, list):
        return [_rows(row) for row in rows]
    return np.asarray(rows, float).tolist() if isinstance(rows, (np.ndarray, np.generic, int, float)) else rows


def whole(theirs: Any, ours: Any) -> list[Mismatch]:
    """At most one mismatch of the whole values."""
    return [] if values(theirs) == values(ours) else [Mismatch((), "value", theirs, ours)]


def _gives(claimed: Outcome, side: Any) -> bool:
    """Whether the model says what a side gives."""
    if isinstance(side, Exception):
        return isinstance(claimed.error, Refused) or claimed.kind == Outcome(error=side).kind
    return not claimed.kind and values(claimed.value) == values(side)


def _same(a: Outcome, b: Outcome) -> bool:
    return a.kind == b.kind and bool(a.kind or values(a.value) == values(b.value))


def _explanation(identity: str) -> None:
    @difference(identity, AgentReading)
    def explains(reading: AgentReading, mismatch: Mismatch) -> bool:
        on = IDS.intersection(SWITCHES)
        theirs, ours = reading.expected(on), reading.expected(frozenset())
        if not _gives(theirs, mismatch.theirs) or not _gives(ours, mismatch.ours):
            return False
        alone, others = reading.expected(frozenset({identity})), reading.expected(on - {identity})
        return not (_same(theirs, others) and _same(ours, alone))


for _identity in SWITCHES:
    _explanation(_identity)
