"""The pipeline between a module and an environment."""

from __future__ import annotations

from typing import Any, ClassVar

from epibatch.core.columns import Columns
from epibatch.core.errors import PipelineError, explain

from ..connector_pipeline_v2 import ConnectorPipelineV2
from ..connector_v2 import ConnectorV2
from ..plan import place

__all__ = ["ModuleToEnvPipeline", "has_the_last_word"]

_OR = "\n            or "


class ModuleToEnvPipeline(ConnectorPipelineV2):
    """Makes actions for an environment from a module's output.

    Raises:
        PipelineError: what `ConnectorPipelineV2` refuses; a transform of `actions`, which are stored beside their
            log-probabilities; or one of `actions_for_env` in front of the piece that makes them.
    """

    start_layout: ClassVar[str] = "tensors"
    start_columns: ClassVar[tuple[str, ...] | None] = None
    training: ClassVar[bool | None] = False

    def _check_pieces(self, pieces: tuple[ConnectorV2, ...]) -> None:
        made = False
        for position, piece in enumerate(pieces):
            columns = _transformed(piece)
            where = place(type(self).__name__, position, piece)
            if Columns.ACTIONS in columns:
                raise _changes_what_is_stored(where, piece)
            if Columns.ACTIONS_FOR_ENV not in columns:
                made = made or _may_make(piece)
            elif not made:
                raise _too_early(where, piece)


def has_the_last_word(piece: Any) -> bool:
    """Whether a piece transforms `actions_for_env`, so that it stands behind the piece that makes them."""
    return Columns.ACTIONS_FOR_ENV in _transformed(piece)


def _transformed(piece: Any) -> tuple[str, ...]:
    from ..authoring.column_transform import ColumnTransform

    return piece.writes if isinstance(piece, ColumnTransform) else ()


def _may_make(piece: Any) -> bool:
    """Whether a piece makes the environment's actions, or does not say what it makes."""
    declared = isinstance(piece, ConnectorV2) and (piece.columnar or piece.reads is not None)
    return not declared or Columns.ACTIONS_FOR_ENV in piece.writes


def _changes_what_is_stored(where: str, piece: Any) -> PipelineError:
    return PipelineError(
        explain(
            where,
            expected="actions as the module gave them, since they are stored beside their log-probabilities",
            found=f"{piece!r}, which transforms 'actions'",
            do="put it into the env-to-module pipeline, .env_runners(env_to_module_connector=...), with an inverse"
            f"{_OR}to change only what the environment gets, transform 'actions_for_env'",
        )
    )


def _too_early(where: str, piece: Any) -> PipelineError:
    return PipelineError(
        explain(
            where,
            expected="column 'actions_for_env', in the environment's units, made by a piece in front of it",
            found=f"{piece!r} in front of the piece that makes it",
            do="put it behind NormalizeAndClipActions: pipeline.insert_after('normalize_and_clip_actions', piece)",
        )
    )
