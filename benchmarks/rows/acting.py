"""Acting rows: a vector step of N environments through both acting pipelines, without network and environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.columns import Array
from benchmarks.equality import DifferentValuesError, check_same
from benchmarks.floors import vector_step as floor
from benchmarks.floors.frames import FRAMES, push, stacked, stacked_first
from benchmarks.libraries import ACTIONS, box, config, library, library_names, spec
from benchmarks.names import FLOOR, LEANEST, OURS, WITHOUT
from benchmarks.row import Options, Row, Workload, at_most, timed
from benchmarks.timing import Side

STEPS = 6
STATE = 64
BOUNDS = {1: 3, 16: 2.5, 128: 1.7, 1024: 1.4}


@dataclass(frozen=True)
class Task:
    """What there is to do.

    Args:
        num_envs: N.
        state: Size of the two recurrent states; 0: none.
        frames: Whether observations are frames of 84 x 84 bytes, to be stacked by four; else 4 floats.
    """

    num_envs: int
    state: int = 0
    frames: bool = False

    @property
    def space(self) -> Any:
        """Of one observation."""
        return box((84, 84, 1), "uint8") if self.frames else box((4,))

    def observations(self) -> Array:
        """The reset observation and six more of each environment, [7, N, ...]."""
        rng = np.random.default_rng(0)
        shape = (STEPS + 1, self.num_envs, *self.space.shape)
        if self.frames:
            return rng.integers(0, 256, shape, dtype=np.uint8)
        return rng.standard_normal(shape).astype(np.float32)

    def states(self) -> dict[str, Array]:
        """Behind each of the six steps, [6, N, size]."""
        rng = np.random.default_rng(1)
        shape = (STEPS, self.num_envs, self.state)
        return {name: rng.standard_normal(shape).astype(np.float32) for name in ("h", "c") if self.state}

    def outputs(self) -> dict[str, Any]:
        """What the network gives in this step."""
        import torch

        generator = torch.Generator().manual_seed(0)
        lead = (self.num_envs, 1) if self.state else (self.num_envs,)
        found: dict[str, Any] = {"action_dist_inputs": torch.randn(*lead, 2, generator=generator)}
        if self.state:
            size = (self.num_envs, self.state)
            found["state_out"] = {name: torch.randn(*size, generator=generator) for name in ("h", "c")}
        return found


def episode_list(lib: SimpleNamespace, task: Task) -> list[Any]:
    """A list of N running episodes of six steps."""
    observations, states = task.observations(), task.states()
    episodes = []
    for env in range(task.num_envs):
        episode = lib.SingleAgentEpisode(observation_space=task.space, action_space=ACTIONS)
        episode.add_env_reset(observations[0, env], infos={})
        for t in range(STEPS):
            extras: dict[str, Any] = {"action_logp": np.float32(0), "action_dist_inputs": np.zeros(2, np.float32)}
            if states:
                extras["state_out"] = {name: own[t, env] for name, own in states.items()}
            episode.add_env_step(observations[t + 1, env], np.int64(1), 1.0, infos={}, extra_model_outputs=extras)
        episodes.append(episode)
    return episodes


def vector_episodes(lib: SimpleNamespace, task: Task) -> Any:
    """The same as the runner has them: one block."""
    from epibatch.episodes import VectorRecorder

    observations, states, count = task.observations(), task.states(), task.num_envs
    recorder = VectorRecorder(count, task.space, ACTIONS)
    recorder.reset(observations[0])
    nothing = np.zeros(count, np.bool_)
    for t in range(STEPS):
        recorder.commit()
        extras: dict[str, Any] = {"action_logp": np.zeros(count, np.float32)}
        extras["action_dist_inputs"] = np.zeros((count, 2), np.float32)
        if states:
            extras["state_out"] = {name: own[t] for name, own in states.items()}
        recorder.step(np.ones(count, np.int64), np.ones(count), nothing, nothing, observations[t + 1], extras=extras)
    return recorder.episodes


def library_side(
    name: str, task: Task, make: Callable[[SimpleNamespace, Task], Any] = episode_list, identity: bool = False
) -> Side:
    """A library's default acting pipelines.

    Args:
        name: Of the library.
        task: What there is to do.
        make: Makes the running episodes.
        identity: Whether a user's piece that declares and does nothing stands in front.
    """
    lib = library(name)
    settings = config(lib, task.space)
    if task.frames:
        settings = settings.env_runners(
            env_to_module_connector=lambda env, spaces, device=None: lib.FrameStacking(num_frames=FRAMES)
        )
    spaces = {"__env_single__": (task.space, ACTIONS), "__env__": (task.space, ACTIONS)}
    to_module = settings.build_env_to_module_connector(env=None, spaces=spaces)
    to_env = settings.build_module_to_env_connector(env=None, spaces=spaces)
    if identity:
        to_module.prepend(lib.Identity())
    module, outputs = spec(lib, task.space, task.state).build(), task.outputs()
    call = {"rl_module": module, "episodes": make(lib, task), "explore": True}

    def run(_: Any) -> dict[str, Any]:
        shared: dict[str, Any] = {}
        batch = to_module(batch={}, shared_data=shared, **call)
        return {"to_module": batch, "to_env": to_env(batch=dict(outputs), shared_data=shared, **call)}

    return Side(run)


def in_numpy() -> floor.Sample:
    """Draws actions in NumPy."""
    return floor.by_inversion(np.random.Generator(np.random.SFC64(0)))


def floor_side(task: Task, gather: Callable[[Any], Array], sample: floor.Sample | None = None) -> Side:
    """The floor on plain observations and states.

    Args:
        task: What there is to do.
        gather: Makes an array [N, ...] of N rows; `numpy.asarray` if they are one array already.
        sample: Makes actions; in NumPy if None.
    """
    columnar = gather is np.asarray
    newest, last = task.observations()[-1], {name: own[-1] for name, own in task.states().items()}
    observations: Any = newest if columnar else list(newest)
    states = {name: own if columnar else list(own) for name, own in last.items()}
    outputs = task.outputs()
    logits, draw = outputs["action_dist_inputs"], sample or in_numpy()
    if not task.state:
        return Side(lambda _: floor.step(gather(observations), logits, draw))
    given = {"logits": logits, "state_out": outputs["state_out"]}

    def run(_: Any) -> dict[str, Any]:
        into = {name: gather(own) for name, own in states.items()}
        return floor.recurrent_step(gather(observations), into, given, draw)

    return Side(run)


def check(task: Task, outputs: Mapping[str, Any]) -> None:
    """Everything is the same but the actions, which are drawn: their log-probabilities are what the network says."""
    logits = task.outputs()["action_dist_inputs"].reshape(task.num_envs, 2).double().log_softmax(-1).numpy()
    for name, output in outputs.items():
        check_same(outputs[OURS]["to_module"], output["to_module"], whose=name)
        step = _columns(output["to_env"])
        check_same(_columns(outputs[OURS]["to_env"]), step, whose=name, but=DRAWN)
        actions = step["actions"].astype(np.int64)
        if actions.shape != (task.num_envs,) or not np.array_equal(actions, step["actions_for_env"]):
            raise DifferentValuesError(f"{name}: actions of shape {actions.shape}, or others for the environment")
        given = logits[np.arange(task.num_envs), actions]
        if not np.abs(given - step["action_logp"]).max() < 1e-5:
            raise DifferentValuesError(f"{name}: log-probabilities of other actions")


DRAWN = ("actions", "actions_for_env", "action_logp")


def _columns(step: Mapping[str, Any]) -> dict[str, Any]:
    """Lists of one row per environment as arrays."""
    found: dict[str, Any] = {}
    for name, own in step.items():
        if isinstance(own, list) and isinstance(own[0], Mapping):
            own = {key: np.stack([row[key] for row in own]) for key in own[0]}
        found[name] = own if isinstance(own, Mapping) else np.asarray(own)
    return found


def on_lists(options: Options, task: Task) -> Workload:
    """E1 and E2: a list of episodes, and a list of rows for the floor."""
    sides = {name: partial(library_side, name, task) for name in library_names(options)}
    sides[FLOOR] = partial(floor_side, task, floor.stack)
    sides[LEANEST] = partial(floor_side, task, floor.concatenate)
    return Workload(sides, partial(check, task), task.num_envs)


def on_blocks(options: Options, task: Task) -> Workload:
    """E1 and E2 from the runner's episodes; the floor has its observations and states side by side too."""
    sides = {
        OURS: partial(library_side, OURS, task, vector_episodes),
        FLOOR: partial(floor_side, task, np.asarray, floor.by_multinomial),
        LEANEST: partial(floor_side, task, np.asarray),
    }
    return Workload(sides, partial(check, task), task.num_envs)


