"""Plain pieces in the middle of a pipeline: columns that they leave alone are reused, and the batch does not show it.

Each change is made twice: to the batch that the piece is shown, and to a deep copy of it, of which nothing is reused.
"""

from __future__ import annotations

import copy
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.connectors import ConnectorPipelineV2, ConnectorV2
from epibatch.connectors.columns import CastColumns
from epibatch.connectors.common import AddObservationsFromEpisodesToBatch, AgentToModuleMapping
from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    BatchIndividualItems,
    LearnerConnectorPipeline,
)
from epibatch.core.errors import EpibatchError
from epibatch.core.spaces import BatchedNdArray
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode
from fixture_pieces import UserPiece, played

LENGTHS = (3, 1, 4)
MODULES = {"a": "one", "b": "two", "c": "one"}


class Changed(ConnectorV2):
    """A piece that declares nothing and changes the batch, or a copy of it."""

    def __init__(self, change: Any, copies: bool) -> None:
        super().__init__()
        self.change, self.copies = change, copies

    def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, **kwargs: Any) -> Any:
        batch = copy.deepcopy(batch) if self.copies else batch
        self.change(batch)
        return batch


def leaves_of(struct: Any) -> list[Any]:
    if not isinstance(struct, (dict, list)):
        return [struct]
    return [leaf for own in (struct.values() if isinstance(struct, dict) else struct) for leaf in leaves_of(own)]


def paths_of(struct: Any) -> Any:
    if isinstance(struct, list):
        return list(map(paths_of, struct))
    return {key: paths_of(own) for key, own in struct.items()} if isinstance(struct, dict) else None


def lists(batch: Any) -> list[tuple[Any, Any, list[Any]]]:
    """Every list of items in a batch by episode or by module, with the dict that it is in and its key there."""
    return [(own, key, items) for own in batch.values() for key, items in own.items() if items and type(items) is list]


def appended(batch: Any, at: int) -> None:
    """One flag more and one less, of two lists of flags, so that the batch has as many rows as before."""
    flags = [items for _, _, items in lists(batch) if len(items) > 1 and type(items[0]) is bool]
    if flags:
        items = flags[at % len(flags)]
        items.append(items.pop(0))


def replaced(batch: Any, at: int) -> None:
    places = lists(batch)
    _, _, items = places[at % len(places)]
    items[at % len(items)] = copy.deepcopy(items[at % len(items)])


def written(batch: Any, at: int) -> None:
    arrays = [leaf for _, _, items in lists(batch) for item in items for leaf in leaves_of(item) if np.ndim(leaf)]
    leaf = arrays[at % len(arrays)]
    leaf[...] = leaf + 1 if leaf.dtype.kind in "iuf" else ~leaf


def leaf_replaced(batch: Any, at: int) -> None:
    nested = [item for _, _, items in lists(batch) for item in items if isinstance(item, dict)]
    if nested:
        nested[at % len(nested)]["x"] = copy.deepcopy(nested[at % len(nested)]["x"]) + 1


def one_lost(batch: Any, at: int) -> None:
    places = lists(batch)
    places[at % len(places)][2].pop()


def turned_round(batch: Any, at: int) -> None:
    places = lists(batch)
    places[at % len(places)][2].reverse()


def tupled(batch: Any, at: int) -> None:
    """Items by episode or agent in a tuple; by module a tuple would be a nested column."""
    own, key, items = lists(batch)[at % len(lists(batch))]
    own[key] = tuple(items) if isinstance(key, tuple) else items


def numbered(batch: Any, at: int) -> None:
    """Numbers in the place of flags."""
    for own, key, items in lists(batch):
        if type(items[0]) is bool:
            own[key] = [int(flag) for flag in items]


def key_lost(batch: Any, at: int) -> None:
    own, key, _ = lists(batch)[at % len(lists(batch))]
    if isinstance(key, tuple):
        del own[key]


def cast(batch: Any, at: int) -> None:
    """All rewards of the batch as float32; they are float64."""
    for name, own in batch.items():
        for key in list(own) if name == "rewards" else ["rewards"] if "rewards" in own else []:
            own[key] = [item.astype(np.float32) for item in own[key]]


def column_removed(batch: Any, at: int) -> None:
    for own in (batch, *batch.values()):
        own.pop("actions", None)


def column_added(batch: Any, at: int) -> None:
    for own in [batch] if "obs" in batch else batch.values():
        own["more"] = copy.deepcopy(own["rewards" if "rewards" in own else "obs"])


def agent_added(batch: Any, at: int) -> None:
    """A column of agents that did not just observe, too."""
    if "obs" in batch and all(len(key) == 3 for key in batch["obs"]):
        agents = "abc"[at % 3 :]
        keys = [(str(i), agent, MODULES[agent]) for i in range(len(LENGTHS)) for agent in agents]
        batch["more"] = {key: [np.float32(i)] for i, key in enumerate(keys)}


def keys_turned_round(batch: Any, at: int) -> None:
    for name in [name for name, own in batch.items() if all(isinstance(key, tuple) for key in own)]:
        batch[name] = dict(reversed(batch[name].items()))


CHANGES = [appended, replaced, written, leaf_replaced, one_lost, turned_round, tupled, numbered, key_lost, cast]
CHANGES += [column_removed, column_added, agent_added, keys_turned_round]


