"""What a piece costs beside the bare NumPy expression that it stands for.

A sample of steps is given to both: the columns that the expression names, in the batch (`EpisodeColumn`) for the
piece, as arrays for the expression. Where it names `episodes` the piece gathers from the episodes, as it does in front
of the default pieces. What is timed is one run of the piece, as `pipeline.profile()` counts it, with the arrays that it
gives. Every output is freed at once.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.columns import TERMINATED, TRUNCATED, Episode, episodes
from benchmarks.equality import check_same
from benchmarks.piece_facts import Bare
from benchmarks.timing import MOST_CALLS

SIZES = (1024, 32_768)
MOST_CHANGING = 40
STEPS_HELD = 4
MEAN_LENGTH = 205


@dataclass(frozen=True)
class Sample:
    """Steps of episodes, and the spaces that they are from.

    Args:
        rows: How many.
        observations: See `Bare`.
        actions: See `Bare`.
    """

    rows: int
    observations: str = "vector"
    actions: str = "choice"

    @property
    def spaces(self) -> tuple[Any, Any]:
        """Of one observation, and of one action."""
        box = gym.spaces.Box
        kinds = {
            "vector": box(-np.inf, np.inf, (16,), np.float32),
            "image": box(0, 255, (16, 16, 3), np.uint8),
            "frame": box(0, 255, (16, 16, 1), np.uint8),
        }
        kinds["dict"] = gym.spaces.Dict(position=kinds["vector"], camera=kinds["image"])
        actions = {"choice": gym.spaces.Discrete(2), "box": box(-1.0, 1.0, (2,), np.float32)}
        return kinds[self.observations], actions[self.actions]

    @cached_property
    def episodes(self) -> list[Episode]:
        """The episodes' own columns; of Dict observations `obs` is a dict."""
        count = max(1, round(self.rows / MEAN_LENGTH))
        found = self._episodes(self.observations if self.observations != "dict" else "vector", count)
        if self.observations == "dict":
            for own, images in zip(found, self._episodes("image", count)):
                object.__setattr__(own, "obs", {"position": own.obs, "camera": images.obs})
        if self.actions == "box":
            rng = np.random.default_rng(2)
            for own in found:
                own.steps["actions"] = rng.uniform(-1, 1, (len(own.steps["rewards"]), 2)).astype(np.float32)
        return found

    def _episodes(self, observations: str, count: int) -> list[Episode]:
        space = Sample(1, observations).spaces[0]
        return episodes(self.rows, count, space.shape, kind=str(space.dtype))

    @cached_property
    def columns(self) -> dict[str, Any]:
        """Name -> rows of all episodes; and what else an expression may name."""
        from epibatch.core.structs import map_struct

        steps = [own.steps for own in self.episodes]
        rows = {name: np.concatenate([own[name] for own in steps]) for name in steps[0]}
        obs = [map_struct(lambda leaf: leaf[:-1], own.obs) for own in self.episodes]
        rows["obs"] = map_struct(lambda *leaves: np.concatenate(leaves), *obs)
        ends = np.cumsum(self.counts) - 1
        rows["terminateds"] = np.zeros(self.rows, np.bool_)
        rows["terminateds"][ends[[own.end == TERMINATED for own in self.episodes]]] = True
        return {**rows, "newest": rows["obs"], "counts": self.counts, "episodes": self.episodes}

    @cached_property
    def counts(self) -> Any:
        """Rows of each episode."""
        return np.array([len(own.steps["rewards"]) for own in self.episodes], np.int64)

    def recorded(self) -> list[Any]:
        """Episodes of epibatch with these columns."""
        from epibatch.episodes import SingleAgentEpisode

        observation_space, action_space = self.spaces
        return [
            SingleAgentEpisode(
                id_=f"e{index}",
                observations=own.obs,
                actions=own.steps["actions"],
                rewards=own.steps["rewards"],
                extra_model_outputs={name: own.steps[name] for name in own.steps if name not in ("actions", "rewards")},
                observation_space=observation_space,
                action_space=action_space,
                terminated=own.end == TERMINATED,
                truncated=own.end == TRUNCATED,
                len_lookback_buffer=0,
            )
            for index, own in enumerate(self.episodes)
        ]

    def recorder(self) -> Any:
        """Of as many running episodes as rows."""
        from epibatch.episodes import VectorRecorder

        recorder = VectorRecorder(self.rows, *self.spaces)
        recorder.reset(self.columns["obs"])
        return recorder

    def step(self, recorder: Any) -> Any:
        """The running episodes after one step more, which brought the rows as observations."""
        nothing = np.zeros(self.rows, np.bool_)
        recorder.commit()
        actions, rewards = self.columns["actions"], self.columns["rewards"]
        recorder.step(actions, rewards, nothing, nothing, self.columns["obs"])
        return recorder.episodes


