"""The default MLP actor-critic."""

from __future__ import annotations

import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.core.distributions import Categorical, DiagGaussian, SquashedGaussian
from epibatch.core.errors import ConfigError, RunnerError, SpaceError
from epibatch.core.rl_module import DefaultActorCritic, DefaultModelConfig
from epibatch.core.spaces import batch
from epibatch.core.tensors import convert_to_torch_tensor

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


# ------------------------------------------------------------------------- images, nested spaces, squashed actions

SCREEN = gym.spaces.Dict(
    speed=gym.spaces.Box(-1, 1, (2,)), screen=gym.spaces.Box(0, 255, (10, 10, 3), np.uint8), gear=gym.spaces.Discrete(3)
)


def nested_batch(space, rows=5):
    space.seed(0)
    return {"obs": convert_to_torch_tensor(batch([space.sample() for _ in range(rows)]))}


@pytest.mark.parametrize("share", [False, True])
def test_images_among_other_observations(share):
    module = module_of(SCREEN, model_config={"fcnet_hiddens": [16], "vf_share_layers": share})
    columns = nested_batch(SCREEN)
    out = module.forward_train(columns)
    values = module.compute_values(columns, embeddings=out.get("embeddings"))
    torch.testing.assert_close(values, module.compute_values(columns))
    out["action_dist_inputs"].sum().backward(retain_graph=True)
    assert all(p.grad is not None and p.grad.any() for p in list(module.images.parameters())[:1])
    module.zero_grad()
    values.sum().backward()
    own = module.images if share else module.vf_images
    assert all(p.grad is not None and p.grad.any() for p in list(own.parameters())[:1])
    assert (module.vf_images is None) == share


def test_an_inference_only_module_has_no_convolutions_for_values():
    learner, actor = module_of(SCREEN), module_of(SCREEN, inference_only=True)
    assert actor.vf_images is None
    for state in (learner.get_state(), learner.get_state(inference_only=True)):
        actor.set_state(state)
    columns = nested_batch(SCREEN)
    torch.testing.assert_close(actor.forward_inference(columns), learner.forward_inference(columns))
    assert not any(name.startswith("vf") for name in learner.get_state(inference_only=True))


def test_nested_observations_cost_nothing_but_their_encoding():
    """A nested observation gives what the vector it stands for gives to a network with the same weights."""
    space = gym.spaces.Dict(b=gym.spaces.Discrete(3), a=gym.spaces.Tuple([BOX, gym.spaces.MultiBinary(2)]))
    nested, flat = module_of(space), module_of(gym.spaces.Box(-np.inf, np.inf, (9,)))
    flat.set_state(nested.get_state())
    columns = nested_batch(space)
    vectors = np.concatenate(
        [*(leaf.numpy() for leaf in columns["obs"]["a"]), np.eye(3, dtype=np.float32)[columns["obs"]["b"]]], 1
    )
    torch.testing.assert_close(
        nested.forward_inference(columns), flat.forward_inference({"obs": torch.from_numpy(vectors)})
    )


def test_squashed_actions_are_chosen_by_an_option():
    box = gym.spaces.Box(-2, 4, (2,))
    plain, squashed = (module_of(BOX, box, model_config={"squash_actions": on}) for on in (False, True))
    assert plain.get_train_action_dist_cls() is DiagGaussian
    assert squashed.get_train_action_dist_cls() is SquashedGaussian
    dist = squashed.get_exploration_action_dist_cls().from_logits(torch.zeros(9, 4) + 3.0)
    assert dist.sample().abs().max() < 1.0


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies_act_alike(copied):
    module = module_of(SCREEN, gym.spaces.Dict(a=CHOICE, b=gym.spaces.MultiDiscrete([2, 3])))
    kind = module.get_exploration_action_dist_cls()
    assert module.get_exploration_action_dist_cls() is kind
    other = copied(module)
    columns = nested_batch(SCREEN)
    torch.testing.assert_close(other.forward_inference(columns), module.forward_inference(columns))
    inputs = module.forward_inference(columns)["action_dist_inputs"]
    theirs = other.get_exploration_action_dist_cls().from_logits(inputs)
    assert theirs.logp(kind.from_logits(inputs).sample()).shape == (5,)
