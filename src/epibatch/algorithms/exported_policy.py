"""Policies as one file: a step from observations and states to actions and states, as ONNX or a program of torch."""

from __future__ import annotations

import hashlib
import io
import json
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from epibatch.core import __version__
from epibatch.core.columns import Columns
from epibatch.core.errors import CheckpointError, ConfigError, EpibatchError, NotAvailableError
from epibatch.core.files import read_file, write_file
from epibatch.core.imports import import_extra
from epibatch.core.rl_module.module_facts import initial_state, is_stateful, state_layout
from epibatch.core.space_dicts import space_to_dict
from epibatch.core.spaces import get_base_struct_from_space
from epibatch.core.structs import flatten, map_struct, unflatten
from epibatch.core.tensors import convert_to_torch_tensor

from ..connectors.authoring.column_paths import addresses_in
from ..connectors.tensor_step import TensorStep, group_of_tensors
from ..env_runner.acting.acting_modules import forward

__all__ = ["ActingStep", "ExportedPolicy", "load_exported", "write_policy"]

FORMAT = 1
"""Version of the files; loaders refuse others."""

_ABOUT = "epibatch"
"""Key of the description in the metadata of an ONNX file."""

_MEMBER = "archive/extra/epibatch.json"
"""The description in a .pt2 file, which is a zip archive."""

Tensors = dict[str, torch.Tensor]


class ActingStep(nn.Module):
    """A greedy step of a policy: tensors by name in, actions and next states by name out.

    Args:
        module: The policy's module, which acts on the CPU.
        env_to_module: The pipeline before it.
        module_to_env: The pipeline after it.

    Attributes:
        initial: The states at an episode's start, tensors `[...]` by name.
        reads_rewards: True if a piece reads rewards.

    Raises:
        NotAvailableError: a piece or the module cannot be exported.
    """

    def __init__(self, module: Any, env_to_module: Any, module_to_env: Any) -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise _cannot(type(module).__name__, "a torch.nn.Module", "a module that is none", "write it with torch")
        self.module = module.cpu().eval().requires_grad_(False)
        self.observation_space = env_to_module.input_observation_space
        self.action_space = env_to_module.input_action_space
        self._before, self._after = env_to_module, module_to_env
        for pipeline in (env_to_module, module_to_env):
            if (piece := pipeline.piece_without_tensors) is not None:
                raise _no_piece(piece)
        self._stateful = is_stateful(module)
        if self._stateful and state_layout(module).random:
            zeros = "let get_initial_state return zeros, say"
            raise _cannot(type(module).__name__, "the same initial state in each episode", "drawn ones", zeros)
        state = initial_state(module) if self._stateful else {}
        self._state = map_struct(lambda leaf: leaf.detach().cpu().clone(), convert_to_torch_tensor(state))
        self._group = group_of_tensors(self.module, False)
        struct = get_base_struct_from_space(self.observation_space)
        self._names = list(addresses_in(struct, Columns.OBS))
        self._spaces, self._form = flatten(struct)
        self.reads_rewards = True
        first = self._step(self.inputs(self.sample(2), np.zeros(2)), None)
        self._run(first)
        self.initial, self.reads_rewards = first.initial, first.reads_rewards

    def sample(self, rows: int) -> Any:
        """Return random observations, arrays `[rows, ...]` nested as the space."""
        draws = [[np.asarray(space.sample()) for space in self._spaces] for _ in range(rows)]
        leaves = [np.stack(leaf).astype(space.dtype) for leaf, space in zip(zip(*draws), self._spaces)]
        return unflatten(self._form, leaves)

    def inputs(self, observations: Any, rewards: Any) -> Tensors:
        """Return the inputs of a step.

        Args:
            observations: Arrays `[N, ...]`, nested as the space.
            rewards: Array `[N]`, which is left out if no piece reads rewards.
        """
        out = {name: torch.as_tensor(leaf) for name, leaf in zip(self._names, flatten(observations)[0])}
        return {**out, "reward": torch.as_tensor(rewards, dtype=torch.float32)} if self.reads_rewards else out

    def states(self, rows: int) -> Tensors:
        """Return the states at an episode's start, `[rows, ...]` by name."""
        return {name: value.expand(rows, *value.shape).clone() for name, value in self.initial.items()}

    def forward(self, inputs: Tensors, states: Tensors) -> tuple[Tensors, Tensors]:
        """Act.

        Args:
            inputs: The observations, `obs` or its parts as `obs/camera`, and `reward` if it is read.
            states: As the step before gave them.

        Returns:
            The actions for the environment, `actions` or its parts; and the states for the next step.
        """
        step = self._step(inputs, states)
        columns = self._run(step)
        for_env = columns.get(Columns.ACTIONS_FOR_ENV, columns[Columns.ACTIONS])
        struct = get_base_struct_from_space(self.action_space)
        types = map_struct(lambda space: torch.from_numpy(np.zeros(0, space.dtype)).dtype, struct)
        actions = map_struct(lambda leaf, dtype: leaf.to(dtype, copy=True), for_env, types)
        return addresses_in(actions, Columns.ACTIONS), step.states_after(columns[Columns.ACTIONS])

    def _step(self, inputs: Tensors, states: Tensors | None) -> TensorStep:
        obs = unflatten(self._form, [inputs[name] for name in self._names])
        return TensorStep(obs, self._group, reward=inputs.get("reward"), states=states)

    def _run(self, step: TensorStep) -> dict[str, Any]:
        if self._stateful:
            state = [step.state(name, leaf) for name, leaf in addresses_in(self._state, "state").items()]
            step.state_in = unflatten(flatten(self._state)[1], state)
        columns = self._before.run_tensors({}, step)
        with torch.no_grad():
            columns = convert_to_torch_tensor(dict(forward(self.module, columns, explore=False, t=0)))
        if self._stateful:
            for name, leaf in addresses_in(columns.get(Columns.STATE_OUT, {}), "state").items():
                step.keep(name, leaf)
        return dict(self._after.run_tensors(columns, step))


