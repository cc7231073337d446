"""Failures of environments, pieces and modules: what had ended is kept, the error says where, the next call goes on."""

from __future__ import annotations

import os
import re
import threading
import time

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms import PPOConfig
from epibatch.connectors import ConnectorV2
from epibatch.core.errors import EpibatchError, EpisodeStateError, RunnerError
from epibatch.env_runner import SingleAgentEnvRunner, environment_seeds
from fixture_envs import FailingEnv, ScriptedEnv

MODES = ("next_step", "same_step", "disabled")
WAYS = {"gymnasium": lambda mode: {"mode": mode}, "epibatch": lambda mode: {"gym_env_autoreset_mode": mode}}


@pytest.fixture(params=[(way, mode) for way in WAYS for mode in MODES], ids=" ".join)
def settings(request):
    """Settings of a runner: whose vector environment it is, and when it resets."""
    way, mode = request.param
    return WAYS[way](mode)


def first_code(chunk):
    return int(chunk.get_observations(0)[0])


def test_a_failing_step_loses_no_ended_episode(toys, settings):
    runner = toys.runner(2, env=toys.factory(fail_at=(1, 0, 4)), **settings)
    with pytest.raises(ConnectionError, match=r"(?s)^environment .* failed in step\(\)[^\n]*:\nsimulator lost"):
        runner.sample(num_timesteps=100)
    chunks = runner.sample(num_timesteps=6)
    assert first_code(chunks[0]) == 0 and chunks[0].is_done and 1000 not in map(first_code, chunks)
    assert all(chunk.t_started == 0 for chunk in chunks) and 6 <= sum(map(len, chunks)) < 8
    metrics = runner.get_metrics()
    assert metrics["num_env_steps_sampled"] == metrics["num_env_steps_sampled_lifetime"]
    for chunk in chunks:
        toys.check(chunk)


@pytest.mark.parametrize("mode", [None, *MODES])
def test_an_episode_that_ends_in_the_step_in_which_another_environment_fails_is_kept(toys, mode):
    shown = []
    piece = toys.pieces["undeclared"](seen=shown)
    runner = toys.runner(
        2,
        env=toys.factory(fail_at=(1, 0, 2)),  # environment 0 ends in its third step
        gym_env_autoreset_mode=mode,
        env_to_module_connector=lambda env, spaces, device: piece,
    )
    with pytest.raises(
        ConnectionError, match=r"number 1 of 2, 2 steps into its episode, failed in step\(\)[^\n]*:\nsimul"
    ):
        runner.sample(num_timesteps=100)
    assert shown == [0, 1000, 1, 1001, 2, 1002, 3]  # the terminal observation once
    first = runner.sample(num_timesteps=6)[0]
    assert first.is_done and len(first) == 3 and first_code(first) == 0
    toys.check(first)
    assert runner.get_metrics()["num_episodes"] >= 1


def test_a_failing_first_reset_is_named_and_the_next_call_goes_on(toys):
    runner = toys.runner(2, env=toys.factory(fail_in_reset=(1, 0)))
    with pytest.raises(ConnectionError, match=r"(?s)^environment .* failed in reset\(\):\nno answer"):
        runner.sample(num_timesteps=4)
    assert sum(map(len, runner.sample(num_timesteps=4))) == 4
    seeds = environment_seeds(7, 2)  # no environment started with them yet
    assert [env.seeds[:2] for env in toys.envs] == [[seed] * 2 for seed in seeds]


@pytest.mark.parametrize("count", [1, 2])
def test_an_episode_whose_next_reset_fails_is_kept(toys, settings, count):
    failing = count - 1
    runner = toys.runner(count, env=toys.factory(fail_in_reset=(failing, 1)), **settings)
    with pytest.raises((ConnectionError, RunnerError), match="no answer"):
        runner.sample(num_timesteps=100)
    kept = {first_code(chunk): chunk for chunk in runner.sample(num_timesteps=2) if chunk.is_done}
    assert (1000 * failing in kept) == (settings.get("mode") != "same_step")  # Gymnasium's loses that step
    assert failing == 0 or 0 in kept
    for chunk in kept.values():
        toys.check(chunk)


# ------------------------------------------------------------------------------------ in processes


