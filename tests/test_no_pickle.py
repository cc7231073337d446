"""No load path unpickles: everything loadable is loaded under an audit hook."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import epibatch

WATCH = """
import _pickle, io, json, pickle, sys
from pathlib import Path
import numpy as np
import torch

found = []

def watch(event, args):
    if event == "pickle.find_class":
        found.append(f"find_class {args[0]}.{args[1]}")

def watched(owner, name):
    original = getattr(owner, name)
    def call(*args, **kwargs):
        found.append(f"{owner.__name__}.{name}")
        return original(*args, **kwargs)
    setattr(owner, name, call)

class Watched(pickle.Unpickler):
    def __init__(self, *args, **kwargs):
        found.append("pickle.Unpickler")
        super().__init__(*args, **kwargs)

sys.addaudithook(watch)
pickle.Unpickler = Watched
for owner, names in ((pickle, ("load", "loads")), (_pickle, ("load", "loads")), (torch, ("load",))):
    for name in names:
        watched(owner, name)
"""

CAUGHT = """
def caught(load):
    before = len(found)
    load()
    return len(found) > before

packed, boxed, saved = pickle.dumps(Path), io.BytesIO(), io.BytesIO()
np.save(boxed, np.array([Path], dtype=object))
torch.save({"a": 1}, saved)
boxed.seek(0), saved.seek(0)
result = {"loaded": loaded, "found": list(found)}
result["caught"] = [
    caught(lambda: pickle.loads(packed)),
    caught(lambda: pickle.load(io.BytesIO(pickle.dumps([1])))),
    caught(lambda: np.load(boxed, allow_pickle=True)),
    caught(lambda: torch.load(saved, weights_only=True)),
    caught(lambda: pickle.Unpickler(io.BytesIO(packed)).load()),
]
print(json.dumps(result))
"""

LOADS = """
from typer.testing import CliRunner
from epibatch.algorithms import PPO, Policy, PPOConfig
from epibatch.cli import app
from epibatch.core.checkpoints import Checkpointable, load_state, save_state
from epibatch.core.rl_module import RLModule
from epibatch.episodes import SingleAgentEpisode

folder = Path(sys.argv[1])
config = (
    PPOConfig()
    .environment("CartPole-v1")
    .env_runners(num_envs_per_env_runner=2, env_to_module_connector=["mean_std_filter"])
    .training(train_batch_size=64, minibatch_size=32, num_epochs=1)
    .rl_module(model_config={"fcnet_hiddens": [4], "use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 8})
    .debugging(seed=0)
)
algo = config.build_algo()
algo.train()
loaded = []
path = algo.save_to_path(folder / "algorithm")
twin = PPO.from_checkpoint(path)
twin.restore_from_path(path)
loaded.append("algorithm")
policy = Policy.from_checkpoint(path)
policy.act(twin.env_runner.env.single_observation_space.sample())
loaded.append("policy")
runner = algo.env_runner
parts = {
    "module": (algo.get_module(), twin.get_module()),
    "modules": (algo.learner.module, twin.learner.module),
    "env_to_module": (runner._env_to_module, twin.env_runner._env_to_module),
    "module_to_env": (runner._module_to_env, twin.env_runner._module_to_env),
    "learner_pipeline": (algo.learner.connector, twin.learner.connector),
    "filter": (runner._env_to_module[0], twin.env_runner._env_to_module[0]),
}
for name, (one, other) in parts.items():
    other.restore_from_path(one.save_to_path(folder / name))
    loaded.append(name)
for name in ("module", "modules"):
    RLModule.from_checkpoint(folder / name)
RLModule.from_checkpoint(folder / "modules" / "default_policy")
loaded.append("built modules")
for name, (one, other) in {"runner": (runner, twin.env_runner), "learner": (algo.learner, twin.learner)}.items():
    save_state(folder / name, one.get_state())
    other.set_state(load_state(folder / name))
    loaded.append(name)
(episode, *_) = runner.sample(num_episodes=1)
save_state(folder / "episode", episode.get_state())
assert SingleAgentEpisode.from_state(load_state(folder / "episode")).equals(episode)
loaded.append("episode")
(folder / "config.yaml").write_text(config.to_yaml())
assert PPOConfig.from_yaml(folder / "config.yaml").to_dict() == config.to_dict()
loaded.append("config")
for words in (
    ["train", str(folder / "config.yaml"), "--run", str(folder / "run"), "--iterations", "1"],
    ["train", "--resume", str(folder / "run"), "--iterations", "1"],
    ["play", str(folder / "run"), "--episodes", "1"],
    ["pieces", "--json"],
):
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
loaded.append("run")
PPO.from_checkpoint(folder / "run").stop()
algo.stop()
twin.stop()
"""


def in_a_process(script, *words):
    path = os.pathsep.join([str(Path(epibatch.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", WATCH + script, *map(str, words)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_nothing_that_can_be_loaded_unpickles(tmp_path):
    result = in_a_process(LOADS + CAUGHT, tmp_path)
    assert result["found"] == [] and len(result["loaded"]) == 14
    assert result["caught"] == [True] * 5, "the watch sees every way to unpickle"
