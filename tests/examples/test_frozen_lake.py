"""FrozenLake: the whole run reaches its target."""

from __future__ import annotations

from pathlib import Path

import pytest

from epibatch.algorithms.ppo import PPOConfig


def test_the_target_is_reached(load_example, capsys):
    example = load_example("frozen_lake")
    share, steps = example.main(example.parse([]))
    assert share >= 0.95 and steps <= 100_000
    out = capsys.readouterr().out
    picture = [line.split() for line in out.splitlines()[-4:]]
    assert [row.count("H") for row in picture] == [0, 2, 1, 1] and picture[3][3] == "G"
    assert walk(picture) == "G"


def walk(picture):
    """Where the arrows lead from the start."""
    x = y = 0
    for _ in range(20):
        if picture[y][x] in "HG":
            break
        dx, dy = {"<": (-1, 0), "v": (0, 1), ">": (1, 0), "^": (0, -1)}[picture[y][x]]
        x, y = min(max(x + dx, 0), 3), min(max(y + dy, 0), 3)
    return picture[y][x]


def test_options_go_into_the_config(load_example):
    example = load_example("frozen_lake")
    config = example.config_for(example.Options(steps=10, seed=4))
    assert config.seed == 4
    assert config.stop_rules.num_env_steps_sampled_lifetime == 10
    assert config.stop_rules.episode_return_mean == pytest.approx(0.95)
    plain = PPOConfig.from_yaml(Path(example.Options().config))
    assert plain.stop_rules.num_env_steps_sampled_lifetime == 100_000
