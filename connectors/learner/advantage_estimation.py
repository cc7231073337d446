"""The parts that pieces which add advantages and value targets have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from epibatch.core.advantages import td_errors
from epibatch.core.arrays_or_tensors import are_finite, as_float32, is_tensor, where, zeros_like
from epibatch.core.columns import COLUMNS_READ, Columns, TrackedBatch
from epibatch.core.errors import ColumnError, ConfigError, add_context, nearest
from epibatch.core.rl_module.module_facts import check_given, describe_batch, is_multi, method_of
from epibatch.core.structs import convert_to_numpy

from .._engine.chunks import ChunkGroup
from .._engine.sequences import layout_of
from ..authoring.fields import check_values, fields_of
from ..columnar_piece import Piece

Floats = npt.NDArray[np.float64]


class Segments(NamedTuple):
    """The rows of a module's chunks in flat arrays, one chunk after the other, each with its bootstrap row at the end.

    Args:
        inputs: The module's batch, to call the module with.
        settings: Those of the piece, for this module.
        errors: One-step temporal-difference errors, float64 [R]; 0 in bootstrap rows. Arrays, or tensors if the rows of
            the chunks are.
        values: Value predictions, [R].
        terminateds: bool [R].
        real: bool [R], rows with loss.
        counts: Rows per chunk, int64 [S].
        flat: Makes an array [R] of a tensor [B] or [B, T].
        placed: Makes a float32 tensor of the batch's shape of an array [R].
    """

    inputs: dict[str, Any]
    settings: Mapping[str, Any]
    errors: Floats
    values: Any
    terminateds: Any
    real: Any
    counts: Any
    flat: Callable[[Any], Any]
    placed: Callable[[Any], Any]


class AdvantageEstimation(Piece):
    """A piece that adds `advantages` and `value_targets`, from values of the module and bootstrap rows."""

    pipelines: ClassVar[tuple[str, ...]] = ("learner",)
    input_layouts: ClassVar[tuple[str, ...]] = ("tensors",)
    reads: ClassVar[tuple[str, ...]] = (Columns.OBS, Columns.REWARDS, Columns.TERMINATEDS, Columns.LOSS_MASK)
    writes: ClassVar[tuple[str, ...]] = (Columns.ADVANTAGES, Columns.VALUE_TARGETS)
    methods: ClassVar[Mapping[str, str]] = {"compute_values": "which estimates values by compute_values(batch)"}
    """Methods of the module that are called, and what they are for."""
    _is_base: ClassVar[bool] = True
    gamma: float
    per_module: Mapping[str, Mapping[str, Any]] | None

    def __post_init__(self) -> None:
        """Check the settings of single modules."""
        self.per_module = {module_id: dict(settings) for module_id, settings in (self.per_module or {}).items()}
        names = tuple(name for name in fields_of(type(self)) if name != "per_module")
        for module_id, settings in self.per_module.items():
            where = f"{type(self).__name__}, module {module_id!r}: "
            for name in settings.keys() - set(names):
                expected, do = " or ".join(names), nearest(str(name), names)
                raise ConfigError(f"{where}{name}", expected=expected, found=repr(name), do=do)
            check_values(type(self), settings, where)

    @abstractmethod
    def estimate(self, segments: Segments, group: ChunkGroup) -> tuple[Floats, Floats]:
        """Return the advantages, and what is added to the values to make their targets, [R] each.

        Args:
            segments: The rows.
            group: The chunks, with their module.
        """

    def add(self, columns: dict[str, Any], advantages: Floats, segments: Segments, group: ChunkGroup) -> None:
        """Add the advantages, which are 0 in rows without loss, to the batch."""
        columns[Columns.ADVANTAGES] = segments.placed(advantages)

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Add the columns, if the module has a value function; a module that stands alone must have one."""
        if is_multi(group.call.rl_module) and not hasattr(group.rl_module, "compute_values"):
            return columns
        for method, use in self.methods.items():
            check_given(group.rl_module, type(self).__name__, use)
            method_of(group.rl_module, method, type(self).__name__, use)
        segments, rewards = self._segments(columns, group)
        parts = self.estimate(segments, group)
        advantages, corrections = (where(segments.real, part, 0) for part in parts)
        targets = as_float32(corrections + segments.values)
        if not are_finite(targets):
            raise _not_numbers(group, *convert_to_numpy((rewards, segments.values, targets)))
        columns[Columns.VALUE_TARGETS] = segments.placed(targets)
        self.add(columns, advantages, segments, group)
        return columns

    def _segments(self, batch: dict[str, Any], group: ChunkGroup) -> tuple[Segments, Any]:
        """The rows, and their rewards."""
        import torch

        piece, module = type(self).__name__, group.rl_module
        do = "put AddOneTsToEpisodesAndTruncate and AddColumnsFromEpisodesToTrainBatch before it"
        rewards = self.need(batch, Columns.REWARDS, do)
        mask = self.need(batch, Columns.LOSS_MASK, do)
        terminateds = self.need(batch, Columns.TERMINATEDS, do)
        if not isinstance(rewards, torch.Tensor):
            raise _unfit_rewards(piece, f"{type(rewards).__name__} of {rewards.dtype}", mask.shape)
        read = group.shared_data.get(COLUMNS_READ)
        inputs = batch if read is None else TrackedBatch(batch, read[group.module_id])
        values = called(module, "compute_values", inputs)
        if not isinstance(values, torch.Tensor) or values.shape != rewards.shape:
            fits = isinstance(values, torch.Tensor) and values.shape == mask.shape
            raise (
                _unfit_rewards(piece, f"shape {list(rewards.shape)}", mask.shape)
                if fits
                else _unfit_values(module, values, rewards.shape)
            )
        own = (self.per_module or {}).get(group.module_id, {})
        settings = {name: own.get(name, getattr(self, name)) for name in fields_of(type(self)) if name != "per_module"}
        shape, device, on_device = values.shape, values.device, group.of_tensors
        rows = _real_rows(piece, batch, group, shape)

        def flat(tensor: Any) -> Any:
            return _flat(tensor, rows, on_device)

        flat_rewards, flat_values, ends, counts = flat(rewards), flat(values), flat(terminateds), group.counts
        errors = td_errors(flat_rewards, flat_values, ends, counts, settings["gamma"])
        segments = Segments(
            inputs=inputs,
            settings=settings,
            errors=errors,
            values=flat_values,
            terminateds=ends,
            real=flat(mask),
            counts=counts,
            flat=flat,
            placed=lambda array: _placed(array, rows, shape, device),
        )
        return segments, flat_rewards


