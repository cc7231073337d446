"""Data that RLlib recorded: steps, packed steps and episodes, made here as RLlib 2.60 makes them; hostile ones."""

from __future__ import annotations

import base64
import json
import pickle

import numpy as np
import pytest

from epibatch.core.errors import DataError
from epibatch.episodes import episodes_to_columns
from epibatch.offline import read_episodes, write_episodes
from foreign_data import assert_equal, recorded

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def tensors(name, rows):
    """Rows as Ray stores them, and their field."""
    about = {"ARROW:extension:name": "ray.data.arrow_tensor_v2", "ARROW:extension:metadata": json.dumps(rows.shape[1:])}
    field = pyarrow.field(name, pyarrow.large_list(pyarrow.from_numpy_dtype(rows.dtype)), metadata=about)
    return pyarrow.array(list(rows.reshape(len(rows), -1)), field.type), field


def steps_of_rllib(folder, pack=None, rows_per_file=5):
    """Write the steps of episodes into several files of a folder."""
    columns = episodes_to_columns(recorded())
    given = {
        "eps_id": pyarrow.array(columns["eps_id"]),
        "agent_id": pyarrow.nulls(len(columns["t"])),
        "module_id": pyarrow.nulls(len(columns["t"])),
        **{name: pyarrow.array(columns[name]) for name in ("actions", "rewards", "terminateds", "truncateds")},
    }
    arrays, fields = list(given.values()), [pyarrow.field(name, array.type) for name, array in given.items()]
    for name in ("obs", "new_obs", "logits"):
        if pack and name != "logits":
            array = pyarrow.array([pack(row) for row in columns[name]])
            field = pyarrow.field(name, array.type)
        else:
            array, field = tensors(name, columns[name])
        arrays.append(array)
        fields.append(field)
    table = pyarrow.Table.from_arrays(arrays, schema=pyarrow.schema(fields))
    place = folder / "cartpoleenv" / "run-000001-00001"
    place.mkdir(parents=True)
    for i in range(0, len(table), rows_per_file):
        parquet.write_table(table.slice(i, rows_per_file), place / f"0355_x_{i:06}-0.parquet")


def test_steps_are_joined_into_episodes(tmp_path):
    steps_of_rllib(tmp_path)
    assert_of_steps(read_episodes(tmp_path))


def assert_of_steps(found):
    """Check the episodes of steps, which have no `t`."""
    assert [episode.id_ for episode in found] == [episode.id_ for episode in recorded()]
    assert_equal(found, recorded(), ids=False)


