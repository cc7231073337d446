"""Storage rows: one episode, appended to, cut, sliced, joined, read, saved."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.columns import MODEL_OUTPUTS, Array
from benchmarks.equality import check_all_same
from benchmarks.floors.storage import grown
from benchmarks.libraries import ACTIONS, box, library, library_names
from benchmarks.names import FLOOR, RLLIB
from benchmarks.row import Options, Row, Target, Workload, below, timed
from benchmarks.timing import Side

PROTOCOL = 5

Made = Callable[[SimpleNamespace, Options], Side]


def step_columns() -> dict[str, Any]:
    """What belongs to every step besides its observation."""
    return {
        "actions": np.int64(1),
        "rewards": 1.0,
        "action_logp": np.float32(0.1),
        "action_dist_inputs": np.zeros(2, np.float32),
        "vf_preds": np.float32(0.2),
    }


def observations(options: Options, *, frames: bool = False) -> list[Array]:
    """The reset observation and one for each of 1,000 steps: 4 floats, or stacks of 84 x 84 x 4 bytes."""
    steps, rng = 200 if options.quick else 1000, np.random.default_rng(0)
    if frames:
        return list(rng.integers(0, 256, (steps + 1, 84, 84, 4), dtype=np.uint8))
    return list(rng.standard_normal((steps + 1, 4)).astype(np.float32))


def grow(lib: SimpleNamespace, obs: Sequence[Array], space: Any = None) -> Any:
    """An episode of a library, a step at a time."""
    space = space_of(obs) if space is None else space
    episode = lib.SingleAgentEpisode(observation_space=space, action_space=ACTIONS)
    episode.add_env_reset(obs[0], infos={})
    append(episode, obs)
    return episode


def space_of(obs: Sequence[Array]) -> Any:
    """The space of such observations."""
    return box(obs[0].shape, str(obs[0].dtype))


def append(episode: Any, obs: Sequence[Array]) -> None:
    """Add a step for every observation but the first."""
    columns = step_columns()
    action, reward = columns["actions"], columns["rewards"]
    extras = {name: columns[name] for name in MODEL_OUTPUTS}
    for observation in obs[1:]:
        episode.add_env_step(
            observation, action, reward, infos={}, terminated=False, truncated=False, extra_model_outputs=extras
        )


def columns_of(episode: Any) -> dict[str, Any]:
    """Everything an episode holds, as arrays."""
    found = {"obs": episode.get_observations(), "actions": episode.get_actions(), "rewards": episode.get_rewards()}
    found.update({name: episode.get_extra_model_outputs(name) for name in MODEL_OUTPUTS})
    return {
        "length": len(episode),
        "start": episode.t_started,
        **{name: np.asarray(own) for name, own in found.items()},
    }


def columns_without_times(episode: Any) -> dict[str, Any]:
    """As the floor has them."""
    found = columns_of(episode)
    return {name: own for name, own in found.items() if name not in ("length", "start")}


def both(options: Options, make: Made) -> Workload:
    """Both libraries' episodes do the same."""
    sides = {name: partial(_made, make, name, options) for name in library_names(options)}
    return Workload(sides, check_all_same)


def _made(make: Made, name: str, options: Options) -> Side:
    return make(library(name), options)


def grow_and_end(options: Options) -> Workload:
    """S1."""
    obs = observations(options)

    def make(lib: SimpleNamespace, options: Options) -> Side:
        space = space_of(obs)
        return Side(lambda _: grow(lib, obs, space).to_numpy(), single=True, show=columns_without_times)

    own = both(options, make)
    plain = partial(Side, lambda _: grown(obs, step_columns()), single=True)
    return Workload({**own.sides, FLOOR: plain}, check_all_same, len(obs) - 1)


def cut(lib: SimpleNamespace, options: Options) -> Side:
    """The chunk that goes on, with one step of lookback."""
    episode = grow(lib, observations(options))
    return Side(lambda _: episode.cut(len_lookback_buffer=1), show=_start)


def _start(chunk: Any) -> dict[str, Any]:
    lookback = chunk.get_rewards(slice(-1, 0), neg_index_as_lookback=True)
    return {"start": chunk.t_started, "obs": np.asarray(chunk.get_observations(-1)), "lookback": np.asarray(lookback)}


def cut_out(lib: SimpleNamespace, options: Options) -> Side:
    """80 steps out of the middle."""
    episode = grow(lib, observations(options)).to_numpy()
    return Side(lambda _: episode[100:180], show=columns_of)


def join(lib: SimpleNamespace, options: Options) -> Side:
    """A chunk of 1,000 steps behind one of 1,000."""
    obs = observations(options)

    def pair() -> tuple[Any, Any]:
        first = grow(lib, obs)
        second = first.cut()
        append(second, [obs[-1], *obs[1:]])
        return first, second

    def run(given: tuple[Any, Any]) -> Any:
        given[0].concat_episode(given[1])
        return given[0]

    return Side(run, pair, show=columns_of)


def get_state(lib: SimpleNamespace, options: Options) -> Side:
    """The state, shown as the episode that is made of it again."""
    episode = grow(lib, observations(options)).to_numpy()
    return Side(lambda _: episode.get_state(), show=lambda state: columns_of(lib.SingleAgentEpisode.from_state(state)))


def from_state(lib: SimpleNamespace, options: Options) -> Side:
    """An episode from a state."""
    state = grow(lib, observations(options)).to_numpy().get_state()
    return Side(lambda _: lib.SingleAgentEpisode.from_state(state), show=columns_of)


