"""Default pipelines: the order that PPO's config gives, one keyword per setting, and pieces in every form."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.algorithms import PolicySpec, PPOConfig
from epibatch.connectors import ConnectorV2, env_to_module, learner, module_to_env
from epibatch.connectors.authoring import ColumnTransform
from epibatch.connectors.views import View
from epibatch.core.errors import ConfigError, PieceError

BOX, TURN = gym.spaces.Box(-1.0, 1.0, (4,), np.float32), gym.spaces.Box(-2.0, 2.0, (1,), np.float32)
CHOICE = gym.spaces.Discrete(2)


class Mine(ConnectorV2):
    """Does nothing."""

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        return batch


class Halve(ColumnTransform):
    """Halves what the environment gets."""

    columns = "actions_for_env"

    def transform(self, x):
        return x / 2


def described(pipeline):
    """Every piece with the arguments that it was made with."""
    return [(type(piece), piece.get_ctor_args_and_kwargs()) for piece in pipeline]


def by_letter(agent_id, episode, **kwargs):
    return agent_id[0]


@st.composite
def runs(draw):
    """Settings of a run, as a config takes them and as default pipelines do."""
    return {
        "several": draw(st.booleans()),
        "normalize_actions": draw(st.booleans()),
        "clip_actions": draw(st.booleans()),
        "gamma": draw(st.sampled_from([0.0, 0.9, 1.0])),
        "lambda_": draw(st.sampled_from([0.0, 0.5, 1.0])),
        "burn_in": draw(st.booleans()),
        "device": draw(st.sampled_from([None, "cpu"])),
        "action": draw(st.sampled_from([CHOICE, TURN])),
        "users": draw(st.integers(0, 2)),
        "views": draw(st.sampled_from([{}, {"last": View("rewards", -1)}])),
    }


def config_and_arguments(run):
    """PPO's config for a run, and the arguments of default pipelines that are to do the same."""
    config = PPOConfig().environment(normalize_actions=run["normalize_actions"], clip_actions=run["clip_actions"])
    config.rl_module(view_requirements=run["views"]).training(gamma=run["gamma"], lambda_=run["lambda_"])
    if run["burn_in"]:
        config.rl_module(model_config={"use_lstm": True, "max_seq_len": 8, "burn_in": 2})

    def users(*arguments):
        return [Mine() for _ in range(run["users"])]

    config.env_runners(env_to_module_connector=users, module_to_env_connector=lambda *_: [Halve(), *users()])
    config.training(learner_connector=users)
    if not run["several"]:
        return config, (BOX, run["action"]), users, {}
    config.multi_agent(policies=["a", "b"], policy_mapping_fn=by_letter)
    spaces = [gym.spaces.Dict({"a1": space, "b1": space}) for space in (BOX, run["action"])]
    return config, spaces, users, {"agent_to_module_mapping_fn": by_letter, "rl_module_specs": NO_SPACES}


NO_SPACES = {"a": PolicySpec(), "b": PolicySpec()}  # what a config gives that was told no spaces


@settings(max_examples=40, deadline=None)
@given(run=runs())
def test_they_have_the_pieces_of_a_config(run):
    config, spaces, users, agents = config_and_arguments(run)

    def chosen(*names):
        return {name: run[name] for name in names}

    expected = config.build_env_to_module_connector(spaces={"__env_single__": spaces}, device=run["device"])
    mine = env_to_module.default_pipeline(*spaces, connectors=users(), **chosen("device", "views"), **agents)
    assert described(mine) == described(expected)
    expected = config.build_module_to_env_connector(spaces={"__env_single__": spaces})
    switches = chosen("normalize_actions", "clip_actions")
    mine = module_to_env.default_pipeline(*spaces, connectors=[Halve(), *users()], **switches, **agents)
    assert described(mine) == described(expected)
    expected = config.build_learner_connector(*spaces, device=run["device"])
    same = {"connectors": users(), **chosen("burn_in", "device", "views"), **agents}
    mine = learner.default_pipeline(*spaces, advantages=False, **same)
    assert described(mine) == described(expected)
    config.extend_learner_connector(expected)
    del mine  # its pieces go into another pipeline
    mine = learner.default_pipeline(*spaces, **chosen("gamma", "lambda_"), **same)
    assert described(mine)[:-1] == described(expected)[:-1]
    discounts = [(pipeline[-1].gamma, pipeline[-1].lambda_) for pipeline in (mine, expected)]
    assert discounts == [(run["gamma"], run["lambda_"])] * 2


def test_pieces_may_be_given_in_every_form_that_a_pipeline_takes():
    forms = [Mine(), (Mine, (), {}), {"piece": "check_finite"}]
    assert env_to_module.default_pipeline(connectors=forms).names[:3] == ["mine", "mine_1", "check_finite"]
    assert learner.default_pipeline(connectors=(Mine(),)).names[0] == "mine"
    names = module_to_env.default_pipeline(connectors=[Halve(), (Mine, (), {})]).names
    assert names[-4:] == ["mine", "normalize_and_clip_actions", "halve", "listify_data_for_vector_env"]


@pytest.mark.parametrize("side", [env_to_module, module_to_env, learner])
def test_what_is_no_list_of_pieces_is_named(side):
    with pytest.raises(PieceError, match="the class Mine"):
        side.default_pipeline(connectors=[Mine])
    with pytest.raises(PieceError, match=r"default_pipeline\.connectors\n  expected: a list of pieces"):
        side.default_pipeline(connectors=Mine())


def test_discounts_are_checked_where_they_are_given():
    with pytest.raises(ConfigError, match="gamma"):
        learner.default_pipeline(gamma=2.0)
