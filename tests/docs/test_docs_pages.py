"""Every page is in the list of pages, and every link on a page leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
LINK = re.compile(r"\[[^\]]*\]\((?!https?:)([^)#\s]*)(?:#([\w-]+))?\)")


def without_code(page):
    return re.sub(r"^```.*?^```$|`[^`\n]+`", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors_of(page):
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def dead_links(page):
    for target, anchor in LINK.findall(without_code(page)):
        there = page if not target else (page.parent / target).resolve()
        if not there.exists() or (anchor and anchor not in anchors_of(there)):
            yield f"{target}#{anchor}" if anchor else target


def test_every_page_is_listed_once():
    listed = re.findall(r"^\| \[[^\]]+\]\(([\w/-]+\.md)\) \|", (DOCS / "README.md").read_text(encoding="utf-8"), re.M)
    assert sorted(listed) == sorted(page.relative_to(DOCS).as_posix() for page in PAGES if page.name != "README.md")


@pytest.mark.parametrize(
    "page", [DOCS.parent / "README.md", *PAGES], ids=lambda page: page.relative_to(DOCS.parent).as_posix()
)
def test_links_lead_to_files_and_headings(page):
    assert list(dead_links(page)) == []
    assert re.findall(r"\[[\w./-]+\.md\]\(", without_code(page)) == [], "name the page, not its file"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS.parent).as_posix())
def test_every_code_block_ends(page):
    fences = re.findall(r"^```.*$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) % 2 == 0 and {*fences[1::2]} <= {"```"}


def test_the_readers_way_is_short():
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    way, words = index[index.index("## Start") : index.index("## Reference")], 0
    for name in re.findall(r"^\| \[[^\]]+\]\(([\w./-]+\.md)\)", way, re.MULTILINE):
        text = (DOCS / name).read_text(encoding="utf-8")
        words += len(re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL).split())
    assert 20_000 < words <= 45_000  # code apart; at 250 words a minute, three hours
