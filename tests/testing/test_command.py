"""`epibatch check` tries a piece that is named by text."""

from __future__ import annotations

import json
import sys

import gymnasium as gym
import numpy as np
import pytest
from typer.testing import CliRunner

from epibatch.cli import app

MODULE = """
from epibatch.connectors import ConnectorV2


class Fine(ConnectorV2):
    pipelines = ("learner",)

    def __init__(self, input_observation_space=None, input_action_space=None, *, size: int = 1):
        super().__init__(input_observation_space, input_action_space)
        self.size = size

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        return batch


class Shows(Fine):
    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        raise ValueError(f"saw {self.input_observation_space}")


class Writes(Fine):
    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in episodes:
            episode.set_rewards(new_data=episode.get_rewards() + 1)
        return batch
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "my_pieces.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield lambda *words: CliRunner().invoke(app, ["check", *words])
    sys.modules.pop("my_pieces", None)


def test_a_built_in_piece(run):
    result = run(
        "frame_stacking", "--set", "num_frames=2", "--observation-space", "Box(0, 1, (4, 1))", "--side", "learner"
    )
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("FrameStacking: ") and lines[1].split() == ["check", "side", "outcome", "why"]
    assert "chunks" in result.stdout and "env_to_module" not in result.stdout
    assert "does not apply  " not in result.stdout


def test_checks_that_do_not_apply(run):
    words = ("compute_returns_to_go", "--set", "gamma=0.5", "--only", "inverse")
    assert "it has no inverse" not in run(*words).stdout
    assert "inverse  all   does not apply  it has no inverse" in run(*words, "--all").stdout


def test_a_piece_of_ones_own(run):
    result = run("my_pieces:Fine", "--allow-imports", "--set", "size=3")
    assert result.exit_code == 0, result.output
    result = run("my_pieces:Writes", "--allow-imports")
    assert result.exit_code == 1
    assert "episodes_unchanged  learner  failed" in result.stdout
    assert "mutates_episodes = True" in result.stderr
    assert run("my_pieces:Writes", "--allow-imports", "--skip", "episodes_unchanged=known").exit_code == 0
    assert run("my_pieces:Writes", "--allow-imports", "--only", "chunks").exit_code == 0
    sys.modules.pop("my_pieces")
    assert run("my_pieces:Fine").exit_code == 2 and "my_pieces" not in sys.modules
    words = ("--side", "learner", "--model", "use_lstm=true", "--only", "runs", "--json")
    assert json.loads(run("add_states_from_episodes_to_batch", *words).stdout)[0]["outcome"] == "passed"


def test_json(run):
    result = run("compute_returns_to_go", "--set", "gamma=0.5", "--only", "chunks", "--json")
    assert json.loads(result.stdout) == [{"check": "chunks", "side": "learner", "outcome": "passed", "why": ""}]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("my_pieces:Fine",), "--allow-imports"),
        (("frame_stackin",), "did you mean 'frame_stacking'"),
        (("frame_stacking", "--set", "num_frames"), "--set key=value"),
        (("frame_stacking", "--side", "learn"), "did you mean 'learner'"),
        *[
            (("frame_stacking", "--observation-space", text), found)
            for text, found in {
                "Bx(0, 1)": "did you mean 'Box'",
                "Box(0, 1": "found:",
                "3": "int 3",
                "Box(open('x'), 1)": "open",
                "__import__('os').system('true')": "system",
                "Discrete(-2)": "Error",
                "Box(0, 1, (2,), dtype=colour)": "colour",
                "Discrete(1 + 1)": "1 + 1",
            }.items()
        ],
        (("frame_stacking", "--only", "chunk"), "did you mean 'chunks'"),
        (("frame_stacking", "--skip", "chunks"), "a check and the reason"),
        (("nowhere_at_all:Piece", "--allow-imports"), "check the spelling of module:Class, and that nowhere_at_all"),
        (("my_pieces:Fin", "--allow-imports"), "did you mean 'Fine'"),
        (("frame_stacking", "--set", "num_frame=2"), "correct what --set says"),
        (("concatenate_columns",), "--set columns=VALUE"),
    ],
)
def test_wrong_usage(run, words, text):
    result = run(*words)
    assert result.exit_code == 2 and result.stderr.startswith("error: ") and text in result.stderr


@pytest.mark.parametrize(
    "space",
    [
        " Box(0, 255, (4, 4, 1), uint8) ",
        "Box(low=-inf, high=np.inf, shape=(2,), dtype='float64')",
        "gym.spaces.Discrete(3, start=-1)",
        "Dict(a=MultiDiscrete([2, 3]), b=MultiBinary(4))",
        "Dict({'a': Tuple([Discrete(2), Box(0, 1, ())])})",
    ],
)
def test_spaces_as_text(run, space):
    """The piece refuses a space in which the value is not, with the value that was read."""
    expected = eval(space, {**vars(gym.spaces), "gym": gym, "np": np, "inf": np.inf, "uint8": np.uint8})
    result = run("my_pieces:Shows", "--allow-imports", "--only", "runs", "--observation-space", space)
    assert result.exit_code == 1 and " ".join(f"saw {expected}".split()) in " ".join(result.stderr.split())