def read_many(lib: SimpleNamespace, options: Options) -> Side:
    """A hundred observations."""
    episode = grow(lib, observations(options)).to_numpy()
    return Side(lambda _: episode.get_observations(slice(50, 150)), show=_named)


def read_one(lib: SimpleNamespace, options: Options) -> Side:
    """The newest observation."""
    episode = grow(lib, observations(options)).to_numpy()
    return Side(lambda _: episode.get_observations(-1), show=_named)


def read_filled(lib: SimpleNamespace, options: Options) -> Side:
    """Nine rewards, of which the first four are from before the start, and filled."""
    episode = grow(lib, observations(options)).to_numpy()
    where = slice(-4, 5)
    return Side(lambda _: episode.get_rewards(where, neg_index_as_lookback=True, fill=0.0), show=_named)


def write_one(lib: SimpleNamespace, options: Options) -> Side:
    """One reward overwritten."""
    episode = grow(lib, observations(options)).to_numpy()

    def run(_: Any) -> Any:
        episode.set_rewards(new_data=2.0, at_indices=3)
        return episode

    return Side(run, show=columns_of)


def _named(values: Any) -> dict[str, Any]:
    return {"values": np.asarray(values)}


def out_of_band(lib: SimpleNamespace, options: Options) -> Side:
    """Pickled with the arrays beside the stream."""
    episode = grow(lib, observations(options, frames=True)).to_numpy()
    return Side(lambda _: _out_of_band(episode), single=True, show=lambda both: columns_of(_joined(both)))


def _out_of_band(given: Any) -> tuple[bytes, list[pickle.PickleBuffer]]:
    buffers: list[pickle.PickleBuffer] = []
    return pickle.dumps(given, protocol=PROTOCOL, buffer_callback=buffers.append), buffers


def _joined(both: tuple[bytes, list[pickle.PickleBuffer]]) -> Any:
    return pickle.loads(both[0], buffers=both[1])


def in_band(lib: SimpleNamespace, options: Options) -> Side:
    """Pickled into one stream."""
    episode = grow(lib, observations(options, frames=True)).to_numpy()
    run = partial(pickle.dumps, protocol=PROTOCOL)
    return Side(lambda _: run(episode), single=True, show=lambda blob: columns_of(pickle.loads(blob)))


def unpickled(lib: SimpleNamespace, options: Options) -> Side:
    """Made of one stream again."""
    blob = pickle.dumps(grow(lib, observations(options, frames=True)).to_numpy(), protocol=PROTOCOL)
    return Side(lambda _: pickle.loads(blob), single=True, show=columns_of)


def plain_pickle(options: Options, make: Made, floor: Callable[[dict[str, Array]], Side]) -> Workload:
    """Both libraries, and the columns pickled as a dict."""
    own = both(options, make)

    def plain() -> Side:
        return floor(grown(observations(options, frames=True), step_columns()))

    return Workload({**own.sides, FLOOR: plain}, partial(check_all_same, but=("length", "start")))


def plain_out_of_band(columns: dict[str, Array]) -> Side:
    """Plain columns beside the stream."""
    return Side(lambda _: _out_of_band(columns), single=True, show=_joined)


def plain_in_band(columns: dict[str, Array]) -> Side:
    """Plain columns in one stream."""
    return Side(lambda _: pickle.dumps(columns, protocol=PROTOCOL), single=True, show=pickle.loads)


def plain_unpickled(columns: dict[str, Array]) -> Side:
    """Plain columns of one stream."""
    blob = pickle.dumps(columns, protocol=PROTOCOL)
    return Side(lambda _: pickle.loads(blob), single=True)


FASTER = Target("faster than RLlib", 1.0, RLLIB, times_faster=True)
NO_SLOWER = Target("no slower than RLlib", 1.0, RLLIB, times_faster=True)

OPERATIONS: dict[str, tuple[str, Made]] = {
    "cut": ("cut an episode of 1,000 steps", cut),
    "slice": ("80 steps out of an episode of 1,000", cut_out),
    "concat": ("join two chunks of 1,000 steps", join),
    "get_state": ("the state of an episode of 1,000 steps", get_state),
    "from_state": ("an episode of 1,000 steps from its state", from_state),
    "get/many": ("read 100 observations", read_many),
    "get/one": ("read the newest observation", read_one),
    "get/fill": ("read 9 rewards, 4 of them filled", read_filled),
    "set/one": ("overwrite one reward", write_one),
}

ROW_MAP = [
    Row(
        "S1",
        "append 1,000 steps to an episode, and to_numpy",
        timed(grow_and_end),
        (NO_SLOWER,),
        missed="each step is checked and copied into its arrays at once, in about 1.2 us; RLlib appends to lists in "
        "0.7 us and makes arrays of them in to_numpy, which costs nothing here. The runner does not record this way",
    ),
    *(
        Row(f"S3/{name}", what, timed(partial(both, make=make)), () if "/" in name else (FASTER,))
        for name, (what, make) in OPERATIONS.items()
    ),
    Row(
        "S4/out-of-band",
        "pickle an episode of 28 MB, arrays beside the stream",
        timed(partial(plain_pickle, make=out_of_band, floor=plain_out_of_band)),
        (below(0.3e-3, "<= 0.3 ms"),),
    ),
    Row(
        "S4/in-band",
        "pickle an episode of 28 MB into one stream",
        timed(partial(plain_pickle, make=in_band, floor=plain_in_band)),
    ),
    Row(
        "S4/loads",
        "unpickle an episode of 28 MB",
        timed(partial(plain_pickle, make=unpickled, floor=plain_unpickled)),
    ),
]
