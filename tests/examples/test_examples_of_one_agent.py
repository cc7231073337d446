"""What the examples of one agent record, train on and learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from epibatch.algorithms.ppo import PPOConfig
from epibatch.core.rl_module import DefaultActorCritic, DefaultLSTMActorCritic
from epibatch.episodes import SingleAgentEpisode

# ----------------------------------------------------------------------------------------- action mask


def test_masked_actions_have_no_probability_and_no_gradient(load_example):
    example = load_example("action_mask")
    algorithm = example.config_for(example.Options()).build_algo()
    module = algorithm.get_module()
    mask = torch.tensor([[1, 0, 0, 1, 0, 0, 0, 1], [0, 0, 1, 0, 0, 0, 0, 0]])
    things = torch.rand(2, example.THINGS, 3, requires_grad=True)
    logits = module.forward_train({"obs": {"observations": things, "action_mask": mask}})["action_dist_inputs"]
    probabilities = logits.softmax(-1)
    assert (probabilities[mask == 0] == 0).all() and (probabilities[mask == 1] > 0).all()
    distribution = module.get_exploration_action_dist_cls().from_logits(logits)
    draws = distribution.sample(sample_shape=(500,))
    assert torch.take_along_dim(mask[None].expand(500, -1, -1), draws[..., None], -1).all()
    assert distribution.to_deterministic().sample().tolist()[1] == 2
    distribution.entropy().sum().backward()
    assert torch.isfinite(things.grad).all() and (things.grad[mask == 0] == 0).all()
    algorithm.stop()


# ------------------------------------------------------------------------------------------- blackjack


def test_the_network_sees_all_three_parts(load_example):
    example = load_example("blackjack")
    algorithm = example.config_for(example.Options()).build_algo()
    episodes = algorithm.env_runner.sample(num_timesteps=200)
    (batch,) = algorithm.learner.connector(rl_module=algorithm.learner.module, batch={}, episodes=episodes).values()
    assert isinstance(batch["obs"], tuple) and len(batch["obs"]) == 3
    for part, index in zip(batch["obs"], range(3)):
        recorded = np.concatenate([episode.get_observations()[index] for episode in episodes])
        np.testing.assert_array_equal(part, recorded)
    module = algorithm.get_module()
    hand = [np.array([18]), np.array([5]), np.array([0])]
    first = module.forward_inference({"obs": tuple(map(torch.from_numpy, hand))})
    for index, other in ((0, 12), (1, 9), (2, 1)):
        changed = [np.array([other]) if index == i else value for i, value in enumerate(hand)]
        second = module.forward_inference({"obs": tuple(map(torch.from_numpy, changed))})
        assert not np.array_equal(first["action_dist_inputs"], second["action_dist_inputs"])
    algorithm.stop()


# --------------------------------------------------------------------------------------- cleanrl style


def test_the_agent_is_all_that_the_pipeline_needs(load_example):
    example = load_example("cleanrl_style")
    torch.manual_seed(0)
    envs = example.gym.make_vec("CartPole-v1", num_envs=2)
    agent = example.Agent(envs)
    x = torch.rand(5, 4)
    action, logprob, entropy, value = agent.get_action_and_value(x)
    np.testing.assert_array_equal(agent.compute_values({"obs": x}).detach(), value.detach())
    again = agent.get_action_and_value(x, action)[1]
    np.testing.assert_array_equal(again.detach(), logprob.detach())
    assert value.shape == entropy.shape == (5,)
    envs.close()


# --------------------------------------------------------------------------------- count based rewards


def test_rewards_and_state(load_example):
    example = load_example("count_based_rewards")
    piece = example.CountBasedRewards(num_states=4, scale=0.5)
    episode = SingleAgentEpisode(
        observations=[2, 3, 2, 2, 0], actions=[0] * 4, rewards=[0, 0, 0, 1], len_lookback_buffer=0
    )
    batch = piece(rl_module=None, batch={}, episodes=[episode])
    assert batch == {}
    np.testing.assert_allclose(episode.get_rewards(), [0.5, 0.5, 0.25, 1 + 0.5 / 3])
    assert piece.counts.tolist() == [0, 0, 3, 1]

    restored = example.CountBasedRewards(num_states=4, scale=0.5)
    restored.set_state(piece.get_state())
    assert restored.counts.tolist() == [0, 0, 3, 1]
    piece.reset_state()
    assert piece.counts.tolist() == [0, 0, 0, 0]
    assert restored.counts.tolist() == [0, 0, 3, 1]


def test_state_travels_with_the_pipeline(load_example):
    example = load_example("count_based_rewards")
    config = example.config_for(example.Options(), shaped=True)
    algorithm = config.build_algo()
    algorithm.train()
    counts = algorithm.learner.connector["count_based_rewards"].counts
    assert counts.sum() >= 2048
    np.testing.assert_array_equal(example.show_state(algorithm, config), counts)
    algorithm.stop()


# -------------------------------------------------------------------------------------- frame stacking


@pytest.mark.parametrize("num_frames", [1, 4])
def test_both_sides_see_the_same_stacks(load_example, num_frames):
    example = load_example("frame_stacking")
    algorithm = example.config_for(example.Options(), num_frames).build_algo()
    module, connector = algorithm.get_module(), algorithm.learner.connector
    assert module.observation_space.shape == (2, num_frames)
    for _ in range(3):
        episodes = algorithm.env_runner.sample(num_timesteps=200)
        (batch,) = connector(rl_module=algorithm.learner.module, batch={}, episodes=episodes).values()
        # The stacks are right if the untrained module gives the logits again that it acted by.
        recorded = batch["action_dist_inputs"][batch["loss_mask"]]
        again = module.forward_train(batch)["action_dist_inputs"][batch["loss_mask"]]
        np.testing.assert_allclose(again.detach().numpy(), recorded.numpy(), atol=1e-6)
    algorithm.stop()


# ----------------------------------------------------------------------------------------- frozen lake


@pytest.mark.slow
def test_the_target_is_reached(load_example, capsys):
    example = load_example("frozen_lake")
    share, steps = example.main(example.parse([]))
    assert share >= 0.95 and steps <= 100_000
    out = capsys.readouterr().out
    picture = [line.split() for line in out.splitlines()[-4:]]
    assert [row.count("H") for row in picture] == [0, 2, 1, 1] and picture[3][3] == "G"
    assert walk(picture) == "G"


def walk(picture):
    """Where the arrows lead from the start."""
    x = y = 0
    for _ in range(20):
        if picture[y][x] in "HG":
            break
        dx, dy = {"<": (-1, 0), "v": (0, 1), ">": (1, 0), "^": (0, -1)}[picture[y][x]]
        x, y = min(max(x + dx, 0), 3), min(max(y + dy, 0), 3)
    return picture[y][x]


def test_options_go_into_the_config(load_example):
    example = load_example("frozen_lake")
    config = example.config_for(example.Options(steps=10, seed=4))
    assert config.seed == 4
    assert config.stop_rules.num_env_steps_sampled_lifetime == 10
    assert config.stop_rules.episode_return_mean == pytest.approx(0.95)
    plain = PPOConfig.from_yaml(Path(example.Options().config))
    assert plain.stop_rules.num_env_steps_sampled_lifetime == 100_000


# ----------------------------------------------------------------------------------------- lstm memory


def test_the_configs_differ_in_memory_only(load_example):
    example = load_example("lstm_memory")
    configs = [example.config_for(example.Options(), memory=memory) for memory in (True, False)]
    one, other = (config.environment("CartPole-v1").to_dict() for config in configs)  # an id is data, a class is not
    assert [config["rl_module"]["model_config"].pop("use_lstm") for config in (one, other)] == [True, False]
    assert one == other
    for memory, kind in ((True, DefaultLSTMActorCritic), (False, DefaultActorCritic)):
        algorithm = example.config_for(example.Options(), memory=memory).build_algo()
        assert type(algorithm.get_module()) is kind
        algorithm.stop()


@pytest.mark.slow
def test_memory_learns(load_example):
    example = load_example("lstm_memory")
    mean, steps = example.train(example.config_for(example.Options(steps=60_000, goal=60.0)))
    assert mean >= 60 and steps <= 60_000  # without memory it stays under 57 for a million steps


# -------------------------------------------------------------------------------------------- own loop


def test_chunks_are_whole(load_example):
    example = load_example("own_loop")
    loop = example.Loop(example.Options(steps_per_iteration=100))
    first, second = loop.collect(), loop.collect()
    loop.env.close()
    assert [sum(map(len, chunks)) for chunks in (first, second)] == [100, 100]
    assert all(chunk.is_done for chunk in first[:-1])
    assert second[0].id_ == first[-1].id_
    np.testing.assert_array_equal(second[0].get_observations(0), first[-1].get_observations(-1))
    batch = loop.learner_pipeline(rl_module=loop.module, batch={}, episodes=first)
    assert len(batch["obs"]) == 100 + len(first)
    assert int(batch["loss_mask"].sum()) == 100


# -------------------------------------------------------------------------------------------- pendulum


def test_actions_are_stretched_and_clipped_for_the_environment_alone(load_example, monkeypatch):
    example = load_example("pendulum")
    algorithm = example.config_for(example.Options()).build_algo()
    env, sent = algorithm.env_runner.env, []
    step = env.step
    monkeypatch.setattr(env, "step", lambda actions: sent.append(actions.copy()) or step(actions))
    episodes = algorithm.env_runner.sample(num_timesteps=800)  # 100 in each of eight environments: no episode ends
    own = np.stack([episode.get_actions() for episode in episodes], 1)
    assert np.abs(own).max() > 1  # the Gaussian knows no bounds
    np.testing.assert_allclose(sent, np.clip(2 * own, -2, 2), rtol=1e-6, atol=1e-6)
    inputs = torch.tensor(np.stack([episode.get_extra_model_outputs("action_dist_inputs") for episode in episodes], 1))
    logp = np.stack([episode.get_extra_model_outputs("action_logp") for episode in episodes], 1)
    normal = torch.distributions.Normal(inputs[..., 0], inputs[..., 1].exp())
    np.testing.assert_allclose(logp, normal.log_prob(torch.tensor(own[..., 0])), rtol=1e-4, atol=1e-5)
    algorithm.stop()


def test_observations_are_filtered_and_rewards_scaled(load_example):
    example = load_example("pendulum")
    algorithm = example.config_for(example.Options()).build_algo()
    episodes = algorithm.env_runner.sample(num_timesteps=1600)
    speeds = np.concatenate([episode.get_observations()[-100:, 2] for episode in episodes])
    assert np.abs(speeds).mean() < 2.5 and np.abs(speeds).max() < 8  # -8 to 8 unfiltered
    rewards = [episode.get_rewards().copy() for episode in episodes]
    (batch,) = algorithm.learner.connector(rl_module=algorithm.learner.module, batch={}, episodes=episodes).values()
    np.testing.assert_allclose(batch["rewards"][batch["loss_mask"]], 0.1 * np.concatenate(rewards), rtol=1e-5)
    algorithm.stop()


def test_the_piece_by_itself(load_example):
    episode = SingleAgentEpisode(observations=[0, 1, 2], actions=[0, 0], rewards=[-4.0, 2.0], len_lookback_buffer=0)
    piece = load_example("pendulum").ScaleRewards(scale=0.5)
    assert piece(batch={}, episodes=[episode]) == {}
    assert episode.get_rewards().tolist() == [-2.0, 1.0]
