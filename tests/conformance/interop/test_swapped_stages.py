"""Default pipelines with one stage of the other library give the batches of their own library.

What the stages themselves give differently is listed here by column; there the batch is that of the stage's library.
"""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch
from hypothesis import strategies as st

from epibatch.core.structs import map_struct, stack_rows
from epibatch.interop.rllib import from_rllib_piece, to_rllib_piece
from oracle.cases import random_cases
from oracle.compare import mismatches
from oracle.episodes import chunks, seeds
from oracle.libraries import EPIBATCH, RLLIB
from oracle.modules import build_module

LEARNER = (
    "AddOneTsToEpisodesAndTruncate",
    "AddObservationsFromEpisodesToBatch",
    "AddColumnsFromEpisodesToTrainBatch",
    "AddTimeDimToBatchAndZeroPad",
    "AddStatesFromEpisodesToBatch",
    "BatchIndividualItems",
    "NumpyToTensor",
    "GeneralAdvantageEstimation",
)
TO_MODULE = (
    "AddObservationsFromEpisodesToBatch",
    "AddTimeDimToBatchAndZeroPad",
    "AddStatesFromEpisodesToBatch",
    "BatchIndividualItems",
    "NumpyToTensor",
)
TO_ENV = (
    "GetActions",
    "TensorToNumpy",
    "UnBatchToIndividualItems",
    "RemoveSingleTsTimeRankFromBatch",
    "NormalizeAndClipActions",
    "ListifyDataForVectorEnv",
)
BOTH_SIDES = {"AddObservationsFromEpisodesToBatch", "AddTimeDimToBatchAndZeroPad", "AddStatesFromEpisodesToBatch"}
THE_STAGES_OWN = {
    "AddTimeDimToBatchAndZeroPad": {"seq_lens"},  # O29
    "GeneralAdvantageEstimation": {"advantages", "value_targets"},  # O28, and the order of float operations
}
INTEGERS = {
    RLLIB: lambda rows: rows.astype(np.int64) if rows.dtype == np.int32 else rows,
    EPIBATCH: lambda rows: rows.astype(np.int32) if rows.dtype == np.int64 else rows,
}
ACTIONS = st.sampled_from(
    [
        gym.spaces.Discrete(3),
        gym.spaces.MultiDiscrete([2, 3]),
        gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([4.0, 1.0], np.float32)),
    ]
)


def stage(library, package, name):
    settings = {"as_learner_connector": True} if package == "learner" and name in BOTH_SIDES else {}
    if name == "GeneralAdvantageEstimation":
        settings = {"gamma": 0.9, "lambda_": 0.8}
    if name == "NormalizeAndClipActions":
        settings = {"normalize_actions": True, "clip_actions": False}
    return getattr(getattr(library, package), name)(**settings)


def pipeline_of(library, package, names, space, swapped=None):
    """A pipeline of a library, with one stage of the other's."""
    pieces = []
    for name in names:
        if name != swapped:
            pieces.append(stage(library, package, name))
        elif library is RLLIB:
            pieces.append(to_rllib_piece(stage(EPIBATCH, package, name), pipeline=package))
        else:
            pieces.append(from_rllib_piece(stage(RLLIB, package, name)))
    home = {"learner": "LearnerConnectorPipeline", "env_to_module": "EnvToModulePipeline"}
    cls = getattr(getattr(library, package), home.get(package, "ModuleToEnvPipeline"))
    return cls(*space, connectors=pieces)


def case_of(drawn):
    """Chunks of one pair of spaces with the same columns, each with a name of its own."""
    first = drawn[0]
    fixed = {"observation_space": first.observation_space, "action_space": first.action_space}
    fixed |= {"extras": first.extras, "state": first.state, "reward": "float"}
    return [type(first)(**{**_fields(chunk), **fixed, "id_": f"chunk{i}"}) for i, chunk in enumerate(drawn)]


def _fields(chunk):
    names = ("length", "lookback", "t_started", "end", "seed")
    return {name: getattr(chunk, name) for name in names}


