"""Which listed differences a vector step can show, and what both sides give then."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium as gym
import numpy as np

from batches.acting_runs import ActingCall, over
from batches.chunks import distribution
from batches.stages import Flat, Record, column_of, record_mismatches, rows_of, same_rows
from batches.user_pieces import HISTORY
from epibatch.core.errors import LookbackError
from oracle.compare import Mismatch, each, space_struct
from oracle.differences import difference, explanation_of
from oracle.libraries import RLLIB


@dataclass(frozen=True)
class ActingSituation:
    """A vector step, and how our pieces ran."""

    call: ActingCall
    way: str
    theirs: tuple[Record, Record] | None = field(default=None, repr=False)


BACK = "to env: "
"""What stages of the module-to-env side begin with."""


def both_pipelines(theirs: tuple[Record, Record], ours: tuple[Record, Record]) -> list[Mismatch]:
    """The mismatches of the env-to-module and of the module-to-env side."""
    there, back = (record_mismatches(a, b) for a, b in zip(theirs, ours))
    return there + [replace(found, path=(BACK + found.path[0], *found.path[1:])) for found in back]


def behind_numpy(stage: str) -> bool:
    """Whether a stage is behind `TensorToNumpy`, the second piece on the way to the environment."""
    return stage.startswith(BACK) and not stage.startswith(f"{BACK}0: ")


def numbers(flat: Flat) -> dict[Any, Any]:
    """Rows of a column as one float64 array per place in the structure, whatever holds them."""
    return {path: np.array([np.asarray(row, np.float64) for row in own]) for path, own in rows_of(flat).items()}


def same_numbers(mismatch: Mismatch) -> bool:
    """Whether both sides hold the same rows, whatever their types and containers."""
    if mismatch.kind not in ("value", "layout") or mismatch.path[1] == "shared_data":
        return False
    theirs, ours = numbers(mismatch.theirs), numbers(mismatch.ours)
    return theirs.keys() == ours.keys() and all(np.array_equal(own, ours[path]) for path, own in theirs.items())


def types(flat: Flat) -> dict[Any, Any]:
    """Type of the rows at each place in the structure."""
    return {path: np.asarray(own[0]).dtype for path, own in rows_of(flat).items()}


def narrowed(mismatch: Mismatch) -> bool:
    """Whether RLlib has 32 bits where epibatch has 64, and both the same types elsewhere."""
    theirs, ours = types(mismatch.theirs), types(mismatch.ours)
    return all(a == ours[path] or (a.itemsize == 4 and ours[path] == f"{a.kind}8") for path, a in theirs.items())


@difference("O42", ActingSituation)
def integers_become_32_bits(situation: ActingSituation, mismatch: Mismatch) -> bool:
    """Behind `TensorToNumpy` RLlib's integers and floats have 32 bits."""
    if not mismatch.path or not behind_numpy(mismatch.path[0]) or mismatch.path[1] == "actions_for_env":
        return False
    return mismatch.kind == "value" and same_numbers(mismatch) and narrowed(mismatch)


@difference("columns", ActingSituation)
def episodes_of_lists(situation: ActingSituation, mismatch: Mismatch) -> bool:
    """Running episodes are lists in RLlib, arrays here, of the same rows."""
    if not mismatch.path or not mismatch.path[0].removeprefix(BACK).startswith("episodes of"):
        return False
    return same_rows(mismatch.theirs, mismatch.ours)


@difference("actions-for-env", ActingSituation)
def actions_that_are_not_scaled(situation: ActingSituation, mismatch: Mismatch) -> bool:
    """Where actions are neither stretched nor cut, RLlib has no `actions_for_env`; here it is there as always."""
    call = situation.call
    if call.normalize or call.clip or mismatch.path[1:] != ("actions_for_env",):
        return False
    if mismatch.kind != "keys" or mismatch.theirs or not are_the_spaces(mismatch.ours, call.spaces[1]):
        return False
    actions = numbers(their_column(situation, mismatch.path[0], "actions"))
    return as_members(actions, numbers(mismatch.ours), call)


