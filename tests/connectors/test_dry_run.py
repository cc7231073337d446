"""Column spaces are those of the batches that a pipeline makes, and asking for them changes nothing."""

from __future__ import annotations

import copy
import random

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.connectors import ConnectorV2
from epibatch.connectors.authoring import ColumnTransform
from epibatch.connectors.common import AgentToModuleMapping, FrameStacking
from epibatch.connectors.env_to_module import EnvToModulePipeline, MeanStdFilter
from epibatch.connectors.learner import (
    AddNextObservationsFromEpisodesToTrainBatch,
    ComputeReturnsToGo,
    LearnerConnectorPipeline,
)
from epibatch.connectors.module_to_env import ModuleToEnvPipeline
from epibatch.connectors.sequences import JaggedSequences, PackSequences
from epibatch.core.errors import SpaceError
from epibatch.core.rl_module import MultiRLModule, RLModuleSpec
from epibatch.episodes import InfiniteLookbackBuffer, MultiAgentEpisode
from fixture_pieces import Lab, UserPiece

Box, Dict, Discrete, Tuple = gym.spaces.Box, gym.spaces.Dict, gym.spaces.Discrete, gym.spaces.Tuple
FLAG = Box(0, 1, (), np.bool_)


def number(dtype):
    return Box(-np.inf, np.inf, (), dtype)


class Halves(ColumnTransform):
    columns = "rewards"

    def transform(self, x):
        return (x / 2).astype(np.float32)


def spelled(spaces):
    return {name: (tuple(own.space.shape or ()), str(own.space.dtype), own.axes) for name, own in spaces.items()}


def actual(batch, axes):
    """The same of a batch of tensors."""
    return {
        name: (tuple(batch[name].shape[len(own) :]), str(batch[name].dtype).removeprefix("torch."), own)
        for name, own in axes.items()
    }


def learner(*behind, spaces=None, before=()):
    pieces = [*before, *Lab.defaults("learner"), *behind]
    return LearnerConnectorPipeline(*(spaces or (Lab.obs_space, Lab.act_space)), connectors=pieces)


# -- what batches are --------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [0, 3, 4])  # sequences have 4 steps too
@pytest.mark.parametrize("ppo", [False, True])
def test_a_real_train_batch_has_these_columns(state, ppo):
    pieces = [Halves(), AddNextObservationsFromEpisodesToTrainBatch(), ComputeReturnsToGo(gamma=0.5)]
    pieces += Lab.defaults("learner", ppo)
    pipeline = LearnerConnectorPipeline(Lab.obs_space, Lab.act_space, connectors=pieces)
    module = Lab.module(state=state)
    promised = pipeline.column_spaces_for(module)
    episodes = [Lab.episode("a", 5, state=state), Lab.episode("b", 2, state=state)]
    for episode in episodes:
        inputs = InfiniteLookbackBuffer(np.zeros((len(episode), 2), np.float32))
        episode.extra_model_outputs["action_dist_inputs"] = inputs
    batch = pipeline(rl_module=module, episodes=episodes)
    states, expected = ([own.pop(name, None) for name in ("state_in", "next_state_in")] for own in (batch, promised))
    assert batch.keys() == promised.keys()
    axes = {name: own.axes for name, own in promised.items()}
    assert spelled(promised) == actual(batch, axes)
    assert axes["obs"] == (("batch", "time") if state else ("batch",))
    assert all(own.layout == "tensors" for own in promised.values())
    if state:
        assert expected == [(Dict(h=Box(-np.inf, np.inf, (state,), np.float32)), ("batch",), "tensors")] * 2
        assert axes["seq_lens"] == ("batch",) and [own["h"].shape[1:] for own in states] == [(state,)] * 2


def test_pieces_may_read_what_drawing_actions_records():
    def old_logp(batch, episodes):
        for episode in episodes:
            rows = episode.get_extra_model_outputs("action_logp")
            ConnectorV2.add_n_batch_items(batch, "old_logp", rows, len(episode), episode)

    spaces = learner(before=[UserPiece(old_logp)]).column_spaces
    assert spaces["old_logp"] == (number(np.float32), ("batch",), "tensors")


