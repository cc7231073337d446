"""Actions that a module decides on in another space than the environment's."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.algorithms import Policy
from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors.actions import DiscretizeActions
from epibatch.connectors.authoring import ColumnTransform, Undo, undo_actions
from epibatch.connectors.common import AgentToModuleMapping
from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.connectors.module_to_env import (
    ModuleToAgentUnmapping,
    ModuleToEnvPipeline,
    TensorToNumpy,
    UnBatchToIndividualItems,
)
from epibatch.connectors.observations import Affine
from epibatch.core.distributions import TorchCategorical
from epibatch.core.errors import PieceError, PieceOutputError
from epibatch.env_runner import SingleAgentEnvRunner
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode

ENV = gym.spaces.Box(-2.0, 2.0, (1,), np.float32)


class Double(ColumnTransform):
    columns = "actions"
    monotonic = True

    def transform(self, x):
        return x * 2

    def inverse(self, y):
        return y / 2


def episodes(count):
    return [SingleAgentEpisode(id_=f"e{i}", observations=[np.zeros(3, np.float32)]) for i in range(count)]


def undone(undo, actions):
    """What the environment gets of these rows of actions, one per episode."""
    batch = {"actions": {(f"e{i}",): [row] for i, row in enumerate(actions)}}
    out = undo(batch=batch, episodes=episodes(len(actions)))["actions_for_env"]
    return np.array([out[f"e{i}",][0] for i in range(len(actions))])


def config(pieces, **runners):
    small = {"train_batch_size": 32, "minibatch_size": 32, "num_epochs": 1}
    made = PPOConfig().environment("Pendulum-v1").training(**small).debugging(seed=0)
    made.rl_module(model_config={"fcnet_hiddens": [8]})
    return made.env_runners(
        num_envs_per_env_runner=2, env_to_module_connector=lambda env, spaces, device: pieces(), **runners
    )


class Greedy:
    """A module of three choices without a state."""

    action_space = gym.spaces.Discrete(3)

    @staticmethod
    def get_inference_action_dist_cls():
        return TorchCategorical

    @staticmethod
    def is_stateful():
        return False


def test_several_are_undone_last_first_and_once():
    made = config(lambda: [Double(), DiscretizeActions(bins=3, value="edge")])
    spaces = {"__env_single__": (gym.spaces.Box(-1, 1, (3,)), ENV)}
    first = made.build_env_to_module_connector(None, spaces)
    second = made.build_module_to_env_connector(None, spaces)
    for _ in range(2):
        undo_actions(first, second)
    assert first.action_space == gym.spaces.Discrete(3)
    assert [piece.of for piece in second[Undo]] == [first[1], first[0]]
    assert second.names.index("undo_1") + 1 == second.names.index("normalize_and_clip_actions")
    logits = torch.tensor([[0.0, 0.0, 9.0]])
    out = second(rl_module=Greedy(), batch={"action_dist_inputs": logits}, episodes=episodes(1), explore=False)
    assert [float(np.ravel(one)[0]) for one in out["actions_for_env"]] == [2.0]  # the last of -4, 0, 4; Double: 2
    assert [int(one) for one in out["actions"]] == [2]


def test_a_policy_and_a_checkpoint_undo_as_well(tmp_path):
    algo = config(lambda: [DiscretizeActions(bins=5, value="edge")]).build_algo()
    algo.train()
    observation = np.array([0.1, 0.2, 0.3], np.float32)
    action, _ = algo.act(observation)
    path = algo.save_to_path(str(tmp_path / "saved"))
    algo.stop()
    again, _ = Policy.from_checkpoint(path).act(observation)
    assert round(float(np.ravel(action)[0]), 4) in (-2.0, -1.0, 0.0, 1.0, 2.0)
    assert np.array_equal(action, again)


class DoubleOfOwnSpace(Double):
    uses_spaces = True


@pytest.mark.parametrize("pieces", [[DoubleOfOwnSpace()], [Double(), DoubleOfOwnSpace()]])
def test_agents_of_one_module_get_actions_in_the_types_of_their_own_spaces(pieces):
    spaces = gym.spaces.Dict(a=gym.spaces.Box(-9, 9, (1,), np.float32), b=gym.spaces.Box(-9, 9, (1,), np.int64))
    env_to_module = EnvToModulePipeline(None, spaces, connectors=[*pieces, AgentToModuleMapping()])
    module_to_env = ModuleToEnvPipeline(
        None, spaces, connectors=[TensorToNumpy(), UnBatchToIndividualItems(), ModuleToAgentUnmapping()]
    )
    undo_actions(env_to_module, module_to_env)
    episode = MultiAgentEpisode(id_="e")
    episode.add_env_reset(observations={"a": 0, "b": 0})
    out = module_to_env(batch={"default_policy": {"actions": np.full((2, 1), 4.0)}}, episodes=[episode])
    found = [out["actions_for_env"]["e", agent, "default_policy"][0] for agent in ("a", "b")]
    assert [own.dtype for own in found] == [np.float32, np.int64]
    assert [own.item() for own in found] == [4.0 / 2 ** len(pieces)] * 2


def test_a_transform_of_actions_needs_an_inverse():
    class OneWay(ColumnTransform):
        columns = "actions"

        def transform(self, x):
            return x

    with pytest.raises(PieceError, match=r"write inverse\(self, y\)"):
        SingleAgentEnvRunner(config=config(lambda: [OneWay()]))
    with pytest.raises(PieceError, match=r"Undo.of[\s\S]*found: .*OneWay"):
        Undo(of=OneWay())


@pytest.mark.parametrize("space", [gym.spaces.Discrete(50), gym.spaces.Box(0, 49, (), np.int64)])
def test_integers_come_back_as_they_were(space):
    scaled = np.float32(np.arange(50)) * np.float32(0.3)  # 15 and 30 come back from it a little too small
    found = undone(Undo(None, space, of=Affine(columns="actions", scale=0.3)), scaled)
    assert found.dtype == space.dtype and (found == np.arange(50)).all()


def test_each_of_two_equal_transforms_takes_the_place_of_a_copy_of_its_own():
    env_to_module = EnvToModulePipeline(None, ENV, connectors=[Double(), Double()])
    module_to_env = ModuleToEnvPipeline(
        connectors=[TensorToNumpy(), UnBatchToIndividualItems(), Undo(of=Double()), Undo(of=Double())]
    )
    undo_actions(env_to_module, module_to_env)
    first, second = module_to_env[Undo]
    assert first.of is env_to_module[1] and second.of is env_to_module[0]


class Two(ColumnTransform):
    """Lets the module give one number, and gives the environment something of two."""

    columns = "actions"
    answer: Any = None

    def transform(self, x):
        return x[:, :1]

    def inverse(self, y):
        return self.answer(y)


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (lambda y: y, r"3 rows of shape \(2,\), numbers of Box(?s:.*)float32 of shape \(3, 1\)"),
        (lambda y: np.concatenate([y, y], 1)[:2], r"of shape \(2, 2\)"),
        (lambda y: [[0.0, 0.0] for _ in y], "found:    list"),
        (lambda y: np.concatenate([y, y], 1).astype(str), "<U32 of shape"),
    ],
)
def test_an_inverse_that_gives_no_actions_of_the_environment_is_named(answer, match):
    undo = Undo(None, gym.spaces.Box(-1, 1, (2,), np.float32), of=Two(answer=answer))
    with pytest.raises(PieceOutputError, match=rf"Two\.inverse(?s:.*){match}"):
        undone(undo, np.full((3, 1), 0.5, np.float32))


class Squares(ColumnTransform):
    columns = "actions"

    def transform(self, x):
        return x**2

    def inverse(self, y):
        return np.sqrt(y)


def test_an_inverse_that_gives_nan_is_named():
    undo = Undo(input_action_space=ENV, of=Squares(input_action_space=ENV))
    assert undone(undo, np.float32([[4.0], [1.0], [np.inf]])).tolist() == [[2.0], [1.0], [2.0]]
    with np.errstate(invalid="ignore"), pytest.raises(PieceOutputError, match=r"Squares\.inverse[\s\S]*NaN"):
        undone(undo, np.float32([[4.0], [-1.0]]))
    assert np.isnan(undone(undo, np.float32([[np.nan]]))[0, 0])  # the module's own
