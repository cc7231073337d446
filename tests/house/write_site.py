"""Build the documentation site: the pages that docs/README.md lists, and the API reference from the docstrings.

Usage: python tests/house/write_site.py

Needs the extra `docs`. The site is in build/site/html. Faults are printed, and the exit code is 1 if there are any.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from epibatch.core.lazy import public_names
from site_faults import faults_of
from sources import FUNCTIONS, MODULES, PACKAGES, REPOSITORY

SITE = REPOSITORY / "build" / "site"
SETTINGS = REPOSITORY / "docs" / "site"
INDEX = "docs/README.md"
MANY_METHODS = 20
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?:\[`(\w+)`)?(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
ROW = re.compile(r"^\| \[[^\]]+\]\(([\w/.-]+\.md)\) \|")
ARGUMENT = re.compile(r"^ {4}\*{0,2}(\w+)(?: \([^)]*\))?:", re.MULTILINE)


def navigation(index: str) -> dict[str, list[Any]]:
    """Return the parts of the site: lists of pages, and of sections with pages.

    Args:
        index: The text of docs/README.md. A heading begins a part, a line in italics begins a section.
    """
    parts: dict[str, list[Any]] = {}
    pages: list[Any] = []
    for line in index.splitlines():
        if line.startswith("## "):
            pages = part = parts[line[3:]] = []
        elif line.startswith("*"):
            pages = []
            part.append({line.strip("*"): pages})
        elif row := ROW.match(line):
            pages.append(os.path.normpath(f"docs/{row[1]}"))
    return parts


def listed(entries: Any) -> Iterator[str]:
    """Yield the pages of a part, those of its sections too."""
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        else:
            yield from listed(*entry.values())


def place(path: str) -> str:
    """Return the path on the site of a file of the repository."""
    if path in ("README.md", INDEX):
        return "index.md" if path == "README.md" else "pages.md"
    path = path.replace("/README.md", "/index.md")
    return path.removeprefix("docs/") if path.startswith("docs/") or path.endswith(".md") else f"files/{path}"


def lay_out(repository: Path, folder: Path, code: Mapping[tuple[str, str], str] | None = None) -> list[str]:
    """Write the listed pages and the files that they link to, with the links of the site; return the faults.

    Args:
        repository: The folder with README.md and docs.
        folder: The folder to write to.
        code: Addresses of public names on the site, by file and name. A link from a name to its file leads there.
    """
    parts = navigation((repository / INDEX).read_text(encoding="utf-8"))
    pages = ["README.md", INDEX, *(page for part in parts.values() for page in listed(part))]
    written = {path.relative_to(repository).as_posix() for path in (repository / "docs").rglob("*.md")}
    faults = [f"{page}: no row of {INDEX} leads to it" for page in sorted(written.difference(pages))]
    faults += [
        f"{page}: {count} pages have this place" for page, count in Counter(map(place, pages)).items() if count > 1
    ]

    def moved(page: str, link: re.Match[str]) -> str:
        name, before, target, after = link.groups()
        if "://" in target:
            return link[0]
        text, here = "" if name is None else f"[`{name}`", os.path.dirname(place(page)) or "."
        path = os.path.normpath(os.path.join(os.path.dirname(page), target))
        if code and (path, name) in code:
            return f"{text}{before}{os.path.relpath(code[path, name], here)})"
        is_page = path.endswith(".md")
        if path not in pages if is_page else not (repository / path).is_file():
            faults.append(f"{page}: {target} leads to nothing on the site")
        elif not is_page:
            _copied(repository / path, folder / place(path))
        return text + before + os.path.relpath(place(path), here) + after

    for page in pages:
        texts = FENCE.split((repository / page).read_text(encoding="utf-8"))
        for number in range(0, len(texts), 2):  # the texts between code
            texts[number] = LINK.sub(partial(moved, page), texts[number])
        _write(folder / place(page), "".join(texts))
    return faults


def _copied(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def api_pages() -> tuple[dict[str, str], dict[str, str]]:
    """Return the text of each page of the API reference, and the page and anchor of each public name.

    A name that several packages export is on the page of the innermost of them. A class with many methods has a page
    of its own.
    """
    names = {package: public_names(package) for package in _packages()}
    homes: dict[tuple[str, str], str] = {}
    pages: dict[str, str] = {}
    for package in sorted(names, key=lambda package: -package.count(".")):
        for name in names[package]:
            origin = _origin(names, package, name)
            if origin not in homes:
                anchor = f"{package}.{name}"
                page = anchor if _count_methods(*origin) > MANY_METHODS else package
                homes[origin] = f"api/{page}.html#{anchor}"
                pages.setdefault(f"api/{page}.md", f"# {page if page == package else name}\n")
                pages[f"api/{page}.md"] += f"\n::: {anchor}\n"
    addresses = {
        f"{package}.{name}": homes[_origin(names, package, name)] for package in names for name in names[package]
    }
    return dict(sorted(pages.items())), addresses


def addresses_of_code(names: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """Return the page and anchor of each public name, by its file and the name.

    Args:
        names: The page and anchor of each public name, by package and name.
    """
    tables = {package: public_names(package) for package in _packages()}
    origins = {f"{package}.{name}": _origin(tables, package, name) for package in tables for name in tables[package]}
    return {
        (MODULES[module].relative_to(REPOSITORY).as_posix(), own): names[name]
        for name, (module, own) in origins.items()
    }


def _count_methods(module: str, name: str) -> int:
    classes = [node for node in _tree(module).body if isinstance(node, ast.ClassDef) and node.name == name]
    return sum(isinstance(node, FUNCTIONS) and node.name[0] != "_" for found in classes for node in found.body)


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def _packages() -> list[str]:
    return [package for package, folder in PACKAGES.items() if (folder / "__init__.pyi").exists()]


def _origin(names: Mapping[str, Mapping[str, str]], package: str, name: str) -> tuple[str, str]:
    module = names[package][name]
    return _origin(names, module, name) if module != package and name in names.get(module, ()) else (module, name)


def undocumented_arguments() -> list[str]:
    """Return the public functions and classes whose docstring lacks an argument, each with what it lacks."""
    public = {(module, name) for package in _packages() for name, module in public_names(package).items()}
    return [
        f"{module}.{name}: its docstring lacks {', '.join(lacking)}"
        for module, name in sorted(public)
        for node in _tree(module).body
        if getattr(node, "name", None) == name and (lacking := lacking_arguments(node))
    ]


def lacking_arguments(definition: ast.stmt) -> list[str]:
    """Return the arguments of a function, or of a class's `__init__`, that its section `Args:` lacks.

    Args:
        definition: The syntax tree of the function or class.
    """
    inner = definition.body if isinstance(definition, ast.ClassDef) else []
    constructors = [node for node in inner if isinstance(node, FUNCTIONS) and node.name == "__init__"]
    function = constructors[0] if constructors else definition
    if not isinstance(function, FUNCTIONS) or "overload" in map(ast.unparse, function.decorator_list):
        return []
    section = (ast.get_docstring(definition) or "").partition("Args:\n")[2]
    documented = {"self", *ARGUMENT.findall(re.split(r"\n\n\S", section)[0])}
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return [argument.arg for argument in arguments if argument.arg not in documented]


def build(names: Mapping[str, str]) -> list[str]:
    """Build the site from its sources in build/site, and return the faults.

    Args:
        names: The address of each public name.
    """
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(SITE / "mkdocs.yml")]
    built = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8")
    if built.returncode:
        return [re.sub(r"\x1b\[[\d;]*m", "", built.stdout)]
    docstrings = [line for line in built.stdout.splitlines() if line.startswith("griffe: ")]
    return docstrings + faults_of(SITE / "html", names)


def main() -> int:
    """Build the site; print its faults."""
    shutil.rmtree(SITE, ignore_errors=True)
    pages, names = api_pages()
    faults = lay_out(REPOSITORY, SITE / "pages", addresses_of_code(names)) + undocumented_arguments()
    for page, text in pages.items():
        _write(SITE / "pages" / page, text)
    _copied(SETTINGS / "site.css", SITE / "pages" / "site.css")
    index = (REPOSITORY / INDEX).read_text(encoding="utf-8")
    parts = [{title: _placed(part)} for title, part in navigation(index).items()]
    parts = [
        {"Home": ["index.md", place(INDEX)]},
        *parts,
        {"API": [{page[len("api/epibatch.") : -len(".md")] or "epibatch": page} for page in pages]},
    ]
    _write(SITE / "mkdocs.yml", f"{(SETTINGS / 'mkdocs.yml').read_text(encoding='utf-8')}nav: {json.dumps(parts)}\n")
    faults += build(names)
    print("\n".join([*faults, f"{len(faults)} faults; the site is in {SITE / 'html'}"]))
    return int(bool(faults))


def _placed(entries: list[Any]) -> list[Any]:
    """The places of pages, and of those in sections."""
    return [
        place(entry) if isinstance(entry, str) else {title: _placed(pages) for title, pages in entry.items()}
        for entry in entries
    ]


if __name__ == "__main__":
    sys.exit(main())
