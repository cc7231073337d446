"""The default actor-critics with an LSTM and with a GRU."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.algorithms import Algorithm, PPOConfig
from epibatch.connectors._engine.modules import max_seq_len
from epibatch.core.errors import ColumnError, ConfigError, RunnerError
from epibatch.core.rl_module import (
    DefaultGRUActorCritic,
    DefaultLSTMActorCritic,
    DefaultModelConfig,
    default_module_spec,
)

BOX, CHOICE = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(3)
CONFIG = {"fcnet_hiddens": [16], "lstm_cell_size": 8}
STATES = {"lstm": ("h", "c"), "gru": ("h",)}
kind = "lstm"


@pytest.fixture(autouse=True, params=["lstm", "gru"])
def each_kind(request):
    """Run every test with both."""
    global kind
    kind = request.param


def module_of(observation_space=BOX, action_space=CHOICE, model_config=CONFIG, **options):
    torch.manual_seed(0)
    cls = {"lstm": DefaultLSTMActorCritic, "gru": DefaultGRUActorCritic}[kind]
    return cls(observation_space=observation_space, action_space=action_space, model_config=model_config, **options)


def batch_of(rows, length, space=BOX, seed=0):
    generator = torch.Generator().manual_seed(seed)
    space.seed(seed)
    obs = np.stack([np.stack([space.sample() for _ in range(length)]) for _ in range(rows)])
    state = {name: torch.randn(rows, 8, generator=generator) for name in STATES[kind]}
    return {"obs": torch.from_numpy(obs), "state_in": state}


def by_hand(module, x, state):
    """The layer's equations, one timestep at a time, in float64: its outputs and its last state."""
    w_ih, w_hh, b_ih, b_hh = (p.detach().double() for p in getattr(module, kind).parameters())
    h, c = state["h"].double(), state.get("c", torch.zeros(())).double()
    outputs = []
    for t in range(x.shape[1]):
        if kind == "gru":
            (r, z, n), (own_r, own_z, own_n) = (x[:, t] @ w_ih.T + b_ih).chunk(3, -1), (h @ w_hh.T + b_hh).chunk(3, -1)
            update = (z + own_z).sigmoid()
            h = (1 - update) * (n + (r + own_r).sigmoid() * own_n).tanh() + update * h
            outputs.append(h)
            continue
        i, f, g, o = (x[:, t] @ w_ih.T + b_ih + h @ w_hh.T + b_hh).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        outputs.append(h)
    return torch.stack(outputs, 1), {name: {"h": h, "c": c}[name].float() for name in STATES[kind]}


@pytest.mark.parametrize("space", [BOX, gym.spaces.Box(0, 9, (2, 3), np.uint8), gym.spaces.Discrete(5)], ids=str)
@pytest.mark.parametrize(("action_space", "width"), [(CHOICE, 3), (gym.spaces.Box(-1, 1, (2,)), 4)], ids=str)
@pytest.mark.parametrize("length", [1, 6])
def test_shapes(space, action_space, width, length):
    module = module_of(space, action_space)
    batch = batch_of(5, length, space)
    for forward in (module.forward_inference, module.forward_exploration, module.forward_train):
        out = forward(batch)
        assert out["action_dist_inputs"].shape == (5, length, width)
        assert {name: tuple(leaf.shape) for name, leaf in out["state_out"].items()} == dict.fromkeys(
            STATES[kind], (5, 8)
        )
    assert module.compute_values(batch).shape == (5, length)


def test_initial_state_is_unbatched_zeros():
    module = module_of()
    assert module.is_stateful()
    initial = {name: leaf.tolist() for name, leaf in module.get_initial_state().items()}
    assert initial == dict.fromkeys(STATES[kind], [0.0] * 8)


