"""Rollouts in tensors [T, N, ...]: what is kept, returns, batches, sequences, previous rows, and what is refused."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

from epibatch.core import MaskedColumn
from epibatch.core.errors import BatchLayoutError, ColumnError, ConfigError, EpibatchWarning, RolloutOverflowError
from epibatch.learner import ColumnSpec, RolloutStorage

T, N = 6, 4


def steps(num_steps=T, seed=0, **left_out):
    """Random steps; the observation holds (step, env), so that each row says where it is from."""
    rng = np.random.default_rng(seed)
    made = []
    for t in range(num_steps):
        ends = rng.random((2, N)) < 0.25
        where = torch.tensor([[t, n] for n in range(N)], dtype=torch.float32)
        made.append(
            {
                "obs": {"policy": where, "critic": where[:, :1] * 10},
                "actions": torch.arange(N) + t,
                "rewards": torch.from_numpy(rng.normal(size=N)).float(),
                "terminateds": torch.from_numpy(ends[0]),
                "truncateds": torch.from_numpy(ends[1] & ~ends[0]),
                "vf_preds": torch.from_numpy(rng.normal(size=N)).float(),
                "values_bootstrapped": torch.from_numpy(rng.normal(size=N)).float(),
                "state_in": {"h": where + 0.5},
            }
        )
        for name in left_out:
            del made[-1][name]
    return made


def stored(given, **arguments):
    storage = RolloutStorage(arguments.pop("num_steps", len(given)), N, **arguments)
    for step in given:
        storage.add_step(step)
    return storage


def slow_advantages(given, last_values, gamma, lambda_):
    """GAE of one environment after the other, in float64."""
    out = np.zeros((len(given), N))
    for n in range(N):
        advantage = 0.0
        for t in reversed(range(len(given))):
            step = {name: float(given[t][name][n]) for name in ("rewards", "vf_preds", "values_bootstrapped")}
            following = float(last_values[n]) if t == len(given) - 1 else float(given[t + 1]["vf_preds"][n])
            if given[t]["truncateds"][n]:
                following, advantage = step["values_bootstrapped"], 0.0
            if given[t]["terminateds"][n]:
                following, advantage = 0.0, 0.0
            advantage = step["rewards"] + gamma * following - step["vf_preds"] + gamma * lambda_ * advantage
            out[t, n] = advantage
    return out


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("gamma", "lambda_"), [(0.99, 0.95), (1.0, 1.0), (0.0, 0.5)])
def test_returns_are_those_of_a_loop_in_float64(seed, gamma, lambda_):
    given, last = steps(seed=seed), torch.randn(N, generator=torch.Generator().manual_seed(seed))
    storage = stored(given)
    storage.compute_returns(last, gamma=gamma, lambda_=lambda_, standardize_advantages=False)
    expected = slow_advantages(given, last, gamma, lambda_)
    values = torch.stack([step["vf_preds"] for step in given]).numpy()
    np.testing.assert_allclose(storage["advantages"].numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(storage["value_targets"].numpy(), expected + values, atol=1e-5)
    storage.compute_returns(last, gamma=gamma, lambda_=lambda_)
    scaled = (expected - expected.mean()) / expected.std()
    np.testing.assert_allclose(storage["advantages"].numpy(), scaled, atol=1e-4)
    assert abs(float(storage["advantages"].mean())) < 1e-6
    assert float(storage["advantages"].std(correction=0)) == pytest.approx(1.0, abs=1e-5)

    given = [{**step, "vf_preds": step["vf_preds"].bfloat16()} for step in given]  # sums stay in float32
    halved = stored(given, columns={**storage.columns, "vf_preds": ColumnSpec((), torch.bfloat16)})
    halved.compute_returns(last, gamma=gamma, lambda_=lambda_, standardize_advantages=False)
    expected = slow_advantages(given, last, gamma, lambda_)
    np.testing.assert_allclose(halved["advantages"].numpy(), expected, atol=1e-5)


def test_truncated_steps_without_terminal_values_are_warned_of():
    given = steps(values_bootstrapped=True)
    assert any(bool(step["truncateds"].any()) for step in given)
    storage = stored(given)
    with pytest.warns(EpibatchWarning, match="values_bootstrapped"):
        storage.compute_returns(torch.zeros(N), standardize_advantages=False)
    own = [{**step, "values_bootstrapped": step["vf_preds"]} for step in given]
    np.testing.assert_allclose(
        storage["advantages"].numpy(), slow_advantages(own, torch.zeros(N), 0.99, 0.95), atol=1e-5
    )


def test_rows_of_a_batch_are_in_the_order_of_time_and_share_memory():
    storage = stored(steps())
    storage.compute_returns(torch.zeros(N))
    batch = storage.batch()
    expected = [[t, n] for t in range(T) for n in range(N)]  # row = step * num_envs + env
    assert batch["obs"]["policy"].tolist() == expected
    assert batch["obs"]["policy"].data_ptr() == storage["obs"]["policy"].data_ptr()
    assert batch["advantages"].shape == (T * N,) and "state_in" not in batch
    assert [step["obs"]["critic"][:, 0].tolist() for step in storage.steps()] == [[10.0 * t] * N for t in range(T)]
    whole = storage.environments()
    assert whole["obs"]["policy"][2].tolist() == [[t, 2] for t in range(T)]
    assert whole["state_in"]["h"].tolist() == [[0.5, n + 0.5] for n in range(N)]
    assert whole["seq_lens"].tolist() == [T] * N


def test_steps_are_copied_and_the_next_rollout_has_the_same_memory():
    first, second = steps(), steps(seed=1)
    storage = stored(first)
    before = storage["actions"].data_ptr()
    first[0]["actions"].fill_(-1)
    assert storage["actions"][0].tolist() == list(range(N))
    size = storage.nbytes
    storage.clear()
    assert len(storage) == 0
    for step in second:
        storage.add_step(step)
    assert (storage["actions"].data_ptr(), storage.nbytes) == (before, size)
    assert torch.equal(storage["rewards"], torch.stack([step["rewards"] for step in second]))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda storage: pickle.loads(pickle.dumps(storage))])
def test_a_copy_goes_on_in_memory_of_its_own(copied):
    storage = stored(steps(3), num_steps=T)
    other = copied(storage)
    for step in steps(3, seed=1):
        other.add_step(step)
    expected = torch.stack([step["rewards"] for step in [*steps(3), *steps(3, seed=1)]])
    assert torch.equal(other["rewards"], expected) and torch.equal(storage["rewards"], expected[:3])
    assert not storage.rows("rewards", 3, T).any()


def test_only_columns_of_the_schema_take_memory():
    columns = {"obs": {"policy": ColumnSpec((3,)), "critic": ColumnSpec((5,))}, "rewards": ColumnSpec()}
    storage = RolloutStorage(T, N, columns)
    assert storage.nbytes == 4 * N * ((T + 1) * (3 + 5) + T)
    more = RolloutStorage(T, N, {**columns, "teacher_actions": ColumnSpec((2,)), "flag": ColumnSpec((), torch.bool)})
    assert more.nbytes - storage.nbytes == N * T * (4 * 2 + 1)
    assert RolloutStorage(T, N, columns, lookback=2).nbytes - storage.nbytes == 2 * 4 * N * (3 + 5 + 1)


@pytest.mark.parametrize("max_seq_len", [None, 1, 2, 4])
def test_sequences_are_those_of_a_loop_over_environments(max_seq_len):
    given = steps(seed=3)
    expected = []
    for n in range(N):
        current: list[int] = []
        for t in range(T):
            current.append(t)
            ended = bool(given[t]["terminateds"][n] | given[t]["truncateds"][n])
            if ended or t == T - 1 or len(current) == max_seq_len:
                expected.append([[float(step), float(n)] for step in current])
                current = []
    batch = stored(given).sequences(max_seq_len)
    obs, mask = batch["obs"]["policy"], batch["loss_mask"]
    assert [rows[keep].tolist() for rows, keep in zip(obs, mask)] == expected
    assert batch["seq_lens"].tolist() == [len(rows) for rows in expected]
    assert obs.shape[1] == (max_seq_len or max(map(len, expected))) and not obs[~mask].any()
    assert (batch["state_in"]["h"] - 0.5).tolist() == [rows[0] for rows in expected]


@pytest.mark.parametrize("lookback", [0, 1, 2])
def test_previous_rows_are_of_the_same_episode_and_environment(lookback):
    rollouts = [steps(seed=4), steps(seed=5)]
    storage, flat = RolloutStorage(T, N, lookback=lookback), []
    for number, given in enumerate(rollouts):
        storage.clear()
        for step in given:
            storage.add_step({**step, "obs": {"policy": step["obs"]["policy"] + 100 * number}})
        rows, mask = storage.previous("obs")
        expected, there = [], []
        for t in range(T):
            for n in range(N):
                before = rollouts[number][t - 1] if t else rollouts[0][-1] if number and lookback else None
                ended = before is None or bool(before["terminateds"][n] | before["truncateds"][n])
                offset = 100 * number if t or ended else 0
                expected.append([(t if ended else (t - 1) % T) + offset, n + (100 * number if t or ended else 0)])
                there.append(not ended)
        flat.append((rows["policy"].tolist(), mask.tolist()))
        assert flat[-1] == (expected, there)


@pytest.mark.parametrize("lookback", [0, 1, 2])
def test_a_column_of_previous_rows_is_what_a_function_returns_of_the_rows_before(lookback):
    storage = RolloutStorage(T, N, lookback=lookback)
    for seed in (4, 5):
        storage.clear()
        for t, step in enumerate(steps(seed=seed)):
            where = step["obs"]["policy"]
            storage.add_step({**step, "obs": {"policy": where, "ref": MaskedColumn(where, where[:, 1] % 2 == t % 2)}})
        storage.compute_returns(torch.zeros(N))
        storage.add_previous("before", "obs", lambda obs: {"sum": obs["policy"].sum(1)})
        storage.add_previous("ref_before", "obs", lambda obs: obs["ref"])
        rows, mask = storage.previous("obs")
        batch = storage.batch()
        assert torch.equal(batch["before"].value["sum"], rows["policy"].sum(1))
        assert torch.equal(batch["before"].mask, mask)
        assert torch.equal(batch["ref_before"].value, rows["policy"])
        assert torch.equal(batch["ref_before"].mask, mask & rows["ref"].mask)
        for minibatch in storage.minibatches(size=5):
            where = minibatch["obs"]["policy"].long()
            assert torch.equal(minibatch["ref_before"].value, rows["policy"][where[:, 0] * N + where[:, 1]])
    with pytest.raises(ColumnError, match="extractor of 'obs'"):
        storage.add_previous("before", "obs", lambda obs: obs["policy"].sum())
    with pytest.raises(ColumnError, match="a column of the steps"):
        storage.add_previous("obs", "obs")


@pytest.mark.parametrize("seed", range(3))
def test_statistics_are_those_of_a_loop_over_environments(seed):
    given = steps(seed=seed)
    lengths = []
    for n in range(N):
        length = 0
        for t, step in enumerate(given):
            length += 1
            if t == T - 1 or bool(step["terminateds"][n] | step["truncateds"][n]):
                lengths.append(length)
                length = 0
    found = stored(given).statistics()
    assert float(found["trajectory_length"]) == pytest.approx(np.mean(lengths))
    assert float(found["reward"]) == pytest.approx(np.mean([step["rewards"].numpy() for step in given]), abs=1e-6)
    with pytest.raises(BatchLayoutError, match="at least one step"):
        RolloutStorage(T, N).statistics()


def test_tensors_of_a_loop_in_inference_mode_can_be_learned_from_outside_of_it():
    storage, weight = RolloutStorage(T, N, lookback=1), torch.ones(2, requires_grad=True)
    for _ in range(2):
        with torch.inference_mode():
            for step in steps():
                storage.add_step(step)
            storage.compute_returns(torch.zeros(N))
        for minibatch in storage.minibatches(size=6, shuffle=None):
            ((minibatch["obs"]["policy"] @ weight) * minibatch["advantages"]).sum().backward()
        storage.clear()
    first = {**GOOD, "vf_preds": GOOD["vf_preds"].clone().requires_grad_()}
    storage.add_step(first)
    storage.compute_returns(torch.ones(N, requires_grad=True))
    assert not storage["vf_preds"].requires_grad and not storage["value_targets"].requires_grad


def test_minibatches_have_each_row_once_and_rows_of_all_columns_together():
    storage = stored(steps())
    storage.compute_returns(torch.zeros(N))
    minibatches = list(storage.minibatches(size=5, epochs=2, generator=torch.Generator().manual_seed(0)))
    assert [len(minibatch["actions"]) for minibatch in minibatches] == [5, 5, 5, 5, 4] * 2
    rows = torch.cat([minibatch["obs"]["policy"] for minibatch in minibatches[:5]]).tolist()
    assert sorted(rows) == [[t, n] for t in range(T) for n in range(N)] != rows
    for minibatch in minibatches:
        where = minibatch["obs"]["policy"].long()
        assert torch.equal(minibatch["actions"], where.sum(1))
        assert torch.equal(minibatch["advantages"], storage["advantages"][where[:, 0], where[:, 1]])


@pytest.mark.parametrize("unit", ["sequences", "environments"])
def test_minibatches_of_sequences_and_of_environments(unit):
    storage = stored(steps())
    storage.compute_returns(torch.zeros(N))
    plain, turned = (list(storage.minibatches(unit=unit, size=8, shuffle=None, time_major=major)) for major in (0, 1))
    assert sum(int(minibatch["seq_lens"].sum()) for minibatch in plain) == T * N and len(plain) > 1
    for minibatch, other in zip(plain, turned, strict=True):
        assert torch.equal(minibatch["obs"]["policy"].transpose(0, 1), other["obs"]["policy"])
        assert torch.equal(minibatch["state_in"]["h"], other["state_in"]["h"])
    repeatable = storage.minibatches(unit=unit, size=8, time_major=True)
    assert min(len(list(repeatable)), len(list(repeatable))) > 1
    longest = int(getattr(storage, unit)()["seq_lens"].max())
    assert next(repeatable.as_tuple(["obs.policy"]))[0].shape[0] == longest


def test_rows_without_loss_stay_without_it_in_sequences():
    storage = RolloutStorage(3, 2)
    for t in range(3):
        mask = torch.tensor([True, t != 1])
        storage.add_step({"obs": torch.zeros(2, 1), "loss_mask": mask, "terminateds": [t == 0, False]})
    assert storage.sequences()["loss_mask"].int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 0, 1]]


def test_terminal_observations_are_kept_of_environments_that_ended():
    given = steps()
    storage = RolloutStorage(T, N)
    for step in given:
        storage.add_step(step, final_obs={"policy": step["obs"]["policy"] + 1000, "critic": step["obs"]["critic"]})
    ended = [torch.nonzero(step["terminateds"] | step["truncateds"]).flatten().tolist() for step in given]
    found = storage.terminal_observations
    assert {t: envs.tolist() for t, (envs, _) in found.items()} == {t: envs for t, envs in enumerate(ended) if envs}
    for t, (envs, rows) in found.items():
        assert rows["policy"].tolist() == [[t + 1000, n + 1000] for n in envs.tolist()]


def test_unusual_values_are_converted():
    storage = RolloutStorage(2, 2)
    storage.add_step({"obs": np.zeros((2, 3)), "rewards": [[1], [2]], "terminateds": torch.tensor([[0], [1]])})
    storage.add_step({"obs": torch.zeros(2, 3).double(), "rewards": np.ones(2), "terminateds": [True, False]})
    assert storage["obs"].dtype is torch.float32
    assert storage["rewards"].tolist() == [[1.0, 2.0], [1.0, 1.0]]
    assert storage["terminateds"].tolist() == [[False, True], [True, False]]


GOOD = steps(1)[0]
MISTAKES = {
    "missing": ({key: value for key, value in GOOD.items() if key != "rewards"}, "no 'rewards'"),
    "surplus": ({**GOOD, "dones": torch.zeros(N)}, "'dones' too"),
    "missing part": ({**GOOD, "obs": {"policy": torch.zeros(N, 2)}}, "{policy: tensor}, not {policy: tensor, c"),
    "no pair": (
        {**GOOD, "obs": {**GOOD["obs"], "critic": MaskedColumn(torch.zeros(N, 1), torch.ones(N))}},
        r"critic: MaskedColumn\(tensor, tensor\)}, not",
    ),
    "shape": ({**GOOD, "actions": torch.zeros(N + 1, dtype=torch.int64)}, r"shape \[5\]"),
    "type": ({**GOOD, "actions": torch.zeros(N)}, "torch.float32 on cpu"),
    "device": ({**GOOD, "rewards": torch.zeros(N, device="meta")}, "on meta"),
    "sparse": ({**GOOD, "rewards": torch.zeros(N).to_sparse()}, r"torch\.sparse_coo"),
    "no numbers": ({**GOOD, "rewards": "one"}, "found:    str"),
}


@pytest.mark.parametrize("kind", [torch.uint8, torch.int16, torch.int64, torch.float32, torch.bool])
def test_integers_are_kept_or_refused(kind):
    for given in (torch.bool, torch.int8, torch.uint8, torch.int32, torch.int64):
        storage = RolloutStorage(1, N, {"marks": ColumnSpec((), kind)})
        least, most = (0, 1) if given is torch.bool else (torch.iinfo(given).min, torch.iinfo(given).max)
        step = {"marks": torch.tensor([least, most, 1, 1][:N] + [0] * (N - 4), dtype=given)}
        integral = not (kind.is_floating_point or kind is torch.bool)
        if integral and not (torch.iinfo(kind).min <= least and most <= torch.iinfo(kind).max):
            with pytest.raises(ColumnError, match=str(given)):
                storage.add_step(step)
        else:
            storage.add_step(step)
            assert torch.equal(storage["marks"][0], step["marks"].to(kind))


@pytest.mark.parametrize("flags", [[0.2, 0.0], [float("nan"), 1.0], [2, 0], [[-1], [0]]])
@pytest.mark.parametrize("name", ["terminateds", "truncateds"])
def test_flags_are_bools_or_the_numbers_0_and_1(flags, name):
    storage = RolloutStorage(2, 2)
    for given in (torch.tensor(flags), flags):
        with pytest.raises(ColumnError, match=rf"column \['{name}'\]\n.*the numbers 0 and 1"):
            storage.add_step({"rewards": torch.zeros(2), name: given})
    assert len(storage) == 0
    storage.add_step({"rewards": torch.zeros(2), name: torch.tensor([1.0, 0.0])})
    assert storage[name].tolist() == [[True, False]]


def test_a_reward_that_is_nan_is_kept_and_makes_targets_before_it_nan():
    storage = RolloutStorage(2, 2)
    for reward in (1.0, float("nan")):
        step = {"rewards": torch.tensor([reward, 1.0]), "vf_preds": torch.zeros(2)}
        storage.add_step({**step, "terminateds": torch.zeros(2, dtype=torch.bool)})
    storage.compute_returns(torch.zeros(2), gamma=1.0, lambda_=1.0, standardize_advantages=False)
    assert storage["value_targets"].isnan().tolist() == [[True, False], [True, False]]
    assert storage["value_targets"][:, 1].tolist() == [2.0, 1.0]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_step_that_does_not_fit_is_refused_and_changes_nothing(mistake):
    step, said = MISTAKES[mistake]
    storage = stored([GOOD], num_steps=T)
    before = storage["actions"].clone()
    with pytest.raises(ColumnError, match=said) as error:
        storage.add_step(step)
    assert "step 1" in error.value.where and len(storage) == 1
    assert torch.equal(storage["actions"], before)
    storage.add_step(GOOD)


PARTS = {"policy": torch.zeros(N, 2), "critic": torch.zeros(N, 3)}
MISFITS = [torch.zeros(N, 2), {"policy": torch.zeros(N, 2)}, {**PARTS, "wind": torch.zeros(N)}]


@pytest.mark.parametrize("obs", MISFITS, ids=["tensor", "missing part", "surplus part"])
def test_last_observations_that_are_nested_in_another_way_are_refused(obs):
    step = {"obs": PARTS, "terminateds": torch.ones(N, dtype=torch.bool)}
    storage = stored([step], num_steps=T)
    with pytest.raises(ColumnError, match="step 1, column 'obs'"):
        storage.finish(obs)
    with pytest.raises(ColumnError, match="step 1, final_obs"):
        storage.add_step(step, final_obs=obs)
    assert len(storage) == 1 and not storage.has_last and not storage.terminal_observations


@pytest.mark.parametrize("envs", [None, torch.tensor([0, 2])])
def test_terminal_rows_of_a_network_are_kept_without_its_graph(envs):
    network, count = torch.nn.Linear(2, 2), N if envs is None else len(envs)
    step = {"obs": torch.rand(N, 2), "state_in": {"h": torch.rand(N, 2)}, "terminateds": torch.tensor([1, 0, 1, 0])}
    storage, after = RolloutStorage(1, N), network(torch.rand(count, 2))
    step |= {"actions": torch.rand(N), "rewards": torch.rand(N)}
    storage.add_step(step, final_obs=after, final_state={"h": after}, final_envs=envs)
    storage.finish(step["obs"], step["state_in"])
    _, kept = storage.terminal_observations[0]
    assert not kept.requires_grad and torch.equal(kept, after if envs is not None else after[[0, 2]])
    assert np.array_equal(storage.episodes()[0].get_observations()[-1], kept[0])


def test_terminal_rows_may_be_those_of_the_environments_that_ended():
    envs, after = torch.tensor([0, N - 1]), {"final_obs": torch.rand(N, 2), "final_state": {"h": torch.rand(N, 3)}}
    step = {"obs": torch.rand(N, 2), "state_in": {"h": torch.rand(N, 3)}}
    step["terminateds"] = torch.zeros(N, dtype=torch.bool).index_fill(0, envs, True)
    step |= {"actions": torch.rand(N), "rewards": torch.rand(N)}
    sides = [RolloutStorage(1, N), RolloutStorage(1, N)]
    sides[0].add_step(step, **after)
    given = {"final_obs": after["final_obs"][envs], "final_state": {"h": after["final_state"]["h"][envs]}}
    for wrong in ({"final_envs": envs.int()}, {"final_envs": step["terminateds"]}, {"final_envs": envs[None]}):
        with pytest.raises(ColumnError, match="step 0, final_envs"):
            sides[1].add_step(step, **given, **wrong)
    with pytest.raises(ColumnError, match=r"step 0, final_obs[\s\S]*shape \[2, 2\]"):
        sides[1].add_step(step, **after, final_envs=envs)
    assert not sides[1].columns
    sides[1].add_step(step, **given, final_envs=envs)
    for storage in sides:
        storage.finish(torch.zeros(N, 2), {"h": torch.zeros(N, 3)})
    for whole, alone in zip(*(storage.episodes() for storage in sides)):
        assert np.array_equal(whole.get_observations(), alone.get_observations())
        assert np.array_equal(*(side.get_extra_model_outputs("state_out")["h"] for side in (whole, alone)))


@pytest.mark.parametrize(
    ("step", "final_obs"),
    [
        ({"obs": torch.zeros(N, 2)}, torch.zeros(N, 2)),  # without flags
        ({"obs": torch.zeros(N, 2), "terminateds": [True] * N}, torch.zeros(N, 3)),
        ({"obs": None}, None),
        ({"obs": [[1], [1, 2]] + [[1]] * (N - 2)}, None),
        ({"obs": torch.zeros(N, 2), "rewards": 1.0}, None),
    ],
)
def test_a_first_step_that_is_refused_makes_no_schema(step, final_obs):
    storage = RolloutStorage(T, N)
    with pytest.raises(ColumnError, match="step 0"):
        storage.add_step(step, final_obs=final_obs)
    assert not storage.columns and storage.nbytes == 0
    storage.add_step({"obs": torch.zeros(N, 7)})


def test_shapes_of_a_schema_may_be_lists_and_what_is_no_shape_is_named():
    storage = RolloutStorage(T, N, {"obs": ColumnSpec([2])})
    storage.add_step({"obs": np.zeros((N, 2))})
    storage.finish(torch.zeros(N, 2))
    assert storage.columns["obs"] == ColumnSpec((2,)) and storage.has_last
    for arguments in ([(None,)], ["ab"], [(-1,)], [(2,), np.float32]):
        with pytest.raises(ConfigError, match="ColumnSpec"):
            ColumnSpec(*arguments)


def test_returns_need_one_number_for_each_environment():
    columns = {name: ColumnSpec((1,)) for name in ("rewards", "vf_preds")}
    storage = RolloutStorage(1, N, {**columns, "terminateds": ColumnSpec((), torch.bool)})
    storage.add_step({"rewards": torch.ones(N, 1), "vf_preds": torch.ones(N, 1), "terminateds": [False] * N})
    with pytest.raises(ColumnError, match="column 'rewards'"):
        storage.compute_returns(torch.zeros(N))


@pytest.mark.parametrize("values", [np.zeros((1, N)), [[0.0] * N], torch.zeros(1, N, device="meta"), torch.zeros(N)])
def test_only_tensors_of_all_steps_on_the_device_can_be_added(values):
    storage = stored([GOOD], num_steps=T)
    with pytest.raises(ColumnError, match=r"add_column\('more'\)"):
        storage.add_column("more", values)
    assert "more" not in storage


def test_rows_before_those_that_were_kept_are_refused():
    storage = stored(steps(), lookback=1)
    with pytest.raises(ConfigError, match="start of at least 0"):
        storage.rows("rewards", -1, 1)
    last = storage["rewards"][-1].clone()
    storage.clear()
    assert torch.equal(storage.rows("rewards", -1, 0)[0], last)


def test_a_storage_says_in_one_line_what_it_has():
    storage = RolloutStorage(T, N)
    assert repr(storage) == "RolloutStorage(0 of 6 steps, 4 envs, cpu, columns: none)"
    storage.add_step({"obs": torch.zeros(N, 2), "rewards": torch.zeros(N)})
    storage.add_column("mine", torch.zeros(1, N))
    assert repr(storage) == "RolloutStorage(1 of 6 steps, 4 envs, cpu, columns: obs, rewards, mine)"


def test_calls_at_the_wrong_time_are_named_errors():
    storage = RolloutStorage(1, N)
    for call in (storage.batch, lambda: storage.compute_returns(torch.zeros(N)), storage.minibatches):
        with pytest.raises(BatchLayoutError, match="at least one step"):
            call()
    with pytest.raises(ColumnError, match="add_step first"):
        storage["obs"]
    storage.add_step(GOOD)
    with pytest.raises(RolloutOverflowError, match="num_steps=1") as error:
        storage.add_step(GOOD)
    assert isinstance(error.value, OverflowError) and len(storage) == 1
    with pytest.raises(BatchLayoutError, match="compute_returns"):
        storage.minibatches()
    with pytest.raises(ColumnError, match="did you mean 'rewards'"):
        storage["reward"]
    with pytest.raises(ColumnError, match="last_values"):
        storage.compute_returns(torch.zeros(N + 1))
    with pytest.raises(ConfigError, match="gamma"):
        storage.compute_returns(torch.zeros(N), gamma=2.0)
    storage.compute_returns(torch.zeros(N))
    with pytest.raises(ConfigError, match="rows, sequences, environments"):
        storage.minibatches(unit="steps")
    without = stored(steps(state_in=True, vf_preds=True))
    with pytest.raises(ColumnError, match=r"reads rewards, vf_preds, terminateds of each[\s\S]*'vf_preds'"):
        without.compute_returns(torch.zeros(N))
    with pytest.raises(BatchLayoutError, match="state_in"):
        without.minibatches(unit="sequences")
    with pytest.raises(ColumnError, match="a column of the steps"):
        without.add_column("obs", torch.zeros(T, N))


WRONG = [{"num_steps": 0}, {"num_envs": 2.5}, {"lookback": -1}, {"columns": {"obs": 3}}, {"device": "gpu"}]


@pytest.mark.parametrize("arguments", WRONG)
def test_wrong_arguments_are_named(arguments):
    with pytest.raises(ConfigError, match=f"RolloutStorage, {next(iter(arguments))}"):
        RolloutStorage(**{"num_steps": T, "num_envs": N, **arguments})


@pytest.mark.parametrize("number", ["x", None, 1.5, float("nan"), [0.9]])
@pytest.mark.parametrize("name", ["gamma", "lambda_"])
def test_discounts_are_numbers_from_0_to_1(name, number):
    with pytest.raises(ConfigError, match=f"compute_returns, {name}"):
        stored(steps()).compute_returns(torch.zeros(N), **{name: number})


def test_discounts_may_be_tensors_and_arrays_of_one_number():
    expected, found = stored(steps()), stored(steps())
    expected.compute_returns(torch.zeros(N), gamma=0.5, lambda_=0.25)
    found.compute_returns(torch.zeros(N), gamma=torch.tensor(0.5), lambda_=np.array(0.25))
    assert torch.equal(found["value_targets"], expected["value_targets"])


def test_the_earlier_name_of_a_switch_means_the_same():
    advantages = []
    for switch in ({}, {"standardize_advantages": False}, {"normalize": True}, {"normalize": False}):
        storage = stored(steps())
        storage.compute_returns(torch.zeros(N), **switch)
        advantages.append(storage["advantages"])
    assert torch.equal(advantages[0], advantages[2]) and torch.equal(advantages[1], advantages[3])
    assert advantages[0].mean().abs() < 1e-5 < advantages[1].mean().abs()
