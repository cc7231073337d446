"""Names of other libraries are answered with the names here."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from epibatch import Policy
from epibatch.algorithms import PPO, DQNConfig, PPOConfig, SACConfig
from epibatch.core.errors import ConfigError

DOCS = Path(__file__).resolve().parents[2] / "docs"
PARTS = {  # names on these pages that are no settings
    "obs", "actions", "logprobs", "rewards", "dones", "values", "done", "terminated", "is_init", "inv", "lstm_state",
    "get_states", "get_inference_policy", "export_policy_to_onnx", "set_recurrent_mode", "load", "b_obs", "b_actions",
    "b_logprobs", "b_returns", "b_inds", "mb_inds",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("rollouts", r"use env_runners\(\.\.\.\)"),
        ("build", r"use build_algo\(\)"),
    ],
)
def test_rllibs_methods_say_what_to_do(name, advice):
    with pytest.raises(AttributeError, match=rf"PPOConfig has no method '{name}': .*{advice}"):
        getattr(PPOConfig(), name)()


def test_misspelt_method():
    with pytest.raises(AttributeError, match=r"did you mean 'training'\?") as caught:
        _ = PPOConfig().trainng
    assert len(str(caught.value)) < 200


# ------------------------------------------------------------------------------- calls that change nothing


def test_calls_that_change_nothing_warn():
    config = PPOConfig()
    before = config.to_dict()
    with pytest.warns(
        UserWarning, match=r"PPOConfig\.api_stack\(\.\.\.\) changes nothing: there is one stack"
    ) as caught:
        assert config.api_stack(enable_rl_module_and_learner=True, enable_env_runner_and_connector_v2=True) is config
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(UserWarning, match=r"framework\(\.\.\.\) changes nothing: networks are always PyTorch's"):
        assert config.framework("torch", eager_tracing=True) is config
    with pytest.warns(UserWarning, match=r"resources\(num_gpus\) changes nothing: the main process takes what"):
        assert config.resources(num_gpus=0) is config
    assert config.to_dict() == before
    assert config.resources(placement_strategy="SPREAD").placement_strategy == "SPREAD"


def test_what_cannot_be_had_is_an_error():
    with pytest.raises(ConfigError, match="'tf2'"):
        PPOConfig().framework("tf2")
    with pytest.raises(ConfigError, match="enable_env_runner_and_connector_v2=False"):
        PPOConfig().api_stack(enable_env_runner_and_connector_v2=False)


# ------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("section", "setting", "advice"),
    [
        ("env_runners", "num_envs", "use num_envs_per_env_runner"),
        ("env_runners", "n_envs", "use num_envs_per_env_runner"),
        ("learners", "num_gpus", "use learners(device='cuda')"),
        ("training", "learning_rat", "use lr"),
        ("training", "num_sgd_iter", "use num_epochs"),
        ("rl_module", "use_lstm", "rl_module(model_config={'use_lstm': ...})"),
        ("training", "gama", "did you mean 'gamma'?"),
        ("training", "num_epoch", "did you mean 'num_epochs'?"),
    ],
)
def test_a_setting_of_another_library_names_the_setting_here(section, setting, advice):
    said = f"{section}.{setting}: unknown setting; .*{re.escape(advice)}"
    with pytest.raises(ConfigError, match=said):
        getattr(PPOConfig(), section)(**{setting: 1})
    with pytest.raises(ConfigError, match=said):
        PPOConfig.from_dict({section: {setting: 1}})


def test_attributes_of_a_config_name_it_too():
    with pytest.raises(ConfigError, match="use lr"):
        PPOConfig().learning_rat = 1
    with pytest.raises(AttributeError, match=r"no setting or method 'learning_rate'; use lr"):
        _ = PPOConfig().learning_rate


@pytest.mark.parametrize("library", ["sb3", "cleanrl", "rsl-rl", "torchrl"])
def test_every_setting_of_a_page_is_one_or_is_answered(library):
    table = (DOCS / f"moving-from-{library}.md").read_text(encoding="utf-8")
    first_cells = [row.split(" | ")[0] for row in table.splitlines() if row.startswith("| `")]
    names = {name for cell in first_cells for name in re.findall(r"`([a-z_]+)`", cell)} - PARTS
    own = {*PPOConfig.model.section_of(), *DQNConfig.model.section_of(), *SACConfig.model.section_of()}
    assert len(names - own) >= 5
    for name in sorted(names - own):
        with pytest.raises(ConfigError) as caught:
            PPOConfig().training(**{name: 1})
        advice = re.search(rf"training\.{name}: unknown setting; (.*)", str(caught.value))[1]
        used = re.match(r"use (?:learners\()?(\w+)", advice)
        assert "did you mean" not in advice and (used is None or used[1] in {*own, "device", "piece", "the", "a"}), (
            advice
        )


# ------------------------------------------------------------------------------------- methods of algorithms


@pytest.mark.parametrize(
    ("cls", "name", "advice"),
    [
        (PPO, "learn", "use train()"),
        (PPO, "predict", "use act(obs, state)"),
        (PPO, "compute_single_action", "use act(obs, state)"),
        (PPO, "save", "use save_to_path(path)"),
        (PPO, "local_replay_buffer", "use replay_buffer"),
        (PPO, "load", "use from_checkpoint(path)"),
        (PPO, "restore", "use restore_from_path(path)"),
        (Policy, "load", "use from_checkpoint(path)"),
    ],
)
def test_an_attribute_of_another_library_names_the_one_here(cls, name, advice):
    assert not hasattr(cls, name)
    with pytest.raises(AttributeError, match=f"{cls.__name__} has no attribute '{name}': {re.escape(advice)}"):
        getattr(cls, name)
    here, bracket, _ = advice.removeprefix("use ").partition("(")
    assert callable(getattr(cls, here)) == bool(bracket)


def test_a_policy_is_not_called(algorithm):
    with pytest.raises(TypeError, match=r"a Policy is not called: use act\(obs, state\)"):
        algorithm("mlp").get_policy()(np.zeros(3))
