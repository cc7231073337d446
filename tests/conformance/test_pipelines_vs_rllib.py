"""Random single-agent episodes through RLlib's pipelines and ours: the batches must be equal.

Set EPIBATCH_CASES for another number of random cases than 100.
"""

from __future__ import annotations

import os
import warnings
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

pytest.importorskip("ray.rllib", reason="RLlib is the oracle of these tests", exc_type=ImportError)
pytestmark = pytest.mark.filterwarnings("ignore")

CASES = range(int(os.environ.get("EPIBATCH_CASES", "100")))
OBS_SPACES = [
    gym.spaces.Box(-np.inf, np.inf, (3,), np.float32),
    gym.spaces.Box(0, 255, (2, 3), np.uint8),
    gym.spaces.Box(-1, 1, (2,), np.float64),
    gym.spaces.Discrete(5),
]
ACT_SPACES = [
    gym.spaces.Discrete(3),
    gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([4.0, 1.0], np.float32)),
    gym.spaces.MultiDiscrete([2, 3]),
]


def _rllib() -> SimpleNamespace:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.rllib.algorithms.ppo import PPOConfig
        from ray.rllib.connectors.connector_v2 import ConnectorV2
        from ray.rllib.connectors.learner import AddOneTsToEpisodesAndTruncate, GeneralAdvantageEstimation
        from ray.rllib.core.distribution.torch.torch_distribution import TorchCategorical, TorchDiagGaussian
        from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
        from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
        from ray.rllib.core.rl_module.rl_module import RLModuleSpec
        from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
        from ray.rllib.env.single_agent_episode import SingleAgentEpisode

    def learner(obs: Any, act: Any, user: list[Any], gae: Any) -> Any:
        pipeline = _config(obs, act).build_learner_connector(obs, act, device=torch.device("cpu"))
        if gae:
            pipeline.prepend(AddOneTsToEpisodesAndTruncate())
            pipeline.append(GeneralAdvantageEstimation(**gae))
        for piece in reversed(user):
            pipeline.prepend(piece)
        return pipeline

    def env_sides(obs: Any, act: Any, user: list[Any]) -> tuple[Any, Any]:
        config = _config(obs, act)
        spaces = {"__env_single__": (obs, act), "__env__": (obs, act)}
        to_module = config.build_env_to_module_connector(env=None, spaces=spaces)
        for piece in reversed(user):
            to_module.prepend(piece)
        return to_module, config.build_module_to_env_connector(env=None, spaces=spaces)

    def _config(obs: Any, act: Any) -> Any:
        return PPOConfig().environment(observation_space=obs, action_space=act)

    return SimpleNamespace(
        learner=learner,
        env_sides=env_sides,
        ConnectorV2=ConnectorV2,
        TorchCategorical=TorchCategorical,
        TorchDiagGaussian=TorchDiagGaussian,
        MultiRLModule=MultiRLModule,
        RLModuleSpec=RLModuleSpec,
        TorchRLModule=TorchRLModule,
        ValueFunctionAPI=ValueFunctionAPI,
        SingleAgentEpisode=SingleAgentEpisode,
    )


