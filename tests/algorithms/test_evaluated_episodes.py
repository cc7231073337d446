from __future__ import annotations

import types

import pytest

from epibatch.algorithms.evaluation import EvaluatedEpisodes
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode


class OfAgents:
    """A runner that knows its episodes' environments by their names: "3:x" is one of environment 3."""

    num_envs = 4

    @staticmethod
    def env_of(episode):
        return int(episode.id_.partition(":")[0])


def played(name, steps, *, cut=None):
    """An episode of `steps` steps that pays a 1 and b 10 for each, and b 5 more when it never acts: whole, or cut."""
    episode = MultiAgentEpisode(name, agent_to_module_mapping_fn=lambda agent, _: {"a": "x"}.get(agent, "y"))
    episode.add_env_reset(observations={"a": 0, "b": 0})
    parts = [episode]
    for t in range(1, steps + 1):
        both = {"a": t, "b": t}
        parts[-1].add_env_step(both, dict.fromkeys("ab", 0), {"a": 1.0, "b": 10.0}, terminateds={"__all__": t == steps})
        if t == cut:
            parts.append(parts[-1].cut())
    return parts


def test_chunks_of_one_episode_are_put_together():
    first, second = played("0:p", 5, cut=2)
    (other,) = played("1:q", 3)
    episodes, left = EvaluatedEpisodes(OfAgents), [1, 1, 0, 0]
    episodes.add([other, first], left)
    assert (episodes.returns, left) == ([33.0], [1, 0, 0, 0])
    episodes.add([second], left)
    assert (episodes.returns, episodes.lengths, episodes.steps) == ([33.0, 55.0], [3, 5], 8)
    assert left == [0, 0, 0, 0]
    assert episodes.by_agent() == {
        "agent_episode_returns_mean": {"a": 4.0, "b": 40.0},
        "module_episode_returns_mean": {"x": 4.0, "y": 40.0},
        "agent_steps": {"a": 4.0, "b": 4.0},
    }


def test_episodes_beyond_those_that_count():
    episodes, left = EvaluatedEpisodes(OfAgents), [1, 0, 0, 0]
    episodes.add([*played("1:p", 2), *played("0:q", 1), *played("0:r", 7)], left)
    assert (episodes.returns, episodes.steps) == ([11.0], 1)
    assert episodes.by_agent()["agent_steps"] == {"a": 1.0, "b": 1.0}


def test_rewards_that_no_step_got_count_at_the_end():
    episode = MultiAgentEpisode("0:p")
    episode.add_env_reset(observations={"a": 0})
    episode.add_env_step({"a": 1}, {"a": 0}, {"a": 1.0, "b": 0.5})
    rest = episode.cut()
    rest.add_env_step({"a": 2}, {"a": 0}, {"a": 1.0, "b": 0.25}, terminateds={"__all__": True})
    episodes = EvaluatedEpisodes(OfAgents)
    episodes.add([episode, rest], [1, 0, 0, 0])
    assert episodes.returns == [2.75]
    assert episodes.by_agent()["agent_episode_returns_mean"] == {"a": 2.0, "b": 0.75}


def test_episodes_of_one_agent():
    def chunk(rewards, **flags):
        count = len(rewards)
        columns = {"observations": [0] * (count + 1), "actions": [0] * count, "rewards": rewards}
        return SingleAgentEpisode(**columns, len_lookback_buffer=0, **flags)

    class Block(list):
        chunks = tuple(types.SimpleNamespace(env=env) for env in (1, 0, 1))

    episodes, left = EvaluatedEpisodes(types.SimpleNamespace(num_envs=2)), [1, 1]
    episodes.add(Block([chunk([1.0, 2.0]), chunk([0.5], terminated=True), chunk([4.0], truncated=True)]), left)
    assert (episodes.returns, episodes.lengths, left) == ([0.5, 7.0], [1, 3], [0, 0])
    assert episodes.by_agent() == {}


@pytest.mark.parametrize("count", [0, 2])
def test_no_episode_ended(count):
    episodes = EvaluatedEpisodes(OfAgents)
    episodes.add([played(f"{env}:p", 3, cut=1)[0] for env in range(count)], [1] * 4)
    assert (episodes.returns, episodes.steps, episodes.by_agent()) == ([], 0, {})
