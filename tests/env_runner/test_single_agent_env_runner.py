from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.algorithms import PPOConfig
from epibatch.core.columns import Columns
from epibatch.core.errors import RunnerArgumentError
from epibatch.env_runner import SingleAgentEnvRunner, environment_seeds
from fixture_episodes import leaves


def steps(chunks):
    return sum(len(chunk) for chunk in chunks)


def assert_same(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other):
        assert (a.t_started, a.is_terminated, a.is_truncated) == (b.t_started, b.is_terminated, b.is_truncated)
        np.testing.assert_array_equal(a.get_observations(), b.get_observations())
        np.testing.assert_array_equal(a.get_actions(), b.get_actions())
        np.testing.assert_array_equal(a.get_rewards(), b.get_rewards())
        assert a.extra_model_outputs.keys() == b.extra_model_outputs.keys()
        for key in a.extra_model_outputs:
            for mine, its in zip(*(leaves(e.get_extra_model_outputs(key)) for e in (a, b))):
                np.testing.assert_array_equal(mine, its, err_msg=key)


@pytest.fixture
def cart_pole():
    made = []

    def make(seed=5, num_envs=3, **settings):
        config = PPOConfig().environment("CartPole-v1").debugging(seed=seed)
        config.rl_module(model_config=settings.pop("model_config", {"fcnet_hiddens": [8]}))
        torch.manual_seed(0)
        made.append(SingleAgentEnvRunner(config=config.env_runners(num_envs_per_env_runner=num_envs, **settings)))
        return made[-1]

    yield make
    for runner in made:
        runner.stop()


# ---------------------------------------------------------------------------------------------- how much


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_timesteps": 5, "num_episodes": 1},
        {"num_timesteps": -1},
        {"num_episodes": -2},
        {"num_timesteps": 2.5},
        {"num_timesteps": "5"},
        {"num_episodes": 1.5},
    ],
)
def test_amounts_are_one_whole_number(toys, arguments):
    for error in (RunnerArgumentError, AssertionError, ValueError):
        with pytest.raises(error, match=r"num_timesteps and num_episodes, an int of at least 0"):
            toys.runner().sample(**arguments)


@pytest.mark.parametrize(("wanted", "found"), [(1, 2), (2, 2), (3, 4), (5, 6), (6, 6)])
def test_timesteps_are_rounded_up_to_whole_vector_steps(toys, wanted, found):
    assert steps(toys.runner(2).sample(num_timesteps=wanted)) == found


def test_ended_chunks_come_first_in_the_order_of_their_ends(toys):
    # Environment 0 plays lengths 3, 5, 2 and environment 1 plays 5, 2, 3; a reset takes one vector step.
    chunks = toys.runner(2).sample(num_timesteps=16)
    assert [int(chunk.get_observations(0)[0]) for chunk in chunks] == [0, 1000, 1100, 100, 1200]
    assert [chunk.is_done for chunk in chunks] == [True, True, True, True, False]
    assert [len(chunk) for chunk in chunks] == [3, 5, 2, 5, 1]


def test_chunks_put_together_are_whole_episodes(toys):
    runner = toys.runner(3)
    episodes = toys.joined([chunk for n in (4, 1, 7, 2, 20) for chunk in runner.sample(num_timesteps=n)])
    ended = {key for key, episode in episodes.items() if episode.is_done}
    assert len(ended) >= 6
    for key, episode in episodes.items():
        toys.check(episode)
        assert episode.t_started == 0 and len(episode) <= toys.length_of(*key)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_exactly_so_many_whole_episodes(toys, count):
    runner = toys.runner(2)
    runner.sample(num_timesteps=2)
    for _ in range(2):
        before = [env.episode for env in toys.envs]
        episodes = runner.sample(num_episodes=count)
        assert len(episodes) == count
        for episode in episodes:
            toys.check(episode)
            assert episode.is_done and episode.t_started == 0 and episode.lookback == 0
        assert all(env.episode > then for env, then in zip(toys.envs, before))
    after = runner.sample(num_timesteps=2)  # the call after whole episodes begins with a reset
    assert [chunk.t_started for chunk in after] == [0, 0]
    assert [len(env.seeds) for env in toys.envs] == [env.episode + 1 for env in toys.envs]


