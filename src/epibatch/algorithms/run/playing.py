"""`epibatch play`: what a run's policy does in the run's environment, in numbers and as a video."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from rich.console import Console
from rich.table import Table

from epibatch.core.errors import (
    CheckpointError,
    ConfigError,
    EpibatchError,
    NotAvailableError,
    RunnerError,
    add_context,
)
from epibatch.core.video import VideoWriter

from ...env_runner.envs.make_env import make_vector_env, make_vector_multi_agent_env, makes_vector_env, wrappers_of
from ...env_runner.envs.one_of_vector import OneOfVector
from ...env_runner.envs.reset_seeds import environment_seeds
from ..checkpoint import PLAYING, config_from_checkpoint, read_checkpoint
from ..policy import Policy
from .error_reports import error_report
from .saved_checkpoints import CHECKPOINTS, SavedCheckpoints
from .training_run import FAILED

INTERRUPTED = 130
FPS = 30
"""Of a video, where the environment's metadata has no `render_fps`."""


@dataclass(frozen=True)
class Episode:
    """One episode as it was played.

    Attributes:
        value: the return: the sum of its rewards.
        length: steps.
        terminated: whether the environment ended it by itself; otherwise a limit did.
    """

    value: float
    length: int
    terminated: bool


class Player:
    """A policy and an environment of its own.

    Args:
        path: A run's folder, or a checkpoint.
        explore: Whether to draw actions as in training.
        seed: Of what is drawn, and of the episodes' resets, which get `environment_seeds` of it. None: none.
        render: Whether the environment is to render frames.
        allow_imports: Whether the config may name pieces and environments by import path.

    Raises:
        CheckpointError: no checkpoint, a damaged one, or one whose config or policy is code.
        UnknownNameError: an environment that is not registered.
        RunnerError: an environment that cannot render.
    """

    def __init__(
        self,
        path: Path,
        *,
        explore: bool = False,
        seed: int | None = None,
        render: bool = False,
        allow_imports: bool = False,
    ) -> None:
        config = _config(path, allow_imports)
        self.policy: Any = Policy.from_checkpoint(path, allow_imports=allow_imports)
        self.policy.seed(int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed)
        self.name = str(config.env)
        self._explore, self._seed, self._several = explore, seed, config.is_multi_agent
        self._vector = _made(config, render)
        first = next(iter(getattr(self._vector, "envs", ())), None)
        self.env: Any = first if isinstance(first, gym.Env) else OneOfVector(self._vector)
        if render and self.env.render_mode != "rgb_array":
            self.close()
            raise _no_frames(self.name, f"render_mode {self.env.render_mode!r}")

    @property
    def fps(self) -> float:
        """Frames per second that the environment is meant to be shown with."""
        return float(self.env.metadata.get("render_fps") or FPS)

    def episodes(self, count: int, on_frame: Callable[[Any], None] | None = None) -> Iterator[Episode]:
        """Play so many episodes.

        Args:
            count: How many.
            on_frame: Called with a rendered frame after each reset and each step.
        """
        seeds = [None] * count if self._seed is None else environment_seeds(self._seed, count)
        for seed in seeds:
            show_frame = (lambda: None) if on_frame is None else (lambda: on_frame(self.env.render()))
            yield self._several_agents(seed, show_frame) if self._several else self._one_agent(seed, show_frame)

    def _one_agent(self, seed: int | None, show_frame: Callable[[], None]) -> Episode:
        obs, info = self.env.reset(seed=seed)
        state = reward = None
        terminated = truncated = False
        rewards: list[float] = []
        show_frame()
        while not (terminated or truncated):
            action, state = self.policy.act(obs, state, explore=self._explore, reward=reward, info=info)
            obs, reward, terminated, truncated, info = self.env.step(action)
            rewards.append(float(np.sum(reward)))
            show_frame()
        return Episode(sum(rewards), len(rewards), bool(terminated))

    def _several_agents(self, seed: int | None, show_frame: Callable[[], None]) -> Episode:
        """Play an episode; its return is the sum over all agents."""
        (obs,), (infos,) = self._vector.reset(seed=seed)
        show_frame()
        actions, state = self.policy.act(obs, explore=self._explore, infos=infos)
        rewards: list[float] = []
        while True:
            (obs,), (by_agent,), (terminateds,), (truncateds,), (infos,) = self._vector.step([actions])
            rewards.append(float(np.sum([*by_agent.values()])))  # of vectors, over all objectives
            show_frame()
            ended = {"terminateds": terminateds, "truncateds": truncateds}
            actions, state = self.policy.act(obs, state, explore=self._explore, rewards=by_agent, infos=infos, **ended)
            if state.is_done:
                return Episode(sum(rewards), len(rewards), state.is_terminated)

    def close(self) -> None:
        """Close the environment."""
        self._vector.close()


def _config(path: Path, allow_imports: bool) -> Any:
    """The config in a checkpoint, without the settings of learning."""
    description, _ = read_checkpoint(path)
    do = "act from Python, in your environment: Policy.from_checkpoint(path), with config=config if it asks for it"
    try:
        return config_from_checkpoint(path, description, allow_imports=allow_imports, needed=PLAYING, do=do)
    except CheckpointError as error:
        add_context(error, f"playing {path}:")
        raise


