"""Bare expressions give what their pieces give, only calls are timed, figures of several runs go together."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from benchmarks import pieces
from benchmarks.equality import DifferentValuesError
from benchmarks.piece_costs import Repeated, Sample, check, sides
from benchmarks.piece_facts import Bare, Facts, all_facts
from benchmarks.piece_page import beyond

FACTS = all_facts()
EXPRESSIONS = {name: own.bare for name, own in FACTS.items() if isinstance(own.bare, Bare)}


@pytest.mark.parametrize("name", FACTS)
def test_facts_are_whole(name):
    own = FACTS[name]
    assert own.bare.names if isinstance(own.bare, Bare) else own.bare and not own.bare.endswith(".")


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_an_expression_gives_what_its_piece_gives(name):
    for side in sides(name, EXPRESSIONS[name], 250).values():
        assert side.turn(2) > 0


def test_another_expression_is_refused():
    with pytest.raises(DifferentValuesError, match=r"new_obs has \d+ other values"):
        sides("add_next_observations_from_episodes_to_train_batch", Bare("obs", gives="new_obs"), 100)


def test_names_of_an_expression():
    bare = Bare("np.where(rewards > 0, rewards, [own.obs for own in episodes][0])")
    assert bare.names == ("rewards", "episodes") and bare.columns == ("rewards",) and bare.given == ("rewards",)
    assert not bare.acting and Bare("newest.sum(-1)").acting
    assert Bare("obs + rewards", gives="both").given == ("both",)
    assert Bare("rewards, obs", gives=("rewards", "obs")).function()(rewards=1, obs=2) == {"rewards": 1, "obs": 2}


def test_random_values_are_compared_by_shape_and_type_only():
    drawn = Bare("obs", drawn=True)
    check({"obs": np.zeros(3)}, {"obs": np.ones(3)}, drawn)
    with pytest.raises(DifferentValuesError, match="float32"):
        check({"obs": np.zeros(3)}, {"obs": np.ones(3, np.float32)}, drawn)


@pytest.mark.parametrize("observations", ["vector", "image", "frame", "dict"])
def test_samples_are_of_their_spaces(observations):
    sample = Sample(100, observations, "box")
    space, actions = sample.spaces
    rows, recorded = sample.columns, sample.recorded()
    assert sum(map(len, recorded)) == sum(sample.counts) == len(rows["rewards"]) == 100
    leaves = rows["obs"].values() if observations == "dict" else [rows["obs"]]
    assert all(len(leaf) == 100 for leaf in leaves)
    assert recorded[0].get_observations(0) in space and actions.contains(rows["actions"][0])
    assert rows["terminateds"].sum() == sum(episode.is_terminated for episode in recorded)


@pytest.mark.slow
def test_only_the_calls_are_timed():
    made, ran = [], []
    side = Repeated(lambda: made.append(0), ran.append, most=3)
    assert side.calls(1.0) == 3
    side.turn(2)
    assert len(made) == len(ran) == 1 + 3 * 3 + 2


def test_figures_of_a_run_join_those_of_earlier_ones_on_the_same_machine():
    first = pieces.joined({}, {"a": {}, "b": {}}, ["a", "b", "c"])
    assert pieces.joined(first, {"c": {}}, ["b", "c"])["pieces"] == {"b": {}, "c": {}}
    assert pieces.joined({**first, "versions": {}}, {"c": {}}, ["a", "b", "c"])["pieces"] == {"c": {}}


@pytest.mark.slow
def test_the_command(tmp_path, monkeypatch, capsys):
    name = "compute_returns_to_go"
    monkeypatch.setattr("benchmarks.piece_page.FIGURES", tmp_path / "pieces.json")
    monkeypatch.setattr("benchmarks.piece_page.PAGE", tmp_path / "page.md")
    monkeypatch.setattr("benchmarks.piece_costs.SIZES", (100, 32_768))
    monkeypatch.setattr("gc.freeze", lambda: None)
    pieces.main(["--only", name, "--rounds", "1"])
    found = json.loads((tmp_path / "pieces.json").read_text())
    ratio = found["pieces"][name]["32768"]["ratio"]
    assert ratio["low"] == ratio["median"] > 0
    pieces.main(["--page"])
    row = next(
        line for line in (tmp_path / "page.md").read_text().splitlines() if line.startswith(f"| `{name}` (gamma")
    )
    assert re.search(r"\| not measured yet \| [\d.]+ \([\d.]+ to [\d.]+\) \| [\d.]+ [mu]s \|$", row)
    with pytest.raises(SystemExit):
        pieces.main(["--only", "nobody"])
    assert "no facts about nobody: add a line in benchmarks/piece_facts/" in capsys.readouterr().err


def test_what_is_beyond_the_target():
    cost = {"32768": {"ratio": {"median": 1.6}}}
    assert beyond({"pieces": {"a": cost, "b": {"32768": {"ratio": {"median": 1.5}}}}}) == ["a"]
    assert beyond({}) == [] and Facts("why").bare == "why"
