"""Conversion of connector pieces between the libraries."""

from __future__ import annotations

from typing import Any

from epibatch.connectors.connector_v2 import ConnectorV2
from epibatch.connectors.learner.add_one_ts_to_episodes_and_truncate import AddOneTsToEpisodesAndTruncate
from epibatch.core.errors import PieceError, nearest
from epibatch.core.imports import import_extra
from epibatch.core.piece_declarations import PIPELINE_NAMES

from .library import rllib

_REWRITERS = (
    "FlattenObservations",
    "MeanStdFilter",
    "PrevActionsPrevRewards",
    "SingleAgentObservationPreprocessor",
    "WriteObservationsToEpisodes",
)


def to_rllib_piece(piece: ConnectorV2, *, pipeline: str | None = None) -> Any:
    """Wrap one of our pieces, or a pipeline of ours, for a pipeline of RLlib's.

    At each call the piece gets RLlib's episodes converted to ours, and the batch with our keys and tags. Its changes
    are written back to RLlib's. Numeric columns of RLlib's numpy mode are not copied. Those of its list mode, which
    acting episodes use, are stacked at every call. The piece's spaces follow RLlib's. Its state is in RLlib's state,
    under its class's name. `AddOneTsToEpisodesAndTruncate` lengthens and renames RLlib's episodes as RLlib's own piece
    does, since later pieces need that. A piece from `from_rllib_piece` is unwrapped.

    Args:
        piece: The piece.
        pipeline: Its pipeline: "env_to_module", "module_to_env" or "learner". Default: the one that it declares, if
            there is exactly one.

    Returns:
        A `ray.rllib.connectors.connector_v2.ConnectorV2`; its `piece` is the one given.

    Raises:
        MissingExtraError: RLlib is not installed.
        PieceError: something that is no piece of ours, or an unknown pipeline.

    Examples:
        >>> from epibatch.connectors.env_to_module import MeanStdFilter
        >>> from ray.rllib.connectors.env_to_module import EnvToModulePipeline
        >>> EnvToModulePipeline(connectors=[to_rllib_piece(MeanStdFilter())])
        EnvToModulePipeline
            MeanStdFilter
    """
    library = rllib()
    if not isinstance(piece, ConnectorV2):
        is_rllib = isinstance(piece, library.ConnectorV2)
        raise _no_piece("to_rllib_piece", piece, "a piece of epibatch's", "RLlib's already" if is_rllib else "")
    adapters = _adapters()
    if isinstance(piece, adapters.RLlibPieceAdapter):
        return piece.piece
    if pipeline is None and len(piece.pipelines) == 1:
        pipeline = piece.pipelines[0]
    if pipeline is not None and pipeline not in PIPELINE_NAMES:
        do = nearest(str(pipeline), PIPELINE_NAMES)
        expected = "env_to_module, module_to_env or learner"
        raise PieceError("to_rllib_piece, pipeline", expected=expected, found=repr(pipeline), do=do)
    return adapters.adapt_epibatch_piece(piece, pipeline)


def from_rllib_piece(piece: Any, *, rewrites_observations: bool | None = None, lookback: int = 0) -> ConnectorV2:
    """Wrap one of RLlib's pieces, or a pipeline of RLlib's, for a pipeline of ours.

    At each call the piece gets our episodes converted to RLlib's, in numpy mode when learning and in list mode when
    acting, as in RLlib, and the batch with RLlib's keys and tags. Its changes are written back to ours. Numeric columns
    are not copied. It is an undeclared piece: its position is not checked, and its reads into lookback are recorded,
    so that chunks are cut with enough lookback. Its state is saved with the pipeline's.

    RLlib's `AddOneTsToEpisodesAndTruncate` is replaced by ours: here bootstrap rows are rows of the batch, and episodes
    do not change. A piece from `to_rllib_piece` is unwrapped.

    Args:
        piece: The piece.
        rewrites_observations: True if it replaces the episodes' newest observations, so that learner pieces read
            the new ones. Default: True for RLlib's pieces that do so, and their subclasses.
        lookback: Least number of steps that it reads before a chunk's start, for a piece that may later read further
            back than it did when its chunks were cut.

    Returns:
        A `ConnectorV2`; its `piece` is the one given.

    Raises:
        MissingExtraError: RLlib is not installed.
        PieceError: something that is no piece of RLlib's.

    Examples:
        >>> from epibatch.connectors.env_to_module import EnvToModulePipeline
        >>> from ray.rllib.connectors.env_to_module import MeanStdFilter
        >>> EnvToModulePipeline(connectors=[from_rllib_piece(MeanStdFilter())]).names
        ['mean_std_filter']
    """
    library = rllib()
    if not isinstance(piece, library.ConnectorV2):
        is_ours = isinstance(piece, ConnectorV2)
        raise _no_piece("from_rllib_piece", piece, "a piece of RLlib's", "epibatch's already" if is_ours else "")
    adapters = _adapters()
    if isinstance(piece, adapters.EpibatchPieceAdapter):
        return piece.piece  # type: ignore[no-any-return]
    names = {cls.__name__ for cls in type(piece).__mro__ if cls.__module__.startswith("ray.rllib.")}
    if "AddOneTsToEpisodesAndTruncate" in names:
        return AddOneTsToEpisodesAndTruncate()
    if rewrites_observations is None:
        rewrites_observations = not names.isdisjoint(_REWRITERS)
    return adapters.adapt_rllib_piece(piece, rewrites_observations, lookback)  # type: ignore[no-any-return]


def _adapters() -> Any:
    return import_extra("epibatch.interop.rllib.piece_adapters", "rllib", "a piece of the other library")


def _no_piece(where: str, found: Any, expected: str, other: str) -> PieceError:
    name, do = f"{type(found).__name__} {found!r}", "pass an instance of a ConnectorV2"
    if isinstance(found, type):
        name, do = f"the class {found.__module__}.{found.__name__}", f"call it: {found.__name__}(...)"
    elif other:
        name, do = f"{type(found).__name__}, which is {other}", "use it as it is"
    return PieceError(where, expected=expected, found=name, do=do)
