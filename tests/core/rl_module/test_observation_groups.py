"""Parts of the observations for actor and critic, and parts with a mask."""

from __future__ import annotations

import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.algorithms import PPOConfig
from epibatch.core import MaskedColumn
from epibatch.core.errors import ConfigError, EpibatchWarning, SpaceError
from epibatch.core.rl_module import DefaultActorCritic, DefaultGRUActorCritic, DefaultLSTMActorCritic
from epibatch.core.rl_module.observation_input import ObservationInput

Box, Dict, Discrete, MultiBinary = gym.spaces.Box, gym.spaces.Dict, gym.spaces.Discrete, gym.spaces.MultiBinary
SIZES = {"critic": 2, "policy": 3, "ref": 4}
CLASSES = {"mlp": DefaultActorCritic, "lstm": DefaultLSTMActorCritic, "gru": DefaultGRUActorCritic}
GROUPS = {"actor": ["ref", "policy"], "critic": ["policy", "critic"]}

each_kind = pytest.mark.parametrize("kind", CLASSES)


def module_of(kind, groups, sizes=SIZES, **options):
    """A module for Boxes of some sizes; for one Box without groups."""
    torch.manual_seed(0)
    parts = {name: Box(-1, 1, (size,)) for name, size in sizes.items()}
    return CLASSES[kind](
        observation_space=parts["all"] if groups is None else Dict(parts),
        action_space=Discrete(3),
        model_config={"fcnet_hiddens": [16], "lstm_cell_size": 8, "obs_groups": groups, **options.pop("config", {})},
        **options,
    )


def batch_of(kind):
    generator = torch.Generator().manual_seed(0)
    lead = (5,) if kind == "mlp" else (5, 6)
    obs = {name: torch.randn(*lead, size, generator=generator).requires_grad_() for name, size in SIZES.items()}
    state = {"lstm": ("h", "c"), "gru": ("h",)}.get(kind, ())
    return {"obs": obs, "state_in": {name: torch.randn(5, 8, generator=generator) for name in state}}


def joined(batch, names):
    return {**batch, "obs": torch.cat([batch["obs"][name] for name in names], -1)}


def copied(source, target, *names):
    """`target` with the weights of some parts of `source`."""
    state = {name: value for name, value in source.state_dict().items() if name.split(".")[0] in names}
    assert not target.load_state_dict(state, strict=False).unexpected_keys
    return target


@each_kind
def test_networks_depend_on_their_parts_alone(kind):
    module, batch = module_of(kind, GROUPS), batch_of(kind)
    parts = list(batch["obs"].values())
    logits = module.forward_train(batch)["action_dist_inputs"]
    critic, policy, ref = torch.autograd.grad(logits.square().sum(), parts, allow_unused=True)
    assert critic is None
    assert policy.any()
    assert ref.any()
    critic, policy, ref = torch.autograd.grad(module.compute_values(batch).sum(), parts, allow_unused=True)
    assert critic.any()
    assert policy.any()
    assert (ref is None) is (kind == "mlp")  # the recurrent layer, which both share, sees it


@each_kind
def test_outputs_are_those_of_modules_that_see_the_parts_joined_in_their_order(kind):
    module, batch = module_of(kind, GROUPS), batch_of(kind)
    actor = copied(module, module_of(kind, None, {"all": 7}, inference_only=True), "pi", "encoder", "lstm", "gru")
    expected = actor.forward_inference(joined(batch, ["ref", "policy"]))["action_dist_inputs"]
    torch.testing.assert_close(module.forward_inference(batch)["action_dist_inputs"], expected)
    seen = joined(batch, ["policy", "critic"])
    if kind == "mlp":
        values = copied(module, module_of(kind, None, {"all": 5}), "vf").compute_values(seen)
    else:
        memory = module.forward_train(batch)["embeddings"]
        values = module.vf(torch.cat([memory, module.vf_encoder(seen["obs"])], -1)).squeeze(-1)
    torch.testing.assert_close(module.compute_values(batch), values)
    embeddings = module.forward_train(batch).get("embeddings")
    torch.testing.assert_close(module.compute_values(batch, embeddings=embeddings), values)


@each_kind
def test_a_module_that_only_acts_needs_no_part_of_the_critic(kind):
    module, batch = module_of(kind, GROUPS), batch_of(kind)
    groups = {**GROUPS, "teacher": ["critic"], "rnd_state": ["critic"]}
    acting = module_of(kind, groups, {"policy": 3, "ref": 4}, inference_only=True)
    acting.set_state(module.get_state(inference_only=True))
    expected = module.forward_inference(batch)["action_dist_inputs"]
    del batch["obs"]["critic"]
    torch.testing.assert_close(acting.forward_inference(batch)["action_dist_inputs"], expected, rtol=0, atol=0)
    assert not any(name.startswith("vf") for name in acting.state_dict())


