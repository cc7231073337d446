"""Time-major storage of rollouts on a device, for many environments that step together."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

from epibatch.core.advantages import add_discounted, add_errors
from epibatch.core.arrays_or_tensors import on_device, put, take
from epibatch.core.columns import Columns, nearest_column
from epibatch.core.errors import (
    BatchLayoutError,
    ColumnError,
    ConfigError,
    EpibatchWarning,
    LookbackError,
    RolloutOverflowError,
    error_context,
)
from epibatch.core.masked_column import MaskedColumn
from epibatch.core.padding import SequenceLayout, padded_layout
from epibatch.core.runtime import usable_device, without_gradients
from epibatch.core.structs import Form, flatten, flatten_like, form_of, form_text, map_struct, paths_of, unflatten

from ..episodes import VectorEpisodes
from ..episodes.chunk_table import ChunkTable
from ..episodes.running_episodes import RunningEpisodes
from ..episodes.store import Columnar
from ..episodes.tail_rows import TailRows
from .episodes_as_rollout import rollout_of
from .minibatches import Minibatches, select_rows

Unit: TypeAlias = Literal["rows", "sequences", "environments"]

_FLAGS = (Columns.TERMINATEDS, Columns.TRUNCATEDS)
_FLAG_NAMES = [f"column [{name!r}]" for name in _FLAGS]
_NUMBERS = (Columns.REWARDS, Columns.VF_PREDS, Columns.ACTION_LOGP, Columns.VALUES_BOOTSTRAPPED)
_WITH_LAST_ROW = (Columns.OBS, Columns.STATE_IN)
_FINAL = dict(zip(_WITH_LAST_ROW, ("final_obs", "final_state")))
"""Column -> the argument of `add_step` with its rows after an end."""
_LEAST_DEVIATION = 1e-4


@dataclass(frozen=True)
class ColumnSpec:
    """Shape and type of one environment's row of a column.

    Args:
        shape: Without the axes of time and environments.
        dtype: Type of its entries.

    Raises:
        ConfigError: the shape has other things than sizes, or the type is none of torch.
    """

    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        shape: Any = self.shape
        sizes = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
        if not all(isinstance(size, (int, np.integer)) and size >= 0 for size in sizes) or not isinstance(
            self.dtype, torch.dtype
        ):
            raise ConfigError(
                "ColumnSpec",
                expected="a shape such as (48,), and a type such as torch.float32",
                found=f"shape {shape!r}, dtype {self.dtype!r}",
                do="give the shape of one environment's row; () is a number",
            )
        object.__setattr__(self, "shape", sizes)


class RolloutStorage:
    """The steps of N environments in tensors `[T, N, ...]` on one device, allocated once.

    A step is a mapping from columns to tensors `[N, ...]`, or dicts and tuples of these. Usual columns are `obs`,
    `actions`, `rewards`, `terminateds`, `truncateds`, and of the module `vf_preds`, `action_logp`,
    `action_dist_inputs` and, before the step, `state_in`; any other name is a column of your own. Observation groups
    are the parts of a dict in `obs`. Only the columns that the schema has take memory.

    Args:
        num_steps: T, the steps of a rollout.
        num_envs: N.
        columns: Column -> `ColumnSpec`, or dicts and tuples of these; None: those of the first step.
        device: Where the tensors are; steps have to be there too.
        lookback: Steps that `clear` keeps before the first row, for what reads earlier steps.

    Attributes:
        columns: column -> `ColumnSpec`, or dicts and tuples of these; empty before there is a schema.

    Raises:
        ConfigError: a number out of range, a schema that is none, or a device that cannot be used.

    Examples:
        >>> storage = RolloutStorage(num_steps=2, num_envs=3)
        >>> for reward in (1.0, 2.0):
        ...     storage.add_step({"obs": torch.zeros(3, 4), "rewards": torch.full((3,), reward)})
        >>> storage["rewards"].tolist(), storage.batch()["obs"].shape
        ([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]], torch.Size([6, 4]))
    """

    def __init__(
        self,
        num_steps: int,
        num_envs: int,
        columns: Mapping[str, Any] | None = None,
        *,
        device: torch.device | str = "cpu",
        lookback: int = 0,
    ) -> None:
        for name, value, least in (("num_steps", num_steps, 1), ("num_envs", num_envs, 1), ("lookback", lookback, 0)):
            if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < least:
                expected, do = f"a whole number of at least {least}", f"correct {name}"
                raise ConfigError(f"RolloutStorage, {name}", expected=expected, found=repr(value), do=do)
        self.num_steps, self.num_envs, self.lookback = int(num_steps), int(num_envs), int(lookback)
        self.device = usable_device(device, "RolloutStorage")
        self.columns: dict[str, Any] = {}
        self._form: Form = None
        self._names: list[str] = []
        """Of each leaf: its column and path, for messages."""
        self._specs: list[ColumnSpec] = []
        self._buffers: list[torch.Tensor] = []
        self._rows: list[list[torch.Tensor]] = []
        """Step -> its row of each leaf."""
        self._kinds: list[Any] = []
        """Of each leaf: the tensors that are copied as they are."""
        self._derived: dict[str, Any] = {}
        self._kept: dict[str, Any] = {}
        """Memory of derived columns of earlier rollouts."""
        self._terminal: dict[str, dict[int, tuple[torch.Tensor, Any]]] = {name: {} for name in _WITH_LAST_ROW}
        """Column -> step -> the environments that ended in it, and their rows after it."""
        self._size = self._history = 0
        self._has_last = False
        self._wrong_flags: dict[str, Any] = {}
        """Name of flags that came as numbers -> True if one was neither 0 nor 1, where the flags are."""
        self._ids: dict[tuple[int, int], str] = {}
        """(environment, number) -> id of an episode that has one of its own."""
        with torch.inference_mode(False):
            numbers, steps = torch.zeros((2, self.num_envs), dtype=torch.int64, device=self.device)
            self._running = RunningEpisodes(numbers, steps, torch.zeros(self.num_envs, device=self.device))
        if columns is not None:
            self._allocate(columns)

    # ------------------------------------------------------------------------------------------ facts

    def __len__(self) -> int:
        """Return the number of steps added since the last `clear`."""
        return self._size

    def __repr__(self) -> str:
        columns = ", ".join([*self.columns, *self._derived]) or "none"
        return (
            f"RolloutStorage({self._size} of {self.num_steps} steps, {self.num_envs} envs, {self.device}, "
            f"columns: {columns})"
        )

    def __contains__(self, name: object) -> bool:
        return name in self._derived or name in self.columns

    @property
    def nbytes(self) -> int:
        """Bytes of all columns, those of `add_column` included."""
        leaves = [*self._buffers, *flatten(self._derived)[0]]
        return sum(leaf.numel() * leaf.element_size() for leaf in leaves)

    @property
    def has_last(self) -> bool:
        """True if `finish` gave the observations after the newest step."""
        return self._has_last

    @property
    def history(self) -> int:
        """Steps before the first row that `clear` kept, at most `lookback`."""
        return self._history

    @property
    def terminal_observations(self) -> dict[int, tuple[torch.Tensor, Any]]:
        """Step -> the environments that ended in it (int64 [n]), and their terminal observations [n, ...]."""
        return dict(self._terminal[Columns.OBS])

    def __getitem__(self, name: str) -> Any:
        """Return a column of the steps so far: views `[len(self), N, ...]`.

        Raises:
            ColumnError: there is no such column.
        """
        if name in self._derived:
            return self._derived[name]
        return self.rows(name, 0, self._size)

    def rows(self, name: str, start: int, stop: int) -> Any:
        """Return rows of a column: views `[stop - start, N, ...]`.

        Args:
            name: The column.
            start: The first step; from `-history` on.
            stop: The step after the last; one more than there are steps for `obs` and `state_in` after `finish`.

        Raises:
            ColumnError: there is no such column of the steps.
            ConfigError: `start` is before the steps that `clear` kept.
        """
        if start < -self._history:
            do = f"make the storage with lookback={-start}, which steps before clear() fill"
            where, expected = f"RolloutStorage.rows({name!r})", f"a start of at least {-self._history}"
            raise ConfigError(where, expected=expected, found=repr(start), do=do)
        if name not in self.columns:
            known = [*self.columns, *self._derived]
            raise ColumnError(
                f"RolloutStorage, column {name!r}",
                expected="a column of the steps" if known else "a storage with a schema, or a first step",
                found="none of that name",
                do=nearest_column(name, known) if known else "call add_step first",
            )
        column = unflatten(self._form, self._buffers)[name]
        return map_struct(lambda leaf: leaf[self.lookback + start : self.lookback + stop], column)

    # ------------------------------------------------------------------------------------------ steps

    def add_step(
        self,
        step: Mapping[str, Any],
        *,
        final_obs: Any = None,
        final_state: Any = None,
        final_envs: torch.Tensor | None = None,
    ) -> None:
        """Copy one step of all environments.

        Args:
            step: Column -> tensors `[N, ...]`: the columns of the schema, no more and no fewer.
            final_obs: Observations after the step, of which rows of environments that ended in it are kept: the
                terminal observations, where `obs` of the next step is already that of the next episode.
            final_state: Recurrent states after the step, nested as `state_in`, of which the same rows are kept. The
                values of terminal observations are computed from them.
            final_envs: The environments that these two have rows of, int64 [n]; all of these ended in the step. The
                three are kept, not copied. None: the two have rows of all, `[N, ...]`.

        Raises:
            RolloutOverflowError: there are `num_steps` steps already.
            ColumnError: a column is missing or surplus, or has another nesting, shape, type or device, or a flag is a
                number other than 0 and 1; the storage is as before. On another device than the CPU such a flag is
                found by the first call that reads the flags.
        """
        if self._size == self.num_steps:
            raise RolloutOverflowError(
                f"RolloutStorage.add_step, step {self._size}",
                expected=f"at most num_steps={self.num_steps} steps before clear()",
                found="one more",
                do="learn from the rollout and call clear(), or make num_steps larger",
            )
        is_first = not self._specs
        if is_first:
            self._allocate({name: self._spec_of(name, value) for name, value in step.items()})
        try:
            leaves = self._leaves_of(step)
            final = {name: value for name, value in zip(_WITH_LAST_ROW, (final_obs, final_state)) if value is not None}
            ended: Any = self._ended_of(step, final, final_envs) if final else ()
            count = self.num_envs if final_envs is None else len(ended)
            final = {name: self._nested_like(name, value, _FINAL[name], count) for name, value in final.items()}
        except ColumnError:
            if is_first:
                self._forget_schema()
            raise
        with without_gradients():
            for row, leaf in zip(self._rows[self._size], leaves):
                row.copy_(leaf)
        if len(ended):
            for name, value in final.items():
                rows = map_struct(torch.Tensor.detach, value)
                if final_envs is None:
                    rows = map_struct(lambda leaf: leaf.index_select(0, ended), rows)
                self._terminal[name][self._size] = ended, rows
        self._size += 1
        self._has_last = False
        self._derived = {}

    @torch.no_grad()
    def finish(self, obs: Any, state_in: Any = None) -> None:
        """Copy the observations after the newest step, which the next rollout begins with.

        Args:
            obs: Tensors `[N, ...]`, nested as the column.
            state_in: Recurrent states after the newest step, if the steps have a column `state_in`.

        Raises:
            ColumnError: they do not fit the columns.
        """
        given = {Columns.OBS: obs} if state_in is None else {Columns.OBS: obs, Columns.STATE_IN: state_in}
        wanted = [name for name in _WITH_LAST_ROW if name in self.columns]
        if list(given) != wanted:
            raise ColumnError(
                "RolloutStorage.finish",
                expected=f"values of {' and '.join(wanted) or 'columns that the steps have'}",
                found=f"values of {' and '.join(given)}",
                do="give what the steps have, after at least one step",
            )
        count = self.num_envs
        checked = [self._nested_like(name, value, f"column {name!r}", count) for name, value in given.items()]
        for name, value in zip(given, checked):
            map_struct(lambda row, leaf: row[0].copy_(leaf), self.rows(name, self._size, self._size + 1), value)
        self._has_last = True

    def clear(self) -> None:
        """Begin the next rollout in the same memory; the last `lookback` steps stay readable before its first row."""
        if self._size:
            with torch.no_grad():
                self._running.follow(self.ended(), self[Columns.REWARDS] if Columns.REWARDS in self.columns else None)
        kept = min(self.lookback, self._history + self._size)
        if kept and self._size:
            for buffer in self._buffers:
                stop = self.lookback + self._size
                buffer[self.lookback - kept : self.lookback] = buffer[stop - kept : stop].clone()
        self._history, self._size, self._has_last = kept, 0, False
        for kept_rows in self._terminal.values():
            kept_rows.clear()
        self._derived = {}

    def reset(self) -> None:
        """Begin a rollout whose first observations are those of new episodes, in the same memory."""
        self.clear()
        self._history = 0
        self._running.begin()

    def add_column(self, name: str, values: Any) -> None:
        """Add a column that is computed of the steps so far; it lasts until the next step or `clear`.

        Args:
            name: A name that no step has; a column of that name that was computed before is replaced.
            values: Tensors `[len(self), N, ...]`, or dicts and tuples of these, which are kept, not copied.

        Raises:
            ColumnError: the steps have a column of that name, or the values have another shape.
        """
        lead = (self._size, self.num_envs)
        leaves = flatten(values)[0]
        found = [(type(leaf).__name__, list(np.shape(leaf)), getattr(leaf, "device", None)) for leaf in leaves]
        fits = [isinstance(leaf, torch.Tensor) and leaf.shape[:2] == lead for leaf in leaves]
        if name in self.columns or not all(fits) or any(device != self.device for *_, device in found):
            raise ColumnError(
                f"RolloutStorage.add_column({name!r})",
                expected=f"a name that no step has, and tensors {list(lead)} + [...] on {self.device}",
                found="a column of the steps"
                if name in self.columns
                else ", ".join(f"{kind} {shape} on {device}" for kind, shape, device in found),
                do="choose another name, or compute one row for each step and environment",
            )
        self._derived[name] = values

    # --------------------------------------------------------------------------------------- episodes

    def episodes(self) -> VectorEpisodes:
        """Return the steps as chunks of episodes, one for each episode of each environment, with rows in arrays.

        The chunks of one environment follow one another. An episode that goes on after `clear` keeps its id, counts
        its steps on, and has the `lookback` steps before as lookback, which recurrent modules need (at least one).
        Columns other than observations, actions, rewards and flags are model outputs; those of `add_column` are left
        out. If the steps have no `state_out`, it is the `state_in` of the next step, and at an end the `final_state`
        of `add_step`. An episode without a terminal observation ends with the observation before, in its state.

        On the CPU they share memory with the storage, where the next rollout overwrites them. `copy.deepcopy(list(
        episodes))` keeps them. Columns on another device, and of bfloat16, are copied. A learner pipeline that is
        given the storage itself reads `chunk_table`.

        Raises:
            BatchLayoutError: there are no steps, or `finish` did not give the observations after the newest one.
            ColumnError: the steps have no `obs`, `actions` or `rewards`.
            LookbackError: the state after a truncated episode's last step is not known, but the observation is.
        """
        columns = map_struct(_to_array, self._columns_of_episodes("episodes"))
        states_before = columns.pop(Columns.STATE_IN, None)
        return VectorEpisodes.from_arrays(
            *(columns.pop(name) for name in (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)),
            *self._flags_of_episodes(),
            extra_model_outputs=columns,
            terminal_observations={
                t + self._history: (_to_array(envs), map_struct(_to_array, rows))
                for t, (envs, rows) in self._terminal[Columns.OBS].items()
            },
            lookback=self._history,
            t_started=_to_array(self._running.steps),
            returns_before=_to_array(self._running.returns).astype(np.float64),
            name=self._running.name,
            numbers=_to_array(self._running.numbers),
            ids=self._ids,
            states_before=states_before,
        )

    def chunk_table(self) -> ChunkTable:
        """Return the chunks of `episodes` as a table, with rows in the storage's tensors.

        `pipeline(rl_module=module, batch={}, episodes=storage)` reads it: rows are gathered on their device. On the
        host are only integers about chunks, made of the flags `[T, N]`. The next rollout overwrites the rows.

        Raises:
            BatchLayoutError: as `episodes`; so do the others.
        """
        columns, flags = self._columns_of_episodes("chunk_table"), np.array(self._flags_of_episodes())
        width, history, ended = self.num_envs, self._history, flags[0] | flags[1]
        cuts = ended[history:].T.copy()
        cuts[:, -1] = True
        envs, steps = np.nonzero(cuts)  # of the last step of each chunk
        stops = steps + history + 1
        is_first = np.diff(envs, prepend=-1) > 0
        firsts = np.where(is_first, history, np.roll(stops, 1))
        older = (ended[:history] * np.arange(1, history + 1)[:, None]).max(0, initial=0)
        lows = np.where(is_first, older[envs], firsts)
        at = np.arange(len(envs))
        numbers = _to_array(self._running.numbers)[envs] + at - np.maximum.accumulate(np.where(is_first, at, 0))
        flat = {name: flatten(map_struct(lambda leaf: leaf.flatten(0, 1), value)) for name, value in columns.items()}
        table = ChunkTable(
            [Columnar({name: (form, leaves) for name, (leaves, form) in flat.items()})],
            firsts * width + envs,
            stops - firsts,
            stride=width,
            lookbacks=firsts - lows,
            starts=np.where(is_first, _to_array(self._running.steps)[envs], 0),
            terminateds=flags[0, stops - 1, envs],
            truncateds=flags[1, stops - 1, envs],
            tails=self._tail_rows(ended[stops - 1, envs], envs, stops, flat[Columns.OBS]),
            ids=_Ids(self._running.name, envs, numbers, self._ids),
        )
        table.device, table.arrays, table.envs = self.device, self.episodes, envs
        return table

    def _tail_rows(self, ended: Any, envs: Any, stops: Any, observations: Any) -> TailRows:
        """Return the last observations of the chunks that ended: those that came, or else the ones before."""
        leaves, form = observations
        kept = self._terminal[Columns.OBS]
        chunks = np.flatnonzero(ended)
        rows = [take(leaf, (stops[chunks] - 1) * self.num_envs + envs[chunks]) for leaf in leaves]
        if kept:
            there = [np.full(len(ended_envs), t + self._history + 1) for t, (ended_envs, _) in kept.items()]
            order = envs * (self._history + self._size + 1) + stops  # ascending
            came_envs = _to_array(torch.cat([ended_envs for ended_envs, _ in kept.values()]))
            came = order.searchsorted(came_envs * (self._history + self._size + 1) + np.concatenate(there))
            parts = [flatten_like(form, given) for _, given in kept.values()]
            for i, leaf in enumerate(rows):
                put(leaf, np.searchsorted(chunks, came), torch.cat([part[i] for part in parts]))
        return TailRows(chunks, unflatten(form, rows))

    @torch.no_grad()
    def _columns_of_episodes(self, call: str) -> dict[str, Any]:
        """Return the columns but the flags, [history + size, N, ...], observations with one row more.

        Raises:
            BatchLayoutError: see `episodes`; so do the others.
        """
        if not self._size:
            raise _no_steps(call)
        if not self._has_last:
            raise BatchLayoutError(
                f"RolloutStorage.{call}",
                expected="the observations after the newest step, which episodes end with",
                found="none",
                do="call finish(obs) after the last step",
            )
        start = -self._history
        own = [name for name in self.columns if name not in _FLAGS]
        names = dict.fromkeys([Columns.OBS, Columns.ACTIONS, Columns.REWARDS, *own])
        columns = {name: self.rows(name, start, self._size + (name == Columns.OBS)) for name in names}
        if Columns.STATE_IN in self.columns and Columns.STATE_OUT not in self.columns:
            columns[Columns.STATE_OUT] = self._states_after(start)
        return {
            name: map_struct(lambda leaf: leaf.float() if leaf.dtype is torch.bfloat16 else leaf, column)
            for name, column in columns.items()
        }

    def _flags_of_episodes(self) -> list[Any]:
        """Return the flags of `_FLAGS` as arrays, bool [history + size, N]."""
        self._check_flags()
        shape = self._history + self._size, self.num_envs
        return [
            _to_array(self.rows(name, -self._history, self._size)) != 0
            if name in self.columns
            else np.zeros(shape, np.bool_)
            for name in _FLAGS
        ]

    def _states_after(self, start: int) -> Any:
        """Return the state after each step from `start` on, [self._size - start, N, ...]."""
        after, ended = self.rows(Columns.STATE_IN, start + 1, self._size + 1), self.ended()
        if not bool(ended.any()):
            return after
        kept = self._terminal[Columns.STATE_IN]
        for t, (envs, _) in self._terminal[Columns.OBS].items():
            if t not in kept and Columns.TRUNCATEDS in self.columns and bool(self[Columns.TRUNCATEDS][t, envs].any()):
                raise LookbackError(
                    f"RolloutStorage.episodes, step {t}",
                    expected="the state after the last step of a truncated episode, beside its terminal observation",
                    found="the observation alone",
                    do="hand over the module's state_out: add_step(step, final_obs=..., final_state=state_out)",
                )
        after = map_struct(torch.clone, after)
        for leaf, before in zip(flatten(after)[0], flatten(self[Columns.STATE_IN])[0]):
            leaf[-start:][ended] = before[ended]
        for t, (envs, rows) in kept.items():
            for leaf, row in zip(flatten(after)[0], flatten(rows)[0]):
                leaf[t - start, envs] = row
        return after

    @classmethod
    def from_episodes(
        cls,
        episodes: VectorEpisodes,
        *,
        device: torch.device | str = "cpu",
        columns: Collection[str] | None = None,
        initial_state: Any = None,
    ) -> RolloutStorage:
        """Return the storage of a fragment in which each environment has the same number of steps.

        On the CPU it shares memory with the episodes where their rows lie side by side and need no other type: float64
        becomes float32. `state_out` becomes `state_in` of the step after, a copy. Ids are taken over, and as many steps
        before the first row as all episodes have that are longer: `lookback` and `history`. The storage is full;
        `clear` lets it be filled again, which overwrites the episodes.

        Args:
            episodes: The chunks of one fragment, as a runner with `gym_env_autoreset_mode="same_step"` samples it.
            device: Where the tensors are.
            columns: Names of the columns to take over; None: all.
            initial_state: Recurrent state of one environment, with which episodes begin that did not note their own
                (see `AddStatesFromEpisodesToBatch`); None: zeros.

        Raises:
            EpisodeError: no fragment with equally many steps, or a first step without the state before it.
            ColumnError: a column that cannot be a tensor, or that there is none of.
        """
        rollout = rollout_of(episodes, columns, initial_state)
        storage = cls(rollout.num_steps, rollout.num_envs, device=device, lookback=rollout.lookback)
        tensors = {
            name: map_struct(lambda leaf, name=name: storage._adopted(name, leaf), column)
            for name, column in rollout.columns.items()
        }
        specs = map_struct(lambda leaf: ColumnSpec(tuple(leaf.shape[2:]), leaf.dtype), tensors)
        storage._allocate(specs, flatten(tensors)[0])
        storage._size, storage._has_last = rollout.num_steps, True
        storage._history, storage._ids = rollout.lookback, rollout.ids
        for name, ends in rollout.terminal_rows.items():
            for t, (envs, rows) in ends.items():
                own = map_struct(lambda leaf, name=name: storage._adopted(name, leaf), rows)
                storage._terminal[name][t] = storage._adopted("", envs), own
        storage._running.steps = storage._adopted("", rollout.t_started)
        storage._running.returns = storage._adopted(Columns.REWARDS, rollout.returns_before)
        return storage

    def _adopted(self, name: str, array: np.ndarray[Any, Any]) -> torch.Tensor:
        """Return an array of a column as a tensor on this device, of the type that a first step gives it."""
        with torch.inference_mode(False):
            try:
                tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
            except TypeError as error:
                raise ColumnError(
                    f"RolloutStorage.from_episodes, column {name!r}",
                    expected="numbers that torch has a type for",
                    found=str(array.dtype),
                    do="leave it out: from_episodes(..., columns=...)",
                ) from error
            single = tensor.dtype is torch.float64 or name in _NUMBERS
            return tensor.to(self.device, torch.float32 if single else tensor.dtype)

    # ---------------------------------------------------------------------------------------- returns

    def ended(self) -> torch.Tensor:
        """Return bool `[len(self), N]`, True where the step ended an episode."""
        return self._ended_in(0, self._size)

    def _ended_in(self, start: int, stop: int) -> torch.Tensor:
        self._check_flags()
        flags = [self.rows(name, start, stop) for name in _FLAGS if name in self.columns]
        if not flags:
            return torch.zeros((stop - start, self.num_envs), dtype=torch.bool, device=self.device)
        ended: torch.Tensor = flags[0] if len(flags) == 1 else flags[0] | flags[1]
        return ended

    @torch.no_grad()
    def compute_returns(
        self,
        last_values: torch.Tensor,
        *,
        gamma: float = 0.99,
        lambda_: float = 0.95,
        standardize_advantages: bool = True,
        normalize: bool | None = None,
    ) -> None:
        """Add the columns `advantages` and `value_targets`, by generalized advantage estimation.

        Of a truncated step the next value is `values_bootstrapped`, if the steps have this column: the value of the
        terminal observation. Otherwise it is the value before the step, and a warning says so once. Only termination
        removes the next value. A reward or value of NaN is not looked for: it makes the targets before it NaN, and
        all standardized advantages. The Learner then raises an error before it steps. Schulman et al. 2016,
        arXiv:1506.02438.

        Args:
            last_values: float [N], values of the observations after the newest step.
            gamma: Discount, in [0, 1].
            lambda_: Weight of longer returns, in [0, 1].
            standardize_advantages: True: scale advantages to mean 0 and standard deviation 1 over the rollout.
            normalize: The earlier name of `standardize_advantages`.

        Raises:
            ColumnError: no steps, or steps without `rewards`, `vf_preds` or `terminateds`; values of another shape.
            ConfigError: gamma or lambda_ outside [0, 1].
        """
        gamma, lambda_ = _fraction("gamma", gamma), _fraction("lambda_", lambda_)
        if not self._size:
            raise _no_steps("compute_returns")
        self._check_flags()
        read = (Columns.REWARDS, Columns.VF_PREDS, Columns.TERMINATEDS)
        with error_context(f"compute_returns reads {', '.join(read)} of each step:", ColumnError):
            rewards, values, terminateds = [self[name] for name in read]
        for name in (Columns.REWARDS, Columns.VF_PREDS, *_FLAGS, Columns.VALUES_BOOTSTRAPPED):
            if name in self.columns and self.columns[name].shape:
                raise ColumnError(
                    f"compute_returns, column {name!r}",
                    expected="one number for each environment: ColumnSpec(())",
                    found=f"rows of shape {list(self.columns[name].shape)}",
                    do="leave the schema to the first step, or correct it; steps may have [N] or [N, 1]",
                )
        following = torch.empty_like(values, dtype=torch.result_type(rewards, values))
        following[:-1] = values[1:]
        following[-1] = self._checked(last_values, ColumnSpec(), "last_values", self.num_envs)
        ended = terminateds
        if Columns.TRUNCATEDS in self.columns:
            truncateds = self[Columns.TRUNCATEDS]
            ended = terminateds | truncateds
            following = torch.where(truncateds, self._after_truncations(values, truncateds), following)
        advantages = following
        add_errors(advantages, rewards, values, terminateds, gamma)
        add_discounted(advantages, torch.where(ended, 0.0, gamma * lambda_))
        self.add_column(Columns.VALUE_TARGETS, self._place(Columns.VALUE_TARGETS, advantages + values))
        if standardize_advantages if normalize is None else normalize:
            advantages.sub_(advantages.mean()).div_(advantages.std(correction=0).clamp_(min=_LEAST_DEVIATION))
        self.add_column(Columns.ADVANTAGES, self._place(Columns.ADVANTAGES, advantages))

    def _after_truncations(self, values: torch.Tensor, truncateds: torch.Tensor) -> torch.Tensor:
        if Columns.VALUES_BOOTSTRAPPED in self.columns:
            after: torch.Tensor = self[Columns.VALUES_BOOTSTRAPPED]
            return after
        if bool(truncateds.any()):
            warnings.warn(
                EpibatchWarning(
                    "RolloutStorage.compute_returns",
                    expected=f"a column {Columns.VALUES_BOOTSTRAPPED!r}, the values of terminal observations",
                    found="truncated steps without it, which are bootstrapped from the value before the step",
                    do=f"add {Columns.VALUES_BOOTSTRAPPED!r} to each step, if the environment gives these observations",
                ),
                stacklevel=3,
            )
        return values

    def _place(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Copy a derived column into the memory that it had in earlier rollouts."""
        kept = self._kept.get(name)
        if kept is None or len(kept) < self._size:
            with torch.inference_mode(False):
                shape = (self.num_steps, *values.shape[1:])
                kept = self._kept[name] = torch.empty(shape, dtype=values.dtype, device=values.device)
        placed: torch.Tensor = kept[: self._size].copy_(values)
        return placed

    # ---------------------------------------------------------------------------------------- batches

    def batch(self) -> dict[str, Any]:
        """Return all columns but `state_in` as views `[len(self) * N, ...]`; row `step * num_envs + env`.

        The next rollout overwrites them.

        Raises:
            BatchLayoutError: there are no steps.
        """
        return {name: map_struct(lambda leaf: leaf.flatten(0, 1), column) for name, column in self._whole().items()}

    def steps(self) -> Iterator[dict[str, Any]]:
        """Yield each step, in the order of time: column -> views `[N, ...]`."""
        columns = self._whole(Columns.STATE_IN)
        for t in range(self._size):
            yield map_struct(lambda leaf, t=t: leaf[t], columns)

    def environments(self) -> dict[str, Any]:
        """Return all columns as views `[N, len(self), ...]`, and `state_in` `[N, ...]`, the states at the first step.

        `seq_lens` is int64 [N], the number of steps. Episodes may end inside. A recurrent module, whose
        state is the initial one there, needs `sequences`.

        Raises:
            BatchLayoutError: there are no steps.
        """
        batch = {name: map_struct(lambda leaf: leaf.transpose(0, 1), column) for name, column in self._whole().items()}
        if Columns.STATE_IN in self.columns:
            batch[Columns.STATE_IN] = map_struct(lambda leaf: leaf[0], self[Columns.STATE_IN])
        batch[Columns.SEQ_LENS] = torch.full((self.num_envs,), self._size, device=self.device)
        return batch

    def sequences(self, max_seq_len: int | None = None) -> dict[str, Any]:
        """Return all columns as sequences `[S, L, ...]` with zeros on the right, for recurrent modules.

        A sequence begins at the first step, after each end of an episode, and after `max_seq_len` steps. Those of
        one environment follow one another, in the order of time.

        Args:
            max_seq_len: L; None: the longest run of steps without an end. Learner pipelines cut at the module's own
                `max_seq_len`: give the same number to train on the same sequences.

        Returns:
            The columns, `seq_lens` int64 [S], `loss_mask` bool [S, L], False in the padding and where a column of that
            name is, and `state_in` [S, ...], the states at the first step of each sequence.

        Raises:
            BatchLayoutError: there are no steps.
            ConfigError: `max_seq_len` is no number of at least 1.
        """
        columns = self._whole()
        layout, sources = self._layout(max_seq_len)
        mask, index, holes, first = (
            on_device(integers, self.device)
            for integers in (layout.mask, sources[layout.source], layout.holes, sources[layout.first_rows])
        )

        def padded(leaf: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = select_rows(leaf.flatten(0, 1), index)
            out.index_fill_(0, holes, 0)
            return out.reshape(*mask.shape, *leaf.shape[2:])

        batch = {name: map_struct(padded, column) for name, column in columns.items()}
        if Columns.STATE_IN in self.columns:
            states = self[Columns.STATE_IN]
            batch[Columns.STATE_IN] = map_struct(lambda leaf: select_rows(leaf.flatten(0, 1), first), states)
        batch[Columns.SEQ_LENS] = torch.from_numpy(layout.seq_lens).to(self.device)
        batch[Columns.LOSS_MASK] = mask & batch[Columns.LOSS_MASK] if Columns.LOSS_MASK in batch else mask
        return batch

    def _layout(self, max_seq_len: int | None) -> tuple[SequenceLayout, np.ndarray[Any, np.dtype[np.int64]]]:
        """Return the layout of rows in sequences, one environment after the other, and each row's place in `batch`."""
        ended = self.ended().cpu().numpy().T.copy()
        ended[:, -1] = True
        counts = np.diff(np.flatnonzero(ended.reshape(-1)), prepend=-1)
        layout = padded_layout(counts, int(counts.max()) if max_seq_len is None else max_seq_len)
        envs = np.repeat(np.arange(self.num_envs), self._size)
        return layout, np.tile(np.arange(self._size), self.num_envs) * self.num_envs + envs

    def minibatches(
        self,
        num_minibatches: int | None = None,
        *,
        size: int | None = None,
        epochs: int = 1,
        shuffle: Literal["once", "epoch"] | None = "once",
        unit: Unit = "rows",
        remainder: Literal["keep", "drop", "spread"] = "keep",
        generator: torch.Generator | None = None,
        max_seq_len: int | None = None,
        time_major: bool = False,
    ) -> Minibatches:
        """Return minibatches of rows, of sequences or of whole environments.

        Args:
            num_minibatches: Minibatches of an epoch; None: as `size` says.
            size: Timesteps of a minibatch; None, without a number of minibatches: the whole rollout.
            epochs: Passes through the rollout.
            shuffle: "once", "epoch" or None, see `Minibatches`. With None minibatches of rows and of environments are
                views of the storage, which the next rollout overwrites.
            unit: "rows" draws from `batch`, "sequences" from `sequences`, "environments" from `environments`.
            remainder: "keep", "drop" or "spread", see `Minibatches`.
            generator: Source of the random order.
            max_seq_len: Longest sequence.
            time_major: True: axes of sequences and environments are [time, n, ...] (views), not [n, time, ...].

        Raises:
            BatchLayoutError: there are no steps; values without returns; sequences without states.
            ConfigError: an argument is none of the above.
        """
        sources: dict[str, Callable[[], dict[str, Any]]] = {
            "rows": self.batch,
            "sequences": partial(self.sequences, max_seq_len),
            "environments": self.environments,
        }
        if unit not in sources:
            do = "choose one of them"
            raise ConfigError("minibatches, unit", expected=", ".join(sources), found=repr(unit), do=do)
        if Columns.VF_PREDS in self.columns and Columns.ADVANTAGES not in self:
            raise BatchLayoutError(
                "RolloutStorage.minibatches",
                expected=f"a column {Columns.ADVANTAGES!r}, as the steps have values",
                found="none since the newest step",
                do="call compute_returns(last_values) first; batch() gives the rows without it",
            )
        if unit == "sequences" and Columns.STATE_IN not in self.columns:
            raise BatchLayoutError(
                "RolloutStorage.minibatches, unit='sequences'",
                expected=f"steps with a column {Columns.STATE_IN!r}, the recurrent states before them",
                found=", ".join(self.columns),
                do="add it to each step; sequences() gives sequences without states",
            )
        return Minibatches(
            sources[unit](),
            size=size,
            num_minibatches=num_minibatches,
            epochs=epochs,
            shuffle=shuffle,
            generator=generator,
            remainder=remainder,
            time_major=time_major,
        )

    def previous(self, name: str, extractor: Callable[[Any], Any] | None = None) -> tuple[Any, torch.Tensor]:
        """Return the row before each row of a column, in the same environment and episode.

        Args:
            name: The column.
            extractor: Function that returns what is wanted of rows `[R, ...]`, each row by itself; None: the rows.

        Returns:
            The rows, `[len(self) * N, ...]` (copies, in the order of `batch`): a row's own where there is none before
            it; and bool `[len(self) * N]`, True where there is one. Steps that `clear` kept count.

        Raises:
            BatchLayoutError: there are no steps.
            ColumnError: there is no such column, or the extractor returned another number of rows.
        """
        rows, mask = self._previous(name, extractor)
        return map_struct(lambda leaf: leaf.flatten(0, 1), rows), mask.flatten()

    def add_previous(self, name: str, of: str, extractor: Callable[[Any], Any] | None = None) -> None:
        """Add a column `MaskedColumn(value, mask)` with the row before each row, as `previous` has it.

        Minibatches have it too: motion priors (AMP, Peng et al. 2021, arXiv:2104.02180) learn from pairs of steps.

        Args:
            name: A name that no step has.
            of: The column whose rows are meant.
            extractor: As in `previous`. If it returns a `MaskedColumn`, the column's mask is False where either is.

        Raises:
            BatchLayoutError: there are no steps.
            ColumnError: as in `previous` and `add_column`.

        Examples:
            >>> storage = RolloutStorage(num_steps=3, num_envs=1)
            >>> for t, end in enumerate([False, True, False]):
            ...     storage.add_step({"obs": torch.tensor([[t, 10 * t]]), "terminateds": torch.tensor([end])})
            >>> storage.add_previous("before", "obs", lambda obs: obs[:, 1])
            >>> storage["before"].value.flatten().tolist(), storage["before"].mask.flatten().tolist()
            ([0, 0, 20], [False, True, False])
        """
        value, mask = self._previous(of, extractor)
        if isinstance(value, MaskedColumn):
            value, mask = value.value, value.mask.bool() & _with_axes(mask, value.mask.ndim)
        self.add_column(name, MaskedColumn(value, mask))

    @torch.no_grad()
    def _previous(self, name: str, extractor: Callable[[Any], Any] | None) -> tuple[Any, torch.Tensor]:
        """Return the rows of `previous` as `[len(self), N, ...]`, and their mask `[len(self), N]`."""
        self._whole()
        ended = self.ended()[:-1]
        if self._history and name in self.columns:
            ended = torch.cat([self._ended_in(-1, 0), ended])
        begins = torch.cat([ended.new_ones((self._size - len(ended), self.num_envs)), ended])
        rows = self.rows(name, self._size - len(ended) - 1, self._size) if name in self.columns else self[name]
        lead = (len(ended) + 1, self.num_envs)
        if extractor is not None:
            rows = extractor(map_struct(lambda leaf: leaf.flatten(0, 1), rows))
            found = [list(np.shape(leaf)) for leaf in flatten(rows)[0]]
            if any(shape[:1] != [math.prod(lead)] for shape in found):
                raise ColumnError(
                    f"RolloutStorage, extractor of {name!r}",
                    expected=f"tensors of {math.prod(lead)} rows, one for each row that it gets",
                    found=f"shapes {found}",
                    do="return a part or a function of each row",
                )
            rows = map_struct(lambda leaf: leaf.unflatten(0, lead), rows)

        def shifted(leaf: torch.Tensor) -> torch.Tensor:
            own = leaf[-self._size :]
            before = leaf[:-1] if len(leaf) > self._size else torch.cat([leaf[:1], leaf[:-1]])
            return torch.where(_with_axes(begins, own.ndim), own, before)

        return map_struct(shifted, rows), ~begins

    # -------------------------------------------------------------------------------------- statistics

    def statistics(self) -> dict[str, torch.Tensor]:
        """Return the means of the rollout as tensors []: `trajectory_length` in steps and `reward` of a step.

        A trajectory is a run of steps of one environment that an end or the end of the rollout ends, so the unfinished
        one of each environment counts, with the steps that it has.

        Raises:
            BatchLayoutError: there are no steps.
            ColumnError: the steps have no rewards.
        """
        self._whole()
        rewards = self[Columns.REWARDS]
        return {
            "trajectory_length": self._size * self.num_envs / (self.ended()[:-1].sum() + self.num_envs),
            "reward": rewards.mean(),
        }

    # ------------------------------------------------------------------------------------------ parts

    def _whole(self, *also: str) -> dict[str, Any]:
        """Return the columns of the steps so far, without `state_in`, and the derived ones."""
        if not self._size:
            raise _no_steps("batch")
        names = [name for name in self.columns if name != Columns.STATE_IN or name in also]
        return {**{name: self[name] for name in names}, **self._derived}

    def _allocate(self, columns: Mapping[str, Any], buffers: list[torch.Tensor] | None = None) -> None:
        specs, form = flatten(dict(columns))
        names = paths_of(form)
        for name, spec in zip(names, specs):
            if not isinstance(spec, ColumnSpec):
                do = "give ColumnSpec(shape, dtype) for each column, or dicts of these"
                raise ConfigError(f"RolloutStorage, columns{name}", expected="a ColumnSpec", found=repr(spec), do=do)
        if not specs:
            do = "name at least one column, or leave it out: the first step says what there is"
            raise ConfigError("RolloutStorage, columns", expected="columns", found="none", do=do)
        owners = [name for name, column in columns.items() for _ in flatten(column)[0]]
        rows = self.lookback + self.num_steps
        shapes = [(rows + (owner in _WITH_LAST_ROW), self.num_envs, *spec.shape) for owner, spec in zip(owners, specs)]
        with torch.inference_mode(False):  # a loop may act in this mode, and learn from the tensors outside of it
            buffers = buffers or [
                torch.zeros(shape, dtype=spec.dtype, device=self.device) for shape, spec in zip(shapes, specs)
            ]
            self._buffers, self._rows = buffers, self._rows_of(buffers)
            self._kinds = [_kind_of(row) for row in self._rows[0]]
        self.columns, self._form, self._names, self._specs = dict(columns), form, names, specs

    def _rows_of(self, buffers: list[torch.Tensor]) -> list[list[torch.Tensor]]:
        return [[leaf[self.lookback + t] for leaf in buffers] for t in range(self.num_steps)]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_rows": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._rows = self._rows_of(self._buffers)  # pickle makes tensors of their own of views

    def _forget_schema(self) -> None:
        self.columns, self._form, self._names, self._specs, self._buffers, self._rows = {}, None, [], [], [], []

    def _spec_of(self, name: str, value: Any) -> Any:
        """Return the spec of a column of the first step.

        Raises:
            ColumnError: a part is no tensor, and cannot be made one.
        """

        def spec(leaf: Any) -> ColumnSpec:
            try:
                dtype, shape = _dtype_of(leaf), tuple(np.shape(leaf))
            except (TypeError, ValueError, RuntimeError):
                raise self._unfit(leaf, None, f"column {name!r}", self.num_envs) from None
            if name in _FLAGS or name in _NUMBERS:
                dtype = torch.bool if name in _FLAGS else torch.float32
                return ColumnSpec(() if shape == (self.num_envs, 1) else shape[1:], dtype)
            return ColumnSpec(shape[1:], dtype)

        return map_struct(spec, value)

    def _nested_like(self, column: str, value: Any, name: str, count: int) -> Any:
        """Return a value of a column with this many rows, nested as the column is and checked.

        Raises:
            ColumnError: it is nested in another way, or a part does not fit.
        """
        specs, form = flatten(self.columns[column])
        try:
            leaves = flatten_like(form, value)
        except ColumnError as error:
            where, do = f"RolloutStorage, step {self._size}, {name}", f"nest it as the column {column!r} of the steps"
            raise ColumnError(where, expected=error.expected, found=error.found, do=do) from None
        parts = zip(leaves, specs, paths_of(form))
        return unflatten(form, [self._checked(leaf, spec, name + path, count) for leaf, spec, path in parts])

    def _leaves_of(self, step: Mapping[str, Any]) -> list[torch.Tensor]:
        """Return the leaves of a step in the order of the buffers, checked."""
        step = step if isinstance(step, dict) else dict(step)
        try:
            leaves = flatten_like(self._form, step)
        except ColumnError:
            raise self._wrong_columns(step) from None
        if [*map(_kind_of, leaves)] == self._kinds:
            return leaves
        parts = zip(leaves, self._specs, self._names)
        return [self._checked(leaf, spec, f"column {name}", self.num_envs) for leaf, spec, name in parts]

    def _checked(self, leaf: Any, spec: ColumnSpec, name: str, count: int) -> torch.Tensor:
        """Return a leaf as a tensor [count, ...] that can be copied into its column.

        Raises:
            ColumnError: it cannot.
        """
        shape = (count, *spec.shape)
        if _kind_of(leaf) == (shape, spec.dtype, self.device, torch.strided):
            return leaf  # type: ignore[no-any-return]
        if self.device.type == "cpu" and not isinstance(leaf, torch.Tensor):
            try:
                leaf = torch.as_tensor(leaf)
            except (TypeError, ValueError, RuntimeError):
                raise self._unfit(leaf, spec, name, count) from None
        is_tensor = isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided
        fits = is_tensor and leaf.device == self.device and _converts(leaf.dtype, spec.dtype)
        if not fits or leaf.shape not in (shape, (*shape, 1)):
            raise self._unfit(leaf, spec, name, count)
        row: torch.Tensor = leaf.reshape(shape)
        if name in _FLAG_NAMES and spec.dtype is torch.bool and row.dtype is not torch.bool:
            wrong = ((row != 0) & (row != 1)).any()
            self._wrong_flags[name] = self._wrong_flags.get(name, False) | wrong
            if self.device.type == "cpu":  # elsewhere a rollout waits for the device once, not in each step
                self._check_flags()
        return row

    def _check_flags(self) -> None:
        """Refuse flags other than 0 and 1 among those that came as numbers.

        Raises:
            ColumnError: there was one.
        """
        flags, self._wrong_flags = self._wrong_flags, {}
        for name, wrong in flags.items():
            if bool(wrong):
                raise ColumnError(
                    f"RolloutStorage, {name}",
                    expected="flags: bools, or the numbers 0 and 1",
                    found="other numbers",
                    do="say what is true: flags > 0.5, for example",
                )

    def _unfit(self, leaf: Any, spec: ColumnSpec | None, name: str, count: int | str) -> ColumnError:
        sizes, dtype = (("...",), "") if spec is None else (spec.shape, f"{spec.dtype} ")
        found = type(leaf).__name__
        if isinstance(leaf, torch.Tensor):
            layout = "" if leaf.layout is torch.strided else f", {leaf.layout}"
            found = f"shape {list(leaf.shape)} of {leaf.dtype} on {leaf.device}{layout}"
        return ColumnError(
            f"RolloutStorage, step {self._size}, {name}",
            expected=f"a tensor of shape [{', '.join(map(str, (count, *sizes)))}], {dtype}on {self.device}",
            found=found,
            do="convert it, or give the storage other columns: RolloutStorage(..., columns=..., device=...)",
        )

    def _wrong_columns(self, step: Mapping[str, Any]) -> ColumnError:
        missing = [name for name in self.columns if name not in step]
        surplus = [name for name in step if name not in self.columns]
        found = [f"no {name!r}" for name in missing] + [f"{name!r} too" for name in surplus]
        for name in step.keys() & self.columns.keys():
            forms = form_of(step[name]), form_of(self.columns[name])
            if {*paths_of(forms[0])} != {*paths_of(forms[1])}:
                given, kept = (form_text(form).replace("leaf", "tensor") for form in forms)
                found.append(f"{name!r} as {given}, not {kept}")
        return ColumnError(
            f"RolloutStorage, step {self._size}",
            expected=f"the columns {', '.join(self.columns)}, nested as in the schema",
            found=", ".join(found),
            do="give every step the same columns, or name them all when the storage is made",
        )

    def _ended_of(self, step: Mapping[str, Any], final: Collection[str], envs: torch.Tensor | None) -> torch.Tensor:
        """Return the environments that ended in a step, or those of them that were given.

        Raises:
            ColumnError: the steps do not say which ended, or lack a column of which final values were given.
        """
        flags = [step[name] for name in _FLAGS if name in step]
        missing = [name for name in final if name not in self.columns]
        if not flags or missing:
            name = (missing or [*final])[0]
            raise ColumnError(
                f"RolloutStorage, step {self._size}, {_FINAL[name]}",
                expected=f"steps with {name} and terminateds, which say where it counts",
                found=", ".join(self.columns),
                do=f"leave {_FINAL[name]} out, or add these columns",
            )
        if envs is not None:
            if envs.dtype is not torch.int64 or envs.ndim != 1:
                raise self._unfit(envs, ColumnSpec((), torch.int64), "final_envs", "n")
            return envs
        ended = reduce(torch.logical_or, (torch.as_tensor(flag).reshape(self.num_envs) for flag in flags))
        return torch.nonzero(ended).flatten()


def _kind_of(leaf: Any) -> Any:
    """Return the facts of a tensor by which it is copied as it is; False for anything else."""
    return type(leaf) is torch.Tensor and (leaf.shape, leaf.dtype, leaf.device, leaf.layout)


class _Ids(Sequence[str]):
    """The ids of episodes, spelled when they are read: `name`, environment and number, or one of their own."""

    def __init__(self, name: str, envs: Any, numbers: Any, own: Mapping[tuple[int, int], str]) -> None:
        self._name, self._envs, self._numbers, self._own = name, envs, numbers, own

    def __len__(self) -> int:
        return len(self._envs)

    def __getitem__(self, index: Any) -> Any:
        place = int(self._envs[index]), int(self._numbers[index])
        return self._own.get(place) or "{}_{}_{}".format(self._name, *place)


def _dtype_of(leaf: Any) -> torch.dtype:
    dtype = torch.as_tensor(leaf).dtype
    return torch.float32 if dtype is torch.float64 else dtype


def _converts(source: torch.dtype, target: torch.dtype) -> bool:
    """True if values of a type can be copied into another without a loss of their kind, or of an integer."""
    if source.is_complex or target.is_complex:
        return source is target
    if target.is_floating_point or target is torch.bool or source is torch.bool:
        return True
    if source.is_floating_point:
        return False
    given, kept = torch.iinfo(source), torch.iinfo(target)
    return kept.min <= given.min and given.max <= kept.max


def _to_array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return a tensor as an array, which shares its memory on the CPU."""
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).cpu().numpy()


def _with_axes(mask: torch.Tensor, ndim: int) -> torch.Tensor:
    return mask.reshape(mask.shape + (1,) * (ndim - mask.ndim))


def _no_steps(call: str) -> BatchLayoutError:
    return BatchLayoutError(
        f"RolloutStorage.{call}", expected="at least one step", found="none", do="call add_step before"
    )


def _fraction(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):  # of a tensor of several numbers
        number = math.nan
    if 0.0 <= number <= 1.0:
        return number
    do = f"correct {name}"
    raise ConfigError(f"compute_returns, {name}", expected="a number in [0, 1]", found=repr(value), do=do)
