"""Behaviour cloning from lists of episodes, without an environment, against closed forms and known controllers."""

from __future__ import annotations

from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.algorithms import Algorithm, BCConfig, BCRule, MARWILConfig, Policy, PPOConfig
from epibatch.connectors import ConnectorV2
from epibatch.connectors.authoring import EpisodeTransform
from epibatch.core.errors import CheckpointError, ConfigError, EpibatchError
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule
from epibatch.episodes import ChunkTable, MultiAgentEpisode, SingleAgentEpisode

SPACES = gym.spaces.Box(0, 1, (3,), np.float32), gym.spaces.Discrete(2)


class Table(TorchRLModule):
    """Logits for each of three states."""

    def setup(self):
        self.logits = torch.nn.Linear(3, 2, bias=False)

    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": self.logits(batch["obs"])}


def episode(observations, actions, **columns):
    """An episode whose last observation is repeated."""
    observations = [*observations, observations[-1]]
    rewards = [0.0] * len(actions)
    columns = {"observations": observations, "actions": list(actions), "rewards": rewards, **columns}
    return SingleAgentEpisode(**columns, truncated=True, len_lookback_buffer=0)


def random_episodes(count, length, act, seed=0):
    """Episodes of observations [length, 3] of noise, with the actions that a function of one gives."""
    random = np.random.default_rng(seed)
    noise = random.normal(size=(count, length, 3)).astype(np.float32)
    return [episode(list(rows), [act(row) for row in rows]) for rows in noise]


def right(observation):
    """True if the first number is positive, as an action."""
    return int(observation[0] > 0)


def controlled_cart_pole(count, seed=0):
    """Episodes in which a linear controller balances the pole for 500 steps, though a tenth of its steps are random."""
    env, random, episodes = gym.make("CartPole-v1"), np.random.default_rng(seed), []
    for _ in range(count):
        observation, _ = env.reset(seed=int(random.integers(2**31)))
        recorded, done = SingleAgentEpisode(observations=[observation], len_lookback_buffer=0), False
        while not done:
            position, velocity, angle, spin = observation
            action = int(angle + 0.5 * spin + 0.05 * position + 0.1 * velocity > 0)
            taken = action if random.random() > 0.1 else int(random.integers(2))
            observation, reward, terminated, truncated, _ = env.step(taken)
            recorded.add_env_step(observation, action, reward, terminated=terminated, truncated=truncated)
            done = terminated or truncated
        episodes.append(recorded.to_numpy())
    return episodes


def bc(episodes, *, model_config=None, **training):
    """A config of small networks with a seed."""
    config = BCConfig().offline_data(input_=episodes).training(lr=0.01, **training).debugging(seed=3)
    return config.rl_module(model_config={"fcnet_hiddens": [16], **(model_config or {})})


def policy_loss(algo, iterations):
    for _ in range(iterations):
        results = algo.train()
    return results["learners"]["default_policy"]["policy_loss"]


# ---------------------------------------------------------------------------------------------- loss


@pytest.mark.parametrize("entropy_coeff", [0.0, 0.3])
def test_the_loss_is_the_mean_negative_log_likelihood_of_rows_with_loss_less_the_entropy(entropy_coeff):
    module = Table(observation_space=SPACES[0], action_space=SPACES[1], model_config={})
    weights = np.array([[0.0, 1.0, -2.0], [0.5, 0.0, 1.0]])
    module.logits.weight.data = torch.tensor(weights, dtype=torch.float32)
    states, actions, mask = np.array([0, 1, 2, 1]), np.array([1, 0, 1, 1]), np.array([True, True, True, False])
    batch = {
        "obs": torch.eye(3)[states],
        "actions": torch.tensor(actions),
        "loss_mask": torch.tensor(mask),
    }
    settings = BCConfig().training(entropy_coeff=entropy_coeff).settings.training
    losses = BCRule(settings).losses(batch, module, None, {})
    probabilities = np.exp(weights.T) / np.exp(weights.T).sum(1, keepdims=True)  # [states, actions]
    chosen = probabilities[states, actions][mask]
    entropy = -(probabilities * np.log(probabilities)).sum(1)[states][mask].mean()
    assert losses.metrics["policy_loss"].item() == pytest.approx(-np.log(chosen).mean(), rel=1e-6)
    expected = -np.log(chosen).mean() - entropy_coeff * entropy
    assert losses.losses["total"].item() == pytest.approx(expected, rel=1e-6)


