"""The command line: `new NAME`, `train CONFIG`, `play RUN`, `record RUN`, `inspect RUN`, `plot RUN...`,
`data show|check|convert`, `settings`, `schema`, `pieces`, `check PIECE`, `envs`, `check-env ENV` and `port FILE`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import gymnasium as gym
import typer
from rich.console import Console

from epibatch import algorithms, env_listing, new_project, piece_listing, porting, testing
from epibatch.algorithms import run as run_commands
from epibatch.core import __version__
from epibatch.core.errors import EpibatchError, MissingExtraError, PortingError, nearest
from epibatch.core.piece_declarations import PIPELINE_NAMES
from epibatch.core.registry import piece_entries
from epibatch.offline import commands as data_commands

app = typer.Typer(
    name="epibatch",
    help="Turn episodes into batches: train and play from a config, list and check pieces, port files from RLlib.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data_commands.app, name="data")

LEFT_TO_DO = 1
WRONG_USE = 2
NEXT = """  python -m pytest                             # the tests of environment and piece; pip install pytest
  epibatch train train.yaml --allow-imports --run runs/first
  epibatch play runs/first --allow-imports     # then make the files yours"""
UNBROKEN = 1000
"""Width of a table that goes to no terminal, so that no line is broken."""


def _fail(message: object) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(WRONG_USE)


@contextlib.contextmanager
def _before_training() -> Iterator[None]:
    """Let Ctrl-C or SIGTERM end what is inside, and say so."""
    received = [int(signal.SIGINT)]

    def on_sigterm(number: int, frame: FrameType | None) -> NoReturn:
        received.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, on_sigterm)
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("interrupted before training began; nothing is saved", err=True)
        raise typer.Exit(128 + received[-1]) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _allow_current_folder(allow_imports: bool) -> None:
    """Let modules in the current folder be found, if imports are allowed."""
    if allow_imports and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def _print_version(flag: bool) -> None:
    if flag:
        typer.echo(f"epibatch {__version__}")
        raise typer.Exit()


def _piece_names(incomplete: str) -> list[str]:
    return [name for name in piece_entries() if name.startswith(incomplete)]


