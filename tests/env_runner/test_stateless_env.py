"""Environments whose state goes in and out of step: Gymnasium's pendulum, in arrays and tensors, and learned models."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.algorithms.ppo import PPOConfig
from epibatch.core.errors import ConfigError, EnvironmentContractError, RunnerArgumentError
from epibatch.env_runner import LearnedEnv, SingleAgentEnvRunner, StatelessEnv, StatelessVectorEnv, TensorEnvRunner
from epibatch.learner import RolloutStorage
from epibatch.testing import SpokenWords, StatelessPendulum, TicTacToe, check_env

SAME_STEP, DISABLED = gym.vector.AutoresetMode.SAME_STEP, gym.vector.AutoresetMode.DISABLED


def gymnasium_pendulum(state: Any, actions: Any) -> list[tuple[Any, float]]:
    """What Gymnasium's pendulum does from a state."""
    env: Any = gym.make("Pendulum-v1").unwrapped
    env.reset()
    env.state = np.array(state, np.float64)
    return [env.step(action)[:2] for action in actions]


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("count", [3, 5])
def test_any_number_of_rows_against_gymnasium(device, count):
    rng = np.random.default_rng(count)
    start, actions = rng.uniform(-4, 4, (count, 2)), rng.uniform(-3, 3, (20, count, 1))
    env = StatelessPendulum(device)
    as_rows = torch.tensor if device else np.asarray
    state = as_rows(start)
    before = state.copy() if device is None else state.clone()
    for t in range(20):
        state, obs, reward, terminated, truncated = env.step(state, as_rows(actions[t]))
        assert not terminated.any() and not truncated.any()
        for i in range(count):
            expected = gymnasium_pendulum(start[i], actions[: t + 1, i])[-1]
            np.testing.assert_allclose(obs[i], expected[0], rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(reward[i], expected[1], rtol=1e-6)
    assert (before == as_rows(start)).all()


class Counter(StatelessEnv):
    """Counts steps from a drawn number below 5 up to 9, where it terminates; nested, in arrays or tensors."""

    observation_space = gym.spaces.Dict(n=gym.spaces.Box(0, 20, (1,), np.float32))
    action_space = gym.spaces.Discrete(3)

    def __init__(self, device: Any = None) -> None:
        self.device = device

    def initial(self, count: int, rng: Any) -> tuple[Any, Any]:
        if self.device is None:
            n = rng.integers(0, 5, (count, 1)).astype(np.float32)
        else:
            n = torch.randint(0, 5, (count, 1), generator=rng).float()
        return {"n": n}, {"n": n}

    def step(self, state: Any, action: Any) -> Any:
        n = state["n"] + 1 + action[:, None]
        over = n[:, 0] >= 9
        return {"n": n}, {"n": n}, n[:, 0], over, over & False


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("mode", [SAME_STEP, DISABLED])
@pytest.mark.parametrize("kind", [SingleAgentEnvRunner, TensorEnvRunner])
def test_episodes_of_runners(device, mode, kind):
    runner = kind(
        env=lambda num_envs: Counter(device).as_vector(num_envs, max_episode_steps=5, autoreset_mode=mode),
        gym_env_vectorize_mode="vector_entry_point",
        num_envs=4,
        seed=0,
    )
    episodes = [*runner.sample(num_timesteps=100), *runner.sample(num_timesteps=60)]
    runner.stop()
    ended = [episode for episode in episodes if episode.is_done and episode.t_started == 0]
    assert {episode.is_terminated for episode in ended} == {True, False}
    for episode in ended:
        numbers = np.ravel(episode.get_observations()["n"])
        assert 0 <= numbers[0] < 5
        np.testing.assert_array_equal(np.diff(numbers), 1 + np.asarray(episode.get_actions()))
        np.testing.assert_array_equal(episode.get_rewards(), numbers[1:])
        assert (numbers[:-1] < 9).all() and episode.is_terminated == (numbers[-1] >= 9)
        assert episode.is_truncated == (len(episode) == 5 and not episode.is_terminated)
    starts = {float(np.ravel(episode.get_observations(0)["n"])[0]) for episode in ended}
    assert len(starts) > 2


def test_a_seed_gives_the_same_episodes():
    first, second, third = (Counter().as_vector(4) for _ in range(3))
    starts = [env.reset(seed=seed)[0]["n"].tolist() for env, seed in ((first, 1), (second, 1), (third, 2))]
    assert starts[0] == starts[1] != starts[2]
    again = first.reset()[0]["n"].tolist()
    assert again == second.reset()[0]["n"].tolist() != starts[0]


def test_states_go_in():
    env = Counter().as_vector(2)
    rows = {"n": np.array([[3.0], [7.0]])}
    obs, _ = env.reset(options={"state": rows, "obs": rows})
    obs, rewards, terminated, _, infos = env.step(np.array([0, 1]))
    assert rewards.tolist() == [4, 9] and terminated.tolist() == [False, True]
    assert infos["final_obs"]["n"].tolist() == [[4], [9]] and obs["n"][1] < 5
    env.state = rows
    assert env.step(np.array([1, 0]))[1].tolist() == [5, 8]


@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_single_environment(device):
    report = check_env(StatelessPendulum(device).as_env(max_episode_steps=20))
    assert not report.errors
    env = StatelessPendulum(device).as_env(max_episode_steps=3)
    obs, _ = env.reset(seed=3)
    assert isinstance(obs, np.ndarray) and env.observation_space.contains(obs)
    steps = [env.step(np.zeros(1, np.float32)) for _ in range(3)]
    assert [step[3] for step in steps] == [False, False, True] and isinstance(steps[0][1], float)
    config = PPOConfig().environment(lambda: StatelessPendulum(device).as_env(max_episode_steps=20))
    algo = config.training(train_batch_size=40, minibatch_size=40, num_epochs=1).build_algo()
    assert algo.train()["env_runners"]["episode_len_max"] == 20
    algo.stop()


class Dynamics(torch.nn.Module):
    """A known law in place of a learned one: the state moves by a third of the action."""

    def __init__(self) -> None:
        super().__init__()
        self.share = torch.nn.Parameter(torch.tensor(1 / 3))

    def forward(self, state: Any, action: Any) -> dict[str, Any]:
        state = state + self.share * action
        return {"state": state, "rewards": -state.square().sum(1), "terminateds": state.abs().amax(1) > 1}


BOX, PUSH = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32), gym.spaces.Box(-1.0, 1.0, (2,), np.float32)


