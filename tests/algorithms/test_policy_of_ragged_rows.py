"""A policy acts on observations with any number of rows as the runner does: one of them, and several."""

from __future__ import annotations

import json
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms import Policy
from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors.observations import PadRaggedRows
from epibatch.core.errors import ColumnError, SpaceError
from epibatch.core.spaces import space_from_dict, space_to_dict
from epibatch.offline import write_episodes

POINTS = gym.spaces.Sequence(gym.spaces.Box(-1, 1, (2,), np.float32))


class Swarm(gym.Env[Any, Any]):
    action_space = gym.spaces.Discrete(5)

    def __init__(self, space: Any) -> None:
        self.observation_space = space

    def observe(self) -> Any:
        count = int(self.np_random.integers(4))
        rows = tuple(self.np_random.uniform(-1, 1, 2).astype(np.float32) for _ in range(count))
        return (
            {"points": rows, "t": np.float32([self.t])} if isinstance(self.observation_space, gym.spaces.Dict) else rows
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.observe(), 1.0, self.t == 6, False, {}


def tuples(rows: Any) -> Any:
    """An observation as the environment gives it, of the arrays in an episode."""
    return {"points": tuple(rows["points"]), "t": rows["t"]} if isinstance(rows, dict) else tuple(rows)


def together(observations: list[Any]) -> Any:
    if not isinstance(observations[0], dict):
        return observations
    return {"points": [one["points"] for one in observations], "t": np.stack([one["t"] for one in observations])}


@pytest.mark.parametrize("space", [POINTS, gym.spaces.Dict(points=POINTS, t=gym.spaces.Box(0, 9, (1,)))])
def test_it_acts_as_the_runner_does(space: Any) -> None:
    config = PPOConfig().environment(lambda _: Swarm(space)).debugging(seed=1)
    config.env_runners(env_to_module_connector=lambda env, spaces, device: PadRaggedRows(max_rows=3))
    algo = config.build_algo()
    (episode,) = algo.env_runner.sample(num_episodes=1, explore=False)
    seen = [episode.get_observations(t) for t in range(len(episode))]
    expected = episode.get_actions().tolist()
    assert len({len(one["points"] if isinstance(one, dict) else one) for one in seen}) > 1
    for observations in (seen, list(map(tuples, seen))):
        assert [int(algo.act(one)[0]) for one in observations] == expected
        assert algo.get_policy().act(together(observations))[0].tolist() == expected
    wrong = np.zeros((2, 3), np.float32)
    with pytest.raises(
        SpaceError, match=r"observation for Policy.act[\s\S]*any number of rows|Policy.act[\s\S]*Sequence"
    ):
        algo.act({"points": wrong, "t": np.zeros(1)} if isinstance(space, gym.spaces.Dict) else wrong)
    algo.stop()


def test_checkpoints_have_the_space_and_data_sets_refuse_the_rows(tmp_path: Any) -> None:
    config = PPOConfig().environment(lambda _: Swarm(POINTS)).debugging(seed=1)
    config.env_runners(env_to_module_connector=[{"piece": "pad_ragged_rows", "max_rows": 3}])
    algo = config.training(learner_connector=[{"piece": "pad_ragged_rows", "max_rows": 3}]).build_algo()
    algo.save_to_path(tmp_path / "saved")
    rows = np.full((2, 2), 0.5, np.float32)
    assert Policy.from_checkpoint(tmp_path / "saved").act(rows)[0] == algo.get_policy().act(rows)[0]
    with pytest.raises(ColumnError, match=r"'obs' of a data set\n[\s\S]*numbers of one shape, in the environment"):
        write_episodes(algo.env_runner.sample(num_episodes=2), tmp_path / "data")
    algo.stop()


@pytest.mark.parametrize("stack", [False, True])
def test_a_sequence_is_described_and_read_again(stack: bool) -> None:
    space = gym.spaces.Dict(a=gym.spaces.Sequence(gym.spaces.Dict(b=gym.spaces.Discrete(3)), stack=stack))
    described = space_to_dict(space)
    assert json.loads(json.dumps(described)) == described and space_from_dict(described) == space
