"""A store from outside: its rows give the train batches that the same episodes in a list give."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.connectors import learner
from epibatch.connectors.common import FrameStacking
from epibatch.connectors.learner import PrevActionsPrevRewardsLearner
from epibatch.connectors.views import TrajectoryViews, View
from epibatch.core.rl_module import RLModuleSpec
from epibatch.episodes import ChunkTable, SingleAgentEpisode, StoreColumn

OBS, ACTIONS = gym.spaces.Box(-9, 9, (3, 1), np.float32), gym.spaces.Discrete(3)


class Shuffled:
    """Keeps the rows of episodes in one array for each leaf of a column, in a random order.

    Place p of a column is its p-th row, episode after episode, with a free place for the last observation.
    """

    def __init__(self, episodes, seed=0):
        rng = np.random.default_rng(seed)
        self.outputs, self._columns = list(episodes[0].extra_model_outputs), {}
        self.rows_at = rng.permutation(sum(len(e) + e.lookback + 1 for e in episodes)).__getitem__
        for name in ("obs", "actions", "rewards", *self.outputs):
            rows = [row for episode in episodes for row in self._rows(episode, name)]
            leaves = {
                key: np.empty((len(rows), *np.shape(leaf)), np.asarray(leaf).dtype) for key, leaf in rows[0].items()
            }
            for place, row in enumerate(rows):
                for key, leaf in row.items():
                    leaves[key][self.rows_at(place)] = leaf
            form = ("dict", tuple(leaves), (None,) * len(leaves)) if "" not in leaves else None
            self._columns[name] = StoreColumn(form, list(leaves.values()))

    def stored(self, name):
        return self._columns.get(name)

    @staticmethod
    def _rows(episode, name):
        buffer = {"obs": episode.observations, "actions": episode.actions, "rewards": episode.rewards}.get(name)
        buffer = episode.extra_model_outputs[name] if buffer is None else buffer
        rows = [buffer.get(i, neg_index_as_lookback=True) for i in range(-buffer.lookback, len(buffer))]
        rows = rows if name == "obs" else [*rows, rows[-1]]
        return [row if isinstance(row, dict) else {"": row} for row in rows]

    def table(self, episodes):
        lengths, lookbacks = np.array(list(map(len, episodes))), np.array([e.lookback for e in episodes])
        ends = np.array([[e.is_terminated, e.is_truncated] for e in episodes]).T
        first = np.cumsum(lengths + lookbacks + 1) - lengths - 1
        starts = np.array([e.t_started for e in episodes])
        return ChunkTable(
            [self], first, lengths, lookbacks=lookbacks, starts=starts, terminateds=ends[0], truncateds=ends[1],
            ids=[e.id_ for e in episodes],
        )  # fmt: skip


def chunks_of(module, seed=0):
    """Episodes of many lengths, some cut in the middle, with the states of an LSTM."""
    rng, out = np.random.default_rng(seed), []
    state = module.get_initial_state() if module.is_stateful() else {}
    for i, length in enumerate((1, 3, 4, 5, 8, 13)):
        episode = SingleAgentEpisode(id_=f"e{i}")
        episode.add_env_reset(OBS.sample() if seed is None else rng.standard_normal((3, 1)).astype(np.float32))
        for t in range(length):
            outputs = {"action_logp": np.float32(rng.random())}
            if state:
                outputs["state_out"] = {key: rng.random(leaf.shape).astype(np.float32) for key, leaf in state.items()}
            episode.add_env_step(
                rng.standard_normal((3, 1)).astype(np.float32), int(rng.integers(3)), float(rng.random()),
                terminated=t == length - 1 and i % 3 == 0, truncated=t == length - 1 and i % 3 == 1,
                extra_model_outputs=outputs,
            )  # fmt: skip
            if i == 4 and t == 2:
                following = episode.cut(len_lookback_buffer=3)
                out.append(episode)
                episode = following
        out.append(episode)
    return out


PIECES = {
    "none": lambda: [],
    "frame stacks": lambda: [FrameStacking(num_frames=3, as_learner_connector=True)],
    "previous actions": lambda: [PrevActionsPrevRewardsLearner(n_prev_actions=2)],
    "views": lambda: [
        TrajectoryViews(
            views={
                "before": View("obs", "-2:0"),
                "next": View("obs", 1),
                "r": View("rewards", [-2, -1]),
                "t": View("t"),
            },
            as_learner_connector=True,
        )
    ],
}


def leaves(value, path=""):
    if isinstance(value, dict):
        return {key: leaf for name in value for key, leaf in leaves(value[name], f"{path}/{name}").items()}
    return {path: value}


@pytest.mark.parametrize("lstm", [False, True])
@pytest.mark.parametrize("pieces", PIECES)
def test_the_batches_are_those_of_a_list(pieces, lstm):
    config = {"use_lstm": True, "max_seq_len": 4} if lstm else {}
    spaces = (OBS, ACTIONS)
    made = {}
    for kind in ("a list", "the store"):
        pipeline = learner.default_pipeline(*spaces, connectors=PIECES[pieces](), gamma=0.9)
        torch.manual_seed(0)
        module = RLModuleSpec(None, pipeline.observation_space, ACTIONS, model_config=config).build()
        episodes = chunks_of(module)
        given = episodes if kind == "a list" else Shuffled(episodes).table(episodes)
        made[kind] = leaves(pipeline(rl_module=module, batch={}, episodes=given))
    expected, found = made.values()
    assert list(found) == list(expected) and "/advantages" in expected
    for name, leaf in expected.items():
        assert torch.equal(leaf, found[name]) and leaf.dtype == found[name].dtype, name


def test_items_are_copies_of_the_episodes():
    module = RLModuleSpec(None, OBS, ACTIONS, model_config={"use_lstm": True}).build()
    episodes = chunks_of(module)
    table = Shuffled(episodes).table(episodes)
    assert len(table) == len(episodes) and [e.id_ for e in table[1:3]] == ["e1", "e2"]
    assert all(twin.equals(episode) for twin, episode in zip(table, episodes))
