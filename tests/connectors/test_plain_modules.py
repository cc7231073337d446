"""Pipelines with networks that are plain torch modules."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.connectors import env_to_module, learner, module_to_env
from epibatch.connectors.module_to_env import GetActions, ModuleToEnvPipeline
from epibatch.core.errors import ConfigError, PipelineError
from epibatch.episodes import SingleAgentEpisode

BOX = gym.spaces.Box(-1, 1, (4,), np.float32)
CHOICES = gym.spaces.Discrete(3)


def episode() -> Any:
    return SingleAgentEpisode(
        observations=[np.zeros(4, np.float32)], observation_space=BOX, action_space=CHOICES, len_lookback_buffer=0
    )


def act(module: Any, inputs: Any, space: Any = CHOICES, **call: Any) -> Any:
    pipeline = module_to_env.default_pipeline(BOX, space)
    given = {"rl_module": module, "episodes": [episode()], "shared_data": {}, "explore": False, **call}
    return pipeline(batch={"action_dist_inputs": torch.tensor([inputs])}, **given)


def test_a_plain_network_acts_by_the_usual_distribution_of_the_space() -> None:
    network = torch.nn.Linear(4, 3)
    batch = env_to_module.default_pipeline(BOX, CHOICES)(rl_module=network, episodes=[episode()], shared_data={})
    assert batch["obs"].tolist() == [[0, 0, 0, 0]]
    assert act(network, [0.0, 5.0, 1.0])["actions"].tolist() == [1]
    found = act(network, [0.0, 5.0, 1.0], explore=True)
    expected = torch.log_softmax(torch.tensor([0.0, 5.0, 1.0]), 0)[int(found["actions"][0])]
    assert found["action_logp"].tolist() == pytest.approx([float(expected)])


def test_its_number_of_outputs_is_checked() -> None:
    with pytest.raises(ValueError, match="expected: 3 inputs per row"):
        act(torch.nn.Linear(4, 2), [0.0, 5.0])


def test_without_spaces_the_error_names_what_to_add() -> None:
    with pytest.raises(PipelineError, match="give the pipeline its spaces, or Linear an attribute action_space"):
        ModuleToEnvPipeline(connectors=[GetActions()])(
            rl_module=torch.nn.Linear(4, 3), batch={"action_dist_inputs": torch.zeros(1, 3)}, episodes=[episode()]
        )


CHOICE = gym.spaces.Discrete(2)


class Memory(torch.nn.Module):
    """A GRU without `is_stateful`."""

    def __init__(self):
        super().__init__()
        self.model_config = {"max_seq_len": 2}
        self.memory, self.policy = torch.nn.GRU(4, 3, batch_first=True), torch.nn.Linear(3, 2)

    def get_initial_state(self):
        return {"h": torch.zeros(3)}

    def forward(self, batch):
        out, state = self.memory(batch["obs"], batch["state_in"]["h"][None])
        return {"action_dist_inputs": self.policy(out), "state_out": {"h": state[0]}}

    def forward_train(self, batch):
        return self.forward(batch)

    def compute_values(self, batch, embeddings=None):
        return self.forward(batch)["action_dist_inputs"].sum(-1)


class Critic(torch.nn.Linear):
    """Two logits, and their sum as the value."""

    def compute_values(self, batch, embeddings=None):
        return self(batch["obs"]).sum(-1)


def played(module, steps=5, spaces=(BOX, CHOICE)):
    """An episode of a module, by the two acting pipelines."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    to_module, to_env = env_to_module.default_pipeline(*spaces), module_to_env.default_pipeline(*spaces)
    episode = SingleAgentEpisode()
    episode.add_env_reset(rng.normal(size=4).astype(np.float32))
    for step in range(steps):
        call = {"rl_module": module, "episodes": [episode], "explore": True, "shared_data": {}}
        batch = to_module(batch={}, **call)
        with torch.no_grad():
            outputs = module(batch) if "state_in" in batch else {"action_dist_inputs": module(batch["obs"])}
        row = {name: column[0] for name, column in to_env(batch=outputs, **call).items()}
        assert spaces[1].contains(row.pop("actions_for_env"))
        seen, action = rng.normal(size=4).astype(np.float32), row.pop("actions")
        episode.add_env_step(seen, action, 1.0, truncated=step == steps - 1, extra_model_outputs=row)
    return episode


def learned(module, **settings):
    return learner.default_pipeline(BOX, CHOICE, **settings)(rl_module=module, batch={}, episodes=[played(module)])


@pytest.mark.parametrize(("module", "advantages"), [(torch.nn.Linear(4, 2), False), (Critic(4, 2), True)])
def test_a_network_without_memory(module, advantages):
    batch = learned(module, advantages=advantages)
    assert batch["obs"].shape == (5 + advantages, 4) and ("advantages" in batch) is advantages
    real = batch["loss_mask"] if advantages else slice(None)
    logits = module(batch["obs"])[real]
    torch.testing.assert_close(logits, batch["action_dist_inputs"][real])
    logp = torch.log_softmax(logits, -1).gather(1, batch["actions"][real].long()[:, None])[:, 0]
    torch.testing.assert_close(logp, batch["action_logp"][real])


