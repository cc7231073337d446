"""Default pipelines: their pieces, their batches to act on, to train on and for the environment."""

from __future__ import annotations

import gc
import tracemalloc
import weakref

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.algorithms import PolicySpec, PPOConfig
from epibatch.connectors import env_to_module, learner, module_to_env
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
from epibatch.connectors.views import View
from epibatch.core.errors import ConfigError, EpibatchError, PieceError, PipelineError
from epibatch.env_runner import SingleAgentEnvRunner
from epibatch.episodes import SingleAgentEpisode
from epibatch.testing import check_connector
from fixture_envs import CountingEnv, RecordActions
from fixture_pieces import Lab, UserPiece

BOX, TURN = gym.spaces.Box(-1.0, 1.0, (4,), np.float32), gym.spaces.Box(-2.0, 2.0, (1,), np.float32)
CHOICE = gym.spaces.Discrete(2)


class Halve(ColumnTransform):
    """Halves what the environment gets."""

    columns = "actions_for_env"

    def transform(self, x):
        return x / 2


def described(pipeline):
    """Every piece with the arguments that it was made with."""
    return [(type(piece), piece.get_ctor_args_and_kwargs()) for piece in pipeline]


def by_letter(agent_id, episode, **kwargs):
    return agent_id[0]


@st.composite
def runs(draw):
    """Settings of a run, as a config takes them and as default pipelines do."""
    return {
        "several": draw(st.booleans()),
        "normalize_actions": draw(st.booleans()),
        "clip_actions": draw(st.booleans()),
        "gamma": draw(st.sampled_from([0.0, 0.9, 1.0])),
        "lambda_": draw(st.sampled_from([0.0, 0.5, 1.0])),
        "burn_in": draw(st.booleans()),
        "device": draw(st.sampled_from([None, "cpu"])),
        "action": draw(st.sampled_from([CHOICE, TURN])),
        "users": draw(st.integers(0, 2)),
        "views": draw(st.sampled_from([{}, {"last": View("rewards", -1)}])),
    }


def config_and_arguments(run):
    """PPO's config for a run, and the arguments of default pipelines that are to do the same."""
    config = PPOConfig().environment(normalize_actions=run["normalize_actions"], clip_actions=run["clip_actions"])
    config.rl_module(view_requirements=run["views"]).training(gamma=run["gamma"], lambda_=run["lambda_"])
    if run["burn_in"]:
        config.rl_module(model_config={"use_lstm": True, "max_seq_len": 8, "burn_in": 2})

    def users(*arguments):
        return [UserPiece() for _ in range(run["users"])]

    config.env_runners(env_to_module_connector=users, module_to_env_connector=lambda *_: [Halve(), *users()])
    config.training(learner_connector=users)
    if not run["several"]:
        return config, (BOX, run["action"]), users, {}
    config.multi_agent(policies=["a", "b"], policy_mapping_fn=by_letter)
    spaces = [gym.spaces.Dict({"a1": space, "b1": space}) for space in (BOX, run["action"])]
    return config, spaces, users, {"agent_to_module_mapping_fn": by_letter, "rl_module_specs": NO_SPACES}


NO_SPACES = {"a": PolicySpec(), "b": PolicySpec()}  # what a config gives that was told no spaces


@settings(max_examples=25)
@given(run=runs())
def test_they_have_the_pieces_of_a_config(run):
    config, spaces, users, agents = config_and_arguments(run)

    def chosen(*names):
        return {name: run[name] for name in names}

    expected = config.build_env_to_module_connector(spaces={"__env_single__": spaces}, device=run["device"])
    mine = env_to_module.default_pipeline(*spaces, connectors=users(), **chosen("device", "views"), **agents)
    assert described(mine) == described(expected)
    expected = config.build_module_to_env_connector(spaces={"__env_single__": spaces})
    switches = chosen("normalize_actions", "clip_actions")
    mine = module_to_env.default_pipeline(*spaces, connectors=[Halve(), *users()], **switches, **agents)
    assert described(mine) == described(expected)
    expected = config.build_learner_connector(*spaces, device=run["device"])
    same = {"connectors": users(), **chosen("burn_in", "device", "views"), **agents}
    mine = learner.default_pipeline(*spaces, advantages=False, **same)
    assert described(mine) == described(expected)
    config.extend_learner_connector(expected)
    del mine  # its pieces go into another pipeline
    mine = learner.default_pipeline(*spaces, **chosen("gamma", "lambda_"), **same)
    assert described(mine)[:-1] == described(expected)[:-1]
    discounts = [(pipeline[-1].gamma, pipeline[-1].lambda_) for pipeline in (mine, expected)]
    assert discounts == [(run["gamma"], run["lambda_"])] * 2


def test_pieces_may_be_given_in_every_form_that_a_pipeline_takes():
    forms = [UserPiece(), (UserPiece, (), {}), {"piece": "check_finite"}]
    assert env_to_module.default_pipeline(connectors=forms).names[:3] == ["user_piece", "user_piece_1", "check_finite"]
    assert learner.default_pipeline(connectors=(UserPiece(),)).names[0] == "user_piece"
    names = module_to_env.default_pipeline(connectors=[Halve(), (UserPiece, (), {})]).names
    assert names[-4:] == ["user_piece", "normalize_and_clip_actions", "halve", "listify_data_for_vector_env"]


