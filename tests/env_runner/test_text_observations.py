"""Text as observation: it passes the runner where a piece makes numbers of it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms import PPOConfig
from epibatch.connectors.authoring import ColumnTransform
from epibatch.connectors.env_to_module import SingleAgentObservationPreprocessor
from epibatch.core.columns import Columns
from epibatch.core.errors import SpaceError
from epibatch.env_runner import MultiAgentEnvRunner, SingleAgentEnvRunner, make_multi_agent
from epibatch.testing import check_env

WORDS = ("north", "south", "lamp", "a key")
TEXT = gym.spaces.Text(40, charset=" aehklmnoprstuy,")
IDS = gym.spaces.Box(0, len(WORDS), (4,), np.float32)


class Story(gym.Env):
    """Episodes of three steps; each observation is one to five words, of which four are read."""

    observation_space, action_space = TEXT, gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.observe(), 1.0, self.t == 3, False, {}

    def observe(self) -> Any:
        return ", ".join(self.np_random.choice(WORDS, self.np_random.integers(1, 6)))


class Nested(Story):
    observation_space = gym.spaces.Dict(said=TEXT, t=gym.spaces.Box(0, 3, (1,)))

    def observe(self) -> Any:
        return {"said": super().observe(), "t": np.array([self.t], np.float32)}


def ids_of(text: str) -> Any:
    ids = [1 + WORDS.index(word) for word in text.split(", ")][:4]
    return np.array(ids + [0] * (4 - len(ids)), np.float32)


class Written(SingleAgentObservationPreprocessor):
    """Writes numbers back into the episodes."""

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        if isinstance(input_observation_space, gym.spaces.Dict):
            return gym.spaces.Dict({**input_observation_space.spaces, "said": IDS})
        return IDS

    def preprocess(self, observation: Any, episode: Any) -> Any:
        if isinstance(observation, dict):
            return {**observation, "said": ids_of(observation["said"])}
        return ids_of(observation)


class Encoded(ColumnTransform):
    """Makes numbers in the batch, while acting and while learning; episodes keep the text."""

    columns: str = "obs"

    def output_space(self, space: Any) -> Any:
        return IDS

    def transform(self, x: Any) -> Any:
        return np.stack([ids_of(text) for text in x])


def config_of(env: Any, acting: Any, learning: Any = None, **settings: Any) -> PPOConfig:
    return (
        PPOConfig()
        .environment(env)
        .env_runners(env_to_module_connector=acting, **{"num_envs_per_env_runner": 2, "explore": False, **settings})
        .training(learner_connector=learning)
        .debugging(seed=3)
    )


def batch_of(config: PPOConfig) -> Any:
    runner = SingleAgentEnvRunner(config=config)
    episodes = runner.sample(num_timesteps=14)
    episodes = [*episodes, *runner.sample(num_timesteps=10)]
    runner.stop()
    pipeline = config.build_learner_connector(*runner.get_spaces()["__episodes__"])
    config.extend_learner_connector(pipeline)
    return episodes, pipeline(batch={}, episodes=episodes, rl_module=runner.module, shared_data={})


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("reset", ["same_step", "disabled"])
def test_numbers_are_those_of_the_text(mode, reset):
    settings = {"gym_env_vectorize_mode": mode, "gym_env_autoreset_mode": reset}
    episodes, batch = batch_of(config_of(Story, lambda *spaces: Encoded(), lambda *spaces: Encoded(), **settings))
    texts = [text for episode in episodes for text in episode.get_observations()]
    assert len(set(texts)) > 15 and all(type(text) is str for text in texts)
    np.testing.assert_array_equal(batch[Columns.OBS], [ids_of(text) for text in texts])
    written, other = batch_of(config_of(Story, lambda *spaces: Written(), **settings))
    np.testing.assert_array_equal(np.concatenate([e.get_observations() for e in written]), batch[Columns.OBS])
    np.testing.assert_array_equal(other[Columns.OBS], batch[Columns.OBS])


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_text_beside_arrays(mode):
    episodes, batch = batch_of(config_of(Nested, lambda *spaces: Written(), gym_env_vectorize_mode=mode))
    for episode in episodes:
        np.testing.assert_array_equal(
            episode.get_observations()["t"][:, 0], np.arange(episode.t_started, episode.t + 1)
        )
    assert batch[Columns.OBS]["said"].shape[1:] == (4,)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_text_of_several_agents(mode):
    config = config_of(make_multi_agent(Story), lambda *spaces: Written(multi_agent=True), gym_env_vectorize_mode=mode)
    config.environment(env_config={"num_agents": 2})
    config.multi_agent(policies=["p"], policy_mapping_fn=lambda agent, episode, **kwargs: "p")
    runner = MultiAgentEnvRunner(config=config)
    episode = runner.sample(num_episodes=1)[0]
    runner.stop()
    rows = [own.get_observations() for own in episode.agent_episodes.values()]
    assert np.shape(rows) == (2, 4, 4) and len(np.unique(rows)) == 5


def test_without_a_piece_it_is_refused_when_the_runner_is_built():
    for env, name in ((Story, ""), (Nested, r"\['said'\]")):
        with pytest.raises(SpaceError, match=rf"module 'default_policy'{name}\n[\s\S]*Text[\s\S]*env-to-module piece"):
            SingleAgentEnvRunner(config=config_of(env, None))


@pytest.mark.parametrize(("mode", "value"), [("sync", 7), ("sync", None), ("sync", b"lamp"), ("async", 7)])
def test_what_is_no_text_is_named(mode, value):
    class Odd(Story):
        def observe(self):
            return super().observe() if self.t < 2 else value

    runner = SingleAgentEnvRunner(config=config_of(Odd, lambda *spaces: Written(), gym_env_vectorize_mode=mode))
    with pytest.raises(SpaceError, match=r"number 0 of 2, 1 steps into its episode[\s\S]*expected: text, as in Text"):
        runner.sample(num_timesteps=8)
    runner.stop()


def test_check_env_takes_text():
    assert not check_env(Nested, num_steps=10, timeout_s=None).findings


SAYINGS = ("go north", "go south")


class Spoken(gym.Env):
    """Episodes of three steps; the action is text."""

    observation_space, action_space = gym.spaces.Box(0, 1, (2,)), gym.spaces.Text(20)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.zeros(2, np.float32), float(SAYINGS.index(action)), self.t == 3, False, {}


class Speak(ColumnTransform):
    columns = "actions"

    def output_space(self, space: Any) -> Any:
        return gym.spaces.Discrete(2)

    def transform(self, x: Any) -> Any:
        return np.array([SAYINGS.index(text) for text in x])

    def inverse(self, y: Any) -> Any:
        return np.array([SAYINGS[i] for i in y], object)


@pytest.mark.parametrize("random_actions", [False, True])
def test_actions_become_text_by_the_inverse(random_actions):
    config = PPOConfig().environment(Spoken).debugging(seed=0)
    config.env_runners(num_envs_per_env_runner=2, env_to_module_connector=lambda *args: Speak())
    runner = SingleAgentEnvRunner(config=config)
    episodes = runner.sample(num_episodes=10, random_actions=random_actions)
    said = np.concatenate([episode.get_actions() for episode in episodes])
    assert said.tolist() == np.concatenate([episode.get_rewards() for episode in episodes]).tolist()
    assert set(said.tolist()) == {0, 1}
    runner.stop()
