"""Failures of environments and pieces, states, and environments that do what they should not."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms import PPOConfig
from epibatch.connectors import ConnectorV2
from epibatch.core.errors import EpibatchError, EpisodeStateError, RunnerError
from epibatch.env_runner import SingleAgentEnvRunner


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_a_failing_step_loses_no_ended_episode(toys, mode):
    runner = toys.runner(2, mode=mode, env=toys.factory(fail_at=(1, 0, 4)))
    with pytest.raises(ConnectionError, match=r"(?s)^environment .* failed in step\(\):\nsimulator lost"):
        runner.sample(num_timesteps=100)
    chunks = runner.sample(num_timesteps=6)
    assert int(chunks[0].get_observations(0)[0]) == 0 and chunks[0].is_done
    later = chunks[1:]
    assert all(chunk.t_started == 0 for chunk in later) and 6 <= sum(map(len, later)) < 8
    metrics = runner.get_metrics()
    assert metrics["num_env_steps_sampled"] == metrics["num_env_steps_sampled_lifetime"]
    assert 1000 not in [int(chunk.get_observations(0)[0]) for chunk in chunks]
    for chunk in chunks:
        toys.check(chunk)


def test_a_failing_reset_is_named_and_the_next_call_goes_on(toys):
    runner = toys.runner(2, env=toys.factory(fail_in_reset=(1, 0)))
    with pytest.raises(ConnectionError, match=r"(?s)^environment .* failed in reset\(\):\nno answer"):
        runner.sample(num_timesteps=4)
    assert sum(map(len, runner.sample(num_timesteps=4))) == 4
    assert [env.seeds[:2] for env in toys.envs] == [[7, 7], [8, 8]]  # no environment started with it yet


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_a_failing_reset_in_the_middle_loses_no_ended_episode(toys, mode):
    runner = toys.runner(2, mode=mode, env=toys.factory(fail_in_reset=(1, 1)))
    with pytest.raises((ConnectionError, RunnerError), match="no answer"):
        runner.sample(num_timesteps=100)
    chunks = runner.sample(num_timesteps=6)
    assert 0 in [int(chunk.get_observations(0)[0]) for chunk in chunks if chunk.is_done]
    for chunk in chunks:
        toys.check(chunk)


class FailsOnce(ConnectorV2):
    """Raises in one of its calls."""

    def __init__(self, at):
        super().__init__()
        self.left = at

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        self.left -= 1
        if self.left == 0:
            raise ValueError("sensor map missing")
        return batch


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
@pytest.mark.parametrize("call", range(1, 12))
def test_a_failing_piece_loses_no_ended_episode(toys, mode, call):
    runner = toys.runner(2, mode=mode, env_to_module_connector=lambda env, spaces, device: FailsOnce(call))
    with pytest.raises(ValueError, match=r"(?s)EnvToModulePipeline, piece 0 \(FailsOnce\).*sensor map missing"):
        runner.sample(num_timesteps=100)
    ended = [1000 * env.number + 100 * number for env in toys.envs for number in range(env.episode)]
    chunks = runner.sample(num_timesteps=6)
    assert set(ended) <= {int(chunk.get_observations(0)[0]) for chunk in chunks if chunk.is_done}
    for chunk in chunks:
        toys.check(chunk)
        assert chunk.t_started == 0


def test_an_interrupted_step_leaves_no_hole_in_an_episode(toys, monkeypatch):
    runner = toys.runner(2)
    runner.sample(num_timesteps=2)

    def interrupt(action):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(runner.env.envs[1], "step", interrupt)  # when environment 0 has taken the step already
    with pytest.raises(KeyboardInterrupt):
        runner.sample(num_timesteps=4)
    for chunk in runner.sample(num_timesteps=6):
        toys.check(chunk)


def test_stop_closes_the_environments(toys):
    runner = toys.runner(2)
    runner.sample(num_timesteps=2)
    runner.assert_healthy()
    runner.stop()
    runner.stop()
    assert [env.closed for env in toys.envs] == [1, 1] and runner.env is None
    with pytest.raises(RunnerError, match="make a new runner"):
        runner.assert_healthy()
    with pytest.raises(EpibatchError, match="make a new runner"):
        runner.sample(num_timesteps=2)


class WrongShape(gym.Env):
    """Declares observations of shape (2,) and delivers three numbers."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}


class FourValues(WrongShape):
    """Returns what a step returned before terminated and truncated were told apart."""

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, {}


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (
            WrongShape,
            r"WrongShape.* failed in reset\(\):[\s\S]*shape \(2,\), as in Box[\s\S]*float32 array of shape \(3,\)",
        ),
        (
            FourValues,
            r"FourValues.* failed in step\(\):[\s\S]*observation, reward, terminated, truncated, info[\s\S]*4 val",
        ),
    ],
)
def test_an_environment_that_returns_something_else_is_told_what_it_must_return(env, message):
    runner = SingleAgentEnvRunner(config=PPOConfig().environment(env))
    with pytest.raises(ValueError, match=message):
        runner.sample(num_timesteps=2)


def test_an_error_in_the_module_names_it_and_the_batch(toys, monkeypatch):
    runner = toys.runner(2)

    def broken(batch, **kwargs):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(runner.module, "forward_exploration", broken)
    with pytest.raises(RuntimeError, match=r"forward pass, with obs \[2, 2\]:\nmat1"):
        runner.sample(num_timesteps=2)


