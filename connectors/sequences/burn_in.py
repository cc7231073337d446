"""Brings the states of sequences up to date before there is anything to learn from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError
from epibatch.core.rl_module.module_facts import method_of, sequence_settings
from epibatch.core.sequence_ends import without_burn_in
from epibatch.core.structs import Form, flatten, flatten_like, unflatten

from .._engine.chunks import ChunkGroup
from .._engine.sequences import layout_of
from .batch_of_sequences import PieceOfSequences, map_rows, map_sequences, num_sequences_and_steps

if TYPE_CHECKING:
    import torch


class BurnIn(PieceOfSequences):
    """Runs the first steps of each sequence without gradient, and keeps the rest with the state after them.

    The setting `burn_in` in the module's `model_config` is the number k of these steps. They count for `max_seq_len`,
    so T becomes T - k. The module computes `state_in` from the recorded state k steps earlier, with its current
    weights (stored state and burn-in, Kapturowski et al. 2019, R2D2). The sequence before trains on these rows, so none
    is lost. A chunk's first sequence has no earlier rows and keeps its recorded state. Views with one row per sequence
    are then those of the first remaining row, as they were recorded.

    Configs put the piece after NumpyToTensor if a module asks for it. Without it the rows stay in the batch and carry
    no loss, but the gradient flows through them.

    Counterparts: TorchRL's `BurnInTransform`.

    Raises:
        ColumnError: the module's `forward_train` gives no `state_out`, or one of another shape than `state_in`; or an
            earlier piece has changed a column with one row per sequence.

    Examples:
        >>> from epibatch.algorithms import PPOConfig
        >>> config = PPOConfig().rl_module(model_config={"use_lstm": True, "max_seq_len": 20, "burn_in": 5})
        >>> config.build_learner_connector().names[-2:]
        ['numpy_to_tensor', 'burn_in']
    """

    def changed(self, batch: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Burn each module's sequences in."""
        import torch

        module = group.rl_module
        rows, steps = num_sequences_and_steps(batch)
        layout = layout_of(group, steps)
        if layout.burn_in is None:
            return batch
        if layout.mask.shape != (rows, steps):
            raise ColumnError(
                "BurnIn",
                expected=f"sequences {list(layout.mask.shape)}, as the chunks and the module's settings make them",
                found=f"{[rows, steps]}",
                do="let it run in the pipeline that makes the sequences",
            )
        burn_in = sequence_settings(module, steps).burn_in
        burned = torch.from_numpy(layout.burn_in).to(batch[Columns.LOSS_MASK].device)
        out = _states(batch, module, burned, group)
        rows_left = layout.first_rows + layout.burn_in
        out |= {
            name: _gathered_again(name, batch[name], rows_left, group) for name in group.per_sequence if name in batch
        }
        left = steps - burn_in
        places = torch.arange(rows, device=burned.device)[:, None] * steps + burned[:, None]
        flat = (places + torch.arange(left, device=burned.device)).flatten()
        out |= map_rows(
            batch, group, lambda leaf: leaf.flatten(0, 1).index_select(0, flat).view(rows, left, *leaf.shape[2:])
        )
        group.sequences = without_burn_in(layout, burn_in)
        return {**{name: out[name] for name in batch}, Columns.SEQ_LENS: batch[Columns.SEQ_LENS] - burned}


def _gathered_again(name: str, column: Any, rows: Any, group: ChunkGroup) -> Any:
    """A column that there is once per sequence, as it is at other rows: those that are not burned in."""
    import torch

    take = group.per_sequence[name]
    if take is None:
        raise ColumnError(
            f"BurnIn, column {name!r}, of which there is one row per sequence",
            expected="what a view made, which is taken again at the first row that is left",
            found="what another piece has made, or changed",
            do="put that piece after BurnIn",
        )
    later = flatten(take(group, rows))[0]
    leaves, form = flatten(column)
    return unflatten(form, [torch.from_numpy(array).to(leaf) for array, leaf in zip(later, leaves)])


def _states(batch: dict[str, Any], module: Any, burned: torch.Tensor, group: ChunkGroup) -> dict[str, Any]:
    """Return the columns with one row per sequence; states are those after the rows to burn in."""
    out = map_sequences(batch, group, lambda leaf: leaf)
    for name, obs in ((Columns.STATE_IN, Columns.OBS), (Columns.NEXT_STATE_IN, Columns.NEXT_OBS)):
        if name in batch:
            out[name] = _state_after(batch, module, burned, group, (name, obs))
    return out


def _state_after(
    batch: dict[str, Any], module: Any, burned: torch.Tensor, group: ChunkGroup, names: tuple[str, str]
) -> Any:
    """Return the states of a column `state_in` after the rows that are burned in."""
    import torch

    name, obs = names
    leaves, form = flatten(batch[name])
    leaves = [leaf.clone() for leaf in leaves]
    for steps in sorted(set(burned.tolist()) - {0}):
        indices = torch.nonzero(burned == steps).flatten()

        def chosen(leaf: torch.Tensor, indices: torch.Tensor = indices) -> torch.Tensor:
            return leaf.index_select(0, indices)

        def front(leaf: torch.Tensor, indices: torch.Tensor = indices, steps: int = steps) -> torch.Tensor:
            return leaf[:, :steps].index_select(0, indices)

        part = map_sequences(batch, group, chosen) | map_rows(batch, group, front)
        part[Columns.OBS] = part[obs]
        part[Columns.STATE_IN] = unflatten(form, [leaf.index_select(0, indices) for leaf in leaves])
        part[Columns.SEQ_LENS] = torch.full((len(indices),), steps, device=indices.device)
        with torch.no_grad():
            found = method_of(module, "forward_train", "BurnIn", "which gives the states")(part)
        for leaf, state in zip(leaves, _checked(found, form, part[Columns.STATE_IN], module)):
            leaf[indices] = state.to(leaf.dtype)
    return unflatten(form, leaves)


def _checked(outputs: dict[str, Any], form: Form, before: Any, module: Any) -> list[Any]:
    """The leaves of `state_out`, which has to be of the shapes of `state_in`."""
    where = f"{type(module).__name__}.forward_train, to burn states in"
    do = "return the state after the last step of each sequence as state_out"
    if Columns.STATE_OUT not in outputs:
        columns = f"columns {sorted(map(str, outputs))}"
        raise ColumnError(where, expected="a column 'state_out'", found=columns, do=do)
    leaves = flatten_like(form, outputs[Columns.STATE_OUT])
    shapes, found = ([list(leaf.shape) for leaf in states] for states in (flatten(before)[0], leaves))
    if shapes != found:
        raise ColumnError(where, expected=f"a state_out of shapes {shapes}", found=f"{found}", do=do)
    return leaves
