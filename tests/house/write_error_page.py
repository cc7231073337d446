"""Write the last part of docs/errors.md: a section for each error class, as its docstring describes it.

Usage: python tests/house/write_error_page.py
"""

from __future__ import annotations

import inspect
from pathlib import Path

from epibatch.core import errors

PAGE = Path(__file__).resolve().parents[2] / "docs" / "errors.md"
MARK = "<!-- from here on made by `make generated` of core/errors.py: change that -->\n"


def page() -> str:
    """Return the page: what is written by hand down to the mark, then the sections."""
    by_hand = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    public = [cls for cls in classes if not cls.__name__.startswith("_")]
    return "\n".join([f"{by_hand}{MARK}", *map(_section, public)])


def _section(cls: type) -> str:
    """The section of a class: its bases, and its docstring without lists of arguments."""
    text = inspect.cleandoc(cls.__doc__ or "")
    text = text.partition("\n\nArgs:")[0].partition("\n\nAttributes:")[0]
    ours = [base.__name__ for base in cls.__bases__ if base in vars(errors).values() and base.__name__[0] != "_"]
    above = [f"[{name}](#{name.lower()})" for name in ours if name not in ("EpibatchError", "EpibatchWarning")]
    above += [f"`{base.__name__}`" for base in cls.__bases__ if base.__module__ == "builtins"]
    also = f" ({', '.join(above)})" if above else ""
    return f"### {cls.__name__}\n\n{text}{also}\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
