"""Catch: the pictures, the rules, a first iteration, and the same stacks on both sides."""

from __future__ import annotations

import numpy as np


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
