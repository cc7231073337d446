"""Checks that a connector piece keeps the contract, for the tests of whoever writes one."""

from __future__ import annotations

import inspect
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from epibatch.core.checkpoints import load_state, save_state
from epibatch.core.errors import EpibatchError, PieceCheckError, PieceError, explain
from epibatch.core.piece_declarations import PIPELINE_NAMES, check_declarations
from epibatch.core.piece_specs import build_piece, piece_to_dict
from epibatch.core.struct_batches import convert_to_numpy
from epibatch.rehearsal import Maker, Rehearsal

if TYPE_CHECKING:
    from epibatch.connectors.connector_v2 import ConnectorV2

__all__ = ["check_connector"]


def check_connector(
    make: Maker,
    *,
    pipeline: str | None = None,
    observation_space: gym.Space[Any] | None = None,
    action_space: gym.Space[Any] | None = None,
    model_config: dict[str, Any] | None = None,
) -> None:
    """Check that a piece keeps the contract of `ConnectorV2`, in one of the pipelines it is made for.

    New pieces are put where a config puts a user's, and run on recorded episodes: one and several, cut and whole,
    as a list and as a runner hands them over, next to columnar pieces and to plain ones. What is checked:

    - the batch is returned, and both ways give the same;
    - a learner piece that does not say `mutates_episodes` leaves the episodes as they are, and without state gives the
      same batch twice;
    - what comes out fits the output space, and actions that reach the environment are in its space;
    - state goes through a checkpoint, a piece that takes it over goes on as the first one does, `reset_state` forgets;
    - the class attributes say what they can say, and the piece can be written as data and built from that.

    Args:
        make: the class, or a function that makes a new piece.
        pipeline: "env_to_module", "module_to_env" or "learner"; may be left out if the piece is made for one only.
        observation_space: of one environment; default: a Box of shape (3,).
        action_space: of one environment; default: Discrete(2).
        model_config: settings of the default module, such as {"use_lstm": True}.

    Raises:
        PieceCheckError: everything that was found; it is an AssertionError, too.
        PieceError: `make` makes no piece, or the pipeline is not known.

    Example:
        >>> from epibatch.connectors.common import FrameStacking
        >>> check_connector(FrameStacking, pipeline="env_to_module", observation_space=gym.spaces.Box(0, 1, (4, 1)))
    """
    piece = _made(make)
    pipeline = _pipeline_of(piece, pipeline)
    spaces = (observation_space or gym.spaces.Box(-1.0, 1.0, (3,)), action_space or gym.spaces.Discrete(2))
    rehearsal = Rehearsal(make, pipeline, spaces, model_config or {})
    faults = list(_static_faults(piece, pipeline))
    checks = [_runs, _both_ways, _state, _data] + ([_pure] if pipeline == "learner" else [_space, _in_a_runner])
    for check in checks:
        try:
            faults += [fault for fault in check(rehearsal) if fault not in faults]
        except Exception as error:
            what = check.__name__.strip("_").replace("_", " ")
            faults.append(f"{what}: {type(error).__name__}: {error}".replace("\n", "\n      "))
            break  # what follows would only fail in the same way
    if faults:
        raise PieceCheckError(
            explain(
                f"check_connector({type(piece).__name__}), {pipeline}",
                expected="a piece that keeps the contract of ConnectorV2",
                found="".join(f"\n    - {fault}" for fault in faults),
                do=f"mend {'it' if len(faults) == 1 else f'these {len(faults)}'}; docs/writing-a-piece.md says how",
            )
        )


def _made(make: Maker) -> ConnectorV2:
    from epibatch.connectors.connector_v2 import ConnectorV2

    found = f"{type(make).__name__} {make!r}"
    if callable(make) and not isinstance(make, ConnectorV2):
        first, second = make(), make()
        if isinstance(first, ConnectorV2) and first is not second:
            return first
        found = "the same piece twice" if first is second else f"a function that returns a {type(first).__name__}"
    raise PieceError(
        explain(
            "check_connector",
            expected="a piece's class, or a function that makes a new piece each time",
            found=found,
            do="check_connector(MyPiece), or check_connector(lambda: MyPiece(x=1))",
        )
    )


def _pipeline_of(piece: Any, given: str | None) -> str:
    own = piece.pipelines if isinstance(piece.pipelines, (tuple, list)) else ()
    if given is None and len(own) == 1 and own[0] in PIPELINE_NAMES:
        return str(own[0])
    if given in PIPELINE_NAMES:
        return str(given)
    raise PieceError(
        explain(
            "check_connector, pipeline",
            expected=f"one of {', '.join(PIPELINE_NAMES)}",
            found="none, and the piece does not say one either" if given is None else repr(given),
            do='check_connector(MyPiece, pipeline="learner"), or pipelines = ("learner",) on the class',
        )
    )


def _static_faults(piece: Any, pipeline: str) -> Iterator[str]:
    try:
        check_declarations(piece, type(piece).__name__)
    except EpibatchError as error:
        yield str(error).replace("\n", "\n      ")
    if piece.pipelines and pipeline not in piece.pipelines:
        yield f"pipelines says {piece.pipelines!r}, and it is checked in {pipeline}"
    kinds = [parameter.kind for parameter in inspect.signature(piece.__call__).parameters.values()]
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        yield "__call__ takes no further keywords: end its parameters with **kwargs"


# ------------------------------------------------------------------------------------------ the checks


def _same(one: Any, other: Any) -> bool:
    from epibatch.episodes.leaves import same_value

    return same_value(one, other)


