"""`epibatch pieces`: what it says about every piece, built-in, registered, of a package, and broken."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from epibatch.cli import app
from epibatch.connectors import ConnectorV2
from epibatch.connectors.authoring import ColumnTransform
from epibatch.core import __version__, registry
from epibatch.core.registry import built_in_pieces, register, spec_problems
from epibatch.piece_listing import describe_piece, describe_pieces, first_sentence, list_text, piece_text

PIPELINES = {"env_to_module", "module_to_env", "learner"}
BUILT_IN = {piece["piece"]: piece for piece in describe_pieces()}


@pytest.fixture(autouse=True)
def clean_registry():
    before = dict(registry._registered)
    yield
    registry._registered.clear()
    registry._registered.update(before)
    registry._offered.cache_clear()


class Mixes(ConnectorV2):
    """Mixes [colours]. And more.

    Args:
        parts: How many parts, which may be
            a long story.
    """

    def __init__(self, input_observation_space=None, input_action_space=None, *, parts, lid=min, **kwargs):
        super().__init__(input_observation_space, input_action_space, **kwargs)

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        return batch


class Declared(Mixes):
    """Says what it does."""

    pipelines = ("learner",)
    reads = ("rewards",)
    writes = ("rewards", "own")
    input_layouts = ("episodes", "arrays")
    lookback = 3
    mutates_episodes = True


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_built_in_pieces_say_everything(name):
    piece = BUILT_IN[name]
    assert (piece["owner"], piece["version"], piece["error"]) == ("epibatch", __version__, None)
    assert piece["declared"] and piece["pipelines"] and set(piece["pipelines"]) <= PIPELINES
    assert piece["description"].endswith(".")
    undocumented = [key for key, facts in piece["keywords"].items() if not facts.get("doc")]
    assert undocumented == [], "say under Args: in the docstring what it is for"


def test_built_in_pieces_are_of_the_pipelines_they_are_for():
    assert BUILT_IN["get_actions"]["pipelines"] == BUILT_IN["tensor_to_numpy"]["pipelines"] == ["module_to_env"]
    assert BUILT_IN["frame_stacking"]["pipelines"] == ["env_to_module", "learner"]
    assert BUILT_IN["add_time_dim_to_batch_and_zero_pad"]["reads"] == ["obs"]
    assert BUILT_IN["general_advantage_estimation"]["keywords"]["gamma"]["default"] == 0.99
    alias = BUILT_IN["add_columns_from_episodes_to_batch"]
    assert alias["description"] == "Another name of add_columns_from_episodes_to_train_batch."
    assert alias["pipelines"] == ["learner"]


def test_a_piece_that_declares_nothing_says_so():
    register(Mixes)
    piece = describe_piece("mixes")
    assert (piece["owner"], piece["version"], piece["declared"]) == (__name__, "", False)
    assert [piece[key] for key in ("reads", "writes", "input_layouts", "output_layout", "lookback")] == [None] * 5
    assert piece["keywords"] == {
        "parts": {"doc": "How many parts, which may be a long story."},
        "lid": {"default": repr(min)},
    }
    for text in (piece_text(piece), list_text([piece]), list_text([piece], width=300)):
        assert "not declared" in text and "Mixes [colours]." in text and "needed" in text
        assert "pipelines not said" in text


def test_a_declared_piece_in_detail():
    register(Declared)
    lines = [line.split(None, 1) for line in piece_text(describe_piece("declared"), width=100).splitlines() if line]
    facts = {words[0]: words[1].strip() for words in lines if len(words) == 2}
    assert facts["reads"] == "rewards" and facts["writes"] == "rewards, own"
    assert facts["input_layouts"] == "episodes or arrays" and facts["output_layout"] == "the layout it took"
    assert facts["lookback"] == "3" and facts["pipelines"] == "learner"
    assert facts["episodes"] == "it writes to the episodes it is given"
    assert facts["class"] == f"{__name__}:Declared"


class HalvesCameras(ColumnTransform):
    """Halves images."""

    columns = ("obs/left", "obs/right", "new_obs")

    def transform(self, x):
        return x / 2


class HalvesAny(ColumnTransform):
    """Halves columns."""

    columns: str

    def transform(self, x):
        return x / 2


def test_columns_of_a_transform():
    register(HalvesCameras)
    register(HalvesAny)
    assert describe_piece("halves_cameras")["writes"] == ["obs", "new_obs"]
    assert describe_piece("halves_any")["writes"] is None
    assert "as its arguments say" in piece_text(describe_piece("halves_any"))


def offer(monkeypatch, *points):
    found = [
        SimpleNamespace(name=name, value=value, dist=SimpleNamespace(name=dist, version=version, requires=[]))
        for name, value, dist, version in points
    ]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: found)
    registry._offered.cache_clear()


def test_what_cannot_be_used_says_why_and_leaves_the_others_alone(monkeypatch):
    here = {"declared": Declared, "a_string": AString, "by_arguments": ByArguments, "a[red]b": Declared}
    offer(
        monkeypatch,
        ("gone", "no_such_module_here:Piece", "acme", "1.2"),
        ("shared", "one:X", "first", "1"),
        ("shared", "two:X", "second", "2"),
        ("fraction", "fractions:Fraction", "acme", "1.2"),
        *((name, f"{__name__}:{cls.__name__}", "good", "3") for name, cls in here.items()),
    )
    listed = {piece["piece"]: piece for piece in describe_pieces()}
    wrong = {name for name, piece in listed.items() if piece["error"]}
    assert wrong == {"gone", "shared", "fraction", "a_string", "a[red]b"} and set(BUILT_IN) < set(listed)
    text = list_text(listed.values(), width=120)
    assert "  gone\n      cannot be used: ModuleNotFoundError: No module named 'no_such_module_here'" in text
    assert "\n\nfirst 1 and second 2\n  shared\n      cannot be used: first 1 (one:X) and second 2 (two:X)" in text
    assert "\n\nacme 1.2\n  fraction\n      cannot be used: the class fractions:Fraction" in text
    assert "good 3\n  a[red]b\n" in text
    assert piece_text(listed["shared"], width=80).startswith("shared  first 1 and second 2\n")
    assert "a[red]b  good 3" in piece_text(listed["a[red]b"])
    where = f"piece 'a_string' of good 3 (entry point a_string = {__name__}:AString), its attribute pipelines\n"
    assert listed["a_string"]["error"].startswith(where)
    assert 'write pipelines = ("learner",)' in listed["a_string"]["error"]
    assert spec_problems({"piece": "by_arguments", "parts": 2}, pipeline="learner") == []
    assert (listed["by_arguments"]["reads"], listed["by_arguments"]["lookback"]) == (None, None)


class AString(Mixes):
    pipelines = "learner"


class ByArguments(Mixes):
    @property
    def pipelines(self):
        return ("learner",)

    @property
    def reads(self):
        return ("obs",)

    @property
    def lookback(self):
        return 3


@pytest.mark.parametrize("short", [True, False])
@pytest.mark.parametrize("width", [80, 240])
def test_the_list_fits_a_terminal_without_cutting_anything(width, short):
    text = list_text(BUILT_IN.values(), short=short, width=width)
    assert max(map(len, text.splitlines())) <= width
    words = set(text.split())
    for piece in BUILT_IN.values():
        assert {piece["piece"], *piece["description"].split()} <= words


def test_pieces_are_listed_under_their_packages():
    blocks = [block.splitlines() for block in list_text(BUILT_IN.values(), short=True).split("\n\n")]
    packages = {package: {line.split()[0] for line in lines} for package, *lines in blocks}
    assert list(packages) == sorted(packages)
    assert packages["epibatch.connectors.images"] >= {"center_crop", "grayscale"}
    assert set().union(*packages.values()) == set(BUILT_IN)


@pytest.mark.parametrize(
    ("docstring", "sentence"),
    [
        (None, ""),
        ("One.", "One."),
        ("One\n  line. Two.", "One line."),
        ("No stop\n\nMore.", "No stop"),
        ("By A et al. 2015. B.", "By A et al. 2015."),
    ],
)
def test_first_sentence(docstring, sentence):
    assert first_sentence(docstring) == sentence


# ----------------------------------------------------------------------------------------- the command


def run(*words):
    return CliRunner().invoke(app, words)


def test_pieces_of_one_pipeline_in_short():
    result = run("pieces", "--pipeline", "module_to_env", "--short")
    assert result.exit_code == 0
    names = [line.split()[0] for line in result.output.splitlines() if line.startswith("  ")]
    assert "get_actions" in names and "undo" in names and "frame_stacking" not in names


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--pipeline", "lerner"], "did you mean 'learner'"),
        (["get_actions", "--short"], "leave out NAME"),
        (["frame_stackin"], "did you mean 'frame_stacking'"),
    ],
)
def test_options_of_the_list_that_cannot_be(words, said):
    result = run("pieces", *words)
    assert result.exit_code == 2 and said in result.output


def test_a_shell_completes_names_of_pieces():
    command = "import sys; sys.argv = ['epibatch']; from epibatch.cli import main; main()"
    words = {"_EPIBATCH_COMPLETE": "complete_bash", "COMP_WORDS": "epibatch pieces frame_s", "COMP_CWORD": "2"}
    environment = {**os.environ, **words}
    done = subprocess.run([sys.executable, "-c", command], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["frame_stacking"], done.stderr


def test_one_piece_in_detail():
    result = run("pieces", "frame_stacking")
    assert result.exit_code == 0
    assert result.output.startswith(f"frame_stacking  epibatch {__version__}\nPuts the last `num_frames` obs")
    assert "num_frames            1        Number of observations in a stack." in result.output


@pytest.mark.parametrize(
    ("name", "sentence", "pieces"),
    [
        ("CatFrames", "TorchRL's CatFrames is frame_stacking here", ["frame_stacking"]),
        ("FrameStacking", "RLlib's FrameStacking is frame_stacking here", ["frame_stacking"]),
        (
            "CatTensors",
            "TorchRL's CatTensors is concatenate_columns or flatten_observations here",
            ["concatenate_columns", "flatten_observations"],
        ),
    ],
)
def test_pieces_are_found_by_their_names_elsewhere(name, sentence, pieces):
    result = run("pieces", name)
    assert result.exit_code == 0 and result.output.startswith(f"{sentence}.\n")
    assert [line for line in result.output.splitlines() if line.endswith(f"epibatch {__version__}")] == [
        f"{piece}  epibatch {__version__}" for piece in pieces
    ]
    listed = json.loads(run("pieces", name, "--json").output)
    assert [one["piece"] for one in (listed if isinstance(listed, list) else [listed])] == pieces


def test_pieces_as_json():
    listed = json.loads(run("pieces", "--json").output)
    assert {piece["piece"] for piece in listed} >= set(built_in_pieces())
    assert json.loads(run("pieces", "get_actions", "--json").output) in listed


def test_neither_help_nor_the_list_of_pieces_loads_torch():
    code = (
        "import sys, epibatch.cli; print('torch' in sys.modules)\nepibatch.cli.app(['pieces'], standalone_mode=False)"
    )
    code += "; print('torch' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "frame_stacking" in output and [output.splitlines()[i] for i in (0, -1)] == ["False", "False"]


def test_choices_are_named_as_they_are_written():
    """The keyword `padding` of frame stacks names both of its values."""
    shown = CliRunner().invoke(app, ["pieces", "frame_stacking"]).output
    line = next(line for line in shown.splitlines() if line.startswith("padding"))
    assert '"zeros"' in line and '"same"' in line
