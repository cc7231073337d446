"""A watch is told about every step, in order, with what it left."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from epibatch.connectors import ConnectorV2
from epibatch.connectors._engine.step_watch import MetricsTimers, PieceSeconds
from epibatch.connectors.common import AddObservationsFromEpisodesToBatch, BatchIndividualItems
from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.core.metrics import MetricsLogger
from epibatch.episodes import SingleAgentEpisode

CLOCK = "epibatch.connectors._engine.run.perf_counter"


class Notes:
    """A watch that keeps all it is told."""

    def __init__(self):
        self.steps, self.whole = [], []

    def stepped(self, step, seconds, batch):
        self.steps.append((step.name, seconds, sorted(batch if isinstance(batch, dict) else batch.groups[None])))

    def finished(self, seconds):
        self.whole.append(seconds)


class Own(ConnectorV2):
    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        return {**batch, "own": np.zeros(1)} if batch else batch


class Fails(ConnectorV2):
    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        raise KeyError("here")


def episode():
    made = SingleAgentEpisode("ep")
    made.add_env_reset(np.zeros(2, np.float32))
    return made


def test_every_step_is_told_in_order():
    pieces = [
        Own(),
        AddObservationsFromEpisodesToBatch(),
        EnvToModulePipeline(connectors=[BatchIndividualItems()]),
        Own(),
    ]
    pipeline = EnvToModulePipeline(connectors=pieces)
    pipeline.watch = notes = Notes()
    for _ in range(2):
        pipeline(episodes=[episode()])
    names = ["own", "add_observations_from_episodes_to_batch", "batch_individual_items", "own_1"]
    assert [name for name, _, _ in notes.steps] == names * 2
    assert [columns for _, _, columns in notes.steps[:4]] == [[], ["obs"], ["obs"], ["obs", "own"]]
    assert notes.whole == pytest.approx([sum(s for _, s, _ in notes.steps[:4]), sum(s for _, s, _ in notes.steps[4:])])


def test_an_error_ends_the_telling():
    pipeline = EnvToModulePipeline(connectors=[Own(), Fails()])
    pipeline.watch = notes = Notes()
    with pytest.raises(KeyError):
        pipeline(episodes=[episode()])
    assert [name for name, _, _ in notes.steps] == ["own"]
    assert notes.whole == []


def test_seconds_add_up_until_they_are_taken(monkeypatch):
    monkeypatch.setattr(CLOCK, itertools.count(0.0, 0.5).__next__)
    pipeline = EnvToModulePipeline(connectors=[AddObservationsFromEpisodesToBatch(), Own()])
    pipeline.watch = seconds = PieceSeconds()
    assert seconds.take() == {}
    pipeline(episodes=[episode()])
    assert seconds.take() == {"add_observations_from_episodes_to_batch": 0.5, "own": 0.5}
    for _ in range(3):
        pipeline(episodes=[episode()])
    assert seconds.take() == {"add_observations_from_episodes_to_batch": 1.5, "own": 1.5}
    assert seconds.take() == {}


def test_without_a_watch_no_clock_is_read(monkeypatch):
    pipeline = EnvToModulePipeline(connectors=[AddObservationsFromEpisodesToBatch()])
    monkeypatch.setattr(CLOCK, None)
    pipeline(episodes=[episode()], metrics=MetricsLogger(times_pieces=False))
    pipeline.watch = PieceSeconds()
    with pytest.raises(TypeError):
        pipeline(episodes=[episode()])


def test_timers_have_rllibs_keys():
    metrics = MetricsLogger()
    timers = MetricsTimers(metrics, ("env_to_module_connector",))
    pipeline = EnvToModulePipeline(connectors=[Own()])
    timers.stepped(pipeline.plan().steps[0], 0.25, {})
    timers.stepped(pipeline.plan().steps[0], 0.75, {})
    timers.finished(1.5)
    expected = {"timers": {"connectors": {"own": 0.5}}, "connector_pipeline_timer": 1.5}
    assert metrics.reduce() == {"env_to_module_connector": expected}
