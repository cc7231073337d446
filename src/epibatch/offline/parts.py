"""Parts of episodes as rows: what is read of chunks, to be appended to a data set."""

from __future__ import annotations

import json
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import CheckpointError, ColumnError, DataError, EpibatchWarning
from epibatch.core.state_codec import encode_state
from epibatch.core.structs import Form, flatten_like, paths_of, unflatten

from ..episodes import SingleAgentEpisode
from ..episodes.reader import EpisodeReader, reader_of
from ..episodes.store import Ints, Leaf

REQUIRED = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)
Running = dict[str, "tuple[int, int]"]
"""The newest part of each running episode, and the step at which it goes on, by the episode's id."""


class ColumnLayout(NamedTuple):
    """The nesting, types and shapes of the rows of a column.

    Args:
        form: Their nesting.
        kinds: The type and shape of a row of each leaf.
    """

    form: Form
    kinds: list[tuple[np.dtype[Any], tuple[int, ...]]]


class PartFacts(NamedTuple):
    """Facts of the parts of episodes: int64 [P] each, in the order of the columns of `parts.bin`.

    Args:
        lookback: Steps that are kept before the part's start.
        steps: Its own steps.
        t_started: The step of its episode at which it starts.
        terminated: 1 if the episode was terminated after it.
        truncated: 1 if it was truncated there.
        lacks_final_obs: 1 if its last observation is a placeholder.
        continues: The number of the part that it goes on from, or -1.
        line_end: The place after its line of text.
    """

    lookback: Ints
    steps: Ints
    t_started: Ints
    terminated: Ints
    truncated: Ints
    lacks_final_obs: Ints
    continues: Ints
    line_end: Ints

    @property
    def rows(self) -> Ints:
        """Rows of each part: its steps with those of its lookback, and an observation; or none."""
        rows: Ints = np.where(self.steps > 0, self.lookback + self.steps + 1, 0)
        return rows


NUM_FACTS = 8


class Delivery(NamedTuple):
    """Rows of some parts, in the order of the parts.

    Args:
        columns: Nesting and leaves of the rows of each column; those that a column lacks after the last step are 0.
        facts: The facts of the parts, `line_end` counted from 0.
        lines: A line of text for each part: its names, infos and custom data.
        running: The episodes that are running after it.
    """

    columns: dict[str, tuple[Form, list[Leaf]]]
    facts: PartFacts
    lines: list[bytes]
    running: Running


def read_parts(
    episodes: Sequence[Any],
    layout: Mapping[str, ColumnLayout],
    num_parts: int,
    running: Running,
    outputs: Collection[str] | None = None,
) -> Delivery | None:
    """Read what a data set keeps of episodes of one agent.

    A chunk that goes on where a running episode is becomes a part that continues it. What has no step is left out,
    unless it ends a running episode.

    Args:
        episodes: Episodes, or chunks of them, or what a runner's `sample` returned.
        layout: The columns of the data set; none of a new one.
        num_parts: The parts of the data set.
        running: Its running episodes.
        outputs: The names of the model outputs to keep; None: all.

    Returns:
        The rows; None if nothing is to be kept.

    Raises:
        ColumnError: a column that is missing, new, of another nesting, shape or type, or of text or Python objects.
        DataError: something that is no episode of one agent.
    """
    running = dict(running)
    facts: list[tuple[int, ...]] = []
    lines: list[bytes] = []
    chunks = list(episodes)
    for chunk in chunks:
        if not isinstance(chunk, SingleAgentEpisode):
            raise no_episodes(chunk)
    lacking = reader_of(episodes).lack_final_obs
    for i, episode in enumerate(chunks):
        part, next_step = running.get(episode.id_, (-1, -1))
        goes_on = part >= 0 and next_step == episode.t_started
        if not len(episode) and not (goes_on and episode.is_done):
            continue
        lookback = 0 if goes_on else episode.lookback
        ends = episode.is_terminated, episode.is_truncated
        facts.append((lookback, len(episode), episode.t_started, *ends, lacking[i], part if goes_on else -1))
        lines.append(_line(episode, lookback))
        running.pop(episode.id_, None)
        if not episode.is_done:
            running[episode.id_] = num_parts + len(facts) - 1, episode.t
    if not facts:
        return None
    table = PartFacts(*np.column_stack([np.array(facts, np.int64), np.cumsum(list(map(len, lines)))]).T)
    with_rows = episodes if all(map(len, chunks)) else [chunk for chunk in chunks if len(chunk)]
    columns = _columns(reader_of(with_rows), -table.lookback[table.steps > 0], layout, outputs)
    return Delivery(columns, table, lines, running)


