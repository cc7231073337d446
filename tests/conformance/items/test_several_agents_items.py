"""Behaviours C19 to C31: episodes of several agents."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from items.behaviours import behaviour, listed, plain
from oracle.modules import module_class


def episode_of(library, *agents, **settings):
    """An episode after a reset in which agents observe 0.0."""
    episode = library.MultiAgentEpisode(id_="game", **settings)
    episode.add_env_reset(observations=dict.fromkeys(agents, 0.0))
    return episode


def turns(library):
    """Players x and o observe in turns, x first; x has acted last, and o is to act."""
    episode = episode_of(library, "x")
    episode.add_env_step({"o": 1.0}, {"x": 10}, {"x": 0.25})
    episode.add_env_step({"x": 2.0}, {"o": 20}, {"x": 0.5, "o": 0.0})
    episode.add_env_step({"o": 3.0}, {"x": 11}, {"o": 1.0, "x": 0.125})
    return episode


def rows_of(episode, agent):
    """Observations, actions and rewards of whole steps."""
    single = episode.agent_episodes[agent]
    return [plain(list(rows)) for rows in (single.get_observations(), single.get_actions(), single.get_rewards())]


@behaviour("C19")
def test_an_action_without_a_next_observation_is_pending(library):
    episode = episode_of(library, "a", "b")
    episode.add_env_step({"b": 1.0}, {"a": 5, "b": 6}, {"a": 0.25, "b": 1.0})
    assert rows_of(episode, "a") == [[0], [], []]
    assert episode.env_t_to_agent_t["a"].data == [0, "S"]
    assert plain(episode.get_actions(-1)) == {"a": 5, "b": 6}
    assert (episode.get_return(), episode.get_return(include_hanging_rewards=True)) == (1.0, 1.25)


@behaviour("C20")
def test_the_next_observation_completes_a_step_with_all_rewards(library):
    episode = episode_of(library, "a", "b")
    episode.add_env_step({"b": 1.0}, {"a": 5, "b": 6}, {"a": 0.2, "b": 1.0})
    episode.add_env_step({"b": 2.0}, {"b": 6}, {"a": 0.5, "b": 1.0})
    episode.add_env_step({"a": 3.0, "b": 3.0}, {"b": 6}, {"a": 0.5, "b": 1.0})
    assert rows_of(episode, "a") == [[0, 3], [5], [1.2]]


@behaviour("C21")
def test_getters_go_by_env_steps_and_leave_out_absent_agents(library):
    episode = turns(library)
    assert plain(episode.get_observations(-1)) == {"o": 3}
    assert plain(episode.get_observations([0, 2])) == {"x": [0, 2]}
    assert plain(episode.get_observations(slice(1, 3))) == {"o": [1], "x": [2]}
    assert plain(episode.get_actions(-1)) == {"x": 11}
    one_by_one = episode.get_observations(return_list=True)
    assert [plain(found) for found in one_by_one] == [{"x": 0}, {"o": 1}, {"x": 2}, {"o": 3}]


@behaviour("C21")
def test_fill_goes_by_agent(library):
    spaces = gym.spaces.Dict({"x": gym.spaces.Discrete(99), "o": gym.spaces.Box(-9, 9, (1,))})
    episode = library.MultiAgentEpisode(observation_space=spaces)
    episode.add_env_reset(observations={"x": 3})
    episode.add_env_step({"o": spaces["o"].sample() * 0}, {"x": 0}, {"x": 0.0})
    assert plain(episode.get_observations([-1, -2], fill=7)) == {"x": [7, 3], "o": [[0], [7]]}


@behaviour("C22")
def test_a_terminated_agent_needs_no_observation_and_a_truncated_one_does(library):
    episode = episode_of(library, "a", "b")
    episode.add_env_step({"b": 1.0}, {"a": 1, "b": 1}, {"a": 0.5, "b": 0.0}, terminateds={"a": True})
    assert rows_of(episode, "a") == [[0, 0], [1], [0.5]]
    assert episode.agent_episodes["a"].is_terminated
    with pytest.raises(Exception, match="observation"):
        episode.add_env_step({}, {"b": 1}, {"b": 0.0}, truncateds={"b": True})


@behaviour("C23")
def test_an_agent_that_is_done_gets_nothing_more(library):
    episode = episode_of(library, "a", "b")
    episode.add_env_step({"a": 1.0, "b": 1.0}, {"a": 1, "b": 1}, {"a": 0.0, "b": 0.0}, terminateds={"a": True})
    with pytest.raises(Exception, match=r"is_done|has ended"):
        episode.add_env_step({"b": 1.0}, {"b": 1}, {"a": 0.0, "b": 0.0})


@behaviour("C23")
def test_a_new_observation_for_an_agent_that_is_done(library):
    episode = episode_of(library, "a", "b")
    episode.add_env_step({"a": 1.0, "b": 1.0}, {"a": 1, "b": 1}, {"a": 0.0, "b": 0.0}, terminateds={"a": True})
    try:
        episode.add_env_step({"a": 5.0, "b": 1.0}, {"b": 1}, {"b": 0.0})
        found = rows_of(episode, "a")[0]
    except Exception as error:
        found = type(error).__name__
    assert found == listed("agents-return", library, rllib="MultiAgentEnvError", epibatch=[5])


@behaviour("C24")
def test_an_agent_that_acts_gets_a_reward_and_acts_once(library):
    episode = episode_of(library, "a", "b")
    with pytest.raises(Exception, match="reward"):
        episode.add_env_step({"a": 1.0}, {"a": 1}, {})
    episode = episode_of(library, "a", "b")
    episode.add_env_step({"b": 1.0}, {"a": 1, "b": 1}, {"b": 0.0})
    with pytest.raises(AssertionError):
        episode.add_env_step({"b": 1.0}, {"a": 1, "b": 1}, {"b": 0.0})


@behaviour("C25")
def test_the_end_of_all_completes_pending_steps(library):
    episode = episode_of(library, "a", "b")
    episode.add_env_step({"b": 1.0}, {"a": 1, "b": 1}, {"a": 0.25, "b": 0.0})
    episode.add_env_step({"b": 2.0}, {"b": 1}, {"a": 0.5, "b": 1.0}, terminateds={"__all__": True})
    assert rows_of(episode, "a") == [[0, 0], [1], [0.75]]
    assert episode.get_terminateds() == {"a": True, "b": True, "__all__": True}
    assert episode.is_done


@behaviour("C26")
def test_agents_that_are_done_do_not_act_and_may_join_again_behind_a_cut(library):
    episode = episode_of(library, "a", "b")
    episode.add_env_step({"a": 1.0, "b": 1.0}, {"a": 1, "b": 1}, {"a": 0.0, "b": 0.0}, terminateds={"a": True})
    assert episode.get_agents_that_stepped() == {"a", "b"}
    assert episode.get_agents_to_act() == {"b"}
    chunk = episode.cut()
    assert chunk.agent_ids == {"b"}
    chunk.add_env_step({"a": 5.0, "b": 2.0}, {"b": 1}, {"b": 0.0})
    assert chunk.agent_episodes["a"].t_started == 0
    assert chunk.agent_episodes["a"].id_ != episode.agent_episodes["a"].id_


@behaviour("C27")
def test_an_agent_is_mapped_once(library):
    asked = []

    def mapping(agent, episode):
        asked.append(agent)
        return f"m_{agent}"

    episode = episode_of(library, "a", agent_to_module_mapping_fn=mapping)
    episode.add_env_step({"a": 1.0}, {"a": 1}, {"a": 0.0})
    assert episode.module_for("late") == "m_late"
    assert episode.agent_episodes["a"].module_id == "m_a"
    assert asked == ["a", "late"]
    assert episode.cut().module_for("late") == "m_late"
    assert episode_of(library, "a").module_for("a") == "default_policy"


@behaviour("C28")
def test_an_agent_that_appears_late_has_no_step_before(library):
    episode = episode_of(library, "a")
    episode.add_env_step({"a": 1.0}, {"a": 0}, {"a": 0.0})
    episode.add_env_step({"a": 2.0, "b": 7.0}, {"a": 0}, {"a": 0.0})
    assert episode.env_t_to_agent_t["b"].data == ["S", "S", 0]
    assert rows_of(episode, "b") == [[7], [], []]


@behaviour("C29")
def test_rewards_between_turns_go_to_the_pending_step(library):
    episode = turns(library)
    assert rows_of(episode, "x") == [[0, 2], [10], [0.75]]
    assert rows_of(episode, "o") == [[1, 3], [20], [1]]
    assert episode.get_return(include_hanging_rewards=True) == 1.875


@behaviour("C30")
def test_a_cut_with_lookback_carries_pending_steps_over(library):
    episode = episode_of(library, "a", "b")
    for t in (1.0, 2.0, 3.0):
        action = {"a": 5} if t == 1 else {}
        episode.add_env_step({"b": t}, {**action, "b": 1}, {"a": 0.125, "b": 1.0})
    chunk = episode.cut(1)
    assert (len(chunk), chunk.env_t_started) == (0, 3)
    reach = chunk.get_observations(slice(-3, None), neg_index_as_lookback=True)
    assert plain(reach) == {"a": [0], "b": [0, 1, 2, 3]}
    chunk.add_env_step({"a": 4.0, "b": 4.0}, {"b": 1}, {"a": 0.5, "b": 1.0})
    assert rows_of(chunk, "a")[1:] == [[5], [0.875]]


@behaviour("C31")
def test_steps_are_counted_and_slices_have_no_step(library):
    episode = turns(library)
    assert (len(episode), episode.env_steps(), episode.agent_steps()) == (3, 3, 2)
    with pytest.raises(NotImplementedError):
        episode[::2]
    with pytest.raises(NotImplementedError):
        episode[0]


def recurrent_chunk(library):
    """Agents `r` (recurrent) and `f`, of which one env step is the chunk and one its lookback."""
    episode = episode_of(library, "r", "f", agent_to_module_mapping_fn=lambda agent_id, *_, **__: agent_id)
    for t in (1.0, 2.0):
        episode.add_env_step(
            {"r": t, "f": t},
            {"r": 0, "f": 1},
            {"r": t, "f": t},
            extra_model_outputs={"r": {"state_out": {"h": np.float32([t, -t]), "c": np.float32([t, -t])}}},
        )
        if t == 1.0:
            episode = episode.cut(len_lookback_buffer=1)
    return episode.to_numpy()


def train_batch(library):
    """What default learner pieces make of that chunk."""
    space = gym.spaces.Box(-9, 9, ())
    specs = {
        name: library.RLModuleSpec(
            module_class=module_class(library),
            observation_space=space,
            action_space=gym.spaces.Discrete(2),
            model_config={"state": size, "max_seq_len": 3},
        )
        for name, size in (("r", 2), ("f", 0))
    }
    home = library.learner
    pieces = [
        home.AddObservationsFromEpisodesToBatch(as_learner_connector=True),
        home.AddColumnsFromEpisodesToTrainBatch(),
        home.AddTimeDimToBatchAndZeroPad(as_learner_connector=True),
        home.AddStatesFromEpisodesToBatch(as_learner_connector=True),
        home.AgentToModuleMapping(
            rl_module_specs=specs, agent_to_module_mapping_fn=lambda agent_id, *_, **__: agent_id
        ),
        home.BatchIndividualItems(multi_agent=True),
    ]
    spaces = gym.spaces.Dict(r=space, f=space), gym.spaces.Dict(r=gym.spaces.Discrete(2), f=gym.spaces.Discrete(2))
    pipeline = home.LearnerConnectorPipeline(*spaces, connectors=pieces)
    whole = library.MultiRLModule(rl_module_specs=specs)
    return pipeline(rl_module=whole, batch={}, episodes=[recurrent_chunk(library)], shared_data={}, explore=False)


@behaviour("C45")
def test_a_later_chunk_of_an_agent_begins_with_the_state_of_its_lookback(library):
    found = train_batch(library)
    assert {key: plain(rows) for key, rows in found["r"]["state_in"].items()} == {"h": [[1, -1]], "c": [[1, -1]]}
    assert "state_in" not in found["f"]


@behaviour("C47")
def test_modules_with_and_without_memory_side_by_side(library):
    found = train_batch(library)
    assert plain(found["r"]["obs"]) == [[1, 0, 0]]
    assert plain(found["r"]["loss_mask"]) == [[True, False, False]]
    assert plain(found["r"]["rewards"]) == [[2, 0, 0]]
    assert plain(found["f"]["obs"]) == [1]
    assert plain(found["f"]["rewards"]) == [2]
    assert "loss_mask" not in found["f"]
