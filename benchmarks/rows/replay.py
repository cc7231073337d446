"""Replay rows: steps of 16 environments into a buffer, and parts of episodes out of it, as tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import cycle
from time import process_time
from typing import Any

import numpy as np

from benchmarks.checks import DifferentValuesError
from benchmarks.floors import replay as floor
from benchmarks.libraries import ACTIONS, Setup, box, library
from benchmarks.row import FLOOR, OURS, Options, Row, Timed, Workload, at_most
from benchmarks.timing import Side
from benchmarks.workloads import Stream, stream

ENVS, ITEMS, SEQUENCES, LENGTH, N_STEP, FRAMES, DELIVERY = 16, 256, 32, 80, 3, 4, 16
VECTOR, IMAGE = 100_000, 20_000
LARGE = 1_000_000


def steps_of(options: Options, capacity: int = VECTOR, **kinds: Any) -> tuple[Stream, list[Stream]]:
    """Return the steps that fill a buffer, and deliveries of 16 vector steps each that follow them."""
    rows = (4_000 if options.quick else capacity) // ENVS
    made = stream(rows + 64 * DELIVERY, ENVS, mean_length=150, **kinds)
    return made[slice(0, rows)], [made[slice(at, at + DELIVERY)] for at in range(rows, rows + 64 * DELIVERY, DELIVERY)]


def as_episodes(steps: Stream, numbers: Any = None) -> Any:
    """Return the vector steps as a runner gives them.

    Args:
        steps: They may go on with running episodes.
        numbers: Episodes of each environment that ended before: int64 [N].
    """
    from epibatch.episodes import VectorEpisodes

    tails = {
        row: (envs, steps.last_obs[row][envs]) for row in range(len(steps.actions)) for envs in [_ended(steps, row)]
    }
    after = {name: np.concatenate([column[1:], column[:1]]) for name, column in steps.state.items()}
    return VectorEpisodes.from_arrays(
        steps.obs,
        steps.actions,
        steps.rewards,
        steps.terminateds,
        steps.ended & ~steps.terminateds,
        extra_model_outputs={"state_out": after} if after else None,
        terminal_observations={row: tail for row, tail in tails.items() if len(tail[0])},
        t_started=steps.t[0],
        name="run",
        numbers=numbers,
    )


def _ended(steps: Stream, row: int) -> Any:
    return np.flatnonzero(steps.ended[row])


def our_side(first: Stream, more: list[Stream], job: str, capacity: int) -> Side:
    """Return epibatch: a buffer that is full, and what is done with it."""
    from epibatch.connectors.common import FrameStacking
    from epibatch.connectors.learner import AddNextObservationsFromEpisodesToTrainBatch, default_pipeline
    from epibatch.connectors.replay import NStepReturns
    from epibatch.episodes.replay import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer

    options = {"capacity": capacity, "kept_outputs": ("state_out",) if first.state else (), "seed": 3}
    buffer: Any = EpisodeReplayBuffer(**options)
    if job == "prioritised":
        buffer = PrioritizedEpisodeReplayBuffer(alpha=floor.ALPHA, **options)
    numbers, deliveries = first.ended.sum(0), []
    buffer.add(as_episodes(first))
    for each in more:
        deliveries.append(as_episodes(each, numbers))
        numbers = numbers + each.ended.sum(0)
    setup = Setup(box(first.obs.shape[2:], str(first.obs.dtype)), state=64 if first.state else 0, max_seq_len=LENGTH)
    module = setup.spec(library(OURS)).build()
    pipeline = default_pipeline(setup.space, ACTIONS, advantages=False)
    after = "AddObservationsFromEpisodesToBatch"
    if job == "n-step":
        pipeline.insert_before(after, NStepReturns(n_step=N_STEP, gamma=floor.GAMMA))
    elif job != "sequences":
        pipeline.insert_after(after, AddNextObservationsFromEpisodesToTrainBatch())
    if first.obs.dtype == np.uint8:
        pipeline.prepend(FrameStacking(num_frames=FRAMES, new_axis=True, as_learner_connector=True))
    rng, following = np.random.default_rng(4), cycle(deliveries)

    def batch(count: int, **how: Any) -> Any:
        return pipeline(rl_module=module, batch={}, episodes=buffer.sample(count, **how), shared_data={})

    def draw_and_update() -> Any:
        made = batch(ITEMS, beta=floor.BETA)
        buffer.update_priorities(rng.random(ITEMS) + 0.1)
        return made

    jobs: dict[str, Callable[[], Any]] = {
        "add": lambda: buffer.add(next(following)),
        "sequences": lambda: batch(SEQUENCES, batch_length_T=LENGTH),
        "prioritised": draw_and_update,
    }
    draw = partial(batch, ITEMS, lookback=FRAMES - 1) if first.obs.dtype == np.uint8 else partial(batch, ITEMS)
    run = jobs.get(job, draw)
    show = (lambda _: draw()) if job == "add" else dict
    return Side(lambda _: run(), show=show, clock=process_time)


def floor_side(first: Stream, more: list[Stream], job: str, capacity: int) -> Side:
    """Return the ring written by hand."""
    following = cycle(more)
    if first.obs.dtype == np.uint8:
        frames = floor.Frames(first, int(capacity // ENVS * 1.02))
        outputs = frames.outputs(ITEMS, FRAMES)
        draw = partial(frames.steps, ITEMS, FRAMES, outputs)
        add: Callable[[Stream], None] = frames.add
    else:
        ring: Any = floor.Prioritized(first) if job == "prioritised" else floor.Ring(first)
        jobs: dict[str, Callable[[], Any]] = {
            "n-step": lambda: ring.several_steps(ITEMS, N_STEP),
            "sequences": lambda: ring.sequences(SEQUENCES, LENGTH),
            "prioritised": lambda: ring.draw_and_update(ITEMS),
        }
        draw, add = jobs.get(job, lambda: ring.steps(ITEMS)), ring.add
    if job == "add":
        return Side(lambda _: add(next(following)), show=lambda _: draw(), clock=process_time)
    return Side(lambda _: draw(), show=dict, clock=process_time)


def check_drawn(steps: Stream, held: int, job: str, outputs: Mapping[str, Any]) -> None:
    """Check by a loop that what each side drew are steps of the stream, with what follows from the definition.

    Args:
        steps: The stream.
        held: Vector steps that a buffer had got when several steps in a row were drawn.
        job: What was drawn.
        outputs: Of each side.

    Raises:
        DifferentValuesError: a row that is none, or is another one.
    """
    ended = steps.ended
    rows = {_key(frame): (t, env) for t, row in enumerate(steps.obs[:-1]) for env, frame in enumerate(row)}
    n_step, length = (N_STEP if job == "n-step" else 1), (LENGTH if job == "sequences" else 1)
    for side, batch in outputs.items():
        columns = {name: np.asarray(column) for name, column in batch.items() if name != "state_in"}
        if length == 1:
            columns = {name: column[:, None] for name, column in columns.items()}
        for i, row in enumerate(columns["obs"]):
            t, env = rows.get(_key(row[0][-1] if steps.obs.dtype == np.uint8 else row[0]), (0, 0))
            for k in range(length):
                fits = columns["actions"][i, k] == steps.actions[t, env]
                fits &= bool((row[k] == _seen(steps, t, env)).all())
                last = next(
                    (t + j for j in range(n_step) if ended[t + j, env]), min(t + n_step, held) - 1 if n_step > 1 else t
                )
                sums = sum(floor.GAMMA ** (u - t) * steps.rewards[u, env] for u in range(t, last + 1))
                fits &= abs(columns["rewards"][i, k] - sums) < 1e-4
                fits &= columns["terminateds"][i, k] == steps.terminateds[last, env]
                if "new_obs" in columns:
                    fits &= bool((columns["new_obs"][i, k] == _seen(steps, last, env, after=1)).all())
                if not fits:
                    raise DifferentValuesError(f"{side}, row {i}: not what follows step {t} of environment {env}")
                t += 1
                if ended[t - 1, env] or t == held:
                    break


def _seen(steps: Stream, t: int, env: int, after: int = 0) -> Any:
    """The observation before a step, or after it: of images a stack, with zeros before the episode's start."""
    newest = steps.last_obs[t, env] if after and steps.ended[t, env] else steps.obs[t + after, env]
    if newest.dtype != np.uint8:
        return newest
    ages = range(FRAMES - 1, 0, -1)
    have = steps.t[t, env] + after
    return np.stack([*(steps.obs[t + after - age, env] * (age <= have) for age in ages), newest])


