"""Wrappers: repeated actions, chunks of actions, idle starts, lives."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms.ppo import PPOConfig
from epibatch.core.errors import ConfigError, EnvironmentContractError
from epibatch.env_runner import ActionChunks, EpisodicLife, FrameSkip, NoopStarts, SingleAgentEnvRunner
from fixture_envs import CountingEnv


class Lives(gym.Env):
    """Loses one of three lives every `each` steps; without lives the game is over."""

    observation_space, action_space = gym.spaces.Box(0, 999, (2,), np.float32), gym.spaces.Discrete(2)
    games = 0

    def __init__(self, each=4, key="lives"):
        self.each, self.key = each, key

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        type(self).games += 1
        self.t = 0
        return np.float32([0, 3]), {self.key: 3}

    def step(self, action):
        self.t += 1
        lives = 3 - self.t // self.each
        return np.float32([self.t, lives]), 1.0, lives == 0, False, {self.key: lives}


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_a_lost_life_ends_an_episode_and_not_the_game(mode):
    Lives.games = 0
    config = PPOConfig().environment(lambda _: Lives(), wrappers=["EpisodicLife"])
    config.env_runners(num_envs_per_env_runner=2, gym_env_autoreset_mode=mode)
    runner = SingleAgentEnvRunner(config=config)
    episodes = runner.sample(num_episodes=12)
    assert len(episodes) == 12
    for episode in episodes:
        assert len(episode) == 4 and episode.is_terminated
        times, lives = episode.get_observations().T.tolist()
        assert times == [times[0] + i for i in range(5)] and times[0] in (0, 4, 8)
        assert lives[:4] == [lives[0]] * 4 and lives[4] == lives[0] - 1
        assert [info["life_lost"] for info in episode.get_infos()[1:]] == [False, False, False, True]
    assert Lives.games <= 8  # three episodes each, in two environments, and what began beyond
    runner.stop()


def test_the_flag_is_that_of_the_game_in_the_end_and_a_seed_begins_a_new_one():
    env = EpisodicLife(Lives(each=2))
    env.reset(seed=0)
    flags = []
    for _ in range(6):
        _, _, terminated, _, info = env.step(0)
        flags.append((terminated, info["life_lost"]))
        if terminated:
            env.reset()
    assert flags == [(False, False), (True, True)] * 3
    assert env.reset()[0].tolist() == [0, 3]
    env.step(0)
    env.step(0)
    assert env.reset(seed=1)[0].tolist() == [0, 3]


def test_a_game_that_was_truncated_begins_again():
    env = EpisodicLife(gym.wrappers.TimeLimit(Lives(each=4), max_episode_steps=2))
    env.reset()
    assert [env.step(0)[2:4] for _ in range(2)] == [(False, False), (False, True)]
    assert env.reset()[0].tolist() == [0, 3]
    assert [env.step(0)[3] for _ in range(2)] == [False, True]


def test_infos_without_lives_are_named():
    env = EpisodicLife(Lives(key="hearts"))
    env.reset()
    with pytest.raises(EnvironmentContractError, match=r"'lives'(.|\n)*keys \['hearts'\](.|\n)*key="):
        env.step(0)
    named = EpisodicLife(Lives(each=1, key="hearts"), key="hearts")
    named.reset()
    assert named.step(0)[2]


class Walk(CountingEnv):
    """Counts its steps, and its ends; refuses a step after the end."""

    def __init__(self, length=50):
        super().__init__(length)
        self.action_space, self.times_ended = gym.spaces.Discrete(3, start=-1), 0

    def step(self, action):
        assert self.steps < self.length, "a step after the end"
        *rest, _ = super().step(action)
        self.times_ended += self.steps == self.length
        return *rest, {"action": action}


def test_idle_steps_are_drawn_between_one_and_the_most():
    env = NoopStarts(Walk(), noop_max=5)
    starts = [env.reset(seed=seed)[0].item() for seed in [0, *[None] * 400]]
    assert set(starts) == {1, 2, 3, 4, 5}
    assert env.reset()[1] == {"action": 0}
    assert env.reset(seed=7)[0] == env.reset(seed=7)[0]
    assert NoopStarts(Walk(), noop_max=0).reset()[0].item() == 0


def test_an_end_is_never_handed_over():
    env = NoopStarts(Walk(length=4), noop_max=9, noop_action=1)
    starts = [env.reset(seed=seed)[0].item() for seed in range(200)]
    assert set(starts) == {0, 1, 2, 3} and env.unwrapped.times_ended > 0
    with pytest.raises(EnvironmentContractError, match="ended with action 0"):
        NoopStarts(Walk(length=1), noop_max=9000).reset(seed=1)


def test_episodes_of_a_runner_begin_after_them():
    config = PPOConfig().environment(lambda _: Walk(), wrappers=[{"wrapper": "NoopStarts", "noop_max": 3}])
    runner = SingleAgentEnvRunner(config=config.debugging(seed=0))
    starts = {int(episode.get_observations(0)[0]) for episode in runner.sample(num_episodes=12)}
    assert starts == {1, 2, 3}
    runner.stop()


class Counted(CountingEnv):
    """The reward is the step's number, and every action is noted."""

    def __init__(self, actions=None, length=6, ends="terminated"):
        super().__init__(length, ends)
        self.action_space, self.taken = actions or gym.spaces.Discrete(3), []

    def step(self, action):
        assert self.action_space.contains(action) and self.steps < self.length
        self.taken.append(action)
        observation, _, *ends, _ = super().step(action)
        return observation, float(self.steps), *ends, {"t": self.steps}


