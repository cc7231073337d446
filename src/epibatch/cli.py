"""The command line: `epibatch train CONFIG`, `epibatch pieces`."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from epibatch import __version__
from epibatch.core.errors import EpibatchError

__all__ = ["app", "main"]

app = typer.Typer(
    name="epibatch",
    help="Turn episodes into batches: train from a config file, list connector pieces.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

WRONG_USE = 2


def _fail(message: object) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(WRONG_USE)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"epibatch {__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Turn episodes into batches: train from a config file, list connector pieces."""


@app.command()
def train(
    config: Annotated[Path | None, typer.Argument(help="YAML file with the config; not needed with --resume.")] = None,
    run: Annotated[Path | None, typer.Option(help="New folder for the run; default runs/<config>-<time>.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Folder of a saved run to go on with.")] = None,
    iterations: Annotated[int | None, typer.Option(min=1, help="Stop after this many further iterations.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed, in place of the config's.")] = None,
    allow_imports: Annotated[
        bool, typer.Option("--allow-imports", help="Let the config import pieces and environments; this runs code.")
    ] = False,
) -> None:
    """Train from a config file, into a folder with metrics, learning curve and checkpoint.

    Exit code 0: the goal was reached, or the run ended without having one. 1: the limits were used up before the
    goal. 2: wrong config or usage. 130: stopped with Ctrl-C, checkpoint saved.
    """
    if (config is None) == (resume is None):
        _fail("give either a CONFIG file or --resume RUN")
    if resume is not None and (run is not None or seed is not None):
        _fail("--resume goes on in its own folder with its own seed; leave out --run and --seed")
    training = importlib.import_module("epibatch.algorithms.training_run")
    try:
        if resume is not None:
            session = training.TrainingRun.resume(resume, allow_imports=allow_imports)
        else:
            session = training.TrainingRun.start(config, run, seed=seed, allow_imports=allow_imports)
    except training.STARTUP_ERRORS as error:
        _fail(error)
    try:
        code = session.run(iterations)
    except EpibatchError as error:
        _fail(error)
    raise typer.Exit(code)


@app.command()
def pieces() -> None:
    """List the connector pieces that configs can name."""
    from epibatch.core.registry import piece_class, piece_entries

    table = Table("piece", "owner", "what it does", box=None, header_style="bold")
    for entry in piece_entries():
        if entry.rivals:
            table.add_row(entry.name, " and ".join((entry.owner, *entry.rivals)), "name taken twice: cannot be used")
            continue
        try:
            text = first_sentence(piece_class(entry.name).__doc__)
        except EpibatchError as error:
            text = "cannot be loaded: " + str(error).splitlines()[2].strip()
        table.add_row(entry.name, entry.owner, escape(text))
    width = None if sys.stdout.isatty() else 200
    Console(width=width).print(table)


def first_sentence(docstring: str | None) -> str:
    """The first sentence of a docstring, on one line.

    Example:
        >>> first_sentence("Stack frames of images. More.")
        'Stack frames of images.'
    """
    paragraph = " ".join((docstring or "").strip().split("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z`])", paragraph)[0]


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
