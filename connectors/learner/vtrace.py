"""Adds advantages and value targets that are corrected for an older policy having acted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Interval

from epibatch.core import KEPT_BY_RULES
from epibatch.core.advantages import vtrace
from epibatch.core.arrays_or_tensors import are_finite, where
from epibatch.core.columns import Columns
from epibatch.core.errors import ConfigError
from epibatch.core.structs import convert_to_numpy

from .._engine.chunks import ChunkGroup
from .advantage_estimation import AdvantageEstimation, Floats, Segments, called, not_a_number

__all__ = ["VTrace"]


class VTrace(AdvantageEstimation):
    """Adds `advantages` and `value_targets` by V-trace (Espeholt et al. 2018, arXiv:1802.01561).

    It corrects for the difference between the policy that acted, of which `action_logp` is recorded, and the module's
    present one. Ratios of the two are clipped. Values and probabilities are computed here, once for the whole batch,
    bootstrap rows included. Only termination stops bootstrapping. On rows without loss advantages are 0, and the target
    is the value itself. With the policy that acted it gives the advantages of GeneralAdvantageEstimation(lambda_=1).

    RLlib also corrects the bootstrap step that it appends, which pulls the value targets before a cut towards 0. Here
    only real steps are corrected.

    Args:
        gamma: Discount, in [0, 1].
        clip_rho_threshold: Highest ratio that weights a step in the value targets; `inf` for none.
        clip_pg_rho_threshold: Highest ratio that weights an advantage; `inf` for none.
        target: Name of a module in what the learner's update rule keeps, such as a target network, whose policy takes
            the place of the module's; "": the module's own. Before the rule keeps something it is the module's own.
        per_module: Module id -> settings among these that a module has for itself; the one module of one agent is
            "default_policy".

    Raises:
        ConfigError: A setting is out of its range, or the update rule keeps no module of that name.
        ColumnError: No rewards, flags, loss mask, actions or `action_logp` in the batch.
        PipelineError: No module was given, or one without `compute_values` or a policy.

    Examples:
        >>> VTrace(gamma=0.9, clip_rho_threshold=2.0)
        VTrace(gamma=0.9, clip_rho_threshold=2.0)
    """

    reads: ClassVar[tuple[str, ...]] = (*AdvantageEstimation.reads, Columns.ACTIONS, Columns.ACTION_LOGP)
    methods: ClassVar[Mapping[str, str]] = {
        **AdvantageEstimation.methods,
        "forward_train": "which gives action_dist_inputs",
        "get_train_action_dist_cls": "which gives probabilities of actions",
    }
    gamma: Annotated[float, Interval(ge=0, le=1)] = 0.99
    clip_rho_threshold: Annotated[float, Ge(0)] = 1.0
    clip_pg_rho_threshold: Annotated[float, Ge(0)] = 1.0
    target: str = ""
    per_module: Mapping[str, Mapping[str, Any]] | None = None

    def estimate(self, segments: Segments, group: ChunkGroup) -> tuple[Floats, Floats]:
        """Return the advantages, and what is added to the values."""
        inputs, settings, real = segments.inputs, segments.settings, segments.real
        do = "learn from episodes that the module acted in"
        recorded = self.need(inputs, Columns.ACTION_LOGP, do)
        module = self._target(group, settings["target"])
        logits = called(module, "forward_train", inputs)[Columns.ACTION_DIST_INPUTS]
        now = module.get_train_action_dist_cls().from_logits(logits).logp(self.need(inputs, Columns.ACTIONS, do))
        before, now = (where(real, segments.flat(logp), 0.0) for logp in (recorded, now))
        name = f"{type(module).__name__}.forward_train, log-probability of the action"
        for logp, place in ((before, f"column {Columns.ACTION_LOGP!r}"), (now.clip(min=-1e30), name)):
            if not are_finite(logp):  # -inf is an action that the policy never chooses now
                raise not_a_number(group, place, convert_to_numpy(logp), f"look for NaN in the module's outputs; {do}")
        thresholds = settings["clip_rho_threshold"], settings["clip_pg_rho_threshold"]
        gamma, ends = settings["gamma"], segments.terminateds
        corrections, advantages = vtrace(segments.errors, now - before, ends, segments.counts, gamma, *thresholds)
        return advantages, corrections

    def _target(self, group: ChunkGroup, name: str) -> Any:
        """The module whose policy is meant."""
        own = group.shared_data.get(KEPT_BY_RULES, {}).get(group.module_id)
        if not name or own is None:  # a rule that was never used keeps nothing yet
            return group.rl_module
        try:
            return own.get_submodule(name)
        except AttributeError as error:
            found = ", ".join(name for name, _ in own.named_children()) or "no modules"
            raise ConfigError(
                f"VTrace, target of module {group.module_id!r}",
                expected="the name of a module that the update rule keeps",
                found=f"{name!r}; it keeps {found}",
                do='return nn.ModuleDict({"target": frozen_copy(module)}) in its make_own, or leave target out',
            ) from error
