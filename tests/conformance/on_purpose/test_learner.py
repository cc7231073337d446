"""Differences of learners that are there on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from epibatch.core.errors import ColumnError, NonFiniteLossError
from faults.minibatches import minibatches
from faults.pieces import user_piece
from faults.runners import Counting
from oracle.libraries import RLLIB
from oracle.modules import build_module
from oracle.probes import Raises, probe


def learner_with(library: Any, builder: Callable[..., Any]) -> tuple[Any, Any]:
    """PPO's Learner, and its pipeline, with the piece that a user's builder makes of the spaces it gets."""
    config = library.PPOConfig().environment(Counting).env_runners(num_env_runners=0)
    if library is RLLIB:
        config.learners(learner_connector=builder)
        spaces = {"default_policy": (Counting.observation_space, Counting.action_space)}
        learner = config.build_learner(spaces=spaces)
        return learner, learner._learner_connector
    learner = config.training(learner_connector=builder).build_algo().learner
    return learner, learner.connector


def three_steps(library: Any, logp: float = -0.5) -> Any:
    """An episode with one of its log-probabilities to choose, as arrays."""
    return library.SingleAgentEpisode(
        id_="e",
        observations=[np.zeros(1, np.float32)] * 4,
        actions=[0] * 3,
        rewards=[0.5, 0.5, 0.5],
        extra_model_outputs={
            "action_logp": [np.float32(-0.5), np.float32(logp), np.float32(-0.5)],
            "action_dist_inputs": [np.zeros(2, np.float32)] * 3,
        },
        len_lookback_buffer=0,
    ).to_numpy()


@probe("ppo-order", ours=[3], theirs=[4])
def test_a_users_piece_sees_the_episode_as_it_happened(library: Any) -> Any:
    """Steps of an episode of three."""
    seen: list[int] = []
    user = user_piece(library, lambda piece, batch, episodes: seen.extend(map(len, episodes)))
    _, pipeline = learner_with(library, lambda *spaces: user)
    module = build_module(library, Counting.observation_space, Counting.action_space, multi=True)
    pipeline(rl_module=module, batch={}, episodes=[three_steps(library)])
    return seen


@probe("obs-bootstrap-row", ours=Raises(ColumnError, "one per step and one for the last observation"), theirs=4)
def test_a_column_of_observations_with_one_row_per_step(library: Any) -> Any:
    """Rows of the batch."""

    def add(piece: Any, batch: Any, episodes: Any) -> None:
        for episode in piece.single_agent_episode_iterator(episodes):
            rows = np.stack([episode.get_observations(t) for t in range(len(episode))])
            piece.add_n_batch_items(batch, "obs", rows, len(rows), episode)

    _, pipeline = learner_with(library, lambda *spaces: user_piece(library, add))
    module = build_module(library, Counting.observation_space, Counting.action_space, multi=True)
    return len(pipeline(rl_module=module, batch={}, episodes=[three_steps(library)])["default_policy"]["obs"])


@probe("non-finite-loss", ours=Raises(NonFiniteLossError, "total_loss=nan"), theirs="went on")
def test_a_loss_that_is_no_number(library: Any) -> Any:
    learner, _ = learner_with(library, lambda *spaces: user_piece(library, lambda piece, batch, episodes: None))
    required = {"timesteps": {"num_env_steps_sampled_lifetime": 3}, "num_epochs": 1, "minibatch_size": 3}
    learner.update(episodes=[three_steps(library, float("nan"))], **(required if library is RLLIB else {}))
    return "went on"


@probe("learner-input-space", ours=[Counting.observation_space, Counting.action_space], theirs=[None, None])
def test_the_spaces_that_builders_of_learner_pieces_get(library: Any) -> Any:
    seen: list[Any] = []

    def build(*spaces: Any) -> Any:
        seen.extend(spaces)
        return user_piece(library, lambda piece, batch, episodes: None)

    learner_with(library, build)
    return seen


@probe("learner-state", ours=True, theirs=False)
def test_the_state_of_a_learner_piece_is_saved_with_the_learner(library: Any) -> Any:
    piece = user_piece(library, lambda piece, batch, episodes: None)
    type(piece).get_state = lambda self, *components, **kwargs: {"count": 987654}
    learner, _ = learner_with(library, lambda *spaces: piece)
    return "987654" in repr(learner.get_state())


@probe("last-minibatch", ours=[[0, 1], [2, 3], [4]], theirs=[[0, 1], [2, 3], [4, 0]])
def test_the_last_minibatch(library: Any) -> Any:
    return minibatches(library, {"m": {"x": torch.arange(5)}}, 2)["m"]


@probe("sequence-minibatches", ours=[[0, 1, 2, 3], [4]], theirs=[[0, 1], [2, 3], [4, 0]])
def test_minibatches_of_sequences(library: Any) -> Any:
    """Four sequences of one step and one of four, in minibatches of four steps."""
    batch = {"x": torch.arange(5)[:, None].expand(5, 4).contiguous(), "seq_lens": torch.tensor([1, 1, 1, 1, 4])}
    return [[row[0] for row in rows] for rows in minibatches(library, {"m": batch}, 4)["m"]]


@probe("rows-without-loss", ours=[[0, 2], [3]], theirs=[[0, 1], [2, 3]])
def test_rows_without_loss(library: Any) -> Any:
    mask = torch.tensor([True, False, True, True])
    return minibatches(library, {"m": {"x": torch.arange(4), "loss_mask": mask}}, 2)["m"]
