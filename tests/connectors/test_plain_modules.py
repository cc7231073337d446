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


class Recurrent(torch.nn.Linear):
    """Says that it is recurrent, and nothing else."""

    def is_stateful(self) -> bool:
        return True


def episode(steps: int = 0) -> Any:
    out = SingleAgentEpisode(observation_space=BOX, action_space=CHOICES)
    out.add_env_reset(np.zeros(4, np.float32))
    for _ in range(steps):
        out.add_env_step(np.ones(4, np.float32), 1, 1.0)
    return out


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


def test_a_module_of_another_class_is_asked_again() -> None:
    class Named(torch.nn.Linear):
        def get_inference_action_dist_cls(self) -> Any:
            raise LookupError("asked")

        get_exploration_action_dist_cls = get_inference_action_dist_cls

    pipeline = ModuleToEnvPipeline(BOX, CHOICES, connectors=[GetActions()])
    call: dict[str, Any] = {"episodes": [episode()], "batch": {"action_dist_inputs": torch.zeros(1, 3)}}
    pipeline(rl_module=torch.nn.Linear(4, 3), **call)
    call["batch"] = {"action_dist_inputs": torch.zeros(1, 3)}
    with pytest.raises(LookupError, match="asked"):
        pipeline(rl_module=Named(4, 3), **call)


def test_without_spaces_the_error_names_what_to_add() -> None:
    with pytest.raises(PipelineError, match="give the pipeline its spaces, or Linear an attribute action_space"):
        ModuleToEnvPipeline(connectors=[GetActions()])(
            rl_module=torch.nn.Linear(4, 3), batch={"action_dist_inputs": torch.zeros(1, 3)}, episodes=[episode()]
        )


def test_a_recurrent_network_needs_a_first_state_and_a_length_of_sequences() -> None:
    call: dict[str, Any] = {"rl_module": Recurrent(4, 3), "shared_data": {}}
    with pytest.raises(PipelineError, match=r"write Recurrent\.get_initial_state"):
        env_to_module.default_pipeline(BOX, CHOICES)(episodes=[episode()], **call)
    with pytest.raises(ConfigError, match="max_seq_len"):
        learner.default_pipeline(BOX, CHOICES)(episodes=[episode(2)], **call)
