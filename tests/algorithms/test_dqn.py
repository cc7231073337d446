"""DQN's flags and R2D2, against loops in plain Python and torch."""

from __future__ import annotations

import copy
import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from fixture_cases import slow_but

from epibatch.algorithms import Algorithm, DQNConfig
from epibatch.core.errors import ConfigError
from epibatch.core.rl_module import DefaultQNetwork, RLModuleSpec

SPACES = {"observation_space": gym.spaces.Box(-1, 1, (3,), np.float32), "action_space": gym.spaces.Discrete(2, start=1)}
LSTM = {"fcnet_hiddens": [6], "use_lstm": True, "lstm_cell_size": 5}


def losses(batch, net, target, **training):
    """What the rule of a config makes of a minibatch."""
    config = DQNConfig().training(**training)
    return config.rule(config.settings.training).losses(batch, net, {"target": target}, {})


def networks(seed=0, **options):
    """A network and a target with other weights, none of them 0."""
    torch.manual_seed(seed)
    made = [DefaultQNetwork(**SPACES, model_config=options) for _ in range(2)]
    for net in made:
        for parameter in net.parameters():
            parameter.data = torch.randn(parameter.shape) * 0.5
    return made


def h(x):
    return math.copysign(math.sqrt(abs(x) + 1) - 1, x) + 1e-3 * x


def inverse_of_h(y):
    low, high = -1e7, 1e7
    for _ in range(200):  # h grows
        low, high = ((low + high) / 2, high) if h((low + high) / 2) < y else (low, (low + high) / 2)
    return low


def random_sequences(rng, steps, n, gamma):
    """Sequences of a recurrent module with their rows as lists; the last rows of some are padding."""
    rows, columns = [], {}
    for _ in range(4):
        length = int(rng.integers(1, steps + 1))
        after = int(rng.integers(0, n)) if length == steps else 0  # steps of the episode after the sequence
        obs = rng.normal(size=(length + after + 1, 3))
        counts = [min(n, length + after - t) for t in range(length)]
        ends = length + after if rng.random() < 0.5 else None  # the step at which it is terminated
        rows.append(
            {
                "obs": obs, "counts": counts, "actions": rng.integers(1, 3, length), "rewards": rng.normal(size=length),
                "terminated": [t + k == ends for t, k in enumerate(counts)], "weights": [rng.random() + 0.1] * length,
                "loss": [t >= 1 or rng.random() < 0.7 for t in range(length)],
            }
        )  # fmt: skip
    names = {
        "obs": lambda row: row["obs"][: len(row["counts"])],
        "new_obs": lambda row: [row["obs"][t + k] for t, k in enumerate(row["counts"])],
        "actions": lambda row: row["actions"],
        "rewards": lambda row: row["rewards"],
        "terminateds": lambda row: row["terminated"],
        "n_step": lambda row: row["counts"],
        "discounts": lambda row: [gamma**k for k in row["counts"]],
        "weights": lambda row: row["weights"],
        "loss_mask": lambda row: row["loss"],
    }
    for name, values in names.items():
        parts = [np.asarray(values(row)) for row in rows]
        padded = [np.concatenate([part, np.zeros((steps - len(part), *part.shape[1:]), part.dtype)]) for part in parts]
        column = np.stack(padded)
        columns[name] = torch.from_numpy(column.astype(np.float32) if column.dtype == np.float64 else column)
    columns["seq_lens"] = torch.tensor([len(row["counts"]) for row in rows])
    columns["state_in"] = {name: torch.randn(4, 5) for name in ("h", "c")}
    return columns, rows


def test_returns_are_rescaled_there_and_back_without_error():
    net = DefaultQNetwork(**SPACES, model_config={"fcnet_hiddens": [4], "dueling": False})
    parameters = dict(net.named_parameters())
    rows = torch.zeros(1, 3)
    batch = {"obs": rows, "new_obs": rows, "actions": torch.ones(1), "rewards": torch.zeros(1),
             "terminateds": torch.zeros(1, dtype=torch.bool), "discounts": torch.ones(1)}  # fmt: skip
    for value in (0.0, 1e-3, -0.02, 0.5, 3.0, -30.0):
        for name, parameter in parameters.items():
            parameter.data = torch.full_like(parameter, value if name.endswith("bias") and len(parameter) == 2 else 0.0)
        found = losses(batch, net, net, value_rescaling=True).rows["td_error"]
        assert abs(float(found)) < 4e-7 * max(1, abs(value)), "h of its inverse is nothing else"


