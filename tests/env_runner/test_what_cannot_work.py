"""Faults of a user's program: each is named with its place and a remedy, one table for all."""

from __future__ import annotations

import re
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors import Clip, DropColumns, FrameStacking, MeanStdFilter, Piece
from epibatch.connectors.actions import ActionMask
from epibatch.connectors.observations import PadRaggedRows
from epibatch.connectors.views import TrajectoryViews, View
from epibatch.core.errors import EpibatchError, EpibatchWarning


class Points(gym.Env[Any, Any]):
    observation_space: Any = gym.spaces.Sequence(gym.spaces.Box(-1, 1, (2,), np.float32))
    action_space: Any = gym.spaces.Discrete(3)

    def observe(self) -> Any:
        return (np.zeros(2, np.float32),) * self.t

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.observe(), 1.0, self.t == 3, False, {}


class Masked(Points):
    observation_space = gym.spaces.Dict(action_mask=gym.spaces.MultiBinary(3), square=gym.spaces.Box(0, 9, (1,)))

    def observe(self) -> Any:
        return {"action_mask": np.int8([1, 0, 1]), "square": np.float32([self.t])}


class Own(gym.Space[Any]):
    pass


class Owned(Points):
    observation_space = Own()


def viewed(name: str, column: str, **settings: Any) -> Any:
    return TrajectoryViews(views={name: View(column, -1, **settings)})


NOWHERE: Any = {"columns": "obs/nowhere"}
BOX = gym.spaces.Box(0, 1, (2,))

FAULTS: dict[str, tuple[type, list[Any], list[Any], str]] = {
    "ragged rows without a piece": (Points, [], [], r"observation space[\s\S]*Sequence[\s\S]*PadRaggedRows into both"),
    "ragged rows, a piece on one side": (
        Points,
        [PadRaggedRows(max_rows=4)],
        [],
        r"LearnerConnectorPipeline, piece \d[\s\S]*PadRaggedRows into this pipeline",
    ),
    "a path of a pixel piece": (Masked, [Clip(low=0, high=1, **NOWHERE)], [], ""),
    "a path of a filter": (Masked, [MeanStdFilter(**NOWHERE)], [], ""),
    "a path of a stack": (Masked, [FrameStacking(num_frames=2, **NOWHERE)], [], ""),
    "a path of a view": (Masked, [viewed("v", "obs/nowhere")], [], ""),
    "a path of a learner piece": (Masked, [], [DropColumns(**NOWHERE)], ""),
    "a view of a column that is nowhere": (
        Masked,
        [],
        [viewed("v", "nowhere")],
        r"LearnerConnectorPipeline, piece 0 \(TrajectoryViews\)[\s\S]*'nowhere'[\s\S]*Known: ",
    ),
    "a view of it with a space, acting": (
        Masked,
        [viewed("v", "nowhere", space=BOX)],
        [],
        r"EnvToModulePipeline, piece 0 \(TrajectoryViews\)[\s\S]*'nowhere'[\s\S]*Known: ",
    ),
    "a space that is not registered": (
        Owned,
        [],
        [],
        r"environment Owned[\s\S]*Own[\s\S]*register_space\(Own, encode\)",
    ),
}


PLACE = r"Pipeline, piece 0 \([\s\S]*'nowhere'[\s\S]*Known: action_mask, square"


def config(env: Any, acting: list[Any], learning: list[Any]) -> PPOConfig:
    made = PPOConfig().environment(env).training(train_batch_size=8, minibatch_size=8, num_epochs=1)
    made.env_runners(env_to_module_connector=(lambda env, spaces, device: acting) if acting else None)
    return made.training(learner_connector=(lambda obs, act: learning) if learning else None).debugging(seed=0)


def train(config: PPOConfig) -> None:
    algo = config.build_algo()
    try:
        algo.train()
    finally:
        algo.stop()


@pytest.mark.filterwarnings("ignore:.*observation space of module")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_with_its_place_and_a_remedy(fault: str) -> None:
    env, acting, learning, match = FAULTS[fault]
    with pytest.raises(EpibatchError, match=match or PLACE) as caught:
        train(config(env, acting, learning))
    assert "do:" in str(caught.value)


class Double(Piece):
    reads, writes = (), ("double",)

    def run(self, columns: Any, group: Any) -> Any:
        return columns


MASK = [ActionMask()]
SECOND = r"piece 1 \({0}\)\n[\s\S]*column '{1}', which EnvToModulePipeline, piece 0 [\s\S]*another name"


@pytest.mark.parametrize(
    ("acting", "match"),
    [
        ([], r"space of module 'default_policy'\n[\s\S]*mask[\s\S]*put ActionMask"),
        (MASK, ""),
        ([viewed("v", "obs"), viewed("v", "actions")], SECOND.format("TrajectoryViews", "v")),
        ([viewed("v", "obs"), viewed("w", "actions")], ""),
        ([Double(), Double()], SECOND.format("Double", "double")),
    ],
    ids=["a mask that nothing reads", "one that a piece reads", "two views of a name", "two names", "two pieces"],
)
def test_what_may_be_meant_is_a_warning(acting: list[Any], match: str) -> None:
    env = Masked if not acting or acting is MASK else "CartPole-v1"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", EpibatchWarning)
        config(env, acting, []).build_algo().stop()
    texts = [str(item.message) for item in caught if isinstance(item.message, EpibatchWarning)]
    assert bool(texts) is bool(match) and all(re.search(match, text) for text in texts)
