"""The clipped-surrogate loss of proximal policy optimization (Schulman et al. 2017, arXiv:1707.06347)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, ConfigError, nearest
from epibatch.core.schedules import value_at

from .loss import Loss
from .masked_rows import as_mask, fill_masked, masked_mean
from .settings import PPOSettings

__all__ = ["PPOLoss", "ppo_loss"]


@dataclass(frozen=True)
class PPOLoss(Loss):
    """PPO's loss with a KL coefficient that is adapted after every update.

    The coefficient grows by half when the mean KL divergence of the last epoch exceeds twice the target, and
    halves when it is under half of the target.

    Args:
        settings: The hyperparameters.

    Examples:
        >>> PPOLoss().adapt({"kl_coeff": 0.2}, {"mean_kl": 0.001})
        {'kl_coeff': 0.1}
    """

    settings: PPOSettings = field(default_factory=PPOSettings)

    def with_settings(self, **changes: Any) -> PPOLoss:
        """Return this loss with some of its hyperparameters changed.

        Examples:
            >>> PPOLoss().with_settings(clip_param=0.1).settings.clip_param
            0.1
        """
        return replace(self, settings=self.settings.with_changes(**changes))

    def initial_coefficients(self) -> dict[str, float]:
        """Return the KL coefficient of the settings."""
        return {"kl_coeff": float(self.settings.kl_coeff)}

    def __call__(
        self,
        batch: Mapping[str, Any],
        outputs: Mapping[str, Any],
        distribution_class: Any,
        coefficients: Mapping[str, float],
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return `ppo_loss` under the current coefficients."""
        scheduled = {name: coefficients[name] for name in self._scheduled() if name in coefficients}
        settings = self.settings.model_copy(update=scheduled) if scheduled else self.settings
        moments = None
        if f"{Columns.ADVANTAGES}_mean" in coefficients:
            moments = coefficients[f"{Columns.ADVANTAGES}_mean"], coefficients[f"{Columns.ADVANTAGES}_std"]
        return ppo_loss(batch, outputs, distribution_class, settings, coefficients["kl_coeff"], moments)

    def standardized_columns(self) -> tuple[str, ...]:
        """Return the advantages, with `standardize_advantages="minibatch"`."""
        return (Columns.ADVANTAGES,) if self.settings.standardize_advantages == "minibatch" else ()

    def _scheduled(self) -> list[str]:
        return [name for name in _SCHEDULED if isinstance(getattr(self.settings, name), list)]

    def scheduled_coefficients(self, num_env_steps: int) -> dict[str, float]:
        """Return the values of `entropy_coeff` and `clip_param` that are schedules.

        Examples:
            >>> PPOLoss(PPOSettings(clip_param=[[0, 0.3], [1000, 0.1]])).scheduled_coefficients(500)
            {'clip_param': 0.2}
        """
        return {name: value_at(getattr(self.settings, name), num_env_steps) for name in self._scheduled()}

    def ends_update(self, metrics: Mapping[str, float]) -> bool:
        """True if the policy is too far from the acting one: `approx_kl` above 1.5 times `target_kl`.

        Raises:
            ConfigError: there is a `target_kl`, and the metrics of a subclass have no `approx_kl`.
        """
        target = self.settings.target_kl
        return target is not None and self._metric(metrics, "approx_kl", "target_kl") > 1.5 * target

    def _metric(self, metrics: Mapping[str, float], name: str, setting: str) -> float:
        """Return a metric that a setting needs, which a subclass may have left out."""
        if name not in metrics:
            where, expected = f"{setting} with the loss {type(self).__name__}", f"a metric {name}, as PPOLoss gives it"
            do = f"return the metrics of super().__call__(...) too, or switch {setting} off"
            raise ConfigError(where, expected=expected, found=f"metrics {', '.join(metrics)}", do=do)
        return metrics[name]

    def adapts_lr(self) -> bool:
        """True if there is a `desired_kl`."""
        return self.settings.desired_kl is not None

    def adapted_lr(self, lr: float, metrics: Mapping[str, float]) -> float:
        """Return the learning rate around the desired divergence, from 1e-5 to 1e-2.

        It shrinks by a third if the `mean_kl` of the minibatch exceeds twice `desired_kl`, and grows by half if that is
        under half of `desired_kl` and above 0 (Schwarke et al. 2025, "RSL-RL", arXiv:2509.10771).

        Raises:
            ConfigError: the metrics of a subclass have no `mean_kl`.

        Examples:
            >>> loss = PPOLoss(PPOSettings(desired_kl=0.01))
            >>> loss.adapted_lr(3e-4, {"mean_kl": 0.03}), loss.adapted_lr(8e-3, {"mean_kl": 0.001})
            (0.00019999999999999998, 0.01)
        """
        desired = self.settings.desired_kl
        if desired is not None:
            mean_kl = self._metric(metrics, "mean_kl", "desired_kl")
            if mean_kl > 2.0 * desired:
                return max(1e-5, lr / 1.5)
            if 0.0 < mean_kl < 0.5 * desired:
                return min(1e-2, lr * 1.5)
        return lr

    def adapt(self, coefficients: Mapping[str, float], metrics: Mapping[str, float]) -> dict[str, float]:
        """Grow or shrink the KL coefficient around the target divergence."""
        coefficient = coefficients["kl_coeff"]
        if self.settings.use_kl_loss:
            mean_kl = self._metric(metrics, "mean_kl", "use_kl_loss")
            coefficient = adapted_kl_coeff(coefficient, mean_kl, self.settings.kl_target)
        return {"kl_coeff": coefficient}


