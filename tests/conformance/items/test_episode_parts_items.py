"""Behaviours C12 to C18: what ends, cuts, joins and slices do to an episode."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from items.behaviours import behaviour, listed, plain

FORMS = pytest.mark.parametrize("arrays", [False, True], ids=["as recorded", "to_numpy"])


def chunk(library, steps=4, *, arrays=False, **keywords):
    """Observations [100], [101], ..., actions 0, 1, ..., rewards 0.5, 1.5, ..., infos {"i": 0}, ..."""
    settings = {"id_": "e", "len_lookback_buffer": 0, "infos": [{"i": i} for i in range(steps + 1)], **keywords}
    made = library.SingleAgentEpisode(
        observations=[np.float32([100 + i]) for i in range(steps + 1)],
        actions=list(range(steps)),
        rewards=[i + 0.5 for i in range(steps)],
        extra_model_outputs={"vf_preds": [-float(i) for i in range(steps)]},
        **settings,
    )
    return made.to_numpy() if arrays else made


def numbers(rows):
    """Observations of one entry as a flat list."""
    return np.ravel(rows).tolist()


@pytest.mark.parametrize("end", [{"terminated": True}, {"truncated": True}], ids=str)
@behaviour("C12")
def test_an_ended_episode_takes_no_more_steps(library, end):
    episode = chunk(library)
    episode.add_env_step(np.float32([104]), 4, 1.0, extra_model_outputs={"vf_preds": 0.0}, **end)
    assert episode.is_done and (episode.is_terminated, episode.is_truncated) == (
        "terminated" in end,
        "truncated" in end,
    )
    with pytest.raises(AssertionError):
        episode.add_env_step(np.float32([105]), 5, 1.0, extra_model_outputs={"vf_preds": 0.0})
    assert len(episode) == 5


@behaviour("C12")
def test_an_episode_is_reset_once(library):
    episode = library.SingleAgentEpisode()
    assert not episode.is_reset
    episode.add_env_reset(np.float32([1]), {"first": True})
    assert episode.is_reset and len(episode) == 0
    with pytest.raises(AssertionError):
        episode.add_env_reset(np.float32([1]))


@FORMS
@pytest.mark.parametrize(
    ("kept", "lookback", "observations"),
    [(1, 1, [103, 104]), (2, 2, [102, 103, 104]), (9, 4, [100, 101, 102, 103, 104])],
)
@behaviour("C13")
def test_a_cut_goes_on_with_the_last_observation_and_a_lookback(library, arrays, kept, lookback, observations):
    space = gym.spaces.Box(0, 200, (1,))
    episode = chunk(library, arrays=arrays, t_started=3, observation_space=space)
    episode.custom_data["lists"] = [1]
    rest = episode.cut(kept)
    assert (rest.id_, len(rest), rest.t_started, rest.t, rest.is_done) == ("e", 0, 7, 7, False)
    assert rest.observations.lookback == rest.actions.lookback == rest.rewards.lookback == lookback
    everything = slice(-lookback, None)
    assert numbers(rest.get_observations(everything, neg_index_as_lookback=True)) == observations
    assert plain(rest.get_actions(everything, neg_index_as_lookback=True)) == [0, 1, 2, 3][-lookback:]
    assert plain(rest.get_extra_model_outputs("vf_preds", -1)) == -3.0 and rest.get_infos(-1) == {"i": 4}
    assert rest.custom_data == {"lists": [1]} and rest.custom_data["lists"] is not episode.custom_data["lists"]
    assert rest.observation_space == space and len(episode) == 4 and not episode.is_done


@behaviour("C13")
def test_an_ended_episode_cannot_be_cut(library):
    with pytest.raises(AssertionError):
        chunk(library, truncated=True).cut()


@FORMS
@behaviour("C14")
def test_a_cut_without_lookback_keeps_one_observation(library, arrays):
    for rest in (chunk(library, arrays=arrays).cut(), chunk(library, arrays=arrays).cut(0)):
        assert (len(rest), rest.t_started, rest.observations.lookback) == (0, 4, 0)
        assert numbers(rest.get_observations()) == [104] and plain(rest.get_actions()) == []
        with pytest.raises(IndexError):
            rest.get_actions(-1)


@pytest.mark.parametrize("forms", [(False, False), (True, True), (False, True), (True, False)], ids=str)
@behaviour("C15")
def test_joining_drops_the_repeated_observation(library, forms):
    first = chunk(library, arrays=forms[0])
    first.custom_data.update(a=1, both=1)
    rest = first.cut(2)
    rest.custom_data.update(b=2, both=2)
    rest.add_env_step(np.float32([105]), 4, 4.5, {"i": 5}, truncated=True, extra_model_outputs={"vf_preds": -4.0})
    first.concat_episode(rest.to_numpy() if forms[1] else rest)
    assert (len(first), first.t, first.is_truncated, first.is_terminated) == (5, 5, True, False)
    assert numbers(first.get_observations()) == [100, 101, 102, 103, 104, 105]
    assert plain(first.get_rewards()) == [0.5, 1.5, 2.5, 3.5, 4.5] and plain(first.get_actions()) == [0, 1, 2, 3, 4]
    assert first.get_infos() == [{"i": i} for i in range(6)]
    assert plain(first.get_extra_model_outputs("vf_preds")) == [0.0, -1.0, -2.0, -3.0, -4.0]
    assert first.custom_data == {"a": 1, "b": 2, "both": 2}


@pytest.mark.parametrize(
    "other", [{"id_": "f"}, {"t_started": 7}, {"observations": [np.float32([9]), np.float32([105])]}], ids=list
)
@behaviour("C15")
def test_only_what_follows_can_be_joined(library, other):
    follows = {"id_": "e", "t_started": 4, "observations": [np.float32([104]), np.float32([105])]}
    rest = library.SingleAgentEpisode(**{**follows, **other}, actions=[4], rewards=[4.5], len_lookback_buffer=0)
    episode = chunk(library)
    with pytest.raises(AssertionError):
        episode.concat_episode(rest)
    with pytest.raises(AssertionError):
        chunk(library, terminated=True).concat_episode(rest)
    assert len(episode) == 4


@FORMS
@pytest.mark.parametrize(
    ("bounds", "lookback", "started", "observations", "kept", "done"),
    [
        ((1, 3), None, 11, [103, 104, 105], 2, False),
        ((1, 3), 1, 11, [103, 104, 105], 1, False),
        ((1, 3), 0, 11, [103, 104, 105], 0, False),
        ((3, 5), 9, 13, [105, 106, 107], 5, True),
        ((2, None), None, 12, [104, 105, 106, 107], 2, True),
        ((0, 5), None, 10, [102, 103, 104, 105, 106, 107], 2, True),
        ((0, 4), None, 10, [102, 103, 104, 105, 106], 2, False),
        ((-2, None), None, 13, [105, 106, 107], 2, True),
        ((None, -1), None, 10, [102, 103, 104, 105, 106], 2, False),
    ],
)
@behaviour("C16")
def test_slices(library, arrays, bounds, lookback, started, observations, kept, done):
    episode = chunk(library, 7, arrays=arrays, len_lookback_buffer=2, t_started=10, terminated=True)
    part = episode[slice(*bounds)] if lookback is None else episode.slice(slice(*bounds), len_lookback_buffer=lookback)
    assert (part.id_, part.t_started, part.t) == ("e", started, started + len(observations) - 1)
    assert numbers(part.get_observations()) == observations and part.observations.lookback == kept
    assert plain(part.get_rewards()) == [row - 99.5 for row in observations[:-1]]
    assert (part.is_terminated, part.is_truncated) == (done, False)
    assert (len(episode), episode.is_terminated) == (5, True)


@behaviour("C16")
def test_a_slice_that_ends_behind_the_end(library):
    part = chunk(library, terminated=True)[1:9]
    assert len(part) == 3 and part.is_terminated is listed("O18", library, rllib=False, epibatch=True)


@behaviour("C17")
def test_a_number_is_no_slice(library):
    with pytest.raises(NotImplementedError):
        chunk(library)[2]


@FORMS
@behaviour("C18")
def test_the_return_leaves_the_lookback_out(library, arrays):
    assert chunk(library, arrays=arrays).get_return() == 8.0
    assert chunk(library, arrays=arrays, len_lookback_buffer=2).get_return() == 6.0
    assert chunk(library, arrays=arrays, len_lookback_buffer=4).get_return() == 0.0


@FORMS
@behaviour("C18")
def test_a_state_gives_an_equal_episode(library, arrays):
    episode = chunk(library, arrays=arrays, len_lookback_buffer=1, t_started=2, truncated=True)
    episode.custom_data["seen"] = 3
    same = library.SingleAgentEpisode.from_state(episode.get_state())
    assert (same.id_, len(same), same.t, same.t_started, same.is_truncated) == ("e", 3, 5, 2, True)
    assert numbers(same.get_observations(slice(-1, None), neg_index_as_lookback=True)) == [100, 101, 102, 103, 104]
    assert plain(same.get_rewards()) == [1.5, 2.5, 3.5] and same.get_infos(0) == {"i": 1}
    assert plain(same.get_extra_model_outputs("vf_preds")) == [-1.0, -2.0, -3.0] and same.custom_data == {"seen": 3}
