"""Shifts and scales the entries of a column by fixed amounts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, ConfigError, StateError
from epibatch.core.shared_moments import RunningMoments

from ..authoring.column_transform import ColumnTransform


class Affine(ColumnTransform):
    """Makes `x * scale + loc` of every entry of a column, or in standard form `(x - loc) / scale`.

    The amounts stay as they are; `fit` finds them in episodes, so that the entries get mean 0 and deviation 1. For
    statistics that go on with training there is `MeanStdFilter`. Integers and booleans come out as float32, other types
    stay.

    `inverse` undoes it. With `columns="actions"` in the env-to-module pipeline the module acts in the scaled space.

    Counterparts: TorchRL's `ObservationNorm`.

    Args:
        columns: Name of the column, or names; `obs/position` is one part of a nested column.
        loc: What to add, or in standard form to take away: a number, or one for each entry in the shape of a row.
        scale: What to multiply by, or in standard form to divide by, in the same forms; not 0.
        standard_form: Whether `loc` is a mean and `scale` a deviation.

    Raises:
        ConfigError: amounts that are no finite numbers, or a scale of 0.

    Examples:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> rows = {"observations": [np.array([1.0, 5.0]), np.array([3.0, 5.0])], "actions": [0], "rewards": [0.0]}
        >>> episode = SingleAgentEpisode(**rows, len_lookback_buffer=0)
        >>> piece = Affine(standard_form=True).fit([episode])
        >>> piece.loc, piece.scale
        ([2.0, 5.0], [1.4142135623730951, 1.0])
        >>> piece.transform(np.array([[4.0, 6.0]])).round(3).tolist()
        [[1.414, 1.0]]
    """

    columns: Any = "obs"
    loc: Any = 0.0
    scale: Any = 1.0
    standard_form: bool = False
    takes_tensors = True
    monotonic = True

    def __post_init__(self) -> None:
        self._fitted = False
        self.loc, self.scale = as_lists(self.loc), as_lists(self.scale)
        self._check()

    def _check(self) -> None:
        self._amounts: dict[Any, tuple[Any, Any]] = {}
        for name in ("loc", "scale"):
            numbers = as_numbers(getattr(self, name))
            if not np.isfinite(numbers).all() or (name == "scale" and not numbers.all()):
                expected = "a finite number" + (", not 0" if name == "scale" else "")
                found, do = repr(getattr(self, name)), "give a number, or a list of one for each entry of a row"
                raise ConfigError(f"Affine.{name}", expected=expected, found=found, do=do)

    def transform(self, x: Any) -> Any:
        """The rows, shifted and scaled."""
        loc, scale, x = self._of(x)
        return (x - loc) / scale if self.standard_form else x * scale + loc

    def inverse(self, y: Any) -> Any:
        """The rows as they were, up to rounding; those of integers are floats."""
        loc, scale, y = self._of(y)
        return y * scale + loc if self.standard_form else (y - loc) / scale

    def _of(self, x: Any) -> tuple[Any, Any, Any]:
        """The amounts in the type (and on the device) of the rows, and the rows as floats."""
        if isinstance(x, np.ndarray):
            kind: Any = x.dtype if x.dtype.kind == "f" else np.dtype(np.float32)
            if kind not in self._amounts:
                self._amounts[kind] = np.asarray(self.loc, kind), np.asarray(self.scale, kind)
            return (*self._amounts[kind], x if x.dtype == kind else x.astype(kind))
        import torch

        dtype = x.dtype if x.is_floating_point() else torch.float32
        kind = dtype, x.device
        if kind not in self._amounts:
            loc, scale = (torch.as_tensor(value, dtype=dtype, device=x.device) for value in (self.loc, self.scale))
            self._amounts[kind] = loc, scale
        return (*self._amounts[kind], x.to(dtype))

    # -- finding the amounts -------------------------------------------------------------------

    def fit(self, episodes: Iterable[Any]) -> Affine:
        """Take mean and deviation of each entry from episodes: those of a dataset, or of random steps,
        `runner.sample(num_timesteps=1000, random_actions=True)`.

        Entries that do not vary are only shifted. Observations, rewards, actions and model outputs of all steps count,
        of observations the last one too.

        Args:
            episodes: `SingleAgentEpisode`s.

        Returns:
            This piece.

        Raises:
            ConfigError: there are several columns, which need a piece each.
            ColumnError: no rows, or rows that are no finite numbers of one shape.
        """
        paths = self._fitted_paths()
        if len(paths) != 1:
            raise ConfigError(
                "Affine.fit",
                expected="one column, whose statistics are wanted",
                found=f"columns {', '.join(map(str, self.paths))}",
                do="use one piece for each",
            )
        rows = [self._rows_of(episode, paths[0]) for episode in episodes]
        mean, deviation = _statistics(str(paths[0]), rows)
        if self.standard_form:
            loc, scale = mean, deviation
        else:
            loc, scale = -mean / deviation, 1 / deviation
        self._take(loc.tolist(), scale.tolist())
        return self

    def _fitted_paths(self) -> list[Any]:
        """The paths that statistics are computed of. Next observations use those of observations."""
        paths, obs = self.paths, Columns.OBS
        return [path for path in paths if path.column != Columns.NEXT_OBS or path._replace(column=obs) not in paths]

    def _rows_of(self, episode: Any, path: Any) -> Any:
        found: list[Any] = []
        rows = {
            Columns.OBS: lambda: episode.get_observations(),
            Columns.ACTIONS: lambda: episode.get_actions(),
            Columns.REWARDS: lambda: episode.get_rewards(),
        }.get(path.column, lambda: episode.get_extra_model_outputs(path.column))()
        path.change(rows, lambda leaf: found.append(np.asarray(leaf)))
        if len(found) == 1:
            return found[0]
        raise ColumnError(
            f"Affine.fit, column {str(path)!r}",
            expected="one array",
            found=f"{len(found)} of them",
            do=f"name one part, as in columns='{path}/...'",
        )

    def _take(self, loc: Any, scale: Any) -> None:
        self._give(loc, scale, True)
        self._check()
        self._output_spaces = None
        self.parts.clear()

    def _give(self, loc: Any, scale: Any, fitted: bool) -> None:
        """Set what is learned, which is no change of parameters."""
        vars(self).update(loc=loc, scale=scale, _fitted=fitted)

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """`loc` and `scale` (float64 arrays) if `fit` found them; {} where they were given."""
        if not self._fitted:
            return {}
        return {"loc": np.asarray(self.loc, np.float64), "scale": np.asarray(self.scale, np.float64)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over what `get_state` gave.

        Raises:
            StateError: a state of another kind.
            ConfigError: numbers that are not finite; the piece is as it was.
        """
        if not state:
            return
        if not isinstance(state, Mapping) or set(state) != {"loc", "scale"}:
            raise StateError(
                "Affine.set_state",
                expected="loc and scale",
                found=f"{type(state).__name__} with {sorted(map(str, state))}",
                do="restore the state of an Affine piece",
            )
        before = self.loc, self.scale, self._fitted
        try:
            self._take(*(np.asarray(state[name]).tolist() for name in ("loc", "scale")))
        except ConfigError:
            self._give(*before)
            self._amounts = {}
            raise

    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """The first state: copies of a fitted piece have the same."""
        return dict(states[0]) if states else {}


