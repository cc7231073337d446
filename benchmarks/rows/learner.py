"""Learner rows: the episodes of an iteration into one train batch, of one agent and of several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from benchmarks.checks import check_all_same, check_same
from benchmarks.floors import learner as floor
from benchmarks.libraries import MAX_SEQ_LEN, MODULE, Setup, box, library, library_names, rebuilt, recorder_of, sent
from benchmarks.row import FLOOR, OURS, RLLIB, WITHOUT, Options, Row, Target, Timed, Workload, at_most
from benchmarks.rows.acting import in_order
from benchmarks.rows.kernels import GAE
from benchmarks.timing import Side
from benchmarks.workloads import Block, block, drawn, episodes, in_modules, module_of, of_agents

Change = Callable[[SimpleNamespace, Any], None]


def batch_of(options: Options, **kinds: Any) -> list[Any]:
    """Return 32,768 steps in 160 episodes."""
    return episodes(*((4096, 20) if options.quick else (32_768, 160)), **kinds)


def library_side(
    name: str, columns: Sequence[Any], setup: Setup | None = None, change: Change | None = None, pickled: bool = False
) -> Side:
    """Return a library's default learner pipeline on these episodes, which are new for every call.

    Args:
        name: Of the library.
        columns: The episodes' data.
        setup: Spaces, network and episodes.
        change: Adds pieces to the pipeline.
        pickled: Each episode comes from another process, with spaces of its own for each agent.
    """
    import torch

    lib, setup = library(name), setup or Setup()
    pipeline = setup.config(lib).build_learner_connector(*setup.spaces(), device=torch.device("cpu"))
    if change is not None:
        change(lib, pipeline)
    module = setup.modules(lib)
    made = [setup.episode(lib, each, shared=not pickled).to_numpy() for each in columns]
    prepare = sent(made) if pickled else rebuilt(made)
    order = in_modules(list(prepare()[0].agent_ids)) if setup.agents else {}

    def run(given: Any) -> Any:
        return pipeline(rl_module=module, batch={}, episodes=given, shared_data={})

    def show(batch: Mapping[str, Any]) -> dict[str, Any]:
        if not setup.agents:
            return dict(batch[MODULE])
        return {name: in_order(own, name, order, len(columns)) for name, own in batch.items()}

    return Side(run, prepare, show=show)


def workload(
    options: Options, columns: Sequence[Any], plain: Callable[..., Any], check: Any = check_all_same, **how: Any
) -> Workload:
    """Return both libraries, and the floor on the columns themselves.

    Args:
        options: How to measure.
        columns: The episodes' data.
        plain: Makes the floor's batch of them.
        check: Compares the outputs.
        **how: For `library_side`.
    """
    sides = {name: partial(library_side, name, columns, **how) for name in library_names(options)}
    return Workload({**sides, FLOOR: partial(floor_side, plain, columns)}, check)


def floor_side(plain: Callable[..., Any], columns: Any) -> Side:
    """Return the floor on columns."""
    return Side(lambda _: plain(columns), single=True)


def stateless(options: Options) -> Workload:
    """L1."""
    return workload(options, batch_of(options), floor.stateless)


def recurrent(options: Options) -> Workload:
    """L2."""
    columns = batch_of(options, shape=(64,), state=64)
    return workload(options, columns, partial(floor.recurrent, width=MAX_SEQ_LEN), setup=RECURRENT)


RECURRENT = Setup(box((64,)), state=64)


def with_a_users_piece(options: Options, change: Change) -> Workload:
    """L1 with a piece that declares nothing and does nothing, and without it."""
    columns = batch_of(options)
    both = workload(options, columns, floor.stateless, change=change)
    return Workload({**both.sides, WITHOUT: partial(library_side, OURS, columns)}, both.check)


def identity_first(lib: SimpleNamespace, pipeline: Any) -> None:
    """Put the piece first."""
    pipeline.prepend(lib.Identity())


def identity_after_columns(lib: SimpleNamespace, pipeline: Any) -> None:
    """Put the piece where the batch has columns already."""
    pipeline.insert_after("AddColumnsFromEpisodesToTrainBatch", lib.Identity())


def from_a_block(options: Options) -> Workload:
    """L1 on what the runner returns: 16 environments, 2,048 vector steps, episodes of 200 steps on average."""
    columns = block(256 if options.quick else 2048, 16, mean_length=200)
    sides = {OURS: partial(block_side, columns), FLOOR: partial(floor_side, floor.from_block, columns)}
    return Workload(sides, check_all_same)


def recurrent_from_a_block(options: Options) -> Workload:
    """L2 on what the runner returns as training begins: 128 environments, 256 vector steps, most episodes short."""
    columns = block(64 if options.quick else 256, 128, mean_length=30, shape=RECURRENT.space.shape, state=64)
    plain = partial(floor.recurrent_from_block, width=MAX_SEQ_LEN)
    sides = {OURS: partial(block_side, columns, RECURRENT), FLOOR: partial(floor_side, plain, columns)}
    return Workload(sides, check_all_same)


def block_side(columns: Block, setup: Setup | None = None) -> Side:
    """Return the default learner pipeline on the runner's episodes, which are new for every call."""
    import numpy as np

    recorder = recorder_of(columns, box(columns.obs.shape[2:]))
    recorder.commit()
    flushed, setup = recorder.flush(0), setup or Setup()
    example = drawn(np.random.default_rng(0), 8, shape=columns.obs.shape[2:], state=setup.state)
    side = library_side(OURS, [example], setup)
    return Side(side.run, lambda: flushed.first(len(flushed)), show=side.show)


