"""Pieces as users write them, from one source for both libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from oracle.compare import stack
from oracle.libraries import Library
from oracle.makers import user

Body = Callable[..., Any]
LEARNER: dict[str, Body] = {}
"""Bodies of pieces for the front of a learner pipeline: `(piece, batch, episodes, seed) -> None`."""
COLUMNS: dict[str, Body] = {}
"""Bodies of pieces that change columns of per-episode batches, behind the default pieces that add them."""
BATCHED: dict[str, Body] = {}
"""Bodies of pieces that change arrays or tensors, behind the pieces that make them."""
ACTING: dict[str, Body] = {}
"""Bodies of pieces for the front of an env-to-module pipeline."""
FLOAT_WRITERS = {"replace_rewards", "reward_of_every_step", "rewards_at_indices", "last_reward_is_the_return"}
"""Pieces that write floats to the episodes' rewards."""
EARLY_COLUMNS = {"one_item_per_step", "structs_in_a_list", "array_of_rows", "own_rewards_column"}
EARLY_COLUMNS |= {"own_observations_column", "past_rewards", "past_observations"}
"""Pieces for the front that add columns."""
HISTORY = {"past_rewards": 2, "past_observations": 3, "newest_frames": 3}
"""How many steps before a chunk's start a piece reads."""


def body(*tables: dict[str, Body]) -> Callable[[Body], Body]:
    def add(function: Body) -> Body:
        for table in tables:
            table[function.__name__] = function
        return function

    return add


def episodes_of(piece: Any, episodes: Any) -> Any:
    return piece.single_agent_episode_iterator(episodes, agents_that_stepped_only=False)


@body(LEARNER, COLUMNS, BATCHED, ACTING)
def identity(piece, batch, episodes, seed):
    """Looks at everything, changes nothing."""


@body(LEARNER)
def replace_rewards(piece, batch, episodes, seed):
    for episode in episodes_of(piece, episodes):
        episode.set_rewards(new_data=np.array([float(reward) for reward in episode.get_rewards()]) * 2 + 1)


@body(LEARNER)
def rewards_at_indices(piece, batch, episodes, seed):
    for episode in episodes_of(piece, episodes):
        if len(episode):
            at = seed % len(episode)
            episode.set_rewards(new_data=float(episode.get_rewards(at)) - 3.5, at_indices=at)
            episode.set_rewards(new_data=np.array([0.25]), at_indices=slice(0, 1))
            episode.set_rewards(new_data=[7.0, 8.0], at_indices=[-1, 0])


@body(LEARNER)
def reward_of_every_step(piece, batch, episodes, seed):
    for episode in episodes_of(piece, episodes):
        for t, reward in enumerate(list(episode.get_rewards())):
            episode.set_rewards(new_data=float(reward) * 2 - 1, at_indices=t)


@body(LEARNER)
def last_reward_is_the_return(piece, batch, episodes, seed):
    for episode in episodes_of(piece, episodes):
        if len(episode):
            episode.set_rewards(new_data=float(episode.get_return()), at_indices=-1)


@body(LEARNER)
def swapped_observations(piece, batch, episodes, seed):
    for episode in episodes_of(piece, episodes):
        episode.set_observations(new_data=episode.get_observations(-1), at_indices=0)


@body(LEARNER, COLUMNS)
def one_item_per_step(piece, batch, episodes, seed):
    for episode in episodes_of(piece, episodes):
        for t in range(len(episode)):
            piece.add_batch_item(batch, "own_item", np.array([t, seed % 7], np.float32), episode)


@body(LEARNER, COLUMNS)
def structs_in_a_list(piece, batch, episodes, seed):
    for episode in episodes_of(piece, episodes):
        rows = [{"x": np.float32(t), "y": (np.array([t, 1]),)} for t in range(len(episode))]
        piece.add_n_batch_items(batch, "own_structs", rows, len(rows), episode)