def with_history(chunk, state):
    """A chunk in mid-episode has lookback where the module is recurrent: both libraries need it."""
    return not (state and chunk.t_started and not chunk.lookback)


def train_batch(library, case, names, swapped=None, steps=3):
    space = (case[0].observation_space, case[0].action_space)
    module = build_module(library, *space, state=case[0].state, max_seq_len=steps, multi=True)
    pipeline = pipeline_of(library, "learner", names, space, swapped)
    episodes = [chunk.build(library) for chunk in case]
    return pipeline(rl_module=module, batch={}, episodes=episodes, shared_data={})["default_policy"]


def check(pure, other, mixed, swapped, library=None):
    own = THE_STAGES_OWN.get(swapped, set())
    if swapped == "NormalizeAndClipActions" and library is RLLIB:
        own = {"actions_for_env"}  # O42: ours makes them of the action space's type
    assert mixed.keys() == pure.keys(), swapped
    for name in pure:
        expected = (other if name in own else pure)[name]
        if swapped == "TensorToNumpy" and (name != "actions_for_env" or library is RLLIB):
            # O42: RLlib's makes integers int32, ours leaves them as they are; ours for the environment have its type
            expected = map_struct(INTEGERS[library], expected)
        assert mismatches(expected, mixed[name]) == [], (swapped, name)


many = st.lists(chunks(action_spaces=ACTIONS).filter(lambda chunk: chunk.length), min_size=1, max_size=4)


@random_cases(drawn=many, steps=st.integers(1, 7), bootstraps=st.booleans(), at=st.integers(0, 7))
def test_train_batches(drawn, steps, bootstraps, at):
    case = [chunk for chunk in case_of(drawn) if with_history(chunk, drawn[0].state)]
    names = LEARNER if bootstraps else LEARNER[1:-1]
    swapped = names[at % len(names)]
    if not case:
        return
    pure = {library: train_batch(library, case, names, None, steps) for library in (RLLIB, EPIBATCH)}
    for library, other in ((RLLIB, EPIBATCH), (EPIBATCH, RLLIB)):
        mixed = train_batch(library, case, names, swapped, steps)
        check(pure[library], pure[other], mixed, swapped)


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


def acted(library, case, seed, swapped_in=None, swapped_out=None):
    """The module's batch, and what the environment and the episodes get of the module's outputs."""
    space = (case[0].observation_space, case[0].action_space)
    module = build_module(library, *space, state=case[0].state)
    to_module = pipeline_of(library, "env_to_module", TO_MODULE, space, swapped_in)
    to_env = pipeline_of(library, "module_to_env", TO_ENV, space, swapped_out)
    episodes, shared = [chunk.build(library, numpy=False) for chunk in case], {}
    batch = to_module(rl_module=module, batch={}, episodes=episodes, explore=False, shared_data=shared)
    outputs = to_env(
        rl_module=module, batch=outputs_of(case, seed), episodes=episodes, explore=False, shared_data=shared
    )
    return batch, {name: stacked(column) for name, column in outputs.items()}


def stacked(column):
    """A column whose items may be in a list, as RLlib leaves them."""
    return stack_rows(column) if isinstance(column, list) else column


running = st.lists(chunks(action_spaces=ACTIONS, end="running"), min_size=1, max_size=4)


@random_cases(drawn=running, seed=seeds, at=st.integers(0, len(TO_MODULE + TO_ENV) - 1))
def test_acting(drawn, seed, at):
    case = [chunk for chunk in case_of(drawn) if with_history(chunk, drawn[0].state)]
    if not case:
        return
    swapped = [None, None]
    swapped[at >= len(TO_MODULE)] = (TO_MODULE + TO_ENV)[at]
    pure = {library: acted(library, case, seed) for library in (RLLIB, EPIBATCH)}
    for library, other in ((RLLIB, EPIBATCH), (EPIBATCH, RLLIB)):
        mixed = acted(library, case, seed, *swapped)
        check(pure[library][0], pure[other][0], mixed[0], swapped[0])
        check(pure[library][1], pure[other][1], mixed[1], swapped[1], library)
