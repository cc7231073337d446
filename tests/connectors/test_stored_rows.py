"""Batches of recorded blocks, of lists of several deliveries, and of windows, which lie in the episodes until then."""

from __future__ import annotations

import tracemalloc
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from fixture_cases import slow, slow_but

from epibatch.connectors import ConnectorV2, Piece, learner
from epibatch.connectors.common import (
    AddObservationsFromEpisodesToBatch,
    AddTimeDimToBatchAndZeroPad,
    BatchIndividualItems,
    FrameStacking,
)
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    AddNextObservationsFromEpisodesToTrainBatch,
    AddOneTsToEpisodesAndTruncate,
    ComputeReturnsToGo,
    LearnerConnectorPipeline,
    PrevActionsPrevRewardsLearner,
)
from epibatch.connectors.rewards import NormalizeReward
from epibatch.connectors.views import TrajectoryViews, View
from epibatch.core.rl_module import RLModule
from epibatch.episodes import InfiniteLookbackBuffer, SingleAgentEpisode, VectorEpisodes, VectorRecorder, join_episodes
from fixture_episodes import ENVS, assert_same, sent, shuffled, twins_of
from fixture_pieces import Lab, played


def record(seed: int, autoreset: str = "same_step") -> Any:
    """Yield ("step", running episodes) after each step of a recorder, and ("flush", block) for its deliveries."""
    rng = np.random.default_rng(seed)

    def drawn(*shape: int) -> Any:
        return rng.standard_normal((ENVS, *shape)).astype(np.float32)

    recorder = VectorRecorder(ENVS, Lab.obs_space, Lab.act_space, autoreset=autoreset, capacity=4)
    recorder.reset(drawn(2))
    for _ in range(3):
        for _ in range(int(rng.integers(1, 9))):
            done, cut = rng.random(ENVS) < 0.15, rng.random(ENVS) < 0.1
            done[recorder.waiting] = cut[recorder.waiting] = False
            extras = {"action_logp": drawn(), "state_out": {"h": drawn(2)}}
            finals = drawn(2) if autoreset == "same_step" else None
            actions, rewards = rng.integers(0, 2, ENVS), rng.standard_normal(ENVS)
            recorder.step(actions, rewards, done, cut, drawn(2), extras=extras, final_observations=finals)
            yield "step", recorder.episodes
        yield "flush", recorder.flush(3)


def blocks(seed: int) -> list[Any]:
    return [block for event, block in record(seed) if event == "flush" and len(block)]


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
@pytest.mark.parametrize("seed", [0, slow(1)])
@pytest.mark.parametrize("state", [0, 2])
def test_module_batches(lab, seed, state, autoreset):
    module = lab.module(state=state)
    for event, running in record(seed, autoreset):
        if event == "step":
            expected = lab.run("env_to_module", lab.defaults("env_to_module"), twins_of(running), rl_module=module)
            for episodes in (running, list(running)):
                found = lab.run("env_to_module", lab.defaults("env_to_module"), episodes, rl_module=module)
                assert_same(found, expected)


class ReplacesRewards(ConnectorV2):
    """A plain piece that gives one episode rewards of its own."""

    mutates_episodes = True

    def __call__(self, *, batch, episodes, **kwargs):
        rows = np.arange(len(episodes[1]) + episodes[1].lookback, dtype=np.float64)
        episodes[1].rewards = InfiniteLookbackBuffer(rows, lookback=episodes[1].lookback)
        return batch


def pieces(bootstrap, stacked, replaced):
    return [
        *([ReplacesRewards()] if replaced else []),
        *([AddOneTsToEpisodesAndTruncate()] if bootstrap else []),
        *([FrameStacking(num_frames=3, axis=-1, as_learner_connector=True)] if stacked else []),
        *([] if stacked else [AddObservationsFromEpisodesToBatch(as_learner_connector=True)]),
        AddColumnsFromEpisodesToTrainBatch(),
        *([] if stacked else [AddNextObservationsFromEpisodesToTrainBatch()]),
        AddTimeDimToBatchAndZeroPad(as_learner_connector=True),
        BatchIndividualItems(),
    ]


@pytest.mark.parametrize("bootstrap", [False, True])
@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("replaced", [slow(False), True])
@pytest.mark.parametrize(
    "given",
    [
        lambda first, second: second[-1],
        lambda first, second: list(chain(*first, *second)),
        lambda first, second: shuffled(chain(*first), chain(*second)),
        lambda first, second: join_episodes([*first, *second]),
        lambda first, second: join_episodes(list(map(sent, [*first, *second]))),
        lambda first, second: sent(join_episodes([*first, *second]), range(1, len(first[0]) + 5, 2)),
        lambda first, second: sent(twins_of(chain(*first, *second))),
    ],
    ids=["a block", "one after another", "in turns", "joined", "sent and joined", "a share", "sent one by one"],
)
def test_blocks_and_lists_of_several_deliveries(bootstrap, stacked, replaced, given):
    episodes = given(blocks(0), blocks(1))
    twins = twins_of(episodes)
    pipeline = LearnerConnectorPipeline(Lab.obs_space, None, connectors=pieces(bootstrap, stacked, replaced))
    module = Lab.module(2)
    assert_same(pipeline(rl_module=module, episodes=episodes), pipeline(rl_module=module, episodes=twins))


