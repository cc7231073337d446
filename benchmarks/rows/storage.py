"""Storage rows: one episode, appended to, cut, sliced, joined, read, saved; and several agents appended to."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.checks import check_all_same
from benchmarks.libraries import Setup, as_calls, box, grown, library, library_names
from benchmarks.row import FLOOR, RLLIB, Options, Row, Target, Timed, Workload, below, times_faster
from benchmarks.timing import Side
from benchmarks.workloads import MODEL_OUTPUTS, Episode, drawn, of_agents

FASTER = Target("faster than RLlib", 1.0, RLLIB, faster=True)
NO_SLOWER = Target("no slower than RLlib", 1.0, RLLIB, faster=True)
FRAMES = Setup(box((84, 84, 4), "uint8"))

Show = Callable[[Any], Any]


def columns_for(options: Options, setup: Setup) -> Any:
    """Return the columns of 1,000 steps of one agent, or of 200 steps of eight."""
    if setup.agents:
        return of_agents(3, 50 if options.quick else 200)[2]  # one that is cut
    space = setup.space
    return drawn(np.random.default_rng(0), 200 if options.quick else 1000, shape=space.shape, kind=str(space.dtype))


def columns_of(episode: Any) -> dict[str, Any]:
    """Return the columns of an episode."""
    if hasattr(episode, "agent_episodes"):
        return {agent: columns_of(part) for agent, part in episode.agent_episodes.items()}
    columns = {"obs": episode.get_observations(), "actions": episode.get_actions(), "rewards": episode.get_rewards()}
    columns |= {name: episode.get_extra_model_outputs(name) for name in MODEL_OUTPUTS}
    return {name: np.asarray(column) for name, column in columns.items()}


def with_times(episode: Any) -> dict[str, Any]:
    """Return everything that an episode holds."""
    return {"length": len(episode), "start": episode.t_started, **columns_of(episode)}


# ------------------------------------------------------------------------------------------- appending


def append(options: Options, setup: Setup) -> Workload:
    """S1, S2."""
    columns = columns_for(options, setup)
    calls = as_calls(columns)
    by_agent = {agent: as_calls(own) for agent, own in columns.items()} if setup.agents else {}

    def of_library(name: str) -> Side:
        new = partial(setup.empty, library(name))
        if setup.agents:
            return Side(lambda _: grown(new(), *calls), single=True, show=columns_of)
        return Side(lambda _: grown(new(), *calls).to_numpy(), single=True, show=columns_of)

    def in_lists() -> Side:
        if setup.agents:
            return Side(lambda _: {agent: lists(*own) for agent, own in by_agent.items()}, single=True, show=arrays)
        return Side(lambda _: arrays(lists(*calls)), single=True)

    sides = {name: partial(of_library, name) for name in library_names(options)}
    return Workload({**sides, FLOOR: in_lists}, check_all_same)


def lists(reset: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Append every step of an agent to a list per column."""
    columns: dict[str, list[Any]] = {name: [] for name in ("obs", "actions", "rewards", *MODEL_OUTPUTS)}
    columns["obs"].append(reset["observation"])
    for step in steps:
        columns["obs"].append(step["observation"])
        columns["actions"].append(step["action"])
        columns["rewards"].append(step["reward"])
        for name, output in step["extra_model_outputs"].items():
            columns[name].append(output)
    return columns