def adapted_kl_coeff(coefficient: float, mean_kl: float, target: float) -> float:
    """Return the weight of a KL term for the next update: more if the divergence is twice its target, less if half."""
    if mean_kl > 2.0 * target:
        return coefficient * 1.5
    return coefficient * 0.5 if mean_kl < 0.5 * target else coefficient


def ppo_loss(
    batch: Mapping[str, Any],
    outputs: Mapping[str, Any],
    distribution_class: Any,
    settings: PPOSettings,
    kl_coeff: float,
    advantage_moments: tuple[float, float] | None = None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the PPO loss of one minibatch: clipped surrogate, clipped value error, entropy and KL terms.

    Every term is a mean over the rows with a `loss_mask` of True. Masked rows have no effect on the loss or a
    gradient, even if they are NaN. Entropy and divergences leave out rows that are `mirrored`.

    Args:
        batch: `actions`, `action_logp`, `action_dist_inputs`, `advantages`, `value_targets` and, optionally,
            `loss_mask` and `mirrored`, each [B, ...] or [B, T, ...] (these two bool [B] or [B, T]); with
            `use_clipped_value_loss` also `vf_preds`.
        outputs: `action_dist_inputs` and `vf_preds` of the module being trained.
        distribution_class: Offers `from_logits`; its instances `logp`, `entropy` and `kl`.
        settings: The hyperparameters.
        kl_coeff: Current weight of the KL term.
        advantage_moments: Mean and standard deviation for `standardize_advantages="minibatch"`; None: those of the
            minibatch.

    Returns:
        The scalar loss, and detached scalars `total_loss`, `policy_loss`, `vf_loss`, `vf_loss_unclipped`,
        `entropy`, with `use_kl_loss` or `desired_kl` `mean_kl`, and with `target_kl` `approx_kl`: the mean of
        `ratio - 1 - log(ratio)` (Schulman 2020, "Approximating KL Divergence", its estimator k3).

    Raises:
        ColumnError: a column is missing, or has another shape than one number per row.
        ConfigError: a setting is a schedule; use `PPOLoss`, which evaluates schedules.
    """
    _refuse_schedules(settings)
    columns, rows, mask = _read_columns(batch, outputs, settings.use_clipped_value_loss)
    original = _original_rows(batch, mask)
    policy = distribution_class.from_logits(columns["logits"])
    advantages = columns[Columns.ADVANTAGES]
    logp = policy.logp(columns[Columns.ACTIONS])
    if logp.shape != rows:
        raise _unfit(Columns.ACTIONS, columns[Columns.ACTIONS], rows, "one action of the action space per row")
    if settings.standardize_advantages == "minibatch":
        advantages = _standardized(advantages, mask, advantage_moments)
    log_ratio = logp - columns[Columns.ACTION_LOGP]
    ratio = torch.exp(log_ratio)
    clipped = ratio.clamp(1.0 - settings.clip_param, 1.0 + settings.clip_param)
    squared_error = (columns["vf_preds"] - columns[Columns.VALUE_TARGETS]).square()
    if settings.use_clipped_value_loss:
        before = columns[_OLD_VALUES]
        near = before + (columns["vf_preds"] - before).clamp(-settings.clip_param, settings.clip_param)
        value_error = torch.maximum(squared_error, (near - columns[Columns.VALUE_TARGETS]).square())
    else:
        value_error = squared_error.clamp(max=settings.vf_clip_param)
    policy_loss = -masked_mean(torch.minimum(advantages * ratio, advantages * clipped), mask)
    vf_loss = masked_mean(value_error, mask)
    entropy = masked_mean(policy.entropy(), original)
    total = policy_loss + settings.vf_loss_coeff * vf_loss
    if settings.entropy_coeff:
        total = total - settings.entropy_coeff * entropy
    divergence = {}
    if settings.use_kl_loss or settings.desired_kl is not None:
        sampling_policy = distribution_class.from_logits(columns[Columns.ACTION_DIST_INPUTS])
        mean_kl = masked_mean(sampling_policy.kl(policy), original)
        if settings.use_kl_loss:
            total = total + kl_coeff * mean_kl
        divergence["mean_kl"] = mean_kl.detach()
    if settings.target_kl is not None:
        divergence["approx_kl"] = masked_mean((ratio - 1.0 - log_ratio).detach(), original)
    metrics = {
        "total_loss": total.detach(),
        "policy_loss": policy_loss.detach(),
        "vf_loss": vf_loss.detach(),
        "vf_loss_unclipped": masked_mean(squared_error.detach(), mask),
        "entropy": entropy.detach(),
        **divergence,
    }
    return total, metrics


def _refuse_schedules(settings: PPOSettings) -> None:
    for name in _SCHEDULED:
        if isinstance(getattr(settings, name), list):
            found, do = f"a schedule, {getattr(settings, name)}", "call PPOLoss(settings).scheduled_coefficients(steps)"
            raise ConfigError(f"ppo_loss, {name}", expected="a number", found=found, do=f"{do}, and pass them on")


def _original_rows(batch: Mapping[str, Any], mask: torch.Tensor | None) -> torch.Tensor | None:
    """Return the mask of rows with loss that are not mirrored; None for all rows."""
    if Columns.MIRRORED not in batch:
        return mask
    original: torch.Tensor = ~batch[Columns.MIRRORED]
    return original if mask is None else original & mask


def _read_columns(
    batch: Mapping[str, Any], outputs: Mapping[str, Any], with_old_values: bool
) -> tuple[dict[str, Any], torch.Size, torch.Tensor | None]:
    """Return all columns, checked, with zeros in rows without loss; their shape; the mask if there are such rows."""
    columns = read_columns(batch, _BATCH_COLUMNS, "the train batch")
    if with_old_values:
        columns[_OLD_VALUES] = _old_values(batch)
    columns["logits"], columns["vf_preds"] = read_columns(outputs, _OUTPUT_COLUMNS, "the module's outputs").values()
    mask = as_mask(batch.get(Columns.LOSS_MASK), "PPO loss")
    rows = _check_rows(columns, mask)
    if mask is None or (not torch.compiler.is_compiling() and bool(mask.all())):
        return columns, rows, None
    return {name: fill_masked(column, mask) for name, column in columns.items()}, rows, mask


def _check_rows(columns: Mapping[str, Any], mask: Any) -> torch.Size:
    """Return the shape of the rows, [B] or [B, T]; columns of another shape would be broadcast silently.

    Raises:
        ColumnError: a column has another shape than most have, or is no tensor.
    """
    shapes = {name: _shape(columns[name]) for name in (*_NUMBERS, *filter(columns.__contains__, [_OLD_VALUES]))}
    for name in ("logits", Columns.ACTION_DIST_INPUTS):
        inputs = columns[name]
        if not isinstance(inputs, (dict, tuple)):  # a user's distribution may accept nested inputs
            floats = isinstance(inputs, torch.Tensor) and inputs.ndim and inputs.is_floating_point()
            shapes[name] = inputs.shape[:-1] if floats else None
    if mask is not None:
        shapes[Columns.LOSS_MASK] = mask.shape
    found = list(shapes.values())
    counts = [sum([shape == other for other in found]) for shape in found]  # torch.compile knows no max(key=)
    rows = found[counts.index(max(counts))] or torch.Size()
    for name, shape in shapes.items():
        if shape != rows:
            inputs = name in ("logits", Columns.ACTION_DIST_INPUTS)
            expected = "a tensor of floats, [rows..., inputs of the distribution]" if inputs else ""
            raise _unfit(name, mask if name == Columns.LOSS_MASK else columns[name], rows, expected)
    actions = columns[Columns.ACTIONS]
    if isinstance(actions, (np.ndarray, str)) or (isinstance(actions, list) and not _shape(actions[0])):
        raise _unfit(Columns.ACTIONS, actions, rows, "a tensor, or a struct of tensors")
    return rows


def _shape(value: Any) -> torch.Size | None:
    return value.shape if isinstance(value, torch.Tensor) else None


def _unfit(name: str, value: Any, rows: Any, expected: str = "") -> ColumnError:
    owner = "the module's outputs" if name in ("logits", Columns.VF_PREDS) else "the train batch"
    expected = expected or "a tensor with one number per row"
    if rows is not None:
        expected += f"; the rows have shape {list(rows)}"
    found = type(value).__name__
    if hasattr(value, "shape"):
        found += f" of shape {list(value.shape)} and {value.dtype}"
    return ColumnError(
        f"PPO loss: column {Columns.ACTION_DIST_INPUTS if name == 'logits' else name!r} of {owner}",
        expected=expected,
        found=found,
        do="let the piece or module that makes the column give it this shape; squeeze(-1) removes a last axis of 1",
    )


_LEAST_DEVIATION = 1e-4
_OLD_VALUES = "recorded vf_preds"
_SCHEDULED = ("clip_param", "entropy_coeff")
_NUMBERS = (Columns.ACTION_LOGP, Columns.ADVANTAGES, Columns.VALUE_TARGETS, "vf_preds")
_BATCH_COLUMNS = (
    Columns.ACTIONS,
    Columns.ACTION_LOGP,
    Columns.ACTION_DIST_INPUTS,
    Columns.ADVANTAGES,
    Columns.VALUE_TARGETS,
)
_OUTPUT_COLUMNS = (Columns.ACTION_DIST_INPUTS, Columns.VF_PREDS)


def read_columns(
    source: Mapping[str, Any], names: tuple[str, ...], owner: str, *, loss: str = "PPO loss", do: str = ""
) -> dict[str, Any]:
    """Return some columns of a batch or of a module's outputs.

    Args:
        source: Column -> values.
        names: The columns.
        owner: What `source` is, for the message.
        loss: Which loss reads them, for the message.
        do: What to do about a missing one; by default what PPO needs.

    Raises:
        ColumnError: a column is missing.
    """
    for name in names:
        if name not in source:
            raise ColumnError(
                f"{loss}: column {name!r} of {owner}",
                expected=f"columns {', '.join(names)}",
                found=nearest(name, source),
                do=do
                or "keep AddOneTsToEpisodesAndTruncate and GeneralAdvantageEstimation in the learner pipeline, or call "
                "compute_returns() of a RolloutStorage before; and train a module that predicts values",
            )
    return {name: source[name] for name in names}


def _old_values(batch: Mapping[str, Any]) -> Any:
    if Columns.VF_PREDS not in batch:
        raise ColumnError(
            f"PPO loss with use_clipped_value_loss: column {Columns.VF_PREDS!r} of the train batch",
            expected="the values that the module predicted while it acted, or before the update",
            found=f"columns {', '.join(map(str, batch))}",
            do="give the pipeline GeneralAdvantageEstimation(keep_values=True), or let forward_exploration return "
            f"{Columns.VF_PREDS!r} too",
        )
    return batch[Columns.VF_PREDS]


def _standardized(
    x: torch.Tensor, mask: torch.Tensor | None, moments: tuple[float, float] | None = None
) -> torch.Tensor:
    """Return the entries scaled to mean 0 and standard deviation 1 over the valid rows, or by other rows' moments."""
    if moments is not None:
        return (x - moments[0]) / max(moments[1], _LEAST_DEVIATION)
    centred = x - masked_mean(x, mask)
    return centred / masked_mean(centred.square(), mask).sqrt().clamp(min=_LEAST_DEVIATION)