def _cannot(what: str, expected: str, found: Any, do: str) -> NotAvailableError:
    return NotAvailableError(f"Policy.export, {what}", expected=expected, found=found, do=do)


def _no_piece(piece: Any) -> NotAvailableError:
    name = type(piece).__name__
    do = "leave it out of the pipelines, do its work outside, or use Policy.act"
    if not type(piece).__module__.startswith("epibatch."):
        do = f"write run_tensors(self, columns, step) in {name}, see Piece.run_tensors; or {do}"
    return _cannot(f"piece {name}", "pieces that work on tensors", "one that does not say that it does", do)


def write_policy(path: Path, acting: ActingStep, act: Callable[..., Any]) -> None:
    """Write a policy's step as a file, after comparing its actions with those of the policy on random observations.

    Args:
        path: A file that ends in .onnx or .pt2.
        acting: The step.
        act: The policy's `act`.

    Raises:
        ConfigError: another ending.
        MissingExtraError: ONNX without the extra `export`.
        NotAvailableError: a piece or the module cannot be exported, or acts otherwise as tensors.
        StorageError: the file cannot be written.
    """
    if path.suffix not in (".onnx", ".pt2"):
        found, do = path.name, "name it policy.onnx or policy.pt2"
        raise ConfigError("Policy.export", expected="a file that ends in .onnx or .pt2", found=found, do=do)
    if path.suffix == ".onnx":
        for package in ("onnx", "onnxscript"):
            import_extra(package, "export", "exporting a policy as ONNX")
    program = _program(acting)
    _compare(program.module(), acting, act)
    about = _about(acting, program)
    content = _onnx(program, about) if path.suffix == ".onnx" else _pt2(program, about)
    write_file(path, content, "exported policy")


def _program(acting: ActingStep) -> Any:
    inputs, states = acting.inputs(acting.sample(2), np.zeros(2)), acting.states(2)
    batch = torch.export.Dim("batch")
    shapes = tuple({name: {0: batch} for name in tensors} for tensors in (inputs, states))
    do = "write what it does with tensor operations: no Python branches on values, no NumPy, no fixed batch size"
    with _errors_of_torch(type(acting.module).__name__, "a step that torch.export can trace", do):
        return torch.export.export(acting, (inputs, states), dynamic_shapes=shapes, strict=False)


