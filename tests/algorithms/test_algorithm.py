"""Algorithms of one agent: training, saving and restoring, devices, and how PPO is built from its config."""

from __future__ import annotations

import copy
import random
import types

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.algorithms import BC, PPO, Algorithm, AlgorithmConfig, BCConfig, PPOConfig, register_algorithm
from epibatch.algorithms.algorithm_classes import get_trainable_cls
from epibatch.connectors import ConnectorV2
from epibatch.connectors.learner import GeneralAdvantageEstimation
from epibatch.connectors.rewards import NormalizeReward
from epibatch.core.errors import CheckpointError, ConfigError, EpibatchError, UnknownNameError
from epibatch.core.registry import register_env
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule, ValueFunctionAPI
from epibatch.episodes import SingleAgentEpisode
from epibatch.learner import Losses, PPOSettings, UpdateRule
from fixture_configs import cart_pole, learned, same_weights, weights
from fixture_envs import CountingEnv

LSTM = {"use_lstm": True, "lstm_cell_size": 8}


def small(env="CartPole-v1", **training):
    return cart_pole(env, train_batch_size=64, num_epochs=2, **training).env_runners(num_envs_per_env_runner=4)


# ------------------------------------------------------------------------------------------------- training


def test_train_returns_what_a_run_needs(built):
    algorithm = built(small())
    before = weights(algorithm)
    results = algorithm.train()
    assert results["training_iteration"] == algorithm.training_iteration == 1
    assert 64 <= results["num_env_steps_sampled_lifetime"] < 64 + 4  # whole vector steps
    assert {"episode_return_mean", "episode_len_mean", "num_episodes"} <= results["env_runners"].keys()
    assert np.isfinite(learned(results)["default_policy"]["policy_loss"])
    assert results["time_total_s"] >= results["timers"]["sample"] + results["timers"]["learn"] > 0
    assert not same_weights(before, weights(algorithm))
    assert algorithm.get_module() is algorithm.env_runner.module
    assert algorithm.learner_group.foreach_learner(lambda learner: learner) == [algorithm.learner]
    assert algorithm.learner_group.is_local
    assert 128 <= algorithm.train()["num_env_steps_sampled_lifetime"] < 128 + 8


