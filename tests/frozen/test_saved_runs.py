"""Folders of runs that an earlier version wrote load, act as they did, and go on as they did.

Each folder in `saved` is a run that was killed after four iterations: its newest checkpoint is of the second one, and
its metrics have the rows of four. Since environments have random streams of their own, which the checkpoints do not
have, the last two rows are those of the first version with these streams. Going on with the old seeds gave the old
rows. Beside each folder are the actions of its policy. `python test_saved_runs.py FOLDER` writes such folders again.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from typer.testing import CliRunner

from epibatch import ConnectorV2, Policy
from epibatch.algorithms import PPO
from epibatch.cli import app
from epibatch.core.registry import register, register_env, unregister
from epibatch.env_runner import make_multi_agent

SAVED = Path(__file__).with_name("saved")
TIMES = re.compile(r"time_|timers/|.*(_s|_timer|/sample)$")
CONFIGS = {
    "lstm": """
algorithm: ppo
environment: {env: Pendulum-v1, wrappers: [{wrapper: TimeLimit, max_episode_steps: 15}]}
env_runners: {num_envs_per_env_runner: 2}
env_to_module: [mean_std_filter, {piece: frame_stacking, num_frames: 3, axis: -1}]
learner: [{piece: frame_stacking, num_frames: 3, axis: -1}, {piece: normalize_reward, gamma: 0.9}, count_batches]
training: {lr: 0.01, train_batch_size: 40, minibatch_size: 20, num_epochs: 2, lambda: 0.9}
rl_module:
  model_config:
    fcnet_hiddens: [8]
    use_lstm: true
    lstm_cell_size: 8
    max_seq_len: 5
    use_prev_action: true
    use_prev_reward: true
  view_requirements: {last_actions: {column: actions, shift: "-2:-1"}}
""",
    "agents": """
algorithm: ppo
environment: {env: frozen_pendulums, env_config: {num_agents: 3}}
env_to_module: [mean_std_filter, {piece: frame_stacking, num_frames: 2, axis: -1, multi_agent: true}]
learner:
  - {piece: frame_stacking, num_frames: 2, axis: -1, multi_agent: true}
  - {piece: reward_scaling, scale: 0.1}
  - count_batches
training: {lr: 0.01, train_batch_size: 40, minibatch_size: 20, num_epochs: 2, lambda: 0.9}
rl_module: {model_config: {fcnet_hiddens: [8]}}
multi_agent:
  policies:
    first: {config: {lr: 0.005}, model_config: {free_log_std: true}}
    others: {model_config: {use_lstm: true, lstm_cell_size: 6, max_seq_len: 5}}
  policy_mapping_fn: {"0": first, "*": others}
""",
}
EVERY_RUN = """
debugging: {seed: 3}
checkpointing: {checkpoint_frequency: 2, checkpoint_interval_s: null, end_episodes: true}
stop: {training_iteration: 4}
"""


class CountBatches(ConnectorV2):
    """A user's piece with a state: it logs how many train batches it has seen."""

    batches = 0

    def __call__(self, *, rl_module, batch, episodes, metrics=None, **kwargs):
        self.batches += 1
        if metrics is not None:
            metrics.log_value("batches", self.batches, window=1)
        return batch

    def get_state(self, components=None, *, not_components=None, **kwargs):
        return {"batches": self.batches}

    def set_state(self, state):
        self.batches = state["batches"]


def register_names():
    register(CountBatches)
    register_env("frozen_pendulums", make_multi_agent(lambda _: gym.make("Pendulum-v1", max_episode_steps=15)))


@pytest.fixture(autouse=True)
def names():
    register_names()
    yield
    unregister("count_batches")


@pytest.fixture(params=CONFIGS)
def run(request, tmp_path):
    """A copy of a run's folder, under the run's name."""
    return shutil.copytree(SAVED / request.param, tmp_path / request.param)


def command(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output


def rows(run):
    """The numbers of a run's iterations without seconds."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{key: value for key, value in json.loads(line).items() if not TIMES.match(key)} for line in lines]


def inputs(kind, steps=12):
    """Observations, rewards and flags for each call of `act`; there is a new episode at step 7 in row 1."""
    generator = np.random.default_rng(0)
    for step in range(steps):
        obs = generator.uniform([-1, -1, -8], [1, 1, 8], (3, 3)).astype(np.float32)
        reward = generator.uniform(-16, 0, 3).round(2)
        if kind == "agents":
            yield dict(enumerate(obs)), {"rewards": dict(enumerate(reward))} if step else {}
        else:
            yield obs, {"reward": reward, "starts": np.array([False, step == 7, False])} if step else {}


def actions_of(policy, kind):
    """The actions for all inputs: [steps, rows or agents, 1]."""
    state, actions = None, []
    for obs, received in inputs(kind):
        action, state = policy.act(obs, state, **received)
        actions.append(np.stack(list(action.values())) if kind == "agents" else action)
    return np.stack(actions)


def test_policies_act_as_before(run):
    expected = json.loads((SAVED / f"{run.name}_actions.json").read_text())
    assert np.std(expected, axis=0).min() > 1e-3
    for folder in (run, run / "checkpoints" / "000002"):
        np.testing.assert_allclose(actions_of(Policy.from_checkpoint(folder), run.name), expected, atol=1e-5)


def test_algorithms_act_as_before(run):
    algo = PPO.from_checkpoint(run)
    expected = json.loads((SAVED / f"{run.name}_actions.json").read_text())
    assert algo.training_iteration == 2
    np.testing.assert_allclose(actions_of(algo, run.name), expected, atol=1e-5)
    algo.stop()


def test_runs_go_on_as_before(run):
    before = rows(run)
    command("train", "--resume", run)
    after = rows(run)
    assert len(before) == len(after) == 4
    assert after[3]["learners/batches"] == 4
    for earlier, later in zip(before, after):
        assert earlier.keys() <= later.keys()
        for key, value in earlier.items():
            np.testing.assert_allclose(later[key], value, rtol=1e-5, atol=1e-5, err_msg=key)


def write(folder):
    """Write the folders again, into a new place."""
    register_names()
    for kind, text in CONFIGS.items():
        config, run = folder / f"{kind}.yaml", folder / kind
        config.write_text(text + EVERY_RUN)
        command("train", config, "--run", run)
        shutil.rmtree(run / "checkpoints" / "000004")
        for path in (config, run / "learning_curve.png"):
            path.unlink()
        actions = actions_of(Policy.from_checkpoint(run), kind).tolist()
        (folder / f"{kind}_actions.json").write_text(json.dumps(actions) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
