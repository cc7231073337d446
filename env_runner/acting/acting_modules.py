"""From a batch to actions: the modules' forward passes, the module-to-env pipeline, random legal actions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from epibatch.core import NUM_ENV_STEPS, ROW_MAP
from epibatch.core.columns import Columns, add_column_hint
from epibatch.core.errors import ColumnError, ConfigError, RunnerArgumentError, add_context
from epibatch.core.rl_module.module_facts import describe_batch
from epibatch.core.spaces import get_base_struct_from_space, random_legal_actions
from epibatch.core.structs import flatten, flatten_like, paths_of, unflatten

from ...connectors.authoring.column_transform import actions_for_env
from ...episodes.arrays import owned
from ...episodes.multi_agent_episode import MultiAgentEpisode

_MISSING = (
    "Read what is known in training alone, as views of this step or later ones are, in _forward_train only. An "
    "env-to-module piece adds columns, or a view of earlier steps, which modules declare on the class: pipelines are "
    "made before the module."
)


def act(
    module: Any,
    module_to_env: Any,
    batch: dict[str, Any],
    episodes: Sequence[Any],
    *,
    explore: bool,
    t: int,
    shared_data: dict[str, Any],
    envs: Sequence[int] | None = None,
    **call: Any,
) -> dict[str, Any]:
    """Return the columns of one vector step: actions and the module's other outputs.

    Args:
        module: The module that acts.
        module_to_env: The pipeline after it.
        batch: The output of the env-to-module pipeline.
        episodes: The running episodes, one per environment.
        explore: Whether actions explore.
        t: The env steps taken so far, for the module and its pieces.
        shared_data: What the pieces of both pipelines share.
        envs: The numbers of their environments; None: all from 0.
        **call: `metrics` for the pipeline.

    Raises:
        ColumnError: no actions, or not one per environment; actions of the module's own that are not in its space; or
            NaN among the module's outputs. The error names the observations instead if they have NaN already.
    """
    shared_data[NUM_ENV_STEPS] = t
    outputs = forward(module, batch, explore=explore, t=t)
    if Columns.ACTIONS in outputs:
        outputs = with_members(module, outputs)
    columns: dict[str, Any]
    try:
        columns = module_to_env(
            rl_module=module, batch=outputs, episodes=episodes, explore=explore, shared_data=shared_data, **call
        )
    except ColumnError as error:
        numbers = range(len(episodes)) if envs is None else envs
        newest = ((f"environment {env}", episode.get_observations(-1)) for env, episode in zip(numbers, episodes))
        rows = "environment" if envs is None else f"row, of environments {envs},"
        raise_if_nan_observations(error, newest, [(rows, batch.get(Columns.OBS))])
        raise
    check_actions(columns, len(episodes))
    return columns


def raise_if_nan_observations(
    error: ColumnError, newest: Iterable[tuple[str, Any]], batches: Iterable[tuple[str, Any]]
) -> None:
    """Raise an error about an observation that is NaN if it caused the NaN in the module's outputs.

    Args:
        error: The error about the module's outputs.
        newest: Pairs of the observation's owner, and the observation as the environment gave it.
        batches: Pairs of the owner of a row, and the observations as a module got them. Pieces may have made the NaN.

    Raises:
        ColumnError: there is such an observation.
    """
    if "NaN" not in str(error):
        return
    for whose, row in newest:
        found = _first_nan(row)
        if found is not None:
            raise _nan(f"observation{found[0]} of {whose}", "environment") from error
    for whose, column in batches:
        found = _first_nan(column)
        if found is not None:
            name = f"column {Columns.OBS!r}, part{found[0]} of {whose} {found[1]}"
            raise _nan(name, "env-to-module piece that makes it of the observations") from error


def _nan(name: str, source: str) -> ColumnError:
    return ColumnError(
        f"{name}, of which the module made its outputs",
        expected="numbers",
        found="NaN",
        do=f"correct the {source}, or let a piece replace NaN",
    )


def _first_nan(struct: Any) -> tuple[str, int] | None:
    """Return the place of the first NaN in observations: the path of the part, and the row."""
    leaves, form = flatten(struct)
    for path, leaf in zip(paths_of(form), leaves):
        array = np.asarray(leaf.detach().cpu() if hasattr(leaf, "detach") else leaf)
        if array.dtype.kind == "f" and np.isnan(array).any():
            return f"{path and f' {path}'}", int(np.argwhere(np.isnan(array)).flat[0]) if array.ndim else 0
    return None


def forward(module: Any, batch: dict[str, Any], *, explore: bool, t: int) -> dict[str, Any]:
    """Return the module's outputs; an error in it names the module and the input shapes.

    Raises:
        ColumnError: the module returned something other than a dict.
        ConfigError: the module's method does not take the number of steps.
        KeyError: the module reads a column that the batch to act on does not have; a note lists those that it has.
    """
    try:
        outputs: dict[str, Any]
        outputs = module.forward_exploration(batch, t=t) if explore else module.forward_inference(batch)
    except Exception as error:
        if type(error) is TypeError and str(error).endswith("unexpected keyword argument 't'"):
            raise ConfigError(
                f"{type(module).__name__}'s forward pass",
                expected="a method _forward that also takes keywords, such as t, the number of steps so far",
                found=str(error),
                do="write def _forward(self, batch, **kwargs)",
            ) from error
        add_column_hint(error, batch, _MISSING)
        add_context(error, f"in {type(module).__name__}'s forward pass, with {describe_batch(batch, error)}:")
        raise
    if type(outputs) is not dict and not isinstance(outputs, Mapping):
        raise ColumnError(
            f"outputs of {type(module).__name__}'s forward pass",
            expected="a dict of columns, such as {'action_dist_inputs': tensor}",
            found=type(outputs).__name__,
            do="return a dict from _forward",
        )
    return outputs


def name_undeclared_change(error: Exception, pipeline: Any, episodes: Sequence[Any], module: Any) -> None:
    """Put the piece that changes the shape of observations, and not their space, before a module's error.

    Args:
        error: What acting raised.
        pipeline: The env-to-module pipeline.
        episodes: The running episodes.
        module: The module that acts.
    """
    with suppress(Exception), warnings.catch_warnings():  # the error itself is what counts
        warnings.simplefilter("ignore")
        pieces = {step.name: step.piece for step in pipeline.plan().steps}
        for step in pipeline.trace(episodes, module).pieces:
            piece = pieces[step.piece]
            if is_of_user(piece) and piece.observation_space == piece.input_observation_space and _changes_shape(step):
                what = f"piece {step.piece!r} ({type(piece).__name__}) changes the shape of observations"
                do = "write its recompute_output_observation_space, which returns the space of what it gives"
                add_context(error, f"{what}, and declares no other space: {do};")
                return


def is_of_user(piece: Any) -> bool:
    """True if a piece's class is none of epibatch's own."""
    return not type(piece).__module__.startswith("epibatch.")


def _changes_shape(step: Any) -> bool:
    """True if the traced step of a piece gave observations of another shape than it got."""
    for name, after in step.after.items():
        parts = name.replace("episode.observations", Columns.OBS).split("/")
        before = step.before.get(name) or step.before.get(name.replace(Columns.OBS, "episode.observations"))
        shapes = [column.shape[1:] for column in (before, after) if column is not None and column.shape]
        if Columns.OBS in parts[:2] and len(shapes) == 2 and shapes[0] != shapes[1]:
            return True
    return False


def check_actions(columns: dict[str, Any], num_envs: int) -> None:
    """Refuse actions that are missing or not one per environment, before an environment sees them.

    Raises:
        ColumnError: they are.
    """
    actions = columns.get(Columns.ACTIONS)
    if type(actions) is np.ndarray and actions.ndim and len(actions) == num_envs:
        return
    found: Any = "none"
    if Columns.ACTIONS in columns:
        found = [len(leaf) if np.ndim(leaf) else "one" for leaf in flatten(columns[Columns.ACTIONS])[0]]
        if found.count(num_envs) == len(found):
            return
    raise ColumnError(
        "what the module-to-env pipeline left",
        expected=f"a column {Columns.ACTIONS!r} with {num_envs} rows, one per environment",
        found=str(found),
        do="keep the column in every module-to-env piece",
    )


def with_members(module: Any, outputs: Any) -> Any:
    """Return the outputs after checking the module's own actions: members of discrete spaces, no NaN for others.

    Whole numbers of another type are cast to the type of a discrete space, and actions of a Box get its shape.

    Raises:
        ColumnError: an action is not a member, is NaN or has another shape.
    """
    space = getattr(module, "action_space", None)
    if space is None:
        return outputs
    spaces, form = flatten(get_base_struct_from_space(space))
    try:
        actions = flatten_like(form, outputs[Columns.ACTIONS])
    except ColumnError:
        return outputs  # the pipeline says how they must be nested
    leaves = [_members(leaf, leaf_space, type(module).__name__) for leaf, leaf_space in zip(actions, spaces)]
    return {**outputs, Columns.ACTIONS: unflatten(form, leaves)}


def _members(actions: Any, space: Any, name: str) -> Any:
    low: Any = -np.inf
    high: Any = np.inf
    if isinstance(space, gym.spaces.Discrete):
        low = int(space.start)
        high = low + int(space.n) - 1
    elif isinstance(space, gym.spaces.MultiDiscrete):
        starts: Any = space.start
        sizes: Any = space.nvec
        low, high = starts, starts + sizes - 1
    elif isinstance(space, gym.spaces.MultiBinary):
        low, high = 0, 1
    array = np.asarray(actions.detach().cpu() if hasattr(actions, "detach") else actions)
    where, is_box = f"column {Columns.ACTIONS!r} of {name}'s outputs", isinstance(space, gym.spaces.Box)
    if is_box and array.shape[max(1, array.ndim - len(space.shape)) :] != space.shape:
        if not array.ndim or array.size != len(array) * math.prod(space.shape):
            raise ColumnError(
                where,
                expected=f"shape {['rows', *space.shape]}, as {space} has",
                found=f"shape {list(array.shape)}",
                do="return one action of the space per row",
            )
        array = array.reshape(len(array), *space.shape)
        actions = actions.reshape(array.shape) if hasattr(actions, "reshape") else array
    invalid = array
    if array.dtype.kind in "fiub":
        invalid = array[~((array >= low) & (array <= high) & (is_box or (array % 1 == 0)))]
    if invalid.size:
        raise ColumnError(
            where,
            expected="numbers" if is_box else f"members of {space}",
            found=", ".join(map(repr, dict.fromkeys(invalid.reshape(-1)[:5].tolist()))),
            do="look for NaN in the observations and the module's weights"
            if is_box
            else f"return whole numbers of the space, or {Columns.ACTION_DIST_INPUTS!r} alone, to have them drawn",
        )
    if is_box or array.dtype.kind != "f":
        return actions
    return actions.long() if hasattr(actions, "long") else array.astype(np.int64)


class ToAct(NamedTuple):
    """Episodes in which agents act next.

    Args:
        envs: Their environments.
        episodes: The episodes.
        agents: The agents that are to act in each of them.
    """

    envs: Sequence[int]
    episodes: list[MultiAgentEpisode]
    agents: Sequence[Collection[Any]]


class AgentActions(NamedTuple):
    """Actions of one vector step: a dict by agent for each environment.

    Args:
        stored: Actions as the modules gave them.
        for_env: Actions for the environments, in arrays of their own.
        outputs: For each agent a dict of the other columns.
    """

    stored: list[dict[Any, Any]]
    for_env: list[dict[Any, Any]]
    outputs: list[dict[Any, dict[str, Any]]]

    def with_actions_for_env(self) -> AgentActions:
        """Return the same with copies of the actions for the environments among the other columns."""
        outputs = [
            {agent: {**others.get(agent, {}), Columns.ACTIONS_FOR_ENV: action} for agent, action in group.items()}
            for group, others in zip(map(copied_actions, self.for_env), self.outputs)
        ]
        return self._replace(outputs=outputs)


def act_for_agents(
    module: Any,
    module_to_env: Any,
    batch: dict[str, Any],
    to_act: ToAct,
    *,
    explore: bool,
    t: int,
    shared_data: dict[str, Any],
    **call: Any,
) -> dict[str, Any]:
    """Return the columns of one vector step: `actions` and the modules' other outputs, by agent for each episode.

    Args:
        module: The modules that act.
        module_to_env: The pipeline after them.
        batch: The output of the env-to-module pipeline, by module.
        to_act: The episodes and agents.
        explore: Whether actions explore.
        t: The env steps taken so far, for the modules and their pieces.
        shared_data: What the pieces of both pipelines share.
        **call: `metrics` for the pipeline.

    Raises:
        ColumnError: not one action for each agent; or NaN among a module's outputs. The error names the observations
            instead if they have NaN already.
    """
    shared_data[NUM_ENV_STEPS] = t
    outputs = forward(module, batch, explore=explore, t=t)
    for module_id, output in outputs.items():
        if isinstance(output, Mapping) and Columns.ACTIONS in output:
            outputs = {**outputs, module_id: with_members(module[module_id], output)}
    columns: dict[str, Any]
    try:
        columns = module_to_env(
            rl_module=module, batch=outputs, episodes=to_act.episodes, explore=explore, shared_data=shared_data, **call
        )
    except ColumnError as error:
        raise_if_nan_observations(error, _newest(to_act), _by_module(batch))
        raise
    for name, column in columns.items():
        _check_column(name, column, to_act)
    if Columns.ACTIONS not in columns:
        raise _without_actions("no such column")
    for name in (Columns.ACTIONS, Columns.ACTIONS_FOR_ENV):
        if name in columns:
            _check_agents(name, columns[name], to_act)
    return columns


def _newest(to_act: ToAct) -> Iterator[tuple[str, Any]]:
    for env, episode in zip(to_act.envs, to_act.episodes):
        for agent, row in episode.get_observations(-1).items():
            yield f"agent {agent!r} in environment {env}", row


def _by_module(batch: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for module_id, columns in batch.items():
        if isinstance(columns, Mapping):
            yield f"module {module_id!r}, row", columns.get(Columns.OBS)


def _check_column(name: str, column: Any, to_act: ToAct) -> None:
    count = len(to_act.episodes)
    if type(column) is list and len(column) == count and all(isinstance(rows, Mapping) for rows in column):
        return
    found = f"{len(column)} of them" if isinstance(column, list) else type(column).__name__
    raise ColumnError(
        f"what the module-to-env pipeline left, column {name!r}",
        expected=f"a list of {count} dicts by agent, one for each episode",
        found=found,
        do="keep the columns in the form that ListifyDataForVectorEnv gives them",
    )


def _check_agents(name: str, column: list[dict[Any, Any]], to_act: ToAct) -> None:
    for env, rows, agents in zip(to_act.envs, column, to_act.agents):
        if rows.keys() != agents:
            missing = [agent for agent in agents if agent not in rows]
            strangers = [agent for agent in rows if agent not in agents]
            found = f"none for {missing}" if missing else f"some for {strangers} too, who do not act"
            raise _without_actions(f"{found} in environment {env}", name, f"for agents {list(agents)}")


def _without_actions(found: str, name: str = Columns.ACTIONS, whose: str = "for each agent to act") -> ColumnError:
    return ColumnError(
        "what the module-to-env pipeline left",
        expected=f"a column {name!r} with one action {whose}",
        found=found,
        do="keep every agent's action in every module-to-env piece",
    )


def spread(columns: dict[str, Any], to_act: ToAct, num_envs: int, every_agent: dict[str, Any]) -> AgentActions:
    """Return the columns of some episodes as actions in all environments.

    Args:
        columns: As `act_for_agents` returns them; none if no agent acts.
        to_act: The episodes that they are about.
        num_envs: How many environments there are.
        every_agent: Further outputs, the same for each agent that acts.
    """
    acts = AgentActions([{}] * num_envs, [{}] * num_envs, [{}] * num_envs)
    if not columns:
        return acts
    stored, for_env = columns[Columns.ACTIONS], columns.get(Columns.ACTIONS_FOR_ENV, columns[Columns.ACTIONS])
    others = [(name, rows) for name, rows in columns.items() if name not in (Columns.ACTIONS, Columns.ACTIONS_FOR_ENV)]
    for i, env in enumerate(to_act.envs):
        acts.stored[env] = stored[i]
        acts.for_env[env] = copied_actions(for_env[i])
        outputs: dict[Any, dict[str, Any]] = {agent: dict(every_agent) for agent in stored[i]}
        for name, rows in others:
            for agent, value in rows[i].items():
                if agent in outputs:
                    outputs[agent][name] = value
                else:
                    outputs[agent] = {name: value}
        acts.outputs[env] = outputs
    return acts


def copied_actions(actions: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return copies of actions, as an environment may change them and stored actions often share their memory."""
    return {agent: action if isinstance(action, np.generic) else owned(action) for agent, action in actions.items()}