@contextmanager
def _errors_of_torch(what: str, expected: str, do: str) -> Iterator[None]:
    """Name what torch cannot do, and leave out its warnings, which are about itself."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except EpibatchError:
        raise
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise _cannot(what, expected, f"{type(cause).__name__}: {str(cause)[:300]}", do) from error


_DRAWS = 8


def _compare(program: Any, acting: ActingStep, act: Callable[..., Any]) -> None:
    """Raise an error if a program acts otherwise than a policy on random observations."""
    states, state = acting.states(3), None
    for draw in range(_DRAWS):
        obs, reward = acting.sample(3), np.linspace(-1, 1, 3) * draw
        try:
            expected, state = act(obs, state, reward=reward)
        except EpibatchError:
            continue  # not what the environment would give, such as a mask without a legal action
        actions, states = program(acting.inputs(obs, reward), states)
        for name, leaf in addresses_in(expected, Columns.ACTIONS).items():
            if not np.allclose(actions[name].numpy(), leaf, rtol=1e-4, atol=1e-4):
                raise _cannot(
                    name,
                    f"the actions of Policy.act, {leaf.tolist()} at step {draw}",
                    actions[name].tolist(),
                    "look for a piece whose run_tensors does other work than run: random, or overridden in part",
                )


def _about(acting: ActingStep, program: Any) -> dict[str, Any]:
    inputs = acting.inputs(acting.sample(1), np.zeros(1))
    actions, _ = program.module()(inputs, acting.states(1))
    return {
        "format": FORMAT,
        "version": __version__,
        "observation_space": _described(acting.observation_space),
        "action_space": _described(acting.action_space),
        "inputs": {name: _kind(tensor) for name, tensor in inputs.items()},
        "actions": {name: _kind(tensor) for name, tensor in actions.items()},
        "states": {
            name: {**_kind(value[None]), "initial": value.tolist() if value.any() else 0}
            for name, value in acting.initial.items()
        },
    }


def _described(space: Any) -> Any:
    try:
        return space_to_dict(space)
    except EpibatchError:  # a user's own kind of space
        return str(space)


def _kind(tensor: torch.Tensor) -> dict[str, Any]:
    return {"shape": ["batch", *tensor.shape[1:]], "dtype": str(tensor.dtype).removeprefix("torch.")}


def _onnx(program: Any, about: dict[str, Any]) -> bytes:
    names = [*about["actions"], *(f"next_{name}" for name in about["states"])]
    with _errors_of_torch("ONNX", "a step of operators that torch.onnx can write", "export it as policy.pt2"):
        written: Any = torch.onnx.export(
            program, input_names=[*about["inputs"], *about["states"]], output_names=names, dynamo=True, verbose=False
        )
    model = written.model_proto
    model.metadata_props.add(key=_ABOUT, value=json.dumps(about))
    content: bytes = model.SerializeToString()
    return content


def _pt2(program: Any, about: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    with _errors_of_torch("torch.export.save", "a step that it can write", "export it as policy.onnx"):
        torch.export.save(program, buffer)
    about = json.loads(json.dumps(about))
    about = {**about, "sha256": _sum_of(zipfile.ZipFile(buffer), about)}
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr(_MEMBER, json.dumps(about))
    return buffer.getvalue()


def _sum_of(archive: zipfile.ZipFile, about: dict[str, Any]) -> str:
    """The sum of all that is in an archive, and of its description, which will say what the sum is."""
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name in sorted(archive.namelist()):
        if name != _MEMBER:
            digest.update(f"{name}\0{archive.getinfo(name).file_size}\0".encode() + archive.read(name))
    return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class ExportedPolicy:
    """A policy from a file: a function of tensors, without pipelines.

    Attributes:
        program: `(inputs, states) -> (actions, next states)`, dicts of tensors `[N, ...]` by name, with any N.
        about: What the file says: `inputs`, `actions` and `states` with `shape`, `dtype` and `initial`, spaces,
            `version` of epibatch.
    """

    program: Any
    about: Mapping[str, Any]

    def initial_states(self, rows: int) -> Tensors:
        """Return the states at the start of episodes, tensors `[rows, ...]` by name.

        Args:
            rows: How many environments.
        """
        out = {}
        for name, state in self.about["states"].items():
            value = torch.tensor(state["initial"], dtype=getattr(torch, state["dtype"]))
            out[name] = value.expand(rows, *state["shape"][1:]).clone()
        return out


def load_exported(path: str | Path) -> ExportedPolicy:
    """Load a policy that `Policy.export("policy.pt2")` wrote. Load files that you trust only: torch reads them.

    Args:
        path: The file.

    Raises:
        CheckpointError: no such file, one of another format version, or one that was changed or damaged.
    """
    where, do = f"exported policy {path}", "export it again with this version: policy.export('policy.pt2')"
    try:
        content = read_file(Path(path))
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            about = json.loads(archive.read(_MEMBER))
            found = about["format"], about["version"], about.pop("sha256")
            checksum = _sum_of(archive, about)
    except (OSError, zipfile.BadZipFile, KeyError, TypeError, ValueError, NotImplementedError) as error:
        expected = "a file that Policy.export wrote as .pt2"
        raise CheckpointError(where, expected=expected, found=f"{type(error).__name__}: {error}", do=do) from error
    if found[0] != FORMAT:
        text = f"version {found[0]}, of epibatch {found[1]}"
        raise CheckpointError(where, expected=f"format version {FORMAT}", found=text, do=do)
    if found[2] != checksum:
        raise CheckpointError(where, expected=f"the sum {found[2]}", found=f"{checksum}: the file was changed", do=do)
    return ExportedPolicy(torch.export.load(io.BytesIO(content)).module(), about)