def frame_stacks(options: Options) -> Workload:
    """L3."""
    columns = frames(*((512, 4) if options.quick else (4096, 16)))
    return workload(options, columns, floor.stacked, setup=FRAMES, change=stack_frames)


FRAMES = Setup(box((84, 84, 1), "uint8"))


def frames(steps: int, count: int) -> list[Any]:
    """Return episodes of frames."""
    return episodes(steps, count, (84, 84, 1), kind="uint8")


def stack_frames(lib: SimpleNamespace, pipeline: Any) -> None:
    """Put stacks of four frames first."""
    pipeline.prepend(lib.FrameStacking(num_frames=floor.FRAMES, as_learner_connector=True))


def with_advantages(options: Options) -> Workload:
    """L5."""
    plain = partial(floor.advantages, **GAE)
    return workload(options, batch_of(options), plain, check_advantages, change=add_advantages)


def add_advantages(lib: SimpleNamespace, pipeline: Any) -> None:
    """Add PPO's own two pieces, where its Learner puts them."""
    pipeline.prepend(lib.AddOneTsToEpisodesAndTruncate())
    pipeline.append(lib.GeneralAdvantageEstimation(**GAE))


def check_advantages(outputs: Mapping[str, Any]) -> None:
    """Allow rounding of sums, and what RLlib does to the rows without loss: it standardises over them too."""
    rounding = {"advantages": 1e-4, "value_targets": 1e-4}
    check_same(outputs[OURS], outputs[FLOOR], whose=FLOOR, close=rounding)
    if RLLIB in outputs:
        real, theirs = outputs[OURS]["loss_mask"], dict(outputs[RLLIB])
        raw = theirs["advantages"][real]
        theirs["advantages"] = outputs[OURS]["advantages"].copy()
        theirs["advantages"][real] = (raw - raw.mean()) / raw.std()
        check_same(outputs[OURS], theirs, whose=RLLIB, rows=real, close={"advantages": 1e-3, "value_targets": 1e-3})


def users_loop(options: Options) -> Workload:
    """L6."""
    return workload(options, batch_of(options, kind="counts"), floor.with_counts, change=count_rewards_first)


def count_rewards_first(lib: SimpleNamespace, pipeline: Any) -> None:
    """Put a piece first as users write it: a loop over every step, a write per step."""

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


def eight_agents(options: Options, pickled: bool = False) -> Workload:
    """L4."""
    columns = of_agents(4, 50) if options.quick else of_agents(32, 200)
    rows: dict[str, list[Any]] = {}
    for episode in columns:
        for agent, own in episode.items():
            rows.setdefault(module_of(agent), []).append(own)

    def plain(_: Any) -> dict[str, Any]:
        return {module: floor.stateless(own) for module, own in rows.items()}

    return workload(options, columns, plain, setup=Setup(agents=True), pickled=pickled)


def _row(name: str, what: str, build: Callable[[Options], Workload], target: Target, missed: str = "") -> Row:
    return Row(name, what, Timed(build), (target,), missed)


_L4 = "learner, 8 agents, 3 modules: 32 episodes of 200 steps"
_L4_MISSED = "a part of an episode is looked at once for each column: 256 of them, six columns each"

ROWS = [
    _row(
        "L1",
        "learner, stateless: 32,768 steps in 160 episodes",
        stateless,
        at_most(2),
        "called again at once it takes 1.0 ms: behind a garbage collection most of the time goes into fetching "
        "160 episodes and their 1,000 columns from memory, object by object; the runner's episodes, which lie in one "
        "block, do not have this (L1/vector)",
    ),
    _row(
        "L1/identity",
        "L1 behind a user's piece that declares and does nothing",
        partial(with_a_users_piece, change=identity_first),
        at_most(1.3, WITHOUT),
    ),
    _row(
        "L1p",
        "L1 with a user's piece behind AddColumns that declares and does nothing",
        partial(with_a_users_piece, change=identity_after_columns),
        at_most(3, WITHOUT),
        "the piece is shown every column as rows by episode, since nothing says what it reads, and what it "
        "leaves is gathered again",
    ),
    _row(
        "L1/vector",
        "L1 from the runner's VectorEpisodes: 16 environments, 2,048 vector steps",
        from_a_block,
        at_most(2),
    ),
    _row("L2", "learner, LSTM of 64, sequences of 20: 32,768 steps", recurrent, at_most(1.6)),
    _row(
        "L2/vector",
        "L2 from the runner's VectorEpisodes: 128 environments, 256 vector steps, episodes of 30 steps",
        recurrent_from_a_block,
        at_most(2),
    ),
    _row("L3", "learner, stacks of 4 frames of 84 x 84 bytes: 4,096 steps", frame_stacks, at_most(1.3)),
    _row("L5", "learner, PPO: bootstrap rows, values, advantages: 32,768 steps", with_advantages, at_most(1.5)),
    _row("L6", "L1 behind a user's loop over every step with set_rewards", users_loop, at_most(1.4)),
    _row("L4", _L4, eight_agents, at_most(2), _L4_MISSED),
    _row(
        "L4/pickled",
        f"{_L4}; each episode from another process",
        partial(eight_agents, pickled=True),
        at_most(2),
        _L4_MISSED,
    ),
]
