"""RLlib's example connectors, ported, and the pieces that its examples use, beside RLlib's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import assume
from hypothesis import strategies as st

from oracle.cases import random_cases
from oracle.compare import listed, mismatches
from oracle.episodes import Chunk, rows, several_chunks, spaces
from oracle.libraries import BOTH, EPIBATCH, RLLIB, Library
from oracle.makers import run
from oracle.probes import in_lists
from oracle.teams import SPACES, Team, keywords, teams
from stock.installed import ported_module, rllib_file

PAGE = Path(__file__).parents[3] / "docs/rllib-names.md"
CLASSES = "examples/connectors/classes"
FLAT = st.builds(lambda n: gym.spaces.Box(-3.0, 3.0, (n,), np.float32), st.integers(1, 3))
COUNTED = st.builds(lambda n, high: gym.spaces.Box(0, high, (n,), np.int64), st.integers(1, 2), st.integers(0, 2))
ACTIONS = st.just(gym.spaces.Discrete(3))


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Both versions of an example connector: RLlib's own and the ported one."""
    folder, made = tmp_path_factory.mktemp("ported"), {}

    def find(stem: str) -> dict[Library, Any]:
        if stem not in made:
            theirs = RLLIB.module(f"examples.connectors.classes.{stem}")
            made[stem] = {RLLIB: theirs, EPIBATCH: ported_module(f"{CLASSES}/{stem}.py", folder)}
        names = {name.lower(): name for name in vars(made[stem][RLLIB])}
        name = names[stem.replace("_", "")]
        return {library: getattr(module, name) for library, module in made[stem].items()}

    return find


@st.composite
def calls_of(draw: st.DrawFn, observation_spaces: Any) -> Any:
    """Two calls with some chunks each; rewards are floats, since RLlib cuts bonuses off in a column of ints."""
    fixed = {"length": st.integers(1, 6), "reward": "float", "state": 0, "extras": ()}
    drawn = draw(several_chunks(st.integers(2, 6), observation_spaces, ACTIONS, **fixed))
    second = draw(st.integers(1, len(drawn) - 1))
    return [drawn[:second], drawn[second:]]


def same_rewards(classes: dict[Library, Any], calls: list[list[Chunk]], **settings: Any) -> None:
    """The rewards of all episodes after a piece has seen them are the same, call after call."""
    found = []
    for library in BOTH:
        piece, shaped = classes[library](**settings), []
        for chunks_of_call in calls:
            episodes, batch = [chunk.build(library) for chunk in chunks_of_call], {}
            assert run(piece, episodes, batch=batch) is batch
            shaped.append([np.asarray(episode.get_rewards()) for episode in episodes])
        found.append(shaped)
    assert mismatches(*found) == []


@random_cases(calls=calls_of(COUNTED), coefficient=st.sampled_from([1.0, 0.25]))
def test_count_based_curiosity(example, calls, coefficient):
    same_rewards(example("count_based_curiosity"), calls, intrinsic_reward_coeff=coefficient)


@random_cases(calls=calls_of(FLAT), size=st.sampled_from([1, 2, 100]))
def test_euclidian_distance_based_curiosity(example, calls, size):
    same_rewards(example("euclidian_distance_based_curiosity"), calls, max_buffer_size=size)


@random_cases(values=st.lists(st.tuples(*[st.floats(-9, 9, width=32)] * 4), min_size=1, max_size=5))
def test_protobuf_cartpole_observation_decoder(example, values):
    pytest.importorskip("google.protobuf")
    proto = RLLIB.module("examples.envs.classes.utils.cartpole_observations_proto")
    names = ("x_pos", "x_veloc", "angle_pos", "angle_veloc")
    coded = [proto.CartPoleObservation(**dict(zip(names, row))).SerializeToString() for row in values]
    rows, decoded = [np.frombuffer(one, np.uint8) for one in coded], []
    for library, cls in example("protobuf_cartpole_observation_decoder").items():
        piece = cls(gym.spaces.Box(0, 255, (len(rows[0]),), np.uint8), gym.spaces.Discrete(2))
        episodes = [library.SingleAgentEpisode(id_=str(i), observations=[row]) for i, row in enumerate(rows)]
        run(piece, episodes)
        decoded.append([[episode.get_observations(-1) for episode in episodes], piece.observation_space])
    assert mismatches(*decoded) == []
    np.testing.assert_array_equal(decoded[1][0], np.float32(values))


