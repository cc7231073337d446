"""RLlib is loaded when it is used, and missing it is a named error with the command."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = "import sys; sys.modules['ray'] = None; "


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_importing_loads_no_rllib():
    code = "from epibatch.interop import rllib; from epibatch.interop.rllib import to_rllib, from_rllib_piece; "
    answer = run(code + "import sys; print('ray' in sys.modules, sorted(rllib.__all__)[0])")
    assert answer.stdout.split() == ["False", "compare_batches"], answer.stderr


@pytest.mark.parametrize(
    "use",
    [
        "to_rllib(SingleAgentEpisode())",
        "from_rllib([])",
        "to_rllib_piece(FrameStacking(num_frames=2))",
        "from_rllib_piece(object())",
    ],
)
def test_without_rllib_every_use_is_a_named_error(use):
    code = (
        "from epibatch.connectors.common import FrameStacking; from epibatch.episodes import SingleAgentEpisode; "
        "from epibatch.interop.rllib import from_rllib, from_rllib_piece, to_rllib, to_rllib_piece; "
    )
    answer = run(WITHOUT + code + use)
    assert "MissingExtraError: exchanging episodes and pieces with RLlib" in answer.stderr
    assert "pip install 'epibatch[rllib]'" in answer.stderr
