"""Flat observations on both sides, columnar and plain, in RLlib's layout."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from hypothesis import example, given, settings
from hypothesis import strategies as st

from epibatch.algorithms import PPOConfig
from epibatch.connectors.common import FlattenObservations
from epibatch.connectors.env_to_module import AddObservationsFromEpisodesToBatch, EnvToModulePipeline
from epibatch.connectors.env_to_module.flatten_observations import FlattenObservations as FlattenEnvToModule
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    AddOneTsToEpisodesAndTruncate,
    AddTimeDimToBatchAndZeroPad,
    BatchIndividualItems,
    LearnerConnectorPipeline,
)
from epibatch.core.errors import ColumnError, ConfigError, PieceError, SpaceError, UnknownNameError
from epibatch.core.spaces import batch, flatten_inputs_to_1d_tensor, get_base_struct_from_space
from epibatch.episodes import SingleAgentEpisode, VectorRecorder
from fixture_pieces import UserPiece

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


# ------------------------------------------------------------------------------------------ acting


@pytest.mark.parametrize("plain", [False, True])
def test_a_recording_becomes_one_flat_column(plain):
    envs, steps = 3, 5
    many = gym.vector.utils.batch_space(SPACE, envs)
    many.seed(0)
    recorder, no = VectorRecorder(envs, SPACE, Discrete(2)), np.zeros(envs, bool)
    pieces = [*([UserPiece()] * plain), FlattenObservations(), AddObservationsFromEpisodesToBatch()]
    pipeline = EnvToModulePipeline(SPACE, Discrete(2), connectors=pieces)
    expected = []
    for i in range(steps + 1):
        observations = many.sample()
        if i:
            recorder.step(np.zeros(envs, np.int64), np.zeros(envs), no, no, observations)
        else:
            recorder.reset(observations)
        out = pipeline(episodes=recorder.episodes)
        recorder.commit()
        expected.append(rows_of(SPACE, list(gym.vector.utils.iterate(many, observations))))
        np.testing.assert_array_equal(batch([items[0] for items in out["obs"].values()]), expected[-1])
    for env, episode in enumerate(recorder.flush(0)):
        np.testing.assert_array_equal(episode.get_observations(), np.stack(expected)[:, env])


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


# ---------------------------------------------------------------------------------------- training


@pytest.mark.parametrize("bootstrap", [False, True])
@pytest.mark.parametrize("kind", ["columnar", "plain", "behind an undeclared piece"])
@pytest.mark.parametrize("space", [SPACE, STARTS, Tuple([Discrete(2)])])
def test_the_learner_piece_adds_flat_rows_and_leaves_the_episodes_alone(space, kind, bootstrap):
    episodes, samples = recorded(space, 6)
    before = [repr(episode.get_observations(0)) for episode in list(episodes)]
    pieces = [
        *([UserPiece()] if kind == "behind an undeclared piece" else []),
        FlattenObservations(**LEARNING),
        *([AddOneTsToEpisodesAndTruncate()] if bootstrap else []),
        AddColumnsFromEpisodesToTrainBatch(),
        BatchIndividualItems(),
    ]
    pipeline = LearnerConnectorPipeline(space, Discrete(2), connectors=pieces)
    out = pipeline(episodes=list(episodes) if kind == "plain" else episodes)
    expected = np.concatenate([rows_of(space, own if bootstrap else own[:-1]) for own in samples])
    np.testing.assert_array_equal(out["obs"], expected)
    assert [repr(episode.get_observations(0)) for episode in list(episodes)] == before
    assert pipeline.observation_space.shape == expected.shape[1:]


def test_the_learner_piece_alone_writes_what_later_pieces_read():
    LearnerConnectorPipeline(connectors=[FlattenObservations(**LEARNING), AddTimeDimToBatchAndZeroPad(**LEARNING)])
    LearnerConnectorPipeline(connectors=[FlattenObservations(), AddTimeDimToBatchAndZeroPad()])
    with pytest.raises(PieceError, match="FlattenObservations"):
        LearnerConnectorPipeline(connectors=[FlattenObservations(as_learner_connector=False)])


def test_both_sides_of_a_run():
    """The learner's piece finds vectors, which the acting one has written, and leaves them as they are."""

    class Nested(gym.Env):
        observation_space, action_space = SPACE, Discrete(2)

        def reset(self, *, seed=None, options=None):
            self.t = 0
            return self.observation_space.sample(), {}

        def step(self, action):
            self.t += 1
            return self.observation_space.sample(), 1.0, self.t == 4, False, {}

    config = PPOConfig().environment(lambda env_config: Nested()).rl_module(model_config={"fcnet_hiddens": [8]})
    config.env_runners(env_to_module_connector=["flatten_observations"], num_envs_per_env_runner=2)
    config.learners(learner_connector=["flatten_observations"])
    config.training(train_batch_size=24, minibatch_size=8, num_epochs=1).debugging(seed=0)
    algo = config.build_algo()
    algo.train()
    episodes = algo.env_runner.sample(num_timesteps=10)
    assert [episode.observation_space.shape for episode in episodes] == [(18,)] * len(episodes)
    out = algo.learner.connector(rl_module=algo.learner.module, batch={}, episodes=episodes)["default_policy"]
    expected = np.concatenate([episode.get_observations() for episode in episodes])
    np.testing.assert_array_equal(out["obs"].numpy(), expected)
    algo.stop()


