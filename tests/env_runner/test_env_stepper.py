"""One answer for every autoreset mode, and what a failing environment is told."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from epibatch.env_runner.env_stepper import EnvStepper


class TwoSteps(gym.Env):
    """Ends after two steps; observes 10 * episode + step, in one array that it reuses."""

    observation_space = gym.spaces.Box(0, 100, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self):
        self.episode, self.seen = -1, np.zeros(1, np.float32)

    def _now(self):
        self.seen[0] = 10 * self.episode + self.t
        return self.seen

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._now(), {"start": self.episode}

    def step(self, action):
        self.t += 1
        return self._now(), 1.0, self.t == 2, False, {"t": self.t}


def stepper(mode):
    envs = SyncVectorEnv([TwoSteps, TwoSteps], autoreset_mode=mode, copy=False)
    return EnvStepper(envs, "two-steps")


@pytest.mark.parametrize(
    ("mode", "observation", "final"),
    [
        (AutoresetMode.NEXT_STEP, 2.0, None),
        (AutoresetMode.SAME_STEP, 10.0, 2.0),
        (AutoresetMode.DISABLED, 10.0, 2.0),
    ],
)
def test_where_the_terminal_observation_is(mode, observation, final):
    envs = stepper(mode)
    envs.reset(seed=3)
    first, second = envs.step(np.zeros(2, int)), None
    assert first.final_observations is None and not first.terminateds.any()
    second = envs.step(np.zeros(2, int))
    assert second.terminateds.all() and second.rewards.tolist() == [1.0, 1.0]
    assert second.observations[:, 0].tolist() == [observation] * 2
    if final is None:
        assert second.final_observations is None
    elif mode is AutoresetMode.DISABLED:
        assert second.final_observations[:, 0].tolist() == [final] * 2
        assert second.reset_infos["start"].tolist() == [1, 1] and second.infos["t"].tolist() == [2, 2]
    else:
        assert len(second.final_observations) == 2 and second.reset_infos is None


def test_a_seed_makes_the_random_actions_repeatable():
    envs = stepper(AutoresetMode.NEXT_STEP)
    draws = []
    for _ in range(2):
        envs.reset(seed=11)
        draws.append([envs.env.action_space.sample().tolist() for _ in range(5)])
    assert draws[0] == draws[1]


def test_a_reset_that_cannot_be_done_alone_leaves_the_step_good():
    envs = stepper(AutoresetMode.DISABLED)
    envs.reset(seed=0)
    envs.step(np.zeros(2, int))

    def refuse(**kwargs):
        raise KeyError("reset_mask")

    envs.env.reset = refuse
    step = envs.step(np.zeros(2, int))
    assert step.terminateds.all() and "reset_mask" in str(step.failure)
    assert step.final_observations[:, 0].tolist() == [2.0, 2.0]


def test_time_is_counted():
    envs = stepper(AutoresetMode.NEXT_STEP)
    envs.reset(seed=0)
    envs.step(np.zeros(2, int))
    assert envs.seconds > 0
