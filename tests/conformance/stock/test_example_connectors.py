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
from oracle.compare import mismatches
from oracle.differences import listed
from oracle.episodes import Chunk, several_chunks
from oracle.libraries import BOTH, EPIBATCH, RLLIB, Library
from oracle.spaces import rows, spaces
from oracle.teams import SPACES, Team, keywords, teams
from stock.installed import ported_module, rllib_file

PAGE = Path(__file__).parents[3] / "docs/porting.md"
CLASSES = "examples/connectors/classes"
FLAT = st.builds(lambda n: gym.spaces.Box(-3.0, 3.0, (n,), np.float32), st.integers(1, 3))
COUNTED = st.builds(lambda n, high: gym.spaces.Box(0, high, (n,), np.int64), st.integers(1, 2), st.integers(0, 2))
ACTIONS = st.just(gym.spaces.Discrete(3))


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Both versions of an example connector: RLlib's own and the ported one."""
    folder, made = tmp_path_factory.mktemp("ported"), {}

    def find(stem: str, name: str) -> dict[Library, Any]:
        if stem not in made:
            theirs = RLLIB.module(f"examples.connectors.classes.{stem}")
            made[stem] = {RLLIB: theirs, EPIBATCH: ported_module(f"{CLASSES}/{stem}.py", folder)}
        return {library: getattr(made[stem][library], name) for library in BOTH}

    return find


def shaped_rewards(piece: Any, library: Library, calls: list[list[Chunk]]) -> list[Any]:
    """The rewards of all episodes after a piece has seen them, call after call."""
    shaped = []
    for chunks_of_call in calls:
        episodes = [chunk.build(library) for chunk in chunks_of_call]
        batch: dict[str, Any] = {}
        assert piece(rl_module=None, batch=batch, episodes=episodes, shared_data={}) is batch
        shaped.append([np.asarray(episode.get_rewards()) for episode in episodes])
    return shaped


@st.composite
def calls_of(draw: st.DrawFn, observation_spaces: Any) -> Any:
    """Two calls with some chunks each; rewards are floats, since RLlib cuts bonuses off in a column of ints."""
    fixed = {"length": st.integers(1, 6), "reward": "float", "state": 0, "extras": ()}
    drawn = draw(several_chunks(st.integers(2, 6), observation_spaces, ACTIONS, **fixed))
    second = draw(st.integers(1, len(drawn) - 1))
    return [drawn[:second], drawn[second:]]


@random_cases(calls=calls_of(COUNTED), coefficient=st.sampled_from([1.0, 0.25]))
def test_count_based_curiosity(example, calls, coefficient):
    classes = example("count_based_curiosity", "CountBasedCuriosity")
    theirs, ours = (
        shaped_rewards(classes[library](intrinsic_reward_coeff=coefficient), library, calls) for library in BOTH
    )
    assert mismatches(theirs, ours) == []


@random_cases(calls=calls_of(FLAT), size=st.sampled_from([1, 2, 100]))
def test_euclidian_distance_based_curiosity(example, calls, size):
    classes = example("euclidian_distance_based_curiosity", "EuclidianDistanceBasedCuriosity")
    theirs, ours = (shaped_rewards(classes[library](max_buffer_size=size), library, calls) for library in BOTH)
    assert mismatches(theirs, ours) == []


@random_cases(values=st.lists(st.tuples(*[st.floats(-9, 9, width=32)] * 4), min_size=1, max_size=5))
def test_protobuf_cartpole_observation_decoder(example, values):
    pytest.importorskip("google.protobuf")
    proto = RLLIB.module("examples.envs.classes.utils.cartpole_observations_proto")
    names = ("x_pos", "x_veloc", "angle_pos", "angle_veloc")
    coded = [proto.CartPoleObservation(**dict(zip(names, row))).SerializeToString() for row in values]
    rows = [np.frombuffer(one, np.uint8) for one in coded]
    classes = example("protobuf_cartpole_observation_decoder", "ProtobufCartPoleObservationDecoder")
    decoded = {}
    for library in BOTH:
        space = gym.spaces.Box(0, 255, (len(rows[0]),), np.uint8)
        piece = classes[library](space, gym.spaces.Discrete(2))
        episodes = [library.SingleAgentEpisode(id_=str(i), observations=[row]) for i, row in enumerate(rows)]
        piece(rl_module=None, batch={}, episodes=episodes, shared_data={})
        decoded[library] = [episode.get_observations(-1) for episode in episodes], piece.observation_space
    assert mismatches(decoded[RLLIB][0], decoded[EPIBATCH][0]) == []
    assert decoded[RLLIB][1] == decoded[EPIBATCH][1]
    np.testing.assert_array_equal(decoded[EPIBATCH][0], np.float32(values))