class Marked(gym.Env):
    """Ends after five steps of 10 ms; raises in the n-th call of `call` in the first process that gets there.

    Its first observation is drawn from its seeded stream.
    """

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, marker, call, n):
        self.marker, self.fails, self.n = marker, call, n
        self.calls = {"reset": 0, "step": 0}

    def _count(self, call):
        self.calls[call] += 1
        if call == self.fails and self.calls[call] == self.n and not self.marker.exists():
            self.marker.touch()
            raise KeyError("door")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._count("reset")
        self.t = 0
        return self.np_random.uniform(-1, 1, 1).astype(np.float32), {}

    def step(self, action):
        self._count("step")
        time.sleep(0.01)
        self.t += 1
        return np.zeros(1, np.float32), 1.0, self.t == 5, False, {}


class Dies(Marked):
    """Its process ends instead."""

    def _count(self, call):
        try:
            super()._count(call)
        except KeyError:
            os._exit(3)


def in_processes(marker, call, n, env=Marked, **settings):
    config = PPOConfig().environment(lambda config: env(marker, call, n)).debugging(seed=3)
    settings = {"num_envs_per_env_runner": 2, "gym_env_vectorize_mode": "async", **settings}
    return SingleAgentEnvRunner(config=config.env_runners(**settings))


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
@pytest.mark.parametrize(("call", "n", "kept"), [("step", 8, [5]), ("reset", 2, [5, 5])])
def test_a_failure_in_a_process_is_named_and_loses_no_episode(tmp_path, call, n, kept, autoreset):
    runner = in_processes(tmp_path / "failed", call, n, gym_env_autoreset_mode=autoreset)
    with pytest.raises(KeyError) as raised:
        runner.sample(num_timesteps=40)
    said = " ".join([str(raised.value), *getattr(raised.value, "__notes__", ())])
    assert re.search(rf"number \d of 2, .*failed in {call}\(\)", said), said
    ended = [len(episode) for episode in runner.sample(num_timesteps=1) if episode.is_done]
    assert ended[: len(kept)] == kept
    assert sum(map(len, runner.sample(num_timesteps=20))) >= 20
    runner.stop()


def test_environments_made_anew_after_a_failed_reset_are_seeded_and_keep_the_time(tmp_path):
    def starts(name):
        runner = in_processes(tmp_path / name, "reset", 2, Dies)
        runner.sample(num_timesteps=4)
        with pytest.raises(RunnerError, match="exit code 3"):
            runner.sample(num_timesteps=4, force_reset=True)
        episodes = runner.sample(num_timesteps=4)
        assert runner.get_metrics()["env_step_timer"] > 4 * 0.01  # two vector steps before, two after
        runner.stop()
        return [float(episode.get_observations(0)[0]) for episode in episodes]

    one, other = starts("one"), starts("other")
    assert one == other and one[0] != one[1]


# ------------------------------------------------------------------------------------ failures in every call


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
    for _ in range(25):
        try:
            returned.append(sum(map(len, runner.sample(num_timesteps=30))))
        except ConnectionError:
            raised += 1
    assert len(returned) > 2 and raised > 8
    assert all(30 <= steps < 30 + 10 * num_envs for steps in returned)  # and what is held back is no more


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
        if held is not None:
            assert [len(env.shown) for env in toys.envs] == held  # the first came without a step
            held = None
    rest = runner.sample(num_timesteps=1)
    assert [chunk.t_started for chunk in rest if chunk.is_done] == [2, 2]  # the ends of those that were cut


# ------------------------------------------------------------------------------------ one call at a time


def test_a_call_within_a_call_is_refused(toys):
    def again(env_runner, **kwargs):
        env_runner.sample(num_timesteps=2)

    runner = toys.runner(2, config=toys.config(2).callbacks(on_episode_end=again))
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


# ------------------------------------------------------------------------------------ pieces and modules


class Piece(ConnectorV2):
    """Calls a function with the number of the call, from 1, and the episodes."""

    def __init__(self, function):
        super().__init__()
        self.function, self.calls = function, 0

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        self.calls += 1
        self.function(self.calls, list(self.single_agent_episode_iterator(episodes)))
        return batch


def with_piece(toys, function, side="env_to_module", **options):
    piece = Piece(function)
    return toys.runner(2, **{f"{side}_connector": lambda env, spaces, device=None: piece}, **options)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("at", [1, 2, *range(4, 12)])
