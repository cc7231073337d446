"""Settings and loss of one module with its overrides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epibatch.core.errors import ConfigError, add_context, nearest

from .loss import Loss, as_loss
from .settings import LearnerSettings

__all__ = ["override"]

_SETTINGS = tuple(LearnerSettings.names())


def override(
    module_id: str, settings: LearnerSettings, loss: Loss, changes: Mapping[str, Any]
) -> tuple[LearnerSettings, Loss]:
    """Return the common settings and loss with one module's changes.

    Args:
        module_id: of the module, for messages.
        settings: the common settings.
        loss: the common loss.
        changes: fields of `LearnerSettings`; `loss`, as for `as_loss`; and fields of that loss's settings.

    Raises:
        ConfigError: a name is none of these, or a value is out of its range.

    Example:
        >>> from epibatch.learner import PPOLoss
        >>> settings, loss = override("main", LearnerSettings(), PPOLoss(), {"lr": 0.01, "clip_param": 0.1})
        >>> settings.lr, loss.settings.clip_param
        (0.01, 0.1)
    """
    where = f"overrides of module {module_id!r}"
    try:
        loss = as_loss(changes.get("loss", loss), getattr(loss, "settings", None))
        known = (*_SETTINGS, "loss", *loss.setting_names())
        for name in changes:
            if name not in known:
                raise ConfigError(
                    name, expected="a setting of a module", found=repr(name), do=nearest(str(name), known)
                )
        settings = settings.with_changes(**{name: changes[name] for name in _SETTINGS if name in changes})
        of_loss = {name: changes[name] for name in loss.setting_names() if name in changes}
        return settings, loss.with_settings(**of_loss) if of_loss else loss
    except ConfigError as error:
        add_context(error, f"{where}:")
        raise
