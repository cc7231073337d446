"""Differences between the observations that a module acted on and those that it learns from, and their pieces."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from epibatch.core.columns import Columns
from epibatch.core.metrics import MetricsLogger
from epibatch.core.runtime import preserve_random_state
from epibatch.core.structs import flatten, flatten_like, paths_of

from ..connectors.connector_pipeline_v2 import ConnectorPipelineV2
from ..connectors.pipeline_copies import copied

_MOST = 4
"""Entries that a message names, at most."""
_OF_SIDES = ("input_observation_space", "input_action_space", "as_learner_connector", "multi_agent")
"""Arguments in which two pieces of both sides may differ."""
_LOG = logging.getLogger("epibatch")


def pieces_of_one_side(acting: Any, learning: Any) -> str:
    """Name the pieces that may change `obs` in one of two pipelines alone, or in another order; "" if there are none.

    Args:
        acting: The env-to-module pipeline. What its pieces write back to episodes, a learner pipeline sees, too.
        learning: The learner pipeline.
    """
    sides = {"env_to_module": acting, "learner": learning}
    pieces = {side: [(_spelled(piece), piece) for piece in _writers(pipeline)] for side, pipeline in sides.items()}
    names = {side: [name for name, _ in found] for side, found in pieces.items()}
    parts = []
    for side, other in (("env_to_module", "learner"), ("learner", "env_to_module")):
        alone = Counter(names[side]) - Counter(names[other])
        for name, piece in pieces[side]:
            if name in alone:
                writes = "writes" if Columns.OBS in piece.writes else "may write"
                parts.append(f"{name} {writes} 'obs' in {side}, no such piece in {other} does")
    if not parts and names["env_to_module"] != names["learner"]:
        parts.append(
            f"'obs' is written by {', '.join(names['env_to_module'])} in env_to_module, in learner in another order"
        )
    return "\n".join(parts)


def _writers(pipeline: Any) -> Iterator[Any]:
    """Yield the pieces that write `obs` to the batch, or declare nothing, as those of RLlib's style."""
    for piece in pipeline.pieces():
        declares = bool(piece.writes) or piece.reads is not None
        ignored = piece.rewrites_observations or getattr(piece, "training_only", False)
        if not ignored and (Columns.OBS in piece.writes or not declares):
            yield piece


def _spelled(piece: Any) -> str:
    kwargs = piece.get_ctor_args_and_kwargs()[1]
    own = [f"{key}={value!r}" for key, value in kwargs.items() if key not in _OF_SIDES]
    return f"{type(piece).__name__}({', '.join(own)})"


def entries_that_differ(acting: Any, module: Any, episode: Any, step: int, row: Any) -> str | None:
    """Name the entries in which an observation differs between acting and training, the largest first.

    The result is "" if none does, None if they cannot be compared.

    Args:
        acting: The env-to-module pipeline; copies of its pieces run.
        module: The module.
        episode: The single-agent episode of the row.
        step: The row's step in it.
        row: The observation in the train batch, of one row.
    """
    try:
        pipeline, part = copied("update", acting, episode.slice(slice(0, step)), kept=module, do="")
        _remove_rewriters(pipeline)
        with preserve_random_state(), torch.no_grad():
            call = {"batch": {}, "episodes": [part], "explore": True, "shared_data": {}, "metrics": MetricsLogger()}
            acted = pipeline(rl_module=module, **call)[Columns.OBS]
        leaves, form = flatten(row)
        pairs = zip(paths_of(form), leaves, flatten_like(form, acted))
        return _described([(path, *_like(learned, other)) for path, learned, other in pairs])
    except Exception as error:
        _LOG.info("the observations of acting and training could not be compared: %s", error)
        return None


def _remove_rewriters(pipeline: ConnectorPipelineV2) -> None:
    """Remove the pieces whose results the episodes hold already."""
    for piece in list(pipeline):
        if isinstance(piece, ConnectorPipelineV2):
            _remove_rewriters(piece)
        elif piece.rewrites_observations:
            pipeline.remove(piece)


def _like(learned: Any, acted: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return both as arrays; the one of the acting side without the axes of a batch of one row."""
    arrays = [torch.as_tensor(leaf).detach().cpu().double().numpy() for leaf in (learned, acted)]
    while arrays[1].ndim > arrays[0].ndim and arrays[1].shape[0] == 1:
        arrays[1] = arrays[1][0]
    return arrays[0], arrays[1]


def _described(parts: Sequence[tuple[str, Any, Any]]) -> str:
    gaps: list[tuple[float, str]] = []
    for path, learned, acted in parts:
        if learned.shape != acted.shape:
            return f"obs{path} has shape {list(acted.shape)} while acting, {list(learned.shape)} in training"
        size = np.abs(learned - acted)
        size[np.isclose(learned, acted, rtol=1e-4, atol=1e-6, equal_nan=True)] = 0.0
        for at in np.argwhere(size):
            place = tuple(at.tolist())
            name = f"obs{path}[{', '.join(map(str, place))}]" if place else f"obs{path}"
            gaps.append(
                (float(size[place]), f"{name} is {acted[place]:.3g} while acting, {learned[place]:.3g} in training")
            )
    gaps.sort(key=lambda gap: -gap[0])
    rest = [f"{len(gaps) - _MOST} more entries differ"] if len(gaps) > _MOST else []
    return "\n".join([*(text for _, text in gaps[:_MOST]), *rest])