def _runs(rehearsal: Rehearsal) -> Iterator[str]:
    """One episode, several, and chunks with lookback that go on from others with the same id in the call."""
    whole, rest = rehearsal.episodes(), rehearsal.episodes(1)
    cases = [[whole[0]], whole, rest]
    if rehearsal.pipeline == "learner":
        cases.append([*rehearsal.episodes(), *rehearsal.episodes(1)])
    for episodes in cases:
        rehearsal.outputs(rehearsal.pipelines(rehearsal.make()), episodes)
    yield from ()


def _both_ways(rehearsal: Rehearsal) -> Iterator[str]:
    alone = rehearsal.outputs(rehearsal.pipelines(rehearsal.make()), rehearsal.episodes())
    between = rehearsal.outputs(rehearsal.pipelines(rehearsal.make(), neighbours=True), rehearsal.episodes())
    if not _same(alone, between):
        yield "it gives something else between plain pieces than between columnar ones"
    if rehearsal.pipeline == "learner":
        copies, block = rehearsal.episodes(1), rehearsal.sampled[1]
        listed = rehearsal.outputs(rehearsal.pipelines(rehearsal.make()), copies)
        if len(copies) == len(block) and not _same(
            listed, rehearsal.outputs(rehearsal.pipelines(rehearsal.make()), block)
        ):
            yield "it gives something else for a runner's episodes than for a list of the same ones"


def _pure(rehearsal: Rehearsal) -> Iterator[str]:
    piece, episodes = rehearsal.make(), rehearsal.episodes()
    before = [episode.get_state() for episode in episodes]
    first = rehearsal.outputs(pipelines := rehearsal.pipelines(piece), episodes)
    changed = not _same(before, [episode.get_state() for episode in episodes])
    if changed and not piece.mutates_episodes:
        yield "it writes to the episodes it is given and does not say so: mutates_episodes = True"
    if not changed and not piece.get_state() and not _same(first, rehearsal.outputs(pipelines, episodes)):
        yield "it gives another batch for the same episodes the second time, and get_state gives no state"


def _space(rehearsal: Rehearsal) -> Iterator[str]:
    first, _ = rehearsal.pipelines(rehearsal.make())
    space = first.observation_space
    rows = first(rl_module=None, batch={}, episodes=[_first_row(one) for one in rehearsal.episodes()])["obs"]
    for leaf, own in zip(_leaves(rows), _leaves(space)):
        if isinstance(own, gym.Space) and own.shape is not None and leaf.shape[1:] != own.shape:
            yield f"observations come out with shape {leaf.shape[1:]}, its output space says {own.shape}"
        elif isinstance(own, gym.spaces.Box) and own.dtype is not None:
            if not np.can_cast(leaf.dtype, own.dtype, "same_kind"):
                yield f"observations come out as {leaf.dtype}, its output space says {own.dtype}"
            elif not all(own.contains(row.astype(own.dtype)) for row in leaf):
                yield f"observations come out outside the bounds of its output space {own}"


def _first_row(recorded: Any) -> Any:
    from epibatch.episodes import SingleAgentEpisode

    episode = SingleAgentEpisode(recorded.id_)
    episode.add_env_reset(recorded.get_observations(0))
    return episode


def _leaves(struct: Any) -> list[Any]:
    if isinstance(struct, gym.spaces.Dict):
        struct = dict(struct.spaces)
    if isinstance(struct, (dict, tuple, gym.spaces.Tuple)):
        parts = [struct[key] for key in sorted(struct)] if isinstance(struct, dict) else list(struct)
        return [leaf for part in parts for leaf in _leaves(part)]
    return [struct]


def _in_a_runner(rehearsal: Rehearsal) -> Iterator[str]:
    rehearsal.refused.clear()
    rehearsal.sample([rehearsal.make()])
    if rehearsal.refused:
        yield f"the environment got the action {rehearsal.refused[0]!r}, which is not in {rehearsal.spaces[1]}"


def _state(rehearsal: Rehearsal) -> Iterator[str]:
    piece = rehearsal.make()
    fresh = rehearsal.make()
    pipelines = rehearsal.pipelines(piece)
    rehearsal.outputs(pipelines, rehearsal.episodes())
    state = piece.get_state()
    if not state and not fresh.get_state():
        return
    with tempfile.TemporaryDirectory() as folder:
        loaded = load_state(save_state(Path(folder) / "piece", state))
    twin = rehearsal.make()
    others = rehearsal.pipelines(twin)
    twin.set_state(loaded)
    if not _same(convert_to_numpy(twin.get_state()), convert_to_numpy(state)):
        yield "get_state after set_state gives something else than was set"
    for one, other in zip(pipelines, others):
        if one is not None:
            other.set_state(one.get_state())
    goes_on, restored = (rehearsal.outputs(made, rehearsal.episodes(1)) for made in (pipelines, others))
    if not _same(goes_on, restored):
        yield "a piece that takes the state over from a checkpoint goes on differently than the one that gave it"
    if not hasattr(piece, "seed"):
        rehearsal.pipelines(fresh)
        piece.reset_state()
        fresh.reset_state()
        if not _same(convert_to_numpy(piece.get_state()), convert_to_numpy(fresh.get_state())):
            yield "reset_state leaves something else than a new piece has"


def _data(rehearsal: Rehearsal) -> Iterator[str]:
    spec = piece_to_dict(rehearsal.make())
    again = build_piece(json.loads(json.dumps(spec)), allow_imports=True)
    if piece_to_dict(again) != spec:
        yield f"built from {spec!r} it is {piece_to_dict(again)!r}"
