"""Reading and writing columns of several agents: what is asked for, what is refused."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from epibatch.core.errors import EpisodeIndexError, UnknownNameError
from epibatch.episodes import MultiAgentEpisode
from fixture_episodes import as_lists


def turns(**keywords: Any) -> MultiAgentEpisode:
    """Players x and o observe in turns; x has acted last."""
    episode = MultiAgentEpisode(id_="game", **keywords)
    episode.add_env_reset(observations={"x": 0.0}, infos={"x": {"t": 0}})
    for t, (acts, sees) in enumerate((("x", "o"), ("o", "x"), ("x", "o")), 1):
        outputs = {acts: {"v": float(t), "only": t} if acts == "x" else {"v": float(t)}}
        episode.add_env_step(
            {sees: float(t)}, {acts: 10 * t}, {acts: 0.5}, {sees: {"t": t}}, extra_model_outputs=outputs
        )
    return episode


def test_a_second_life_without_outputs_hides_no_misspelt_key() -> None:
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0.0, "b": 0.0})
    step = ({"a": 1.0}, {"a": 1}, {"a": 0.0})
    episode.add_env_step(*step, terminateds={"a": True}, extra_model_outputs={"a": {"v": 1}})
    episode.add_env_step({"a": 2.0}, {}, {})
    assert as_lists(episode.get_extra_model_outputs("v")) == {"a": [1]}
    with pytest.raises(UnknownNameError, match="did you mean 'v'"):
        episode.get_extra_model_outputs("vv")


@pytest.mark.parametrize("indices", [4, -5, [0, 4], [-5]])
def test_env_steps_outside_the_chunk_are_refused(indices: Any) -> None:
    with pytest.raises(EpisodeIndexError, match="within 4 env steps"):
        turns().get_observations(indices)
    with pytest.raises(IndexError):
        turns().get_actions(3)


def test_lists_of_dicts_go_by_env_steps_only() -> None:
    with pytest.raises(ValueError, match="env_steps=True"):
        turns().get_observations(env_steps=False, return_list=True)


def test_getters_of_one_life_are_views_and_write_through() -> None:
    episode = turns()
    episode.get_observations(slice(0, 3), "x")["x"][1] = 7.0
    assert episode.get_observations(2) == {"x": 7.0}


def test_setters_go_by_env_steps_like_getters() -> None:
    episode = turns()
    episode.set_observations(new_data={"x": -1.0}, at_indices=2)
    episode.set_observations(new_data={"o": [8.0, 9.0]}, at_indices=slice(1, None))
    assert as_lists(episode.get_observations()) == {"x": [0, -1], "o": [8, 9]}
    episode.set_observations(new_data={"x": 5.0}, at_indices=1, env_steps=False)
    assert episode.get_observations(2) == {"x": 5.0}
    episode.set_infos(new_data={"x": {"new": 1}}, at_indices=0)
    episode.set_infos(new_data={"o": [{"n": 1}, {"n": 2}]})
    assert episode.get_infos(return_list=True) == [{"x": {"new": 1}}, {"o": {"n": 1}}, {"x": {"t": 2}}, {"o": {"n": 2}}]
    episode.set_actions(new_data={"x": 99}, at_indices=0)
    episode.set_extra_model_outputs(key="v", new_data={"x": [7.0, 8.0]}, at_indices=[0, 2])
    assert as_lists(episode.get_extra_model_outputs("v")) == {"x": [7, 8], "o": [2]}
    assert as_lists(episode.get_actions()) == {"x": [99, 30], "o": [20]}


def test_pending_rows_can_be_set() -> None:
    episode = turns()
    episode.set_actions(new_data={"x": 31}, at_indices=-1)
    episode.set_rewards(new_data={"x": [0.25, 0.75]})
    episode.set_extra_model_outputs(key="v", new_data={"x": 4.0}, at_indices=-1, env_steps=False)
    assert (episode.pending_actions, episode.pending_rewards) == ({"x": 31}, {"x": 0.75})
    episode.add_env_step({"x": 4.0}, {"o": 1}, {"x": 1.0}, extra_model_outputs={"o": {"v": 0.0}})
    x = episode.agent_episodes["x"]
    assert (x.get_actions().tolist(), x.get_rewards().tolist()) == ([10, 31], [0.25, 1.75])
    assert x.get_extra_model_outputs("v").tolist() == [1, 4]


def test_rows_of_two_lives_can_be_read_and_set() -> None:
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0.0, "b": 0.0})
    b = {"observations": {"b": 0.0}, "actions": {"b": 0}, "rewards": {"b": 0.0}}
    episode.add_env_step({"a": 1.0, "b": 0.0}, {"a": 1, "b": 0}, {"a": 1.0, "b": 0.0}, terminateds={"a": True})
    episode.add_env_step(**{**b, "observations": {"a": 2.0, "b": 0.0}})
    episode.add_env_step(**{**b, "actions": {"a": 2, "b": 0}, "rewards": {"a": 2.0, "b": 0.0}})
    assert as_lists(episode.get_actions(agent_ids="a")) == {"a": [1, 2]}
    assert as_lists(episode.get_rewards([2, 0], "a")) == {"a": [2, 1]}
    episode.set_rewards(new_data={"a": [10.0, 20.0]})
    assert (episode.get_rewards(0)["a"], episode.pending_rewards) == (10.0, {"a": 20.0})
    episode.set_observations(new_data={"a": [5.0, 6.0, 7.0]})
    assert [s.episode.get_observations().tolist() for s in episode.segments[:2]] == [[5, 6], [7]]
    episode.set_observations(new_data={"a": 8.0}, at_indices=0)
    assert episode.get_observations(0)["a"] == 8.0
    assert episode.get_infos(agent_ids="a") == {"a": [{}, {}, {}]}
    assert as_lists(episode.get_actions(agent_ids="a", env_steps=False)) == {"a": [2]}


@pytest.mark.parametrize(
    ("new_data", "at_indices", "options", "error", "words"),
    [
        ({"y": 1.0}, 0, {}, UnknownNameError, "an agent with observations"),
        ({"o": 1.0}, 0, {}, EpisodeIndexError, "at which the agent has a row"),
        ({"o": 1.0}, 5, {}, EpisodeIndexError, "within 4 env steps"),
        ({"o": [1.0]}, slice(0, 4), {}, EpisodeIndexError, "2 rows"),
        ({"o": 1.0}, 2, {"env_steps": False}, EpisodeIndexError, "agent steps at which"),
        ({"o": [1.0]}, [2], {"env_steps": False}, EpisodeIndexError, "agent steps at which"),
        ([1.0], None, {}, ValueError, "pass {agent: rows}"),
    ],
)
def test_refused_writes(new_data: Any, at_indices: Any, options: Any, error: Any, words: str) -> None:
    episode = turns()
    with pytest.raises(error, match=words):
        episode.set_observations(new_data=new_data, at_indices=at_indices, **options)
    assert as_lists(episode.get_observations()) == {"x": [0, 2], "o": [1, 3]}


COLUMNS = ("observations", "infos", "actions", "rewards", "extra_model_outputs")


def test_every_column_has_both_and_all_take_the_same_arguments() -> None:
    own: dict[str, set[str]] = {"get": {"fill", "return_list"}, "set": {"new_data"}}
    for name in COLUMNS:
        for kind, more in own.items():
            names = set(inspect.signature(getattr(MultiAgentEpisode, f"{kind}_{name}")).parameters) - {"self"}
            expected = {"env_steps", "neg_index_as_lookback"} | more
            expected |= {"indices", "agent_ids"} if kind == "get" else {"at_indices"}
            expected |= {"one_hot_discrete"} if kind == "get" and name in ("observations", "actions") else set()
            expected |= {"key"} if name == "extra_model_outputs" else set()
            assert names == expected, (kind, name)
