"""Train batches of recorded episodes, for PyTorch's data loaders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, default_convert, get_worker_info

from epibatch.core.errors import CheckpointError, ConfigError
from epibatch.core.random_streams import random_stream, seed_of
from epibatch.core.restoring import check_count, restoring
from epibatch.core.structs import flatten, unflatten

from .episode_dataset import EpisodeDataset
from .formats import read_episodes
from .multi_agent_dataset import MultiAgentDataset

_WHERE = "state of EpisodeBatches"
_ALIGNED = 64
"""Bytes, of which the place of each array is a multiple."""


class EpisodeBatches(IterableDataset[dict[str, Any]]):
    """Train batches of recorded episodes: a dataset of PyTorch whose items a learner pipeline makes.

    An iteration is one pass: whole episodes, each once, in an order that differs in each pass; or, with `draw`, as many
    draws as have the steps of the data together.

    In the workers of a `DataLoader`, which needs `batch_size=None`, each worker has its shard of the episodes, and its
    own random numbers. They follow from `seed` and from the loader's generator, or PyTorch's, which gives each pass
    another order.

    Each batch has random numbers of its own, also those of the pipeline's pieces. So a loader that calls `state_dict`
    and `load_state_dict` in its workers, as torchdata's `StatefulDataLoader` does, goes on with the same batches.

    Args:
        dataset: A data set, or what `read_episodes` takes.
        pipeline: A learner pipeline.
        batch_size: Steps of a batch, about, as it has whole episodes; with `draw` the parts that are drawn for it.
        draw: Arguments of `EpisodeDataset.sample`, such as `{"batch_length_T": 20}`; None: whole episodes.
        rl_module: The module that the pipeline gets. None: there are arrays in place of tensors, of which a
            `DataLoader` makes tensors; pieces that need a module do not work.
        shuffle: False: whole episodes in their order.
        seed: Seed of all random numbers; None: another one each time.

    Raises:
        ConfigError: a batch size below 1; `draw` of data of several agents.
        DataError: as `read_episodes`; or, in a worker, there are fewer episodes than workers.

    Examples:
        >>> from epibatch.connectors.learner import default_pipeline
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> episode = SingleAgentEpisode(observations=[0.0, 1.0, 2.0], actions=[5, 6], rewards=[1.0, 2.0],
        ...                              terminated=True, len_lookback_buffer=0)
        >>> batches = EpisodeBatches([episode] * 6, default_pipeline(advantages=False), batch_size=4)
        >>> [len(batch["actions"]) for batch in batches]
        [4, 4, 4]
    """

    def __init__(
        self,
        dataset: Any,
        pipeline: Any,
        batch_size: int,
        *,
        draw: Mapping[str, Any] | None = None,
        rl_module: Any = None,
        shuffle: bool = True,
        seed: int | None = None,
    ) -> None:
        if batch_size < 1:
            raise ConfigError(
                "EpisodeBatches", expected="a batch_size of at least 1", found=str(batch_size), do="set it"
            )
        self._data = read_episodes(dataset)
        if draw is not None and not isinstance(self._data, EpisodeDataset):
            do = "leave out draw: a pass gives whole episodes"
            raise ConfigError("EpisodeBatches, draw", expected="data of one agent", found="of several", do=do)
        self._pipeline, self._module, self._size = pipeline, rl_module, batch_size
        self._draw = None if draw is None else {"lookback": pipeline.lookback_needed, **draw}
        self._shuffle = shuffle
        self._state = {"seed": seed_of(random_stream(seed), bits=62), "loader": 0, "pass": 0, "batch": 0}
        self._goes_on = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Return the batches of the next pass, or of the rest of the one that a state was in."""
        worker = get_worker_info()
        data, number = self._data, 0
        if worker is not None:
            data, number = data.shard(worker.id, worker.num_workers), worker.id
        state = self._state
        if state["batch"] and not self._goes_on:
            state["pass"], state["batch"] = state["pass"] + 1, 0
        self._note_loader()
        self._goes_on = False
        streams = random_stream(state["seed"], "batches", state["loader"], state["pass"], number)
        for batch, numbers in enumerate(self._plan(data, streams)):
            if batch < state["batch"]:
                continue  # it was given before the state was saved
            stream = random_stream(streams, "batch", batch)
            episodes: Any
            if isinstance(data, MultiAgentDataset):
                episodes = data.take(numbers)[:]
            elif self._draw is not None:
                episodes = data.sample(self._size, generator=np.random.default_rng(stream), **self._draw)
            else:
                episodes = data.take(numbers)
            self._pipeline.seed(random_stream(stream, "pipeline"))
            made: dict[str, Any] = self._pipeline(rl_module=self._module, batch={}, episodes=episodes)
            state["batch"] = batch + 1  # before it is given, as its state is asked for after it
            yield made if worker is None else _in_one_storage(made)
        if worker is None:  # a worker that is at its end waits there for the others
            state["pass"], state["batch"] = state["pass"] + 1, 0

    def _note_loader(self) -> None:
        """Take the random numbers of the loader that begins a pass."""
        if not (self._goes_on or self._state["batch"]):
            worker = get_worker_info()
            self._state["loader"] = 0 if worker is None else worker.seed - worker.id

    def _plan(self, data: EpisodeDataset | MultiAgentDataset, stream: np.random.SeedSequence) -> list[Any]:
        """The numbers of the episodes of each batch; None: they are drawn."""
        if self._draw is not None:
            steps = self._size * (self._draw.get("batch_length_T") or 1)
            return [None] * -(-data.num_steps // steps)
        order = np.arange(len(data))
        if self._shuffle:
            order = np.random.default_rng(random_stream(stream, "order")).permutation(len(data))
        lengths = data.lengths[order]
        batches = (lengths.cumsum() - lengths) // self._size
        return np.split(order, np.flatnonzero(np.diff(batches)) + 1)

    def state_dict(self) -> dict[str, int]:
        """Return where the iteration is: the pass, the batches of it that were given, and the seeds."""
        self._note_loader()
        return {**self._state, "episodes": len(self._data)}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Let the next iteration go on after the batches that were given when the state was.

        Args:
            state: What `state_dict` returned, of an object with the same arguments, in the same one of as many workers.

        Raises:
            CheckpointError: it is none, or one of other data.
        """
        with restoring(_WHERE, "state"):
            read = {name: check_count(f"{_WHERE}, {name!r}", state[name]) for name in (*self._state, "episodes")}
        count = read.pop("episodes")
        if count != len(self._data):
            do = "load it with the data of the run that was saved"
            found, expected = f"that of {count:,} episodes", f"that of {len(self._data):,} episodes"
            raise CheckpointError(_WHERE, expected=expected, found=found, do=do)
        self._state, self._goes_on = read, True


def _in_one_storage(batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch whose arrays are tensors of one storage, as a loader opens a connection for each storage."""
    leaves, form = flatten(batch)
    leaves = [default_convert(leaf) for leaf in leaves]  # type: ignore[no-untyped-call]
    numbers = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    stops = np.cumsum([-(-leaves[i].nbytes // _ALIGNED) * _ALIGNED for i in numbers], dtype=np.int64).tolist()
    storage = torch.empty([0, *stops][-1], dtype=torch.uint8)
    for i, start in zip(numbers, [0, *stops]):
        given = leaves[i]
        leaves[i] = storage[start : start + given.nbytes].view(given.dtype).view(given.shape).copy_(given)
    sent: dict[str, Any] = unflatten(form, leaves)
    return sent
