"""Samples actions from a module's distribution inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium as gym
import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, PipelineError
from epibatch.core.random_streams import seed_of
from epibatch.core.restoring import restore_torch_generator
from epibatch.core.rl_module.module_facts import check_given, has_method
from epibatch.core.spaces import get_base_struct_from_space
from epibatch.core.structs import flatten, map_struct

from .._engine.chunks import ChunkGroup
from ..columnar_piece import Piece
from ..tensor_step import TensorStep
from .normalize_and_clip_actions import forget_counted, note_counted

if TYPE_CHECKING:
    import torch

    from epibatch.core.distributions.distribution import Distribution

__all__ = ["GetActions"]

_DRAWN = {Columns.ACTION_DIST_INPUTS, Columns.ACTIONS, Columns.ACTION_LOGP}


class GetActions(Piece):
    """Adds `actions` and `action_logp` from `action_dist_inputs`.

    With `explore` actions are sampled from the module's exploration distribution; without, and where
    nothing is said (None), its inference distribution's most likely action is taken. Actions that the
    module gave itself stay; their log-probability is added if the inputs are there. A module that names no
    distribution, a plain `torch.nn.Module`, has the one that `distribution_for` gives for the action space.

    Counterparts: RLlib's `GetActions`.
    Actions are drawn on the CPU; in a step in tensors on the device of the inputs, from a random stream of its own.
    """

    pipelines: ClassVar[tuple[str, ...]] = ("module_to_env",)
    input_layouts: ClassVar[tuple[str, ...]] = ("tensors",)
    writes: ClassVar[tuple[str, ...]] = (Columns.ACTIONS, Columns.ACTION_LOGP)

    def __post_init__(self) -> None:
        """Begin with the module's distributions unknown."""
        self._generator: torch.Generator | None = None
        self._generators: dict[torch.device, torch.Generator] = {}
        self._device_state: Any = None
        self._widths: dict[tuple[Any, type], int] = {}
        self._distributions: dict[tuple[Any, type], type[Distribution]] = {}
        self._counted: set[tuple[Any, type]] = set()

    def seed(self, seed: np.random.SeedSequence | int) -> None:
        """Draw from a random stream of this piece's own from now on."""
        import torch

        sequence = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
        self._generator = torch.Generator().manual_seed(seed_of(sequence, bits=63))
        self._generators, self._device_state = {}, None

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Add the columns."""
        return self._run(columns, group)

    def run_tensors(self, columns: dict[str, Any], step: TensorStep) -> dict[str, Any]:
        """Add the columns, on the device of the inputs."""
        return self._run(columns, step.group, on_device=True)

    def _run(self, columns: dict[str, Any], group: ChunkGroup, *, on_device: bool = False) -> dict[str, Any]:
        inputs, has_actions = columns.get(Columns.ACTION_DIST_INPUTS), Columns.ACTIONS in columns
        if has_actions:
            forget_counted(group)
        if inputs is None:
            if has_actions or not len(group.episodes):
                return columns
            raise ColumnError(
                "GetActions",
                expected=f"{Columns.ACTION_DIST_INPUTS!r} or {Columns.ACTIONS!r} among the module's outputs",
                found=str(sorted(map(str, columns))),
                do="return one of them from the module's _forward",
            )
        if has_actions and Columns.ACTION_LOGP in columns:
            return columns
        if not getattr(inputs, "is_cpu", False) and not (on_device and hasattr(inputs, "detach")):
            inputs = _inputs_on_cpu(columns)
        module = group.rl_module
        explore: Any = group.call.explore
        if module is None:
            check_given(module, "GetActions", "which says what distribution its outputs are of")
        key = group.module_id, type(module)
        if inputs.ndim == 0 or inputs.shape[-1] != self._widths.get(key):
            self._check_width(group, inputs, key)
        if key in self._distributions and not has_method(module, "get_exploration_action_dist_cls"):
            distribution = self._distributions[key].from_logits(inputs)
        elif not explore:
            distribution = module.get_inference_action_dist_cls().from_logits(inputs)
        else:
            distribution = module.get_exploration_action_dist_cls().from_logits(inputs)
        if not has_actions:
            if not explore:
                distribution = distribution.to_mean() if explore == "mean" else distribution.to_deterministic()
            columns[Columns.ACTIONS] = self._sample(distribution, group, key, inputs)
        if Columns.ACTION_LOGP not in columns:
            if has_actions:
                columns[Columns.ACTIONS] = _tensors(columns[Columns.ACTIONS])
            logp = columns[Columns.ACTION_LOGP] = distribution.logp(columns[Columns.ACTIONS])
            checked = logp if explore else inputs  # a greedy action's probability is 1 whatever it is
            if checked.is_cpu and _has_nan(checked):
                raise self._not_a_number(module, checked)
        return columns

    def _check_width(self, group: ChunkGroup, inputs: Any, key: tuple[Any, type]) -> None:
        """Refuse distribution inputs of another number than the action space takes.

        A module that names no distribution has the one for the action space from then on.
        """
        module = group.rl_module
        width = inputs.shape[-1] if inputs.ndim else 0
        if not inputs.is_floating_point():
            raise _no_tensor(inputs)
        space = getattr(module, "action_space", None)  # which need not be the environment's
        named = has_method(module, "get_exploration_action_dist_cls")
        if space is None and not (group.several and named):
            space = self._space_of(group)
        if named:
            distribution = module.get_exploration_action_dist_cls()
        elif space is None:
            name = type(module).__name__
            raise PipelineError(
                "GetActions",
                expected="a module that names the distribution of its outputs, or an action space to choose one for",
                found=f"{name}, which has no get_exploration_action_dist_cls, and no action space",
                do=f"give the pipeline its spaces, or {name} an attribute action_space",
            )
        else:
            from epibatch.core.distributions.choosing import distribution_for

            distribution = self._distributions[key] = distribution_for(space)
        expected = None if space is None else _inputs_of(distribution, space)
        if expected is not None and width != expected:
            raise ColumnError(
                f"column {Columns.ACTION_DIST_INPUTS!r} of {type(module).__name__}",
                expected=f"{expected} inputs per row for {space}",
                found=f"shape {list(inputs.shape)}",
                do="give the module's last layer as many outputs as the action distribution takes",
            )
        if space is not None:
            self._widths[key] = width
            if any(_counts_from_low(leaf) for leaf in flatten(get_base_struct_from_space(space))[0]):
                self._counted.add(key)

    def _space_of(self, group: ChunkGroup) -> Any:
        """The action space of the piece for a module, if there is one."""
        space = self.input_action_space
        return space.spaces.get(group.module_id) if group.several and isinstance(space, gym.spaces.Dict) else space

    def _not_a_number(self, module: Any, found: torch.Tensor) -> ColumnError:
        import torch

        rows = torch.isnan(found).flatten(1).any(1) if found.ndim > 1 else torch.isnan(found)
        return ColumnError(
            f"column {Columns.ACTION_DIST_INPUTS!r} of {type(module).__name__}",
            expected="numbers",
            found=f"NaN in rows {torch.nonzero(rows).flatten().tolist()[:10]}",
            do="look for NaN in the observations and the module's weights (a learning rate that is too high?)",
        )

    def _sample(self, distribution: Any, group: ChunkGroup, key: tuple[Any, type], inputs: torch.Tensor) -> Any:
        if key in self._counted:
            note_counted(group)
        if self._generator is None:
            return distribution.sample()
        generator = self._generator if inputs.is_cpu else self._generator_on(inputs.device, self._generator)
        return distribution.sample(generator=generator)

    def _generator_on(self, device: torch.device, on_cpu: torch.Generator) -> torch.Generator:
        """Return the random stream of a device other than the CPU; the seed or the state of the piece decides it."""
        import torch

        generator = self._generators.get(device)
        if generator is None:
            generator = self._generators[device] = torch.Generator(device)
            if self._device_state is None:
                generator.manual_seed(on_cpu.initial_seed())
            else:
                restore_torch_generator("GetActions.set_state", generator, self._device_state)
        return generator

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """The state of the random stream, if the piece was seeded."""
        if self._generator is None:
            return {}
        state = {"generator": self._generator.get_state().numpy().copy()}
        for generator in self._generators.values():  # of the one device that a runner is on
            state["device_generator"] = generator.get_state().numpy().copy()
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over a random stream."""
        import torch

        if "generator" in state:
            generator = torch.Generator()
            restore_torch_generator("GetActions.set_state", generator, state["generator"])
            self._generator = generator
            self._generators, self._device_state = {}, state.get("device_generator")


