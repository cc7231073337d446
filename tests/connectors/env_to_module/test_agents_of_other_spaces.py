"""Agents whose observations or actions differ share a module, and are told apart."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple

from epibatch.connectors.common import AddObservationsFromEpisodesToBatch, AgentToModuleMapping, BatchIndividualItems
from epibatch.connectors.env_to_module import (
    AgentIndicator,
    EnvToModulePipeline,
    PadActions,
    PadObservations,
)
from epibatch.core.errors import BatchLayoutError, ConfigError, PipelineError, SpaceError, UnknownNameError
from epibatch.core.registry import build_piece, piece_to_dict
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode
from fixture_pieces import UserPiece

SIZES = {"a": 1, "b": 4, "c": 2, "d": 4}
SPACES = Dict({agent: Box(-np.inf, np.inf, (size,), np.float32) for agent, size in SIZES.items()})
VECTOR = Box(np.float32([-10, -20]), np.float32([30, 40]))
SEEN = Box(-9, 9, (2,))
CHOICES = {"a": Discrete(2), "b": Discrete(4), "c": Discrete(3, start=2)}
MODULES = {"x": "m", "y": "n", "z": "m"}


def module_of(agent: Any, *_: Any, **__: Any) -> str:
    return MODULES.get(agent, "shared")


def pipeline(*pieces: Any, spaces: Any, actions: Any = None) -> EnvToModulePipeline:
    """A pipeline about agents with these spaces, by which x and z share a module, y has one, and all others share."""
    actions = actions or dict.fromkeys(spaces, Discrete(4))
    mapping = AgentToModuleMapping(agent_to_module_mapping_fn=module_of)
    tail = [AddObservationsFromEpisodesToBatch(), UserPiece(), mapping, BatchIndividualItems()]
    return EnvToModulePipeline(Dict(spaces), Dict(actions), connectors=[*pieces, *tail])


def game(observations: dict[str, Any], spaces: Any = None, actions: Any = None, name: str = "e") -> MultiAgentEpisode:
    episode = MultiAgentEpisode(
        id_=name, observation_space=spaces, action_space=actions, agent_to_module_mapping_fn=module_of
    )
    episode.add_env_reset(observations=observations)
    return episode


# -- padded observations -------------------------------------------------------------------------

COMMON: list[tuple[list[Any], Any]] = [
    ([Box(-1, 1, (2,)), Box(2, 3, (3,))], Box(np.float32([-1, -1, 0]), np.float32([3, 3, 3]))),
    ([Box(1, 2, (2, 1)), Box(1, 2, (1, 3))], Box(*np.float32([[[1, 0, 0], [0] * 3], [[2] * 3, [2, 0, 0]]]))),
    ([Box(0, 9, (1,), np.uint8), Box(-1, 1, (2,), np.float32)], Box(np.float32([-1, -1]), np.float32([9, 1]))),
    ([Discrete(3), Discrete(5)], Discrete(5)),
    ([Discrete(3, start=-1), Discrete(2, start=4)], Discrete(7, start=-1)),
    ([MultiBinary(2), MultiBinary(4)], MultiBinary(4)),
    ([Dict(a=Discrete(own), b=MultiBinary(1)) for own in (2, 3)], Dict(a=Discrete(3), b=MultiBinary(1))),
    ([Tuple([Discrete(2), Box(0, 1, (own,))]) for own in (1, 2)], Tuple([Discrete(2), Box(0, 1, (2,))])),
    ([MultiDiscrete([2, 3]), MultiDiscrete([2, 3])], MultiDiscrete([2, 3])),
    ([Text(3), Text(3)], Text(3)),
]


@pytest.mark.parametrize(("spaces", "expected"), COMMON)
def test_padded_observations_are_in_the_common_space_and_zero_behind_their_end(
    spaces: list[Any], expected: Any
) -> None:
    for order in (spaces, spaces[::-1]):
        agents = dict(zip("ab", order))
        piece = PadObservations(Dict(agents), None, multi_agent=True)
        assert piece.observation_space == Dict(a=expected, b=expected)
        for space in agents.values():
            space.seed(0)
        for _ in range(0 if isinstance(expected, Text) else 10):
            given = {agent: space.sample() for agent, space in agents.items()}
            episode = game(given, Dict(agents))
            piece(batch={}, episodes=[episode])
            for agent, found in episode.get_observations(-1).items():
                assert found in expected, (found, expected)
                assert total(found) == pytest.approx(total(given[agent]))
                flat = gym.spaces.utils.flatten(agents[agent], cut(found, agents[agent]))
                assert np.array_equal(flat, gym.spaces.utils.flatten(agents[agent], given[agent]))


def cut(value: Any, own: Any) -> Any:
    if isinstance(own, Dict):
        return {key: cut(value[key], own[key]) for key in own.spaces}
    if isinstance(own, Tuple):
        return tuple(cut(part, one) for part, one in zip(value, own))
    return value[tuple(map(slice, own.shape))] if own.shape else value


def total(value: Any) -> float:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else None
    return float(np.sum(value, dtype=np.float64)) if parts is None else sum(map(total, parts))


@pytest.mark.parametrize(
    "spaces",
    [
        [Box(0, 1, (2,)), Box(0, 1, (2, 1))],
        [Box(0, 1, (2,)), Discrete(2)],
        [Dict(a=Discrete(2)), Dict(b=Discrete(2))],
        [Tuple([Discrete(2)]), Tuple([Discrete(2), Discrete(2)])],
        [MultiDiscrete([2]), MultiDiscrete([3])],
        [Dict(a=Text(2)), Dict(a=Text(3))],
    ],
)
def test_spaces_without_a_common_one_are_named(spaces: list[Any]) -> None:
    with pytest.raises(SpaceError, match=r"PadObservations[\s\S]*agent_ids="):
        PadObservations(Dict(dict(zip("ab", spaces))), None, multi_agent=True).observation_space  # noqa: B018


VECTORS = [Box(0, 1, (2,)), Box(0, 1, (3,))]


@pytest.mark.parametrize(
    ("spaces", "row"),
    [
        (VECTORS, np.zeros(3)),
        (VECTORS, {"a": np.zeros(1)}),
        ([Dict(a=Discrete(2)), Dict(a=Discrete(3))], {"b": np.zeros(1)}),
        ([Tuple([Discrete(2)]), Tuple([Discrete(3)])], np.zeros(1)),
    ],
)
def test_rows_of_another_form_are_named(spaces: list[Any], row: Any) -> None:
    with pytest.raises(SpaceError, match="agent 'a'"):
        PadObservations(Dict(dict(zip("ab", spaces))), None, multi_agent=True)(batch={}, episodes=[game({"a": row})])


def test_only_some_agents_and_more_pieces() -> None:
    """a and c are padded and told apart; b and d of another kind are as they were, up to the indicator."""

    def by_size(agent: str, *_: Any, **__: Any) -> str:
        return "small" if agent in "ac" else "large"

    mapping = AgentToModuleMapping(agent_to_module_mapping_fn=by_size, rl_module_specs={"small", "large"})
    pieces = [PadObservations(agent_ids=["a", "c"]), AgentIndicator(), AddObservationsFromEpisodesToBatch()]
    acting = EnvToModulePipeline(SPACES, None, connectors=[*pieces, mapping, BatchIndividualItems()])
    shapes = {name: space.shape for name, space in acting.observation_space.spaces.items()}
    assert shapes == {"small": (6,), "large": (8,)}
    episode = MultiAgentEpisode(id_="e", observation_space=SPACES, agent_to_module_mapping_fn=by_size)
    episode.add_env_reset(observations={agent: np.resize(v(1, 2), SIZES[agent]) for agent in "dcba"})
    batch = acting(rl_module=None, episodes=[episode])
    assert batch["small"]["obs"].tolist() == [[1, 2, 0, 0, 1, 0], [1, 0, 1, 0, 0, 0]]
    assert batch["large"]["obs"].tolist() == [[1, 2, 1, 2, 0, 0, 0, 1], [1, 2, 1, 2, 0, 1, 0, 0]]


# -- one-hots of agents --------------------------------------------------------------------------


def v(*numbers: float) -> Any:
    return np.float32(numbers)


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (Discrete(7), np.int64(5)),
        (Box(0, 255, (2, 2, 1), np.uint8), np.full((2, 2, 1), 9, np.uint8)),
        (Dict(p=Box(-9, 9, (2,)), q=Discrete(2)), {"p": np.float32([1, 2]), "q": np.int64(1)}),
        (VECTOR, np.float32([0, 1])),
    ],
)
def test_any_observation_beside_the_one_hot(space: Any, value: Any) -> None:
    spaces = dict.fromkeys("xyz", space)
    acting, episode = pipeline(AgentIndicator(in_dict=True), spaces=spaces), game({"y": value}, spaces)
    acting(rl_module=None, episodes=[episode])
    found = episode.get_observations(-1)["y"]
    assert found in acting.observation_space["n"]
    assert found["agent"].tolist() == [0.0, 1.0, 0.0] and found["agent"].dtype == np.float32
    assert np.all(found["obs"] == value) if not isinstance(value, dict) else found["obs"]["q"] == 1


def test_types_stay_and_the_order_can_be_given() -> None:
    space = Box(0, 255, (2,), np.uint8)
    piece = AgentIndicator(Dict(x=space, y=space), None, multi_agent=True, agent_ids=["late", "y", "x"])
    episode = game({"y": np.uint8([7, 8]), "x": np.uint8([1, 2])}, dict.fromkeys("xy", space))
    piece(batch={}, episodes=[episode])
    found = episode.get_observations(-1)
    assert found["y"].tolist() == [7, 8, 0, 1, 0] and found["x"].tolist() == [1, 2, 0, 0, 1]
    assert found["y"].dtype == np.uint8 and found["y"] in piece.observation_space["y"]
    acting = pipeline(AgentIndicator(), spaces=dict.fromkeys("xyz", VECTOR))
    wide = Box(v(-10, -20, 0, 0, 0), v(30, 40, 1, 1, 1))
    assert acting.observation_space == Dict(m=wide, n=wide)
    rebuilt = build_piece(piece_to_dict(AgentIndicator(agent_ids=["a"], in_dict=True)))
    assert repr(rebuilt) == "AgentIndicator(agent_ids=['a'], in_dict=True)"


# -- padded actions ------------------------------------------------------------------------------


def test_masks_and_spaces_step_by_step() -> None:
    acting = pipeline(UserPiece(), PadActions(), spaces=dict.fromkeys("abc", SEEN), actions=CHOICES)
    assert acting.action_space == Dict(shared=Discrete(5))
    assert acting.observation_space == Dict(shared=Dict(action_mask=MultiBinary(5), observations=SEEN))
    episode = game({"c": v(1, 2), "b": v(3, 4)}, dict.fromkeys("abc", SEEN), CHOICES)
    batch = acting(rl_module=None, episodes=[episode])["shared"]["obs"]
    assert batch["action_mask"].tolist() == [[0, 0, 1, 1, 1], [1, 1, 1, 1, 0]]
    assert batch["observations"].tolist() == [[1, 2], [3, 4]]
    rows = {agent: v(i, i) for i, agent in enumerate("abc")}
    episode.add_env_step(rows, {"c": 2, "b": 0}, {"c": 0.0, "b": 0.0})
    batch = acting(rl_module=None, episodes=[episode])["shared"]["obs"]
    masks = {"c": [0, 0, 1, 1, 1], "b": [1, 1, 1, 1, 0], "a": [1, 1, 0, 0, 0]}
    assert batch["action_mask"].tolist() == list(masks.values())  # in the order of appearance
    for agent, part in episode.agent_episodes.items():
        newest = part.get_observations(-1)
        assert newest in part.observation_space and newest["action_mask"].tolist() == masks[agent]
        assert np.flatnonzero(newest["action_mask"]).tolist() == [x for x in range(5) if CHOICES[agent].contains(x)]


def test_a_mask_that_is_there_is_lengthened() -> None:
    actions = {"a": Discrete(2), "b": Discrete(4)}
    seen = {
        agent: Dict(action_mask=Box(0, 1, (int(space.n),), np.int8), observation=SEEN)
        for agent, space in actions.items()
    }
    acting = pipeline(PadActions(), spaces=seen, actions=actions)
    assert acting.observation_space["shared"] == Dict(action_mask=MultiBinary(4), observation=SEEN)
    rows = {
        "a": {"action_mask": np.int8([0, 1]), "observation": v(1, 1)},
        "b": {"action_mask": np.int8([1, 0, 0, 1]), "observation": v(2, 2)},
    }
    batch = acting(rl_module=None, episodes=[game(rows, seen, actions)])["shared"]["obs"]
    assert batch["action_mask"].tolist() == [[0, 1, 0, 0], [1, 0, 0, 1]] and batch["action_mask"].dtype == np.int8
    assert batch["observation"].tolist() == [[1, 1], [2, 2]]
    rows["a"]["action_mask"] = np.int8([1, 1, 1])
    with pytest.raises(SpaceError, match=r"'action_mask' of agent 'a'[\s\S]*shape \(3,\)"):
        acting(rl_module=None, episodes=[game(rows, None, actions)])


def test_boxes_and_equal_spaces_have_no_mask_and_agents_that_are_not_meant_stay() -> None:
    seen, actions = dict.fromkeys("ab", SEEN), {"a": Box(-2, 2, (1,)), "b": Box(1, 3, (3,))}
    acting = pipeline(PadActions(), spaces=seen, actions=actions)
    assert acting.action_space["shared"] == Box(v(-2, 0, 0), v(3, 3, 3))
    assert acting.observation_space["shared"] == SEEN
    episode = game({"a": v(1, 2)}, None, actions)
    assert acting(rl_module=None, episodes=[episode])["shared"]["obs"].tolist() == [[1, 2]]
    acting = pipeline(PadActions(), spaces=seen, actions={"a": Discrete(3), "b": Discrete(3)})
    assert acting.action_space["shared"] == Discrete(3) and acting.observation_space["shared"] == SEEN
    piece = PadActions(Dict(dict.fromkeys("abc", SEEN)), Dict(CHOICES), multi_agent=True, agent_ids=["a", "b"])
    assert piece.action_space == Dict(a=Discrete(4), b=Discrete(4), c=CHOICES["c"])
    assert piece.observation_space["c"] == SEEN
    episode = game({agent: v(1, 2) for agent in "abc"}, dict.fromkeys("abc", SEEN), CHOICES)
    piece(batch={}, episodes=[episode])
    newest = episode.get_observations(-1)
    assert newest["c"].tolist() == [1, 2] and newest["a"]["action_mask"].tolist() == [1, 1, 0, 0]
    assert episode.agent_episodes["c"].observation_space == SEEN


# -- mistakes ------------------------------------------------------------------------------------

PADDED = {"multi_agent": True}


def refused_actions(*other: str, **actions: Any) -> Any:
    piece = PadActions(agent_ids=["a", *other]) if other else PadActions()
    return lambda: pipeline(piece, spaces=dict.fromkeys(actions, SEEN), actions=actions)


ALONE = SingleAgentEpisode(observations=[np.zeros(1, np.float32)])


def run(piece: Any, episode: Any) -> Any:
    return piece(batch={}, episodes=[episode])


def indicator(observation: Any) -> Any:
    return run(AgentIndicator(agent_ids=["y"]), game({"y": observation}))


def late() -> Any:
    return EnvToModulePipeline(connectors=[AddObservationsFromEpisodesToBatch(), AgentIndicator(agent_ids=["y"])])


@pytest.mark.parametrize(
    ("mistake", "error", "words"),
    [
        (lambda: run(PadObservations(), game({"a": v(1)})), SpaceError, "a Dict of the agents' obs"),
        (lambda: pipeline(PadObservations(agent_ids=["a", "z"]), spaces=SPACES.spaces), UnknownNameError, "z"),
        (lambda: PadObservations(agent_ids="a"), ConfigError, "agent_ids"),
        (lambda: run(PadObservations(SPACES, None, **PADDED), ALONE), BatchLayoutError, "multi-agent episodes"),
        (lambda: run(AgentIndicator(), game({"y": v(1, 2)})), SpaceError, "pass agent_ids"),
        (lambda: pipeline(AgentIndicator(), spaces=dict.fromkeys("xy", Discrete(4))), SpaceError, r"'x'(?s:.*)in_dict"),
        (lambda: indicator(np.zeros((2, 2), np.float32)), SpaceError, "in_dict=True"),
        (lambda: run(AgentIndicator(agent_ids=["y"]), ALONE), BatchLayoutError, "multi-agent episodes"),
        (late, PipelineError, "move AgentIndicator before"),
        (refused_actions(a=Discrete(2), b=Box(0, 1, (1,))), SpaceError, "PadActions, action spaces"),
        (refused_actions(a=MultiDiscrete([2]), b=MultiDiscrete([3])), SpaceError, "PadActions, action spaces"),
        (refused_actions(a=MultiBinary(2), b=MultiBinary(3)), SpaceError, r"or Boxes(?s:.*)MultiBinary"),
        (refused_actions("z", **CHOICES), UnknownNameError, "'z'"),
        (lambda: PadActions(agent_ids="a"), ConfigError, "agent_ids"),
        (lambda: run(PadActions(), game({"a": v(1)}, None, CHOICES)), SpaceError, "a Dict of the age"),
        (lambda: run(PadActions(), ALONE), BatchLayoutError, "multi-agent episodes"),
    ],
)
def test_mistakes_are_named(mistake: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        mistake()
