"""The sources of the documentation site are sound, and planted faults of sources and of a built site are named."""

from __future__ import annotations

import ast

from site_faults import faults_of
from sources import REPOSITORY
from write_site import addresses_of_code, api_pages, lacking_arguments, lay_out, undocumented_arguments

SOUND = '<a href="other.html#there">x</a><img src="p.png" alt="words"><h1 id="here"></h1>'
PLANTED = {  # one page of a site -> the fault
    '<a href="gone.html">x</a>': "gone.html leads to nothing",
    '<a href="other.html#gone">x</a>': "other.html#gone has no such anchor",
    '<h1 id="a"></h1><h2 id="a"></h2>': "id a is there 2 times",
    '<img src="p.png">': "no words for the picture p.png",
    '<script src="https://unpkg.com/x.js"></script>': "fetches https://unpkg.com/x.js",
    "x" * 800_001: "800001 bytes, more than 800000",
}


def test_sources_are_sound(tmp_path):
    pages, names = api_pages()
    assert lay_out(REPOSITORY, tmp_path, addresses_of_code(names)) + undocumented_arguments() == []
    assert "[replay](replay.md)" in (tmp_path / "index.md").read_text(encoding="utf-8")
    stacking = "[`FrameStacking`](api/epibatch.connectors.common.html#epibatch.connectors.common.FrameStacking)"
    assert stacking in (tmp_path / "gallery.md").read_text(encoding="utf-8")
    assert "\n::: epibatch.episodes.SingleAgentEpisode\n" in "".join(pages.values())
    assert names["epibatch.PPOConfig"] == names["epibatch.algorithms.PPOConfig"]


def test_planted_faults_are_named(tmp_path):
    repository, site = tmp_path / "repository", tmp_path / "site"
    (repository / "docs").mkdir(parents=True)
    (repository / "README.md").write_text("[a](docs/a.md) [b](docs/b.md) [g](gone.py)\n```\n[x](in-code.md)\n```\n")
    for name in "ab":
        (repository / f"docs/{name}.md").write_text(f"# {name}\n")
    (repository / "docs/README.md").write_text("## Start\n\n*First*\n\n| [A](a.md) | x |\n| [A](a.md) | y |\n")
    assert lay_out(repository, tmp_path / "pages")[1] == "a.md: 2 pages have this place"
    (repository / "docs/README.md").write_text("## Start\n\n*First*\n\n| [A](a.md) | x |\n")
    assert lay_out(repository, tmp_path / "pages") == [
        "docs/b.md: no row of docs/README.md leads to it",
        "README.md: docs/b.md leads to nothing on the site",
        "README.md: gone.py leads to nothing on the site",
    ]
    source = 'def f(a, b=1):\n    """Add.\n\n    Args:\n        a: Number.\n\n    b: no argument.\n    """\n'
    assert lacking_arguments(ast.parse(source).body[0]) == ["b"]

    site.mkdir()
    (site / "p.png").touch()
    (site / "other.html").write_text('<h1 id="there"></h1>')
    (site / "page.html").write_text(SOUND)
    assert faults_of(site, {"epibatch.f": "page.html#here"}) == []
    assert faults_of(site, {"epibatch.f": "page.html#f"}) == ["epibatch.f: not at page.html#f"]
    for text, fault in PLANTED.items():
        (site / "page.html").write_text(text)
        assert faults_of(site, {}) == [f"page.html: {fault}"]