def test_without_a_module_it_is_any_one_without_state():
    expected = {"obs": Lab.obs_space, "actions": Lab.act_space, "rewards": number(np.float32)}
    expected |= {"terminateds": FLAG, "truncateds": FLAG, "action_logp": number(np.float32)}
    expected["action_dist_inputs"] = Box(-np.inf, np.inf, (2,), np.float32)
    assert learner().column_spaces == {name: (space, ("batch",), "tensors") for name, space in expected.items()}


def test_without_spaces_nothing_can_be_drawn():
    assert LearnerConnectorPipeline(connectors=Lab.defaults("learner")).column_spaces == {}
    assert LearnerConnectorPipeline(Lab.obs_space, connectors=Lab.defaults("learner")).column_spaces == {}
    assert EnvToModulePipeline(connectors=Lab.defaults("env_to_module")).column_spaces == {}
    acting = EnvToModulePipeline(Lab.obs_space, connectors=Lab.defaults("env_to_module"))
    assert acting.column_spaces == {"obs": (Lab.obs_space, ("batch",), "tensors")}


def test_batches_to_act_on():
    pieces = [FrameStacking(num_frames=4), Lab.defaults("env_to_module")[3]]
    stacked = EnvToModulePipeline(Box(0, 255, (8, 8, 1), np.uint8), Lab.act_space, connectors=pieces)
    assert stacked.column_spaces == {"obs": (Box(0, 255, (8, 8, 4), np.uint8), ("batch",), "arrays")}
    pipeline = EnvToModulePipeline(Lab.obs_space, Lab.act_space, connectors=Lab.defaults("env_to_module"))
    assert pipeline.column_spaces_for(Lab.module(state=2)) == {
        "obs": (Lab.obs_space, ("batch", "time"), "tensors"),
        "state_in": (Dict(h=Box(-np.inf, np.inf, (2,), np.float32)), ("batch",), "tensors"),
    }


@pytest.mark.parametrize("state", [0, 2])
def test_on_the_way_to_the_environment(state):
    module = Lab.module(state=state)
    module.action_space = Box(-1, 1, (3,), np.float32)
    for_env = Box(0, 10, (3,), np.float32)
    pipeline = ModuleToEnvPipeline(Lab.obs_space, for_env, connectors=Lab.defaults("module_to_env"))
    assert {name: own[:2] for name, own in pipeline.column_spaces_for(module).items()} == {
        "actions": (module.action_space, ("batch",)),
        "actions_for_env": (for_env, ("batch",)),
    }
    assert pipeline.column_spaces["actions"].space == for_env
    assert ModuleToEnvPipeline(connectors=Lab.defaults("module_to_env")).column_spaces == {}


def test_nested_spaces():
    parts = {"near": Box(-1, 1, (2,), np.float64), "word": gym.spaces.Text(5), "two": Tuple([Discrete(3), FLAG])}
    pieces = [piece for piece in Lab.defaults("learner") if type(piece).__name__ != "NumpyToTensor"]
    space = Dict(parts)
    assert LearnerConnectorPipeline(space, Discrete(2), connectors=pieces).column_spaces["obs"].space == space
    del parts["word"]
    numeric = LearnerConnectorPipeline(Dict(parts), Tuple([Discrete(2)]), connectors=Lab.defaults("learner"))
    found = numeric.column_spaces
    assert found["actions"].space == Tuple([Discrete(2)])
    assert found["obs"].space == Dict(near=Box(-1, 1, (2,), np.float32), two=parts["two"]), "as tensors are"


# -- axes --------------------------------------------------------------------------------------------