def test_a_failing_piece_loses_no_ended_episode(toys, mode, at):
    def fail(call, episodes):
        if call == at:
            raise ValueError("sensor map missing")

    runner = with_piece(toys, fail, mode=mode)
    with pytest.raises(ValueError, match=r"(?s)EnvToModulePipeline, piece 0 \(Piece\).*sensor map missing"):
        runner.sample(num_timesteps=100)
    ended = [1000 * env.number + 100 * number for env in toys.envs for number in range(env.episode)]
    chunks = runner.sample(num_timesteps=6)
    assert set(ended) <= {first_code(chunk) for chunk in chunks if chunk.is_done}
    for chunk in chunks:
        toys.check(chunk)
        assert chunk.t_started == 0


def test_a_pieces_own_error_is_not_hidden_by_the_batch_it_left(toys):
    def nest(call, episodes):
        for i, episode in enumerate(episodes):
            if episode.t >= 4:
                if i:
                    raise ZeroDivisionError("own words")
                episode.set_observations(new_data={"x": episode.get_observations(-1)}, at_indices=-1)

    with pytest.raises(ZeroDivisionError, match="own words"):
        with_piece(toys, nest).sample(num_timesteps=100)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("flag", ["is_terminated", "is_truncated"])
@pytest.mark.parametrize("side", ["env_to_module", "module_to_env"])
def test_a_piece_cannot_end_a_running_episode(toys, mode, flag, side):
    def end(call, episodes):
        if call == 2:
            setattr(episodes[1], flag, True)

    runner = with_piece(toys, end, side, mode=mode)
    with pytest.raises(EpisodeStateError, match=rf"its environment says[\s\S]*{flag} = True[\s\S]*TimeLimit"):
        runner.sample(num_timesteps=20)
    for chunk in runner.sample(num_timesteps=20):  # the call after it goes on
        toys.check(chunk)


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


def test_an_error_in_the_module_names_it_and_the_batch(toys, monkeypatch):
    runner = toys.runner(2)

    def broken(batch, **kwargs):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(runner.module, "forward_exploration", broken)
    with pytest.raises(RuntimeError, match=r"forward pass, with obs \[2, 2\]:\nmat1"):
        runner.sample(num_timesteps=2)


# ------------------------------------------------------------------------------------ further errors


def test_stop_closes_the_environments(toys):
    runner = toys.runner(2)
    runner.sample(num_timesteps=2)
    runner.assert_healthy()
    runner.stop()
    runner.stop()
    assert [env.closed for env in toys.envs] == [1, 1] and runner.env is None
    for use in (runner.assert_healthy, lambda: runner.sample(num_timesteps=2)):
        with pytest.raises(RunnerError, match=r"stop\(\) was called[\s\S]*config.build_algo\(\)"):
            use()


ROW = np.zeros(3, np.float32)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (
            ScriptedEnv(reset=(np.zeros(2), {})),
            r"failed in reset\(\):[\s\S]*shape \(3,\), as in Box[\s\S]*shape \(2,\)",
        ),
        (
            ScriptedEnv((ROW, 0.0, {})),
            r"failed in step\(\)[^\n]*:[\s\S]*observation, reward, terminated[\s\S]*3 val",
        ),
        (ScriptedEnv(TypeError("no")), r"failed in step\(\)[^\n]*:\n  expected: \(observation, reward[\s\S]*\n.*no"),
        (ScriptedEnv(reset=ValueError("no")), r"failed in reset\(\):\n  expected: \(observation, info\)[\s\S]*\n.*no"),
        (FailingEnv(reset=1), r"failed in reset\(\):\nsimulator lost"),
    ],
)
def test_an_environment_that_returns_something_else_is_told_what_it_must_return(env, message):
    runner = SingleAgentEnvRunner(config=PPOConfig().environment(lambda config: env))
    with pytest.raises((ValueError, TypeError, ConnectionError), match=message):
        runner.sample(num_timesteps=2)


def test_an_environment_that_changes_its_actions_does_not_change_the_episode():
    class Meddling(ScriptedEnv):
        def step(self, action):
            action[:] = 77.0
            return super().step(action)

    env = Meddling((ROW, 0.0, False, False, {}))
    env.action_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    config = PPOConfig().environment(lambda config: env, normalize_actions=False).debugging(seed=0)
    episode = SingleAgentEnvRunner(config=config).sample(num_timesteps=5)[0]
    assert abs(episode.get_actions()).max() < 10


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
