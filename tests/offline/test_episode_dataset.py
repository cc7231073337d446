"""A data set as a sequence of episodes: its parts, its rows in a pipeline, and draws from it."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from fixture_recorded import episodes_of, in_chunks

from epibatch.connectors.common import FrameStacking
from epibatch.connectors.learner import AddNextObservationsFromEpisodesToTrainBatch, default_pipeline
from epibatch.core.errors import DataError, ReplayError, UnknownNameError
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode
from epibatch.episodes.replay import EpisodeReplayBuffer
from epibatch.offline import EpisodeDataset, read_episodes, write_episodes

KINDS = {"obs": {"k": ("float32", (2,)), "n": ("int64", ())}, "actions": ("int64", ()), "state": ("float32", (3,))}


def ended(rng, count):
    """Episodes from their start to their end."""
    episodes = episodes_of(rng, count, {**KINDS, "obs": ("float32", (2,))}, lookbacks=False)
    for episode in episodes:
        episode.is_truncated = not episode.is_terminated
    return episodes


def batch_of(episodes, *pieces):
    pipeline = default_pipeline(connectors=list(pieces), advantages=False)
    batch = pipeline(rl_module=None, batch={}, episodes=episodes)
    assert {"obs", "actions", "rewards", "state"} & set(batch)
    return {name: (str(rows.dtype), rows.shape, np.asarray(rows).tobytes()) for name, rows in batch.items()}


@pytest.fixture(params=["whole", "chunks", "memory"])
def recorded(request, tmp_path):
    """A data set, and its episodes in a list."""
    rng = np.random.default_rng(5)
    episodes = episodes_of(rng, 40, {**KINDS, "obs": ("float32", (2,))})
    chunks = in_chunks(rng, episodes) if request.param == "chunks" else episodes
    if request.param != "memory":
        write_episodes(chunks, tmp_path)
    data = read_episodes(chunks if request.param == "memory" else tmp_path)
    by_id = {episode.id_: episode for episode in episodes}
    return data, [by_id[id_] for id_ in data.ids]


def test_facts_of_episodes(recorded):
    data, episodes = recorded
    assert len(data) == len(episodes) and data.num_steps == sum(map(len, episodes))
    assert data.lengths.tolist() == list(map(len, episodes))
    assert data.returns.dtype == np.float64
    np.testing.assert_allclose(data.returns, [sum(map(float, episode.get_rewards())) for episode in episodes])


def test_a_pipeline_makes_the_rows_that_it_makes_of_the_list(recorded):
    data, episodes = recorded
    for pieces in (
        [],
        [AddNextObservationsFromEpisodesToTrainBatch()],
        [FrameStacking(num_frames=2, new_axis=True, as_learner_connector=True)],
    ):
        whole = [data, episodes]
        if pieces and isinstance(pieces[0], FrameStacking):  # those whose history is not there are refused
            whole = [[e for e in every if e.t_started == 0] for every in whole]
            whole[0] = data.filter(data.starts == 0)
        assert batch_of(whole[0], *pieces) == batch_of(whole[1], *pieces)


def test_parts_of_a_data_set(recorded):
    data, episodes = recorded
    long = data.filter(data.lengths > 5)
    assert list(long.ids) == [episode.id_ for episode in episodes if len(episode) > 5]
    assert list(data.filter(lambda episode: len(episode) > 5).ids) == list(long.ids)
    first, second = data.split(0.75, seed=3)
    assert (len(first), len(second)) == (30, 10)
    assert {*first.ids, *second.ids} == set(data.ids)
    assert list(data.split(0.75, seed=3)[0].ids) == list(first.ids)
    assert list(data.split(0.75, seed=4)[0].ids) != list(first.ids)
    shards = [data.shard(i, 3) for i in range(3)]
    assert sorted(id_ for shard in shards for id_ in shard.ids) == sorted(data.ids)
    assert max(map(len, shards)) - min(map(len, shards)) <= 1
    for part in (long, first, second, *shards):
        wanted = [episode for episode in episodes if episode.id_ in set(part.ids)]
        assert all(a.equals(b) for a, b in zip(part, wanted, strict=True))
        assert batch_of(part) == batch_of(wanted)
        assert part.stores[0] is data.stores[0]


WRONG = {
    "mask of another length": lambda data: data.filter(np.ones(3, bool)),
    "mask of numbers": lambda data: data.filter(data.lengths),
    "nothing left": lambda data: data.filter(data.lengths > 1000),
    "no share": lambda data: data.split(0.0),
    "whole share": lambda data: data.split(1.0),
    "text as share": lambda data: data.split(float("nan")),
    "shard beyond the last": lambda data: data.shard(3, 3),
    "more shards than episodes": lambda data: data.shard(0, 41),
}


@pytest.mark.parametrize("kind", WRONG)
def test_parts_without_episodes_are_refused(recorded, kind):
    with pytest.raises(DataError, match="EpisodeDataset"):
        WRONG[kind](recorded[0])


DRAWS = {
    "steps": {},
    "steps with history": {"lookback": 2},
    "n steps": {"n_step": 3, "gamma": 0.9, "lookback": 1},
    "drawn n": {"n_step": (1, 4)},
    "sequences": {"batch_length_T": 4},
    "burn-in": {"batch_length_T": 4, "burn_in": 3, "lookback": 1},
    "long ones": {"batch_length_T": 20, "min_batch_length_T": 8},
    "without outputs": {"include_extra_model_outputs": False},
}


@pytest.mark.parametrize("how", DRAWS)
def test_draws_are_those_of_a_buffer_with_the_same_rows(tmp_path, how):
    episodes = ended(np.random.default_rng(2), 50)
    write_episodes(episodes, tmp_path)
    data, generator = read_episodes(tmp_path), np.random.default_rng(7)
    buffer = EpisodeReplayBuffer(sum(len(episode) + 1 for episode in episodes), seed=7)
    buffer.add(episodes)
    for _ in range(3):
        drawn, expected = data.sample(30, **DRAWS[how], generator=generator), buffer.sample(30, **DRAWS[how])
        assert all(a.equals(b) for a, b in zip(drawn, expected, strict=True))
        assert batch_of(drawn) == batch_of(expected)
        assert {name: a.tolist() for name, a in drawn.per_chunk.items()} == {
            name: a.tolist() for name, a in expected.per_chunk.items()
        }


def test_draws_from_a_part_are_of_its_episodes_alone(recorded):
    data, episodes = recorded
    part = data.split(0.5, seed=1)[0]
    by_id = {episode.id_: episode for episode in episodes}
    drawn = part.sample(400, batch_length_T=3, generator=np.random.default_rng(0))
    assert set(drawn.ids) <= set(part.ids)
    counts = dict.fromkeys(part.ids, 0)
    for chunk in drawn:
        episode = by_id[chunk.id_]
        at = chunk.t_started - episode.t_started
        assert 0 <= at < len(episode) and len(chunk) == min(3, len(episode) - at)
        assert np.array_equal(chunk.get_actions(), episode.get_actions(slice(at, at + 3)))
        np.testing.assert_array_equal(
            chunk.get_observations(), episode.get_observations(slice(at, at + len(chunk) + 1))
        )
        is_last = at + len(chunk) == len(episode)
        assert (chunk.is_terminated, chunk.is_truncated) == (
            episode.is_terminated and is_last,
            episode.is_truncated and is_last,
        )
        counts[chunk.id_] += 1
    longest, shortest = part[int(part.lengths.argmax())].id_, part[int(part.lengths.argmin())].id_
    assert counts[longest] > counts[shortest]


def test_bad_arguments_of_a_draw_are_named(recorded):
    for arguments in ({"batch_length_T": -1}, {"n_step": 0}, {"gamma": 2.0}, {"min_batch_length_T": 1000}):
        with pytest.raises(ReplayError, match=r"EpisodeDataset\.sample"):
            recorded[0].sample(3, **arguments)


def test_the_infos_of_a_shorter_lookback_are_those_of_its_steps():
    infos = [{"step": step} for step in range(6)]
    episode = SingleAgentEpisode(
        observations=np.arange(6.0), actions=[0] * 5, rewards=[1.0] * 5, infos=infos, len_lookback_buffer=2, t_started=2
    )
    (shorter,) = read_episodes([episode]).with_lookback(1)
    assert shorter.get_infos(slice(-1, None), neg_index_as_lookback=True) == infos[1:]


def test_spaces_and_environment_are_kept(tmp_path):
    spaces = gym.spaces.Dict({"a": gym.spaces.Box(-1, 1, (2,))}), gym.spaces.Discrete(3, start=1)
    episode = SingleAgentEpisode(observation_space=spaces[0], action_space=spaces[1])
    episode.add_env_reset({"a": np.zeros(2, np.float32)})
    episode.add_env_step({"a": np.ones(2, np.float32)}, 1, 0.5, terminated=True)
    write_episodes([episode], tmp_path, env="Some-v0")
    data = read_episodes(tmp_path)
    assert (data.observation_space, data.action_space, data.env) == (*spaces, "Some-v0")
    assert (data[0].observation_space, data[-1].action_space) == spaces


def test_what_is_no_recorded_data_is_named(tmp_path):
    with pytest.raises(DataError, match="nothing"):
        read_episodes(tmp_path / "missing")
    with pytest.raises(UnknownNameError, match="parquet"):
        read_episodes(tmp_path, format="parket")
    with pytest.raises(DataError, match="an episode with a step"):
        read_episodes([])
    for wrong in (5, None, [3]):
        with pytest.raises(DataError, match="episodes of one agent"):
            read_episodes(wrong)
    with pytest.raises(DataError, match="with a step"):
        read_episodes([MultiAgentEpisode()])
    data = read_episodes(ended(np.random.default_rng(0), 3))
    assert read_episodes(data) is data and isinstance(data, EpisodeDataset)


def test_a_saved_buffer_is_read_with_the_episodes_that_it_holds(tmp_path):
    episodes = ended(np.random.default_rng(4), 30)
    for episode in episodes:
        episode.custom_data.clear()
    buffer = EpisodeReplayBuffer(100, seed=7, keep_infos=True)
    buffer.add(episodes)
    data = read_episodes(buffer.save_to_path(tmp_path / "buffer"))
    assert data.num_steps == len(buffer) < sum(map(len, episodes))
    oldest, *others = (next(e for e in episodes if e.id_ == id_) for id_ in data.ids)
    assert data[0].equals(oldest.slice(slice(data[0].t_started, None), len_lookback_buffer=0)) or data[0].t_started
    for a, b in zip(data[1:], others, strict=True):
        assert (a.id_, len(a), a.is_terminated, a.get_infos()) == (b.id_, len(b), b.is_terminated, b.get_infos())
        np.testing.assert_array_equal(a.get_observations(), b.get_observations())
        np.testing.assert_array_equal(a.get_extra_model_outputs("state"), b.get_extra_model_outputs("state"))
