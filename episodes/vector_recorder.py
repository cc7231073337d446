"""Records N environments that step together into episodes."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, EpisodeError, EpisodeStateError, SpaceError, add_context
from epibatch.core.lazy import MovedAttribute
from epibatch.core.structs import map_struct

from ._storage.block import Block
from ._storage.chunk import Chunk
from ._storage.growing_column import NOTHING, GrowingColumn
from ._storage.infos_buffer import MISSING_FINAL_OBS
from .arrays import owned
from .env_infos import env_infos
from .single_agent_episode import SingleAgentEpisode
from .vector_checks import VectorChecks, check_placeholder, ended_twice, placeholder
from .vector_episodes import VectorEpisodes

_FINAL = ("final_obs", "final_info", "_final_obs", "_final_info")
_STATISTICS = "episode"  # the key of gymnasium.wrappers.vector.RecordEpisodeStatistics


class VectorRecorder:
    """Turns vector steps into episodes, with one copy per column and step whatever N is.

    With a mask, only some environments take part in a step or reset. From then until the next `flush`, rows are written
    and read environment by environment.

    Args:
        num_envs: N.
        observation_space: Space of one environment's observation.
        action_space: Space of one environment's action.
        autoreset: When reset observations arrive: "next_step" (one call after the end; that call's
            action and reward belong to no episode) or "same_step" (with the end; the terminal
            observation comes separately).
        capacity: Vector steps to make room for at first.
        stored_observation_space: Space of one observation as pieces write it back into the episodes; None if
            none does.
        missing_final_obs: Last observation of an episode of which no terminal one comes ("same_step"): "nan", "zero"
            or a number in every entry, or "keep" for the observation before. Its last info has
            `missing_final_obs=True`, and batches have the observation before in its place. None: this is an error.
        reward_shape: Shape of a reward, () for numbers. Returns of episodes are the sums of all entries.

    Raises:
        ConfigError: observations cannot hold `missing_final_obs`.
    """

    harvest = MovedAttribute("use flush(lookback)")
    give_up = MovedAttribute("use abort()")
    announce = MovedAttribute("use name_next_episode(env, episode)")
    expect = MovedAttribute("use reserve(vector_steps)")

    def __init__(
        self,
        num_envs: int,
        observation_space: gym.Space[Any] | None = None,
        action_space: gym.Space[Any] | None = None,
        *,
        autoreset: Literal["next_step", "same_step"] = "next_step",
        capacity: int = 64,
        stored_observation_space: gym.Space[Any] | None = None,
        missing_final_obs: float | Literal["nan", "zero", "keep"] | None = None,
        reward_shape: tuple[int, ...] = (),
    ) -> None:
        self.num_envs = num_envs
        stored = observation_space if stored_observation_space is None else stored_observation_space
        self._spaces = (stored, action_space)
        self._autoreset = autoreset
        self._missing_final_obs = missing_final_obs
        if stored is not None:
            check_placeholder(missing_final_obs, stored)
        self._capacity = capacity
        self._checks = VectorChecks(num_envs, observation_space, reward_shape)
        self._block, self._rows_before = Block(num_envs, capacity), 0
        self._waiting: list[int] = []
        self._since = [0] * num_envs  # the step at which each running episode began
        self._finished: dict[int, tuple[Chunk, SingleAgentEpisode | None]] = {}  # by the id() of the chunk
        self._announced: dict[int, SingleAgentEpisode] = {}
        self._delivered: list[tuple[weakref.ref[object], list[weakref.ref[Chunk]]]] = []
        self.episodes = VectorEpisodes(self._block, [])

    @property
    def waiting(self) -> list[int]:
        """The environments with a next step that only gives their reset observation."""
        return self._waiting

    @property
    def history(self) -> int:
        """Steps of the running fragment, lookback included."""
        return self._block.row

    def reset(self, observations: Any, infos: dict[str, Any] | None = None, *, mask: Any = None) -> None:
        """Start an episode in every environment; running ones are dropped.

        Args:
            observations: Arrays of shape [N, ...].
            infos: The vector environment's infos: a list with a dict for each environment as `env_infos`, or columns.
            mask: The environments that were reset: bool [N]; None: all. The episodes of the others go on, and their
                rows of `observations` are not read.

        Raises:
            ColumnError: not one row per environment, or a mask of another type or shape.
            SpaceError: observations of another nesting or shape than the observation space.
            EpisodeStateError: a mask before all environments were reset.
        """
        observations = self._checks.observations(observations)
        if mask is not None:
            self._checks.check_flags("mask", mask)
            if not self.episodes.chunks:
                raise _not_reset("reset(mask=...)")
            self._reset_some(np.flatnonzero(mask).tolist(), observations, infos or {})
            return
        self._block, self._rows_before = Block(self.num_envs, self._capacity), 0
        block = self._block
        block.stage(observations)
        if infos:
            block.infos[0] = infos
        self._waiting, self._finished = [], {}
        chunks = [self._new_chunk(env) for env in range(self.num_envs)]
        self.episodes = VectorEpisodes(block, chunks, recording=True)

    def _reset_some(self, envs: list[int], observations: Any, infos: dict[str, Any]) -> None:
        for env in envs:
            chunk = self.episodes.chunks[env]
            if chunk.stop is None:
                chunk.finish(chunk.end, False, False)
        self._block.commit()
        self._stage_some(envs, observations, infos)
        for env in envs:
            self.episodes.replace(env, self._new_chunk(env))
        self._waiting = [env for env in self._waiting if env not in envs]

    def _stage_some(self, envs: list[int], observations: Any, infos: dict[str, Any]) -> None:
        """Add the next observations and infos of some environments."""
        block = self._block
        block.advance(envs)
        block.observations.provisional = True
        for env in envs:
            block.write_newest(env, map_struct(lambda leaf, env=env: leaf[env], observations))
            block.own_infos[block.newest(env), env] = env_infos(infos, env, self.num_envs)

    def step(
        self,
        actions: Any,
        rewards: Any,
        terminateds: Any,
        truncateds: Any,
        observations: Any,
        infos: dict[str, Any] | None = None,
        extras: dict[str, Any] | None = None,
        final_observations: Any = None,
        reset_infos: dict[str, Any] | None = None,
        restarted: Mapping[int, dict[str, Any] | None] | None = None,
        mask: Any = None,
    ) -> list[Chunk]:
        """Add one vector step.

        Args:
            actions: The actions taken: arrays of shape [N, ...].
            rewards: Shape [N], or [N, ...] with a `reward_shape`.
            terminateds: bool, shape [N].
            truncateds: bool, shape [N].
            observations: The next observations: arrays of shape [N, ...].
            infos: The vector environment's infos: a list with a dict for each environment as `env_infos`, or columns.
            extras: Other outputs of the module: arrays of shape [N, ...] per key.
            final_observations: With "same_step", the terminal observations: arrays or object
                array of shape [N, ...]; only rows of ended environments are read.
            reset_infos: Infos of a separate reset of the ended environments; then `infos` are those
                of the step alone. Otherwise `infos` hold both, the terminal ones as `final_info`.
            restarted: Environments that took no step and were made and reset again, so their rows of `observations`
                are reset ones. Their running episodes are truncated at the observation before, to whose info this
                dict is added, or dropped (None).
            mask: The environments that took the step: bool [N]; None: all. Rows of the others are not read, but have
                to be there, and their episodes stay as they are.

        Returns:
            The chunks that ended with this step. Those of `restarted` environments may have no steps, if earlier chunks
            of the episode have some. `flush` does not hand them over.

        Raises:
            EpisodeStateError: before `reset`, or a running episode was marked as ended from outside.
            EpisodeError: ended environments without terminal observations ("same_step"), or model
                outputs other than in earlier steps.
            ColumnError: a column without one row per environment, or nested otherwise than before.
            SpaceError: observations of another nesting or shape than the observation space.
                After any of these no step was added.
        """
        block = self._block
        if not self.episodes.chunks:
            raise _not_reset("step")
        if block.num_objects:
            self._refuse_ended_views()
        row, extras = block.row, extras or {}
        try:
            observations = self._checks.observations(observations)
        except (ColumnError, SpaceError) as error:
            add_context(error, f"{self._rows_before + row + 1} steps after the reset:")
            raise
        if mask is None and block.behind:
            mask = np.ones(self.num_envs, np.bool_)
        if not self._checks.are_plain(rewards, terminateds, truncateds):
            self._checks.check_step(rewards, terminateds, truncateds)
        if mask is not None:
            self._checks.check_flags("mask", mask)
        ended = self._ended(terminateds, truncateds, mask)
        tails = self._terminal_observations(ended, final_observations, infos) if self._autoreset == "same_step" else {}
        own = {key: value for key, value in infos.items() if key not in _FINAL} if infos else {}
        envs = None if mask is None else np.flatnonzero(mask).tolist()
        self._put(envs, actions, rewards, extras)
        if envs is None:
            block.row = row + 1
            block.stage(observations)
            if own:
                block.infos[row + 1] = own
        else:
            self._stage_some(envs, observations, own)
        cut = self._cut(restarted) if restarted else []
        waiting, self._waiting = self._waiting, []
        for env in waiting:
            if mask is None or mask[env]:
                self.episodes.replace(env, self._new_chunk(env))
            else:
                self._waiting.append(env)
        return cut + (self._end(ended, (terminateds, truncateds), tails, (infos or {}, reset_infos)) if ended else [])

    def _ended(self, terminateds: Any, truncateds: Any, mask: Any) -> list[int]:
        """The environments of a step with an end.

        Raises:
            EpisodeError: one that is only reset in this step.
        """
        done = np.logical_or(terminateds, truncateds)
        if mask is not None:
            done &= mask
        ended = np.flatnonzero(done).tolist() if b"\1" in done.tobytes() else []  # the cheaper way to ask for any
        if ended and self._waiting and not set(ended).isdisjoint(self._waiting):
            raise ended_twice([env for env in self._waiting if done[env]])
        return ended

    def _terminal_observations(self, ended: list[int], final_observations: Any, infos: Any) -> dict[int, Any]:
        """The terminal observations of the environments that ended, by environment; NOTHING if one is missing."""
        tails: dict[int, Any] = dict.fromkeys(ended, NOTHING)
        given = (infos or {}).get("_final_obs")
        for env in ended if final_observations is not None else ():
            row = map_struct(lambda leaf, env=env: leaf[env], final_observations)
            if row is not None and (given is None or given[env]):
                tails[env] = owned(self._checks.terminal_observation(row))
        missing = [env for env, tail in tails.items() if tail is NOTHING]
        if missing and self._missing_final_obs is None:
            raise EpisodeError(
                "vector step of an environment that resets in the same step",
                expected="terminal observations, as infos['final_obs']",
                found=f"none, although environments {missing} ended",
                do="let the vector environment deliver final_obs, or set what takes its place: "
                "missing_final_obs='keep'",
            )
        return tails

    def _put(self, envs: list[int] | None, actions: Any, rewards: Any, extras: dict[str, Any]) -> None:
        """Write what all environments, or some, took and brought: each in its own newest row."""
        block, row, outputs = self._block, self._block.row, self._block.extras
        columns: list[tuple[str, GrowingColumn | None, Any]] = [
            (Columns.REWARDS, block.rewards, rewards),
            (Columns.ACTIONS, block.actions, actions),
        ]
        columns += [(key, outputs.get(key), value) for key, value in extras.items()]
        if envs is None and len(extras) == len(outputs):
            columns = [item for item in columns if item[1] is None or not item[1].lay_or_grow(row, item[2])]
        for name, _, value in columns:
            self._checks.check_rows(name, value)
        block.commit()
        if extras.keys() != outputs.keys():
            self._add_outputs(extras)
        for name, column, value in columns:
            column = outputs[name] if column is None else column
            if envs is None:
                column.put(row, value)
                continue
            if not column.leaves:
                column.put(row, map_struct(np.zeros_like, value))
            part = map_struct(lambda leaf: np.asarray(leaf)[envs], value)
            column.put_rows([block.newest(env) for env in envs], envs, part)

    def _add_outputs(self, extras: dict[str, Any]) -> None:
        """Make the columns of model outputs at the first step; later ones must have the same."""
        block = self._block
        if block.extras or block.actions.leaves:
            raise EpisodeError(
                f"VectorRecorder, model outputs at row {block.row}",
                expected=f"the keys of the first step: {sorted(block.extras)}",
                found=str(sorted(extras)),
                do="give every step the same outputs, or reset() in between",
            )
        block.extras.update((key, block.new_column()) for key in extras)
        for chunk in self.episodes.chunks:
            chunk.add_columns()

    def name_next_episode(self, env: int, episode: SingleAgentEpisode) -> None:
        """Give the next episode of an environment the name and the custom data of an empty one."""
        self._announced[env] = episode

    def _new_chunk(self, env: int) -> Chunk:
        self._since[env] = 0
        coming = self._announced.pop(env, None)
        identity = () if coming is None else (coming.id_, 0, dict(coming.custom_data))
        row = self._block.newest(env)
        return Chunk(self._block, env, row, row, self._spaces, *identity)

    def _end(
        self, envs: list[int], flags: tuple[Any, Any], tails: dict[int, Any], infos: tuple[dict[str, Any], Any]
    ) -> list[Chunk]:
        """End the episodes of these environments; with "same_step" begin the next ones."""
        ended = []
        for env in envs:
            chunk = self._finish(env, bool(flags[0][env]), bool(flags[1][env]))
            ended.append(chunk)
            if tails:
                self._set_tail(chunk, tails[env], *infos)
                self.episodes.replace(env, self._new_chunk(env))
        if not tails:
            self._waiting += envs
        return ended

    def _finish(self, env: int, terminated: bool, truncated: bool) -> Chunk:
        """End the running episode of an environment with its newest step, and keep it until it is handed over."""
        chunk = self.episodes.chunks[env]
        chunk.finish(chunk.end, terminated, truncated)
        self._finished[id(chunk)] = chunk, self.episodes.views[env]
        return chunk

    def truncate(self, lost: Mapping[int, dict[str, Any] | None]) -> list[Chunk]:
        """Truncate running episodes at their newest observations, as no step follows; a `reset` begins the next ones.

        Args:
            lost: What is added to the last infos, by environment; None: the episode is dropped.

        Returns:
            The chunks that ended, as of `step` those of `restarted` environments.
        """
        self.commit()
        return self._cut(lost, rows=0)

    def _cut(self, restarted: Mapping[int, dict[str, Any] | None], rows: int = 1) -> list[Chunk]:
        """End the running episodes of environments some rows before the newest one, and begin the next ones there."""
        cut = []
        for env, info in restarted.items():
            chunk, view, row = self.episodes.chunks[env], self.episodes.views[env], self._block.newest(env) - rows
            if info is not None and (row > chunk.start or chunk.continues):
                chunk.finish(row, False, True)
                shown = chunk.attached
                last = {**(chunk.info_at(row - chunk.low) if shown is None else shown.infos.last()), **info}
                self._block.own_infos[row, env] = last
                if shown is not None:
                    shown.set_infos(new_data=last, at_indices=-1)
                if row > chunk.start:
                    self._finished[id(chunk)] = chunk, view
                cut.append(chunk)
            self.episodes.replace(env, self._new_chunk(env))
        return cut

    def _set_tail(self, chunk: Chunk, tail: Any, infos: dict[str, Any], reset_infos: dict[str, Any] | None) -> None:
        """Keep the terminal observation and info of an ended episode; its next row belongs to another episode.

        Infos of an environment that gives no terminal observation and no `final_info` are those of the step that ended.
        """
        env, block = chunk.env, self._block
        row, missing = block.newest(env), tail is NOTHING
        chunk.tail = placeholder(block.observations.row_of(row - 1, env), self._missing_final_obs) if missing else tail
        if missing and reset_infos is None and "final_info" not in infos:
            chunk.tail_infos, block.own_infos[row, env] = block.info_at(row, env), {}
        elif reset_infos is None:
            chunk.tail_infos = env_infos(infos.get("final_info", {}), env, self.num_envs)
            self._move_statistics(chunk, infos)
        else:
            chunk.tail_infos = env_infos(infos, env, self.num_envs)
            block.own_infos[row, env] = env_infos(reset_infos, env, self.num_envs)
        if missing:
            chunk.tail_infos = {**chunk.tail_infos, MISSING_FINAL_OBS: True}

    def _move_statistics(self, chunk: Chunk, infos: dict[str, Any]) -> None:
        """Statistics of an ended episode stand beside the infos of the reset; they are the ended one's."""
        env = chunk.env
        column = {key: infos[key] for key in (_STATISTICS, f"_{_STATISTICS}") if key in infos}
        found = env_infos(column, env, self.num_envs).get(_STATISTICS)
        if isinstance(found, dict) and "r" in found and "l" in found:
            chunk.tail_infos = {**chunk.tail_infos, _STATISTICS: found}
            others = {key: value for key, value in infos.items() if key not in (*column, *_FINAL)}
            self._block.own_infos[self._block.newest(env), env] = env_infos(others, env, self.num_envs)

    @property
    def partial(self) -> set[str]:
        """The names of the running episodes that have steps in earlier chunks."""
        return {chunk.id_ for chunk in self.episodes.chunks if chunk.continues}

    def reserve(self, vector_steps: int) -> None:
        """Make room for so many vector steps in the next fragments."""
        self._capacity = vector_steps

    def view(self, chunk: Chunk) -> SingleAgentEpisode:
        """The episode object of a chunk that ended and was not handed over yet."""
        view = chunk.view()
        if id(chunk) in self._finished:
            self._finished[id(chunk)] = chunk, view
        return view

    def commit(self) -> None:
        """Move the newest observations, as pieces left them, into the block.

        Raises:
            EpisodeStateError: a piece marked a running episode as ended.
        """
        if self._block.num_objects:
            self._refuse_ended_views()
        self._block.commit()

    def _refuse_ended_views(self) -> None:
        for env, view in enumerate(self.episodes.views):
            if view is not None and (view.is_terminated or view.is_truncated) and env not in self._waiting:
                flag = "is_terminated" if view.is_terminated else "is_truncated"
                raise EpisodeStateError(
                    f"episode {view.id_}",
                    expected="a running episode: its environment says when it ends",
                    found=f"{flag} = True, set by a piece",
                    do="end it in the environment, with gymnasium.wrappers.TimeLimit or a wrapper of your own "
                    "whose step returns truncated=True",
                )

    def _refuse_replaced_columns(self) -> None:
        for chunk, view in zip(self.episodes.chunks, self.episodes.views):
            name = None if view is None or chunk.stop is not None else chunk.replaced_column(view)
            if view is not None and name is not None:
                raise EpisodeStateError(
                    f"episode {view.id_}, column {name!r}",
                    expected="the column that its environment runner records",
                    found="another one in its place, set by a piece",
                    do="overwrite its rows with the episode's setter; or work on a copy: copy.deepcopy(episode)",
                )

    def split(self, steps: int, lookback: int, failed: Collection[int] = ()) -> list[Chunk]:
        """End the running episodes that have so many steps without a flag; others begin at their newest observations.

        The new ones go on counting steps from the reset.

        Args:
            steps: Of an episode.
            lookback: Steps that the new ones keep from before, if there are so many.
            failed: Environments whose newest rows are no steps.

        Returns:
            The chunks that ended.
        """
        ended = []
        for env, chunk in enumerate(self.episodes.chunks):
            row = chunk.end
            t = chunk.t_started + row - chunk.start
            if env in self._waiting or env in failed or t - self._since[env] < steps:
                continue
            ended.append(self._finish(env, False, False))
            following = self._new_chunk(env)
            following.low, following.t_started, following.is_first = max(chunk.low, row - lookback), t, True
            self._since[env] = t
            self.episodes.replace(env, following)
        return ended

    def flush(self, lookback: int, *, cut: bool = True) -> VectorEpisodes:
        """Hand over what was recorded and go on with new chunks.

        Args:
            lookback: Steps that the chunks going on keep from before, if they have so many.
            cut: False: hand over ended episodes only; the chunks of running ones go on with all of their steps.

        Returns:
            The episodes that ended since the last call, then the running ones' chunks; chunks
            without steps are left out.

        Raises:
            EpisodeStateError: a piece put another column in the place of one of a running episode.
        """
        if self._block.num_objects:
            self._refuse_replaced_columns()
        self._retire()
        running, going_on, waiting = [], [], set(self._waiting)
        rows = [chunk.end - chunk.low for chunk in self.episodes.chunks if cut or chunk.env not in waiting]
        lookback = min(lookback, max(rows, default=0)) if cut else max(rows, default=0)
        old, block = self._block, self._block.successor(lookback, self._capacity)
        block.returns_before = self.episodes.running_returns() if cut else old.returns_before
        self._rows_before += old.row - lookback
        for env, (chunk, view) in enumerate(zip(self.episodes.chunks, self.episodes.views)):
            if env in waiting:
                going_on.append(chunk)
                continue
            going_on.append(chunk.next_chunk(block, lookback, cut))
            if cut and len(chunk):
                chunk.finish(chunk.end, False, False)
                running.append((chunk, view))
        done = [*self._finished.values(), *running]
        result = VectorEpisodes(old, [chunk for chunk, _ in done], [view for _, view in done])
        views = [view if env in waiting else None for env, view in enumerate(self.episodes.views)]
        self._block, self._finished = block, {}
        self.episodes = VectorEpisodes(block, going_on, views, recording=True)
        self._delivered.append((weakref.ref(result.delivery), [weakref.ref(chunk) for chunk in result.chunks]))
        return result

    def abort(self) -> list[SingleAgentEpisode]:
        """The episodes that ended and were not handed over; nothing else is kept until the next reset."""
        finished, self._finished = [self.view(chunk) for chunk, _ in self._finished.values()], {}
        return finished

    def _retire(self) -> None:
        """Copy the rows of small chunks that are still in use, so that an earlier fragment's block can be freed."""
        delivered = []
        for delivery, chunks in self._delivered:
            if delivery() is not None:
                delivered.append((delivery, chunks))
                continue
            for chunk in (reference() for reference in chunks):
                view = None if chunk is None else chunk.attached
                if chunk is not None and view is not None and 2 * len(chunk) < chunk.block.row * chunk.block.num_envs:
                    view.own_columns()
        self._delivered = delivered


def _not_reset(call: str) -> EpisodeStateError:
    return EpisodeStateError(f"VectorRecorder.{call}", expected="reset() first", found="no episode", do="call reset()")