class Runs:
    """An object whose pickle makes a folder when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        import os

        return os.mkdir, (str(self.path),)


def test_packed_steps_are_pickles(tmp_path):
    lz4 = pytest.importorskip("lz4.frame")

    def pack(row):
        return base64.b64encode(lz4.compress(pickle.dumps(row))).decode()

    steps_of_rllib(tmp_path / "good", pack)
    assert_of_steps(read_episodes(tmp_path / "good", "rllib", allow_pickle=True))
    steps_of_rllib(tmp_path / "bad", lambda row: pack(Runs(tmp_path / "ran")))
    for folder in ("good", "bad"):
        with pytest.raises(DataError, match=r"'obs'(.*\n)*.*allow_pickle=True"):
            read_episodes(tmp_path / folder, "rllib")
    assert not (tmp_path / "ran").exists()


def encoded(value):
    """Return an array or number as a dict, as msgpack-numpy does."""
    if isinstance(value, np.ndarray):
        kind = b"O" if value.dtype == object else b""
        data = pickle.dumps(value) if kind else value.tobytes()
        return {b"nd": True, b"type": value.dtype.str, b"kind": kind, b"shape": value.shape, b"data": data}
    return {b"nd": False, b"type": value.dtype.str, b"data": value.tobytes()}


def state_of(episode, **changes):
    def buffer(rows):
        return {"data": list(rows), "lookback": 0, "finalized": False, "space": None}

    return {
        "id_": episode.id_,
        "agent_id": None,
        "module_id": None,
        "multi_agent_episode_id": None,
        "observations": buffer(episode.get_observations()),
        "actions": buffer(episode.get_actions()),
        "rewards": buffer(episode.get_rewards().tolist()),
        "infos": buffer(episode.get_infos()),
        "extra_model_outputs": {"logits": buffer(episode.get_extra_model_outputs("logits"))},
        "is_terminated": episode.is_terminated,
        "is_truncated": episode.is_truncated,
        "t_started": episode.t_started,
        **changes,
    }


def episodes_of_rllib(path, states):
    msgpack = pytest.importorskip("msgpack")
    items = [state if isinstance(state, bytes) else msgpack.packb(state, default=encoded) for state in states]
    parquet.write_table(pyarrow.table({"item": items}), path)
    return path


def test_episodes(tmp_path):
    path = episodes_of_rllib(tmp_path / "x.parquet", map(state_of, recorded()))
    assert_equal(read_episodes(path, "rllib"), recorded())


def test_hostile_episodes(tmp_path):
    hostile = np.empty(1, object)
    hostile[0] = Runs(tmp_path / "ran")
    episode = recorded()[0]
    array = {b"nd": True, b"type": "<f8", b"shape": [1], b"data": b"12345678"}
    given = [
        (state_of(episode, observations={"data": hostile, "lookback": 0}), "arrays of numbers"),
        (state_of(episode, rewards={"data": {**array, b"type": "|O"}}), "arrays of numbers"),
        (state_of(episode, rewards={"data": {**array, b"shape": [10**12]}}), "reshape"),
        (state_of(episode, actions=None), "NoneType"),
        (["no", "state"], "state of an episode"),
        (b"\xc1", "FormatError"),
        (b"\xdd\xff\xff\xff\xff", "found"),
    ]
    for i, (state, message) in enumerate(given):
        path = episodes_of_rllib(tmp_path / f"{i}.parquet", [state])
        with pytest.raises(DataError, match=message):
            read_episodes(path, "rllib")
    assert not (tmp_path / "ran").exists()


def test_written_steps_are_read_back(tmp_path):
    write_episodes(recorded(), tmp_path / "x", "rllib")
    assert_of_steps(read_episodes(tmp_path / "x"))
    with pytest.raises(DataError, match="FlattenObservations"):
        write_episodes(recorded(nested=True), tmp_path / "y", "rllib")
    assert not (tmp_path / "y").exists()


def run_in_ray(tmp_path):
    """Record with RLlib's runner and read it here; write here and read it with RLlib's reader."""
    import ray
    from ray.rllib.algorithms.bc import BCConfig
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.offline.offline_env_runner import OfflineSingleAgentEnvRunner
    from ray.rllib.offline.offline_prelearner import OfflinePreLearner

    for name, options in {
        "steps": {"output_compress_columns": [], "output_write_episodes": False},
        "packed": {"output_write_episodes": False},
    }.items():
        config = PPOConfig().environment("CartPole-v1").env_runners(num_env_runners=0, batch_mode="complete_episodes")
        config.offline_data(output=str(tmp_path / name), **options)
        runner = OfflineSingleAgentEnvRunner(config=config)
        theirs = runner.sample(num_episodes=2)
        runner.stop()
        found = read_episodes(tmp_path / name, "rllib", allow_pickle=True)
        assert [episode.id_ for episode in found] == [episode.id_ for episode in theirs]
        for mine, other in zip(found, theirs):
            np.testing.assert_array_equal(mine.get_observations(), other.get_observations())
            np.testing.assert_array_equal(mine.get_actions(), other.get_actions())
            np.testing.assert_array_equal(
                mine.get_extra_model_outputs("action_logp"), other.get_extra_model_outputs("action_logp")
            )
            assert (mine.is_terminated, mine.is_truncated) == (other.is_terminated, other.is_truncated)
    write_episodes(recorded(), tmp_path / "ours", "rllib")
    reader = OfflinePreLearner.__new__(OfflinePreLearner)
    reader.config = BCConfig().offline_data(input_compress_columns=[])
    theirs = reader._map_to_episodes(ray.data.read_parquet(str(tmp_path / "ours")).take_batch(100))["episodes"]
    steps = [(episode, t) for episode in recorded() for t in range(len(episode))]
    for mine, (episode, t) in zip(theirs, steps, strict=True):
        assert (mine.id_, mine.get_actions(0), mine.get_rewards(0)) == (
            episode.id_,
            episode.get_actions(t),
            episode.get_rewards(t),
        )
        np.testing.assert_array_equal(mine.get_observations(), episode.get_observations(slice(t, t + 2)))
        assert mine.is_terminated == (episode.is_terminated and t + 1 == len(episode))


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore")
def test_beside_rllib_itself(tmp_path):
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.rllib")
    ray.init(num_cpus=1, include_dashboard=False, ignore_reinit_error=True)
    try:
        run_in_ray(tmp_path)
    finally:
        ray.shutdown()
