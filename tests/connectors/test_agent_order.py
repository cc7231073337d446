"""Which agents there are, in which order, and what is no list of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Dict, Discrete

from epibatch.connectors._engine.agent_table import agents_of, check_agent_ids, places_of
from epibatch.connectors.env_to_module import AgentIndicator
from epibatch.core.errors import ConfigError, SpaceError, UnknownNameError

SPACES = Dict({"b": Discrete(2), "a": Discrete(2)})


def test_given_agents_go_before_those_of_the_spaces() -> None:
    piece = AgentIndicator(SPACES, multi_agent=True, in_dict=True)
    assert agents_of(piece, None) == list(SPACES.spaces) and agents_of(piece, [1, "b"]) == [1, "b"]
    assert agents_of(piece.parts.of("a"), None) == list(SPACES.spaces)  # an agent's copy knows the others
    piece.input_observation_space = Dict({"c": Discrete(2), "a": Discrete(2)})
    assert agents_of(piece.parts.of("a"), None) == ["a", "c"]
    piece.input_observation_space = Discrete(2)
    with pytest.raises(SpaceError, match=r"Discrete\(2\), which is not by agent"):
        agents_of(piece, None)


def test_places() -> None:
    places = places_of(AgentIndicator(), ["x", 3, ("y", 1)], [3, ("y", 1), "x", 3])
    assert places.tolist() == [1, 2, 0, 1] and places.dtype == np.int64
    assert places_of(AgentIndicator(), ["x"], []).tolist() == []
    with pytest.raises(UnknownNameError, match=r"AgentIndicator[\s\S]*'walker_1'[\s\S]*walker_2"):
        places_of(AgentIndicator(), ["walker_1"], ["walker_2"])


@pytest.mark.parametrize("wrong", ["ab", [], ["a", "b", "a"], {"a"}, 3])
def test_what_is_no_list_of_agents(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="agent_ids"):
        check_agent_ids(AgentIndicator(), wrong)
    assert (
        check_agent_ids(AgentIndicator(), ("a", "b")) == ["a", "b"] and check_agent_ids(AgentIndicator(), None) is None
    )


def test_an_agent_of_another_type_is_told_apart_from_the_one_that_was_meant():
    for agents, found, text in [
        ([0, 1], "1", "do:       write 1: ids are of type int here, not str; or name it in agent_ids"),
        (["0", "1"], 1, "do:       write '1': ids are of type str here, not int; or name it in agent_ids"),
        (["left", "right"], "lift", "do:       did you mean 'left'? Or name it in agent_ids"),
        (["left", "right"], "q", "do:       name it in agent_ids"),
    ]:
        with pytest.raises(UnknownNameError) as caught:
            places_of(None, agents, [found])
        assert text in str(caught.value)
