"""Same config and seed, same run; a run that is restored in a new process is the one that never stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from epibatch.core import load_state
from fixture_configs import cart_pole

CONFIG = """
algorithm: ppo
environment: {env: CartPole-v1}
env_runners: {num_envs_per_env_runner: 3}
training: {train_batch_size: 96, minibatch_size: 32, num_epochs: 2, lr: 0.003}
rl_module: {model_config: {fcnet_hiddens: [8]}}
env_to_module: [mean_std_filter]
debugging: {seed: 11}
checkpointing: {checkpoint_frequency: 2, num_to_keep: null}
stop: {training_iteration: 3}
"""
MODES = ["sync", "async", "vector_entry_point"]
RUN = """
import sys
from typer.testing import CliRunner
from epibatch.cli import app
for words in sys.argv[1:]:
    result = CliRunner().invoke(app, words.split())
    if result.exit_code:
        sys.exit(result.output)
"""
TIMES = ("time_this_iter_s", "time_total_s", "timers/", "_s", "/sample", "env_step_timer")


def is_time(name):
    return name.startswith("timers/") or name.endswith(TIMES)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folders of the same three runs, by two processes at once; the second made a run of another seed too."""
    folder = tmp_path_factory.mktemp("seeds")
    (folder / "small.yaml").write_text(CONFIG)
    processes = []
    for number in (0, 1):
        commands = [f"train small.yaml --run {number}-{mode} --set gym_env_vectorize_mode={mode}" for mode in MODES]
        if number:
            commands.append("train small.yaml --run other --seed 12")
        environment = {**os.environ, "PYTHONHASHSEED": str(number)}
        command = [sys.executable, "-c", RUN, *commands]
        processes.append(subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True))
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    return folder


def metrics(folder):
    """The lines of a run's metrics, without what is measured in seconds."""
    lines = []
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = {name: value for name, value in json.loads(line).items() if not is_time(name)}
        lines.append(json.dumps(row))
    return lines


def leaves(state, path=""):
    """Every leaf of a checkpoint's state with its path, without what is measured in seconds."""
    if isinstance(state, dict):
        for key, value in state.items():
            if key != "time_total_s":
                yield from leaves(value, f"{path}/{key}")
    elif isinstance(state, (list, tuple)):
        for number, value in enumerate(state):
            yield from leaves(value, f"{path}/{number}")
    else:
        yield path, state


def assert_same(one, other):
    found, expected = dict(leaves(one)), dict(leaves(other))
    assert found.keys() == expected.keys()
    for path, value in found.items():
        np.testing.assert_array_equal(value, expected[path], err_msg=path, strict=isinstance(value, np.ndarray))


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_same_seed_same_metrics(runs, mode):
    one, other = metrics(runs / f"0-{mode}"), metrics(runs / f"1-{mode}")
    assert len(one) == 3
    assert one == other
    assert len(json.loads(one[0])) > 20, "almost nothing is a time"


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("iteration", [2, 3])
def test_same_seed_same_checkpoint(runs, mode, iteration):
    one, other = (load_state(runs / f"{number}-{mode}" / f"checkpoints/{iteration:06d}") for number in (0, 1))
    assert_same(one, other)
    assert sum(isinstance(value, np.ndarray) for _, value in leaves(one)) > 20


@pytest.mark.slow
def test_the_vector_env_does_not_matter_for_the_same_environments(runs):
    """Workers in processes are seeded like those in this one."""
    assert metrics(runs / "0-sync") == metrics(runs / "0-async")


@pytest.mark.slow
def test_another_seed_is_another_run(runs):
    one, other = (load_state(runs / name / "checkpoints/000003")["state"] for name in ("0-sync", "other"))
    weights = [dict(leaves(state["learner"]["module"])) for state in (one, other)]
    assert weights[0].keys() == weights[1].keys()
    same = [path for path, value in weights[0].items() if np.array_equal(value, weights[1][path])]
    assert all(not np.any(weights[0][path]) for path in same), "only what starts at zero and is not trained"
    assert metrics(runs / "0-sync") != metrics(runs / "other")


GO_ON = """
import sys
from epibatch.algorithms import Algorithm
algorithm = Algorithm.from_checkpoint(sys.argv[1])
for number in (1, 2):
    algorithm.train()
    algorithm.save_to_path(f"{sys.argv[1]}-restored-{number}")
algorithm.stop()
"""


@pytest.mark.parametrize(
    "network",
    [{}, {"use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 10}],
    ids=["feed forward", "lstm"],
)
@pytest.mark.slow
def test_going_on_in_a_new_process_is_bit_identical(tmp_path, network):
    """Weights, optimiser, statistics, counts and the generators, from which all that was drawn follows."""
    config = cart_pole(train_batch_size=128, num_epochs=2, lr=1e-3).rl_module(model_config=network)
    config.env_runners(num_envs_per_env_runner=4, env_to_module_connector=["mean_std_filter"])
    algorithm = config.learners(learner_connector=["count_based_reward"]).build_algo()
    algorithm.train()
    path = algorithm.save_to_path(tmp_path / "run", end_episodes=True)
    subprocess.run([sys.executable, "-c", GO_ON, path], check=True, timeout=300)
    for number in (1, 2):
        algorithm.train()
        algorithm.save_to_path(tmp_path / str(number))
        found, expected = (load_state(tmp_path / name)["state"] for name in (f"run-restored-{number}", str(number)))
        assert expected["counters"]["training_iteration"] == 1 + number
        assert_same(found, expected)
    algorithm.stop()
