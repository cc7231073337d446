"""A replay buffer of episodes of several agents, with lanes for each module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from epibatch.core.errors import ReplayError, SpaceError, UnknownNameError, nearest
from epibatch.core.restoring import check_count, restore_generator, restore_on_error, restoring
from epibatch.core.state_codec import require_mapping

from ..chunks_by_module import ChunksByModule
from ..multi_agent_episode import MultiAgentEpisode
from ..single_agent_episode import SingleAgentEpisode
from ..store import Ints
from .episode_replay_buffer import EpisodeReplayBuffer
from .lanes import runs
from .saved_buffer import SavedBuffer
from .step_draws import check_least

_ENV_STEP = 32
"""Bits of a row's mark that are the env step of its observation; those above number the multi-agent episodes."""
_MOST_RUNNING = 1024
"""Multi-agent episodes that may go on."""
_WHERE = "MultiAgentEpisodeReplayBuffer"


class MultiAgentEpisodeReplayBuffer(SavedBuffer):
    """Keeps the newest steps of the agents of multi-agent episodes, those of each module by themselves.

    A step is an agent's own, from an observation that it acts on to its next one. It is added once it is complete, with
    the module that acts for the agent. Agents may come and go, and act in different env steps.

    What is drawn is a sequence of single-agent episodes, those of one module after those of another. The learner
    pipeline of several agents takes it, and reads its rows by index.

    Counterparts: RLlib's `MultiAgentEpisodeReplayBuffer`, whose capacity is in env steps of all modules.

    Args:
        capacity: Rows for each module: one for each step of its agents, and one for each agent's last observation.
        batch_size_B: Items of a draw that says nothing else, for each module.
        seed: Seed of the draws; None: another one in each buffer.
        **options: Further arguments of each module's `EpisodeReplayBuffer`.

    Raises:
        ReplayError: a capacity below 2.

    Examples:
        >>> episode = MultiAgentEpisode(
        ...     observations=[{"a": 0, "b": 1}, {"a": 2}, {"a": 3, "b": 4}], actions=[{"a": 5, "b": 6}, {"a": 7}],
        ...     rewards=[{"a": 1.0}, {"a": 1.0, "b": 3.0}], len_lookback_buffer=0,
        ...     agent_to_module_mapping_fn=lambda agent, episode: f"module_{agent}",
        ... )
        >>> buffer = MultiAgentEpisodeReplayBuffer(capacity=100, seed=0)
        >>> buffer.add(episode)
        >>> buffer.get_num_timesteps("module_a"), buffer.get_num_timesteps("module_b"), len(buffer)
        (2, 1, 2)
        >>> {module_id: len(chunks) for module_id, chunks in buffer.sample(4).by_module.items()}
        {'module_a': 4, 'module_b': 4}
    """

    buffer_class: ClassVar[type[EpisodeReplayBuffer]] = EpisodeReplayBuffer

    def __init__(
        self, capacity: int = 10_000, *, batch_size_B: int = 16, seed: int | None = None, **options: Any
    ) -> None:
        device = options.get("device") or ("pin_memory" if options.get("pin_memory") else None)
        if device is not None:
            do = "leave it out: episodes of several agents are arrays"
            raise ReplayError(f"{_WHERE}, device", expected="rows in arrays", found=repr(device), do=do)
        self.capacity, self.batch_size_B, self._options = int(capacity), batch_size_B, options
        self._rng = np.random.default_rng(seed)
        self.buffers: dict[Any, Any] = {}
        self._spaces: dict[Any, list[Any]] = {}
        self._numbers: dict[Any, int] = {}  # of running episodes, the least recent first
        self._episodes_added = self._added = self._sampled = 0
        self._index: tuple[Any, Any] = None, None
        self._seed = int(self._rng.integers(2**32))
        self._new_buffer(None)  # checks the arguments

    def _new_buffer(self, module_id: Any) -> Any:
        seed = [self._seed, *str(module_id).encode()]
        return self.buffer_class(self.capacity, seed=seed, **self._options)

    def __len__(self) -> int:
        """Return the number of env steps with which it holds a step of an agent."""
        return self.get_num_timesteps()

    # -- adding --------------------------------------------------------------------------------------

    def add(self, episodes: Any, source: Any = 0) -> None:
        """Add the steps of agents; later parts of a running episode go on where it was.

        Args:
            episodes: One multi-agent episode, a list of them, or what a runner's `sample` returned.
            source: Distinguishes runners, if several fill the buffer.

        Raises:
            ReplayError: episodes of one agent, or a capacity that is too small for so many agents.
            SpaceError: an agent with other spaces than those before that its module acts for.
            ColumnError: a column that is missing, new, or of another nesting or shape than before in its module.
                Nothing was added then.
        """
        episodes = _multi_agent_episodes(episodes)
        numbers, count = dict(self._numbers), self._episodes_added
        parts: dict[Any, list[SingleAgentEpisode]] = {}
        marks: dict[Any, list[Ints]] = {}
        for episode in episodes:
            number = numbers.pop((source, episode.id_), count)
            count += number == count
            if not episode.is_done:
                numbers[source, episode.id_] = number
            for segment in episode.segments:
                part = segment.episode
                if len(part) or part.is_done:
                    parts.setdefault(part.module_id, []).append(part)
                if len(part):
                    steps = (number << _ENV_STEP) + segment.env_steps[part.lookback :]
                    marks.setdefault(part.module_id, []).append(steps)
        spaces = _checked_spaces(parts, self._spaces)
        buffers = {**self.buffers, **{name: self._new_buffer(name) for name in marks if name not in self.buffers}}
        undos = [buffer.undo() for buffer in buffers.values()]
        with restore_on_error(lambda: [undo() for undo in undos]):
            writes: list[Callable[[], None]] = [
                buffers[name].prepare(members, source, np.concatenate(marks[name]) if name in marks else None)
                for name, members in parts.items()
                if name in buffers
            ]
        for write in writes:
            write()
        self.buffers, self._spaces, self._numbers, self._episodes_added = buffers, spaces, numbers, count
        for key in list(numbers)[:-_MOST_RUNNING]:
            del numbers[key]
        self._added += sum(map(len, episodes))

    # -- drawing -------------------------------------------------------------------------------------

    def sample(
        self,
        num_items: int | None = None,
        *,
        replay_mode: Literal["independent", "synchronized"] = "independent",
        modules_to_sample: Iterable[Any] | None = None,
        batch_size_B: int | None = None,
        **options: Any,
    ) -> ChunksByModule:
        """Draw parts of agents' episodes.

        Args:
            num_items: How many, for each module, or env steps with "synchronized"; default: `batch_size_B`.
            replay_mode: "independent" draws from the steps of each module. "synchronized" draws env steps, uniformly
                among those in which an agent of these modules acted, and takes all steps of agents that began in them.
                It sorts all rows after each `add`.
            modules_to_sample: The modules; default: all that have steps.
            batch_size_B: The same as `num_items`, in RLlib's word.
            **options: Further arguments of the `sample` of each module's buffer; with "synchronized" `batch_length_T`,
                `lookback` and `min_batch_length_T`.

        Raises:
            UnknownNameError: a module of which nothing was added.
            ReplayError: no step of a module is such a start, or another mode.
        """
        where = f"{_WHERE}.sample"
        check_least(where, 1, num_items=num_items, batch_size_B=batch_size_B)
        if num_items is not None and batch_size_B is not None:
            raise ReplayError(where, expected="one number of items", found="num_items and batch_size_B", do="leave one")
        count = num_items or batch_size_B or self.batch_size_B
        modules = self._modules(modules_to_sample)
        if replay_mode == "independent":
            undos = [self.buffers[name].undo() for name in modules]
            with restore_on_error(lambda: [undo() for undo in undos]):
                drawn = ChunksByModule({name: self.buffers[name].sample(count, **options) for name in modules})
        elif replay_mode == "synchronized":
            options.pop("beta", None)  # steps that are drawn uniformly have equal weights
            unknown = options.keys() - {"batch_length_T", "lookback", "min_batch_length_T"}
            if unknown:
                expected, found = "batch_length_T, lookback, min_batch_length_T", ", ".join(sorted(unknown))
                raise ReplayError(f"{where}, synchronized", expected=expected, found=found, do="leave it out")
            drawn = self._synchronized(count, modules, **options)
        else:
            expected, do = "'independent' or 'synchronized'", "write one of them"
            raise ReplayError(f"{where}, replay_mode", expected=expected, found=repr(replay_mode), do=do)
        for name, chunks in drawn.by_module.items():
            chunks.module_id = name
        self._sampled += count
        return drawn

    def _modules(self, asked: Iterable[Any] | None) -> list[Any]:
        if asked is not None:
            return [name for name in asked if self._buffer_of(name) is not None]
        modules = [name for name, buffer in self.buffers.items() if len(buffer)]
        if not modules:
            raise _no_steps("an agent's step")
        return modules

    def _buffer_of(self, module_id: Any) -> Any:
        if module_id in self.buffers:
            return self.buffers[module_id]
        raise UnknownNameError(
            _WHERE,
            expected=f"a module whose agents acted: {', '.join(map(repr, self.buffers))}",
            found=repr(module_id),
            do=nearest(str(module_id), list(map(str, self.buffers))),
        )

    def _synchronized(
        self, count: int, modules: list[Any], *, batch_length_T: int | None = None, **options: int
    ) -> ChunksByModule:
        """Draw so many env steps, and take all steps of these modules' agents that began in them."""
        every, by_module = self._env_steps(modules, **options)
        if not len(every):
            raise _no_steps(f"an agent's step of these modules, with {options or 'any part'} to draw")
        steps = every[self._rng.integers(0, len(every), count)]
        drawn, draws = {}, {}
        for name, (places, marks) in by_module.items():
            first, counts = np.searchsorted(marks, steps), np.searchsorted(marks, steps, side="right")
            counts -= first
            if counts.any():
                drawn[name] = self.buffers[name].parts_at(places[runs(first, counts)], batch_length_T)
                draws[name] = np.repeat(np.arange(count), counts)
        return ChunksByModule(drawn, draws)

    def _env_steps(
        self, modules: Iterable[Any], lookback: int = 0, min_batch_length_T: int = 1
    ) -> tuple[Ints, dict[Any, tuple[Ints, Ints]]]:
        """All marks with which steps begin, each once; and by module the places of the steps, by their sorted marks."""
        key = self._added, tuple(modules), lookback, min_batch_length_T
        if self._index[0] != key:
            by_module = {}
            for name in key[1]:
                lanes = self.buffers[name].lanes
                places = lanes.newest()
                places = places[self.buffers[name].may_begin(places, lookback, min_batch_length_T)]
                marks = lanes.marks_of(places)
                order = np.argsort(marks, kind="stable")
                by_module[name] = places[order], marks[order]
            every = [np.zeros(0, np.int64), *(marks for _, marks in by_module.values())]
            self._index = key, (np.unique(np.concatenate(every)), by_module)
        found: tuple[Ints, dict[Any, tuple[Ints, Ints]]] = self._index[1]
        return found

    # -- state ---------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return everything that it holds, with the states of its random generators: arrays, numbers and text."""
        return {
            "modules": [[name, buffer.get_state()] for name, buffer in self.buffers.items()],
            "running": [[*key, number] for key, number in self._numbers.items()],
            "generator": self._rng.bit_generator.state,
            "seed": self._seed,
            "counts": [self._episodes_added, self._added, self._sampled],
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` gave; what is added and drawn then is the same, bit for bit.

        Raises:
            CheckpointError: it is something else; the buffer is as it was.
        """
        where = f"state of {type(self).__name__}"
        with restoring(where, "modules"):
            require_mapping(where, state)
            buffers = {}
            for name, part in state["modules"]:
                buffers[name] = self._new_buffer(name)
                buffers[name].set_state(part)
            numbers = {(source, id_): check_count(where, number) for source, id_, number in state["running"]}
            episodes, added, sampled = (check_count(where, count) for count in state["counts"])
            seed = check_count(where, state["seed"])
            restore_generator(where, self._rng, state["generator"])
        self.buffers, self._numbers, self._index, self._spaces = buffers, numbers, (None, None), {}
        self._episodes_added, self._added, self._sampled, self._seed = episodes, added, sampled, seed

    # -- counts --------------------------------------------------------------------------------------

    def get_module_ids(self) -> list[Any]:
        """Return the modules whose agents' steps were added."""
        return list(self.buffers)

    def get_num_timesteps(self, module_id: Any = None) -> int:
        """Return the number of steps of a module's agents that it holds; of None: of env steps in which one began."""
        return len(self._env_steps(self.buffers)[0]) if module_id is None else len(self._buffer_of(module_id))

    def get_added_timesteps(self, module_id: Any = None) -> int:
        """Return the number of steps of a module's agents that were ever added; of None: of env steps."""
        return self._added if module_id is None else int(self._buffer_of(module_id).get_added_timesteps())

    def get_sampled_timesteps(self, module_id: Any = None) -> int:
        """Return the number of a module's items that were ever drawn; of None: of items that were asked for."""
        return self._sampled if module_id is None else int(self._buffer_of(module_id).get_sampled_timesteps())

    def get_num_agent_timesteps(self) -> int:
        """Return the number of steps of all agents that it holds."""
        return sum(map(len, self.buffers.values()))

    def get_added_agent_timesteps(self) -> int:
        """Return the number of steps of all agents that were ever added."""
        return sum(buffer.get_added_timesteps() for buffer in self.buffers.values())

    def get_num_episodes(self, module_id: Any = None) -> int:
        """Return the number of a module's agents' episodes of which it holds a step; of None: of multi-agent ones."""
        if module_id is None:
            return len(np.unique(self._env_steps(self.buffers)[0] >> _ENV_STEP))
        return int(self._buffer_of(module_id).lanes.num_episodes)

    def get_num_episodes_evicted(self, module_id: Any = None) -> int:
        """Return the number of such episodes of which it holds nothing any more."""
        added = self._episodes_added if module_id is None else self._buffer_of(module_id).lanes.num_episodes_added
        return int(added) - self.get_num_episodes(module_id)


def _no_steps(expected: str) -> ReplayError:
    do = "add episodes, or ask for shorter parts"
    return ReplayError(f"{_WHERE}.sample", expected=expected, found="none", do=do)


def _multi_agent_episodes(episodes: Any) -> list[MultiAgentEpisode]:
    single = isinstance(episodes, (MultiAgentEpisode, SingleAgentEpisode))
    every: list[Any] = [episodes] if single else list(episodes)
    for episode in every:
        if not isinstance(episode, MultiAgentEpisode):
            raise ReplayError(
                f"{_WHERE}.add",
                expected="multi-agent episodes",
                found=f"a {type(episode).__name__}",
                do="use an EpisodeReplayBuffer for episodes of one agent",
            )
    return every


def _checked_spaces(
    parts: Mapping[Any, list[SingleAgentEpisode]], known: Mapping[Any, list[Any]]
) -> dict[Any, list[Any]]:
    """Return the spaces of each module's agents, observations and actions, with those of further episodes."""
    spaces = dict(known)
    for name, members in parts.items():
        for part in members:
            found = [part.observations.space, part.actions.space]
            before = spaces.setdefault(name, found)
            if not all(a is b or None in (a, b) or a == b for a, b in zip(found, before)):
                raise SpaceError(
                    f"{_WHERE}.add, episode {part.multi_agent_episode_id!r}, agent {part.agent_id!r}",
                    expected=f"the spaces of other agents of module {name!r}: {before[0]} and {before[1]}",
                    found=f"{found[0]} and {found[1]}",
                    do="give the agent a module of its own, or bring them to one space with an env-to-module piece",
                )
    return spaces
