"""The default actor-critics: MLPs, and those with an LSTM or a GRU."""

from __future__ import annotations

import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_map

from epibatch.core.distributions import Categorical, DiagGaussian, SquashedGaussian
from epibatch.core.errors import ColumnError, ConfigError, RunnerError, SpaceError
from epibatch.core.rl_module import (
    DefaultActorCritic,
    DefaultGRUActorCritic,
    DefaultLSTMActorCritic,
    DefaultModelConfig,
    default_module_spec,
)
from epibatch.core.spaces import batch

Box, Dict, Discrete = gym.spaces.Box, gym.spaces.Dict, gym.spaces.Discrete
BOX, CHOICE = Box(-1, 1, (4,)), Discrete(3)
SCREEN = Dict(speed=Box(-1, 1, (2,)), screen=Box(0, 255, (10, 10, 3), np.uint8), gear=Discrete(3))
CLASSES = {"mlp": DefaultActorCritic, "lstm": DefaultLSTMActorCritic, "gru": DefaultGRUActorCritic}
STATES = {"mlp": (), "lstm": ("h", "c"), "gru": ("h",)}
OPTIONS = {"fcnet_hiddens": [16], "lstm_cell_size": 8}

each_kind = pytest.mark.parametrize("kind", CLASSES)
each_recurrent = pytest.mark.parametrize("kind", ["lstm", "gru"])


def module_of(kind="mlp", observation_space=BOX, action_space=CHOICE, *, model_config=None, **options):
    torch.manual_seed(0)
    return CLASSES[kind](
        observation_space=observation_space,
        action_space=action_space,
        model_config={**OPTIONS, **(model_config or {})},
        **options,
    )


def batch_of(kind="mlp", space=BOX, rows=5, length=6):
    """Rows of samples; of recurrent modules sequences, which start from random states."""
    space.seed(0)
    lead = (rows,) if kind == "mlp" else (rows, length)
    flat = tree_map(torch.as_tensor, batch([space.sample() for _ in range(int(np.prod(lead)))]))
    reshaped = tree_map(lambda leaf: leaf.reshape(*lead, *leaf.shape[1:]), flat)
    generator = torch.Generator().manual_seed(0)
    state = {name: torch.randn(rows, 8, generator=generator) for name in STATES[kind]}
    return {"obs": reshaped, **({"state_in": state} if state else {})}


@each_kind
@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("space", [BOX, Box(0, 255, (4, 3, 1), np.uint8), Discrete(6), SCREEN], ids=str)
@pytest.mark.parametrize(("action_space", "width"), [(CHOICE, 3), (Box(-1, 1, (2,)), 4)], ids=str)
def test_acting_and_training_agree_and_embeddings_are_reused(kind, space, action_space, width, share):
    config = {"vf_share_layers": share, "head_fcnet_hiddens": [4]}
    module, columns = module_of(kind, space, action_space, model_config=config), batch_of(kind, space)
    training = module.forward_train(columns)
    lead = (5,) if kind == "mlp" else (5, 6)
    for forward in (module.forward_inference, module.forward_exploration):
        acting = forward(columns)
        assert acting["action_dist_inputs"].shape == (*lead, width)
        assert not acting["action_dist_inputs"].requires_grad
        assert set(acting) == {"action_dist_inputs", *(["state_out"] if STATES[kind] else [])}
        torch.testing.assert_close(acting["action_dist_inputs"], training["action_dist_inputs"].detach())
        assert {name: leaf.shape for name, leaf in acting.get("state_out", {}).items()} == dict.fromkeys(
            STATES[kind], (5, 8)
        )
    assert ("embeddings" in training) is (share or kind != "mlp")
    values = module.compute_values(columns, embeddings=training.get("embeddings"))
    assert values.shape == lead
    torch.testing.assert_close(values, module.compute_values(columns))
    values.sum().backward()
    touched = {name.split(".")[0] for name, p in module.named_parameters() if p.grad is not None and p.grad.any()}
    own = {"vf", "vf_images"} if kind == "mlp" and not share else {"vf", "encoder", "images", kind}
    missing = {"images", "vf_images"} if space is not SCREEN else set()
    assert touched == own - missing - {"mlp"}


