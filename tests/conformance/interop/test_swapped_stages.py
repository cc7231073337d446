"""Default pipelines with one stage of the other library give the batches of their own library.

Where a stage differs on purpose the batch has what the pipeline of the stage's library has there, by a row of the page.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import gymnasium as gym
import numpy as np
import torch
from hypothesis import strategies as st

from epibatch.core.structs import map_struct, stack_rows
from epibatch.interop.rllib import from_rllib_piece, to_rllib_piece
from oracle.cases import random_cases
from oracle.compare import Mismatch, Outcome, mismatches, outcome, settle
from oracle.differences import difference
from oracle.episodes import seeds, several_chunks
from oracle.libraries import EPIBATCH, RLLIB, Library
from oracle.modules import LEARNER, PPO, TO_ENV, TO_MODULE, build_module, pieces_of

ACTIONS = st.sampled_from(
    [
        gym.spaces.Discrete(3),
        gym.spaces.MultiDiscrete([2, 3]),
        gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([4.0, 1.0], np.float32)),
    ]
)


@dataclass(frozen=True)
class Swapped:
    """One run of a pipeline with a stage of the other library; RLlib's side of a mismatch is the run without it.

    Attributes:
        library: whose pipeline it is.
        stage: the piece that is the other library's.
        other: what the other library's own pipeline gave.
        steps: of each chunk.
    """

    library: Library
    stage: str
    other: Outcome = field(repr=False)
    steps: tuple[int, ...]

    def is_the_others(self, mismatch: Mismatch) -> bool:
        """Whether what differs is what the other library's pipeline has in that place."""
        found = self.other.value
        if mismatch.kind == "error" or found is None:
            return False
        for part in mismatch.path:
            found = found[part]
        return not mismatches(found, mismatch.ours)


@difference("O29", Swapped)
def bootstrap_steps_in_seq_lens(situation: Swapped, mismatch: Mismatch) -> bool:
    """Padding is what counts the steps of sequences."""
    padding = situation.stage == "AddTimeDimToBatchAndZeroPad" and mismatch.path[-1:] == ("seq_lens",)
    return padding and situation.is_the_others(mismatch)


@difference("O28", Swapped)
def advantages_of_the_other_library(situation: Swapped, mismatch: Mismatch) -> bool:
    """The estimation standardises, over other rows."""
    gae = situation.stage == "GeneralAdvantageEstimation" and mismatch.path == ("advantages",)
    return gae and situation.is_the_others(mismatch)


@difference("bootstrap-targets", Swapped)
def targets_of_the_other_library(situation: Swapped, mismatch: Mismatch) -> bool:
    """So are the targets its own, in bootstrap rows and in the order of float operations."""
    gae = situation.stage == "GeneralAdvantageEstimation" and mismatch.path == ("value_targets",)
    return gae and situation.is_the_others(mismatch)


@difference("O42", Swapped)
def integers_on_the_way_to_the_environment(situation: Swapped, mismatch: Mismatch) -> bool:
    """RLlib's `TensorToNumpy` makes 64-bit integers 32-bit ones."""
    if situation.stage != "TensorToNumpy" or mismatch.kind != "dtype" or mismatch.path[0] != "outputs":
        return False
    pair = mismatch.theirs, mismatch.ours
    narrow, wide = reversed(pair) if situation.library is EPIBATCH else pair
    typed = narrow.dtype == np.int32 and wide.dtype == np.int64
    return typed and np.array_equal(narrow, wide)


@difference("env-action-types", Swapped)
def actions_of_the_spaces_type(situation: Swapped, mismatch: Mismatch) -> bool:
    """Our scaling gives the environment's actions the type of their space."""
    scaling = situation.stage == "NormalizeAndClipActions" and mismatch.path == ("outputs", "actions_for_env")
    return scaling and situation.library is RLLIB and situation.is_the_others(mismatch)


@difference("no-steps", Swapped)
def chunks_without_steps(situation: Swapped, mismatch: Mismatch) -> bool:
    """A stage of ours has no rows of a chunk without steps, RLlib's has some: one of the runs ends in an error."""
    return mismatch.kind == "error" and situation.library is RLLIB and not all(situation.steps)


SETTINGS = {
    "GeneralAdvantageEstimation": {"gamma": 0.9, "lambda_": 0.8},
    "NormalizeAndClipActions": {"normalize_actions": True, "clip_actions": False},
}