# -- no episode object is made for built-in pieces ---------------------------------------------------------

LOOKBACK, SEQUENCE = 3, 5
MIXED = [1, 2, SEQUENCE - 2, SEQUENCE - 1, SEQUENCE, SEQUENCE + 1, 2 * SEQUENCE - 1, 2 * SEQUENCE, 3 * SEQUENCE + 2]
LENGTHS = {
    "mixed": [MIXED, MIXED[::-1], [30, 14], [44]],
    "one short among long ones": [[SEQUENCE - 2, 39], [41], [41]],
    "all short": [[SEQUENCE - 2] * 10, [1] * 30, [SEQUENCE - 3, SEQUENCE - 4] * 10],
    "all of one sequence": [[SEQUENCE] * 8, [SEQUENCE] * 8],
    "one step each": [[1] * 6],
}


def lanes(lengths: list[list[int]], going_on: bool, seed: int) -> VectorEpisodes:
    """Chunks of these lengths in each environment, which end with a termination, a truncation or the block."""
    rng, before = np.random.default_rng(seed), LOOKBACK if going_on else 0
    rows, width = before + max(map(sum, lengths)), len(lengths)
    ends = np.zeros((rows, width), np.bool_)
    for env, own in enumerate(lengths):
        ends[before + np.cumsum(own) - 1, env] = True
    ends[-1, -1] = False
    terminateds = ends & (rng.random(ends.shape) < 0.5)

    def drawn(*shape: int) -> Any:
        return rng.random((rows, width, *shape)).astype(np.float32)

    finals = {row: (np.flatnonzero(ends[row]), rng.random((ends[row].sum(), 2)).astype(np.float32))
              for row in np.flatnonzero(ends.any(1)).tolist()}  # fmt: skip
    return VectorEpisodes.from_arrays(
        rng.random((rows + 1, width, 2)).astype(np.float32), rng.integers(0, 2, (rows, width)), drawn(), terminateds,
        ends & ~terminateds, lookback=before, t_started=np.full(width, 9) if going_on else None, name=f"{seed}",
        terminal_observations=finals,
        extra_model_outputs={"action_logp": drawn(), "state_out": {"h": drawn(2)}},
    )  # fmt: skip


PIPELINES: dict[str, dict[str, Any]] = {
    "plain": {},
    "frame stack": {"connectors": [lambda: FrameStacking(num_frames=3, axis=-1)]},
    "pooled frame stack": {"connectors": [lambda: FrameStacking(num_frames=2, axis=-1, max_pool=2, padding="same")]},
    "previous actions": {"connectors": [lambda: PrevActionsPrevRewardsLearner(n_prev_actions=2)], "advantages": False},
    "next observations": {"connectors": [AddNextObservationsFromEpisodesToTrainBatch]},
    "returns": {"connectors": [lambda: ComputeReturnsToGo(gamma=0.9)]},
    "views": {
        "views": {"old": View("obs", "-3:0"), "act": View("actions", [-2, -1]), "next": View("obs", 1),
                  "state": View("state_out/h", -1)}
    },
    "burn in": {"burn_in": True},
    "normalised rewards": {"connectors": [NormalizeReward]},
}  # fmt: skip
MODULES = {
    "stateless": lambda: Lab.module(0),
    "recurrent": lambda: Lab.module(2, SEQUENCE),
    "recurrent, overlap": lambda: Lab.module(2, SEQUENCE, sequence_end="overlap"),
}


def objects_of(episodes: VectorEpisodes) -> int:
    return sum(view is not None for view in episodes.views)


@pytest.mark.parametrize("module", slow_but(["recurrent, overlap"], MODULES))
@pytest.mark.parametrize("name", slow_but(["plain", "pooled frame stack", "burn in"], PIPELINES))
def test_default_learner_pipelines_make_no_episode_object_of_a_block(name, module):
    """Whatever the lengths are, from one block, a part of it, or several; the batch is that of plain episodes."""
    given, network = dict(PIPELINES[name]), MODULES[module]()
    made = [piece() for piece in given.pop("connectors", [])]
    pipeline = learner.default_pipeline(Lab.obs_space, Lab.act_space, connectors=made, **given)
    for lengths in LENGTHS.values():
        for going_on in (False, True):
            first, second = (lanes(order, going_on, seed) for seed, order in enumerate((lengths, lengths[::-1])))
            every_other = first.take(range(len(first))[::-2])
            for episodes in (first, every_other, join_episodes([first, second])):
                twins = twins_of(episodes.take(range(len(episodes))))
                found = pipeline(rl_module=network, batch={}, episodes=episodes)
                assert objects_of(episodes) == 0
                pipeline.reset_state()
                assert_same(found, pipeline(rl_module=network, batch={}, episodes=twins))
                pipeline.reset_state()


