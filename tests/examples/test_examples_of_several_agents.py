"""What the examples of several agents record, train on and learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from epibatch.algorithms.ppo import PPOConfig
from epibatch.cli import app

# ---------------------------------------------------------------------------------- centralised critic


@pytest.fixture
def algorithm(load_example):
    pytest.importorskip("pettingzoo")
    example = load_example("centralised_critic")
    built = example.config_for(example.Options(games=5)).build_algo()
    yield built
    built.stop()


def test_the_critic_is_given_what_the_other_saw(algorithm):
    """Column `other_obs` against the episodes, row by row, bootstrap rows included."""
    episodes = algorithm.env_runner.sample(num_timesteps=200)
    batch = algorithm.learner.connector(rl_module=algorithm.learner.module, batch={}, episodes=episodes)["hunter"]
    own, others = [], []
    for episode in episodes:
        seen = {agent: each.get_observations() for agent, each in episode.agent_episodes.items()}
        assert len(seen["pursuer_0"]) == len(seen["pursuer_1"])  # they act together, so rows are env steps
        for agent, other in (("pursuer_0", "pursuer_1"), ("pursuer_1", "pursuer_0")):
            own.append(seen[agent])
            others.append(seen[other])
    np.testing.assert_array_equal(batch["obs"], np.concatenate(own))
    assert batch["other_obs"].shape[1:] == (1, 5, 5, 3)
    np.testing.assert_array_equal(batch["other_obs"][:, 0], np.concatenate(others))
    assert (batch["obs"] != batch["other_obs"][:, 0]).any()


def test_only_the_critic_looks_at_it(algorithm):
    module = algorithm.get_module("hunter")
    view, other = torch.rand(4, 5, 5, 3), torch.rand(4, 1, 5, 5, 3)
    logits, values = [], []
    for each in (other, torch.zeros_like(other)):
        batch = {"obs": view, "other_obs": each}
        logits.append(module.forward_train(batch)["action_dist_inputs"])
        values.append(module.compute_values(batch))
    assert torch.equal(*logits) and values[0].shape == (4,)
    assert not torch.isclose(*values).any()
    assert torch.equal(module.forward_inference({"obs": view})["action_dist_inputs"], logits[0])


@pytest.mark.slow
def test_a_catch_is_an_end_before_the_limit(algorithm):
    episodes = algorithm.env_runner.sample(num_episodes=48)
    caught = [episode.is_terminated for episode in episodes]
    assert 0 < sum(caught) < 20 and all(len(each) < 50 for each in episodes if each.is_terminated)
    assert all(len(each) == 50 for each in episodes if each.is_truncated)
    metrics = algorithm.env_runner.get_metrics()
    assert metrics["num_episodes"] == len(episodes) == 48
    assert metrics["caught"] == pytest.approx(np.mean(caught))


# --------------------------------------------------------------------------------- tictactoe self play


def test_only_the_student_learns_and_the_past_takes_over_its_weights(load_example):
    pytest.importorskip("pettingzoo")
    example = load_example("tictactoe_self_play")
    config = example.config_for(example.Options()).training(train_batch_size=200, minibatch_size=50, num_epochs=1)
    algorithm = config.build_algo()
    student, past = algorithm.get_module("student"), algorithm.get_module("past")
    before = {"student": student.get_state(), "past": past.get_state()}
    results = algorithm.train()
    assert "student" in results["learners"] and "past" not in results["learners"]
    np.testing.assert_equal(past.get_state(), before["past"])
    assert any((value != before["student"][name]).any() for name, value in student.get_state().items())
    past.set_state(student.get_state())
    for episode in algorithm.env_runner.sample(num_episodes=20):
        rewards = {agent: own.get_return() for agent, own in episode.agent_episodes.items()}
        assert rewards["ann"] == -rewards["bob"] and abs(rewards["ann"]) in (0, 1)
        for agent in ("ann", "bob"):  # both decided as the student would
            own = episode.agent_episodes[agent]
            for t in range(len(own)):
                seen = own.get_observations(t)
                assert seen["action_mask"][own.get_actions(t)] == 1
                board = {name: torch.as_tensor(np.array(value))[None] for name, value in seen.items()}
                logits = student.forward_train({"obs": board})["action_dist_inputs"][0]
                recorded = own.get_extra_model_outputs("action_dist_inputs", t)
                np.testing.assert_allclose(recorded, logits.detach(), rtol=1e-4, atol=1e-5)
                assert (logits.softmax(-1)[board["action_mask"][0] == 0] == 0).all()
    algorithm.stop()


# --------------------------------------------------------------------------------------- two cartpoles


YAML = Path(__file__).resolve().parents[2] / "examples" / "two_cartpoles.yaml"


def test_a_time_limit_of_one_is_no_fall_of_the_other(load_example):
    example = load_example("two_cartpoles")
    env = example.TwoCartPoles()
    for first, last in (("short", "long"), ("long", "short")):
        env.reset(seed=0)
        env.carts[last]._elapsed_steps = 499
        env.carts[first].unwrapped.state = (0.0, 0.0, 0.3, 0.0)  # has fallen
        _, _, terminateds, truncateds, _ = env.step(dict.fromkeys(env.agents, 1))
        assert terminateds == {first: True, last: False, "__all__": False}
        assert truncateds == {first: False, last: True, "__all__": True}
    env.close()


def test_the_file_says_the_same(load_example):
    example = load_example("two_cartpoles")
    config, file = example.config_for(example.Options()), PPOConfig.from_yaml(YAML, allow_imports=True)
    assert file.env == "examples.two_cartpoles:TwoCartPoles" and config.env is example.TwoCartPoles
    for agent in example.POLES:
        assert config.policy_mapping_fn(agent, None) == file.policy_mapping_fn(agent, None) == agent
    assert file.stop_rules.episode_return_mean > example.GOAL + 450  # the other one has 500 at most
    for each in (config, file):
        each.environment("CartPole-v1").multi_agent(policy_mapping_fn={"*": "short"}).stopping(episode_return_mean=None)
    assert file.to_dict() == config.to_dict()


def test_the_file_trains_from_the_repository_root(tmp_path, monkeypatch):
    monkeypatch.chdir(YAML.parents[1])
    monkeypatch.syspath_prepend(str(YAML.parents[1]))  # taken away again afterwards
    short = ["training.train_batch_size=100", "training.minibatch_size=50", "training.num_epochs=1"]
    settings = [word for each in short for word in ("--set", each)]
    arguments = ["train", "examples/two_cartpoles.yaml", "--allow-imports", "--iterations", "1", *settings]
    result = CliRunner().invoke(app, [*arguments, "--run", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    assert "run | 104" in result.output
