"""`epibatch play`: returns, videos, other checkpoints, and environments that fail or cannot be shown."""

from __future__ import annotations

import re
import shutil
import sys
from contextlib import closing
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from epibatch import Policy
from epibatch.algorithms.run.playing import Player, checkpoint_of
from epibatch.cli import app
from epibatch.core.errors import CheckpointError, ConfigError, NotAvailableError, RunnerError, UnknownNameError
from epibatch.core.registry import register_env
from epibatch.core.video import VideoWriter
from epibatch.env_runner import MultiAgentEnv, TensorEnvRunner, environment_seeds
from fixture_configs import cart_pole, same_weights


class Lamp(gym.Env):
    """Five steps of light or darkness; a frame is as bright as the number of the step says."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space, action_space = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)

    def __init__(self, config):
        self.render_mode = config.get("render_mode")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._t = 0
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        self._t += 1
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), float(action), self._t == 5, False, {}

    def render(self):
        return np.full((32, 48, 3), 40 * self._t, np.uint8)


class Blind(Lamp):
    def __init__(self, config):
        super().__init__({})


class Picky(Lamp):
    def __init__(self, own=1):
        super().__init__({})


@pytest.fixture(scope="module", autouse=True)
def registered():
    for each in (Lamp, Blind, Picky, Leavers, TupleLeavers, ManyLeavers, Squad, Lamps):
        register_env(each.__name__, each)


def run_of(folder, env="Lamp", trains=1, **env_config):
    """A run's folder with a checkpoint before each iteration."""
    config = cart_pole(env, train_batch_size=16, minibatch_size=16).environment(env_config=env_config)
    algo = config.build_algo()
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml").write_text(config.to_yaml())
    for number in range(1, trains + 1):
        algo.save_to_path(folder / "checkpoints" / f"{number:06d}")
        algo.train()
    algo.stop()
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory, registered):
    """A run with two checkpoints, which no test may change."""
    return run_of(tmp_path_factory.mktemp("played") / "run", trains=2)


def command(*arguments):
    return CliRunner().invoke(app, ["play", *map(str, arguments)])


def rows_of(output):
    return [line.split() for line in output.splitlines() if re.match(r"^\s*(\d+|mean) ", line)]


@pytest.mark.parametrize("explore", [False, True])
def test_the_table_is_what_a_loop_of_ones_own_gives(run, explore):
    result = command(run, "--episodes", 4, "--seed", 7, *(["--explore"] if explore else []))
    assert result.exit_code == 0, result.output
    policy, env, expected = Policy.from_checkpoint(run), Lamp({}), []
    policy.seed(7)
    for seed in environment_seeds(7, 4):
        (obs, _), state, total, done = env.reset(seed=seed), None, 0.0, False
        while not done:
            action, state = policy.act(obs, state, explore=explore)
            obs, reward, done, _, _ = env.step(action)
            total += reward
        expected.append(total)
    rows = rows_of(result.output)
    assert [row[0] for row in rows] == ["1", "2", "3", "4", "mean"]
    assert [float(row[1]) for row in rows[:4]] == expected
    assert float(rows[4][1]) == pytest.approx(np.mean(expected), abs=0.01)
    assert all(row[2:] == ["5", "terminated"] for row in rows[:4])
    assert command(run, "--episodes", 4, "--seed", 7, *(["--explore"] if explore else [])).output == result.output


def test_without_a_seed_draws_differ(run):
    assert len({command(run, "--episodes", 12, "--explore").output for _ in range(4)}) > 1


def test_a_video(run, tmp_path, read_video):
    result = command(run, "--episodes", 2, "--video", tmp_path / "out.mp4")
    assert result.exit_code == 0, result.output
    assert "12 frames" in result.output
    fps, frames = read_video(tmp_path / "out.mp4")
    assert (fps, frames.shape) == (10, (12, 32, 48, 3))
    np.testing.assert_allclose(frames.mean((1, 2, 3)), [0, 40, 80, 120, 160, 200] * 2, atol=5)


def test_a_video_of_cart_pole(built, tmp_path, read_video):
    built(cart_pole()).save_to_path(tmp_path / "saved")
    result = command(tmp_path / "saved", "--episodes", 1, "--seed", 0, "--video", tmp_path / "out.mp4")
    assert result.exit_code == 0, result.output
    length = int(rows_of(result.output)[0][2])
    assert read_video(tmp_path / "out.mp4")[1].shape == (length + 1, 400, 600, 3)


