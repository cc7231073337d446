"""An algorithm's checkpoint: its state, and one description, from which both an Algorithm and a Policy are rebuilt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym

from epibatch.core import DEFAULT_MODULE_ID, rl_module
from epibatch.core.checkpoints import load_state, save_state
from epibatch.core.errors import CheckpointError, EpibatchError, add_context
from epibatch.core.registry import build_piece, piece_name, piece_to_dict, plain_data
from epibatch.core.restoring import restoring
from epibatch.core.settings import ErrorList, path_text
from epibatch.core.space_dicts import space_from_dict, space_to_dict

from .algorithm_config import AlgorithmConfig
from .config.config_io import settings_data
from .config.pipelines import PIPELINES, given_pieces, is_edited
from .registry import describe_class, described_class, name_in_files
from .run.saved_checkpoints import read_newest

ACTING: dict[str, set[str] | None] = {
    "environment": {"normalize_actions", "clip_actions"},
    "env_runners": {
        "add_default_connectors_to_env_to_module_pipeline",
        "add_default_connectors_to_module_to_env_pipeline",
    },
    "rl_module": None,
    "multi_agent": {"policies", "policy_mapping_fn"},
    "env_to_module": None,
    "module_to_env": None,
    "spaces": None,
}
"""Sections of a description that a policy is built from -> their settings; None: all of them."""

PLAYING: dict[str, set[str] | None] = {
    **ACTING,
    "environment": None,
    "env_runners": {*(ACTING["env_runners"] or ()), "horizon", "gym_env_vectorize_mode"},
    "multi_agent": {*(ACTING["multi_agent"] or ()), "episode_end"},
}
"""The same of what `epibatch play` needs: the environment too, and when its episodes end."""


# ------------------------------------------------------------------------------------------ writing


def describe(config: AlgorithmConfig, runner: Any, built: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The description of a checkpoint: plain data that an Algorithm and a Policy are built from, without weights.

    The pieces that functions in the config make are expressed as data, so a config with
    `lambda env, spaces, device: FrameStacking(num_frames=4)` needs no function to be restored.

    Args:
        config: The algorithm's.
        runner: The runner that samples, which knows the environment and its spaces.
        built: The acting pipelines' pieces as the config made them, by name.

    Returns:
        What `describe_class` gives; `config`: the settings that are data; `spaces` of one environment;
        `modules`: the spec of the network, or of several; `added`: for each acting pipeline the pieces that the
        algorithm's own config adds to the default ones, each with the name of the default piece after it; `lookback`,
        the earlier steps that the acting pipelines read; `edited`: the names of the pieces of each acting pipeline that
        was edited after the config built it; and `not_data`: what is code, as pairs of a place and the reason.
    """
    errors, spaces = ErrorList(), runner.get_spaces()

    def described(place: str | tuple[str, str], make: Callable[[], Any]) -> Any:
        try:
            return make()
        except (EpibatchError, TypeError) as error:
            errors.add(place, str(error))
        return None

    def added_pieces(name: str) -> list[tuple[str | None, dict[str, Any]]]:
        build = getattr(AlgorithmConfig, f"build_{name}_connector")
        if getattr(type(config), build.__name__) is build:
            return []
        return _added_pieces(built[name], given_pieces(build(config, env=runner.env, spaces=spaces)))

    spec: Any = rl_module.MultiRLModuleSpec if config.is_multi_agent else rl_module.RLModuleSpec
    modules = described("modules", lambda: spec.from_module(runner.module).to_dict())
    arguments = {
        "env_to_module": (runner.env, spaces, None),
        "module_to_env": (runner.env, spaces),
        "learner": spaces["__episodes__"],
    }
    pieces = {name: config.user_pieces(name, arguments[name], runner.env) for name in PIPELINES}
    description: dict[str, Any] = {
        **describe_class(type(config)),
        "config": {**settings_data(config.settings, errors, pieces), "algorithm": name_in_files(type(config))},
        "spaces": described("spaces", lambda: [space_to_dict(space) for space in spaces["__env_single__"]]),
        "modules": modules,
        "added": {name: described(("added", name), partial(added_pieces, name)) for name in runner.pipelines},
        "lookback": max(pipeline.lookback_needed for pipeline in runner.pipelines.values()),
    }
    edited: dict[str, list[str]] = {}
    for name, pipeline in runner.pipelines.items():
        if is_edited(pipeline, built[name]):
            edited[name] = [*given_pieces(pipeline)]
            errors.add(
                name, f"{', '.join(edited[name])}: edited after the config built it, which has to have all pieces"
            )
    return {**description, "edited": edited, "not_data": [[list(place), text] for place, text in errors.found]}


