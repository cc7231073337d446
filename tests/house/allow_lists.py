"""Lists of the places where today's code still breaks a rule. The lists only shrink.

usage: python tests/house/allow_lists.py

The command updates every list in tests/house/allowed/ to the present code, unless the list's total would grow. Then it
leaves the list as it is, prints what is new, and ends with exit code 1.

- **You moved or renamed a file or a function**: run the command. It replaces the old lines by the new ones.
- **A rebase left old or doubled lines**: run the command. Git joins both sides of these files (`merge=union`), so they
  never conflict.
- **The command refuses**: you added a place. Write that code differently.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import rules
from rules import Places
from sources import REPOSITORY, Source, package_sources, tests_imports

FOLDER = Path(__file__).parent / "allowed"
COMMAND = "python tests/house/allow_lists.py"


@dataclass(frozen=True)
class AllowList:
    """One list: a file of lines `name count`, or `name` where each line stands for one."""

    name: str
    advice: str
    places: Callable[[Mapping[str, Source]], Places]
    counted: bool = True

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.txt"

    def counts(self, places: Places) -> dict[str, int]:
        """Count the places of each name as the list does."""
        return {name: len(found) if self.counted else 1 for name, found in sorted(places.items())}

    def line(self, name: str, count: int) -> str:
        return f"{name} {count}" if self.counted else name

    def text(self, counts: Mapping[str, int]) -> str:
        """Return the text of the file: one line each, sorted."""
        return "".join(f"{self.line(name, count)}\n" for name, count in sorted(counts.items()))


LISTS = [
    AllowList(
        "imports_in_functions",
        "import at the top of the module; only torch and optional packages are imported in functions",
        rules.imports_in_functions,
    ),
    AllowList(
        "private_attributes",
        "give the other class a public method, or move the code into it",
        rules.private_attributes,
    ),
    AllowList(
        "internals_in_tests",
        "import public names: from packages, from RLlib's paths, from epibatch.core.errors",
        lambda modules: rules.internals_in_tests(modules, tests_imports()),
        counted=False,
    ),
]


def read(text: str) -> dict[str, int]:
    """Read a list; if a line is there twice, the smaller count holds."""
    counts: dict[str, int] = {}
    for line in text.splitlines():
        name, _, count = line.partition(" ")
        counts[name] = min(int(count or 1), counts.get(name, sys.maxsize))
    return counts


def problems(allowed: AllowList, text: str, places: Places) -> list[str]:
    """Return how a list and the code differ, with the lines to change."""
    listed, actual = read(text), allowed.counts(places)
    here = allowed.path.relative_to(REPOSITORY)
    differences = []
    for name in sorted({*listed, *actual}):
        old, new = listed.get(name, 0), actual.get(name, 0)
        if new > old:
            differences.append(f"{name}: {old} allowed, {new} found; {allowed.advice}:")
            differences += [f"    {place}" for place in places[name]]
        elif not new:
            differences.append(f"{here}: delete the line `{allowed.line(name, old)}`")
        elif new < old:
            differences.append(f"{here}: replace the line `{name} {old}` by `{name} {new}`")
    if not differences and text != allowed.text(listed):
        differences.append(f"{here}: lines are doubled or not sorted")
    return [*differences, f"or run `{COMMAND}`, which handles moved files too"] if differences else []


def shrunk(allowed: AllowList, text: str, places: Places) -> str | None:
    """Return the new text of a list; None if its total would grow."""
    actual = allowed.counts(places)
    return allowed.text(actual) if sum(actual.values()) <= sum(read(text).values()) else None


def main() -> int:
    """Rewrite the lists downward."""
    modules = package_sources()
    grown = False
    for allowed in LISTS:
        places, text = allowed.places(modules), allowed.path.read_text(encoding="utf-8")
        new = shrunk(allowed, text, places)
        if new is None:
            grown = True
            print(f"{allowed.name}: refused, the list would grow", *problems(allowed, text, places)[:-1], sep="\n  ")
        elif new != text:
            allowed.path.write_text(new, encoding="utf-8")
            print(f"{allowed.name}: {sum(read(text).values())} -> {sum(read(new).values())}")
    return int(grown)


if __name__ == "__main__":
    sys.exit(main())
