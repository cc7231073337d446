"""Reading an episode by timestep: index rules, fill, one-hot, unknown keys."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from epibatch.core.errors import EpibatchError, EpisodeIndexError
from epibatch.episodes.single_agent_episode import SingleAgentEpisode

BOX = gym.spaces.Box(-100, 100, (2,), np.float32)
DICT = gym.spaces.Dict({"x": BOX, "n": gym.spaces.Discrete(9)})


def make(n: int = 4, lookback: int | str = 0, **options: Any) -> SingleAgentEpisode:
    """Observations 0..n, actions 10.., rewards 0, 0.5, 1.0.., one extra of two columns."""
    return SingleAgentEpisode(
        observations=list(range(n + 1)),
        actions=[10 + i for i in range(n)],
        rewards=[0.5 * i for i in range(n)],
        infos=[{"i": i} for i in range(n + 1)],
        extra_model_outputs={"e": [np.full(2, i, np.float32) for i in range(n)]},
        len_lookback_buffer=lookback,  # type: ignore[arg-type]
        **options,
    )


@pytest.mark.parametrize(
    ("indices", "options", "expected"),
    [
        (-1, {}, 4),
        (-5, {}, 0),
        (np.int64(0), {}, 2),
        (-1, {"neg_index_as_lookback": True}, 1),
        (-2, {"neg_index_as_lookback": True}, 0),
        (slice(-2, 2), {"neg_index_as_lookback": True}, [0, 1, 2, 3]),
        (slice(-9, 9), {}, [0, 1, 2, 3, 4]),
        (slice(-3, 4), {"fill": 7, "neg_index_as_lookback": True}, [7, 0, 1, 2, 3, 4, 7]),
        ([0, -1], {}, [2, 4]),
        ([], {}, []),
        (slice(None, None, -1), {}, [4, 3, 2]),
        (99, {"fill": 7}, 7),
    ],
)
def test_index_rules_hold_for_every_getter(indices: Any, options: dict[str, Any], expected: Any) -> None:
    episode = make(4, 2)
    np.testing.assert_array_equal(episode.get_observations(indices, **options), expected)
    found = episode.get_infos(indices, **options)
    if isinstance(expected, list):
        assert found == [i if i == 7 else {"i": i} for i in expected]
    else:
        assert found == (expected if expected == 7 else {"i": expected})


@pytest.mark.parametrize("name", ["observations", "infos", "actions", "rewards"])
@pytest.mark.parametrize(("index", "neg"), [(3, False), (-6, False), (np.int64(9), False), (-3, True)])
def test_wrong_indices_are_named_errors(name: str, index: int, neg: bool) -> None:
    with pytest.raises(EpisodeIndexError, match=r"expected:[\s\S]*found:"):
        getattr(make(4, 2), f"get_{name}")(index, neg_index_as_lookback=neg)


def test_fill_items_have_the_form_of_the_column() -> None:
    row = {"x": np.ones(2, np.float32), "n": 1}
    for space in (DICT, None):
        episode = SingleAgentEpisode(observation_space=space)
        episode.add_env_reset(row)
        item = episode.get_observations(-3, fill=0.0)
        assert item["x"].dtype == np.float32 and item["x"].shape == (2,) and not item["x"].any()
        assert np.shape(item["n"]) == () and np.asarray(item["n"]).dtype == np.int64
        stacked = episode.get_observations(slice(-3, None), fill=0.0)
        np.testing.assert_array_equal(stacked["x"], [[0, 0], [0, 0], [1, 1]])
    assert make(2).get_rewards(slice(-3, None), fill=0).dtype == np.float64


def test_one_hot_actions_and_their_fill() -> None:
    episode = SingleAgentEpisode(
        observations=[0, 1, 2], actions=[2, 0], rewards=[0.0, 0.0], action_space=gym.spaces.Discrete(3),
        observation_space=gym.spaces.Discrete(4, start=-1), len_lookback_buffer=0,
    )  # fmt: skip
    found = episode.get_actions(slice(-1, 2), one_hot_discrete=True, fill=0.0, neg_index_as_lookback=True)
    np.testing.assert_array_equal(found, [[0, 0, 0], [0, 0, 1], [1, 0, 0]])
    assert found.dtype == np.float32
    np.testing.assert_array_equal(episode.get_observations(0, one_hot_discrete=True), [0, 1, 0, 0])


def test_unknown_extra_key_is_an_error_naming_the_known_ones() -> None:
    with pytest.raises(KeyError, match="e"):
        make().get_extra_model_outputs("ee")
    with pytest.raises(EpibatchError, match="nope"):
        make().set_extra_model_outputs(key="nope", new_data=[1])


def test_a_fill_value_that_no_row_needs_may_be_of_another_kind():
    space = gym.spaces.MultiBinary(1)
    episode = SingleAgentEpisode(observations=[np.array([1], np.int8)], observation_space=space)
    rows = episode.get_observations(fill=float("nan"), one_hot_discrete=True)
    assert rows.tolist() == [[1]] and rows.dtype == np.int8
