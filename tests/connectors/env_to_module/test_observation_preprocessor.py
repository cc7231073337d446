"""Observations changed one by one, by a method of one's own."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms import PPOConfig
from epibatch.connectors import env_to_module
from epibatch.connectors.env_to_module import (
    AddObservationsFromEpisodesToBatch,
    EnvToModulePipeline,
    ObservationPreprocessor,
    SingleAgentObservationPreprocessor,
)
from epibatch.connectors.learner import LearnerConnectorPipeline
from epibatch.core.errors import ColumnError, PipelineError, SpaceError
from epibatch.episodes import VectorRecorder


class First(SingleAgentObservationPreprocessor):
    """The first entry and the number of steps before it."""

    def __init__(self, *spaces, scale=1, **kwargs):
        super().__init__(*spaces, **kwargs)
        self.scale = scale

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return gym.spaces.Dict(value=gym.spaces.Box(-99, 99, (1,)), steps=gym.spaces.Discrete(99))

    def preprocess(self, observation, episode):
        return {"value": self.scale * observation[:1], "steps": len(episode)}


def test_what_comes_out_is_in_the_episodes_and_in_the_batch(lab):
    episodes = [lab.episode("a", 2), lab.episode("b", 3)]
    seen = lab.columns("env_to_module", [First(scale=2), AddObservationsFromEpisodesToBatch()], episodes)
    assert seen["obs"]["a",]["value"].tolist() == [[4.0]] and seen["obs"]["b",]["steps"].tolist() == [3]
    assert episodes[0].get_observations(-1)["value"].tolist() == [4.0]
    assert isinstance(episodes[0].observation_space, gym.spaces.Dict)


@pytest.mark.parametrize("plain", [False, True])
def test_a_recorded_block_keeps_what_came_out(lab, plain):
    recorder = VectorRecorder(2, lab.obs_space, lab.act_space)
    pieces = [*[lab.user()] * plain, First(), AddObservationsFromEpisodesToBatch()]
    pipeline = EnvToModulePipeline(lab.obs_space, lab.act_space, connectors=pieces)
    recorder.reset(np.ones((2, 2), np.float32))
    for step in range(1, 4):
        pipeline(episodes=recorder.episodes)
        recorder.commit()
        no = np.zeros(2, bool)
        recorder.step(np.zeros(2, np.int64), np.zeros(2), no, no, np.full((2, 2), step + 1, np.float32))
    pipeline(episodes=recorder.episodes)
    for episode in recorder.harvest(0):
        rows = episode.get_observations()
        assert rows["value"].tolist() == [[1], [2], [3], [4]] and rows["steps"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_the_learner_sees_what_the_module_saw(mode):
    class PositionsAndChange(SingleAgentObservationPreprocessor):
        """Positions, and how they changed: what came out before is read from the episode."""

        def recompute_output_observation_space(self, input_observation_space, input_action_space):
            return gym.spaces.Box(-9, 9, (4,), np.float32)

        def preprocess(self, observation, episode):
            assert observation.shape == (4,)
            positions = observation[[0, 2]]
            before = episode.get_observations(-2)[:2] if len(episode) else positions
            return np.concatenate([positions, positions - before])

    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(
            num_envs_per_env_runner=3,
            gym_env_autoreset_mode=mode,
            env_to_module_connector=lambda env, spaces, device: PositionsAndChange(),
        )
        .training(train_batch_size=96, minibatch_size=48, num_epochs=1)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .debugging(seed=3)
    )
    algorithm = config.build_algo()
    algorithm.train()
    episodes = algorithm.env_runner.sample(num_timesteps=90)
    module = algorithm.get_module()
    assert module.observation_space.shape == (4,) and len(episodes) > 3
    for episode in episodes:
        rows = episode.get_observations()
        np.testing.assert_allclose(rows[1:, 2:], np.diff(rows[:, :2], axis=0), atol=1e-6)
    batch = algorithm.learner.connector(rl_module=algorithm.learner.module, batch={}, episodes=episodes)
    expected = np.concatenate([episode.get_observations() for episode in episodes])
    assert batch["default_policy"]["obs"].numpy().tolist() == expected.tolist()
    algorithm.stop()


def test_rllibs_other_name_for_it():
    assert ObservationPreprocessor is SingleAgentObservationPreprocessor is env_to_module.ObservationPreprocessor


def test_preprocess_has_to_be_written():
    with pytest.raises(TypeError, match="preprocess"):
        SingleAgentObservationPreprocessor()


class Wrong(SingleAgentObservationPreprocessor):
    def __init__(self, answer=None, **kwargs):
        super().__init__(**kwargs)
        self.answer = answer

    def preprocess(self, observation, episode):
        return self.answer


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        (None, ColumnError, r"Wrong\.preprocess(.|\n)*end preprocess with `return observation`"),
        (np.zeros(3), SpaceError, r"shape \(3,\)(.|\n)*let Wrong\.recompute_output_observation_space return"),
        ({"a": 1}, SpaceError, r"dict(.|\n)*recompute_output_observation_space"),
        (np.array(["x", "y"]), SpaceError, r"recompute_output_observation_space"),
    ],
)
def test_what_does_not_fit_the_space_is_named(lab, answer, error, said):
    with pytest.raises(error, match=said):
        lab.run("env_to_module", [Wrong(answer)], [lab.episode("a", 1)])


def test_behind_a_piece_that_took_the_observations_is_too_late(lab):
    with pytest.raises(PipelineError, match=r"'obs'(.|\n)*move First in front of that piece"):
        lab.run("env_to_module", [AddObservationsFromEpisodesToBatch(), First()], [lab.episode("a", 1)])


def test_a_learner_pipeline_is_no_place_for_it():
    with pytest.raises(PipelineError, match=r"piece 0 \(First\)(.|\n)*env-to-module pipeline"):
        LearnerConnectorPipeline(connectors=[First()])


def test_without_episodes_nothing_happens(lab):
    assert lab.call(First(), {}) == {}
