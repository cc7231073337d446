"""A package that was built and installed is used by name, and what is wrong with packages is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import epibatch
from epibatch.algorithms import PPOConfig
from epibatch.cli import app
from epibatch.core import __version__
from epibatch.core.errors import ConfigError

pytestmark = pytest.mark.slow  # pip builds and installs it
SOURCES = str(Path(epibatch.__file__).parents[1])
PIECE = """
from epibatch.connectors import ConnectorV2

class Piece(ConnectorV2):
    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        return batch
"""
TAKES_A_NAME = """
from epibatch import register
from epibatch.connectors import ConnectorV2

@register("frame_stacking")
class Mine(ConnectorV2):
    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        return batch
"""
OWN_CLASS = "epibatch_clip_rewards:ClipRewards"


def command(*words):
    return CliRunner().invoke(app, list(words))


def test_the_installed_piece_trains_by_name(installed):
    path = os.pathsep.join([str(installed.site), SOURCES, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "epibatch", "train", "clipped.yaml", "--run", "run", "--iterations", "1"],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    config = Path("run", "config.yaml").read_text()
    assert "- piece: clip_rewards\n  bound: 0.5\n" in config
    again = command("train", "--resume", "run", "--iterations", "1")
    assert again.exit_code == 0, again.output
    assert len(Path("run", "metrics.jsonl").read_text().splitlines()) == 2


def test_it_is_listed_with_its_owner(installed):
    piece = json.loads(command("pieces", "clip_rewards", "--json").output)
    assert (piece["owner"], piece["version"], piece["path"]) == ("epibatch-clip-rewards", "1.0.0", OWN_CLASS)
    assert piece["pipelines"] == ["learner"] and piece["declared"] and piece["mutates_episodes"]
    assert piece["keywords"]["bound"] == {"default": 1.0, "doc": "The largest reward that is left as it is, above 0."}
    assert piece["description"] == "Bounds every reward to [-bound, bound]."


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("bound: 0.5", "bond: 0.5", ["learner[0].bond", "did you mean 'bound'"]),
        ("bound: 0.5", "bound: -1", ["ClipRewards.bound", "a number above 0", "-1"]),
        ("learner:", "env_to_module:", ["env_to_module[0].piece", "made for learner"]),
    ],
)
def test_wrong_use_is_named(installed, old, new, words):
    with pytest.raises(ConfigError) as caught:
        PPOConfig.from_yaml(installed.text.replace(old, new)).build_algo()
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)


def test_a_name_that_two_packages_offer(installed, package):
    installed.add(package("rival-pieces", "2.1", {"clip_rewards": "rival_pieces:Piece"}, rival_pieces=PIECE))
    done = command("train", "clipped.yaml")
    assert done.exit_code == 2
    for words in (f"epibatch-clip-rewards 1.0.0 ({OWN_CLASS})", "rival-pieces 2.1 (rival_pieces:Piece)", "one owner"):
        assert words in done.output
    listed = command("pieces", "clip_rewards").output
    assert "rival-pieces 2.1" in listed and "epibatch-clip-rewards 1.0.0" in listed
    PPOConfig.from_yaml(installed.text.partition("learner:")[0]).build_algo().stop()  # who does not use it is not hit


def test_every_broken_package_is_listed_and_breaks_no_other(installed, package):
    installed.add(
        package("takes-ours", "1", {"get_actions": "takes_ours:Piece"}, takes_ours=PIECE),
        package("not-there", "1", {"not_there": "not_there:Piece"}, not_there="import a_module_that_nobody_has"),
        package("no-piece", "1", {"no_piece": "no_piece:Piece"}, no_piece="class Piece: pass"),
        package("no-class", "1", {"no_class": "no_class"}),
        package("odd-name", "1", {"o.dd": "odd_name:Piece"}, odd_name=PIECE),
        package("decorates", "1", {"decorates": "decorates:Mine"}, decorates=TAKES_A_NAME),
    )
    listed = {piece["piece"]: piece for piece in json.loads(command("pieces", "--json").output)}
    broken = {
        "get_actions": [f"epibatch {__version__}", "takes-ours 1 (takes_ours:Piece)"],
        "not_there": ["not-there 1 (entry point not_there = not_there:Piece)", "a_module_that_nobody_has"],
        "no_piece": ["no-piece 1 (entry point no_piece", "the class no_piece:Piece", "ConnectorV2"],
        "no_class": ["an import path module:Class", "'no_class'"],
        "o.dd": ["a plain name"],
        "decorates": ["decorates 1", "piece name 'frame_stacking'", f"epibatch {__version__}", "(decorates:Mine)"],
    }
    assert {name for name, piece in listed.items() if piece["error"]} == set(broken)
    for name, words in broken.items():
        assert [word for word in words if word not in listed[name]["error"]] == [], listed[name]["error"]
    assert listed["frame_stacking"]["error"] is None and listed["clip_rewards"]["error"] is None


def test_the_tests_of_the_page_pass(installed):
    namespace = {"__name__": "test_epibatch_clip_rewards"}
    exec(installed.block("py"), namespace)
    tests = [value for name, value in namespace.items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test()
