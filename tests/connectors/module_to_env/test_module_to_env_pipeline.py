"""From module outputs to a vector environment: the default order as a whole."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors.actions import ClipActions, RescaleActions
from epibatch.connectors.authoring import ColumnTransform
from epibatch.connectors.columns import CastColumns
from epibatch.connectors.connector_v2 import ConnectorV2
from epibatch.connectors.module_to_env import (
    GetActions,
    ListifyDataForVectorEnv,
    ModuleToEnvPipeline,
    NormalizeAndClipActions,
    default_pipeline,
)
from epibatch.core.errors import PipelineError
from epibatch.episodes import SingleAgentEpisode
from epibatch.testing import check_connector

LOGITS = torch.tensor([[0.0, 9.0], [9.0, 0.0]])


def two_episodes(lab, state=0):
    return [lab.episode("a", 0, state=state, numpy=False), lab.episode("b", 3, state=state, numpy=False)]


def values(result):
    return {name: np.asarray(column).tolist() for name, column in result.items() if name != "state_out"}


def test_feed_forward(lab):
    outputs = {"action_dist_inputs": LOGITS, "foo": torch.tensor([1, 2]), "bar": torch.ones(2, 3)}
    result = lab.env_step(two_episodes(lab), outputs, lab.defaults("module_to_env"))
    assert values(result) == {
        "action_dist_inputs": LOGITS.tolist(),
        "foo": [1, 2],
        "bar": [[1.0] * 3] * 2,
        "actions": [1, 0],
        "actions_for_env": [1, 0],
        "action_logp": [0, 0],
    }


def test_recurrent(lab):
    outputs = {
        "action_dist_inputs": LOGITS[:, None],
        "bar": torch.ones(2, 1, 3),
        "state_out": {"h": torch.tensor([[1.0, 2.0], [3.0, 4.0]])},
    }
    result = lab.env_step(two_episodes(lab, 2), outputs, lab.defaults("module_to_env"), rl_module=lab.module(state=2))
    assert values(result) == {
        "action_dist_inputs": LOGITS.tolist(),
        "bar": [[1.0] * 3] * 2,
        "actions": [1, 0],
        "actions_for_env": [1, 0],
        "action_logp": [0, 0],
    }
    states = result["state_out"]
    rows = states["h"] if isinstance(states, dict) else [state["h"] for state in states]
    assert np.asarray(rows).tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_user_pieces_see_the_items_of_each_episode(lab):
    spy = lab.spy()
    pieces = lab.defaults("module_to_env")
    pieces.insert(4, spy)
    lab.env_step(two_episodes(lab), {"action_dist_inputs": LOGITS}, pieces, seen_as="keyword")
    assert set(spy.seen) == {"action_dist_inputs", "actions", "action_logp"}
    assert [int(items[0]) for items in spy.seen["actions"].values()] == [1, 0]
    assert spy.kwargs["seen_as"] == "keyword"
    assert spy.explore is False


def test_a_user_piece_can_change_what_the_environment_gets_and_what_is_stored(lab):
    def flip(batch, episodes):
        for items in batch["actions"].values():
            items[0] = 1 - items[0]

    pieces = lab.defaults("module_to_env")
    pieces.insert(4, lab.user(flip))
    result = lab.env_step(two_episodes(lab), {"action_dist_inputs": LOGITS}, pieces)
    assert np.asarray(result["actions"]).tolist() == [0, 1]
    assert np.asarray(result["actions_for_env"]).tolist() == [0, 1]


def test_an_empty_pipeline_returns_the_batch_and_keeps_its_spaces(lab):
    pipeline = ModuleToEnvPipeline(lab.obs_space, lab.act_space, connectors=[])
    assert pipeline(rl_module=None, batch={"x": 1}, episodes=[]) == {"x": 1}
    assert (pipeline.observation_space, pipeline.action_space) == (lab.obs_space, lab.act_space)


# -- transforms ----------------------------------------------------------------------------------


class SameActions(ColumnTransform):
    columns = "actions"

    def transform(self, x):
        return x


class Doubled(ColumnTransform):
    """Twice the action, within the bounds."""

    columns = "actions_for_env"
    pipelines = ("module_to_env",)
    uses_spaces = True

    def transform(self, x):
        return np.clip(2 * x, self.row_space.low, self.row_space.high)


class Gets(gym.Env):
    """A Box from -2 to 4; keeps what it gets."""

    observation_space = gym.spaces.Box(-1, 1, (1,))
    action_space = gym.spaces.Box(-2.0, 4.0, (1,))

    def __init__(self):
        self.got = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.got.append(action)
        return np.zeros(1, np.float32), 0.0, False, len(self.got) == 20, {}


def sampled(**settings):
    """What the environment got in 20 steps, and what was stored."""
    env = Gets()
    config = PPOConfig().environment(lambda _: env).env_runners(num_envs_per_env_runner=1, **settings).debugging(seed=3)
    algo = config.build_algo()
    try:
        (episode,) = algo.env_runner.sample(num_episodes=1)
        return np.array(env.got), episode.get_actions()
    finally:
        algo.stop()


@pytest.mark.parametrize(
    "piece",
    [
        SameActions(),
        ClipActions(low=-0.5, high=0.5),
        RescaleActions(low=0.0, high=1.0),
        CastColumns(columns="actions", dtype="float64"),
    ],
    ids=lambda piece: type(piece).__name__,
)
def test_a_transform_of_the_stored_actions_is_refused(lab, piece):
    expected = rf"{type(piece).__name__}[\s\S]*log-prob[\s\S]*env_to_module_connector=[\s\S]*'actions_for_env'"
    with pytest.raises(PipelineError, match=expected):
        ModuleToEnvPipeline(connectors=[GetActions(), piece, NormalizeAndClipActions()])
    pipeline = ModuleToEnvPipeline(connectors=lab.defaults("module_to_env"))
    names = pipeline.names
    for _ in range(2):
        with pytest.raises(PipelineError, match=expected):
            pipeline.insert_before("normalize_and_clip_actions", piece)
    assert pipeline.names == names
    with pytest.raises(PipelineError, match=expected):
        PPOConfig().environment(lambda _: Gets()).env_runners(
            module_to_env_connector=lambda env, spaces: piece
        ).build_algo()


def test_a_transform_of_the_environments_actions_is_given_its_units_and_has_the_last_word():
    got, stored = sampled(module_to_env_connector=lambda env, spaces: Doubled())
    scaled = -2 + (np.clip(stored, -1, 1) + 1) * 3
    np.testing.assert_allclose(got, np.clip(2 * scaled, -2, 4), rtol=1e-5)
    assert got.dtype == np.float32 and (got == 4).any() and ((got > -2) & (got < 4)).any()


def test_the_last_word_is_behind_the_inverse_too():
    got, stored = sampled(
        env_to_module_connector=lambda *_: RescaleActions(low=0.0, high=1.0),
        module_to_env_connector=lambda env, spaces: Doubled(),
    )
    scaled = np.clip(-2 + stored * 6, -2, 4)
    np.testing.assert_allclose(got, np.clip(2 * scaled, -2, 4), rtol=1e-4, atol=1e-5)


def test_a_transform_of_actions_that_nobody_has_made_yet_is_refused(lab):
    with pytest.raises(
        PipelineError, match=r"piece 1 \(Doubled\)[\s\S]*insert_after\('normalize_and_clip_actions', piece\)"
    ):
        ModuleToEnvPipeline(connectors=[GetActions(), Doubled(), NormalizeAndClipActions()])
    pipeline = ModuleToEnvPipeline(connectors=lab.defaults("module_to_env"))
    pipeline.insert_after("normalize_and_clip_actions", Doubled())
    assert pipeline.names[-3:] == ["normalize_and_clip_actions", "doubled", "listify_data_for_vector_env"]


def test_a_piece_that_declares_nothing_is_trusted_to_make_them():
    class Mine(ConnectorV2):
        def __call__(self, *, batch, **kwargs):
            return batch

    assert ModuleToEnvPipeline(connectors=[Mine(), Doubled()]).names == ["mine", "doubled"]


def test_the_kit_puts_such_a_transform_where_configs_put_it():
    spaces = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Box(-2.0, 4.0, (2,))
    report = check_connector(Doubled, sides="module_to_env", spaces=spaces)
    assert report.failed == [] and "action_space" in str(report)


class Flips(ConnectorV2):
    """Changes `actions`, and does not say so."""

    def __call__(self, *, batch, **kwargs):
        return {**batch, "actions": {key: [-item for item in items] for key, items in batch["actions"].items()}}


def test_a_nested_pipeline_gives_the_environments_actions_alone_too():
    space = gym.spaces.Box(-1.0, 1.0, (1,))
    inner = default_pipeline(None, space, normalize_actions=False)
    inner.remove("listify_data_for_vector_env")
    outer = ModuleToEnvPipeline(None, space, connectors=[inner, Flips(), ListifyDataForVectorEnv()])
    episode = SingleAgentEpisode()
    episode.add_env_reset(np.zeros(3, np.float32))

    def given(pipeline):
        batch = pipeline(batch={"actions": torch.tensor([[0.5]])}, episodes=[episode])
        column = batch["actions_for_env"]
        return np.ravel(next(iter(column.values())) if isinstance(column, dict) else column).tolist()

    for pipeline, expected in ((inner, [0.5]), (outer, [-0.5]), (inner, [0.5]), (outer, [-0.5])):
        assert given(pipeline) == expected
