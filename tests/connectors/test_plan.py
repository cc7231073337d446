"""The order of pieces is checked when a pipeline is built, and after every edit."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.algorithms import PPOConfig
from epibatch.connectors import ConnectorPipelineV2
from epibatch.connectors.authoring import ColumnTransform
from epibatch.connectors.columns import DropColumns
from epibatch.connectors.common import (
    AddObservationsFromEpisodesToBatch,
    AgentToModuleMapping,
    BatchIndividualItems,
    FlattenObservations,
    FrameStacking,
    NumpyToTensor,
)
from epibatch.connectors.connector_v2 import ConnectorV2
from epibatch.connectors.env_to_module import EnvToModulePipeline, WriteObservationsToEpisodes
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    AddNextObservationsFromEpisodesToTrainBatch,
    AddOneTsToEpisodesAndTruncate,
    LearnerConnectorPipeline,
    PrevActionsPrevRewardsLearner,
)
from epibatch.connectors.observations import Affine, Clip, TimeMaxPool
from epibatch.connectors.views import TrajectoryViews, View
from epibatch.core.columns import COLUMNS_LEFT_OUT
from epibatch.core.errors import EpibatchWarning, PieceError, PipelineError
from epibatch.episodes import MultiAgentEpisode
from fixture_pieces import Lab, played

FRAMES = gym.spaces.Box(0, 99, (2, 1), np.float32)
CHOICE = gym.spaces.Discrete(2)


class Double(ColumnTransform):
    """Twice the values."""

    columns: Any = "obs"
    takes_tensors = True
    monotonic = True

    def transform(self, x):
        return 2 * x


class Augment(Double):
    """Is meant for training alone."""

    training_only = True


class Plain(ConnectorV2):
    """Declares no columns, and so is trusted."""

    transforms = ("obs",)

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        return batch


class Rewrites(Plain):
    """Declares nothing but that it replaces the newest observation."""

    rewrites_observations = True


class ReadsRewards(Plain):
    reads = ("rewards",)


def add(training: bool = True) -> Any:
    return AddObservationsFromEpisodesToBatch(**({"as_learner_connector": True} if training else {}))


def with_next(*, before: Any = (), after: Any = ()) -> list[Any]:
    """Pieces that make a train batch with next observations."""
    makers = [add(), AddNextObservationsFromEpisodesToTrainBatch(), AddColumnsFromEpisodesToTrainBatch()]
    return [*before, *makers, *after, BatchIndividualItems()]


# -- orders that are refused -------------------------------------------------------------------------

LEARN, ACT = LearnerConnectorPipeline, EnvToModulePipeline
BOTH = ("obs", "new_obs")
REFUSED = {
    "columns after the batch": (
        LEARN,
        lambda: [BatchIndividualItems(), AddColumnsFromEpisodesToTrainBatch()],
        ["piece 1 (AddColumnsFromEpisodesToTrainBatch)", "piece 0 (BatchIndividualItems)"],
    ),
    "tensors of no batch": (
        LEARN,
        lambda: [add(), NumpyToTensor(), BatchIndividualItems()],
        ["piece 1 (NumpyToTensor)", "move NumpyToTensor after piece 2 (BatchIndividualItems)"],
    ),
    "a dropped column": (
        LEARN,
        lambda: [AddColumnsFromEpisodesToTrainBatch(), DropColumns(columns="rewards"), ReadsRewards()],
        ["piece 2 (ReadsRewards)", "'rewards'", "move piece 1 (DropColumns) after piece 2 (ReadsRewards)"],
    ),
    "rewriting after a transform": (
        ACT,
        lambda: [Clip(low=-1, high=1), Rewrites()],
        ["piece 1 (Rewrites)", "move Rewrites before EnvToModulePipeline, piece 0 (Clip)"],
    ),
    "stacks written to episodes": (
        ACT,
        lambda: [FrameStacking(num_frames=2), WriteObservationsToEpisodes()],
        ["move WriteObservationsToEpisodes before FrameStacking"],
    ),
    "stacks of what was changed": (
        ACT,
        lambda: [Double(), FrameStacking(num_frames=2)],
        ["put WriteObservationsToEpisodes between the two"],
    ),
    "observations alone": (
        LEARN,
        lambda: with_next(before=[Double()]),
        ["piece 0 (Double)", 'columns = ("obs", "new_obs")'],
    ),
    "observations alone, later": (
        LEARN,
        lambda: with_next(after=[Double()]),
        ["piece 3 (Double)", "by LearnerConnectorPipeline, piece 1 (AddNext"],
    ),
    "a part alone": (LEARN, lambda: with_next(before=[Double(columns="obs/a")]), ['columns = ("obs/a", "new_obs/a")']),
    "alone and both": (LEARN, lambda: with_next(before=[Double(), Double(columns=BOTH)]), ["piece 1 (Double)"]),
    "each by another": (
        LEARN,
        lambda: with_next(before=[Affine(scale=2), Double(columns="new_obs")]),
        ["piece 0 (Affine)"],
    ),
}


@pytest.mark.parametrize(("kind", "pieces", "fragments"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_order_is_refused_with_the_pieces_and_the_way_out(kind, pieces, fragments):
    with pytest.raises(PipelineError) as raised:
        kind(connectors=pieces())
    message = str(raised.value)
    assert [text for text in [kind.__name__, "do: ", *fragments] if text not in message] == [], message


@pytest.mark.parametrize(
    ("kind", "pieces"),
    [
        (ACT, lambda: [Rewrites(), Clip(low=-1, high=1)]),
        (ACT, lambda: [Rewrites(), add(False)]),
        (ACT, lambda: [FrameStacking(num_frames=1), WriteObservationsToEpisodes()]),
        (ACT, lambda: [Double(), WriteObservationsToEpisodes(), FrameStacking(num_frames=2)]),
        (LEARN, lambda: with_next(before=[Double(), Double(columns="new_obs")])),
        (LEARN, lambda: with_next(before=[Double(columns="rewards")])),
        (LEARN, lambda: [Double(), *Lab.defaults("learner")]),
        (LEARN, lambda: with_next(before=[Augment()])),
        (LEARN, lambda: with_next(before=[Plain()])),
    ],
)
def test_the_right_orders_are_accepted(kind, pieces):
    assert len(kind(connectors=pieces())) >= 2


@pytest.mark.parametrize(
    "second",
    [
        lambda: FrameStacking(num_frames=2, as_learner_connector=True),
        PrevActionsPrevRewardsLearner,
        lambda: FlattenObservations(as_learner_connector=True),
    ],
)
@pytest.mark.parametrize("first", [Double, add])
def test_what_would_be_lost_is_refused_with_both_names(first, second):
    with pytest.raises(PipelineError) as raised:
        LearnerConnectorPipeline(connectors=[first(), second()])
    one, other = type(first()).__name__, type(second()).__name__
    for words in (f"piece 0 ({one})", f"piece 1 ({other})", f"move {other} before {one}"):
        assert words in str(raised.value)
    LearnerConnectorPipeline(FRAMES, CHOICE, connectors=[second(), first()])


def test_what_advantages_were_made_of_stays_as_it_is():
    config = PPOConfig()
    pipeline = config.build_learner_connector(FRAMES, CHOICE)
    config.extend_learner_connector(pipeline)
    with pytest.raises(PipelineError, match=r"'rewards' as it was[\s\S]*move Double before GeneralAdvantageEstimation"):
        pipeline.append(Double(columns="rewards"))
    with pytest.raises(PipelineError, match="column 'obs' as it was"):
        pipeline.append(Affine(scale=2.0))
    pipeline.append(Augment())
    pipeline.insert_before("GeneralAdvantageEstimation", Double(columns="rewards"))
    assert pipeline.names[-3:] == ["double", "general_advantage_estimation", "augment"]


def test_an_edit_that_breaks_the_order_is_refused_and_undone():
    pipe = LearnerConnectorPipeline(Lab.obs_space, Lab.act_space, connectors=Lab.defaults("learner"))
    before = list(pipe)
    with pytest.raises(PipelineError):
        pipe.append(AddColumnsFromEpisodesToTrainBatch())
    with pytest.raises(PipelineError, match="NumpyToTensor"):
        pipe.remove("BatchIndividualItems")
    assert list(pipe) == before
    pipe.append(Lab.user())  # a correct edit after a refused one
    pipe.remove("UserPiece")
    batch = pipe(rl_module=Lab.module(), batch={}, episodes=[Lab.episode("a", 2)])
    assert list(pipe) == before and len(batch["obs"]) == 2


def test_after_an_undeclared_piece_columns_are_taken_on_trust(lab):
    def supply(batch, episodes):
        for episode in episodes:
            lab.user.add_n_batch_items(batch, "obs", [[0.0]] * len(episode), len(episode), episode)

    pieces = [lab.user(supply), *lab.defaults("learner")[1:]]
    batch = lab.run("learner", pieces, [lab.episode("a", 2)], rl_module=lab.module())
    assert batch["obs"].tolist() == [[0.0], [0.0]]


# -- calls ---------------------------------------------------------------------------------------------


def _piece(function):
    return type("Own", (ConnectorV2,), {"__call__": function})()


@pytest.mark.parametrize(
    "function",
    [
        lambda self, batch, episodes: batch,
        lambda self, *, batch, episodes, explore=None, shared_data=None, metrics=None: batch,
        lambda self, batch, /, **kwargs: batch,
    ],
)
def test_a_call_that_lacks_the_keywords_is_refused_when_the_pipeline_is_built(function):
    for build in (lambda piece: LearnerConnectorPipeline(connectors=[piece]), LearnerConnectorPipeline().append):
        with pytest.raises(PieceError, match=r"piece 0 \(Own\), its method __call__") as error:
            build(_piece(function))
        assert "write def __call__(self, *, rl_module, batch, episodes, **kwargs)" in str(error.value)


@pytest.mark.parametrize(
    "function",
    [
        lambda self, *, batch, episodes, **kw: batch,
        lambda self, batch, **kw: batch,
        lambda self, **call: call["batch"],
        lambda self, *args, **call: call["batch"],
        lambda self, rl_module, batch, episodes, explore, shared_data, metrics, more=3: batch,
    ],
)
def test_every_call_that_accepts_the_keywords_is_accepted(function):
    pipeline = LearnerConnectorPipeline(connectors=[_piece(function)])
    assert pipeline(episodes=[Lab.episode("e", 2)]) == {}


def test_required_keywords_of_its_own_are_the_callers_to_pass():
    for function in (
        lambda self, *, rl_module, batch, episodes, my_kw, **kwargs: {"seen": my_kw},
        lambda self, rl_module, batch, my_kw, **kwargs: {"seen": my_kw},
    ):
        pipeline = LearnerConnectorPipeline(connectors=[_piece(function)])
        assert pipeline(episodes=[Lab.episode("e", 2)], my_kw=3) == {"seen": 3}
        with pytest.raises(TypeError, match=r"piece 0 \(Own\)[\s\S]*my_kw"):
            pipeline(episodes=[Lab.episode("e", 2)])


@pytest.mark.parametrize(
    ("function", "call"),
    [
        (lambda x: x, "pass what the decorated function returns"),
        (len, r"pass len\(\)"),
        (LearnerConnectorPipeline().prepend, r"pass prepend\(\)"),
    ],
)
def test_a_bare_function_comes_with_how_to_make_it_a_piece(function, call):
    with pytest.raises(PieceError, match=f"@column_function.*{call}"):
        LearnerConnectorPipeline(connectors=[function])


# -- sides ---------------------------------------------------------------------------------------------


class Stacks(ConnectorV2):
    """Tells which side it is on, and counts what it has learned."""

    def __init__(self, input_observation_space=None, input_action_space=None, as_learner_connector=False):
        super().__init__(input_observation_space, input_action_space)
        self.as_learner_connector, self.count = as_learner_connector, 0

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        return {"trains": self.as_learner_connector}

    def get_state(self, components=None, *, not_components=None, **kwargs):
        return {"count": self.count}

    def set_state(self, state):
        self.count = state["count"]


def test_a_learner_pipeline_makes_its_pieces_train():
    nested, given = (ConnectorPipelineV2(connectors=[piece]) for piece in (add(False), add()))
    for piece in (add(False), nested, add(), given):
        pipeline = LearnerConnectorPipeline(connectors=[piece, BatchIndividualItems()])
        assert len(pipeline(episodes=[Lab.episode("a", 2)])["obs"]) == 2
    assert len(ConnectorPipelineV2(connectors=[add(False)])(episodes=[Lab.episode("a", 2)])["obs"]["a",]) == 1
    for kind in (LearnerConnectorPipeline, EnvToModulePipeline):
        piece = Stacks()
        piece.count = 3
        out = kind(connectors=[piece])(episodes=[Lab.episode("a", 2)])
        assert (out["trains"], piece.count) == (kind is LearnerConnectorPipeline, 3)


@pytest.mark.parametrize(
    ("pipeline", "piece", "side"),
    [
        (LearnerConnectorPipeline, lambda: AddObservationsFromEpisodesToBatch(as_learner_connector=False), False),
        (EnvToModulePipeline, add, True),
        (EnvToModulePipeline, lambda: Stacks(None, None, True), True),
    ],
)
def test_a_piece_that_was_made_for_the_other_side_is_refused(pipeline, piece, side):
    with pytest.raises(PieceError, match=rf"piece 0 \(\w+\)[\s\S]*found: +as_learner_connector={side}"):
        pipeline(connectors=[piece()])


def test_what_a_written_constructor_put_into_a_built_in_piece_stays_there():
    class Counts(FlattenObservations):
        def __init__(self, *spaces, **kwargs):
            super().__init__(*spaces, **kwargs)
            self.seen = []

    piece = Counts()
    piece.seen.append(1)
    LearnerConnectorPipeline(connectors=[piece])
    assert (piece.seen, piece.writes) == ([1], ("obs",))


def scaled(base, attribute):
    """A piece as users write it: its constructor opens something, and its factor is set afterwards."""

    class Scale(base):
        def __init__(self, input_observation_space=None, input_action_space=None, *, as_learner_connector=False):
            super().__init__(input_observation_space, input_action_space)
            self.made = getattr(self, "made", 0) + 1
            self.factor = 1.0
            if attribute:
                setattr(self, attribute, as_learner_connector)

        def __call__(self, *, batch, **kwargs):
            return {"side": attribute and getattr(self, attribute), "factor": self.factor}

    return Scale()


class Annotated(AddObservationsFromEpisodesToBatch):
    """Its constructor is made of its attributes."""

    def __post_init__(self):
        self.made = getattr(self, "made", 0) + 1
        self.factor = 1.0

    def __call__(self, *, batch, **kwargs):
        return {"side": self.as_learner_connector, "factor": self.factor}


@pytest.mark.filterwarnings("ignore:(?s).*keeps its argument as_learner_connector")  # one piece does not keep it
@pytest.mark.parametrize("kind", [LearnerConnectorPipeline, EnvToModulePipeline, ConnectorPipelineV2])
@pytest.mark.parametrize(
    "make",
    [
        lambda: scaled(ConnectorV2, "as_learner_connector"),
        lambda: scaled(ConnectorV2, "_as_learner_connector"),
        lambda: scaled(ConnectorV2, None),
        lambda: scaled(AddObservationsFromEpisodesToBatch, "as_learner_connector"),
        Annotated,
    ],
)
def test_a_pipeline_runs_no_constructor_again_and_keeps_what_was_set_since(make, kind):
    piece = make()
    piece.factor, piece.opened = 3.0, object()
    opened = piece.opened
    pipeline = kind(connectors=[piece])
    for _ in range(2):
        out = pipeline(episodes=[Lab.episode("a", 2)])
        assert out["factor"] == 3.0 and piece.made == 1 and piece.opened is opened
        assert out["side"] in (None, kind is LearnerConnectorPipeline)
        if kind is ConnectorPipelineV2:
            pipeline = LearnerConnectorPipeline(connectors=[pipeline])
            kind = LearnerConnectorPipeline


def test_a_piece_with_more_that_depends_on_the_side_overrides_one_method():
    class Widens(Stacks):
        lookback = 1

        def take_side(self, training):
            super().take_side(training)
            self.lookback = 7 if training else 2

    for kind, lookback in ((ConnectorPipelineV2, 1), (EnvToModulePipeline, 2), (LearnerConnectorPipeline, 7)):
        piece = Widens()
        pipeline = kind(connectors=[piece])
        assert (piece.lookback, pipeline.lookback_needed) == (lookback, lookback)


def test_a_piece_that_does_not_learn_its_side_is_warned_of():
    class Deaf(ConnectorV2):
        def __init__(self, input_observation_space=None, input_action_space=None, *, as_learner_connector=False, **kw):
            super().__init__(input_observation_space, input_action_space, **kw)
            self.learner_side = as_learner_connector

        def __call__(self, *, batch, **kwargs):
            return batch

    with pytest.warns(EpibatchWarning, match="self.as_learner_connector") as caught:
        LearnerConnectorPipeline(connectors=[Deaf()])
    assert caught[0].message.where == "LearnerConnectorPipeline, piece 0 (Deaf)"
    EnvToModulePipeline(connectors=[Deaf()])
    LearnerConnectorPipeline(connectors=[Deaf(as_learner_connector=True)])


def test_copies_for_agents_change_sides_with_their_piece():
    agents = (gym.spaces.Dict(a=Lab.obs_space), gym.spaces.Dict(a=Lab.act_space))
    episode = MultiAgentEpisode(id_="e", observation_space=agents[0], action_space=agents[1])
    episode.add_env_reset(observations={"a": np.zeros(2, np.float32)})
    episode.add_env_step({"a": np.ones(2, np.float32)}, {"a": 0}, {"a": 0.0})
    piece = TrajectoryViews(views={"last": View("obs", "-1:0", act=True)})
    acting = EnvToModulePipeline(*agents, connectors=[piece])
    (newest,) = acting(episodes=[episode])["last"].values()
    acting.remove(piece)
    (steps,) = LearnerConnectorPipeline(*agents, connectors=[piece])(episodes=[episode])["last"].values()
    assert np.array(newest).tolist() == [[[0, 0], [1, 1]]] and np.array(steps).tolist() == [[[[0, 0], [0, 0]]]]


def test_a_piece_that_goes_to_the_other_side_is_as_a_new_one():
    piece = FlattenObservations(Lab.obs_space)
    learner = LearnerConnectorPipeline(Lab.obs_space, connectors=[piece])
    assert piece.writes == ("obs",)
    learner.remove(piece)
    EnvToModulePipeline(Lab.obs_space, connectors=[piece])
    assert (piece.writes, piece.removes, piece.rewrites_observations) == ((), (), True)
    assert piece.clone().get_ctor_args_and_kwargs() == ((Lab.obs_space,), {})


# -- next observations go through what observations go through -----------------------------------------


@settings(max_examples=20)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.booleans(), st.booleans())
def test_both_are_transformed_before_the_piece_that_makes_them_or_after(lengths, bootstraps, after):
    episodes = [played([np.float32([10 * i + t, t]) for t in range(n + 1)]) for i, n in enumerate(lengths)]
    pieces = with_next(**{"after" if after else "before": [Double(columns=BOTH)]})
    pieces = [AddOneTsToEpisodesAndTruncate(), *pieces] if bootstraps else pieces
    batch = LearnerConnectorPipeline(connectors=pieces)(rl_module=None, episodes=episodes)
    expected = []
    for one in episodes:
        rows = [2 * one.get_observations(t + 1) for t in range(len(one))]
        expected += [*rows, rows[-1]] if bootstraps else rows
    np.testing.assert_array_equal(batch["new_obs"], np.stack(expected))


MAKERS = {
    "frame stack": (lambda: FrameStacking(num_frames=3, axis=-1), lambda rows, t: np.concatenate(window(rows, t, 3))),
    "pooled stack": (
        lambda: FrameStacking(num_frames=2, new_axis=True, max_pool=2),
        lambda rows, t: np.stack(
            [rows[max(t - 2, 0) : t].max(0) if t else 0 * rows[0], rows[max(t - 1, 0) : t + 1].max(0)]
        ),
    ),
    "maximum": (lambda: TimeMaxPool(num_frames=2), lambda rows, t: rows[max(t - 1, 0) : t + 1].max(0)),
    "view": (
        lambda: TrajectoryViews(views={"obs": View("obs", "-2:0"), "last": View("rewards", -1)}),
        lambda rows, t: np.stack(window(rows, t, 3)),
    ),
    "flat": (FlattenObservations, lambda rows, t: rows[t]),
}


def window(rows, t, size):
    return [rows[k] if k >= 0 else np.zeros_like(rows[0]) for k in range(t - size + 1, t + 1)]


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("several", [False, True])
@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(["after", "before", "after a transform"]),
    st.lists(st.integers(1, 6), min_size=1, max_size=3),
    st.booleans(),
    st.booleans(),
)
def test_next_observations_are_what_makes_observations_one_step_later(maker, several, order, lengths, bootstraps, cut):
    """By a loop over whole episodes; chunks begin in the middle, and have the history that the piece asks for."""
    make, slow = MAKERS[maker]
    scale = 2 if order == "after a transform" else 1
    pieces = [make(), AddNextObservationsFromEpisodesToTrainBatch(), BatchIndividualItems()]
    if order == "before":
        pieces[:2] = pieces[1::-1]
    if order == "after a transform":
        pieces.insert(1, Double(columns=BOTH))
    pieces = [AddOneTsToEpisodesAndTruncate(), *pieces] if bootstraps else pieces
    pieces[-1:-1] = [AgentToModuleMapping(rl_module_specs=["default_policy"])] * several
    chunks, obs, new_obs = [], [], []
    for i, length in enumerate(lengths):
        rows, start = np.float32([[10 * i + t, t - 20] for t in range(length + 1)]), length // 2 if cut else 0
        chunks.append(chunk_of(rows, start, several))
        made = [scale * slow(rows, t) for t in range(length + 1)]
        obs += made[start:] if bootstraps else made[start:-1]
        new_obs += made[start + 1 :] + made[-1:] * bootstraps
    spaces = (Lab.obs_space, Lab.act_space)
    spaces = tuple(gym.spaces.Dict(a=space) for space in spaces) if several else spaces
    batch = LearnerConnectorPipeline(*spaces, connectors=pieces)(rl_module=None, episodes=chunks)
    batch = batch["default_policy"] if several else batch
    np.testing.assert_array_equal(batch["obs"], np.stack(obs))
    np.testing.assert_array_equal(batch["new_obs"], np.stack(new_obs), strict=True)


def chunk_of(rows, start, several):
    """The end of an episode of one agent, or of several, of these observations."""
    if not several:
        return played(rows).slice(slice(start, len(rows) - 1), len_lookback_buffer=start)
    episode = MultiAgentEpisode(agent_to_module_mapping_fn=lambda *_, **__: "default_policy")
    episode.add_env_reset(observations={"a": rows[0]})
    for row in rows[1:]:
        episode.add_env_step({"a": row}, {"a": 0}, {"a": 0.0})
    return episode.slice(slice(start, len(rows) - 1), len_lookback_buffer=start)


def test_next_observations_with_the_actions_before_them():
    episode = played(np.float32([[1, 2], [3, 4], [5, 6]]), actions=[1, 0])
    pieces = [PrevActionsPrevRewardsLearner(n_prev_rewards=0), AddNextObservationsFromEpisodesToTrainBatch()]
    pipeline = LearnerConnectorPipeline(Lab.obs_space, CHOICE, connectors=[*pieces, BatchIndividualItems()])
    batch = pipeline(rl_module=None, episodes=[episode])
    assert batch["obs"]["prev_n_actions"].tolist() == [[0, 0], [0, 1]]
    assert batch["new_obs"]["prev_n_actions"].tolist() == [[0, 1], [1, 0]]
    assert batch["new_obs"]["_orig_obs"].tolist() == [[3, 4], [5, 6]]


def test_their_space_is_that_of_observations_and_they_are_made_where_somebody_reads_them():
    class Scale(Double):
        uses_spaces = True

        def transform(self, x):
            return x / self.row_space.high

    pieces = with_next(before=[Scale(columns=BOTH)])
    pipeline = LearnerConnectorPipeline(gym.spaces.Box(0.0, 8.0, (2,), np.float32), connectors=pieces)
    episode = played([np.float32([0, 8]), np.float32([4, 2])])
    batch = pipeline(rl_module=None, episodes=[episode])
    assert batch["obs"].tolist() == [[0.0, 1.0]] and batch["new_obs"].tolist() == [[0.5, 0.25]]
    shared = {COLUMNS_LEFT_OUT: {"default_policy": frozenset(["new_obs"])}}
    assert "new_obs" not in pipeline(rl_module=None, episodes=[episode], shared_data=shared)
    acting = EnvToModulePipeline(connectors=[Double(columns=BOTH), add(False), BatchIndividualItems()])
    assert {name: own.tolist() for name, own in acting(episodes=[episode]).items()} == {"obs": [[8, 4]]}