def no_episodes(found: Any) -> DataError:
    """Return the error about something in the place of episodes of one agent."""
    return DataError(
        "episodes for a data set",
        expected="episodes of one agent",
        found=type(found).__name__,
        do="give a list of them; of several agents, those of one: [segment.episode for segment in episode.segments]",
    )


def _columns(
    reader: EpisodeReader, firsts: Ints, layout: Mapping[str, ColumnLayout], outputs: Collection[str] | None
) -> dict[str, tuple[Form, list[Leaf]]]:
    if not len(firsts):
        return {name: (form, [np.zeros((0, *shape), dtype) for dtype, shape in kinds])
                for name, (form, kinds) in layout.items()}  # fmt: skip
    names = [*REQUIRED, *(reader.outputs if outputs is None else outputs)]
    if layout and set(layout) != set(names):
        raise ColumnError(
            "episodes for a data set",
            expected=f"the columns of those before: {', '.join(sorted(layout))}",
            found=", ".join(sorted(names)),
            do="record all of them with the same module and pieces, or write another data set",
        )
    return {name: _column(name, reader, firsts, layout.get(name)) for name in layout or names}


def _column(name: str, reader: EpisodeReader, firsts: Ints, layout: ColumnLayout | None) -> tuple[Form, list[Leaf]]:
    rows = reader.rows(name, firsts, reader.lengths + (name == Columns.OBS))
    rows.check(objects=True)
    form, leaves = rows.form, [rows.leaf(i, after=int(name != Columns.OBS)) for i in range(rows.num_leaves)]
    for place, leaf in zip(paths_of(form), leaves):
        if leaf.dtype.kind not in "biufc" or leaf.dtype.itemsize > 16:
            found = f"{leaf.dtype} in {reader.describe(0)}"
            do = "convert it to numbers of one shape, in the environment if it has any number of rows; or leave it out"
            raise _unfit(f"{name!r}{place}", "numbers", found, do)
    if layout is None:
        return form, leaves
    if form != layout.form:
        leaves = flatten_like(layout.form, unflatten(form, leaves))
    for place, leaf, (dtype, shape) in zip(paths_of(layout.form), leaves, layout.kinds):
        if leaf.shape[1:] != shape or not np.can_cast(leaf.dtype, dtype):
            raise _unfit(
                f"{name!r}{place}",
                f"rows of {dtype} of shape {shape}, as those before",
                f"{leaf.dtype} of shape {leaf.shape[1:]} in {reader.describe(0)}",
                "convert them, or write another data set",
            )
    return layout.form, [leaf.astype(dtype, copy=False) for leaf, (dtype, _) in zip(leaves, layout.kinds)]


def layout_of(columns: Mapping[str, tuple[Form, list[Leaf]]]) -> dict[str, ColumnLayout]:
    """Return what the rows of columns are like."""
    return {
        name: ColumnLayout(form, [(leaf.dtype, leaf.shape[1:]) for leaf in leaves])
        for name, (form, leaves) in columns.items()
    }


def spaces_of(episodes: Iterable[Any]) -> tuple[Any, Any]:
    """Return the spaces of observations and actions of the first episode; None if it has none."""
    first = next(iter(episodes))
    return first.observation_space, first.action_space


def _line(episode: SingleAgentEpisode, lookback: int) -> bytes:
    """The names of an episode, its infos by step, and its custom data, as a line of JSON."""
    facts: dict[str, Any] = {"id": episode.id_}
    names = ("agent_id", "module_id", "multi_agent_episode_id")
    facts.update({name: value for name in names if (value := getattr(episode, name)) is not None})
    infos = episode.get_infos(slice(-lookback, None), neg_index_as_lookback=True)
    filled = [[step, info] for step, info in enumerate(infos, -lookback) if info] if any(infos) else []
    for name, value in (("infos", filled), ("custom_data", episode.custom_data)):
        if value:
            if _is_text(value):
                facts[name] = value
            else:
                expected = "numbers, text, lists and dicts, which a data set keeps"
                do = "keep arrays in extra_model_outputs; the data set is written without these"
                found, where = "arrays or other objects", f"{name} of an episode"
                warnings.warn(EpibatchWarning(where, expected=expected, found=found, do=do), stacklevel=2)
    return json.dumps(encode_state(facts)[0], allow_nan=False, separators=(",", ":")).encode() + b"\n"


def _is_text(value: Any) -> bool:
    """True if a value is a state without arrays."""
    try:
        return not encode_state(value)[1]
    except CheckpointError:
        return False


def _unfit(column: str, expected: str, found: str, do: str) -> ColumnError:
    return ColumnError(f"column {column} of a data set", expected=expected, found=found, do=do)
