"""The contract between networks and everything that calls them."""

from __future__ import annotations

import os
import tempfile
from abc import ABC
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import gymnasium as gym

from epibatch.core import DEFAULT_MODULE_ID
from epibatch.core.checkpoints import Checkpointable
from epibatch.core.errors import (
    CheckpointError,
    ColumnError,
    ConfigError,
    NotAvailableError,
    RunnerError,
    nearest,
)
from epibatch.core.rl_module.module_checkpoints import read_states

if TYPE_CHECKING:
    from epibatch.core.distributions.distribution import Distribution
    from epibatch.core.rl_module.multi_rl_module import MultiRLModule

__all__ = ["RLModule", "evaluation_mode"]

ModuleT = TypeVar("ModuleT", bound="RLModule")


@contextmanager
def evaluation_mode(module: Any) -> Iterator[None]:
    """Run a block with a module in evaluation mode: dropout is off, batch norm applies what it knows.

    Afterwards the parts that were in training mode are so again. Parts that you put into evaluation mode yourself
    stay there. If the module itself is in evaluation mode, or has no modes, nothing is changed.

    Args:
        module: A torch module, or any other one.
    """
    if not getattr(module, "training", False) or not hasattr(module, "modules"):
        yield
        return
    parts = [part for part in module.modules() if part.training]
    _set_training(parts, False)
    try:
        yield
    finally:
        _set_training(parts, True)


def _set_training(parts: list[Any], training: bool) -> None:
    for part in parts:
        if "training" in part.__dict__:  # past torch's __setattr__, which takes ten times as long
            part.__dict__["training"] = training
        else:
            part.training = training


_OPTIONS = ("observation_space", "action_space", "inference_only", "learner_only", "model_config")


