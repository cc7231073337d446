"""Random vector steps through the acting pipelines of both libraries, and which listed differences they can show."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from hypothesis import strategies as st

from batches.chunks import STATES, BatchChunk, build_all, built, chunk_lists, in_a_block, states
from batches.playing import changed
from batches.stages import (
    Flat,
    Record,
    alone,
    column_of,
    overriding,
    record_mismatches,
    rows_of,
    same_rows,
    snapshot_keys,
    stages_of,
    watched,
)
from batches.user_pieces import ACTING, HISTORY, user_piece
from epibatch.core.distributions import distribution_for
from epibatch.core.errors import LookbackError
from oracle.compare import Mismatch, difference, each, explanation_of, leaves, outcome, settle, space_struct, stack
from oracle.episodes import nested, rows, spaces
from oracle.libraries import EPIBATCH, RLLIB, Library
from oracle.modules import TO_ENV, TO_MODULE, distribution, pieces_of

WAYS = ("columnar list", "columnar block", "plain", "overriding")

action_spaces = nested(
    st.one_of(
        st.builds(lambda n, start: gym.spaces.Discrete(n, start=start), st.integers(2, 5), st.sampled_from([0, 0, 3])),
        st.lists(st.integers(2, 4), min_size=1, max_size=3).map(gym.spaces.MultiDiscrete),
        st.builds(
            lambda bounds, size: gym.spaces.Box(*bounds, (size,), np.float32),
            st.sampled_from([(-2.0, 4.0), (0.0, 1.0), (-np.inf, np.inf), (-1.0, 1.0), (0.0, np.inf)]),
            st.integers(1, 3),
        ),
    )
)
"""Action spaces that RLlib has a distribution for."""


@dataclass(frozen=True)
class ActingCall:
    """One vector step, as data.

    Attributes:
        chunks: the episodes, one per environment; those that just ended are among them, as in RLlib's runner.
        layout: of the module's recurrent state, a name in `STATES`.
        users: names of users' pieces in front of the env-to-module pipeline.
        explore: as in the pipelines' calls.
        given: what the module gives: "inputs" of its distribution alone or "actions" too, each also "... and logp".
        normalize: stretch actions to the bounds.
        clip: cut actions to the bounds.
        seed: of what the module gives.
    """

    chunks: tuple[BatchChunk, ...]
    layout: str = ""
    users: tuple[str, ...] = ()
    explore: bool | None = False
    given: str = "inputs"
    normalize: bool = True
    clip: bool = False
    seed: int = field(default=0)

    @property
    def spaces(self) -> tuple[gym.Space[Any], gym.Space[Any]]:
        return self.chunks[0].observation_space, self.chunks[0].action_space

    def outputs(self) -> dict[str, Any]:
        """What the module gives: tensors [N, ...], with a time axis if it is recurrent."""
        rng, count = np.random.default_rng(self.seed), len(self.chunks)
        width = distribution_for(self.spaces[1]).required_input_dim(self.spaces[1])
        out: dict[str, Any] = {
            "action_dist_inputs": rng.standard_normal((count, width)).astype(np.float32) * 2,
            "vf_preds": rng.standard_normal(count).astype(np.float32),
            "tags": rng.integers(0, 99, (count, 2)),
            "nested": {"x": rng.standard_normal((count, 2)), "y": (rng.integers(0, 9, count),)},
        }
        if self.given.startswith("actions"):
            drawn = rows(counted_from_zero(self.spaces[1]), rng, count)
            out["actions"] = stack(drawn)
        if self.given.endswith("and logp"):
            known = rng.standard_normal(count) if self.explore else np.zeros(count)
            out["action_logp"] = known.astype(np.float32)
        if self.layout:
            out = each(lambda leaf: leaf[:, None], out)
            out["state_out"] = states(
                STATES[self.layout], lambda s: rng.standard_normal((count, *s)).astype(np.float32)
            )
        return each(torch.from_numpy, out)  # type: ignore[no-any-return]

    def record(self, library: Library, way: str = "plain") -> tuple[Record, Record]:
        """Run both pipelines, with somebody looking behind every piece or at the ends only."""
        acting, back = Record(), Record()
        if way == "columnar block":
            episodes: Any = in_a_block(self.chunks)
        else:
            episodes = build_all(library, self.chunks, numpy=library is EPIBATCH)
        acting.places = snapshot_keys(episodes)
        back.places = dict(acting.places)
        front = [user_piece(library, ACTING[name], self.seed) for name in self.users]
        scaling = {"normalize_actions": self.normalize, "clip_actions": self.clip}
        if library is EPIBATCH:
            to_module = list(library.env_to_module.default_pipeline(connectors=front))
            to_env = list(library.module_to_env.default_pipeline(**scaling))
        else:
            to_module = [*front, *pieces_of(library, "env_to_module", *TO_MODULE)]
            to_env = pieces_of(library, "module_to_env", *TO_ENV, NormalizeAndClipActions=scaling)
        if way == "plain":
            to_module, to_env = watched(library, to_module, acting), watched(library, to_env, back)
        elif way == "overriding":
            to_module, to_env = overriding(to_module, acting.look_at), overriding(to_env, back.look_at)
        shared: dict[str, Any] = {}
        module = built(library, self.spaces, self.layout)
        call = {"rl_module": module, "episodes": episodes, "shared_data": shared, "explore": self.explore}
        if way == "alone":
            acting.finish(alone(to_module, self.spaces, acting, {}, call), episodes, shared)
            back.finish(alone(to_env, self.spaces, back, self.outputs(), call), episodes, shared)
            return acting, back
        there = library.env_to_module.EnvToModulePipeline(*self.spaces, connectors=to_module)
        acting.finish(there(batch={}, **call), episodes, shared)
        home = library.module_to_env.ModuleToEnvPipeline(*self.spaces, connectors=to_env)
        back.finish(home(batch=self.outputs(), **call), episodes, shared)
        if way == "overriding" and library is EPIBATCH:
            assert acting.stages.keys() >= stages_of(to_module) and back.stages.keys() >= stages_of(to_env) != set()
        return acting, back


def counted_from_zero(space: Any) -> Any:
    """The space of what a network's distribution gives: choices count from 0, numbers are not bounded."""

    def counted(own: Any) -> Any:
        if isinstance(own, gym.spaces.Discrete):
            return gym.spaces.Discrete(own.n)
        return own if isinstance(own, gym.spaces.MultiDiscrete) else gym.spaces.Box(-9, 9, own.shape, np.float32)

    return changed(counted, space)


