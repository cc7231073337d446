"""Reading an episode of several agents: which rows a getter gives, worked out by lists from the slow model's rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np
from hypothesis import strategies as st

from oracle.compare import each, leaves, stack
from oracle.probes import in_lists
from oracle.reads import Read, slow_read
from oracle.slow_episode import AT_WHICH, SlowEpisode

OUTSIDE = "outside"
BEYOND = 10**9  # no column has such a row
NOTHING = object()


@dataclass(frozen=True)
class AgentRead:
    """A call of a getter.

    Attributes:
        name: the column.
        one_hot: only for observations and actions.
        key: which of the model outputs, if those are asked for; None for all of them.
    """

    name: str
    indices: Any = None
    agent_ids: Any = None
    env_steps: bool = True
    neg_index_as_lookback: bool = False
    fill: Any = None
    one_hot: bool = False
    return_list: bool = False
    key: str | None = None

    @property
    def several(self) -> bool:
        return self.indices is None or isinstance(self.indices, (slice, list))

    def of(self, episode: Any) -> Any:
        """Call it."""
        names = ("indices", "agent_ids", "env_steps", "neg_index_as_lookback", "fill", "return_list")
        options = {name: getattr(self, name) for name in names}
        if self.name in ("observations", "actions"):
            options["one_hot_discrete"] = self.one_hot
        if self.name == "extra_model_outputs":
            options["key"] = self.key
        return getattr(episode, f"get_{self.name}")(**options)


small = st.integers(-4, 4)
wide = st.one_of(small, st.integers(-14, 14))
bounds = st.one_of(st.none(), wide)
slices = st.builds(slice, bounds, bounds, st.sampled_from([None, None, None, 1, 2, -1, -2]))
columns = st.sampled_from(["observations", "infos", "actions", "rewards", "extra_model_outputs"])
reads = st.builds(
    AgentRead,
    columns,
    st.one_of(st.none(), small, wide, slices, slices, st.lists(small, max_size=4), st.lists(wide, max_size=4)),
    st.sampled_from([None, None, None, "a", "b", ["a", "b"], ["c", "nobody"], []]),
    st.sampled_from([True, True, False]),
    st.booleans(),
    st.sampled_from([None, None, None, 0, -1.0, 7]),
    st.sampled_from([False, False, True]),
    st.sampled_from([False, False, True]),
    st.sampled_from([None, "logp", "state_out", "nothing"]),
)
usual_reads = st.builds(
    AgentRead,
    columns,
    st.one_of(st.none(), small, st.builds(slice, bounds, bounds), st.lists(small, min_size=1, max_size=4)),
    st.sampled_from([None, ["a", "b", "c"]]),
    neg_index_as_lookback=st.booleans(),
    key=st.sampled_from(["logp", "state_out"]),
)
"""Reads that RLlib's getters do without a listed difference."""


