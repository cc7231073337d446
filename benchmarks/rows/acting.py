"""Acting rows: a vector step of N environments through both acting pipelines, without network and environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.checks import DifferentValuesError, check_acting
from benchmarks.floors import acting as floor
from benchmarks.floors.learner import FRAMES, push
from benchmarks.libraries import MODULE, Setup, box, library, library_names, recorder_of, sent
from benchmarks.row import FLOOR, LEANEST, OURS, WITHOUT, Options, Row, Timed, Workload, at_most
from benchmarks.timing import Side
from benchmarks.workloads import AGENTS, Array, Order, drawn, in_modules, of_agents, side_by_side

STEPS = 6
BOUNDS = {1: 3, 16: 2.5, 128: 1.7, 1024: 1.4}
BOUNDS_OF_AGENTS = {1: 4, 16: 3, 256: 3}
ORDER = in_modules(AGENTS)


@dataclass(frozen=True)
class Task:
    """What there is to do.

    Args:
        num_envs: N.
        state: Size of the two recurrent states; 0: none.
        frames: True if observations are frames of 84 x 84 bytes, to be stacked by four; else they are 4 floats.
        agents: True for eight agents with three modules.
    """

    num_envs: int
    state: int = 0
    frames: bool = False
    agents: bool = False

    @property
    def setup(self) -> Setup:
        """Spaces, network and episodes."""
        return Setup(box((84, 84, 1), "uint8") if self.frames else box((4,)), self.state, self.agents)

    def running(self) -> list[Any]:
        """Return the columns of one episode of six steps that goes on, per environment."""
        if self.agents:
            return of_agents(3 * self.num_envs, STEPS)[2::3]  # those that are cut
        rng, space = np.random.default_rng(0), self.setup.space
        kind = str(space.dtype)
        return [drawn(rng, STEPS, shape=space.shape, kind=kind, state=self.state) for _ in range(self.num_envs)]

    def outputs(self) -> dict[str, dict[str, Any]]:
        """Return what each module gives in this step."""
        import torch

        generator = torch.Generator().manual_seed(0)
        outputs: dict[str, dict[str, Any]] = {}
        for module, agents in (ORDER if self.agents else {MODULE: ["agent"]}).items():
            lead = (self.num_envs * len(agents), *([1] if self.state else []))
            outputs[module] = {"action_dist_inputs": torch.randn(*lead, 2, generator=generator)}
            if self.state:
                states = {name: torch.randn(lead[0], self.state, generator=generator) for name in ("h", "c")}
                outputs[module]["state_out"] = states
        return outputs

    def logits(self) -> dict[str, Any]:
        """Return each module's logits, a tensor [rows, 2]."""
        return {module: output["action_dist_inputs"].reshape(-1, 2) for module, output in self.outputs().items()}


# ------------------------------------------------------------------------------------- the libraries


def as_list(lib: SimpleNamespace, task: Task) -> Any:
    """Return the running episodes as a list."""
    return [task.setup.episode(lib, columns) for columns in task.running()]


def as_sent(lib: SimpleNamespace, task: Task) -> Any:
    """Return a list of episodes that come from other processes, with spaces of their own for each agent."""
    return sent([task.setup.episode(lib, columns, shared=False) for columns in task.running()])()


def as_block(lib: SimpleNamespace, task: Task) -> Any:
    """Return the running episodes as the runner has them."""
    return recorder_of(side_by_side(task.running()), task.setup.space).episodes


Stored = Callable[[SimpleNamespace, Task], Any]


def library_side(name: str, task: Task, stored: Stored = as_list, identity: bool = False) -> Side:
    """Return a library's default acting pipelines.

    Args:
        name: Of the library.
        task: What there is to do.
        stored: Makes the running episodes.
        identity: Put a user's piece that declares and does nothing first.
    """
    lib, setup = library(name), task.setup
    settings = setup.config(lib)
    if task.frames:
        settings = settings.env_runners(
            env_to_module_connector=lambda env, spaces, device=None: lib.FrameStacking(num_frames=FRAMES)
        )
    spaces = dict.fromkeys(("__env_single__", "__env__"), setup.spaces())
    to_module = settings.build_env_to_module_connector(env=None, spaces=spaces)
    to_env = settings.build_module_to_env_connector(env=None, spaces=spaces)
    if identity:
        to_module.prepend(lib.Identity())
    module = setup.modules(lib) if task.agents else setup.spec(lib).build()
    episodes, outputs = stored(lib, task), task.outputs()
    call = {"rl_module": module, "episodes": episodes, "explore": True}
    order = in_modules(list(episodes[0].get_agents_that_stepped())) if task.agents else ORDER

    def run(_: Any) -> tuple[Any, Any]:
        shared: dict[str, Any] = {}
        batch = to_module(batch={}, shared_data=shared, **call)
        given = {name: dict(outputs[name]) for name in batch} if task.agents else dict(outputs[MODULE])
        return batch, to_env(batch=given, shared_data=shared, **call)

    return Side(run, show=partial(_by_module, order=order) if task.agents else _one_module)


