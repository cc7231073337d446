"""Episodes are the same in every autoreset mode, and each observation passes the pipeline once."""

from __future__ import annotations

from collections import Counter

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms import PPOConfig
from epibatch.core.columns import Columns
from epibatch.core.errors import RunnerError
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule
from epibatch.env_runner import SingleAgentEnvRunner


@pytest.fixture(params=["next_step", "same_step", "disabled"])
def mode(request):
    return request.param


@pytest.fixture(params=[True, False], ids=["copied", "reused_buffers"])
def copy(request):
    return request.param


def test_episodes_are_the_same_in_all_modes(toys, mode, copy):
    runner = toys.runner(2, mode=mode, copy=copy)
    chunks = [chunk for _ in range(5) for chunk in runner.sample(num_timesteps=9, explore=False)]
    episodes = toys.joined(chunks)
    assert {(env, number) for env in (0, 1) for number in range(5)} <= episodes.keys()
    for (env, number), episode in episodes.items():
        toys.check(episode)
        assert all(info.keys() == {"code"} for info in episode.get_infos())  # nothing of another episode
        assert episode.t_started == 0 and (episode.is_done or number == max(n for e, n in episodes if e == env))
        np.testing.assert_array_equal(episode.get_actions(), np.arange(len(episode)) % 2)
        assert list(episode.extra_model_outputs) == ["action_dist_inputs", "action_logp", "weights_seq_no"]
    for chunk in chunks:
        toys.check(chunk)


@pytest.mark.parametrize("kind", ["undeclared", "columnar"])
@pytest.mark.parametrize("random_actions", [False, True], ids=["policy", "random"])
def test_every_observation_is_seen_exactly_once(toys, mode, copy, kind, random_actions):
    seen: list[int] = []
    pieces = [toys.pieces[kind](seen=seen)]
    runner = toys.runner(3, mode=mode, copy=copy, env_to_module_connector=lambda env, spaces, device: pieces)
    for steps in (10, 1, 3, 25):
        runner.sample(num_timesteps=steps, random_actions=random_actions)
        assert Counter(seen) == toys.shown()
    terminal = [1000 * env + 100 * 0 + toys.length_of(env, 0) for env in range(3)]
    assert set(terminal) <= set(seen) and max(Counter(seen).values()) == 1
    for _ in range(3):
        runner.sample(num_episodes=3)
        assert Counter(seen) == toys.shown()


@pytest.mark.parametrize("fails", [False, True], ids=["", "the reset fails"])
def test_what_pieces_write_back_is_kept_of_terminal_observations_too(toys, mode, fails):
    class Negate(toys.pieces["undeclared"]):
        def __call__(self, *, rl_module, batch, episodes, **kwargs):
            for episode in self.single_agent_episode_iterator(episodes):
                episode.set_observations(new_data=-episode.get_observations(-1), at_indices=-1)
            return batch

    env = toys.factory(fail_in_reset=(1, 1) if fails else None)
    runner = toys.runner(2, mode=mode, env=env, env_to_module_connector=lambda env, spaces, device: Negate())
    if fails:
        with pytest.raises((RunnerError, ConnectionError), match="no answer"):
            runner.sample(num_timesteps=100)
    ended = [episode for episode in runner.sample(num_timesteps=4 if fails else 30) if episode.is_done]
    assert len(ended) >= (1 if fails else 6)
    for episode in ended:
        observations = -episode.get_observations()
        np.testing.assert_array_equal(np.diff(observations[:, 0]), np.ones(len(episode)))
        np.testing.assert_array_equal(observations[:, 1], np.arange(len(episode) + 1))


def test_the_module_is_not_asked_about_terminal_observations_when_a_reset_comes_with_them(toys):
    for mode in ("same_step", "disabled"):
        runner = toys.runner(2, mode=mode)
        runner.sample(num_timesteps=20)
        assert runner.get_metrics()["num_env_steps_sampled"] == 20
        steps = [len(env.actions) for env in toys.envs[-2:]]
        assert steps == [10, 10]


class Nested(gym.Env):
    """Episodes of 3 steps; the observation at time t of episode e is {"at": [e, t], "parity": t % 2}."""

    observation_space = gym.spaces.Dict(at=gym.spaces.Box(0, 99, (2,), np.float32), parity=gym.spaces.Discrete(2))
    action_space = gym.spaces.Discrete(2)
    episode = -1

    def _now(self):
        return {"at": np.array([self.episode, self.t], np.float32), "parity": self.t % 2}

    def reset(self, *, seed=None, options=None):
        self.episode, self.t = self.episode + 1, 0
        return self._now(), {}

    def step(self, action):
        self.t += 1
        return self._now(), 1.0, self.t == 3, False, {}


