"""The command line: `epibatch train CONFIG`, `epibatch pieces`."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

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
        bool,
        typer.Option(
            "--allow-imports",
            help="Let the config import pieces and environments, from the current folder too; this runs code.",
        ),
    ] = False,
) -> None:
    """Train from a config file, into a folder with metrics, learning curve and checkpoint.

    Exit code 0: the goal was reached; or there is none, or --iterations were done. 1: a limit was used up before the
    goal was reached. 2: wrong config or usage. 3: an error while running, in a piece or an environment, say.
    130, 143: stopped with Ctrl-C or SIGTERM. Once training has begun a checkpoint is saved, but for a second Ctrl-C.
    """
    if (config is None) == (resume is None):
        _fail("give either a CONFIG file or --resume RUN")
    if resume is not None and (run is not None or seed is not None):
        _fail("--resume goes on in its own folder with its own seed; leave out --run and --seed")
    if allow_imports and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    training = importlib.import_module("epibatch.algorithms.training_run")
    try:
        if resume is not None:
            session = training.TrainingRun.resume(resume, allow_imports=allow_imports)
        else:
            session = training.TrainingRun.start(config, run, seed=seed, allow_imports=allow_imports)
    except training.STARTUP_ERRORS as error:
        _fail(error)
    except Exception as error:
        report = importlib.import_module("epibatch.algorithms.error_reports").error_report(error)
        typer.echo(f"{report}\n\nthe run could not be built", err=True)
        raise typer.Exit(training.FAILED) from None
    raise typer.Exit(session.run(iterations))


@app.command()
def pieces(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")] = False,
) -> None:
    """List the connector pieces that configs can name, with their pipelines and keywords."""
    listed = _described_pieces()
    if as_json:
        typer.echo(json.dumps(listed, indent=2))
        return
    table = Table("piece", "pipelines", "keywords", "owner", "what it does", box=None, header_style="bold")
    for piece in listed:
        keywords = ", ".join(name + _default(value) for name, value in piece["keywords"].items())
        pipelines = ", ".join(piece["pipelines"])
        table.add_row(piece["piece"], pipelines, escape(keywords), piece["owner"], escape(piece["description"]))
    width = None if sys.stdout.isatty() else 240
    Console(width=width).print(table)


def _described_pieces() -> list[dict[str, Any]]:
    """What there is to say about every piece, second names included, as plain data."""
    from epibatch.core.piece_names import ALIASES
    from epibatch.core.registry import piece_entries

    listed = []
    for entry in piece_entries():
        owner = " and ".join((entry.owner, *entry.rivals))
        described: dict[str, Any] = {"piece": entry.name, "pipelines": list(entry.pipelines), "keywords": {}}
        text = "name taken twice: cannot be used"
        if not entry.rivals:
            text, described["keywords"] = _text_and_keywords(entry.name)
        listed.append({**described, "owner": owner, "description": text})
    known = {piece["piece"]: piece for piece in listed}
    for alias, name in ALIASES.items():
        listed.append({**known[name], "piece": alias, "description": f"Another name of {name}."})
    return sorted(listed, key=lambda piece: str(piece["piece"]))


def _text_and_keywords(name: str) -> tuple[str, dict[str, Any]]:
    """The first sentence about a piece, and its keywords: {} or {"default": value} for each."""
    from epibatch.core.piece_specs import SPACES, constructor_parameters
    from epibatch.core.registry import piece_class, plain_data

    try:
        cls = piece_class(name)
    except EpibatchError as error:
        return "cannot be loaded: " + str(error).splitlines()[2].strip(), {}
    keywords: dict[str, Any] = {}
    for key, parameter in constructor_parameters(cls).items():
        if key in SPACES:
            continue
        keywords[key] = {}
        if parameter.default is not inspect.Parameter.empty:
            try:
                keywords[key]["default"] = plain_data(parameter.default)
            except TypeError:
                keywords[key]["default"] = repr(parameter.default)
    return first_sentence(cls.__doc__), keywords


def _default(keyword: dict[str, Any]) -> str:
    return f"={keyword['default']!r}" if "default" in keyword else " (needed)"


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
