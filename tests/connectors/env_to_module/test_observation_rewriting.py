"""Observations that pieces write back to episodes: one by one, all agents' together, and the batch's."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Text

from epibatch.connectors.env_to_module import (
    AddObservationsFromEpisodesToBatch,
    AgentToModuleMapping,
    BatchIndividualItems,
    EnvToModulePipeline,
    FlattenObservations,
    MultiAgentObservationPreprocessor,
    SingleAgentObservationPreprocessor,
    WriteObservationsToEpisodes,
)
from epibatch.connectors.learner import LearnerConnectorPipeline
from epibatch.core.errors import BatchLayoutError, ColumnError, PipelineError, SpaceError, UnknownNameError
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode, VectorRecorder
from fixture_pieces import Lab

OBS, ACT = Lab.obs_space, Lab.act_space


class One(SingleAgentObservationPreprocessor):
    """Applies a function of observation and episode; None: the space stays."""

    def __init__(self, space=None, function=None, **kwargs):
        super().__init__(**kwargs)
        self.space, self.function = space, function

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return self.space or input_observation_space

    def preprocess(self, observation, episode):
        return self.function(observation, episode)


class All(MultiAgentObservationPreprocessor):
    """Applies a function of all agents' observations; the space is that of each agent, or a dict of them."""

    def __init__(self, space=None, function=None, **kwargs):
        super().__init__(**kwargs)
        self.space, self.function = space, function

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return self.space or input_observation_space

    def preprocess(self, observations, episode):
        return self.function(observations)


def shorten(batch, episodes):
    """Keep the first entry, doubled, of each episode's observation."""
    batch["obs"] = {key: [2 * item[:1] for item in items] for key, items in batch["obs"].items()}


ADDS, WRITES = AddObservationsFromEpisodesToBatch, WriteObservationsToEpisodes
DOUBLED = One(Box(-np.inf, np.inf, (2,), np.float64), lambda observation, _: observation * np.float64(2))
NESTED = One(Dict(inner=OBS), lambda observation, _: {"inner": observation})
FIRST = One(
    Dict(value=Box(-99, 99, (1,)), steps=Discrete(99)),
    lambda observation, episode: {"value": observation[:1], "steps": len(episode)},
)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(
    ("pieces", "read", "expected"),
    [
        ([FIRST, ADDS()], lambda rows: rows["value"], [[1], [2], [3], [4]]),
        ([FIRST, ADDS()], lambda rows: rows["steps"], [0, 1, 2, 3]),
        ([DOUBLED, ADDS()], lambda rows: rows, [[2, 2], [4, 4], [6, 6], [8, 8]]),
        ([NESTED, ADDS()], lambda rows: rows["inner"], [[1, 1], [2, 2], [3, 3], [4, 4]]),
        ([ADDS(), Lab.user(shorten), WRITES()], lambda rows: rows, [[2], [4], [6], [8]]),
    ],
)
def test_a_recorded_block_keeps_what_was_written_and_no_memory_of_the_batch(plain, pieces, read, expected):
    pieces = [Lab.user()] * plain + [piece.clone() for piece in pieces]
    pipeline = EnvToModulePipeline(OBS, ACT, connectors=pieces)
    recorder, no = VectorRecorder(2, OBS, ACT), np.zeros(2, bool)
    recorder.reset(np.ones((2, 2), np.float32))
    for step in range(1, 5):
        for items in pipeline(episodes=recorder.episodes)["obs"].values():
            if isinstance(items[0], np.ndarray):
                items[0][...] = -1
        recorder.commit()
        if step < 4:
            recorder.step(np.zeros(2, np.int64), np.zeros(2), no, no, np.full((2, 2), step + 1, np.float32))
    for episode in recorder.flush(0):
        assert read(episode.get_observations()).tolist() == expected


def test_the_space_of_the_episodes_is_that_of_the_last_piece_that_writes():
    for pieces, writer in (([DOUBLED, NESTED, ADDS()], 1), ([ADDS(), Lab.user(shorten), WRITES()], 2)):
        pipeline = EnvToModulePipeline(OBS, ACT, connectors=[piece.clone() for piece in pieces])
        assert pipeline.episode_observation_space == pipeline[writer].observation_space
        assert isinstance(pipeline.episode_observation_space, Dict if writer == 1 else Box)
    assert EnvToModulePipeline(OBS, connectors=[ADDS()]).episode_observation_space == OBS
    inner = EnvToModulePipeline(connectors=[DOUBLED.clone()])
    assert EnvToModulePipeline(OBS, connectors=[inner, ADDS()]).episode_observation_space.dtype == np.float64


