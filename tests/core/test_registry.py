"""Names of pieces and environments: registered, offered by plugins, imported, and pieces as data."""

from __future__ import annotations

import functools
import importlib.metadata
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from epibatch.core import __version__, registry
from epibatch.core.errors import PieceError, RegistryError, UnknownNameError
from epibatch.core.registry import (
    build_piece,
    built_in_pieces,
    counterparts,
    env_creator,
    piece_class,
    piece_name,
    piece_to_dict,
    pieces_of_counterpart,
    plain_data,
    register,
    register_env,
    registered_envs,
    snake_case,
    spec_problems,
    unregister,
)
from fixture_pieces import UserPiece


class Doubler(UserPiece):
    """Doubles."""


class Rival(Doubler):
    """Also doubles."""


@pytest.fixture(autouse=True)
def clean_registry():
    """Register the pieces of this file for each test."""
    before, creators = dict(registry._registered), dict(registry._env_creators)
    for cls in (Scale, ScaleMore, Positional, OwnData):
        register(cls)
    yield
    registry._registered.clear()
    registry._registered.update(before)
    registry._env_creators.clear()
    registry._env_creators.update(creators)


def offer(monkeypatch, *points):
    """Pretend that installed distributions offer pieces: (name, module:Class, distribution)."""
    found = [
        SimpleNamespace(name=name, value=path, dist=SimpleNamespace(name=dist, version="1.0"))
        for name, path, dist in points
    ]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: found if group else [])
    monkeypatch.setattr(registry, "_offered", functools.cache(registry._offered.__wrapped__))


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
    assert snake_case(PIECES[name].partition(":")[2]) == name or name in ("unbatch_to_individual_items", "vtrace")


def test_register_under_class_name_and_under_given_name():
    assert register(Doubler) is Doubler
    assert piece_class("doubler") is Doubler
    assert register("second_rival")(Rival) is Rival
    assert register()(Rival) is Rival
    assert {piece_class("rival"), piece_class("second_rival")} == {Rival}
    assert piece_name(Doubler) == "doubler"
    unregister("doubler")
    with pytest.raises(UnknownNameError, match="'doubler'"):
        unregister("doubler")


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


def test_a_taken_name_names_both_owners(monkeypatch):
    for name in ("frame_stacking", ALIAS):
        with pytest.raises(RegistryError, match=rf"epibatch {__version__} \(.*\) and .*\({__name__}:Doubler\)"):
            register(name)(Doubler)
        assert piece_class(name) is not Doubler
    alias = piece_class(ALIAS)
    assert piece_name(alias) == "add_columns_from_episodes_to_train_batch" and alias is piece_class(piece_name(alias))
    register("shared")(Doubler)
    monkeypatch.setattr(Rival, "__module__", "other_package.pieces")
    with pytest.raises(RegistryError, match=rf"'shared'\n.*\n.*{Doubler.__module__} .* and other_package\.pieces"):
        register("shared")(Rival)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        *[(lambda name=name: register(name)(Doubler), RegistryError, "a plain name") for name in ("a.b", "a:b", "", 3)],
        *[(lambda own=own: register("x")(own), PieceError, r"a subclass of .*ConnectorV2") for own in (dict, len)],
        (lambda: register("x")(Doubler()), PieceError, r"a subclass of .*ConnectorV2"),
        (lambda: register_env("", list), RegistryError, "a name and a function"),
        (lambda: register_env(3, list), RegistryError, "a name and a function"),
        (lambda: register_env("x", "CartPole-v1"), RegistryError, "a name and a function"),
        (lambda: piece_name(type("X", (), {"__qualname__": "f.<locals>.X"})), PieceError, "defined in a function"),
        (lambda: piece_name(type("X", (), {"__module__": "__main__"})), PieceError, "the running script"),
        (
            lambda: piece_to_dict(Scale(factor=lambda x: x)),
            PieceError,
            "piece Scale, argument 'factor'\n.*\n.*a function",
        ),
        (lambda: piece_to_dict(Scale(factor=1, offset=np.zeros(2))), PieceError, "'offset'\n.*\n.*a ndarray"),
        (lambda: piece_to_dict(Scale(factor=1, extra=2)), PieceError, "'extra'\n.*\n.*no constructor names"),
        (lambda: env_creator("corridr"), UnknownNameError, r"'corridr'\n.*\n.*\n.*did you mean 'corridor'"),
    ],
)
def test_what_cannot_be_registered_or_found(call, error, message):
    register_env("corridor", lambda env_config: ("env", env_config))
    assert env_creator("corridor")({"length": 3}) == ("env", {"length": 3}) and "corridor" in registered_envs()
    with pytest.raises(error, match=message):
        call()


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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("frame_stackin", "did you mean 'frame_stacking'"),
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


