"""Clones, pieces in two pipelines, and states of pipelines by the stable names of their pieces."""

from __future__ import annotations

import copy
import pickle
from collections import deque

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors import ConnectorPipelineV2
from epibatch.connectors.common import FrameStacking
from epibatch.connectors.connector_v2 import ConnectorV2
from epibatch.connectors.env_to_module import EnvToModulePipeline, MeanStdFilter
from epibatch.connectors.learner import LearnerConnectorPipeline
from epibatch.connectors.rewards import CountBasedReward, NormalizeReward
from epibatch.core.errors import CheckpointError, PieceError, UnknownNameError
from epibatch.core.shared_moments import rebased
from epibatch.env_runner import SingleAgentEnvRunner
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode
from fixture_pieces import Lab, UserPiece, played, trained

BOX = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)


def show(piece, *values):
    for value in values:
        piece(rl_module=None, batch={}, episodes=[SingleAgentEpisode(observations=[np.array([value])])])


def mean_of(piece):
    state = piece.get_state()
    parts = [state["synchronised"], state["since"]]
    count = sum(part["count"] for part in parts)
    return sum(part["count"] * part["mean"][0] for part in parts) / count, count


COPIES = {
    "clone": lambda piece: piece.clone(),
    "deepcopy": copy.deepcopy,
    "pickle": lambda piece: pickle.loads(pickle.dumps(piece)),
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_copy_goes_on_from_a_copy_of_the_state_and_is_in_no_pipeline_yet(copied):
    first = EnvToModulePipeline(BOX, connectors=[MeanStdFilter(clip_by_value=3.0)])
    show(first, 1.0, 3.0)
    second = EnvToModulePipeline(BOX, connectors=[copied(first[0])])
    assert type(second[0]) is MeanStdFilter and second[0].clip_by_value == 3.0
    assert second[0].input_observation_space == BOX
    whole = copied(first)
    assert type(whole) is EnvToModulePipeline
    for pipeline in (second, whole):
        show(pipeline, 8.0)
        assert (mean_of(pipeline[0]), mean_of(first[0])) == ((4.0, 3), (2.0, 2))
    first.freeze()
    for clone in (first.clone()[0], first[0].clone()):
        show(clone, 8.0)
        assert mean_of(clone) == (2.0, 2)


@pytest.mark.parametrize("seen_before", [(), (1.0, 3.0)])
def test_a_clone_that_shares_its_state_learns_for_both(seen_before):
    piece = MeanStdFilter(BOX)
    show(piece, *seen_before)
    twin = piece.clone(share_state=True)
    first, second = (EnvToModulePipeline(BOX, connectors=[each]) for each in (piece, twin))
    show(second, 8.0)
    show(first, 2.0)
    assert mean_of(piece) == mean_of(twin) == (np.mean([*seen_before, 8.0, 2.0]), len(seen_before) + 2)


def test_agents_of_a_shared_piece_keep_their_statistics():
    spaces = gym.spaces.Dict(a=BOX, b=BOX)
    piece = MeanStdFilter(spaces, multi_agent=True)
    twin = piece.clone(share_state=True)
    for each, value in ((piece, 1.0), (twin, 3.0), (piece, 5.0)):
        episode = MultiAgentEpisode(observation_space=spaces)
        episode.add_env_reset(observations={"a": np.array([value]), "b": np.array([-value])})
        each(rl_module=None, batch={}, episodes=[episode])
    agents = piece.get_state()["agents"]
    assert {agent: own["since"]["mean"][0] for agent, own in agents.items()} == {"a": 3.0, "b": -3.0}
    assert {own["since"]["count"] for own in agents.values()} == {3}


def test_a_copy_runs_the_piece_that_was_put_into_it():
    pipeline = ConnectorPipelineV2(connectors=[Counter(count=0).share()])
    twin = copy.deepcopy(pipeline)
    twin.connectors[0] = pipeline.connectors[0]
    twin(episodes=[Lab.episode("a", 1)])
    assert pipeline[0].count == 1


def test_a_piece_in_two_pipelines_is_refused_and_no_pipeline_changes():
    piece, other = FrameStacking(num_frames=2), MeanStdFilter()
    first, second = EnvToModulePipeline(connectors=[piece]), EnvToModulePipeline(connectors=[])
    with pytest.raises(PieceError, match=r"\(FrameStacking\)[\s\S]*EnvToModulePipeline already[\s\S]*share\(\)"):
        LearnerConnectorPipeline(connectors=[piece])
    with pytest.raises(PieceError, match="already"):
        second.append(piece)
    with pytest.raises(PieceError, match="already") as refused:
        EnvToModulePipeline(connectors=[other, piece])
    with pytest.raises(PieceError, match="twice"):
        EnvToModulePipeline(connectors=[other, other])
    assert EnvToModulePipeline(connectors=[other])[0] is other
    assert refused.value.__traceback__ is not None  # which holds the refused pipeline
    assert first[0] is piece and len(second) == 0
    first.remove("frame_stacking")
    second.append(piece)
    assert second[0] is piece
    del second  # a pipeline that is gone keeps nothing
    assert EnvToModulePipeline(connectors=[piece])[0] is piece
    inner = ConnectorPipelineV2(connectors=[MeanStdFilter()])
    assert EnvToModulePipeline(connectors=[inner]).pieces() == (inner[0],)


def test_a_hook_that_gives_one_piece_to_every_pipeline_is_named():
    piece = MeanStdFilter()
    config = PPOConfig().environment("CartPole-v1")
    config.env_runners(env_to_module_connector=lambda env, spaces, device: piece)
    runner = SingleAgentEnvRunner(config=config)
    with pytest.raises(PieceError, match="make a new MeanStdFilter for each place"):
        SingleAgentEnvRunner(config=config)
    runner.stop()


# -- states by stable name -------------------------------------------------------------------------------


class Counter(ConnectorV2):
    """A stateful piece: its state is a sum, merged by adding."""

    def __init__(self, input_observation_space=None, input_action_space=None, *, count=0, **kwargs):
        super().__init__(input_observation_space, input_action_space, **kwargs)
        self.count = count

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        self.count += 0 if self.frozen else len(episodes)
        return batch

    def get_state(self, components=None, *, not_components=None, **kwargs):
        return {"count": self.count}

    def set_state(self, state):
        self.count = state["count"]

    def reset_state(self):
        self.count = 0

    def merge_states(self, states):
        return {"count": sum(state["count"] for state in states)}


class SecondCounter(Counter):
    """Another stateful class with several words in its name."""


def pipeline(*pieces):
    return ConnectorPipelineV2(connectors=list(pieces))


def counters(*counts):
    """A pipeline of a stateless piece, and two counters with another class's between them."""
    first, second, third = counts or (0, 0, 0)
    return pipeline(UserPiece(), Counter(count=first), SecondCounter(count=second), Counter(count=third))


def state_of(*counts):
    return {name: {"count": count} for name, count in zip(("counter", "second_counter", "counter_1"), counts)}


def test_stable_names_number_the_pieces_of_one_class():
    pipe = counters(1, 2, 3)
    assert pipe["counter"].count == 1 and pipe["counter_1"].count == 3
    pipe.append(UserPiece())
    assert pipe.names == ["user_piece", "counter", "second_counter", "counter_1", "user_piece_1"]
    pipe.remove("counter_1")
    assert [piece.count for piece in pipe[Counter]] == [1, 2]


def test_states_are_kept_merged_and_selected_by_stable_name():
    state = counters(1, 2, 3).get_state()
    assert state == state_of(1, 2, 3)
    other = counters()
    other.set_state(state)
    assert other.get_state() == state_of(1, 2, 3)
    assert other.merge_states([state_of(i, 10 * i, 100 * i) for i in (1, 2, 3)]) == state_of(6, 60, 600)
    assert set(other.get_state(components="counter")) == {"counter"}
    assert set(other.get_state(not_components=["counter"])) == {"second_counter", "counter_1"}
    other.reset_state()
    assert other.get_state() == state_of(0, 0, 0)


def test_freezing_reaches_every_piece_and_those_of_nested_pipelines():
    inner, outer, free = Counter(), Counter(count=5), Counter()
    pipe = pipeline(UserPiece(), pipeline(UserPiece(), pipeline(inner)), outer)
    pipe.freeze()
    for pieces in (pipe, pipeline(free)):
        pieces(rl_module=None, batch={}, episodes=[Lab.episode("a", 1), Lab.episode("b", 1)])
    assert (inner.count, outer.count, free.count) == (0, 5, 2)
    pipe.set_state({"counter": {"count": 7}})
    pipe(rl_module=None, batch={}, episodes=[Lab.episode("a", 1)])
    assert outer.count == 7


@pytest.mark.parametrize(
    ("state", "error", "match"),
    [
        ({"third_counter": {"count": 1}}, UnknownNameError, "third_counter[\\s\\S]*second_counter"),
        ({**state_of(7, 8), "counter_1": {"cuont": 8}}, CheckpointError, r"'counter_1'[\s\S]*KeyError: 'count'"),
        (3, CheckpointError, r"ConnectorPipelineV2\.set_state"),
        (None, CheckpointError, r"ConnectorPipelineV2\.set_state"),
        ([], CheckpointError, r"ConnectorPipelineV2\.set_state"),
        ({"counter": 3}, CheckpointError, r"ConnectorPipelineV2\.set_state"),
    ],
)
def test_a_state_that_does_not_fit_changes_no_piece(state, error, match):
    pipe = counters(1, 2, 3)
    with pytest.raises(error, match=match):
        pipe.set_state(state)
    assert pipe.get_state() == state_of(1, 2, 3)


# -- copies that are synchronised at different times -----------------------------------------------

AGENTS = gym.spaces.Dict(a=BOX, b=BOX)


class Filters:
    """Runs env-to-module pipelines with a filter, of one agent or of several that appear by chance."""

    def __init__(self, several):
        self.several = several

    def pipeline(self):
        piece = MeanStdFilter(AGENTS, multi_agent=True) if self.several else MeanStdFilter(BOX)
        return EnvToModulePipeline(AGENTS if self.several else BOX, connectors=[piece])

    def run(self, pipeline, values):
        for value in values:
            episode = SingleAgentEpisode(observations=[np.array([value])])
            if self.several:
                episode = MultiAgentEpisode(observation_space=AGENTS)
                episode.add_env_reset(observations={"ab"[int(value) % 2]: np.array([value])})
            pipeline(rl_module=None, batch={}, episodes=[episode])


class Rewards:
    """Runs a learner pipeline with a piece that keeps statistics of rewards or observations."""

    def __init__(self, make):
        self.make = make

    def pipeline(self):
        return LearnerConnectorPipeline(connectors=[self.make()])

    def run(self, pipeline, values):
        trained([pipeline[0].share()], [played([*map(int, values), 0], list(values))])


KINDS = {
    "filter": Filters(several=False),
    "filter of agents": Filters(several=True),
    "rewards": Rewards(lambda: NormalizeReward(gamma=None)),
    "visits": Rewards(CountBasedReward),
}


def statistics_of(state):
    """Path -> count, mean and squares, or visits by key, of synchronised statistics and newer ones together."""
    if "since" not in state:
        parts = {key: statistics_of(part) for key, part in state.items() if isinstance(part, dict)}
        return {(key, *path): values for key, own in parts.items() for path, values in own.items()}
    old, new = state["synchronised"], state["since"]
    if "keys" in old:
        visits = {int(key): 0 for part in (old, new) for key in part["keys"]}
        for part in (old, new):
            for key, number in zip(part["keys"], part["numbers"]):
                visits[int(key)] += int(number)
        return {(): [visits[key] for key in sorted(visits)]}
    counts, means = np.array([old["count"], new["count"]]), np.array([old["mean"], new["mean"]])
    mean = counts @ means / max(counts.sum(), 1)
    squares = old["squares"] + new["squares"] + counts @ (means - mean) ** 2
    return {(): [counts.sum(), *mean, *squares]}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@settings(max_examples=20, deadline=None)
@given(
    turns=st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=12, max_size=30),
    seed=st.integers(0, 2**32 - 1),
)
def test_copies_synchronised_at_different_times_know_together_what_one_knows_that_saw_all(kind, turns, seed):
    rng, pooled, merged = np.random.default_rng(seed), kind.pipeline(), {}
    copies = [kind.pipeline() for _ in range(3)]
    requests = [deque() for _ in copies]  # each with the state that was merged when it was sent
    for index, answers in turns:
        if not answers or not requests[index]:
            requests[index].append(copy.deepcopy(merged))
            continue
        state = requests[index].popleft()
        copies[index].set_state(state) if state else copies[index].reset_state()
        values = rng.integers(0, 9, rng.integers(1, 5)).astype(np.float64) + rng.choice([0.0, 50.0])
        kind.run(copies[index], values)
        kind.run(pooled, values)
        answer = copies[index].get_state()
        untouched = copy.deepcopy(answer)
        merged = pooled.merge_states([merged, rebased(answer, merged)])
        np.testing.assert_equal(answer, untouched)
    actual, expected = statistics_of(merged), statistics_of(pooled.get_state())
    seen = {path: values for path, values in expected.items() if any(values)}
    assert seen.keys() <= actual.keys()
    for path, values in seen.items():
        np.testing.assert_allclose(actual[path], values, rtol=1e-10, atol=1e-10)