def test_no_timesteps_and_no_episodes_give_nothing_and_touch_nothing(toys):
    runner = toys.runner(2)
    assert list(runner.sample(num_timesteps=0)) == [] == list(runner.sample(num_episodes=0))
    runner.sample(num_timesteps=4)
    before = [len(env.actions) for env in toys.envs]
    assert list(runner.sample(num_timesteps=0)) == []
    assert [len(env.actions) for env in toys.envs] == before
    assert [chunk.t_started for chunk in runner.sample(num_timesteps=2)] == [2, 2]


def test_amounts_by_default(toys):
    for length, found in ((3, 6), ("auto", 90)):
        config = toys.config(2, rollout_fragment_length=length).training(train_batch_size=90, minibatch_size=90)
        assert found <= steps(toys.runner(2, config=config).sample()) < found + 2
    episodes = toys.runner(3, batch_mode="complete_episodes").sample()
    assert len(episodes) == 3 and all(episode.is_done for episode in episodes)


def test_force_reset_drops_what_was_running(toys):
    runner = toys.runner(2)
    first = {chunk.id_ for chunk in runner.sample(num_timesteps=4)}
    again = runner.sample(num_timesteps=4, force_reset=True)
    assert not first & {chunk.id_ for chunk in again}
    assert [chunk.t_started for chunk in again] == [0, 0]
    assert [int(chunk.get_observations(0)[0]) for chunk in again] == [1100, 100]  # 1100 ended


# ------------------------------------------------------------------------------------- what is in episodes


def test_steps_that_only_bring_a_reset_are_not_counted(toys):
    runner = toys.runner(1)
    chunks = runner.sample(num_timesteps=10)  # lengths 3, 5, 2: two resets in between
    assert [len(chunk) for chunk in chunks] == [3, 5, 2] and steps(chunks) == 10
    assert len(toys.envs[0].actions) == 10
    assert runner.get_metrics()["num_env_steps_sampled"] == 10
    for chunk in chunks:
        toys.check(chunk)


def test_extras_and_weights_seq_no(toys):
    runner = toys.runner(2)
    for number in range(3):
        for chunk in runner.sample(num_timesteps=6):
            outputs = {key: chunk.get_extra_model_outputs(key) for key in chunk.extra_model_outputs}
            assert outputs.keys() == {Columns.ACTION_DIST_INPUTS, Columns.ACTION_LOGP, "weights_seq_no"}
            odd = chunk.get_observations()[:-1, 1] % 2
            np.testing.assert_array_equal(outputs[Columns.ACTION_DIST_INPUTS], 30 * np.stack([1 - odd, odd], 1))
            np.testing.assert_allclose(outputs[Columns.ACTION_LOGP], 0, atol=1e-6)
            assert outputs["weights_seq_no"].tolist() == [number] * len(chunk)
            assert chunk.get_actions().tolist() == odd.astype(int).tolist()
        runner.weights_updated()


@pytest.mark.parametrize(("normalized", "sent"), [(True, [-1.0, 5.0, -1.0]), (False, [-0.5, 0.5, -0.5])])
def test_the_modules_action_is_stored_and_the_environments_acted_on(toys, normalized, sent):
    """[-1, 1] is stretched to [-4, 8]: -0.5 -> -1, 0.5 -> 5."""
    space = gym.spaces.Box(np.float32([-4.0]), np.float32([8.0]))
    config = toys.config(2, env=toys.factory(action_space=space)).environment(normalize_actions=normalized)
    for chunk in toys.runner(config=config).sample(num_timesteps=6, explore=False):
        np.testing.assert_allclose(chunk.get_actions(), chunk.get_observations()[:-1, 1:] % 2 - 0.5)
    np.testing.assert_allclose(np.array(toys.envs[0].actions)[:3, 0], sent)


