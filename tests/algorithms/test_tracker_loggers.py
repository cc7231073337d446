"""Runs that write into Weights & Biases and MLflow: stand-ins that record the calls, and the libraries themselves."""

from __future__ import annotations

import sys
import types

import pytest

from epibatch.algorithms import MLflowLogger, PPOConfig, RunFolder, TrainingRun, WandbLogger
from epibatch.core.errors import MissingExtraError

RETURN = "env_runners/episode_return_mean"


def stand_in_for_wandb():
    """`wandb.init` and the run that it returns: the id is the one asked for, or a new one."""
    library = types.ModuleType("wandb")
    library.begun, library.points, library.ended = [], [], []

    def init(**options):
        library.begun.append(options)
        run = types.SimpleNamespace(id=options["id"] or f"run{len(library.begun)}")
        run.log = lambda values, step: library.points.append((run.id, step, values))
        run.finish = lambda: library.ended.append(run.id)
        return run

    library.init = init
    return library


def stand_in_for_mlflow():
    """MLflow's functions for the active run: `end_run` ends the one that was started last."""
    library = types.ModuleType("mlflow")
    library.begun, library.points, library.ended, library.params, active = [], [], [], [], []

    def start_run(**options):
        library.begun.append(options)
        active.append(options["run_id"] or f"run{len(library.begun)}")
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=active[-1]))

    library.start_run = start_run
    library.log_params = library.params.append
    library.log_metrics = lambda values, *, step, run_id: library.points.append((run_id, step, values))
    library.end_run = lambda: library.ended.append(active.pop())
    return library


STAND_INS = {"wandb": stand_in_for_wandb, "mlflow": stand_in_for_mlflow}


@pytest.fixture(params=STAND_INS)
def library(request, monkeypatch):
    library = STAND_INS[request.param]()
    monkeypatch.setitem(sys.modules, request.param, library)
    monkeypatch.delenv("WANDB_NAME", raising=False)
    return library


def train(folder, *, iterations=2, logger=None, name=None):
    """Train for some iterations, and return the folder."""
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .training(train_batch_size=32, minibatch_size=32, num_epochs=1, lr=0.25)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .reporting(loggers=[name] if name else [])
        .stopping(training_iteration=iterations)
    )
    run = RunFolder.create(folder)
    run.write_config(config.to_yaml())
    assert TrainingRun(config.build_algo(), run, "tracked", loggers=[logger] if logger else ()).run() == 0
    return run


def test_a_tracker_has_every_number_and_the_config(library, tmp_path):
    name = library.__name__
    run = train(tmp_path / "first", name=name)
    steps = [32, 64]
    assert [(run_id, step) for run_id, step, _ in library.points] == [("run1", step) for step in steps]
    for (_, _, values), row in zip(library.points, run.rows()):
        assert values == {key: value for key, value in row.items() if isinstance(value, (int, float))}
    assert library.ended == ["run1"] and len(library.begun) == 1
    if name == "wandb":
        (options,) = library.begun
        assert options["config"]["training"]["lr"] == 0.25 and options["config"]["algorithm"] == "ppo"
        assert (options["name"], options["dir"]) == ("first", str(run.path))
    else:
        (params,) = library.params
        assert params["training/lr"] == 0.25 and params["algorithm"] == "ppo"
        assert params["rl_module/model_config"] == {"fcnet_hiddens": [4]}
        assert library.begun[0]["run_name"] == "first"


def test_a_resumed_run_goes_on_with_the_tracker_s_run(library, tmp_path):
    run = train(tmp_path / "first", name=library.__name__)
    assert TrainingRun.resume(run.path, changes=["stop.training_iteration=3"]).run() == 0
    assert [(run_id, step) for run_id, step, _ in library.points] == [("run1", 32), ("run1", 64), ("run1", 96)]
    assert library.ended == ["run1", "run1"]
    train(tmp_path / "second", iterations=1, name=library.__name__)
    assert library.points[-1][0] == "run3"
    if library.__name__ == "mlflow":
        assert len(library.params) == 2, "parameters of a run are written once"


def test_arguments_of_the_library_come_first(library, tmp_path):
    kind = {"wandb": WandbLogger, "mlflow": MLflowLogger}[library.__name__]
    logger = kind(tmp_path, tags={"of": "mine"})
    logger.close()
    assert library.begun == library.ended == []
    logger.log({"num_env_steps_sampled_lifetime": 7, "learners": {"agent#1": {"loss": 0.5}}})
    logger.close()
    assert library.begun[0]["tags"] == {"of": "mine"}
    (point,) = library.points
    shown = "agent#1" if library.__name__ == "wandb" else "agent_1"  # MLflow refuses the other
    assert point == ("run1", 7, {"num_env_steps_sampled_lifetime": 7, f"learners/{shown}/loss": 0.5})


@pytest.mark.parametrize("name", STAND_INS)
def test_without_the_extra_the_command_is_named(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)  # what importing it then raises is ImportError
    config = PPOConfig().environment("CartPole-v1").reporting(loggers=[name])
    algorithm = config.build_algo()
    with pytest.raises(MissingExtraError, match=rf"logger '{name}'(.|\n)*pip install 'epibatch\[{name}\]'"):
        TrainingRun(algorithm, RunFolder.create(tmp_path), "none")
    algorithm.stop()


# --------------------------------------------------------------------------------- the libraries, where installed


def resumed(folder, name):
    """A run of three iterations, resumed after the second."""
    run = train(folder, name=name)
    assert TrainingRun.resume(run.path, changes=["stop.training_iteration=3"]).run() == 0
    return run, [row[RETURN] for row in run.rows() if row.get(RETURN) is not None]


@pytest.mark.filterwarnings("ignore")  # those of the library
def test_wandb_itself_writes_offline_into_the_run_s_folder(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run, _ = resumed(tmp_path / "first", "wandb")
    run_id = (run.path / "wandb.id").read_text()
    parts = sorted(path.name for path in run.path.glob("wandb/offline-run-*"))
    assert len(parts) == 2 and all(part.endswith(f"-{run_id}") for part in parts)
    written = [path.stat().st_size for path in run.path.glob(f"wandb/*/run-{run_id}.wandb")]
    assert len(written) >= 2 and min(written) > 0


@pytest.mark.filterwarnings("ignore")
def test_mlflow_itself_has_every_point_and_the_settings(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")  # mlflow-skinny alone has no store in a file of sqlite
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/runs.db")
    run, returns = resumed(tmp_path / "first", "mlflow")
    client = mlflow.MlflowClient()
    written = client.get_run((run.path / "mlflow.id").read_text())
    assert (written.info.run_name, written.info.status) == ("first", "FINISHED")
    assert written.data.params["training/lr"] == "0.25"
    points = client.get_metric_history(written.info.run_id, RETURN)
    assert [point.value for point in points] == returns
    steps = client.get_metric_history(written.info.run_id, "num_env_steps_sampled_lifetime")
    assert [(point.step, point.value) for point in steps] == [(32, 32), (64, 64), (96, 96)]
    assert mlflow.active_run() is None
