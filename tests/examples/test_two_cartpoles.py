"""Two cart poles: the environment keeps the agents' ends apart, both modules learn, the file says the same."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from epibatch.algorithms.ppo import PPOConfig
from epibatch.cli import app

YAML = Path(__file__).resolve().parents[2] / "examples" / "two_cartpoles.yaml"


def test_each_agent_has_its_own_pole_and_ends_by_itself(load_example):
    example = load_example("two_cartpoles")
    env = example.TwoCartPoles()
    assert {agent: cart.unwrapped.length for agent, cart in env.carts.items()} == example.POLES
    observations, _ = env.reset(seed=1)
    again, _ = env.reset(seed=1)
    assert {agent: each.tolist() for agent, each in observations.items()} == {
        agent: each.tolist() for agent, each in again.items()
    }
    assert observations["short"].tolist() != observations["long"].tolist()
    lengths, flags = dict.fromkeys(example.POLES, 0), {"__all__": False}
    while not flags["__all__"]:
        assert list(observations) == [
            agent for agent, each in observations.items() if env.observation_spaces[agent].contains(each)
        ]
        actions = dict.fromkeys(env.agents, 1)  # to the right only: the short pole falls first
        observations, rewards, flags, truncateds, _ = env.step(actions)
        assert rewards == dict.fromkeys(actions, 1.0) and observations.keys() == actions.keys()
        assert not any(truncateds.values())
        for agent in actions:
            lengths[agent] += 1
    assert 5 < lengths["short"] < lengths["long"] < 20
    env.close()


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
    assert "two_cartpoles | 104" in result.output
