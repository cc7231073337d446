"""`epibatch data show DATA`, `data check DATA` and `data convert SOURCE TARGET`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from epibatch import offline
from epibatch.core.errors import ConfigError, EpibatchError
from epibatch.core.files import replace_file, storing

FAULTS = 1
WRONG_USE = 2

app = typer.Typer(help="Look at recorded episodes, check them, and write them in another format.")

Source = Annotated[Path, typer.Argument(metavar="DATA", help="The folder or file of the episodes.")]
Format = Annotated[str | None, typer.Option(help="Its format; left out: what it looks like.")]


@contextmanager
def _refusing() -> Iterator[None]:
    """Print an error of the library in place of a traceback, and exit."""
    try:
        yield
    except EpibatchError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(WRONG_USE) from None


@app.command()
def show(
    data: Source,
    format: Format = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Draw returns and lengths of the episodes into this PNG file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the facts as JSON, for other programs.")] = False,
) -> None:
    """Show what recorded episodes there are: numbers, lengths, returns, spaces, and the columns of their steps.

    Exit code 0: shown. 2: nothing is there, it is damaged, or of no format that is known; or wrong usage.
    """
    with _refusing():
        if out is not None and out.suffix.lower() != ".png":
            do = "name it data.png"
            raise ConfigError("the picture", expected="a file that ends in .png", found=str(out), do=do)
        episodes = offline.read_episodes(data, format)
        facts = offline.overview.overview(episodes)
        if out is not None:
            picture = offline.overview.overview_picture(episodes, str(data))
            with storing(f"writing {out}", "choose another file"):
                replace_file(out, picture)
    typer.echo(json.dumps(facts, indent=2) if as_json else offline.overview.overview_text(facts))
    if out is not None and not as_json:
        typer.echo(f"picture: {out}")


@app.command()
def check(data: Source, format: Format = None) -> None:
    """Check recorded episodes: sums of the files, gaps, NaN, values outside their space, and flags.

    Each kind of fault is a line, with its number and its first episode and step.

    Exit code 0: nothing is wrong, or there are warnings only. 1: the files are damaged, or there are errors.
    2: nothing is there, or wrong usage.
    """
    with _refusing():
        lines = offline.checking.fault_lines(data, format)
    typer.echo("\n".join(lines or ["no faults"]))
    if any(line.startswith("error") for line in lines):
        raise typer.Exit(FAULTS)


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(help="The folder or file of the episodes.")],
    target: Annotated[Path, typer.Argument(help="The folder or file to write; nothing may be there.")],
    format: Annotated[str | None, typer.Option(help="The format to write; left out: epibatch's own.")] = None,
    source_format: Annotated[
        str | None, typer.Option("--from", help="The format of SOURCE; left out: what it looks like.")
    ] = None,
) -> None:
    """Write recorded episodes in another format.

    Exit code 0: written. 2: SOURCE cannot be read, or TARGET not written, which is as it was then; or wrong usage.
    """
    with _refusing():
        episodes = offline.read_episodes(source, source_format)
        offline.write_episodes(episodes, target, format, env=episodes.env)
    typer.echo(f"{target}: {len(episodes):,} episodes, {episodes.num_steps:,} steps")
