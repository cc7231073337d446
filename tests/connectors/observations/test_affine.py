"""Fixed shifts and scales, the way back, and statistics of episodes."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors.learner import BatchIndividualItems, LearnerConnectorPipeline
from epibatch.connectors.observations import Affine
from epibatch.core.errors import ColumnError, ConfigError, StateError
from epibatch.core.registry import build_piece, piece_to_dict
from epibatch.env_runner import SingleAgentEnvRunner
from epibatch.episodes import SingleAgentEpisode

NUMBERS = st.floats(-20, 20, width=32)
SCALES = st.one_of(st.floats(-8, -0.125, width=32), st.floats(0.125, 8, width=32))


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=6), NUMBERS, SCALES, st.booleans())
def test_entries_and_the_way_back(rows, loc, scale, standard_form):
    x = np.float64(rows)
    piece = Affine(loc=[loc, 0.0], scale=[scale, 1.0], standard_form=standard_form)
    found = piece.transform(x)
    for row, (first, second) in zip(found, rows):
        assert row[0] == pytest.approx((first - loc) / scale if standard_form else first * scale + loc)
        assert row[1] == second
    np.testing.assert_allclose(piece.inverse(found), x, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8, np.int64, np.bool_])
def test_types(dtype):
    found = Affine(scale=0.5).transform(np.array([[0, 1]], dtype))
    assert found.dtype == (dtype if dtype is np.float64 else np.float32)
    assert found.tolist() == [[0.0, 0.5]]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.uint8])
@pytest.mark.parametrize("standard_form", [True, False])
def test_tensors_as_arrays(dtype, standard_form):
    piece = Affine(loc=[1.0, 2.0], scale=4.0, standard_form=standard_form)
    x = torch.tensor([[8, 2], [0, 4]], dtype=dtype)
    found = piece.transform(x)
    assert found.tolist() == piece.transform(x.numpy()).tolist()
    assert found.dtype == (torch.float64 if dtype is torch.float64 else torch.float32)
    assert piece.inverse(found).tolist() == x.tolist()


def test_the_space_has_the_bounds_moved_along_and_turned_where_the_scale_is_negative():
    space = gym.spaces.Box(np.float32([0, -np.inf]), np.float32([2, 1]))
    piece = Affine(space, loc=1.0, scale=[-2.0, 3.0])
    assert piece.observation_space == gym.spaces.Box(np.float32([-3, -np.inf]), np.float32([1, 4]))
    pixels = Affine(gym.spaces.Box(0, 255, (1,), np.uint8), scale=255.0, standard_form=True)
    assert pixels.observation_space == gym.spaces.Box(0, 1, (1,), np.float32)


def episodes(seed=0, count=3):
    rng = np.random.default_rng(seed)
    made = []
    for i in range(count):
        steps = int(rng.integers(1, 9))
        rows = np.stack([rng.normal(3, 2, (steps + 1, 2)), np.full((steps + 1, 2), 7.0)], -1)
        made.append(
            SingleAgentEpisode(
                id_=f"{i}",
                observations=list(rows),
                actions=[0] * steps,
                rewards=list(rng.normal(size=steps)),
                len_lookback_buffer=0,
            )
        )
    return made


@pytest.mark.parametrize("standard_form", [True, False])
def test_fitted_rows_have_mean_0_and_deviation_1(standard_form):
    given_episodes = episodes()
    piece = Affine(standard_form=standard_form).fit(given_episodes)
    rows = np.concatenate([episode.get_observations() for episode in given_episodes])
    found = piece.transform(rows)
    np.testing.assert_allclose(found.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(found[..., 0].std(0, ddof=1), 1)
    assert (found[..., 1] == 0).all()
    np.testing.assert_allclose(piece.inverse(found), rows)
    if standard_form:
        np.testing.assert_allclose(piece.loc, rows.mean(0))


def test_other_columns_and_parts_are_fitted():
    made = episodes()
    rewards = np.concatenate([episode.get_rewards() for episode in made])
    assert Affine(columns="rewards", standard_form=True).fit(made).loc == pytest.approx(rewards.mean())
    nested = [
        SingleAgentEpisode(
            observations=[{"a": np.float32([t]), "b": 0} for t in range(3)],
            actions=[0, 0],
            rewards=[0.0, 0.0],
            len_lookback_buffer=0,
        )
    ]
    assert Affine(columns="obs/a", standard_form=True).fit(nested).loc == [1.0]
    with pytest.raises(ColumnError, match="name one part"):
        Affine().fit(nested)


def test_next_observations_have_the_statistics_of_observations():
    made = episodes()
    alone, both = (Affine(columns=columns, standard_form=True).fit(made) for columns in ("obs", ("obs", "new_obs")))
    assert both.loc == alone.loc and both.scale == alone.scale


def test_random_steps_of_a_runner_fit_it_and_what_was_found_is_saved():
    runner = SingleAgentEnvRunner(config=PPOConfig().environment("CartPole-v1"))
    made = runner.sample(num_timesteps=50, random_actions=True)
    piece = Affine(standard_form=True).fit(made)
    copy = Affine(standard_form=True)
    copy.set_state(piece.get_state())
    assert copy == piece
    assert build_piece(piece_to_dict(piece)) == piece
    assert Affine(scale=2.0).get_state() == {}
    assert piece.merge_states([piece.get_state()]).keys() == {"loc", "scale"}


def test_a_column_of_a_train_batch():
    pieces = [Affine(loc=1.0, scale=2.0), BatchIndividualItems()]
    batch = LearnerConnectorPipeline(connectors=pieces)(rl_module=None, episodes=episodes(count=2))
    rows = np.concatenate([episode.get_observations()[:-1] for episode in episodes(count=2)])
    np.testing.assert_array_equal(batch["obs"], rows * 2 + 1)


@pytest.mark.parametrize(
    ("amounts", "message"),
    [
        ({"scale": 0}, "Affine.scale"),
        ({"scale": [1, 0]}, "not 0"),
        ({"loc": "3"}, "Affine.loc"),
        ({"loc": np.inf}, "finite"),
    ],
)
def test_mistakes_are_named(amounts, message):
    with pytest.raises(ConfigError, match=message):
        Affine(**amounts)


def test_mistakes_with_statistics_are_named():
    with pytest.raises(ConfigError, match="use one piece for each"):
        Affine(columns=("obs", "rewards")).fit(episodes())
    with pytest.raises(ColumnError, match="rows of finite numbers"):
        Affine().fit([])
    broken = SingleAgentEpisode(observations=[np.float64([np.nan])])
    with pytest.raises(ColumnError, match="rows of finite numbers"):
        Affine().fit([broken])
    with pytest.raises(StateError, match="the state of an Affine piece"):
        Affine().set_state({"mean": 0})
