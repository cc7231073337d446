"""Base of pieces that stand in the env-to-module pipeline and, told so, in the learner's."""

from __future__ import annotations

from typing import ClassVar

from ..columnar_piece import ColumnarPiece

__all__ = ["TwoSidedPiece"]


class TwoSidedPiece(ColumnarPiece):
    """A piece that takes the newest step of each episode or, with `as_learner_connector`, all steps."""

    pipelines: ClassVar[tuple[str, ...]] = ("env_to_module", "learner")
    input_layouts: ClassVar[tuple[str, ...]] = ("episodes",)
    as_learner_connector: bool = False