def test_greedy_actions_do_not_draw_random_numbers(cart_pole):
    runs = []
    for seed in (1, 2):
        runner = cart_pole(seed=3)
        torch.manual_seed(seed)
        np.random.seed(seed)
        runs.append(runner.sample(num_timesteps=60, explore=False))
    assert_same(*runs)
    for episode in runs[0]:
        best = episode.get_extra_model_outputs(Columns.ACTION_DIST_INPUTS).argmax(-1)
        np.testing.assert_array_equal(episode.get_actions(), best)


def test_explore_follows_the_config_unless_given(cart_pole):
    def greedy(episodes):
        pairs = [(e.get_extra_model_outputs(Columns.ACTION_DIST_INPUTS).argmax(-1), e.get_actions()) for e in episodes]
        return all(np.array_equal(best, taken) for best, taken in pairs)

    assert greedy(cart_pole(explore=False).sample(num_timesteps=90))
    assert not greedy(cart_pole(explore=True).sample(num_timesteps=90))
    assert not greedy(cart_pole(explore=False).sample(num_timesteps=90, explore=True))


# ------------------------------------------------------------------------------------------ seeds, randomness


@pytest.mark.parametrize(("seed", "worker"), [(7, 0), (7, 3), (None, 0)])
def test_seeds_are_given_at_the_first_reset_only(toys, seed, worker):
    runner = toys.runner(3, seed=seed, worker_index=worker)
    runner.sample(num_timesteps=20)
    runner.sample(num_timesteps=3, force_reset=True)
    runner.sample(num_episodes=1)
    first = [None] * 3 if seed is None else environment_seeds(seed, 3, worker)
    for i, env in enumerate(toys.envs):
        assert env.seeds[0] == first[i]
        assert len(env.seeds) >= 4 and set(env.seeds[1:]) == {None}


def test_same_seed_same_episodes(cart_pole):
    one, other, third = (cart_pole(seed=seed) for seed in (11, 11, 12))
    for _ in range(3):
        first = one.sample(num_timesteps=50)
        assert_same(first, other.sample(num_timesteps=50))
        with pytest.raises(AssertionError):
            assert_same(first, third.sample(num_timesteps=50))


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Discrete(3, start=5),
        gym.spaces.Box(np.float32([-3.0, 0.0]), np.float32([-1.0, 9.0])),
        gym.spaces.MultiDiscrete([2, 4]),
    ],
    ids=["discrete", "box", "multi_discrete"],
)
def test_random_actions_are_legal_and_have_no_model_outputs(toys, space):
    for seed in (1, 1, 2):
        runner = toys.runner(2, env=toys.factory(action_space=space), seed=seed)
        for chunk in runner.sample(num_timesteps=40, random_actions=True):
            assert list(chunk.extra_model_outputs) == ["weights_seq_no"]
            of_module = gym.spaces.Box(-1.0, 1.0, (2,)) if isinstance(space, gym.spaces.Box) else space
            assert all(action in of_module for action in chunk.get_actions())
            toys.check(chunk)
    taken = [np.array(env.actions) for env in toys.envs]
    assert all(action in space for action in taken[0])
    np.testing.assert_array_equal(taken[0], taken[2])
    assert not np.array_equal(taken[0], taken[4]) and len(np.unique(taken[0], axis=0)) > 1


def test_changing_between_random_and_policy_resets(toys):
    runner = toys.runner(2)
    runner.sample(num_timesteps=2)
    for random_actions, t_started, episode in ((True, 0, 1), (True, 1, 1), (False, 0, 2), (False, 1, 2)):
        chunks = runner.sample(num_timesteps=2, random_actions=random_actions)
        assert [chunk.t_started for chunk in chunks] == [t_started] * 2
        assert [env.episode for env in toys.envs] == [episode] * 2
        for chunk in chunks:
            toys.check(chunk)
            assert (Columns.ACTION_LOGP in chunk.extra_model_outputs) is not random_actions