@pytest.mark.parametrize("double_q", [True, False])
@pytest.mark.parametrize("rescaling", [True, False])
@pytest.mark.parametrize("seed", slow_but(range(6), range(25)))
def test_losses_of_sequences_are_those_of_stepping(seed, rescaling, double_q):
    rng = np.random.default_rng(seed)
    n, gamma = int(rng.integers(1, 4)), 0.9
    net, target = networks(seed, **LSTM, dueling=bool(seed % 2))
    batch, rows = random_sequences(rng, steps=5, n=n, gamma=gamma)

    def stepped(module, b):
        state = {name: leaf[b : b + 1] for name, leaf in batch["state_in"].items()}
        found = []
        for obs in rows[b]["obs"]:
            now = {"obs": torch.tensor(obs, dtype=torch.float32)[None, None], "state_in": state}
            found.append(module.compute_q_values(now)[0, 0, 0].tolist())
            state = module.forward_train(now)["state_out"]
        return found

    total, errors = [], []
    for b, row in enumerate(rows):
        own, other = stepped(net, b), stepped(target, b)
        errors.append([math.nan] * 5)
        for t, k in enumerate(row["counts"]):
            best = max(range(2), key=(own if double_q else other)[t + k].__getitem__)
            value = other[t + k][best]
            value = inverse_of_h(value) if rescaling else value
            goal = row["rewards"][t] + gamma**k * (not row["terminated"][t]) * value
            goal = h(goal) if rescaling else goal
            error = own[t][row["actions"][t] - 1] - goal
            if row["loss"][t]:
                errors[-1][t] = error
                total.append(row["weights"][t] * (error**2 / 2 if abs(error) < 1 else abs(error) - 0.5))
    if not total:
        return
    made = losses(batch, net, target, value_rescaling=rescaling, double_q=double_q)
    np.testing.assert_allclose(made.losses["total"].item(), np.mean(total), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(made.rows["td_error"], errors, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("rescaling", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_losses_of_distributions_are_those_of_the_paper(seed, rescaling):
    """Algorithm 1 of Bellemare et al. (2017)."""
    atoms, low, high, gamma = 9, -2.0, 3.0, 0.8
    net, target = networks(seed, fcnet_hiddens=[6], num_atoms=atoms, v_min=low, v_max=high)
    rng = np.random.default_rng(seed)
    batch = {
        "obs": torch.randn(16, 3), "new_obs": torch.randn(16, 3), "rewards": torch.randn(16) * 2,
        "actions": torch.from_numpy(rng.integers(1, 3, 16)), "terminateds": torch.from_numpy(rng.random(16) < 0.3),
        "discounts": torch.full((16,), gamma),
    }  # fmt: skip
    batch["rewards"][0], batch["terminateds"][0] = low, True  # exactly on an atom
    z, gap, expected = np.linspace(low, high, atoms), (high - low) / (atoms - 1), []
    for i in range(16):
        q = net.compute_q_values({"obs": batch["new_obs"]})[0, i]
        shares = target.compute_q_distribution({"obs": batch["new_obs"]})[0, i, int(q.argmax())].softmax(-1).tolist()
        m = [0.0] * atoms
        for value, share in zip(z.tolist(), shares):
            value = inverse_of_h(value) if rescaling else value
            goal = batch["rewards"][i].item() + gamma * (not batch["terminateds"][i].item()) * value
            goal = min(max(h(goal) if rescaling else goal, low), high)
            at = (goal - low) / gap
            below = min(int(at), atoms - 2)
            m[below] += share * (below + 1 - at)
            m[below + 1] += share * (at - below)
        logp = net.compute_q_distribution({"obs": batch["obs"]})[0, i, int(batch["actions"][i]) - 1].log_softmax(-1)
        expected.append(-sum(a * b for a, b in zip(m, logp.tolist())))
    made = losses(batch, net, target, value_rescaling=rescaling)
    np.testing.assert_allclose(made.rows["td_error"], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(made.losses["total"].item(), np.mean(expected), rtol=1e-5)


def test_noise_is_that_of_the_paper_while_exploring_and_absent_otherwise():
    net, _ = networks(0, fcnet_hiddens=[], head_fcnet_hiddens=[], noisy=True, sigma0=0.5)
    quiet = DefaultQNetwork(**SPACES, model_config={"fcnet_hiddens": [], "dueling": False})
    same = {name: value for name, value in net.state_dict().items() if not name.endswith("_scale")}
    quiet.load_state_dict(same)
    obs = {"obs": torch.tensor([[0.5, -0.2, 0.9]])}
    expected = quiet.forward_inference(obs)["action_dist_inputs"]
    torch.testing.assert_close(net.forward_inference(obs)["action_dist_inputs"], expected)
    draws = torch.stack([net.forward_exploration(obs)["action_dist_inputs"][0] for _ in range(1500)])
    scales = dict(net.named_parameters())
    weight, bias = (scales[f"q.advantages.0.{name}_scale"].detach() for name in ("weight", "bias"))
    # the variance of f(x) = sign(x) sqrt(|x|) is E|x|; noise of a weight is f(in) f(out), of a bias f(out)
    share = math.sqrt(2 / math.pi)
    of_inputs = share * (weight * obs["obs"]).square().sum(-1)
    variance = share * (of_inputs + bias.square())
    torch.testing.assert_close(draws.mean(0), expected[0], rtol=0, atol=0.15)
    torch.testing.assert_close(draws.var(0), variance, rtol=0.2, atol=0)
    net.compute_q_values(obs, torch.tensor([1])).sum().backward()
    assert all(scales[f"q.advantages.0.{name}_scale"].grad.any() for name in ("weight", "bias"))


def test_noise_begins_with_the_scale_of_the_paper():
    net = DefaultQNetwork(**SPACES, model_config={"fcnet_hiddens": [16], "noisy": True, "sigma0": 0.4, "dueling": True})
    scales = [value for name, value in net.named_parameters() if name.endswith("_scale")]
    assert len(scales) == 4
    assert all((value == 0.4 / math.sqrt(16)).all() for value in scales)


# ----------------------------------------------------------------------------------------- whole runs

FLAGS = {
    "none": ({}, {}),
    "distributions": ({"num_atoms": 5, "noisy": True, "n_step": 2}, {}),
    "r2d2": ({"burn_in_len": 2, "n_step": 3, "value_rescaling": True}, {"use_lstm": True, "max_seq_len": 8}),
    "gru": ({"num_atoms": 5}, {"use_gru": True, "max_seq_len": 6}),
}
BUFFERS = ("EpisodeReplayBuffer", "PrioritizedEpisodeReplayBuffer")


def small(name, buffer=BUFFERS[0], **more):
    training, model = FLAGS[name]
    config = DQNConfig().environment("CartPole-v1").env_runners(num_envs_per_env_runner=2, rollout_fragment_length=4)
    amounts = {"num_steps_sampled_before_learning_starts": 32, "train_batch_size": 24, "training_intensity": 1.5}
    config.training(**amounts, replay_buffer_config={"type": buffer, "capacity": 500}, **training, **more)
    return config.rl_module(model_config={"fcnet_hiddens": [8], "lstm_cell_size": 6, **model}).debugging(seed=4)


@pytest.fixture(autouse=True)
def short_iterations(monkeypatch):
    monkeypatch.setattr(DQNConfig, "min_env_steps_per_iteration", 64)


@pytest.mark.parametrize(("name", "buffer"), [("distributions", 0), ("r2d2", 1), ("gru", 0)])
def test_a_restored_run_goes_on_equal_to_the_bit(name, buffer, tmp_path):
    algo = small(name, BUFFERS[buffer], store_buffer_in_checkpoints=True).build_algo()
    algo.train()
    algo.save_to_path(tmp_path, end_episodes=True)
    result, state = algo.train()["learners"]["default_policy"], algo.get_state()["learner"]
    algo.stop()
    resumed = Algorithm.from_checkpoint(tmp_path)
    assert resumed.train()["learners"]["default_policy"] == result
    again = resumed.get_state()["learner"]
    for part in ("module", "optimizers", "rules"):
        torch.testing.assert_close(state[part], again[part], rtol=0, atol=0)
    resumed.stop()


def test_the_intensity_is_steps_learned_for_each_step_sampled():
    algo = small("r2d2").build_algo()
    learned, first = [], None
    for _ in range(8):
        results = algo.train()
        first = results["num_env_steps_sampled_lifetime"] if first is None else first
        learned.append(results["learners"]["__all_modules__"]["num_gradient_steps"])
    sampled = results["num_env_steps_sampled_lifetime"] - first
    algo.stop()
    assert (learned[-1] - learned[0]) * 24 == pytest.approx(1.5 * sampled, rel=0.1)


def test_settings_of_the_network_reach_it():
    config = small("distributions").training(v_min=0.0, v_max=4.0)
    algo = config.rl_module(model_config={"sigma0": 0.1}).build_algo()
    module = algo.get_module()
    assert module.atoms.tolist() == [0, 1, 2, 3, 4]
    assert {name.rpartition("_")[2] for name in module.state_dict() if "advantages" in name} > {"scale"}
    (width,) = {
        len(leaf[0]) for name, leaf in module.state_dict().items() if name.endswith("advantages.0.weight_scale")
    }
    assert module.state_dict()["q.advantages.0.weight_scale"][0, 0].item() == pytest.approx(0.1 / math.sqrt(width))
    algo.stop()


def test_settings_of_the_network_reach_specs_without_a_class():
    spec = RLModuleSpec(model_config={"fcnet_hiddens": [8], "v_max": 7.0})
    config = small("distributions", v_max=5.0).rl_module(rl_module_spec=spec)
    found = config.get_rl_module_spec(spaces={"default_policy": tuple(SPACES.values())}).model_config
    assert (found["num_atoms"], found["noisy"], found["fcnet_hiddens"], found["v_max"]) == (5, True, [8], 7.0)


def test_steps_to_burn_in_need_a_recurrent_network():
    with pytest.raises(ConfigError, match="burn_in"):
        small("none", burn_in_len=3).build_algo()


def test_columns_of_other_steps_are_refused():
    config = small("r2d2").rl_module(model_config={"use_prev_action": True})
    with pytest.raises(ConfigError, match="also reads prev_actions"):
        config.build_algo()


def test_targets_are_left_alone_by_losses():
    net, target = networks(1, **LSTM)
    before = copy.deepcopy(target.state_dict())
    batch, _ = random_sequences(np.random.default_rng(0), 5, 2, 0.9)
    losses(batch, net, target).losses["total"].backward()
    assert all(parameter.grad is None for parameter in target.parameters())
    torch.testing.assert_close(target.state_dict(), before, rtol=0, atol=0)
