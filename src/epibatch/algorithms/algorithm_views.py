"""Views that an algorithm is given while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from .module_views import added_view, removed_view

if TYPE_CHECKING:
    from .algorithm import Algorithm

__all__ = ["AlgorithmViews"]


class AlgorithmViews:
    """The part of an `Algorithm` that lets its modules have more columns, or fewer."""

    def add_view(self, name: str, view: Any) -> None:
        """Let all modules have one column more, from the next batch on, for acting as well as for training.

        The config has it from then on, and so do evaluations, policies, and runs that are restored from a checkpoint,
        with whatever config. Where the view reaches back further than episodes kept, the runner starts new ones.
        Which outputs a module will give is not known beforehand: a view of a column that is not there fails in the next
        batch, and `remove_view` takes it away.

        Args:
            name: the new column.
            view: an `epibatch.connectors.views.View`, or a dict of its arguments.

        Raises:
            ConfigError: the name is taken, or the view cannot be meant; nothing was added.

        Example:
            >>> from epibatch.algorithms.ppo import PPOConfig
            >>> from epibatch.connectors.views import View
            >>> algo = PPOConfig().environment("CartPole-v1").build_algo()
            >>> algo.add_view("next_actions", View("actions", shift=1))
            >>> algo.pipelines["learner"](rl_module=algo.get_module(), episodes=algo.env_runner.sample(
            ...     num_timesteps=5))["next_actions"].shape[0] >= 5
            True
            >>> algo.stop()
        """
        added_view(cast("Algorithm", self), name, view)

    def remove_view(self, name: str) -> None:
        """Take away a view that `add_view` gave, from the next batch on, as if it had not been given.

        Args:
            name: its name.

        Raises:
            UnknownNameError: `add_view` gave no such view; nothing was removed.

        Example:
            >>> from epibatch.algorithms.ppo import PPOConfig
            >>> from epibatch.connectors.views import View
            >>> algo = PPOConfig().environment("CartPole-v1").build_algo()
            >>> algo.add_view("before", View("rewrds", shift=-1))
            >>> algo.remove_view("before")
            >>> algo.config.view_requirements
            {}
            >>> algo.stop()
        """
        removed_view(cast("Algorithm", self), name)
