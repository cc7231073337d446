"""The faults of a built site, found without a network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LARGEST = 800_000


class _Page(HTMLParser):
    """Anchors, links, fetched addresses and pictures of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.pictures_without_words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        address = given.get("src") or given.get("href") or ""
        if "id" in given:
            self.ids.append(given["id"])
        if tag == "a" and address:
            self.links.append(address)
        if tag in ("img", "script", "iframe", "source") or given.get("rel") in ("stylesheet", "icon", "preload"):
            self.fetched.append(address)
        if tag == "img" and not given.get("alt"):
            self.pictures_without_words.append(address)


def faults_of(site: Path, names: Mapping[str, str]) -> list[str]:
    """Return what is wrong with a site, each with its page.

    Args:
        site: The folder of the site.
        names: The page and anchor of each public name.
    """
    texts = {path.relative_to(site).as_posix(): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    pages = {name: _Page(text) for name, text in texts.items() if name != "404.html"}
    faults = [f"{name}: {fault}" for name, page in pages.items() for fault in _faults_of_page(site, pages, name, page)]
    ids = {name: {*page.ids} for name, page in pages.items()}
    for name, address in names.items():
        page, _, anchor = address.partition("#")
        if anchor not in ids.get(page, ()):
            faults.append(f"{name}: not at {address}")
    return faults


def _faults_of_page(site: Path, pages: Mapping[str, _Page], name: str, page: _Page) -> Iterator[str]:
    for address in page.fetched + page.links:
        parts = urlsplit(address)
        if parts.scheme or parts.netloc:
            if address in page.fetched:
                yield f"fetches {address}"
            continue
        target = (site / name).parent / unquote(parts.path) if parts.path else site / name
        path = (target / "index.html" if target.is_dir() else target).resolve()
        if not path.is_file():
            yield f"{address} leads to nothing"
        elif parts.fragment and unquote(parts.fragment) not in pages[path.relative_to(site).as_posix()].ids:
            yield f"{address} has no such anchor"
    yield from (f"id {anchor} is there {count} times" for anchor, count in Counter(page.ids).items() if count > 1)
    yield from (f"no words for the picture {address}" for address in page.pictures_without_words)
    size = (site / name).stat().st_size
    if size > LARGEST:
        yield f"{size} bytes, more than {LARGEST}"
