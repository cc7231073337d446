"""The default LSTM actor-critic."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.connectors._engine.modules import max_seq_len
from epibatch.core.errors import ColumnError, RunnerError
from epibatch.core.rl_module import DefaultLSTMActorCritic, DefaultModelConfig

BOX, CHOICE = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(3)
CONFIG = {"fcnet_hiddens": [16], "lstm_cell_size": 8, "use_lstm": True}


def module_of(observation_space=BOX, action_space=CHOICE, **options):
    torch.manual_seed(0)
    return DefaultLSTMActorCritic(
        observation_space=observation_space, action_space=action_space, model_config=CONFIG, **options
    )


def batch_of(rows, length, space=BOX, seed=0):
    generator = torch.Generator().manual_seed(seed)
    space.seed(seed)
    obs = np.stack([np.stack([space.sample() for _ in range(length)]) for _ in range(rows)])
    state = {name: torch.randn(rows, 8, generator=generator) for name in ("h", "c")}
    return {"obs": torch.from_numpy(obs), "state_in": state}


def lstm_by_hand(module, x, h, c):
    """The LSTM's equations, one timestep at a time, in float64."""
    w_ih, w_hh, b_ih, b_hh = (p.detach().double() for p in module.lstm.parameters())
    outputs = []
    for t in range(x.shape[1]):
        i, f, g, o = (x[:, t] @ w_ih.T + b_ih + h @ w_hh.T + b_hh).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        outputs.append(h)
    return torch.stack(outputs, 1), h, c


@pytest.mark.parametrize("space", [BOX, gym.spaces.Box(0, 9, (2, 3), np.uint8), gym.spaces.Discrete(5)], ids=str)
@pytest.mark.parametrize(("action_space", "width"), [(CHOICE, 3), (gym.spaces.Box(-1, 1, (2,)), 4)], ids=str)
@pytest.mark.parametrize("length", [1, 6])
def test_shapes(space, action_space, width, length):
    module = module_of(space, action_space)
    batch = batch_of(5, length, space)
    for forward in (module.forward_inference, module.forward_exploration, module.forward_train):
        out = forward(batch)
        assert out["action_dist_inputs"].shape == (5, length, width)
        assert {name: tuple(leaf.shape) for name, leaf in out["state_out"].items()} == {"h": (5, 8), "c": (5, 8)}
    assert module.compute_values(batch).shape == (5, length)


def test_initial_state_is_unbatched_zeros():
    module = module_of()
    assert module.is_stateful()
    assert {name: leaf.tolist() for name, leaf in module.get_initial_state().items()} == {
        "h": [0.0] * 8,
        "c": [0.0] * 8,
    }


@pytest.mark.parametrize("length", [1, 6])
@pytest.mark.parametrize("situation", ["exploration", "train"])
def test_values_follow_the_equations(length, situation):
    module = module_of()
    batch = batch_of(3, length)
    out = getattr(module, f"forward_{situation}")(batch)
    with torch.no_grad():
        x = module.encoder(batch["obs"]).double()
        features, h, c = lstm_by_hand(module, x, batch["state_in"]["h"].double(), batch["state_in"]["c"].double())
        expected = module.pi(features.float())
    torch.testing.assert_close(out["action_dist_inputs"].detach(), expected)
    torch.testing.assert_close(out["state_out"]["h"].detach(), h.float())
    torch.testing.assert_close(out["state_out"]["c"].detach(), c.float())


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
    assert module.lstm.weight_hh_l0.grad is not None
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
    optimizer = torch.optim.Adam(module.parameters(), lr=0.02)
    obs = torch.tensor([[0, 1, 1, 1], [2, 1, 1, 1]])
    batch = {"obs": obs, "state_in": {"h": torch.zeros(2, 8), "c": torch.zeros(2, 8)}}
    for _ in range(80):
        logits = module.forward_train(batch)["action_dist_inputs"][:, -1]
        loss = torch.nn.functional.cross_entropy(logits, obs[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert module.forward_inference(batch)["action_dist_inputs"][:, -1].argmax(-1).tolist() == [0, 2]


def test_images_below_the_lstm():
    """Sequences of images give what each step gives by itself, with the state carried by hand."""
    space = gym.spaces.Dict(a=gym.spaces.Box(0, 255, (8, 8, 1), np.uint8), b=BOX)
    module = module_of(space)
    rows, length = 2, 4
    obs = {
        "a": torch.randint(0, 256, (rows, length, 8, 8, 1), dtype=torch.uint8),
        "b": torch.rand(rows, length, 4),
    }
    state = {name: torch.zeros(rows, 8) for name in ("h", "c")}
    whole = module.forward_train({"obs": obs, "state_in": state})
    for t in range(length):
        step = {"obs": {key: leaf[:, t : t + 1] for key, leaf in obs.items()}, "state_in": state}
        out = module.forward_exploration(step)
        torch.testing.assert_close(out["action_dist_inputs"][:, 0], whole["action_dist_inputs"][:, t])
        state = out["state_out"]
    torch.testing.assert_close(state, whole["state_out"])
    with pytest.raises(ColumnError, match=r"\(2, 8, 8, 1\)"):
        module.forward_train({"obs": {key: leaf[:, 0] for key, leaf in obs.items()}, "state_in": state})


@pytest.mark.parametrize("model_config", [None, {"use_lstm": True}, DefaultModelConfig(use_lstm=True)])
def test_sequences_have_20_steps_unless_the_config_says_otherwise(model_config):
    module = DefaultLSTMActorCritic(observation_space=BOX, action_space=CHOICE, model_config=model_config)
    assert max_seq_len(module) == max_seq_len(module.as_multi_rl_module()) == 20
    shorter = {"use_lstm": True, "max_seq_len": 7}
    assert max_seq_len(DefaultLSTMActorCritic(observation_space=BOX, action_space=CHOICE, model_config=shorter)) == 7


def test_resets_equal_sequences_of_their_own():
    module, batch = module_of(), batch_of(2, 6)
    again = {name: torch.randn(2, 2, 8, generator=torch.Generator().manual_seed(7)) for name in ("h", "c")}
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
            for name in ("h", "c"):
                torch.testing.assert_close(found["state_out"][name][row], alone["state_out"][name][0])
