"""Planted faults: each is found by the check that is named after it, and by no other than those that it concerns."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from fixture_cases import slow

from epibatch.connectors import ConnectorV2, EpisodeColumn
from epibatch.connectors import Piece as ColumnarPiece
from epibatch.connectors.authoring import ColumnTransform, EpisodeTransform
from epibatch.connectors.common import FrameStacking
from epibatch.connectors.env_to_module import MeanStdFilter
from epibatch.core.columns import Columns
from epibatch.core.errors import PieceCheckError
from epibatch.episodes import VectorEpisodes
from epibatch.testing import check_connector

SEEN = gym.spaces.Box(-1, 1, (3,))
TORQUE = gym.spaces.Box(-2, 2, (2,))


class Piece(ConnectorV2):
    """A learner piece that does nothing; those below go wrong in one thing each."""

    pipelines = ("learner",)

    def __init__(self, input_observation_space=None, input_action_space=None):
        super().__init__(input_observation_space, input_action_space)

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            self.add(batch, episode)
        return batch

    def add(self, batch, episode):
        pass

    def column(self, batch, episode, rows):
        self.add_n_batch_items(batch, "own", np.asarray(rows, np.float32), len(rows), episode)


class Rewrites(Piece):
    """An acting piece that halves observations; those below go wrong in one thing each."""

    pipelines = ("env_to_module",)

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for i, episode in enumerate(self.single_agent_episode_iterator(episodes)):
            episode.set_observations(new_data=self.of(episode.get_observations(-1), i), at_indices=-1)
        return batch

    def of(self, observation, place):
        return observation / 2


def rewards_of(call):
    """Rewards as one array, with zeros for bootstrap rows."""
    pairs = zip(call.episodes, call.counts)
    return np.concatenate([np.pad(episode.get_rewards(), (0, count - len(episode))) for episode, count in pairs])


class Columnar(ColumnarPiece):
    """A columnar learner piece that adds the rewards under another name; a good one."""

    pipelines = ("learner",)
    input_layouts = ("episodes",)
    reads = ()
    writes = ("own",)

    def run(self, batch, call):
        if len(call.episodes):
            batch["own"] = self.own(call)
        return batch

    def own(self, call):
        return EpisodeColumn(rewards_of(call), call.counts)


class OnArrays(Columnar):
    """A columnar learner piece behind the one that makes arrays; a good one."""

    input_layouts = ("arrays",)
    reads = ("rewards",)

    def run(self, batch, call):
        batch["own"] = batch["rewards"] * 2
        return batch


class OlderObservations(Piece):
    """Gives each step the first entry of the observation two steps before it; a good piece that looks back."""

    reads = ()
    writes = ("own",)
    lookback = 2

    def add(self, batch, episode):
        rows = episode.get_observations(slice(-2, len(episode) - 2), neg_index_as_lookback=True, fill=0.0)
        self.column(batch, episode, rows[:, 0])


class SoFar(Piece):
    """Gives each step the sum of the episode's rewards before it; a good piece that reads all of an episode."""

    reads = ()
    writes = ("own",)
    lookback = 50  # more steps than the kit's episodes have

    def add(self, batch, episode):
        rewards = episode.get_rewards(slice(-50, len(episode)), neg_index_as_lookback=True, fill=0.0)
        self.column(batch, episode, [rewards[: t + 50].sum() for t in range(len(episode))])


class Scaled(ColumnTransform):
    """Scales rewards; a good transform that has a way back and takes every layout."""

    columns = "rewards"
    pipelines = ("learner",)
    takes_tensors = True
    factor: float = 0.5

    def transform(self, x):
        return x * self.factor

    def inverse(self, y):
        return y / self.factor


class ScaledActions(ColumnTransform):
    """Lets the module act in smaller numbers; a good transform of actions."""

    columns = "actions"
    pipelines = ("env_to_module",)

    def transform(self, x):
        return x / 4

    def inverse(self, y):
        return y * 4


class Penalty(EpisodeTransform):
    """Takes an amount off every reward; a good transform of episodes."""

    amount: float = 0.5

    def transform_episode(self, episode):
        episode.set_rewards(new_data=episode.get_rewards() - np.float32(self.amount))


