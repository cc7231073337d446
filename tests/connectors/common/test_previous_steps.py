"""Earlier actions and rewards beside observations, the same on both sides, against a loop over steps."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from gymnasium.vector.utils import batch_space

from epibatch.connectors.env_to_module import (
    AddObservationsFromEpisodesToBatch,
    EnvToModulePipeline,
    PrevActionsPrevRewards,
)
from epibatch.connectors.learner import (
    AddOneTsToEpisodesAndTruncate,
    LearnerConnectorPipeline,
    PrevActionsPrevRewardsLearner,
)
from epibatch.core.errors import ConfigError, LookbackError, PipelineError, SpaceError
from epibatch.episodes import VectorRecorder
from fixture_pieces import Lab, played, trained

COUNTS = {"n_prev_actions": 3, "n_prev_rewards": 2}
POINT = Box(-1, 1, (1,))
ACTIONS = {
    "discrete": (Discrete(3), 3),
    "discrete from 4": (Discrete(2, start=4), 2),
    "box": (Box(-2, 2, (2, 2)), 4),
    "scalar box": (Box(-2, 2, (), np.float64), 1),
    "integer box": (Box(1, 5, (2,), np.int64), 2),
    "multi-discrete": (MultiDiscrete([2, 3]), 5),
    "multi-discrete matrix": (MultiDiscrete([[2, 3], [2, 2]]), 9),
    "multi-binary": (MultiBinary(3), 3),
    "dict": (Dict(b=Box(-1, 1, (2,)), a=Discrete(3)), 5),
    "tuple": (Tuple([Discrete(2), Dict(x=MultiBinary(2), w=Box(-1, 1, ()))]), 5),
}


def vector_of(space, action):
    """An action as a vector, the slow way."""
    if isinstance(space, Dict):
        return np.concatenate([vector_of(space[key], action[key]) for key in sorted(space.spaces)])
    if isinstance(space, Tuple):
        return np.concatenate([vector_of(*pair) for pair in zip(space.spaces, action)])
    if isinstance(space, Discrete):
        return np.eye(space.n)[int(action) - int(space.start)]
    if isinstance(space, MultiDiscrete):
        return np.concatenate([np.eye(n)[i] for n, i in zip(space.nvec.ravel(), np.ravel(action))])
    return np.ravel(action).astype(np.float64)


def wanted(space, actions, rewards, t):
    """What a step of an episode sees: its last three actions and two rewards, zeros before the start."""
    size = len(vector_of(space, space.sample()))
    before = [vector_of(space, actions[i]) if i >= 0 else np.zeros(size) for i in range(t - 3, t)]
    return {
        "prev_n_actions": np.concatenate(before).astype(np.float32),
        "prev_n_rewards": np.array([rewards[i] if i >= 0 else 0.0 for i in range(t - 2, t)], np.float32),
    }


def record(space):
    """Play 14 steps in 3 environments; yield the chunks of each fragment."""
    rng, many = np.random.default_rng(0), batch_space(space, 3)
    many.seed(0)
    recorder = VectorRecorder(3, POINT, space)
    recorder.reset(np.zeros((3, 1), np.float32))
    recorder.commit()
    for step in range(1, 15):
        ends = rng.random(3) < 0.25
        ends[recorder.waiting] = False
        recorder.step(many.sample(), rng.normal(size=3), ends, np.zeros(3, bool), np.ones((3, 1), np.float32))
        recorder.commit()
        if step in (4, 5, 9, 14):
            yield recorder.flush(3)


@pytest.mark.parametrize("plus_one", [False, True])
@pytest.mark.parametrize(("space", "size"), ACTIONS.values(), ids=ACTIONS)
def test_before_every_observation_of_delivered_chunks(space, size, plus_one):
    piece = PrevActionsPrevRewardsLearner(**COUNTS)
    pieces = [*[AddOneTsToEpisodesAndTruncate()] * plus_one, piece]
    whole, shown = {}, PrevActionsPrevRewardsLearner(POINT, space, **COUNTS).observation_space
    assert shown["prev_n_actions"].shape == (3 * size,) and shown["prev_n_rewards"].shape == (2,)
    for episodes in record(space):
        expected, before = [], [episode.get_observations().copy() for episode in episodes]
        for chunk in episodes:
            actions, rewards = whole.setdefault(chunk.id_, ([], []))
            actions += [chunk.get_actions(t) for t in range(len(chunk))]
            rewards += chunk.get_rewards().tolist()
            expected += [wanted(space, actions, rewards, t) for t in range(chunk.t_started, chunk.t + plus_one)]
        for given in (episodes, list(episodes)):
            found = trained(pieces, given, POINT, space)["obs"]
            for key in expected[0]:
                assert all(vector in shown[key] for vector in found[key])
                np.testing.assert_array_equal(found[key], np.stack([own[key] for own in expected]), strict=True)
        for episode, rows in zip(episodes, before):
            np.testing.assert_array_equal(episode.get_observations(), rows)


def test_one_hot_parts_are_bounded_and_the_others_are_not():
    space = Dict(a=Discrete(2), b=Box(-1, 1, (1,)), c=MultiBinary(1))
    box = PrevActionsPrevRewards(POINT, space, n_prev_actions=2).observation_space["prev_n_actions"]
    assert box.low.tolist() == [0, 0, -np.inf, 0] * 2 and box.high.tolist() == [1, 1, np.inf, 1] * 2
    shown = PrevActionsPrevRewardsLearner(POINT, Discrete(3), n_prev_rewards=2).observation_space
    assert shown["prev_n_actions"] == Box(0.0, 1.0, (3,), np.float32)
    assert shown["prev_n_rewards"] == Box(-np.inf, np.inf, (2,), np.float32)


def walk(steps, observation=lambda t: np.full(2, t, np.float32)):
    observations, rewards = [observation(t) for t in range(steps + 1)], [t + 0.5 for t in range(steps)]
    return played(observations, rewards, id_="walk", actions=[t % 2 for t in range(steps)])


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (Text(3), "PrevActionsPrevRewards"),
        (None, "pass the action space"),
        (Tuple([Discrete(2), Text(3)]), "PrevActionsPrevRewards"),
    ],
)
def test_actions_without_a_fixed_number_of_entries_are_refused(space, words):
    with pytest.raises(SpaceError, match=words):
        PrevActionsPrevRewards(POINT, space)(batch={}, episodes=[walk(1)])


def test_observation_actions_and_rewards_side_by_side(lab):
    piece = PrevActionsPrevRewards(lab.obs_space, lab.act_space, n_prev_actions=2, n_prev_rewards=3)
    episodes = [walk(0), walk(1), walk(5)]
    seen = lab.see("env_to_module", [piece, AddObservationsFromEpisodesToBatch()], episodes)
    rows = [items[0] for items in seen["obs"].values()]
    assert [row["_orig_obs"].tolist() for row in rows] == [[0, 0], [1, 1], [5, 5]]
    assert [row["prev_n_actions"].tolist() for row in rows] == [[0, 0, 0, 0], [0, 0, 1, 0], [0, 1, 1, 0]]
    assert [row["prev_n_rewards"].tolist() for row in rows] == [[0, 0, 0], [0, 0, 0.5], [2.5, 3.5, 4.5]]
    assert piece.observation_space["_orig_obs"] == lab.obs_space
    assert all(row in piece.observation_space for row in rows)
    assert episodes[2].get_observations(-1)["prev_n_rewards"].tolist() == [2.5, 3.5, 4.5]
    assert piece.lookback == 3


def test_zero_leaves_a_key_out():
    piece = PrevActionsPrevRewards(Discrete(9), Discrete(2), n_prev_actions=0)
    assert list(piece.observation_space.spaces) == ["_orig_obs", "prev_n_rewards"] and piece.lookback == 1
    none = PrevActionsPrevRewards(Discrete(9), None, n_prev_actions=0, n_prev_rewards=0)
    assert list(none.observation_space.spaces) == ["_orig_obs"] and none.lookback == 0
    episode = walk(2, observation=lambda t: t)
    none(batch={}, episodes=[episode])
    assert episode.get_observations(-1) == {"_orig_obs": 2}


def test_a_space_that_shows_earlier_steps_already_is_refused():
    shown = PrevActionsPrevRewards(Lab.obs_space, Lab.act_space).observation_space
    with pytest.raises(SpaceError, match="leave this piece out"):
        PrevActionsPrevRewardsLearner(shown, Lab.act_space).observation_space  # noqa: B018
    acted = played([{"_orig_obs": np.zeros(2), "prev_n_actions": np.zeros(2), "prev_n_rewards": np.zeros(1)}] * 2)
    with pytest.raises(SpaceError, match="leave this piece out"):
        trained([PrevActionsPrevRewardsLearner(None, Lab.act_space)], [acted])
    assert isinstance(PrevActionsPrevRewardsLearner(Dict(a=Discrete(2)), Discrete(2)).observation_space, Dict)


def test_history_that_a_chunk_does_not_carry_is_an_error():
    piece = PrevActionsPrevRewardsLearner(Lab.obs_space, Lab.act_space, n_prev_actions=3)
    for chunk in (Lab.episode("a", 2, t_started=5, lookback=2), Lab.episode("a", 2, t_started=1)):
        with pytest.raises(LookbackError, match=r"Learner, episode 'a'(.|\n)*would hide actions that exist"):
            piece(batch={}, episodes=[chunk])
    acting = PrevActionsPrevRewards(Lab.obs_space, Lab.act_space, n_prev_actions=3, n_prev_rewards=0)
    with pytest.raises(LookbackError, match="starts at t=5"):
        acting(batch={}, episodes=[Lab.episode("a", 0, t_started=5, lookback=2)])
    enough = [Lab.episode("a", 1, t_started=5, lookback=2), Lab.episode("b", 0, t_started=2, lookback=2)]
    acting(batch={}, episodes=enough)
    assert enough[1].get_observations(-1)["prev_n_actions"].tolist() == [0, 0, 1, 0, 0, 1]


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_recorder_that_kept_too_little_is_told(kept):
    recorder, no = VectorRecorder(1), np.zeros(1, bool)
    recorder.reset(np.zeros((1, 1)))
    for step in range(3):
        recorder.step(np.zeros(1, int), np.array([1.0 + step]), no, no, np.zeros((1, 1)))
    recorder.flush(kept)
    piece = PrevActionsPrevRewards(n_prev_actions=0, n_prev_rewards=2)
    pipeline = EnvToModulePipeline(connectors=[piece, AddObservationsFromEpisodesToBatch()])
    if kept == 2:
        ((row,),) = pipeline(episodes=recorder.episodes)["obs"].values()
        assert row["prev_n_rewards"].tolist() == [2.0, 3.0]
    else:
        with pytest.raises(LookbackError, match=rf"Rewards, episode(.|\n)*of 2 steps(.|\n)*{kept} steps"):
            pipeline(episodes=recorder.episodes)


def test_its_place_is_the_env_to_module_pipeline():
    with pytest.raises(PipelineError, match=r"piece 0 \(PrevActionsPrevRewards\)(.|\n)*learner pieces find"):
        LearnerConnectorPipeline(connectors=[PrevActionsPrevRewards()])


@pytest.mark.parametrize(
    ("piece", "settings", "words"),
    [
        (PrevActionsPrevRewards, {"n_prev_actions": -1}, "PrevActionsPrevRewards.n_prev_actions"),
        (PrevActionsPrevRewards, {"n_prev_rewards": 1.0}, "n_prev_rewards"),
        (PrevActionsPrevRewards, {"n_prev_rewards": True}, "True"),
        (PrevActionsPrevRewardsLearner, {"n_prev_rewards": -2}, r"PrevActionsPrevRewardsLearner\.n_prev_rewards"),
    ],
)
def test_wrong_settings_are_named(piece, settings, words):
    with pytest.raises(ConfigError, match=words):
        piece(**settings)