def test_an_axis_that_changes_is_batch_or_time():
    def made(rows):
        return {
            "fixed": np.zeros((7, 2), np.int8),
            "each": np.zeros((rows, 2), np.int8),
            "pairs": np.zeros((rows, rows + 3, 2), np.int8),
            "cubes": np.zeros((rows, rows, rows), np.int8),
            "complex": np.zeros(rows, np.complex64),
            "sometimes": np.zeros(rows, np.int8 if rows == 4 else np.int16),
            "half": torch.zeros(rows, dtype=torch.bfloat16),
            "note": "text",
            "empty": {},
            "none": [],
        }

    spaces = learner(UserPiece(lambda batch, episodes: {**batch, **made(len(batch["obs"]))})).column_spaces
    int8 = Box(-128, 127, (2,), np.int8)
    assert {name: own for name, own in spaces.items() if name in made(1)} == {
        "fixed": (Box(-128, 127, (7, 2), np.int8), (), "arrays"),
        "each": (int8, ("batch",), "arrays"),
        "pairs": (int8, ("batch", "time"), "arrays"),
    }


def test_sequences_without_padding():
    module = Lab.module(state=2)
    jagged = learner(JaggedSequences()).column_spaces_for(module)
    assert jagged["obs"] == (Lab.obs_space, ("batch",), "tensors") and jagged["seq_offsets"].space.shape == ()
    packed = learner(PackSequences()).column_spaces_for(module)
    assert "obs" not in packed and packed["seq_lens"].axes == ("batch",)


# -- several agents ----------------------------------------------------------------------------------


def which(agent, *_, **__):
    return "q" if agent == "z" else "p"


SMALL, LARGE = Box(0, 1, (2,), np.float32), Box(0, 1, (5,), np.float32)


def agents(at):
    spaces = Dict(x=SMALL, y=SMALL, z=LARGE), Dict(x=Lab.act_space, y=Lab.act_space, z=Lab.act_space)
    pieces = [Halves(), *Lab.defaults("learner")]
    pieces.insert(at, AgentToModuleMapping(agent_to_module_mapping_fn=which))
    return LearnerConnectorPipeline(*spaces, connectors=pieces)


def modules():
    def spec(space, state):
        return RLModuleSpec(
            module_class=type(Lab.module()), observation_space=space, action_space=Lab.act_space,
            model_config={"state": state, "max_seq_len": 3},
        )  # fmt: skip

    return MultiRLModule(rl_module_specs={"p": spec(SMALL, 0), "q": spec(LARGE, 2)})


@pytest.mark.parametrize("at", [3, 4, 5])
def test_a_real_batch_of_several_agents_has_these_columns(at):
    pipeline, module = agents(at=at), modules()
    episode = MultiAgentEpisode(agent_to_module_mapping_fn=which)
    observations = {agent: np.ones(5 if agent == "z" else 2, np.float32) for agent in "xyz"}
    episode.add_env_reset(observations=observations)
    for _ in range(4):
        drawn = {"action_logp": np.float32(-1), "action_dist_inputs": np.zeros(2, np.float32)}
        outputs = {**dict.fromkeys("xy", drawn), "z": {**drawn, "state_out": {"h": np.ones(2, np.float32)}}}
        actions, rewards = dict.fromkeys("xyz", 0), dict.fromkeys("xyz", 1.0)
        episode.add_env_step(observations, actions, rewards, extra_model_outputs=outputs)
    promised = pipeline.column_spaces_for(module)
    batch = pipeline(rl_module=module, episodes=[episode])
    flat = {f"{one}/{name}": column for one, columns in batch.items() for name, column in columns.items()}
    states = flat.pop("q/state_in")
    assert promised.pop("q/state_in") == (Dict(h=Box(-np.inf, np.inf, (2,), np.float32)), ("batch",), "tensors")
    assert states["h"].shape == (2, 2)
    assert flat.keys() - {"q/state_out"} == promised.keys() and {"q/seq_lens", "q/loss_mask"} < promised.keys()
    assert spelled(promised) == actual(flat, {name: own.axes for name, own in promised.items()})
    assert (promised["p/obs"].space, promised["q/obs"].space) == (SMALL, LARGE)
    assert promised["p/obs"].axes == ("batch",) and promised["q/obs"].axes == ("batch", "time")