@pytest.mark.parametrize("said", ["nothing", "method", "attribute"])
def test_a_network_with_memory(said):
    module = Memory()
    if said != "nothing":
        module.is_stateful = True if said == "attribute" else lambda: True
    batch = learned(module)
    assert batch["obs"].shape == (3, 2, 4) and batch["seq_lens"].tolist() == [2, 2, 1]
    torch.testing.assert_close(
        module(batch)["action_dist_inputs"][batch["loss_mask"]], batch["action_dist_inputs"][batch["loss_mask"]]
    )


def lacking(name, **others):
    """A recurrent network without one of its attributes."""
    module = type("Lacking", (Memory,), {})()
    for other, value in {name: None, **others}.items():
        setattr(module, other, value)
    return module


@pytest.mark.parametrize(
    ("module", "settings", "error", "message"),
    [
        (torch.nn.Linear(4, 2), {}, PipelineError, r"Linear, which has none\n.*add compute_values\(self, batch"),
        (lacking("get_initial_state", is_stateful=True), {}, PipelineError, r"add get_initial_state\(self\)"),
        (lacking("model_config"), {}, ConfigError, 'model_config={"max_seq_len": 20}, to a plain torch module'),
        (lacking("compute_values"), {}, PipelineError, "default_pipeline\\(advantages=False\\)"),
        (
            lacking("forward_train", model_config={"max_seq_len": 3, "burn_in": 1}),
            {"burn_in": True},
            PipelineError,
            r"BurnIn\n.*forward_train.*\n.*\n.*add forward_train\(self, batch\)",
        ),
    ],
)
def test_what_is_missing_is_named_with_what_to_add(module, settings, error, message):
    with pytest.raises(error, match=message):
        learned(module, **settings)


class Wrapper:
    """Gives what another module has, and nothing of its own."""

    def __init__(self, module):
        self.wrapped = module

    def __getattr__(self, name):
        return getattr(self.__dict__["wrapped"], name)

    def __call__(self, batch):
        return self.wrapped(batch)


WRAPPERS = {
    "itself": lambda module: module,
    "delegating": Wrapper,
    "compiled": lambda module: torch.compile(module, backend="eager"),
}


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_a_wrapped_network_has_the_memory_of_the_one_within(wrap):
    class Said(Memory):
        def is_stateful(self):
            return True

    for module in (Memory(), Said()):
        pipeline = env_to_module.default_pipeline(BOX, CHOICE)
        batch = pipeline(rl_module=WRAPPERS[wrap](module), episodes=[episode()], shared_data={})
        assert batch["obs"].shape == (1, 1, 4) and batch["state_in"]["h"].tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_a_wrapped_network_draws_from_the_distribution_that_the_one_within_names(wrap):
    class Named(torch.nn.Linear):
        def get_inference_action_dist_cls(self):
            raise LookupError("asked")

        get_exploration_action_dist_cls = get_inference_action_dist_cls

    pipeline = ModuleToEnvPipeline(BOX, CHOICES, connectors=[GetActions()])

    def call(module):
        inputs = {"action_dist_inputs": torch.tensor([[0.0, 5.0, 1.0]])}
        return pipeline(rl_module=WRAPPERS[wrap](module), episodes=[episode()], batch=inputs)

    assert call(torch.nn.Linear(4, 3))["actions"].tolist() == [1]
    with pytest.raises(LookupError, match="asked"):  # though the wrappers are of one class
        call(Named(4, 3))


def test_no_initial_state_is_no_memory():
    module = torch.nn.Linear(4, 2)
    module.get_initial_state = lambda: None
    batch = env_to_module.default_pipeline(BOX, CHOICE)(rl_module=module, episodes=[episode()], shared_data={})
    assert list(batch) == ["obs"] and batch["obs"].shape == (1, 4)


def test_an_initial_state_that_wants_arguments_is_told_its_signature():
    class Wants(Memory):
        def get_initial_state(self, batch_size):
            return {"h": torch.zeros(batch_size, 3)}

    class Breaks(Memory):
        def get_initial_state(self):
            return 1 + None

    pipeline = env_to_module.default_pipeline(BOX, CHOICE)
    with pytest.raises(PipelineError, match=r"Wants[\s\S]*\(batch_size\)[\s\S]*write get_initial_state\(self\)"):
        pipeline(rl_module=Wants(), episodes=[episode()], shared_data={})
    with pytest.raises(TypeError, match="unsupported operand"):
        pipeline(rl_module=Breaks(), episodes=[episode()], shared_data={})