def _env_names(incomplete: str) -> list[str]:
    return [name for name in gym.registry if name.startswith(incomplete)]


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Turn episodes into batches: train and play from a config, list and check pieces, port files from RLlib."""


@app.command()
def new(
    name: Annotated[Path, typer.Argument(help="The folder to make; an empty one may be there.")],
) -> None:
    """Make a folder with a config, an environment, a piece and a test, which run at once.

    Exit code 0: made. 2: there are files in the folder, or it cannot be written.
    """
    try:
        made = new_project.make_project(name)
    except EpibatchError as error:
        _fail(error)
    typer.echo(f"{name}: {', '.join(made)}\n\nnext:\n  cd {shlex.quote(str(name))}\n{NEXT}")


@app.command()
def train(
    config: Annotated[Path | None, typer.Argument(help="YAML file with the config; not needed with --resume.")] = None,
    run: Annotated[Path | None, typer.Option(help="New folder for the run; default runs/<config>-<time>.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Folder of a saved run to go on with, or a checkpoint in it.")
    ] = None,
    iterations: Annotated[int | None, typer.Option(min=1, help="Stop after this many further iterations.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed, in place of the config's.")] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            help="Change a setting of the config, training.lr=1e-3 or env_to_module.0.num_frames=2; may be repeated.",
        ),
    ] = None,
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
    _allow_current_folder(allow_imports)
    with _before_training():
        training = run_commands.training_run
        try:
            if config is not None:
                every = [*(changes or ()), *([] if seed is None else [f"debugging.seed={seed}"])]
                session = training.TrainingRun.start(config, run, changes=every, allow_imports=allow_imports)
            elif resume is not None:
                session = training.TrainingRun.resume(resume, changes=changes or (), allow_imports=allow_imports)
        except training.STARTUP_ERRORS as error:
            _fail(error)
        except Exception as error:
            typer.echo(f"{run_commands.error_reports.error_report(error)}\n\nthe run could not be built", err=True)
            raise typer.Exit(training.FAILED) from None
    raise typer.Exit(session.run(iterations))


@app.command()
def play(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or a checkpoint.")],
    episodes: Annotated[int, typer.Option(min=1, max=1_000_000, help="How many to play.")] = 5,
    video: Annotated[Path | None, typer.Option(help="Write them into this .mp4 file, one after the other.")] = None,
    explore: Annotated[bool, typer.Option("--explore", help="Draw actions, as in training.")] = False,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the episodes, and of what is drawn.")] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="Another checkpoint than the newest: its name in RUN/checkpoints, or its folder.")
    ] = None,
    allow_imports: Annotated[
        bool, typer.Option("--allow-imports", help="Let the config import pieces and environments; this runs code.")
    ] = False,
) -> None:
    """Play episodes with what a run has trained, in the run's environment: returns, lengths, and a video if wanted.

    Exit code 0: played. 2: wrong usage, no checkpoint, an environment that is not there or does not render. 3: an error
    while playing. 130: stopped with Ctrl-C.
    """
    _allow_current_folder(allow_imports)
    playing = run_commands.playing
    options = {"explore": explore, "seed": seed, "allow_imports": allow_imports}
    try:
        code = playing.play(playing.checkpoint_of(run, checkpoint), episodes, video=video, **options)
    except run_commands.training_run.STARTUP_ERRORS as error:
        _fail(error)
    raise typer.Exit(code)


@app.command()
def record(
    run: Annotated[Path, typer.Argument(help="Folder of a run, a checkpoint, or a YAML file with a config.")],
    to: Annotated[Path, typer.Option(help="The folder or file to write; nothing may be there.")],
    episodes: Annotated[int, typer.Option(min=1, max=1_000_000, help="How many to record.")] = 200,
    explore: Annotated[bool, typer.Option("--explore", help="Draw actions, as in training.")] = False,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the environments, and of what is drawn.")] = None,
    format: Annotated[str | None, typer.Option(help="The format to write; left out: epibatch's own.")] = None,
    allow_imports: Annotated[
        bool, typer.Option("--allow-imports", help="Let the config import pieces and environments; this runs code.")
    ] = False,
) -> None:
    """Record whole episodes with what a run has trained, in new environments: a data set to learn from.

    `epibatch data show` and `epibatch data check` look at it.

    Exit code 0: recorded. 2: wrong usage, a run that cannot be built, or a target that cannot be written. 3: an error
    while acting. 130: stopped with Ctrl-C. Unless it is 0, nothing is written.
    """
    _allow_current_folder(allow_imports)
    training, printed = run_commands.training_run, contextlib.redirect_stdout(sys.stderr)  # by the environment
    try:
        with printed:
            recorded = run_commands.recording.record(
                run, episodes, to, explore=explore, seed=seed, format=format, allow_imports=allow_imports
            )
    except training.STARTUP_ERRORS as error:
        _fail(error)
    except KeyboardInterrupt:
        typer.echo("interrupted; nothing is written", err=True)
        raise typer.Exit(run_commands.playing.INTERRUPTED) from None
    except Exception as error:
        typer.echo(run_commands.error_reports.error_report(error), err=True)
        raise typer.Exit(training.FAILED) from None
    count, steps, mean = recorded
    typer.echo(f"{count:,} episodes, {steps:,} steps, mean return {mean:,.6g}: {to}")


@app.command()
def inspect(
    run: Annotated[Path, typer.Argument(help="Folder of a run, a checkpoint, or a YAML file with a config.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path("inspect.html"),
    steps: Annotated[int, typer.Option(min=1, max=1_000_000, help="Steps to sample.")] = 256,
    as_json: Annotated[bool, typer.Option("--json", help="Print the facts as JSON in place of a page.")] = False,
    allow_imports: Annotated[
        bool, typer.Option("--allow-imports", help="Let the config import pieces and environments; this runs code.")
    ] = False,
) -> None:
    """Show how episodes become batches, on one page: the pipelines, the train batch, and what each of its cells sees.

    Some steps are sampled, in new environments. The run does not change.

    Exit code 0: done. 2: wrong usage, or the run cannot be built. 3: an error while acting or learning.
    """
    _allow_current_folder(allow_imports)
    training, printed = run_commands.training_run, contextlib.redirect_stdout(sys.stderr)  # by the environment
    try:
        with printed, contextlib.ExitStack() as opened:
            algorithm = training.built_algorithm(run, allow_imports=allow_imports)
            opened.callback(algorithm.stop)
            try:
                inspection = algorithm.inspect(None if as_json else out, num_env_steps=steps)
            except Exception as error:
                typer.echo(run_commands.error_reports.error_report(error), err=True)
                raise typer.Exit(training.FAILED) from None
    except training.STARTUP_ERRORS as error:
        _fail(error)
    data = inspection.data
    lines = [*data["notes"], *data["compared"], f"page: {out}"]
    if data["gap"] != [None, None] and not lines[0].startswith("Acting and learning differ"):
        lines.insert(0, "Acting and learning agree.")
    typer.echo(inspection.to_json() if as_json else "\n".join(lines))


@app.command()
def plot(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs.")],
    key: Annotated[
        str, typer.Option(help="The result to draw, a column of metrics.csv.")
    ] = "env_runners/episode_return_mean",
    over: Annotated[str, typer.Option(help="What to draw it over: steps, iterations or seconds.")] = "steps",
    out: Annotated[Path, typer.Option(help="The PNG file to write.")] = Path("curves.png"),
) -> None:
    """Draw a result of several runs in one picture; runs that differ only in their seed are one line in a band.

    Exit code 0: drawn. 2: wrong usage, a folder without a run, or no run with the result.
    """
    curves = run_commands.learning_curves
    if over not in curves.AXES:
        _fail(f"--over {over}: {nearest(over, curves.AXES)}")
    try:
        folders = [algorithms.RunFolder.open_existing(run) for run in runs]
        typer.echo(curves.plot_runs(folders, out, key=key, over=over))
    except EpibatchError as error:
        _fail(error)


@app.command()
def settings(
    word: Annotated[str, typer.Argument(help="Part of a name or of its description; left out: all settings.")] = "",
    algorithm: Annotated[str, typer.Option(help="The algorithm, as files name it.")] = "ppo",
    allow_imports: Annotated[
        bool, typer.Option("--allow-imports", help="Let --algorithm be an import path; importing runs code.")
    ] = False,
) -> None:
    """List the settings of config files, one a line: section.name: type = default, and what it sets.

    Exit code 0: some are listed. 2: none has the word, or no such algorithm.
    """
    try:
        _allow_current_folder(allow_imports)
        model = algorithms.config_class(algorithm, allow_imports=allow_imports).model
    except EpibatchError as error:
        _fail(error)
    lines = algorithms.describe_settings(model, word)
    if not lines:
        _fail(f"settings {word}: no setting has this word; {nearest(word, model.section_of())}")
    typer.echo("\n".join(lines))


@app.command()
def schema(
    algorithm: Annotated[str, typer.Argument(help="The algorithm, as files name it.")] = "ppo",
    allow_imports: Annotated[
        bool, typer.Option("--allow-imports", help="Let ALGORITHM be an import path; importing runs code.")
    ] = False,
) -> None:
    """Print the JSON schema of config files, by which editors complete and check them.

    A file names it in its first line: # yaml-language-server: $schema=epibatch.schema.json
    """
    try:
        _allow_current_folder(allow_imports)
        found = algorithms.config_class(algorithm, allow_imports=allow_imports)
        typer.echo(json.dumps(found.json_schema(), indent=2))
    except EpibatchError as error:
        _fail(error)


@app.command()
def pieces(
    name: Annotated[
        str | None,
        typer.Argument(
            autocompletion=_piece_names,
            help="A piece, or a class of RLlib or TorchRL: tell all about it; left out: list them all.",
        ),
    ] = None,
    pipeline: Annotated[
        str | None,
        typer.Option(
            autocompletion=lambda: list(PIPELINE_NAMES),
            help="env_to_module, module_to_env or learner: list the pieces that it can have.",
        ),
    ] = None,
    short: Annotated[bool, typer.Option("--short", help="List each piece with its description only.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")] = False,
) -> None:
    """List the connector pieces that configs can name, by package: pipelines, columns and keywords of each.

    Pieces of installed packages are among them; looking at one imports its package.
    """
    if name is not None and (pipeline or short):
        _fail("--pipeline and --short are for the list of all pieces; leave out NAME")
    if pipeline is not None and pipeline not in PIPELINE_NAMES:
        _fail(f"--pipeline {pipeline}: no such pipeline; {nearest(pipeline, PIPELINE_NAMES)}")
    try:
        sentence, found = piece_listing.describe_named(name) if name else ("", piece_listing.describe_pieces())
    except EpibatchError as error:
        _fail(error)
    if pipeline is not None:
        found = [piece for piece in found if not piece["pipelines"] or pipeline in piece["pipelines"]]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    if as_json:
        typer.echo(json.dumps(found[0] if name and len(found) == 1 else found, indent=2))
    elif name is None:
        typer.echo(piece_listing.list_text(found, short=short, width=width))
    else:
        texts = [piece_listing.piece_text(piece, width=width) for piece in found]
        typer.echo("\n\n".join([*([f"{sentence}."] if sentence else []), *texts]))


@app.command()
def check(
    piece: Annotated[
        str,
        typer.Argument(
            autocompletion=_piece_names, help="Name of a piece, or, with --allow-imports, pkg.module:Class."
        ),
    ],
    sides: Annotated[
        list[str] | None,
        typer.Option(
            "--side", help="env_to_module, module_to_env or learner; may be repeated. Default: those it names."
        ),
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="An argument of its constructor; may be repeated."),
    ] = None,
    observation_space: Annotated[
        str | None, typer.Option(help="Of one environment, as in Python: 'Box(0, 255, (84, 84, 1), uint8)'.")
    ] = None,
    action_space: Annotated[str | None, typer.Option(help="Of one environment, as in Python: 'Discrete(4)'.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="KEY=VALUE", help="A setting of the default module, use_lstm=true, say."),
    ] = None,
    only: Annotated[list[str] | None, typer.Option("--only", help="A check to make; may be repeated.")] = None,
    skip: Annotated[
        list[str] | None, typer.Option("--skip", metavar="CHECK=WHY", help="A check to leave out, and why.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Show the checks that do not apply too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all checks as JSON, for other programs.")] = False,
    allow_imports: Annotated[
        bool,
        typer.Option("--allow-imports", help="Let PIECE be imported, from the current folder too; this runs code."),
    ] = False,
) -> None:
    """Check that a connector piece keeps the contract of pieces, and print a table of what was checked.

    Exit code 0: nothing failed. 1: a check failed, as listed. 2: no such piece, or wrong usage.
    """
    _allow_current_folder(allow_imports)
    spaces, chosen = (observation_space, action_space), (only or (), skip or ())
    how = {"sides": sides or (), "arguments": arguments or (), "model": model or ()}
    try:
        report = testing.command.check_by_name(piece, spaces=spaces, chosen=chosen, allow_imports=allow_imports, **how)
    except EpibatchError as error:
        _fail(error)
    typer.echo(json.dumps(report.rows(), indent=2) if as_json else report.table(every=every))
    if not report.ok:
        typer.echo(f"\n{report.faults_text()}", err=True)
        raise typer.Exit(LEFT_TO_DO)


@app.command()
def envs(as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")] = False) -> None:
    """List libraries of environments: the installed version, or how to install it, and how a config names one."""
    libraries = env_listing.describe_libraries()
    if as_json:
        typer.echo(json.dumps(libraries, indent=2))
        return
    console, table = Console(width=UNBROKEN, highlight=False), env_listing.libraries_table(libraries)
    if console.is_terminal and console.measure(table).maximum > Console().width:
        typer.echo(env_listing.libraries_text(libraries))  # the table would cut the names that are copied
    else:
        console.print(table)


@app.command()
def check_env(
    env: Annotated[
        str,
        typer.Argument(
            autocompletion=_env_names,
            help="A Gymnasium id, pettingzoo/NAME, or, with --allow-imports, pkg.module:Class or pkg.module:Id-v0.",
        ),
    ],
    env_config: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A keyword for the environment; may be repeated.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps to compare with the environment's spaces.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Of the first reset, and of the actions.")] = 0,
    timeout: Annotated[float, typer.Option(min=0.01, help="Seconds that a call of the environment may take.")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON, for other programs.")] = False,
    allow_imports: Annotated[
        bool, typer.Option("--allow-imports", help="Let ENV be imported, from the current folder too; this runs code.")
    ] = False,
) -> None:
    """Check that an environment keeps its contract in random steps, and print what does not.

    Exit code 0: no error, at most warnings. 1: errors, as listed. 2: no such environment, or wrong usage.
    """
    _allow_current_folder(allow_imports)
    settings = {"num_steps": steps, "seed": seed, "timeout_s": timeout}
    printed = contextlib.redirect_stdout(sys.stderr)  # by the environment: it is no part of the report
    try:
        with printed:
            report = testing.command.check_env_by_name(env, env_config or (), allow_imports=allow_imports, **settings)
    except EpibatchError as error:
        _fail(error)
    typer.echo(json.dumps(report.rows(), indent=2) if as_json else report)
    if not report.ok:
        raise typer.Exit(LEFT_TO_DO)


@app.command()
def port(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Python files that were written for RLlib.", metavar="FILE", readable=False),
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Change the files in their places; without it, they are only shown.")
    ] = False,
) -> None:
    """Change the imports of files written for RLlib to those of epibatch, and list what is left to do by hand.

    Shows the change as a diff, and then, with its line, each name that does not exist here and each use of ray that
    imports do not reach. Nothing but import statements is touched, no file is changed without --write, and nothing in
    the files is run.

    Exit code 0: nothing is left to do by hand. 1: something is, as listed. 2: a file could not be read, is no
    Python source, or could not be written; the others were done. With --write all files have to be there, or none is
    changed: --write takes no target.
    """
    if not files:
        _fail("no file: name those to port, as in `epibatch port my_connector.py`; `epibatch port --help` has the rest")
    for path in files if write else ():
        if not path.exists():
            do = "check the path; --write takes no target: it changes the files that are named, and has changed none"
            _fail(PortingError(str(path), expected="a file with Python source", found="nothing there", do=do))
    console = Console(width=None if sys.stdout.isatty() else UNBROKEN, highlight=False)
    done, failed = [], False
    for path in files:
        try:
            file = porting.source_files.read_source(path)
            ported = porting.port_source(file.text, str(path))
            if write and ported.text != ported.original:
                porting.source_files.write_source(file, ported.text)
        except MissingExtraError as error:
            _fail(error)
        except EpibatchError as error:
            typer.echo(f"error: {error}", err=True)
            failed = True
            continue
        porting.report.show_ported(console, str(path), ported, written=write)
        done.append(ported)
    if done:
        typer.echo(porting.report.summary(done, write=write), err=True)
    if failed or any(result.leftovers for result in done):
        raise typer.Exit(WRONG_USE if failed else LEFT_TO_DO)


def main() -> None:
    """Run the command line; what cannot be written to standard output is an error in one line."""
    try:
        app()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO) or error.filename is not None:
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # else Python tries once more as it ends
        typer.echo(f"error: writing to standard output: {error.strerror}", err=True)
        raise SystemExit(WRONG_USE) from None


if __name__ == "__main__":
    main()
