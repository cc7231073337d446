"""DQN and SAC of several agents: which buffer they fill, what comes back to it, and what checkpoints hold."""

from __future__ import annotations

from contextlib import nullcontext

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.algorithms import Algorithm, DQNConfig, SACConfig, register_algorithm
from epibatch.connectors.learner import default_pipeline
from epibatch.connectors.replay import NStepReturns
from epibatch.core.errors import ConfigError, EpibatchWarning
from epibatch.env_runner import MultiAgentEnv, make_multi_agent
from epibatch.episodes.replay import MultiAgentEpisodeReplayBuffer, MultiAgentPrioritizedEpisodeReplayBuffer


class Comings(MultiAgentEnv):
    """`red_0` and `blue` begin; `red_1` comes in step 2, `blue` acts in every second step and ends after six."""

    def __init__(self, config=None):
        super().__init__()
        self.agents = self.possible_agents = ["red_0", "red_1", "blue"]
        self.observation_spaces = dict.fromkeys(self.agents, gym.spaces.Box(-1.0, 1.0, (3,), np.float32))
        action = gym.spaces.Box(-1, 1, (2,), np.float32) if (config or {}).get("box") else gym.spaces.Discrete(3)
        self.action_spaces = dict.fromkeys(self.agents, action)

    def _observed(self):
        here = ["red_0"] + ["red_1"] * (self.t >= 2) + ["blue"] * (self.t % 2 == 0 and self.t <= 6)
        return {agent: self.rng.uniform(-1, 1, 3).astype(np.float32) for agent in here}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.rng = 0, np.random.default_rng(seed)
        return self._observed(), {}

    def step(self, action_dict):
        self.t += 1
        observed = self._observed()
        ends = {"blue": self.t == 6, "__all__": self.t == 9}
        return observed, dict.fromkeys(observed, 1.0), ends, {}, {}


SOURCES = {}


@register_algorithm("watched_dqn")
class WatchedDQN(DQNConfig):
    """Shows its source."""

    def make_source(self, env_runner_group):
        SOURCES[self.seed] = super().make_source(env_runner_group)
        return SOURCES[self.seed]


def config(kind=WatchedDQN, seed=0, policies_to_train=None, **training):
    settings = {"train_batch_size": 8, "num_steps_sampled_before_learning_starts": 12, **training}
    env_config = {"box": kind is SACConfig}
    made = kind().environment(Comings, env_config=env_config).debugging(seed=seed).training(**settings)
    made.rl_module(model_config={"fcnet_hiddens": [8]}).env_runners(rollout_fragment_length=1)
    return made.multi_agent(
        policies={"red", "blue"}, policy_mapping_fn=lambda agent, *_, **__: agent.split("_")[0],
        policies_to_train=policies_to_train,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["EpisodeReplayBuffer", "MultiAgentEpisodeReplayBuffer"])
def test_agents_fill_the_buffer_of_their_modules(name):
    algo = config(replay_buffer_config={"type": name, "capacity": 300}).build_algo()
    buffer = SOURCES[0].buffer
    for _ in range(20):
        algo.training_step()
    assert type(buffer) is MultiAgentEpisodeReplayBuffer and buffer.capacity == 300
    assert buffer.get_added_timesteps() == 20
    # of an episode of 9 steps: red_0 makes 9, red_1 7, blue 3; the third episode has made 2 steps, blue's one is done
    assert [buffer.get_added_timesteps(name) for name in ("red", "blue")] == [2 * 16 + 2, 2 * 3 + 1]
    algo.stop()


def test_a_buffer_of_several_agents_is_for_one_agent_too():
    made = WatchedDQN().environment("CartPole-v1").debugging(seed=5)
    made.training(replay_buffer_config={"type": "MultiAgentEpisodeReplayBuffer", "capacity": 1000})
    algo = made.build_algo()
    algo.training_step()
    assert len(SOURCES[5].buffer) == 16 and type(SOURCES[5].buffer).__name__ == "EpisodeReplayBuffer"
    algo.stop()
    with pytest.raises((ConfigError, ValueError), match="alpha"):
        DQNConfig().training(replay_buffer_config={"type": "MultiAgentEpisodeReplayBuffer", "alpha": 1.0})


