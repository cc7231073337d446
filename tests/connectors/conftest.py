"""Episodes, modules and pipelines whose every value can be told from its place.

At absolute time t an episode with offset k holds: observation [k + t, 10 + k + t], action (k + t) % 2,
reward k + t + 0.5, action_logp -(k + t), state_out h = k + t + 0.25, info {"t": k + t}.
A module's initial state is -1, its value of an observation is the observation's first entry.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.connectors.connector_v2 import ConnectorV2
from epibatch.connectors.env_to_module import (
    AddObservationsFromEpisodesToBatch,
    AddStatesFromEpisodesToBatch,
    AddTimeDimToBatchAndZeroPad,
    BatchIndividualItems,
    EnvToModulePipeline,
    NumpyToTensor,
)
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    AddOneTsToEpisodesAndTruncate,
    GeneralAdvantageEstimation,
    LearnerConnectorPipeline,
)
from epibatch.connectors.module_to_env import (
    GetActions,
    ListifyDataForVectorEnv,
    ModuleToEnvPipeline,
    NormalizeAndClipActions,
    RemoveSingleTsTimeRankFromBatch,
    TensorToNumpy,
    UnBatchToIndividualItems,
)
from epibatch.core.columns import Columns
from epibatch.core.distributions import TorchCategorical
from epibatch.core.rl_module import MultiRLModule, RLModuleSpec, TorchRLModule, ValueFunctionAPI
from epibatch.core.spaces import batch as batch_items
from epibatch.episodes.single_agent_episode import SingleAgentEpisode

OBS = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
ACT = gym.spaces.Discrete(2)
PIPELINES = {
    "learner": LearnerConnectorPipeline,
    "env_to_module": EnvToModulePipeline,
    "module_to_env": ModuleToEnvPipeline,
}


class Module(TorchRLModule, ValueFunctionAPI):
    """A module without weights: its values can be computed by hand."""

    def setup(self) -> None:
        self.dist_cls = self.model_config.get("dist_cls", TorchCategorical)

    def get_initial_state(self) -> Any:
        size = self.model_config.get("state", 0)
        keys = ("h", "c") if self.model_config.get("two_leaved") else ("h",)
        return {key: np.full(size, -1, np.float32) for key in keys} if size else {}

    def _forward(self, batch: Any, **kwargs: Any) -> Any:
        return {}

    def compute_values(self, batch: Any, embeddings: Any = None) -> Any:
        return batch[Columns.OBS][..., 0]

    def get_exploration_action_dist_cls(self) -> Any:
        return self.dist_cls

    get_inference_action_dist_cls = get_exploration_action_dist_cls
    get_train_action_dist_cls = get_exploration_action_dist_cls


class UserPiece(ConnectorV2):
    """An undeclared piece around a function `(batch, episodes) -> batch or None`."""

    def __init__(self, function: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.function = function

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, metrics=None, **kwargs):
        result = self.function(batch, episodes) if self.function else None
        return batch if result is None else result


class Spy(ConnectorV2):
    """Keeps a copy of the batch it is handed."""

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, metrics=None, **kwargs):
        self.seen = copy.deepcopy(batch)
        self.episodes = episodes
        self.explore = explore
        self.shared_data = shared_data
        self.kwargs = kwargs
        return batch


def episode(
    id_: str = "a",
    length: int = 5,
    *,
    t_started: int = 0,
    lookback: int = 0,
    end: str | None = None,
    state: int = 0,
    offset: int = 0,
    numpy: bool = True,
    **overrides: Any,
) -> SingleAgentEpisode:
    """An episode (or chunk) with the values described in this module's docstring."""
    times = np.arange(t_started - lookback, t_started + length + 1) + offset
    extras = {Columns.ACTION_LOGP: [np.float32(-t) for t in times[:-1]]}
    if state:
        extras[Columns.STATE_OUT] = [{"h": np.full(state, t + 0.25, np.float32)} for t in times[:-1]]
    keywords = {
        "id_": id_,
        "observations": [np.array([t, 10 + t], np.float32) for t in times],
        "actions": [np.int64(t % 2) for t in times[:-1]],
        "rewards": [float(t) + 0.5 for t in times[:-1]],
        "infos": [{"t": int(t)} for t in times],
        "extra_model_outputs": extras,
        "observation_space": OBS,
        "action_space": ACT,
        "len_lookback_buffer": lookback,
        "t_started": t_started,
        "terminated": end == "terminated",
        "truncated": end == "truncated",
        **overrides,
    }
    result = SingleAgentEpisode(**keywords)
    return result.to_numpy() if numpy else result


def module(state: int = 0, max_seq_len: int = 4, *, multi: bool = False, **config: Any) -> Any:
    """A weightless module, alone or as the default module of a MultiRLModule."""
    spec = RLModuleSpec(
        module_class=Module,
        observation_space=OBS,
        action_space=ACT,
        model_config={"state": state, "max_seq_len": max_seq_len, **config},
    )
    return MultiRLModule(rl_module_specs={"default_policy": spec}) if multi else spec.build()


