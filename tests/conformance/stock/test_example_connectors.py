"""RLlib's example connectors, ported, beside themselves in RLlib: the same episodes, the same results."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import strategies as st

from oracle.cases import random_cases
from oracle.compare import mismatches
from oracle.episodes import Chunk, several_chunks
from oracle.libraries import BOTH, EPIBATCH, RLLIB, Library
from stock.installed import NotPorted, ported_module

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
def test_protobuf_observations(example, values):
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


NEAREST = "the nearest is SingleAgentObservationPreprocessor"
PREPROCESSOR = f"no such name in epibatch.connectors.env_to_module.observation_preprocessor; {NEAREST}"
NOT_HERE = {"add_other_agents_row_index_to_xy_pos": PREPROCESSOR}
"""Example connector -> what `epibatch port` says about a name that it needs."""


@pytest.mark.parametrize("stem", sorted(NOT_HERE))
def test_what_is_not_here_is_still_not_here(stem, tmp_path):
    with pytest.raises(NotPorted) as raised:
        ported_module(f"{CLASSES}/{stem}.py", tmp_path)
    assert raised.value.reasons == {NOT_HERE[stem]}


def test_every_example_connector_is_tested_or_listed():
    from stock.installed import rllib_file

    stems = {path.stem for path in rllib_file(CLASSES).glob("*.py")} - {"__init__"}
    tested = {"count_based_curiosity", "euclidian_distance_based_curiosity", "protobuf_cartpole_observation_decoder"}
    assert stems == tested | set(NOT_HERE)
