"""Observations that pieces write back to episodes: one by one, all agents' together, and the batch's."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

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


class First(SingleAgentObservationPreprocessor):
    """The first entry and the number of steps before it."""

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return gym.spaces.Dict(value=gym.spaces.Box(-99, 99, (1,)), steps=gym.spaces.Discrete(99))

    def preprocess(self, observation, episode):
        return {"value": observation[:1], "steps": len(episode)}


class Doubled(SingleAgentObservationPreprocessor):
    """Doubles observations, as float64."""

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return gym.spaces.Box(-np.inf, np.inf, input_observation_space.shape, np.float64)

    def preprocess(self, observation, episode):
        return observation * np.float64(2)


class Nested(SingleAgentObservationPreprocessor):
    """Puts observations into a dict."""

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return gym.spaces.Dict(inner=input_observation_space)

    def preprocess(self, observation, episode):
        return {"inner": observation}


def shorten(batch, episodes):
    """Keep the first entry, doubled, of each episode's observation."""
    batch["obs"] = {key: [2 * item[:1] for item in items] for key, items in batch["obs"].items()}


def pieces_of():
    return [AddObservationsFromEpisodesToBatch(), Lab.user(shorten), WriteObservationsToEpisodes()]


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(
    ("pieces", "read", "expected"),
    [
        ([First()], lambda rows: rows["value"], [[1], [2], [3], [4]]),
        ([First()], lambda rows: rows["steps"], [0, 1, 2, 3]),
        ([Doubled()], lambda rows: rows, [[2, 2], [4, 4], [6, 6], [8, 8]]),
        ([Nested()], lambda rows: rows["inner"], [[1, 1], [2, 2], [3, 3], [4, 4]]),
        (pieces_of()[1:], lambda rows: rows, [[2], [4], [6], [8]]),
    ],
)
def test_a_recorded_block_keeps_what_was_written_and_no_memory_of_the_batch(plain, pieces, read, expected):
    pieces, adds = [piece.clone() for piece in pieces], AddObservationsFromEpisodesToBatch()
    pieces = [adds, *pieces] if len(pieces) == 2 else [*pieces, adds]
    pipeline = EnvToModulePipeline(Lab.obs_space, Lab.act_space, connectors=[Lab.user()] * plain + pieces)
    recorder = VectorRecorder(2, Lab.obs_space, Lab.act_space)
    recorder.reset(np.ones((2, 2), np.float32))
    for step in range(1, 5):
        for items in pipeline(episodes=recorder.episodes)["obs"].values():
            if isinstance(items[0], np.ndarray):
                items[0][...] = -1
        recorder.commit()
        if step < 4:
            no = np.zeros(2, bool)
            recorder.step(np.zeros(2, np.int64), np.zeros(2), no, no, np.full((2, 2), step + 1, np.float32))
    for episode in recorder.flush(0):
        assert read(episode.get_observations()).tolist() == expected


def test_preprocess_has_to_be_written():
    with pytest.raises(TypeError, match="preprocess"):
        SingleAgentObservationPreprocessor()


class Wrong(SingleAgentObservationPreprocessor):
    """Answers what it is told to."""

    def __init__(self, answer=None, **kwargs):
        super().__init__(**kwargs)
        self.answer = answer

    def preprocess(self, observation, episode):
        return self.answer


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        (None, ColumnError, r"Wrong\.preprocess(.|\n)*end preprocess with `return observation`"),
        (np.zeros(3), SpaceError, r"shape \(3,\)(.|\n)*let Wrong\.recompute_output_observation_space return"),
        ({"a": 1}, SpaceError, r"dict(.|\n)*recompute_output_observation_space"),
        (np.array(["x", "y"]), SpaceError, r"recompute_output_observation_space"),
    ],
)
def test_what_does_not_fit_the_space_is_named(lab, answer, error, said):
    with pytest.raises(error, match=said):
        lab.run("env_to_module", [Wrong(answer)], [lab.episode("a", 1)])


ADDS = AddObservationsFromEpisodesToBatch()
LATE = r"'obs'(.|\n)*move First before EnvToModulePipeline, piece \d"


@pytest.mark.parametrize(
    ("kind", "pieces", "said"),
    [
        (EnvToModulePipeline, [EnvToModulePipeline(connectors=[ADDS]), First()], LATE),
        (LearnerConnectorPipeline, [First()], r"piece 0 \(First\)(.|\n)*env-to-module pipeline"),
        (EnvToModulePipeline, [WriteObservationsToEpisodes()], r"'obs'(.|\n)*AddObservationsFromEpisodesToBatch"),
    ],
)
def test_places_where_it_cannot_stand(kind, pieces, said):
    with pytest.raises(PipelineError, match=said):
        kind(connectors=pieces)


# ------------------------------------------------------------------------------ all agents' together

BOTH = gym.spaces.Dict(a=gym.spaces.Box(-99, 99, (1,)), b=gym.spaces.Box(-99, 99, (1,)))


CHOICES = gym.spaces.Dict(a=gym.spaces.Discrete(2), b=gym.spaces.Discrete(2))


