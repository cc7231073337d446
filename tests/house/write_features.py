"""Write docs/internals/features.md of tests/features.yaml.

Usage: python tests/house/write_features.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "internals" / "features.md"
TABLE = REPOSITORY / "tests" / "features.yaml"
HEAD = """# Features, one by one

<!-- made by `make generated` of tests/features.yaml: change that -->

RLlib's old rollouts and trajectory views, a storage on rsl_rl, TorchRL's environments and transforms, and RLlib's
connector pipelines. Each of their {count} features has a row with what epibatch has for it: a piece, a setting,
something equivalent, or the reason why it is not here. A row names the tests, examples and pages that show it.

Not here: {absent}. In part, with what is missing: {part}.
"""
COLUMNS = "| id | what | here | shown by |\n|---|---|---|---|"


def page() -> str:
    """Return the page."""
    sections = YAML(typ="safe").load(TABLE.read_text(encoding="utf-8"))
    rows = [row for section in sections for row in section["rows"]]
    absent, part = (", ".join(row["id"] for row in rows if words in row["here"]) for words in ("not here:", "Part:"))
    parts = [HEAD.format(count=len(rows), absent=absent or "none", part=part or "none")]
    for section in sections:
        parts.append(
            "\n".join([f"## {section['title']}\n\n{section['about']}\n\n{COLUMNS}", *map(_line, section["rows"])])
        )
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _line(row: dict[str, Any]) -> str:
    shown = [place if place.startswith("[") else f"`{place}`" for place in row["shown"]]
    return f"| {row['id']} | {row['what']} | {row['here']} | {', '.join(shown) or '-'} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
