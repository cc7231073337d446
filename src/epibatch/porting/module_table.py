"""Table of the modules here that replace modules of RLlib."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["MOVED_NAMES", "RULES", "Rule", "module_here"]


class Rule(NamedTuple):
    """A module of RLlib and the module here that offers its names.

    Attributes:
        theirs: RLlib's module; a trailing `.*` includes all modules below it.
        ours: the module here. With `.*`, modules below keep their names; without, all names are in this one module.
    """

    theirs: str
    ours: str


RULES: tuple[Rule, ...] = (
    Rule("ray.rllib.connectors.*", "epibatch.connectors.*"),
    Rule("ray.rllib.core.columns", "epibatch.core.columns"),
    Rule("ray.rllib.core.rl_module.*", "epibatch.core.rl_module"),
    Rule("ray.rllib.core.distribution.*", "epibatch.core.distributions"),
    Rule("ray.rllib.core.learner.*", "epibatch.learner"),
    Rule("ray.rllib.core", "epibatch.core"),
    Rule("ray.rllib.env.single_agent_episode", "epibatch.episodes.single_agent_episode"),
    Rule("ray.rllib.env.multi_agent_episode", "epibatch.episodes.multi_agent_episode"),
    Rule("ray.rllib.env.utils.infinite_lookback_buffer", "epibatch.episodes"),
    Rule("ray.rllib.env.single_agent_env_runner", "epibatch.env_runner.single_agent_env_runner"),
    Rule("ray.rllib.env.multi_agent_env_runner", "epibatch.env_runner.multi_agent_env_runner"),
    Rule("ray.rllib.env.multi_agent_env", "epibatch.env_runner.multi_agent_env"),
    Rule("ray.rllib.env.wrappers.pettingzoo_env", "epibatch.env_runner.pettingzoo_env"),
    Rule("ray.rllib.callbacks.callbacks", "epibatch.env_runner.callbacks"),
    Rule("ray.rllib.algorithms.ppo.*", "epibatch.algorithms.ppo"),
    Rule("ray.rllib.algorithms.algorithm_config", "epibatch.algorithms.algorithm_config"),
    Rule("ray.rllib.algorithms.algorithm", "epibatch.algorithms.algorithm"),
    Rule("ray.rllib.algorithms", "epibatch.algorithms"),
    Rule("ray.rllib.utils.spaces.space_utils", "epibatch.core.spaces"),
    Rule("ray.rllib.utils.numpy", "epibatch.core.spaces"),
    Rule("ray.rllib.utils.postprocessing.*", "epibatch.learner.postprocessing.*"),
    Rule("ray.rllib.utils.replay_buffers.*", "epibatch.episodes.replay"),
    Rule("ray.rllib.utils.torch_utils", "epibatch.core.tensors"),
    Rule("ray.rllib.utils.framework", "epibatch.core.tensors"),
    Rule("ray.rllib.utils.metrics.*", "epibatch.core.metrics"),
    Rule("ray.rllib.utils.checkpoints", "epibatch.core.checkpoints"),
    Rule("ray.rllib.utils.typing", "epibatch.core.typing"),
    Rule("ray.rllib.utils.annotations", "epibatch.core.typing"),
    Rule("ray.util.annotations", "epibatch.core.typing"),
    Rule("ray.tune.registry", "epibatch.core.registry"),
)
"""The first rule that fits a module counts."""

MOVED_NAMES: dict[tuple[str, str], tuple[str, str]] = {
    ("ray.tune.registry", "get_trainable_cls"): ("epibatch.algorithms.algorithm_classes", "get_trainable_cls"),
    ("ray.tune", "register_env"): ("epibatch.core.registry", "register_env"),
    ("ray.rllib.algorithms.callbacks", "DefaultCallbacks"): ("epibatch.env_runner.callbacks", "RLlibCallback"),
    ("ray.rllib.callbacks", "RLlibCallback"): ("epibatch.env_runner.callbacks", "RLlibCallback"),
    ("ray.rllib.examples.envs.classes.multi_agent", "make_multi_agent"): (
        "epibatch.env_runner.multi_agent_env",
        "make_multi_agent",
    ),
    ("ray.rllib.policy.policy", "PolicySpec"): ("epibatch.algorithms.policy_spec", "PolicySpec"),
    ("ray.rllib.policy.sample_batch", "DEFAULT_POLICY_ID"): ("epibatch.core", "DEFAULT_POLICY_ID"),
    ("ray.rllib.utils", "override"): ("epibatch.core.typing", "override"),
}
"""Names of RLlib that live elsewhere here than the rest of their module: (module, name) -> (module, name)."""


def module_here(theirs: str) -> str | None:
    """Return the module that replaces one of RLlib's; None if there is no rule for it.

    The module need not exist: some rules are for features that are not implemented yet.

    Example:
        >>> module_here("ray.rllib.core.rl_module.torch.torch_rl_module")
        'epibatch.core.rl_module'
        >>> module_here("ray.rllib.connectors.learner.frame_stacking")
        'epibatch.connectors.learner.frame_stacking'
    """
    for rule in RULES:
        base = rule.theirs.removesuffix(".*")
        below = theirs.removeprefix(base)
        if theirs != base and (base == rule.theirs or not theirs.startswith(f"{base}.")):
            continue
        return rule.ours.removesuffix(".*") + below if rule.ours.endswith(".*") else rule.ours
    return None
