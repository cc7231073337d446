"""Algorithms by the names that RLlib gives them."""

from __future__ import annotations

from epibatch.core.errors import UnknownNameError, nearest

from .algorithm import Algorithm
from .registry import algorithm_names, config_class

__all__ = ["get_trainable_cls"]


def get_trainable_cls(trainable_name: str) -> type[Algorithm]:
    """The class of an algorithm, as scripts written for RLlib ask for it.

    Raises:
        UnknownNameError: no algorithm here has this name.

    Examples:
        >>> get_trainable_cls("PPO").get_default_config().environment("CartPole-v1").env
        'CartPole-v1'
    """
    known = {name.upper(): name for name in algorithm_names()}
    if str(trainable_name).upper() not in known:
        raise UnknownNameError(
            "get_trainable_cls",
            expected="an algorithm that is here",
            found=repr(trainable_name),
            do=nearest(str(trainable_name), known),
        )
    return config_class(known[trainable_name.upper()]).get_algorithm_class()