def test_a_table_learns_the_frequencies_of_the_actions_in_each_state():
    counts = np.array([[1, 3], [8, 2], [5, 5]])
    pairs = [(s, a) for s in range(3) for a in range(2) for _ in range(counts[s, a])]
    states, actions = map(list, zip(*pairs))
    one_hot = np.eye(3, dtype=np.float32)
    data = [episode(list(one_hot[states[i : i + 6]]), actions[i : i + 6]) for i in range(0, 24, 6)]
    config = bc(data, train_batch_size=24, minibatch_size=None).training(lr=0.1)
    algo = config.rl_module(model_config={}, rl_module_spec=RLModuleSpec(module_class=Table)).build_algo()
    policy_loss(algo, 300)
    with torch.no_grad():
        learned = torch.softmax(algo.get_module().logits.weight.T, 1).numpy()
    np.testing.assert_allclose(learned, counts / counts.sum(1, keepdims=True), atol=1e-3)


# ---------------------------------------------------------------------------------------------- data


def test_each_pass_draws_every_whole_episode_once_in_a_new_order():
    data = random_episodes(8, 5, right)
    source = bc(data, train_batch_size=18, minibatch_size=18).make_source(None)
    passes = []
    for _ in range(3):
        drawn = [item for _ in range(2) for item in source.sample()]  # 4 episodes reach 18 steps
        assert {item.id_ for item in drawn} == {item.id_ for item in data} and len(drawn) == 8
        passes.append(tuple(item.id_ for item in drawn))
    assert len(set(passes)) > 1


def test_spaces_are_those_of_the_config_or_of_the_episodes_or_are_inferred():
    def spaces(config):
        algo = config.build_algo()
        algo.stop()
        return algo.env_runner.get_spaces()["__env_single__"]

    plain = random_episodes(4, 5, right)
    infinite = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    assert spaces(bc(plain)) == (infinite, SPACES[1])
    assert spaces(bc(plain).environment(action_space=gym.spaces.Discrete(4))) == (infinite, gym.spaces.Discrete(4))
    given = gym.spaces.Box(-9, 9, (3,), np.float32), gym.spaces.Discrete(5)
    one = episode([np.zeros(3, np.float32)], [1], observation_space=given[0], action_space=given[1])
    assert spaces(bc([one])) == given


def test_a_table_of_chunks_is_data_too():
    data = random_episodes(4, 5, right)
    table = ChunkTable.of_episodes(data)
    losses = [policy_loss(bc(episodes, train_batch_size=20).build_algo(), 2) for episodes in (data, table)]
    assert losses[0] == losses[1]


def test_episodes_of_a_runner_are_cloned_as_they_come():
    sampler = PPOConfig().environment("CartPole-v1").env_runners(num_envs_per_env_runner=4).debugging(seed=1)
    sampler = sampler.build_algo()
    chunks = sampler.env_runner.sample(num_timesteps=400)
    sampler.stop()
    algo = bc(chunks, train_batch_size=200, minibatch_size=64).environment("CartPole-v1").build_algo()
    results = algo.train()
    assert 200 <= results["num_env_steps_sampled_lifetime"] < 400
    assert results["learners"]["default_policy"]["policy_loss"] == pytest.approx(np.log(2), abs=0.05)  # nearly random
    algo.stop()


def test_a_source_of_ones_own_gives_the_train_batches_and_is_part_of_checkpoints(tmp_path):
    class InOrder:
        is_late, place = False, 0

        def __init__(self, episodes):
            self.episodes = episodes

        def sample(self):
            self.place += 1
            return [self.episodes[self.place - 1]]

        def sample_ahead(self):
            pass

        def forget(self):
            pass

        def get_state(self):
            return {"place": self.place}

        def set_state(self, state):
            self.place = state["place"]

    class InOrderConfig(BCConfig):
        def make_source(self, env_runner_group):
            return InOrder(self.input_)

    data = [episode([np.zeros(3, np.float32)] * n, [0] * n) for n in (2, 3, 5, 7)]
    config = InOrderConfig().offline_data(input_=data)
    algo = config.build_algo()
    assert [algo.train()["num_env_steps_sampled_lifetime"] for _ in range(2)] == [2, 5]
    algo.save_to_path(tmp_path / "saved")
    resumed = Algorithm.from_checkpoint(tmp_path / "saved", config=config)
    assert [resumed.train()["num_env_steps_sampled_lifetime"] for _ in range(2)] == [10, 17]


