from __future__ import annotations

import importlib.metadata
import sys
import types
from types import SimpleNamespace

import pytest

from epibatch.connectors import ConnectorV2
from epibatch.core import __version__, registry
from epibatch.core.errors import PieceError, RegistryError, UnknownNameError
from epibatch.core.registry import (
    built_in_pieces,
    piece_class,
    piece_entries,
    piece_name,
    register,
    snake_case,
    unregister,
)


class Doubler(ConnectorV2):
    """Doubles."""

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        return batch


class Rival(Doubler):
    """Also doubles."""


@pytest.fixture(autouse=True)
def clean_registry():
    before = dict(registry._registered)
    yield
    registry._registered.clear()
    registry._registered.update(before)
    registry._offered.cache_clear()


def offer(monkeypatch, *points):
    """Pretend that installed distributions offer pieces: (name, module:Class, distribution)."""
    found = [
        SimpleNamespace(name=name, value=path, dist=SimpleNamespace(name=dist, version="1.0"))
        for name, path, dist in points
    ]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: found if group else [])
    registry._offered.cache_clear()


ALIAS = "add_columns_from_episodes_to_batch"
PIECES = built_in_pieces()


@pytest.mark.parametrize("name", sorted(PIECES))
def test_built_in_names_lead_to_their_classes(name):
    cls = piece_class(name)
    module, _, class_name = PIECES[name].partition(":")
    assert (cls.__module__, cls.__name__) == (module, class_name) or name == ALIAS
    together = [path for path in PIECES.values() if path.startswith(f"{module}:")]  # small ones share a file
    assert len(together) > 1 or module.rpartition(".")[2] in (name, "column_transform")  # Undo is beside what it undoes
    assert piece_name(cls) == name or name == ALIAS


def test_names_are_the_snake_case_of_the_classes():
    odd = {name for name, path in PIECES.items() if snake_case(path.partition(":")[2]) != name}
    assert odd == {"unbatch_to_individual_items"}


def test_rllib_spelling_is_an_alias():
    assert piece_class(ALIAS) is piece_class("add_columns_from_episodes_to_train_batch")
    assert piece_name(piece_class(ALIAS)) == "add_columns_from_episodes_to_train_batch"


@pytest.mark.parametrize(
    ("class_name", "name"),
    [
        ("FrameStacking", "frame_stacking"),
        ("AddOneTsToEpisodesAndTruncate", "add_one_ts_to_episodes_and_truncate"),
        ("LSTMState", "lstm_state"),
        ("Top3Actions", "top3_actions"),
        ("already_snake", "already_snake"),
    ],
)
def test_snake_case(class_name, name):
    assert snake_case(class_name) == name


def test_register_under_class_name_and_under_given_name():
    assert register(Doubler) is Doubler
    assert piece_class("doubler") is Doubler
    assert register("second_rival")(Rival) is Rival
    assert register()(Rival) is Rival
    assert {piece_class("rival"), piece_class("second_rival")} == {Rival}
    assert piece_name(Doubler) == "doubler"


def test_a_cell_that_runs_twice_registers_its_newest_class():
    cell = """
from epibatch.connectors import ConnectorV2
from epibatch.core.registry import register

@register("cell_piece")
class CellPiece(ConnectorV2):
    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        return batch
"""
    first, second = {"__name__": "__main__"}, {"__name__": "__main__"}
    exec(cell, first)
    exec(cell, second)
    assert first["CellPiece"] is not second["CellPiece"] is piece_class("cell_piece")
    assert piece_name(second["CellPiece"]) == "cell_piece"
    with pytest.raises(RegistryError, match=r"\(__main__:CellPiece\) and .*\(__main__:Other\)\n.*unregister"):
        exec(cell.replace("CellPiece", "Other"), {"__name__": "__main__"})


def test_taken_name_names_both_owners():
    register("shared")(Doubler)
    Rival.__module__ = "other_package.pieces"
    try:
        with pytest.raises(RegistryError, match=rf"'shared'\n.*\n.*{Doubler.__module__} .* and other_package\.pieces"):
            register("shared")(Rival)
    finally:
        Rival.__module__ = __name__


