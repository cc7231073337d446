"""The profile of pieces: what is counted, whose seconds they are, and that nothing is measured without one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from epibatch.connectors import ConnectorV2, profile_pipelines
from epibatch.connectors.common import AddObservationsFromEpisodesToBatch, BatchIndividualItems
from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.connectors.learner import LearnerConnectorPipeline
from epibatch.connectors.views import TrajectoryViews, View
from epibatch.core.errors import PipelineError
from epibatch.core.spaces import BatchedNdArray
from fixture_pieces import Lab, Spy, UserPiece

CLOCK = "epibatch.connectors._engine.run.perf_counter"


class Clock:
    """Stands still unless somebody says that time passes."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Works(ConnectorV2):
    """Takes `seconds` of a clock."""

    def __init__(self, clock=None, seconds=0.0, **kwargs):
        super().__init__(**kwargs)
        self.clock, self.seconds = clock, seconds

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        self.clock.now += self.seconds
        return batch


class Other(Works):
    """The same under another name."""


def fails(batch, episodes):
    raise KeyError("here")


class SlowWatch:
    """Takes time itself."""

    def __init__(self, clock):
        self.clock, self.seconds, self.whole = clock, [], []

    def stepped(self, step, seconds, batch):
        self.clock.now += 50.0
        self.seconds.append(seconds)

    def finished(self, seconds):
        self.whole.append(seconds)


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(CLOCK, made)
    return made


def episodes(*lengths):
    return [Lab.episode(f"e{i}", length) for i, length in enumerate(lengths)]


def test_rows_and_bytes_of_a_train_batch():
    """27 steps: observations of 8 bytes, actions of 8, rewards of 8 (4 in the batch), two flags, a number of 4."""
    add, columns, _, _, *batching = Lab.defaults("learner")
    pipeline = LearnerConnectorPipeline(connectors=[add, columns, *batching])
    with pipeline.profile() as profile:
        batch = pipeline(rl_module=Lab.module(), episodes=episodes(20, 7))
    costs = profile.rows()
    assert [cost.piece for cost in costs] == pipeline.names
    assert [cost.rows for cost in costs] == [27] * 4
    arrays = 27 * (2 * 4 + 8 + 8 + 1 + 1 + 4)
    batched = arrays - 27 * 4
    assert [cost.bytes for cost in costs] == [27 * 8, arrays, batched, batched]
    assert costs[-1].bytes == sum(tensor.element_size() * tensor.nelement() for tensor in batch.values())


def test_rows_and_bytes_of_windows():
    views = TrajectoryViews(views={"window": View("obs", "-2:0")}, as_learner_connector=True)
    pipeline = LearnerConnectorPipeline(connectors=[views, BatchIndividualItems()])
    with pipeline.profile() as profile:
        assert pipeline(episodes=episodes(20, 7))["window"].shape == (27, 3, 2)
    assert [(cost.rows, cost.bytes) for cost in profile.rows()] == [(27, 27 * 3 * 8)] * 2


@pytest.mark.parametrize(
    ("batch", "rows", "size"),
    [
        ({}, 0, 0),
        ({"a": np.zeros((3, 2))}, 3, 48),
        ({"a": torch.zeros(3, 2)}, 3, 24),
        ({"a": np.float64(1)}, 0, 8),
        ({"a": {"x": np.zeros(2), "y": (np.zeros(5, np.int8),)}}, 5, 21),
        ({"default_policy": {"obs": torch.zeros(4, 1), "infos": [{}] * 4}}, 4, 16),
        ({"a": {("e0",): [np.zeros(2), np.zeros(2)], ("e1",): [np.zeros(2)]}}, 3, 48),
        ({"a": {("e0",): [BatchedNdArray(np.zeros((5, 2)))], ("e1",): []}}, 5, 80),
        ({"a": {("e0",): [{"x": BatchedNdArray(np.zeros(4)), "y": BatchedNdArray(np.zeros((4, 2)))}]}}, 4, 96),
        ({"a": {("e0",): [{"x": np.zeros(4), "y": 1.0}]}, "b": [np.float32(1), None]}, 2, 36),
    ],
)
def test_rows_and_bytes_of_every_layout(batch, rows, size):
    pipeline = EnvToModulePipeline(connectors=[Spy(), Spy()])
    with pipeline.profile() as profile:
        pipeline(batch=batch, episodes=episodes(0, 0))
    assert [(cost.rows, cost.bytes) for cost in profile.rows()] == [(rows, size)] * 2


def test_calls_seconds_and_shares(clock):
    pipeline = EnvToModulePipeline(connectors=[Works(clock, 0.5), Other(clock, 1.5), Works(clock, 0.0)])
    with pipeline.profile() as profile:
        assert profile.rows() == []
        for _ in range(3):
            pipeline(episodes=episodes(0))
    pipeline(episodes=episodes(0))
    costs = profile.rows()
    assert [(cost.piece, cost.calls, cost.seconds, cost.share) for cost in costs] == [
        ("works", 3, 1.5, 0.25),
        ("other", 3, 4.5, 0.75),
        ("works_1", 3, 0.0, 0.0),
    ]
    assert {cost.pipeline for cost in costs} == {"env_to_module_pipeline"}


