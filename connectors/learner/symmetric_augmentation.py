"""Adds mirrored rows to a train batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from epibatch.core.columns import Columns
from epibatch.core.errors import ConfigError, PieceOutputError
from epibatch.core.imports import load_object
from epibatch.core.structs import flatten, flatten_like, unflatten

from .._engine.chunks import ChunkGroup
from ..authoring.fields import ParameterPiece
from ..columnar_piece import Piece


class SymmetricAugmentation(ParameterPiece, Piece):
    """Adds mirrored rows to the train batch of a task with symmetries (Mittal et al. 2024, arXiv:2403.04359).

    Observations and actions of the added rows come from your functions; all other columns are repeated. So a mirrored
    row has the advantage, the value target and the log-probability of the action of its original, as if the policy that
    acted were symmetric. The column `mirrored` is True in the added rows. PPO's loss leaves them out of its entropy and
    divergences.

    Append the piece to the learner pipeline: `algo.learner.connector.append(SymmetricAugmentation(...))`. Minibatches
    are then drawn from all rows. `SymmetricPPOLoss` mirrors each minibatch instead, as rsl_rl does.

    Sequences of recurrent modules are mirrored whole. They begin with the recorded states of their originals.

    Args:
        observations: Function of observations [N, ...], or of a struct of them, that returns mirrored ones; or its
            import path `package.module:name`. For k symmetries it returns [k * N, ...], all rows of one, then the next.
        actions: Likewise for actions.

    Raises:
        ConfigError: something else than a function.
        RegistryError: there is nothing at the import path.
        PieceOutputError: a function returned another nesting or number of rows.

    Examples:
        >>> import torch
        >>> piece = SymmetricAugmentation(observations=torch.neg, actions=torch.neg)
        >>> columns = {"obs": torch.tensor([[1.0], [2.0]]), "actions": torch.tensor([0.5, -1.0])}
        >>> mirrored_rows(columns, piece.observations, piece.actions)["actions"].tolist()
        [0.5, -1.0, -0.5, 1.0]
    """

    pipelines: ClassVar[tuple[str, ...]] = ("learner",)
    input_layouts: ClassVar[tuple[str, ...]] = ("tensors",)
    needs_episodes: ClassVar[bool] = True
    reads: ClassVar[tuple[str, ...]] = (Columns.OBS, Columns.ACTIONS)
    writes: ClassVar[tuple[str, ...]] = (Columns.MIRRORED,)
    import_parameters: ClassVar[tuple[str, ...]] = ("observations", "actions")
    training_only = True
    observations: Any
    actions: Any

    def __post_init__(self) -> None:
        """Find the functions."""
        self._functions = symmetry_functions("SymmetricAugmentation", self.observations, self.actions)

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Add the rows."""
        return mirrored_rows(columns, *self._functions)


def symmetry_functions(owner: str, *choices: Any) -> list[Callable[[Any], Any]]:
    """Return functions for functions or their import paths.

    Args:
        owner: Name of the piece or loss, for messages.
        choices: Those of observations and of actions.

    Raises:
        ConfigError: something else.
        RegistryError: there is nothing at an import path.
    """
    functions = []
    for name, choice in zip(("observations", "actions"), choices):
        function = load_object(choice, f"{owner}.{name}", "function") if isinstance(choice, str) else choice
        if not callable(function):
            expected, do = "a function of rows, or its import path", "write observations=mirrored, for example"
            raise ConfigError(f"{owner}.{name}", expected=expected, found=repr(choice), do=do)
        functions.append(function)
    return functions


def mirrored_rows(
    columns: Mapping[str, Any], observations: Callable[[Any], Any], actions: Callable[[Any], Any]
) -> dict[str, Any]:
    """Return a train batch of one module with its mirrored rows after its rows, and the column `mirrored`.

    Args:
        columns: Column -> tensor [B, ...], or struct of them; with `seq_lens` [B, T, ...]. Lists and arrays with one
            item per row are repeated, too; other entries stay as they are.
        observations: See `SymmetricAugmentation`.
        actions: Likewise.

    Raises:
        PieceOutputError: a function returned another nesting or number of rows.
    """
    import torch

    first = flatten(columns[Columns.OBS])[0][0]
    leading = first.shape[: 2 if Columns.SEQ_LENS in columns else 1]
    new = {
        name: mirrored_struct(columns[name], function, len(leading), f"the function of {name}")
        for name, function in ((Columns.OBS, observations), (Columns.ACTIONS, actions))
    }
    copies = [len(flatten(struct)[0][0]) // leading[0] for struct in new.values()]
    if copies[0] != copies[1]:
        raise _unfit("the functions of obs and actions", "as many symmetries in both", f"{copies[0]} and {copies[1]}")
    out: dict[str, Any] = {}
    for name, column in columns.items():
        leaves, form = flatten(column)
        added = flatten_like(form, new[name]) if name in new else None
        out[name] = unflatten(
            form, [_joined(leaf, leading[0], copies[0], added and added[i]) for i, leaf in enumerate(leaves)]
        )
    mirrored = torch.ones(((1 + copies[0]) * leading[0], *leading[1:]), dtype=torch.bool, device=first.device)
    mirrored[: leading[0]] = False
    out[Columns.MIRRORED] = mirrored
    return out


def mirrored_struct(struct: Any, function: Callable[[Any], Any], axes: int, where: str) -> Any:
    """Return what a function makes of rows, of the same nesting.

    Args:
        struct: A tensor [B, ...] or [B, T, ...], or a struct of them.
        function: Of rows [N, ...]; sequences are given to it as rows.
        axes: 2 for sequences, otherwise 1.
        where: What the function is, for messages.

    Raises:
        PieceOutputError: the result has another nesting or another shape of rows.
    """
    leaves, form = flatten(struct)
    rows = [leaf.flatten(0, axes - 1) for leaf in leaves]
    result = function(unflatten(form, rows))
    try:
        new = flatten_like(form, result)
    except Exception as error:
        raise _unfit(where, "a struct of the same nesting", str(error)) from error
    for leaf, out in zip(rows, new):
        shape = getattr(out, "shape", None)
        if shape is None or shape[1:] != leaf.shape[1:] or not len(out) or len(out) % len(leaf):
            found = type(out).__name__ if shape is None else f"shape {list(shape)}"
            raise _unfit(where, f"rows of shape {list(leaf.shape)}, or a multiple of that many", found)
    return unflatten(form, [out.reshape(-1, *leaf.shape[1:]) for leaf, out in zip(leaves, new)] if axes > 1 else new)


def _joined(leaf: Any, rows: int, copies: int, added: Any) -> Any:
    """Return a leaf of a column with the rows of the copies after its own."""
    import numpy as np
    import torch

    if isinstance(leaf, torch.Tensor) and leaf.shape[:1] == (rows,):
        return torch.cat([leaf, added]) if added is not None else leaf.repeat(1 + copies, *[1] * (leaf.ndim - 1))
    if isinstance(leaf, np.ndarray) and leaf.shape[:1] == (rows,):
        return np.concatenate([leaf] * (1 + copies))
    return leaf * (1 + copies) if isinstance(leaf, list) and len(leaf) == rows else leaf


def _unfit(where: str, expected: str, found: str) -> PieceOutputError:
    return PieceOutputError(where, expected=expected, found=found, do="return mirrored rows of the same struct")
