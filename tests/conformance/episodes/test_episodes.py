"""Making, growing, cutting, joining and restoring episodes of both libraries, rightly and wrongly."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import strategies as st

from oracle.cases import differences_met, random_cases
from oracle.compare import Mismatch, Outcome, difference, leaves, outcome, settle, stack
from oracle.episodes import Chunk, chunks, rows
from oracle.libraries import BOTH
from oracle.operations import ENDS, Request, Step, Write, cut, join, reset, round_trip, slice_, step, write
from oracle.probes import holds
from oracle.twins import Case, Operation, Twins, cases, content

lookbacks = st.integers(0, 6)
bounds = st.one_of(st.none(), st.integers(-8, 8), st.integers(-70, 70))
grown = st.builds(
    Step, st.integers(0, 99), st.sampled_from(ENDS), st.sampled_from(["right", "right", "right", "late", "missing"])
)

# -- making and growing ----------------------------------------------------------------------------


@holds("C12")
@random_cases(case=cases(), added=st.lists(st.one_of(grown, st.none()), max_size=4))
def test_steps_and_resets(case: Case, added: list[Step | None]) -> None:
    """None stands for a reset, which a running episode refuses."""
    twins = case.twins(grows=True)
    for what in added:
        if what is None:
            reset(twins, case.chunk)
        else:
            step(twins, case.chunk, what)


@random_cases(chunk=chunks(length=0, t_started=0, lookback=0), added=st.lists(grown, max_size=4), early=st.booleans())
def test_an_episode_from_its_reset_on(chunk: Chunk, added: list[Step], early: bool) -> None:
    """A new episode gets its reset and some steps; `early` tries a step before the reset first."""
    spaces = {"observation_space": chunk.observation_space, "action_space": chunk.action_space}
    twins = Twins(*(library.SingleAgentEpisode(id_="e", **spaces) for library in BOTH), arrays=False)
    if early:
        step(twins, chunk, Step())
    reset(twins, chunk)
    for what in added:
        step(twins, chunk, what)


def make(library: Any, chunk: Chunk, drop: str | None, lookback: int | str) -> Any:
    """An episode from data, of which one column may have a row too few."""
    columns = {key: list(rows) for key, rows in chunk.columns.items() if key != "extra_model_outputs"}
    extras = {key: list(rows) for key, rows in chunk.columns["extra_model_outputs"].items()}
    for rows_ in (columns.get(drop), *(extras.values() if drop == "extras" else ())):
        if rows_:
            rows_.pop()
    return library.SingleAgentEpisode(
        id_="e", **columns, extra_model_outputs=extras, t_started=chunk.t_started, len_lookback_buffer=lookback
    )


@holds("C1", "C2")
@random_cases(
    chunk=chunks(),
    lookback=st.one_of(st.just("auto"), st.integers(0, 70)),
    drop=st.sampled_from([None, None, None, "observations", "infos", "actions", "rewards", "extras"]),
)
def test_making_one_from_data(chunk: Chunk, lookback: int | str, drop: str | None) -> None:
    operation = Operation("make", {"lookback": lookback, "drop": drop}, {}, {})
    made = [outcome(lambda lib=library: make(lib, chunk, drop, lookback)) for library in BOTH]
    failed = any(one.error is not None for one in made)
    settle(*(made if failed else (Outcome(content(one.value)) for one in made)), operation)


# -- what they say of themselves -------------------------------------------------------------------


def data_dict(episode: Any) -> dict[str, Any]:
    """`get_data_dict`, columns stacked; those without rows as None."""

    def column(key: str, rows: Any) -> Any:
        if key == "infos" or not isinstance(rows, list):
            return list(rows) if key == "infos" else rows if len(leaves(rows)[0]) else None
        return stack(rows) if rows else None

    return {key: column(key, rows) for key, rows in episode.get_data_dict().items()}


@difference("data-dict", Operation)
def one_row_of_flags_for_no_steps(operation: Operation, mismatch: Mismatch) -> bool:
    if operation.name != "data dict" or operation.before["steps"][0]:
        return False
    return mismatch.path[0] in ("terminateds", "truncateds") and len(mismatch.theirs) == 1 and mismatch.ours is None


@holds("C11", "C18")
@random_cases(case=cases())
def test_what_they_say_of_themselves(case: Case) -> None:
    """The contents are compared by every operation; here by those that change nothing."""
    twins = case.twins()
    for episode in (twins.theirs, twins.ours):
        episode.custom_data["kept"] = [1]
    for name in ("validate", "to_numpy"):
        twins.do(name, lambda e, name=name: getattr(e, name)())
    assert twins.ours.to_numpy() is twins.ours
    assert twins.ours.is_numpy and twins.theirs.is_numpy == bool(case.chunk.length)
    assert not twins.rebuilt
    compare_data_dicts(case)


def compare_data_dicts(case: Case) -> None:
    theirs, ours = case.build()
    settle(Outcome(data_dict(theirs)), Outcome(data_dict(ours)), Operation("data dict", {}, content(ours), {}))


@holds("C18")
@random_cases(case=cases())
def test_a_round_trip_through_the_state(case: Case) -> None:
    round_trip(case.twins())


REMOVED = {
    "add_temporary_timestep_data",  # raises in RLlib as well
    "get_temporary_timestep_data",
    "get_sample_batch",  # old API stack
    "space_struct",  # of buffers: what RLlib keeps for itself
}
SPECIAL = ("__init__", "__getitem__", "__setitem__", "__add__", "__len__")


@pytest.mark.parametrize("cls", ["SingleAgentEpisode", "MultiAgentEpisode", "InfiniteLookbackBuffer"])
def test_every_public_name_and_argument_is_there(cls: str) -> None:
    theirs, ours = (getattr(library, cls) for library in BOTH)
    there, here = (set(dir(made([] if "Buffer" in cls else "e"))) for made in (theirs, ours))
    assert {name for name in there if name[0] != "_"} - REMOVED <= here
    for name, method in inspect.getmembers(theirs, inspect.isfunction):
        if name in SPECIAL or (name[0] != "_" and name not in REMOVED):
            wanted = [p for p in inspect.signature(method).parameters if p[0] != "_"]
            found = list(inspect.signature(getattr(ours, name)).parameters)
            same = set(wanted) <= set(found) or (name in SPECIAL[1:] and len(wanted) <= len(found))
            assert same and (cls != "MultiAgentEpisode" or found[: len(wanted)] == wanted), name


# -- parts -----------------------------------------------------------------------------------------


def named(case: Case) -> Twins:
    twins = case.twins(grows=True)
    for episode in (twins.theirs, twins.ours):
        episode.agent_id, episode.module_id, episode.multi_agent_episode_id = "a", "m", "ma"
        episode.custom_data["kept"] = [1]
    return twins


@holds("C13", "C14")
@random_cases(case=cases(), k=st.one_of(lookbacks, st.integers(-1, 70)))
def test_cut(case: Case, k: int) -> None:
    cut(named(case), k)


@holds("C16")
@random_cases(
    case=cases(),
    start=bounds,
    stop=bounds,
    step=st.sampled_from([None, None, None, None, 1, 2, 3, -1, -2]),
    lookback=st.one_of(st.none(), lookbacks, st.integers(-1, 70)),
)
def test_slice(case: Case, start: Any, stop: Any, step: Any, lookback: Any) -> None:
    slice_(named(case), slice(start, stop, step), lookback)


WRONG = ("id", "time", "observation", "nesting", "extras", "not reset", "done")


@holds("C15")
@random_cases(
    case=cases(end="running"),
    k=lookbacks,
    added=st.lists(st.builds(Step, st.integers(0, 99), st.sampled_from(ENDS)), max_size=3),
    wrong=st.sampled_from([None, None, None, *WRONG]),
    turned=st.sampled_from([None, None, "first", "second"]),
)
def test_concat(case: Case, k: int, added: list[Step], wrong: str | None, turned: str | None) -> None:
    """A chunk and the one after it, back together; `turned` is the one that only now becomes arrays."""
    first, second = named(case), named(case)
    cut(second, k)
    for one in added:
        if not second.ours.is_done:
            step(second, case.chunk, one)
    second.theirs.custom_data["second"] = second.ours.custom_data["second"] = 2
    if turned:
        (first if turned == "first" else second).theirs.to_numpy()
    spoil(first, second, case, wrong)
    join(first, (second.theirs, second.ours), wrong or "right")


def spoil(first: Twins, second: Twins, case: Case, wrong: str | None) -> None:
    """Make the second chunk one that does not follow, or the first one that is not followed."""
    chunk = case.chunk
    if wrong == "id":
        second.theirs.id_ = second.ours.id_ = "another"
    elif wrong == "time":
        second.theirs.t_started += 1
        second.theirs.t += 1
        second.ours.t_started += 1
    elif wrong == "done":
        first.theirs.is_terminated = first.ours.is_terminated = True
    elif wrong in ("observation", "nesting", "not reset"):
        other = rows(chunk.observation_space, np.random.default_rng(chunk.seed + 1), 1)[0]
        if wrong == "nesting":
            other = {"another": (other,)}
        given = {"observations": [] if wrong == "not reset" else [other], "t_started": first.ours.t}
        second.theirs, second.ours = (library.SingleAgentEpisode(id_=chunk.id_, **given) for library in BOTH)
    elif wrong == "extras":
        for episode in (second.theirs, second.ours):
            if len(episode) and episode.extra_model_outputs:
                episode.extra_model_outputs.pop(sorted(episode.extra_model_outputs)[0])


# -- programs --------------------------------------------------------------------------------------

small = st.integers(-6, 6)
near = st.one_of(st.none(), small)
slices = st.builds(slice, near, near, st.sampled_from([None, None, None, 2, -1]))
indices = st.one_of(st.none(), small, slices, st.lists(small, max_size=3))
fills, directly = st.sampled_from([None, 0, 1.0]), st.just(True)
requests = st.builds(Request, st.integers(0, 5), indices, st.booleans(), fills, directly=directly)
OPERATIONS = st.one_of(
    st.tuples(st.just("step"), st.builds(Step, st.integers(0, 9), st.sampled_from(ENDS))),
    st.tuples(st.just("step"), st.builds(Step, st.integers(0, 9))),
    st.tuples(st.just("step"), st.builds(Step, st.integers(0, 9), extras=st.sampled_from(["late", "missing"]))),
    st.tuples(st.just("reset")),
    st.tuples(st.just("get"), requests),
    st.tuples(st.just("set"), st.builds(Write, st.integers(0, 5), indices, st.booleans(), seed=st.integers(0, 9))),
    st.tuples(st.just("cut"), st.integers(0, 4)),
    st.tuples(st.just("cut and join"), st.integers(0, 4), st.integers(0, 2)),
    st.tuples(st.just("slice"), slices, st.one_of(st.none(), st.integers(0, 4))),
    st.tuples(st.just("set"), st.builds(Write, st.just(0), st.just(-1), seed=st.integers(0, 9))),
    st.tuples(st.just("state")),
    st.tuples(st.just("to_numpy")),
    st.tuples(st.just("validate")),
)
programs = st.lists(OPERATIONS, max_size=25)


@dataclass
class Machine:
    """Runs a program, one operation after the other."""

    case: Case
    twins: Twins = field(init=False)

    def run(self, program: list[tuple[Any, ...]]) -> None:
        self.twins = self.case.twins()
        simple = {"set": write, "cut": cut, "slice": slice_, "state": round_trip}
        for name, *arguments in program:
            if name in simple:
                simple[name](self.twins, *arguments)
            elif name in ("step", "reset"):
                {"step": step, "reset": reset}[name](self.twins, self.case.chunk, *arguments)
            else:
                getattr(self, name.replace(" ", "_"))(*arguments)

    def get(self, what: Request) -> None:
        what.read(self.twins.theirs, self.twins.ours)

    def cut_and_join(self, k: int, steps: int) -> None:
        """Cut, let the new chunk go on for a while, and put it back behind the old one."""
        before = self.twins
        if before.ours.is_done:
            return
        after = Twins(before.theirs, before.ours, before.arrays)
        cut(after, k)
        for number in range(steps):
            step(after, self.case.chunk, Step(number))
        join(before, (after.theirs, after.ours), "right")

    def to_numpy(self) -> None:
        if self.twins.theirs.rewards.data is not None:
            self.twins.do("to_numpy", lambda e: e.to_numpy())
            self.twins.arrays = True

    def validate(self) -> None:
        self.twins.do("validate", lambda e: e.validate())


@random_cases(case=cases(length=3), program=programs)
def test_programs(case: Case, program: list[tuple[Any, ...]]) -> None:
    Machine(case).run(program)


# -- listed differences ----------------------------------------------------------------------------


def joined(wrong: str | None) -> Any:
    """Join a chunk behind a cut that is wrong in a way."""

    def run(case: Case) -> None:
        first, second = named(case), named(case)
        cut(second, 0)
        if wrong == "extras":
            step(second, case.chunk, Step())
        spoil(first, second, case, wrong)
        join(first, (second.theirs, second.ours), wrong or "right")

    return run


def joined_at_the_end(case: Case) -> None:
    """Join a chunk that ends with both flags."""
    first, second = named(case), named(case)
    cut(second, 0)
    step(second, case.chunk, Step(0, "both"))
    join(first, (second.theirs, second.ours), "right")


def program(*operations: tuple[Any, ...]) -> Any:
    return lambda case: Machine(case).run([*operations])


BOX = gym.spaces.Box(-2, 3, (2,), np.float32)
ENDED, RUNNING = Chunk(BOX, BOX, 4, end="terminated"), Chunk(BOX, BOX, 4, lookback=2, t_started=2)
NESTED = Chunk(gym.spaces.Tuple((BOX,)), BOX, 4, lookback=3, t_started=3)
OUTPUTS = Chunk(BOX, BOX, 4, extras=("vf_preds",))
NO_STEPS = Chunk(BOX, BOX, 0, lookback=2, t_started=2, extras=("vf_preds",))
EXAMPLES = [
    ("O18", ENDED, program(("slice", slice(0, 9), None))),
    ("O18", RUNNING, lambda case: cut(named(case), 1)),
    ("O60", NESTED, program(("cut", 3))),
    ("O60", NESTED, program(("slice", slice(0, 3), None))),
    ("slice-bounds", RUNNING, program(("slice", slice(-9, None), None))),
    ("slice-bounds", RUNNING, program(("slice", slice(3, 1), None))),
    ("slice-bounds", RUNNING, program(("slice", slice(0, 4, 2), None))),
    ("argument-errors", RUNNING, program(("cut", -1))),
    ("argument-errors", RUNNING, program(("slice", slice(0, 2), -1))),
    ("mixed-concat", RUNNING, joined(None)),
    ("concat-flags", RUNNING, joined_at_the_end),
    ("state-errors", RUNNING, joined("nesting")),
    ("state-errors", RUNNING, joined("not reset")),
    ("refused-calls", OUTPUTS, joined("extras")),
    ("O23", OUTPUTS, program(("step", Step(extras="missing")))),
    ("extra-keys", Chunk(BOX, BOX, 0, extras=("vf_preds",)), program(("step", Step(extras="missing")))),
    ("state-no-steps", NO_STEPS, program(("state",))),
    ("data-dict", Chunk(BOX, BOX, 0), compare_data_dicts),
]


@pytest.mark.parametrize(("identity", "chunk", "do"), EXAMPLES)
def test_each_difference(identity: str, chunk: Chunk, do: Any) -> None:
    before = differences_met.copy()
    do(Case(chunk, arrays=identity != "extra-keys"))
    assert identity in differences_met - before