@pytest.mark.parametrize("trained", [None, ["red"]])
def test_errors_come_back_as_priorities_of_the_rows_they_are_of(monkeypatch, trained):
    given = []
    plain = MultiAgentPrioritizedEpisodeReplayBuffer.update_priorities

    def update(self, priorities, module_id=None, drawn=None):
        given.append((priorities, drawn))
        plain(self, priorities, module_id, drawn)

    monkeypatch.setattr(MultiAgentPrioritizedEpisodeReplayBuffer, "update_priorities", update)
    options = {"type": "PrioritizedEpisodeReplayBuffer", "capacity": 500, "alpha": 1.0}
    algo = config(replay_buffer_config=options, lr=0.0, gamma=0.5, n_step=2, policies_to_train=trained).build_algo()
    pieces = [NStepReturns(n_step=2, gamma=0.5)]
    pipeline = default_pipeline(connectors=pieces, advantages=False, rl_module_specs={"red", "blue"})
    checked = set()
    for _ in range(16):
        algo.training_step()
        for priorities, drawn in given[-1:]:
            batch = pipeline(rl_module=algo.learner.module, batch={}, episodes=drawn)
            assert set(priorities) == set(trained or batch)
            for module_id, errors in priorities.items():
                net, rows = algo.get_module(module_id), batch[module_id]
                with torch.no_grad():
                    after = net.compute_q_values({"obs": rows["new_obs"]})[0].amax(-1)
                    values = net.compute_q_values(rows, rows["actions"])[0]
                goals = rows["rewards"] + rows["discounts"] * ~rows["terminateds"] * after
                np.testing.assert_allclose(errors, (values - goals).abs().numpy() + 1e-6, rtol=1e-4, atol=1e-6)
                checked.add(module_id)
    assert checked == set(trained or ("red", "blue")) and len(given) == 4
    algo.stop()


@pytest.mark.parametrize("kind", [WatchedDQN, SACConfig])
def test_only_the_modules_to_train_learn(kind):
    algo = config(kind, policies_to_train=["blue"]).build_algo()
    before = {name: [p.clone() for p in algo.get_module(name).parameters()] for name in ("red", "blue")}
    for _ in range(20):
        results = algo.training_step().learner_results
    assert set(results) == {"blue", "__all_modules__"}
    same = {n: all(map(torch.equal, before[n], algo.get_module(n).parameters())) for n in before}
    assert same == {"red": True, "blue": False}
    algo.stop()


@pytest.mark.parametrize("stored", [True, False])
def test_checkpoints_hold_the_buffer_of_all_modules_if_they_are_to(tmp_path, stored, shown):
    options = {"type": "PrioritizedEpisodeReplayBuffer", "capacity": 500}
    made = config(seed=1 + stored, replay_buffer_config=options, store_buffer_in_checkpoints=stored)
    algo = made.build_algo()
    for _ in range(25):
        algo.training_step()
    expected = SOURCES[1 + stored].buffer
    algo.save_to_path(tmp_path / "run")
    with nullcontext() if stored else pytest.warns(EpibatchWarning, match="begins with an empty buffer"):
        again = Algorithm.from_checkpoint(tmp_path / "run", config=made)
    buffer = SOURCES[1 + stored].buffer
    assert buffer is not expected and buffer.get_added_timesteps() == 25 * stored
    if stored:
        np.testing.assert_equal(shown(buffer.get_state()), shown(expected.get_state()))
        again.training_step()
        assert set(again.learner_group.row_outputs) == {"red", "blue"}
    for each in (algo, again):
        each.stop()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [DQNConfig, SACConfig], ids=["dqn", "sac"])
def test_two_agents_learn(kind):
    """The best of the evaluations counts: random policies have about 44 and -2500 for both agents together."""
    name, training, goal, most = {
        DQNConfig: (
            "CartPole-v1",
            {"lr": 1e-3, "train_batch_size": 64, "n_step": 3, "target_network_update_freq": 250,
             "epsilon": [[0, 1.0], [3000, 0.05]]},
            400,
            12,
        ),
        SACConfig: ("Pendulum-v1", {"lr": 1e-3, "train_batch_size": 128}, -800, 8),
    }[kind]  # fmt: skip
    made = kind().environment(make_multi_agent(name), env_config={"num_agents": 2}).debugging(seed=0)
    made.training(**training).rl_module(model_config={"fcnet_hiddens": [64, 64]})
    made.multi_agent(policies={"first", "second"}, policy_mapping_fn=lambda agent, *_, **__: ("first", "second")[agent])
    algo = made.evaluation(evaluation_interval=1, evaluation_duration=5).build_algo()
    best = -np.inf
    for _ in range(most):
        best = max(best, algo.train()["evaluation"]["env_runners"]["episode_return_mean"])
        if best >= goal:
            break
    algo.stop()
    assert best >= goal


def test_recurrent_networks_of_several_agents_are_refused():
    made = config().rl_module(model_config={"use_lstm": True})
    with pytest.raises(ConfigError, match="networks without memory"):
        made.build_algo()
