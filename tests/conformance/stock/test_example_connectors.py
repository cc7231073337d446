"""RLlib's example connectors, ported, beside themselves in RLlib: the same episodes, the same results."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import strategies as st

from oracle.cases import random_cases
from oracle.compare import mismatches
from oracle.episodes import Chunk, several_chunks
from oracle.libraries import BOTH, EPIBATCH, RLLIB, Library
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
