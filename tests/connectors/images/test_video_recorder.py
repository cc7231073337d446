"""VideoRecorder: frames of observations and of renders, in grids, with skip and cap, in metrics and files."""

from __future__ import annotations

import io
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from epibatch.algorithms.loggers import TensorBoardLogger, VideoLogger
from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors.images import VideoRecorder
from epibatch.core.errors import ColumnError, ConfigError, PieceError, RunnerError
from epibatch.core.video import frame_of, grid_of
from epibatch.env_runner import SingleAgentEnvRunner, TensorEnvRunner, make_multi_agent
from epibatch.env_runner.multi_agent_env_runner import MultiAgentEnvRunner
from epibatch.episodes import SingleAgentEpisode


class Dial(gym.Env[Any, Any]):
    """Shows the number of its episode and of its step as an image; episode n of environment i has 2 + i + n steps."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, env_config: Any = None, render_mode: str | None = None) -> None:
        self.observation_space = gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)
        self.action_space = gym.spaces.Discrete(2)
        self.render_mode = render_mode or (env_config or {}).get("render_mode")
        self.index = getattr(env_config, "vector_index", 0)
        self.episode, self.renders = -1, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self.image(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.image(), 1.0, self.t == 2 + self.index + self.episode, False, {}

    def image(self) -> Any:
        return np.full((8, 8, 3), 100 * self.index + 10 * self.episode + self.t, np.uint8)

    def render(self) -> Any:
        self.renders += 1
        return self.image() if self.render_mode else None


def levels_by_loop(mode: str, count: int, num_envs: int = 2, of_observations: bool = True) -> list[list[int]]:
    """What each environment shows in each frame."""
    episode, t = [0] * num_envs, [0] * num_envs

    def levels() -> list[int]:
        return [100 * i + 10 * episode[i] + t[i] for i in range(num_envs)]

    frames = [levels()]
    while len(frames) < count:
        before, over = levels(), []
        for i in range(num_envs):
            if mode == "next_step" and t[i] == 2 + i + episode[i]:
                episode[i], t[i] = episode[i] + 1, 0
                continue
            t[i] += 1
            if t[i] == 2 + i + episode[i]:
                over.append(i)
        if over and mode != "next_step":
            if of_observations:
                frames.append([levels()[i] if i in over else before[i] for i in range(num_envs)])
            for i in over:
                episode[i], t[i] = episode[i] + 1, 0
        frames.append(levels())
    return frames[:count]


def recorder_of(runner: Any) -> VideoRecorder:
    return runner.pipelines["env_to_module"]["video_recorder"]  # type: ignore[no-any-return]


def runner_with(
    recorder: VideoRecorder, mode: str = "next_step", kind: Any = SingleAgentEnvRunner, **config: Any
) -> Any:
    settings = {"gym_env_autoreset_mode": mode, "num_envs": 2, "seed": 0, **config}
    return kind(env=Dial, env_to_module=[recorder], **settings)


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
@pytest.mark.parametrize("columns", [None, "obs"])
def test_a_tile_shows_its_environment(mode, columns):
    runner = runner_with(VideoRecorder(columns=columns), mode, env_config={"render_mode": "rgb_array"})
    runner.sample(num_timesteps=24)
    frames = recorder_of(runner).dump()
    runner.stop()
    assert len(frames) >= 13 and frames.shape[1:] == (8, 16, 3)
    expected = levels_by_loop(mode, len(frames), of_observations=columns is not None)
    assert frames[:, 0, ::8, 0].tolist() == expected
    assert (frames.reshape(-1, 8, 2, 8, 3) == frames[:, :1, ::8].reshape(-1, 1, 2, 1, 3)).all()


def test_skip_cap_and_dump():
    runner = runner_with(VideoRecorder(skip=3, max_frames=4), env_config={"render_mode": "rgb_array"})
    recorder = recorder_of(runner)
    runner.sample(num_timesteps=60)
    renders = runner.foreach_env(lambda env: env.unwrapped.renders)
    runner.sample(num_timesteps=20)
    assert renders == runner.foreach_env(lambda env: env.unwrapped.renders) == [4, 4]  # a full one renders no more
    frames = recorder.dump()
    assert frames[:, 0, ::8, 0].tolist() == levels_by_loop("next_step", 12)[::3]
    assert len(recorder.dump()) == 0
    runner.sample(num_timesteps=2)
    assert len(recorder.dump()) == 1
    recorder.freeze()
    runner.sample(num_timesteps=2)
    assert len(recorder.dump()) == 0
    runner.stop()


def test_more_environments_than_the_grid_has_room_for():
    runner = runner_with(VideoRecorder(columns="obs", max_envs=1))
    runner.sample(num_timesteps=30)
    frames = recorder_of(runner).dump()
    runner.stop()
    assert frames[:, 0, 0, 0].tolist() == [first for first, _ in levels_by_loop("next_step", len(frames))]


@pytest.mark.parametrize("columns", [None, "obs"])
def test_tensors(columns):
    config = {"env_config": {"render_mode": "rgb_array"}}
    runner = runner_with(VideoRecorder(columns=columns), "disabled", TensorEnvRunner, **config)
    runner.sample(num_timesteps=24)
    frames = recorder_of(runner).dump()
    runner.stop()
    expected = levels_by_loop("disabled", len(frames), of_observations=False)
    assert len(frames) >= 13 and frames[:, 0, ::8, 0].tolist() == expected


@pytest.mark.parametrize("kind", ["gray", "first", "one", "float"])
def test_layouts_of_images(kind):
    levels = np.arange(20, dtype=np.uint8).reshape(4, 5) * 12
    image = {
        "gray": levels,
        "first": np.stack([levels] * 3),
        "one": levels[..., None],
        "float": (levels / 255).astype(np.float32),
    }[kind]
    assert frame_of(image, "here").tolist() == np.stack([levels] * 3, -1).tolist()


def test_a_grid_of_frames_of_several_sizes():
    frames = [np.full((size, size + 1, 3), size, np.uint8) for size in (3, 1, 2, 3, 1)]
    grid = grid_of(frames)
    expected = np.zeros((6, 12, 3), np.uint8)
    for i, frame in enumerate(frames):
        row, column = 3 * (i // 3), 4 * (i % 3)
        expected[row : row + frame.shape[0], column : column + frame.shape[1]] = frame
    assert (grid == expected).all()


def test_videos_in_results_and_files(tmp_path, read_video):
    recorder = {"piece": "video_recorder", "columns": "obs", "max_frames": 5, "every": 20}
    model = {"conv_filters": [[2, 3, 1]]}
    config = PPOConfig().environment(Dial).env_runners(env_to_module_connector=[recorder], num_envs_per_env_runner=2)
    config.training(train_batch_size=48, minibatch_size=48, num_epochs=1).rl_module(model_config=model)
    algo = config.build_algo()
    results = algo.train()
    algo.save_to_path(tmp_path / "checkpoint")
    algo.stop()
    video = results["env_runners"]["video"]  # of the second video, which began at the 21st call
    assert video[:, 0, ::8, 0].tolist() == levels_by_loop("next_step", 25)[20:]
    VideoLogger(tmp_path / "videos").log(results)
    fps, frames = read_video(tmp_path / "videos" / "env_runners-video-000001.mp4")
    assert (fps, frames.shape) == (30, (5, 8, 16, 3))
    logger = TensorBoardLogger(tmp_path / "board")
    logger.log(results)
    empty = {"env_runners": {"video": VideoRecorder().dump()}, "num_env_steps_sampled_lifetime": 2}
    logger.log({**results, **empty})
    logger.close()
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    (event,) = events.Images("env_runners/video")
    with Image.open(io.BytesIO(event.encoded_image_string)) as gif:
        assert (gif.n_frames, gif.size, event.width, event.height) == (5, (16, 8), 16, 8)


def test_a_file(tmp_path, read_video):
    recorder = VideoRecorder(columns="obs/pixels")
    for level in (20, 200):
        pixels = np.full((6, 4, 3), level, np.uint8)
        recorder(batch={}, episodes=[SingleAgentEpisode(observations=[{"pixels": pixels, "state": np.zeros(2)}])])
    recorder.dump(tmp_path / "here" / "out.mp4", fps=5)
    fps, frames = read_video(tmp_path / "here" / "out.mp4")
    assert fps == 5 and np.abs(frames.mean((1, 2, 3)) - [20, 200]).max() < 4


def test_several_agents_render():
    recorder = VideoRecorder(max_frames=3)
    env = make_multi_agent("CartPole-v1")
    runner = MultiAgentEnvRunner(
        env=env, env_to_module=[recorder], num_envs=2, env_config={"num_agents": 2, "render_mode": "rgb_array"}
    )
    try:
        runner.sample(num_timesteps=10)
    finally:
        runner.stop()
    assert recorder.dump().shape[0] == 3


def test_what_cannot_work():
    with pytest.raises(ConfigError, match=r"VideoRecorder\.every[\s\S]*at least 20 calls"):
        VideoRecorder(skip=2, max_frames=10, every=19)
    episode = SingleAgentEpisode(observations=[np.zeros(4, np.float32)])
    with pytest.raises(ColumnError, match=r"shape \(4,\)[\s\S]*columns='obs/pixels'"):
        VideoRecorder(columns="obs")(batch={}, episodes=[episode])
    with pytest.raises(RunnerError, match="on_environment"):
        VideoRecorder()(batch={}, episodes=[episode])
    with pytest.raises(RunnerError, match="'render_mode': 'rgb_array'"):
        runner_with(VideoRecorder()).sample(num_timesteps=1)
    with pytest.raises(PieceError, match=r"VideoRecorder\.columns"):
        VideoRecorder(columns="rewards")
