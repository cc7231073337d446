"""Modules are added to an algorithm while it trains, and removed."""

from __future__ import annotations

import pytest

from epibatch.algorithms import PPO, AgentMapping
from epibatch.connectors.common import AgentToModuleMapping
from epibatch.connectors.learner import AddOneTsToEpisodesAndTruncate, GeneralAdvantageEstimation
from epibatch.core.errors import ConfigError, UnknownNameError
from epibatch.core.registry import register_env
from epibatch.core.rl_module import DefaultActorCritic, MultiRLModuleSpec, RLModuleSpec
from epibatch.env_runner import make_multi_agent
from fixture_configs import cart_pole, learned, same_weights, weights

Carts = make_multi_agent("CartPole-v1")
TABLE = {"0": "red", "*": "blue"}
WITH_PAST = {"0": "red", "1": "past", "*": "blue"}


def small(**multi_agent):
    settings = {"policies": ["red", "blue"], "policy_mapping_fn": TABLE, **multi_agent}
    config = cart_pole("three_carts", train_batch_size=24, minibatch_size=16, lr=1e-2).debugging(seed=5)
    return config.env_runners(num_envs_per_env_runner=2).multi_agent(**settings).evaluation(evaluation_duration=2)


@pytest.fixture(scope="module", autouse=True)
def registered():
    register_env("three_carts", lambda config: Carts({"num_agents": 3}))


@pytest.fixture
def algo(built):
    return built(small())


def sampled(results):
    return {each for each, steps in results["env_runners"]["num_module_steps_sampled"].items() if steps}


def as_data(algorithm):
    return algorithm.config.to_dict()["multi_agent"]


def test_a_frozen_copy_plays_along(algo):
    algo.train()
    red = algo.get_module("red")
    spec = algo.add_module(
        "past",
        RLModuleSpec.from_module(red),
        new_agent_to_module_mapping_fn=WITH_PAST,
        new_should_module_be_updated=["red", "blue"],
    )
    assert list(spec.rl_module_specs) == list(algo.learner.module) == ["red", "blue", "past"]
    algo.get_module("past").set_state(red.get_state())
    copied = weights(algo, "past")
    assert same_weights(copied, weights(algo, "red"))
    assert algo.get_module("past") is algo.env_runner.module["past"]
    for _ in range(4):  # agents of running episodes keep their modules until the end
        results = algo.train()
    assert sampled(results) == {"red", "blue", "past"}
    assert set(learned(results)) == {"red", "blue"}
    assert same_weights(copied, weights(algo, "past"))
    assert not same_weights(copied, weights(algo, "red"))
    assert "past" in algo.evaluate()["env_runners"]["module_episode_returns_mean"]


def test_a_new_module_learns_with_its_own_settings(algo):
    algo.add_module(
        "past",
        config_overrides={"lr": 0.5, "lambda_": 0.25},
        new_agent_to_module_mapping_fn=lambda agent_id, episode, **kwargs: "past",
    )
    assert algo.learner.settings_of("past").lr == 0.5
    assert algo.pipelines["learner"][-1].per_module == {"past": {"lambda_": 0.25}}
    for _ in range(4):
        results = algo.train()
    assert learned(results)["past"]["lr"] == 0.5
    assert sampled(results) == {"past"}


def test_what_a_new_module_sees_and_is(algo):
    algo.add_module("past", RLModuleSpec(model_config={"fcnet_hiddens": [8]}))
    module, red = algo.get_module("past"), algo.get_module("red")
    assert type(module) is DefaultActorCritic
    assert (module.observation_space, module.action_space) == (red.observation_space, red.action_space)
    assert module.model_config["fcnet_hiddens"] == [8]
    spaces = algo.env_runner.get_spaces()
    assert spaces["past"] == spaces["red"]
    assert as_data(algo)["policies"] == {"red": {}, "blue": {}, "past": {"model_config": {"fcnet_hiddens": [8]}}}
    assert algo.config.policy_mapping_fn == AgentMapping(TABLE)
    made = RLModuleSpec.from_module(red).build()
    algo.add_module("made", made)
    assert algo.get_module("made") is made


def test_a_run_with_a_new_module_is_restored_from_data(algo, tmp_path):
    algo.add_module("past", config_overrides={"lr": 0.5}, new_agent_to_module_mapping_fn=WITH_PAST)
    algo.train()
    algo.save_to_path(tmp_path / "saved", end_episodes=True)
    other = PPO.from_checkpoint(tmp_path / "saved")
    for _ in range(2):
        assert learned(algo.train()) == learned(other.train())
    assert as_data(other) == as_data(algo)
    other.stop()