class Leavers(MultiAgentEnv):
    """The first agent ends after three steps, and the other after eight."""

    names: ClassVar[list[Any]] = ["a", "b"]

    def __init__(self, config):
        super().__init__()
        self.agents = self.possible_agents = self.names
        self.observation_spaces = dict.fromkeys(self.names, Lamp.observation_space)
        self.action_spaces = dict.fromkeys(self.names, Lamp.action_space)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return dict.fromkeys(self.names, np.zeros(2, np.float32)), {}

    def step(self, action_dict):
        self.t += 1
        ends = {self.names[0]: self.t == 3, self.names[1]: self.t == 8, "__all__": self.t == 8}
        values = [dict.fromkeys(action_dict, each) for each in (np.zeros(2, np.float32), 1.0)]
        return *values, ends, {"__all__": False}, {}


class TupleLeavers(Leavers):
    names: ClassVar[list[Any]] = [("red", 0), (np.str_("blue"), np.int64(0))]


class ManyLeavers(gym.vector.VectorEnv):
    """Leavers with two rewards each, all environments at once."""

    possible_agents = Leavers.names
    single_observation_space = gym.spaces.Dict(dict.fromkeys(Leavers.names, Lamp.observation_space))
    single_action_space = gym.spaces.Dict(dict.fromkeys(Leavers.names, Lamp.action_space))
    reward_space = gym.spaces.Box(-9, 9, (2,))
    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": gym.vector.AutoresetMode.DISABLED}

    def __init__(self, num_envs):
        self.num_envs = num_envs

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return dict.fromkeys(self.possible_agents, np.zeros((self.num_envs, 2), np.float32)), {}

    def step(self, actions):
        self.t += 1
        values = [dict.fromkeys(self.possible_agents, np.full((self.num_envs, 2), each, np.float32)) for each in (0, 1)]
        return *values, np.full(self.num_envs, self.t == 8), np.zeros(self.num_envs, bool), {}


@pytest.mark.parametrize(
    ("env", "settings", "length", "ended"),
    [
        ("Lamp", {"horizon": 3}, 3, "truncated"),
        ("Lamp", {"horizon": 4, "soft_horizon": True}, 4, "truncated"),
        ("Leavers", {}, 8, "terminated"),
        ("Leavers", {"episode_end": "any"}, 3, "terminated"),
        ("TupleLeavers", {}, 8, "terminated"),
        ("ManyLeavers", {"gym_env_vectorize_mode": "vector_entry_point"}, 8, "terminated"),
    ],
)
def test_episodes_end_as_in_training(built, tmp_path, env, settings, length, ended):
    config = cart_pole(env).env_runners(**{key: value for key, value in settings.items() if key != "episode_end"})
    if env.endswith("Leavers"):
        config.multi_agent(policies=["p"], policy_mapping_fn={"*": "p"}, episode_end=settings.get("episode_end", "all"))
    built(config).save_to_path(tmp_path / "saved")
    assert [row[2:] for row in rows_of(command(tmp_path / "saved", "--episodes", 2).output)[:2]] == [
        [str(length), ended]
    ] * 2


class Squad(gym.vector.VectorEnv):
    """Two agents along axis 1, of which the first ends after three steps, and the other after five."""

    possible_agents = ("a", "b")
    single_observation_space, single_action_space = Lamp.observation_space, Lamp.action_space
    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}

    def __init__(self, num_envs, render_mode=None):
        self.num_envs, self.render_mode = num_envs, render_mode

    def look(self):
        return np.full((self.num_envs, 2, 2), self._t / 5, np.float32)

    def reset(self, *, seed=None, options=None):
        self._t = 0
        return self.look(), {}

    def step(self, actions):
        self._t += 1
        last, t = self.look(), self._t
        ends = np.zeros((2, self.num_envs, 2), bool)
        ends[0, :, 0], ends[1, :, 1] = t >= 3, t >= 5
        if t == 5:
            self._t = 0
        return self.look(), np.full((self.num_envs, 2), [t, 10.0 * t]), *ends, {"final_obs": last}

    def render(self):
        return (np.full((32, 48, 3), 40 * self._t, np.uint8),) * self.num_envs


