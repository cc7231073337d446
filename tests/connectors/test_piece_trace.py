"""The trace of a pipeline: what each piece did to the columns, on copies, and how far a failing run came."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from epibatch.connectors import ConnectorV2
from epibatch.connectors import learner as learner_side
from epibatch.connectors.common import AgentToModuleMapping
from epibatch.connectors.env_to_module import EnvToModulePipeline, MeanStdFilter
from epibatch.connectors.learner import LearnerConnectorPipeline
from epibatch.connectors.module_to_env import ModuleToEnvPipeline
from epibatch.core.errors import BatchLayoutError, ColumnError, PipelineError
from epibatch.core.rl_module import MultiRLModule, RLModuleSpec
from epibatch.core.spaces import BatchedNdArray
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode, VectorRecorder, reader_of
from fixture_pieces import Lab, UserPiece, played


def doubles(batch, episodes):
    """Double the rewards in the episodes."""
    for episode in ConnectorV2.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
        episode.set_rewards(new_data=2 * episode.get_rewards())


class Counts(ConnectorV2):
    """Knows how often it ran."""

    calls = 0

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        self.calls += 1
        return batch


class Holds(Counts):
    """Cannot be copied."""

    def __deepcopy__(self, memo):
        raise TypeError("holds a socket")


def learner(*pieces):
    return LearnerConnectorPipeline(connectors=list(pieces))


def changes(trace):
    return {piece.piece: piece.changes for piece in trace.pieces}


def test_each_piece_of_a_train_batch():
    pipeline = learner(UserPiece(doubles), *Lab.defaults("learner"))
    trace = pipeline.trace([Lab.episode("a", 5), Lab.episode("b", 3)], Lab.module())
    found = changes(trace)
    assert list(found) == pipeline.names
    assert found["user_piece"] == {"episode.rewards": ("values",)}
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


def test_nothing_is_changed_by_it():
    episodes = [Lab.episode("a", 5)]
    counts = Counts()
    pipeline = learner(counts, UserPiece(doubles), *Lab.defaults("learner"))
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


def test_several_agents():
    spec = RLModuleSpec(module_class=type(Lab.module()), observation_space=Lab.obs_space, action_space=Lab.act_space)
    module = MultiRLModule(rl_module_specs={"p": spec, "q": spec})
    pieces = [UserPiece(doubles), *Lab.defaults("learner")]
    pieces.insert(5, AgentToModuleMapping())
    for user in (True, False):
        trace = learner(*(pieces if user else pieces[1:])).trace([game()], module)
        found = changes(trace)
        rewards = {"p/episode.rewards": ("values",), "q/episode.rewards": ("values",)}
        assert found.get("user_piece", rewards) == rewards
        assert found["add_observations_from_episodes_to_batch"] == {"p/obs": ("added",), "q/obs": ("added",)}
        assert trace.pieces[-1].after["p/obs"].shape == (6, 2) and trace.pieces[-1].after["q/obs"].shape == (3, 2)
        assert found["agent_to_module_mapping"] == {}


def between(function):
    """A learner pipeline with an undeclared piece around a function after the first two default ones."""
    pieces = Lab.defaults("learner")
    return learner(*pieces[:2], UserPiece(function), *pieces[2:])


def test_an_error_is_kept_with_its_piece_and_what_came_before():
    pipeline = between(lambda batch, episodes: batch["reward"])
    trace = pipeline.trace([Lab.episode("a", 5)], Lab.module())
    assert [piece.piece for piece in trace.pieces] == [*pipeline.names[:2], "user_piece"]
    assert isinstance(trace.error, KeyError) and trace.error is trace.pieces[-1].error and trace.batch is None
    assert trace.pieces[-1].after["obs"].shape == (5, 2) and trace.pieces[-1].changes == {}
    assert repr(trace) == "PipelineTrace(LearnerConnectorPipeline, 3 pieces, error in user_piece)"
    text = str(trace)
    assert re.search(r"\nuser_piece +!  KeyError\n", text) and text.count("+  obs") == 1
    assert re.search(
        r"KeyError: 'reward'\. If the batch was meant: .*\nin LearnerConnectorPipeline, piece 2 \(User", text
    )
    assert "no column 'reward' at this place. Its columns: obs, actions, rewards" in text.splitlines()[-2]
    assert "<pre>KeyError: &#x27;reward&#x27;" in trace._repr_html_()


NOBODYS = {"mine": {("nobody",): [1]}}


def test_an_error_about_what_a_plain_piece_left_is_that_pieces():
    pipeline = between(lambda batch, episodes: {**batch, **NOBODYS})
    trace = pipeline.trace([Lab.episode("a", 5)], Lab.module())
    assert "UserPiece), the batch it left:" in str(trace.error)
    assert [piece.error for piece in trace.pieces] == [None, None, trace.error]
    assert trace.pieces[-1].changes == {"mine": ("added",)}
    assert "error in user_piece" in repr(trace) and re.search(r"\nuser_piece +!", str(trace))


def test_an_error_in_a_columnar_piece():
    ragged = Lab.episode("b", 3, observations=[np.zeros(3, np.float32)] * 4)
    trace = learner(*Lab.defaults("learner")).trace([Lab.episode("a", 5), ragged], Lab.module())
    assert isinstance(trace.error, ColumnError) and trace.pieces[-1].piece == "add_observations_from_episodes_to_batch"


def test_wrong_arguments_are_errors_of_the_call():
    pipeline = learner(*Lab.defaults("learner"))
    with pytest.raises(PipelineError, match="a list of SingleAgentEpisode"):
        pipeline.trace(Lab.episode("a", 5))
    for batch, match in (([], "a dict of columns"), (NOBODYS, "the batch that the pipeline was given")):
        with pytest.raises(BatchLayoutError, match=match):
            pipeline.trace([Lab.episode("a", 5)], Lab.module(), batch=batch)
    empty = EnvToModulePipeline(connectors=Lab.defaults("env_to_module"))
    assert empty.trace([], Lab.module()).error is None


def test_what_cannot_be_copied_is_said_with_the_way_out():
    pipeline = learner(Holds(), *Lab.defaults("learner"))
    with pytest.raises(TypeError, match=r"(?s)LearnerConnectorPipeline.trace.*copies=False.*holds a socket"):
        pipeline.trace([Lab.episode("a", 5)], Lab.module())
    assert pipeline.trace([Lab.episode("a", 5)], Lab.module(), copies=False).error is None
    assert pipeline.watches == []


def test_the_table():
    pieces = [*Lab.defaults("learner")[:1], Counts(), Lab.defaults("learner")[4]]
    trace = learner(*pieces).trace([Lab.episode("a", 5)])
    assert str(trace).splitlines() == [
        "piece                                       column  before                   after                      bytes",
        "add_observations_from_episodes_to_batch  +  obs                              episodes float32 [5, 2]  0 -> 40",
        "counts                                      -",
        "batch_individual_items                   ~  obs     episodes float32 [5, 2]  arrays float32 [5, 2]         40",
    ]
    assert trace.table().row_count == 3 and trace.table(unchanged=True).row_count > 3
    html = trace._repr_html_()
    assert html.count("<tr>") == 4 and "<td>arrays float32 [5, 2]</td>" in html


def draws(batch, episodes):
    """Draw from every stream that the process has."""
    random.random(), np.random.random(), torch.rand(1)


def draws_and_fails(batch, episodes):
    draws(batch, episodes)
    raise ValueError("no")


@pytest.mark.parametrize("function", [draws, draws_and_fails])
def test_random_numbers_are_as_if_it_had_not_been(function):
    def seed():
        random.seed(1), np.random.seed(1), torch.manual_seed(1)

    def drawn(**trace):
        seed()
        if trace:
            learner(UserPiece(function)).trace([Lab.episode("a", 5)], **trace)
        return random.random(), np.random.random(), torch.rand(1).item()

    assert drawn() == drawn(copies=True) != drawn(copies=False)


# -- columns ---------------------------------------------------------------------------------------

ROW_MAP = np.arange(12, dtype=np.float32).reshape(6, 2)


def traced(*batches):
    """What pieces that leave these batches did, in a call about two episodes."""
    pieces = [UserPiece(lambda batch, episodes, left=left: left) for left in batches]
    return EnvToModulePipeline(connectors=pieces).trace([Lab.episode("a", 0), Lab.episode("b", 0)]).pieces


def columns_of(batch):
    return {name: own for name, own in traced(batch)[0].after.items() if not name.startswith("episode.")}


def one(batch):
    (column,) = columns_of(batch).values()
    return column


def differences(before, after, name="x"):
    """How the second of two pieces changed a column."""
    return traced({name: before}, {name: after})[1].changes.get(name, ())


LAYOUTS = {
    "single items": {("a",): list(ROW_MAP[:4]), ("b",): list(ROW_MAP[4:])},
    "tagged items": {("a",): [ROW_MAP[:4].view(BatchedNdArray)], ("b",): [ROW_MAP[4:].view(BatchedNdArray)]},
    "list": list(ROW_MAP),
    "array": ROW_MAP,
    "strided array": np.asfortranarray(ROW_MAP),
    "tensor": torch.from_numpy(ROW_MAP),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_tells_the_same_of_the_same_rows(layout):
    found, expected = one({"x": LAYOUTS[layout]}), one({"x": ROW_MAP})
    known = {"array": "arrays", "strided array": "arrays", "tensor": "tensors"}
    assert found == expected._replace(layout=known.get(layout, "episodes"))
    assert (found.shape, found.dtype, found.bytes) == ((6, 2), "float32", 48)


def test_differences():
    changed, tensor = ROW_MAP.copy(), torch.from_numpy(ROW_MAP)
    changed[3, 1] += 1
    for other, expected in (
        (ROW_MAP.copy(), ()),
        (changed, ("values",)),
        (ROW_MAP[::-1], ("values",)),
        (tensor, ("layout",)),
        (ROW_MAP.astype(np.float64), ("dtype",)),
        (ROW_MAP.reshape(3, 4), ("shape",)),
        (tensor + 1, ("layout", "values")),
    ):
        assert differences(ROW_MAP, other) == expected
    assert traced({}, {"x": ROW_MAP}, {})[1].changes == {"x": ("added",)}
    assert traced({}, {"x": ROW_MAP}, {})[2].changes == {"x": ("removed",)}
    half = torch.ones(4, dtype=torch.bfloat16)  # a type that NumPy has not
    assert differences(half, torch.zeros(4, dtype=torch.bfloat16)) == ("values",)
    assert (one({"x": half}).dtype, one({"x": half}).bytes) == ("bfloat16", 8)
    assert [differences(torch.tensor(1.0), torch.tensor(now)) for now in (1.0, 2.0)] == [(), ("values",)]


def test_nested_columns_and_modules():
    column = {"camera": np.zeros((3, 2), np.uint8), "pair": (np.zeros(3), np.zeros(3, np.int64))}
    assert {name: str(own) for name, own in columns_of({"obs": column}).items()} == {
        "obs/camera": "arrays uint8 [3, 2]",
        "obs/pair/0": "arrays float64 [3]",
        "obs/pair/1": "arrays int64 [3]",
    }
    by_module = {"walker": {"obs": list(ROW_MAP)}, "scout": {"obs": list(ROW_MAP)}}
    assert list(columns_of(by_module)) == ["walker/obs", "scout/obs"]


def test_rows_of_other_shapes_and_objects():
    ragged = one({"x": {("a",): [np.zeros(2)], ("b",): [np.zeros(3, np.int64)]}})
    assert (ragged.shape, ragged.dtype, ragged.bytes) == (None, "mixed", 40)
    assert str(ragged) == "episodes mixed rows of other shapes"
    infos = one({"infos": {("a",): [{"lives": 3}, {}], ("b",): []}})
    assert (infos.layout, infos.shape, infos.dtype, infos.bytes) == ("episodes", (2,), "dict", 0)
    assert str(one({"note": "hello"})) == "objects str [1]"
    objects = np.array([{}, "a"], object)
    assert one({"x": objects}).shape == (2,) and one({"x": objects}).digest != one({"x": objects[::-1]}).digest
    assert one({"x": np.zeros((0, 3))}).shape == (0, 3)


def test_what_episodes_hold():
    one_step, fresh = played([[1.0], [2.0]], [3.0]), SingleAgentEpisode(observations=[np.array([5.0])])
    trace = learner(UserPiece(doubles)).trace([one_step]).pieces[0]
    stored = {name: (own.layout, own.shape) for name, own in trace.before.items()}
    assert stored == {
        "episode.observations": ("stored", (2, 1)),
        "episode.actions": ("stored", (1,)),
        "episode.rewards": ("stored", (1,)),
    }
    assert trace.changes == {"episode.rewards": ("values",)}
    acting = EnvToModulePipeline(connectors=[UserPiece()]).trace([one_step, fresh]).pieces[0]
    assert acting.before["episode.observations"].shape == (3, 1)


@dataclass
class Scan:
    points: object


@pytest.mark.parametrize(
    "inside",
    [
        lambda x: {"map": {"cells": x}},
        lambda x: [1, (x, "a")],
        lambda x: {"scan": Scan(x)},
        lambda x: torch.from_numpy(x),
        lambda x: np.array([None, {"cells": x}], object),
    ],
)
def test_a_change_deep_inside_of_an_info_is_one(inside):
    cells, other = np.zeros(5000), np.zeros(5000)
    other[2500] = 1e-9
    before, same, after = ({("a",): [{"x": inside(own)}], ("b",): [{}]} for own in (cells, cells.copy(), other))
    assert differences(before, same, "infos") == () and differences(before, after, "infos") == ("values",)


def test_objects_that_lie_in_themselves_have_an_end():
    infos = [{"x": [1]}, {"x": [2]}]
    for info in infos:
        info["x"].append(info)
    assert differences(*({("a",): [info], ("b",): [{}]} for info in infos), "infos") == ("values",)


def test_a_batch_under_the_one_module_has_the_columns_that_it_had_before():
    for kind in ("stateless", "recurrent"):
        alone, under = (
            learner_side.default_pipeline(Lab.obs_space, Lab.act_space, advantages=False).trace(
                [Lab.episode("a", 3, state=2)], Lab.module(2 * (kind == "recurrent"), multi=multi)
            )
            for multi in (False, True)
        )
        for one, other in zip(alone.pieces, under.pieces):
            changes = {name.removeprefix("default_policy/"): change for name, change in other.changes.items()}
            assert changes == one.changes
        (batched,) = (piece for piece in under.pieces if piece.piece == "batch_individual_items")
        assert all(change[0] == "layout" for change in batched.changes.values())
        assert all(name.startswith("default_policy/") for name in batched.changes)