def rows(items: Any) -> Any:
    """The items of one key as one structure of arrays with the rows first."""
    if isinstance(items, list):
        return batch_items(items, individual_items_already_have_batch_dim="auto")
    return np.asarray(items)


def defaults(kind: str, ppo: bool = False) -> list[ConnectorV2]:
    """The default pieces of a pipeline; for the learner with PPO's two pieces or without."""
    if kind == "learner":
        pieces = [
            AddObservationsFromEpisodesToBatch(as_learner_connector=True),
            AddColumnsFromEpisodesToTrainBatch(),
            AddTimeDimToBatchAndZeroPad(as_learner_connector=True),
            AddStatesFromEpisodesToBatch(as_learner_connector=True),
            BatchIndividualItems(),
            NumpyToTensor(),
        ]
        gae = GeneralAdvantageEstimation(gamma=0.9, lambda_=0.8)
        return [AddOneTsToEpisodesAndTruncate(), *pieces, gae] if ppo else pieces
    if kind == "env_to_module":
        return [
            AddObservationsFromEpisodesToBatch(),
            AddTimeDimToBatchAndZeroPad(),
            AddStatesFromEpisodesToBatch(),
            BatchIndividualItems(),
            NumpyToTensor(),
        ]
    return [
        GetActions(),
        TensorToNumpy(),
        UnBatchToIndividualItems(),
        RemoveSingleTsTimeRankFromBatch(),
        NormalizeAndClipActions(normalize_actions=True, clip_actions=False),
        ListifyDataForVectorEnv(),
    ]


class Lab:
    """Runs pieces in a pipeline; `plain` puts an undeclared piece before each, so that all see plain dicts."""

    episode = staticmethod(episode)
    module = staticmethod(module)
    rows = staticmethod(rows)
    defaults = staticmethod(defaults)
    user = staticmethod(UserPiece)
    obs_space, act_space = OBS, ACT

    def __init__(self, plain: bool) -> None:
        self.plain = plain

    def spy(self) -> Spy:
        return Spy()

    def pipeline(self, kind: str, pieces: list[Any], *, spaces: Any = (OBS, ACT)) -> Any:
        if self.plain:
            pieces = [piece for pair in ((UserPiece(), p) for p in pieces) for piece in pair]
        return PIPELINES[kind](spaces[0], spaces[1], connectors=pieces)

    @staticmethod
    def call(piece: Any, batch: Any, **keywords: Any) -> Any:
        """Call one piece outside any pipeline."""
        call = {"rl_module": None, "episodes": [], "explore": True, "shared_data": {}, **keywords}
        return piece(batch=batch, **call)

    def run(self, kind: str, pieces: list[Any], episodes: list[Any], **keywords: Any) -> Any:
        """What the pipeline gives back."""
        spaces = keywords.pop("spaces", (OBS, ACT))
        call = {"rl_module": None, "batch": {}, "explore": True, "shared_data": {}, **keywords}
        return self.pipeline(kind, pieces, spaces=spaces)(episodes=episodes, **call)

    def see(self, kind: str, pieces: list[Any], episodes: list[Any], **keywords: Any) -> Any:
        """What an undeclared piece after the last one sees."""
        spy = Spy()
        self.run(kind, [*pieces, spy], episodes, **keywords)
        return spy.seen

    def columns(self, kind: str, pieces: list[Any], episodes: list[Any], **keywords: Any) -> Any:
        """What an undeclared piece after the last one sees, each key's items joined: {column: {key: rows}}."""
        seen = self.see(kind, pieces, episodes, **keywords)
        return {column: {key: rows(items) for key, items in groups.items()} for column, groups in seen.items()}

    def env_step(self, episodes: list[Any], outputs: Any, pieces: list[Any], **keywords: Any) -> Any:
        """Run the default env-to-module pipeline, then `pieces` on the module's outputs."""
        module_ = keywords.pop("rl_module", None) or module()
        shared: dict[str, Any] = {}
        spaces = keywords.pop("spaces", (OBS, ACT))
        self.run("env_to_module", defaults("env_to_module"), episodes, rl_module=module_, shared_data=shared)
        call = {"rl_module": module_, "explore": False, **keywords}
        return self.run("module_to_env", pieces, episodes, batch=outputs, shared_data=shared, spaces=spaces, **call)


@pytest.fixture(params=["columnar", "plain"])
def lab(request: pytest.FixtureRequest) -> Lab:
    """Every test runs both ways: pieces next to each other, and with undeclared pieces in between."""
    return Lab(request.param == "plain")


@pytest.fixture
def tensors() -> SimpleNamespace:
    """Logits that make the greedy actions of two environments 1 and 0, with and without a time axis."""
    logits = torch.tensor([[0.0, 9.0], [9.0, 0.0]])
    return SimpleNamespace(logits=logits, recurrent=logits[:, None])
