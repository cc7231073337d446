"""The policy of an algorithm that is being trained."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from epibatch.core import DEFAULT_MODULE_ID
from epibatch.core.errors import UnknownNameError, nearest

from ..connectors.authoring.column_transform import undo_actions
from .pipelines import check_same_pieces
from .policy import MultiAgentPolicy, Policy

__all__ = ["LivePolicy", "check_options", "check_policy_id"]


class LivePolicy:
    """Keeps a policy up to date with a runner, whose module it shares and whose pipelines it does not touch.

    Args:
        config: What the runner was built from.
        runner: Samples for the training.

    Raises:
        PipelineError: the runner's pipelines have other pieces than the config gives them.

    Attributes:
        policy: The policy.
    """

    def __init__(self, config: Any, runner: Any) -> None:
        self._runner = runner
        self._seen: int | None = None
        spaces = runner.get_spaces()
        built = {
            "env_to_module": config.build_env_to_module_connector(env=runner.env, spaces=spaces),
            "module_to_env": config.build_module_to_env_connector(env=runner.env, spaces=spaces),
        }
        undo_actions(*built.values())
        check_same_pieces(built, runner.pipelines, "Algorithm.get_policy")
        self.policy: Policy | MultiAgentPolicy
        if config.is_multi_agent:
            mapping = config.policy_mapping_fn
            self.policy = MultiAgentPolicy(runner.module, *built.values(), mapping=mapping, before_acting=self._update)
        else:
            self.policy = Policy(runner.module, *built.values(), before_acting=self._update)
        self._update(self.policy)
        if config.seed is not None:
            self.policy.seed(config.seed)

    def forget(self) -> None:
        """Take over the runner's statistics at the next call, whether it has sampled or not."""
        self._seen = None

    def _update(self, policy: Any) -> None:
        """Take over the runner's statistics if it has sampled since the last time."""
        steps = self._runner.num_env_steps_sampled_lifetime
        if steps != self._seen:
            own = self._runner.pipelines
            policy.lookback = max(pipeline.lookback_needed for pipeline in own.values())
            policy.set_connector_states(own["env_to_module"].get_state(), own["module_to_env"].get_state())
            policy.steps = self._seen = steps


def check_policy_id(algorithm: Any, policy_id: Any) -> None:
    """Refuse to look up one of several policies: there is one that acts for all agents.

    Raises:
        UnknownNameError: an id, unless it is that of the only module, of one agent.
    """
    if policy_id is None or (policy_id == DEFAULT_MODULE_ID and not algorithm.config.is_multi_agent):
        return
    modules, name = list(algorithm.learner.module), type(algorithm).__name__
    module = policy_id if policy_id in modules else modules[0]
    raise UnknownNameError(
        f"{name}.get_policy",
        expected=f"no id: one policy acts for all agents, with the modules {', '.join(modules)}",
        found=repr(policy_id),
        do=f"use get_policy(), or get_module({module!r}) for one network",
    )


def check_options(policy: Any, options: Iterable[str]) -> None:
    """Refuse options that a policy's `act` does not have.

    Raises:
        UnknownNameError: one of them is none.
    """
    known = [name for name in inspect.signature(policy.act).parameters if name not in ("obs", "state")]
    for name in options:
        if name not in known:
            raise UnknownNameError(
                f"{type(policy).__name__}.act",
                expected=f"options among {', '.join(known)}",
                found=repr(name),
                do=nearest(name, known),
            )
