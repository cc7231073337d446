"""What a process registered by name is registered in another one; without Ray nothing but a named error happens."""

from __future__ import annotations

import pickle
import sys

import gymnasium as gym
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from epibatch.cluster import ActorGroup, Registrations, connect, registrations
from epibatch.connectors import ConnectorV2
from epibatch.core.errors import ConfigError, MissingExtraError
from epibatch.core.registry import env_creator, register, register_env, registered_pieces, unregister


class Noted(ConnectorV2):
    """A piece of the user."""


@pytest.fixture
def registered():
    """Registrations of one environment, one piece and one id of Gymnasium, which this process forgets again."""
    register_env("sent_env", CartPoleEnv)
    register("sent_piece")(Noted)
    gym.register("Sent-v0", CartPoleEnv, max_episode_steps=7)
    found = registrations()
    unregister("sent_piece")
    gym.registry.pop("Sent-v0")
    specs = [spec for spec in found.gym_specs if spec.id == "Sent-v0"]
    yield Registrations({"sent_env": found.envs["sent_env"]}, {"sent_piece": found.pieces["sent_piece"]}, specs)
    if "sent_piece" in registered_pieces():
        unregister("sent_piece")
    gym.registry.pop("Sent-v0", None)


def test_names_are_known_where_they_are_applied(registered):
    assert "sent_piece" not in registered_pieces()
    registered.apply()
    assert registered_pieces()["sent_piece"] is Noted and env_creator("sent_env") is CartPoleEnv
    assert gym.make("Sent-v0").spec.max_episode_steps == 7
    registered.apply()  # what is known stays


def test_what_cannot_be_sent_is_an_error_only_when_it_is_used(registered):
    unsendable = (CartPoleEnv, Noted, registered.gym_specs[-1])
    sent = registered.sendable(lambda value: value not in unsendable)
    other = pickle.loads(pickle.dumps(sent))
    assert "sent_piece" not in other.pieces
    with pytest.raises(ConfigError, match="environment 'sent_env' in another process"):
        other.envs["sent_env"]({})
    other.apply()
    with pytest.raises(ConfigError, match="environment 'Sent-v0' in another process"):
        gym.make("Sent-v0")


def test_without_ray_there_is_one_error_with_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'epibatch\[ray\]'"):
        connect(num_cpus_needed=1)
    with pytest.raises(MissingExtraError, match=r"pip install 'epibatch\[ray\]'"):
        ActorGroup(object, count=1, arguments={}, name="worker", options={})


def test_nothing_is_registered_by_default():
    Registrations().apply()
