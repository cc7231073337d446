"""The default networks with values of actions: against the formulas of their papers, computed in NumPy."""

from __future__ import annotations

import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.core.errors import ColumnError, ConfigError, RunnerError, SpaceError
from epibatch.core.rl_module import (
    DefaultQNetwork,
    DefaultSoftActorCritic,
    QDistributionAPI,
    QValueAPI,
    RLModuleSpec,
    default_module_spec,
)

Box, Dict, Discrete = gym.spaces.Box, gym.spaces.Dict, gym.spaces.Discrete
OBS = Box(-1, 1, (4,))
OPTIONS = {"fcnet_hiddens": [8]}


CHOICE = Discrete(3)


def q_network(action_space=CHOICE, observation_space=OBS, **options):
    torch.manual_seed(0)
    return default_module_spec(observation_space, action_space, {**OPTIONS, **options}, heads="q_values").build()


def soft(action_space, observation_space=OBS, **options):
    torch.manual_seed(0)
    spec = default_module_spec(observation_space, action_space, {**OPTIONS, **options}, heads="soft_actor_critic")
    return spec.build()


def observations(rows=5):
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(1))


def layer(module, name, x):
    weights = {key: value.double().numpy() for key, value in module.state_dict().items()}
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def features(module, obs, name="encoder.0"):
    return np.tanh(layer(module, name, obs.double().numpy()))


def test_values_are_those_of_the_layers():
    module, obs = q_network(), observations()
    expected = layer(module, "q.advantages.0", features(module, obs))
    assert np.allclose(module.compute_q_values({"obs": obs})[0].detach(), expected, atol=1e-6)
    assert isinstance(module, DefaultQNetwork) and isinstance(module, QValueAPI) and module.critic is module


def test_dueling_values_are_value_plus_advantage_without_its_mean():
    module, obs = q_network(dueling=True), observations()
    hidden = features(module, obs)
    advantages = layer(module, "q.advantages.0", hidden)
    expected = layer(module, "q.state_value.0", hidden) + advantages - advantages.mean(1, keepdims=True)
    assert np.allclose(module.compute_q_values({"obs": obs})[0].detach(), expected, atol=1e-6)


@pytest.mark.parametrize("dueling", [False, True])
def test_values_of_distributions_are_their_means(dueling):
    module, obs = q_network(num_atoms=5, v_min=-2.0, v_max=6.0, dueling=dueling), observations()
    hidden = features(module, obs)
    logits = layer(module, "q.advantages.0", hidden).reshape(5, 3, 5)
    if dueling:
        state_value = layer(module, "q.state_value.0", hidden)[:, None]
        logits = state_value + logits - logits.mean(1, keepdims=True)
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    assert isinstance(module, QDistributionAPI)
    assert np.allclose(module.compute_q_distribution({"obs": obs})[0].detach(), logits, atol=1e-5)
    assert module.atoms.tolist() == [-2, 0, 2, 4, 6]
    assert np.allclose(
        module.compute_q_values({"obs": obs})[0].detach(), (shares * [-2, 0, 2, 4, 6]).sum(-1), atol=1e-5
    )


@pytest.mark.parametrize("memory", ["use_lstm", "use_gru"])
def test_values_with_memory_depend_on_the_steps_before(memory):
    module = q_network(**{memory: True, "lstm_cell_size": 6})
    obs = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(2))
    state = {name: leaf.expand(2, -1) for name, leaf in module.get_initial_state().items()}
    whole = module.compute_q_values({"obs": obs, "state_in": state})
    steps = []
    for t in range(4):  # one step after the other, each from the state that the one before left
        outputs = module.forward_inference({"obs": obs[:, t : t + 1], "state_in": state})
        steps.append(outputs["action_dist_inputs"])
        state = outputs["state_out"]
    assert module.is_stateful() and whole.shape == (1, 2, 4, 3)
    torch.testing.assert_close(whole[0], torch.cat(steps, 1))


def test_acting_prefers_the_best_legal_action():
    module, obs = q_network(Discrete(3, start=5)), observations()
    mask = torch.tensor([[1, 0, 1]] * 5, dtype=torch.int8)
    values = module.compute_q_values({"obs": obs})[0].detach().numpy()
    for batch, allowed in (({"obs": obs}, [0, 1, 2]), ({"obs": obs, "action_mask": mask}, [0, 2])):
        logits = module.forward_inference(batch)["action_dist_inputs"]
        greedy = module.get_inference_action_dist_cls().from_logits(logits).to_deterministic().sample()
        assert greedy.tolist() == [5 + allowed[i] for i in values[:, allowed].argmax(1)]


@pytest.mark.parametrize("start", [0, 5])
def test_values_of_chosen_actions(start):
    module, obs = q_network(Discrete(3, start=start)), observations()
    actions = torch.tensor([0, 1, 2, 1, 0])
    values = module.compute_q_values({"obs": obs})[0]
    chosen = module.compute_q_values({"obs": obs}, actions + start)
    assert chosen.shape == (1, 5)
    assert chosen[0].tolist() == [values[i, action].item() for i, action in enumerate(actions)]