def arrays(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Convert lists to arrays."""
    return {name: arrays(own) if isinstance(own, Mapping) else np.array(own) for name, own in columns.items()}


# ------------------------------------------------------------------------------------ single operations


def operation(options: Options, name: str) -> Workload:
    """S3: both libraries' episodes do the same."""
    columns = columns_for(options, Setup())
    _, make = OPERATIONS[name]
    sides = {of: lambda of=of: make(library(of), columns) for of in library_names(options)}
    return Workload(sides, check_all_same)


def on_episode(run: Callable[[Any], Any], show: Show = with_times, stored: bool = True) -> Any:
    """Return what makes the side of an operation on an episode, in array form if it is stored."""

    def make(lib: SimpleNamespace, columns: Episode) -> Side:
        episode = Setup().episode(lib, columns)
        episode = episode.to_numpy() if stored else episode
        return Side(lambda _: run(episode), show=show)

    return make


def join(lib: SimpleNamespace, columns: Episode) -> Side:
    """Join a chunk of 1,000 steps to one of 1,000."""
    reset, steps = as_calls(columns)
    setup = Setup()

    def pair() -> tuple[Any, Any]:
        first = grown(setup.empty(lib), reset, steps)
        second = first.cut()
        for step in steps:
            second.add_env_step(**step)
        return first, second

    def run(given: tuple[Any, Any]) -> Any:
        given[0].concat_episode(given[1])
        return given[0]

    return Side(run, pair, show=with_times)


def from_state(lib: SimpleNamespace, columns: Episode) -> Side:
    """Make an episode from a state."""
    state = Setup().episode(lib, columns).to_numpy().get_state()
    return Side(lambda _: lib.SingleAgentEpisode.from_state(state), show=with_times)


def _start(chunk: Any) -> dict[str, Any]:
    lookback = chunk.get_rewards(slice(-1, 0), neg_index_as_lookback=True)
    return {"start": chunk.t_started, "obs": np.asarray(chunk.get_observations(-1)), "lookback": np.asarray(lookback)}


def _overwrite(episode: Any) -> Any:
    episode.set_rewards(new_data=2.0, at_indices=3)
    return episode


def _state(episode: Any) -> Any:
    return type(episode), episode.get_state()


def _of_state(state: Any) -> dict[str, Any]:
    return with_times(state[0].from_state(state[1]))


def _named(values: Any) -> dict[str, Any]:
    return {"values": np.asarray(values)}


OPERATIONS: dict[str, tuple[str, Callable[[SimpleNamespace, Episode], Side]]] = {
    "cut": (
        "cut an episode of 1,000 steps",
        on_episode(lambda episode: episode.cut(len_lookback_buffer=1), _start, stored=False),
    ),
    "slice": ("80 steps out of an episode of 1,000", on_episode(lambda episode: episode[100:180])),
    "concat": ("join two chunks of 1,000 steps", join),
    "get_state": ("the state of an episode of 1,000 steps", on_episode(_state, _of_state)),
    "from_state": ("an episode of 1,000 steps from its state", from_state),
    "get/many": (
        "read 100 observations",
        on_episode(lambda episode: episode.get_observations(slice(50, 150)), _named),
    ),
    "get/one": ("read the newest observation", on_episode(lambda episode: episode.get_observations(-1), _named)),
    "get/fill": (
        "read 9 rewards, 4 of them filled",
        on_episode(
            lambda episode: episode.get_rewards(slice(-4, 5), neg_index_as_lookback=True, fill=0.0),
            _named,
        ),
    ),
    "set/one": ("overwrite one reward", on_episode(_overwrite)),
}


# ------------------------------------------------------------------------------------------- pickling


def _dumps(given: Any) -> bytes:
    return pickle.dumps(given, protocol=5)


def _dumps_out_of_band(given: Any) -> tuple[bytes, list[pickle.PickleBuffer]]:
    buffers: list[pickle.PickleBuffer] = []
    return pickle.dumps(given, protocol=5, buffer_callback=buffers.append), buffers


def _loads_out_of_band(both: tuple[bytes, list[pickle.PickleBuffer]]) -> Any:
    return pickle.loads(both[0], buffers=both[1])


PICKLING: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "out-of-band": (lambda stored: stored, _dumps_out_of_band, _loads_out_of_band),
    "in-band": (lambda stored: stored, _dumps, pickle.loads),
    "loads": (_dumps, pickle.loads, lambda loaded: loaded),
}


def pickled(options: Options, kind: str) -> Workload:
    """S4: both libraries, and the columns as a dict of arrays."""
    columns = columns_for(options, FRAMES)
    before, run, after = PICKLING[kind]

    def side(name: str) -> Side:
        plain = name == FLOOR
        stored = {"obs": columns.obs, **columns.steps} if plain else FRAMES.episode(library(name), columns).to_numpy()
        given = before(stored)
        return Side(lambda _: run(given), single=True, show=lambda out: after(out) if plain else columns_of(after(out)))

    return Workload({name: partial(side, name) for name in (*library_names(options), FLOOR)}, check_all_same)


# ----------------------------------------------------------------------------------------------- rows

ROWS = [
    Row(
        "S1",
        "append 1,000 steps to an episode, and to_numpy",
        Timed(partial(append, setup=Setup())),
        (NO_SLOWER,),
        missed="each step is checked and copied into its arrays at once, in about 1.2 us; RLlib appends to lists in "
        "0.7 us and makes arrays of them in to_numpy, which costs nothing here. The runner does not record this way",
    ),
    Row(
        "S2",
        "append 200 steps of 8 agents to an episode",
        Timed(partial(append, setup=Setup(agents=True))),
        (times_faster(2),),
        missed="measured alone it is 2.1 x faster, in a process that has run the E4 rows before 1.8 x",
    ),
    *(
        Row(f"S3/{name}", what, Timed(partial(operation, name=name)), () if "/" in name else (FASTER,))
        for name, (what, _) in OPERATIONS.items()
    ),
    *(
        Row(f"S4/{kind}", what, Timed(partial(pickled, kind=kind)), targets)
        for kind, what, targets in (
            ("out-of-band", "pickle an episode of 28 MB, arrays beside the stream", (below(0.3e-3, "<= 0.3 ms"),)),
            ("in-band", "pickle an episode of 28 MB into one stream", ()),
            ("loads", "unpickle an episode of 28 MB", ()),
        )
    ),
]