def test_one_module_gets_a_second(tmp_path, built):
    algo = built(small(policies=["main"], policy_mapping_fn=None))
    algo.add_module("past")
    assert algo.config.policy_mapping_fn == AgentMapping({"*": "main"})
    assert sampled(algo.train()) == {"main"}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"module_id": "red"}, ConfigError, "'red', which is taken"),
        ({"module_id": 3}, ConfigError, "an id that is free"),
        ({"new_agent_to_module_mapping_fn": {"*": "pst"}}, ConfigError, "no module 'pst'; did you mean 'past'"),
        ({"new_agent_to_module_mapping_fn": {"0": "past"}}, ConfigError, "no entry that fits 1, 2 among 0"),
        ({"new_agent_to_module_mapping_fn": lambda a, e: "pst"}, ConfigError, "'pst' for agent 0"),
        ({"new_should_module_be_updated": ["pst"]}, ConfigError, "policies_to_train: no module 'pst'"),
        ({"config_overrides": {"lrr": 1}}, ConfigError, r"policies\.past\.config\.lrr: unknown setting"),
        ({"config_overrides": {"train_batch_size": 1}}, ConfigError, "no setting of single modules"),
        ({"module_spec": RLModuleSpec(model_config={"fcnet_hidden": [4]})}, ConfigError, "fcnet_hidden"),
        ({"module_spec": 3}, ConfigError, r"PolicySpec\.rl_module_spec"),
    ],
)
def test_nothing_is_added_if_something_does_not_fit(algo, arguments, error, message):
    before = as_data(algo)
    with pytest.raises(error, match=message):
        algo.add_module(**{"module_id": "past", **arguments})
    assert as_data(algo) == before
    assert list(algo.learner.module) == ["red", "blue"]
    assert sampled(algo.train()) == {"red", "blue"}


def test_algorithms_of_one_agent_keep_their_module(built):
    algo = built(cart_pole())
    with pytest.raises(ConfigError, match=r"\.multi_agent\(policies="):
        algo.add_module("past")
    with pytest.raises(UnknownNameError, match="the only one"):
        algo.remove_module("default_policy")


def test_a_removed_module_leaves_nothing_behind(algo, tmp_path):
    algo.add_module(
        "past",
        config_overrides={"gamma": 0.5},
        new_agent_to_module_mapping_fn=WITH_PAST,
        new_should_module_be_updated=["red", "past"],
    )
    algo.train()
    spec = algo.remove_module("past", new_agent_to_module_mapping_fn=TABLE)
    assert list(spec.rl_module_specs) == list(algo.learner.module) == ["red", "blue"]
    assert "past" not in algo.env_runner.get_spaces()
    assert not algo.pipelines["learner"][-1].per_module
    expected = small(policies_to_train=["red"]).to_dict()["multi_agent"]
    assert as_data(algo) == {**expected, "policies": ["red", "blue"]}
    results = algo.train()  # in new episodes
    assert sampled(results) == {"red", "blue"}
    assert set(learned(results)) == {"red"}
    algo.save_to_path(tmp_path / "saved", end_episodes=True)
    other = PPO.from_checkpoint(tmp_path / "saved")
    assert learned(algo.train()) == learned(other.train())
    other.stop()


def test_a_module_that_is_needed_stays(algo):
    with pytest.raises(ConfigError, match="policy_mapping_fn: no module 'blue'"):
        algo.remove_module("blue")
    with pytest.raises(UnknownNameError, match="did you mean 'blue'"):
        algo.remove_module("blu")
    algo.remove_module("blue", new_agent_to_module_mapping_fn={"*": "red"})
    with pytest.raises(UnknownNameError, match="the only one"):
        algo.remove_module("red")
    assert sampled(algo.train()) == {"red"}


def test_pieces_of_ones_own_stay_when_modules_change(built):
    class Ours(AgentToModuleMapping):
        """A mapping of one's own."""

    def pieces(*_):
        default = small().build_learner_connector(Carts({"num_agents": 3}).observation_space, None).connectors
        mapping = Ours(rl_module_specs={"red", "blue", "past"}, as_learner_connector=True)
        ours = [mapping if isinstance(piece, AgentToModuleMapping) else piece for piece in default]
        advantages = GeneralAdvantageEstimation(gamma=0.5, per_module={"red": {"gamma": 0.25}})
        return [AddOneTsToEpisodesAndTruncate(), *ours, advantages]

    config = small().learners(learner_connector=pieces, add_default_connectors_to_learner_pipeline=False)
    algo = built(config)
    before = list(algo.pipelines["learner"].connectors)
    algo.add_module("past", new_agent_to_module_mapping_fn=WITH_PAST)
    after = algo.pipelines["learner"].connectors
    assert len(after) == len(before)
    assert all(one is other for one, other in zip(after, before))
    assert set(learned(algo.train())) <= {"red", "blue", "past"}


def test_modules_of_a_multi_rl_module_spec_come_and_go(built):
    given = MultiRLModuleSpec(rl_module_specs={"red": RLModuleSpec(), "blue": RLModuleSpec()})
    other = built(small().rl_module(rl_module_spec=given))
    other.add_module("past")
    other.remove_module("blue", new_agent_to_module_mapping_fn={"0": "red", "*": "past"})
    assert list(other.learner.module) == ["red", "past"]
    assert list(given.rl_module_specs) == ["red", "blue"]
    assert sorted(other.config.get_rl_module_spec(env=other.env_runner.env).rl_module_specs) == ["past", "red"]
    assert sampled(other.train()) == {"red", "past"}
