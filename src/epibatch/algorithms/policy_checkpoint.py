"""Checkpoint parts for acting without an environment, and building a policy from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from epibatch.core import DEFAULT_MODULE_ID
from epibatch.core.checkpoints import arrays_size
from epibatch.core.errors import CheckpointError, EpibatchError, add_context
from epibatch.core.registry import build_piece, piece_to_dict, plain_data
from epibatch.core.restoring import check_count, restoring
from epibatch.core.space_dicts import space_from_dict, space_to_dict

from ..connectors.authoring.column_transform import undo_actions
from ..connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
from ..connectors.module_to_env.module_to_env_pipeline import ModuleToEnvPipeline
from ..connectors.views.view import as_views
from .checkpoint import config_from_checkpoint, read_checkpoint
from .module_views import config_with_views
from .saved_checkpoints import read_newest

if TYPE_CHECKING:
    from ..connectors.connector_pipeline_v2 import ConnectorPipelineV2
    from .algorithm_config import AlgorithmConfig

__all__ = ["SavedPolicy", "acting_data", "read_policy"]

PARTS = ("spaces", "env_to_module", "module_to_env", "module")


# ----------------------------------------------------------------------------------------- writing


def acting_data(spaces: tuple[Any, Any], pipelines: Mapping[str, ConnectorPipelineV2], module: Any) -> dict[str, Any]:
    """Spaces, both acting pipelines and the module as plain data.

    Args:
        spaces: Observation and action space of one environment.
        pipelines: `env_to_module` and `module_to_env`.
        module: The module that acts.

    Returns:
        A value for each of `PARTS`, None where it cannot be expressed as data, and `not_data`: why, by part; and
        `lookback`, the earlier steps that the pipelines read, and `several_agents`.
    """
    from epibatch.core.rl_module.rl_module import RLModuleSpec

    makers: dict[str, Callable[[], Any]] = {
        "spaces": lambda: [space_to_dict(space) for space in spaces],
        "module": lambda: RLModuleSpec.from_module(module).to_dict(),
        **{name: partial(_pieces_data, own) for name, own in pipelines.items()},
    }
    data: dict[str, Any] = {
        "lookback": max(own.lookback_needed for own in pipelines.values()),
        "several_agents": hasattr(module, "foreach_module"),
        "not_data": {},
    }
    for name in PARTS:
        try:
            data[name] = makers[name]()
        except (EpibatchError, TypeError) as error:
            data[name], data["not_data"][name] = None, str(error)
    return data


def _pieces_data(pipeline: ConnectorPipelineV2) -> list[dict[str, Any]]:
    return [piece_to_dict(piece) for piece in pipeline]


# ----------------------------------------------------------------------------------------- reading


@dataclass(frozen=True)
class SavedPolicy:
    """The parts of a policy, read from a checkpoint.

    Attributes:
        where: The checkpoint, for messages.
        module: The module, with its weights.
        pipelines: Env-to-module and module-to-env.
        connector_states: Their states.
        lookback: Earlier steps that the pipelines read.
        steps: Environment steps that the module was trained for.
        mapping: The mapping function, of several agents.
    """

    where: str
    module: Any
    pipelines: tuple[Any, Any]
    connector_states: tuple[Any, Any]
    lookback: int
    steps: int
    mapping: Callable[..., Any] | None


def read_policy(path: Path, config: AlgorithmConfig | None, *, allow_imports: bool) -> SavedPolicy:
    """Read a policy's parts; the arguments and errors are those of `Policy.from_checkpoint`."""
    from epibatch.core.rl_module.module_data import weights_at_most

    path, saved = read_newest(path, lambda chosen: (chosen, read_checkpoint(chosen)))
    if config is not None:
        return _read_policy(path, saved, config, allow_imports=allow_imports)
    with weights_at_most(arrays_size(saved)), restoring(f"checkpoint {path}", "description"):
        return _read_policy(path, saved, None, allow_imports=allow_imports)