@pytest.mark.parametrize(
    ("path", "source", "error", "message"),
    [
        (":X", "", RegistryError, "an import path module:Class"),
        ("my_pieces.py", "", RegistryError, "without .py: my_pieces:MyPiece"),
        ("./sub/my_pieces.py:Mine", "", RegistryError, "without .py: sub.my_pieces:Mine"),
        ("fractions.Fraction", "", PieceError, "found:    the class fractions:Fraction"),
        ("os:path.jion", "", RegistryError, "posixpath has no 'jion'"),
        ("no_such_module.deeper:It", "", RegistryError, "module:Class, and that no_such_module is installed or in"),
        ("needy:It", "import no_such_module", RegistryError, "install no_such_module, which needy imports"),
        ("needy:It", "1 / 0", RegistryError, "mend needy: it raises this when it is imported"),
        ("needy:Itt", "from math import pi\nclass It: pass", RegistryError, r"did you mean 'It'\? Known: It$"),
    ],
)
def test_import_path_that_leads_nowhere(tmp_path, monkeypatch, path, source, error, message):
    (tmp_path / "needy.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "needy", raising=False)
    with pytest.raises(error, match=message):
        piece_class(path, allow_imports=True)
    sys.modules.pop("needy", None)


def test_counterparts_are_found_in_any_case_and_a_line_about_them_is_read_whole():
    for name in PIECES:
        text, found = piece_class(name).__doc__, counterparts(piece_class(name)).items()
        said = ", ".join(f"{library}'s " + ", ".join(f"`{own}`" for own in classes) for library, classes in found)
        assert text.partition("Counterparts: ")[2].partition("\n")[0] == (f"{said}." if said else ""), name
        assert text.count("ounterparts:") == bool(said)
    assert pieces_of_counterpart("catFRAMES") == ("TorchRL's CatFrames is frame_stacking here", ["frame_stacking"])
    assert pieces_of_counterpart("MeanStdFilter")[1] == ["mean_std_filter"]
    assert pieces_of_counterpart("frame_stacking") == pieces_of_counterpart("") == ("", [])


class Plain(UserPiece):
    def __init__(self, input_observation_space=None, input_action_space=None, **kwargs):
        self.swallowed = kwargs

    def get_ctor_args_and_kwargs(self):
        return (), {
            key: value for key, value in vars(self).items() if key != "swallowed" and key[0] != "_"
        } | self.swallowed


class Scale(Plain):
    """Keywords of its own, the rest passed on."""

    def __init__(self, input_observation_space=None, input_action_space=None, *, factor, offset=0.0, **kwargs):
        super().__init__(input_observation_space, input_action_space, **kwargs)
        if factor in (0, -1):
            raise ValueError("factor is 0") if factor == 0 else RegistryError("refused")
        self.factor = factor
        self.offset = offset


class ScaleMore(Scale):
    def __init__(self, *args, more=1, **kwargs):
        super().__init__(*args, **kwargs)
        self.more = more


class Positional(Plain):
    def __init__(self, depth=1, width=2):
        super().__init__()
        self.args = (depth, width)

    def get_ctor_args_and_kwargs(self):
        return self.args, {}


class OwnData(Plain):
    def to_dict(self):
        return {"own": 1}


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ({"piece": "scale", "facto": 2}, PieceError, r"no argument 'facto'\. did you mean 'factor'\? Known: .*offset"),
        ({"piece": "scale"}, PieceError, "piece 'scale'\n.*\n.*needs the argument 'factor'"),
        ({"piece": "scale", "factor": 1, "input_action_space": 1}, PieceError, "no argument 'input_action_space'"),
        ({"piece": "scale", "factor": 0}, PieceError, "ValueError: factor is 0"),
        ({"piece": "scale", "factor": -1}, RegistryError, "piece 'scale', built from data\nrefused"),
        ({"factor": 0}, PieceError, "the key 'piece'.*found the keys: factor"),
        (3, PieceError, "found int 3"),
        ({"piece": "a.b"}, RegistryError, "--allow-imports"),
    ],
)
def test_wrong_specs(spec, error, message):
    with pytest.raises(error, match=message):
        build_piece(spec)


def test_specs():
    assert build_piece("positional").args == (1, 2)
    piece = build_piece(piece_to_dict(ScaleMore(factor=3, offset=1.5, more=7)))
    assert (piece.factor, piece.offset, piece.more) == (3, 1.5, 7)
    problems = spec_problems({"piece": "scale", "facto": 1, "ofset": 2})
    assert [key for key, _ in problems] == ["facto", "ofset", "factor"]
    path = {"piece": f"{__name__}:OwnData"}
    assert "--allow-imports" in spec_problems(path)[0][1] and spec_problems(path, allow_imports=True) == []


@pytest.mark.parametrize(
    ("piece", "data"),
    [
        (lambda: Scale(factor=np.float32(0.5)), {"piece": "scale", "factor": 0.5, "offset": 0.0}),
        (lambda: Positional(3, 4), {"piece": "positional", "depth": 3, "width": 4}),
        (lambda: OwnData(), {"piece": "own_data", "own": 1}),
    ],
)
def test_piece_to_dict(piece, data):
    assert piece_to_dict(piece()) == data
    found = plain_data([np.bool_(True), np.int64(3), (1, [2]), {"a": (1,)}, np.float32(0.5), None])
    assert repr(found) == "[True, 3, [1, [2]], {'a': [1]}, 0.5, None]"
    for other in (object(), {1, 2}, {1: 2}, Path("x"), b"x", [lambda: 1]):
        with pytest.raises(TypeError):
            plain_data(other)