def test_an_environment_that_changes_its_actions_does_not_change_the_episode(toys):
    class Meddling(gym.Env):
        observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
        action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

        def reset(self, *, seed=None, options=None):
            return np.zeros(2, np.float32), {}

        def step(self, action):
            action[:] = 77.0
            return np.zeros(2, np.float32), 0.0, False, False, {}

    config = PPOConfig().environment(Meddling, normalize_actions=False).debugging(seed=0)
    episode = SingleAgentEnvRunner(config=config).sample(num_timesteps=5)[0]
    assert abs(episode.get_actions()).max() < 10


def test_a_pieces_own_error_is_not_hidden_by_the_batch_it_left(toys):
    class Nests(ConnectorV2):
        def __call__(self, *, rl_module, batch, episodes, **kwargs):
            for i, episode in enumerate(episodes):
                if episode.t >= 4:
                    if i:
                        raise ZeroDivisionError("own words")
                    episode.set_observations(new_data={"x": episode.get_observations(-1)}, at_indices=-1)
            return batch

    runner = toys.runner(2, env_to_module_connector=lambda env, spaces, device: Nests())
    with pytest.raises(ZeroDivisionError, match="own words"):
        runner.sample(num_timesteps=100)


def test_parts_of_the_state_by_name(toys):
    runner = toys.runner(2)
    runner.sample(num_timesteps=4)
    state = runner.get_state(not_components=["required_lookback", "rl_module"])
    assert "rl_module" not in state and state["num_env_steps_sampled_lifetime"] == 4
    other = toys.runner(2)
    other.set_state(state)
    assert other.get_metrics()["num_env_steps_sampled_lifetime"] == 4
    other.set_state(runner.get_state(components="rl_module"))
    with pytest.raises(EpibatchError, match="did you mean 'rl_module'"):
        runner.get_state(components=["rl_modul"])


@pytest.mark.parametrize("amount", [{"num_timesteps": 2.5}, {"num_timesteps": "5"}, {"num_episodes": 1.5}])
def test_amounts_are_whole_numbers(toys, amount):
    with pytest.raises(EpibatchError, match="an int of at least 0"):
        toys.runner(1).sample(**amount)


class FailsInAProcess(gym.Env):
    """Raises at its third step, in the first process that gets there, and never again."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, marker):
        self.marker, self.t = marker, 0

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        if self.t == 3 and not self.marker.exists():
            self.marker.touch()
            raise OSError("simulator lost")
        return np.zeros(1, np.float32), 1.0, self.t == 5, False, {}


@pytest.mark.filterwarnings("ignore::UserWarning")  # Gymnasium reports a failed worker by warnings, too
def test_environments_in_processes_are_made_anew_after_a_failure(tmp_path):
    marker = tmp_path / "failed"
    config = (
        PPOConfig()
        .environment(lambda config: FailsInAProcess(marker))
        .env_runners(num_envs_per_env_runner=2, gym_env_vectorize_mode="async")
    )
    runner = SingleAgentEnvRunner(config=config)
    with pytest.raises(OSError, match="simulator lost") as raised:
        runner.sample(num_timesteps=20)
    said = " ".join([str(raised.value), *getattr(raised.value, "__notes__", ())])
    assert "failed in step()" in said
    episodes = runner.sample(num_timesteps=20)
    assert sum(map(len, episodes)) == 20 and max(map(len, episodes)) == 5
    runner.stop()


class FailsToReset(FailsInAProcess):
    """Raises at its second reset, in the first process that gets there; its observations are its seeded stream."""

    def reset(self, *, seed=None, options=None):
        gym.Env.reset(self, seed=seed)
        self.t += 1
        if self.t == 2 and not self.marker.exists():
            self.marker.touch()
            raise OSError("simulator lost")
        return self.np_random.uniform(-1, 1, 1).astype(np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 1.0, False, False, {}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_environments_made_anew_after_a_failed_reset_are_seeded_and_keep_the_time(tmp_path):
    def starts(name):
        config = (
            PPOConfig()
            .environment(lambda config: FailsToReset(tmp_path / name))
            .env_runners(num_envs_per_env_runner=2, gym_env_vectorize_mode="async")
            .debugging(seed=3)
        )
        runner = SingleAgentEnvRunner(config=config)
        runner.sample(num_timesteps=4)
        with pytest.raises(OSError, match="simulator lost"):
            runner.sample(num_timesteps=4, force_reset=True)
        seconds = runner._stepper.seconds
        episodes = runner.sample(num_timesteps=4)
        assert runner.get_metrics()["env_step_timer"] > seconds > 0
        runner.stop()
        return [float(episode.get_observations(0)[0]) for episode in episodes]

    one, other = starts("one"), starts("other")
    assert one == other and one[0] != one[1]


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
@pytest.mark.parametrize("flag", ["is_terminated", "is_truncated"])
@pytest.mark.parametrize("side", ["env_to_module", "module_to_env"])
def test_a_piece_cannot_end_a_running_episode(toys, mode, flag, side):
    class Ends(ConnectorV2):
        calls = 0

        def __call__(self, *, rl_module, batch, episodes, **kwargs):
            self.calls += 1
            if self.calls == 2:
                setattr(list(self.single_agent_episode_iterator(episodes))[1], flag, True)
            return batch

    piece = Ends()
    runner = toys.runner(2, mode=mode, **{f"{side}_connector": lambda env, spaces, device=None: piece})
    with pytest.raises(EpisodeStateError, match=rf"its environment says[\s\S]*{flag} = True[\s\S]*TimeLimit"):
        runner.sample(num_timesteps=20)
    for chunk in runner.sample(num_timesteps=20):  # the call after it goes on
        toys.check(chunk)