@pytest.mark.parametrize("length", [1, 6])
@pytest.mark.parametrize("situation", ["exploration", "train"])
def test_values_follow_the_equations(length, situation):
    module = module_of()
    batch = batch_of(3, length)
    out = getattr(module, f"forward_{situation}")(batch)
    with torch.no_grad():
        x = module.encoder(batch["obs"]).double()
        features, state = by_hand(module, x, batch["state_in"])
        expected = module.pi(features.float())
    torch.testing.assert_close(out["action_dist_inputs"].detach(), expected)
    torch.testing.assert_close({name: leaf.detach() for name, leaf in out["state_out"].items()}, state)


def test_stepping_equals_running_the_whole_sequence():
    module = module_of()
    batch = batch_of(3, 7)
    whole = module.forward_exploration(batch)
    state, parts = batch["state_in"], []
    for t in range(7):
        out = module.forward_exploration({"obs": batch["obs"][:, t : t + 1], "state_in": state})
        state = out["state_out"]
        parts.append(out["action_dist_inputs"])
    torch.testing.assert_close(torch.cat(parts, 1), whole["action_dist_inputs"])
    torch.testing.assert_close(state, whole["state_out"])


def test_padding_on_the_right_changes_nothing_before_it():
    module = module_of()
    batch = batch_of(2, 6)
    padded = {**batch, "obs": torch.cat([batch["obs"], torch.zeros(2, 4, 4)], 1)}
    torch.testing.assert_close(module.compute_values(padded)[:, :6], module.compute_values(batch))


def test_embeddings_are_reused():
    module = module_of()
    batch = batch_of(2, 5)
    out = module.forward_train(batch)
    assert out["embeddings"].shape == (2, 5, 8)
    torch.testing.assert_close(module.compute_values(batch, out["embeddings"]), module.compute_values(batch))
    module.compute_values(batch, out["embeddings"]).sum().backward()
    assert getattr(module, kind).weight_hh_l0.grad is not None
    assert "embeddings" not in module.forward_exploration(batch)


def test_acting_computes_the_policy_only():
    module = module_of()
    module.vf.register_forward_hook(lambda *_: pytest.fail("the value function was computed"))
    module.forward_exploration(batch_of(1, 1))


def test_modules_for_acting_only():
    learner, actor = module_of(), module_of(inference_only=True)
    actor.set_state(learner.get_state())
    with pytest.raises(RunnerError, match="inference_only"):
        actor.compute_values(batch_of(1, 1))


@pytest.mark.parametrize(
    "batch",
    [{"obs": torch.zeros(3, 2, 4)}, {"obs": torch.zeros(3, 4), "state_in": batch_of(3, 1)["state_in"]}],
)
def test_batches_that_are_no_sequences(batch):
    with pytest.raises(ColumnError, match="AddStatesFromEpisodesToBatch"):
        module_of().forward_train(batch)