def _epibatch() -> SimpleNamespace:
    from epibatch.connectors import env_to_module, learner, module_to_env
    from epibatch.connectors.connector_v2 import ConnectorV2
    from epibatch.core.distributions import TorchCategorical, TorchDiagGaussian
    from epibatch.core.rl_module import MultiRLModule, RLModuleSpec, TorchRLModule, ValueFunctionAPI
    from epibatch.episodes.single_agent_episode import SingleAgentEpisode

    def build_learner(obs: Any, act: Any, user: list[Any], gae: Any) -> Any:
        pieces = [
            *user,
            *([learner.AddOneTsToEpisodesAndTruncate()] if gae else []),
            learner.AddObservationsFromEpisodesToBatch(as_learner_connector=True),
            learner.AddColumnsFromEpisodesToTrainBatch(),
            learner.AddTimeDimToBatchAndZeroPad(as_learner_connector=True),
            learner.AddStatesFromEpisodesToBatch(as_learner_connector=True),
            learner.BatchIndividualItems(),
            learner.NumpyToTensor(),
            *([learner.GeneralAdvantageEstimation(**gae)] if gae else []),
        ]
        return learner.LearnerConnectorPipeline(obs, act, connectors=pieces)

    def env_sides(obs: Any, act: Any, user: list[Any]) -> tuple[Any, Any]:
        to_module = [
            *user,
            env_to_module.AddObservationsFromEpisodesToBatch(),
            env_to_module.AddTimeDimToBatchAndZeroPad(),
            env_to_module.AddStatesFromEpisodesToBatch(),
            env_to_module.BatchIndividualItems(),
            env_to_module.NumpyToTensor(),
        ]
        to_env = [
            module_to_env.GetActions(),
            module_to_env.TensorToNumpy(),
            module_to_env.UnBatchToIndividualItems(),
            module_to_env.RemoveSingleTsTimeRankFromBatch(),
            module_to_env.NormalizeAndClipActions(normalize_actions=True, clip_actions=False),
            module_to_env.ListifyDataForVectorEnv(),
        ]
        return (
            env_to_module.EnvToModulePipeline(obs, act, connectors=to_module),
            module_to_env.ModuleToEnvPipeline(obs, act, connectors=to_env),
        )

    return SimpleNamespace(
        learner=build_learner,
        env_sides=env_sides,
        ConnectorV2=ConnectorV2,
        TorchCategorical=TorchCategorical,
        TorchDiagGaussian=TorchDiagGaussian,
        MultiRLModule=MultiRLModule,
        RLModuleSpec=RLModuleSpec,
        TorchRLModule=TorchRLModule,
        ValueFunctionAPI=ValueFunctionAPI,
        SingleAgentEpisode=SingleAgentEpisode,
    )


@pytest.fixture(scope="module")
def libraries() -> list[SimpleNamespace]:
    """RLlib and epibatch behind one interface, with the same weightless module and user pieces."""
    both = [_rllib(), _epibatch()]
    for library in both:
        library.Module = _module_class(library)
        library.user_pieces = _user_pieces(library.ConnectorV2)
    return both


def _module_class(library: SimpleNamespace) -> Any:
    class Module(library.TorchRLModule, library.ValueFunctionAPI):  # type: ignore[misc, name-defined]
        def setup(self) -> None:
            pass

        def get_initial_state(self) -> Any:
            size = self.model_config["state"]
            return {"h": np.full(size, -1, np.float32), "c": np.full(size, 2, np.float32)} if size else {}

        def _forward(self, batch: Any, **kwargs: Any) -> Any:
            return {}

        def compute_values(self, batch: Any, embeddings: Any = None) -> Any:
            obs = batch["obs"].float()
            lead = 2 if self.model_config["state"] else 1
            return obs.reshape(*obs.shape[:lead], -1).sum(-1) * 0.1

        def get_exploration_action_dist_cls(self) -> Any:
            name = "TorchDiagGaussian" if isinstance(self.action_space, gym.spaces.Box) else "TorchCategorical"
            return getattr(library, name)

        get_inference_action_dist_cls = get_exploration_action_dist_cls
        get_train_action_dist_cls = get_exploration_action_dist_cls

    return Module


def _user_pieces(base: Any) -> dict[str, Any]:
    class Identity(base):  # type: ignore[misc]
        def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
            return batch

    class Reward(base):  # type: ignore[misc]
        def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
            for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
                rewards = np.array([float(r) for r in episode.get_rewards()])
                episode.set_rewards(new_data=rewards * 2 + 1)
                if len(episode) > 1:
                    episode.set_rewards(new_data=float(rewards[1]) - 3.0, at_indices=1)
            return batch

    return {"identity": Identity, "reward": Reward}


