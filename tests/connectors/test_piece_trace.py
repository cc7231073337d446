"""The trace of a pipeline: what each piece did to the columns, on copies, and how far a failing run came."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
import torch

from epibatch.connectors import ConnectorV2
from epibatch.connectors.common import AgentToModuleMapping
from epibatch.connectors.env_to_module import EnvToModulePipeline, MeanStdFilter
from epibatch.connectors.learner import LearnerConnectorPipeline
from epibatch.connectors.module_to_env import ModuleToEnvPipeline
from epibatch.core.errors import BatchLayoutError, ColumnError, PipelineError
from epibatch.core.rl_module import MultiRLModule, RLModuleSpec
from epibatch.episodes import MultiAgentEpisode, VectorRecorder, reader_of
from fixture_pieces import Lab


class Doubles(ConnectorV2):
    """Doubles the rewards in the episodes."""

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            episode.set_rewards(new_data=2 * episode.get_rewards())
        return batch


class Fails(ConnectorV2):
    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        return batch["reward"]


class Counts(ConnectorV2):
    """Knows how often it ran."""

    calls = 0

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        self.calls += 1
        return batch

    def get_state(self, *args, **kwargs):
        return {"calls": self.calls}


class Holds(ConnectorV2):
    """Cannot be copied."""

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        return batch

    def __deepcopy__(self, memo):
        raise TypeError("holds a socket")


def changes(trace):
    return {piece.piece: piece.changes for piece in trace.pieces}


def test_each_piece_of_a_train_batch():
    pipeline = LearnerConnectorPipeline(Lab.obs_space, Lab.act_space, connectors=[Doubles(), *Lab.defaults("learner")])
    trace = pipeline.trace([Lab.episode("a", 5), Lab.episode("b", 3)], Lab.module())
    found = changes(trace)
    assert list(found) == pipeline.names
    assert found["doubles"] == {"episode.rewards": ("values",)}
    assert found["add_observations_from_episodes_to_batch"] == {"obs": ("added",)}
    assert set(found["add_columns_from_episodes_to_train_batch"].values()) == {("added",)}
    assert found["add_time_dim_to_batch_and_zero_pad"] == {}
    assert found["batch_individual_items"]["obs"] == ("layout",)
    assert found["numpy_to_tensor"]["obs"] == ("layout",)
    last = trace.pieces[-1]
    assert str(last.before["obs"]) == "arrays float32 [8, 2]" and str(last.after["obs"]) == "tensors float32 [8, 2]"
    batch = pipeline(rl_module=Lab.module(), episodes=[Lab.episode("a", 5), Lab.episode("b", 3)])
    assert last.bytes[1] == sum(column.element_size() * column.nelement() for column in batch.values())
    for name, column in batch.items():
        assert torch.equal(trace.batch[name], column)


def test_both_ways_of_running_the_pieces_tell_the_same(lab):
    pieces, episodes = lab.defaults("learner", ppo=True), [lab.episode("a", 5, state=3), lab.episode("b", 3, state=3)]
    trace = lab.pipeline("learner", pieces, spaces=(lab.obs_space, lab.act_space)).trace(episodes, lab.module(state=3))
    found = {name: own for name, own in changes(trace).items() if not name.startswith("user_piece")}
    assert found["add_time_dim_to_batch_and_zero_pad"]["obs"] == ("shape",)
    assert found["add_states_from_episodes_to_batch"] == {"state_in/h": ("added",)}
    assert found["general_advantage_estimation"] == {"advantages": ("added",), "value_targets": ("added",)}
    assert {name: own for name, own in changes(trace).items() if name.startswith("user_piece") and own} == {}


def test_nothing_is_changed_by_it():
    episodes = [Lab.episode("a", 5)]
    counts, doubles = Counts(), Doubles()
    pipeline = LearnerConnectorPipeline(connectors=[counts, doubles, *Lab.defaults("learner")])
    before, calls = episodes[0].get_rewards().copy(), pipeline.history.calls
    trace = pipeline.trace(episodes, Lab.module())
    assert counts.calls == 0 and pipeline.history.calls == calls and pipeline.watches == []
    np.testing.assert_array_equal(episodes[0].get_rewards(), before)
    np.testing.assert_array_equal(trace.batch["rewards"].numpy(), 2 * before.astype(np.float32))
    pipeline.trace(episodes, Lab.module(), copies=False)
    assert counts.calls == 1
    np.testing.assert_array_equal(episodes[0].get_rewards(), 2 * before)


def test_what_the_module_gave_on_its_way_to_the_environment():
    episodes = [Lab.episode("a", 2), Lab.episode("b", 2)]
    pipeline = ModuleToEnvPipeline(Lab.obs_space, Lab.act_space, connectors=Lab.defaults("module_to_env"))
    outputs = {"action_dist_inputs": torch.tensor([[0.0, 9.0], [9.0, 0.0]])}
    torch.manual_seed(3)
    state = torch.get_rng_state()
    trace = pipeline.trace(episodes, Lab.module(), batch=outputs, explore=True)
    assert torch.equal(torch.get_rng_state(), state) and list(outputs) == ["action_dist_inputs"]
    assert changes(trace)["get_actions"] == {"actions": ("added",), "action_logp": ("added",)}
    assert changes(trace)["tensor_to_numpy"]["action_dist_inputs"] == ("layout",)
    assert changes(trace)["normalize_and_clip_actions"] == {"actions_for_env": ("added",)}


def test_observations_that_are_rewritten_in_a_recording():
    recorder = VectorRecorder(3, Lab.obs_space, Lab.act_space)
    recorder.reset(np.arange(6, dtype=np.float32).reshape(3, 2))
    pieces = [MeanStdFilter(), *Lab.defaults("env_to_module")]
    pipeline = EnvToModulePipeline(Lab.obs_space, Lab.act_space, connectors=pieces)
    trace = pipeline.trace(recorder.episodes, Lab.module())
    assert changes(trace)["mean_std_filter"] == {"episode.observations": ("values",)}
    assert pipeline["mean_std_filter"].get_state()["since"]["count"] == 0
    np.testing.assert_array_equal(reader_of(recorder.episodes).newest("obs")[0], np.arange(6).reshape(3, 2))


def game():
    episode = MultiAgentEpisode(
        agent_to_module_mapping_fn=lambda agent, *_, **__: {"x": "p", "y": "p", "z": "q"}[agent]
    )
    agents = ("x", "y", "z")
    episode.add_env_reset(observations={agent: np.zeros(2, np.float32) for agent in agents})
    for t in range(3):
        observations = {agent: np.full(2, t, np.float32) for agent in agents}
        episode.add_env_step(observations, dict.fromkeys(agents, 0), dict.fromkeys(agents, 1.0))
    return episode


@pytest.mark.parametrize("user", [False, True])
def test_several_agents(user):
    spec = RLModuleSpec(module_class=type(Lab.module()), observation_space=Lab.obs_space, action_space=Lab.act_space)
    module = MultiRLModule(rl_module_specs={"p": spec, "q": spec})
    pieces = Lab.defaults("learner")
    pieces.insert(4, AgentToModuleMapping())
    trace = LearnerConnectorPipeline(connectors=[*([Doubles()] if user else []), *pieces]).trace([game()], module)
    found = changes(trace)
    assert found["add_observations_from_episodes_to_batch"] == {"p/obs": ("added",), "q/obs": ("added",)}
    assert trace.pieces[-1].after["p/obs"].shape == (6, 2) and trace.pieces[-1].after["q/obs"].shape == (3, 2)
    assert found["agent_to_module_mapping"] == {}
    if user:
        assert found["doubles"] == {"p/episode.rewards": ("values",), "q/episode.rewards": ("values",)}


def test_an_error_is_kept_with_its_piece_and_what_came_before():
    pieces = Lab.defaults("learner")
    pipeline = LearnerConnectorPipeline(connectors=[*pieces[:2], Fails(), *pieces[2:]])
    trace = pipeline.trace([Lab.episode("a", 5)], Lab.module())
    assert [piece.piece for piece in trace.pieces] == [*pipeline.names[:2], "fails"]
    assert isinstance(trace.error, KeyError) and trace.error is trace.pieces[-1].error and trace.batch is None
    assert trace.pieces[-1].after["obs"].shape == (5, 2) and trace.pieces[-1].changes == {}
    assert repr(trace) == "PipelineTrace(LearnerConnectorPipeline, 3 pieces, error in fails)"
    text = str(trace)
    assert re.search(r"\nfails +!  KeyError\n", text) and text.count("+  obs") == 1
    assert "KeyError: 'reward'\nin LearnerConnectorPipeline, piece 2 (Fails)" in text
    assert "no column 'reward' at this place. Its columns: obs, actions, rewards" in text.splitlines()[-1]
    assert "<pre>KeyError: &#x27;reward&#x27;" in trace._repr_html_()


def test_an_error_in_a_columnar_piece():
    pipeline = LearnerConnectorPipeline(connectors=Lab.defaults("learner"))
    ragged = Lab.episode("b", 3, observations=[np.zeros(3, np.float32)] * 4)
    trace = pipeline.trace([Lab.episode("a", 5), ragged], Lab.module())
    assert isinstance(trace.error, ColumnError) and trace.pieces[-1].piece == "add_observations_from_episodes_to_batch"


def test_wrong_arguments_are_errors_of_the_call():
    pipeline = LearnerConnectorPipeline(connectors=Lab.defaults("learner"))
    with pytest.raises(PipelineError, match="a list of SingleAgentEpisode"):
        pipeline.trace(Lab.episode("a", 5))
    with pytest.raises(BatchLayoutError):
        pipeline.trace([Lab.episode("a", 5)], batch=[])
    empty = EnvToModulePipeline(connectors=Lab.defaults("env_to_module"))
    assert empty.trace([], Lab.module()).error is None


def test_what_cannot_be_copied_is_said_with_the_way_out():
    pipeline = LearnerConnectorPipeline(connectors=[Holds(), *Lab.defaults("learner")])
    with pytest.raises(TypeError, match=r"(?s)LearnerConnectorPipeline.trace.*copies=False.*holds a socket"):
        pipeline.trace([Lab.episode("a", 5)], Lab.module())
    assert pipeline.trace([Lab.episode("a", 5)], Lab.module(), copies=False).error is None
    assert pipeline.watches == []


def test_the_table():
    pieces = [*Lab.defaults("learner")[:1], Counts(), Lab.defaults("learner")[4]]
    trace = LearnerConnectorPipeline(connectors=pieces).trace([Lab.episode("a", 5)])
    assert str(trace).splitlines() == [
        "piece                                       column  before                   after                      bytes",
        "add_observations_from_episodes_to_batch  +  obs                              episodes float32 [5, 2]  0 -> 40",
        "counts                                      -",
        "batch_individual_items                   ~  obs     episodes float32 [5, 2]  arrays float32 [5, 2]         40",
    ]
    assert trace.table().row_count == 3 and trace.table(unchanged=True).row_count > 3
    html = trace._repr_html_()
    assert html.count("<tr>") == 4 and "<td>arrays float32 [5, 2]</td>" in html


class LeavesRagged(ConnectorV2):
    """Leaves a column that no batch can be made of."""

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        batch["mine"] = {("nobody",): [1]}
        return batch


def test_an_error_about_what_a_plain_piece_left_is_that_pieces():
    pieces = Lab.defaults("learner")
    pipeline = LearnerConnectorPipeline(connectors=[*pieces[:2], LeavesRagged(), *pieces[2:]])
    trace = pipeline.trace([Lab.episode("a", 5)], Lab.module())
    assert "LeavesRagged), the batch it left:" in str(trace.error)
    assert [piece.piece for piece in trace.pieces] == [*pipeline.names[:2], "leaves_ragged"]
    assert [piece.error for piece in trace.pieces] == [None, None, trace.error]
    assert trace.pieces[-1].changes == {"mine": ("added",)}
    assert "error in leaves_ragged" in repr(trace) and re.search(r"\nleaves_ragged +!", str(trace))


def test_a_batch_that_was_wrong_from_the_start_is_an_error_of_the_call():
    pipeline = LearnerConnectorPipeline(connectors=Lab.defaults("learner"))
    with pytest.raises(BatchLayoutError, match="the batch that the pipeline was given"):
        pipeline.trace([Lab.episode("a", 5)], Lab.module(), batch={"mine": {("nobody",): [1]}})


class DrawsAll(ConnectorV2):
    """Draws from every stream that the process has."""

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        random.random(), np.random.random(), torch.rand(1)
        return batch


class DrawsAndFails(DrawsAll):
    def __call__(self, **kwargs):
        super().__call__(**kwargs)
        raise ValueError("no")


@pytest.mark.parametrize("piece", [DrawsAll, DrawsAndFails])
def test_random_numbers_are_as_if_it_had_not_been(piece):
    def drawn():
        return random.random(), np.random.random(), torch.rand(1).item()

    def seed():
        random.seed(1), np.random.seed(1), torch.manual_seed(1)

    seed()
    expected = drawn()
    seed()
    pipeline = LearnerConnectorPipeline(connectors=[piece()])
    pipeline.trace([Lab.episode("a", 5)])
    assert drawn() == expected
    seed()
    pipeline.trace([Lab.episode("a", 5)], copies=False)
    assert drawn() != expected