def test_a_later_write_to_the_episodes_does_not_reach_the_batch(lab):
    episodes = [lab.episode("a", 5), lab.episode("b", 3)]

    def overwrite(batch, episodes):
        for episode in episodes:
            episode.set_rewards(new_data=np.full(len(episode), 77.0))
            episode.get_observations()[:] = 77

    batch = lab.run("learner", [*lab.defaults("learner")[:2], lab.user(overwrite)], episodes)
    assert batch["rewards"][("a",)][0].tolist() == [0.5, 1.5, 2.5, 3.5, 4.5]
    assert batch["obs"][("b",)][0][:, 0].tolist() == [0, 1, 2]


def test_batches_of_chunks_whose_types_differ_take_the_wider(lab):
    episodes = [lab.episode("b", 3, rewards=[1, 2, 3]), lab.episode("a", 2)]
    rewards = lab.run("learner", lab.defaults("learner", True)[:-2], episodes, rl_module=lab.module())["rewards"]
    assert rewards.dtype == np.float64 and rewards.tolist() == [1, 2, 3, 0, 0.5, 1.5, 0]
    assert isinstance(rewards, np.ndarray) and not torch.is_tensor(rewards)


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("module", [False, True])
def test_float64_is_halved_where_the_next_piece_would_and_nowhere_else(lab, between, module):
    episodes = [lab.episode("a", 2, rewards=[0.1, 1e-300]), lab.episode("b", 3, rewards=[1, 2**60, 3])]
    seen = []
    pieces = lab.defaults("learner")
    if between:
        pieces.insert(-1, lab.user(lambda batch, episodes: seen.append(batch["rewards"].dtype)))
    keywords = {"rl_module": lab.module()} if module else {}
    for given in (episodes, episodes[:1], episodes[1:]):
        rewards = lab.run("learner", pieces, given, **keywords)["rewards"]
        rows = np.concatenate([one.get_rewards() for one in given])
        expected = rows.astype(np.float32) if module and rows.dtype == np.float64 else rows
        assert np.asarray(rewards).dtype == expected.dtype and rewards.tolist() == expected.tolist()
    assert seen == [np.float64, np.float64, np.int64] * between


# -- windows ---------------------------------------------------------------------------------------------

ROWS, WIDTH = 16_384, 64


class Memory(RLModule):
    """A recurrent module."""

    def get_initial_state(self) -> Any:
        return {"h": np.zeros(2, np.float32)}


class Measures(Piece):
    """Ends the measuring of memory."""

    def run(self, columns: Any, group: Any) -> Any:
        self.held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return {}


@pytest.mark.parametrize("recurrent", [False, True])
def test_nothing_is_copied_before_the_batch_is_made(recurrent: bool) -> None:
    """All pieces before the one that batches, or that pads: 210 MB from then on, kilobytes until then."""
    rng, lengths = np.random.default_rng(0), [300] * (ROWS // 300) + [ROWS % 300]
    episodes: list[SingleAgentEpisode] = [
        played(rng.random((n + 1, WIDTH), np.float32), np.zeros(n), id_=f"{i}") for i, n in enumerate(lengths)
    ]
    measures = Measures()
    pieces = [
        TrajectoryViews(views={"window": View("obs", "-50:-1"), "next": View("obs", 1)}, as_learner_connector=True),
        AddObservationsFromEpisodesToBatch(as_learner_connector=True),
        AddColumnsFromEpisodesToTrainBatch(),
        measures,
    ]
    pipeline = LearnerConnectorPipeline(connectors=pieces)
    module = Memory(model_config={"max_seq_len": 20}) if recurrent else None
    tracemalloc.start()
    pipeline(rl_module=module, episodes=episodes)
    assert measures.held < ROWS * WIDTH  # not even a quarter of the observations, and the flags are among it


@pytest.mark.parametrize("shift", [-1, [-3, -1], "-4:1", [0, -2]])
@pytest.mark.parametrize("fill", [None, 7])
def test_windows_padded_for_recurrent_modules(shift: Any, fill: Any) -> None:
    """[B, T, ...] with zeros after a chunk's end, whatever stands before the episode's start."""
    chunks = [played(np.arange(1.0, length + 2)) for length in (5, 1, 3)]
    view = View("obs", shift, fill=fill)
    pieces = [
        TrajectoryViews(views={"x": view}, as_learner_connector=True),
        AddObservationsFromEpisodesToBatch(as_learner_connector=True),
        AddTimeDimToBatchAndZeroPad(as_learner_connector=True),
        BatchIndividualItems(),
    ]
    module = Memory(model_config={"max_seq_len": 4})
    found = LearnerConnectorPipeline(connectors=pieces)(rl_module=module, episodes=chunks)

    def at(chunk: SingleAgentEpisode, t: int) -> float:
        return float(chunk.get_observations(t)) if 0 <= t <= len(chunk) else fill or 0

    expected = []
    for chunk in chunks:
        for t in range(-(-len(chunk) // 4) * 4):
            own = [at(chunk, t + one) if t < len(chunk) else 0 for one in view.shifts]
            expected.append(own[0] if view.is_single else own)
    shape = (4, 4) if view.is_single else (4, 4, len(view.shifts))
    np.testing.assert_array_equal(found["x"], np.reshape(expected, shape))
