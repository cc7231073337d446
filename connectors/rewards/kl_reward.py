"""Keeps a policy near another one, by its rewards."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from annotated_types import Interval

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, ConfigError, StateError, UnknownNameError, nearest
from epibatch.core.rl_module.module_facts import is_multi

from .._engine.chunks import ChunkGroup
from ..authoring.fields import ParameterPiece
from ..columnar_piece import Piece

if TYPE_CHECKING:
    import torch


class KLReward(ParameterPiece, Piece):
    """Takes `coef * KL(current || reference)` off each step's reward: the price of leaving a reference policy.

    The current policy is the one that acted, by its recorded `action_dist_inputs`; if the batch has none, the module as
    it is. The reference is a frozen copy of a module, or of the module itself as the piece finds it first: the policy
    that training begins with. It is saved with the piece's state. As in fine-tuning from human feedback (Ziegler et al.
    2019), with the divergence itself in place of an estimate by the action's log-probability.

    It stands between `NumpyToTensor` and what reads rewards: `pipeline.insert_after("NumpyToTensor", KLReward())`.
    Rows that `loss_mask` leaves out stay as they are.

    Counterparts: TorchRL's `KLRewardTransform`.

    Args:
        coef: The factor, at least 0.
        reference: An RLModule for the same observations and actions, or a MultiRLModule of one for each module; None:
            the module itself, as it is when the piece is first called.

    Raises:
        ConfigError: a factor below 0, or something else than a module.
        UnknownNameError: a MultiRLModule without the module that the rows are for.
        ColumnError: a reference that gives no distribution of the same rows.

    Examples:
        >>> KLReward(coef=0.05)
        KLReward(coef=0.05, reference=None)
    """

    pipelines: ClassVar[tuple[str, ...]] = ("learner",)
    input_layouts: ClassVar[tuple[str, ...]] = ("tensors",)
    needs_episodes: ClassVar[bool] = True
    reads: ClassVar[tuple[str, ...]] = (Columns.OBS, Columns.REWARDS)
    writes: ClassVar[tuple[str, ...]] = (Columns.REWARDS,)
    coef: Annotated[float, Interval(ge=0, lt=math.inf)] = 0.1
    reference: Any = None

    def __post_init__(self) -> None:
        """Check the parameters."""
        if self.reference is not None and not hasattr(self.reference, "forward_inference"):
            raise ConfigError(
                "KLReward.reference",
                expected="an RLModule, or None",
                found=f"{type(self.reference).__name__} {self.reference!r}",
                do='pass RLModule.from_checkpoint("folder"), say',
            )
        self._references: dict[Any, Any] = {}
        self._weights: dict[Any, Any] = {}

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Take the divergence off the rewards."""
        if group.rl_module is None:
            return columns
        import torch

        module, module_id = group.rl_module, group.module_id
        rewards = columns[Columns.REWARDS]
        kind = module.get_inference_action_dist_cls()
        with torch.no_grad():
            inputs = columns.get(Columns.ACTION_DIST_INPUTS)
            current = _inputs(module, columns) if inputs is None else inputs
            reference = _inputs(self._reference(module, module_id), columns)
            divergence = kind.from_logits(current).kl(kind.from_logits(reference))
            if divergence.shape != rewards.shape:
                raise ColumnError(
                    f"KLReward, module {module_id!r}",
                    expected=f"one divergence per row, shape {list(rewards.shape)}",
                    found=f"shape {list(divergence.shape)}",
                    do="give a reference for the same observations and actions",
                )
            change = (self.coef * divergence).to(rewards.dtype)
            mask = columns.get(Columns.LOSS_MASK)
            columns[Columns.REWARDS] = rewards - (change if mask is None else torch.where(mask.bool(), change, 0.0))
        return columns

    def _reference(self, module: Any, module_id: Any) -> Any:
        """The frozen module that rows of a module are compared with."""
        network = self._references.get(module_id)
        if network is None:
            source = module if self.reference is None else self.reference
            if self.reference is not None and is_multi(source):
                if module_id not in source:
                    raise UnknownNameError(
                        "KLReward.reference",
                        expected=f"a module {module_id!r}",
                        found=", ".join(map(repr, source.keys())),
                        do=nearest(str(module_id), map(str, source.keys())),
                    )
                source = source[module_id]
            network = self._references[module_id] = copy.deepcopy(source).requires_grad_(False).eval()
            if module_id in self._weights:
                network.set_state(self._weights.pop(module_id))
        return network.to(next(iter(module.parameters())).device) if any(True for _ in module.parameters()) else network

    # -- state ---------------------------------------------------------------------------------------

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """`references`: copies of the weights of each reference; {} before there is one."""
        weights = {
            **copy.deepcopy(self._weights),
            **{n: copy.deepcopy(m.get_state()) for n, m in self._references.items()},
        }
        return {"references": weights} if weights else {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over the weights.

        Raises:
            StateError: something else.
        """
        references = state.get("references", {} if not state else None) if isinstance(state, Mapping) else None
        if not isinstance(references, Mapping):
            found = f"keys {sorted(map(str, state))}" if isinstance(state, Mapping) else repr(state)
            do = "pass what get_state gave"
            raise StateError("KLReward.set_state", expected="{'references': ...}", found=found, do=do)
        self._references, self._weights = {}, copy.deepcopy(dict(references))

    def reset_state(self) -> None:
        """Forget the references; the next call copies them again."""
        self._references, self._weights = {}, {}

    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """The first state that has references: copies that began with one module have the same."""
        return dict(next((state for state in states if state), {}))


def _inputs(module: Any, batch: dict[str, Any]) -> torch.Tensor:
    out = module.forward_inference(batch)
    if Columns.ACTION_DIST_INPUTS not in out:
        raise ColumnError(
            f"{type(module).__name__}.forward_inference",
            expected="'action_dist_inputs', from which the distribution is made",
            found=f"columns {sorted(map(str, out))}",
            do="return them, as the default modules do",
        )
    inputs: torch.Tensor = out[Columns.ACTION_DIST_INPUTS]
    return inputs
