"""Reasons why names of RLlib do not exist here."""

from __future__ import annotations

import difflib
import re

from .module_table import module_here
from .offered_names import offered_names

__all__ = ["reason_for"]

OLD_STACK = "old API stack: not here; episodes, connectors and RLModules take its place"
REPLAY = "replay buffers: not there yet"
OFFLINE = "offline data: not there yet"
TENSORFLOW = "TensorFlow: modules are PyTorch here"
CLUSTER = "no cluster here: nothing needs to be started or shut down"
TUNE = "hyperparameter searches: call `algo.train()` in a loop, or run `epibatch train` with --set"
EXAMPLES = "example code of RLlib: copy what you need into your project and port that file"
CATALOG = "catalogs and encoders: write an RLModule, see docs/writing-a-module.md"
ALGORITHM = "this algorithm: not there yet; PPO is"

_REASONS: tuple[tuple[str, str], ...] = (
    (r"ray\.rllib\.examples\b.*", EXAMPLES),
    (r"ray\.rllib\.utils\.replay_buffers\b.*", REPLAY),
    (r"ray\.rllib\.offline\b.*", OFFLINE),
    (r"ray\.rllib\.connectors\.(action|agent|connector|registry|util)(\..*)?", OLD_STACK),
    (r"ray\.rllib\.(policy|models|evaluation|execution)\b.*", OLD_STACK),
    (r"ray\.rllib\.env\.(base_env|external\w*|policy_\w*|vector_env)(\..*)?", OLD_STACK),
    (r"ray\.rllib\.utils\.(exploration|schedules|filter|policy|sgd|tf_run_builder)(\..*)?", OLD_STACK),
    (r"ray\.rllib\.(SampleBatch|Policy|TFPolicy|TorchPolicy|RolloutWorker|BaseEnv|VectorEnv|ExternalEnv)", OLD_STACK),
    (r".*\.compute_single_action", OLD_STACK),
    (r".*(\.|_)(tf|tf1|tf2|tfp|tf_utils|jax)(\..*)?", TENSORFLOW),
    (r"ray\.rllib\.utils\.test_utils(\..*)?", "test helpers of RLlib: numpy.testing.assert_allclose compares arrays"),
    (r"ray\.rllib\.env\.wrappers\.atari_wrappers(\..*)?", "gymnasium.wrappers.AtariPreprocessing does this"),
    (r"ray\.rllib\.core\.models\b.*", CATALOG),
    (r"ray\.rllib\.\w+\.(\w+\.)*\w*[cC]atalog", CATALOG),
    (r"ray\.rllib\.env\.env_context(\..*)?", "environments are given a plain dict here: annotate with dict"),
    (r"ray\.rllib\.env\.env_runner(\..*)?", "write epibatch.env_runner.SingleAgentEnvRunner"),
    (r"ray\.rllib\.algorithms\.(?!algorithm|ppo\b|callbacks)[\w.]+", ALGORITHM),
    (r"ray\.tune\.registry\.\w+", "there is epibatch.core.registry, for environments and pieces"),
    (r"ray\.(tune|air|train)\b.*", TUNE),
    (r"ray(\.(init|shutdown|get|put|wait|remote|is_initialized|kill|util)\b.*)?", CLUSTER),
)


def reason_for(module: str, name: str) -> str:
    """Return the reason why `name` of RLlib's `module` does not exist here, and the nearest name that does.

    Example:
        >>> reason_for("ray.rllib.offline", "JsonReader")
        'offline data: not there yet'
        >>> reason_for("ray.rllib.core", "Colums")
        'no such name in epibatch.core; the nearest is Columns'
    """
    path = f"{module}.{name}" if name else module
    for pattern, reason in _REASONS:
        if re.fullmatch(pattern, path):
            return reason
    here = module_here(module)
    offered = offered_names(here) if here is not None else None
    if here is None or offered is None:
        return "nothing here takes the place of this module"
    close = difflib.get_close_matches(name, offered, n=1, cutoff=0.75)
    return f"no such name in {here}" + (f"; the nearest is {close[0]}" if close else "")