def behind_a_users_piece(options: Options, task: Task) -> Workload:
    """E1 with a piece that declares and does nothing in front, and without it."""
    sides = {name: partial(library_side, name, task, identity=True) for name in library_names(options)}
    sides[WITHOUT] = partial(library_side, OURS, task)
    sides[FLOOR] = partial(floor_side, task, floor.stack)
    return Workload(sides, partial(check, task), task.num_envs)


def on_frames(options: Options, task: Task) -> Workload:
    """E3."""
    sides = {name: partial(library_side, name, task) for name in library_names(options)}
    sides[f"{FLOOR}: four frames"] = partial(four_frames_side, task)
    sides[f"{FLOOR}: kept words"] = partial(kept_words_side, task)
    sides[f"stack-first {FLOOR}"] = partial(four_frames_side, task, stacked_first)
    return Workload(sides, partial(check, task), task.num_envs)


def four_frames_side(task: Task, stack: Callable[[Any], Array] = stacked) -> Side:
    """The stacks are made of the last four frames of each environment."""
    frames = [list(own) for own in task.observations()[-FRAMES:].swapaxes(0, 1)]
    logits, draw = task.outputs()["action_dist_inputs"], in_numpy()
    return Side(lambda _: floor.step(stack(frames), logits, draw))


def kept_words_side(task: Task) -> Side:
    """The stacks are kept from step to step, as packed words, and a step puts the newest frames on them."""
    history = task.observations()[-FRAMES:, ..., 0]
    words = [np.zeros((84, 84), np.uint32) for _ in range(task.num_envs)]
    top = np.empty((84, 84), np.uint32)
    for frames in history[:-1]:
        for word, frame in zip(words, frames):
            push(word, frame, word, top)
    newest, logits, draw = history[-1], task.outputs()["action_dist_inputs"], in_numpy()

    def run(_: Any) -> dict[str, Any]:
        out = np.empty((task.num_envs, 84, 84), np.uint32)
        for word, frame, place in zip(words, newest, out):
            push(word, frame, place, top)
        return floor.step(out.view(np.uint8).reshape(task.num_envs, 84, 84, FRAMES), logits, draw)

    return Side(run)