def as_lists(value: Any) -> Any:
    """An array as lists, which are data; other values as they are."""
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def as_numbers(value: Any) -> Any:
    """Numbers as float64; NaN for something else."""
    try:
        return np.asarray(np.nan if isinstance(value, (str, bool)) else value, np.float64)
    except (TypeError, ValueError):
        return np.asarray(np.nan)


def _statistics(column: str, parts: list[Any]) -> tuple[Any, Any]:
    """Mean and deviation of each entry of rows; 1 for entries that do not vary."""
    shapes = {part.shape[1:] for part in parts if len(part)}
    rows = np.concatenate([part.reshape(len(part), -1) for part in parts if len(part)]) if len(shapes) == 1 else None
    if rows is None or rows.dtype == object or not np.isfinite(rows).all():
        raise ColumnError(
            f"Affine.fit, column {column!r}",
            expected="rows of finite numbers, all of one shape",
            found=f"rows of shapes {sorted(shapes)}" if rows is None else "others",
            do="give episodes with steps; other values need an earlier piece",
        )
    moments = RunningMoments(rows.shape[1])
    moments.add(rows.astype(np.float64))
    deviation = moments.std()
    deviation[deviation <= 1e-12 * np.abs(moments.mean)] = 1.0
    (shape,) = shapes
    return moments.mean.reshape(shape), deviation.reshape(shape)