NESTED = Dict(arm=Box(-2, 2, (2,)), legs=gym.spaces.Tuple([Box(0, 1, (1, 2))]))


@pytest.mark.parametrize(("space", "size"), [(Box(-2, 2, (3,)), 3), (NESTED, 4)], ids=["box", "nested"])
def test_critics_see_observation_and_action(space, size):
    module, obs = soft(space, num_critics=3), observations()
    dist = module.get_exploration_action_dist_cls().from_logits(
        module.forward_train({"obs": obs})["action_dist_inputs"]
    )
    actions = dist.rsample()
    leaves = [actions] if size == 3 else [actions["arm"], actions["legs"][0].flatten(1)]
    inputs = torch.cat([obs, *leaves], 1).detach()
    values = module.compute_q_values({"obs": obs}, actions)
    for k in range(3):
        expected = layer(module, f"q.{k}.net.2", features(module, inputs, f"q.{k}.net.0"))[:, 0]
        assert np.allclose(values[k].detach(), expected, atol=1e-6)
    assert all(bool((leaf.abs() <= 1).all()) for leaf in leaves)  # in the policy's units, not in those of the space
    values.sum().backward()
    assert module.pi.net[0].weight.grad.abs().sum() > 0  # gradients flow through the actions into the policy
    assert not {id(p) for p in module.critic.parameters()} & {id(p) for p in module.pi.parameters()}


def test_critics_of_choices_have_a_value_for_each():
    module, obs = soft(Discrete(3)), observations()
    values = module.compute_q_values({"obs": obs})
    assert values.shape == (2, 5, 3)
    actions = torch.tensor([2, 0, 1, 1, 2])
    chosen = module.compute_q_values({"obs": obs}, actions)
    assert chosen.tolist() == [[values[k, i, a].item() for i, a in enumerate(actions)] for k in range(2)]


IMAGES = Dict(speed=Box(-1, 1, (2,)), screen=Box(0, 255, (10, 10, 3), np.uint8))


@pytest.mark.parametrize(("heads", "space"), [("q_values", Discrete(3)), ("soft_actor_critic", Box(-1, 1, (2,)))])
def test_observations_of_any_default_space(heads, space):
    module = default_module_spec(IMAGES, space, OPTIONS, heads=heads).build()
    batch = {"obs": {"speed": torch.zeros(2, 2), "screen": torch.zeros(2, 10, 10, 3, dtype=torch.uint8)}}
    actions = None if heads == "q_values" else torch.zeros(2, 2)
    assert module.compute_q_values(batch, actions).shape[:2] == ((1, 2) if actions is None else (2, 2))


def test_a_module_for_acting_has_no_critics():
    acting = RLModuleSpec(
        DefaultSoftActorCritic, OBS, Box(-1, 1, (2,)), inference_only=True, model_config=OPTIONS
    ).build()
    trained = soft(Box(-1, 1, (2,)))
    acting.set_state(trained.get_state(inference_only=True))
    batch = {"obs": observations()}
    assert torch.equal(*(m.forward_inference(batch)["action_dist_inputs"] for m in (acting, trained)))
    with pytest.raises(RunnerError, match="inference_only"):
        acting.compute_q_values(batch, torch.zeros(5, 2))


@pytest.mark.parametrize("make", [q_network, lambda: q_network(use_gru=True), lambda: soft(Box(-1, 1, (2,)))])
def test_they_are_copied_pickled_and_described_as_data(make):
    module = make()
    spec = RLModuleSpec.from_module(module)
    again = RLModuleSpec.from_dict(spec.to_dict()).build()
    again.set_state(module.get_state())
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), again):
        assert type(other) is type(module)
        assert all(torch.equal(*pair) for pair in zip(other.state_dict().values(), module.state_dict().values()))


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: q_network(Box(-1, 1, (2,))), SpaceError, "Discrete"),
        (lambda: soft(gym.spaces.MultiDiscrete([2, 3])), SpaceError, "float Boxes"),
        (lambda: soft(Dict(a=Box(-1, 1, (2,)), b=Discrete(2))), SpaceError, "float Boxes"),
        (lambda: soft(Box(-1, 1, (2,)), use_lstm=True), ConfigError, "without memory"),
        (lambda: default_module_spec(OBS, Discrete(2), heads="critic"), ConfigError, "q_values"),
        (lambda: q_network(v_min=1.0, v_max=1.0), ConfigError, "above v_min"),
        (lambda: soft(Box(-1, 1, (2,))).compute_q_values({"obs": observations()}), ColumnError, "actions"),
    ],
)
def test_what_cannot_work_is_named(make, error, text):
    with pytest.raises(error, match=text):
        make()