@random_cases(
    seed=st.integers(0, 2**32 - 1), length=st.integers(2, 6), gone=st.sampled_from(["agent_0", "agent_1", None])
)
def test_add_other_agents_row_index_to_xy_pos(example, seed, length, gone):
    rng = np.random.default_rng(seed)
    box = gym.spaces.Box(0, length - 1, (2,), np.int32)
    spaces = gym.spaces.Dict(agent_0=box, agent_1=box)
    choices = gym.spaces.Dict(dict.fromkeys(spaces, gym.spaces.Discrete(4)))
    steps = [{a: np.int32([rng.integers(2), rng.integers(length)]) for a in spaces} for _ in range(4)]
    classes = example("add_other_agents_row_index_to_xy_pos", "AddOtherAgentsRowIndexToXYPos")
    seen = {}
    for library in BOTH:
        home = library.env_to_module
        pieces = [classes[library](), home.FlattenObservations(multi_agent=True, agent_ids=["agent_0"])]
        last = home.AddObservationsFromEpisodesToBatch()
        pipeline = home.EnvToModulePipeline(spaces, choices, connectors=[*pieces, last])
        episode = library.MultiAgentEpisode(id_="e", observation_space=spaces, action_space=choices)
        batches = []
        for t, observations in enumerate(steps):
            there = {a: row for a, row in observations.items() if t < 3 or a != gone}
            if t:
                ended = {"terminateds": {gone: True}} if t == 2 and gone else {}
                agents = list(spaces) if t < 3 else list(there)
                given = {"actions": dict.fromkeys(agents, 1), "rewards": dict.fromkeys(agents, 0.5), "infos": {}}
                episode.add_env_step(observations=there, **given, **ended)
            else:
                episode.add_env_reset(observations=there, infos={})
            batch = pipeline(rl_module=None, batch={}, episodes=[episode], explore=True, shared_data={})
            batches.append(batch["obs"])
        seen[library] = batches, pipeline.observation_space
    assert mismatches(seen[RLLIB][0], seen[EPIBATCH][0]) == []
    assert seen[RLLIB][1] == seen[EPIBATCH][1]
    assert [len(batch) for batch in seen[EPIBATCH][0]] == [2, 2, 2, 1 if gone else 2]