@pytest.mark.parametrize("side", [env_to_module, module_to_env, learner])
def test_what_is_no_list_of_pieces_is_named(side):
    with pytest.raises(PieceError, match="the class UserPiece"):
        side.default_pipeline(connectors=[UserPiece])
    with pytest.raises(PieceError, match=r"default_pipeline\.connectors\n  expected: a list of pieces"):
        side.default_pipeline(connectors=UserPiece())


def test_discounts_are_checked_where_they_are_given():
    with pytest.raises(ConfigError, match="gamma"):
        learner.default_pipeline(gamma=2.0)


# -- batches ---------------------------------------------------------------------------------------------


def two_episodes():
    return [Lab.episode("a", 0, numpy=False), Lab.episode("b", 3, numpy=False)]


TYPES = dict.fromkeys(["obs", "rewards", "action_logp", "advantages", "value_targets"], torch.float32)
TYPES |= dict.fromkeys(["terminateds", "truncateds", "loss_mask"], torch.bool)
TYPES |= dict.fromkeys(["actions", "seq_lens"], torch.int64)


def run(lab, episodes, *, ppo=False, state=0, before=()):
    pieces = [*before, *lab.defaults("learner", ppo)]
    batch = lab.run("learner", pieces, episodes, rl_module=lab.module(state=state, multi=True))
    assert list(batch) == ["default_policy"]
    return batch["default_policy"]


def two_chunks(state=0):
    return [
        Lab.episode("a", 5, end="terminated", state=state),
        Lab.episode("b", 3, t_started=2, lookback=1, state=state, offset=100),
    ]


def test_a_train_batch(lab):
    times = (0, 1, 2, 3, 4, 102, 103, 104)
    assert {name: column.tolist() for name, column in run(lab, two_chunks()).items()} == {
        "obs": [[t, t + 10] for t in times],
        "actions": [0, 1, 0, 1, 0, 0, 1, 0],
        "rewards": [t + 0.5 for t in times],
        "terminateds": [False] * 4 + [True] + [False] * 3,
        "truncateds": [False] * 8,
        "action_logp": [-t for t in times],
    }


def test_nothing_keeps_a_train_batch():
    pipeline, size = learner.default_pipeline(Lab.obs_space, Lab.act_space), 50_000
    episode = SingleAgentEpisode(
        observations=np.zeros((size + 1, 2), np.float32),
        actions=np.zeros(size),
        rewards=np.zeros(size),
        len_lookback_buffer=0,
    )
    tracemalloc.start()
    for _ in range(3):
        batch = pipeline(rl_module=Lab.module(), batch={}, episodes=[episode])
        columns = [weakref.ref(column) for column in batch.values()]
        assert len(columns) > 5 and tracemalloc.get_traced_memory()[0] > 8 * size
        del batch
        gc.collect()
        assert not any(column() is not None for column in columns)
        assert tracemalloc.get_traced_memory()[0] < size
    tracemalloc.stop()


def test_a_train_batch_of_sequences(lab):
    batch = run(lab, two_chunks(2), state=2)
    assert batch["seq_lens"].tolist() == [4, 1, 3]
    assert batch["rewards"].tolist() == [[0.5, 1.5, 2.5, 3.5], [4.5, 0, 0, 0], [102.5, 103.5, 104.5, 0]]
    assert batch["loss_mask"].tolist() == [[True] * 4, [True] + [False] * 3, [True] * 3 + [False]]
    assert batch["state_in"]["h"].tolist() == [[-1.0, -1.0], [3.25, 3.25], [101.25, 101.25]]
    assert batch["obs"].shape == (3, 4, 2)


@pytest.mark.parametrize("ppo", [False, True])
@pytest.mark.parametrize("state", [0, 2])
def test_types_and_columns_are_the_same_in_every_run(lab, state, ppo):
    episodes = two_chunks(state)
    batch, again = (run(lab, episodes, state=state, ppo=ppo) for _ in range(2))
    expected = {"obs", "actions", "rewards", "terminateds", "truncateds", "action_logp"}
    expected |= {"loss_mask", "advantages", "value_targets"} if ppo else set()
    expected |= {"seq_lens", "loss_mask", "state_in"} if state else set()
    assert set(batch) == expected
    for name in expected - {"state_in"}:
        assert batch[name].dtype == TYPES[name], name
        assert len(batch[name]) == len(batch["obs"]), name
        assert torch.equal(batch[name], again[name]), name


def one_row_each(batch, episodes):
    for episode in episodes:
        ConnectorV2.add_batch_item(batch, "obs", np.zeros((2, 2), np.float32), episode)


