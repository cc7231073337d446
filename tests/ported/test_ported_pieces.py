"""The two pieces of RLlib's documentation, ported by their users: only imports changed, and one space mended."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors import ConnectorV2
from epibatch.core.errors import ColumnError
from epibatch.env_runner import SingleAgentEnvRunner
from epibatch.episodes import SingleAgentEpisode, VectorEpisodes

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
BOX = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)


def from_file(name, cls):
    spec = importlib.util.spec_from_file_location(name, HERE / "users" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, cls)


CountBasedIntrinsicRewards = from_file("count_based_intrinsic_rewards", "CountBasedIntrinsicRewards")
StackFourObservations = from_file("stack_four_observations", "StackFourObservations")


class Clock(gym.Env):
    """Episodes of 11, 12, 13... steps; the observation [v, -v] with v = 100 * episode + step + 1 tells its place.

    With `repeats` it shows [v % repeats, 0] instead, so that observations come again.
    """

    observation_space = BOX
    action_space = gym.spaces.Discrete(2)

    def __init__(self, repeats=0):
        self.repeats = repeats
        self.episode = -1

    def _observation(self):
        value = 100 * self.episode + self.step_count + 1
        return np.array([value % self.repeats, 0] if self.repeats else [value, -value], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.step_count = 0
        return self._observation(), {}

    def step(self, action):
        self.step_count += 1
        return self._observation(), 0.5 * self.step_count, self.step_count == 11 + self.episode, False, {}


class Watch(ConnectorV2):
    """Keeps copies of the observations that the pieces before it left, with the place of each."""

    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode, stack in self.single_agent_episode_iterator(episodes, zip_with_batch_column=batch["obs"]):
            self.seen.append((episode.t_started, episode.t, np.array(stack)))
        return batch


def config_of(num_envs=3, **env_config):
    small = {"fcnet_hiddens": [4]}
    config = PPOConfig().environment(Clock, env_config=env_config).rl_module(model_config=small).debugging(seed=0)
    return config.env_runners(num_envs_per_env_runner=num_envs).training(
        train_batch_size=60, minibatch_size=30, num_epochs=1
    )


def sampled(config, steps=(60,)):
    runner = SingleAgentEnvRunner(config=config)
    chunks = [runner.sample(num_timesteps=count) for count in steps]
    runner.stop()
    return chunks


def stack_at(value, t, depth=4):
    """The four newest observations of a Clock, side by side, zeros before its reset."""
    frames = [(value - j, -(value - j)) if t - j >= 0 else (0, 0) for j in range(depth - 1, -1, -1)]
    return np.array(frames, np.float32).ravel()


# ------------------------------------------------------------------------------------------- count-based rewards


def made_by_hand():
    episodes = []
    for name, visits in (("a", [0, 1, 0, 2, 2]), ("b", [2, 0, 1]), ("a", [1, 1])):
        observations = [np.array([v, 1], np.float32) for v in visits]
        steps = len(visits) - 1
        rewards = [float(i) for i in range(steps)]
        episodes.append(
            SingleAgentEpisode(
                id_=name, observations=observations, actions=[0] * steps, rewards=rewards, len_lookback_buffer=0
            )
        )
    return episodes


def made_by_runner():
    (episodes,) = sampled(config_of(repeats=5))
    assert isinstance(episodes, VectorEpisodes)
    return episodes


def shaped_by_a_loop(episodes):
    """r(t) + 1 / N(o(t)) for each chunk, N counting on through all chunks."""
    visits: Counter[bytes] = Counter()
    result = []
    for episode in episodes:
        observations, rewards = np.array(episode.get_observations()), np.array(episode.get_rewards())
        own = []
        for t in range(len(episode)):
            visits[observations[t].tobytes()] += 1
            own.append(float(rewards[t]) + 1 / visits[observations[t].tobytes()])
        result.append(own)
    return result


@pytest.mark.parametrize("make", [made_by_hand, made_by_runner, lambda: list(made_by_runner())])
def test_count_based_rewards_reach_episodes_and_batch(make):
    episodes = make()
    expected = shaped_by_a_loop(episodes)
    config = PPOConfig().learners(learner_connector=lambda env: CountBasedIntrinsicRewards())
    batch = config.build_learner_connector(BOX, Clock.action_space)(rl_module=None, batch={}, episodes=episodes)
    assert max(len(set(own)) for own in expected) > 1
    for episode, own in zip(episodes, expected):
        np.testing.assert_allclose(episode.get_rewards(), own, rtol=1e-6)
    np.testing.assert_allclose(batch["rewards"], np.concatenate(expected), rtol=1e-6)


def test_count_based_rewards_train():
    config = config_of(repeats=5).learners(learner_connector=lambda env: CountBasedIntrinsicRewards())
    algorithm = config.build_algo()
    algorithm.train()
    result = algorithm.train()
    algorithm.stop()
    (piece,) = algorithm.learner.connector[CountBasedIntrinsicRewards]
    assert sum(piece._counts.values()) >= 120
    # The returns of the first episodes, of 11 steps, are the environment's own: 0.5 * (1 + ... + 11).
    assert result["env_runners"]["episode_return_min"] == 33.0


# ------------------------------------------------------------------------------------------------- frame stacks


def stacking(learner_connector=None, seen=None):
    watch = [] if seen is None else seen
    config = config_of().env_runners(
        env_to_module_connector=lambda env, spaces, device: [
            StackFourObservations(*spaces["__env_single__"], as_learner_connector=False),
            Watch(watch),
        ]
    )
    return config if learner_connector is None else config.learners(learner_connector=learner_connector)


def test_stacks_for_acting_across_chunk_boundaries():
    seen = []
    first, second, third = sampled(stacking(seen=seen), steps=(21, 21, 42))
    boundaries = [t for t_started, t, _ in seen if t_started and t - t_started < 3]
    assert len(boundaries) >= 6
    for _, t, stack in seen:
        value = stack[-2]
        assert (int(value) - 1) % 100 == t
        np.testing.assert_array_equal(stack, stack_at(value, t))
    later = [episode for episode in [*second, *third] if episode.t_started]
    assert later
    assert all(episode.rewards.lookback >= min(3, episode.t_started) for episode in later)
    assert first[0].get_observations(0).shape == (2,)


def learner_piece(obs_space, act_space):
    return StackFourObservations(obs_space, act_space, as_learner_connector=True)


def test_one_row_per_episode_is_refused():
    pipeline = stacking(learner_piece).build_learner_connector(BOX, Clock.action_space)
    with pytest.raises(ColumnError) as raised:
        pipeline(rl_module=None, batch={}, episodes=made_by_hand()[:2])
    assert re.search(
        r"in LearnerConnectorPipeline, piece \d+ \(BatchIndividualItems\):\n"
        r"column 'obs', episode 'a' \(chunk 0 of 2\)\n"
        r" +expected: 4 rows, one per step\n"
        r" +found: +1 rows?\n"
        r" +do: .*add_n_batch_items",
        str(raised.value),
    )


# -------------------------------------------------------------------------------- the right version, as documented


def documented_stacking():
    """The class in docs/porting.md that stacks on both sides."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "porting.md").read_text(encoding="utf-8"), re.DOTALL)
    (block,) = [block for block in blocks if "class StackFour(" in block]
    namespace = {"__name__": "documented"}
    exec(compile(block, "porting.md", "exec"), namespace)
    return namespace["StackFour"]


def test_documented_stacks_are_right_on_both_sides():
    stack_four = documented_stacking()
    seen = []
    config = config_of().env_runners(env_to_module_connector=lambda env, spaces, device: [stack_four(), Watch(seen)])
    config.learners(learner_connector=lambda obs_space, act_space: stack_four(as_learner_connector=True))
    algorithm = config.build_algo()
    connector = algorithm.learner.connector
    for _ in range(3):
        episodes = algorithm.env_runner.sample(num_timesteps=21)
        (batch,) = connector(rl_module=algorithm.learner.module, batch={}, episodes=episodes).values()
        start = 0
        for episode in episodes:
            for t in range(len(episode) + 1):
                value = episode.get_observations(t)[0]
                found = batch["obs"][start + t].numpy()
                np.testing.assert_array_equal(found, stack_at(value, episode.t_started + t))
            start += len(episode) + 1
        assert start == len(batch["obs"])
    for _, t, stack in seen:
        np.testing.assert_array_equal(stack, stack_at(stack[-2], t))
    assert np.isfinite(algorithm.train()["learners"]["default_policy"]["total_loss"])
    algorithm.stop()
