"""`EpisodeBatches`: PyTorch's data loaders over recorded episodes."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from fixture_cases import slow
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from epibatch.connectors import ConnectorV2
from epibatch.connectors.learner import default_pipeline
from epibatch.core.errors import CheckpointError, ConfigError, DataError
from epibatch.core.rl_module import RLModuleSpec
from epibatch.episodes import SingleAgentEpisode
from epibatch.offline import EpisodeBatches, read_episodes, write_episodes

LENGTHS = [3, 9, 1, 5, 30, 2, 7, 7, 4, 6, 8, 2]


class AddNoise(ConnectorV2):
    """Adds random numbers to the rewards of a batch."""

    def seed(self, seed):
        self._generator = np.random.default_rng(seed)

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            noise = self._generator.normal(size=len(episode))
            self.add_n_batch_items(batch, "noise", list(noise), len(episode), episode)
        return batch


@pytest.fixture
def data(tmp_path):
    """Episodes whose observations are 1,000 times their number and the step."""
    episodes = [
        SingleAgentEpisode(
            id_=str(number),
            observations=(1000 * number + np.arange(steps + 1, dtype=np.float32)).reshape(-1, 1),
            actions=np.arange(steps),
            rewards=np.ones(steps),
            terminated=True,
            len_lookback_buffer=0,
        )
        for number, steps in enumerate(LENGTHS)
    ]
    write_episodes(episodes, tmp_path / "data")
    return read_episodes(tmp_path / "data")


def pipeline(*pieces):
    return default_pipeline(connectors=pieces, advantages=False)


def rows(batches):
    return [batch["obs"].ravel().tolist() for batch in batches]


def joined(batches):
    return sorted(row for batch in batches for row in batch)


def all_steps():
    return sorted(1000.0 * number + t for number, steps in enumerate(LENGTHS) for t in range(steps))


def equal(batches, others):
    return [{name: column.tolist() for name, column in batch.items()} for batch in batches] == [
        {name: column.tolist() for name, column in batch.items()} for batch in others
    ]


def test_batches_are_those_of_a_loop_by_hand(data):
    spaces = {"observation_space": gym.spaces.Box(0, 1e6, (1,)), "action_space": gym.spaces.Discrete(40)}
    module = RLModuleSpec(**spaces).build()
    batches = list(EpisodeBatches(data, pipeline(), batch_size=10, shuffle=False, rl_module=module))
    groups, steps = {}, 0
    for number, length in enumerate(LENGTHS):
        groups.setdefault(steps // 10, []).append(data[number])
        steps += length
    expected = [pipeline()(rl_module=module, batch={}, episodes=group) for group in groups.values()]
    assert equal(batches, expected)
    assert all(type(column) is torch.Tensor for column in batches[0].values())


def test_each_pass_has_every_step_once_in_another_order(data):
    batches = EpisodeBatches(data, pipeline(), batch_size=10, seed=1)
    first, second = rows(batches), rows(batches)
    for found in (first, second):
        assert joined(found) == all_steps()
    assert first != second
    assert rows(EpisodeBatches(data, pipeline(), batch_size=10, seed=1)) == first
    assert rows(EpisodeBatches(data, pipeline(), batch_size=10, seed=2)) != first


def test_draws_are_those_of_the_data_set(data):
    draw = {"batch_length_T": 4}
    batches = list(EpisodeBatches(data, pipeline(), batch_size=5, draw=draw, seed=1))
    assert len(batches) == -(-sum(LENGTHS) // 20)
    found = rows(batches)
    assert set(joined(found)) <= set(all_steps()) and found[0] != found[1]
    starts = [row for batch in found for row, before in zip(batch, [-1.0, *batch], strict=False) if row != before + 1]
    assert len(starts) <= 5 * len(batches)
    singles = list(EpisodeBatches(data, pipeline(), batch_size=5, draw={"batch_length_T": None}, seed=1))
    assert len(singles) == -(-sum(LENGTHS) // 5) and len(rows(singles)[0]) == 5


@pytest.mark.parametrize("draw", [slow(None), {"n_step": 3}])
def test_a_loader_with_two_workers_has_every_step_once(data, draw):
    def loader():
        batches = EpisodeBatches(data, pipeline(AddNoise()), batch_size=10, draw=draw, seed=1)
        generator = torch.Generator().manual_seed(3)
        return DataLoader(batches, batch_size=None, num_workers=2, generator=generator)

    made = loader()
    first, second = list(made), list(made)
    again = loader()
    assert equal(first, list(again)) and equal(second, list(again))
    assert not equal(first, second)
    if draw is None:
        assert joined(rows(first)) == joined(rows(second)) == all_steps()
        of_worker = [{int(row) // 1000 % 2 for row in batch} for batch in rows(first)]
        assert all(len(shards) == 1 for shards in of_worker)


def test_arrays_of_a_worker_come_in_one_storage_with_the_values_of_the_pipeline(data):
    def batches():
        return EpisodeBatches(data, pipeline(), batch_size=10, shuffle=False)

    expected = list(DataLoader(batches(), batch_size=None))
    found = list(DataLoader(batches(), batch_size=None, num_workers=1))
    assert len(found) == len(expected)
    for mine, other in zip(found, expected):
        assert mine.keys() == other.keys()
        tensors = [mine[name] for name in other if isinstance(other[name], torch.Tensor)]
        assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 1 < len(tensors)
        for name, column in other.items():
            torch.testing.assert_close(mine[name], column, rtol=0, atol=0)


@pytest.mark.parametrize("draw", [None, {"n_step": 3}])
@pytest.mark.parametrize("given", [slow(0), 3, slow(9), slow(12)])
def test_a_run_goes_on_with_the_same_batches(data, draw, given):
    def new(seed):
        return EpisodeBatches(data, pipeline(AddNoise()), batch_size=12, draw=draw, seed=seed)

    def endless(batches):
        while True:
            yield from batches

    whole, stopped, resumed = new(1), new(1), new(2)
    stream = endless(whole)
    expected = [next(stream) for _ in range(given + 10)]
    stream = endless(stopped)
    before = [next(stream) for _ in range(given)]
    resumed.load_state_dict(stopped.state_dict())
    stream = endless(resumed)
    assert equal([*before, *(next(stream) for _ in range(10))], expected)


class WithStates(IterableDataset):
    """Gives each batch with its worker and that worker's state after it, and begins with states if there are any."""

    def __init__(self, batches, states):
        self.batches, self.states = batches, states

    def __iter__(self):
        worker = get_worker_info().id
        if worker in self.states:
            self.batches.load_state_dict(self.states[worker])
        yield worker, None, self.batches.state_dict()
        for batch in self.batches:
            yield worker, batch, self.batches.state_dict()


