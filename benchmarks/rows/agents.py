"""Rows with eight agents in each environment and three modules: both ways of pipelines, and a growing episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks import several_agents as several
from benchmarks.columns import Array
from benchmarks.equality import DifferentValuesError, check_all_same, check_same
from benchmarks.floors import agents as floor
from benchmarks.floors.vector_step import Sample, by_inversion, by_multinomial
from benchmarks.libraries import library, library_names, rebuilt, sent
from benchmarks.names import FLOOR, LEANEST, OURS
from benchmarks.row import Options, Row, Workload, at_most, timed, times_faster
from benchmarks.rows.storage import both, columns_without_times
from benchmarks.several_agents import AGENTS, AGENTS_OF, MODULES
from benchmarks.timing import Side

EPISODES, STEPS = 32, 200
RUNNING = 6
BOUNDS = {1: 4, 16: 3, 256: 3}
KINDS = {"": "", "/pickled": "; each episode from another process"}

# ----------------------------------------------------------------------------------------- learner


def learner_side(name: str, columns: Sequence[several.ByAgent], pickled: bool = False) -> Side:
    """A library's default learner pipeline on these episodes, made again for every call.

    Args:
        name: Of the library.
        columns: The episodes' data.
        pickled: Whether each episode comes from another process, with spaces of its own for each agent.
    """
    import torch

    lib = library(name)
    pipeline = several.config(lib).build_learner_connector(*several.spaces(), device=torch.device("cpu"))
    modules = several.modules(lib)
    made = [several.episode_of(lib, own, shared=not pickled).to_numpy() for own in columns]
    fresh = sent(made) if pickled else rebuilt(made)
    order = several.in_modules(fresh()[0].agent_ids)

    def show(batch: Mapping[str, Any]) -> dict[str, Any]:
        return {module: _in_order(own, module, order, len(columns)) for module, own in batch.items()}

    return Side(lambda given: pipeline(rl_module=modules, batch={}, episodes=given, shared_data={}), fresh, show=show)


def _in_order(columns: Mapping[str, Any], module: str, order: several.Order, episodes: int) -> dict[str, Any]:
    """A module's columns with each episode's agents in our order; they have as many rows each."""
    indices = [order[module].index(agent) for agent in AGENTS_OF[module]]
    parts = {name: np.asarray(own) for name, own in columns.items()}
    shapes = {name: (episodes, len(indices), -1, *own.shape[1:]) for name, own in parts.items()}
    return {name: own.reshape(shapes[name])[:, indices].reshape(own.shape) for name, own in parts.items()}


def train_batches(options: Options, pickled: bool = False) -> Workload:
    """L4."""
    columns = several.columns_by_agent(4 if options.quick else EPISODES, 50 if options.quick else STEPS)
    sides = {name: partial(learner_side, name, columns, pickled) for name in library_names(options)}
    rows = [(several.module_of(agent), own) for each in columns for agent, own in each.items()]
    sides[FLOOR] = partial(Side, lambda _: floor.by_module(rows, MODULES), single=True)
    return Workload(sides, check_all_same, sum(len(own) for _, own in rows))


# ------------------------------------------------------------------------------------------ acting


def running(num_envs: int) -> list[several.ByAgent]:
    """The columns of one running episode per environment."""
    columns = several.columns_by_agent(3 * num_envs, RUNNING)
    return columns[2::3]  # those that are cut


def logits(num_envs: int) -> dict[str, Any]:
    """What each module gives in this step."""
    import torch

    generator = torch.Generator().manual_seed(0)
    return {module: torch.randn(num_envs * len(own), 2, generator=generator) for module, own in AGENTS_OF.items()}


def acting_side(name: str, num_envs: int, pickled: bool = False) -> Side:
    """A library's default acting pipelines; see `learner_side`."""
    lib = library(name)
    settings = several.config(lib)
    spaces = dict.fromkeys(("__env_single__", "__env__"), several.spaces())
    to_module = settings.build_env_to_module_connector(env=None, spaces=spaces)
    to_env = settings.build_module_to_env_connector(env=None, spaces=spaces)
    modules, given = several.modules(lib), logits(num_envs)
    episodes = [several.episode_of(lib, own, shared=not pickled) for own in running(num_envs)]
    episodes = sent(episodes)() if pickled else episodes
    call = {"rl_module": modules, "episodes": episodes}
    order = several.in_modules(episodes[0].get_agents_that_stepped())

    def run(_: Any) -> tuple[Any, Any]:
        shared: dict[str, Any] = {}
        batch = to_module(batch={}, explore=True, shared_data=shared, **call)
        outputs = {module: {"action_dist_inputs": given[module]} for module in batch}
        return batch, to_env(batch=outputs, explore=True, shared_data=shared, **call)

    return Side(run, show=partial(_shown, order=order))


