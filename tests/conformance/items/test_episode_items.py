"""Behaviours C1 to C11: what an episode made from data holds, and how its columns are read and written."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from items.behaviours import behaviour, listed, plain, types

FORMS = pytest.mark.parametrize("arrays", [False, True], ids=["as recorded", "to_numpy"])
NESTED = gym.spaces.Dict(a=gym.spaces.Box(-9, 9, (2,), np.float32), b=gym.spaces.Discrete(5))


def chunk(library, arrays=False, **keywords):
    """Observations 100 to 104, actions 0 to 3, rewards 0.5 to 3.5."""
    made = library.SingleAgentEpisode(
        observations=[100, 101, 102, 103, 104],
        actions=[0, 1, 2, 3],
        rewards=[0.5, 1.5, 2.5, 3.5],
        **keywords,
    )
    return made.to_numpy() if arrays else made


def nested(library, arrays=False):
    """Two steps with Dict observations and Discrete(3) actions, nothing before them."""
    made = library.SingleAgentEpisode(
        observations=[{"a": np.full(2, i, np.float32), "b": i} for i in range(3)],
        actions=[0, 2],
        rewards=[1.0, 2.0],
        observation_space=NESTED,
        action_space=gym.spaces.Discrete(3),
        len_lookback_buffer=0,
    )
    return made.to_numpy() if arrays else made


@FORMS
@behaviour("C1")
def test_by_default_all_given_steps_are_lookback(library, arrays):
    episode = chunk(library, arrays, t_started=7)
    assert len(episode) == 0 and episode.t == episode.t_started == 7
    assert episode.observations.lookback == episode.rewards.lookback == 4
    assert plain(episode.get_observations()) == [104] and plain(episode.get_actions()) == []


@FORMS
@behaviour("C2")
def test_a_lookback_hides_that_many_steps(library, arrays):
    episode = chunk(library, arrays, len_lookback_buffer=2)
    assert len(episode) == 2 and episode.t == 2
    assert plain(episode.get_observations()) == [102, 103, 104]
    assert plain(episode.get_actions()) == [2, 3] and plain(episode.get_rewards()) == [2.5, 3.5]


@FORMS
@pytest.mark.parametrize(("index", "row"), [(0, 102), (2, 104), (-1, 104), (-3, 102), (-4, 101), (-5, 100)])
@behaviour("C3")
def test_negative_numbers_count_from_the_end_into_the_lookback(library, arrays, index, row):
    assert chunk(library, arrays, len_lookback_buffer=2).get_observations(index) == row


@FORMS
@pytest.mark.parametrize("index", [-6, 3])
@behaviour("C3")
def test_numbers_outside_are_index_errors(library, arrays, index):
    with pytest.raises(IndexError):
        chunk(library, arrays, len_lookback_buffer=2).get_observations(index)


@FORMS
@pytest.mark.parametrize(("index", "row"), [(0, 102), (2, 104), (-1, 101), (-2, 100)])
@behaviour("C4")
def test_negative_numbers_can_mean_the_lookback(library, arrays, index, row):
    episode = chunk(library, arrays, len_lookback_buffer=2)
    assert episode.get_observations(index, neg_index_as_lookback=True) == row


@FORMS
@behaviour("C4")
def test_further_back_than_the_lookback_there_is_nothing(library, arrays):
    episode = chunk(library, arrays, len_lookback_buffer=2)

    def read():
        try:
            return int(episode.get_observations(-3, neg_index_as_lookback=True))
        except IndexError:
            return "IndexError"

    expected = listed("O19", library, rllib=104, epibatch="IndexError") if arrays else "IndexError"
    assert read() == expected


@FORMS
@pytest.mark.parametrize(
    ("bounds", "rows"),
    [((-2, 2), [100, 101, 102, 103]), ((-1, 0), [101]), ((None, -1), []), ((-2, None), [100, 101, 102, 103, 104])],
)
@behaviour("C5")
def test_slices_span_lookback_and_steps(library, arrays, bounds, rows):
    episode = chunk(library, arrays, len_lookback_buffer=2)
    assert plain(episode.get_observations(slice(*bounds), neg_index_as_lookback=True)) == rows


@FORMS
@pytest.mark.parametrize(
    ("bounds", "from_lookback", "clipped", "filled"),
    [
        ((1, 6), False, [103, 104], [103, 104, 7, 7, 7]),
        ((3, 5), False, [], [7, 7]),
        ((-7, -4), False, [100], [7, 7, 100]),
        ((-4, 1), True, [100, 101, 102], [7, 7, 100, 101, 102]),
    ],
)
@behaviour("C6")
def test_slices_are_clipped_or_filled(library, arrays, bounds, from_lookback, clipped, filled):
    episode = chunk(library, arrays, len_lookback_buffer=2)
    keywords = {"neg_index_as_lookback": from_lookback}
    assert plain(episode.get_observations(slice(*bounds), **keywords)) == clipped
    assert plain(episode.get_observations(slice(*bounds), fill=7, **keywords)) == filled


@FORMS
@behaviour("C6")
def test_a_slice_over_both_ends_is_filled_on_both(library, arrays):
    episode = chunk(library, arrays, len_lookback_buffer=2)
    rows = episode.get_observations(slice(-3, 4), neg_index_as_lookback=True, fill=7)
    steps = [7, 100, 101, 102, 103, 104]
    assert plain(rows) == listed("O58", library, rllib=steps, epibatch=[*steps, 7])


@FORMS
@behaviour("C7")
def test_fill_rows_are_like_the_spaces_members(library, arrays):
    rows = nested(library, arrays).get_observations(slice(1, 5), fill=1.7)
    one, two, fill = [1.0, 1.0], [2.0, 2.0], [float(np.float32(1.7))] * 2
    assert plain(rows) == {"a": [one, two, fill, fill], "b": [1, 2, 1, 1]}
    assert np.stack([row["a"] for row in rows] if isinstance(rows, list) else rows["a"]).dtype == np.float32
    single = nested(library, arrays).get_observations(9, fill=1.7)
    assert plain(single) == {"a": fill, "b": 1} and types(single) == {"float32", "int64"}


@FORMS
@behaviour("C7")
def test_filled_rewards(library, arrays):
    episode = nested(library, arrays)
    assert plain(episode.get_rewards(slice(-3, None), fill=0.5)) == [0.5, 1.0, 2.0]
    # RLlib's rewards have a float32 space whatever is in them; here the row is of the column's type
    row = listed("O20", library, rllib=float(np.float32(0.1)), epibatch=0.1)
    assert plain(episode.get_rewards(slice(0, 3), fill=0.1)) == [1.0, 2.0, row]


@FORMS
@pytest.mark.parametrize(("fill", "row"), [(0, [0.0, 0.0, 0.0]), (0.5, [0.5, 0.5, 0.5])])
@behaviour("C8")
def test_one_hot_rows_and_their_fill(library, arrays, fill, row):
    rows = nested(library, arrays).get_actions(slice(0, 4), fill=fill, one_hot_discrete=True)
    assert plain(rows) == [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], row, row] and types(rows) == {"float32"}


@FORMS
@behaviour("C8")
def test_one_hot_codes_within_structures_and_of_several_choices(library, arrays):
    rows = nested(library, arrays).get_observations(slice(1, 3), one_hot_discrete=True)
    assert plain(rows) == {"a": [[1.0, 1.0], [2.0, 2.0]], "b": [[0.0, 1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0, 0.0]]}
    space = gym.spaces.MultiDiscrete([2, 3])
    made = library.SingleAgentEpisode(
        observations=[0, 0], actions=[np.array([1, 2])], rewards=[0.0], action_space=space
    )
    made = made.to_numpy() if arrays else made
    assert plain(made.get_actions(-1, one_hot_discrete=True)) == [0.0, 1.0, 0.0, 0.0, 1.0]


@behaviour("C8")
def test_one_hot_needs_a_space(library):
    with pytest.raises(ValueError, match=r"(?i)space"):
        chunk(library).get_actions(one_hot_discrete=True)


@FORMS
@behaviour("C9")
def test_a_list_of_numbers_gives_those_rows(library, arrays):
    episode = chunk(library, arrays, len_lookback_buffer=2)
    rows = episode.get_observations([0, -1, 1, -5])
    assert plain(rows) == [102, 104, 103, 100]
    kind = np.ndarray if arrays else listed("columns", library, rllib=list, epibatch=np.ndarray)
    assert type(rows) is kind
    assert plain(episode.get_observations([-1, 0], neg_index_as_lookback=True)) == [101, 102]
    assert plain(nested(library, arrays).get_observations([2, 0])) == {"a": [[2.0, 2.0], [0.0, 0.0]], "b": [2, 0]}


@FORMS
@behaviour("C10")
def test_writing_without_indices_replaces_what_follows_the_lookback(library, arrays):
    episode = chunk(library, arrays, len_lookback_buffer=2)
    episode.set_rewards(new_data=np.array([8.0, 9.0]) if arrays else [8.0, 9.0])
    assert plain(episode.get_rewards(slice(-2, None), neg_index_as_lookback=True)) == [0.5, 1.5, 8.0, 9.0]
    episode.set_rewards(new_data=7.0, at_indices=-1, neg_index_as_lookback=True)
    episode.set_rewards(new_data=6.0, at_indices=-1)
    assert plain(episode.get_rewards(slice(-2, None), neg_index_as_lookback=True)) == [0.5, 7.0, 8.0, 6.0]
    episode.set_actions(new_data=np.array([5, 4]) if arrays else [5, 4], at_indices=slice(0, 2))
    assert plain(episode.get_actions()) == [5, 4]


@FORMS
@pytest.mark.parametrize("at", [None, slice(0, 2)])
@behaviour("C10")
def test_writing_another_number_of_rows_is_an_index_error(library, arrays, at):
    episode = chunk(library, arrays, len_lookback_buffer=2)
    rows = [1.0, 2.0, 3.0]
    with pytest.raises(IndexError):
        episode.set_rewards(new_data=np.array(rows) if arrays else rows, at_indices=at)
    assert plain(episode.get_rewards()) == [2.5, 3.5]


@behaviour("C11")
def test_to_numpy_gives_one_structure_of_arrays(library):
    infos = [{"i": 0}, {"i": 1}, {"i": 2}]
    episode = library.SingleAgentEpisode(
        observations=[{"a": np.float32([i, i]), "b": (i,)} for i in range(3)],
        infos=infos,
        actions=[(0, 5), (1, 6)],
        rewards=[0.5, 1.0],
        extra_model_outputs={"state_out": [{"h": np.float32([3])}, {"h": np.float32([4])}]},
        len_lookback_buffer=0,
    )
    assert episode.to_numpy() is episode and episode.is_numpy
    observations = episode.get_observations()
    assert isinstance(observations["a"], np.ndarray) and observations["a"].dtype == np.float32
    assert plain(observations) == {"a": [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]], "b": ([0, 1, 2],)}
    assert plain(episode.get_actions()) == ([0, 1], [5, 6])
    assert episode.get_rewards().dtype == np.float64
    assert plain(episode.get_extra_model_outputs("state_out")) == {"h": [[3.0], [4.0]]}
    assert type(episode.get_infos()) is list and episode.get_infos() == infos
