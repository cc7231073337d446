"""A runner class of a user: made by the algorithm for training and evaluation, and called at each step."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections import defaultdict

import numpy as np
import pytest

from epibatch.algorithms import PPO, Policy, PPOConfig
from epibatch.core.errors import CheckpointError, ConfigError
from epibatch.env_runner import MultiAgentEnvRunner, SingleAgentEnvRunner, make_multi_agent
from fixture_configs import cart_pole

MODULE = """
from epibatch.env_runner import SingleAgentEnvRunner

class Counting(SingleAgentEnvRunner):
    steps = 0

    def on_episode_step(self, **kwargs):
        self.steps += 1
"""


class Collects:
    """Keeps the rewards of each step, by episode, and their sum in the episode; marks what it samples."""

    def __init__(self, **kwargs):
        self.rewards, self.made = defaultdict(list), []
        super().__init__(**kwargs)

    def sample(self, **kwargs):
        samples = super().sample(**kwargs)
        for episode in samples:
            episode.custom_data["sampled"] = True
        return samples

    def on_environment_created(self, *, env, **kwargs):
        self.made.append(env)

    def on_episode_step(self, *, episode, env_index, metrics_logger, **kwargs):
        reward = episode.get_rewards(-1)
        self.rewards[episode.id_].append(sum(reward.values()) if isinstance(reward, dict) else reward)
        episode.custom_data["sum"] = sum(self.rewards[episode.id_])
        metrics_logger.log_value("collected", 1, reduce="sum")


class Collector(Collects, SingleAgentEnvRunner):
    pass


class AgentsCollector(Collects, MultiAgentEnvRunner):
    pass


def config_of(several=False, **env_runners):
    config = cart_pole(train_batch_size=60, minibatch_size=30, num_epochs=1).debugging(seed=1)
    if several:
        config.environment(make_multi_agent("CartPole-v1"), env_config={"num_agents": 2})
        config.multi_agent(policies={"p"}, policy_mapping_fn=lambda agent_id, episode, **kwargs: "p")
    return config.env_runners(num_envs_per_env_runner=2, **env_runners)


@pytest.mark.parametrize("cls", [Collector, AgentsCollector])
def test_it_is_made_and_called_each_step(cls):
    config = config_of(cls is AgentsCollector, env_runner_cls=cls)
    algo = config.evaluation(evaluation_duration=2, evaluation_interval=1).build_algo()
    runner = algo.env_runner
    assert type(runner) is cls and runner.made == [runner.env.unwrapped]
    results = algo.train()
    steps = results["env_runners"]["num_env_steps_sampled"]
    assert steps == results["env_runners"]["collected"] == sum(map(len, runner.rewards.values()))
    measured = results["evaluation"]["env_runners"]  # another object of the class counted these
    assert measured["collected"] >= measured["num_env_steps_sampled"] > 0
    for episode in runner.sample(num_episodes=3):
        assert np.sum(runner.rewards[episode.id_]) == episode.get_return() == episode.custom_data["sum"] > 0
        assert episode.custom_data["sampled"]
    algo.stop()


class Lists(SingleAgentEnvRunner):
    """Returns episodes in a plain list, one of them changed."""

    def sample(self, **kwargs):
        episodes = list(super().sample(**kwargs))
        episodes[0].custom_data["first"] = True
        return episodes


class Copies(SingleAgentEnvRunner):
    """Returns copies, which do not know their environments."""

    def sample(self, **kwargs):
        return [episode.slice(slice(None)) for episode in super().sample(**kwargs)]


def evaluated(cls, **evaluation):
    algo = config_of(env_runner_cls=cls).evaluation(**evaluation).build_algo()
    algo.train()
    measured = algo.evaluate()["env_runners"]
    algo.stop()
    return {name: measured[name] for name in measured if name.startswith(("episode_", "num_e"))}


@pytest.mark.parametrize("unit", ["episodes", "timesteps"])
def test_a_plain_list_of_episodes_is_evaluated_alike(unit):
    duration = {"evaluation_duration": 7 if unit == "episodes" else 300, "evaluation_duration_unit": unit}
    expected = evaluated(None, **duration)
    assert evaluated(Lists, **duration) == expected and expected["num_episodes"] > 0
    if unit == "timesteps":  # the chunks of each episode are put together by its id
        assert evaluated(Copies, **duration) == expected
    else:
        found = evaluated(Copies, **duration)
        assert found["num_episodes"] == 7 and 8 <= found["episode_len_min"] <= found["episode_len_max"] <= 200


def test_of_a_file_and_of_a_checkpoint(tmp_path, monkeypatch):
    (tmp_path / "counting_runners.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    text = (
        config_of().to_yaml().replace("env_runners:\n", "env_runners:\n  env_runner_cls: counting_runners:Counting\n")
    )
    algo = PPOConfig.from_yaml(text, allow_imports=True).build_algo()
    algo.train()
    assert type(algo.env_runner).__name__ == "Counting" and algo.env_runner.steps >= 60
    algo.save_to_path(tmp_path / "checkpoint")
    algo.stop()
    with pytest.raises(CheckpointError, match="counting_runners:Counting"):
        PPO.from_checkpoint(tmp_path / "checkpoint")
    restored = PPO.from_checkpoint(tmp_path / "checkpoint", allow_imports=True)
    assert type(restored.env_runner).__name__ == "Counting" and restored.env_runner.steps == 0
    restored.stop()
    assert Policy.from_checkpoint(tmp_path / "checkpoint").module is not None
    sys.modules.pop("counting_runners")


def test_a_class_of_a_script_is_code(tmp_path):
    config = config_of(env_runner_cls=Collector)
    with pytest.raises(ConfigError, match=r"env_runners\.env_runner_cls"):
        config.to_dict()
    algo = config.build_algo()
    algo.save_to_path(tmp_path / "checkpoint")
    algo.stop()
    restored = PPO.from_checkpoint(tmp_path / "checkpoint", config=config)
    assert type(restored.env_runner) is Collector
    restored.stop()
    assert Policy.from_checkpoint(tmp_path / "checkpoint").module is not None


class Narrow(SingleAgentEnvRunner):
    def __init__(self, config):
        super().__init__(config=config)


class Unfinished(SingleAgentEnvRunner):
    @abstractmethod
    def add_row(self):
        """Not written yet."""


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (PPOConfig, r"expected a subclass of epibatch's[\s\S]*found epibatch\.algorithms\.ppo\.PPOConfig"),
        (Collector.__new__(Collector), "found <"),
        ("epibatch.env_runner:SingleAgentEnvRuner", "did you mean 'SingleAgentEnvRunner'"),
        ("epibatch.env_runner:make_vector_env", "found <function make_vector_env"),
        (AgentsCollector, r"a subclass of SingleAgentEnvRunner[\s\S]*AgentsCollector, which does not inherit from it"),
        (Unfinished, "Unfinished, which lacks add_row"),
        (Narrow, r"Narrow, whose constructor does not take these: [\s\S]*worker_index"),
    ],
)
def test_other_classes(value, message):
    config = PPOConfig(allow_imports=True).environment("CartPole-v1")
    with pytest.raises(ConfigError, match=message) as caught:
        config.env_runners(env_runner_cls=value).build_algo()
    assert "env_runner_cls" in str(caught.value)
