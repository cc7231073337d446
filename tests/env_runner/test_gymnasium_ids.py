"""Ids of Gymnasium and their own vector versions."""

from __future__ import annotations

import sys

import gymnasium as gym
import pytest
from gymnasium.vector import AutoresetMode

from epibatch.algorithms import PPOConfig
from epibatch.core.errors import ConfigError, UnknownNameError
from epibatch.env_runner import make_vector_env


def cart_poles(num_envs, autoreset_mode=AutoresetMode.NEXT_STEP, **kwargs):
    return gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1")] * num_envs, autoreset_mode=autoreset_mode)


@pytest.fixture
def own_id():
    gym.register("OwnCartPole-v0", vector_entry_point=cart_poles)
    yield "OwnCartPole-v0"
    del gym.registry["OwnCartPole-v0"]


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_a_vector_entry_point_that_takes_the_mode_gets_it(own_id, mode):
    env = make_vector_env(own_id, 2, "vector_entry_point", autoreset=mode)
    assert env.metadata["autoreset_mode"] is AutoresetMode[mode.upper()] and env.num_envs == 2
    env.close()


def test_one_that_does_not_is_no_silent_other_mode():
    make_vector_env("CartPole-v1", 2, "vector_entry_point", autoreset="next_step").close()
    with pytest.raises(ConfigError, match=r"'same_step', as gym_env_autoreset_mode says\n.*'next_step'.*its own way"):
        make_vector_env("CartPole-v1", 2, "vector_entry_point", autoreset="same_step")


def test_an_id_without_a_vector_version():
    with pytest.raises(ConfigError, match=r"(?s)'Pendulum-v1'.*without vector_entry_point.*'sync'.*CartPole-v1"):
        make_vector_env("Pendulum-v1", 2, "vector_entry_point")


@pytest.mark.parametrize("mode", ["sync", "async", "vector_entry_point"])
def test_unknown_ids(mode):
    with pytest.raises(UnknownNameError, match="did you mean 'CartPole-v"):
        make_vector_env("CartPol-v1", 2, mode)


@pytest.fixture
def chase(tmp_path, monkeypatch):
    """A module with an environment class that nobody registered."""
    name = "chase_of_test_gymnasium_ids"
    (tmp_path / f"{name}.py").write_text(
        "from gymnasium.envs.classic_control.cartpole import CartPoleEnv\n"
        "class Chase(CartPoleEnv):\n"
        "    def __init__(self, length=3):\n"
        "        super().__init__()\n"
        "        self.length_asked_for = length\n"
        "def chase():\n"
        "    return Chase()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_class_by_import_path_needs_no_registration(chase, mode):
    env = make_vector_env(f"{chase}:Chase", 2, mode, {"length": 7})
    assert env.num_envs == 2 and env.get_attr("length_asked_for") == (7, 7)
    env.close()


def test_an_id_of_the_module_comes_before_its_class(chase):
    gym.register("Chase", entry_point=f"{chase}:Chase", kwargs={"length": 9})
    try:
        env = make_vector_env(f"{chase}:Chase", 1)
        assert env.get_attr("length_asked_for") == (9,)
        env.close()
    finally:
        del gym.registry["Chase"]


def test_the_path_of_a_class_is_a_setting_like_an_id(chase):
    data = {"environment": {"env": f"{chase}:Chase"}, "training": {"train_batch_size": 8, "minibatch_size": 8}}
    with pytest.raises(ConfigError, match="runs code"):
        PPOConfig.from_dict(data)
    assert chase not in sys.modules, "nothing was imported without leave"
    algorithm = PPOConfig.from_dict(data, allow_imports=True).build_algo()
    assert algorithm.env_runner.env.get_attr("length_asked_for") == (3,)
    algorithm.stop()


@pytest.mark.parametrize(
    ("name", "found", "do"),
    [
        (
            "Chase-v0",
            "registers no 'Chase-v0', but has the class Chase",
            'name the class, {0}:Chase; or add the line gym.register("Chase-v0", entry_point="{0}:Chase") '
            "to the module, for {0}:Chase-v0",
        ),
        ("chase", "registers no 'chase', and its chase is no class of gymnasium.Env", "check the spelling"),
        ("Zzz-v0", "registers no 'Zzz-v0'\n", 'check the spelling, or add the line gym.register("Zzz-v0"'),
        ("CartPol-v1", "registers no 'CartPol-v1'\n", "did you mean '{0}:CartPole-v1'?"),
    ],
)
def test_a_module_that_registers_no_such_id(chase, name, found, do):
    with pytest.raises(UnknownNameError) as caught:
        make_vector_env(f"{chase}:{name}", 1)
    message = str(caught.value)
    assert f"module {chase} was imported and {found}" in message and do.format(chase) in message
    assert "Acrobot" not in message and "Pendulum" not in message


def test_nothing_is_suggested_for_a_name_that_is_like_no_other():
    with pytest.raises(UnknownNameError) as caught:
        make_vector_env("Qqqqqq", 1)
    assert not [id_ for id_ in gym.registry if id_ in str(caught.value)]