def test_built_in_names_are_taken():
    for name in ("frame_stacking", "add_columns_from_episodes_to_batch"):
        with pytest.raises(RegistryError, match=rf"epibatch {__version__} \(.*\) and .*\({__name__}:Doubler\)"):
            register(name)(Doubler)
        assert piece_class(name) is not Doubler


@pytest.mark.parametrize("name", ["a.b", "a:b", "", "two words", 3])
def test_register_refuses_other_than_plain_names(name):
    with pytest.raises(RegistryError, match="expected: a plain name"):
        register(name)(Doubler)


@pytest.mark.parametrize("thing", [dict, len, Doubler()])
def test_register_refuses_what_is_no_piece_class(thing):
    with pytest.raises(PieceError, match=r"expected: a subclass of epibatch\.connectors\.ConnectorV2"):
        register("thing")(thing)


def test_plugin_is_listed_without_import_and_loaded_by_name(monkeypatch):
    offer(monkeypatch, ("doubler", f"{__name__}:Doubler", "some-plugin"), ("gone", "no_such_module:X", "other"))
    entries = [entry for own in piece_entries().values() for entry in own]
    offered = {entry.name: entry.offered_by for entry in entries if entry.owner != "epibatch"}
    assert offered == {"doubler": "some-plugin 1.0", "gone": "other 1.0"}
    assert piece_class("doubler") is Doubler


def test_a_plugin_may_register_the_class_that_it_offers(monkeypatch):
    package = types.ModuleType("plugin_of_name_test")
    package.Doubler = Doubler  # re-exported: the entry point names another module than the class's own
    package.Rival = Rival
    monkeypatch.setitem(sys.modules, "plugin_of_name_test", package)
    monkeypatch.setattr(Doubler, "__module__", "plugin_of_name_test.pieces")
    monkeypatch.setattr(Rival, "__module__", "plugin_of_name_test.pieces")
    offer(monkeypatch, ("doubler", "plugin_of_name_test:Doubler", "some-plugin"))
    assert piece_name(Doubler) == "doubler"
    register("doubler")(Doubler)
    assert piece_class("doubler") is Doubler
    unregister("doubler")
    register("doubler")(Rival)
    with pytest.raises(RegistryError, match=r"some-plugin 1\.0 .*Doubler.* and .*Rival.*\n.*name the same class"):
        piece_class("doubler")


def test_two_plugins_with_one_name(monkeypatch):
    offer(monkeypatch, ("doubler", f"{__name__}:Doubler", "one"), ("doubler", "two:Doubler", "two"))
    with pytest.raises(RegistryError, match=r"'doubler'\n  expected: one owner\n.*one 1\.0 \(.*two 1\.0 \(two:Doubler"):
        piece_class("doubler")
    with pytest.raises(RegistryError, match=r"two 1\.0"):
        register("doubler")(Doubler)
    assert piece_name(Doubler) == f"{__name__}:Doubler", "a name taken twice names nobody"


def test_plugin_with_a_built_in_name(monkeypatch):
    offer(monkeypatch, ("frame_stacking", "one:FrameStacking", "one"))
    with pytest.raises(UnknownNameError, match="frame_stacking here"):
        piece_class("CatFrames")
    with pytest.raises(RegistryError, match=rf"epibatch {__version__} \(.*\) and one 1\.0 \(one:FrameStacking\)"):
        piece_class("frame_stacking")
    assert piece_class("get_actions").__name__ == "GetActions"


def test_plugin_with_the_second_name_of_a_built_in_piece(monkeypatch):
    offer(monkeypatch, ("add_columns_from_episodes_to_batch", "one:Mine", "one"))
    with pytest.raises(RegistryError, match=r"one 1\.0 \(one:Mine\)"):
        piece_class("add_columns_from_episodes_to_batch")


