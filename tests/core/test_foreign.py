"""RLlib's classes are known by where they come from, inherited ones too."""

from __future__ import annotations

import pytest

from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.core.errors import PieceError, PipelineError
from epibatch.core.imports import advice_for_episode, advice_for_piece, is_rllibs
from epibatch.core.registry import register

Theirs = type("ConnectorV2", (), {"__module__": "ray.rllib.connectors.connector_v2"})
TheirEpisode = type("SingleAgentEpisode", (), {"__module__": "ray.rllib.env.x", "get_observations": lambda self: []})


class Mine(Theirs):
    """As a user's piece that still inherits RLlib's class."""


def test_inherited_classes_count():
    assert is_rllibs(Theirs) and is_rllibs(Mine)
    assert not is_rllibs(EnvToModulePipeline)


@pytest.mark.parametrize("piece", [Mine, Mine()])
def test_pieces_are_to_be_ported_or_wrapped(piece):
    advice = advice_for_piece(piece)
    assert "epibatch port FILE --write" in advice and "from_rllib_piece" in advice
    with pytest.raises(PieceError, match="epibatch port FILE"):
        EnvToModulePipeline(connectors=[piece])


def test_classes_named_in_a_file_are_to_be_ported():
    with pytest.raises(PieceError, match="epibatch port FILE"):
        register("theirs")(Mine)


def test_episodes_are_to_be_converted():
    with pytest.raises(PipelineError, match=r"ray\.rllib\.env\.x\.SingleAgentEpisode(.|\n)*interop\.rllib\.from_rllib"):
        EnvToModulePipeline()(episodes=[TheirEpisode()])


@pytest.mark.parametrize("advice", [advice_for_piece(3), advice_for_piece(dict), advice_for_episode(dict)])
def test_for_others_there_is_no_advice(advice):
    assert advice == ""
