"""Adds advantages and value targets to a finished train batch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Interval

from epibatch.core import LEARNERS
from epibatch.core.advantages import generalized_advantages, td_errors
from epibatch.core.columns import COLUMNS_READ, Columns, TrackedBatch
from epibatch.core.errors import ColumnError, ConfigError, add_context, nearest
from epibatch.core.rl_module.module_facts import check_given, describe_batch, is_multi, method_of
from epibatch.core.shared_moments import moments_of, pooled_moments

from .._engine.call import PipelineCall
from .._engine.chunks import ChunkGroup
from .._engine.columns import Batch
from .._engine.sequences import layout_of
from ..authoring.fields import check_values
from ..columnar_piece import Piece

__all__ = ["GeneralAdvantageEstimation"]


class GeneralAdvantageEstimation(Piece):
    """Adds `advantages`, standardised by default, and `value_targets` (Schulman et al. 2016).

    The method is generalized advantage estimation. Advantages are standardised: mean 0 and standard deviation 1 over
    the module's rows that carry loss, of all learners that update together. Do not normalise them again, or pass
    `standardize_advantages=False`. Values come from the module's `compute_values`, once for the whole batch, bootstrap
    rows included. Only termination stops bootstrapping. On rows without loss advantages are 0, and the target is the
    value itself.

    Counterparts: RLlib's `GeneralAdvantageEstimation`.

    Args:
        gamma: Discount, in [0, 1].
        lambda_: Weight of longer returns, in [0, 1].
        standardize_advantages: Whether to standardise advantages.
        per_module: Module id -> settings among these three that a module has for itself; the one module of one agent
            is "default_policy".

    Raises:
        ConfigError: gamma or lambda_ outside [0, 1], a switch that is neither true nor false, or something else for
            a module.
        ColumnError: no rewards, flags or loss mask in the batch.
        PipelineError: no module was given, or one without `compute_values`.
    """

    pipelines: ClassVar[tuple[str, ...]] = ("learner",)
    input_layouts: ClassVar[tuple[str, ...]] = ("tensors",)
    reads: ClassVar[tuple[str, ...]] = (Columns.OBS, Columns.REWARDS, Columns.TERMINATEDS, Columns.LOSS_MASK)
    writes: ClassVar[tuple[str, ...]] = (Columns.ADVANTAGES, Columns.VALUE_TARGETS)
    gamma: Annotated[float, Interval(ge=0, le=1)] = 0.99
    lambda_: Annotated[float, Interval(ge=0, le=1)] = 0.95
    standardize_advantages: bool = True
    per_module: Mapping[str, Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        """Check the settings of single modules."""
        self.per_module = {module_id: dict(settings) for module_id, settings in (self.per_module or {}).items()}
        for module_id, settings in self.per_module.items():
            where = f"GeneralAdvantageEstimation, module {module_id!r}: "
            for name in settings.keys() - set(_SETTINGS):
                expected, do = " or ".join(_SETTINGS), nearest(str(name), _SETTINGS)
                raise ConfigError(f"{where}{name}", expected=expected, found=repr(name), do=do)
            check_values(GeneralAdvantageEstimation, settings, where)

    def run_all(self, batch: Batch, call: PipelineCall) -> Batch:
        """Add the columns of each group; several learners standardise advantages by the moments of all their rows."""
        batch = super().run_all(batch, call)
        learners = call.shared_data.get(LEARNERS)
        if learners is not None:
            raw: dict[str, tuple[Any, ...]] = call.shared_data.pop(_RAW, {})
            shares = learners.gather({key: moments_of(values[real]) for key, (_, values, real, _) in raw.items()})
            for key, (columns, values, real, place) in raw.items():
                count, mean, squares = pooled_moments([share[key] for share in shares if key in share])
                columns[Columns.ADVANTAGES] = place(_scaled(values, real, mean, (squares / max(count, 1)) ** 0.5))
        return batch

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Add the columns, if the module has a value function; a module that stands alone must have one."""
        if is_multi(group.call.rl_module) and not hasattr(group.rl_module, "compute_values"):
            return columns
        _check_values(group.rl_module)
        self._add(columns, group)
        return columns

    def _add(self, batch: dict[str, Any], group: ChunkGroup) -> None:
        import torch

        module = group.rl_module
        do = "put AddOneTsToEpisodesAndTruncate and AddColumnsFromEpisodesToTrainBatch before it"
        rewards = self.need(batch, Columns.REWARDS, do)
        mask = self.need(batch, Columns.LOSS_MASK, do)
        terminateds = self.need(batch, Columns.TERMINATEDS, do)
        if not isinstance(rewards, torch.Tensor):
            raise _unfit_rewards(f"{type(rewards).__name__} of {rewards.dtype}", mask.shape)
        values = _values(batch, group)
        if not isinstance(values, torch.Tensor) or values.shape != rewards.shape:
            fits = isinstance(values, torch.Tensor) and values.shape == mask.shape
            raise (
                _unfit_rewards(f"shape {list(rewards.shape)}", mask.shape)
                if fits
                else _unfit_values(module, values, rewards.shape)
            )
        settings = (self.per_module or {}).get(group.module_id, {})
        gamma, lambda_ = settings.get("gamma", self.gamma), settings.get("lambda_", self.lambda_)
        shape, device = values.shape, values.device
        rows = _real_rows(batch, group, shape)
        flat_values = _flat(values, rows)
        flat_rewards = _flat(rewards, rows)
        counts = group.counts
        errors = td_errors(flat_rewards, flat_values, _flat(terminateds, rows), counts, gamma)
        advantages = generalized_advantages(errors, counts, gamma, lambda_)
        real = _flat(mask, rows)
        advantages = np.where(real, advantages, 0)
        targets = (advantages + flat_values).astype(np.float32)
        if not np.isfinite(targets).all():
            raise _not_numbers(module, group, flat_rewards, flat_values, targets)
        batch[Columns.VALUE_TARGETS] = _placed(targets, rows, shape, device)
        if settings.get("standardize_advantages", self.standardize_advantages):
            if LEARNERS in group.shared_data:
                place = partial(_placed, rows=rows, shape=shape, device=device)
                group.shared_data.setdefault(_RAW, {})[group.module_id] = batch, advantages, real, place
            else:
                values = advantages[real]
                if len(values):
                    advantages = _scaled(advantages, real, values.mean(), float(values.std()))
        batch[Columns.ADVANTAGES] = _placed(advantages, rows, shape, device)


