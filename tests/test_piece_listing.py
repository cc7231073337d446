"""What `epibatch pieces` says about every piece: built-in, registered, of a package, and broken."""

from __future__ import annotations

import importlib.metadata
from types import SimpleNamespace

import pytest

from epibatch.algorithms.pipelines import PIPELINES
from epibatch.connectors import ConnectorV2
from epibatch.connectors.authoring import ColumnTransform
from epibatch.core import __version__, registry
from epibatch.core.errors import UnknownNameError
from epibatch.core.registry import register, spec_problems
from epibatch.piece_listing import describe_piece, describe_pieces, first_sentence, list_text, piece_text

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
    assert piece["declared"] and piece["pipelines"] and set(piece["pipelines"]) <= set(PIPELINES)
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
    offer(
        monkeypatch,
        ("gone", "no_such_module_here:Piece", "acme", "1.2"),
        ("shared", "one:X", "first", "1"),
        ("shared", "two:X", "second", "2"),
        ("fraction", "fractions:Fraction", "acme", "1.2"),
        ("declared", f"{__name__}:Declared", "good", "3"),
    )
    listed = {piece["piece"]: piece for piece in describe_pieces()}
    assert {name for name, piece in listed.items() if piece["error"]} == {"gone", "shared", "fraction"}
    text = list_text(listed.values(), width=120)
    assert "  gone\n      cannot be used: ModuleNotFoundError: No module named 'no_such_module_here'" in text
    assert "\n\nfirst 1 and second 2\n  shared\n      cannot be used: first 1 (one:X) and second 2 (two:X)" in text
    assert "\n\nacme 1.2\n  fraction\n      cannot be used: the class fractions:Fraction" in text
    assert piece_text(listed["shared"], width=80).startswith("shared  first 1 and second 2\n")
    assert set(BUILT_IN) < set(listed)


class AString(Mixes):
    pipelines = "learner"


class Nothing(Mixes):
    pipelines = None


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


def test_declarations_that_cannot_be_meant_concern_their_own_piece_only(monkeypatch):
    classes = {"a_string": AString, "nothing": Nothing, "by_arguments": ByArguments, "a[red]b": Declared}
    offer(monkeypatch, *((name, f"{__name__}:{cls.__name__}", "acme", "1.2") for name, cls in classes.items()))
    listed = {piece["piece"]: piece for piece in describe_pieces()}
    assert {name for name, piece in listed.items() if piece["error"]} == {"a_string", "nothing", "a[red]b"}
    for name in ("a_string", "nothing"):
        where = f"piece {name!r} of acme 1.2 (entry point {name} = {__name__}:{classes[name].__name__})"
        assert listed[name]["error"].startswith(f"{where}, its attribute pipelines\n")
    assert 'write pipelines = ("learner",)' in listed["a_string"]["error"]
    assert spec_problems({"piece": "by_arguments", "parts": 2}, pipeline="learner") == []
    assert (listed["by_arguments"]["reads"], listed["by_arguments"]["lookback"]) == (None, None)
    assert "a[red]b  acme 1.2" in piece_text(listed["a[red]b"])
    assert "acme 1.2\n  a[red]b\n" in list_text(listed.values())


@pytest.mark.parametrize("short", [True, False])
@pytest.mark.parametrize("width", [80, 120, 240])
def test_the_list_fits_a_terminal_without_cutting_anything(width, short):
    text = list_text(BUILT_IN.values(), short=short, width=width)
    assert max(map(len, text.splitlines())) <= width
    words = set(text.split())
    for piece in BUILT_IN.values():
        assert {piece["piece"], *piece["description"].split()} <= words


def test_lines_stay_whole_for_other_programs():
    lines = [line.split(None, 1) for line in list_text(BUILT_IN.values(), short=True).splitlines() if line]
    descriptions = dict(line for line in lines if len(line) == 2)
    assert descriptions == {name: piece["description"] for name, piece in BUILT_IN.items()}
    doc = BUILT_IN["frame_stacking"]["keywords"]["axis"]["doc"]
    assert any(line.endswith(doc) for line in piece_text(BUILT_IN["frame_stacking"]).splitlines())


def test_pieces_are_listed_under_their_packages():
    blocks = [block.splitlines() for block in list_text(BUILT_IN.values(), short=True).split("\n\n")]
    packages = {package: {line.split()[0] for line in lines} for package, *lines in blocks}
    assert list(packages) == sorted(packages)
    assert packages["epibatch.connectors.images"] >= {"center_crop", "grayscale"}
    assert set().union(*packages.values()) == set(BUILT_IN)


def test_unknown_piece():
    with pytest.raises(UnknownNameError, match="did you mean 'get_actions'"):
        describe_piece("get_action")


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