class SlowReader:
    """One read of the slow model.

    Args:
        slow: the episode.
        read: the call.
        spaces: each column's space, by its name; {} for none.
    """

    def __init__(self, slow: SlowEpisode, read: AgentRead, spaces: dict[str, gym.Space[Any]]) -> None:
        self.slow, self.read, self.space = slow, read, spaces.get(read.name)

    def get(self) -> Any:
        read = self.read
        if read.key is not None and read.name == "extra_model_outputs":
            self._check_key()
        if not read.env_steps:
            if read.return_list:
                raise ValueError("a list of dicts goes by env steps")
            return self._present(self._by_agent_steps)
        at = self._env_steps()
        if read.return_list:
            return [self._present(self._at, env_t) for env_t in (at if read.several else [at])]
        return self._present(self._at, at)

    def _check_key(self) -> None:
        keys = {key for agent in self.slow.lives for row in self.typed(agent) for key in row}
        if keys and self.read.key not in keys:
            raise KeyError(self.read.key)

    def _present(self, of: Any, *where: Any) -> dict[str, Any]:
        """What `of` gives for each agent that was asked for, but for those of which it gives nothing."""
        wanted = self.read.agent_ids
        agents = [a for a in self.slow.lives if wanted is None or a == wanted or a in list(wanted)]
        found = {agent: self._of_outputs(agent, of, *where) for agent in agents}
        return {agent: rows for agent, rows in found.items() if rows is not NOTHING}

    def _of_outputs(self, agent: str, of: Any, *where: Any) -> Any:
        if self.read.name != "extra_model_outputs" or self.read.key is not None:
            return of(agent, *where)
        keys = dict.fromkeys(key for row in self.typed(agent) for key in row)
        parts = {key: SlowReader(self.slow, replace(self.read, key=key), {}) for key in keys}
        found = {key: getattr(part, of.__name__)(agent, *where) for key, part in parts.items()}
        return {key: rows for key, rows in found.items() if rows is not NOTHING} or NOTHING

    # -- which ---------------------------------------------------------------------------------

    def _env_steps(self) -> Any:
        """The env step asked for, or a list of them."""
        read, slow = self.read, self.slow
        every = list(range(slow.start - slow.lookback, slow.start - slow.lookback + slow.total(read.name)))
        beyond = read.fill is not None or (read.return_list and read.several)
        options = {"neg_index_as_lookback": read.neg_index_as_lookback, "fill": OUTSIDE if beyond else None}
        found = slow_read(Read(every, None, slow.lookback, None, None, False, read.indices, **options))
        if found.error is not None:
            raise found.error
        return found.value

    def rows_at(self, agent: str, lives: int = 0) -> dict[int, Any]:
        """The agent's rows by env step, those of its last so many lives (0: all), the open step's included."""
        return self.slow.at(self.read.name, agent, lives)

    def typed(self, agent: str, lives: int = 0) -> list[Any]:
        """The agent's rows of its last so many lives, or one that a chunk before this one had."""
        before = self.slow.lives[agent][-lives]["typed"].get(AT_WHICH.get(self.read.name, "outputs"))
        return list(self.rows_at(agent, lives).values()) or ([] if before is None else [before])

    # -- the rows of one agent -----------------------------------------------------------------

    def column(self, agent: str, rows: list[Any], **options: Any) -> Any:
        """What a column of these rows gives, by the rules for single agents."""
        read, typed = self.read, rows or self.typed(agent, lives=0 if self.read.env_steps else 1)
        if read.key is not None and read.name == "extra_model_outputs":
            rows, typed = ([row[read.key] for row in some if read.key in row] for some in (rows, typed))
        if read.name == "rewards":
            rows, typed = (list(map(np.float64, some)) for some in (rows, typed))
        infos = read.name == "infos"
        held = each(lambda leaf: leaf[: len(rows)], stack(typed)) if typed and not infos else None
        hot = read.one_hot and read.name in ("observations", "actions")
        settings = {"fill": read.fill, "one_hot": hot, "lookback": 0, **options}
        spaces = {"space": self.space, "our_space": self.space}
        found = slow_read(Read(rows if infos else None, held, arrays=True, **spaces, **settings))
        if found.error is not None:
            raise found.error
        return found.value

    def _at(self, agent: str, env_ts: Any) -> Any:
        """The rows at an env step, or at several."""
        at = self.rows_at(agent)
        where, several = {env_t: row for row, env_t in enumerate(at)}, isinstance(env_ts, list)
        asked = env_ts if several else [env_ts]
        chosen = [where.get(env_t, BEYOND) for env_t in asked if env_t in where or self.read.fill is not None]
        if not chosen:
            return NOTHING
        return self.column(agent, list(at.values()), indices=chosen if several else chosen[0])

    def _by_agent_steps(self, agent: str) -> Any:
        read, slow = self.read, self.slow
        options = {"indices": read.indices, "neg_index_as_lookback": read.neg_index_as_lookback}
        rows = list(self.rows_at(agent, 1).values())
        lookback = slow.kept(slow.lives[agent][-1])
        found = self.column(agent, rows, **options, lookback=lookback)
        return NOTHING if read.several and not len(leaves(found)[0]) else found


def values(found: Any) -> Any:
    """What a getter gave in lists: types and layouts are compared where single agents' columns are."""
    return [in_lists(by_agent) for by_agent in found] if isinstance(found, list) else in_lists(found)