def _tensors(actions: Any) -> Any:
    """Return a module's own actions, which may be lists or arrays, as tensors."""
    import torch

    return map_struct(torch.as_tensor, actions)


def _inputs_of(distribution: Any, space: gym.Space[Any]) -> int | None:
    """Return the number of inputs that a distribution class takes for a space; None if it does not say."""
    required = getattr(distribution, "required_input_dim", None)
    try:
        return None if required is None else int(required(space))
    except KeyError:  # a class of RLlib's that was made for one module and not told its space
        return None


def _inputs_on_cpu(batch: dict[str, Any]) -> torch.Tensor:
    """Distribution inputs as a tensor where the random stream is, which is where the environment needs the actions."""
    import torch

    inputs = batch[Columns.ACTION_DIST_INPUTS]
    if isinstance(inputs, np.ndarray):
        batch[Columns.ACTION_DIST_INPUTS] = torch.from_numpy(inputs)
    elif isinstance(inputs, torch.Tensor):
        batch.update({name: map_struct(torch.Tensor.cpu, batch[name]) for name in _DRAWN & batch.keys()})
    else:
        raise _no_tensor(inputs)
    found: torch.Tensor = batch[Columns.ACTION_DIST_INPUTS]
    return found


def _counts_from_low(leaf: Any) -> bool:
    """True if choices of a space are counted from its lower bound."""
    return isinstance(leaf, gym.spaces.Box) and np.dtype(leaf.dtype).kind in "iu"


def _has_nan(tensor: torch.Tensor) -> bool:
    """True if there is NaN, which is not equal to itself, in a tensor on the CPU."""
    import torch

    return not torch.compiler.is_compiling() and not tensor.equal(tensor)  # torch.export has no values


def _no_tensor(inputs: Any) -> ColumnError:
    import torch

    return ColumnError(
        f"column {Columns.ACTION_DIST_INPUTS!r} of the module's outputs",
        expected="a tensor of floats, one row per observation",
        found=f"a tensor of {inputs.dtype}" if isinstance(inputs, torch.Tensor) else type(inputs).__name__,
        do="return what the network's last layer gives",
    )
