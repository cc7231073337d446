"""A learner's modules to update, and their settings that differ from the common ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field, replace
from typing import Annotated, Any, TypeAlias

import numpy as np
from pydantic import ConfigDict, PlainValidator
from pydantic.dataclasses import dataclass

from epibatch.core.errors import ConfigError, UnknownNameError, add_context, nearest
from epibatch.core.settings import Expected, expect, reported

__all__ = ["MultiAgentSettings", "PoliciesToTrain"]

PoliciesToTrain: TypeAlias = Collection[str] | Callable[[str, Any], bool] | None
"""Ids of modules, or `function(module_id, batch) -> bool`, or None for all."""


def _ids_or_function(rule: Any) -> Any:
    fits = rule is None or callable(rule) or (isinstance(rule, Collection) and not isinstance(rule, str))
    expect(fits, "module ids, a function (module_id, batch) -> bool, or None for all modules")
    return rule


def _error(name: str, wanted: str, value: Any) -> ConfigError:
    known = ("overrides_per_module", "policies_to_train")
    if name not in known:
        return ConfigError("MultiAgentSettings", expected=" or ".join(known), found=name, do=nearest(name, known))
    do = 'write {"main": {"lr": 1e-4}}, for example'
    if name == "policies_to_train":
        do = f"write [{value!r}]" if isinstance(value, str) else "list the ids, or leave it out"
    return ConfigError(name, expected=wanted, found=repr(value), do=do)


_Overrides = Annotated[Mapping[Any, Mapping[Any, Any]], Expected("a dict of settings for each module's id")]


@reported(_error)
@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class MultiAgentSettings:
    """The modules of a learner to update, and their own settings.

    Args:
        overrides_per_module: module id -> settings of its own: fields of `LearnerSettings`, `loss`, and
            fields of the loss's settings, such as `{"lr": 1e-4, "minibatch_size": 64, "entropy_coeff": 0.01}`.
        policies_to_train: the ids of the modules to update; or a function of a module's id and the
            train batch `{module_id: {column: tensor}}` that returns True to update the module; None updates
            all. The others get no optimiser.

    Raises:
        ConfigError: one of them is of another form.

    Example:
        >>> settings = MultiAgentSettings(policies_to_train=["main"])
        >>> settings.should_be_updated("main"), settings.should_be_updated("past")
        (True, False)
    """

    overrides_per_module: _Overrides = field(default_factory=dict)
    policies_to_train: Annotated[PoliciesToTrain, PlainValidator(_ids_or_function)] = None

    @property
    def known_ids(self) -> frozenset[str] | None:
        """The ids of the modules to update, if they are known without a batch."""
        rule = self.policies_to_train
        return None if rule is None or callable(rule) else frozenset(rule)

    def check_ids(self, known: Iterable[str]) -> None:
        """Check that every named module exists.

        Raises:
            UnknownNameError: one does not.
        """
        names = list(known)
        for where, named in (
            ("overrides_per_module", self.overrides_per_module),
            ("policies_to_train", sorted(self.known_ids or (), key=str)),
        ):
            for module_id in named:
                if module_id not in names:
                    raise UnknownNameError(
                        where,
                        expected="ids of modules that the learner holds",
                        found=repr(module_id),
                        do=nearest(str(module_id), map(str, names)),
                    )

    def should_be_updated(self, module_id: str, batch: Any = None) -> bool:
        """True if a module is updated by a batch.

        Raises:
            ConfigError: the function returned something other than True or False.
        """
        rule = self.policies_to_train
        if rule is None:
            return True
        if not callable(rule):
            return module_id in rule
        where = f"policies_to_train({module_id!r}, batch)"
        try:
            answer = rule(module_id, batch)
        except Exception as error:
            add_context(error, f"in {where}:")
            raise
        if not isinstance(answer, (bool, np.bool_)):
            raise ConfigError(
                where, expected="True or False", found=repr(answer), do="let the function return one of them"
            )
        return bool(answer)

    def with_module(self, module_id: str, overrides: Mapping[str, Any] | None) -> MultiAgentSettings:
        """Return these settings with overrides for one more module."""
        if overrides is None:
            return self
        return replace(self, overrides_per_module={**self.overrides_per_module, module_id: overrides})

    def without_module(self, module_id: str) -> MultiAgentSettings:
        """Return these settings without those of a module."""
        overrides = {key: own for key, own in self.overrides_per_module.items() if key != module_id}
        rule = self.policies_to_train
        if rule is not None and not callable(rule):
            rule = [key for key in rule if key != module_id]
        return MultiAgentSettings(overrides, rule)