def played(library: Library, episode: Any, pieces: list[Any], events: list[Any]) -> list[Any]:
    """The observations of each batch after a reset and some env steps, and their space."""
    home, spaces_of = library.env_to_module, (episode.observation_space, episode.action_space)
    pipeline = home.EnvToModulePipeline(*spaces_of, connectors=[*pieces, home.AddObservationsFromEpisodesToBatch()])
    batches = []
    for t, event in enumerate(events):
        (episode.add_env_step if t else episode.add_env_reset)(**event)
        batches.append(run(pipeline, [episode], explore=True).get("obs", {}))
    return [batches, pipeline.observation_space]


@random_cases(
    seed=st.integers(0, 2**32 - 1), length=st.integers(2, 6), gone=st.sampled_from(["agent_0", "agent_1", None])
)
def test_add_other_agents_row_index_to_xy_pos(example, seed, length, gone):
    rng = np.random.default_rng(seed)
    box = gym.spaces.Box(0, length - 1, (2,), np.int32)
    spaces = gym.spaces.Dict(agent_0=box, agent_1=box)
    choices = gym.spaces.Dict(dict.fromkeys(spaces, gym.spaces.Discrete(4)))
    events: list[Any] = []
    for t in range(4):
        rows = {agent: np.int32([rng.integers(2), rng.integers(length)]) for agent in spaces}
        event = {"observations": {agent: row for agent, row in rows.items() if t < 3 or agent != gone}, "infos": {}}
        agents = spaces if t < 3 else event["observations"]
        if t:
            event.update(actions=dict.fromkeys(agents, 1), rewards=dict.fromkeys(agents, 0.5))
        if t == 2 and gone:
            event["terminateds"] = {gone: True}
        events.append(event)
    found = []
    for library, cls in example("add_other_agents_row_index_to_xy_pos").items():
        pieces = [cls(), library.env_to_module.FlattenObservations(multi_agent=True, agent_ids=["agent_0"])]
        episode = library.MultiAgentEpisode(id_="e", observation_space=spaces, action_space=choices)
        found.append(played(library, episode, pieces, events))
    assert mismatches(*found) == []
    assert [len(batch) for batch in found[1][0]] == [2, 2, 2, 1 if gone else 2]


