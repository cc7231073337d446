"""Whether `obs` and `new_obs` of a pipeline go through the same transforms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from epibatch.core.columns import Columns
from epibatch.core.errors import PipelineError

if TYPE_CHECKING:
    from .plan import Step

__all__ = ["check_next_observations"]


def check_next_observations(steps: Sequence[Step]) -> None:
    """Make sure that, where a pipeline makes `new_obs`, each transform of `obs` is one of `new_obs` too.

    A loss that bootstraps from next observations gives both to one network, so both have to be of its space. Pieces
    that say what they transform are counted, by class and part of the column; others are trusted, and so are those with
    `training_only = True`, as augmentation has.

    Args:
        steps: The plan's, for training.

    Raises:
        PipelineError: one transforms `obs` alone.
    """
    maker = next((step for step in steps if Columns.NEXT_OBS in step.piece.writes), None)
    if maker is None:
        return
    left = Counter((type(step.piece), part) for step in steps for part in _parts(step.piece, Columns.NEXT_OBS))
    for step in steps:
        for part in _parts(step.piece, Columns.OBS):
            if not left[type(step.piece), part]:
                raise _alone(step.where, step.piece, part, maker.where)
            left[type(step.piece), part] -= 1


def _parts(piece: Any, column: str) -> Iterator[str]:
    """What a piece transforms of a column: "" for all of it, "/camera" for a part."""
    for address in piece.transforms if piece.columnar and not piece.training_only else ():
        name, slash, rest = address.partition("/")
        if name == column:
            yield slash + rest


def _alone(where: str, piece: Any, part: str, maker: str) -> PipelineError:
    name = type(piece).__name__
    columns = f'columns = ("{Columns.OBS}{part}", "{Columns.NEXT_OBS}{part}")'
    return PipelineError(
        where,
        expected=f"{Columns.OBS + part!r} and {Columns.NEXT_OBS + part!r} transformed alike, for one network",
        found=f"{Columns.OBS + part!r} alone; {Columns.NEXT_OBS!r} stays as the episodes have it, by {maker}",
        do=f"let {name} transform both: {columns}; or transform observations while acting and put "
        f"WriteObservationsToEpisodes behind it there, without {name} in the learner pipeline; or, if it is meant, "
        "as with augmentation, write training_only = True in its class",
    )