def _read_policy(path: Path, saved: Any, config: AlgorithmConfig | None, *, allow_imports: bool) -> SavedPolicy:
    where, (description, state) = f"checkpoint {path}", saved
    acting = description.get("acting")
    if not isinstance(acting, Mapping):
        raise CheckpointError(
            where,
            expected="the spaces, pieces and module of a policy",
            found="none: an earlier version of epibatch saved it",
            do="load it with Algorithm.from_checkpoint(path) and save it again",
        )
    if acting.get("several_agents") and config is None:  # its mapping pieces are the config's
        config = config_from_checkpoint(path, description, allow_imports=allow_imports)
    if config is None:
        pipelines, module = _parts_of_data(where, plain_data(acting), allow_imports=allow_imports)
    else:
        added = as_views(state.get("added_views", {}), where)
        config = config_with_views(config, config.view_requirements, added, where)
        pipelines, module = _parts_of_config(where, acting, config)
    undo_actions(*pipelines)
    runner, weights = state["env_runner"], state["learner"]["module"]
    if hasattr(module, "eval"):
        module.eval()  # the policy's own, and only ever acting
    several = config is not None and config.is_multi_agent
    module.set_state(weights if several else weights[DEFAULT_MODULE_ID])
    return SavedPolicy(
        where=where,
        module=module,
        pipelines=pipelines,
        connector_states=(runner["env_to_module_connector"], runner["module_to_env_connector"]),
        lookback=check_count(f"{where}, lookback", acting["lookback"]),
        steps=check_count(f"{where}, steps", runner["num_env_steps_sampled_lifetime"]),
        mapping=config.policy_mapping_fn if config is not None and several else None,
    )


def _parts_of_data(where: str, acting: Mapping[str, Any], *, allow_imports: bool) -> tuple[tuple[Any, Any], Any]:
    """Both pipelines, and the module with new weights, as a checkpoint describes them.

    Args:
        where: The checkpoint, for messages.
        acting: What `acting_data` gave.
        allow_imports: Whether classes may be imported by path.

    Raises:
        CheckpointError: a part is code, or cannot be built here.
    """
    from epibatch.core.rl_module.rl_module import RLModuleSpec, saved_spec

    if acting["not_data"]:
        reasons = "".join(f"\n{name}: {reason}" for name, reason in acting["not_data"].items())
        raise CheckpointError(
            where,
            expected="the original config, because part of the policy is code that no checkpoint stores",
            found=reasons.replace("\n", "\n            "),
            do="pass it: Policy.from_checkpoint(path, config=config)",
        )
    spaces = [space_from_dict(space) for space in acting["spaces"]]
    pipelines: list[Any] = []
    for name, cls in (("env_to_module", EnvToModulePipeline), ("module_to_env", ModuleToEnvPipeline)):
        with _built_here(where, f"pieces of {name} that can be built here"):
            pieces = [build_piece(spec, allow_imports=allow_imports) for spec in acting[name]]
            pipelines.append(cls(*spaces, connectors=pieces))
    with _built_here(where, "a module that can be built here"):
        module = saved_spec(RLModuleSpec, acting["module"], allow_imports=allow_imports).build()
    return (pipelines[0], pipelines[1]), module


@contextmanager
def _built_here(where: str, expected: str) -> Iterator[None]:
    try:
        yield
    except EpibatchError as error:
        raise CheckpointError(
            where,
            expected=expected,
            found=str(error).replace("\n", "\n            "),
            do="install or register what is missing, pass allow_imports=True for a checkpoint that you trust, or "
            "pass the original config",
        ) from error


def _parts_of_config(where: str, acting: Mapping[str, Any], config: AlgorithmConfig) -> tuple[tuple[Any, Any], Any]:
    """Both pipelines, and the module with new weights, as a config builds them for the spaces in a checkpoint."""
    spaces = _known_spaces(where, acting, config)
    try:
        env_to_module = config.build_env_to_module_connector(env=None, spaces=spaces, device="cpu")
        observation: Any = env_to_module.observation_space
        action: Any = env_to_module.action_space
        if config.is_multi_agent:
            spaces.update({each: (space, action[each]) for each, space in observation.items()})
        else:
            spaces[DEFAULT_MODULE_ID] = (observation, action)
        module_to_env = config.build_module_to_env_connector(env=None, spaces=spaces)
    except Exception as error:
        add_context(error, "in Policy.from_checkpoint, which calls the config's functions with env=None:")
        raise
    return (env_to_module, module_to_env), config.get_rl_module_spec(env=None, spaces=spaces).build()


def _known_spaces(where: str, acting: Mapping[str, Any], config: AlgorithmConfig) -> dict[str, Any]:
    observation: Any
    action: Any
    if acting["spaces"] is not None:
        observation, action = (space_from_dict(space) for space in acting["spaces"])
    else:
        observation, action = config.observation_space, config.action_space
    if observation is None or action is None:
        raise CheckpointError(
            where,
            expected="the spaces of the environment",
            found=str(acting["not_data"]["spaces"]).replace("\n", "\n            "),
            do="give them in the config: .environment(observation_space=..., action_space=...)",
        )
    if config.is_multi_agent:
        return dict.fromkeys(("__env__", "__env_single__"), (observation, action))
    batched = tuple(gym.vector.utils.batch_space(space, 1) for space in (observation, action))
    return {"__env__": batched, "__env_single__": (observation, action)}