def test_columns_of_episodes_in_front_of_the_batch():
    pieces = [*Lab.defaults("learner")[:1], AgentToModuleMapping(agent_to_module_mapping_fn=which)]
    spaces = Dict(x=SMALL, z=LARGE), Dict(x=Lab.act_space, z=Lab.act_space)
    expected = {"p/obs": (SMALL, ("batch",), "episodes"), "q/obs": (LARGE, ("batch",), "episodes")}
    assert LearnerConnectorPipeline(*spaces, connectors=pieces).column_spaces == expected
    alone = LearnerConnectorPipeline(SMALL, Lab.act_space, connectors=Lab.defaults("learner")[:1])
    assert alone.column_spaces == {"obs": (SMALL, ("batch",), "episodes")}


# -- nothing changes ---------------------------------------------------------------------------------


class Draws(UserPiece):
    """Draws from every generator that there is."""

    def __init__(self):
        super().__init__()
        self.generator = np.random.default_rng(3)

    def __call__(self, *, batch, **kwargs):
        self.generator.random(), np.random.rand(), random.random(), torch.rand(1)
        return batch


def test_pieces_spaces_and_random_numbers_stay_as_they_are():
    def seed():
        random.seed(1), np.random.seed(1), torch.manual_seed(1)

    def drawn():
        return random.random(), np.random.rand(), torch.rand(1).item()

    space = Box(-1, 1, (2,), np.float32, seed=5)
    pipeline = learner(spaces=(space, Lab.act_space), before=[Draws()])
    acting = EnvToModulePipeline(space, Lab.act_space, connectors=[MeanStdFilter(), *Lab.defaults("env_to_module")])
    acting(episodes=[Lab.episode("a", 0)])
    before, twin = copy.deepcopy(acting.get_state()), copy.deepcopy(space).sample()
    seed()
    expected = drawn()
    seed()
    assert pipeline.column_spaces_for(Lab.module()) and acting.column_spaces
    assert drawn() == expected and np.array_equal(space.sample(), twin)
    assert str(acting.get_state()) == str(before)
    assert pipeline["draws"].generator.random() == np.random.default_rng(3).random()
    assert not pipeline.history.calls


def test_a_module_with_running_statistics_stays_as_it_is():
    class Critic(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.head, self.calls = torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1), 0

        def compute_values(self, batch, embeddings=None):
            self.calls += 1
            return self.head(self.norm(batch["obs"])).squeeze(-1)

    module = Critic().train()
    before = copy.deepcopy(module.state_dict())
    pipeline = LearnerConnectorPipeline(Lab.obs_space, Lab.act_space, connectors=Lab.defaults("learner", ppo=True))
    assert pipeline.column_spaces_for(module)["value_targets"].space == number(np.float32)
    assert module.calls == 0 and all(torch.equal(own, before[key]) for key, own in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())


# -- errors ------------------------------------------------------------------------------------------


def test_a_piece_that_raises_on_drawn_values_is_named():
    class Refuses(ColumnTransform):
        columns = "obs"

        def transform(self, x):
            if x.ndim > 1 and len(x) != 3:  # not the samples that its space is found by
                raise ZeroDivisionError("nothing to divide by")
            return x

    with pytest.raises(ZeroDivisionError) as error:
        learner(before=[Refuses()]).column_spaces  # noqa: B018
    assert str(error.value).splitlines()[:2] == [
        "in the dry run of LearnerConnectorPipeline, on episodes drawn from its spaces:",
        "in LearnerConnectorPipeline, piece 0 (Refuses):",
    ]
    pipeline = EnvToModulePipeline(connectors=[FrameStacking(num_frames=4)])
    pipeline.input_observation_space = Discrete(3)
    with pytest.raises(SpaceError, match=r"(?s)piece 0 \(FrameStacking\):.*last axis"):
        pipeline.column_spaces  # noqa: B018


def test_a_piece_that_cannot_be_copied_is_an_error():
    pipeline = learner(UserPiece())
    pipeline.connectors[-1].stream = (number for number in range(3))
    with pytest.raises(TypeError, match=r"(?s)LearnerConnectorPipeline.column_spaces.*cannot copy"):
        pipeline.column_spaces  # noqa: B018
