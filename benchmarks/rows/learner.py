"""Learner rows: the episodes of an iteration into one train batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from benchmarks.blocks import Block, block, chunks, recorded, sliced
from benchmarks.columns import Episode, episodes
from benchmarks.equality import check_all_same, check_same
from benchmarks.floors import blocks, frames
from benchmarks.floors import learner as floor
from benchmarks.floors.user_loop import count_rewards
from benchmarks.libraries import (
    ACTIONS,
    MAX_SEQ_LEN,
    MODULE,
    box,
    config,
    library,
    library_names,
    rebuilt,
    single_agent_episode,
    spec,
)
from benchmarks.names import FLOOR, OURS, RLLIB, WITHOUT
from benchmarks.row import Options, Row, Workload, at_most, timed
from benchmarks.timing import Side

GAE = {"gamma": 0.99, "lambda_": 0.95}

Change = Callable[[SimpleNamespace, Any], None]


def batch_of(options: Options, **kinds: Any) -> list[Episode]:
    """32,768 steps in 160 episodes."""
    steps, count = (4096, 20) if options.quick else (32_768, 160)
    return episodes(steps, count, **kinds)


def library_side(name: str, columns: Sequence[Episode], kind: str = "float32", change: Change | None = None) -> Side:
    """A library's default learner pipeline on these episodes, made anew for every call.

    Args:
        name: Of the library.
        columns: The episodes' data.
        kind: Of the observations.
        change: Adds pieces to the pipeline.
    """
    import torch

    lib = library(name)
    space = box(columns[0].obs.shape[1:], kind)
    pipeline = config(lib, space).build_learner_connector(space, ACTIONS, device=torch.device("cpu"))
    if change is not None:
        change(lib, pipeline)
    state = columns[0].state["h"].shape[1] if columns[0].state else 0
    module = lib.MultiRLModule(rl_module_specs={MODULE: spec(lib, space, state)})
    fresh = rebuilt([single_agent_episode(lib, i, own, space) for i, own in enumerate(columns)])

    def run(given: Any) -> Any:
        return pipeline(rl_module=module, batch={}, episodes=given, shared_data={})[MODULE]

    return Side(run, fresh)


def workload(options: Options, columns: Sequence[Episode], plain: Callable[..., Any], **how: Any) -> Workload:
    """Both libraries, and the floor on the columns themselves.

    Args:
        options: How to measure.
        columns: The episodes' data.
        plain: Makes the floor's batch of them.
        **how: For `library_side`.
    """
    sides = {name: partial(library_side, name, columns, **how) for name in library_names(options)}
    sides[FLOOR] = partial(Side, lambda _: plain(columns), single=True)
    return Workload(sides, check_all_same, sum(map(len, columns)))


def stateless(options: Options) -> Workload:
    """L1."""
    return workload(options, batch_of(options), floor.stateless)


def recurrent(options: Options) -> Workload:
    """L2."""
    columns = batch_of(options, shape=(64,), state=64)
    return workload(options, columns, partial(floor.recurrent, width=MAX_SEQ_LEN))


def put_identity_in_front(lib: SimpleNamespace, pipeline: Any) -> None:
    """A piece of a user's that declares nothing and does nothing."""
    pipeline.prepend(lib.Identity())


def with_a_users_piece(options: Options, put: Change = put_identity_in_front) -> Workload:
    """L1 with such a piece, and without it."""
    columns = batch_of(options)
    with_piece = workload(options, columns, floor.stateless, change=put)
    return replace(with_piece, sides={**with_piece.sides, WITHOUT: partial(library_side, OURS, columns)})


def put_identity_behind_columns(lib: SimpleNamespace, pipeline: Any) -> None:
    """The same piece where the batch has columns already."""
    pipeline.insert_after("AddColumnsFromEpisodesToTrainBatch", lib.Identity())


def block_of(options: Options) -> Block:
    """16 environments, 2,048 vector steps, episodes of 200 steps on average."""
    return block(256 if options.quick else 2048, 16, mean_length=200)


def from_a_block(options: Options) -> Workload:
    """L1 on what the runner hands over."""
    given = block_of(options)
    sides = {
        OURS: partial(block_side, given),
        f"{FLOOR}: slices": partial(Side, lambda _: blocks.by_slices(given), single=True),
        f"{FLOOR}: gather": partial(Side, lambda _: blocks.by_index(given), single=True),
    }
    return Workload(sides, check_all_same, sum(own.stop - own.start for own in chunks(given)))


def block_side(given: Block) -> Side:
    """The default learner pipeline on the runner's episodes, handed over anew for every call."""
    episodes = recorded(given)
    run = library_side(OURS, sliced(given)[:1]).run
    return Side(run, lambda: episodes.first(len(episodes)))