def test_preprocess_has_to_be_written():
    with pytest.raises(TypeError, match="preprocess"):
        SingleAgentObservationPreprocessor()


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        (None, ColumnError, r"One\.preprocess(.|\n)*found: +None\n(.|\n)*end preprocess with `return observation`"),
        (np.zeros(3), SpaceError, r"shape \(3,\)(.|\n)*let One\.recompute_output_observation_space return"),
        ({"a": 1}, SpaceError, r"dict(.|\n)*recompute_output_observation_space"),
        (np.array(["x", "y"]), SpaceError, r"recompute_output_observation_space"),
    ],
)
def test_what_does_not_fit_the_space_is_named(lab, answer, error, said):
    with pytest.raises(error, match=said):
        lab.run("env_to_module", [One(function=lambda *_: answer)], [lab.episode("a", 1)])


LATE = r"'obs'(.|\n)*move One before EnvToModulePipeline, piece \d"


@pytest.mark.parametrize(
    ("kind", "pieces", "said"),
    [
        (EnvToModulePipeline, [EnvToModulePipeline(connectors=[ADDS()]), One()], LATE),
        (LearnerConnectorPipeline, [One()], r"piece 0 \(One\)(.|\n)*env-to-module pipeline"),
        (EnvToModulePipeline, [WRITES()], r"'obs'(.|\n)*AddObservationsFromEpisodesToBatch"),
    ],
)
def test_places_where_it_cannot_stand(kind, pieces, said):
    with pytest.raises(PipelineError, match=said):
        kind(connectors=pieces)


# -- all agents' together --------------------------------------------------------------------------

ONE, WIDE = Box(-99, 99, (1,)), Box(-99, 99, (3,))
BOTH, CHOICES = Dict(a=ONE, b=ONE), Dict(a=Discrete(2), b=Discrete(2))


def of_others(observations):
    """Each agent's observation, how many others observed, and their sum."""
    total = sum(observations.values())
    rows = {a: np.float32([*own, len(observations) - 1, *(total - own)]) for a, own in observations.items()}
    observations.clear()  # a dict of the function's own
    return rows


def game(**keywords):
    episode = MultiAgentEpisode(observation_space=BOTH, action_space=CHOICES, **keywords)
    episode.add_env_reset(observations={"a": np.float32([1]), "b": np.float32([2])})
    return episode


def rewritten(space, function, episode=None):
    """An episode that a piece for all agents rewrote."""
    piece, episode = All(space, function), game() if episode is None else episode
    piece.spaces_by_agent, piece.input_observation_space, piece.input_action_space = True, BOTH, CHOICES
    assert piece(rl_module=None, batch={}, episodes=[episode]) == {}
    return episode


def test_each_agent_sees_the_others():
    episode = rewritten(WIDE, of_others)
    assert episode.get_observations(-1)["a"].tolist() == [1, 1, 2]
    assert episode.get_observations(-1)["b"].tolist() == [2, 1, 1]
    assert episode.agent_episodes["b"].observation_space == WIDE
    seen = {"a": np.float32([5])}  # b waits for its next observation
    episode.add_env_step(observations=seen, actions={"a": 0, "b": 1}, rewards={"a": 1.0}, infos={})
    rewritten(WIDE, of_others, episode)
    assert episode.get_observations(-1)["a"].tolist() == [5, 0, 0]
    assert episode.agent_episodes["b"].get_observations(-1).tolist() == [2, 1, 1]


def test_agents_that_are_left_out_keep_their_observations():
    episode = rewritten(Dict(a=WIDE, b=ONE), lambda rows: {"a": of_others(rows)["a"]})
    assert episode.get_observations(-1)["b"].tolist() == [2]
    assert episode.agent_episodes["b"].observation_space == ONE


INTEGERS = Dict(n=Discrete(9), x=Box(-9, 9, (1,)), m=MultiBinary(2))


def floats(n):
    return lambda rows: {key: {"n": np.float32(n), "x": np.float32([0.5]), "m": np.ones(2)} for key in rows}


def test_whole_floats_become_integers_where_the_space_has_integers():
    for row in rewritten(Dict(a=INTEGERS, b=INTEGERS), floats(3.0)).get_observations(-1).values():
        assert INTEGERS.contains(row)
        assert (row["n"], row["m"].tolist(), row["x"].tolist()) == (3, [1, 1], [0.5])


def alone(batch, episode):
    return All()(rl_module=None, batch=batch, episodes=[episode])


