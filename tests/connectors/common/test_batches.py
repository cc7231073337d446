"""Items to arrays, arrays to tensors and back; the time axis, zero padding and states for recurrent modules."""

from __future__ import annotations

import types
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from epibatch.connectors.common import (
    AddObservationsFromEpisodesToBatch,
    AddStatesFromEpisodesToBatch,
    AddTimeDimToBatchAndZeroPad,
    BatchIndividualItems,
    NumpyToTensor,
    TensorToNumpy,
)
from epibatch.connectors.learner import AddColumnsFromEpisodesToTrainBatch, AddOneTsToEpisodesAndTruncate
from epibatch.core.errors import ColumnError, EpibatchError, EpibatchWarning, LookbackError
from epibatch.core.spaces import BatchedNdArray
from fixture_pieces import Lab


def learner_pieces():
    return [
        AddObservationsFromEpisodesToBatch(as_learner_connector=True),
        AddColumnsFromEpisodesToTrainBatch(),
        BatchIndividualItems(),
    ]


def batch_of(lab, episodes, **keywords):
    return lab.run("learner", learner_pieces(), episodes, rl_module=lab.module(), **keywords)


def test_env_rows_follow_the_order_of_the_episodes(lab):
    episodes = [lab.episode(id_, 1, offset=offset, numpy=False) for id_, offset in (("z", 5), ("a", 2), ("m", 9))]
    batch = lab.run("env_to_module", [AddObservationsFromEpisodesToBatch(), BatchIndividualItems()], episodes)
    assert isinstance(batch["obs"], np.ndarray) and batch["obs"].dtype == np.float32
    assert batch["obs"].tolist() == [[6.0, 16.0], [3.0, 13.0], [10.0, 20.0]]


