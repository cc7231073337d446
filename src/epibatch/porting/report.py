"""Report of a port: the diff, the remaining work, and a summary."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from .ported_source import PortedSource

_STYLES = (("---", "bold"), ("+++", "bold"), ("@@", "cyan"), ("-", "red"), ("+", "green"))


def show_ported(console: Console, name: str, ported: PortedSource, *, written: bool) -> None:
    """Print the diff, in colours on a terminal, and a line for each remaining change.

    Elsewhere the diff is printed unchanged, with its tabs and carriage returns, so that `patch` can read it.

    Args:
        console: The console to print on.
        name: The file's name.
        ported: The ported source.
        written: True if the file has the ported text already; line numbers are then those of the ported text.
    """
    diff = ported.diff(name)
    if not console.is_terminal:
        console.file.write(diff)
        console.file.flush()  # before output on another stream of the same terminal
    for line in diff.splitlines() if console.is_terminal else ():
        style = next((style for start, style in _STYLES if line.startswith(start)), "")
        console.print(Text(line, style=style), soft_wrap=True)
    for leftover in ported.leftovers:
        line_number = leftover.line_after if written else leftover.line
        where = Text(f"{name}:{line_number}: ", style="bold")
        console.print(where + Text(leftover.name, style="yellow") + Text(f": {leftover.reason}"), soft_wrap=True)


def summary(ported: Sequence[PortedSource], *, write: bool) -> str:
    """Return one sentence about all files.

    Args:
        ported: The ported source of each file.
        write: True if the files were to be written.

    Examples:
        >>> from epibatch.porting import port_source
        >>> summary([port_source("import ray.rllib.core as core")], write=False)
        '1 import to change in 1 file, nothing left to do by hand; --write changes it'
    """
    changes = sum(source.imports for source in ported)
    files = sum(source.text != source.original for source in ported)
    left = sum(len(source.leftovers) for source in ported)
    by_hand = f"{_count(left, 'place')} left to do by hand" if left else "nothing left to do by hand"
    if not files:
        return f"no imports to change, {by_hand}"
    if write:
        return f"{_count(changes, 'import')} changed in {_count(files, 'file')}, {by_hand}"
    return (
        f"{_count(changes, 'import')} to change in {_count(files, 'file')}, {by_hand}; "
        f"--write changes {'it' if changes == 1 else 'them'}"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