@pytest.mark.parametrize(
    ("name", "path", "error", "message"),
    [
        ("gone", "no_such_module_here:Piece", RegistryError, "ModuleNotFoundError: No module named"),
        ("gone", f"{__name__}:Nothing", RegistryError, "has no 'Nothing'"),
        ("gone", "no_class", RegistryError, "expected: an import path module:Class\n  found:    'no_class'"),
        ("gone", "fractions:Fraction", PieceError, "found:    the class fractions:Fraction"),
        ("gone", "math:pi", PieceError, "subclass of .*ConnectorV2\n  found:    something of type float"),
        ("go.ne", f"{__name__}:Doubler", RegistryError, "expected: a plain name"),
    ],
)
def test_broken_plugin_is_named_and_breaks_nothing_else(monkeypatch, name, path, error, message):
    offer(monkeypatch, (name, path, "acme"), ("doubler", f"{__name__}:Doubler", "good"))
    with pytest.raises(error, match=message) as caught:
        piece_class(name)
    assert f"piece {name!r} of acme 1.0 (entry point {name} = {path})" in str(caught.value)
    assert piece_class("doubler").__name__ == "Doubler"


def test_a_plugin_whose_import_ends_the_process(monkeypatch, tmp_path):
    (tmp_path / "quits_of_name_test.py").write_text("raise SystemExit('bye')")
    monkeypatch.syspath_prepend(tmp_path)
    offer(monkeypatch, ("quits", "quits_of_name_test:Piece", "acme"))
    with pytest.raises(RegistryError, match="SystemExit: bye"):
        piece_class("quits")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("frame_stackin", "did you mean 'frame_stacking'"),
        ("zzz", "Known: action_mask, add_columns"),
        ("CatFrames", "do: +TorchRL's CatFrames is frame_stacking here"),
        ("json", "that is a module: name the class in it too, json:MyPiece"),
        ("MyVeryOwn", "with its module, my_module:MyVeryOwn, and imports allowed; Known"),
        ("my_cost", "known once that file was imported: write 'my_module:MyCost'"),
        (None, "expected: a string"),
    ],
)
def test_unknown_name(name, message):
    with pytest.raises(UnknownNameError, match=message):
        piece_class(name)


@pytest.mark.parametrize("path", [f"{__name__}:Doubler", f"{__name__}.Doubler"])
def test_import_path_needs_leave(path):
    with pytest.raises(RegistryError, match=r"runs code.*\n.*allow_imports=True .*--allow-imports"):
        piece_class(path)
    assert piece_class(path, allow_imports=True).__name__ == "Doubler"


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("fractions:Nothing", RegistryError, "fractions has no 'Nothing'"),
        ("no_such_module_here:X", RegistryError, "ModuleNotFoundError"),
        (":X", RegistryError, "an import path module:Class"),
        ("math:pi", PieceError, "found:    something of type float"),
        ("my_pieces.py", RegistryError, "without .py: my_pieces:MyPiece"),
        ("./sub/my_pieces.py:Mine", RegistryError, "without .py: sub.my_pieces:Mine"),
        ("fractions.Fraction", PieceError, "found:    the class fractions:Fraction"),
    ],
)
def test_import_path_that_leads_nowhere(path, error, message):
    with pytest.raises(error, match=message):
        piece_class(path, allow_imports=True)


def test_piece_name_of_an_unregistered_class_is_its_path():
    assert piece_name(Doubler) == f"{__name__}:Doubler"


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"__module__": "m", "__qualname__": "f.<locals>.X"}, "defined in a function"),
        ({"__module__": "__main__"}, "the running script"),
    ],
)
def test_class_that_nobody_else_finds_has_no_name(where, message):
    with pytest.raises(PieceError, match=message):
        piece_name(type("X", (), where))


def test_unregister():
    register(Doubler)
    unregister("doubler")
    with pytest.raises(UnknownNameError, match="'doubler'"):
        unregister("doubler")


def test_entries_are_sorted_and_have_owners():
    register(Doubler)
    owners = {name: entry.owner for name, [entry, *_] in piece_entries().items()}
    owners = {name: owner for name, owner in owners.items() if owner in ("epibatch", __name__)}
    assert list(owners) == sorted([*PIECES, "doubler"])
    assert set(owners.values()) == {"epibatch", __name__}
