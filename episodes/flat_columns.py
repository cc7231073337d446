"""All steps of a rollout as flat columns, and episodes of such columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from epibatch.core.columns import Columns, canonical_column
from epibatch.core.errors import ColumnError, ConfigError, nearest
from epibatch.core.structs import Form, convert_to_numpy, flatten, flatten_like, paths_of, unflatten

from ._parts.agent_segment import AgentSegment
from ._storage.infos_buffer import MISSING_FINAL_OBS
from .multi_agent_episode import MultiAgentEpisode
from .reader import reader_of
from .rows import Rows
from .single_agent_episode import SingleAgentEpisode
from .store import Ints, Leaf

_BY = (Columns.AGENT_ID, Columns.MODULE_ID)


def episodes_to_columns(episodes: Sequence[Any], by: str = Columns.AGENT_ID) -> dict[Any, Any]:
    """Join the steps of episodes into one dict of columns, as `sample()` returns them or one after the other.

    Args:
        episodes: Single-agent or multi-agent episodes, or chunks of them; those without a step add no rows.
        by: Of multi-agent episodes: "agent_id" for the columns of each agent, "module_id" for those of each module.

    Returns:
        For one agent `obs`, `new_obs` (the observation after the step), `actions`, `rewards`, `terminateds`,
        `truncateds`, `infos`, `t` (the step of its episode), `eps_id` and the model outputs. They are copies of shape
        [R, ...] in the nesting of their spaces; `infos` is a list. For several agents a dict of such columns for each
        agent or module, with `agent_id` and `env_t` (the env step). There `eps_id` is that of the multi-agent episode,
        and `t` counts the agent's steps. Without any step the dict is empty.

    Raises:
        ColumnError: the episodes' columns differ in shape or nesting.
        ConfigError: another `by`.

    Examples:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> episode = SingleAgentEpisode(id_="a", observations=[0, 1, 2], actions=[7, 8], rewards=[1.0, 2.0],
        ...                              terminated=True, len_lookback_buffer=0)
        >>> columns = episodes_to_columns([episode, episode])
        >>> columns["obs"].tolist(), columns["new_obs"].tolist(), columns["terminateds"].tolist()
        ([0, 1, 0, 1], [1, 2, 1, 2], [False, True, False, True])
    """
    if by not in _BY:
        raise ConfigError("episodes_to_columns, by", expected=f"one of {_BY}", found=repr(by), do=f"pass {_BY[0]!r}")
    if not any(isinstance(episode, MultiAgentEpisode) for episode in episodes):
        lengths = reader_of(episodes).lengths
        return _columns(episodes if lengths.all() else [episode for episode in episodes if len(episode)])
    groups: dict[Any, list[tuple[MultiAgentEpisode, AgentSegment]]] = {}
    for episode in episodes:
        for segment in episode.segments:
            if len(segment.episode):
                groups.setdefault(getattr(segment.episode, by), []).append((episode, segment))
    return {key: _columns_of_segments(group) for key, group in groups.items()}


def _columns(episodes: Sequence[Any]) -> dict[str, Any]:
    """Return the columns of single-agent episodes, each with a step."""
    if not len(episodes):
        return {}
    reader = reader_of(episodes)
    lengths, flags = reader.lengths, np.zeros((2, reader.lengths.sum()), np.bool_)
    last = np.cumsum(lengths) - 1
    flags[:, last] = reader.ends
    return {
        Columns.OBS: _joined(reader.rows(Columns.OBS)),
        Columns.NEXT_OBS: _joined(reader.rows(Columns.OBS, 1, lengths + 1)),
        Columns.INFOS: [info for chunk in episodes for info in chunk.get_infos(slice(0, len(chunk)))],
        Columns.ACTIONS: _joined(reader.rows(Columns.ACTIONS)),
        Columns.REWARDS: _joined(reader.rows(Columns.REWARDS)),
        Columns.TERMINATEDS: flags[0],
        Columns.TRUNCATEDS: flags[1],
        Columns.T: np.arange(len(flags[0])) + np.repeat(reader.starts + lengths - 1 - last, lengths),
        Columns.EPS_ID: _repeated((chunk.id_ for chunk in episodes), lengths),
        **{name: _joined(reader.rows(name)) for name in reader.outputs},
    }


def _joined(rows: Rows) -> Any:
    rows.check()
    return rows.joined()


def _columns_of_segments(group: list[tuple[MultiAgentEpisode, AgentSegment]]) -> dict[str, Any]:
    chunks = [segment.episode for _, segment in group]
    lengths = np.array([len(chunk) for chunk in chunks])
    env_steps = (segment.env_steps[segment.episode.lookback :] for _, segment in group)
    return {
        **_columns(chunks),
        Columns.EPS_ID: _repeated((episode.id_ for episode, _ in group), lengths),
        Columns.AGENT_ID: _repeated((chunk.agent_id for chunk in chunks), lengths),
        "env_t": np.concatenate([steps[:length] for steps, length in zip(env_steps, lengths)]),
    }


def _repeated(values: Iterable[Any], lengths: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Return a value for each chunk as a column; objects unless all are strings or all are integers."""
    items = list(values)
    if {type(item) for item in items} in ({str}, {int}):
        return np.repeat(np.array(items), lengths)
    objects = np.empty(len(items), object)
    for i, item in enumerate(items):
        objects[i] = item
    return np.repeat(objects, lengths)