# ------------------------------------------------------------------------------------------- modules


def test_actions_of_several_parts_are_cloned():
    def act(row):
        return {"go": right(row), "speed": row[1:2] / 2}

    algo = bc(random_episodes(40, 20, act), train_batch_size=800).build_algo()
    policy_loss(algo, 30)
    observations = np.random.default_rng(1).normal(size=(200, 3)).astype(np.float32)
    actions, _ = algo.act(observations)
    assert np.mean(actions["go"] == (observations[:, 0] > 0)) > 0.95
    assert np.abs(actions["speed"] - observations[:, 1:2] / 2).mean() < 0.1
    algo.stop()


def test_a_recurrent_module_clones_what_only_the_first_observation_says():
    random, data = np.random.default_rng(0), []
    for _ in range(64):
        bit = int(random.integers(2))
        observations = np.zeros((int(random.integers(4, 9)), 1), np.float32)
        observations[0] = 2 * bit - 1
        data.append(episode(list(observations), [bit] * len(observations)))
    model = {"use_lstm": True, "lstm_cell_size": 16, "max_seq_len": 10}
    algo = bc(data, model_config=model, train_batch_size=300, minibatch_size=None).build_algo()
    assert policy_loss(algo, 60) < 0.05  # without memory at least log 2 in three quarters of the steps
    for bit in (0, 1):
        observation, state = np.array([2 * bit - 1], np.float32), None
        for _ in range(6):
            action, state = algo.act(observation, state)
            observation = np.zeros(1, np.float32)
            assert action == bit
    algo.stop()


def test_every_agent_is_cloned_by_the_module_that_its_episodes_name():
    random, data = np.random.default_rng(0), []
    for _ in range(20):
        recorded = MultiAgentEpisode(agent_to_module_mapping_fn=lambda agent, episode, **kwargs: agent)
        rows = random.normal(size=(21, 2, 3)).astype(np.float32)
        recorded.add_env_reset(observations=dict(zip("ab", rows[0])))
        for before, after in pairwise(rows):
            actions = {"a": right(before[0]), "b": 1 - right(before[1])}
            recorded.add_env_step(dict(zip("ab", after)), actions, {"a": 0.0, "b": 0.0})
        data.append(recorded.to_numpy())
    config = bc(data, train_batch_size=400).multi_agent(policies=["a", "b"], policy_mapping_fn={"a": "a", "b": "b"})
    algo = config.build_algo()
    for _ in range(30):
        results = algo.train()
    assert {key for key in results["learners"] if not key.startswith("__")} == {"a", "b"}
    for sign in (-1, 1):
        observation = np.array([sign, 0, 0], np.float32)
        actions, _ = algo.act({"a": observation, "b": observation})
        assert actions == {"a": int(sign > 0), "b": int(sign < 0)}
    algo.stop()


# --------------------------------------------------------------------------------------- checkpoints


def test_a_resumed_run_equals_one_that_went_on_to_the_bit(tmp_path):
    config = bc(random_episodes(10, 7, right), train_batch_size=33, minibatch_size=16)
    algo = config.build_algo()
    policy_loss(algo, 3)
    algo.save_to_path(tmp_path / "saved")
    expected = [policy_loss(algo, 1) for _ in range(4)]
    resumed = Algorithm.from_checkpoint(tmp_path / "saved", config=config)
    assert [policy_loss(resumed, 1) for _ in range(4)] == expected
    assert resumed.training_iteration == 7
    for left, right_ in zip(algo.get_module().parameters(), resumed.get_module().parameters()):
        assert torch.equal(left, right_)


