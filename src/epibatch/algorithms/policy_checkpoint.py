"""What a checkpoint holds for acting without an environment, and the policy that is built from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
        module: The module, with its weights.
        pipelines: Env-to-module and module-to-env.
        connector_states: Their states.
        lookback: Earlier steps that the pipelines read.
        steps: Environment steps that the module was trained for.
        mapping: The mapping function, of several agents.
    """

    module: Any
    pipelines: tuple[Any, Any]
    connector_states: tuple[Any, Any]
    lookback: int
    steps: int
    mapping: Callable[..., Any] | None


def read_policy(path: Path, config: AlgorithmConfig | None, *, allow_imports: bool) -> SavedPolicy:
    """Read a policy's parts; the arguments and errors are those of `Policy.from_checkpoint`."""
    from epibatch.core.rl_module.module_checkpoints import weights_at_most

    path, saved = read_newest(path, lambda chosen: (chosen, read_checkpoint(chosen)))
    if config is not None:
        return _read_policy(path, saved, config, allow_imports=allow_imports)
    with weights_at_most(arrays_size(saved)), restoring(f"checkpoint {path}", "description"):
        return _read_policy(path, saved, None, allow_imports=allow_imports)


def _read_policy(path: Path, saved: Any, config: AlgorithmConfig | None, *, allow_imports: bool) -> SavedPolicy:
    description, state = saved
    acting = description.get("acting")
    if not isinstance(acting, Mapping):
        raise CheckpointError(
            f"checkpoint {path}",
            expected="the spaces, pieces and module of a policy",
            found="none: an earlier version of epibatch saved it",
            do="load it with Algorithm.from_checkpoint(path) and save it again",
        )
    if acting.get("several_agents") and config is None:  # its mapping pieces are the config's
        config = config_from_checkpoint(path, description, allow_imports=allow_imports)
    if config is not None:
        where = f"checkpoint {path}"
        config = config_with_views(
            config, config.view_requirements, as_views(state.get("added_views", {}), where), where
        )
    build = _Parts(path, plain_data(acting), allow_imports) if config is None else _ConfigParts(path, acting, config)
    runner, weights = state["env_runner"], state["learner"]["module"]
    env_to_module, module_to_env = build.pipelines()
    module = build.module(env_to_module)
    if hasattr(module, "eval"):
        module.eval()  # the policy's own, and only ever acting
    several = config is not None and config.is_multi_agent
    module.set_state(weights if several else weights[DEFAULT_MODULE_ID])
    return SavedPolicy(
        module=module,
        pipelines=(env_to_module, module_to_env),
        connector_states=(runner["env_to_module_connector"], runner["module_to_env_connector"]),
        lookback=check_count(f"checkpoint {path}, lookback", acting["lookback"]),
        steps=check_count(f"checkpoint {path}, steps", runner["num_env_steps_sampled_lifetime"]),
        mapping=config.policy_mapping_fn if config is not None and several else None,
    )


class _Parts:
    """Builds a policy's parts from the data in a checkpoint.

    Args:
        path: Of the checkpoint, for messages.
        acting: What `acting_data` gave.
        allow_imports: Whether classes may be imported by path.

    Raises:
        CheckpointError: a part is code.
    """

    def __init__(self, path: Path, acting: Mapping[str, Any], allow_imports: bool) -> None:
        self._where, self._acting, self._allow_imports = f"checkpoint {path}", acting, allow_imports
        if acting["not_data"]:
            reasons = "".join(f"\n{name}: {reason}" for name, reason in acting["not_data"].items())
            raise CheckpointError(
                self._where,
                expected="the original config, because part of the policy is code that no checkpoint stores",
                found=reasons.replace("\n", "\n            "),
                do="pass it: Policy.from_checkpoint(path, config=config)",
            )

    def pipelines(self) -> tuple[Any, Any]:
        """Env-to-module and module-to-env."""
        spaces = [space_from_dict(space) for space in self._acting["spaces"]]
        made: list[Any] = []
        for name, cls in (("env_to_module", EnvToModulePipeline), ("module_to_env", ModuleToEnvPipeline)):
            try:
                pieces = [build_piece(spec, allow_imports=self._allow_imports) for spec in self._acting[name]]
                made.append(cls(*spaces, connectors=pieces))
            except EpibatchError as error:
                raise self._unfit(f"pieces of {name} that can be built here", str(error)) from error
        undo_actions(*made)
        return made[0], made[1]

    def module(self, env_to_module: Any) -> Any:
        """The module, with new weights."""
        from epibatch.core.rl_module.rl_module import RLModuleSpec, saved_spec

        try:
            return saved_spec(RLModuleSpec, self._acting["module"], allow_imports=self._allow_imports).build()
        except EpibatchError as error:
            raise self._unfit("a module that can be built here", str(error)) from error

    def _unfit(self, expected: str, found: str) -> CheckpointError:
        return CheckpointError(
            self._where,
            expected=expected,
            found=found.replace("\n", "\n            "),
            do="install or register what is missing, pass allow_imports=True for a checkpoint that you trust, or "
            "pass the original config",
        )


class _ConfigParts:
    """Builds a policy's parts from a config, and the spaces in a checkpoint.

    Args:
        path: Of the checkpoint, for messages.
        acting: What `acting_data` gave.
        config: The config.
    """

    def __init__(self, path: Path, acting: Mapping[str, Any], config: AlgorithmConfig) -> None:
        self._config = config
        self._spaces = self._known_spaces(path, acting)

    def _known_spaces(self, path: Path, acting: Mapping[str, Any]) -> dict[str, Any]:
        import gymnasium as gym

        observation: Any
        action: Any
        if acting["spaces"] is not None:
            observation, action = (space_from_dict(space) for space in acting["spaces"])
        else:
            observation, action = self._config.observation_space, self._config.action_space
        if observation is None or action is None:
            raise CheckpointError(
                f"checkpoint {path}",
                expected="the spaces of the environment",
                found=str(acting["not_data"]["spaces"]).replace("\n", "\n            "),
                do="give them in the config: .environment(observation_space=..., action_space=...)",
            )
        if self._config.is_multi_agent:
            return dict.fromkeys(("__env__", "__env_single__"), (observation, action))
        batched = tuple(gym.vector.utils.batch_space(space, 1) for space in (observation, action))
        return {"__env__": batched, "__env_single__": (observation, action)}

    def pipelines(self) -> tuple[Any, Any]:
        """Env-to-module and module-to-env."""
        try:
            env_to_module = self._config.build_env_to_module_connector(env=None, spaces=self._spaces, device="cpu")
            self._spaces.update(self._module_spaces(env_to_module))
            module_to_env = self._config.build_module_to_env_connector(env=None, spaces=self._spaces)
            undo_actions(env_to_module, module_to_env)
            return env_to_module, module_to_env
        except Exception as error:
            add_context(error, "in Policy.from_checkpoint, which calls the config's functions with env=None:")
            raise

    def _module_spaces(self, env_to_module: Any) -> dict[str, tuple[Any, Any]]:
        if not self._config.is_multi_agent:
            return {DEFAULT_MODULE_ID: (env_to_module.observation_space, env_to_module.action_space)}
        actions = env_to_module.action_space
        return {each: (space, actions[each]) for each, space in env_to_module.observation_space.items()}

    def module(self, env_to_module: Any) -> Any:
        """The module, with new weights."""
        return self._config.get_rl_module_spec(env=None, spaces=self._spaces).build()
