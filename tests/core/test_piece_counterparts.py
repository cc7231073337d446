"""Names of pieces elsewhere."""

from __future__ import annotations

import re

import pytest

from epibatch.core.built_in_pieces import BUILT_IN_PIECES
from epibatch.core.piece_counterparts import COUNTERPARTS, named_elsewhere


@pytest.mark.parametrize("piece", COUNTERPARTS)
def test_they_are_of_pieces_that_there_are_and_look_like_classes(piece):
    own = COUNTERPARTS[piece]
    assert piece in BUILT_IN_PIECES and any(own)
    assert all(re.fullmatch(r"\w+( \w+)*", name) for names in own for name in names)


def test_names_in_any_case():
    assert named_elsewhere("catFRAMES") == ("TorchRL's CatFrames is frame_stacking here", ["frame_stacking"])
    assert named_elsewhere("MeanStdFilter")[1] == ["mean_std_filter"]
    assert named_elsewhere("frame_stacking") == named_elsewhere("") == ("", [])