def test_single_items_tagged_items_and_nesting_mix(lab):
    """Items of an unusual kind, and keys in another order than the episodes."""
    mine = {
        "extra": {
            ("a",): [{"x": 1.0, "y": np.zeros(2)}, {"x": 2.0, "y": np.ones(2)}],
            ("b",): [{"x": BatchedNdArray([3.0, 4.0]), "y": BatchedNdArray(np.full((2, 2), 5.0))}],
        },
        "types": {("a",): [BatchedNdArray(np.arange(2)), BatchedNdArray(np.zeros(0))], ("b",): [0.5, 1.5]},
        "notes": {(id_,): [BatchedNdArray(np.array([id_, "x"], object))] for id_ in "ab"},
        "turned": {("b",): [3.0, 4.0], ("a",): [1.0, 2.0]},
    }
    batch = batch_of(lab, [lab.episode("a", 2), lab.episode("b", 2)], batch=mine)
    assert batch["extra"]["x"].tolist() == batch["turned"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert batch["extra"]["y"].tolist() == [[0.0, 0.0], [1.0, 1.0], [5.0, 5.0], [5.0, 5.0]]
    assert batch["types"].tolist() == [0.0, 1.0, 0.5, 1.5]
    assert batch["notes"].dtype == object and batch["notes"].tolist() == ["a", "x", "b", "x"]


def test_an_episode_that_occurs_twice_gives_its_rows_twice(lab):
    episode = lab.episode("a", 2)
    assert batch_of(lab, [episode, episode])["rewards"].tolist() == [0.5, 1.5, 0.5, 1.5]


def test_the_row_map_has_one_entry_per_row_of_nested_observations_too(lab):
    episodes = [lab.episode(id_, n, observations=[{"x": i} for i in range(n + 1)]) for id_, n in (("a", 2), ("b", 1))]
    shared = {}
    batch_of(lab, episodes, shared_data=shared)
    assert list(shared["memorized_map_structure"]) == ["a", "a", "b"]


def test_by_itself_it_batches_columns_without_their_episodes():
    shared = {}
    batch = {"obs": {("x",): [0, 1], ("y",): [2]}, "actions": {("x",): [4, 5], ("y",): [6]}}
    out = BatchIndividualItems()(batch=batch, episodes=[], shared_data=shared)
    assert out["obs"].tolist() == [0, 1, 2] and out["actions"].tolist() == [4, 5, 6]
    assert list(shared["memorized_map_structure"]) == ["x", "x", "y"]
    one_each = BatchIndividualItems()(batch={"obs": {("x",): [3], ("y",): [4]}}, episodes=[], shared_data=shared)
    assert one_each["obs"].tolist() == [3, 4] and list(shared["memorized_map_structure"]) == ["x", "y"]
    with pytest.raises(EpibatchError, match="column 'obs', episode 'x'"):
        BatchIndividualItems()(batch={"obs": {("x",): [3]}, "actions": {("x",): [3, 4]}}, episodes=[])


def test_mixed_observation_spaces_in_one_batch_are_named(lab):
    other = lab.episode("b", 1, observations=[np.zeros(3, np.float32)] * 2, observation_space=None)
    with pytest.raises(EpibatchError, match=r"obs[\s\S]*shape \(2,\), as in episode 'a'[\s\S]*\(3,\) in episode 'b'"):
        batch_of(lab, [lab.episode("a", 1), other])


@pytest.mark.parametrize("rows", [1, 3, 4])
def test_a_column_with_the_wrong_number_of_rows_is_named(lab, rows):
    mine = {"extra": {("good",): [0.0, 0.0], ("bad",): [0.0] * rows}}
    with pytest.raises(EpibatchError, match=rf"'extra'[\s\S]*'bad'[\s\S]*expected: (rows: )?2[\s\S]*found:    {rows}"):
        batch_of(lab, [lab.episode("good", 2), lab.episode("bad", 2)], batch=mine)


def test_an_episode_without_an_item_is_named(lab):
    def only_the_first(batch, episodes):
        lab.user.add_batch_item(batch, "extra", 1.0, episodes[0])

    episodes = [lab.episode("a", 0, numpy=False), lab.episode("left_out", 0, numpy=False)]
    pieces = [lab.user(only_the_first), *lab.defaults("env_to_module")]
    with pytest.raises(EpibatchError, match=r"column 'extra', episode 'left_out'[\s\S]*found:    0 rows"):
        lab.run("env_to_module", pieces, episodes, rl_module=lab.module())


@pytest.mark.parametrize("count", [1, 2])
def test_writing_into_the_tensors_never_changes_an_episode(lab, count):
    episodes = [lab.episode(f"e{i}", 3, state=2) for i in range(count)]
    batch = lab.run("learner", lab.defaults("learner"), episodes, rl_module=lab.module())
    for column in batch.values():
        column.zero_()
    for episode in episodes:
        np.testing.assert_array_equal(episode.get_observations(), [[t, 10 + t] for t in range(4)])
        assert episode.get_actions().tolist() == [0, 1, 0] and episode.get_rewards().tolist() == [0.5, 1.5, 2.5]


def to_tensors(batch, module=None, **options):
    return Lab.call(NumpyToTensor(**options), batch, rl_module=module or Lab.module())


def to_arrays(batch):
    return Lab.call(TensorToNumpy(), batch, rl_module=Lab.module())


@pytest.mark.parametrize(
    ("array_type", "tensor_type"),
    [
        ("float64", torch.float32),
        ("float32", torch.float32),
        ("float16", torch.float16),
        ("int64", torch.int64),
        ("int32", torch.int32),
        ("uint8", torch.uint8),
        ("bool", torch.bool),
    ],
)
def test_types_there_and_back(array_type, tensor_type):
    """Numbers of 64 bits become float32 in both directions, integers stay."""
    values = np.array([[0, 1], [1, 0]], array_type)
    there, back = to_tensors({"x": values})["x"], to_arrays({"x": torch.from_numpy(values)})["x"]
    assert isinstance(there, torch.Tensor) and isinstance(back, np.ndarray)
    assert there.dtype == tensor_type and getattr(torch, back.dtype.name) == tensor_type
    assert there.tolist() == back.tolist() == values.tolist()


def test_nested_columns_and_module_batches():
    batch = {"default_policy": {"x": {"a": np.ones(2), "b": (np.zeros(2, np.int64),)}}}
    column = to_tensors(batch, Lab.module(multi=True))["default_policy"]["x"]
    assert column["a"].dtype == torch.float32 and column["b"][0].dtype == torch.int64


def test_what_is_no_array_of_numbers_stays():
    batch = {"infos": [{"a": 1}, {}], "names": np.array(["a", "b"]), "objects": np.array([{}, None], object)}
    result = to_tensors({**batch, "x": np.ones(2), "t": torch.ones(2)})
    assert result["infos"] == [{"a": 1}, {}]
    assert isinstance(result["names"], np.ndarray) and isinstance(result["objects"], np.ndarray)
    assert isinstance(result["x"], torch.Tensor) and result["t"].tolist() == [1.0, 1.0]
    assert isinstance(Lab.call(NumpyToTensor(), {"x": np.ones(2)}, rl_module=None)["x"], np.ndarray)


def test_read_only_and_reversed_arrays_become_tensors():
    frozen = np.arange(3.0, dtype=np.float32)
    frozen.setflags(write=False)
    result = to_tensors({"frozen": frozen, "reversed": np.arange(3)[::-1]})
    assert result["frozen"].tolist() == [0.0, 1.0, 2.0] and result["reversed"].tolist() == [2, 1, 0]
    with pytest.warns(RuntimeWarning, match="overflow encountered in cast"):
        assert np.isinf(to_tensors({"x": np.array([1e300])})["x"].numpy()).all()


def test_the_device_is_chosen():
    assert to_tensors({"x": np.ones(2)}, device="meta")["x"].device.type == "meta"
    module = types.SimpleNamespace(framework="jax", is_stateful=lambda: False)
    with pytest.raises(ValueError, match="torch"):
        to_tensors({"x": np.ones(2)}, module)


def test_memory_is_pinned_where_there_is_a_gpu(monkeypatch):
    batch = {"x": np.arange(3.0), "y": {"z": np.arange(2)}}
    if torch.cuda.is_available():
        result = to_tensors(batch, pin_memory=True)
        assert result["x"].is_pinned() and result["y"]["z"].is_pinned()
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: pinned.append(self) or self)
    for there in (False, True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert to_tensors(batch, pin_memory=True)["x"].tolist() == [0, 1, 2] and len(pinned) == 2 * there


def test_gradients_nesting_large_integers_and_single_numbers():
    nested = {"a": torch.ones(2, requires_grad=True), "b": (torch.zeros(1),)}
    batch = {"x": nested, "infos": [{"k": 1}], "large": torch.tensor([2**40 + 1]), "one": torch.tensor(2.5)}
    result = to_arrays(batch)
    assert result["x"]["a"].tolist() == [1.0, 1.0] and isinstance(result["x"]["b"][0], np.ndarray)
    assert result["infos"] == [{"k": 1}] and result["large"].tolist() == [2**40 + 1]
    assert isinstance(result["one"], (np.ndarray, np.generic)) and result["one"] == 2.5
    assert to_arrays({"x": torch.ones(2, dtype=torch.bfloat16)})["x"].dtype == np.float32


def sequence_pieces():
    return [
        AddObservationsFromEpisodesToBatch(as_learner_connector=True),
        AddColumnsFromEpisodesToTrainBatch(),
        AddTimeDimToBatchAndZeroPad(as_learner_connector=True),
    ]


def padded(values, max_seq_len):
    """Rows of at most `max_seq_len` steps, zeros at the right: the plain loop."""
    result = []
    for start in range(0, len(values), max_seq_len):
        row = list(values[start : start + max_seq_len])
        result.append(row + [np.zeros_like(values[0])] * (max_seq_len - len(row)))
    return np.array(result)


@pytest.mark.parametrize("multi", [True, False])
@pytest.mark.parametrize(("length", "max_seq_len"), [(7, 4), (4, 4), (1, 4), (8, 4), (5, 1), (3, 20)])
def test_learner_columns_are_split_and_zero_padded_per_episode(lab, length, max_seq_len, multi):
    episodes = [lab.episode("a", length), lab.episode("b", 2, offset=100)]
    module = lab.module(state=2, max_seq_len=max_seq_len, multi=multi)
    columns = lab.columns("learner", sequence_pieces(), episodes, rl_module=module)
    for id_, offset, steps in (("a", 0, length), ("b", 100, 2)):
        times = np.arange(steps) + offset
        expected = {
            "obs": padded(np.stack([times, times + 10], -1).astype(np.float32), max_seq_len),
            "actions": padded(times % 2, max_seq_len),
            "rewards": padded(times + 0.5, max_seq_len),
            "terminateds": padded(np.zeros(steps, bool), max_seq_len),
            "truncateds": padded(np.zeros(steps, bool), max_seq_len),
            "action_logp": padded(-times.astype(np.float32), max_seq_len),
            "loss_mask": padded(np.ones(steps, bool), max_seq_len),
        }
        for column, value in expected.items():
            found = columns[column][id_,]
            assert np.array_equal(found, value), column
            assert found.dtype == value.dtype, column
        assert columns["seq_lens"][id_,].tolist() == [
            min(max_seq_len, steps - start) for start in range(0, steps, max_seq_len)
        ]
    assert set(columns) == {*expected, "seq_lens"}


def test_nested_columns_are_padded_leaf_by_leaf(lab):
    episodes = [lab.episode("a", 3)]
    extra = {("a",): [{"x": np.arange(i, i + 2), "y": float(i)} for i in range(3)]}
    columns = learned(lab, episodes, lab.module(2, 2, multi=True), sequence_pieces(), batch={"extra": extra})
    assert columns["extra"]["a",]["x"].tolist() == [[[0, 1], [1, 2]], [[2, 3], [0, 0]]]
    assert columns["extra"]["a",]["y"].tolist() == [[0.0, 1.0], [2.0, 0.0]]


def test_nothing_happens_when_states_are_there_already(lab):
    episodes = [lab.episode("a", 3)]
    mine = {"state_in": {("a",): [{"h": np.zeros(2)}]}}
    columns = lab.columns("learner", sequence_pieces(), episodes, rl_module=lab.module(2, 4, multi=True), batch=mine)
    assert columns["obs"]["a",].shape == (3, 2)
    assert "seq_lens" not in columns


@pytest.mark.parametrize("value", [None, 0, -3])
def test_a_recurrent_module_must_say_its_max_seq_len(lab, value):
    module = lab.module(2, max_seq_len=value)
    with pytest.raises((EpibatchError, ValueError), match="max_seq_len"):
        lab.run("learner", sequence_pieces(), [lab.episode("a", 3)], rl_module=module)


@pytest.mark.parametrize("delta", [-1, 1, 5])
def test_a_column_with_another_number_of_rows_is_named(lab, delta):
    episodes = [lab.episode("first", 3), lab.episode("second", 4)]
    counts = {("first",): 3, ("second",): 4 + delta}
    mine = {"extra": {key: list(np.zeros(count)) for key, count in counts.items()}}
    with pytest.raises(EpibatchError, match=rf"extra[\s\S]*second[\s\S]*{4 + delta}"):
        lab.run("learner", sequence_pieces(), episodes, rl_module=lab.module(2, 4, multi=True), batch=mine)


@pytest.mark.parametrize("end", ["pad", "drop", "truncate", "overlap", "continue"])
@pytest.mark.parametrize("bootstrapped", [False, True])
def test_a_loss_mask_of_ones_own_and_that_of_the_sequences_both_hold(lab, end, bootstrapped):
    episodes = [lab.episode("a", 7), lab.episode("b", 2, offset=100)]
    module = lab.module(state=2, max_seq_len=4)
    module.model_config["sequence_end"], module.handles_resets = end, True
    own = {("a",): [t % 3 != 0 for t in range(7)], ("b",): [False, True]}
    pieces = [AddOneTsToEpisodesAndTruncate()] * bootstrapped + sequence_pieces()
    with_own, without = (
        lab.run("learner", [*pieces, BatchIndividualItems()], episodes, rl_module=module, batch=batch)
        for batch in ({"loss_mask": own}, {})
    )
    times = without["obs"][..., 0]
    wanted = np.where(times >= 100, times == 101, times % 3 != 0)
    assert without["loss_mask"].any()
    np.testing.assert_array_equal(with_own["loss_mask"], without["loss_mask"] & wanted)
    assert with_own["loss_mask"].dtype == bool and with_own["loss_mask"].sum() < without["loss_mask"].sum()


@pytest.mark.parametrize("weights", [[0.5, 1.0, 1.0], [1, 0, 1]])
def test_a_loss_mask_that_is_no_bools_is_named(lab, weights):
    batch = {"loss_mask": {("a",): weights}}
    with pytest.raises(ColumnError, match=r"column 'loss_mask'[\s\S]*one bool per row[\s\S]*a column of another name"):
        lab.run("learner", sequence_pieces(), [lab.episode("a", 3)], rl_module=lab.module(state=2), batch=batch)


def pieces_with_states():
    return [*sequence_pieces(), AddStatesFromEpisodesToBatch(as_learner_connector=True)]


def learned(lab, episodes, module=None, pieces=None, **keywords):
    """Columns by key after the pieces that make sequences and states."""
    module = module or lab.module(2, 3, multi=True)
    return lab.columns("learner", pieces or pieces_with_states(), episodes, rl_module=module, **keywords)


def first_entries(state):
    return np.asarray(state["h"])[:, 0].tolist()


def env_states(lab, episodes, module, **keywords):
    pieces = [AddObservationsFromEpisodesToBatch(), AddTimeDimToBatchAndZeroPad(), AddStatesFromEpisodesToBatch()]
    seen = lab.see("env_to_module", pieces, episodes, rl_module=module, **keywords)
    return [items[0]["h"].tolist() for items in seen["state_in"].values()]


def test_a_continued_chunk_without_lookback_is_an_error(lab):
    chunk = lab.episode("some_id", 5, t_started=10, lookback=0, state=2)
    with pytest.raises(LookbackError, match="some_id"):
        lab.run("learner", pieces_with_states(), [chunk], rl_module=lab.module(2, 3, multi=True))


def test_episodes_without_states_begin_with_the_initial_state(lab):
    with pytest.warns(EpibatchWarning, match="state_out"):
        columns = learned(lab, [lab.episode("a", 2)])
    assert first_entries(columns["state_in"]["a",]) == [-1.0]


def test_next_states_come_along_with_next_observations(lab):
    chunk = lab.episode("a", 5, state=2)
    mine = {"new_obs": {("a",): list(chunk.get_observations(slice(1, 6)))}}
    columns = learned(lab, [chunk], batch=mine)
    # one step later than state_in: the states after steps 0 and 3
    assert first_entries(columns["next_state_in"]["a",]) == [0.25, 3.25]


@pytest.mark.parametrize("end", [None, "terminated"])
def test_env_side_refuses_a_cut_chunk_without_its_newest_state(lab, end):
    chunk = lab.episode("some_id", 0, t_started=1, end=end, state=2, numpy=False)
    with pytest.raises(LookbackError, match="some_id"):
        env_states(lab, [chunk], lab.module(2))


def test_an_initial_state_of_a_wider_type_casts_nothing_but_itself(lab, monkeypatch):
    def filled(shape, dtype=float, **keywords):
        return np.full(shape, 1e300 if dtype == np.float64 else 0, dtype)  # what memory may hold

    module = lab.module(2, 3)
    monkeypatch.setattr(type(module), "get_initial_state", lambda self: {"h": np.full(2, -1.0)})
    chunk = lab.episode("a", 5, state=2)
    mine = {"new_obs": {("a",): list(chunk.get_observations(slice(1, 6)))}}
    monkeypatch.setattr(np, "empty", filled)
    columns = learned(lab, [chunk], module, batch=mine)
    assert first_entries(columns["state_in"]["a",]) == [-1.0, 2.25]
    assert first_entries(columns["next_state_in"]["a",]) == [0.25, 3.25]


def test_states_that_are_there_already_stay(lab):
    mine = {"state_in": {("a",): [{"h": np.full(2, 7.0)}]}}
    episodes = [lab.episode("a", 3, state=2, numpy=False)]
    assert env_states(lab, episodes, lab.module(2), batch=mine) == [[7.0, 7.0]]


def test_chunks_whose_states_have_their_keys_in_another_order_are_not_mixed_up(lab):
    def two_leaved(id_, keys):
        states = [{key: np.full(2, {"h": 10.0, "c": 20.0}[key] + t, np.float32) for key in keys} for t in range(4)]
        return lab.episode(id_, 4, extra_model_outputs={"state_out": states})

    episodes = [two_leaved("a", "hc"), two_leaved("b", "ch")]
    columns = learned(lab, episodes, lab.module(2, 2, multi=True, two_leaved=True))
    for id_ in "ab":
        assert columns["state_in"][id_,]["h"][1].tolist() == [11.0, 11.0]
        assert columns["state_in"][id_,]["c"][1].tolist() == [21.0, 21.0]


def test_env_side_starts_new_episodes_beside_running_ones(lab):
    """Those that recorded a state, those that just began, and those whose outputs have none."""
    lengths = [3, 0, 1, 5]
    episodes = [lab.episode(f"e{i}", length, state=2, numpy=False) for i, length in enumerate(lengths)]
    episodes.append(lab.episode("none", 4, numpy=False))
    newest = [[length - 1 + 0.25] * 2 if length else [-1.0, -1.0] for length in lengths]
    with pytest.warns(EpibatchWarning, match="episodes without it"):
        assert env_states(lab, episodes, lab.module(2)) == [*newest, [-1.0, -1.0]]


def test_the_module_is_asked_for_its_initial_state_where_one_is_needed(lab):
    """Its values may be learned: they are asked for each time, but not for episodes that go on."""
    module, asked = lab.module(2), []
    module.get_initial_state = lambda: asked.append(1) or {"h": np.full(2, 10.0 * len(asked), np.float32)}
    running, fresh = lab.episode("a", 3, state=2, numpy=False), lab.episode("b", 0, state=2, numpy=False)
    assert env_states(lab, [running], module) == [[2.25, 2.25]]
    before = len(asked)
    assert env_states(lab, [running], module) == [[2.25, 2.25]]
    assert len(asked) == before
    first = env_states(lab, [running, fresh], module)[1]
    assert first == [10.0 * len(asked)] * 2
    assert env_states(lab, [fresh], module) == [[10.0 * len(asked)] * 2] != [first]


def test_env_side_states_of_another_key_order_are_not_mixed_up(lab):
    def newest(id_, keys):
        states = [{key: np.full(2, {"h": 10.0, "c": 20.0}[key], np.float32) for key in keys}]
        return lab.episode(id_, 1, numpy=False, extra_model_outputs={"state_out": states})

    module = lab.module(2, two_leaved=True)
    pieces = [AddObservationsFromEpisodesToBatch(), AddStatesFromEpisodesToBatch()]
    for orders in (["ch", "ch"], ["ch", "hc"], ["hc", "ch"]):
        episodes = [newest(str(i), keys) for i, keys in enumerate(orders)]
        seen = lab.see("env_to_module", pieces, episodes, rl_module=module)
        for items in seen["state_in"].values():
            assert {key: leaf.tolist() for key, leaf in items[0].items()} == {"h": [10.0, 10.0], "c": [20.0, 20.0]}


def test_a_state_that_is_a_plain_number(lab):
    module = SimpleNamespace(is_stateful=lambda: True, get_initial_state=lambda: 0.5, model_config={"max_seq_len": 2})
    running = lab.episode("a", 3, numpy=False, extra_model_outputs={"state_out": [-3.0, -2.0, -1.0]})
    pieces = [AddObservationsFromEpisodesToBatch(), AddStatesFromEpisodesToBatch()]
    episodes = [running, lab.episode("b", 0, numpy=False, extra_model_outputs={"state_out": []})]
    seen = lab.columns("env_to_module", pieces, episodes, rl_module=module)
    assert {key: rows.tolist() for key, rows in seen["state_in"].items()} == {("a",): [-1.0], ("b",): [0.5]}


def test_plain_pieces_see_one_array_of_states_per_chunk(lab):
    seen = lab.see("learner", pieces_with_states(), [lab.episode("a", 7, state=2)], rl_module=lab.module(2, 3))
    (item,) = seen["state_in"]["a",]
    assert type(item["h"]).__name__ == "BatchedNdArray" and item["h"].shape == (3, 2)
