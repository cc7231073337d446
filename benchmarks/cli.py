"""The command: measures rows, prints their table, writes their figures."""

from __future__ import annotations

import shlex
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.libraries import rllib_is_there
from benchmarks.results import Result, report, result_of, save
from benchmarks.row import RLLIB, Options, Row
from benchmarks.rows import all_rows, chosen
from benchmarks.table import screen
from benchmarks.workers import stop_all

app = typer.Typer(add_completion=False, no_args_is_help=False)

WIDEST = 200
FOLDER = Path("runs/bench")


@app.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    only: Annotated[str, typer.Option(help="Rows, or first parts of their names: `L1,E1`, `E1/16`. All if none.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes and few rounds: does it run?")] = False,
    rounds: Annotated[int | None, typer.Option(min=1, help="Turns of each side.")] = None,
    json: Annotated[Path | None, typer.Option(help=f"Where the figures go; a new file below {FOLDER} if none.")] = None,
) -> None:
    """Measure rows of the table, all of them or some."""
    if context.invoked_subcommand is not None:
        return
    console = Console(width=None if sys.stdout.isatty() else WIDEST)
    try:
        rows = chosen(all_rows(), only)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    options = Options(quick=quick, rllib=rllib_is_there(), rounds=rounds)
    if not options.rllib:
        console.print(f"{RLLIB} is not installed, so its column is empty: pip install -c constraints.txt -e '.[bench]'")
    results = [_measured(row, options, console) for row in rows]
    stop_all()
    console.print(screen(results))
    found = report(results, shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]), quick=quick)
    path = json or FOLDER / f"{datetime.now():%Y%m%d-%H%M%S}.json"
    save(found, path)
    console.print(f"figures: {path}")


def _measured(row: Row, options: Options, console: Console) -> Result:
    with console.status(f"{row.name}: {row.what}"):
        result = result_of(row, row.measure(options))
    console.print(f"{row.name}: done")
    return result
