"""Failures of environments and pieces, states, and environments that do what they should not."""

from __future__ import annotations

import re
import threading

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
    assert all(chunk.t_started == 0 for chunk in chunks) and 6 <= sum(map(len, chunks)) < 8
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


@pytest.mark.parametrize("mode", [None, "next_step", "same_step", "disabled"])
def test_an_episode_that_ends_in_the_step_in_which_another_environment_fails_is_kept(toys, mode):
    shown = []
    piece = toys.pieces["undeclared"](seen=shown)
    runner = toys.runner(
        2,
        env=toys.factory(fail_at=(1, 0, 2)),  # environment 0 ends in its third step
        gym_env_autoreset_mode=mode,
        env_to_module_connector=lambda env, spaces, device: piece,
    )
    with pytest.raises(ConnectionError, match=r"number 1 of 2, 2 steps into its episode, failed in step\(\):\nsimul"):
        runner.sample(num_timesteps=100)
    assert shown == [0, 1000, 1, 1001, 2, 1002, 3]  # the terminal observation once
    first = runner.sample(num_timesteps=6)[0]
    assert first.is_done and len(first) == 3 and int(first.get_observations(0)[0]) == 0
    toys.check(first)
    assert runner.get_metrics()["num_episodes"] >= 1


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_an_episode_whose_next_reset_fails_is_kept(toys, mode, count):
    runner = toys.runner(count, env=toys.factory(fail_in_reset=(0, 1)), gym_env_autoreset_mode=mode)
    with pytest.raises((ConnectionError, RunnerError), match="no answer"):
        runner.sample(num_timesteps=100)
    first = runner.sample(num_timesteps=2)[0]
    assert first.is_done and len(first) == 3 and int(first.get_observations(0)[0]) == 0
    toys.check(first)


class Failing(gym.Env):
    """Ends after two steps; the environment with the number 1 does, in its third step, what the test says."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, numbers, step=None, reset=None):
        self.number, self.wrong, self.fails_in_reset = numbers.number(), step, reset
        self.t = self.total = self.resets = 0

    def reset(self, *, seed=None, options=None):
        self.t, self.resets = 0, self.resets + 1
        if self.number == 1 and self.resets == self.fails_in_reset:
            raise KeyError("door")
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t, self.total = self.t + 1, self.total + 1
        if self.number == 1 and self.total == 1 and self.wrong:
            return self.wrong(np.zeros(2, np.float32))
        return np.zeros(2, np.float32), 1.0, self.t == 1 + self.number, False, {}


class Numbers:
    """Hands out 0, 1, ... to processes, in any order; the first is asked for a look at the spaces alone."""

    def __init__(self, folder, looks):
        self.folder, self.looks = folder, looks

    def number(self):
        number = -self.looks
        while True:
            try:
                (self.folder / str(number)).touch(exist_ok=False)
                return number
            except FileExistsError:
                number += 1


def wrong_step(place, value):
    def step(row):
        right = [row, 1.0, False, False, {}]
        right[place] = value
        return tuple(right)

    return step


WRONG_STEPS = {
    "shape (1,)": (wrong_step(0, np.zeros(1, np.float32)), "SpaceError", r"shape \(1,\)"),
    "shape (1, 2)": (wrong_step(0, np.zeros((1, 2), np.float32)), "SpaceError", r"shape \(1, 2\)"),
    "shape ()": (wrong_step(0, np.float32(0)), "SpaceError", r"shape \(\)"),
    "text": (wrong_step(0, np.array(["0", "1"])), "SpaceError", "<U1"),
    "complex": (wrong_step(0, np.zeros(2, complex)), "SpaceError", "complex128"),
    "flag of text": (wrong_step(2, "False"), "EnvironmentContractError", "True or False as terminated[\\s\\S]*'False'"),
    "flag None": (wrong_step(3, None), "EnvironmentContractError", "True or False as truncated[\\s\\S]*None"),
    "flag NaN": (wrong_step(3, float("nan")), "EnvironmentContractError", "True or False as truncated[\\s\\S]*nan"),
    "reward of text": (wrong_step(1, "2.5"), "EnvironmentContractError", "a number as reward[\\s\\S]*'2.5'"),
    "reward None": (wrong_step(1, None), "EnvironmentContractError", "a number as reward[\\s\\S]*None"),
}


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("name", WRONG_STEPS)
def test_what_means_nothing_is_refused_at_any_step_in_any_process(tmp_path, mode, name):
    step, error, words = WRONG_STEPS[name]
    numbers = Numbers(tmp_path, mode == "async")
    config = PPOConfig().environment(lambda config: Failing(numbers, step))
    runner = SingleAgentEnvRunner(config=config.env_runners(num_envs_per_env_runner=2, gym_env_vectorize_mode=mode))
    try:
        with pytest.raises(EpibatchError, match=rf"number \d of 2, [\s\S]*failed in step\(\):[\s\S]*{words}") as raised:
            runner.sample(num_timesteps=20)
        assert type(raised.value).__name__ == error
        ended = runner.sample(num_timesteps=1)[0]
        assert ended.is_done and len(ended) == 1  # environment 0's, which ended in the same step
    finally:
        runner.stop()


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_a_failing_reset_names_its_environment_and_loses_no_episode(tmp_path, mode, autoreset):
    numbers = Numbers(tmp_path, mode == "async")
    config = PPOConfig().environment(lambda config: Failing(numbers, reset=2))
    settings = {"gym_env_vectorize_mode": mode, "gym_env_autoreset_mode": autoreset}
    runner = SingleAgentEnvRunner(config=config.env_runners(num_envs_per_env_runner=2, **settings))
    try:
        with pytest.raises(KeyError) as raised:
            runner.sample(num_timesteps=20)
        notes = raised.value.__notes__
        assert any(re.search(r"number \d of 2, failed in reset\(\)$", note) for note in notes)
        ended = runner.sample(num_timesteps=1)
        assert sorted(map(len, ended)) == [1, 1, 2]
    finally:
        runner.stop()


class FailsOften(gym.Env):
    """Episodes of four steps; every tenth step fails."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, counts):
        self.counts, self.t = counts, 0

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.counts.append(0)
        if len(self.counts) % 10 == 0:
            raise ConnectionError("simulator lost")
        self.t += 1
        return np.zeros(1, np.float32), 1.0, self.t == 4, False, {}