LAYOUTS = st.sampled_from(["", "", *STATES])
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "users": st.lists(st.sampled_from(sorted(ACTING)), max_size=2, unique=True).map(tuple),
    "explore": st.sampled_from([False, False, True, None]),
    "given": st.sampled_from(["inputs", "inputs", "actions", "actions and logp"]),
    "normalize": st.booleans(),
    "clip": st.booleans(),
    "seed": st.integers(0, 1000),
}


@st.composite
def acting_calls(draw: st.DrawFn, **fixed: Any) -> ActingCall:
    """Vector steps of 1 to 6 environments."""
    layout = draw(LAYOUTS)
    chunks = draw(chunk_lists((draw(spaces), draw(action_spaces)), layout, unique=True))
    drawn = {**fixed, **{name: draw(own) for name, own in FIELDS.items() if name not in fixed}}
    if drawn["explore"] and drawn["given"] == "inputs":
        drawn["given"] = "actions"  # the libraries draw from different random streams
    return ActingCall(chunks, layout, **drawn)


# -- listed differences ----------------------------------------------------------------------------


@dataclass(frozen=True)
class ActingSituation:
    """A vector step, and how our pieces ran."""

    call: ActingCall
    way: str
    ours: tuple[Record, Record] | None = field(default=None, repr=False)


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


def together(flat: Flat) -> dict[Any, Any]:
    """The same with the items of all chunks in one array."""
    out: dict[Any, Any] = {}
    for path, items in numbers(flat).items():
        out.setdefault(inside(path), []).extend(items)
    return {path: np.array(items) for path, items in out.items()}


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
            explanation_of(mended, own) for own in both_pipelines(runs, mismatch.ours)
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
    given = {key: each(lambda leaf: leaf[:, 0] if call.layout else leaf, made[key]) for key in ACTED}
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