def _one_module(step: tuple[Any, Any]) -> dict[str, Any]:
    to_module, to_env = step
    return {"to_module": {MODULE: to_module}, "to_env": {MODULE: {name: _column(own) for name, own in to_env.items()}}}


def _column(column: Any) -> Any:
    """Return a list of one row per environment as an array."""
    if isinstance(column, list) and isinstance(column[0], Mapping):
        column = {key: np.stack([row[key] for row in column]) for key in column[0]}
    return column if isinstance(column, Mapping) else np.asarray(column)


def _by_module(step: tuple[Any, Any], order: Order) -> dict[str, Any]:
    """Return the modules' batches, agents in the order of `ORDER`, and what the environments get as their columns."""
    to_module, to_env = step
    envs = len(to_env["actions"])
    return {
        "to_module": {module: in_order(columns, module, order, envs) for module, columns in to_module.items()},
        "to_env": {
            module: {name: _of_agents(column, agents) for name, column in to_env.items()}
            for module, agents in order.items()
        },
    }


def _of_agents(column: Sequence[Mapping[str, Any]], agents: Sequence[str]) -> Array:
    if any(row.keys() != set(AGENTS) for row in column):
        raise DifferentValuesError("not one row for each agent of each environment")
    return np.asarray([row[agent] for row in column for agent in agents])


def in_order(columns: Mapping[str, Any], module: str, order: Order, episodes: int) -> dict[str, Any]:
    """Return a module's columns with the agents of each episode in the order of `ORDER`; each has as many rows."""
    indices = [order[module].index(agent) for agent in ORDER[module]]

    def ordered(column: Array) -> Array:
        return column.reshape(episodes, len(indices), -1, *column.shape[1:])[:, indices].reshape(column.shape)

    return {name: ordered(np.asarray(column)) for name, column in columns.items()}


# --------------------------------------------------------------------------------------- the floors


def in_numpy(by: Callable[[np.random.Generator], floor.Sample] = floor.by_inversion) -> floor.Sample:
    """Return what draws actions in NumPy."""
    return by(np.random.Generator(np.random.SFC64(0)))


def floor_side(task: Task, gather: Callable[[Any], Array], sample: floor.Sample | None = None) -> Side:
    """Return the floor on plain observations and states.

    Args:
        task: What there is to do.
        gather: Makes an array [N, ...] of N rows; `numpy.asarray` if they are one array already.
        sample: Makes actions; in NumPy if None.
    """
    running, output, draw = task.running(), task.outputs()[MODULE], sample or in_numpy()
    rows = np.stack if gather is np.asarray else list
    observations: Any = rows([columns.obs[-1] for columns in running])
    states: Any = {name: rows([columns.state[name][-1] for columns in running]) for name in running[0].state}
    logits = output["action_dist_inputs"]
    if not task.state:
        return Side(lambda _: floor.step(gather(observations), logits, draw), show=_one_module)

    def run(_: Any) -> Any:
        into = {name: gather(column) for name, column in states.items()}
        return floor.recurrent_step(gather(observations), into, logits, output["state_out"], draw)

    return Side(run, show=_one_module)


def stack_first_side(task: Task) -> Side:
    """Return the floor of stacked frames with the stack's axis first, from the last four frames."""
    frames = [list(columns.obs[-FRAMES:]) for columns in task.running()]
    (logits,), draw = task.logits().values(), in_numpy()
    return Side(lambda _: floor.step(floor.stack_frames_first(frames), logits, draw), show=_one_module)


def kept_stacks_side(task: Task) -> Side:
    """Return the floor that keeps the stacks from step to step, as packed words, and puts the newest frames on them."""
    history = np.stack([columns.obs[-FRAMES:, ..., 0] for columns in task.running()], 1)
    words = [np.zeros((84, 84), np.uint32) for _ in range(task.num_envs)]
    top = np.empty((84, 84), np.uint32)
    for frames in history[:-1]:
        for word, frame in zip(words, frames):
            push(word, frame, word, top)
    newest, (logits,), draw = history[-1], task.logits().values(), in_numpy()

    def run(_: Any) -> Any:
        out = np.empty((task.num_envs, 84, 84), np.uint32)
        for word, frame, place in zip(words, newest, out):
            push(word, frame, place, top)
        return floor.step(out.view(np.uint8).reshape(task.num_envs, 84, 84, FRAMES), logits, draw)

    return Side(run, show=_one_module)