@each_kind
def test_acting_computes_the_policy_only_and_begins_almost_uniform(kind):
    module = module_of(kind)
    module.vf.register_forward_hook(lambda *_: pytest.fail("the value function was computed"))
    module.forward_inference(batch_of(kind))
    out = module.forward_exploration(batch_of(kind))["action_dist_inputs"]
    assert Categorical.from_logits(out).entropy().min() > 0.999 * np.log(3)


@each_kind
def test_modules_for_acting_only(kind):
    learner, actor = module_of(kind, SCREEN), module_of(kind, SCREEN, inference_only=True)
    assert not any(name.startswith("vf") for name in learner.get_state(inference_only=True))
    for state in (learner.get_state(), learner.get_state(inference_only=True)):
        actor.set_state(state)
    columns = batch_of(kind, SCREEN)
    torch.testing.assert_close(actor.forward_inference(columns), learner.forward_inference(columns))
    with pytest.raises(RunnerError, match="inference_only"):
        actor.compute_values(columns)


@each_kind
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies_act_alike(kind, copied):
    module = module_of(kind, SCREEN, Dict(a=CHOICE, b=gym.spaces.MultiDiscrete([2, 3])))
    distribution = module.get_exploration_action_dist_cls()
    assert module.get_exploration_action_dist_cls() is distribution
    other, columns = copied(module), batch_of(kind, SCREEN)
    torch.testing.assert_close(other.forward_inference(columns), module.forward_inference(columns))
    inputs = module.forward_inference(columns)["action_dist_inputs"]
    theirs = other.get_exploration_action_dist_cls().from_logits(inputs)
    assert theirs.logp(distribution.from_logits(inputs).sample()).shape == inputs.shape[:-1]


@each_kind
def test_squashed_actions_are_chosen_by_an_option(kind):
    box = Box(-2, 4, (2,))
    plain, squashed = (module_of(kind, BOX, box, model_config={"squash_actions": on}) for on in (False, True))
    assert plain.get_train_action_dist_cls() is DiagGaussian
    assert squashed.get_train_action_dist_cls() is SquashedGaussian


# ------------------------------------------------------------------------------------- recurrent ones


def by_hand(kind, module, x, state):
    """The layer's equations, one timestep at a time, in float64: its outputs and its last state."""
    w_ih, w_hh, b_ih, b_hh = (p.detach().double() for p in getattr(module, kind).parameters())
    h, c = state["h"].double(), state.get("c", torch.zeros(())).double()
    outputs = []
    for t in range(x.shape[1]):
        if kind == "gru":
            (r, z, n), (own_r, own_z, own_n) = (x[:, t] @ w_ih.T + b_ih).chunk(3, -1), (h @ w_hh.T + b_hh).chunk(3, -1)
            update = (z + own_z).sigmoid()
            h = (1 - update) * (n + (r + own_r).sigmoid() * own_n).tanh() + update * h
        else:
            i, f, g, o = (x[:, t] @ w_ih.T + b_ih + h @ w_hh.T + b_hh).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        outputs.append(h)
    return torch.stack(outputs, 1), {name: {"h": h, "c": c}[name].float() for name in STATES[kind]}


@each_recurrent
@pytest.mark.parametrize("length", [1, 6])
def test_values_follow_the_equations(kind, length):
    module, columns = module_of(kind), batch_of(kind, length=length)
    out = module.forward_exploration(columns)
    with torch.no_grad():
        x = module.encoder(columns["obs"]).double()
        features, state = by_hand(kind, module, x, columns["state_in"])
        expected = module.pi(features.float())
    torch.testing.assert_close(out["action_dist_inputs"], expected)
    torch.testing.assert_close(out["state_out"], state)
    initial = {name: leaf.tolist() for name, leaf in module.get_initial_state().items()}
    assert module.is_stateful() and initial == dict.fromkeys(STATES[kind], [0.0] * 8)


