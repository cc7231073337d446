from __future__ import annotations

import pytest
import torch

from epibatch.algorithms import PPO, PPOConfig
from epibatch.algorithms.algorithm_classes import ALGORITHM_CLASSES, get_trainable_cls
from epibatch.core.errors import ConfigError, UnknownNameError
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule, ValueFunctionAPI
from epibatch.learner import PPOLoss, PPOSettings


@pytest.fixture
def algorithm():
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .training(
            lr=0.25,
            minibatch_size=16,
            num_epochs=2,
            grad_clip=0.5,
            grad_clip_by="norm",
            shuffle_batch_per_epoch=False,
            clip_param=0.1,
            vf_clip_param=float("inf"),
            vf_loss_coeff=0.5,
            entropy_coeff=0.02,
            use_kl_loss=False,
            kl_coeff=0.3,
            kl_target=0.04,
        )
    )
    built = config.debugging(seed=5).build_algo()
    yield built
    built.stop()


def test_settings_reach_the_learner(algorithm):
    assert isinstance(algorithm, PPO)
    settings = algorithm.learner.settings
    assert (settings.lr, settings.minibatch_size, settings.num_epochs, settings.seed) == (0.25, 16, 2, 5)
    assert (settings.grad_clip, settings.grad_clip_by, settings.shuffle) == (0.5, "norm", "once")


def test_settings_reach_the_loss(algorithm):
    loss = algorithm.learner._loss
    assert isinstance(loss, PPOLoss)
    assert loss.settings == PPOSettings(
        clip_param=0.1,
        vf_clip_param=float("inf"),
        vf_loss_coeff=0.5,
        entropy_coeff=0.02,
        use_kl_loss=False,
        kl_coeff=0.3,
        kl_target=0.04,
    )


def test_learner_pipeline_is_ppos(algorithm):
    names = [type(piece).__name__ for piece in algorithm.learner.connector]
    assert names[0] == "AddOneTsToEpisodesAndTruncate"
    assert names[-1] == "GeneralAdvantageEstimation"


class ActsOnly(TorchRLModule):
    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": torch.zeros(len(batch["obs"]), 2)}


class Remembers(ActsOnly, ValueFunctionAPI):
    def get_initial_state(self):
        return {"h": torch.zeros(1)}

    def compute_values(self, batch, embeddings=None):
        return torch.zeros(batch["obs"].shape[:-1])


def build(module_class, **settings):
    spec = RLModuleSpec(module_class=module_class, model_config={"own": 1})
    return PPOConfig().environment("CartPole-v1").learners(**settings).rl_module(rl_module_spec=spec).build_algo()


@pytest.mark.parametrize(
    ("module_class", "message"),
    [
        (ActsOnly, r"PPO with the module ActsOnly\n.*value function\n.*compute_values\n.*ValueFunctionAPI"),
        (Remembers, r"(?s)model_config of Remembers\n.*max_seq_len.*\"max_seq_len\": 20"),
    ],
)
def test_incomplete_modules_are_found_before_sampling(module_class, message):
    with pytest.raises(ConfigError, match=message):
        build(module_class)


def test_without_the_default_pieces_a_value_function_is_up_to_the_user():
    build(ActsOnly, add_default_connectors_to_learner_pipeline=False).stop()


# ----------------------------------------------------------------------------------- algorithm classes


def test_ppo_by_its_name():
    assert get_trainable_cls("PPO") is PPO
    config = get_trainable_cls("PPO").get_default_config()
    assert type(config) is PPOConfig
    assert config.to_dict() == PPOConfig().to_dict()
    assert get_trainable_cls("PPO").get_default_config() is not config


def test_each_name_leads_to_a_class():
    for name, cls in ALGORITHM_CLASSES.items():
        assert cls.__name__ == name


def test_others_are_refused_by_name():
    with pytest.raises(UnknownNameError, match=r"'IMPALA'\n.*Known: PPO"):
        get_trainable_cls("IMPALA")