# ------------------------------------------------------------------------------------------ errors


def test_wrong_uses_are_named():
    episode = SingleAgentEpisode(observations=[samples_of(SPACE, 1)[0]])
    with pytest.raises(SpaceError, match="which says what becomes a one-hot"):
        FlattenObservations()(batch={}, episodes=[episode])
    with pytest.raises(ConfigError, match=r"\['a'\]"):
        FlattenObservations(keys_to_remove="a")
    with pytest.raises(UnknownNameError, match="Known: a, b, c"):
        FlattenObservations(SPACE, keys_to_remove=["aa"]).observation_space  # noqa: B018
    with pytest.raises(SpaceError, match="a Dict observation space"):
        FlattenObservations(Box(-1, 1, (2,)), keys_to_remove=["a"]).observation_space  # noqa: B018
    with pytest.raises(SpaceError, match="TransformObservation"):
        FlattenObservations(Text(5)).observation_space  # noqa: B018
    with pytest.raises(PieceError, match="keys_to_remove"):
        FlattenObservations(key_to_remove=["a"])


LEAVES = st.sampled_from(
    [
        Box(-1, 1, (3,)),
        Box(-2, 2, (), np.float64),
        Box(0, 255, (2, 2, 1), np.uint8),
        Discrete(4, start=-2),
        MultiDiscrete([2, 3], start=[5, -1]),
        MultiDiscrete([[2, 3], [4, 1]]),
        MultiBinary((2, 2)),
    ]
)


SPACES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(Tuple),
        st.dictionaries(st.sampled_from("zabc"), inner, min_size=1, max_size=3).map(
            lambda own: Dict(list(own.items()))
        ),
    ),
    max_leaves=5,
)


def flat(space, *observations):
    """What the piece makes of the newest observations of an episode each."""
    episodes = [SingleAgentEpisode(observations=[one]) for one in observations]
    piece = FlattenObservations(space)
    assert piece(batch={}, episodes=episodes) == {}
    assert all(episode.observation_space == piece.observation_space for episode in episodes)
    return np.stack([episode.get_observations(-1) for episode in episodes]), piece.observation_space


@settings(max_examples=60, deadline=None)
@given(space=SPACES, count=st.integers(1, 5), seed=st.integers(0, 1000))
@example(space=SPACE, count=4, seed=0)
@example(space=STARTS, count=4, seed=0)
def test_the_newest_observations_become_vectors(space, count, seed):
    samples = samples_of(space, count, seed)
    rows, flat_space = flat(space, *samples)
    np.testing.assert_array_equal(rows, rows_of(space, samples))
    assert rows.dtype == np.float32 and flat_space == Box(-np.inf, np.inf, rows.shape[1:])


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
