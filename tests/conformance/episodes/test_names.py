"""Every public name of RLlib's episodes and buffers is here, with every argument."""

from __future__ import annotations

import inspect

import pytest

from oracle.libraries import EPIBATCH, RLLIB

REMOVED = {
    "add_temporary_timestep_data",  # raises in RLlib as well
    "get_temporary_timestep_data",
    "get_sample_batch",  # old API stack
}


def test_every_public_name_is_there() -> None:
    theirs = {name for name in dir(RLLIB.SingleAgentEpisode()) if not name.startswith("_")}
    assert theirs - REMOVED <= set(dir(EPIBATCH.SingleAgentEpisode()))


METHODS = {name for name, _ in inspect.getmembers(RLLIB.SingleAgentEpisode, inspect.isfunction) if name[0] != "_"}


@pytest.mark.parametrize("name", sorted(METHODS - REMOVED | {"__init__"}))
def test_every_argument_is_there(name: str) -> None:
    expected = inspect.signature(getattr(RLLIB.SingleAgentEpisode, name)).parameters
    found = inspect.signature(getattr(EPIBATCH.SingleAgentEpisode, name)).parameters
    assert [p for p in expected if p not in found] == []