@pytest.mark.parametrize(
    ("episodes", "before", "fragments"),
    [
        (two_chunks, [one_row_each], ["obs", "'a'", "expected: 5", "found:    1"]),
        (lambda: [Lab.episode("a", 2), Lab.episode("empty_one", 0, numpy=False)], [], ["empty_one"]),
        (list, [], ["at least one episode"]),
    ],
    ids=["a row per episode", "no steps", "no episodes"],
)
def test_episodes_without_their_rows_are_named(lab, episodes, before, fragments):
    with pytest.raises(EpibatchError) as raised:
        run(lab, episodes(), before=list(map(lab.user, before)))
    assert [text for text in fragments if text not in str(raised.value)] == []


LOGITS = torch.tensor([[0.0, 9.0], [9.0, 0.0]])


def test_a_user_piece_sees_the_items_of_each_episode_and_can_change_them(lab):
    def flip(batch, episodes):
        for items in batch["actions"].values():
            items[0] = 1 - items[0]

    spy, pieces = lab.spy(), lab.defaults("module_to_env")
    pieces[4:4] = [spy, lab.user(flip)]
    result = lab.env_step(two_episodes(), {"action_dist_inputs": LOGITS}, pieces, seen_as="keyword")
    assert set(spy.seen) == {"action_dist_inputs", "actions", "action_logp"}
    assert [int(items[0]) for items in spy.seen["actions"].values()] == [1, 0]
    assert (spy.kwargs["seen_as"], spy.explore) == ("keyword", False)
    assert np.asarray(result["actions"]).tolist() == [0, 1]
    assert np.asarray(result["actions_for_env"]).tolist() == [0, 1]


# -- transforms of actions -------------------------------------------------------------------------------


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


def sampled(**settings):
    """What the environment, of actions from -2 to 4, got in 20 steps, and what was stored."""
    env = RecordActions(CountingEnv(length=20), action_space=gym.spaces.Box(-2.0, 4.0, (1,)))
    config = PPOConfig().environment(lambda _: env).env_runners(num_envs_per_env_runner=1, **settings).debugging(seed=3)
    runner = SingleAgentEnvRunner(config=config)
    (episode,) = runner.sample(num_episodes=1)
    runner.stop()
    return np.array(env.actions), episode.get_actions()


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
        sampled(module_to_env_connector=lambda env, spaces: piece)


@pytest.mark.parametrize("inverse", [False, True])
def test_a_transform_of_the_environments_actions_is_given_its_units_and_has_the_last_word(inverse):
    before = {"env_to_module_connector": lambda *_: RescaleActions(low=0.0, high=1.0)} if inverse else {}
    got, stored = sampled(module_to_env_connector=lambda env, spaces: Doubled(), **before)
    scaled = np.clip(-2 + stored * 6, -2, 4) if inverse else -2 + (np.clip(stored, -1, 1) + 1) * 3
    np.testing.assert_allclose(got, np.clip(2 * scaled, -2, 4), rtol=1e-4, atol=1e-5)
    assert got.dtype == np.float32 and (got == 4).any() and ((got > -2) & (got < 4)).any()


def test_a_transform_of_actions_that_nobody_has_made_yet_is_refused():
    expected = r"piece 1 \(Doubled\)[\s\S]*insert_after\('normalize_and_clip_actions', piece\)"
    with pytest.raises(PipelineError, match=expected):
        ModuleToEnvPipeline(connectors=[GetActions(), Doubled(), NormalizeAndClipActions()])
    pipeline = ModuleToEnvPipeline(connectors=Lab.defaults("module_to_env"))
    pipeline.insert_after("normalize_and_clip_actions", Doubled())
    assert pipeline.names[-3:] == ["normalize_and_clip_actions", "doubled", "listify_data_for_vector_env"]
    assert len(ModuleToEnvPipeline(connectors=[UserPiece(), Doubled()])) == 2  # which may make them


def test_the_contract_kit_puts_such_a_transform_where_configs_put_it():
    spaces = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Box(-2.0, 4.0, (2,))
    report = check_connector(Doubled, sides="module_to_env", spaces=spaces)
    assert report.failed == [] and "action_space" in str(report)


def flips(batch, episodes):
    """Change `actions`, without a declaration."""
    return {**batch, "actions": {key: [-item for item in items] for key, items in batch["actions"].items()}}


def test_a_nested_pipeline_gives_the_environments_actions_alone_too():
    space = gym.spaces.Box(-1.0, 1.0, (1,))
    inner = default_pipeline(None, space, normalize_actions=False)
    inner.remove("listify_data_for_vector_env")
    outer = ModuleToEnvPipeline(None, space, connectors=[inner, UserPiece(flips), ListifyDataForVectorEnv()])
    episode = SingleAgentEpisode()
    episode.add_env_reset(np.zeros(3, np.float32))

    def given(pipeline):
        batch = pipeline(batch={"actions": torch.tensor([[0.5]])}, episodes=[episode])
        column = batch["actions_for_env"]
        return np.ravel(next(iter(column.values())) if isinstance(column, dict) else column).tolist()

    for pipeline, expected in ((inner, [0.5]), (outer, [-0.5]), (inner, [0.5]), (outer, [-0.5])):
        assert given(pipeline) == expected