def test_every_example_connector_is_tested_and_named_on_the_page():
    stems = {path.stem for path in rllib_file(CLASSES).glob("*.py")} - {"__init__"}
    assert stems <= {name.removeprefix("test_") for name in globals()}
    table = PAGE.read_text(encoding="utf-8").partition("| example | needs besides |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == stems


# -- pieces that the examples use ------------------------------------------------------------------


def several(length: Any) -> Any:
    """Some chunks of one observation space, each of an episode of its own."""
    return several_chunks(st.integers(1, 3), spaces, ACTIONS, length=length, state=0, extras=())


@pytest.mark.parametrize("bootstrap", [False, True])
@random_cases(given=several(st.integers(1, 6)))
def test_next_observations_and_infos(given, bootstrap):
    found = []
    for library in BOTH:
        pieces = library.learner
        made = [pieces.AddOneTsToEpisodesAndTruncate()] if bootstrap else []
        made += [pieces.AddNextObservationsFromEpisodesToTrainBatch(), pieces.AddInfosFromEpisodesToTrainBatch()]
        space, act = given[0].observation_space, given[0].action_space
        pipeline = pieces.LearnerConnectorPipeline(space, act, connectors=[*made, pieces.BatchIndividualItems()])
        batch = run(pipeline, [chunk.build(library) for chunk in given])
        found.append({name: batch[name] for name in ("new_obs", "infos")})
    assert mismatches(*found) == []


def newest(library: Library, given: list[Chunk]) -> list[Any]:
    """Episodes of the newest observations alone, as an acting pipeline sees each when it is the newest."""
    gone = {"actions": [], "rewards": [], "terminated": False, "truncated": False, "len_lookback_buffer": 0}
    columns = [{"observations": chunk.columns["observations"][-1:], "infos": [{}]} for chunk in given]
    return [chunk.build(library, numpy=False, **own, **gone) for chunk, own in zip(given, columns)]


PREPROCESSORS = "connectors.env_to_module.observation_preprocessor"


def preprocessor(library: Library) -> Any:
    """A piece that puts the observation into a Dict, beside how far the episode is."""
    module = library.module(PREPROCESSORS)
    assert module.ObservationPreprocessor is module.SingleAgentObservationPreprocessor

    class WithSteps(module.SingleAgentObservationPreprocessor):  # type: ignore[misc, name-defined]
        def recompute_output_observation_space(self, input_observation_space, input_action_space):
            return gym.spaces.Dict(own=input_observation_space, steps=gym.spaces.Box(0, 99, (), np.int64))

        def preprocess(self, observation, episode):
            return {"own": observation, "steps": np.int64(len(episode))}

    return WithSteps()


@random_cases(given=several(st.integers(0, 6)))
def test_single_agent_observation_preprocessor(given):
    found = []
    for library in BOTH:
        pieces, space, act = library.env_to_module, given[0].observation_space, given[0].action_space
        made = [preprocessor(library), pieces.AddObservationsFromEpisodesToBatch(), pieces.BatchIndividualItems()]
        pipeline, episodes = pieces.EnvToModulePipeline(space, act, connectors=made), newest(library, given)
        batch = run(pipeline, episodes, explore=True)
        assert pipeline.observation_space == episodes[0].observation_space
        found.append((batch, [in_lists(episode.get_observations(-1)) for episode in episodes]))
    assert mismatches(*found) == []


def preprocessor_of_agents(library: Library) -> Any:
    """A piece that puts beside each observation who else has one, and what the agents saw together."""
    base = library.module(PREPROCESSORS).MultiAgentObservationPreprocessor

    class Together(base):  # type: ignore[misc, valid-type]
        def recompute_output_observation_space(self, input_observation_space, input_action_space):
            others = gym.spaces.Box(-np.inf, np.inf, (len(SPACES) + 1,), np.float32)
            own = input_observation_space.spaces
            return gym.spaces.Dict({a: gym.spaces.Dict(own=space, others=others) for a, space in own.items()})

        def preprocess(self, observations, episode):
            total = sum(float(row[0]) for row in observations.values())
            others = np.float32([*(agent in observations for agent in SPACES), total])
            return {agent: {"own": row, "others": others + len(episode)} for agent, row in observations.items()}

    return Together()


@random_cases(team=teams(episodes=1, mild=True))
def test_multi_agent_observation_preprocessor(team: Team) -> None:
    schedule = team.schedules[0]
    unseen = any(step["terminateds"].keys() - step["observations"].keys() for step in schedule.steps)
    assume(not (unseen and listed("unseen-ends")))
    found = []
    for library in BOTH:
        episode, piece = library.MultiAgentEpisode(id_="e", **keywords()), preprocessor_of_agents(library)
        batches = played(library, episode, [piece], [schedule.reset, *schedule.steps])
        seen = {agent: in_lists(part.get_observations()) for agent, part in episode.agent_episodes.items()}
        found.append([batches, seen])
    assert mismatches(*found) == []


@random_cases(given=several(st.integers(0, 3)), seed=st.integers(0, 2**32 - 1))
def test_write_observations_to_episodes(given, seed):
    space, rng = given[0].observation_space, np.random.default_rng(seed)
    written, found = [rows(space, rng, 1)[0] for _ in given], []
    for library in BOTH:
        piece = library.env_to_module.WriteObservationsToEpisodes(space, given[0].action_space)
        episodes = [chunk.build(library, numpy=False) for chunk in given]
        batch = {"obs": {(episode.id_,): [row] for episode, row in zip(episodes, written)}}
        found.append([run(piece, episodes, batch=batch), [episode.get_observations(-1) for episode in episodes]])
    np.testing.assert_equal(*found)
    for mine, row in zip(found[1][1], written):
        np.testing.assert_equal(mine, row)
