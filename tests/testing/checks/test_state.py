"""Planted faults in the state of a piece: each is found by the check that is named after it."""

from __future__ import annotations

import numpy as np
import pytest

from epibatch.connectors import ConnectorV2
from epibatch.testing import check_connector


class Counts(ConnectorV2):
    """Numbers the steps it has seen; a good piece with a state. Those below go wrong in one thing each."""

    pipelines = ("learner",)

    def __init__(self, input_observation_space=None, input_action_space=None):
        super().__init__(input_observation_space, input_action_space)
        self.learning = True
        self.reset_state()

    def reset_state(self):
        self.known = {"before": 0, "since": 0}

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            self.add(batch, episode)
        return batch

    def add(self, batch, episode):
        self.column(batch, episode, sum(self.known.values()) + np.arange(len(episode)))
        if self.learning:
            self.known["since"] += len(episode)

    def column(self, batch, episode, rows):
        self.add_n_batch_items(batch, "own", np.asarray(rows, np.float32), len(rows), episode)

    def freeze(self):
        self.learning = False

    def get_state(self, components=None, *, not_components=None, **kwargs):
        return dict(self.known)

    def set_state(self, state):
        self.known = dict(state)

    def merge_states(self, states):
        return {"before": states[0]["before"] + sum(state["since"] for state in states), "since": 0}


def test_a_good_piece_with_a_state_passes():
    report = check_connector(Counts)
    assert report.failed == []
    assert {"merge_states", "freeze", "resume", "reset_state"} <= set(report.passed)


class HidesItsState(Counts):
    def get_state(self, components=None, *, not_components=None, **kwargs):
        return {}

    def set_state(self, state):
        pass


class ForgetsPartOfItsState(Counts):
    def set_state(self, state):
        self.known = {"before": state["before"], "since": 0}


class RemembersMoreThanItSaves(Counts):
    def __init__(self, input_observation_space=None, input_action_space=None):
        super().__init__(input_observation_space, input_action_space)
        self.calls = 0

    def add(self, batch, episode):
        self.calls += self.learning
        self.column(batch, episode, np.full(len(episode), self.calls))
        self.known["since"] += self.learning

    def reset_state(self):
        super().reset_state()
        self.calls = 0

    def merge_states(self, states):
        return {}


class LendsItsState(Counts):
    def get_state(self, components=None, *, not_components=None, **kwargs):
        return self.known


class CountsTwice(Counts):
    def merge_states(self, states):
        return {"before": sum(state["before"] + state["since"] for state in states), "since": 0}


class KeepsItsState(Counts):
    def reset_state(self):
        self.known = getattr(self, "known", {"before": 0, "since": 0})


class NeverFreezes(Counts):
    def freeze(self):
        pass


class KeepsTheDefaultFreeze(Counts):
    """Counts on when it is frozen, for it does not override freeze."""

    freeze = ConnectorV2.freeze


class ReadsFrozen(Counts):
    """Does not override freeze either, and looks at what the default sets."""

    freeze = ConnectorV2.freeze

    @property
    def learning(self):
        return not self.frozen

    @learning.setter
    def learning(self, value):
        pass


def test_a_piece_that_reads_frozen_needs_no_freeze_of_its_own():
    report = check_connector(ReadsFrozen)
    assert report.failed == []
    assert "freeze" in report.passed


class ClonesNothing(Counts):
    def clone(self, *, share_state=False):
        return type(self)()


FAULTS = [
    (ClonesNothing, {}, {"cloned"}),
    (HidesItsState, {}, {"hidden_state"}),
    (ForgetsPartOfItsState, {}, {"state_round_trip"}),
    (RemembersMoreThanItSaves, {}, {"resume"}),
    (LendsItsState, {}, {"state_snapshot"}),
    (CountsTwice, {}, {"merge_states"}),
    (KeepsItsState, {}, {"reset_state"}),
    (NeverFreezes, {}, {"freeze"}),
    (KeepsTheDefaultFreeze, {}, {"freeze"}),
]


@pytest.mark.parametrize(("piece", "how", "names"), FAULTS)
def test_planted_faults_are_found_by_name(piece, how, names, found_by_name):
    found_by_name(piece, how, names)
