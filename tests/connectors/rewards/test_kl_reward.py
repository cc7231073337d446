"""The divergence from a reference, taken off rewards: closed forms, masks, sequences, states, mistakes."""

from __future__ import annotations

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors.rewards import KLReward
from epibatch.core.errors import ColumnError, ConfigError, PipelineError, StateError, UnknownNameError
from epibatch.core.rl_module import MultiRLModule, default_module_spec
from epibatch.episodes import SingleAgentEpisode

BOX = gym.spaces.Box(-1, 1, (3,))
CHOICE, TORQUE = gym.spaces.Discrete(4), gym.spaces.Box(-1, 1, (2,))


def module(actions=CHOICE, seed=0, **config):
    torch.manual_seed(seed)
    made = default_module_spec(BOX, actions, {"fcnet_hiddens": [8], **config}).build()
    with torch.no_grad():
        for own in made.parameters():  # away from the small outputs that policies begin with
            own.add_(torch.randn_like(own) * 0.3)
    return made


def run(piece, rl_module, batch):
    """The rewards behind the piece, of a batch by column or by module."""
    one = SingleAgentEpisode(observations=[0, 1], actions=[0], rewards=[0.0])
    found = piece(rl_module=rl_module, batch=dict(batch), episodes=[one])
    return found["rewards"] if "rewards" in found else {name: own["rewards"] for name, own in found.items()}


def rows(count=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {"obs": torch.randn(count, 3, generator=generator), "rewards": torch.arange(float(count))}


def logits(of, batch):
    with torch.no_grad():
        return of.forward_inference(batch)["action_dist_inputs"].double().numpy()


def categorical(p, q):
    p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (p, q))
    return (p * np.log(p / q)).sum(-1)


def gaussian(p, q):
    (m, s), (n, t) = np.split(p, 2, -1), np.split(q, 2, -1)
    s, t = np.exp(s), np.exp(t)
    return (np.log(t / s) + (s**2 + (m - n) ** 2) / (2 * t**2) - 0.5).sum(-1)


@pytest.mark.parametrize(("space", "closed_form"), [(CHOICE, categorical), (TORQUE, gaussian)])
def test_closed_forms(space, closed_form):
    current, reference, batch = module(space), module(space, seed=1), rows()
    expected = closed_form(logits(current, batch), logits(reference, batch))
    found = run(KLReward(coef=0.5, reference=reference), current, batch)
    np.testing.assert_allclose(found.numpy(), np.arange(5) - 0.5 * expected, rtol=1e-4, atol=1e-5)
    assert (expected > 0.01).all()


def test_the_policy_that_acted_counts_where_it_is_recorded():
    current, batch = module(), rows()
    batch["action_dist_inputs"] = torch.randn(5, 4)
    expected = categorical(batch["action_dist_inputs"].double().numpy(), logits(current, batch))
    found = run(KLReward(coef=1.0), current, batch)
    np.testing.assert_allclose(found.numpy(), np.arange(5) - expected, rtol=1e-4, atol=1e-5)


def test_without_a_reference_it_is_the_module_as_it_was_first():
    current, batch, piece = module(), rows(), KLReward(coef=1.0)
    first = copy.deepcopy(current)
    assert run(piece, current, batch).tolist() == pytest.approx([0.0, 1.0, 2.0, 3.0, 4.0], abs=1e-6)
    with torch.no_grad():
        for own in current.parameters():
            own.mul_(1.5)
    expected = categorical(logits(current, batch), logits(first, batch))
    np.testing.assert_allclose(run(piece, current, batch).numpy(), np.arange(5) - expected, rtol=1e-4, atol=1e-5)
    assert all(own.requires_grad for own in current.parameters())


def test_masked_rows_and_sequences():
    current, reference = module(), module(seed=1)
    flat = rows(6)
    expected = run(KLReward(coef=1.0, reference=reference), current, flat)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    batch = {"obs": flat["obs"].view(2, 3, 3), "rewards": flat["rewards"].view(2, 3), "loss_mask": mask}
    found = run(KLReward(coef=1.0, reference=reference), current, batch)
    assert torch.equal(found[~mask], batch["rewards"][~mask])
    torch.testing.assert_close(found[mask], expected.view(2, 3)[mask])


def test_the_reference_is_saved():
    current, batch, piece = module(), rows(), KLReward(coef=1.0)
    run(piece, current, batch)
    state = copy.deepcopy(piece.get_state())
    with torch.no_grad():
        for own in current.parameters():
            own.mul_(1.5)
    again = KLReward(coef=1.0)
    again.set_state(state)
    assert str(again.get_state()) == str(piece.get_state())
    assert torch.equal(run(again, current, batch), run(piece, current, batch))
    assert piece.merge_states([{}, piece.get_state()]).keys() == {"references"}
    piece.reset_state()
    assert piece.get_state() == {} and torch.allclose(run(piece, current, batch), batch["rewards"], atol=1e-6)


def test_in_training():
    config = PPOConfig().environment("CartPole-v1").debugging(seed=0)
    config.training(train_batch_size=64, minibatch_size=64, num_epochs=2, lr=0.01)
    algo = config.build_algo()
    algo.learner.connector.insert_after("NumpyToTensor", KLReward(coef=1.0))
    sample = algo.env_runner.sample(num_timesteps=64)
    before = algo.learner.connector(rl_module=algo.learner.module, batch={}, episodes=sample)["default_policy"]
    assert torch.allclose(before["rewards"][before["loss_mask"]], torch.ones(()), atol=1e-4)
    algo.train()
    sample = algo.env_runner.sample(num_timesteps=64)
    after = algo.learner.connector(rl_module=algo.learner.module, batch={}, episodes=sample)["default_policy"]
    real = after["rewards"][after["loss_mask"]]
    assert (real < 1).any() and (real <= 1 + 1e-5).all()
    assert (after["rewards"][~after["loss_mask"]] == 0).all()
    algo.stop()


def test_several_modules_each_by_its_own():
    def several(**seeds):
        made = MultiRLModule()
        for name, seed in seeds.items():
            made.add_module(name, module(seed=seed))
        return made

    piece = KLReward(coef=1.0, reference=several(other=1, default_policy=2))
    found = run(piece, several(default_policy=0), {"default_policy": rows()})["default_policy"]
    expected = categorical(logits(module(), rows()), logits(module(seed=2), rows()))
    np.testing.assert_allclose(found.numpy(), np.arange(5) - expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(UnknownNameError, match=r"KLReward\.reference"):
        run(KLReward(reference=several(one=1)), module(), rows())


@pytest.mark.parametrize(
    "kwargs", [{"coef": -1.0}, {"coef": float("inf")}, {"reference": torch.nn.Linear(1, 1)}, {"reference": "x"}]
)
def test_arguments_that_cannot_be_meant(kwargs):
    with pytest.raises(ConfigError, match=rf"KLReward\.{next(iter(kwargs))}"):
        KLReward(**kwargs)


def test_mistakes_are_named():
    with pytest.raises(PipelineError, match="NumpyToTensor"):
        PPOConfig().learners(learner_connector=lambda o, a: KLReward()).build_learner_connector(BOX, CHOICE)
    with pytest.raises((ColumnError, RuntimeError)):
        run(KLReward(reference=module(TORQUE)), module(gym.spaces.Discrete(3)), rows())
    for state in ({"x": 1}, 3, {"references": 2}):
        with pytest.raises(StateError, match="pass what get_state gave"):
            KLReward().set_state(state)