@dataclass(frozen=True)
class Repeated:
    """A side that has a new input for every call.

    Args:
        make: Makes an input, outside the time.
        run: The call that is timed.
        most: How many calls a turn may have.
    """

    make: Callable[[], Any]
    run: Callable[[Any], Any]
    most: int = MOST_CALLS

    def calls(self, seconds: float) -> int:
        """How many calls fill a turn; the side is warm afterwards."""
        self.turn(1)
        once = min(self.turn(3) for _ in range(3))
        return max(1, min(self.most, round(seconds / max(once, 1e-9))))

    def turn(self, calls: int) -> float:
        """Seconds per call, of so many calls, the inputs made in between."""
        make, run, clock, spent = self.make, self.run, time.perf_counter, 0.0
        gc.collect()
        gc.disable()
        for _ in range(calls):
            given = make()
            start = clock()
            run(given)
            spent += clock() - start
        gc.enable()
        return spent / calls


class PieceSide:
    """A piece, and what it is run on.

    Args:
        name: Its registered name.
        bare: What it is compared with.
        sample: The steps.
    """

    def __init__(self, name: str, bare: Bare, sample: Sample) -> None:
        from epibatch.core.registry import piece_class

        self.bare, self.sample = bare, sample
        self.piece = piece_class(name)(**bare.keywords)
        self.piece.input_action_space, self.piece.input_observation_space = sample.spaces[1], sample.spaces[0]
        self.changes = bare.acting or self.piece.mutates_episodes
        self._recorder: Any = None
        self._held = 0
        self.episodes: Any = self._episodes()

    def _episodes(self) -> Any:
        if not self.bare.acting:
            return self.sample.recorded()
        if self._held % STEPS_HELD == 0:
            self._recorder = self.sample.recorder()
            self.run(({}, self._call(self._recorder.episodes)))
        self._held += 1
        return self.sample.step(self._recorder)

    def _call(self, episodes: Any) -> Any:
        from epibatch.connectors._engine.call import PipelineCall

        call = PipelineCall(rl_module=None, episodes=episodes, explore=True, training=not self.bare.acting)
        (group,) = call.groups.values()
        group.lengths  # noqa: B018  # some piece in front has asked for it
        return group

    def given(self) -> tuple[dict[str, Any], Any]:
        """A batch, and a call about the episodes; both new."""
        from epibatch.connectors._engine.columns import EpisodeColumn

        bare, counts = self.bare, self.sample.counts
        if self.changes:
            self.episodes = self._episodes()
        if hasattr(self.piece, "seed"):
            self.piece.seed(0)
        batch = {name: EpisodeColumn(self.sample.columns[name], counts) for name in bare.columns}
        return batch, self._call(self.episodes)

    def run(self, given: tuple[dict[str, Any], Any]) -> dict[str, Any]:
        """The columns that are compared."""
        batch, call = given
        from epibatch.connectors.columnar_piece import is_columnar

        piece = self.piece
        if is_columnar(piece):
            batch = piece.run(batch, call)
        else:
            batch = piece(rl_module=None, batch=batch, episodes=call.episodes, explore=True, shared_data={})
        return {name: batch[name].data for name in self.bare.given if name in batch}

    def once(self) -> dict[str, Any]:
        """The same of a first run, with columns that the piece wrote into episodes."""
        from epibatch.connectors._engine.gather import gather

        given = self.given()
        self.piece.reset_state()
        found = self.run(given)
        for name in self.bare.given:
            if name not in found:
                call = given[1]
                found[name] = call.reader.newest("obs")[0] if self.bare.acting else gather(call, name)
        return found


def sides(name: str, bare: Bare, rows: int) -> dict[str, Repeated]:
    """A piece and its expression, held to give the same.

    Args:
        name: Registered name of the piece.
        bare: What it is compared with.
        rows: How many steps.

    Raises:
        DifferentValuesError: they give something else.
    """
    sample = Sample(rows, bare.observations, bare.actions)
    piece, function = PieceSide(name, bare, sample), bare.function()
    columns = {own: sample.columns[own] for own in bare.names}
    check(piece.once(), function(**columns), bare)
    most = MOST_CHANGING if piece.changes else MOST_CALLS
    return {
        "piece": Repeated(piece.given, piece.run, most),
        "bare": Repeated(lambda: None, lambda _: function(**columns), most),
    }


def check(piece: Mapping[str, Any], bare: Mapping[str, Any], what: Bare) -> None:
    """Compare what both gave.

    Raises:
        DifferentValuesError: it is not the same.
    """
    close = dict.fromkeys(_flat_names(piece), what.close)
    check_same(piece, bare, whose="the bare expression", close=close, rows=slice(0) if what.drawn else None)


def _flat_names(columns: Mapping[str, Any]) -> list[str]:
    from benchmarks.equality import flat

    return list(flat(columns))
