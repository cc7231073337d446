"""Algorithms by the names that RLlib gives them."""

from __future__ import annotations

from epibatch.core.errors import UnknownNameError, nearest

from .ppo import PPO

__all__ = ["ALGORITHM_CLASSES", "get_trainable_cls"]

ALGORITHM_CLASSES = {"PPO": PPO}
"""RLlib's name of an algorithm -> its class."""


def get_trainable_cls(trainable_name: str) -> type[PPO]:
    """The class of an algorithm, as scripts written for RLlib ask for it.

    Raises:
        UnknownNameError: no algorithm here has this name.

    Example:
        >>> get_trainable_cls("PPO").get_default_config().environment("CartPole-v1").env
        'CartPole-v1'
    """
    if trainable_name not in ALGORITHM_CLASSES:
        raise UnknownNameError(
            "get_trainable_cls",
            expected="an algorithm that is here",
            found=repr(trainable_name),
            do=nearest(str(trainable_name), ALGORITHM_CLASSES),
        )
    return ALGORITHM_CLASSES[trainable_name]