_LIST = (
    "eleven pieces and two pipelines take about 30 us of Python and torch calls per step, however many rows there are; "
    "and each of many episodes is asked for its newest rows, which the runner's block is not (VectorEpisodes)"
)


def _rows() -> list[Row]:
    rows = []
    for name, state, what in (("E1", 0, "stateless"), ("E2", STATE, "LSTM of 64")):
        for count, bound in BOUNDS.items():
            task, says = Task(count, state), f"both acting pipelines, {what}, N = {count}"
            rows.append(
                Row(
                    f"{name}/{count}",
                    f"{says}: a list of episodes",
                    timed(partial(on_lists, task=task)),
                    (at_most(bound),),
                    missed=_LIST,
                )
            )
            columnar = (at_most(2),) if count >= 128 else ()
            rows.append(
                Row(f"{name}/{count}/vector", f"{says}: VectorEpisodes", timed(partial(on_blocks, task=task)), columnar)
            )
            if not state:
                measure = timed(partial(behind_a_users_piece, task=task))
                rows.append(
                    Row(
                        f"{name}/{count}/identity",
                        f"{says}: a user's piece in front",
                        measure,
                        (at_most(1.3, WITHOUT),),
                    )
                )
    for count in (8, 64):
        measure = timed(partial(on_frames, task=Task(count, frames=True)))
        rows.append(
            Row(f"E3/{count}", f"both acting pipelines, stacks of 4 frames, N = {count}", measure, (at_most(1.5),))
        )
    return rows


ROW_MAP = _rows()
