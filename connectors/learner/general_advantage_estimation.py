"""Adds advantages and value targets to a finished train batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from annotated_types import Interval

from epibatch.core import LEARNERS
from epibatch.core.advantages import cut_at_ends, generalized_advantages
from epibatch.core.arrays_or_tensors import is_tensor, where
from epibatch.core.columns import Columns
from epibatch.core.shared_moments import moments_of, pooled_moments

from .._engine.call import PipelineCall
from .._engine.chunks import ChunkGroup
from .._engine.columns import Batch
from .advantage_estimation import AdvantageEstimation, Floats, Segments

__all__ = ["GeneralAdvantageEstimation"]


class GeneralAdvantageEstimation(AdvantageEstimation):
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
        keep_values: Whether the values are kept as `vf_preds`, unless the module recorded others while it acted; for
            losses that bound how far a value moves.
        per_module: Module id -> settings among these four that a module has for itself; the one module of one agent
            is "default_policy".

    Raises:
        ConfigError: gamma or lambda_ outside [0, 1], a switch that is neither true nor false, or something else for
            a module.
        ColumnError: no rewards, flags or loss mask in the batch.
        PipelineError: no module was given, or one without `compute_values`.
    """

    gamma: Annotated[float, Interval(ge=0, le=1)] = 0.99
    lambda_: Annotated[float, Interval(ge=0, le=1)] = 0.95
    standardize_advantages: bool = True
    keep_values: bool = False
    per_module: Mapping[str, Mapping[str, Any]] | None = None

    def run_all(self, batch: Batch, call: PipelineCall) -> Batch:
        """Add the columns of each group; several learners standardise advantages by the moments of all their rows."""
        batch = super().run_all(batch, call)
        learners = call.shared_data.get(LEARNERS)
        if learners is not None:
            raw: dict[str, tuple[Any, ...]] = call.shared_data.pop(_RAW, {})
            shares = learners.gather({key: moments_of(values[real]) for key, (_, values, real, _) in raw.items()})
            for key, (columns, values, real, placed) in raw.items():
                count, mean, squares = pooled_moments([share[key] for share in shares if key in share])
                columns[Columns.ADVANTAGES] = placed(_scaled(values, real, mean, (squares / max(count, 1)) ** 0.5))
        return batch

    def estimate(self, segments: Segments, group: ChunkGroup) -> tuple[Floats, Floats]:
        """Return the advantages, which are also what is added to the values."""
        settings = segments.settings
        counts = cut_at_ends(segments.counts, segments.terminateds)
        found = generalized_advantages(segments.errors, counts, settings["gamma"], settings["lambda_"])
        return found, found

    def add(self, columns: dict[str, Any], advantages: Floats, segments: Segments, group: ChunkGroup) -> None:
        """Add the advantages, standardised if the settings say so."""
        real = segments.real
        if segments.settings["keep_values"]:
            columns.setdefault(Columns.VF_PREDS, segments.placed(segments.values))
        if segments.settings["standardize_advantages"]:
            if LEARNERS in group.shared_data:
                raw = group.shared_data.setdefault(_RAW, {})
                raw[group.module_id] = columns, advantages, real, segments.placed
            elif real.any():
                values = advantages[real]
                deviation = values.std(correction=0) if is_tensor(values) else values.std()
                advantages = _scaled(advantages, real, values.mean(), float(deviation))
        super().add(columns, advantages, segments, group)


_RAW = "general_advantage_estimation"
"""In shared_data, in a call of one of several learners: module id -> advantages to standardise, and where they go."""


def _scaled(advantages: Any, real: Any, mean: float, deviation: float) -> Any:
    return where(real, (advantages - mean) / max(1e-4, deviation), 0)