@each_kind
@pytest.mark.parametrize(
    ("groups", "full"),
    [
        ({"policy": ["policy"]}, {"actor": ["policy"], "critic": ["policy"]}),
        ({"critic": ["critic"]}, {"actor": ["policy"], "critic": ["critic"]}),
        ({"actor": ["ref"]}, {"actor": ["ref"], "critic": ["ref"]}),
        ({}, {"actor": ["policy"], "critic": ["policy"]}),
        ({"student": ["ref"], "teacher": ["ref", "critic"]}, {"actor": ["ref"], "critic": ["ref"]}),
        ({"actor": ["ref"], "student": ["ref"], "critic": ["critic"]}, {"actor": ["ref"], "critic": ["critic"]}),
        ({"actor": ["ref"], "critic": ["critic"], "rnd_state": ["policy"]}, {"actor": ["ref"], "critic": ["critic"]}),
    ],
)
def test_networks_without_an_entry(kind, groups, full):
    batch = batch_of(kind)
    torch.testing.assert_close(
        module_of(kind, groups).compute_values(batch), module_of(kind, full).compute_values(batch), rtol=0, atol=0
    )


def test_a_critic_without_its_part_gets_the_actors():
    sizes, batch = {"policy": 3, "ref": 4}, batch_of("mlp")
    with pytest.warns(EpibatchWarning, match=r"(?s)part 'critic'.*gets the actor's parts, ref, policy"):
        module = module_of("mlp", GROUPS, sizes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = module_of("mlp", {"actor": GROUPS["actor"]}, sizes)
        with pytest.raises(ConfigError, match="'plicy'"):
            module_of("mlp", {"actor": ["policy"], "critic": ["plicy", "critic"]}, sizes)
        with pytest.raises(ConfigError, match="'critic'"):
            module_of("mlp", {"actor": ["critic"]}, sizes)
    assert torch.equal(module.compute_values(batch), plain.compute_values(batch))


def test_one_encoder_for_both_if_their_parts_are_the_same():
    module = module_of("mlp", {"actor": ["ref", "policy"]}, config={"vf_share_layers": True})
    batch = batch_of("mlp")
    embeddings = module.forward_train(batch)["embeddings"]
    assert torch.equal(module.compute_values(batch), module.compute_values(batch, embeddings=embeddings))
    with pytest.raises(ConfigError, match=r"(?s)they share the encoder.*vf_share_layers to False"):
        module_of("mlp", GROUPS, config={"vf_share_layers": True})


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"actor": ["policy"], "critic": ["critics"]}, r"(?s)'critics'.*did you mean 'critic'"),
        ({"actor": ["critics"], "critic": ["policy"]}, r"(?s)'critics'.*did you mean 'critic'"),
        ({"actor": ["refs"]}, r"(?s)'refs'.*did you mean 'ref'.*policy"),
        ({"actor": ["policy"], "policy": ["ref"]}, "names of one network"),
        ({"actor": ["policy"], "student": ["policy", "ref"]}, "names of one network"),
        ({"actor": ["policy"], "rnd_state": ["refs"]}, r"(?s)'refs'.*did you mean 'ref'"),
        ({"student": ["policy"], "teacher": ["critics"]}, r"(?s)'critics'.*did you mean 'critic'"),
        ({"actr": ["policy"]}, "actor \\(or policy, student\\) and critic"),
        ({"actor": "policy"}, "lists of names"),
        ({"actor": []}, "lists of names"),
    ],
)
def test_wrong_groups(groups, message):
    with pytest.raises(ConfigError, match=message):
        module_of("mlp", groups)


def test_groups_of_an_observation_without_parts():
    with pytest.raises(SpaceError, match=r"(?s)expected: a Dict.*flatten_observations"):
        DefaultActorCritic(
            observation_space=Box(-1, 1, (3,)), action_space=Discrete(2), model_config={"obs_groups": GROUPS}
        )