class Counts(Piece):
    """Numbers the steps it has seen; a good piece with a state. Those below go wrong in one thing each."""

    def __init__(self, input_observation_space=None, input_action_space=None):
        super().__init__(input_observation_space, input_action_space)
        self.learning = True
        self.reset_state()

    def reset_state(self):
        self.known = {"before": 0, "since": 0}

    def add(self, batch, episode):
        self.column(batch, episode, sum(self.known.values()) + np.arange(len(episode)))
        if self.learning:
            self.known["since"] += len(episode)

    def freeze(self):
        self.learning = False

    def get_state(self, components=None, *, not_components=None, **kwargs):
        return dict(self.known)

    def set_state(self, state):
        self.known = dict(state)

    def merge_states(self, states):
        return {"before": states[0]["before"] + sum(state["since"] for state in states), "since": 0}


class ReadsFrozen(Counts):
    """Does not override freeze either, and looks at what the default sets."""

    freeze = ConnectorV2.freeze

    @property
    def learning(self):
        return not self.frozen

    @learning.setter
    def learning(self, value):
        pass


GOOD = [
    Piece,
    Rewrites,
    Columnar,
    OnArrays,
    OlderObservations,
    SoFar,
    Scaled,
    Scaled(factor=2.0),
    Penalty,
    Counts,
]


GOOD_SOMEHOW = [
    *[(piece, {}) for piece in GOOD],
    (MeanStdFilter, {"model_config": {"use_lstm": True, "lstm_cell_size": 4}}),
    (FrameStacking(num_frames=3, as_learner_connector=True), {"spaces": gym.spaces.Box(-1, 1, (4, 1))}),
]


@pytest.mark.parametrize(("piece", "how"), [*GOOD_SOMEHOW[:2], *(slow(*case) for case in GOOD_SOMEHOW[2:])])
def test_good_pieces_pass(piece, how):
    assert check_connector(piece, **how).failed == []


def test_a_piece_that_reads_whole_episodes_says_how_many_steps_that_may_be():
    report = check_connector(SoFar, only=["lookback", "chunks"])
    assert report.passed == ["chunks"] and report.failed == []


class WithoutAConstructor(ConnectorV2):
    pipelines = ("learner",)

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        return batch


def test_a_piece_without_a_constructor_of_its_own_passes():
    report = check_connector(WithoutAConstructor, only="unknown_keywords")
    assert [one.outcome for one in report] == ["passed"]
    assert check_connector(WithoutAConstructor).failed == []


@pytest.mark.slow
def test_checks_look_at_what_they_are_about():
    assert {"reads", "writes", "layouts", "several_agents", "chunks"} <= set(check_connector(OnArrays).passed)
    assert {"observation_space", "action_space", "dtypes", "chunks"} <= set(check_connector(Rewrites).passed)
    known = set(check_connector(Scaled).passed)
    assert {"arguments", "row_by_row", "inverse", "every_layout", "cloned", "several_agents"} <= known
    stateful = {"merge_states", "freeze", "resume", "reset_state"}
    assert stateful <= set(check_connector(Counts).passed) and "freeze" in check_connector(ReadsFrozen).passed
    report = check_connector(ScaledActions, spaces=(SEEN, TORQUE))
    assert {"inverse", "action_space", "cloned"} <= set(report.passed)


# ----------------------------------------------------------------------------------------- planted faults


class LosesItsArgument(Piece):
    def __init__(self, input_observation_space=None, input_action_space=None, *, factor=1.0, clip=False):
        super().__init__(input_observation_space, input_action_space)
        self.clip = clip


class TakesAFunction(Piece):
    def __init__(self, input_observation_space=None, input_action_space=None, *, function=None):
        super().__init__(input_observation_space, input_action_space)


class SwallowsKeywords(Piece):
    def __init__(self, input_observation_space=None, input_action_space=None, **kwargs):
        super().__init__(input_observation_space, input_action_space)


class TakesNoFurtherKeywords(Piece):
    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, metrics=None):
        return batch