def often_failing(**settings):
    config = PPOConfig().environment(lambda config, counts=[]: FailsOften(counts)).debugging(seed=0)
    return SingleAgentEnvRunner(config=config.env_runners(**settings))


@pytest.mark.parametrize("num_envs", [1, 2])
def test_failures_in_every_call_do_not_keep_episodes_from_the_caller(num_envs):
    runner = often_failing(num_envs_per_env_runner=num_envs)
    returned, raised = [], 0
    for _ in range(60):
        try:
            returned.append(sum(map(len, runner.sample(num_timesteps=30))))
        except ConnectionError:
            raised += 1
    assert len(returned) > 5 and raised > 20
    assert all(30 <= steps < 30 + 10 * num_envs for steps in returned)  # and what is held back is no more
    runner.stop()


def test_what_a_failure_held_back_is_taken_without_a_step():
    runner = often_failing()
    with pytest.raises(ConnectionError):
        runner.sample(num_timesteps=30)
    steps = runner.num_env_steps_sampled_lifetime
    assert [len(episode) for episode in runner.sample(num_timesteps=1)] == [4, 4]
    assert runner.num_env_steps_sampled_lifetime == steps


def test_exactly_so_many_whole_episodes_after_a_failure(toys):
    runner = toys.runner(2, env=toys.factory(fail_at=(1, 2, 1)))
    runner.sample(num_timesteps=4)
    with pytest.raises(ConnectionError):
        runner.sample(num_timesteps=100)
    held = [len(env.shown) for env in toys.envs]
    for count in (1, 2, 1, 3):
        episodes = runner.sample(num_episodes=count)
        assert len(episodes) == count and all(episode.is_done and episode.t_started == 0 for episode in episodes)
        for episode in episodes:
            toys.check(episode)
        if count == 1 and held is not None:
            assert [len(env.shown) for env in toys.envs] == held  # the first came without a step
            held = None
    rest = runner.sample(num_timesteps=1)
    assert [chunk.t_started for chunk in rest if chunk.is_done] == [2, 2]  # the ends of those that were cut


def test_a_call_within_a_call_is_refused(toys):
    def again(env_runner, **kwargs):
        env_runner.sample(num_timesteps=2)

    config = toys.config(2).callbacks(on_episode_end=again)
    runner = toys.runner(2, config=config)
    with pytest.raises(RunnerError, match=r"on_episode_end[\s\S]*one call at a time[\s\S]*from a callback"):
        runner.sample(num_timesteps=20)


def test_a_call_in_another_thread_is_refused_and_loses_nothing(toys):
    entered, go_on = threading.Event(), threading.Event()

    def wait(**kwargs):
        entered.set()
        go_on.wait(10)

    runner = toys.runner(2, config=toys.config(2).callbacks(on_episode_step=wait))
    results = []
    thread = threading.Thread(target=lambda: results.append(runner.sample(num_timesteps=4)))
    thread.start()
    entered.wait(10)
    try:
        with pytest.raises(RunnerError, match="another thread"):
            runner.sample(num_timesteps=4)
    finally:
        go_on.set()
        thread.join()
    assert sum(map(len, results[0])) == 4
    assert [chunk.t_started for chunk in runner.sample(num_timesteps=4)][:2] == [2, 2]


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
    with pytest.raises(RunnerError, match=r"stop\(\) was called[\s\S]*config.build_algo\(\)"):
        runner.assert_healthy()
    with pytest.raises(EpibatchError, match=r"stop\(\) was called"):
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