def test_a_checkpoint_acts_without_data_and_environment_and_learns_only_with_the_data(tmp_path):
    algo = bc(random_episodes(10, 20, right), train_batch_size=200).build_algo()
    policy_loss(algo, 40)
    algo.save_to_path(tmp_path / "saved")
    policy = Policy.from_checkpoint(tmp_path / "saved")
    observations = np.array([[-1, 0, 0], [1, 0, 0]], np.float32)
    assert policy.act(observations)[0].tolist() == [0, 1]
    with pytest.raises(CheckpointError, match=r"offline_data\.input_: 10 episodes in memory"):
        Algorithm.from_checkpoint(tmp_path / "saved")
    fewer = bc(random_episodes(2, 20, right), train_batch_size=200)
    few = fewer.build_algo()
    before = few.get_state()["learner"]
    with pytest.raises(CheckpointError, match="that of 2 episodes"):
        few.restore_from_path(tmp_path / "saved")
    torch.testing.assert_close(few.get_state()["learner"], before, rtol=0, atol=0)


# ------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda config: BCConfig().build_algo(), "recorded episodes"),
        (lambda config: BCConfig().environment("CartPole-v1").build_algo(), "recorded episodes"),
        (lambda config: PPOConfig().build_algo(), "an environment"),
        (lambda config: config.offline_data(input_=["data.parquet"]), "a list of episodes"),
        (lambda config: config.offline_data(input_=[]), "a list of episodes"),
        (lambda config: config.to_yaml(), "offline_data.input_: 4 episodes in memory"),
        (lambda config: config.evaluation(evaluation_interval=1).build_algo(), "needs an environment"),
        (lambda config: config.env_runners(num_env_runners=2).build_algo(), "num_env_runners"),
        (lambda config: config.build_algo().evaluate(), "Algorithm.evaluate"),
        (lambda config: config.build_algo().env_runner.sample(num_timesteps=1), "recorded episodes, without"),
    ],
    ids=[
        "no data",
        "an environment alone",
        "PPO",
        "paths",
        "empty",
        "yaml",
        "interval",
        "runners",
        "evaluate",
        "sample",
    ],
)
def test_what_cannot_work_without_data_or_environment_is_a_named_error(use, text):
    with pytest.raises(EpibatchError, match=text):
        use(bc(random_episodes(4, 5, right)))


def test_evaluation_environments_must_have_the_spaces_of_the_data():
    algo = bc(random_episodes(4, 5, right)).evaluation(evaluation_config={"env": "CartPole-v1"}).build_algo()
    with pytest.raises(ConfigError, match="same spaces"):
        algo.evaluate()


# --------------------------------------------------------------------------------------- environment


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_a_clone_balances_the_pole_as_its_controller_did(seed):
    config = BCConfig().offline_data(input_=controlled_cart_pole(100, seed)).debugging(seed=seed)
    config.evaluation(evaluation_config={"env": "CartPole-v1"}, evaluation_duration=10)
    algo = config.build_algo()
    policy_loss(algo, 10)
    assert algo.evaluate()["env_runners"]["episode_return_mean"] >= 475
    algo.stop()


class LessRewards(EpisodeTransform):
    """Takes 1 off every reward of the episodes themselves."""

    def transform_episode(self, episode):
        episode.set_rewards(new_data=episode.get_rewards() - 1.0)


class Plain(ConnectorV2):
    """The same as a piece that declares nothing, in the way of RLlib."""

    def __call__(self, *, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            episode.set_rewards(new_data=np.asarray(episode.get_rewards()) - 1.0)
        return batch


@pytest.mark.parametrize("piece", [LessRewards, Plain])
def test_pieces_that_change_episodes_leave_the_data_as_it_is(piece):
    data = [*random_episodes(9, 12, right), episode(np.eye(3, dtype=np.float32), [0, 1, 0])]
    config = MARWILConfig().offline_data(input_=data, held_out=0.2).training(train_batch_size=200, lr=0.0)
    seen = []

    class Seen(ConnectorV2):
        def __call__(self, *, batch, episodes, **kwargs):
            seen.extend(float(reward) for chunk in episodes for reward in chunk.get_rewards())
            return batch

    config.learners(learner_connector=lambda obs, act: [piece(), Seen()]).rl_module(model_config={"fcnet_hiddens": [4]})
    algo = config.debugging(seed=0).build_algo()
    losses = [algo.train()["offline_evaluation"]["default_policy"]["vf_loss"] for _ in range(3)]
    algo.stop()
    assert losses[0] == losses[1] == losses[2] > 0 and {*seen} == {-1.0}
    assert all((episode.get_rewards() == 0).all() for episode in data)