def for_env_is_right(situation: ActingSituation, mismatch: Mismatch) -> bool:
    """Whether ours are the actions for the environment that follow from our actions, in the types of their space."""
    call = situation.call
    if mismatch.path[1:] != ("actions_for_env",) or not mismatch.ours or situation.ours is None:
        return False
    bounds, record = leaves_by_place(call.spaces[1]), situation.ours[1]
    actions, found = (together(own) for own in (column_of(record.final, "actions"), mismatch.ours))
    kinds = {inside(path): kind for path, kind in types(mismatch.ours).items()}

    def scaled(space: Any, rows: Any) -> Any:
        if not isinstance(space, gym.spaces.Box) or not (call.normalize or call.clip):
            return rows
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        if call.normalize and np.isfinite([low, high]).all():
            rows = low + (rows + 1) * (high - low) / 2
        return np.clip(rows, low, high)

    return found.keys() == bounds.keys() and all(
        kinds[path] == bounds[path].dtype
        and np.allclose(scaled(bounds[path], actions[path]), rows, rtol=1e-5, atol=1e-5)
        for path, rows in found.items()
    )


@difference("actions-for-env", ActingSituation)
def actions_that_are_not_scaled(situation: ActingSituation, mismatch: Mismatch) -> bool:
    """Where actions are neither stretched nor cut, RLlib has no `actions_for_env`; here it is there as always."""
    call = situation.call
    return mismatch.kind == "keys" and not (call.normalize or call.clip) and for_env_is_right(situation, mismatch)


@difference("O44", ActingSituation)
def half_bounded_boxes(situation: ActingSituation, mismatch: Mismatch) -> bool:
    """With `normalize_actions` RLlib leaves half-bounded Boxes as they are; here the finite sides are cut."""
    boxes = [own for own in leaves(space_struct(situation.call.spaces[1])) if isinstance(own, gym.spaces.Box)]
    half = any((np.isinf(own.low) != np.isinf(own.high)).any() for own in boxes)
    return half and situation.call.normalize and for_env_is_right(situation, mismatch)


@difference("discrete-start", ActingSituation)
def members_of_spaces_with_a_start(situation: ActingSituation, mismatch: Mismatch) -> bool:
    """With a start RLlib's drawn actions count from 0, also for the environment; epibatch's are members."""
    kind, places = gym.spaces.Discrete, leaves_by_place(situation.call.spaces[1])
    starts = {path: int(own.start) if isinstance(own, kind) else 0 for path, own in places.items()}
    if not any(starts.values()) or mismatch.path[1:] != ("actions",):
        return any(starts.values()) and bool(mismatch.path) and for_env_is_right(situation, mismatch)
    theirs, ours = numbers(mismatch.theirs), numbers(mismatch.ours)
    drawn = not situation.call.given.startswith("actions")  # those that the module gave stay
    return narrowed(mismatch) and all(
        np.array_equal(own + starts[inside(path)] * drawn, ours[path]) for path, own in theirs.items()
    )


@difference("env-action-types", ActingSituation)
def types_of_the_action_space(situation: ActingSituation, mismatch: Mismatch) -> bool:
    """The environment's actions have the types of their space here, int32, float32 or float64 in RLlib."""
    return bool(mismatch.path) and for_env_is_right(situation, mismatch) and same_numbers(mismatch)


@difference("missing-history", ActingSituation)
def history_that_is_not_there(situation: ActingSituation, mismatch: Mismatch) -> bool:
    """A piece reads further back than a chunk goes on from: RLlib fills, epibatch raises."""
    deep = {*situation.call.users} & HISTORY.keys()
    return isinstance(mismatch.ours, LookbackError) and any(
        chunk.t_started > chunk.lookback and chunk.lookback + chunk.length < HISTORY[name]
        for name in deep
        for chunk in situation.call.chunks
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


def leaves_by_place(space: Any, path: tuple[Any, ...] = ()) -> dict[Any, Any]:
    """The parts of a space, by their paths in a snapshot."""
    if isinstance(space, gym.spaces.Dict):
        return {k: v for key, own in space.spaces.items() for k, v in leaves_by_place(own, (*path, key)).items()}
    if isinstance(space, gym.spaces.Tuple):
        parts = enumerate(space.spaces)
        return {k: v for i, own in parts for k, v in leaves_by_place(own, (*path, f"({i})")).items()}
    return {path: space}


def hold_acting(call: ActingCall, ways: tuple[str, ...] = WAYS) -> list[bool]:
    """Run a vector step in RLlib and in ways of ours; what differs must be listed. Whether each way was equal."""
    theirs = outcome(lambda: call.record(RLLIB, "alone" if "alone" in ways else "plain"))
    equal = []
    for way in ways:
        ours = outcome(lambda way=way: call.record(EPIBATCH, way))
        equal.append(settle(theirs, ours, ActingSituation(call, way, ours.value), both_pipelines))
    return equal