def pipeline_of(library, package, names, space, swapped=None):
    """A pipeline of a library, with one stage of the other's."""
    pieces = pieces_of(library, package, *names, **SETTINGS)
    if swapped in names:
        other = EPIBATCH if library is RLLIB else RLLIB
        (guest,) = pieces_of(other, package, swapped, **SETTINGS)
        guest = to_rllib_piece(guest, pipeline=package) if library is RLLIB else from_rllib_piece(guest)
        pieces[names.index(swapped)] = guest
    home = {"learner": "LearnerConnectorPipeline", "env_to_module": "EnvToModulePipeline"}
    cls = getattr(getattr(library, package), home.get(package, "ModuleToEnvPipeline"))
    return cls(*space, connectors=pieces)


def train_batch(library, case, names, swapped=None, steps=3):
    space = (case[0].observation_space, case[0].action_space)
    module = build_module(library, *space, state=case[0].state, max_seq_len=steps, multi=True)
    pipeline = pipeline_of(library, "learner", names, space, swapped)
    episodes = [chunk.build(library) for chunk in case]
    return pipeline(rl_module=module, batch={}, episodes=episodes, shared_data={})["default_policy"]


def hold(case, swapped, run):
    """Run the pipelines of both libraries with a stage of the other, and hold each beside the same without it.

    Args:
        case: the chunks.
        swapped: name of the stage.
        run: runs a library's pipelines, with the stage of that name swapped.
    """
    pure = {library: outcome(lambda library=library: run(library, None)) for library in (RLLIB, EPIBATCH)}
    for library, other in ((RLLIB, EPIBATCH), (EPIBATCH, RLLIB)):
        mixed = outcome(lambda library=library: run(library, swapped))
        steps = tuple(chunk.length for chunk in case)
        settle(pure[library], mixed, Swapped(library, swapped, pure[other], steps))


many = several_chunks(st.integers(1, 4), action_spaces=ACTIONS, common=("extras", "state"), reward="float")


@random_cases(case=many, steps=st.integers(1, 7), bootstraps=st.booleans(), at=st.integers(0, 7))
def test_train_batches(case, steps, bootstraps, at):
    names = PPO if bootstraps else LEARNER
    hold(case, names[at % len(names)], lambda library, swapped: train_batch(library, case, names, swapped, steps))


def outputs_of(case, seed):
    """What a module might give for the newest observations of these chunks."""
    rng, count, act = np.random.default_rng(seed), len(case), case[0].action_space
    width = {"Discrete": 3, "MultiDiscrete": 5, "Box": 4}[type(act).__name__]
    floats = {"action_dist_inputs": (count, width), "vf_preds": (count,)}
    outputs = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in floats.items()}
    outputs["tags"] = rng.integers(0, 99, count)
    if case[0].state:
        outputs = {name: value[:, None] for name, value in outputs.items()}
        states = rng.standard_normal((2, count, case[0].state)).astype(np.float32)
        outputs["state_out"] = {"h": states[0], "c": states[1]}
    return map_struct(torch.from_numpy, outputs)


def acted(library, case, seed, swapped=None):
    """The module's batch, and what the environment and the episodes get of the module's outputs."""
    space = (case[0].observation_space, case[0].action_space)
    module = build_module(library, *space, state=case[0].state)
    there, back = swapped or ("", "")
    to_module = pipeline_of(library, "env_to_module", TO_MODULE, space, there)
    to_env = pipeline_of(library, "module_to_env", TO_ENV, space, back)
    episodes, shared = [chunk.build(library, numpy=False) for chunk in case], {}
    batch = to_module(rl_module=module, batch={}, episodes=episodes, explore=False, shared_data=shared)
    outputs = to_env(
        rl_module=module, batch=outputs_of(case, seed), episodes=episodes, explore=False, shared_data=shared
    )
    return {"batch": batch, "outputs": {name: stacked(column) for name, column in outputs.items()}}


def stacked(column):
    """A column whose items may be in a list, as RLlib leaves them."""
    return stack_rows(column) if isinstance(column, list) else column


@random_cases(case=many, seed=seeds, at=st.integers(0, len(TO_MODULE + TO_ENV) - 1))
def test_acting(case, seed, at):
    name, there = (TO_MODULE + TO_ENV)[at], at < len(TO_MODULE)

    def run(library, swapped):
        return acted(library, case, seed, swapped and ((name, "") if there else ("", name)))

    hold(case, name, run)