@pytest.mark.parametrize(
    ("space", "mask", "rows"),
    [
        (Discrete(2), [1, 0, 1], [[1], [0], [1]]),
        (MultiBinary(1), [[1], [0], [1]], [[1], [0], [1]]),
        (Box(0, 1, (), np.float32), [1.0, 0.0, 1.0], [[1], [0], [1]]),
        (MultiBinary(2), [[1, 0], [0, 0], [1, 1]], [[1, 0], [0, 0], [1, 1]]),
    ],
    ids=str,
)
def test_masked_values_are_zero_and_the_mask_comes_after_them(space, mask, rows):
    encode = ObservationInput(Dict(ref=Dict(value=Box(-9, 9, (2,)), mask=space), pose=Box(-9, 9, (1,))))
    value = torch.tensor([[1.0, 2.0], [float("nan"), 4.0], [5.0, 6.0]])
    pose = torch.tensor([[7.0], [8.0], [9.0]])
    expected = []
    for p, v, m in zip(pose.tolist(), value.tolist(), rows):
        entries = m * (2 // len(m))
        expected.append([*p, *(x if on else 0.0 for x, on in zip(v, entries)), *map(float, m)])
    assert encode.size == len(expected[0])
    pairs = [{"value": value, "mask": torch.tensor(mask)}, MaskedColumn(value, torch.tensor(mask).bool())]
    for pair in [*pairs, MaskedColumn(value, torch.tensor(rows).bool())]:
        assert encode({"ref": pair, "pose": pose}).tolist() == expected
    sequences = {"ref": MaskedColumn(value[:, None], torch.tensor(mask)[:, None]), "pose": pose[:, None]}
    assert encode(sequences)[:, 0].tolist() == expected


def test_masked_images_are_encoded_by_convolutions():
    encode = ObservationInput(Dict(value=Box(0, 255, (10, 10, 3), np.uint8), mask=Discrete(2)))
    images = torch.randint(0, 256, (2, 10, 10, 3), dtype=torch.uint8)
    cnns = encode.cnns()
    out = encode(MaskedColumn(images, torch.tensor([True, False])), cnns)
    assert torch.equal(out[0, :-1], cnns[0](images)[0])
    assert out[0, -1] == 1
    assert not out[1].any()


def test_absent_images_do_not_reach_the_gradients():
    encode = ObservationInput(Dict(value=Box(0, 1, (10, 10, 3), np.float32), mask=Discrete(2)))
    images = torch.rand(2, 10, 10, 3)
    images[1] = float("nan")
    cnns = encode.cnns()
    out = encode(MaskedColumn(images, torch.tensor([True, False])), cnns)
    out.sum().backward()
    assert out.isfinite().all()
    assert all(weight.grad.isfinite().all() for weight in cnns.parameters())


def test_a_mask_of_other_rows():
    encode = ObservationInput(Dict(value=Box(-1, 1, (2,)), mask=Discrete(2)))
    with pytest.raises(SpaceError, match=r"(?s)1 for each of the values \[3\].*shape \[2\]"):
        encode(MaskedColumn(torch.zeros(3, 2), torch.ones(2)))


class Mimic(gym.Env):
    """Follow a target that only the critic sees at all times; the actor sees it, as `ref`, at even times."""

    observation_space = Dict(
        policy=Box(-10, 10, (1,)),
        critic=Box(-10, 10, (1,)),
        ref=Dict(value=Box(-10, 10, (1,)), mask=Discrete(2)),
    )
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.x, self.target = 0, 0.0, float(self.np_random.choice([-1, 1]))
        return self.observe(), {}

    def observe(self):
        shown = self.t % 2 == 0
        target = np.array([self.target], np.float32)
        ref = {"value": target if shown else np.full(1, 7, np.float32), "mask": int(shown)}
        return {"policy": np.array([self.x], np.float32), "critic": target, "ref": ref}

    def step(self, action):
        self.t += 1
        right = (action == 1) == (self.target > 0)
        if self.t % 2:  # the action was chosen with the target in sight
            self.x += 0.1 * (2 * int(action) - 1)
        return self.observe(), float(right), False, self.t >= 10, {}


YAML = """
rl_module: {model_config: {fcnet_hiddens: [32], obs_groups: {policy: [policy, ref], critic: [policy, critic, ref]}}}
training: {train_batch_size: 400, minibatch_size: 100, num_epochs: 10, lr: 3e-3}
debugging: {seed: 0}
"""


@pytest.mark.parametrize(
    "memory",
    [{}, {"use_lstm": True, "max_seq_len": 10, "lstm_cell_size": 64}],
    ids=["mlp", "lstm"],
)
@pytest.mark.slow
def test_training_with_groups_from_a_file(memory):
    config = PPOConfig.from_yaml(YAML).rl_module(model_config=memory)
    assert config.to_dict()["rl_module"]["model_config"]["obs_groups"]["policy"] == ["policy", "ref"]
    algo = config.environment(lambda env_config: Mimic()).build_algo()
    module = algo.get_module()
    assert module.pi.net[0].in_features == (64 if memory else 1 + 2)
    returns = [algo.train()["env_runners"]["episode_return_mean"] for _ in range(8)]
    algo.stop()
    assert returns[0] < 6.5
    assert returns[-1] > 7.5