def test_every_example_connector_is_tested_and_named_on_the_page():
    stems = {path.stem for path in rllib_file(CLASSES).glob("*.py")} - {"__init__"}
    tested = {name.removeprefix("test_") for name in globals()}
    assert stems <= tested
    table = PAGE.read_text(encoding="utf-8").partition("| example | needs besides |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == stems


def several(length: Any) -> Any:
    """Some chunks of one observation space, each of an episode of its own."""
    return several_chunks(st.integers(1, 3), spaces, ACTIONS, length=length, state=0, extras=())


def batches(make: Any, given: list[Chunk], *, numpy: bool, newest_only: bool = False) -> tuple[Any, Any]:
    """What `make(library, episodes)` gives in RLlib and here.

    Args:
        make: makes it.
        given: the chunks, from which each library builds its episodes.
        numpy: call `to_numpy()` on them.
        newest_only: leave their history out, as an acting pipeline sees each observation when it is the newest.
    """

    def build(library: Library, chunk: Chunk) -> Any:
        last = {"observations": chunk.columns["observations"][-1:], "infos": [{}], "len_lookback_buffer": 0}
        rest = {"actions": [], "rewards": [], "terminated": False, "truncated": False}
        return chunk.build(library, numpy=numpy, **({**last, **rest} if newest_only else {}))

    theirs, ours = (make(library, [build(library, chunk) for chunk in given]) for library in BOTH)
    return theirs, ours


@pytest.mark.parametrize("bootstrap", [False, True])
@random_cases(given=several(st.integers(1, 6)))
def test_next_observations_and_infos(given, bootstrap):
    def make(library: Library, episodes: list[Any]) -> Any:
        pieces = library.learner
        made = [pieces.AddOneTsToEpisodesAndTruncate()] if bootstrap else []
        made += [pieces.AddNextObservationsFromEpisodesToTrainBatch(), pieces.AddInfosFromEpisodesToTrainBatch()]
        space, act = given[0].observation_space, given[0].action_space
        pipeline = pieces.LearnerConnectorPipeline(space, act, connectors=[*made, pieces.BatchIndividualItems()])
        batch = pipeline(rl_module=None, batch={}, episodes=episodes, explore=True, shared_data={})
        return {name: batch[name] for name in ("new_obs", "infos")}

    assert mismatches(*batches(make, given, numpy=True)) == []


def preprocessor(library: Library) -> Any:
    """A piece that puts the observation into a Dict, beside how far the episode is."""
    base = library.module("connectors.env_to_module.observation_preprocessor").SingleAgentObservationPreprocessor

    class WithSteps(base):  # type: ignore[misc]
        def recompute_output_observation_space(self, input_observation_space, input_action_space):
            return gym.spaces.Dict(own=input_observation_space, steps=gym.spaces.Box(0, 99, (), np.int64))

        def preprocess(self, observation, episode):
            return {"own": observation, "steps": np.int64(len(episode))}

    return WithSteps


@random_cases(given=several(st.integers(0, 6)))
def test_single_agent_observation_preprocessor(given):
    def make(library: Library, episodes: list[Any]) -> Any:
        pieces, space, act = library.env_to_module, given[0].observation_space, given[0].action_space
        made = [preprocessor(library)(), pieces.AddObservationsFromEpisodesToBatch(), pieces.BatchIndividualItems()]
        pipeline = pieces.EnvToModulePipeline(space, act, connectors=made)
        batch = pipeline(rl_module=None, batch={}, episodes=episodes, explore=True, shared_data={})
        return (
            batch,
            [episode.get_observations(-1) for episode in episodes],
            pipeline.observation_space == (episodes[0].observation_space),
        )

    theirs, ours = batches(make, given, numpy=False, newest_only=True)
    assert mismatches(theirs[0], ours[0]) == []
    assert theirs[2] and ours[2]
    for other, mine in zip(theirs[1], ours[1]):
        assert mine["steps"] == other["steps"]
        np.testing.assert_equal(mine["own"], other["own"])


def preprocessor_of_agents(library: Library) -> Any:
    """A piece that puts beside each observation who else has one, and what the agents saw together."""
    base = library.module("connectors.env_to_module.observation_preprocessor").MultiAgentObservationPreprocessor

    class Together(base):  # type: ignore[misc]
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
        spaces_of = keywords()["observation_space"], keywords()["action_space"]
        home = library.env_to_module
        pipeline = home.EnvToModulePipeline(*spaces_of, connectors=[piece, home.AddObservationsFromEpisodesToBatch()])
        batches_of, given = [], [schedule.reset, *schedule.steps]
        for t, event in enumerate(given):
            (episode.add_env_step if t else episode.add_env_reset)(**event)
            batch = pipeline(rl_module=None, batch={}, episodes=[episode], explore=True, shared_data={})
            batches_of.append(batch.get("obs", {}))
        seen = {agent: part.get_observations() for agent, part in episode.agent_episodes.items()}
        found.append((batches_of, seen, piece.observation_space))
    theirs, ours = found
    assert mismatches(theirs[0], ours[0]) == []
    assert theirs[1].keys() == ours[1].keys() and theirs[2] == ours[2]
    for agent, rows_of in ours[1].items():
        np.testing.assert_equal(stacked(theirs[1][agent]), rows_of)


def stacked(given: Any) -> Any:
    """Rows of nested observations as arrays, whether they came in a list or stacked."""
    if not isinstance(given, list):
        return given
    return {key: np.stack([row[key] for row in given]) for key in given[0]}


@random_cases(given=several(st.integers(0, 3)), seed=st.integers(0, 2**32 - 1))
def test_write_observations_to_episodes(given, seed):
    space, rng = given[0].observation_space, np.random.default_rng(seed)
    written = [rows(space, rng, 1)[0] for _ in given]

    def make(library: Library, episodes: list[Any]) -> Any:
        piece = library.env_to_module.WriteObservationsToEpisodes(space, given[0].action_space)
        batch = {"obs": {(episode.id_,): [row] for episode, row in zip(episodes, written)}}
        out = piece(rl_module=None, batch=batch, episodes=episodes, explore=True, shared_data={})
        return out, [episode.get_observations(-1) for episode in episodes]

    theirs, ours = batches(make, given, numpy=False)
    np.testing.assert_equal(ours, theirs)
    for mine, row in zip(ours[1], written):
        np.testing.assert_equal(mine, row)


def test_both_sides_are_there():
    for library in (RLLIB, EPIBATCH):
        module = library.module("connectors.env_to_module.observation_preprocessor")
        assert module.ObservationPreprocessor is module.SingleAgentObservationPreprocessor