@difference("module-to-env-output", ActingSituation)
def arrays_with_the_environments_first(situation: ActingSituation, mismatch: Mismatch) -> bool:
    """At the end RLlib has lists with an item per environment, epibatch arrays with one row each."""
    ends = (f"{BACK}5: L", f"{BACK}the end")
    if not mismatch.path or not mismatch.path[0].startswith(ends) or mismatch.kind != "layout":
        return False
    listed = all(str(path[0]).startswith("[") for path in mismatch.theirs)
    return listed and same_numbers(mismatch) and narrowed(mismatch)


@difference("greedy-logp", ActingSituation)
def greedy_actions_have_one_logp_each(situation: ActingSituation, mismatch: Mismatch) -> bool:
    """RLlib's `action_logp` of greedy actions is zeros in the form of the action, or fails to be; here 0 per row."""
    call = situation.call
    if call.explore or call.given != "inputs":
        return False
    if mismatch.kind == "error":
        if isinstance(mismatch.ours, Exception):
            return False
        mended = replace(situation, call=replace(call, given="inputs and logp"))
        runs = mended.call.record(RLLIB)
        return isinstance(mismatch.theirs, (ValueError, RuntimeError)) and all(
            explanation_of(replace(mended, theirs=runs), own) for own in both_pipelines(runs, mismatch.ours)
        )
    if mismatch.path[1] != "action_logp" or not mismatch.theirs:
        return False
    zeros = all((np.asarray(leaf) == 0).all() for leaf in mismatch.theirs.values())
    return zeros and one_number_each(mismatch.ours, np.zeros(len(call.chunks)), 0)


@difference("O43", ActingSituation)
def logp_of_given_actions(situation: ActingSituation, mismatch: Mismatch) -> bool:
    """RLlib adds no `action_logp` to actions that the module gives; epibatch does."""
    call = situation.call
    if not mismatch.path or mismatch.path[1] != "action_logp" or call.given != "actions":
        return False
    expected = np.ravel(logp_of_actions(call))
    return mismatch.kind == "keys" and not mismatch.theirs and one_number_each(mismatch.ours, expected, 1e-5)


ACTED = ("action_dist_inputs", "actions")


def logp_of_actions(call: ActingCall) -> Any:
    """RLlib's log-probability of the actions that the module gives; choices count from their start.

    Without the time axis: RLlib's distribution takes that for one of the choices of a MultiDiscrete.
    """
    made = call.outputs()
    given = {key: over(made[key], lambda leaf: leaf[:, 0] if call.layout else leaf) for key in ACTED}
    strangers = []

    def counted(values: Any, space: Any) -> Any:
        if not isinstance(space, gym.spaces.Discrete):
            return values
        values = values - int(space.start)
        strangers.append((values < 0) | (values >= int(space.n)))
        return values.clamp(0, int(space.n) - 1)

    actions = each(counted, given["actions"], space_struct(call.spaces[1]))
    logp = distribution(RLLIB, call.spaces[1]).from_logits(given["action_dist_inputs"]).logp(actions)
    for stranger in strangers:
        logp = logp.masked_fill(stranger, -np.inf)
    return logp


@difference("env-action-types", ActingSituation)
def types_of_the_action_space(situation: ActingSituation, mismatch: Mismatch) -> bool:
    """The environment's actions have the types of their space here, int32, float32 or float64 in RLlib."""
    if not mismatch.path or mismatch.path[1] != "actions_for_env" or starts(situation.call.spaces[1]):
        return False
    return same_numbers(mismatch) and are_the_spaces(mismatch.ours, situation.call.spaces[1])


@difference("O44", ActingSituation)
def half_bounded_boxes(situation: ActingSituation, mismatch: Mismatch) -> bool:
    """With `normalize_actions` RLlib leaves half-bounded Boxes as they are; here the finite sides are cut."""
    call = situation.call
    if not call.normalize or mismatch.path[1:] != ("actions_for_env",) or mismatch.kind == "error":
        return False
    theirs, ours = numbers(mismatch.theirs), numbers(mismatch.ours)
    bounds = leaves_by_place(call.spaces[1])
    if theirs.keys() != ours.keys():
        return False
    cut = False
    for path, own in theirs.items():
        space = bounds[inside(path)]
        half = isinstance(space, gym.spaces.Box) and (np.isinf(space.low) != np.isinf(space.high)).any()
        start = int(space.start) if isinstance(space, gym.spaces.Discrete) and call.given.startswith("inputs") else 0
        expected = np.clip(own, space.low, space.high) if half else own + start
        cut = cut or half
        if not np.array_equal(expected, ours[path]):
            return False
    return cut and are_the_spaces(mismatch.ours, call.spaces[1])