@body(LEARNER, COLUMNS)
def array_of_rows(piece, batch, episodes, seed):
    for episode in episodes_of(piece, episodes):
        rows = np.arange(len(episode) * 2).reshape(-1, 2) + seed % 5
        piece.add_n_batch_items(batch, "own_rows", rows, len(episode), episode)


@body(LEARNER)
def own_rewards_column(piece, batch, episodes, seed):
    for episode in episodes_of(piece, episodes):
        piece.add_n_batch_items(batch, "rewards", np.full(len(episode), 0.5), len(episode), episode)


@body(LEARNER)
def own_observations_column(piece, batch, episodes, seed):
    for episode in episodes_of(piece, episodes):
        rows = np.arange(len(episode) * 3, dtype=np.float32).reshape(-1, 3)
        piece.add_n_batch_items(batch, "obs", rows, len(episode), episode)


@body(LEARNER)
def past_rewards(piece, batch, episodes, seed):
    for episode in episodes_of(piece, episodes):
        for t in range(len(episode)):
            got = episode.get_rewards(slice(t - 2, t), neg_index_as_lookback=True, fill=0.0)
            piece.add_batch_item(batch, "past_rewards", np.array([float(reward) for reward in got]), episode)


@body(LEARNER)
def past_observations(piece, batch, episodes, seed):
    for episode in episodes_of(piece, episodes):
        for t in range(len(episode)):
            got = episode.get_observations(slice(t - 3, t + 1), neg_index_as_lookback=True, fill=0)
            piece.add_batch_item(batch, "past_observations", stacked(got), episode)


def stacked(rows: Any) -> Any:
    """One structure of arrays, of a list of structures or of one already."""
    return stack(rows) if isinstance(rows, list) else rows


@body(COLUMNS)
def doubled_rewards(piece, batch, episodes, seed):
    piece.foreach_batch_item_change_in_place(batch, "rewards", lambda item, *ids: item * 2)


@body(COLUMNS)
def two_columns_at_once(piece, batch, episodes, seed):
    piece.foreach_batch_item_change_in_place(
        batch, ["actions", "rewards"], lambda items, *ids: (items[0], items[1] - 1)
    )


@body(COLUMNS)
def without_actions(piece, batch, episodes, seed):
    del batch["actions"]


@body(BATCHED)
def shifted_rewards(piece, batch, episodes, seed):
    batch["default_policy"]["rewards"] = batch["default_policy"]["rewards"] - 2


@body(BATCHED)
def column_of_a_column(piece, batch, episodes, seed):
    rewards = batch["default_policy"]["rewards"]
    sign = torch.sign if isinstance(rewards, torch.Tensor) else np.sign
    batch["default_policy"]["own_sign"] = sign(rewards)


@body(ACTING)
def repeated_observation(piece, batch, episodes, seed):
    for episode in piece.single_agent_episode_iterator(episodes):
        newest = episode.get_observations(-1)
        episode.set_observations(new_data=newest, at_indices=-1)


@body(ACTING)
def lengths_column(piece, batch, episodes, seed):
    for episode in piece.single_agent_episode_iterator(episodes):
        piece.add_batch_item(batch, "own_length", np.array([episode.t, len(episode)]), episode)


@body(ACTING)
def own_newest_observation(piece, batch, episodes, seed):
    for episode in piece.single_agent_episode_iterator(episodes):
        piece.add_batch_item(batch, "obs", np.full(3, episode.t, np.float32), episode)


@body(ACTING)
def newest_frames(piece, batch, episodes, seed):
    for episode in piece.single_agent_episode_iterator(episodes):
        piece.add_batch_item(batch, "frames", stacked(episode.get_observations(slice(-4, None), fill=0)), episode)


def user_piece(library: Library, function: Body, seed: int, inert: bool = False) -> Any:
    """A piece of a library around a body, or around nothing."""
    return user(library, None if inert else lambda piece, batch, episodes: function(piece, batch, episodes, seed))