def _added_pieces(built: Mapping[str, Any], default: Mapping[str, Any]) -> list[tuple[str | None, dict[str, Any]]]:
    """The pieces of a pipeline that are not among the default ones, as data, with the name of the default one after it.

    Raises:
        PieceError: a piece is code.
        TypeError: a default piece is missing, or is another one.
    """
    added, left = [], [*default]
    for piece in built.values():
        if left and _is_like(piece, default[left[0]]):
            del left[0]
        else:
            added.append((left[0] if left else None, piece_to_dict(piece)))
    if left:
        raise TypeError(f"{left[0]} is missing, out of order or another piece than the default one")
    return added


def _is_like(piece: Any, other: Any) -> bool:
    """True if two pieces are of one class, and alike as far as they are data."""
    try:
        return type(piece) is type(other) and piece_to_dict(piece) == piece_to_dict(other)
    except EpibatchError:
        return True


def write_checkpoint(path: Path, description: Mapping[str, Any], state: Mapping[str, Any]) -> Path:
    """Write a checkpoint folder; one that is there already stays loadable until the new one is complete.

    Args:
        path: The folder.
        description: What `describe` gave.
        state: Nested dicts and lists of arrays, numbers and strings.

    Raises:
        CheckpointError: the folder holds something else, or the state something that is no data.
    """
    return save_state(path, {"description": dict(description), "state": dict(state)})


# ------------------------------------------------------------------------------------------ reading


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The description and the state of a checkpoint.

    Args:
        path: The checkpoint's folder, or that of a run, whose newest whole one is read.

    Raises:
        CheckpointError: there is no checkpoint, it is damaged, or it is not an algorithm's.
    """
    content = read_newest(path, load_state)
    description = content.get("description") if isinstance(content, dict) else None
    parts = {"algorithm", "config", "not_data"}
    if not isinstance(description, dict) or not parts <= description.keys() or "state" not in content:
        raise CheckpointError(
            f"checkpoint {path}",
            expected="the checkpoint of an algorithm",
            found="the state of something else",
            do="give the folder that Algorithm.save_to_path returned",
        )
    if "spaces" not in description:
        with restoring(f"checkpoint {path}", "description"):
            description = _of_earlier_version(description)
    return description, content["state"]


def _of_earlier_version(description: Mapping[str, Any]) -> dict[str, Any]:
    """A description of today, of one whose config is None if any of it is code; `acting` may be beside it."""
    acting, code = description.get("acting", {"spaces": None, "lookback": 0}), description["not_data"]
    not_data = [] if code is None else [[[section], code] for section in ("rl_module", "config")]
    others = {"config": description["config"] or {}, "not_data": not_data}
    sides = ("env_to_module", "module_to_env")
    others["all_pieces"] = {name: [each["piece"] for each in acting[name]] for name in sides if acting.get(name)}
    return {"algorithm": description["algorithm"], **others, "spaces": acting["spaces"], "lookback": acting["lookback"]}


def config_from_checkpoint(
    path: Path,
    description: Mapping[str, Any],
    *,
    allow_imports: bool,
    needed: Mapping[str, set[str] | None] | None = None,
    do: str = "",
) -> AlgorithmConfig:
    """Rebuild the config that a checkpoint describes.

    Args:
        path: The checkpoint.
        description: What `read_checkpoint` gave.
        allow_imports: Whether pieces, modules and environments may be imported by path.
        needed: `ACTING` or `PLAYING` for the settings that these need, without the others; None: all.
        do: What to do if the config is code; default: how to restore an Algorithm.

    Raises:
        CheckpointError: part of the config is code, or a piece in it cannot be found.
    """
    where = f"checkpoint {path}"
    modules = description.get("modules") if needed else None  # earlier versions have none
    if needed and "modules" in description:
        needed = {**needed, "modules": None, "added": None, "rl_module": {"view_requirements"}}
        needed["multi_agent"] = {*(needed["multi_agent"] or ())} - {"policies"}
    with restoring(where, "description"):
        not_data = description["not_data"]
        code = [(place, text) for place, text in not_data if _is_needed(needed, *place)]
        code = [(place, text) for place, text in code if needed or place[0] not in ("spaces", "modules", "added")]
        data = {
            section: {name: value for name, value in values.items() if _is_needed(needed, section, name)}
            if isinstance(values, Mapping)
            else values
            for section, values in plain_data(description["config"]).items()
            if not needed or section in needed
        }
        if modules is not None:
            data.setdefault("rl_module", {})["rl_module_spec"] = dict(modules)
            policies = description["config"].get("multi_agent", {}).get("policies")
            data["multi_agent"] = {**data.get("multi_agent", {}), "policies": policies and list(policies)}
        reasons = "".join(f"\n- {path_text(tuple(place))}: {text}" for place, text in code)
    if code:
        raise CheckpointError(
            where,
            expected="the original config, because part of it is code that no checkpoint stores",
            found=reasons.replace("\n", "\n            "),
            do=do
            or "pass it: Algorithm.from_checkpoint(path, config=config), or "
            "config.build_algo() and then restore_from_path(path)",
        )
    try:
        with restoring(where, "config"):
            _read_specs(data, allow_imports=allow_imports)
            cls = AlgorithmConfig if needed else described_class(description, allow_imports=allow_imports)
            return cls.from_dict(data, allow_imports=allow_imports)
    except EpibatchError as error:
        package = description.get("package")
        raise CheckpointError(
            where,
            expected="a config that can be rebuilt here",
            found=str(error).replace("\n", "\n            "),
            do=(f"install {package}, which offered the algorithm; " if package else "")
            + "install or register what is missing, pass allow_imports=True for a checkpoint that you trust, or "
            "pass the original config",
        ) from error


def _is_needed(needed: Mapping[str, set[str] | None] | None, section: str, setting: str = "", *_: Any) -> bool:
    """True if a setting is needed."""
    return needed is None or (section in needed and setting in (needed[section] or [setting]))


def _read_specs(data: dict[str, Any], *, allow_imports: bool) -> None:
    """Put specs of modules in the places of their descriptions in a config's data."""
    from epibatch.core.rl_module.rl_module import MultiRLModuleSpec, RLModuleSpec, saved_spec

    policies = data.get("multi_agent", {}).get("policies")
    for owner in (data.get("rl_module", {}), *(policies.values() if isinstance(policies, Mapping) else ())):
        spec = owner.get("rl_module_spec")
        if isinstance(spec, Mapping):
            cls = MultiRLModuleSpec if "rl_module_specs" in spec else RLModuleSpec
            owner["rl_module_spec"] = saved_spec(cls, spec, allow_imports=allow_imports)