# -- episodes of columns -----------------------------------------------------------------------------

_REQUIRED = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)
_FLAGS = (Columns.TERMINATEDS, Columns.TRUNCATEDS)
_ABOUT = (Columns.EPS_ID, Columns.AGENT_ID, Columns.MODULE_ID, Columns.T, "env_t", Columns.INFOS, *_FLAGS)
_ALSO_CALLED = {"episode_id": Columns.EPS_ID, "episode_index": Columns.EPS_ID, "timestep": Columns.T}
_KINDS: dict[type, type] = {np.bool_: bool, np.float64: float, np.float32: float, np.str_: str}


def columns_to_episodes(
    columns: Mapping[str, Any], names: Mapping[str, str | None] | None = None
) -> list[SingleAgentEpisode]:
    """Join the rows of flat columns into episodes; the inverse of `episodes_to_columns`.

    Rows of one `eps_id` (and `agent_id`) make an episode, in the order of `t`, wherever they lie. Without `eps_id` an
    episode goes on until a flag is set or `t` is 0 again. Without `t` the rows of an episode lie in their order.

    Args:
        columns: `obs`, `actions` and `rewards`, and any of `new_obs`, `terminateds`, `truncateds`, `eps_id`, `t`,
            `infos`, `agent_id` and `module_id`, each with R rows: arrays, lists, tensors, or a nesting of them. Further
            columns are model outputs. If the rows lie as in their episodes, `obs` may have a row more for each of the
            E episodes, its final observation: [R + E, ...]. Other libraries' names are known too, such as
            `observations`, `next_observations`, `terminals`, `timeouts` and `episode_id`. `dones` are ends: terminated,
            unless the step is truncated.
        names: Names of columns, each with the name that it stands for; None leaves the column out.

    Returns:
        The episodes in the order of their first rows, without lookback. Numbers as `eps_id` become text. Rows with an
        `agent_id` make an episode for each agent, with `multi_agent_episode_id`. If the final observation is nowhere
        given, the observation before it takes its place, and batches know it as a placeholder.

    Raises:
        ColumnError: Columns that are missing or differ in length, that have Python objects, steps that are missing or
            double, an end in the middle, or next observations that are not those of the next step. The message says
            the episode, step and column.

    Examples:
        >>> columns = {"obs": [0, 1, 5], "actions": [7, 8, 9], "rewards": [1.0, 2.0, 3.0], "next_obs": [1, 2, 6],
        ...            "eps_id": ["a", "a", "b"], "terminals": [False, True, False]}
        >>> [(e.id_, e.get_observations().tolist(), e.is_terminated) for e in columns_to_episodes(columns)]
        [('a', [0, 1, 2], True), ('b', [5, 6], False)]
    """
    if not isinstance(columns, Mapping):
        raise ColumnError(
            "columns_to_episodes",
            expected="a dict with an array for each column",
            found=f"a {type(columns).__name__}",
            do="join dicts of steps into columns: {name: [step[name] for step in steps] for name in steps[0]}",
        )
    given = _renamed(columns, names or {})
    if missing := [name for name in _REQUIRED if name not in given]:
        raise ColumnError(
            "columns_to_episodes",
            expected=f"columns {', '.join(map(repr, _REQUIRED))}",
            found=", ".join(map(str, columns)) or "no columns",
            do=f"add {', '.join(map(repr, missing))}, or say with `names` which column it is",
        )
    rows = {name: _Leaves.of(name, column) for name, column in given.items() if name not in _ABOUT}
    count = len(rows[Columns.ACTIONS].leaves[0])
    about = {name: _about_rows(name, given[name], count) for name in _ABOUT[:5] + _FLAGS if name in given}
    if not count:
        return []
    joined = _JoinedRows(about, count)
    observations = joined.observations(rows.pop(Columns.OBS), rows.pop(Columns.NEXT_OBS, None))
    ordered = {name: joined.ordered(name, column) for name, column in rows.items()}
    return list(joined.episodes(observations, ordered, given.get(Columns.INFOS)))