def floor_of_agents_side(task: Task, by: Callable[[np.random.Generator], floor.Sample]) -> Side:
    """Return the floor of several agents."""
    logits, sample = task.logits(), in_numpy(by)
    observations = [{agent: columns.obs[-1] for agent, columns in each.items()} for each in task.running()]
    return Side(lambda _: floor.vector_step(observations, logits, ORDER, sample), show=_floor_by_module)


def _floor_by_module(step: tuple[Any, Any]) -> dict[str, Any]:
    to_module, to_env = step
    logits = {module: iter(column.numpy()) for module, column in to_env["action_dist_inputs"].items()}
    inputs = [
        {agent: next(logits[module]) for module, agents in ORDER.items() for agent in agents} for _ in to_env["actions"]
    ]
    return _by_module((to_module, {**to_env, "action_dist_inputs": inputs}), ORDER)


# ----------------------------------------------------------------------------------------- the rows


def workload(options: Options, task: Task, kind: str = "") -> Workload:
    """Return the sides of a row.

    Args:
        options: How to measure.
        task: What there is to do.
        kind: Last part of the row's name: "", "vector", "identity" or "pickled".
    """
    how: dict[str, Any] = {"identity": True} if kind == "identity" else {}
    how |= {"stored": as_sent} if kind == "pickled" else {"stored": as_block} if kind == "vector" else {}
    names = (OURS,) if kind == "vector" else library_names(options)
    sides: dict[str, Callable[[], Side]] = {name: partial(library_side, name, task, **how) for name in names}
    if task.agents:
        sides[FLOOR] = partial(floor_of_agents_side, task, floor.by_usual_inversion)
        sides[LEANEST] = partial(floor_of_agents_side, task, floor.by_inversion)
    elif task.frames:
        sides[FLOOR] = partial(kept_stacks_side, task)
        sides[f"stack-first {FLOOR}"] = partial(stack_first_side, task)
    elif kind == "vector":
        sides[FLOOR] = partial(floor_side, task, np.asarray, floor.by_multinomial)
        sides[LEANEST] = partial(floor_side, task, np.asarray)
    else:
        sides[FLOOR] = partial(floor_side, task, np.stack)
        if kind == "identity":
            sides[WITHOUT] = partial(library_side, OURS, task)
        else:
            sides[LEANEST] = partial(floor_side, task, floor.concatenate)
    return Workload(sides, partial(check_acting, task.logits()))


_LIST = (
    "eleven pieces and two pipelines take about 30 us of Python and torch calls per step, however many rows there are; "
    "and each of many episodes is asked for its newest rows, which the runner's block is not (VectorEpisodes)"
)
_AGENTS = (
    "what is done once per module and piece, however many rows there are, takes most of the time of a single "
    "environment"
)


def _row(name: str, task: Task, what: str, bound: float | None, missed: str = "", against: str = FLOOR) -> Row:
    kind = "/".join(name.split("/")[2:])
    targets = () if bound is None else (at_most(bound, against),)
    return Row(name, f"both acting pipelines, {what}", Timed(partial(workload, task=task, kind=kind)), targets, missed)


def _rows() -> list[Row]:
    rows = []
    for name, state, kind in (("E1", 0, "stateless"), ("E2", 64, "LSTM of 64")):
        for count, bound in BOUNDS.items():
            task, what = Task(count, state), f"{kind}, N = {count}"
            of_block = 2 if count >= 128 else None
            rows.append(_row(f"{name}/{count}", task, f"{what}: a list of episodes", bound, _LIST))
            rows.append(_row(f"{name}/{count}/vector", task, f"{what}: VectorEpisodes", of_block))
            if not state:
                piece = f"{what}: a user's piece in front"
                rows.append(_row(f"{name}/{count}/identity", task, piece, 1.3, against=WITHOUT))
    for count in (8, 64):
        rows.append(_row(f"E3/{count}", Task(count, frames=True), f"stacks of 4 frames, N = {count}", 1.5))
    for count, bound in BOUNDS_OF_AGENTS.items():
        task, what = Task(count, agents=True), f"8 agents, 3 modules, N = {count}"
        rows.append(_row(f"E4/{count}", task, what, bound, _AGENTS))
        rows.append(_row(f"E4/{count}/pickled", task, f"{what}; each episode from another process", bound, _AGENTS))
    return rows


ROWS = _rows()
