"""Info dicts of one environment, out of the infos of whole vector steps."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from epibatch.core.errors import EpisodeIndexError
from epibatch.episodes._storage.block import env_infos
from epibatch.episodes._storage.infos_buffer import InfosBuffer
from epibatch.episodes.vector_recorder import VectorRecorder

DONE = np.zeros(2, bool)


@pytest.mark.parametrize(
    ("infos", "env", "expected"),
    [
        ({}, 0, {}),
        ({"a": np.array([1, 2])}, 1, {"a": 2}),
        ({"a": np.array([1, 0]), "_a": np.array([True, False])}, 1, {}),
        ({"a": np.array([1, 0]), "_a": np.array([True, False])}, 0, {"a": 1}),
        ({"d": {"x": np.array([3, 4])}}, 0, {"d": {"x": 3}}),
        ({"same": "for all"}, 1, {"same": "for all"}),
        ({"_own": np.array([5, 6])}, 1, {"_own": 6}),
    ],
)
def test_env_infos(infos: dict[str, Any], env: int, expected: dict[str, Any]) -> None:
    assert env_infos(infos, env) == expected


def recorded() -> VectorRecorder:
    recorder = VectorRecorder(2)
    recorder.reset(np.zeros(2), {"i": np.array([0, 10])})
    for i in (1, 2):
        recorder.step(np.zeros(2), np.zeros(2), DONE, DONE, np.zeros(2), {"i": np.array([i, 10 + i])})
    return recorder


def test_reading_and_writing() -> None:
    infos = recorded().episodes[1].infos
    assert infos.data == infos.get() == [{"i": 10}, {"i": 11}, {"i": 12}]
    assert infos.get(-1) is infos.get(2) and infos.get(slice(1, 9), fill={}) == [{"i": 11}, {"i": 12}, *[{}] * 6]
    infos.get(0)["mark"] = 1
    infos.set({"new": 1}, at_indices=1)
    infos.set([{"last": 1}], at_indices=[-1])
    assert infos.data == [{"i": 10, "mark": 1}, {"new": 1}, {"last": 1}]
    with pytest.raises(EpisodeIndexError, match="match the indices"):
        infos.set([{}])
    twin = pickle.loads(pickle.dumps(infos))
    assert type(twin) is InfosBuffer and infos == twin
