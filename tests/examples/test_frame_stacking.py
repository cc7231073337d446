"""Frame stacking: one iteration with and without, and what both sides' networks see."""

from __future__ import annotations

import numpy as np
import pytest


def test_velocities_are_hidden(load_example):
    env = load_example("frame_stacking").PositionsOnly()
    observation, _ = env.reset(seed=0)
    position, _, angle, _ = env.unwrapped.state
    assert env.observation_space.contains(observation)
    np.testing.assert_allclose(observation, [[position / 2.4], [angle / 0.2095]], rtol=1e-5)


@pytest.mark.parametrize("num_frames", [1, 4])
def test_both_sides_see_the_same_stacks(load_example, num_frames):
    example = load_example("frame_stacking")
    algorithm = example.config_for(example.Options(), num_frames).build_algo()
    module, connector = algorithm.get_module(), algorithm.learner.connector
    assert module.observation_space.shape == (2, num_frames)
    for _ in range(3):
        episodes = algorithm.env_runner.sample(num_timesteps=200)
        (batch,) = connector(rl_module=algorithm.learner.module, batch={}, episodes=episodes).values()
        # The stacks are right if the untrained module gives the logits again that it acted by.
        recorded = batch["action_dist_inputs"][batch["loss_mask"]]
        again = module.forward_train(batch)["action_dist_inputs"][batch["loss_mask"]]
        np.testing.assert_allclose(again.detach().numpy(), recorded.numpy(), atol=1e-6)
    algorithm.stop()
