"""Episodes as a few arrays: the rows of all their columns, joined, and all else in one string of bytes."""

from __future__ import annotations

import io
import pickle
from array import array
from collections.abc import Sequence
from types import FunctionType
from typing import Any

import numpy as np

from epibatch.core.structs import Form, flatten, unflatten

from .._storage.infos_buffer import InfosBuffer
from ..arrays import Leaf
from ..infinite_lookback_buffer import InfiniteLookbackBuffer
from ..single_agent_episode import SingleAgentEpisode

_COLUMNS = ("observations", "actions", "rewards")
_OUTPUTS = "extra_model_outputs"
_LISTED = {array, FunctionType, SingleAgentEpisode}
_FACTS = ("lookback", "t_started", "provisional")


class PackedColumns:
    """Any episodes, with the rows of all columns of one kind (nesting, shapes and types) joined.

    Args:
        episodes: Single-agent or multi-agent episodes.

    Raises:
        Exception: something in them cannot be pickled; whatever pickle raises.
    """

    def __init__(self, episodes: Sequence[Any]) -> None:
        file = io.BytesIO()
        pickler = _Pickler(file)
        columns = _JoinedColumns()
        pickler.dump(list(episodes))
        done = 0
        while done < len(pickler.episodes):  # the attributes of an episode may hold others
            facts = [columns.add_all_of(episode) for episode in pickler.episodes[done:]]
            done += len(facts)
            pickler.dump(facts)
        pickler.dump((columns.forms, columns.odd))
        self._rest, self._num_episodes = file.getvalue(), done
        self._arrays, self._places = columns.joined(), np.array(columns.places, np.int64).reshape(-1, 6)
        self._functions, self._steps = pickler.functions, np.array(pickler.steps, np.int64)

    def unpacked(self) -> list[Any]:
        """The episodes; their columns show the arrays that are here."""
        singles = [SingleAgentEpisode.__new__(SingleAgentEpisode) for _ in range(self._num_episodes)]
        unpickler = _Unpickler(io.BytesIO(self._rest), singles, self._functions, self._steps)
        episodes: list[Any] = unpickler.load()
        facts: list[dict[str, Any]] = []
        while len(facts) < len(singles):
            facts += unpickler.load()
        forms, odd = unpickler.load()
        buffers = self._buffers(forms, odd)
        for single, own in zip(singles, facts):
            outputs = own[_OUTPUTS]
            columns = {name: next(buffers) for name in _COLUMNS}
            single.__setstate__({**own, **columns, _OUTPUTS: {name: next(buffers) for name in outputs}})
        return episodes

    def _buffers(self, forms: list[Form], odd: dict[int, dict[str, Any]]) -> Any:
        for i, (kind, first, count, lookback, t_started, provisional) in enumerate(self._places.tolist()):
            state = odd.get(i, {})
            if kind >= 0:
                leaves = [leaf[first : first + count] for leaf in self._arrays[kind]]
                facts = {"lookback": lookback, "t_started": t_started, "provisional": bool(provisional)}
                state = {"raw_row": [], "space": None, **state, **facts, "data": unflatten(forms[kind], leaves)}
            buffer = InfiniteLookbackBuffer.__new__(InfiniteLookbackBuffer)
            buffer.__setstate__(state)
            yield buffer


class _JoinedColumns:
    """Joins columns by their kinds.

    Attributes:
        forms: The nesting of the rows of each kind.
        places: For each column its kind, first row, number of rows, lookback, first step, and whether its newest row is
            provisional; a kind of -1: it is in `odd` whole.
        odd: What else columns have, by their number.
    """

    def __init__(self) -> None:
        self.forms: list[Form] = []
        self.places: list[tuple[int, ...]] = []
        self.odd: dict[int, dict[str, Any]] = {}
        self._kinds: dict[Any, int] = {}
        self._parts: list[list[list[Leaf]]] = []
        self._counts: list[int] = []

    def add_all_of(self, episode: SingleAgentEpisode) -> dict[str, Any]:
        """Add the columns of an episode, and return its other attributes, with the names of the model outputs."""
        for name in _COLUMNS:
            self._add(getattr(episode, name))
        outputs = episode.extra_model_outputs
        for buffer in outputs.values():
            self._add(buffer)
        return {**{k: v for k, v in vars(episode).items() if k not in _COLUMNS}, _OUTPUTS: list(outputs)}

    def _add(self, buffer: InfiniteLookbackBuffer) -> None:
        state = buffer.__getstate__()
        data = state.pop("data")
        leaves, form = flatten(data) if data is not None else ([], None)
        if not leaves or any(leaf.dtype.hasobject for leaf in leaves):
            self.odd[len(self.places)] = {**state, "data": data}
            self.places.append((-1,) * 6)
            return
        key = form, tuple((leaf.dtype, leaf.shape[1:]) for leaf in leaves)
        kind = self._kinds.setdefault(key, len(self._kinds))
        if kind == len(self._parts):
            self.forms.append(form)
            self._parts.append([[] for _ in leaves])
            self._counts.append(0)
        for parts, leaf in zip(self._parts[kind], leaves):
            parts.append(leaf)
        count = len(leaves[0])
        facts = [int(state.pop(name)) for name in _FACTS]
        if state["space"] is not None or state["raw_row"]:
            self.odd[len(self.places)] = state
        self.places.append((kind, self._counts[kind], count, *facts))
        self._counts[kind] += count

    def joined(self) -> list[list[Leaf]]:
        """The leaves of each kind."""
        return [[np.concatenate(parts) for parts in leaves] for leaves in self._parts]


class _Pickler(pickle.Pickler):
    """Leaves out what it lists: single-agent episodes, arrays of env steps, and functions.

    Functions without a name in a module are left to who pickles the list.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.episodes: list[SingleAgentEpisode] = []
        self.functions: list[FunctionType] = []
        self.steps = array("q")
        self._known: dict[
            int, tuple[tuple[str, int, int] | None, Any]
        ] = {}  # by id(), which nobody else gets meanwhile

    def persistent_id(self, value: Any) -> tuple[str, int, int] | None:
        if type(value) not in _LISTED:
            return None
        known = self._known.get(id(value))
        if known is None:
            known = self._known[id(value)] = self._place_of(value), value
        return known[0]

    def _place_of(self, value: Any) -> tuple[str, int, int] | None:
        """List a value: in which list it is from now on, where, and how much of it; None if it is to be pickled."""
        if isinstance(value, array):
            if value.typecode != "q":
                return None
            self.steps += value
            return "steps", len(self.steps) - len(value), len(value)
        if isinstance(value, FunctionType):
            self.functions.append(value)
            return "functions", len(self.functions) - 1, 1
        if not _is_regular(value):
            return None
        self.episodes.append(value)
        return "episodes", len(self.episodes) - 1, 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, episodes: list[Any], functions: list[Any], steps: Any) -> None:
        super().__init__(file)
        self._lists, self._steps = {"episodes": episodes, "functions": functions}, steps

    def persistent_load(self, place: tuple[str, int, int]) -> Any:
        name, first, count = place
        if name != "steps":
            return self._lists[name][first]
        return array("q", self._steps[first : first + count].tobytes())


def _is_regular(episode: SingleAgentEpisode) -> bool:
    """Return True if all columns of an episode are of the usual classes."""
    columns = [getattr(episode, name) for name in _COLUMNS]
    usual = {*map(type, columns), *map(type, episode.extra_model_outputs.values())} == {InfiniteLookbackBuffer}
    return usual and type(episode.infos) is InfosBuffer