class Lamps(gym.vector.VectorEnv):
    """Lamps of tensors, which are truncated after four steps."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}

    def __init__(self, num_envs):
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = Lamp.observation_space, Lamp.action_space
        self.observation_space = gym.vector.utils.batch_space(Lamp.observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(Lamp.action_space, num_envs)

    def reset(self, *, seed=None, options=None):
        self._t = 0
        return torch.zeros(self.num_envs, 2), {}

    def step(self, actions):
        self._t = self._t % 4 + 1
        obs, no = torch.zeros(self.num_envs, 2), torch.zeros(self.num_envs, dtype=torch.bool)
        return obs, torch.full((self.num_envs,), float(self._t)), no, no | (self._t == 4), {"final_obs": obs}


def test_agents_along_an_axis(built, tmp_path, read_video):
    config = cart_pole("Squad").env_runners(num_envs_per_env_runner=4, gym_env_vectorize_mode="vector_entry_point")
    built(config.multi_agent(policies=["p"], policy_mapping_fn={"*": "p"})).save_to_path(tmp_path / "saved")
    result = command(tmp_path / "saved", "--episodes", 2, "--video", tmp_path / "out.mp4")
    assert result.exit_code == 0, result.output
    total = sum(range(1, 4)) + 10 * sum(range(1, 6))
    assert rows_of(result.output)[:2] == [[str(i), f"{total}.00", "5", "terminated"] for i in (1, 2)]
    assert "12 frames" in result.output


@pytest.mark.parametrize("mode", ["sync", "vector_entry_point"])
def test_an_environment_of_tensors_with_and_without_its_mode(built, tmp_path, mode):
    config = cart_pole("Lamps").env_runners(env_runner_cls=TensorEnvRunner, gym_env_vectorize_mode=mode)
    built(config).save_to_path(tmp_path / "saved")
    result = command(tmp_path / "saved", "--episodes", 1)
    assert result.exit_code == 0, result.output
    assert rows_of(result.output)[0] == ["1", "10.00", "4", "truncated"]


def test_other_checkpoints(run, tmp_path):
    run = shutil.copytree(run, tmp_path / "run")
    for number in (1, 2):
        path = run / "checkpoints" / f"{number:06d}"
        for name in (path, f"{number:06d}", number):
            assert command(run, "--checkpoint", name, "--episodes", 1).exit_code == 0
            assert checkpoint_of(run, str(name)) == path
    with closing(Player(run)) as newest:
        found = newest.policy.module.get_state()
    first, last = (Policy.from_checkpoint(run / f"checkpoints/00000{number}").module.get_state() for number in (1, 2))
    assert same_weights(found, last) and not same_weights(first, last)
    result = command(run, "--checkpoint", "000009")
    assert result.exit_code == 2
    assert all(name in result.output for name in ("000009", "choose one of 000002, 000001"))
    (run / "checkpoints" / "000002" / "COMPLETE").unlink()
    assert "a folder without the file COMPLETE" in " ".join(command(run, "--checkpoint", 2).output.split())


def test_an_error_in_the_environment(run, monkeypatch):
    step, calls = Lamp.step, []

    def failing_in_second_episode(self, action):
        calls.append(action)
        if len(calls) == 8:
            raise OSError("bulb")
        return step(self, action)

    monkeypatch.setattr(Lamp, "step", failing_in_second_episode)
    result = command(run, "--episodes", 3)
    assert result.exit_code == 3 and "bulb" in result.output
    assert [row[0] for row in rows_of(result.output)] == ["1", "mean"]


def test_interrupted(run, monkeypatch):
    def episodes(self, count, on_frame=None):
        yield from original(self, 1, on_frame)
        raise KeyboardInterrupt

    original = Player.episodes
    monkeypatch.setattr(Player, "episodes", episodes)
    result = command(run, "--episodes", 3)
    assert result.exit_code == 130
    assert [row[0] for row in rows_of(result.output)] == ["1", "mean"]
    assert "interrupted" in result.output


@pytest.mark.parametrize(("env", "found"), [("Blind", "render_mode None"), ("Picky", "ConfigError")])
def test_environments_that_do_not_render(tmp_path, env, found):
    run = run_of(tmp_path / "run", env)
    with pytest.raises(RunnerError, match=rf"(?s)environment '{env}'.*rgb_array.*{found}.*--video"):
        Player(run, render=True)
    result = command(run, "--video", tmp_path / "out.mp4")
    assert result.exit_code == 2
    assert "render_modes" in result.output
    assert not (tmp_path / "out.mp4").exists()
    assert command(run, "--episodes", 1).exit_code == 0


def test_a_package_that_rendering_needs(run, tmp_path, monkeypatch):
    def render(self):
        raise gym.error.DependencyNotInstalled("pygame is not installed")

    monkeypatch.setattr(Lamp, "render", render)
    result = command(run, "--video", tmp_path / "out.mp4")
    assert result.exit_code == 2
    assert "pygame is not installed" in result.output
    assert "pip install 'epibatch[video]'" in result.output


def test_an_environment_that_is_not_registered_here(run, monkeypatch):
    monkeypatch.setattr("epibatch.core.registry._env_creators", {})
    with pytest.raises(UnknownNameError, match="'Lamp'"):
        Player(run)
    assert command(run).exit_code == 2


def plain_loss(batch, outputs, distribution_class):
    return outputs["vf_preds"].square().mean(), {}


def test_code_of_the_learner_does_not_matter(built, tmp_path):
    built(cart_pole("Lamp", loss=plain_loss).callbacks(on_train_result=print)).save_to_path(tmp_path / "saved")
    result = command(tmp_path / "saved", "--episodes", 1)
    assert result.exit_code == 0 and [row[2] for row in rows_of(result.output)] == ["5", "5.0"], result.output


def test_configs_that_are_code(built, tmp_path):
    built(cart_pole(lambda config: Lamp(config))).save_to_path(tmp_path / "saved")
    with pytest.raises(CheckpointError, match=r"(?s)environment\.env.*Policy\.from_checkpoint"):
        Player(tmp_path / "saved")


@pytest.mark.parametrize("missing", ["nothing", "empty"])
def test_no_checkpoint(tmp_path, missing):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.yaml").write_text("algorithm: ppo")
    result = command(tmp_path / missing)
    assert result.exit_code == 2
    assert "error: " in result.output


# ----------------------------------------------------------------------------------------------- video


def grey(level, shape=(48, 64)):
    return np.full((*shape, 3), level, np.uint8)


@pytest.mark.parametrize("shape", [(48, 64), (47, 63)])
def test_frames_come_back(tmp_path, read_video, shape):
    levels = [10, 60, 120, 180, 240]
    writer = VideoWriter(tmp_path / "new" / "out.mp4", fps=20)
    for level in levels:
        writer.add(grey(level, shape))
    writer.close()
    writer.close()
    fps, frames = read_video(tmp_path / "new" / "out.mp4")
    assert (fps, frames.shape, writer.count) == (20, (5, 48, 64, 3), 5)
    for level, frame in zip(levels, frames):
        assert abs(float(frame[: shape[0] - 1, : shape[1] - 1].mean()) - level) < 4  # lossy


def test_no_frames_no_file_and_other_endings(tmp_path):
    VideoWriter(tmp_path / "out.mp4", fps=10).close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match=r"ends in \.mp4"):
        VideoWriter(tmp_path / "out.gif", fps=10)


@pytest.mark.parametrize("frame", [None, np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3)), [[[0, 0, 0]]]])
def test_what_is_no_frame(tmp_path, frame):
    writer = VideoWriter(tmp_path / "out.mp4", fps=10)
    with pytest.raises(RunnerError, match=r"frame 0 of the video"):
        writer.add(frame)


def test_frames_of_two_sizes(tmp_path):
    writer = VideoWriter(tmp_path / "out.mp4", fps=10)
    writer.add(grey(1))
    with pytest.raises(RunnerError, match=r"(?s)frame 1.*\(48, 64, 3\).*\(48, 66, 3\)"):
        writer.add(grey(1, (48, 66)))
    writer.close()


def test_without_the_extra(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "moviepy"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "moviepy", None)
    with pytest.raises(NotAvailableError, match=r"pip install 'epibatch\[video\]'"):
        VideoWriter(tmp_path / "out.mp4", fps=10)