class Others(MultiAgentObservationPreprocessor):
    """Each agent's observation, how many others observed, and their sum; agents in `skip` are left out."""

    def __init__(self, skip=(), answer=None, **kwargs):
        super().__init__(**kwargs)
        self.skip, self.answer = skip, answer

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        wide, spaces = gym.spaces.Box(-99, 99, (3,)), input_observation_space.items()
        return gym.spaces.Dict({agent: own if agent in self.skip else wide for agent, own in spaces})

    def preprocess(self, observations, episode):
        if self.answer is not None:
            return self.answer
        total = sum(observations.values())
        rows = {a: np.float32([*own, len(observations) - 1, *(total - own)]) for a, own in observations.items()}
        observations.clear()  # a dict of its own
        return {agent: row for agent, row in rows.items() if agent not in self.skip}


def game(**keywords):
    episode = MultiAgentEpisode(observation_space=BOTH, action_space=CHOICES, **keywords)
    episode.add_env_reset(observations={"a": np.float32([1]), "b": np.float32([2])})
    return episode


def alone(piece, episodes):
    """Run a piece in a pipeline about several agents."""
    piece.spaces_by_agent = True
    piece.input_observation_space, piece.input_action_space = BOTH, CHOICES
    return piece(rl_module=None, batch={}, episodes=episodes)


def test_each_agent_sees_the_others():
    episode, piece = game(), Others()
    assert alone(piece, [episode]) == {}
    assert episode.get_observations(-1)["a"].tolist() == [1, 1, 2]
    assert episode.get_observations(-1)["b"].tolist() == [2, 1, 1]
    assert episode.agent_episodes["b"].observation_space == gym.spaces.Box(-99, 99, (3,))
    seen = {"a": np.float32([5])}  # b waits for its next observation
    episode.add_env_step(observations=seen, actions={"a": 0, "b": 1}, rewards={"a": 1.0}, infos={})
    alone(piece, [episode])
    assert episode.get_observations(-1)["a"].tolist() == [5, 0, 0]
    assert episode.agent_episodes["b"].get_observations(-1).tolist() == [2, 1, 1]


def test_agents_that_are_left_out_keep_their_observations():
    episode = game()
    alone(Others(skip=("b",)), [episode])
    assert episode.get_observations(-1)["b"].tolist() == [2]
    assert episode.agent_episodes["b"].observation_space == BOTH["b"]
    with pytest.raises(SpaceError, match=r"agent 'b'(.|\n)*shape \(3,\)"):
        alone(Others(answer={"a": np.zeros(3, np.float32)}), [game()])


class Counted(MultiAgentObservationPreprocessor):
    """Answers with floats for spaces that have integers in them."""

    INNER = gym.spaces.Dict(n=gym.spaces.Discrete(9), x=gym.spaces.Box(-9, 9, (1,)), m=gym.spaces.MultiBinary(2))

    def __init__(self, n=3.0, **kwargs):
        super().__init__(**kwargs)
        self.n = n

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return gym.spaces.Dict(dict.fromkeys(input_observation_space, self.INNER))

    def preprocess(self, observations, episode):
        row = {"n": np.float32(self.n), "x": np.float32([0.5]), "m": np.ones(2)}
        return dict.fromkeys(observations, row)


def test_whole_floats_become_integers_where_the_space_has_integers():
    episode = game()
    alone(Counted(), [episode])
    for row in episode.get_observations(-1).values():
        assert Counted.INNER.contains(row)
        assert (row["n"], row["m"].tolist(), row["x"].tolist()) == (3, [1, 1], [0.5])
    with pytest.raises(SpaceError, match=r"agent 'a'(.|\n)*integer of shape(.|\n)*or return integers"):
        alone(Counted(0.5), [game()])


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        (np.zeros(3), ColumnError, r"a dict of the agents' new observations(.|\n)*`return observations`"),
        ({"c": np.zeros(3)}, UnknownNameError, r"'a', 'b'(.|\n)*one for 'c'"),
        ({"a": np.zeros(2)}, SpaceError, r"Others\.preprocess, agent 'a'(.|\n)*recompute_output_observation_space"),
    ],
)
def test_what_is_no_dict_of_the_agents_rows_is_named(answer, error, said):
    with pytest.raises(error, match=said):
        alone(Others(answer=answer), [game()])


def test_agents_one_by_one_are_another_class_s():
    with pytest.raises(BatchLayoutError, match="subclass SingleAgentObservationPreprocessor"):
        Others()(rl_module=None, batch={}, episodes=[Lab.episode("a", 1)])
    with pytest.raises(PipelineError, match="move Others before that piece"):
        Others()(rl_module=None, batch={"obs": {}}, episodes=[game()])


def test_a_space_that_is_no_dict_is_that_of_each_agent():
    space = gym.spaces.Box(-9, 9, (3,))

    class Flat(Others):
        def recompute_output_observation_space(self, input_observation_space, input_action_space):
            return space

    piece = Flat()
    piece.spaces_by_agent, piece.input_observation_space = True, BOTH
    assert piece.observation_space == gym.spaces.Dict(a=space, b=space)