def _key(frame: Any) -> bytes:
    return np.ascontiguousarray(frame).tobytes()[:16]


def replay(options: Options, job: str, capacity: int = VECTOR, **kinds: Any) -> Workload:
    """B1 to B7."""
    first, more = steps_of(options, capacity, **kinds)
    capacity = first.actions.size * 102 // 100  # episodes have a row more than steps
    sides = {name: partial(make, first, more, job, capacity) for name, make in SIDES.items()}
    whole = stream(len(first.actions) + 64 * DELIVERY, ENVS, mean_length=150, **kinds)
    return Workload(sides, partial(check_drawn, whole, len(first.actions), job))


SIDES = {OURS: our_side, FLOOR: floor_side}
IMAGES = {"shape": (84, 84), "capacity": IMAGE}


_DRAW = "a draw and its pipeline make about 490 calls, whatever the number of rows; the floor makes about ten"
_ADD = "sixteen chunks are added, each with an episode of its own to look up; the floor writes whole vector steps"
_NEW = "every batch is in new arrays of 7 MB, whose pages have to be mapped; the floor uses two pairs in turn"

ROWS = [
    Row(name, what, Timed(partial(replay, job=job, **kinds)), (at_most(bound),), missed=reason)
    for name, what, job, kinds, bound, reason in (
        ("B1", "256 steps of 16 environments into a buffer of 100,000", "add", {}, 1.5, _ADD),
        ("B1/million", "the same into a buffer of a million", "add", {"capacity": LARGE}, 1.5, _ADD),
        ("B2", "256 steps drawn, with next observations", "steps", {}, 3, _DRAW),
        ("B2/million", "the same from a buffer of a million", "steps", {"capacity": LARGE}, 3, _DRAW),
        ("B3", "256 rows of 3 steps", "n-step", {}, 2.5, _DRAW),
        ("B4", "32 sequences of 80 steps with the recurrent state before each", "sequences", {"state": 64}, 2.5, _DRAW),
        ("B5", "256 steps drawn by priority, and new priorities", "prioritised", {}, 1.6, _DRAW),
        ("B6", "256 frames of 84 x 84 bytes into a buffer of 20,000", "add", IMAGES, 1.3, _ADD),
        ("B7", "256 steps drawn, with stacks of 4 frames before and after", "steps", IMAGES, 1.1, _NEW),
    )
]