def random_columns(rng: np.random.Generator, obs: Any, act: Any, state: int, *, ongoing: bool) -> dict[str, Any]:
    """What one chunk holds, from which both libraries build their episode."""
    started = int(rng.integers(0, 6)) * int(rng.random() < 0.5)
    lookback = int(rng.integers(min(started, 1 if state else 0), min(started, 3) + 1))
    length = int(rng.integers(0 if ongoing else 1, 13))
    total = lookback + length
    obs.seed(int(rng.integers(2**31)))
    act.seed(int(rng.integers(2**31)))
    extras: dict[str, list[Any]] = {
        "action_logp": [np.float32(x) for x in rng.standard_normal(total)],
        "action_dist_inputs": [row.astype(np.float32) for row in rng.standard_normal((total, 3))],
        "weights_seq_no": [int(x) for x in rng.integers(0, 9, total)],
    }
    if state:
        extras["state_out"] = [
            {key: rng.standard_normal(state).astype(np.float32) for key in ("h", "c")} for _ in range(total)
        ]
    end = "running" if ongoing else str(rng.choice(["running", "terminated", "truncated"]))
    return {
        "observations": [obs.sample() for _ in range(total + 1)],
        "actions": [act.sample() for _ in range(total)],
        "rewards": [float(x) for x in rng.standard_normal(total)],
        "extra_model_outputs": extras,
        "len_lookback_buffer": lookback,
        "t_started": started,
        "terminated": end == "terminated",
        "truncated": end == "truncated",
        "observation_space": obs,
        "action_space": act,
    }


def random_case(seed: int, *, ongoing: bool = False) -> SimpleNamespace:
    rng = np.random.default_rng(seed)
    obs = OBS_SPACES[rng.integers(len(OBS_SPACES))]
    act = ACT_SPACES[rng.integers(len(ACT_SPACES) - ongoing)]
    state = int(rng.choice([0, 0, 2, 3]))
    columns = [random_columns(rng, obs, act, state, ongoing=ongoing) for _ in range(rng.integers(1, 6))]
    user = [str(name) for name in rng.choice(["identity", "reward"], rng.integers(0, 3))]
    return SimpleNamespace(
        rng=rng, obs=obs, act=act, state=state, columns=columns, user=user, max_seq_len=int(rng.integers(1, 7))
    )


def build_episodes(library: SimpleNamespace, case: SimpleNamespace, *, numpy: bool) -> list[Any]:
    episodes = []
    for i, columns in enumerate(case.columns):
        copied = {
            key: {k: list(v) for k, v in value.items()} if isinstance(value, dict) else value
            for key, value in columns.items()
        }
        copied = {key: list(value) if isinstance(value, list) else value for key, value in copied.items()}
        episode = library.SingleAgentEpisode(id_=f"e{i}", **copied)
        episodes.append(episode.to_numpy() if numpy else episode)
    return episodes


def build_module(library: SimpleNamespace, case: SimpleNamespace, *, multi: bool) -> Any:
    spec = library.RLModuleSpec(
        module_class=library.Module,
        observation_space=case.obs,
        action_space=case.act,
        model_config={"state": case.state, "max_seq_len": case.max_seq_len},
    )
    return library.MultiRLModule(rl_module_specs={"default_policy": spec}) if multi else spec.build()


def train_batch(library: SimpleNamespace, case: SimpleNamespace, gae: Any) -> dict[str, Any]:
    user = [library.user_pieces[name]() for name in case.user]
    pipeline = library.learner(case.obs, case.act, user, gae)
    episodes = build_episodes(library, case, numpy=True)
    batch = pipeline(
        rl_module=build_module(library, case, multi=True), batch={}, episodes=episodes, explore=None, shared_data={}
    )
    return flat(batch["default_policy"])


