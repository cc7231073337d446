"""A config's settings in sections: what they are, how they change together, and how they are read."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from epibatch.core.devices import missing_device
from epibatch.core.errors import ConfigError

from .evaluation_config import note_overrides
from .multi_agent_config import note_module_settings, note_policies
from .other_libraries import setting_advice, unknown_attribute
from .pipelines import PIPELINES, check_hook
from .setting_checks import note_contradictions, note_distribution, note_import_paths
from .settings import (
    ALIASES,
    CallbackSettings,
    CheckpointingSettings,
    DebuggingSettings,
    EnvironmentSettings,
    EnvRunnerSettings,
    EvaluationSettings,
    LearnerSectionSettings,
    MultiAgentSectionSettings,
    Problems,
    ReportingSettings,
    RLModuleSettings,
    Section,
    StopSettings,
    TrainingSettings,
    check_section,
    fitting_part,
    resolve_aliases,
    setting_names,
)

__all__ = ["SectionValues"]

SelfT = TypeVar("SelfT", bound="SectionValues")


class SectionValues:
    """Settings by section, each section checked as a whole and frozen; attributes read and set single ones.

    Args:
        allow_imports: whether a piece in a list of specs may be named by an import path; importing runs code.
    """

    algorithm: ClassVar[str] = ""
    sections: ClassVar[dict[str, type[Section]]] = {
        "environment": EnvironmentSettings,
        "env_runners": EnvRunnerSettings,
        "learners": LearnerSectionSettings,
        "training": TrainingSettings,
        "rl_module": RLModuleSettings,
        "multi_agent": MultiAgentSectionSettings,
        "evaluation": EvaluationSettings,
        "callbacks": CallbackSettings,
        "debugging": DebuggingSettings,
        "reporting": ReportingSettings,
        "checkpointing": CheckpointingSettings,
        "stop": StopSettings,
    }

    def __init__(self, *, allow_imports: bool = False) -> None:
        self._allow_imports = allow_imports
        self._in_evaluation = False
        self._settings: dict[str, Section] = {name: model() for name, model in self.sections.items()}
        self._pipelines: dict[str, Any] = dict.fromkeys(PIPELINES)

    def change(self: SelfT, method: str, parts: Mapping[str, Mapping[str, Any]]) -> SelfT:
        """Check new settings of some sections together; adopt all of them or none."""
        problems = Problems()
        changed = {section: self.check(section, settings, problems) for section, settings in parts.items()}
        problems.raise_if_any(f"{type(self).__name__}.{method}")
        for section, (settings, pipelines) in changed.items():
            self._settings[section] = settings
            self._pipelines.update(pipelines)
        return self

    def check(self, section: str, new: Mapping[str, Any], problems: Problems) -> tuple[Any, dict[str, Any]]:
        """One section's settings with the new ones, as far as they are right, and its new pipelines."""
        values = resolve_aliases(section, new, problems)
        pipelines: dict[str, Any] = {}
        for name, hook in PIPELINES.items():
            if hook.section == section and hook.setting in values:
                pipelines[name] = values.pop(hook.setting)
                path = f"{section}.{hook.setting}"
                check_hook(hook, pipelines[name], path, problems, allow_imports=self._allow_imports)
        given = self.given(section)
        if section == "rl_module" and isinstance(values.get("model_config"), Mapping):
            values["model_config"] = {**given.get("model_config", {}), **values["model_config"]}
        model = self.sections[section]
        merged = {**given, **values}
        settings = check_section(section, model, merged, problems, self.places()) or fitting_part(model, merged)
        note_distribution(section, settings, problems)
        if isinstance(settings, EvaluationSettings):
            note_overrides(settings.evaluation_config, type(self), problems)
        if isinstance(settings, MultiAgentSectionSettings):
            note_module_settings(settings, type(self), problems)
        if isinstance(settings, CallbackSettings):
            note_import_paths(settings, problems, allow_imports=self._allow_imports)
        return settings, pipelines

    def all_settings(self, section: str) -> dict[str, Any]:
        """Every setting of a section, by the names that users write."""
        current = self._settings[section]
        return {field.alias or name: getattr(current, name) for name, field in type(current).model_fields.items()}

    def given(self, section: str) -> dict[str, Any]:
        """The settings of a section that were set, by the names that users write."""
        current = self._settings[section]
        return {
            field.alias or name: getattr(current, name)
            for name, field in type(current).model_fields.items()
            if name in current.model_fields_set
        }

    @classmethod
    def places(cls) -> dict[str, str]:
        """Every setting -> its section."""
        places = {name: section for section, model in cls.sections.items() for name in setting_names(model)}
        return {**places, **{hook.setting: hook.section for hook in PIPELINES.values()}}

    # ------------------------------------------------------------------------------------- reading

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            section, setting = self._find(name)
            if section:
                model = type(self._settings[section])
                for attribute, field in model.model_fields.items():
                    if setting in (attribute, field.alias):
                        return getattr(self._settings[section], attribute)
            for hook in PIPELINES.values():
                if hook.setting == name:
                    return self._pipelines[hook.name]
        raise AttributeError(unknown_attribute(type(self), name, self.places()))

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
            return
        section, setting = self._find(name)
        if not section:
            section = next((hook.section for hook in PIPELINES.values() if hook.setting == name), "")
        if not section:
            raise ConfigError(
                f"{type(self).__name__}.{name}",
                expected="a known setting",
                found=repr(name),
                do=setting_advice(name, self.places()),
            )
        self.change(name, {section: {setting: value}})

    @classmethod
    def _find(cls, name: str) -> tuple[str, str]:
        """The section of a setting and the setting's own name, second spellings resolved."""
        for section, model in cls.sections.items():
            setting = ALIASES.get(section, {}).get(name, name)
            if setting in setting_names(model):
                return section, setting
        return "", name

    def copy(self: SelfT) -> SelfT:
        """A config of its own with the same settings."""
        twin = type(self)(allow_imports=self._allow_imports)
        twin._settings = dict(self._settings)  # sections are frozen
        twin._pipelines = {
            name: copy.deepcopy(value) if isinstance(value, list) else value for name, value in self._pipelines.items()
        }
        return twin

    def __repr__(self) -> str:
        changed = [
            f"{name}={getattr(settings, name)!r}"
            for settings in self._settings.values()
            for name in settings.model_fields_set
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    def validate(self) -> None:
        """Check what no single setting can show.

        Raises:
            ConfigError: settings that contradict each other, all of them in one message.
        """
        problems = Problems()
        self.check_together({}, problems)
        fault = missing_device(self.device)
        if fault is not None:
            problems.add("learners.device", f"{self.device!r} cannot be used here: {fault}; cpu can be used everywhere")
        problems.raise_if_any(type(self).__name__)

    def check_together(self, new: Mapping[str, Section], problems: Problems) -> None:
        """Note settings that contradict each other.

        Args:
            new: sections that are about to replace this config's.
            problems: where to note them.
        """
        together = {**self._settings, **new}
        note_contradictions(together, problems)
        note_policies(together, problems)
