"""Minibatches of rows and of whole sequences: every row once, in the sizes asked for."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from itertools import chain, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from epibatch.core import MaskedColumn
from epibatch.core.errors import BatchLayoutError, ColumnError, ConfigError
from epibatch.learner import Minibatches, RolloutStorage


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def flat(parts: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(parts))


def drawn(minibatches: Minibatches, column: str = "x") -> list[list[int]]:
    return [minibatch[column].tolist() for minibatch in minibatches]


@given(
    st.integers(1, 40),
    st.one_of(st.none(), st.integers(1, 50)),
    st.integers(1, 3),
    st.sampled_from(["epoch", "once", None]),
    st.sampled_from(["keep", "spread", "drop"]),
)
def test_every_epoch_delivers_every_row_once(rows, size, epochs, shuffle, remainder):
    batch = {"x": torch.arange(rows), "y": torch.arange(rows)[:, None] * 2.0}
    minibatches = Minibatches(
        batch, size=size, epochs=epochs, shuffle=shuffle, remainder=remainder, generator=generator()
    )
    found = [list(epoch) for epoch in minibatches.by_epoch()]
    assert len(found) == epochs
    for own in found:
        for part in own:
            np.testing.assert_array_equal(part["y"][:, 0], part["x"] * 2.0)
        seen = sorted(torch.cat([part["x"] for part in own]).tolist())
        sizes = [len(part["x"]) for part in own]
        assert len(set(seen)) == len(seen) and set(seen) <= set(range(rows))
        assert len(seen) == rows or (remainder == "drop" and size <= len(seen) == rows - rows % size)
        if remainder == "spread":
            assert len(sizes) == max(1, rows // (size or rows)) and max(sizes) - min(sizes) <= 1
        elif remainder == "drop" and size is not None and size <= rows:
            assert set(sizes) == {size}
        else:
            assert set(sizes[:-1]) <= {size} and sizes[-1] <= (size or rows)


def test_order():
    batch = {"x": torch.arange(100)}

    def rows(shuffle: str | None, size: int) -> list[list[int]]:
        parts = drawn(Minibatches(batch, size=size, epochs=2, shuffle=shuffle, generator=generator()))
        half = len(parts) // 2
        return [flat(parts[:half]), flat(parts[half:])]

    for size in (50, 5):  # a gather per minibatch, and one shuffled copy per epoch
        first, second = rows("epoch", size)
        assert first != second and first != list(range(100))
        assert [first, second] == rows("epoch", size)  # the generator decides
        first, second = rows("once", size)
        assert first == second != list(range(100))
        assert rows(None, size) == [list(range(100))] * 2
    assert rows("epoch", 50) == rows("epoch", 5)


def test_bootstrap_rows_are_left_out_and_the_mask_stays():
    mask = torch.tensor([True, True, False, True, False])
    batch = {"x": torch.arange(5), "loss_mask": mask, "infos": [{"i": i} for i in range(5)]}
    minibatches = Minibatches(batch, size=2, shuffle=None)
    assert minibatches.num_rows == 3
    parts = list(minibatches)
    assert [part["x"].tolist() for part in parts] == [[0, 1], [3]]
    assert all(part["loss_mask"].all() for part in parts)
    assert [part["infos"] for part in parts] == [[{"i": 0}, {"i": 1}], [{"i": 3}]]
    for shuffle in ("once", "epoch"):
        found = drawn(Minibatches(batch, size=2, shuffle=shuffle, generator=generator()))
        assert sorted(flat(found)) == [0, 1, 3]


def recurrent(sequences: int = 5, steps: int = 4) -> dict[str, object]:
    base = torch.arange(sequences)
    return {
        "obs": base[:, None, None].expand(sequences, steps, 3).clone(),
        "seq_lens": base,  # 0: a bootstrap row alone
        "state_in": {"h": base[:, None] * 10.0, "c": (base[:, None] * 20.0,)},
        "loss_mask": torch.ones(sequences, steps, dtype=torch.bool),
        "infos": [{}] * 17,  # one per timestep: cannot be aligned with sequences
    }


@pytest.mark.parametrize(("size", "per_batch"), [(8, 2), (9, 2), (11, 3), (3, 1), (None, 5), (100, 5)])
def test_recurrent_batches_go_by_whole_sequences(size, per_batch):
    parts = list(Minibatches(recurrent(), size=size, shuffle="epoch", generator=generator()))
    assert [len(part["seq_lens"]) for part in parts][:-1] == [per_batch] * (len(parts) - 1)
    assert sorted(flat(part["seq_lens"].tolist() for part in parts)) == [0, 1, 2, 3, 4]
    for part in parts:
        index = part["seq_lens"]
        assert part["obs"].shape[1:] == (4, 3)
        np.testing.assert_array_equal(part["obs"][:, 0, 0], index)
        np.testing.assert_array_equal(part["state_in"]["h"][:, 0], index * 10.0)
        np.testing.assert_array_equal(part["state_in"]["c"][0][:, 0], index * 20.0)
        assert "infos" not in part


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=60).filter(any),
    st.one_of(st.none(), st.integers(1, 80)),
    st.sampled_from(["epoch", "once", None]),
    st.sampled_from(["keep", "drop", "spread"]),
    st.booleans(),
)
def test_minibatches_of_sequences_have_the_size_asked_for(lens, size, shuffle, remainder, bootstrap):
    """Real steps count, padding and bootstrap steps do not; whole sequences are off by half of one at most."""
    steps = 9 + bootstrap
    mask = torch.arange(steps) < torch.tensor(lens)[:, None]
    x = torch.arange(len(lens) * steps).reshape(len(lens), steps)
    batch = {"x": x, "seq_lens": torch.tensor(lens), "loss_mask": mask}
    minibatches = Minibatches(
        batch, size=size, epochs=2, shuffle=shuffle, remainder=remainder, generator=generator(len(lens))
    )
    for epoch in minibatches.by_epoch():
        parts = list(epoch)
        counts = [int(part["loss_mask"].sum()) for part in parts]
        seen = sorted(torch.cat([part["x"][part["loss_mask"]] for part in parts]).tolist())
        assert min(counts) >= 1
        if remainder == "drop":
            assert len(seen) == len(set(seen)) and len(seen) > sum(lens) - (size or 1)
        else:
            assert seen == x[mask].tolist()  # every step once
        if size is None or sum(lens) <= size:
            assert len(parts) == 1
        elif remainder != "spread":
            for part, count in zip(parts[: len(parts) - (remainder == "keep")], counts):
                last = int(part["seq_lens"][-1])
                assert count - last < size and abs(count - size) <= max(9 / 2, last - size)
        else:
            assert len(parts) == min(int((mask.any(1)).sum()), sum(lens) // size)
            if size >= 9:
                assert max(abs(count - sum(lens) / len(parts)) for count in counts) <= 9


@pytest.mark.parametrize(
    ("size", "columns", "expected"),
    [
        # 4 steps with loss in the first, 1 and 4 in the second minibatch; sequence 2 has none
        (
            4,
            {"seq_lens": [0, 1, 2, 3, 4], "loss_mask": [[1] * 4, [1, 0, 0, 0], [0] * 4, [1] * 4, [1] * 4]},
            [[0], [1, 3], [4]],
        ),
        (2, {"seq_lens": [5, 6, 7, 8], "loss_mask": [1, 1, 0, 1]}, [[5, 6], [8]]),  # a mask of whole sequences
        (5, {"seq_lens": [5, 1, 1, 1, 1, 1]}, [[5], [1] * 5]),  # without a mask the lengths count
        (5, {"seq_lens": [5, 0, 3], "loss_mask": [[1] * 5, [0] * 5, [1, 1, 1, 0, 0]]}, [[5], [3]]),  # bootstrap alone
    ],
)
def test_steps_with_loss_count(size, columns, expected):
    batch = {name: torch.tensor(column) for name, column in columns.items()}
    if "loss_mask" in batch:
        batch["loss_mask"] = batch["loss_mask"].bool()
    batch["x"] = torch.zeros(len(batch["seq_lens"]), 9)
    assert [part["seq_lens"].tolist() for part in Minibatches(batch, size=size, shuffle=None)] == expected


@pytest.mark.parametrize("shuffle", ["once", "epoch", None])
@pytest.mark.parametrize("size", [4, 1], ids=["gathered", "sliced"])
def test_values_and_masks_stay_together(shuffle, size):
    rows = torch.arange(10)
    ref = MaskedColumn(rows[:, None].float(), rows % 3 == 0)
    minibatches = Minibatches(
        {"obs": {"ref": ref}, "x": rows}, size=size, epochs=2, shuffle=shuffle, generator=generator()
    )
    count = 0
    for minibatch in minibatches:
        pair, x = minibatch["obs"]["ref"], minibatch["x"]
        assert type(pair) is MaskedColumn
        assert torch.equal(pair.value[:, 0], x.float())
        assert torch.equal(pair.mask, x % 3 == 0)
        count += len(x)
    assert count == 20


def test_other_columns():
    batch = {
        "x": torch.arange(4),
        "names": np.array(["a", "b", "c", "d"], object),
        "half": torch.arange(4).to(torch.bfloat16),
    }
    parts = list(Minibatches(batch, size=3, shuffle="once", generator=generator()))
    for part in parts:
        assert part["names"].tolist() == ["abcd"[i] for i in part["x"].tolist()]
        assert part["half"].dtype == torch.bfloat16 and part["half"].tolist() == part["x"].tolist()


@pytest.mark.parametrize(
    ("rows", "number", "remainder", "expected"),
    [
        (10, 3, "keep", [3, 3, 3, 1]),
        (10, 3, "drop", [3, 3, 3]),
        (10, 3, "spread", [4, 3, 3]),
        (10, 4, "keep", [2, 2, 2, 2, 2]),
        (10, 4, "drop", [2, 2, 2, 2]),
        (10, 4, "spread", [3, 3, 2, 2]),
        (10, 1, "drop", [10]),
        (3, 3, "keep", [1, 1, 1]),
    ],
)
@pytest.mark.parametrize("steps", [None, 6])
def test_a_number_of_minibatches(rows, number, remainder, expected, steps):
    """Rows, or whole environments of as many steps each."""
    batch = (
        {"x": torch.arange(rows)} if steps is None else {"x": torch.arange(rows), "seq_lens": torch.full((rows,), 6)}
    )
    for shuffle in ("once", "epoch", None):
        minibatches = Minibatches(
            batch, num_minibatches=number, epochs=2, shuffle=shuffle, remainder=remainder, generator=generator()
        )
        parts = drawn(minibatches)
        assert sorted(map(len, parts)) == sorted(expected * 2)
        assert minibatches.num_per_epoch == len(expected)
        for half in (parts[: len(expected)], parts[len(expected) :]):
            assert len(set(flat(half))) == sum(expected)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=40), st.data(), st.sampled_from(["keep", "drop", "spread"]))
def test_a_number_of_minibatches_of_sequences(steps, data, remainder):
    """Sequences of different lengths are spread over so many, whatever is to happen to a remainder."""
    number = data.draw(st.integers(1, len(steps)))
    batch = {"x": torch.arange(len(steps)), "seq_lens": torch.tensor(steps)}
    parts = list(Minibatches(batch, num_minibatches=number, shuffle=None, remainder=remainder))
    if len(set(steps)) > 1:
        assert len(parts) == number and flat(part["x"].tolist() for part in parts) == list(range(len(steps)))
    elif remainder == "drop":
        assert [len(part["x"]) for part in parts] == [len(steps) // number] * number


def test_orders_are_those_of_the_generator():
    batch = {"x": torch.arange(1000), "y": torch.zeros(1000, 2000)}  # y: too large for a copy per epoch
    source = generator(3)
    orders = [torch.randperm(1000, generator=source).tolist() for _ in range(3)]
    for names in (["x"], ["x", "y"]):
        columns = {name: batch[name] for name in names}
        found = drawn(Minibatches(columns, num_minibatches=4, epochs=3, shuffle="epoch", generator=generator(3)))
        assert [flat(found[i : i + 4]) for i in (0, 4, 8)] == orders
        found = drawn(Minibatches(columns, num_minibatches=4, epochs=3, shuffle="once", generator=generator(3)))
        assert [flat(found[i : i + 4]) for i in (0, 4, 8)] == orders[:1] * 3


@pytest.mark.parametrize("shuffle", ["once", "epoch", None])
@pytest.mark.parametrize("source", [None, generator()])
def test_columns_on_a_device_are_never_read_by_the_host(shuffle, source):
    """Tensors of the device "meta" have no values: whatever copies them to the host raises."""
    batch = {"obs": {"a": torch.zeros(1000, 2000, device="meta")}, "x": torch.zeros(1000, 3, device="meta")}
    for own in (batch, {"x": batch["x"]}):
        parts = list(Minibatches(own, num_minibatches=4, epochs=2, shuffle=shuffle, generator=source))
        assert len(parts) == 8
        assert all(part["x"].shape == (250, 3) and part["x"].device.type == "meta" for part in parts)


def test_columns_of_two_devices_and_lists_go_together():
    batch = {"far": torch.zeros(10, 2, device="meta"), "near": torch.arange(10), "infos": list(range(10))}
    for shuffle in ("once", "epoch"):
        for part in Minibatches(batch, size=5, shuffle=shuffle, generator=generator()):
            assert part["far"].device.type == "meta" and part["near"].tolist() == part["infos"]


def test_views_of_whole_environments_stay_time_major():
    block = torch.arange(6 * 8 * 2.0).reshape(6, 8, 2)  # [time, environments, ...]
    gaps = torch.arange(8 * 4.0).reshape(8, 4)[:, 1:3]
    batch = {"x": torch.arange(8), "obs": block.transpose(0, 1), "gaps": gaps}
    for part in Minibatches(batch, num_minibatches=4, shuffle="once", generator=generator()):
        rows = part["x"]
        assert torch.equal(part["obs"], block[:, rows].transpose(0, 1)) and torch.equal(part["gaps"], gaps[rows])
    (whole,) = Minibatches(batch, shuffle="once", generator=generator())
    assert whole["obs"].transpose(0, 1).is_contiguous()


def numbered_rollout(num_steps, num_envs):
    """A storage whose column says step and environment in one number."""
    storage = RolloutStorage(num_steps, num_envs)
    for t in range(num_steps):
        number = torch.arange(num_envs) + t * num_envs
        storage.add_step({"obs": {"a": number[:, None] * torch.ones(3)}, "actions": number})
    return storage


def test_the_minibatches_of_a_rollout():
    storage = numbered_rollout(24, 64)
    parts = list(storage.minibatches(4, epochs=5, shuffle="epoch", generator=generator()))
    assert len(parts) == 20
    for epoch in range(5):
        own = parts[4 * epoch : 4 * epoch + 4]
        assert sorted(flat(part["actions"].tolist() for part in own)) == list(range(24 * 64))
    assert all(torch.equal(part["obs"]["a"][:, 2], part["actions"].float()) for part in parts)
    assert len(list(storage.minibatches(4))) == 4


def test_random_and_sequential_access_to_one_storage():
    storage = numbered_rollout(6, 5)
    size = storage.nbytes
    drawn_rows, steps = [], []
    for minibatch, step in zip(storage.minibatches(6), storage.steps(), strict=True):
        drawn_rows += minibatch["actions"].tolist()
        steps += step["actions"].tolist()
        assert step["actions"].untyped_storage().data_ptr() == storage["actions"].untyped_storage().data_ptr()
    assert steps == sorted(drawn_rows) == list(range(30)) and storage.nbytes == size


@pytest.mark.parametrize(("shuffle", "copied"), [("once", 1.0), ("epoch", 1 / 16)])
def test_memory(shuffle, copied):
    batch = {f"x{i}": torch.zeros(16_000, 64) for i in range(4)}
    size = sum(column.nbytes for column in batch.values())
    tracemalloc.start()
    try:
        for minibatch in Minibatches(batch, num_minibatches=16, epochs=2, shuffle=shuffle):
            del minibatch
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.99 * copied * size < peak < copied * size + 0.05 * size


def test_parts_of_a_masked_column_have_names():
    masked = MaskedColumn({"near": torch.arange(3)}, torch.tensor([True, False, True]))
    minibatches = Minibatches({"obs": {"ref": masked}, "pair": masked}, shuffle=None)
    near, mask, other, none = next(minibatches.as_tuple(["obs.ref.value.near", "obs.ref.mask", "pair.mask", "pair.x"]))
    assert near is not None and near.tolist() == [0, 1, 2] and none is None
    assert mask.tolist() == other.tolist() == [True, False, True]


def test_as_tuple():
    x = torch.arange(6)
    masked = MaskedColumn(x * 10.0, x % 2 == 0)
    batch = {"obs": {"policy": x, "ref": masked, "deep": {"er": x + 1}}, "actions": -x, "a.b": x * 3}
    order = ["actions", "obs.ref", "obs.policy", "rnd_state", "obs.rnd", "obs.deep.er", "a.b", "actions.x", "obs.deep"]
    parts = list(Minibatches(batch, num_minibatches=2, generator=generator()).as_tuple(order))
    assert len(parts) == 2
    assert sorted(flat((-actions).tolist() for actions, *_ in parts)) == list(range(6))
    for actions, (value, mask), policy, rnd_state, missing, deeper, dotted, none, deep in parts:
        assert torch.equal(actions, -policy) and torch.equal(deeper, policy + 1) and torch.equal(dotted, policy * 3)
        assert torch.equal(value, policy * 10.0) and torch.equal(mask, policy % 2 == 0)
        assert rnd_state is missing is none is None and torch.equal(deep["er"], deeper)


def test_a_masked_column_stays_one():
    column = MaskedColumn(torch.arange(6.0), torch.arange(6) > 2)
    for shuffle in ("once", "epoch", None):
        for part in Minibatches({"ref": column}, size=4, shuffle=shuffle):
            assert isinstance(part["ref"], MaskedColumn) and torch.equal(part["ref"].mask, part["ref"].value > 2)


def without_loss(lengths):
    """Sequences of four places, none of which carries loss."""
    return {"x": torch.zeros(2, 4), "seq_lens": torch.tensor(lengths), "loss_mask": torch.zeros(2, 4).bool()}


def sequences():
    return {"obs": torch.zeros(3, 5, 2), "loss_mask": torch.ones(3, 5, dtype=torch.bool)}


WRONG_LENGTHS = ([-1, 2, 3], [6, 1, 1], [1.5, 1, 1], [float("nan"), 1, 1], [[1], [2], [3]])
NO_FLAGS = (float("nan"), 0.5, 2.0)


@pytest.mark.parametrize(
    ("batch", "options", "error", "message"),
    [
        ({"x": torch.zeros(3)}, {"size": 0}, ConfigError, "minibatch_size: .*greater than or equal to 1, found int 0"),
        ({"x": torch.zeros(3)}, {"size": 2.0}, ConfigError, "minibatch_size"),
        ({"x": torch.zeros(3)}, {"epochs": 0}, ConfigError, "num_epochs"),
        ({"x": torch.zeros(3)}, {"shuffle": "epochs"}, ConfigError, "shuffle: .*'epoch' or 'once'"),
        ({"x": torch.zeros(3)}, {"remainder": "dropp"}, ConfigError, "remainder: .*'drop'"),
        ({"x": torch.zeros(3)}, {"num_minibatches": 2}, ConfigError, "num_minibatches 2 beside size 2"),
        *(
            ({"x": torch.zeros(3)}, {"size": None, "num_minibatches": number}, ConfigError, "num_minibatches")
            for number in (0, -1, True, 1.5, "2")
        ),
        ({"x": torch.zeros(3)}, {"size": None, "num_minibatches": 4}, BatchLayoutError, "at least 4 rows"),
        ({}, {}, BatchLayoutError, "without rows"),
        ({"x": torch.zeros(0)}, {}, BatchLayoutError, "without rows"),
        ({"x": torch.zeros(2), "loss_mask": torch.zeros(2).bool()}, {}, BatchLayoutError, "False loss_mask"),
        (without_loss([3, 1]), {}, BatchLayoutError, r"3 steps in 4 places[\s\S]*'pad'[\s\S]*at most 3;"),
        (
            without_loss([4, 1]),
            {},
            BatchLayoutError,
            r"4 steps in 4 places[\s\S]*let pieces that write loss_mask",
        ),
        ({"x": torch.zeros(3), "y": torch.zeros(2)}, {}, ColumnError, r"column 'y'[\s\S]*3 rows, like"),
        ({"x": torch.zeros(3), "infos": [{}]}, {}, ColumnError, r"column 'infos'[\s\S]*list of 1"),
        ({"infos": [{}, {}]}, {}, ColumnError, r"column 'infos'[\s\S]*tensors or arrays[\s\S]*lists alone"),
        ({"x": torch.zeros(3), "y": torch.tensor(1)}, {}, ColumnError, "column 'y'"),
        ({"x": torch.zeros(3), "y": 5}, {}, ColumnError, r"column 'y'[\s\S]*int"),
        *(
            ({**sequences(), "seq_lens": torch.tensor(lengths)}, {}, ColumnError, "'seq_lens'")
            for lengths in WRONG_LENGTHS
        ),
        *(
            ({"x": torch.zeros(3), "loss_mask": torch.full((3,), value)}, {}, ColumnError, "'loss_mask'")
            for value in NO_FLAGS
        ),
    ],
)
def test_errors_come_before_the_first_minibatch(batch, options, error, message):
    with pytest.raises(error, match=message):
        Minibatches(batch, **{"size": 2, **options})


def minibatch_sizes(steps, size, remainder):
    """Sequences of each minibatch, for sequences of these lengths."""
    batch = {"x": torch.zeros(len(steps)), "seq_lens": torch.tensor(steps)}
    return [len(part["x"]) for part in Minibatches(batch, size=size, shuffle=None, remainder=remainder)]


def sums(steps, sizes):
    edges = np.cumsum([0, *sizes])
    return [sum(steps[a:b]) for a, b in pairwise(edges)]


def slow(steps, size):
    """The rule row by row: another row belongs to the minibatch while it brings it nearer to the size."""
    sizes, rows = [], list(steps)
    while rows:
        taken, count = rows.pop(0), 1
        while rows and taken < size:
            if abs(taken + rows[0] - size) > abs(taken - size) and sum(rows) + taken >= size:
                break
            taken, count = taken + rows.pop(0), count + 1
        sizes.append(count)
    return sizes


@given(st.lists(st.integers(1, 9), min_size=1, max_size=40), st.integers(1, 60))
def test_keep_is_the_rule_applied_row_by_row(steps, size):
    assert minibatch_sizes(steps, size, "keep") == slow(steps, size)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=40), st.integers(1, 60))
def test_drop_is_keep_without_what_did_not_reach_the_size(steps, size):
    kept, dropped = (minibatch_sizes(steps, size, remainder) for remainder in ("keep", "drop"))
    assert dropped == kept or dropped == kept[:-1]
    if dropped != kept:
        assert sums(steps, kept)[-1] < size


@pytest.mark.parametrize(
    ("steps", "size", "remainder", "expected"),
    [
        ([20] * 20, 128, "keep", [6, 6, 6, 2]),  # 120 is nearer to 128 than 140
        ([20] * 20, 128, "spread", [7, 7, 6]),
        ([32, 1, 1, 1, 1], 4, "keep", [1, 4]),  # longer than asked for: a minibatch of its own
        ([32, 32], 4, "spread", [1, 1]),
        ([1, 1, 32], 40, "keep", [3]),
        ([5, 5, 5], None, "drop", [3]),
        ([3, 3], 4, "drop", [1]),
        ([1] * 10, 4, "keep", [4, 4, 2]),
        ([1] * 10, 4, "drop", [4, 4]),
        ([1] * 11, 4, "spread", [6, 5]),
    ],
)
def test_examples(steps, size, remainder, expected):
    assert minibatch_sizes(steps, size, remainder) == expected