def flat(batch: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested columns under slash-joined names."""
    leaves: dict[str, Any] = {}
    for name, value in batch.items():
        if isinstance(value, dict):
            leaves.update(flat(value, f"{prefix}{name}/"))
        else:
            leaves[prefix + name] = value
    return leaves


def assert_same_form(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    assert set(ours) == set(theirs)
    for name, value in theirs.items():
        assert ours[name].dtype == value.dtype, name
        assert ours[name].shape == value.shape, name


@pytest.mark.parametrize("seed", CASES)
def test_train_batches(libraries, seed):
    case = random_case(seed)
    theirs, ours = (train_batch(library, case, None) for library in libraries)
    assert_same_form(theirs, ours)
    for name, value in theirs.items():
        assert torch.equal(ours[name], value), name


@pytest.mark.parametrize("seed", CASES)
def test_train_batches_with_bootstrap_rows_and_advantages(libraries, seed):
    case = random_case(seed + 10_000)
    gae = {"gamma": float(case.rng.choice([0.0, 0.9, 0.99, 1.0])), "lambda_": float(case.rng.choice([0.0, 0.8, 1.0]))}
    theirs, ours = (train_batch(library, case, gae) for library in libraries)
    assert_same_form(theirs, ours)
    mask = theirs["loss_mask"]
    assert torch.equal(ours["loss_mask"], mask)
    for name, value in theirs.items():
        if name.startswith("state_in"):
            assert torch.equal(ours[name], value), name
        elif name not in ("advantages", "value_targets", "seq_lens"):
            assert torch.equal(ours[name][mask], value[mask]), name
    assert torch.allclose(ours["value_targets"][mask], theirs["value_targets"][mask], rtol=1e-3, atol=1e-3)
    if case.state:
        # RLlib counts the bootstrap row as a step of its sequence; here only real steps count
        assert torch.equal(ours["seq_lens"], mask.sum(-1))
    _assert_same_advantages(theirs["advantages"][mask].double(), ours["advantages"], mask)


def _assert_same_advantages(theirs: Any, ours: Any, mask: Any) -> None:
    """RLlib's standardised over the bootstrap rows too; standardising once more undoes that."""
    assert (ours[~mask] == 0).all()
    again = theirs - theirs.mean()
    scale = again.std(correction=0)
    if scale > 1e-2:
        assert torch.allclose(ours[mask].double(), again / scale, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("seed", CASES)
def test_env_to_module_and_back(libraries, seed):
    case = random_case(seed + 20_000, ongoing=True)
    case.user = [name for name in case.user if name == "identity"]
    count, width = len(case.columns), 4 if isinstance(case.act, gym.spaces.Box) else 3
    outputs = {
        "action_dist_inputs": torch.from_numpy(case.rng.standard_normal((count, width)).astype(np.float32)),
        "vf_preds": torch.from_numpy(case.rng.standard_normal(count).astype(np.float32)),
        "tags": torch.from_numpy(case.rng.integers(0, 99, count)),
    }
    if case.state:
        outputs = {name: value[:, None] for name, value in outputs.items()}
        states = case.rng.standard_normal((count, case.state)).astype(np.float32)
        outputs["state_out"] = {"h": torch.from_numpy(states), "c": torch.from_numpy(-states)}
    (their_batch, their_step), (our_batch, our_step) = (both_ways(library, case, outputs) for library in libraries)
    assert_same_form(their_batch, our_batch)
    for name, value in their_batch.items():
        assert torch.equal(our_batch[name], value), name
    assert set(our_step) == set(their_step)
    for name, value in their_step.items():
        if name == "action_logp":  # RLlib stores zeros in the form of the action for greedy actions
            assert our_step[name].shape == (count,)
            continue
        assert our_step[name].shape == value.shape, name
        assert np.array_equal(our_step[name], value), name
        if value.dtype.kind == "f":
            assert our_step[name].dtype == value.dtype, name


def both_ways(library: SimpleNamespace, case: SimpleNamespace, outputs: Any) -> tuple[Any, Any]:
    module = build_module(library, case, multi=False)
    episodes = build_episodes(library, case, numpy=False)
    user = [library.user_pieces[name]() for name in case.user]
    to_module, to_env = library.env_sides(case.obs, case.act, user)
    shared: dict[str, Any] = {}
    call = {"rl_module": module, "episodes": episodes, "shared_data": shared}
    batch = to_module(batch={}, explore=False, **call)
    copied = {
        name: {k: v.clone() for k, v in value.items()} if isinstance(value, dict) else value.clone()
        for name, value in outputs.items()
    }
    return flat(batch), as_arrays(to_env(batch=copied, explore=False, **call))


def as_arrays(step: dict[str, Any]) -> dict[str, Any]:
    """Every column as arrays with the environment axis first, also where it is a list of rows."""
    columns: dict[str, Any] = {}
    for name, value in step.items():
        if isinstance(value, list) and isinstance(value[0], dict):
            value = {key: np.stack([row[key] for row in value]) for key in value[0]}
        columns[name] = value if isinstance(value, dict) else np.asarray(value)
    return flat(columns)
