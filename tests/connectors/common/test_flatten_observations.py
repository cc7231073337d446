"""Flat observations on both sides, columnar and plain, in RLlib's layout."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple

from epibatch.connectors.common import FlattenObservations
from epibatch.connectors.env_to_module import AddObservationsFromEpisodesToBatch, EnvToModulePipeline
from epibatch.connectors.env_to_module.flatten_observations import FlattenObservations as FlattenEnvToModule
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    AddOneTsToEpisodesAndTruncate,
    AddTimeDimToBatchAndZeroPad,
    LearnerConnectorPipeline,
)
from epibatch.core.errors import ColumnError, ConfigError, PieceError, SpaceError, UnknownNameError
from epibatch.core.spaces import batch, flatten_inputs_to_1d_tensor, get_base_struct_from_space
from epibatch.episodes import SingleAgentEpisode, VectorRecorder
from fixture_pieces import UserPiece, trained

SPACE = Dict(
    a=Discrete(3),
    b=MultiDiscrete([2, 3]),
    c=Tuple([MultiBinary(4), Dict(d=Box(-9, 9, (2, 2)), e=Discrete(2, start=7))]),
)


STARTS = Dict(b=Discrete(3, start=-1), a=Box(0, 255, (2,), np.uint8))


LEARNING = {"as_learner_connector": True}


def rows_of(space, samples):
    """Samples as rows, by the helper for ported code."""
    return flatten_inputs_to_1d_tensor(batch(samples), get_base_struct_from_space(space))


def samples_of(space, count, seed=0):
    space.seed(seed)
    return [space.sample() for _ in range(count)]


def recorded(space, steps, envs=3):
    """Episodes from a recorder that plays samples of the space, and the samples by environment and step."""
    many = gym.vector.utils.batch_space(space, envs)
    many.seed(1)
    recorder, no = VectorRecorder(envs, space, Discrete(2)), np.zeros(envs, bool)
    observations = [many.sample() for _ in range(steps + 1)]
    recorder.reset(observations[0])
    for later in observations[1:]:
        recorder.step(np.zeros(envs, np.int64), np.zeros(envs), no, no, later)
    by_env = [list(gym.vector.utils.iterate(many, step)) for step in observations]
    return recorder.flush(0), [[step[env] for step in by_env] for env in range(envs)]


def as_tensors(rows):
    if isinstance(rows, dict):
        return {key: as_tensors(part) for key, part in rows.items()}
    return tuple(map(as_tensors, rows)) if isinstance(rows, tuple) else torch.from_numpy(rows)


@pytest.mark.parametrize("space", [SPACE, STARTS])
def test_tensors_are_flattened_as_rows_are(space):
    samples = samples_of(space, 20)
    rows = FlattenObservations(space).rewrite(as_tensors(batch(samples)), None)
    assert rows.dtype == torch.float32
    np.testing.assert_array_equal(rows.numpy(), rows_of(space, samples))


@pytest.mark.parametrize("given", [False, True])
def test_keys_can_be_left_out_whether_spaces_are_given_or_come_from_the_pipeline(given):
    kept = Dict([(key, own) for key, own in SPACE.spaces.items() if key != "b"])
    piece = FlattenEnvToModule(*([SPACE] if given else []), keys_to_remove=["b"])
    pipeline = EnvToModulePipeline(SPACE, Discrete(2), connectors=[piece, AddObservationsFromEpisodesToBatch()])
    sample = samples_of(SPACE, 1)[0]
    episode = SingleAgentEpisode(observations=[sample])
    ((out,),) = pipeline(episodes=[episode])["obs"].values()
    expected = rows_of(kept, [{key: own for key, own in sample.items() if key != "b"}])[0]
    np.testing.assert_array_equal(out, expected)
    assert pipeline.observation_space.shape == expected.shape


@pytest.mark.parametrize("bootstrap", [False, True])
@pytest.mark.parametrize("kind", ["columnar", "plain", "behind an undeclared piece"])
@pytest.mark.parametrize("space", [SPACE, STARTS, Tuple([Discrete(2)])])
def test_the_learner_piece_adds_flat_rows_and_leaves_the_episodes_alone(space, kind, bootstrap):
    episodes, samples = recorded(space, 6)
    before = [repr(episode.get_observations(0)) for episode in list(episodes)]
    pieces = [UserPiece()] * (kind == "behind an undeclared piece") + [FlattenObservations(**LEARNING)]
    pieces += [AddOneTsToEpisodesAndTruncate()] * bootstrap + [AddColumnsFromEpisodesToTrainBatch()]
    out = trained(pieces, list(episodes) if kind == "plain" else episodes, space, Discrete(2))["obs"]
    expected = np.concatenate([rows_of(space, own if bootstrap else own[:-1]) for own in samples])
    np.testing.assert_array_equal(out, expected)
    assert [repr(episode.get_observations(0)) for episode in list(episodes)] == before


def test_the_learner_piece_alone_writes_what_later_pieces_read():
    LearnerConnectorPipeline(connectors=[FlattenObservations(**LEARNING), AddTimeDimToBatchAndZeroPad(**LEARNING)])
    LearnerConnectorPipeline(connectors=[FlattenObservations(), AddTimeDimToBatchAndZeroPad()])
    with pytest.raises(PieceError, match="FlattenObservations"):
        LearnerConnectorPipeline(connectors=[FlattenObservations(as_learner_connector=False)])


def test_the_learner_piece_leaves_vectors_that_the_acting_one_wrote():
    acting = EnvToModulePipeline(SPACE, Discrete(2), connectors=[FlattenObservations()])
    episode, samples = SingleAgentEpisode(observation_space=SPACE, action_space=Discrete(2)), samples_of(SPACE, 4)
    episode.add_env_reset(samples[0])
    acting(episodes=[episode])
    for sample in samples[1:]:
        episode.add_env_step(sample, 0, 1.0)
        acting(episodes=[episode])
    out = trained([FlattenObservations(**LEARNING)], [episode], acting.observation_space, Discrete(2))["obs"]
    np.testing.assert_array_equal(out, rows_of(SPACE, samples[:-1]))


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: flat(None, samples_of(SPACE, 1)[0]), SpaceError, "which says what becomes a one-hot"),
        (lambda: FlattenObservations(keys_to_remove="a"), ConfigError, r"\['a'\]"),
        (lambda: FlattenObservations(key_to_remove=["a"]), PieceError, "keys_to_remove"),
        (lambda: space_of(SPACE, keys_to_remove=["aa"]), UnknownNameError, "Known: a, b, c"),
        (lambda: space_of(Box(-1, 1, (2,)), keys_to_remove=["a"]), SpaceError, "a Dict observation space"),
        (lambda: space_of(Text(5)), SpaceError, "TransformObservation"),
    ],
)
def test_wrong_uses_are_named(make, error, words):
    with pytest.raises(error, match=words):
        make()


def space_of(space, **settings):
    return FlattenObservations(space, **settings).observation_space


def flat(space, *observations):
    """What the piece makes of the newest observations of an episode each."""
    episodes = [SingleAgentEpisode(observations=[one]) for one in observations]
    piece = FlattenObservations(space)
    assert piece(batch={}, episodes=episodes) == {}
    assert all(episode.observation_space == piece.observation_space for episode in episodes)
    return np.stack([episode.get_observations(-1) for episode in episodes]), piece.observation_space


def test_the_layout():
    space = Dict([("c", MultiDiscrete([2, 3])), ("b", Tuple([Discrete(2), Box(-1, 1, (2, 1))])), ("a", Box(-9, 9, ()))])
    rows, _ = flat(space, {"a": np.array(7.0), "b": (np.array(1), np.array([[2.0], [3.0]])), "c": np.array([0, 2])})
    assert rows.tolist() == [[7.0, 0.0, 1.0, 2.0, 3.0, 1.0, 0.0, 0.0, 0.0, 1.0]]


@pytest.mark.parametrize(
    ("space", "observation", "error", "words"),
    [
        (Discrete(3), 3, SpaceError, r"values of Discrete\(3\)"),
        (Discrete(3), -1, SpaceError, r"values of Discrete\(3\)"),
        (Discrete(3), 0.5, SpaceError, r"values of Discrete\(3\)"),
        (Dict(a=Box(-1, 1, (2,)), b=Text(5)), {"a": np.zeros(2), "b": "x"}, SpaceError, "keys_to_remove"),
        (Tuple([Discrete(2)]), {"a": np.zeros(1)}, ColumnError, "nested structure"),
        (Box(-1, 1, (2,)), np.zeros(3), SpaceError, r"shape \(3,\) per row"),
    ],
)
def test_observations_that_do_not_fit_are_named(space, observation, error, words):
    with pytest.raises(error, match=words):
        flat(space, observation)