class Counts(TorchRLModule):
    """Its recurrent state is the number of steps it has acted in an episode."""

    def get_initial_state(self):
        return {"n": np.zeros(1, np.float32)}

    def _forward(self, batch, **kwargs):
        state = batch[Columns.STATE_IN]["n"] + 1
        parity = batch[Columns.OBS]["parity"]
        return {Columns.ACTIONS: parity.long(), Columns.STATE_OUT: {"n": state}}


def test_nested_observations_and_recurrent_states(toys, mode, copy):
    config = toys.config(2, env=lambda config: Nested())
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=Counts, model_config={"max_seq_len": 5}))
    runner = toys.runner(2, config=config, mode=mode, copy=copy)
    chunks = [chunk for _ in range(6) for chunk in runner.sample(num_timesteps=4)]
    assert sum(chunk.is_done for chunk in chunks) >= 6
    for chunk in chunks:
        times = np.arange(chunk.t_started, chunk.t + 1)
        observations = chunk.get_observations()
        np.testing.assert_array_equal(observations["at"][:, 1], times)
        assert len(set(observations["at"][:, 0])) == 1
        np.testing.assert_array_equal(observations["parity"], times % 2)
        np.testing.assert_array_equal(chunk.get_actions(), times[:-1] % 2)
        np.testing.assert_array_equal(chunk.get_extra_model_outputs("state_out")["n"][:, 0], times[1:])
        assert chunk.is_done == (chunk.t == 3) and chunk.lookback == min(chunk.t_started, 1)


# -------------------------------------------------------------------------------- native vector environments


def cart_pole_step(state, action):
    """CartPole's equations of motion (Barto, Sutton and Anderson 1983), one explicit Euler step of 0.02 s."""
    x, v, angle, spin = state
    force = 10.0 if action == 1 else -10.0
    cos, sin = np.cos(angle), np.sin(angle)
    push = (force + 0.05 * spin**2 * sin) / 1.1
    bend = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    return [x + 0.02 * v, v + 0.02 * (push - 0.05 * bend * cos / 1.1), angle + 0.02 * spin, spin + 0.02 * bend]


@pytest.mark.parametrize("vectorize", ["sync", "vector_entry_point", "async"])
def test_cart_pole_episodes_obey_their_physics_and_each_observation_is_seen_once(toys, vectorize):
    seen = []

    class Seen(toys.pieces["undeclared"]):
        def __call__(self, *, rl_module, batch, episodes, **kwargs):
            self.seen.extend(episode.get_observations(-1).tobytes() for episode in episodes)
            return batch

    config = PPOConfig().environment("CartPole-v1").debugging(seed=1).rl_module(model_config={"fcnet_hiddens": [4]})
    config.env_runners(num_envs_per_env_runner=4, gym_env_vectorize_mode=vectorize)
    config.env_runners(env_to_module_connector=lambda env, spaces, device: Seen(seen=seen))
    runner = SingleAgentEnvRunner(config=config)
    samples = [runner.sample(num_timesteps=100) for _ in range(3)]
    runner.stop()
    # A step that only brings a reset is not counted, so a vector step can be worth 1 to 4.
    assert all(100 <= sum(len(chunk) for chunk in sample) < 104 for sample in samples)
    chunks = [chunk for sample in samples for chunk in sample]
    for chunk in chunks:
        observations = chunk.get_observations()
        expected = [cart_pole_step(o, a) for o, a in zip(observations.astype(float), chunk.get_actions())]
        np.testing.assert_allclose(observations[1:], expected, atol=1e-5)
        if not chunk.t_started:
            assert np.abs(observations[0]).max() <= 0.05
        fallen = np.abs(observations[:, 0]) > 2.4
        fallen |= np.abs(observations[:, 2]) > 12 * np.pi / 180
        assert fallen[:-1].sum() == 0 and bool(fallen[-1]) == chunk.is_terminated
        np.testing.assert_array_equal(chunk.get_rewards(), 1)
    assert sum(chunk.is_terminated for chunk in chunks) >= 5
    # A chunk that goes on begins with the observation that the one before it ended with.
    rows = [row.tobytes() for chunk in chunks for row in chunk.get_observations()[bool(chunk.t_started) :]]
    in_chunks, in_pipeline = Counter(rows), Counter(seen)
    assert not in_chunks - in_pipeline and max(in_pipeline.values()) == 1
    # What is left are reset observations of episodes without a step yet: one per environment at most.
    assert sum((in_pipeline - in_chunks).values()) <= 4
