"""Declarations of columns with values of other steps of a trajectory."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any

import gymnasium as gym
import numpy as np
from annotated_types import MinLen

from epibatch.core.columns import Columns
from epibatch.core.errors import ConfigError, nearest
from epibatch.core.kept_property import kept_property
from epibatch.core.piece_arguments import wrong_values
from epibatch.core.space_dicts import space_from_dict, space_to_dict

IDS = (Columns.EPS_ID, Columns.AGENT_ID, Columns.MODULE_ID)
"""Columns of names, which are the same at every step."""

_AT_OBSERVATIONS = (Columns.OBS, Columns.INFOS, Columns.T, *IDS)
_RANGE = re.compile(r"\s*([+-]?\d+)\s*:\s*([+-]?\d+)\s*")
_FARTHEST = 2**20
_SHIFTS = 'an int, a list of ints, or a range such as "-50:-1", which has its last number in it'


@dataclass(frozen=True)
class View:
    """A column as it was, or will be, some steps away from each row: the reward before, the last 50 actions.

    Step t of an episode is its observation t, and the action, reward and model outputs that followed it. A row of
    a batch is one step, so a shift of -1 is the step before, 0 the step itself, and 1 the one after.

    Args:
        column: `obs`, `actions`, `rewards`, `infos`, a model output such as `action_logp`, `t` (the step's number),
            `terminateds`, `truncateds`, `eps_id`, `agent_id` or `module_id`. "obs/camera" is one leaf of a nested
            column, "infos/speed" one entry of the infos as numbers. Default: the name that the view is given under.
        shift: An int; a list of ints, whose values are stacked on a new axis after the rows, [rows, k, ...]; or a
            range "-50:-1", which is the list from the first number to the last, both included: the last 50.
        space: The Gymnasium space of one value, or the dict that `epibatch.core.spaces.space_to_dict` makes of it. Rows
            are like it before anything was recorded; needed only for model outputs that are shown while acting.
        fill: A number for places where the episode has no step: before its start, and after the chunk's end. The
            column's type has to hold it: a fraction among integers is an error.
        train: Whether train batches have the column.
        act: Whether batches to act on have it. Default: if it can be known by then.
        agent: Another agent. The column is that agent's, at the same env steps; "*" for all others, on a new axis.
        mask: Whether a column `<name>_mask` (bool) says which values are real. Default: only for other agents'.
        per_sequence: Whether the batch of a recurrent module has it once per sequence, as it is at the sequence's first
            step; without time axis. While acting, each step begins one.

    Raises:
        ConfigError: an invalid argument, or `act=True` for a value that is not known while acting.

    Examples:
        >>> View("rewards", -1).shifts, View("obs", "-2:0").shifts, View("actions", 1).act
        ((-1,), (-2, -1, 0), False)
    """

    column: Annotated[str, MinLen(1)] | None = None
    shift: int | Sequence[int] | str = 0
    _: KW_ONLY
    space: Any = None
    fill: bool | float | None = None
    train: bool = True
    act: bool | None = None
    agent: Any = None
    mask: bool | None = None
    per_sequence: bool = False

    if not TYPE_CHECKING:  # type checkers see the fields

        def __new__(cls, *args: Any, **kwargs: Any) -> View:
            """Make a view. Keywords are checked here, before the constructor that dataclasses makes."""
            _refuse_unknown(cls, kwargs)
            return super().__new__(cls)

    def __post_init__(self) -> None:
        if isinstance(self.space, Mapping) and not isinstance(self.space, gym.Space):
            object.__setattr__(self, "space", space_from_dict(dict(self.space)))
        self._check_types()
        shifts = _shifts_of(self.shift)
        object.__setattr__(self, "_shifts", shifts)
        if isinstance(self.shift, (int, np.integer)):
            object.__setattr__(self, "shift", int(self.shift))
        elif not isinstance(self.shift, str):
            object.__setattr__(self, "shift", shifts)  # a tuple: the declaration never changes
        if self.column is not None:
            self._check_column(self.column)

    # -- what it says --------------------------------------------------------------------------

    @property
    def shifts(self) -> tuple[int, ...]:
        """All its shifts, in the order of the new axis."""
        shifts: tuple[int, ...] = self.__dict__["_shifts"]
        return shifts

    @kept_property
    def is_single(self) -> bool:
        """True if it is one value per row, without a new axis."""
        return isinstance(self.shift, int)

    @kept_property
    def base(self) -> str:
        """The column without the path to a leaf."""
        return (self.column or "").partition("/")[0]

    @kept_property
    def lookback(self) -> int:
        """Steps before a row that it reads."""
        return max(0, -min(self.shifts))

    @kept_property
    def masked(self) -> bool:
        """True if a column says which of its values are real."""
        return self.agent is not None if self.mask is None else self.mask

    def named(self, name: str) -> View:
        """The same under a name: the column, if it was left open, is that.

        Raises:
            ConfigError: it cannot be that column.
        """
        return self if self.column is not None else replace(self, column=name)

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments that differ from the defaults, as plain data; a space is a dict."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["shift"] = list(self.shift) if isinstance(self.shift, tuple) else self.shift
        values["space"] = None if self.space is None else space_to_dict(self.space)
        values["act"] = None if self.act == self._known_while_acting() else self.act
        defaults = {field.name: field.default for field in fields(self)}
        return {key: value for key, value in values.items() if value is not defaults[key] and value != defaults[key]}

    # -- checks --------------------------------------------------------------------------------

    def _check_types(self) -> None:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, (expected, found) in wrong_values(View, values).items():
            raise _wrong(f".{name}", expected, found, f"give {name} such a value")
        if self.space is not None and not isinstance(self.space, gym.Space):
            raise _wrong(".space", "a Gymnasium space", repr(self.space), "pass gymnasium.spaces.Box(...), say")

    def _known_while_acting(self) -> bool:
        newest = 0 if self.base in _AT_OBSERVATIONS else -1
        return max(self.shifts) <= newest

    def _check_column(self, column: str) -> None:
        can_act = self._known_while_acting()
        if self.act and not can_act:
            reason = "comes after it" if max(self.shifts) > 0 else "follows from the action that is still to be taken"
            raise _wrong(
                f"({column!r}, shift={self.shift!r}, act=True)",
                "shifts of what is known while acting: "
                + ("0 or less" if self.base in _AT_OBSERVATIONS else "-1 or less"),
                f"{max(self.shifts)}, which {reason}",
                "leave act=True out: the column is then in train batches only",
            )
        if self.act is None:
            object.__setattr__(self, "act", can_act)
        if column in (*IDS, Columns.INFOS) and not self.is_single:
            do = "use one shift for each view"
            raise _wrong(f"({column!r}, shift={self.shift!r})", "one int: rows are no arrays", repr(self.shift), do)
        if self.base in IDS and self.shifts != (0,):
            raise _wrong(f"({column!r}, shift={self.shift!r})", "0: it never changes", repr(self.shift), "use shift=0")
        if column in (*IDS, Columns.INFOS) and (self.masked or self.per_sequence or self.agent is not None):
            do = "leave mask, per_sequence and agent out"
            raise _wrong(f"({column!r})", "a view without mask, sequences or other agents", "one with", do)
        if self.agent is not None and self.base in (Columns.INFOS, Columns.TERMINATEDS, Columns.TRUNCATEDS, Columns.T):
            found, do = repr(column), "let the environment put it into the observations"
            raise _wrong(f"({column!r}, agent={self.agent!r})", "observations, actions, rewards or outputs", found, do)
        if self.agent is not None and self.per_sequence:
            raise _wrong(f"({column!r})", "either agent or per_sequence", "both", "declare two views")


def _refuse_unknown(cls: type, kwargs: Mapping[str, Any]) -> None:
    names = [field.name for field in fields(cls)]
    unknown = next((name for name in kwargs if name not in names), None)
    if unknown is not None:
        do = nearest(unknown, names)
        raise _wrong("(...)", f"keywords among {', '.join(names)}", f"{unknown}={kwargs[unknown]!r}", do)


def _wrong(where: str, expected: str, found: str, do: str) -> ConfigError:
    return ConfigError(f"View{where}", expected=expected, found=found, do=do)


def _shifts_of(shift: Any) -> tuple[int, ...]:
    """The shifts that were meant.

    Raises:
        ConfigError: something else than an int, ints or a range.
    """
    if isinstance(shift, (int, np.integer)) and not isinstance(shift, bool):
        return _near((int(shift),), shift)
    if isinstance(shift, str):
        ends = _RANGE.fullmatch(shift)
        if ends is None:
            raise _wrong(".shift", _SHIFTS, repr(shift), 'write shift=-1, shift=[-2, -1] or shift="-50:-1"')
        first, last = map(int, ends.groups())
        if first > last:
            do = f'write shift="{last}:{first}"; a list gives them in another order'
            raise _wrong(".shift", "a range from the smaller shift to the larger one", repr(shift), do)
        return _near(range(first, last + 1), shift)
    is_sequence = isinstance(shift, (list, tuple, range, np.ndarray)) and len(shift) > 0
    if is_sequence and all(isinstance(item, (int, np.integer)) and not isinstance(item, bool) for item in shift):
        return _near(range(len(shift)), shift) and _near([int(item) for item in shift], shift)
    raise _wrong(".shift", _SHIFTS, repr(shift), 'write shift=-1, shift=[-2, -1] or shift="-50:-1"')


def _near(shifts: Sequence[int], shift: Any) -> tuple[int, ...]:
    """The shifts, unless they are more than memory has room for."""
    far = max(shifts if isinstance(shifts, list) else (shifts[0], shifts[-1]), key=abs)
    if abs(far) > _FARTHEST:
        found = str(far) if isinstance(shift, list) else repr(shift)
        raise _wrong(".shift", f"steps up to {_FARTHEST:,} away", found[:80], "read a nearer step")
    return tuple(shifts)


def as_views(views: Any, where: str) -> dict[str, View]:
    """Views by name, from View objects, or from dicts of their arguments as files have them.

    Args:
        views: Name -> view.
        where: For messages.

    Raises:
        ConfigError: something else.
    """
    if not isinstance(views, Mapping):
        do = 'write {"prev_rewards": View("rewards", shift=-1)}'
        raise ConfigError(where, expected="a dict of views by name", found=repr(views), do=do)
    return {_name(name, where): _view(view, f"{where}[{name!r}]").named(name) for name, view in views.items()}


def _name(name: Any, where: str) -> str:
    if isinstance(name, str) and name:
        return name
    do = "name each view as the column that batches are to have"
    raise ConfigError(where, expected="names of columns", found=repr(name), do=do)


def _view(view: Any, where: str) -> View:
    if isinstance(view, View):
        return view
    if not isinstance(view, Mapping):
        do = 'write View("rewards", shift=-1), or {"column": "rewards", "shift": -1} in a file'
        raise ConfigError(where, expected="a View", found=repr(view), do=do)
    names = [field.name for field in fields(View)]
    for key in view:
        if key not in names:
            do = nearest(str(key), names)
            raise ConfigError(where, expected="the arguments of View", found=repr(key), do=do)
    return View(**view)