def frame_stacks(options: Options) -> Workload:
    """L3."""
    steps, count = (512, 4) if options.quick else (4096, 16)
    columns = episodes(steps, count, (84, 84, 1), kind="uint8")
    own = workload(options, columns, partial(_with_stacks, frames.by_slices), kind="uint8", change=put_frames_in_front)
    sides = dict(own.sides)
    sides[f"{FLOOR}: slices"] = sides.pop(FLOOR)
    for name, stacks in ((f"{FLOOR}: packed words", frames.by_packed_words), ("stack-first floor", frames.stack_first)):
        sides[name] = partial(Side, lambda _, stacks=stacks: _with_stacks(stacks, columns), single=True)
    return replace(own, sides=sides)


def _with_stacks(stacks: Callable[..., Any], columns: Sequence[Episode]) -> dict[str, Any]:
    import torch

    return {"obs": torch.from_numpy(stacks(columns)), **floor.without_obs(columns)}


def put_frames_in_front(lib: SimpleNamespace, pipeline: Any) -> None:
    """Stacks of four frames."""
    pipeline.prepend(lib.FrameStacking(num_frames=4, as_learner_connector=True))


def with_advantages(options: Options) -> Workload:
    """L5."""
    own = workload(options, batch_of(options), partial(floor.advantages, **GAE), change=add_advantages)
    return replace(own, check=check_advantages)


def add_advantages(lib: SimpleNamespace, pipeline: Any) -> None:
    """PPO's own two pieces, where its Learner puts them."""
    pipeline.prepend(lib.AddOneTsToEpisodesAndTruncate())
    pipeline.append(lib.GeneralAdvantageEstimation(**GAE))


def check_advantages(outputs: Mapping[str, Any]) -> None:
    """Sums of floats differ by rounding. RLlib differs on the rows without loss, and standardises over them too."""
    rounding = {"advantages": 1e-4, "value_targets": 1e-4}
    check_same(outputs[OURS], outputs[FLOOR], whose=FLOOR, close=rounding)
    if RLLIB in outputs:
        real, theirs = outputs[OURS]["loss_mask"], dict(outputs[RLLIB])
        own = theirs["advantages"][real]
        theirs["advantages"] = outputs[OURS]["advantages"].copy()
        theirs["advantages"][real] = (own - own.mean()) / own.std()
        check_same(outputs[OURS], theirs, whose=RLLIB, rows=real, close={"advantages": 1e-3, "value_targets": 1e-3})


def users_loop(options: Options) -> Workload:
    """L6."""
    return workload(options, batch_of(options, kind="counts"), count_rewards, change=put_count_in_front)


def put_count_in_front(lib: SimpleNamespace, pipeline: Any) -> None:
    """A piece as users write it: a loop over every step, a write per step."""

    class CountRewards(lib.ConnectorV2):  # type: ignore[misc, name-defined]
        def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
            seen: dict[Any, int] = {}
            for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
                rewards = episode.get_rewards()
                for t, observation in enumerate(episode.get_observations(slice(0, len(episode)))):
                    key = tuple(observation)
                    count = seen[key] = seen.get(key, 0) + 1
                    episode.set_rewards(new_data=rewards[t] + 1.0 / count, at_indices=t)
            return batch

    pipeline.prepend(CountRewards())


ROW_MAP = [
    Row(
        "L1",
        "learner, stateless: 32,768 steps in 160 episodes",
        timed(stateless),
        (at_most(2),),
        missed="called again at once it takes 1.0 ms: behind a garbage collection most of the time goes into fetching "
        "160 episodes and their 1,000 columns from memory, object by object; the runner's episodes, which lie in one "
        "block, do not have this (L1/vector)",
    ),
    Row(
        "L1/identity",
        "L1 behind a user's piece that declares and does nothing",
        timed(with_a_users_piece),
        (at_most(1.3, WITHOUT),),
    ),
    Row(
        "L1p",
        "L1 with a user's piece behind AddColumns that declares and does nothing",
        timed(partial(with_a_users_piece, put=put_identity_behind_columns)),
        (at_most(3, WITHOUT),),
        missed="the piece is shown every column as rows by episode, since nothing says what it reads, and what it "
        "leaves is gathered again",
    ),
    Row(
        "L1/vector",
        "L1 from the runner's VectorEpisodes: 16 environments, 2,048 vector steps",
        timed(from_a_block),
        (at_most(2),),
    ),
    Row(
        "L2",
        "learner, LSTM of 64, sequences of 20: 32,768 steps",
        timed(recurrent),
        (at_most(1.6),),
    ),
    Row(
        "L3",
        "learner, stacks of 4 frames of 84 x 84 bytes: 4,096 steps",
        timed(frame_stacks),
        (at_most(1.3),),
    ),
    Row(
        "L5",
        "learner, PPO: bootstrap rows, values, advantages: 32,768 steps",
        timed(with_advantages),
        (at_most(1.5),),
    ),
    Row(
        "L6",
        "L1 behind a user's loop over every step with set_rewards",
        timed(users_loop),
        (at_most(1.4),),
    ),
]