def one_agent() -> list[Any]:
    rng = np.random.default_rng(0)
    return [
        SingleAgentEpisode(
            id_=str(i),
            observations=[{"x": rng.integers(0, 9, 2).astype(np.float32), "n": i} for _ in range(length + 1)],
            actions=list(rng.integers(0, 3, length)),
            rewards=list(rng.integers(0, 9, length) / 2),
            terminated=bool(i % 2),
            len_lookback_buffer=0,
        )
        for i, length in enumerate(LENGTHS)
    ]


def several_agents() -> list[Any]:
    out = []
    for i, length in enumerate(LENGTHS):
        episode = MultiAgentEpisode(str(i), agent_to_module_mapping_fn=lambda agent_id, *_, **__: MODULES[agent_id])
        episode.add_env_reset(observations={agent: np.zeros(2, np.float32) for agent in "abc"})
        for t in range(length):
            acting = "abc" if t % 2 else "ab"
            observations = {agent: np.full(2, 10 * i + t, np.float32) for agent in acting}
            rewards = {agent: t + ord(agent) / 2 for agent in acting}
            episode.add_env_step(observations, {agent: np.int64(t) for agent in acting}, rewards)
        out.append(episode)
    return out


def pipeline_of(purpose: str, pieces: list[Any]) -> ConnectorPipelineV2:
    if purpose == "training":
        makers = [AddObservationsFromEpisodesToBatch(as_learner_connector=True), AddColumnsFromEpisodesToTrainBatch()]
        return LearnerConnectorPipeline(connectors=[*makers, *pieces, BatchIndividualItems()])
    kind, last = {
        "acting": (EnvToModulePipeline, BatchIndividualItems()),
        "no purpose": (ConnectorPipelineV2, CastColumns(columns="obs", dtype="float64")),
    }[purpose]
    return kind(connectors=[AddObservationsFromEpisodesToBatch(), *pieces, last])


LAYOUTS = ("one agent", "several agents", "by module")


@pytest.mark.parametrize(
    ("purpose", "layout"),
    [*product(["training", "acting"], LAYOUTS), ("no purpose", "one agent"), ("no purpose", "several agents")],
)
@settings(max_examples=40)
@given(changes=st.lists(st.tuples(st.sampled_from(CHANGES), st.integers(0, 50)), max_size=3))
def test_what_is_left_alone_is_as_if_it_was_put_together_again(purpose: str, layout: str, changes: list[Any]) -> None:
    def change(batch: Any) -> None:
        for function, at in changes:
            function(batch, at)

    batches: list[Any] = []
    for copies in (False, True):
        piece = Changed(change, copies)
        learning = purpose == "training"
        mapping = [] if layout == "one agent" else [AgentToModuleMapping(as_learner_connector=learning)]
        pieces = [*mapping, piece] if layout == "by module" else [piece, *mapping]
        pipeline = pipeline_of(purpose, pieces)
        episodes = one_agent() if layout == "one agent" else several_agents()
        try:
            batches.append(pipeline(rl_module=None, episodes=episodes))
        except EpibatchError as error:
            batches.append(str(error))
        assert_untouched(episodes, one_agent() if layout == "one agent" else several_agents())
    assert paths_of(batches[0]) == paths_of(batches[1])
    for leaf, other in zip(*map(leaves_of, batches), strict=True):
        assert getattr(leaf, "dtype", None) == getattr(other, "dtype", None)
        np.testing.assert_array_equal(leaf, other)


def assert_untouched(episodes: list[Any], before: list[Any]) -> None:
    """What was written to arrays that a piece was shown never reaches the episodes."""
    for episode, as_it_was in zip(episodes, before, strict=True):
        rewards, expected = (own.get_rewards() for own in (episode, as_it_was))
        assert repr(rewards) == repr(expected)
        assert repr(episode.get_observations()) == repr(as_it_was.get_observations())


def test_flags_are_shown_as_pythons_own_and_arrays_as_arrays() -> None:
    seen: dict[str, Any] = {}
    makers = [AddObservationsFromEpisodesToBatch(as_learner_connector=True), AddColumnsFromEpisodesToTrainBatch()]
    LearnerConnectorPipeline(connectors=[*makers, Changed(seen.update, copies=False)])(episodes=one_agent())
    assert seen["terminateds"]["1",] == [True] and seen["truncateds"]["0",] == [False] * 3
    assert all(type(flag) is bool for items in seen["terminateds"].values() for flag in items)
    assert isinstance(seen["rewards"]["0",][0], BatchedNdArray)


def test_kept_items_show_the_batch_but_never_the_episodes() -> None:
    kept: list[Any] = []

    def keep(batch: Any, episodes: Any) -> None:
        kept.extend(items[0] for items in batch["obs"].values())

    episodes = [played(np.ones((4, 2)))]
    pieces = [AddObservationsFromEpisodesToBatch(as_learner_connector=True), UserPiece(keep), BatchIndividualItems()]
    batch = LearnerConnectorPipeline(connectors=pieces)(episodes=episodes)
    batch["obs"][:] = 5
    assert (kept[0] == 5).all() and (episodes[0].get_observations() == 1).all()