def test_steps_after_an_update_that_failed_have_another_number_of_weights(built, monkeypatch):
    """It may have changed the weights before it failed, and runners in other processes get those with a new number."""
    algorithm = built(small())
    algorithm.train()
    with monkeypatch.context() as patch:
        patch.setattr(algorithm.learner, "update", lambda **_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            algorithm.train()
    episodes = algorithm.env_runner.sample(num_timesteps=4)
    assert {number for e in episodes for number in e.get_extra_model_outputs("weights_seq_no").tolist()} == {2}


@pytest.mark.parametrize("settings", [{"rollout_fragment_length": 8}, {"batch_mode": "complete_episodes"}])
def test_short_fragments_and_whole_episodes_fill_the_batch(built, settings):
    assert built(small().env_runners(**settings)).train()["num_env_steps_sampled_lifetime"] >= 64


def test_the_default_lstm_needs_no_max_seq_len(built):
    """The default of docs/configuration.md is one: what is trained is what 20 trains."""
    configs = [small().rl_module(model_config={**LSTM, **extra}) for extra in ({}, {"max_seq_len": 20})]
    default, given = (learned(built(config).train()) for config in configs)
    assert default == given and np.isfinite(default["default_policy"]["total_loss"])


def test_the_seed_sets_all_global_generators(built):
    draws = []
    for seed in (7, 7, 2**32 - 1):
        built(cart_pole().debugging(seed=seed))
        draws.append([torch.rand(1).item(), np.random.normal(), random.gauss(0, 1)])
    assert draws[0] == draws[1] and not set(draws[0]) & set(draws[2])


def test_learner_history_reaches_the_runner(algorithm):
    algo = algorithm("frames")
    assert algo.learner.connector.lookback_needed == 3
    algo.train()
    algo.train()


def test_iterations_end_with_the_goal_or_the_limit_and_go_on_without_either(built):
    def lengths(config, most=20):
        algorithm, seen = built(config), []
        for _, results in zip(range(most), algorithm.iterations()):
            seen.append(results["env_runners"]["num_episodes_lifetime"])
        assert algorithm.training_iteration == len(seen)
        return seen

    goal = small().reporting(metrics_num_episodes_for_smoothing=10).stopping(episode_return_mean=1.0)
    episodes = lengths(goal)
    assert episodes[-1] >= 10 > max([0, *episodes[:-1]])  # the mean must be one of ten episodes
    assert len(lengths(small().stopping(training_iteration=3))) == 3
    assert len(lengths(small(), most=5)) == 5


# ---------------------------------------------------------------------------------------- save and restore


@pytest.mark.parametrize("env", ["CartPole-v1", "Counting"])
def test_saving_each_iteration_changes_nothing(built, tmp_path, env):
    """Episodes of the second last longer than the 16 steps that each of 4 environments makes in an iteration."""
    runs = []
    for save in (False, True):
        algorithm = built(small(env if env == "CartPole-v1" else lambda env_config: CountingEnv(length=20)))
        rows = []
        for _ in range(3):
            results = algorithm.train()
            rows.append(learned(results))
            if save:
                algorithm.save_to_path(tmp_path / "checkpoint")
        runs.append((rows, weights(algorithm), results["env_runners"]["num_episodes_lifetime"]))
    (plain, left, ended), (saved, right, ended_too) = runs
    assert plain == saved and same_weights(left, right) and ended == ended_too
    if env == "Counting":
        assert ended == 4 * (3 * 16 // 20) and results["env_runners"]["episode_return_mean"] == 20.0


def test_restored_runs_are_alike_whatever_was_trained_before(built, tmp_path):
    algorithm, other = built(small()), built(small().debugging(seed=8))
    algorithm.train()
    path = algorithm.save_to_path(tmp_path / "checkpoint", end_episodes=True)
    expected = learned(algorithm.train())
    other.train()
    other.train()
    other.restore_from_path(path)
    assert other.training_iteration == 1 and learned(other.train()) == expected
    for _ in range(2):
        torch.manual_seed(999)
        twin = Algorithm.from_checkpoint(path)
        assert isinstance(twin, PPO) and twin.training_iteration == 1 and learned(twin.train()) == expected
        twin.stop()


def test_a_failed_iteration_does_not_count(built, tmp_path):
    class FailsOnce(ConnectorV2):
        calls = 0

        def __call__(self, *, rl_module, batch, episodes, **kwargs):
            FailsOnce.calls += 1
            if FailsOnce.calls == 2:
                raise ZeroDivisionError("in the second iteration")
            return batch

    config = small().training(learner_connector=lambda env: FailsOnce())
    algorithm, twin = built(config), built(config)
    algorithm.train()
    with pytest.raises(ZeroDivisionError):
        algorithm.train()
    twin.restore_from_path(algorithm.save_to_path(tmp_path / "checkpoint"))
    for again in (algorithm, twin):
        results = again.train()
        assert results["training_iteration"] == 2
        assert 2 * 64 <= results["num_env_steps_sampled_lifetime"] < 3 * 64


class Scale(ConnectorV2):
    def __init__(self, input_observation_space=None, input_action_space=None, *, factor):
        super().__init__(input_observation_space, input_action_space)
        self.factor = factor

    def __call__(self, *, batch, **kwargs):
        return batch


def make_env(env_config):
    return gym.make("CartPole-v1")


@pytest.mark.parametrize(
    ("section", "settings", "message"),
    [
        ("training", {"learner_connector": lambda env: Scale(factor=lambda: 0.5)}, r"piece .*Scale, argument 'factor'"),
        ("environment", {"env": make_env}, r"environment\.env: function is code"),
        ("callbacks", {"on_episode_end": lambda **_: None}, r"callbacks\.on_episode_end: function is code, not data"),
    ],
)
def test_a_config_that_is_code_is_asked_for(built, tmp_path, section, settings, message):
    config = getattr(small(), section)(**settings)
    path = built(config).save_to_path(tmp_path / "checkpoint")
    with pytest.raises(CheckpointError, match=rf"(?s)the original config.*{message}"):
        PPO.from_checkpoint(path)
    PPO.from_checkpoint(path, config=config).stop()


def test_registered_names_and_functions_without_pieces_are_data(built, tmp_path):
    register_env("my_cart_pole", make_env)
    algorithm = built(small("my_cart_pole").env_runners(env_to_module_connector=lambda env: []))
    PPO.from_checkpoint(algorithm.save_to_path(tmp_path / "checkpoint")).stop()


def filtered(hiddens=4, *, seed=0):
    config = cart_pole().rl_module(model_config={"fcnet_hiddens": [hiddens]}).debugging(seed=seed)
    return config.env_runners(env_to_module_connector=["mean_std_filter"], num_envs_per_env_runner=2)


@pytest.fixture(scope="module")
def refusing(tmp_path_factory):
    """The state of another algorithm, the checkpoint of one of another network, and results of undisturbed runs."""
    algorithms = [filtered(seed=5).build_algo(), filtered(6).build_algo(), filtered().build_algo()]
    other, wider, plain = algorithms
    other.train()
    path = wider.save_to_path(tmp_path_factory.mktemp("wider") / "saved")
    expected = [learned(plain.train()) for _ in range(3)]
    yield other.get_state(), wider.get_state(), path, expected
    for algorithm in algorithms:
        algorithm.stop()


SPOILED = {
    "a filter": (("env_runner", "env_to_module_connector", "mean_std_filter"), {"count": "many"}),
    "a piece that is not there": (("env_runner", "module_to_env_connector", "unknown_piece"), {"a": 1}),
    "counts": (("env_runner", "num_env_steps_sampled_lifetime"), "many"),
    "generators": (("random", "python"), None),
}


@pytest.mark.parametrize("what", [*SPOILED, "a network", "missing parts", "a checkpoint"])
def test_a_state_that_is_refused_changes_nothing(built, refusing, what):
    state, wider, path, expected = refusing
    state = copy.deepcopy(state)
    if what in SPOILED:
        (*keys, last), value = SPOILED[what]
        place = state
        for key in keys:
            place = place[key]
        place[last] = value
    elif what == "a network":
        state["learner"] = copy.deepcopy(wider["learner"])
    elif what == "missing parts":
        del state["env_runner"], state["random"]
    algorithm = built(filtered())
    found = [learned(algorithm.train())]
    before = algorithm.get_state()
    with pytest.raises(EpibatchError) as raised:
        algorithm.restore_from_path(path) if what == "a checkpoint" else algorithm.set_state(state)
    assert what != "missing parts" or "no env_runner, random" in str(raised.value)
    np.testing.assert_equal(algorithm.get_state(), before)
    found += [learned(algorithm.train()) for _ in range(2)]  # running episodes go on, too
    assert found == expected


def test_what_was_saved_before_the_first_update_knows_nothing_after_it(built, tmp_path):
    algorithm = built(cart_pole().learners(learner_connector=lambda *_: NormalizeReward()))
    algorithm.save_to_path(tmp_path)
    algorithm.train()
    known = algorithm.learner.get_state()["connector"]["normalize_reward"]["modules"]
    assert known["default_policy"]["since"]["count"] == 32
    algorithm.restore_from_path(tmp_path)
    assert algorithm.learner.get_state()["connector"]["normalize_reward"] == {}


# ------------------------------------------------------------------------------------------------- devices


def test_a_device_that_is_not_there_is_named():
    config = small().learners(device=f"cuda:{torch.cuda.device_count()}")
    with pytest.raises(ConfigError, match=r"learners.device: 'cuda:\d+' cannot be used here: .*cpu can be used"):
        config.build_algo()


def test_all_tensors_live_on_the_device(built):
    device, seen = "cuda" if torch.cuda.is_available() else "cpu", []

    def spy(forward):
        def run(batch, **kwargs):
            seen.append({leaf.device.type for leaf in batch.values() if isinstance(leaf, torch.Tensor)})
            return forward(batch, **kwargs)

        return run

    algorithm = built(small().learners(device=device))
    module = algorithm.get_module()
    for name in ("forward_exploration", "forward_train"):
        setattr(module, name, spy(getattr(module, name)))
    algorithm.train()
    assert {parameter.device.type for parameter in module.parameters()} == {device}
    assert seen and all(devices == {device} for devices in seen)


def test_the_device_reaches_pipelines_and_learner(monkeypatch):
    """Without a second device at hand: where the config's device goes."""
    given, config = [], small().learners(device="cuda:1")
    config.env_runners(env_to_module_connector=lambda env, spaces, device: given.append(device) or [])
    observation, action = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2)
    acting = config.build_env_to_module_connector(spaces={"__env_single__": (observation, action)})
    learning = config.build_learner_connector(observation, action)
    monkeypatch.setattr("epibatch.algorithms.algorithm.Learner", lambda **settings: given.append(settings["device"]))
    algo = types.SimpleNamespace(config=config, build_rule=lambda: None, learner_overrides=dict)
    PPO.build_learner(algo, module=None, connector=None)
    assert [*given, *(pipeline["NumpyToTensor"].device for pipeline in (acting, learning))] == ["cuda:1"] * 4


# ----------------------------------------------------------------------------------------------------- PPO


def test_settings_reach_the_learner_and_later_changes_do_not(built):
    loss = {
        "clip_param": 0.1,
        "vf_clip_param": float("inf"),
        "vf_loss_coeff": 0.5,
        "entropy_coeff": 0.02,
        "use_kl_loss": False,
        "kl_coeff": 0.3,
        "kl_target": 0.04,
    }
    config = cart_pole(
        lr=0.25, minibatch_size=16, num_epochs=2, grad_clip=0.5, grad_clip_by="norm", shuffle_batch_per_epoch=False
    )
    algorithm = built(config.training(**loss).debugging(seed=5))
    config.training(lr=0.5)
    settings = algorithm.learner.settings_of("default_policy")
    assert (settings.lr, settings.minibatch_size, settings.num_epochs, settings.seed) == (0.25, 16, 2, 5)
    assert (settings.grad_clip, settings.grad_clip_by, settings.shuffle) == (0.5, "norm", "once")
    of_loss = algorithm.learner.loss_of("default_policy").settings
    assert {name: getattr(of_loss, name) for name in PPOSettings.names()} == PPOSettings(**loss).values()
    assert of_loss.lr == 0.25
    assert isinstance(algorithm.learner.connector[-1], GeneralAdvantageEstimation)
    assert algorithm.config.lr == 0.25


class ActsOnly(TorchRLModule):
    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": torch.zeros(len(batch["obs"]), 2)}


class Remembers(ActsOnly, ValueFunctionAPI):
    def get_initial_state(self):
        return {"h": torch.zeros(1)}

    def compute_values(self, batch, embeddings=None):
        return torch.zeros(batch["obs"].shape[:-1])


def own_module(module_class):
    spec = RLModuleSpec(module_class=module_class, model_config={"own": 1})
    return PPOConfig().environment("CartPole-v1").rl_module(rl_module_spec=spec)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (PPOConfig(), "expected: an environment"),
        (own_module(ActsOnly), r"PPO with the module ActsOnly\n.*value function\n.*compute_values\n.*ValueFunctionAPI"),
        (own_module(Remembers), r"(?s)model_config of Remembers\n.*max_seq_len.*\"max_seq_len\": 20"),
    ],
    ids=["no environment", "no value function", "no max_seq_len"],
)
def test_what_cannot_be_built_is_found_before_sampling(config, message):
    with pytest.raises(ConfigError, match=message):
        config.build_algo()