@each_recurrent
def test_initializers_of_the_recurrent_layer(kind):
    layer = getattr(module_of(kind, model_config={"lstm_bias_initializer": "ones_"}), kind)
    assert (layer.bias_hh_l0 == 1).all() and (layer.bias_ih_l0 == 1).all()
    torch.testing.assert_close(layer.weight_hh_l0.T @ layer.weight_hh_l0, torch.eye(8), rtol=0, atol=1e-5)


@each_recurrent
def test_a_reset_begins_again_with_its_state(kind):
    module, columns = module_of(kind), batch_of(kind, rows=1)
    again = {name: torch.randn(1, 1, 8, generator=torch.Generator().manual_seed(7)) for name in STATES[kind]}
    reset = {**columns, "resets": torch.arange(6)[None] == 2, "reset_states": again}
    outputs, values = module.forward_train(reset)["action_dist_inputs"], module.compute_values(reset)
    states = columns["state_in"], {name: leaf[:, 0] for name, leaf in again.items()}
    for rows, state in zip((slice(0, 2), slice(2, 6)), states):
        part = {"obs": columns["obs"][:, rows], "state_in": state}
        torch.testing.assert_close(outputs[:, rows], module.forward_train(part)["action_dist_inputs"])
        torch.testing.assert_close(values[:, rows], module.compute_values(part))


@each_recurrent
def test_batches_that_are_no_sequences(kind):
    columns = batch_of(kind, SCREEN)
    flat = tree_map(lambda leaf: leaf[:, 0], columns["obs"])
    for wrong, phrase in (({"obs": columns["obs"]}, "state_in"), ({**columns, "obs": flat}, r"\(5, 10, 10, 3\)")):
        with pytest.raises(ColumnError, match=rf"{phrase}[\s\S]*AddStatesFromEpisodesToBatch"):
            module_of(kind, SCREEN).forward_train(wrong)


@each_recurrent
@pytest.mark.parametrize("steps", [1, 6])
def test_states_with_an_axis_of_layers_are_a_named_error(kind, steps):
    columns = batch_of(kind, SCREEN)
    rows = {"obs": tree_map(lambda leaf: leaf[:, :steps], columns["obs"])}
    for axis in (0, 1):
        state = {name: leaf.unsqueeze(axis) for name, leaf in columns["state_in"].items()}
        with torch.no_grad(), pytest.raises(ColumnError) as caught:
            module_of(kind, SCREEN).forward_inference({**rows, "state_in": state})
        assert "'h': [batch, H]" in caught.value.expected and f"'h': {list(state['h'].shape)}" in caught.value.found


# ------------------------------------------------------------------------------------------- choosing


@pytest.mark.parametrize(
    ("config", "cls"),
    [
        (None, DefaultActorCritic),
        ({"use_lstm": True}, DefaultLSTMActorCritic),
        (DefaultModelConfig(use_lstm=True), DefaultLSTMActorCritic),
        ({"use_gru": True}, DefaultGRUActorCritic),
    ],
)
def test_the_default_network_is_the_one_that_is_asked_for(config, cls):
    spec = default_module_spec(BOX, CHOICE, config)
    assert spec.module_class is cls
    assert type(spec.build()) is cls
    assert spec.model_config == (DefaultModelConfig() if config is None else config)
    assert cls.default_max_seq_len == (None if cls is DefaultActorCritic else 20)


@pytest.mark.parametrize(
    ("observation_space", "action_space", "config", "error", "message"),
    [
        (Dict(a=gym.spaces.Text(3)), CHOICE, None, SpaceError, "encode the text as an array"),
        (BOX, gym.spaces.Text(3), None, SpaceError, "get_exploration_action_dist_cls"),
        (BOX, CHOICE, {"use_lstm": True, "use_gru": True}, ConfigError, "use_gru"),
    ],
)
def test_errors_come_before_building(observation_space, action_space, config, error, message):
    with pytest.raises(error, match=message):
        default_module_spec(observation_space, action_space, config)