def build_for_acting(
    where: str, description: Mapping[str, Any], config: AlgorithmConfig
) -> tuple[tuple[Any, Any], Any]:
    """Both acting pipelines, and the module with new weights, as a config builds them without an environment.

    Args:
        where: The checkpoint, for messages.
        description: Its description, which has the spaces.
        config: Its config, or the original one.
    """
    spaces = _known_spaces(where, description, config)
    try:
        env_to_module = config.build_env_to_module_connector(env=None, spaces=spaces, device="cpu")
        _add_pieces(env_to_module, description, config, "env_to_module")
        observation: Any = env_to_module.observation_space
        action: Any = env_to_module.action_space
        if config.is_multi_agent:
            spaces.update({module_id: (space, action[module_id]) for module_id, space in observation.items()})
        else:
            spaces[DEFAULT_MODULE_ID] = (observation, action)
        module_to_env = config.build_module_to_env_connector(env=None, spaces=spaces)
        _add_pieces(module_to_env, description, config, "module_to_env")
    except Exception as error:
        add_context(error, "in Policy.from_checkpoint, which calls the config's functions with env=None:")
        raise
    built = {"env_to_module": env_to_module, "module_to_env": module_to_env}
    given = [(name, names, [*given_pieces(built[name])]) for name, names in description.get("edited", {}).items()]
    all_pieces = description.get("all_pieces", {}).items()
    every = [(name, names, [piece_name(type(piece)) for piece in built[name]]) for name, names in all_pieces]
    for name, expected, found in (*given, *every):
        if found != expected:
            raise CheckpointError(
                f"{where}, {name}",
                expected=f"the pieces of the pipeline that was saved: {', '.join(expected)}",
                found=", ".join(found),
                do="give the config all pieces, rather than adding some to a pipeline that was built",
            )
    return (env_to_module, module_to_env), config.get_rl_module_spec(env=None, spaces=spaces).build()


def _add_pieces(pipeline: Any, description: Mapping[str, Any], config: AlgorithmConfig, name: str) -> None:
    """Put the pieces that an algorithm's config adds into a pipeline that the general config built."""
    if type(config) is AlgorithmConfig:
        places = dict(zip(pipeline.names, pipeline))
        for before, spec in description.get("added", {}).get(name, ()):
            try:
                piece = build_piece(spec, allow_imports=config.allows_imports)
            except EpibatchError as error:
                raise CheckpointError(
                    f"checkpoint, {name}",
                    expected="pieces that are registered, or may be imported",
                    found=str(error.found or error),
                    do="import what registers them, or pass allow_imports=True for a checkpoint that you trust",
                ) from error
            pipeline.append(piece) if before is None else pipeline.insert_before(places[before], piece)


def _known_spaces(where: str, description: Mapping[str, Any], config: AlgorithmConfig) -> dict[str, Any]:
    spaces: tuple[Any, ...] = (config.observation_space, config.action_space)
    if description["spaces"] is not None:
        spaces = tuple(space_from_dict(space) for space in description["spaces"])
    if None in spaces:
        raise CheckpointError(
            where,
            expected="the spaces of the environment",
            found=next((text for place, text in description["not_data"] if place == ["spaces"]), "none"),
            do="give them in the config: .environment(observation_space=..., action_space=...)",
        )
    if config.is_multi_agent:
        return dict.fromkeys(("__env__", "__env_single__"), spaces)
    batched = tuple(gym.vector.utils.batch_space(space, 1) for space in spaces)
    return {"__env__": batched, "__env_single__": spaces}
