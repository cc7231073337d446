"""A run that is restored in a new process goes on like the one that never stopped, bit by bit."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys

import pytest

from epibatch.algorithms import PPOConfig


def train_and_fingerprint(algorithm):
    """Train one iteration; what went into it and came out of it, as data (floats as exact text)."""
    import hashlib

    import torch

    from epibatch.core.structs import flatten

    seen = {}

    class Spy:
        """Stands in for the learner pipeline and notes what it was given and what it gave."""

        def __init__(self, connector):
            self.connector = connector

        def __getattr__(self, name):
            return getattr(self.connector, name)

        def __call__(self, *, episodes, **kwargs):
            seen["actions"] = [episode.get_actions().tolist() for episode in episodes]
            seen["lengths"] = [[episode.t_started, len(episode), bool(episode.is_done)] for episode in episodes]
            batch = self.connector(episodes=episodes, **kwargs)
            for column, value in sorted(batch["default_policy"].items()):
                for number, leaf in enumerate(flatten(value)[0]):
                    told = f"{leaf.dtype} {tuple(leaf.shape)} ".encode() + leaf.contiguous().numpy().tobytes()
                    seen[f"batch {column} {number}"] = hashlib.sha256(told).hexdigest()
            return batch

    connector = algorithm.learner.connector
    algorithm.learner._learner_connector = Spy(connector)
    results = algorithm.train()
    algorithm.learner._learner_connector = connector
    seen["losses"] = {name: float(value).hex() for name, value in results["learners"]["default_policy"].items()}
    runner = {name: value for name, value in results["env_runners"].items() if name not in ("sample", "env_step_timer")}
    seen["env_runners"] = {name: float(value).hex() for name, value in runner.items()}
    weights = b"".join(value.numpy().tobytes() for value in algorithm.get_module().state_dict().values())
    seen["weights"] = hashlib.sha256(weights).hexdigest()
    seen["next random number"] = torch.rand(1).item()
    return seen


GO_ON = f"""
from __future__ import annotations
import json, sys
from epibatch.algorithms import Algorithm
{inspect.getsource(train_and_fingerprint)}
algorithm = Algorithm.from_checkpoint(sys.argv[1])
print(json.dumps([algorithm.training_iteration, train_and_fingerprint(algorithm)]))
algorithm.stop()
"""


@pytest.mark.parametrize(
    ("model_config", "columns"),
    [
        ({"fcnet_hiddens": [16]}, {"obs", "actions", "action_logp", "advantages", "value_targets", "loss_mask"}),
        pytest.param(
            {"fcnet_hiddens": [16], "use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 10},
            {"obs", "actions", "action_logp", "advantages", "value_targets", "loss_mask", "seq_lens", "state_in"},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["feed_forward", "lstm"],
)
def test_going_on_in_a_new_process_is_bit_identical(tmp_path, model_config, columns):
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_envs_per_env_runner=8)
        .training(train_batch_size=256, minibatch_size=64, num_epochs=2, lr=1e-3)
        .rl_module(model_config=model_config)
        .debugging(seed=5)
    )
    algorithm = config.build_algo()
    before = [train_and_fingerprint(algorithm) for _ in range(2)]
    path = algorithm.save_to_path(tmp_path / "checkpoint", end_episodes=True)
    going_on = train_and_fingerprint(algorithm)
    algorithm.stop()
    assert columns <= {name.split()[1] for name in going_on if name.startswith("batch ")}
    assert len({json.dumps(seen["actions"]) for seen in (*before, going_on)}) == 3

    run = subprocess.run([sys.executable, "-c", GO_ON, path], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    iteration, restored = json.loads(run.stdout)
    assert iteration == 2
    assert restored.keys() == going_on.keys()
    assert [name for name in going_on if going_on[name] != restored[name]] == []