def _values(batch: dict[str, Any], group: ChunkGroup) -> Any:
    """Return the module's values of the batch's rows; an error in it names the module and the shapes it was given."""
    import torch

    read, module = group.shared_data.get(COLUMNS_READ), group.rl_module
    inputs = batch if read is None else TrackedBatch(batch, read[group.module_id])
    try:
        with torch.no_grad():
            return module.compute_values(inputs)
    except Exception as error:
        add_context(error, f"in {type(module).__name__}.compute_values, with {describe_batch(batch, error)}:")
        raise


def _unfit_rewards(found: str, expected: Any) -> ColumnError:
    return ColumnError(
        f"GeneralAdvantageEstimation, column {Columns.REWARDS!r}",
        expected=f"one number per row, shape {list(expected)}",
        found=found,
        do="give each step one number as reward; of vectors of several, LineariseRewards makes one",
    )


def _not_numbers(module: Any, group: ChunkGroup, rewards: Any, values: Any, targets: Any) -> ColumnError:
    """The error for targets that are no finite numbers, which names the first number that makes them so."""
    suspects = (
        (
            rewards,
            f"column {Columns.REWARDS!r}",
            "correct the environment or the piece that makes it; CheckFinite says where it comes from",
        ),
        (
            values,
            f"{type(module).__name__}.compute_values",
            "look for NaN in the observations and the module's weights",
        ),
        (targets, f"column {Columns.VALUE_TARGETS!r}", "make rewards smaller: their sums do not fit into float32"),
    )
    numbers, name, do = next(suspect for suspect in suspects if not np.isfinite(suspect[0]).all())
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


def _check_values(module: Any) -> None:
    check_given(module, "GeneralAdvantageEstimation", "which estimates values by compute_values(batch)")
    method_of(module, "compute_values", "GeneralAdvantageEstimation", "which estimates values")


_SETTINGS = ("gamma", "lambda_", "standardize_advantages")
_RAW = "general_advantage_estimation"
"""In shared_data, in a call of one of several learners: module id -> advantages to standardise, and where they go."""


def _real_rows(batch: dict[str, Any], group: ChunkGroup, shape: Any) -> Any:
    """Flat positions of the chunks' rows in a batch of sequences, or of stacked agents; None if it is neither."""
    if len(shape) < 2 or (group.sequences is None and Columns.SEQ_LENS not in batch):
        return None
    layout = layout_of(group, shape[1])
    if layout.mask.shape != tuple(shape[:2]):
        raise ColumnError(
            "GeneralAdvantageEstimation",
            expected=f"sequences {list(layout.mask.shape)}, as the chunks and the module's settings make them",
            found=f"{list(shape[:2])}",
            do="let it run in the pipeline that makes the sequences",
        )
    rows = layout.destination
    if len(rows) != layout.num_rows:
        raise ConfigError(
            "GeneralAdvantageEstimation",
            expected=f"all {layout.num_rows} rows of the chunks, whose rewards add up",
            found=f"{len(rows)} rows: the others were left out when sequences were made",
            do="put AddOneTsToEpisodesAndTruncate before it, with which rows that sequence_end 'drop' or 'truncate' "
            "leaves out stay without loss; and leave RandomSubsequences out",
        )
    return rows


def _flat(tensor: Any, rows: Any) -> Any:
    flat = tensor.detach().cpu().numpy().reshape(-1)
    return flat if rows is None else flat[rows]


def _scaled(advantages: Any, real: Any, mean: float, deviation: float) -> Any:
    return np.where(real, (advantages - mean) / max(1e-4, deviation), 0)


def _placed(flat: Any, rows: Any, shape: Any, device: Any) -> Any:
    import torch

    flat = flat.astype(np.float32, copy=False)
    if rows is not None:
        padded = np.zeros(int(np.prod(shape)), flat.dtype)
        padded[rows] = flat
        flat = padded
    return torch.from_numpy(flat.reshape(tuple(shape))).to(device)