def test_agents_of_one_module_may_differ_between_two_pieces(lab):
    class Differ(MultiAgentObservationPreprocessor):
        """A vector for one agent, a dict for the other."""

        def recompute_output_observation_space(self, input_observation_space, input_action_space):
            own = gym.spaces.Box(-99, 99, (1,))
            return gym.spaces.Dict(a=gym.spaces.Box(-99, 99, (2,)), b=gym.spaces.Dict(x=own, y=own))

        def preprocess(self, observations, episode):
            a, b = observations["a"], observations["b"]
            return {"a": np.concatenate([a, b]), "b": {"x": 10 * b, "y": 10 * a}}

    pieces = [Differ(), *[lab.user()] * lab.plain, FlattenObservations(), AddObservationsFromEpisodesToBatch()]
    mapping = AgentToModuleMapping(rl_module_specs=["shared"], agent_to_module_mapping_fn=lambda agent, _: "shared")
    pipeline = EnvToModulePipeline(BOTH, CHOICES, connectors=[*pieces, mapping, BatchIndividualItems()])
    episodes = [game(agent_to_module_mapping_fn=lambda agent, _: "shared") for _ in range(2)]
    batch = pipeline(batch={}, episodes=episodes)
    assert batch["shared"]["obs"].tolist() == [[1, 2], [20, 10]] * 2
    for episode in episodes:
        seen = {"a": np.float32([3]), "b": np.float32([4])}
        done = dict.fromkeys(seen, 0)
        episode.add_env_step(observations=seen, actions=done, rewards=done, infos={})
    assert pipeline(batch={}, episodes=episodes)["shared"]["obs"].tolist() == [[3, 4], [40, 30]] * 2


def test_what_stands_in_the_batch_is_in_the_episodes(lab):
    episodes = [lab.episode("a", 2), lab.episode("b", 3)]
    seen = lab.columns("env_to_module", pieces_of(), episodes)
    assert seen["obs"]["a",].tolist() == [[4.0]] and seen["obs"]["b",].tolist() == [[6.0]]
    assert [episode.get_observations(-1).tolist() for episode in episodes] == [[4.0], [6.0]]
    assert episodes[0].get_observations(-2).tolist() == [1.0, 11.0]


@pytest.mark.parametrize("nested", [False, True])
def test_strings_are_written_to_a_recorded_block_too(nested):
    def louder(batch, episodes, **_):
        for items in batch["obs"].values():
            items[:] = [{"t": item["t"] + "!"} if nested else item + "!" for item in items]

    space = gym.spaces.Dict(t=gym.spaces.Text(8)) if nested else gym.spaces.Text(8)
    recorder = VectorRecorder(2, space, Lab.act_space)
    pieces = [AddObservationsFromEpisodesToBatch(), Lab.user(louder), WriteObservationsToEpisodes()]
    words = np.array(["yes", "no"], object)
    recorder.reset({"t": words} if nested else words)
    EnvToModulePipeline(space, Lab.act_space, connectors=pieces)(episodes=recorder.episodes)
    columns = [episode.get_observations(slice(-1, None)) for episode in recorder.episodes]
    assert [(column["t"] if nested else column).tolist() for column in columns] == [["yes!"], ["no!"]]


def test_the_space_of_the_episodes_is_that_of_the_batch():
    space = gym.spaces.Box(-9, 9, (1,))
    episode = SingleAgentEpisode(observations=[np.zeros(2, np.float32)])
    WriteObservationsToEpisodes(space)(batch={"obs": [np.ones(1, np.float32)]}, episodes=[episode])
    assert episode.observation_space == space
    pipeline = EnvToModulePipeline(Lab.obs_space, connectors=pieces_of())
    assert pipeline.episode_observation_space == pipeline[2].observation_space


@pytest.mark.parametrize("column", [[np.float32([1]), np.float32([2])], np.float32([[1], [2]])])
def test_a_column_that_nobody_gave_keys_goes_by_position(column):
    episodes = [SingleAgentEpisode(observations=[np.zeros(1)]) for _ in range(2)]
    batch = WriteObservationsToEpisodes()(batch={"obs": column}, episodes=episodes)
    assert batch["obs"] is column
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
        Lab.call(WriteObservationsToEpisodes(), batch, episodes=[Lab.episode("a", 1), Lab.episode("b", 1)])


def test_the_space_of_the_episodes_is_that_of_the_last_one_that_writes():
    adds = AddObservationsFromEpisodesToBatch
    pipeline = EnvToModulePipeline(Lab.obs_space, Lab.act_space, connectors=[Doubled(), Nested(), adds()])
    assert pipeline.episode_observation_space == pipeline[1].observation_space
    assert isinstance(pipeline.episode_observation_space, gym.spaces.Dict)
    assert EnvToModulePipeline(Lab.obs_space, connectors=[adds()]).episode_observation_space == Lab.obs_space
    nested = EnvToModulePipeline(Lab.obs_space, connectors=[EnvToModulePipeline(connectors=[Doubled()]), adds()])
    assert nested.episode_observation_space.dtype == np.float64
