"""Networks that a config builds: their spaces, classes and settings, of one module and of several."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms import PPOConfig
from epibatch.core.errors import ConfigError, SpaceError
from epibatch.core.rl_module import DefaultActorCritic, MultiRLModule, MultiRLModuleSpec, RLModuleSpec, TorchRLModule
from fixture_configs import cart_pole

BOX = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
WIDE = gym.spaces.Box(-1.0, 1.0, (12,), np.float32)
ACT = gym.spaces.Discrete(2)


class Own(TorchRLModule):
    def _forward(self, batch, **kwargs):
        return {}


SINGLE = {"__env__": (BOX, ACT), "__env_single__": (BOX, ACT)}


def spec_of(spec=None, **model_config):
    return PPOConfig().rl_module(rl_module_spec=spec, model_config=model_config).get_rl_module_spec(spaces=SINGLE)


def test_a_spec_gets_what_it_leaves_open_and_keeps_what_it_says():
    spec = spec_of(fcnet_hiddens=[8])
    assert (spec.module_class, spec.observation_space, spec.action_space) == (DefaultActorCritic, BOX, ACT)
    assert spec.model_config["fcnet_hiddens"] == [8]
    own = RLModuleSpec(module_class=Own)
    spec = spec_of(own, anything=1)
    assert (spec.module_class, spec.observation_space, spec.action_space) == (Own, BOX, ACT)
    assert spec.model_config == {"anything": 1} and own.observation_space is None
    spec = spec_of(RLModuleSpec(module_class=Own, observation_space=WIDE, model_config={"a": 1}), b=2)
    assert spec.observation_space == WIDE and spec.model_config == {"a": 1}
    several = PPOConfig().get_multi_rl_module_spec(spaces=SINGLE)
    assert list(several.rl_module_specs) == ["default_policy"]
    assert several["default_policy"].observation_space == BOX


def test_config_gives_the_module_what_the_pipeline_puts_out():
    config = PPOConfig()
    assert config.get_rl_module_spec(spaces=SINGLE).observation_space == BOX
    assert config.get_rl_module_spec(spaces={**SINGLE, "default_policy": (WIDE, ACT)}).observation_space == WIDE
    env = gym.make_vec("CartPole-v1", num_envs=2)
    assert config.get_rl_module_spec(env=env).observation_space == env.single_observation_space
    env.close()


def test_squashed_actions_need_somebody_who_stretches_them(built):
    config = cart_pole("Pendulum-v1").environment(normalize_actions=False)
    with pytest.raises(ConfigError, match=r"squash_actions[\s\S]*normalize_actions: true"):
        config.rl_module(model_config={"squash_actions": True}).build_algo()
    built(config.environment(normalize_actions=True))


# -------------------------------------------------------------------------------------- several modules


def by_agent(**spaces):
    return gym.spaces.Dict(spaces), gym.spaces.Dict(dict.fromkeys(spaces, ACT))


def several(spaces=None, **settings):
    config = PPOConfig().multi_agent(policy_mapping_fn={"a*": "x", "b*": "y"}, **settings)
    return config, None if spaces is None else {"__env__": spaces, "__env_single__": spaces}


def test_spaces_of_modules_follow_from_the_agents():
    config, spaces = several(by_agent(a1=BOX, a2=BOX, b=WIDE))
    found = config.get_multi_rl_module_spec(spaces=spaces)
    assert {key: (spec.observation_space, spec.action_space) for key, spec in found.rl_module_specs.items()} == {
        "x": (BOX, ACT),
        "y": (WIDE, ACT),
    }
    assert {spec.module_class for spec in found.rl_module_specs.values()} == {DefaultActorCritic}
    assert config.get_rl_module_spec(spaces=spaces).rl_module_specs == found.rl_module_specs
    assert list(found.build().keys()) == ["x", "y"]


def test_spaces_by_module_go_before_those_of_the_agents():
    config, _ = several()
    found = config.get_multi_rl_module_spec(spaces={"x": (WIDE, ACT), "y": (BOX, ACT)})
    assert (found["x"].observation_space, found["y"].observation_space) == (WIDE, BOX)
    config, spaces = several(by_agent(a=BOX, b=BOX))
    found = config.get_multi_rl_module_spec(spaces={**spaces, "x": (WIDE, ACT)})
    assert (found["x"].observation_space, found["y"].observation_space) == (WIDE, BOX)


def test_one_space_in_the_config_is_that_of_all_modules():
    config, _ = several()
    found = config.environment(observation_space=BOX, action_space=ACT).get_multi_rl_module_spec()
    assert (found["x"].observation_space, found["y"].action_space) == (BOX, ACT)


def test_agents_of_one_module_with_different_spaces():
    config, spaces = several(by_agent(a1=BOX, a2=WIDE, b=BOX))
    with pytest.raises(SpaceError, match=r"(?s)observation_space of module 'x'.*of agent 'a2'"):
        config.get_multi_rl_module_spec(spaces=spaces)
    config.multi_agent(policies={"x": {"observation_space": WIDE}, "y": None})
    found = config.get_multi_rl_module_spec(spaces={**spaces, "y": (BOX, ACT)})
    assert found["x"].observation_space == WIDE


def test_a_module_without_agents_needs_spaces():
    config, spaces = several(by_agent(a=BOX, b=WIDE), policies={"x", "y", "past"})
    with pytest.raises(SpaceError, match=r"(?s)observation_space of module 'past'"):
        config.get_multi_rl_module_spec(spaces=spaces)
    config, spaces = several(by_agent(a=BOX, b=BOX), policies={"x", "y", "past"})
    assert config.get_multi_rl_module_spec(spaces=spaces)["past"].observation_space == BOX
    without = {"x": (BOX, ACT), "y": (BOX, ACT), "past": (BOX, None)}
    with pytest.raises(ConfigError, match=r"(?s)policies\.past\.action_space: missing: no agent"):
        config.get_multi_rl_module_spec(spaces=without)


def test_settings_of_networks_by_nearness():
    config, spaces = several(
        by_agent(a=BOX, b=BOX),
        policies={
            "x": {"model_config": {"fcnet_hiddens": [16]}},
            "y": RLModuleSpec(module_class=Own, model_config={"fcnet_hiddens": [4], "a": 1}),
        },
    )
    config.rl_module(model_config={"fcnet_hiddens": [8], "fcnet_activation": "relu"})
    found = config.get_multi_rl_module_spec(spaces=spaces)
    assert found["x"].model_config == {"fcnet_hiddens": [16], "fcnet_activation": "relu"}
    assert found["y"].model_config == {"fcnet_hiddens": [4], "a": 1, "fcnet_activation": "relu"}
    assert (found["x"].module_class, found["y"].module_class) == (DefaultActorCritic, Own)


def test_one_spec_for_all_modules_and_specs_of_their_own():
    config, spaces = several(by_agent(a=BOX, b=BOX))
    common = RLModuleSpec(module_class=Own)
    found = config.rl_module(rl_module_spec=common).get_multi_rl_module_spec(spaces=spaces)
    assert [spec.module_class for spec in found.rl_module_specs.values()] == [Own, Own]
    assert common.observation_space is None

    class Group(MultiRLModule):
        pass

    given = MultiRLModuleSpec(
        multi_rl_module_class=Group,
        model_config={"shared": 1},
        rl_module_specs={
            "y": RLModuleSpec(module_class=Own),
            "critic": RLModuleSpec(module_class=Own, observation_space=WIDE, action_space=ACT, learner_only=True),
        },
    )
    config.rl_module(rl_module_spec=given)
    found = config.get_multi_rl_module_spec(spaces=spaces)
    assert {key: spec.module_class for key, spec in found.rl_module_specs.items()} == {
        "x": DefaultActorCritic,
        "y": Own,
        "critic": Own,
    }
    assert (found.multi_rl_module_class, found.model_config) == (Group, {"shared": 1})
    acting = config.get_multi_rl_module_spec(spaces=spaces, inference_only=True)
    assert (list(acting.rl_module_specs), acting["x"].inference_only) == (["x", "y"], True)
    assert not found["x"].inference_only
    assert list(given.rl_module_specs) == ["y", "critic"]


def test_no_network_for_a_space():
    text = gym.spaces.Text(5)
    config, spaces = several((gym.spaces.Dict(a=text, b=BOX), gym.spaces.Dict(a=ACT, b=ACT)))
    with pytest.raises(SpaceError, match=r"^module 'x':"):
        config.get_multi_rl_module_spec(spaces=spaces)


class Memory(Own):
    def get_initial_state(self):
        return {"h": np.zeros(2, np.float32)}


@pytest.mark.parametrize(("setting", "value"), [("burn_in", 5), ("sequence_end", "drop")])
def test_settings_of_sequences_need_a_module_with_memory(built, setting, value):
    def config(module_class=None, **model_config):
        spec = RLModuleSpec(module_class, model_config={"max_seq_len": 10, setting: value, **model_config})
        learning = {"add_default_connectors_to_learner_pipeline": False}  # so that no value function is needed
        return cart_pole().rl_module(rl_module_spec=spec).learners(**learning if module_class else {})

    message = rf"rl_module.model_config.{setting}\n.*\n  found:    {value!r} with DefaultActorCritic"
    with pytest.raises(ConfigError, match=message) as raised:
        config().build_algo()
    assert 'add "use_lstm": True, or leave' in str(raised.value)
    with pytest.raises(ConfigError, match="write get_initial_state in its class"):
        config(Own).build_algo()
    built(config(use_lstm=True))
    built(config(**{setting: 0 if setting == "burn_in" else "pad"}))
    built(config(Memory))
