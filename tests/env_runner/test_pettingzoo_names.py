"""PettingZoo's environments by name."""

from __future__ import annotations

import sys
import types

import pettingzoo
import pytest

from epibatch.core.errors import ConfigError, MissingExtraError, UnknownNameError
from epibatch.env_runner.pettingzoo_env import ParallelPettingZooEnv, PettingZooEnv, make_by_name, pettingzoo_creator


@pytest.mark.parametrize("name", ["classic/tictactoe_v3", "classic/tictactoe-v3"])
def test_names_of_old_and_new_releases(name):
    assert make_by_name(name, "aec", {}).possible_agents == ["player_1", "player_2"]


def test_a_name_of_both_kinds_is_the_parallel_one():
    assert type(pettingzoo_creator("pettingzoo/classic/rps_v2")(max_cycles=2)) is ParallelPettingZooEnv
    assert type(pettingzoo_creator("pettingzoo/classic/tictactoe_v3")()) is PettingZooEnv


@pytest.mark.parametrize(
    ("name", "kind", "kwargs", "error", "message"),
    [
        ("classic/tictacto_v3", "aec", {}, UnknownNameError, "did you mean 'classic/tictactoe-v3'"),
        ("tictactoe", "aec", {}, UnknownNameError, "no such environment"),
        ("classic/tictactoe_v3", "parallel", {}, ConfigError, "take PettingZooEnv, or the name 'pettingzoo/classic"),
        (
            "classic/rps_v2",
            "aec",
            {"max_cycle": 3},
            ConfigError,
            r"keywords that 'classic/rps_v2' takes\n.*max_cycle",
        ),
    ],
)
def test_what_is_not_there_is_named(name, kind, kwargs, error, message):
    with pytest.raises(error, match=message):
        make_by_name(name, kind, kwargs)


def test_a_missing_package_comes_with_its_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    for make in (lambda: PettingZooEnv("classic/rps_v2"), pettingzoo_creator("pettingzoo/classic/rps_v2")):
        with pytest.raises(MissingExtraError, match=r"'classic/rps_v2'[\s\S]*pip install 'epibatch\[pettingzoo\]'"):
            make()


def test_packages_that_an_environment_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "chess", None)
    for module in [name for name in sys.modules if name.startswith("pettingzoo.classic.chess")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(MissingExtraError, match=r"chess_v6'[\s\S]*chess[\s\S]*pip install 'pettingzoo\[classic\]'"):
        make_by_name("classic/chess_v6", "aec", {})


def test_a_release_without_registry(monkeypatch):
    old = types.ModuleType("pettingzoo")
    old.__version__ = "1.25.0"
    monkeypatch.setitem(sys.modules, "pettingzoo", old)
    with pytest.raises(MissingExtraError, match=r"1\.27 or newer\n.*1\.25\.0\n.*epibatch\[pettingzoo\]"):
        make_by_name("classic/rps_v2", "aec", {})


def test_errors_of_an_environment_stay_as_they_are(monkeypatch):
    def broken(**kwargs):
        raise OSError("no display")

    spec = pettingzoo.aec_registry["classic/rps-v2"]
    monkeypatch.setitem(pettingzoo.aec_registry, "classic/rps-v2", type(spec)(id=spec.id, entry_point=broken))
    with pytest.raises(OSError, match="no display"):
        make_by_name("classic/rps_v2", "aec", {})
