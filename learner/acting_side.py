"""Differences between the observations that a module acted on and those that it learns from, and their pieces."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from epibatch.core import DEFAULT_MODULE_ID
from epibatch.core.columns import Columns
from epibatch.core.metrics import MetricsLogger
from epibatch.core.runtime import preserve_random_state
from epibatch.core.structs import flatten, flatten_like, paths_of

from ..connectors._inspect.origin import ROW_ORIGIN
from ..connectors.common.agent_to_module_mapping import AgentToModuleMapping
from ..connectors.connector_pipeline_v2 import ConnectorPipelineV2
from ..connectors.pipeline_copies import copied

_MOST = 4
"""Entries that a message names, at most."""
_OF_SIDES = ("input_observation_space", "input_action_space", "as_learner_connector", "multi_agent")
"""Arguments in which two pieces of both sides may differ."""
_KEPT_ROWS = 1024
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


class Parting(NamedTuple):
    """The pieces after which the observation of a step is no longer the same on both sides.

    Args:
        acting: Name of the piece in the env-to-module pipeline; None if the other side's piece is the cause.
        learning: Name of the piece in the learner pipeline; None if the other side's piece is the cause.
        text: The pieces with their arguments, and the entry in which the observations differ most.
    """

    acting: str | None
    learning: str | None
    text: str


class _Made(NamedTuple):
    """An observation after the piece that made it, as one vector."""

    name: str
    piece: Any
    values: dict[str, np.ndarray[Any, Any]]


def find_parting(acting: Any, learning: Any, module: Any, episode: Any, step: int) -> Parting | None:
    """Run copies of both pipelines on one recorded step, and compare its observation after each piece.

    Args:
        acting: The env-to-module pipeline.
        learning: The learner pipeline.
        module: The module, which is not copied.
        episode: A single agent's episode or chunk.
        step: The step of it.

    Returns:
        None if running the step again shows no difference.
    """
    try:
        return _parting(acting, learning, module, episode, step)
    except Exception as error:
        _LOG.info("a step could not be run again on both sides: %s", error)
        return None


def _parting(acting: Any, learning: Any, module: Any, episode: Any, step: int) -> Parting | None:
    module = module[episode.module_id or DEFAULT_MODULE_ID].as_multi_rl_module()  # of one agent's episode
    lookback = episode.observations.lookback + step
    before, learning = copied("inspect", acting, learning, kept=module, do="")
    for pipeline in (before, learning):
        _remove(pipeline, lambda piece: isinstance(piece, AgentToModuleMapping))
    _remove_rewriters(before)
    acted = _made(before, module, episode.slice(slice(0, step)), step)
    learned = _made(learning, module, episode.slice(slice(step, step + 1), len_lookback_buffer=lookback), 0)
    same = [(i, j) for i, left in enumerate(acted) for j, right in enumerate(learned) if _gap(left, right) is None]
    i, j = max(same, key=sum)  # what was recorded is the same
    ends = {"env_to_module": acted[i + 1 : i + 2], "learner": learned[j + 1 : j + 2]}
    pipelines = {"env_to_module": learning, "learner": before}  # where each could have a counterpart
    alone = {
        side: made
        for side, made in ends.items()
        if made and _spelled(made[0].piece) not in {_spelled(other) for other in pipelines[side].pieces()}
    }
    causes = {side: made[0] for side, made in (alone or ends).items() if made}
    if not causes:
        return None
    gap = _gap(causes.get("env_to_module", acted[i]), causes.get("learner", learned[j]))
    names = [f"{_spelled(made.piece)} in {side}" for side, made in causes.items()]
    text = f"they part after {' and after '.join(names)}, where {gap}"
    found = {side: made.name for side, made in causes.items()}
    return Parting(found.get("env_to_module"), found.get("learner"), text)


def _made(pipeline: Any, module: Any, part: Any, step: int) -> list[_Made]:
    """Return what was recorded, and then what each piece made of it that changed it."""
    recorded, form = flatten(part.get_observations(step, neg_index_as_lookback=True))
    found = [_Made("", None, {path: np.ravel(leaf) for path, leaf in zip(paths_of(form), recorded)})]
    trace = pipeline.trace(
        [part], module, explore=True, keep_rows=_KEPT_ROWS, origin=True, metrics=MetricsLogger(times_pieces=False)
    )
    pieces = {step.name: step.piece for step in pipeline.plan().steps}
    for traced in trace.pieces:
        made = _Made(traced.piece, pieces[traced.piece], _observation(traced.values))
        if made.values and _gap(found[-1], made) is not None:
            found.append(made)
    return found


def _observation(values: Any) -> dict[str, np.ndarray[Any, Any]]:
    """The leaves of the observation of the first step in kept rows, by path."""
    values = {name.removeprefix(f"{DEFAULT_MODULE_ID}/"): rows for name, rows in values.items()}
    cell = tuple(np.argwhere(values[ROW_ORIGIN] == 1)[0]) if ROW_ORIGIN in values else (0,)
    names = [name for name in values if name.split("/")[0] == Columns.OBS]
    return {name: values[name][cell].ravel() for name in sorted(names) if len(values[name])}


def _gap(left: _Made, right: _Made) -> str | None:
    """Describe the entry in which two observations differ most; None if they are the same."""
    acted, learned = (np.concatenate([leaf.astype(float) for leaf in made.values.values()]) for made in (left, right))
    if acted.shape != learned.shape:
        return f"an observation has {len(acted)} numbers while acting, {len(learned)} in training"
    size = np.abs(acted - learned)
    size[np.isclose(acted, learned, rtol=1e-5, atol=1e-7, equal_nan=True)] = 0.0
    if not (size != 0).any():
        return None
    leaves = (right if left.piece is None else left).values.items()  # what was recorded has other paths
    names = [f"{path}[{k}]" if len(leaf) > 1 else path for path, leaf in leaves for k in range(len(leaf))]
    at = int(np.argmax(np.nan_to_num(size, nan=np.inf)))
    return f"{names[at]} is {acted[at]:.3g} while acting, {learned[at]:.3g} in training"


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
    _remove(pipeline, lambda piece: piece.rewrites_observations)


def _remove(pipeline: ConnectorPipelineV2, chosen: Callable[[Any], Any]) -> None:
    for piece in list(pipeline):
        if isinstance(piece, ConnectorPipelineV2):
            _remove(piece, chosen)
        elif chosen(piece):
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
