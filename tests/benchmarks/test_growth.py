"""The picture of growth is drawn from saved numbers, with or without RLlib's."""

from __future__ import annotations

import pytest
from benchmarks.growth import BLOCK, draw
from benchmarks.page import RESULTS
from benchmarks.results import load

SERIES = {"epibatch": [1e-5, 1e-4], "floor": [1e-6, 1e-5], BLOCK: [1e-5, 2e-5]}


def test_a_picture(tmp_path):
    found = {name: {"sizes": [1, 1024], "seconds": SERIES} for name in ("environments", "timesteps")}
    draw(found, tmp_path / "new" / "a.png")
    assert (tmp_path / "new" / "a.png").read_bytes().startswith(b"\x89PNG")


def test_the_saved_results_have_the_whole_range():
    growth = load([RESULTS])["growth"]
    assert (growth["environments"]["sizes"][0], growth["environments"]["sizes"][-1]) == (1, 1024)
    assert (growth["timesteps"]["sizes"][0], growth["timesteps"]["sizes"][-1]) == (1024, 262_144)
    for panel in growth.values():
        assert {"epibatch", "RLlib", "floor"} <= panel["seconds"].keys()
        assert all(len(own) == len(panel["sizes"]) and min(own) > 0 for own in panel["seconds"].values())


@pytest.mark.parametrize("missing", ["environments", "timesteps"])
def test_a_panel_without_numbers_is_an_error(missing, tmp_path):
    found = {name: {"sizes": [1, 2], "seconds": SERIES} for name in ("environments", "timesteps") if name != missing}
    with pytest.raises(KeyError, match=missing):
        draw(found, tmp_path / "a.png")