class HoldsALambda(Piece):
    def __init__(self, input_observation_space=None, input_action_space=None):
        super().__init__(input_observation_space, input_action_space)
        self.function = lambda rows: rows


class Breaks(Piece):
    def add(self, batch, episode):
        raise KeyError("rewads")


class StacksNothing(Rewrites):
    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        np.stack([episode.get_observations(-1) for episode in episodes])
        return batch


class GivesViews(Columnar):
    def own(self, call):
        rows = [episode.get_observations()[:, 0] for episode in call.episodes]
        counts = np.array([len(own) for own in rows])
        return EpisodeColumn(rows[0] if len(rows) == 1 else np.concatenate(rows), counts)


class WritesInPlace(OnArrays):
    writes = ("own", "rewards")

    def run(self, batch, call):
        batch["own"] = batch["rewards"]
        batch["rewards"] *= 2
        return batch


class TooStrong(Piece):
    pipelines = ("module_to_env",)

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        strong = {key: [row * 0 + 9.0 for row in rows] for key, rows in batch["actions"].items()}
        return {**batch, Columns.ACTIONS_FOR_ENV: strong}


class MixesAgents(Columnar):
    def run_all(self, batch, call):
        batch = super().run_all(batch, call)
        if not call.several:
            return batch
        columns = [own["own"] for own in batch.groups.values()]
        for column in columns:
            column.data = column.data - columns[0].data.mean()
        return batch


class KeepsItInTheClass(Piece):
    known: list[str] = []  # noqa: RUF012 - the fault

    def add(self, batch, episode):
        self.known.append(episode.id_)
        self.column(batch, episode, np.full(len(episode), len(self.known)))


class CentersRewards(ColumnTransform):
    columns = "rewards"
    pipelines = ("learner",)

    def transform(self, x):
        return x - x.mean()


class RemembersMoreThanItSaves(Counts):
    calls = 0

    def add(self, batch, episode):
        self.calls += self.learning
        self.column(batch, episode, np.full(len(episode), self.calls))
        self.known["since"] += self.learning

    def reset_state(self):
        super().reset_state()
        self.calls = 0

    def merge_states(self, states):
        return {}


def flag(value):
    """A columnar piece's rows that are all one value, found by looking at the call."""
    return lambda self, call: EpisodeColumn(np.full(int(call.counts.sum()), value(call), np.float32), call.counts)


SMALLER = gym.spaces.Box(-1, 1, (4,))
NOTHING = {"before": 0, "since": 0}


def scaled_by_the_batch(self, call):
    return EpisodeColumn(rewards_of(call) / np.abs(rewards_of(call)).max(), call.counts)


def faulty(checks, name, base, **other):
    """A class with one thing wrong, which these checks find; it is pickled by its name in this module."""
    made = globals()[name] = type(name, (base,), {"__module__": __name__, **other})
    return made, {}, checks