def sample_masked_actions(
    env_to_module: Any, batch: Mapping[str, Any], space: Any, rng: np.random.Generator
) -> tuple[Any, Any] | None:
    """Draw random legal actions of one agent in each environment; None without an action mask.

    Args:
        env_to_module: The pipeline that made the batch.
        batch: The module's input; its `action_mask` marks the legal actions.
        space: The module's action space.
        rng: The random generator.

    Returns:
        The actions to store, and those for the environments.
    """
    if batch.get(Columns.ACTION_MASK) is None:
        return None
    actions = random_legal_actions(space, _rows(batch[Columns.ACTION_MASK]), rng)
    return actions, actions_for_env(env_to_module, actions)


def sample_masked_actions_of_agents(
    env_to_module: Any,
    batch: Mapping[Any, Any],
    spaces: Mapping[Any, Any],
    shared: Mapping[str, Any],
    rng: np.random.Generator,
) -> dict[tuple[int, Any], tuple[Any, Any]]:
    """Draw random legal actions of the agents whose modules get an action mask.

    Args:
        env_to_module: The pipeline that made the batch.
        batch: Columns by module.
        spaces: Module -> (observation space, action space).
        shared: The pipelines' shared data, which maps rows to agents.
        rng: The random generator.

    Returns:
        (position of the episode in the call, agent) -> the action to store, and the one for the environment.
    """
    found: dict[tuple[int, Any], tuple[Any, Any]] = {}
    for module_id, columns in batch.items():
        rows: Any = shared.get(ROW_MAP)
        if not hasattr(rows, "owners") or module_id not in rows:
            continue
        if not isinstance(columns, Mapping) or Columns.ACTION_MASK not in columns:
            continue
        actions = random_legal_actions(spaces[module_id][1], _rows(columns[Columns.ACTION_MASK]), rng)
        for i, (owner, agent) in enumerate(rows.owners(module_id)):
            for_env = actions_for_env(env_to_module, actions[i : i + 1], agent)
            found[owner, agent] = actions[i], for_env[0]
    return found


def _rows(mask: Any) -> Any:
    """Return a mask as bool [rows, choices]; it may be a tensor, and may have a time axis."""
    array = np.asarray(mask.cpu() if hasattr(mask, "cpu") else mask)
    return array.reshape(-1, array.shape[-1]) != 0


class _NoExploration(str):
    """The name of a way to act that draws nothing, so that it counts as False."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return False


KINDS: dict[str, Any] = {"sample": True, "mode": False, "mean": _NoExploration("mean"), "random": "random"}
"""Names for `explore`, as pieces and modules get them: True where they are to explore."""


def explores(explore: bool | str | None, default: bool | str) -> Any:
    """Return the caller's value, or the default: True, False, or the name of another kind of action.

    Raises:
        RunnerArgumentError: something else, such as the text "no", which would count as True.
    """
    if explore is None:
        explore = default
    if isinstance(explore, (bool, np.bool_)):
        return bool(explore)
    if isinstance(explore, str) and explore in KINDS:
        return KINDS[explore]
    raise RunnerArgumentError(
        "explore",
        expected=f"True, False, None for the config's, or one of {', '.join(map(repr, KINDS))}",
        found=f"{type(explore).__name__} {explore!r}",
        do="pass explore=False to act greedily",
    )
