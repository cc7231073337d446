"""Catch: the pictures, the rules, a first iteration, and the same stacks on both sides."""

from __future__ import annotations

import numpy as np
import pytest

from epibatch.core.structs import flatten


def test_one_iteration(load_example, capsys):
    example = load_example("pixel_catch")
    caught, steps = example.main(example.parse(["--steps", "100"]))
    assert 0 <= caught <= 1 and 2048 <= steps < 2048 + 16
    assert "the module sees (10, 10, 2)" in capsys.readouterr().out


def test_the_ball_bounces_and_the_bat_moves(load_example):
    example = load_example("pixel_catch")
    env = example.Catch()
    for seed in range(20):
        picture, _ = env.reset(seed=seed)
        assert env.observation_space.contains(picture)
        columns, bats = [env.column], [env.bat]
        drift = env.drift
        for row in range(1, example.SIDE):
            action = [0, 1, 2, 2, 0, 0, 0, 0, 0][row - 1]
            picture, reward, terminated, truncated, _ = env.step(action)
            assert not truncated and terminated == (row == example.SIDE - 1)
            assert picture[row, env.column, 0] == 255
            assert (picture > 0).sum() == (1 if env.column == env.bat and terminated else 2)
            columns.append(env.column)
            bats.append(env.bat)
        assert bats == [5, 4, 4, 5, 6, 5, 4, 3, 2, 1]
        # Unfolding the walls: a ball that bounces is one that flies on in mirrored fields.
        width = 2 * (example.SIDE - 1)
        straight = [(columns[0] + drift * t) % width for t in range(example.SIDE)]
        assert columns == [min(place, width - place) for place in straight]
        assert reward == (1.0 if env.column == env.bat else -1.0)


def test_every_ball_can_be_caught(load_example):
    example = load_example("pixel_catch")
    env = example.Catch()
    for seed in range(50):
        env.reset(seed=seed)
        width = 2 * (example.SIDE - 1)
        place = (env.column + env.drift * (example.SIDE - 1)) % width
        target, done, reward = min(place, width - place), False, 0.0
        while not done:
            _, reward, done, _, _ = env.step(1 + np.sign(target - env.bat))
        assert reward == 1.0


@pytest.mark.parametrize("num_frames", [1, 2])
def test_episodes_keep_single_frames_of_bytes_and_both_sides_see_stacks(load_example, num_frames):
    example = load_example("pixel_catch")
    algorithm = example.config_for(example.Options(num_frames=num_frames)).build_algo()
    module, connector = algorithm.get_module(), algorithm.learner.connector
    for _ in range(2):
        episodes = algorithm.env_runner.sample(num_timesteps=100)
        assert episodes[0].get_observations().shape[1:] == (10, 10, 1)
        assert episodes[0].get_observations().dtype == np.uint8
        (batch,) = connector(rl_module=algorithm.learner.module, batch={}, episodes=episodes).values()
        assert flatten(batch["obs"])[0][0].shape[1:] == (10, 10, num_frames)
        recorded = batch["action_dist_inputs"][batch["loss_mask"]]
        again = module.forward_train(batch)["action_dist_inputs"][batch["loss_mask"]]
        np.testing.assert_allclose(again.detach(), recorded, atol=1e-5)
    algorithm.stop()
