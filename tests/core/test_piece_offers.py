from __future__ import annotations

import pytest

from epibatch.core.errors import PieceError, RegistryError
from epibatch.core.piece_offers import PieceEntry, check_piece_class, class_path, load_class, load_entry, offered_pieces

STACKING = "epibatch.connectors.common.frame_stacking:FrameStacking"


def test_built_in_pieces_are_offered_without_being_imported():
    entries = offered_pieces({"frame_stacking": "no.such.module:FrameStacking"}, {})
    assert entries["frame_stacking"].path == "no.such.module:FrameStacking"
    assert entries["frame_stacking"].owner == "epibatch" and entries["frame_stacking"].rivals == ()


def test_an_entry_tells_who_offers_what():
    entry = PieceEntry("clip", "their_package.pieces:Clip", "their-package", "2.1")
    assert (entry.offered_by, entry.package) == ("their-package 2.1", "their_package")
    assert entry.describe() == "their-package 2.1 (their_package.pieces:Clip)"
    assert PieceEntry("clip", "script:Clip", "script").offered_by == "script"


def test_classes_are_found_by_the_path_they_have():
    cls = load_class(STACKING, "here")
    assert class_path(cls) == STACKING and check_piece_class(cls, "here") is cls


@pytest.mark.parametrize(
    ("path", "error", "words"),
    [
        ("no_such_package:Piece", RegistryError, "No module named 'no_such_package'"),
        (STACKING.replace(":FrameStacking", ":NoSuch"), RegistryError, "has no 'NoSuch'"),
        ("epibatch.connectors", RegistryError, "module:Class"),
        ("collections:OrderedDict", PieceError, "a subclass of epibatch.connectors.ConnectorV2"),
        ("math:sqrt", PieceError, "of type builtin_function_or_method"),
    ],
)
def test_what_a_path_may_lead_to(path, error, words):
    with pytest.raises(error, match=rf"^here[\s\S]*{words}"):
        load_class(path, "here")


def test_a_package_made_for_another_release_is_not_imported():
    entry = PieceEntry("clip", "no_such_package:Clip", "their-package", "2.1", requires=("epibatch>=99", "numpy"))
    with pytest.raises(RegistryError, match=r"their-package 2\.1[\s\S]*epibatch>=99[\s\S]*found:"):
        load_entry(entry)