@pytest.mark.parametrize("truncates", [False, True])
def test_an_action_is_repeated_until_the_episode_ends(truncates):
    env = FrameSkip(Counted(ends="truncated" if truncates else "terminated"), skip=4)
    env.reset()
    assert env.step(1) == (np.float32([4]), 1 + 2 + 3 + 4, False, False, {"t": 4})
    assert env.step(2) == (np.float32([6]), 5 + 6, not truncates, truncates, {"t": 6})
    assert env.unwrapped.taken == [1] * 4 + [2] * 2


def test_a_chunk_is_one_transition():
    env = ActionChunks(Counted(), size=4)
    env.reset()
    observation, reward, terminated, _, info = env.step(np.array([0, 1, 2, 1]))
    assert (observation.tolist(), reward, terminated) == ([4], 10, False)
    assert info["chunk_steps"] == 4 and info["chunk_rewards"].tolist() == [1, 2, 3, 4] and info["t"] == 4
    observation, reward, terminated, _, info = env.step(np.array([2, 0, 1, 1]))
    assert (observation.tolist(), reward, terminated) == ([6], 11, True)
    assert info["chunk_steps"] == 2 and info["chunk_rewards"].tolist() == [5, 6, 0, 0]
    assert env.unwrapped.taken == [0, 1, 2, 1, 2, 0]


def test_rewards_of_a_chunk_are_discounted():
    env = ActionChunks(Counted(), size=3, gamma=0.5)
    env.reset()
    assert env.step(np.zeros(3, int))[1] == 1 + 2 * 0.5 + 3 * 0.25


@pytest.mark.parametrize(
    ("actions", "chunks"),
    [
        (gym.spaces.Discrete(3, start=4), gym.spaces.MultiDiscrete([3, 3], start=[4, 4])),
        (gym.spaces.MultiDiscrete([2, 5], start=[1, 0]), gym.spaces.MultiDiscrete([[2, 5]] * 2, start=[[1, 0]] * 2)),
        (gym.spaces.MultiBinary(3), gym.spaces.MultiBinary((2, 3))),
        (gym.spaces.Box(-2.0, 1.0, (2,)), gym.spaces.Box(-2.0, 1.0, (2, 2))),
        (
            gym.spaces.Dict(a=gym.spaces.Discrete(2), b=gym.spaces.Tuple([gym.spaces.MultiBinary(2)])),
            gym.spaces.Dict(a=gym.spaces.MultiDiscrete([2, 2]), b=gym.spaces.Tuple([gym.spaces.MultiBinary((2, 2))])),
        ),
    ],
    ids=str,
)
def test_chunks_of_any_actions_are_trained(actions, chunks):
    config = (
        PPOConfig()
        .environment(lambda _: Counted(actions), wrappers=[{"wrapper": "ActionChunks", "size": 2}])
        .env_runners(num_envs_per_env_runner=2)
        .training(train_batch_size=24, minibatch_size=24, num_epochs=1)
    )
    algo = config.build_algo()
    assert algo.get_module().action_space == chunks
    algo.train()
    for episode in algo.env_runner.sample(num_episodes=2):
        assert len(episode) == 3 and episode.get_rewards().tolist() == [3, 7, 11]
        assert episode.get_observations().ravel().tolist() == [0, 2, 4, 6]
    algo.stop()


def test_repeated_actions_in_a_config():
    config = PPOConfig().environment(lambda _: Counted(), wrappers=[{"wrapper": "FrameSkip", "skip": 4}])
    runner = SingleAgentEnvRunner(config=config)
    for random_actions in (False, True):
        (episode,) = runner.sample(num_episodes=1, random_actions=random_actions)
        assert episode.get_rewards().tolist() == [10, 11] and episode.is_terminated
    runner.stop()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda env: NoopStarts(env, noop_max=-1), "NoopStarts"),
        (lambda env: NoopStarts(env, noop_max=True), "NoopStarts"),
        (lambda env: NoopStarts(env, noop_action=2), "NoopStarts"),
        (lambda env: FrameSkip(env, skip=0), r"FrameSkip\.skip"),
        (lambda env: FrameSkip(env, skip=2.0), "a whole number"),
        (lambda env: ActionChunks(env, size=True), r"ActionChunks\.size"),
        (lambda env: ActionChunks(env, gamma=1.5), r"ActionChunks\.gamma"),
    ],
)
def test_wrong_settings(make, said):
    with pytest.raises(ConfigError, match=said):
        make(Walk())
