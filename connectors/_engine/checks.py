"""Checks of a pipeline's arguments, before anything runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import gymnasium as gym

from epibatch.core.errors import (
    BatchLayoutError,
    CheckpointError,
    EpibatchWarning,
    PieceError,
    PipelineError,
    SpaceError,
    nearest,
)
from epibatch.core.imports import advice_for_episode, is_rllib_class

from ...episodes.vector_episodes import VectorEpisodes


def check_pipeline_arguments(
    pipeline: Any, spaces: tuple[Any, Any], connectors: Any, others: Mapping[str, Any]
) -> None:
    """Check a pipeline's constructor arguments.

    Args:
        pipeline: The pipeline.
        spaces: Input observation and action space.
        connectors: The pieces.
        others: Keywords beyond these, which a subclass in user code may pass on.

    Raises:
        PieceError: pieces in another place than `connectors=`, or an unknown keyword.
        SpaceError: a space that is none.
    """
    name = type(pipeline).__name__
    if isinstance(spaces[0], (list, tuple)):
        expected, found = "input spaces first, and the pieces as `connectors=`", type(spaces[0]).__name__
        do = f"{name}(connectors=[...])"
        raise PieceError(f"{name}(...)", expected=expected, found=f"a {found} as input_observation_space", do=do)
    for key, space in zip(("input_observation_space", "input_action_space"), spaces):
        if space is not None and not isinstance(space, gym.Space):
            found = f"{type(space).__name__} {space!r}"
            do = "pass env.observation_space and env.action_space of one environment"
            raise SpaceError(f"{name}.{key}", expected="a gymnasium Space", found=found, do=do)
    check_connectors(name, connectors)
    if others and type(pipeline).__module__.startswith("epibatch."):
        keywords = ["input_observation_space", "input_action_space", "connectors"]
        expected, unknown = f"arguments among {', '.join(keywords)}", next(iter(others))
        raise PieceError(f"{name}(...)", expected=expected, found=unknown, do=nearest(unknown, keywords))


def check_connectors(where: str, connectors: Any) -> None:
    """Refuse pieces that are not given as a list.

    Raises:
        PieceError: they are something else.
    """
    if connectors is not None and (isinstance(connectors, (str, Mapping)) or not isinstance(connectors, Sequence)):
        found = f"{type(connectors).__name__} {connectors!r}"
        raise PieceError(
            f"{where}.connectors", expected="a list of pieces", found=found, do=f"{where}(connectors=[...])"
        )


def are_episodes(episodes: Any) -> bool:
    """True if this is a sequence of episodes; only a list is looked at item by item."""
    if type(episodes) is list:
        return all(map(_is_episode, set(map(type, episodes))))
    if type(episodes) is VectorEpisodes:
        return True
    return isinstance(episodes, Sequence) and not isinstance(episodes, (str, bytes))


@cache
def _is_episode(kind: type) -> bool:
    return hasattr(kind, "get_observations") and not is_rllib_class(kind)


def chunks_of(source: Any, piece_with_arrays: Callable[[], Any]) -> Any:
    """Return the chunks of a `RolloutStorage`, or of another source with `chunk_table()`; anything else as it is.

    Args:
        source: What a pipeline was given as episodes.
        piece_with_arrays: Returns a piece that does not work on tensors, for which tensors become arrays; None: all do.

    Raises:
        PipelineError: there is such a piece, and the rows were drawn from a buffer of tensors.
    """
    table = source.chunk_table() if hasattr(source, "chunk_table") else source
    if getattr(table, "device", None) is None or (piece := piece_with_arrays()) is None:
        return table
    if table.arrays is None:
        name = type(piece).__name__
        raise PipelineError(
            f"{name}, on rows drawn from a replay buffer of tensors",
            expected="pieces that say takes_tensors = True",
            found=f"{name}, which needs arrays",
            do="declare it if its code works on tensors; or leave device out of the buffer's options, so that its "
            "rows are arrays",
        )
    if table.device.type != "cpu":  # there arrays share the memory of tensors
        _warn_of_arrays(piece, table.device)
    return table.arrays()


def _warn_of_arrays(piece: Any, device: Any) -> None:
    warnings.warn(
        EpibatchWarning(
            f"{type(piece).__name__}, on rows in tensors",
            expected=f"pieces that say takes_tensors = True, so that rows stay on {device}",
            found="a piece that needs arrays: all rows are copied to the host for this pipeline",
            do="declare it if its code works on tensors, or leave the piece out",
        ),
        stacklevel=4,
    )


def no_episodes(pipeline: Any, found: Any) -> PipelineError:
    """The error for something else than a sequence of episodes."""
    items, kind = f"a {type(found).__name__}", type(found)
    if isinstance(found, Sequence):
        strangers = [i for i, item in enumerate(found) if not are_episodes([item])]
        kind = type(found[strangers[0]]) if strangers else kind
        name = f"{kind.__module__}.{kind.__name__}" if is_rllib_class(kind) else kind.__name__
        items += f" of {name} at position {strangers[0]}" if strangers else ""
    return PipelineError(
        f"{type(pipeline).__name__}(episodes=...)",
        expected="a list of SingleAgentEpisode, or of MultiAgentEpisode",
        found=items,
        do=advice_for_episode(kind) or "pass [episode], or list(episodes)",
    )


def check_batch(pipeline: Any, batch: Any) -> None:
    """Refuse a batch that is no dict.

    Raises:
        BatchLayoutError: it is something else.
    """
    if type(batch) is not dict and not isinstance(batch, Mapping):
        raise BatchLayoutError(
            f"{type(pipeline).__name__}(batch=...)",
            expected="a dict of columns",
            found=f"{type(batch).__name__} {batch!r}",
            do="pass batch={}, or a module's outputs",
        )


def check_state(pipeline: Any, state: Any) -> None:
    """Refuse a state that is no dict of dicts by piece name.

    Raises:
        CheckpointError: it is something else.
    """
    found = "" if isinstance(state, Mapping) else f"{type(state).__name__} {state!r}"
    for name, piece_state in state.items() if isinstance(state, Mapping) else ():
        if not isinstance(piece_state, Mapping):
            found = f"{type(piece_state).__name__} {piece_state!r} as the state of {name!r}"
    if found:
        raise CheckpointError(
            f"{type(pipeline).__name__}.set_state",
            expected="a dict of states by the pieces' names",
            found=found,
            do="pass what get_state of such a pipeline gave",
        )
