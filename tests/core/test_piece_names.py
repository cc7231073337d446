from __future__ import annotations

import importlib.metadata

import pytest

from epibatch.core import piece_names
from epibatch.core.errors import PieceError, RegistryError, UnknownNameError
from epibatch.core.piece_names import (
    ALIASES,
    BUILT_IN_PIECES,
    piece_class,
    piece_entries,
    piece_name,
    register,
    snake_case,
    unregister,
)


class Doubler:
    """Doubles."""


class Rival:
    """Also doubles."""


@pytest.fixture(autouse=True)
def clean_registry():
    before = dict(piece_names._registered)
    yield
    piece_names._registered.clear()
    piece_names._registered.update(before)
    piece_names._offered.cache_clear()


def offer(monkeypatch, **points):
    """Pretend that installed distributions offer pieces: name=(distribution, module:Class)."""

    class Distribution:
        def __init__(self, name):
            self.name = name

    class Point:
        def __init__(self, name, dist, value):
            self.name, self.dist, self.value = name, Distribution(dist), value

    found = [Point(name, *offered) for name, offers in points.items() for offered in offers]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: found if group else [])
    piece_names._offered.cache_clear()


@pytest.mark.parametrize("name", sorted(BUILT_IN_PIECES))
def test_built_in_table_names_its_classes(name):
    cls = piece_class(name)
    module, _, class_name = BUILT_IN_PIECES[name].partition(":")
    assert (cls.__module__, cls.__name__) == (module, class_name)
    assert module.rpartition(".")[2] == name
    assert piece_name(cls) == name


def test_names_are_the_snake_case_of_the_classes():
    odd = {name for name, path in BUILT_IN_PIECES.items() if snake_case(path.partition(":")[2]) != name}
    assert odd == {"unbatch_to_individual_items"}


def test_rllib_spelling_is_an_alias():
    assert ALIASES.keys() == {"add_columns_from_episodes_to_batch"}
    assert piece_class("add_columns_from_episodes_to_batch").__name__ == "AddColumnsFromEpisodesToTrainBatch"


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


def test_registering_the_same_class_again_is_allowed():
    register(Doubler)
    again = type("Doubler", (), {"__module__": Doubler.__module__, "__qualname__": "Doubler"})
    register(again)
    assert piece_class("doubler") is again


def test_taken_name_names_both_owners():
    register("shared")(Doubler)
    Rival.__module__ = "other_package.pieces"
    try:
        with pytest.raises(RegistryError, match=rf"'shared'\n.*\n.*{Doubler.__module__} and other_package\.pieces"):
            register("shared")(Rival)
    finally:
        Rival.__module__ = __name__


def test_built_in_names_are_taken():
    with pytest.raises(RegistryError, match="epibatch and "):
        register("frame_stacking")(Doubler)
    with pytest.raises(RegistryError, match="epibatch and "):
        register("add_columns_from_episodes_to_batch")(Doubler)


@pytest.mark.parametrize("name", ["a.b", "a:b", "", "two words", 3])
def test_register_refuses_other_than_plain_names(name):
    with pytest.raises(RegistryError, match="expected: a plain name"):
        register(name)(Doubler)


def test_plugin_is_found_without_import(monkeypatch):
    offer(monkeypatch, doubler=[("some-plugin", f"{__name__}:Doubler")])
    assert [entry.owner for entry in piece_entries() if entry.name == "doubler"] == ["some-plugin"]
    monkeypatch.setattr(piece_names, "_load", lambda path, where: (path, where))
    assert piece_class("doubler") == (f"{__name__}:Doubler", "piece 'doubler' of some-plugin")


def test_two_plugins_with_one_name(monkeypatch):
    offer(monkeypatch, doubler=[("one", "one:Doubler"), ("two", "two:Doubler")])
    with pytest.raises(RegistryError, match="'doubler'\n  expected: one owner\n  found:    one and two"):
        piece_class("doubler")


def test_plugin_with_a_built_in_name(monkeypatch):
    offer(monkeypatch, frame_stacking=[("one", "one:FrameStacking")])
    with pytest.raises(RegistryError, match="epibatch and one"):
        piece_class("frame_stacking")
    assert piece_class("get_actions").__name__ == "GetActions"


def test_broken_plugin(monkeypatch):
    offer(monkeypatch, gone=[("one", "no_such_module_here:Piece")])
    with pytest.raises(RegistryError, match=r"piece 'gone' of one\n.*\n.*ModuleNotFoundError"):
        piece_class("gone")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("frame_stackin", "did you mean 'frame_stacking'"),
        ("zzz", "Known: add_columns"),
        (None, "expected: a string"),
    ],
)
def test_unknown_name(name, message):
    with pytest.raises(UnknownNameError, match=message):
        piece_class(name)


@pytest.mark.parametrize("path", ["fractions:Fraction", "fractions.Fraction"])
def test_import_path_needs_leave(path):
    with pytest.raises(RegistryError, match=r"runs code.*\n.*allow_imports=True .*--allow-imports"):
        piece_class(path)
    assert piece_class(path, allow_imports=True).__name__ == "Fraction"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("fractions:Nothing", "AttributeError"),
        ("no_such_module_here:X", "ModuleNotFoundError"),
        ("math:pi", "expected: a class\n  found:    float"),
    ],
)
def test_import_path_that_leads_nowhere(path, message):
    with pytest.raises(RegistryError, match=message):
        piece_class(path, allow_imports=True)


def test_piece_name_of_an_unregistered_class_is_its_path():
    assert piece_name(piece_class("fractions.Fraction", allow_imports=True)) == "fractions:Fraction"


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
    entries = piece_entries()
    assert [entry.name for entry in entries] == sorted([*BUILT_IN_PIECES, "doubler"])
    assert {entry.owner for entry in entries} == {"epibatch", __name__}
