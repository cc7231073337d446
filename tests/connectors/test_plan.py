"""The order of pieces is checked when a pipeline is built, and after every edit."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms import PPOConfig
from epibatch.connectors import ConnectorPipelineV2
from epibatch.connectors.authoring import ColumnTransform
from epibatch.connectors.common import (
    AddObservationsFromEpisodesToBatch,
    BatchIndividualItems,
    FlattenObservations,
    FrameStacking,
    NumpyToTensor,
)
from epibatch.connectors.connector_v2 import ConnectorV2
from epibatch.connectors.env_to_module import EnvToModulePipeline, WriteObservationsToEpisodes
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    GeneralAdvantageEstimation,
    LearnerConnectorPipeline,
    PrevActionsPrevRewardsLearner,
)
from epibatch.connectors.observations import Affine, Clip
from epibatch.core.errors import PieceError, PipelineError
from epibatch.episodes import SingleAgentEpisode
from fixture_pieces import Lab

WRONG_ORDERS = [
    (
        "learner",
        lambda: [BatchIndividualItems(), AddColumnsFromEpisodesToTrainBatch()],
        ["AddColumnsFromEpisodesToTrainBatch", "BatchIndividualItems"],
    ),
    (
        "learner",
        lambda: [
            AddObservationsFromEpisodesToBatch(as_learner_connector=True),
            NumpyToTensor(),
            BatchIndividualItems(),
        ],
        ["NumpyToTensor", "BatchIndividualItems|AddObservationsFromEpisodesToBatch"],
    ),
    (
        "learner",
        lambda: [
            AddObservationsFromEpisodesToBatch(as_learner_connector=True),
            AddColumnsFromEpisodesToTrainBatch(),
            BatchIndividualItems(),
            GeneralAdvantageEstimation(gamma=0.9, lambda_=0.9),
            NumpyToTensor(),
        ],
        ["GeneralAdvantageEstimation", "NumpyToTensor|BatchIndividualItems"],
    ),
    (
        "env_to_module",
        lambda: [AddObservationsFromEpisodesToBatch(), BatchIndividualItems(), NumpyToTensor(), BatchIndividualItems()],
        ["BatchIndividualItems", "NumpyToTensor"],
    ),
]


class Rewrites(ConnectorV2):
    """Declares nothing but that it replaces the newest observation."""

    rewrites_observations = True

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        return batch


@pytest.mark.parametrize("first", [lambda: Clip(low=-1, high=1), AddObservationsFromEpisodesToBatch])
def test_a_piece_that_rewrites_observations_behind_one_that_took_them_is_too_late(first):
    with pytest.raises(PipelineError) as raised:
        EnvToModulePipeline(connectors=[first(), Rewrites()])
    taker = type(first()).__name__
    assert "piece 1 (Rewrites)" in str(raised.value)
    assert f"move Rewrites before EnvToModulePipeline, piece 0 ({taker})" in str(raised.value)
    assert len(EnvToModulePipeline(connectors=[Rewrites(), first()])) == 2


@pytest.mark.parametrize(("kind", "pieces", "named"), WRONG_ORDERS)
def test_a_wrong_order_is_an_error_that_names_both_pieces(kind, pieces, named):
    cls = {"learner": LearnerConnectorPipeline, "env_to_module": EnvToModulePipeline}[kind]
    built = pieces()
    with pytest.raises(PipelineError) as raised:
        cls(None, None, connectors=built)
    message = str(raised.value)
    assert cls.__name__ in message
    for alternatives in named:
        assert any(name in message for name in alternatives.split("|")), alternatives
    assert "do: " in message


def test_an_edit_that_breaks_the_order_is_refused_and_undone():
    pipe = LearnerConnectorPipeline(None, None, connectors=Lab.defaults("learner"))
    before = list(pipe)
    with pytest.raises(PipelineError):
        pipe.append(AddColumnsFromEpisodesToTrainBatch())
    assert list(pipe) == before


def test_a_removal_that_breaks_the_order_is_refused_and_undone():
    pipe = LearnerConnectorPipeline(Lab.obs_space, Lab.act_space, connectors=Lab.defaults("learner"))
    before = list(pipe)
    with pytest.raises(PipelineError, match="NumpyToTensor"):
        pipe.remove("BatchIndividualItems")
    assert list(pipe) == before
    pipe.append(Lab.user())  # a correct edit after a refused one
    pipe.remove("UserPiece")
    batch = pipe(rl_module=Lab.module(), batch={}, episodes=[Lab.episode("a", 2)])
    assert list(pipe) == before and len(batch["obs"]) == 2


def test_behind_an_undeclared_piece_columns_are_taken_on_trust(lab):
    def supply(batch, episodes):
        for episode in episodes:
            lab.user.add_n_batch_items(batch, "obs", [[0.0]] * len(episode), len(episode), episode)

    pieces = [lab.user(supply), *lab.defaults("learner")[1:]]
    batch = lab.run("learner", pieces, [lab.episode("a", 2)], rl_module=lab.module())
    assert batch["obs"].tolist() == [[0.0], [0.0]]


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
@pytest.mark.parametrize("edit", [False, True])
def test_a_call_that_lacks_the_keywords_is_refused_when_the_pipeline_is_built(function, edit):
    def build():
        if edit:
            LearnerConnectorPipeline().append(_piece(function))
        else:
            LearnerConnectorPipeline(connectors=[_piece(function)])

    with pytest.raises(PieceError, match=r"piece 0 \(Own\), its method __call__") as error:
        build()
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


@pytest.mark.parametrize(
    "function",
    [
        lambda self, *, rl_module, batch, episodes, my_kw, **kwargs: {"seen": my_kw},
        lambda self, rl_module, batch, my_kw, **kwargs: {"seen": my_kw},
    ],
)
def test_required_keywords_of_its_own_are_the_callers_to_pass(function):
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
def test_a_bare_function_is_told_how_to_become_a_piece(function, call):
    with pytest.raises(PieceError, match=f"@column_function.*{call}"):
        LearnerConnectorPipeline(connectors=[function])


@pytest.mark.parametrize("plain", [False, True])
def test_a_learner_pipeline_makes_its_pieces_train(plain):
    class Stacks(ConnectorV2):
        def __init__(self, input_observation_space=None, input_action_space=None, *, as_learner_connector=False):
            super().__init__(input_observation_space, input_action_space)
            self._as_learner_connector = as_learner_connector

        def __call__(self, *, rl_module, batch, episodes, **kwargs):
            return {"trains": self._as_learner_connector}

    if plain:
        assert LearnerConnectorPipeline(connectors=[Stacks()])(episodes=[Lab.episode("a", 2)])["trains"] is True
        assert EnvToModulePipeline(connectors=[Stacks()])(episodes=[Lab.episode("a", 2)])["trains"] is False
    else:
        add = AddObservationsFromEpisodesToBatch
        nested = ConnectorPipelineV2(connectors=[add()])
        given = ConnectorPipelineV2(connectors=[add(as_learner_connector=True)])
        for piece in (add(), nested, add(as_learner_connector=True), given):
            pipeline = LearnerConnectorPipeline(connectors=[piece, BatchIndividualItems()])
            assert len(pipeline(episodes=[Lab.episode("a", 2)])["obs"]) == 2
        assert len(ConnectorPipelineV2(connectors=[add()])(episodes=[Lab.episode("a", 2)])["obs"]["a",]) == 1


@pytest.mark.parametrize(("pipeline", "given"), [(LearnerConnectorPipeline, False), (EnvToModulePipeline, True)])
def test_a_piece_that_was_made_for_the_other_side_is_refused(pipeline, given):
    piece = AddObservationsFromEpisodesToBatch(as_learner_connector=given)
    where = r"piece 0 \(AddObservationsFromEpisodesToBatch\)"
    with pytest.raises(PieceError, match=rf"{where}[\s\S]*found: +as_learner_connector={given}"):
        pipeline(connectors=[piece])


def test_the_side_may_be_given_by_position():
    class Stacks(ConnectorV2):
        def __init__(self, input_observation_space=None, input_action_space=None, as_learner_connector=False):
            super().__init__(input_observation_space, input_action_space)

        def __call__(self, *, rl_module, batch, episodes, **kwargs):
            return batch

    assert len(LearnerConnectorPipeline(connectors=[Stacks(None, None, True)])) == 1
    with pytest.raises(PieceError, match="as_learner_connector=True"):
        EnvToModulePipeline(connectors=[Stacks(None, None, True)])


def test_a_piece_keeps_what_it_has_learned_when_its_pipeline_decides():
    class Counts(ConnectorV2):
        def __init__(self, *spaces, as_learner_connector=False):
            super().__init__(*spaces)
            self.count = 0

        def __call__(self, *, rl_module, batch, episodes, **kwargs):
            return batch

        def get_state(self, components=None, *, not_components=None, **kwargs):
            return {"count": self.count}

        def set_state(self, state):
            self.count = state["count"]

    piece = Counts()
    piece.count = 3
    LearnerConnectorPipeline(connectors=[piece])
    assert piece.count == 3


def test_what_a_written_constructor_put_into_a_built_in_piece_stays_there():
    class Counts(FlattenObservations):
        def __init__(self, *spaces, **kwargs):
            super().__init__(*spaces, **kwargs)
            self.seen = []

    piece = Counts()
    piece.seen.append(1)
    LearnerConnectorPipeline(connectors=[piece])
    assert (piece.seen, piece.writes) == ([1], ("obs",))


def test_a_piece_that_goes_to_the_other_side_is_as_a_new_one():
    piece = FlattenObservations(Lab.obs_space)
    learner = LearnerConnectorPipeline(Lab.obs_space, connectors=[piece])
    assert piece.writes == ("obs",)
    learner.remove(piece)
    EnvToModulePipeline(Lab.obs_space, connectors=[piece])
    assert (piece.writes, piece.removes, piece.rewrites_observations) == ((), (), True)
    assert piece.clone().get_ctor_args_and_kwargs() == ((Lab.obs_space,), {})


FRAMES = gym.spaces.Box(0, 99, (2, 1), np.float32)


class Halve(ColumnTransform):
    columns = "obs"
    monotonic = True

    def transform(self, x):
        return x / np.float32(2)


@pytest.mark.parametrize(
    "second",
    [
        lambda: FrameStacking(num_frames=2, as_learner_connector=True),
        lambda: PrevActionsPrevRewardsLearner(),
        lambda: FlattenObservations(as_learner_connector=True),
    ],
)
@pytest.mark.parametrize("first", [Halve, lambda: AddObservationsFromEpisodesToBatch(as_learner_connector=True)])
def test_what_would_be_lost_is_refused_with_both_names(first, second):
    with pytest.raises(PipelineError) as raised:
        LearnerConnectorPipeline(connectors=[first(), second()])
    one, other = type(first()).__name__, type(second()).__name__
    assert f"piece 1 ({other})" in str(raised.value)
    assert f"piece 0 ({one})" in str(raised.value)
    assert f"move {other} before {one}" in str(raised.value)
    LearnerConnectorPipeline(FRAMES, gym.spaces.Discrete(2), connectors=[second(), first()])


def test_observations_in_the_episodes_can_be_stacked():
    pieces = [Halve(), WriteObservationsToEpisodes(), FrameStacking(num_frames=2)]
    pipeline = EnvToModulePipeline(FRAMES, gym.spaces.Discrete(2), connectors=pieces)
    episode = SingleAgentEpisode(observations=[np.float32([[2], [4]])], observation_space=FRAMES)
    first = pipeline(episodes=[episode])["obs"][(episode.id_,)][0]
    assert first.tolist() == [[0.0, 1.0], [0.0, 2.0]]
    episode.add_env_step(np.float32([[6], [8]]), 0, 0.0)
    second = pipeline(episodes=[episode])["obs"][(episode.id_,)][0]
    assert second.tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert episode.get_observations().tolist() == [[[1.0], [2.0]], [[3.0], [4.0]]]


def test_the_way_out_is_named_for_acting():
    with pytest.raises(PipelineError, match="put WriteObservationsToEpisodes between the two"):
        EnvToModulePipeline(connectors=[Halve(), FrameStacking(num_frames=2)])


class Rewarded(ColumnTransform):
    columns = "rewards"
    takes_tensors = True

    def transform(self, x):
        return 2 * x


class Behind(Rewarded):
    columns = "obs"
    training_only = True


def test_what_advantages_were_made_of_stays_as_it_is():
    config = PPOConfig()
    pipeline = config.build_learner_connector(FRAMES, gym.spaces.Discrete(2))
    config.extend_learner_connector(pipeline)
    with pytest.raises(PipelineError) as raised:
        pipeline.append(Rewarded())
    assert "column 'rewards' as it was" in str(raised.value)
    assert "move Rewarded before GeneralAdvantageEstimation" in str(raised.value)
    with pytest.raises(PipelineError, match="column 'obs' as it was"):
        pipeline.append(Affine(scale=2.0))
    pipeline.append(Behind())
    pipeline.insert_before("GeneralAdvantageEstimation", Rewarded())
    assert pipeline.names[-3:] == ["rewarded", "general_advantage_estimation", "behind"]


def test_stacks_are_not_written_to_episodes():
    with pytest.raises(PipelineError, match=r"move WriteObservationsToEpisodes before FrameStacking"):
        EnvToModulePipeline(connectors=[FrameStacking(num_frames=2), WriteObservationsToEpisodes()])
    EnvToModulePipeline(connectors=[FrameStacking(num_frames=1), WriteObservationsToEpisodes()])
