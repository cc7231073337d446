"""The command: measures rows, prints their table, writes their figures."""

from __future__ import annotations

import shlex
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.growth import draw, measure_growth
from benchmarks.libraries import rllib_is_there
from benchmarks.results import PAGE, REPOSITORY, RESULTS, ResultsError, load, notes, publish, report, save, table
from benchmarks.row import FLOOR, OURS, RLLIB, Measured, Options, Row
from benchmarks.rows import all_rows, chosen
from benchmarks.rows.training import record_returns
from benchmarks.timing import stop_all

app = typer.Typer(add_completion=False, no_args_is_help=False)

WIDEST = 240
FOLDER = Path("runs/bench")


@app.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    only: Annotated[str, typer.Option(help="Rows, or first parts of their names: `L1,E1`, `E1/16`. All if none.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes and few rounds: does it run?")] = False,
    plot: Annotated[bool, typer.Option("--plot", help="Also measure how time grows with size, and draw it.")] = False,
    rounds: Annotated[int | None, typer.Option(min=1, help="Turns of each side.")] = None,
    json: Annotated[Path | None, typer.Option(help=f"Where the figures go; a new file below {FOLDER} if none.")] = None,
) -> None:
    """Measure rows of the table, all of them or some, and put the figures into docs/benchmarks.md."""
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
    measured = {row.name: _measured(row, options, console) for row in rows}
    growth = {"growth": measure_growth(options)} if plot else {}
    stop_all()
    results = [(row, own) for row in rows if (own := measured[row.name]) is not None]
    console.print(f"{table(results)}\n{notes(results)}", markup=False, soft_wrap=True)
    found = report(results, shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]), quick=quick, **growth)
    path = json or FOLDER / f"{datetime.now():%Y%m%d-%H%M%S}.json"
    save(found, path)
    console.print(f"figures: {path}")
    if plot:
        draw(found["growth"], path.with_suffix(".png"))
        console.print(f"picture: {path.with_suffix('.png')}")
    if not quick:  # small sizes are no figures to publish
        console.print(_published([REPOSITORY / RESULTS, path] if only else [path]), markup=False)
    failed = [name for name, own in measured.items() if own is None]
    if failed:
        console.print(f"not measured: {', '.join(failed)}; see the errors above")
        raise typer.Exit(1)


def _measured(row: Row, options: Options, console: Console) -> Measured | None:
    """Return the row's figures; None, after printing the error, if it cannot be measured: the others go on."""
    try:
        with console.status(f"{row.name}: {row.what}"):
            measured = row.measure(options)
    except Exception as error:
        stop_all()
        console.print(f"{row.name}: {type(error).__name__}: {error}", markup=False)
        return None
    console.print(f"{row.name}: done")
    return measured


def _published(files: list[Path]) -> str:
    """Write the page with these files' figures, or leave it if they are of several machines; return which."""
    try:
        publish(load([file for file in files if file.exists()]), all_rows(), REPOSITORY)
    except ResultsError as error:
        return f"{PAGE} is left as it is: {error}; to replace its figures measure all rows, without --only"
    return f"{PAGE}, {RESULTS}: written; see git diff"


@app.command()
def page(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Results; rows of later files count. benchmarks/results.json if none.")
    ] = None,
) -> None:
    """Write docs/benchmarks.md with the figures of these files: after a target or a reason has changed, say."""
    found = load(files or [REPOSITORY / RESULTS])
    if found.get("quick"):
        raise typer.BadParameter(
            "these are the small sizes of --quick, and no figures to publish: run `make bench` without it"
        )
    publish(found, all_rows(), REPOSITORY)
    typer.echo(f"{PAGE}: written; see git diff")


@app.command()
def seeds(
    side: Annotated[list[str] | None, typer.Option(help="epibatch, floor or RLlib. All if none.")] = None,
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0,1,2,3,4",
) -> None:
    """Train PPO on CartPole with seeds, for the row R2/return. This takes minutes per seed."""
    record_returns(side or [OURS, FLOOR, RLLIB], [int(seed) for seed in seeds.split(",")])