def _made(config: Any, render: bool) -> Any:
    """A vector environment of one, as the runner makes it."""
    if config.env is None:
        do = "act from Python, in an environment of yours: Policy.from_checkpoint(path)"
        raise ConfigError("playing", expected="a run in an environment", found="one that learned from data", do=do)
    env_config = {**config.env_config, "render_mode": "rgb_array"} if render else config.env_config
    make: Any = make_vector_env
    is_vector = config.gym_env_vectorize_mode == "vector_entry_point" and not _is_id(config.env)
    if config.is_multi_agent:
        make = partial(make_vector_multi_agent_env, episode_end=config.episode_end)
    else:
        is_vector = is_vector or makes_vector_env(config.env)  # TensorEnvRunner takes it without the mode
    mode = "vector_entry_point" if is_vector else "sync"
    try:
        return make(config.env, 1, mode, env_config, wrappers=wrappers_of(config, mode))
    except Exception as error:
        if render and "render_mode" in str(error):
            raise _no_frames(config.env, f"{type(error).__name__}: {error}") from error
        raise


def _is_id(env: Any) -> bool:
    """True for an id of Gymnasium's, which makes single environments too."""
    return isinstance(env, str) and env in gym.registry


def _no_frames(name: Any, found: str) -> RunnerError:
    return RunnerError(
        f"environment {str(name)!r}",
        expected="one that renders with render_mode='rgb_array'",
        found=found.replace("\n", "\n            "),
        do="let it take render_mode from its env_config and list 'rgb_array' in metadata['render_modes'], or leave "
        "out --video",
    )


def play(path: Path, count: int, *, video: Path | None = None, **options: Any) -> int:
    """Play episodes, print a table, and write a video if one is wanted.

    Args:
        path: A run's folder, or a checkpoint.
        count: Episodes.
        video: File of the video.
        **options: As for `Player`.

    Returns:
        The process's exit code: 0, `FAILED`, or 130 after Ctrl-C; what was played until then is printed.

    Raises:
        EpibatchError: nothing could be played.
        NotAvailableError: a package is missing that the environment renders with.
    """
    # A video has no sound; where there is no sound card pygame's library would say so at length.
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    console = Console(highlight=False)
    played: list[Episode] = []
    code, report = 0, ""
    with closing(Player(path, render=video is not None, **options)) as player:
        writer = None if video is None else VideoWriter(video, player.fps)
        with nullcontext() if writer is None else closing(writer):
            try:
                for episode in player.episodes(count, None if writer is None else writer.add):
                    played.append(episode)
            except gym.error.DependencyNotInstalled as error:
                raise NotAvailableError(
                    f"environment {player.name!r}",
                    expected="the packages that it plays and renders with",
                    found=str(error),
                    do="install them: pip install 'epibatch[video]' for Gymnasium's own, or as the message says",
                ) from error
            except KeyboardInterrupt:
                code, report = INTERRUPTED, "interrupted"
            except Exception as error:
                if isinstance(error, EpibatchError):
                    add_context(error, f"in episode {len(played) + 1}:")
                code, report = FAILED, error_report(error)
        how = "drawn" if options.get("explore") else "most likely"
        console.print(f"{path}: {player.name}, {how} actions", markup=False)
    if played:
        console.print(_table(played))
    if writer is not None and writer.count:
        console.print(f"video: {video}, {writer.count} frames", markup=False, soft_wrap=True)
    if report:
        Console(stderr=True, highlight=False).print(report, markup=False, soft_wrap=True)
    return code


def _table(played: list[Episode]) -> Table:
    """One row per episode, and the means below."""
    table = Table("episode", box=None, header_style="bold", show_footer=True)
    table.columns[0].footer = "mean"
    mean = np.mean([(episode.value, episode.length) for episode in played], axis=0)
    table.add_column("return", f"{mean[0]:.2f}", justify="right")
    table.add_column("length", f"{mean[1]:.1f}", justify="right")
    table.add_column("ended")
    for number, episode in enumerate(played, 1):
        ended = "terminated" if episode.terminated else "truncated"
        table.add_row(str(number), f"{episode.value:.2f}", str(episode.length), ended)
    return table


def checkpoint_of(run: Path, name: str | None) -> Path:
    """A run's checkpoint by its name, its number or its folder; without one the run itself, which means its newest.

    Args:
        run: The run's folder.
        name: What the user called it.

    Raises:
        CheckpointError: there is none of that name; the message lists those that exist.
    """
    if name is None:
        return run
    saved = SavedCheckpoints(run / CHECKPOINTS)
    path = saved.path_of(int(name)) if name.isdecimal() else run / CHECKPOINTS / name
    names = [saved.path_of(iteration).name for iteration in saved.iterations()]
    if path.exists() or path.name in names:
        return path
    if not Path(name).exists():
        raise CheckpointError(
            f"--checkpoint {name}",
            expected=f"a checkpoint in {run / CHECKPOINTS}, or the path of one",
            found=f"no folder {path}",
            do=f"choose one of {', '.join(names)}" if names else "let the run come to its first save",
        )
    return Path(name)