def imagination(**settings: Any) -> LearnedEnv:
    def decode(state: Any) -> Any:
        return torch.cat([state, state.square()], 1)

    return LearnedEnv(Dynamics(), BOX, PUSH, lambda n, rng: torch.zeros(n, 2), decode, **settings)


def test_imagined_steps():
    env = imagination()
    state, obs = env.initial(3, None)
    state, obs, rewards, terminateds, truncateds = env.step(state, torch.tensor([[3.0, 0], [0, 1], [6, 0]]))
    torch.testing.assert_close(state, torch.tensor([[1.0, 0], [0, 1 / 3], [2, 0]]))
    torch.testing.assert_close(obs[:, 2:], state.square())
    assert terminateds.tolist() == [False, False, True] and not truncateds.any()
    assert not rewards.requires_grad
    with_gradients = imagination(gradients=True)
    with_gradients.step(torch.ones(2, 2), torch.ones(2, 2))[2].sum().backward()
    torch.testing.assert_close(with_gradients.model.share.grad, torch.tensor(-2 * 4 * (4 / 3)))


@pytest.mark.parametrize("kind", [SingleAgentEnvRunner, TensorEnvRunner])
def test_imagined_episodes_train(kind):
    config = PPOConfig().environment(lambda num_envs: imagination().as_vector(num_envs, max_episode_steps=6))
    config.env_runners(
        num_envs_per_env_runner=8, gym_env_vectorize_mode="vector_entry_point", env_runner_cls=kind
    ).training(train_batch_size=96, minibatch_size=48, num_epochs=1)
    algo = config.build_algo()
    results = algo.train()
    for episode in algo.env_runner.sample(num_episodes=8):
        states = np.cumsum(np.concatenate([np.zeros((1, 2)), np.clip(episode.get_actions(), -1, 1) / 3]), 0)
        np.testing.assert_allclose(episode.get_observations()[:, :2], states[: len(episode) + 1], atol=1e-5)
    algo.stop()
    assert results["env_runners"]["episode_len_max"] <= 6


def test_a_storage_of_imagined_steps():
    runner = TensorEnvRunner(
        env=lambda num_envs: imagination().as_vector(num_envs, max_episode_steps=6),
        gym_env_vectorize_mode="vector_entry_point",
        num_envs=5,
    )
    storage = RolloutStorage(num_steps=9, num_envs=5)
    runner.sample(storage)
    storage.compute_returns(runner.last_values())
    assert storage["obs"].shape == (9, 5, 4) and storage["truncateds"][5].any()
    runner.stop()