@pytest.mark.parametrize(
    ("mistake", "error", "said"),
    [
        (
            lambda: rewritten(WIDE, lambda rows: np.zeros(3)),
            ColumnError,
            r"a dict of the agents' new observations(.|\n)*found: +ndarray(.|\n)*`return observations`",
        ),
        (lambda: rewritten(WIDE, lambda rows: {"c": 0}), UnknownNameError, r"'a', 'b'(.|\n)*one for 'c'"),
        (lambda: rewritten(WIDE, lambda rows: {"a": np.zeros(2)}), SpaceError, r"All\.preprocess, agent 'a'(.|\n)*rec"),
        (lambda: rewritten(WIDE, lambda rows: {"a": np.zeros(3, "f4")}), SpaceError, r"agent 'b'(.|\n)*shape \(3,\)"),
        (
            lambda: rewritten(Dict(a=INTEGERS, b=INTEGERS), floats(0.5)),
            SpaceError,
            r"agent 'a'(.|\n)*integer of(.|\n)*or return integers",
        ),
        (lambda: alone({}, Lab.episode("a", 1)), BatchLayoutError, "subclass SingleAgentObservationPreprocessor"),
        (lambda: alone({"obs": {}}, game()), PipelineError, "move All before that piece"),
    ],
)
def test_what_is_no_dict_of_the_agents_rows_is_named(mistake, error, said):
    with pytest.raises(error, match=said):
        mistake()


def test_agents_of_one_module_may_differ_between_two_pieces(lab):
    """A vector for one agent, a dict for the other."""
    differ = All(
        Dict(a=Box(-99, 99, (2,)), b=Dict(x=ONE, y=ONE)),
        lambda rows: {"a": np.concatenate([rows["a"], rows["b"]]), "b": {"x": 10 * rows["b"], "y": 10 * rows["a"]}},
    )
    pieces = [differ, *[lab.user()] * lab.plain, FlattenObservations(), ADDS()]
    mapping = AgentToModuleMapping(rl_module_specs=["shared"], agent_to_module_mapping_fn=lambda agent, _: "shared")
    pipeline = EnvToModulePipeline(BOTH, CHOICES, connectors=[*pieces, mapping, BatchIndividualItems()])
    episodes = [game(agent_to_module_mapping_fn=lambda agent, _: "shared") for _ in range(2)]
    assert pipeline(batch={}, episodes=episodes)["shared"]["obs"].tolist() == [[1, 2], [20, 10]] * 2
    for episode in episodes:
        seen, done = {"a": np.float32([3]), "b": np.float32([4])}, {"a": 0, "b": 0}
        episode.add_env_step(observations=seen, actions=done, rewards=done, infos={})
    assert pipeline(batch={}, episodes=episodes)["shared"]["obs"].tolist() == [[3, 4], [40, 30]] * 2


# -- the batch's -----------------------------------------------------------------------------------


def test_what_stands_in_the_batch_is_in_the_episodes(lab):
    episodes = [lab.episode("a", 2), lab.episode("b", 3)]
    seen = lab.columns("env_to_module", [ADDS(), lab.user(shorten), WRITES()], episodes)
    assert seen["obs"]["a",].tolist() == [[4.0]] and seen["obs"]["b",].tolist() == [[6.0]]
    assert [episode.get_observations(-1).tolist() for episode in episodes] == [[4.0], [6.0]]
    assert episodes[0].get_observations(-2).tolist() == [1.0, 11.0]


@pytest.mark.parametrize("nested", [False, True])
def test_strings_are_written_to_a_recorded_block_too(nested):
    def louder(batch, episodes, **_):
        for items in batch["obs"].values():
            items[:] = [{"t": item["t"] + "!"} if nested else item + "!" for item in items]

    space, words = Dict(t=Text(8)) if nested else Text(8), np.array(["yes", "no"], object)
    recorder = VectorRecorder(2, space, ACT)
    recorder.reset({"t": words} if nested else words)
    EnvToModulePipeline(space, ACT, connectors=[ADDS(), Lab.user(louder), WRITES()])(episodes=recorder.episodes)
    columns = [episode.get_observations(slice(-1, None)) for episode in recorder.episodes]
    assert [(column["t"] if nested else column).tolist() for column in columns] == [["yes!"], ["no!"]]


@pytest.mark.parametrize("column", [[np.float32([1]), np.float32([2])], np.float32([[1], [2]])])
def test_a_column_without_keys_goes_by_position(column):
    episodes, space = [SingleAgentEpisode(observations=[np.zeros(1)]) for _ in range(2)], Box(-9, 9, (1,))
    batch = WRITES(space)(batch={"obs": column}, episodes=episodes)
    assert batch["obs"] is column and {id(episode.observation_space) for episode in episodes} == {id(space)}
    assert [episode.get_observations(-1).tolist() for episode in episodes] == [[1.0], [2.0]]


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({"obs": [np.zeros(2)]}, r"one row for each of 2 episodes(.|\n)*add_batch_item"),
        ({"obs": {("a",): [np.zeros(2)] * 2, ("b",): []}}, r"one row for each of 2 episodes(.|\n)*add_batch_item"),
        ({}, "AddObservationsFromEpisodesToBatch before"),
    ],
)
def test_one_row_per_episode_is_needed(batch, words):
    with pytest.raises(ColumnError, match=words):
        Lab.call(WRITES(), batch, episodes=[Lab.episode("a", 1), Lab.episode("b", 1)])
