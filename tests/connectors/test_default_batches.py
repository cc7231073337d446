"""The default orders as a whole: batches to act on, to train on, and for the environment."""

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
from epibatch.core.errors import EpibatchError, PipelineError
from epibatch.episodes import SingleAgentEpisode
from epibatch.testing import check_connector
from fixture_pieces import Lab


def two_episodes(state=0):
    return [Lab.episode("a", 0, state=state, numpy=False), Lab.episode("b", 3, state=state, numpy=False)]


def test_feed_forward(lab):
    batch = lab.run("env_to_module", lab.defaults("env_to_module"), two_episodes(), rl_module=lab.module())
    assert set(batch) == {"obs"}
    assert batch["obs"].dtype == torch.float32
    assert batch["obs"].tolist() == [[0.0, 10.0], [3.0, 13.0]]


def test_recurrent(lab):
    module = lab.module(state=2)
    batch = lab.run("env_to_module", lab.defaults("env_to_module"), two_episodes(2), rl_module=module)
    assert set(batch) == {"obs", "state_in"}
    assert batch["obs"].tolist() == [[[0.0, 10.0]], [[3.0, 13.0]]]
    assert batch["state_in"]["h"].tolist() == [[-1.0, -1.0], [2.25, 2.25]]
    assert batch["state_in"]["h"].dtype == torch.float32


def test_the_batch_defaults_to_an_empty_one_and_shared_data_is_made(lab):
    spy = lab.spy()
    pipeline = lab.pipeline("env_to_module", [spy, *lab.defaults("env_to_module")])
    batch = pipeline(rl_module=lab.module(), episodes=two_episodes(), anything="handed on")
    assert batch["obs"].shape == (2, 2)
    assert spy.seen == {}
    assert isinstance(spy.shared_data, dict)
    assert spy.kwargs["anything"] == "handed on"


def test_a_user_piece_can_supply_the_observations(lab):
    def supply(batch, episodes):
        for i, episode in enumerate(episodes):
            lab.user.add_batch_item(batch, "obs", np.full(3, i, np.float32), episode)

    batch = lab.run(
        "env_to_module", [lab.user(supply), *lab.defaults("env_to_module")], two_episodes(), rl_module=lab.module()
    )
    assert batch["obs"].tolist() == [[0.0] * 3, [1.0] * 3]


TYPES = {
    "obs": torch.float32,
    "actions": torch.int64,
    "rewards": torch.float32,
    "terminateds": torch.bool,
    "truncateds": torch.bool,
    "action_logp": torch.float32,
    "loss_mask": torch.bool,
    "advantages": torch.float32,
    "value_targets": torch.float32,
    "seq_lens": torch.int64,
}


def run(lab, episodes, *, ppo=False, state=0, front=(), **keywords):
    pieces = [*front, *lab.defaults("learner", ppo)]
    batch = lab.run("learner", pieces, episodes, rl_module=lab.module(state=state, multi=True), **keywords)
    assert list(batch) == ["default_policy"]
    return batch["default_policy"]


def two_chunks(state=0):
    return [
        Lab.episode("a", 5, end="terminated", state=state),
        Lab.episode("b", 3, t_started=2, lookback=1, state=state, offset=100),
    ]


def test_stateless_batch(lab):
    batch = run(lab, two_chunks())
    assert {name: column.tolist() for name, column in batch.items()} == {
        "obs": [[t, t + 10] for t in (0, 1, 2, 3, 4, 102, 103, 104)],
        "actions": [0, 1, 0, 1, 0, 0, 1, 0],
        "rewards": [t + 0.5 for t in (0, 1, 2, 3, 4, 102, 103, 104)],
        "terminateds": [False] * 4 + [True] + [False] * 3,
        "truncateds": [False] * 8,
        "action_logp": [-t for t in (0, 1, 2, 3, 4, 102, 103, 104)],
    }


def test_recurrent_batch(lab):
    batch = run(lab, two_chunks(2), state=2)
    assert batch["seq_lens"].tolist() == [4, 1, 3]
    assert batch["rewards"].tolist() == [[0.5, 1.5, 2.5, 3.5], [4.5, 0, 0, 0], [102.5, 103.5, 104.5, 0]]
    assert batch["loss_mask"].tolist() == [[True] * 4, [True] + [False] * 3, [True] * 3 + [False]]
    assert batch["state_in"]["h"].tolist() == [[-1.0, -1.0], [3.25, 3.25], [101.25, 101.25]]
    assert batch["obs"].shape == (3, 4, 2)


