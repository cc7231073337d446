"""Names of RLlib: where they are here, or why they are not."""

from __future__ import annotations

import ast
import difflib
import importlib.util
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from epibatch.core.columns import Columns
from epibatch.core.lazy import public_names

RULES: dict[str, str] = {
    "ray.rllib.connectors.*": "epibatch.connectors.*",
    "ray.rllib.core.columns": "epibatch.core.columns",
    "ray.rllib.core.rl_module.*": "epibatch.core.rl_module",
    "ray.rllib.core.distribution.*": "epibatch.core.distributions",
    "ray.rllib.core.learner.*": "epibatch.learner",
    "ray.rllib.core": "epibatch.core",
    "ray.rllib.env.single_agent_episode": "epibatch.episodes.single_agent_episode",
    "ray.rllib.env.multi_agent_episode": "epibatch.episodes.multi_agent_episode",
    "ray.rllib.env.utils.infinite_lookback_buffer": "epibatch.episodes",
    "ray.rllib.env.single_agent_env_runner": "epibatch.env_runner.single_agent_env_runner",
    "ray.rllib.env.multi_agent_env_runner": "epibatch.env_runner.multi_agent_env_runner",
    "ray.rllib.env.env_runner_group": "epibatch.env_runner.env_runner_group",
    "ray.rllib.env.multi_agent_env": "epibatch.env_runner.multi_agent_env",
    "ray.rllib.env.wrappers.pettingzoo_env": "epibatch.env_runner.pettingzoo_env",
    "ray.rllib.callbacks.callbacks": "epibatch.env_runner.callbacks",
    "ray.rllib.algorithms.appo.*": "epibatch.algorithms.appo",
    "ray.rllib.algorithms.bc.*": "epibatch.algorithms.bc",
    "ray.rllib.algorithms.cql.*": "epibatch.algorithms.cql",
    "ray.rllib.algorithms.dqn.*": "epibatch.algorithms.dqn",
    "ray.rllib.algorithms.impala.*": "epibatch.algorithms.impala",
    "ray.rllib.algorithms.iql.*": "epibatch.algorithms.iql",
    "ray.rllib.algorithms.marwil.*": "epibatch.algorithms.marwil",
    "ray.rllib.algorithms.ppo.*": "epibatch.algorithms.ppo",
    "ray.rllib.algorithms.sac.*": "epibatch.algorithms.sac",
    "ray.rllib.algorithms.algorithm_config": "epibatch.algorithms.algorithm_config",
    "ray.rllib.algorithms.algorithm": "epibatch.algorithms.algorithm",
    "ray.rllib.algorithms": "epibatch.algorithms",
    "ray.rllib.utils.spaces.space_utils": "epibatch.core.spaces",
    "ray.rllib.utils.numpy": "epibatch.core.spaces",
    "ray.rllib.utils.postprocessing.*": "epibatch.learner.postprocessing.*",
    "ray.rllib.utils.replay_buffers.*": "epibatch.episodes.replay",
    "ray.rllib.utils.torch_utils": "epibatch.core.tensors",
    "ray.rllib.utils.framework": "epibatch.core.tensors",
    "ray.rllib.utils.metrics.*": "epibatch.core.metrics",
    "ray.rllib.utils.checkpoints": "epibatch.core.checkpoints",
    "ray.rllib.utils.typing": "epibatch.core.typing",
    "ray.rllib.utils.annotations": "epibatch.core.typing",
    "ray.util.annotations": "epibatch.core.typing",
    "ray.tune.registry": "epibatch.core.registry",
}
"""RLlib's module -> the module here that offers its names; the first that fits counts.

A trailing `.*` includes all modules below. With `.*` on both sides they keep their names; otherwise all names are in
one module here.
"""


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

    Args:
        theirs: The dotted name of RLlib's module.

    Examples:
        >>> module_here("ray.rllib.core.rl_module.torch.torch_rl_module")
        'epibatch.core.rl_module'
        >>> module_here("ray.rllib.connectors.learner.frame_stacking")
        'epibatch.connectors.learner.frame_stacking'
    """
    for pattern, ours in RULES.items():
        base = pattern.removesuffix(".*")
        if theirs == base or (base != pattern and theirs.startswith(f"{base}.")):
            return ours.removesuffix(".*") + theirs.removeprefix(base) if ours.endswith(".*") else ours
    return None


class Home(NamedTuple):
    """The place of one of RLlib's names here.

    Attributes:
        module: the module to import it from.
        name: its name there.
        is_module: True if it is a module itself.
    """

    module: str
    name: str
    is_module: bool = False


@cache
def offered_names(module: str) -> frozenset[str] | None:
    """Return the names in a package's stub or a module's `__all__`; None if there is no such module.

    Examples:
        >>> sorted(offered_names("epibatch.learner.postprocessing.value_predictions"))
        ['compute_value_targets']
        >>> print(offered_names("epibatch.no_such_module"))
        None
    """
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # of a parent
        return None
    if spec is None or not spec.origin:
        return None
    if spec.submodule_search_locations is not None and Path(f"{spec.origin}i").exists():
        return frozenset(public_names(module))
    for node in ast.parse(Path(spec.origin).read_bytes()).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return frozenset(ast.literal_eval(node.value))
    return frozenset()


def home_of(module: str, name: str) -> Home | None:
    """Return the place here of a name in RLlib's `module`: a class, a function, a constant or a module.

    Examples:
        >>> home_of("ray.rllib.connectors.connector_v2", "ConnectorV2")
        Home(module='epibatch.connectors.connector_v2', name='ConnectorV2', is_module=False)
        >>> home_of("ray.rllib.utils", "numpy")
        Home(module='epibatch.core', name='spaces', is_module=True)
    """
    if (module, name) in MOVED_NAMES:
        return Home(*MOVED_NAMES[module, name])
    our_module = module_here(module)
    if our_module is not None and name in (offered_names(our_module) or ()):
        return Home(our_module, name)
    submodule = module_here(f"{module}.{name}")
    if submodule is not None and submodule != our_module and offered_names(submodule) is not None:
        parent, _, leaf = submodule.rpartition(".")
        return Home(parent, leaf, is_module=True)
    return None


OLD_STACK = "old API stack: not here; episodes, connectors and RLModules take its place"
REPLAY = "replay buffers of the old API stack: not here; EpisodeReplayBuffer and its prioritised kind take their place"
OFFLINE = "offline data: not there yet"
TENSORFLOW = "TensorFlow: modules are PyTorch here"
CLUSTER = "no cluster here: nothing needs to be started or shut down"
TUNE = "hyperparameter searches: call `algo.train()` in a loop, or run `epibatch train` with --set"
EXAMPLES = "example code of RLlib: copy what you need into your project and port that file"
CATALOG = "catalogs and encoders: write an RLModule, see docs/writing-a-module.md"
ALGORITHM = "this algorithm: not there yet; docs/algorithms.md lists those that are"

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
    (r"ray\.rllib\.env\.env_runner(\..*)?", "write epibatch.env_runner.SingleAgentEnvRunner"),
    (r"ray\.rllib\.algorithms\.(?!algorithm|callbacks|(appo|bc|cql|dqn|impala|iql|marwil|ppo|sac)\b)[\w.]+", ALGORITHM),
    (r"ray\.tune\.registry\.\w+", "there is epibatch.core.registry, for environments and pieces"),
    (r"ray\.(tune|air|train)\b.*", TUNE),
    (r"ray(\.(init|shutdown|get|put|wait|remote|is_initialized|kill|util)\b.*)?", CLUSTER),
)


def reason_for(module: str, name: str) -> str:
    """Return the reason why `name` of RLlib's `module` does not exist here, and the nearest name that does.

    Examples:
        >>> reason_for("ray.rllib.offline", "JsonReader")
        'offline data: not there yet'
        >>> reason_for("ray.rllib.core", "Colums")
        'no such name in epibatch.core; the nearest is Columns'
    """
    path = f"{module}.{name}" if name else module
    for pattern, reason in _REASONS:
        if re.fullmatch(pattern, path):
            return reason
    our_module = module_here(module)
    offered = offered_names(our_module) if our_module is not None else None
    if our_module is None or offered is None:
        return "nothing here takes the place of this module"
    matches = difflib.get_close_matches(name, offered, n=1, cutoff=0.75)
    return f"no such name in {our_module}" + (f"; the nearest is {matches[0]}" if matches else "")


def advice_for(path: str, how: str) -> str:
    """Return the replacement of a dotted path, or the reason why there is none.

    Args:
        path: The path of something of ray.
        how: Where it is used, such as "in a string".

    Examples:
        >>> advice_for("ray.rllib.core.Columns.OBS", "as an attribute")
        'used as an attribute: write epibatch.core.Columns.OBS'
    """
    parts = path.split(".")
    if "SampleBatch" in parts[:-1] and (column := column_of(parts[parts.index("SampleBatch") + 1])):
        return f"used {how}: write epibatch.core.columns.Columns.{column}"
    for end in range(len(parts) - 1, 1, -1):
        home = home_of(".".join(parts[:end]), parts[end])
        if home is not None:
            return f"used {how}: write {'.'.join([home.module, home.name, *parts[end + 1 :]])}"
    if (our_module := module_here(path)) is not None and offered_names(our_module) is not None:
        return f"used {how}: write {our_module}"
    return reason_for(".".join(parts[:-1]), parts[-1])


def column_of(key: str) -> str:
    """Return the name of a key of `SampleBatch` in `Columns`; empty if there is none."""
    name = {"CUR_OBS": "OBS"}.get(key, key)
    return name if name.isupper() and hasattr(Columns, name) else ""


def is_of_ray(path: str) -> bool:
    """Return True if a dotted path begins with ray."""
    return path.partition(".")[0] == "ray"
