"""Equal spaces have one encoder, and each agent that of its space."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.connectors.module_to_env import NormalizeAndClipActions
from epibatch.connectors.module_to_env.action_encoders import ActionEncoders
from epibatch.core.errors import SpaceError


def box(high: float) -> gym.spaces.Box:
    return gym.spaces.Box(0.0, high, (1,), np.float32)


def test_each_agent_has_the_encoder_of_its_space() -> None:
    encoders = ActionEncoders(NormalizeAndClipActions())
    spaces = gym.spaces.Dict(a=box(4.0), b=box(4.0), c=box(8.0))
    a, b, c = (encoders.of_agent(spaces, agent) for agent in "abc")
    assert a is b and a is not c
    middle = np.zeros((1, 1), np.float32)
    assert (a(middle).item(), c(middle).item()) == (2.0, 4.0)
    assert encoders.of_agent(spaces, "a") is a
    changed = gym.spaces.Dict(a=box(8.0))
    assert encoders.of_agent(changed, "a") is c, "spaces may be set anew"
    with pytest.raises(SpaceError, match="NormalizeAndClipActions, action space of agent 'b'"):
        encoders.of_agent(changed, "b")


def test_the_pieces_settings_count() -> None:
    encoders = ActionEncoders(NormalizeAndClipActions(normalize_actions=False, clip_actions=True))
    assert encoders.of_space(box(4.0))(np.float32([[9.0]])).item() == 4.0
