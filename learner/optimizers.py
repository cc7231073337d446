"""Optimisers of a module's groups of parameters: construction, clipping, and their state under parameter names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from epibatch.core.errors import CheckpointError, ConfigError
from epibatch.core.imports import load_object
from epibatch.core.restoring import check_like, restoring
from epibatch.core.schedules import value_at

from .loss import no_gradient, no_loss
from .settings import OPTIMIZERS, LearnerSettings
from .update_rule import Group

_FUSED = (torch.optim.Adam, torch.optim.AdamW)
_NOT_NEGATIVE = ("step", "exp_avg_sq", "max_exp_avg_sq", "square_avg")


class GroupOptimizers:
    """The optimisers of one module: one for each loss of its update rule.

    Args:
        module: The module.
        own: What the rule keeps for it, or None.
        groups: Name of a loss -> the parameters that it moves, and their settings.
        settings: The module's settings, for what a group leaves open.

    Attributes:
        parameters: those of all groups, group after group.

    Raises:
        ConfigError: a group has a parameter of another module, or of another group; a trainable parameter is in none;
            or a setting is wrong.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        own: torch.nn.Module | None,
        groups: Mapping[str, Group],
        settings: LearnerSettings,
    ) -> None:
        groups = {name: Group(group) if isinstance(group, torch.nn.Module) else group for name, group in groups.items()}
        self._names = set(groups)
        self._groups = {
            name: GroupOptimizer(parameters, settings.with_changes(**groups[name].settings))
            for name, parameters in _parameters_of(groups, module, own).items()
        }
        self._lrs = {name: groups[name].settings["lr"] for name in self._groups if "lr" in groups[name].settings}
        self.parameters = [parameter for group in self._groups.values() for parameter in group.parameters]

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of the steps from here on, of groups that have none of their own."""
        for name in self._groups.keys() - self._lrs.keys():
            self._groups[name].set_lr(lr)

    def set_scheduled_lrs(self, num_env_steps: int) -> dict[str, float]:
        """Set the learning rates of groups that have their own, and return them as `<group>_lr`.

        Args:
            num_env_steps: Environment steps learned from so far.
        """
        rates = {name: value_at(lr, num_env_steps) for name, lr in self._lrs.items()}
        for name, rate in rates.items():
            self._groups[name].set_lr(rate)
        return {f"{name}_lr": rate for name, rate in rates.items()}

    def backward(self, losses: Mapping[str, torch.Tensor]) -> None:
        """Replace the gradients by those of some losses, each on the parameters of its group alone.

        Raises:
            ConfigError: a loss has no group, or none of its group's parameters gets a gradient.
        """
        for group in self._groups.values():
            group.zero_grad()
        unknown = losses.keys() - self._names
        if unknown:
            raise no_loss(
                f"losses {sorted(unknown)}", f"name them as groups() does: {', '.join(sorted(self._names))}", "Losses"
            )
        for place, (name, loss) in enumerate(losses.items(), 1):
            if name not in self._groups:  # all of its parameters are frozen
                continue
            parameters = self._groups[name].parameters
            if not isinstance(loss, torch.Tensor) or loss.ndim:
                found = f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
                raise no_loss(f"loss {name!r}: {found}", "take its mean over the rows", "a tensor without axes")
            if not loss.requires_grad:
                raise no_gradient(name)
            loss.backward(inputs=parameters, retain_graph=place < len(losses))  # type: ignore[no-untyped-call]
            if not self._groups[name].has_gradients() and loss.detach() != 0:
                raise no_gradient(name)

    def clip(self) -> torch.Tensor:
        """Clip each group's gradients as its settings say and return the global norm of all before clipping."""
        norms = [group.clip() for group in self._groups.values()]
        return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))

    def step(self) -> None:
        """Apply the gradients; parameters without any stay as they are."""
        for group in self._groups.values():
            group.step()

    def get_state(self) -> dict[str, dict[str, Any]]:
        """Return copies of the optimisers' values: parameter name -> {value name: array or number}."""
        return {name: values for group in self._groups.values() for name, values in group.get_state().items()}

    def set_state(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore a state from `get_state`.

        Raises:
            CheckpointError: the state belongs to other parameters, or an entry does not fit.
        """
        names = {name for group in self._groups.values() for name in group.names}
        with restoring("optimiser state", "optimizers"):
            if set(state) != names:
                raise _state_error(f"values for {sorted(names)}", f"values for {sorted(state)}")
            for group in self._groups.values():
                group.set_state(state)


def _parameters_of(
    groups: Mapping[str, Group], module: torch.nn.Module, own: torch.nn.Module | None
) -> dict[str, dict[str, torch.nn.Parameter]]:
    """Return the parameters of each group that has some, by name, in the order of the module's."""
    known = dict(module.named_parameters())
    known.update({f"own.{name}": parameter for name, parameter in (own.named_parameters() if own else ())})
    trainable = {name: parameter for name, parameter in known.items() if parameter.requires_grad}
    owners = {key: [name for name, group in groups.items() if id(p) in group.ids] for key, p in trainable.items()}
    wrong = [f"{key} in {' and '.join(names) or 'none'}" for key, names in owners.items() if len(names) != 1]
    if set().union(*(group.ids for group in groups.values())) - {id(p) for p in trainable.values()}:
        wrong.append("a parameter of another module")
    if wrong:
        raise ConfigError(
            "groups of the update rule",
            expected="each trainable parameter of the module, and of what make_own returned, in one group",
            found=", ".join(wrong),
            do="let one loss move what several share, and call requires_grad_(False) on what none moves",
        )
    found = {name: {key: p for key, p in trainable.items() if owners[key] == [name]} for name in groups}
    return {name: parameters for name, parameters in found.items() if parameters}


class GroupOptimizer:
    """Steps the parameters of one group.

    Adam and AdamW run fused, which on one CPU core takes under a third of the per-tensor loop's time; where the
    installed torch has no fused kernel for the device, torch's default is used.

    Args:
        parameters: Name -> parameter, all requiring gradients.
        settings: Optimiser, learning rate and clipping.

    Attributes:
        names: of the parameters.
        parameters: in this order.

    Raises:
        ConfigError: the optimiser does not accept these keywords, or is no optimiser.
    """

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], settings: LearnerSettings) -> None:
        self.names = list(parameters)
        self.parameters = list(parameters.values())
        self._settings = settings
        first = value_at(settings.lr, 0) or 1.0
        self._optimizer = _make_optimizer(settings.optimizer, self.parameters, first)
        self._shares = [group["lr"] / first for group in self._optimizer.param_groups]

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of the steps from here on; groups of parameters keep their share of it."""
        for group, share in zip(self._optimizer.param_groups, self._shares):
            group["lr"] = lr * share

    def zero_grad(self) -> None:
        """Clear the gradients of the last minibatch."""
        for parameter in self.parameters:
            parameter.grad = None

    def has_gradients(self) -> bool:
        """True if a parameter has a gradient."""
        return any(parameter.grad is not None for parameter in self.parameters)

    def clip(self) -> torch.Tensor:
        """Clip the gradients as the settings say and return their global norm before clipping."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        if not gradients:
            return torch.zeros((), device=self.parameters[0].device)
        norms = torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients])
        total: torch.Tensor = torch.linalg.vector_norm(norms)
        bound = self._settings.grad_clip
        if bound is None:
            return total
        if self._settings.grad_clip_by == "value":
            for gradient in gradients:
                gradient.clamp_(-bound, bound)
        elif self._settings.grad_clip_by == "norm":
            for gradient, norm in zip(gradients, norms):
                gradient.mul_((bound / (norm + 1e-6)).clamp(max=1.0))
        elif float(total) > bound:
            scale = bound / (total + 1e-6)
            for gradient in gradients:
                gradient.mul_(scale)
        return total

    def step(self) -> None:
        """Apply the gradients."""
        self._optimizer.step()

    def get_state(self) -> dict[str, dict[str, Any]]:
        """Return copies of the optimiser's values: parameter name -> {value name: array or number}."""
        state: dict[str, dict[str, Any]] = {}
        for name, parameter in zip(self.names, self.parameters):
            values = self._optimizer.state.get(parameter, {})
            state[name] = {key: to_array(value) for key, value in values.items() if value is not None}
        return state

    def set_state(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore a state from `get_state`, which may have entries for other parameters too.

        Every entry is compared with its parameter first, as torch's fused kernels do not check sizes.

        Raises:
            CheckpointError: an entry has another name, shape or type, or numbers that the optimiser never has; nothing
                was changed.
        """
        values = self._values(state)
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": values, "param_groups": groups})

    def _values(self, state: Mapping[str, Mapping[str, Any]]) -> dict[int, dict[str, torch.Tensor]]:
        values: dict[int, dict[str, torch.Tensor]] = {}
        for index, (name, like) in enumerate(zip(self.names, self._templates())):
            entry = state[name]
            if isinstance(entry, Mapping) and not entry:  # no step was taken yet
                continue
            check_like(f"optimiser state of {name!r}", entry, like)
            tensors = values[index] = {key: torch.from_numpy(np.array(value)) for key, value in entry.items()}
            for key, value in tensors.items():
                lowest = 0.0 if key in _NOT_NEGATIVE else -math.inf
                if not torch.isfinite(value).all() or (value < lowest).any():
                    expected = f"a finite {key}" + (" from 0" if key in _NOT_NEGATIVE else "")
                    raise _state_error(expected, f"NaN, infinite or negative numbers in that of {name!r}")
        return values

    def _templates(self) -> list[dict[str, Any]]:
        """Return what the optimiser keeps for each parameter, read from other parameters after their first step."""
        tried = [torch.nn.Parameter(torch.zeros_like(parameter)) for parameter in self.parameters]
        for parameter in tried:
            parameter.grad = torch.zeros_like(parameter)
        optimizer = _make_optimizer(self._settings.optimizer, tried, 1.0)
        optimizer.step()
        kept = [optimizer.state[parameter] for parameter in tried]
        return [{k: v if np.shape(v) else 0.0 for k, v in values.items() if v is not None} for values in kept]


def _make_optimizer(choice: Any, parameters: list[torch.nn.Parameter], lr: float) -> torch.optim.Optimizer:
    options = dict(choice) if isinstance(choice, Mapping) else {"optimizer": choice}
    kind = options.pop("optimizer")
    if isinstance(kind, str):
        kind = load_object(OPTIMIZERS.get(kind, kind), "optimizer")
    fused = {"fused": True} if kind in _FUSED and not {"fused", "foreach"} & options.keys() else {}
    try:
        try:
            optimizer = kind(parameters, lr=lr, **fused, **options)
        except RuntimeError:
            if not fused:
                raise
            optimizer = kind(parameters, lr=lr, **options)
    except (TypeError, ValueError) as error:
        expected, do = f"keywords that {_name(kind)} takes", "correct the keywords of training(optimizer=...)"
        raise ConfigError("optimizer", expected=expected, found=f"{options}: {error}", do=do) from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        expected, do = "a torch.optim.Optimizer", "give its class, or a function that returns one"
        raise ConfigError(f"optimizer, {_name(kind)}(...)", expected=expected, found=type(optimizer).__name__, do=do)
    return optimizer


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", repr(kind))


def to_array(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        tensor = value.detach().cpu()
        return np.array((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy())
    return value


def _state_error(expected: str, found: str) -> CheckpointError:
    return CheckpointError(
        "optimiser state", expected=expected, found=found, do="restore into the module it was saved with"
    )
