"""The default MLP actor-critic."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.core.distributions import Categorical
from epibatch.core.errors import ConfigError, RunnerError, SpaceError
from epibatch.core.rl_module import DefaultActorCritic, DefaultModelConfig

BOX, CHOICE = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(3)
OBSERVATIONS = [BOX, gym.spaces.Box(0, 255, (4, 3, 1), np.uint8), gym.spaces.Discrete(6)]
ACTIONS = [(CHOICE, 3), (gym.spaces.Box(-1, 1, (2,)), 4)]


def module_of(observation_space=BOX, action_space=CHOICE, **options):
    return DefaultActorCritic(
        observation_space=observation_space,
        action_space=action_space,
        model_config=options.pop("model_config", {"fcnet_hiddens": [16, 8]}),
        **options,
    )


def batch_of(space, rows=5):
    return {"obs": torch.from_numpy(np.stack([space.sample() for _ in range(rows)]))}


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("observation_space", OBSERVATIONS, ids=str)
@pytest.mark.parametrize(("action_space", "width"), ACTIONS, ids=str)
def test_shapes(observation_space, action_space, width, share):
    config = {"fcnet_hiddens": [16, 8], "vf_share_layers": share, "head_fcnet_hiddens": [4]}
    module = module_of(observation_space, action_space, model_config=config)
    batch = batch_of(observation_space)
    for forward in (module.forward_inference, module.forward_exploration, module.forward_train):
        assert forward(batch)["action_dist_inputs"].shape == (5, width)
    assert module.compute_values(batch).shape == (5,)
    assert not module.is_stateful()
    assert not module.forward_exploration(batch)["action_dist_inputs"].requires_grad


@pytest.mark.parametrize("share", [False, True])
def test_training_and_acting_agree_and_embeddings_are_reused(share):
    module = module_of(model_config=DefaultModelConfig(fcnet_hiddens=[16], vf_share_layers=share))
    batch = batch_of(BOX)
    acting, training = module.forward_exploration(batch), module.forward_train(batch)
    torch.testing.assert_close(acting["action_dist_inputs"], training["action_dist_inputs"].detach())
    assert list(acting) == ["action_dist_inputs"]
    assert ("embeddings" in training) is share
    values = module.compute_values(batch, embeddings=training.get("embeddings"))
    torch.testing.assert_close(values, module.compute_values(batch))
    values.sum().backward()
    touched = {name.split(".")[0] for name, p in module.named_parameters() if p.grad is not None}
    assert touched == ({"encoder", "vf"} if share else {"vf"})


def test_acting_computes_the_policy_only():
    module = module_of()
    module.vf.register_forward_hook(lambda *_: pytest.fail("the value function was computed"))
    module.forward_exploration(batch_of(BOX))
    module.forward_inference(batch_of(BOX))


def test_sequences_of_observations_keep_their_axes():
    module = module_of()
    batch = {"obs": torch.zeros(2, 7, 4)}
    assert module.forward_train(batch)["action_dist_inputs"].shape == (2, 7, 3)
    assert module.compute_values(batch).shape == (2, 7)


def test_first_policy_is_almost_uniform():
    torch.manual_seed(0)
    module = module_of(model_config=None)
    out = module.forward_exploration(batch_of(BOX, 100))["action_dist_inputs"]
    assert Categorical.from_logits(out).entropy().min() > 0.999 * np.log(3)
    assert module.pi.net[0].out_features == 256
    assert module.vf[0].weight is not module.pi.net[0].weight


def test_the_seed_fixes_the_weights():
    states = []
    for _ in range(2):
        torch.manual_seed(3)
        states.append(module_of().get_state())
    np.testing.assert_equal(*states)


def test_modules_for_acting_only():
    learner, actor = module_of(), module_of(inference_only=True)
    assert actor.vf is None
    with pytest.raises(RunnerError, match="compute_values"):
        actor.compute_values(batch_of(BOX))
    for state in (learner.get_state(), learner.get_state(inference_only=True)):
        actor.set_state(state)
    batch = batch_of(BOX)
    torch.testing.assert_close(actor.forward_inference(batch), learner.forward_inference(batch))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"observation_space": gym.spaces.Dict(a=gym.spaces.Text(3))}, SpaceError, "TransformObservation"),
        ({"action_space": gym.spaces.Text(3)}, SpaceError, "get_exploration_action_dist_cls"),
        ({"action_space": None}, SpaceError, "get_exploration_action_dist_cls"),
        ({"model_config": {"fcnet_hidens": [1]}}, ConfigError, "fcnet_hiddens"),
    ],
)
def test_what_it_cannot_do(options, error, message):
    with pytest.raises(error, match=message):
        module_of(**options)


def test_observations_of_another_space():
    with pytest.raises(SpaceError, match=r"\(4,\)"):
        module_of().forward_exploration({"obs": torch.zeros(2, 5)})


def test_it_learns_to_tell_observations_apart():
    torch.manual_seed(0)
    module = module_of(gym.spaces.Discrete(3), CHOICE)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    batch = {"obs": torch.arange(3)}
    for _ in range(60):
        dist = Categorical.from_logits(module.forward_train(batch)["action_dist_inputs"])
        loss = -dist.logp(batch["obs"]).mean() + (module.compute_values(batch) - batch["obs"]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert module.forward_inference(batch)["action_dist_inputs"].argmax(-1).tolist() == [0, 1, 2]
    torch.testing.assert_close(module.compute_values(batch), batch["obs"].float(), rtol=0, atol=0.3)