def test_what_watches_take_themselves_is_nobodys(clock):
    pipeline = EnvToModulePipeline(connectors=[Works(clock, 1.0), Works(clock, 2.0)])
    pipeline.watch = slow = SlowWatch(clock)
    with pipeline.profile() as profile:
        pipeline(episodes=episodes(0))
    assert [cost.seconds for cost in profile.rows()] == slow.seconds == [1.0, 2.0]
    assert slow.whole == [3.0]


def test_without_a_profile_no_clock_is_read(monkeypatch):
    pipeline = EnvToModulePipeline(connectors=[AddObservationsFromEpisodesToBatch()])
    with pipeline.profile():
        pass
    monkeypatch.setattr(CLOCK, None)
    pipeline(episodes=episodes(0))
    with pipeline.profile(), pytest.raises(TypeError):
        pipeline(episodes=episodes(0))
    pipeline(episodes=episodes(0))


def test_an_error_inside_ends_the_profile_and_counts_what_ran(clock, monkeypatch):
    pipeline = EnvToModulePipeline(connectors=[Works(clock, 1.0), UserPiece(fails)])
    with pytest.raises(KeyError), pipeline.profile() as profile:
        pipeline(episodes=episodes(0))
    assert [(cost.piece, cost.calls, cost.share) for cost in profile.rows()] == [("works", 1, 1.0)]
    monkeypatch.setattr(CLOCK, None)
    with pytest.raises(KeyError):
        pipeline(episodes=episodes(0))
    assert [cost.calls for cost in profile.rows()] == [1]


def test_several_at_once_that_end_in_any_order(clock):
    pipeline = EnvToModulePipeline(connectors=[Works(clock, 1.0)])
    pipeline.watch = notes = SlowWatch(clock)
    first, second = pipeline.profile(), pipeline.profile()
    one = first.__enter__()
    pipeline(episodes=episodes(0))
    two = second.__enter__()
    pipeline(episodes=episodes(0))
    first.__exit__(None, None, None)
    pipeline(episodes=episodes(0))
    second.__exit__(None, None, None)
    pipeline(episodes=episodes(0))
    assert [profile.rows()[0].calls for profile in (one, two)] == [2, 2]
    assert notes.seconds == [1.0] * 4


def test_nested_pipelines(clock):
    """The outer one sees every piece, the inner one its own under its own names, also when it runs by itself."""
    inner = EnvToModulePipeline(connectors=[Works(clock, 2.0)])
    outer = EnvToModulePipeline(
        connectors=[Works(clock, 1.0), EnvToModulePipeline(connectors=[Other(clock, 4.0), inner])]
    )
    inner.watch = whole = SlowWatch(clock)
    with outer.profile() as of_all, inner.profile() as own:
        outer(episodes=episodes(0))
        outer(episodes=episodes(0))
        inner(episodes=episodes(0))
    assert [(cost.piece, cost.calls, cost.seconds) for cost in of_all.rows()] == [
        ("works", 2, 2.0),
        ("other", 2, 8.0),
        ("works_1", 2, 4.0),
    ]
    assert [(cost.piece, cost.calls, cost.seconds) for cost in own.rows()] == [("works", 3, 6.0)]
    assert whole.whole == [2.0, 2.0, 2.0]


def test_several_pipelines_share_one_profile(clock):
    acting = EnvToModulePipeline(connectors=[Works(clock, 1.0)])
    learning = LearnerConnectorPipeline(connectors=[Works(clock, 3.0)])
    with profile_pipelines({"acting": acting, "learning": learning}) as profile:
        acting(episodes=episodes(0))
        learning(episodes=episodes(2))
    assert [(cost.pipeline, cost.share) for cost in profile.rows()] == [("acting", 0.25), ("learning", 0.75)]
    lines = [line.split() for line in str(profile).splitlines()]
    assert lines[0] == ["pipeline", "piece", "calls", "seconds", "us/call", "share", "rows/call", "bytes/call"]
    assert lines[2] == ["learning", "works", "1", "3.0000", "3000000.0", "75.0%", "0", "0"]


def test_the_table_of_one_pipeline(clock):
    class Adds(Works):
        def __call__(self, *, rl_module, batch, episodes, **kwargs):
            self.clock.now += 0.25
            return {"mine": np.zeros((len(episodes), 2))}

    pipeline = EnvToModulePipeline(connectors=[Adds(clock)])
    with pipeline.profile() as profile:
        pipeline(episodes=episodes(0, 0, 0))
        pipeline(episodes=episodes(0))
    assert str(profile) == (
        "piece  calls  seconds   us/call   share  rows/call  bytes/call\n"
        "adds       2   0.5000  250000.0  100.0%          2          32"
    )


def test_a_profile_that_nobody_opened_says_so() -> None:
    pipeline = EnvToModulePipeline(connectors=[AddObservationsFromEpisodesToBatch()])
    profile = pipeline.profile()
    assert str(profile) == repr(profile) == "PipelineProfile(never opened)"
    with pytest.raises(PipelineError, match=r"with pipeline\.profile\(\) as profile"):
        profile.rows()
    with profile:
        pass
    assert profile.rows() == [] and str(profile) == "no piece ran while the profile was open"
    for wrong in (pipeline, [pipeline], {"env_to_module": 3}):
        with pytest.raises(PipelineError, match=r"algo\.pipelines"):
            profile_pipelines(wrong)
