"""Copies of pieces, and pieces that stand in two pipelines on purpose."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from epibatch.core.errors import PieceError

if TYPE_CHECKING:
    from .connector_pipeline_v2 import ConnectorPipelineV2
    from .connector_v2 import ConnectorV2

__all__ = ["clone_of", "keep_apart"]

_PIPELINES: WeakSet[ConnectorPipelineV2] = WeakSet()
"""All pipelines that somebody still holds."""


def clone_of(piece: Any, *, share_state: bool) -> Any:
    """Another piece with the same arguments and spaces.

    Args:
        piece: The piece.
        share_state: Whether both have one state, so that each goes on from what the other has learned; otherwise the
            clone starts with a copy.
    """
    if share_state:
        twin = object.__new__(type(piece))
        twin.__dict__ = piece.share().__dict__
        return twin
    args, kwargs = piece.get_ctor_args_and_kwargs()
    clone = type(piece)(*args, **kwargs)
    clone.spaces_by_agent = piece.spaces_by_agent
    clone.input_observation_space = piece.input_observation_space
    clone.input_action_space = piece.input_action_space
    state = piece.get_state()
    if state:
        clone.set_state(state)
    if piece.frozen:
        clone.freeze()
    return clone


def keep_apart(pipeline: ConnectorPipelineV2) -> None:
    """Refuse pieces that another pipeline has, or that are in this one twice, unless they say that they are shared.

    Raises:
        PieceError: two pipelines would set one piece's spaces, and change one state.
    """
    _PIPELINES.add(pipeline)
    seen: set[int] = set()
    for position, piece in enumerate(pipeline.connectors):
        if id(piece) in seen and not piece.shared:
            raise _taken(pipeline, position, piece, "the same piece twice in this pipeline")
        seen.add(id(piece))
        if piece.shared or not any(_others(pipeline, piece)):
            continue
        gc.collect()  # what nobody holds any more may still be waiting for it
        others = list(_others(pipeline, piece))
        if others:
            raise _taken(pipeline, position, piece, f"the one that is in another {type(others[0]).__name__} already")


def _others(pipeline: ConnectorPipelineV2, piece: ConnectorV2) -> Iterable[ConnectorPipelineV2]:
    for other in list(_PIPELINES):
        if other is not pipeline and any(one is piece for one in other.connectors):
            yield other


def _taken(pipeline: ConnectorPipelineV2, position: int, piece: ConnectorV2, found: str) -> PieceError:
    name = type(piece).__name__
    return PieceError(
        f"{type(pipeline).__name__}, piece {position} ({name})",
        expected="a piece of its own",
        found=found,
        do=f"make a new {name} for each place, or piece.clone(); to let one state serve both, put in piece.share()",
    )