@difference("discrete-start", ActingSituation)
def members_of_spaces_with_a_start(situation: ActingSituation, mismatch: Mismatch) -> bool:
    """With a start RLlib's drawn actions count from 0, also for the environment; epibatch's are members."""
    space, call = situation.call.spaces[1], situation.call
    if not mismatch.path or mismatch.path[1] not in ("actions", "actions_for_env") or not starts(space):
        return False
    typed = narrowed(mismatch) if mismatch.path[1] == "actions" else are_the_spaces(mismatch.ours, space)
    return typed and as_members(numbers(mismatch.theirs), numbers(mismatch.ours), call)


@difference("missing-history", ActingSituation)
def history_that_is_not_there(situation: ActingSituation, mismatch: Mismatch) -> bool:
    """A piece reads further back than a chunk goes on from: RLlib fills, epibatch raises."""
    deep = {*situation.call.users} & HISTORY.keys()
    return isinstance(mismatch.ours, LookbackError) and any(
        chunk.t_started > chunk.lookback and chunk.lookback + chunk.length < HISTORY[name]
        for name in deep
        for chunk in situation.call.chunks
    )


def their_column(situation: ActingSituation, stage: str, name: str) -> Flat:
    """A column of RLlib's at a stage of the module-to-env side."""
    assert situation.theirs is not None
    record, stage = situation.theirs[1], stage.removeprefix(BACK)
    return column_of(record.final if stage == "the end" else record.stages[stage], name)


def as_members(theirs: dict[Any, Any], ours: dict[Any, Any], call: ActingCall) -> bool:
    """Whether ours are RLlib's actions counted from the starts of the space; those the module gave stay."""
    shifts = starts_by_place(call.spaces[1])
    drawn = not call.given.startswith("actions")
    return theirs.keys() == ours.keys() and all(
        np.array_equal(own + shifts[inside(path)] * drawn, ours[path]) for path, own in theirs.items()
    )


def one_number_each(flat: Flat, expected: Any, tolerance: float) -> bool:
    """Whether there is one float32 for each environment, and it is the expected one."""
    rows = [np.asarray(row) for own in rows_of(flat).values() for row in own]
    if len(rows) != len(expected) or any(row.size != 1 or row.dtype != np.float32 for row in rows):
        return False
    return np.allclose(np.ravel(rows), expected, rtol=tolerance, atol=tolerance)


def inside(path: tuple[Any, ...]) -> tuple[Any, ...]:
    """The part of a path inside an item."""
    return path[1:] if str(path[:1]).startswith("('chunk") else path


def starts(space: Any) -> bool:
    """Whether a Discrete part of a space has a start."""
    return any(starts_by_place(space).values())


def leaves_by_place(space: Any, path: tuple[Any, ...] = ()) -> dict[Any, Any]:
    """The parts of a space, by their paths in a snapshot."""
    if isinstance(space, gym.spaces.Dict):
        return {k: v for key, own in space.spaces.items() for k, v in leaves_by_place(own, (*path, key)).items()}
    if isinstance(space, gym.spaces.Tuple):
        parts = enumerate(space.spaces)
        return {k: v for i, own in parts for k, v in leaves_by_place(own, (*path, f"({i})")).items()}
    return {path: space}


def starts_by_place(space: Any) -> dict[Any, int]:
    """The start of every part of a space, by its path in a snapshot."""
    kind = gym.spaces.Discrete
    return {path: int(own.start) if isinstance(own, kind) else 0 for path, own in leaves_by_place(space).items()}


def are_the_spaces(flat: Flat, space: Any, path: tuple[Any, ...] = ()) -> bool:
    """Whether rows have the types of a space."""
    if isinstance(space, gym.spaces.Dict):
        return all(are_the_spaces(flat, own, (*path, key)) for key, own in space.spaces.items())
    if isinstance(space, gym.spaces.Tuple):
        return all(are_the_spaces(flat, own, (*path, f"({i})")) for i, own in enumerate(space.spaces))
    found = [own for place, own in types(flat).items() if inside(place) == path]
    return bool(found) and all(own == space.dtype for own in found)