# --------------------------------------------------------------------------------------------- metrics, state


def test_metrics_are_what_the_episodes_give(toys):
    runner = toys.runner(2)
    runner.sample(num_timesteps=4)
    nothing = runner.get_metrics()
    assert nothing["num_episodes"] == 0 and np.isnan(nothing["episode_return_mean"])
    # Episodes cut in the middle count whole: lengths 3 (rewards 0.5 + 1.5 + 2.5), 5 (10.5 + ... + 14.5), 5, 2.
    while runner._metrics.episodes.lifetime < 4:
        runner.sample(num_timesteps=2)
    metrics = runner.get_metrics()
    returns, lengths = [4.5, 62.5, 12.5, 22.0], [3, 5, 5, 2]
    for name, values in (("return", returns), ("len", lengths)):
        assert metrics[f"episode_{name}_mean"] == np.mean(values)
        assert (metrics[f"episode_{name}_min"], metrics[f"episode_{name}_max"]) == (min(values), max(values))
    assert (metrics["num_episodes"], metrics["num_episodes_lifetime"]) == (4, 4)
    assert metrics["num_env_steps_sampled"] == metrics["num_env_steps_sampled_lifetime"] - 4
    assert metrics["num_env_steps_sampled_lifetime"] == sum(len(env.actions) for env in toys.envs)
    assert metrics["weights_seq_no"] == 0 and metrics["sample"] > metrics["env_step_timer"] > 0
    again = runner.get_metrics()
    assert (again["num_episodes"], again["num_env_steps_sampled"], again["sample"]) == (0, 0, 0.0)
    assert again["num_episodes_lifetime"] == 4


@pytest.mark.parametrize("model_config", [{"fcnet_hiddens": [8]}, {"use_lstm": True, "lstm_cell_size": 4}])
def test_going_on_from_a_state_is_bit_identical(cart_pole, model_config):
    one = cart_pole(model_config=model_config)
    one.sample(num_timesteps=70)
    one.weights_updated()
    state = one.get_state()
    one.checkpoint_reset()
    other = cart_pole(seed=99, model_config=model_config)
    other.sample(num_timesteps=33)
    with torch.no_grad():
        next(other.module.parameters()).add_(1.0)
    other.set_state(state)
    other.checkpoint_reset()
    for _ in range(3):
        assert_same(one.sample(num_timesteps=50), other.sample(num_timesteps=50))
    mine, its = one.get_metrics(), other.get_metrics()
    assert 150 <= its["num_env_steps_sampled"] <= 156
    for key in ("num_env_steps_sampled_lifetime", "weights_seq_no", "episode_return_mean", "num_episodes_lifetime"):
        assert mine[key] == its[key], key


def test_older_weights_are_not_taken(toys):
    one, other = toys.runner(1), toys.runner(1)
    with torch.no_grad():
        one.module.weight.fill_(2.0)
    for runner, updates in ((one, 2), (other, 3)):
        for _ in range(updates):
            runner.weights_updated()
    other.set_state({"rl_module": one.module.get_state(), "weights_seq_no": 2})
    assert other.module.weight.item() == 1.0
    other.set_state({"rl_module": one.module.get_state(), "weights_seq_no": 3})
    assert other.module.weight.item() == 2.0


def test_a_space_in_the_config_that_contradicts_the_environment_is_warned_of():
    space, other = gym.spaces.Discrete(2), gym.spaces.Discrete(5)
    config = PPOConfig().environment("CartPole-v1", action_space=space)
    SingleAgentEnvRunner(config=config).stop()  # warnings are errors here
    with pytest.warns(UserWarning, match=r"environment.action_space is Discrete\(5\)[\s\S]*has Discrete\(2\)"):
        runner = SingleAgentEnvRunner(config=config.environment(action_space=other))
    assert runner.get_spaces()["__env_single__"][1] == space
    runner.stop()
