"""Names of pieces elsewhere."""

from __future__ import annotations

import pytest

from epibatch.core.registry import built_in_pieces, counterparts, named_elsewhere, piece_class


@pytest.mark.parametrize("name", built_in_pieces())
def test_a_line_about_counterparts_is_read_whole(name):
    text = piece_class(name).__doc__
    line = text.partition("Counterparts: ")[2].partition("\n")[0]
    said = {library: ", ".join(map("`{}`".format, own)) for library, own in counterparts(piece_class(name)).items()}
    assert line == (", ".join(f"{library}'s {own}" for library, own in said.items()) + "." if said else "")
    assert text.count("ounterparts:") == bool(said)


def test_names_in_any_case():
    assert named_elsewhere("catFRAMES") == ("TorchRL's CatFrames is frame_stacking here", ["frame_stacking"])
    assert named_elsewhere("MeanStdFilter")[1] == ["mean_std_filter"]
    assert named_elsewhere("frame_stacking") == named_elsewhere("") == ("", [])