class _Leaves(NamedTuple):
    """A column: its nesting, and an array for each leaf."""

    form: Form
    leaves: list[Leaf]

    @classmethod
    def of(cls, name: str, column: Any) -> _Leaves:
        leaves, form = flatten(convert_to_numpy(column))
        arrays = [_numbers(f"{name!r}{path}", leaf) for path, leaf in zip(paths_of(form), leaves)]
        if not arrays:
            raise ColumnError(f"column {name!r}", expected="rows", found="an empty dict or tuple", do="leave it out")
        return cls(form, arrays)

    def of_rows(self, rows: slice) -> Any:
        return unflatten(self.form, [leaf[rows] for leaf in self.leaves])


def _renamed(columns: Mapping[str, Any], names: Mapping[str, str | None]) -> dict[str, Any]:
    if unknown := [name for name in names if name not in columns]:
        found = repr(unknown[0])
        raise ColumnError("names", expected="names of columns", found=found, do=nearest(str(unknown[0]), columns))
    given: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, column in columns.items():
        target = names.get(name, _ALSO_CALLED.get(name, canonical_column(name)))
        if target is None:
            continue
        if name not in names and (target in columns or target in names.values()):
            target = name  # such as `state` beside `obs`: an output
        if target in sources:
            found = f"{sources[target]!r} and {name!r}"
            do = f"leave one of them out, names={{{name!r}: None}}"
            raise ColumnError(f"column {target!r}", expected="one column of that meaning", found=found, do=do)
        given[target], sources[target] = column, name
    if sources.get(Columns.TERMINATEDS) in ("done", "dones") and Columns.TRUNCATEDS in given:
        ends, cut = (_about_rows(name, given[name], None) for name in _FLAGS)
        if len(ends) == len(cut):
            given[Columns.TERMINATEDS] = ends & ~cut
    return given


def _numbers(column: str, leaf: Any) -> Leaf:
    try:
        array: Leaf = np.asarray(leaf)
    except (ValueError, TypeError) as error:  # rows of several shapes
        raise _unfit(column, "rows of one shape", error, "pad the rows to one shape") from None
    if array.dtype.kind not in "biufc":
        raise _unfit(column, "numbers", f"{array.dtype}", "convert it to numbers, or leave it out")
    if not array.ndim:
        raise _unfit(column, "a row for each step", f"the number {array}", "repeat it for each step, or leave it out")
    return array


def _about_rows(name: str, values: Any, count: int | None) -> Any:
    """Return what a column says about each row: ids, steps or flags."""
    array = _plain_ids(name, convert_to_numpy(values))
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if count is not None and array.shape != (count,):
        raise _unfit(repr(name), f"{count} rows, as actions have", f"shape {array.shape}", "give one value for a step")
    if name in _FLAGS:
        return _whole(name, array, 1).astype(np.bool_)
    return _whole(name, array).astype(np.int64) if name in (Columns.T, "env_t") or array.dtype.kind == "f" else array


def _plain_ids(name: str, values: Any) -> Leaf:
    """Return values as an array of text or of numbers."""
    array: Leaf = np.array(values) if hasattr(values, "dtype") else np.empty(len(values), object)
    if array.dtype.kind == "O":
        items = list(values)
        kinds = {_KINDS.get(kind, int if issubclass(kind, np.integer) else kind) for kind in set(map(type, items))}
        if len(kinds) > 1 or not kinds <= {str, int, float, bool}:
            found = ", ".join(sorted(kind.__name__ for kind in kinds))
            raise _unfit(repr(name), "text, or numbers, and nothing else", found, "convert all of them to one type")
        if kinds == {str}:
            array[:] = items
        else:
            array = np.array(items)
    if array.dtype.kind not in "biufUSTO" or array.ndim < 1:
        raise _unfit(
            repr(name), "text or numbers", f"{array.dtype} of shape {array.shape}", "give a value for each step"
        )
    return array


def _whole(name: str, array: Leaf, most: int | None = None) -> Leaf:
    if array.dtype.kind not in "biuf":
        raise _unfit(repr(name), "numbers", f"{array.dtype}", "convert it to numbers")
    wrong = ~np.isfinite(array) | (array != np.floor(array)) if array.dtype.kind == "f" else np.zeros(len(array), bool)
    if most is not None:
        wrong |= (array < 0) | (array > most)
    if wrong.any():
        row = int(wrong.argmax())
        expected = "whole numbers" if most is None else "True or False"
        raise _unfit(f"{name!r}, row {row}", expected, f"{array[row]}", "mend the row, or leave it out")
    return array