FAULTS = [
    faulty("declarations", "NamesReadsInAString", Piece, reads="obs"),
    faulty("representation", "ShowsAnAddress", Piece, __repr__=object.__repr__),
    faulty("one_step_episodes", "ScalesByTheBatch", Columnar, own=scaled_by_the_batch),
    faulty("vector_episodes", "LooksForBlocks", Columnar, own=flag(lambda call: type(call.episodes) is VectorEpisodes)),
    faulty("plain_neighbours", "LooksAtThePlainBatch", Columnar, own=flag(lambda call: call._plain is None)),
    faulty(
        "same_seed", "Draws", Piece, add=lambda self, batch, own: self.column(batch, own, np.random.random(len(own)))
    ),
    faulty("episode_order", "NumbersEpisodes", Rewrites, of=lambda self, observation, place: observation / (2 + place)),
    faulty(
        "episodes_unchanged",
        "Writes",
        Piece,
        add=lambda self, batch, own: own.set_rewards(new_data=own.get_rewards() - 1),
    ),
    faulty("chunks lookback", "ReadsMoreThanItSays", OlderObservations, lookback=1),
    faulty("lookback", "SaysMoreThanItReads", OlderObservations, lookback=3),
    faulty("writes", "WritesWhatItDoesNotSay", Columnar, writes=()),
    faulty("writes", "SaysWhatItDoesNotWrite", Columnar, writes=("own", "other")),
    faulty("reads", "ReadsWhatItDoesNotSay", OnArrays, reads=()),
    faulty("reads", "SaysWhatItDoesNotRead", OnArrays, reads=("rewards", "actions")),
    faulty("layouts", "LeavesArrays", Columnar, own=lambda self, call: rewards_of(call)),
    faulty("dtypes", "WidensTypes", Rewrites, of=lambda self, observation, place: observation.astype(np.float64) / 2),
    faulty(
        "observation_space", "OtherShape", Rewrites, recompute_output_observation_space=lambda self, *spaces: SMALLER
    ),
    faulty("observation_space", "OutOfBounds", Rewrites, of=lambda self, observation, place: observation * 2),
    faulty("inverse", "LosesTheSign", Scaled, inverse=lambda self, y: np.abs(y) / self.factor),
    faulty(
        "every_layout",
        "DoublesTensors",
        Scaled,
        transform=lambda self, x: x * (0.5 if isinstance(x, np.ndarray) else 2),
    ),
    faulty("every_layout", "KnowsOnlyArrays", Scaled, transform=lambda self, x: x.astype(np.float32) / 2),
    faulty("row_by_row", "SumsRewards", CentersRewards, transform=lambda self, x: np.cumsum(x).astype(x.dtype)),
    faulty("hidden_state", "HidesItsState", Counts, get_state=lambda self, *_, **kwargs: {}, set_state=lambda *_: None),
    faulty(
        "state_round_trip", "Forgets", Counts, set_state=lambda self, state: self.known.update(before=state["before"])
    ),
    faulty("state_snapshot", "LendsItsState", Counts, get_state=lambda self, *_, **kwargs: self.known),
    faulty(
        "merge_states",
        "Doubles",
        Counts,
        merge_states=lambda self, states: {**NOTHING, "before": sum(sum(own.values()) for own in states)},
    ),
    faulty(
        "reset_state", "KeepsItsState", Counts, reset_state=lambda self: vars(self).setdefault("known", dict(NOTHING))
    ),
    faulty("freeze", "NeverFreezes", Counts, freeze=lambda self: None),
    faulty("freeze", "KeepsTheDefaultFreeze", Counts, freeze=ConnectorV2.freeze),
    faulty("cloned", "ClonesNothing", Counts, clone=lambda self, *, share_state=False: type(self)()),
    (CentersRewards, {}, "row_by_row"),
    (RemembersMoreThanItSaves, {}, "resume"),
    (LosesItsArgument, {}, "arguments"),
    (MeanStdFilter, {"sides": "learner"}, "declarations"),
    (TakesNoFurtherKeywords, {}, "call_signature"),
    (SwallowsKeywords, {}, "unknown_keywords"),
    (lambda: TakesAFunction(function=min), {}, "data_form"),
    (Breaks, {}, "runs"),
    (StacksNothing, {}, "empty_call"),
    (GivesViews, {}, "shared_memory"),
    (WritesInPlace, {}, "read_only_arrays"),
    (TooStrong, {"spaces": (SEEN, TORQUE)}, "action_space"),
    (MixesAgents, {}, "several_agents"),
    (HoldsALambda, {}, "pickled"),
    (KeepsItInTheClass, {}, "independent_pieces"),
]


@pytest.mark.parametrize(("piece", "how", "checks"), FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_planted_faults_are_found_by_name(piece, how, checks):
    assert_found(piece, {**how, "only": checks.split()}, checks)


@pytest.mark.slow
@pytest.mark.parametrize(("piece", "how", "checks"), FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_no_other_check_finds_a_planted_fault(piece, how, checks):
    assert_found(piece, how, checks)


def assert_found(piece, how, checks):
    with pytest.raises(PieceCheckError) as caught:
        check_connector(piece, **how)
    assert caught.value.report.failed == checks.split()
    for result in caught.value.report:
        for fault in result.faults:
            assert fault.where and fault.expected and fault.found and fault.do
            assert f"- {result.check}" in str(caught.value)