def called(module: Any, method: str, inputs: dict[str, Any]) -> Any:
    """Return what a module's method gives for a batch, without gradients; an error in it names both."""
    import torch

    try:
        with torch.no_grad():
            return getattr(module, method)(inputs)
    except Exception as error:
        batch = dict(dict.items(inputs))  # reads nothing of a tracked batch
        add_context(error, f"in {type(module).__name__}.{method}, with {describe_batch(batch, error)}:")
        raise


def _unfit_rewards(piece: str, found: str, expected: Any) -> ColumnError:
    return ColumnError(
        f"{piece}, column {Columns.REWARDS!r}",
        expected=f"one number per row, shape {list(expected)}",
        found=found,
        do="give each step one number as reward; of vectors of several, LineariseRewards makes one",
    )


def _not_numbers(group: ChunkGroup, rewards: Any, values: Any, targets: Any) -> ColumnError:
    """The error for targets that are no finite numbers, which names the first number that makes them so."""
    suspects = (
        (
            rewards,
            f"column {Columns.REWARDS!r}",
            "correct the environment or the piece that makes it; CheckFinite says where it comes from",
        ),
        (
            values,
            f"{type(group.rl_module).__name__}.compute_values",
            "look for NaN in the observations and the module's weights",
        ),
        (targets, f"column {Columns.VALUE_TARGETS!r}", "make rewards smaller: their sums do not fit into float32"),
    )
    numbers, name, do = next(suspect for suspect in suspects if not np.isfinite(suspect[0]).all())
    return not_a_number(group, name, numbers, do)


def not_a_number(group: ChunkGroup, name: str, numbers: Any, do: str) -> ColumnError:
    """The error for numbers of rows, [R], of which some are not finite; it names the first one's step."""
    ends = np.cumsum(group.counts)
    row = int(np.isfinite(numbers).argmin())
    chunk = int(np.searchsorted(ends, row, "right"))
    where = f"{name}, {group.describe(chunk)}, step {row - int(ends[chunk] - group.counts[chunk])}"
    return ColumnError(where, expected="finite numbers", found=str(numbers[row]), do=do)


def _unfit_values(module: Any, values: Any, rows: Any) -> ColumnError:
    import torch

    is_tensor = isinstance(values, torch.Tensor)
    do = "return the values of all rows of batch['obs'], in order"
    if not is_tensor:
        do = "return a tensor, as the network's last layer gives it"
    elif values.shape[:-1] == rows:
        do = "squeeze the last axis: `return values.squeeze(-1)`"
    return ColumnError(
        f"{type(module).__name__}.compute_values",
        expected=f"one value per row, a tensor of shape {list(rows)}",
        found=f"shape {list(values.shape)}" if is_tensor else type(values).__name__,
        do=do,
    )


def _real_rows(piece: str, batch: dict[str, Any], group: ChunkGroup, shape: Any) -> Any:
    """Flat positions of the chunks' rows in a batch of sequences, or of stacked agents; None if it is neither."""
    if len(shape) < 2 or (group.sequences is None and Columns.SEQ_LENS not in batch):
        return None
    layout = layout_of(group, shape[1])
    if layout.mask.shape != tuple(shape[:2]):
        raise ColumnError(
            piece,
            expected=f"sequences {list(layout.mask.shape)}, as the chunks and the module's settings make them",
            found=f"{list(shape[:2])}",
            do="let it run in the pipeline that makes the sequences",
        )
    rows = layout.destination
    if len(rows) != layout.num_rows:
        raise ConfigError(
            piece,
            expected=f"all {layout.num_rows} rows of the chunks, whose rewards add up",
            found=f"{len(rows)} rows: the others were left out when sequences were made",
            do="put AddOneTsToEpisodesAndTruncate before it, with which rows that sequence_end 'drop' or 'truncate' "
            "or RandomSubsequences leaves out stay without loss",
        )
    return rows


def _flat(tensor: Any, rows: Any, on_device: bool) -> Any:
    flat = tensor.detach().reshape(-1) if on_device else tensor.detach().cpu().numpy().reshape(-1)
    return flat if rows is None else flat[rows]


def _placed(flat: Any, rows: Any, shape: Any, device: Any) -> Any:
    import torch

    flat = as_float32(flat)
    if rows is not None:
        padded = zeros_like(flat, (int(np.prod(shape)),))
        padded[rows] = flat
        flat = padded
    if is_tensor(flat):
        return flat.reshape(shape)
    return torch.from_numpy(flat.reshape(tuple(shape))).to(device)