def _unfit(column: str, expected: str, found: Any, do: str) -> ColumnError:
    return ColumnError(f"column {column}", expected=expected, found=found, do=do)


def codes_of(values: Leaf) -> tuple[Ints, list[Any]]:
    """Number the different values of rows in the order in which they first appear.

    Args:
        values: Text or numbers: [R].

    Returns:
        The number of each row, int64 [R], and the values.
    """
    runs = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
    different, first, codes = np.unique(values[runs], return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return np.repeat(rank[codes], np.diff(runs, append=len(values))), different[order].tolist()


class _JoinedRows:
    """The rows of columns in the order of their episodes.

    Args:
        about: Ids, steps and flags of the rows: [R] each.
        count: R, the number of rows.
    """

    def __init__(self, about: Mapping[str, Any], count: int) -> None:
        self._codes_and_ids(about, count)
        codes, t = self._codes, about.get(Columns.T)
        order = np.argsort(codes, kind="stable") if t is None else np.lexsort((t, codes))
        self._order = None if (order[1:] > order[:-1]).all() else order
        self._lengths: Ints = np.bincount(codes)
        self._stops = self._lengths.cumsum()
        self._starts = self._stops - self._lengths
        steps = np.arange(count) - np.repeat(self._starts, self._lengths)
        self._t: Ints = steps if t is None else t[order]
        self._about = {name: values[order] for name, values in about.items() if name in (*_FLAGS, Columns.MODULE_ID)}
        if t is not None:
            self._check_steps(self._t - np.repeat(self._t[self._starts], self._lengths) - steps)
        self._check_flags(count)

    def _codes_and_ids(self, about: Mapping[str, Any], count: int) -> None:
        self._agents: list[Any] | None = None
        if Columns.EPS_ID in about:
            codes, ids = codes_of(about[Columns.EPS_ID])
        else:
            fresh = np.zeros(count, np.bool_)
            for name in set(_FLAGS) & set(about):
                fresh[1:] |= about[name][:-1]
            if Columns.T in about:
                fresh[1:] |= about[Columns.T][1:] == 0
            codes = fresh.cumsum()
            ids = list(range(codes[-1] + 1))
        self._codes, self._ids = codes, list(map(str, ids))
        if Columns.AGENT_ID in about:
            agents, names = codes_of(about[Columns.AGENT_ID])
            self._codes, pairs = codes_of(codes * len(names) + agents)
            self._agents = [(self._ids[pair // len(names)], names[pair % len(names)]) for pair in pairs]
            self._ids = [f"{episode}/{agent}" for episode, agent in self._agents]

    def _check_steps(self, beyond: Ints) -> None:
        if beyond.any():
            row = int((beyond != 0).argmax())
            kind = "again" if self._t[row] == self._t[row - 1] else "after a gap"
            found = f"step {self._t[row]} {kind}, after step {self._t[row - 1]}"
            raise self._at(row, Columns.T, "each step once, without a gap", found, "give whole episodes, or other ids")
        if self._t[self._starts].min() < 0:
            row = int(self._t.argmin())
            raise self._at(row, Columns.T, "steps from 0 on", f"{self._t[row]}", "count the steps of an episode from 0")

    def _check_flags(self, count: int) -> None:
        for name in _FLAGS:
            early = np.array(self._about.get(name, np.zeros(count, np.bool_)))
            early[self._stops - 1] = False
            if early.any():
                row, do = int(early.argmax()), "give each episode an id of its own, or leave `eps_id` out"
                raise self._at(row, name, "an end at the last step only", "True, and steps after it", do)

    def _at(self, row: int, column: str, expected: str, found: Any, do: str) -> ColumnError:
        episode = self._ids[int(self._stops.searchsorted(row, "right"))]
        return _unfit(f"{column!r} of episode {episode}, step {self._t[row]}", expected, found, do)

    def ordered(self, name: str, column: _Leaves, more: int = 0) -> _Leaves:
        """Return a column's rows in the order of the episodes."""
        count = len(self._codes)
        for path, leaf in zip(paths_of(column.form), column.leaves):
            if len(leaf) != count:
                expected = f"{count} rows, as actions have" + (f", or {count + more} with final ones" if more else "")
                do = "give a value for each step"
                raise _unfit(f"{name!r}{path}", expected, f"{len(leaf)} rows in {len(self._ids)} episodes", do)
        order = self._order
        return column if order is None else _Leaves(column.form, [leaf[order] for leaf in column.leaves])

    def observations(self, obs: _Leaves, new_obs: _Leaves | None) -> _Leaves:
        """Return the observations in the order of the episodes, with the final ones: [R + E, ...]."""
        count, more = len(self._codes), len(self._ids)
        self._lacking = new_obs is None and any(len(leaf) != count + more for leaf in obs.leaves)
        if new_obs is None and not self._lacking:
            if self._order is None:
                return obs
            do = "order the rows by episode and step, or give new_obs"
            raise _unfit(repr(Columns.OBS), "rows in the order of their episodes", f"{count + more} that are not", do)
        obs = self.ordered(Columns.OBS, obs, more)
        last, places = self._stops - 1, np.arange(count) + np.repeat(np.arange(more), self._lengths)
        finals = [leaf[last] for leaf in obs.leaves]
        if new_obs is not None:
            following = self.ordered(Columns.NEXT_OBS, new_obs)
            following = _Leaves(obs.form, flatten_like(obs.form, unflatten(*following)))
            self._check_following(obs, following)
            finals = [leaf[last] for leaf in following.leaves]
        leaves = []
        for leaf, final in zip(obs.leaves, finals):
            rows = np.empty((count + more, *leaf.shape[1:]), np.result_type(leaf, final))
            rows[places], rows[places[last] + 1] = leaf, final
            leaves.append(rows)
        return _Leaves(obs.form, leaves)

    def _check_following(self, obs: _Leaves, new_obs: _Leaves) -> None:
        inner = np.ones(len(self._codes), np.bool_)
        inner[self._stops - 1] = False
        for path, leaf, following in zip(paths_of(obs.form), obs.leaves, new_obs.leaves):
            if leaf.shape[1:] != following.shape[1:]:
                found, do = f"{following.shape[1:]}", "give both in one shape"
                raise _unfit(f"{Columns.NEXT_OBS!r}{path}", f"shape {leaf.shape[1:]}, as obs", found, do)
            given, meant = following[:-1], leaf[1:]
            wrong = (given != meant) & ((given == given) | (meant == meant))  # NaN in both is the same
            rows = wrong.any(axis=tuple(range(1, wrong.ndim))) & inner[:-1]
            if rows.any():
                do = "leave new_obs out if obs is right, or give each step an eps_id of its own"
                expected = "the observation of the next step"
                raise self._at(int(rows.argmax()), f"{Columns.NEXT_OBS}{path}", expected, "another one", do)

    def episodes(self, observations: _Leaves, columns: dict[str, _Leaves], infos: Any) -> Iterator[SingleAgentEpisode]:
        """Make the episodes."""
        actions, rewards = columns.pop(Columns.ACTIONS), columns.pop(Columns.REWARDS)
        infos = None if infos is None else self._infos(list(infos))
        ends = [self._about[name][self._stops - 1] if name in self._about else None for name in _FLAGS]
        for i, (start, stop) in enumerate(zip(self._starts.tolist(), self._stops.tolist())):
            rows, rows_of_obs = slice(start, stop), slice(start + i, stop + i + 1)
            kept = [{}] * (stop - start + 1) if infos is None else infos[rows_of_obs]
            if self._lacking:
                kept[-1] = {**kept[-1], MISSING_FINAL_OBS: True}
            episode, agent = (None, None) if self._agents is None else self._agents[i]
            modules = self._about.get(Columns.MODULE_ID)
            yield SingleAgentEpisode(
                self._ids[i],
                observations=observations.of_rows(rows_of_obs),
                infos=kept,
                actions=actions.of_rows(rows),
                rewards=rewards.of_rows(rows),
                terminated=ends[0] is not None and bool(ends[0][i]),
                truncated=ends[1] is not None and bool(ends[1][i]),
                extra_model_outputs={name: column.of_rows(rows) for name, column in columns.items()},
                t_started=int(self._t[start]),
                len_lookback_buffer=0,
                agent_id=agent,
                module_id=None if modules is None else modules[start].item(),
                multi_agent_episode_id=episode,
            )

    def _infos(self, infos: list[Any]) -> list[Any]:
        count, more = len(self._codes), len(self._ids)
        if len(infos) == count + more and self._order is None:
            return infos
        if len(infos) != count:
            found, expected = f"{len(infos)}", f"{count} dicts, as actions have rows"
            raise _unfit(repr(Columns.INFOS), expected, found, "give a dict for each step, or leave infos out")
        order = range(count) if self._order is None else self._order.tolist()
        rows: list[Any] = []
        for start, stop in zip(self._starts.tolist(), self._stops.tolist()):
            rows += [infos[order[row]] for row in range(start, stop)] + [{}]
        return rows