class Wrong(StatelessEnv):
    observation_space, action_space = BOX, PUSH

    def __init__(self, result: Any) -> None:
        self.result = result

    def initial(self, count: int, rng: Any) -> Any:
        return np.zeros((count, 4)), np.zeros((count, 4))

    def step(self, state: Any, action: Any) -> Any:
        return self.result


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, r"Wrong, step\(\)[\s\S]*five"),
        ((np.zeros((2, 4)),) * 4, "4 values"),
        ((*(np.zeros((2, 4)),) * 2, np.zeros(3), *(np.zeros(2, bool),) * 2), r"rewards with 2 rows[\s\S]*\(3,\)"),
        ((*(np.zeros((2, 4)),) * 2, np.zeros(2), True, np.zeros(2, bool)), r"terminateds with 2 rows[\s\S]*bool"),
    ],
)
def test_wrong_steps_are_named(result, message):
    env = Wrong(result).as_vector(2)
    env.reset()
    with pytest.raises(EnvironmentContractError, match=message):
        env.step(np.zeros((2, 2)))


def test_wrong_models_and_modes_are_named():
    env = LearnedEnv(torch.nn.Identity(), BOX, PUSH, lambda n, rng: torch.zeros(n, 4))
    env.model.forward = lambda state, action: {"state": state}
    with pytest.raises(EnvironmentContractError, match=r"Identity[\s\S]*return rewards too"):
        env.step(torch.zeros(1, 4), torch.zeros(1, 2))
    with pytest.raises(EnvironmentContractError, match="SAME_STEP or DISABLED"):
        StatelessVectorEnv(Counter(), 2, autoreset_mode=gym.vector.AutoresetMode.NEXT_STEP)


@pytest.mark.parametrize("kind", [SingleAgentEnvRunner, TensorEnvRunner])
@pytest.mark.parametrize("mode", ["sync", "vector_entry_point"])
def test_as_the_env_of_a_config_the_error_names_both_conversions(kind, mode):
    both = r"Counter\(\.\.\.\)\.as_vector\(num_envs[\s\S]*\.as_env\("
    config = PPOConfig().environment(Counter).env_runners(gym_env_vectorize_mode=mode)
    with pytest.raises(ConfigError, match=both):
        kind(config=config)
    with pytest.raises(ConfigError, match=both):
        PPOConfig().environment(Counter())


def test_tictactoe_by_all_lines():
    report = check_env(TicTacToe())
    assert not report.errors, str(report)
    rng = np.random.default_rng(0)
    ends: set[Any] = set()
    for _ in range(200):
        game = TicTacToe()
        observations, _ = game.reset()
        board, marks, over = [" "] * 9, "xo", False
        for turn in range(9):
            agent = marks[turn % 2]
            free = [i for i, mark in enumerate(board) if mark == " "]
            assert np.flatnonzero(observations[agent]["action_mask"]).tolist() == free
            own = [{agent: 1, " ": 0}.get(mark, -1) for mark in board]
            assert observations[agent]["observation"].tolist() == own
            square = int(rng.choice(free))
            board[square] = agent
            observations, rewards, terminateds, _, _ = game.step({agent: square})
            rows = [
                board[0:3],
                board[3:6],
                board[6:9],
                board[0::3],
                board[1::3],
                board[2::3],
                board[0::4],
                board[2:7:2],
            ]
            won, over = [agent] * 3 in rows, terminateds["__all__"]
            assert over == (won or " " not in board)
            if over:
                assert rewards == {agent: float(won), marks[1 - turn % 2]: -float(won)}
                ends.add(agent if won else "drawn")
                break
        assert over
    assert ends == {"x", "o", "drawn"}
    game.reset()
    game.step({"x": 4})
    with pytest.raises(RunnerArgumentError, match=r"agent 'o'[\s\S]*square 4"):
        game.step({"o": 4})


def test_words():
    env = SpokenWords()
    word, _ = env.reset(seed=0)
    total = 0.0
    for t in range(10):
        assert env.observation_space.contains(word)
        right = env.words.index(word)
        word, reward, terminated, _, _ = env.step(right if t % 2 else (right + 1) % 4)
        total += reward
        assert terminated == (t == 9)
    assert total == 5
