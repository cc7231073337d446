from __future__ import annotations

from epibatch.env_runner.metrics import AgentMetrics
from epibatch.episodes import MultiAgentEpisode


def mapped(agent_id, episode):
    return "even" if agent_id % 2 == 0 else "odd"


def game(steps, ended=True):
    """An episode in which agents 0, 1 and 2 get rewards, agent 1 after its second step, agent 2 without observing."""
    episode = MultiAgentEpisode(agent_to_module_mapping_fn=mapped)
    episode.add_env_reset(observations={0: 0.0, 1: 0.0})
    for t in range(steps):
        last = ended and t == steps - 1
        episode.add_env_step(
            {0: t + 1.0, 1: t + 1.0}, {0: 0, 1: 0}, {0: 1.0, 1: 0.5, 2: 0.25}, terminateds={"__all__": last}
        )
    return episode


def test_steps_are_counted_by_agent_and_by_module():
    metrics, episode = AgentMetrics(1), game(1, ended=False)
    metrics.add(episode, [0, 1])
    metrics.add(episode, [1])
    first = metrics.report()
    assert first["num_agent_steps_sampled"] == {"0": 1, "1": 2}
    assert first["num_module_steps_sampled"] == {"even": 1, "odd": 2}
    metrics.add(episode, [0])
    second = metrics.report()
    assert second["num_agent_steps_sampled"] == {"0": 1}
    assert second["num_agent_steps_sampled_lifetime"] == {"0": 2, "1": 2}
    assert second["num_module_steps_sampled_lifetime"] == {"even": 2, "odd": 2}
    assert metrics.steps == 4


def test_returns_of_a_cut_episode_are_those_of_the_whole():
    whole, parts = AgentMetrics(2), AgentMetrics(2)
    whole.end(0, game(5))
    episode = game(5)
    parts.cut(1, episode[:2])
    parts.cut(1, episode[2:3])
    parts.end(1, episode[3:])
    assert whole.report() == parts.report()


def test_rewards_of_no_step_count_for_their_agent():
    metrics = AgentMetrics(1)
    metrics.end(0, game(4))
    report = metrics.report()
    assert report["agent_episode_returns_mean"] == {"0": 4.0, "1": 2.0, "2": 1.0}
    assert report["module_episode_returns_mean"] == {"even": 4.0, "odd": 2.0}  # agent 2 never had a module
    assert report["agent_steps"] == {"0": 4, "1": 4, "2": 0}


def test_means_are_over_the_newest_episodes_of_each():
    metrics = AgentMetrics(1, window=2)
    for steps in (9, 1, 3):
        metrics.end(0, game(steps))
    assert metrics.report()["agent_episode_returns_mean"] == {"0": 2.0, "1": 1.0, "2": 0.5}
    alone = MultiAgentEpisode(agent_to_module_mapping_fn=mapped)
    alone.add_env_reset(observations={0: 0.0})
    alone.add_env_step({0: 1.0}, {0: 0}, {0: 10.0}, terminateds={"__all__": True})
    metrics.end(0, alone)
    assert metrics.report()["agent_episode_returns_mean"] == {"0": 6.5, "1": 1.0, "2": 0.5}


def test_agents_that_only_saw_the_end_are_left_out():
    episode = MultiAgentEpisode(agent_to_module_mapping_fn=mapped)
    episode.add_env_reset(observations={0: 0.0})
    episode.add_env_step({0: 1.0, 1: 0.0}, {0: 0}, {0: 1.0}, terminateds={"__all__": True})
    metrics = AgentMetrics(1)
    metrics.end(0, episode)
    assert metrics.report()["agent_episode_returns_mean"] == {"0": 1.0}


def test_running_episodes_are_forgotten_at_a_reset():
    metrics = AgentMetrics(1)
    metrics.cut(0, game(5, ended=False))
    metrics.forget()
    metrics.end(0, game(1))
    assert metrics.report()["agent_episode_returns_mean"]["0"] == 1.0


def test_a_state_gives_the_same_reports():
    one, other = AgentMetrics(1, window=3), AgentMetrics(1, window=3)
    for steps in (2, 5):
        one.add(game(1), [0, 1])
        one.end(0, game(steps))
    one.report()
    other.end(0, game(50))
    other.add(game(1), [1])
    other.set_state(one.get_state())
    for metrics in (one, other):
        metrics.end(0, game(3))
    assert one.report() == other.report() and one.steps == other.steps == 4