class RLModule(Checkpointable, ABC):
    """A network (or any other policy) behind three forward methods: inference, exploration, training.

    Subclasses build what they need in `setup` and implement `_forward`, or one method per situation:
    `_forward_inference`, `_forward_exploration`, `_forward_train`. All take a dict of columns and give one.

    Args:
        observation_space: what the module sees, that is after the env-to-module connectors.
        action_space: what it decides on.
        inference_only: built for acting only; it refuses `forward_train` and may leave parts out.
        learner_only: built for training only; runners leave it out.
        model_config: a dict of options, or any config object; it is kept as it is, None becomes `{}`.

    Raises:
        ConfigError: an unknown keyword.

    Example:
        >>> class Still(RLModule):
        ...     framework = "numpy"
        ...     def _forward(self, batch, **kwargs):
        ...         return {"actions": [0] * len(batch["obs"])}
        >>> Still().forward_exploration({"obs": [1.0, 2.0]})
        {'actions': [0, 0]}
    """

    framework: str | None = None
    default_max_seq_len: ClassVar[int | None] = None
    """Rows per training sequence of a recurrent module whose `model_config` has no `max_seq_len`; None: it must."""
    handles_resets: ClassVar[bool] = False
    """Whether a recurrent module begins anew from `reset_states` where the column `resets` says so."""

    view_requirements: ClassVar[Mapping[str, Any]] = {}
    """Columns of other steps that the module reads, by name: `epibatch.connectors.views.View`s, or their arguments.

    Set it on the class: a config makes the pipelines before it builds the module. What `setup` sets is not seen.
    """

    _dist_cls: type[Distribution] | None = None

    def __init__(
        self,
        *,
        observation_space: gym.Space[Any] | None = None,
        action_space: gym.Space[Any] | None = None,
        inference_only: bool = False,
        learner_only: bool = False,
        model_config: Any = None,
        **kwargs: Any,
    ) -> None:
        for key in kwargs:
            raise ConfigError(
                f"{type(self).__name__}(...)",
                expected="a keyword of RLModule",
                found=repr(key),
                do=f"{nearest(key, _OPTIONS)}; options of your own belong into model_config",
            )
        self.observation_space = observation_space
        self.action_space = action_space
        self.inference_only = inference_only
        self.learner_only = learner_only
        self.model_config: Any = {} if model_config is None else model_config
        self._is_stateful: bool | None = None
        self.setup()

    def setup(self) -> None:
        """Build the module; called once, at the end of the constructor."""

    @classmethod
    def get_view_requirements(cls, model_config: Any) -> Mapping[str, Any]:
        """The views that a module with these options reads; a config puts them into both pipelines.

        Args:
            model_config: the options that the module will be built with.

        Returns:
            Name of the column -> View, or a dict of its arguments; by default `view_requirements`.
        """
        return cls.view_requirements

    def get_initial_state(self) -> Any:
        """The recurrent state an episode starts with: a dict of unbatched arrays or tensors, empty without one."""
        return {}

    def is_stateful(self) -> bool:
        """Whether the module has a recurrent state.

        Raises:
            ColumnError: `get_initial_state` gave something other than a dict.
        """
        if self._is_stateful is None:
            state = self.get_initial_state()
            if not isinstance(state, Mapping):
                raise ColumnError(
                    f"{type(self).__name__}.get_initial_state",
                    expected="a dict of unbatched arrays, empty for a module without a state",
                    found=type(state).__name__,
                    do='give every part a name, for example {"h": torch.zeros(64)}',
                )
            self._is_stateful = bool(state)
        return self._is_stateful

    def forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """The outputs for acting greedily.

        Args:
            batch: columns with the batch axis first; `obs`, and `state_in` if the module is stateful.

        Returns:
            Columns: `action_dist_inputs` or `actions`, `state_out` if stateful, and any others.
        """
        return self._forward_inference(batch, **kwargs)

    def forward_exploration(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """The outputs for acting with exploration; columns as for `forward_inference`."""
        return self._forward_exploration(batch, **kwargs)

    def forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """The outputs that a loss needs; columns as for `forward_inference`.

        Raises:
            RunnerError: the module was built with `inference_only=True`.
        """
        if self.inference_only:
            raise RunnerError(
                f"{type(self).__name__}.forward_train",
                expected="a module built for training",
                found="inference_only=True",
                do="build it with inference_only=False, or call forward_inference",
            )
        return self._forward_train(batch, **kwargs)

    def _forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return self._forward(batch, **kwargs)

    def _forward_exploration(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return self._forward(batch, **kwargs)

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return self._forward(batch, **kwargs)

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        raise NotAvailableError(
            f"{type(self).__name__}._forward",
            expected="a module that implements _forward, or _forward_inference, "
            "_forward_exploration and _forward_train",
            found="none of them",
            do="implement _forward(self, batch, **kwargs) and return a dict of columns",
        )

    def get_inference_action_dist_cls(self) -> type[Distribution]:
        """The distribution class of `forward_inference`'s `action_dist_inputs`.

        Raises:
            SpaceError: none fits the action space.
        """
        return self._default_dist_cls()

    def get_exploration_action_dist_cls(self) -> type[Distribution]:
        """The distribution class of `forward_exploration`'s `action_dist_inputs`.

        Raises:
            SpaceError: none fits the action space.
        """
        return self._default_dist_cls()

    def get_train_action_dist_cls(self) -> type[Distribution]:
        """The distribution class of `forward_train`'s `action_dist_inputs`.

        Raises:
            SpaceError: none fits the action space.
        """
        return self._default_dist_cls()

    def _default_dist_cls(self) -> type[Distribution]:
        """The class for the action space, made once: asking for it is part of every step."""
        if self._dist_cls is None:
            self._dist_cls = self._make_dist_cls()
        return self._dist_cls

    def _make_dist_cls(self) -> type[Distribution]:
        from epibatch.core.distributions.choosing import distribution_for

        return distribution_for(self.action_space)

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles carry: not the distribution class, which may have no importable name."""
        return {**self.__dict__, "_dist_cls": None}

    def unwrapped(self) -> RLModule:
        """The module without wrappers, for example of distributed training."""
        return self

    def as_multi_rl_module(self) -> MultiRLModule:
        """A MultiRLModule that holds this module under the default module id."""
        from epibatch.core.rl_module.multi_rl_module import MultiRLModule

        multi = MultiRLModule()
        multi.add_module(DEFAULT_MODULE_ID, self)
        return multi

    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        inference_only: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Everything needed to restore the module, as a dict of NumPy arrays.

        Args:
            components: accepted for all checkpointable classes; a module has no parts to choose from.
            not_components: likewise.
            inference_only: leave out what acting does not need.
        """
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over what `get_state` gave."""

    def save_to_path(self, path: str | os.PathLike[str] | None = None, *, state: dict[str, Any] | None = None) -> str:
        """Write the state to a folder, with what it takes to build the module, and return the path.

        Args:
            path: the folder; None makes a new one among the system's temporary files.
            state: what to write instead of `get_state()`.

        Raises:
            CheckpointError: the state holds something that cannot be saved as data.
        """
        from epibatch.core.rl_module.multi_rl_module_spec import write_module

        if path is None:
            path = tempfile.mkdtemp(prefix="epibatch-")
        return write_module(path, self, self.get_state() if state is None else state)

    def restore_from_path(self, path: str | os.PathLike[str], *, component: str | None = None) -> None:
        """Take over the state in a folder that `save_to_path` wrote.

        Args:
            path: the folder; `"folder/main"` is the module `main` of the several in it.
            component: the same id by itself. Of other states than modules' the names that lead to the module's, such as
                `"state/learner/module/main"` in the checkpoint of an Algorithm.

        Raises:
            CheckpointError: the folder is missing, incomplete, damaged or of another version, has no such part, or the
                state does not fit; the module is as it was.
        """
        self.set_state(read_states(path, component))

    @classmethod
    def from_checkpoint(
        cls: type[ModuleT],
        path: str | os.PathLike[str],
        *,
        component: str | None = None,
        allow_imports: bool = False,
    ) -> ModuleT:
        """Build a module from a folder that `save_to_path` wrote.

        Args:
            path: the folder; `"folder/main"` is the module `main` of the several in it.
            component: the same id by itself.
            allow_imports: whether a class of yours may be imported by its path; importing runs code.

        Raises:
            CheckpointError: the folder cannot be read, has no such module, or how to build it is no data: a class
                defined in a script, or functions among the options.
        """
        from epibatch.core.rl_module.multi_rl_module_spec import build_module

        module = build_module(path, component, allow_imports=allow_imports)
        if not isinstance(module, cls):
            raise CheckpointError(
                f"{cls.__name__}.from_checkpoint({str(path)!r})",
                expected=f"a {cls.__name__}",
                found=type(module).__name__,
                do=f"use {type(module).__name__}.from_checkpoint",
            )
        return module
