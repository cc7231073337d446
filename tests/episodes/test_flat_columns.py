"""Episodes as flat columns: what a loop over their getters gives, for one agent and for several."""

from __future__ import annotations

import numpy as np
import pytest

from epibatch.algorithms import PPOConfig
from epibatch.core.errors import ConfigError
from epibatch.env_runner import MultiAgentEnvRunner
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode, episodes_to_columns
from fixture_envs import TurnsEnv
from fixture_episodes import STORES, harvests, leaves_of, numbered, stack


def by_loop(episodes):
    """The columns step by step from the getters."""
    steps = [
        {
            "obs": episode.get_observations(t),
            "new_obs": episode.get_observations(t + 1),
            "infos": episode.get_infos(t),
            "actions": episode.get_actions(t),
            "rewards": episode.get_rewards(t),
            "terminateds": episode.is_terminated and t + 1 == len(episode),
            "truncateds": episode.is_truncated and t + 1 == len(episode),
            "t": episode.t_started + t,
            "eps_id": episode.id_,
            **{name: episode.get_extra_model_outputs(name, t) for name in episode.extra_model_outputs},
        }
        for episode in episodes
        for t in range(len(episode))
    ]
    columns = {name: [step[name] for step in steps] for name in (steps[0] if steps else ())}
    return {name: rows if name == "infos" else stack(rows) for name, rows in columns.items()}


def assert_equal(found, expected):
    assert found.keys() == expected.keys() and found["infos"] == expected["infos"]
    mine, right = (leaves_of({**columns, "infos": ()}) for columns in (found, expected))
    assert mine.keys() == right.keys()
    for path, leaf in right.items():
        np.testing.assert_array_equal(mine[path], leaf)


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("kind", ["vector", "nested"])
def test_columns_are_those_of_a_loop(kind, store):
    episodes = STORES[store](*harvests(kind))
    assert_equal(episodes_to_columns(episodes), by_loop(episodes))


def test_chunks_without_steps_and_other_arguments():
    assert episodes_to_columns([]) == {} == episodes_to_columns([numbered(0)])
    chunks = [numbered(3, 1), numbered(0), numbered(2)]
    assert_equal(episodes_to_columns(chunks), by_loop(chunks))
    with pytest.raises(ConfigError, match="'agent_id'"):
        episodes_to_columns([], by="agent")


@pytest.mark.parametrize("by", ["agent_id", "module_id"])
def test_columns_of_several_agents_are_those_of_their_own_episodes(by):
    config = PPOConfig().environment(TurnsEnv).env_runners(num_envs_per_env_runner=2).debugging(seed=1)
    config.multi_agent(policies=["p", "q"], policy_mapping_fn={"a": "p", "*": "q"})
    runner = MultiAgentEnvRunner(config=config)
    episodes = [episode for _ in range(3) for episode in runner.sample(num_timesteps=40)]
    runner.stop()
    found = episodes_to_columns(episodes, by)
    assert found.keys() == ({"a", "b", "c"} if by == "agent_id" else {"p", "q"})
    for key, columns in found.items():
        pairs = [(e, s) for e in episodes for s in e.segments if getattr(s.episode, by) == key and len(s.episode)]
        steps = [(e, s, t) for e, s in pairs for t in range(len(s.episode))]
        expected = by_loop([segment.episode for _, segment in pairs])
        expected["eps_id"] = [episode.id_ for episode, _, _ in steps]
        expected["agent_id"] = [segment.agent_id for _, segment, _ in steps]
        expected["env_t"] = [segment.env_steps[segment.episode.lookback + t] for _, segment, t in steps]
        assert_equal(columns, expected)
    rows = [row for columns in found.values() for row in zip(columns["eps_id"], columns["agent_id"], columns["env_t"])]
    assert len({*rows}) == len(rows) == sum(episode.agent_steps() for episode in episodes)


def test_one_agent_alone_has_the_columns_of_an_episode_of_one_agent():
    single, several = SingleAgentEpisode(id_="game"), MultiAgentEpisode(id_="game")
    single.add_env_reset(0.5, {"at": 0})
    several.add_env_reset(observations={"a": 0.5}, infos={"a": {"at": 0}})
    for t in range(1, 4):
        row, ends = (t + 0.5, t % 2, -1.0 * t, {"at": t}), t == 3
        single.add_env_step(*row, truncated=ends, extra_model_outputs={"v": np.float32(t)})
        keys = ("observations", "actions", "rewards", "infos")
        several.add_env_step(
            **{key: {"a": value} for key, value in zip(keys, row)},
            truncateds={"a": ends, "__all__": ends},
            extra_model_outputs={"a": {"v": np.float32(t)}},
        )
    found = episodes_to_columns([several])["a"]
    assert found.pop("agent_id").tolist() == ["a"] * 3 and found.pop("env_t").tolist() == [0, 1, 2]
    assert_equal(found, episodes_to_columns([single]))


@pytest.mark.parametrize("ids", [[1, "b"], [("x", 1), ("y", 2)]])
def test_ids_that_are_no_strings(ids):
    episodes = []
    for agent in ids:
        episode = MultiAgentEpisode(agent_module_ids={agent: "p"})
        episode.add_env_reset(observations={agent: 0.0})
        episode.add_env_step(observations={agent: 1.0}, actions={agent: 0}, rewards={agent: 1.0})
        episodes.append(episode)
    assert list(episodes_to_columns(episodes, "module_id")["p"]["agent_id"]) == ids