@pytest.mark.parametrize("ppo", [False, True])
@pytest.mark.parametrize("state", [0, 2])
def test_types_and_columns(lab, state, ppo):
    batch = run(lab, two_chunks(state), state=state, ppo=ppo)
    expected = {"obs", "actions", "rewards", "terminateds", "truncateds", "action_logp"}
    expected |= {"loss_mask", "advantages", "value_targets"} if ppo else set()
    expected |= {"seq_lens", "loss_mask", "state_in"} if state else set()
    assert set(batch) == expected
    for name in expected - {"state_in"}:
        assert batch[name].dtype == TYPES[name], name
        assert len(batch[name]) == len(batch["obs"]), name


def test_running_twice_gives_the_same_batch(lab):
    episodes = two_chunks(2)
    first, second = (run(lab, episodes, state=2, ppo=True) for _ in range(2))
    for name in set(first) - {"state_in"}:
        assert torch.equal(first[name], second[name]), name


def test_user_columns_pre_empt_the_defaults(lab):
    def mine(batch, episodes):
        for episode in episodes:
            lab.user.add_n_batch_items(batch, "rewards", np.full(len(episode), 7.0), len(episode), episode)

    batch = run(lab, two_chunks(), front=[lab.user(mine)])
    assert batch["rewards"].tolist() == [7.0] * 8


def test_a_piece_with_one_row_per_episode_is_told_what_is_missing(lab):
    def stacking(batch, episodes):
        for episode in episodes:
            lab.user.add_batch_item(batch, "obs", np.zeros((2, 2), np.float32), episode)

    with pytest.raises(EpibatchError, match="obs") as raised:
        run(lab, two_chunks(), front=[lab.user(stacking)])
    message = str(raised.value)
    assert "'a'" in message
    assert "expected: 5" in message
    assert "found:    1" in message


def test_zero_length_episodes_are_named(lab):
    with pytest.raises(EpibatchError, match="empty_one"):
        run(lab, [lab.episode("a", 2), lab.episode("empty_one", 0, numpy=False)])


def test_no_episodes_are_an_error(lab):
    with pytest.raises(EpibatchError, match="at least one episode"):
        run(lab, [])


LOGITS = torch.tensor([[0.0, 9.0], [9.0, 0.0]])


def values(result):
    return {name: np.asarray(column).tolist() for name, column in result.items() if name != "state_out"}


def test_actions_of_a_feed_forward_module(lab):
    outputs = {"action_dist_inputs": LOGITS, "foo": torch.tensor([1, 2]), "bar": torch.ones(2, 3)}
    result = lab.env_step(two_episodes(), outputs, lab.defaults("module_to_env"))
    assert values(result) == {
        "action_dist_inputs": LOGITS.tolist(),
        "foo": [1, 2],
        "bar": [[1.0] * 3] * 2,
        "actions": [1, 0],
        "actions_for_env": [1, 0],
        "action_logp": [0, 0],
    }


def test_actions_of_a_recurrent_module(lab):
    outputs = {
        "action_dist_inputs": LOGITS[:, None],
        "bar": torch.ones(2, 1, 3),
        "state_out": {"h": torch.tensor([[1.0, 2.0], [3.0, 4.0]])},
    }
    result = lab.env_step(two_episodes(2), outputs, lab.defaults("module_to_env"), rl_module=lab.module(state=2))
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
    lab.env_step(two_episodes(), {"action_dist_inputs": LOGITS}, pieces, seen_as="keyword")
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
    result = lab.env_step(two_episodes(), {"action_dist_inputs": LOGITS}, pieces)
    assert np.asarray(result["actions"]).tolist() == [0, 1]
    assert np.asarray(result["actions_for_env"]).tolist() == [0, 1]


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
def test_a_transform_of_the_stored_actions_is_refused(piece):
    expected = rf"{type(piece).__name__}[\s\S]*log-prob[\s\S]*env_to_module_connector=[\s\S]*'actions_for_env'"
    with pytest.raises(PipelineError, match=expected):
        ModuleToEnvPipeline(connectors=[GetActions(), piece, NormalizeAndClipActions()])
    pipeline = ModuleToEnvPipeline(connectors=Lab.defaults("module_to_env"))
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


def test_a_transform_of_actions_that_nobody_has_made_yet_is_refused():
    with pytest.raises(
        PipelineError, match=r"piece 1 \(Doubled\)[\s\S]*insert_after\('normalize_and_clip_actions', piece\)"
    ):
        ModuleToEnvPipeline(connectors=[GetActions(), Doubled(), NormalizeAndClipActions()])
    pipeline = ModuleToEnvPipeline(connectors=Lab.defaults("module_to_env"))
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