def floor_side(num_envs: int, sample: Sample) -> Side:
    """The floor on plain observations."""
    given = logits(num_envs)
    observations = [{agent: own.obs[-1] for agent, own in each.items()} for each in running(num_envs)]

    def show(done: dict[str, Any]) -> dict[str, Any]:
        rows = {module: iter(own.numpy()) for module, own in done["logits"].items()}
        inputs = [
            {agent: next(rows[module]) for module, own in AGENTS_OF.items() for agent in own} for _ in observations
        ]
        columns = {name: done[name] for name in ("actions", "action_logp")}
        to_env = {**columns, "actions_for_env": done["actions"], "action_dist_inputs": inputs}
        return _shown(({module: {"obs": own} for module, own in done["to_module"].items()}, to_env), AGENTS_OF)

    return Side(lambda _: floor.vector_step(observations, given, AGENTS_OF, sample), show=show)


def _shown(done: tuple[Mapping[str, Any], Mapping[str, Any]], order: several.Order) -> dict[str, Any]:
    """The modules' batches, agents in our order; and what the environments get, in the order of the modules' rows."""
    to_module, to_env = done
    envs = len(to_env["actions"])
    return {
        "to_module": {module: _in_order(own, module, order, envs) for module, own in to_module.items()},
        "to_env": {
            module: {name: _rows(column, own) for name, column in to_env.items()} for module, own in order.items()
        },
    }


def _rows(column: Sequence[Mapping[str, Any]], agents: Sequence[str]) -> Array:
    if any(row.keys() != set(AGENTS) for row in column):
        raise DifferentValuesError("not one row for each agent of each environment")
    return np.asarray([row[agent] for row in column for agent in agents])


DRAWN = ("actions", "actions_for_env", "action_logp")


def check_acting(num_envs: int, outputs: Mapping[str, Any]) -> None:
    """Everything is the same but the actions, which are drawn: their log-probabilities are what the networks say."""
    given = {module: own.double().log_softmax(-1).numpy() for module, own in logits(num_envs).items()}
    for name, output in outputs.items():
        check_same(outputs[OURS]["to_module"], output["to_module"], whose=name)
        for module, step in output["to_env"].items():
            check_same(outputs[OURS]["to_env"][module], step, whose=name, but=DRAWN)
            actions, rows = step["actions"].astype(np.int64), given[module]
            if actions.shape != (len(rows),) or not np.array_equal(actions, step["actions_for_env"]):
                raise DifferentValuesError(f"{name}, {module}: actions {actions.shape}, or others for the environment")
            if not np.abs(rows[np.arange(len(rows)), actions] - step["action_logp"]).max() < 1e-5:
                raise DifferentValuesError(f"{name}, {module}: log-probabilities of other actions")


def vector_step(options: Options, num_envs: int, pickled: bool = False) -> Workload:
    """E4."""
    sides = {name: partial(acting_side, name, num_envs, pickled) for name in library_names(options)}
    generator = np.random.Generator(np.random.SFC64(0))
    sides[f"{FLOOR}: numpy"] = partial(floor_side, num_envs, floor.by_inversion(generator))
    sides[f"{FLOOR}: torch"] = partial(floor_side, num_envs, by_multinomial)
    sides[LEANEST] = partial(floor_side, num_envs, by_inversion(generator))
    return Workload(sides, partial(check_acting, num_envs), num_envs * len(AGENTS))


# ----------------------------------------------------------------------------------------- storage


def growing(options: Options) -> Workload:
    """S2."""
    (columns,) = several.columns_by_agent(3, 50 if options.quick else STEPS)[2:]
    first, steps = several.reset_observations(columns), several.env_steps(columns)

    def make(lib: SimpleNamespace, options: Options) -> Side:
        given = several.spaces()
        return Side(lambda _: several.grown(lib, given, first, steps), single=True, show=_columns_of_agents)

    own = both(options, make)
    plain = partial(Side, lambda _: floor.grown(first, steps), single=True, show=_arrays)
    return Workload({**own.sides, FLOOR: plain}, check_all_same, len(steps))


def _columns_of_agents(episode: Any) -> dict[str, Any]:
    return {agent: columns_without_times(episode.agent_episodes[agent]) for agent in AGENTS}


def _arrays(lists: Mapping[str, Mapping[str, list[Any]]]) -> dict[str, Any]:
    return {agent: {name: np.asarray(own) for name, own in each.items()} for agent, each in lists.items()}


ROW_MAP = [
    Row(
        "S2",
        "append 200 steps of 8 agents to an episode",
        timed(growing),
        (times_faster(2),),
        missed="measured alone it is 2.1 x faster, in a process that has run the E4 rows before 1.8 x",
    ),
    *(
        Row(
            f"L4{kind}",
            f"learner, 8 agents, 3 modules: 32 episodes of 200 steps{what}",
            timed(partial(train_batches, pickled=bool(kind))),
            (at_most(2),),
            missed="a part of an episode is looked at once for each column: 256 of them, six columns each",
        )
        for kind, what in KINDS.items()
    ),
    *(
        Row(
            f"E4/{count}{kind}",
            f"both acting pipelines, 8 agents, 3 modules, N = {count}{what}",
            timed(partial(vector_step, num_envs=count, pickled=bool(kind))),
            (at_most(bound),),
            missed="what is done once per module and piece, however many rows there are, takes most of the time of a "
            "single environment",
        )
        for count, bound in BOUNDS.items()
        for kind, what in KINDS.items()
    ),
]