def test_it_remembers():
    """The first observation of a sequence decides on the action at its end."""
    module = module_of(gym.spaces.Discrete(3), CHOICE)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    obs = torch.tensor([[0, 1, 1, 1], [2, 1, 1, 1]])
    batch = {"obs": obs, "state_in": {name: torch.zeros(2, 8) for name in STATES[kind]}}
    for _ in range(300):
        logits = module.forward_train(batch)["action_dist_inputs"][:, -1]
        loss = torch.nn.functional.cross_entropy(logits, obs[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert module.forward_inference(batch)["action_dist_inputs"][:, -1].argmax(-1).tolist() == [0, 2]


def test_images_below_the_layer():
    """Sequences of images give what each step gives by itself, with the state carried by hand."""
    space = gym.spaces.Dict(a=gym.spaces.Box(0, 255, (8, 8, 1), np.uint8), b=BOX)
    module = module_of(space)
    rows, length = 2, 4
    obs = {
        "a": torch.randint(0, 256, (rows, length, 8, 8, 1), dtype=torch.uint8),
        "b": torch.rand(rows, length, 4),
    }
    state = {name: torch.zeros(rows, 8) for name in STATES[kind]}
    whole = module.forward_train({"obs": obs, "state_in": state})
    for t in range(length):
        step = {"obs": {key: leaf[:, t : t + 1] for key, leaf in obs.items()}, "state_in": state}
        out = module.forward_exploration(step)
        torch.testing.assert_close(out["action_dist_inputs"][:, 0], whole["action_dist_inputs"][:, t])
        state = out["state_out"]
    torch.testing.assert_close(state, whole["state_out"])
    with pytest.raises(ColumnError, match=r"\(2, 8, 8, 1\)"):
        module.forward_train({"obs": {key: leaf[:, 0] for key, leaf in obs.items()}, "state_in": state})


@pytest.mark.parametrize("form", [None, dict, DefaultModelConfig])
def test_sequences_have_20_steps_unless_the_config_says_otherwise(form):
    module = module_of(model_config=form and form(**{f"use_{kind}": True}))
    assert max_seq_len(module) == max_seq_len(module.as_multi_rl_module()) == 20
    assert max_seq_len(module_of(model_config={"max_seq_len": 7})) == 7


def test_the_default_network_is_the_one_that_is_asked_for():
    module = default_module_spec(BOX, CHOICE, {f"use_{kind}": True, "lstm_cell_size": 8}).build()
    assert type(module) is type(module_of()) and set(module.get_initial_state()) == set(STATES[kind])
    with pytest.raises(ConfigError, match="use_gru"):
        DefaultModelConfig(use_lstm=True, use_gru=True)


@pytest.mark.parametrize("previous", [False, True])
def test_it_learns_acts_and_is_restored(tmp_path, previous):
    options = {
        **CONFIG,
        f"use_{kind}": True,
        "max_seq_len": 5,
        "use_prev_action": previous,
        "use_prev_reward": previous,
    }
    config = PPOConfig().environment("CartPole-v1").rl_module(model_config=options).debugging(seed=0)
    config.training(train_batch_size=60, minibatch_size=30, num_epochs=2).debugging(check_first_update="error")
    algo = config.build_algo()
    assert np.isfinite(algo.train()["learners"]["default_policy"]["total_loss"])
    again = Algorithm.from_checkpoint(algo.save_to_path(tmp_path / "saved"))
    obs = np.full(4, 0.1, np.float32)
    (action, state), (same, own) = algo.act(obs), again.act(obs)
    assert action == same and algo.act(obs, state, reward=1.0)[0] == again.act(obs, own, reward=1.0)[0]
    algo.stop()
    again.stop()


def test_resets_equal_sequences_of_their_own():
    module, batch = module_of(), batch_of(2, 6)
    again = {name: torch.randn(2, 2, 8, generator=torch.Generator().manual_seed(7)) for name in STATES[kind]}
    resets = torch.zeros(2, 6, dtype=torch.bool)
    resets[0, 2] = resets[0, 5] = resets[1, 3] = True
    found = module.forward_train({**batch, "resets": resets, "reset_states": again})
    values = module.compute_values({**batch, "resets": resets, "reset_states": again})
    for row, start, stop, number in ((0, 0, 2, 0), (0, 2, 5, 1), (0, 5, 6, 2), (1, 0, 3, 0), (1, 3, 6, 1)):
        own = {
            name: (leaf[row] if not number else again[name][row, number - 1])[None]
            for name, leaf in batch["state_in"].items()
        }
        part = {"obs": batch["obs"][row : row + 1, start:stop], "state_in": own}
        alone = module.forward_train(part)
        torch.testing.assert_close(found["action_dist_inputs"][row, start:stop], alone["action_dist_inputs"][0])
        torch.testing.assert_close(values[row, start:stop], module.compute_values(part)[0])
        if stop == 6:
            for name in STATES[kind]:
                torch.testing.assert_close(found["state_out"][name][row], alone["state_out"][name][0])
