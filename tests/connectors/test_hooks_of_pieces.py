"""Hooks of pieces: when environments are made, when episodes begin, and when chunks are drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from epibatch.algorithms import DQNConfig
from epibatch.connectors import ConnectorV2, Piece
from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.connectors.learner import AddObservationsFromEpisodesToBatch, LearnerConnectorPipeline
from epibatch.env_runner import SingleAgentEnvRunner
from epibatch.env_runner.multi_agent_env_runner import MultiAgentEnvRunner
from epibatch.episodes import SingleAgentEpisode
from epibatch.episodes.replay import EpisodeReplayBuffer
from fixture_envs import CountingEnv, FailingEnv


class Listener(ConnectorV2):
    """Notes what its hooks are called with."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.events: list[Any] = []

    def __call__(self, *, batch: Any, episodes: Any, **kwargs: Any) -> Any:
        self.events.append(("call", len(episodes)))
        return batch

    def on_environment(self, env: Any) -> None:
        self.events.append(("environment", env.num_envs))

    def on_reset(self, episodes: Any) -> None:
        self.events.append(("reset", [episode.id_ for episode in episodes]))

    def on_draw(self, episodes: Any) -> None:
        self.events.append(("draw", list(map(len, episodes))))


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
@pytest.mark.parametrize("pipeline", ["env_to_module", "module_to_env"])
def test_each_episode_begins_once(mode, pipeline):
    piece = Listener()
    settings = {"num_envs": 3, "gym_env_autoreset_mode": mode, "env_config": {"length": 4}, pipeline: [piece]}
    runner = SingleAgentEnvRunner(env=CountingEnv, **settings)
    episodes = [*runner.sample(num_timesteps=20), *runner.sample(num_timesteps=20)]
    runner.stop()
    (listener,) = [each for each in runner.pipelines[pipeline] if isinstance(each, Listener)]
    assert listener.events[0] == ("environment", 3)
    begun = [id_ for kind, ids in listener.events[1:] if kind == "reset" for id_ in ids]
    known = {episode.id_ for episode in episodes}
    assert len(begun) == len(set(begun)) and known <= set(begun)
    before = [listener.events[i + 1][0] for i, (kind, _) in enumerate(listener.events) if kind == "reset"]
    assert set(before) == {"call"}
    assert "draw" not in dict(listener.events)


def test_several_agents():
    from epibatch.env_runner import make_multi_agent

    runner = MultiAgentEnvRunner(
        env=make_multi_agent("CartPole-v1"), env_config={"num_agents": 2}, num_envs=2, env_to_module=[Listener()]
    )
    episodes = runner.sample(num_episodes=4)
    (listener,) = [each for each in runner.pipelines["env_to_module"] if isinstance(each, Listener)]
    runner.stop()
    begun = [id_ for kind, ids in listener.events if kind == "reset" for id_ in ids]
    assert len(begun) == len(set(begun)) and {episode.id_ for episode in episodes} <= set(begun)


def test_environments_that_are_made_again():
    settings = {"step": 3, "length": 4}
    runner = SingleAgentEnvRunner(
        env=FailingEnv, env_config=settings, env_to_module=[Listener()], restart_failed_sub_environments=True
    )
    runner.sample(num_timesteps=10)
    (listener,) = [each for each in runner.pipelines["env_to_module"] if isinstance(each, Listener)]
    runner.stop()
    begun = [id_ for kind, ids in listener.events if kind == "reset" for id_ in ids]
    assert len(begun) == len(set(begun)) >= 3


def test_own_loop():
    piece = Listener()
    pipeline = EnvToModulePipeline(connectors=[piece, AddObservationsFromEpisodesToBatch()])
    episodes = [SingleAgentEpisode(id_=name) for name in "ab"]
    for episode in episodes:
        episode.add_env_reset(np.zeros(1))
    pipeline(episodes=episodes)
    episodes[0].add_env_step(np.ones(1), 0, 0.0)
    pipeline(episodes=episodes)
    episodes[1].add_env_step(np.ones(1), 0, 0.0)
    pipeline(episodes=episodes)
    assert [event for event in piece.events if event[0] == "reset"] == [("reset", ["a", "b"]), ("reset", ["b"])]


def test_draws_of_a_buffer_and_nothing_else():
    piece = Listener()
    pipeline = LearnerConnectorPipeline(connectors=[piece, AddObservationsFromEpisodesToBatch()])
    rows = {"observations": np.arange(9.0), "actions": np.zeros(8, int), "rewards": np.zeros(8)}
    episode = SingleAgentEpisode(**rows, len_lookback_buffer=0)
    pipeline(episodes=[episode])
    assert piece.events == [("call", 1)]
    buffer = EpisodeReplayBuffer(100)
    buffer.add([episode])
    drawn = buffer.sample(6, batch_length_T=2)
    lengths = [len(chunk) for chunk in drawn]  # one that begins at the last step has one step
    pipeline(episodes=drawn)
    assert piece.events[1:] == [("draw", lengths), ("call", 6)]


class Drawn(Piece):
    """A fast piece with a hook."""

    draws = 0

    def run(self, columns: Any, group: Any) -> Any:
        return columns

    def on_draw(self, episodes: Any) -> None:
        self.draws += len(episodes)


def test_dqn_calls_it_for_every_draw(monkeypatch):
    monkeypatch.setattr(DQNConfig, "min_env_steps_per_iteration", 64)
    config = DQNConfig().environment("CartPole-v1").env_runners(rollout_fragment_length=4)
    config.learners(learner_connector=lambda *_: [Drawn()])
    algo = config.training(train_batch_size=16, num_steps_sampled_before_learning_starts=32).build_algo()
    algo.train()
    (piece,) = [each for each in algo.learner.connector if isinstance(each, Drawn)]
    algo.stop()
    assert piece.draws >= 16


def test_an_error_names_the_hook():
    class Wrong(Listener):
        def on_reset(self, episodes: Any) -> None:
            raise ValueError("no such episode")

    pipeline = EnvToModulePipeline(connectors=[Wrong()])
    with pytest.raises(ValueError, match="no such episode") as caught:
        pipeline(rl_module=None, batch={}, episodes=[SingleAgentEpisode(observations=[0.0])])
    assert "EnvToModulePipeline" in str(caught.value) + str(getattr(caught.value, "__notes__", ""))