@pytest.mark.parametrize("draw", [slow(None), {"n_step": 3}])
@pytest.mark.parametrize("given", [slow(0), 1, slow(4), slow(7)])
def test_workers_go_on_with_the_same_batches(data, draw, given):
    def given_by(seed, states):
        batches = EpisodeBatches(data, pipeline(AddNoise()), batch_size=12, draw=draw, seed=1)
        generator = torch.Generator().manual_seed(seed)
        return list(DataLoader(WithStates(batches, states), batch_size=None, num_workers=2, generator=generator))

    whole = given_by(1, {})
    states = {worker: state for worker, _, state in whole[: given + 2]}
    rest = given_by(2, states)
    for worker in (0, 1):
        expected, found = (
            [batch for number, batch, _ in part if number == worker and batch is not None]
            for part in (whole[given + 2 :], rest)
        )
        assert equal(found, expected)


def test_a_pass_that_was_left_is_followed_by_a_whole_one(data):
    batches = EpisodeBatches(data, pipeline(), batch_size=10, seed=1)
    next(iter(batches))
    assert joined(rows(batches)) == all_steps()


def test_wrong_arguments_and_states_are_refused(data):
    with pytest.raises(ConfigError, match="at least 1"):
        EpisodeBatches(data, pipeline(), batch_size=0)
    batches = EpisodeBatches(data, pipeline(), batch_size=10, seed=1)
    state = batches.state_dict()
    with pytest.raises(CheckpointError, match="12 episodes"):
        batches.load_state_dict({**state, "episodes": 3})
    for wrong in ({}, {**state, "batch": -1}, {**state, "pass": "x"}):
        with pytest.raises(CheckpointError):
            batches.load_state_dict(wrong)
    few = EpisodeBatches(data.take([0]), pipeline(), batch_size=10)
    with pytest.raises(DataError, match="shard"):
        list(DataLoader(few, batch_size=None, num_workers=2))