def test_without_the_default_pieces_a_value_function_is_up_to_the_user(built):
    built(own_module(ActsOnly).learners(add_default_connectors_to_learner_pipeline=False))


def test_algorithm_classes_by_name():
    assert get_trainable_cls("PPO") is PPO
    config = PPO.get_default_config()
    assert type(config) is PPOConfig and config.to_dict() == PPOConfig().to_dict()
    assert PPO.get_default_config() is not config
    with pytest.raises(UnknownNameError, match=r"'Dreamer'\n.*Known: .*PPO"):
        get_trainable_cls("Dreamer")
    with pytest.raises(ConfigError, match="an environment"):
        Algorithm(AlgorithmConfig())


class MeanValue(UpdateRule):
    """Raises all values."""

    def losses(self, batch, module, own, coefficients):
        return Losses({"total": -module.compute_values(batch).mean()})


@pytest.mark.parametrize("name", ["BC", "bc", "values_by_name", "VALUES_BY_NAME"])
def test_algorithms_without_a_class_of_their_own_have_one_by_their_name(name, tmp_path):
    @register_algorithm("values_by_name")
    class ValuesConfig(AlgorithmConfig):
        rule = MeanValue

    cls = get_trainable_cls(name)
    assert issubclass(cls, Algorithm) and cls is get_trainable_cls(name)
    config = cls.get_default_config()
    assert config is not cls.get_default_config()
    if isinstance(config, BCConfig):
        assert cls is BC
        episode = SingleAgentEpisode(observations=[[0.0], [1.0]], actions=[1], rewards=[0.0], len_lookback_buffer=0)
        config.offline_data(input_=[episode])
        assert "input_=<1 episodes>" in repr(config) and "SingleAgentEpisode" not in repr(config)
    algo = config.environment("CartPole-v1").build_algo() if cls is not BC else cls(config=config)
    assert type(algo) is cls and cls.__name__ == type(config).__name__.removesuffix("Config")
    algo.save_to_path(tmp_path)
    algo.stop()
    given = {"config": config} if cls is BC else {}  # which has the episodes
    restored = cls.from_checkpoint(tmp_path, **given)
    assert type(restored) is cls
    restored.stop()
    with pytest.raises(CheckpointError, match="a checkpoint of PPO"):
        get_trainable_cls("PPO").from_checkpoint(tmp_path, **given)
