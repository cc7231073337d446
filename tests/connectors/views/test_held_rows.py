"""Views that the episodes cannot answer."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from epibatch.connectors.common import AddTimeDimToBatchAndZeroPad
from epibatch.connectors.env_to_module import AddObservationsFromEpisodesToBatch, EnvToModulePipeline
from epibatch.connectors.learner import LearnerConnectorPipeline
from epibatch.connectors.views import TrajectoryViews, View
from epibatch.core.errors import ColumnError, ConfigError, EpibatchError, LookbackError, PipelineError, UnknownNameError
from epibatch.core.rl_module import RLModule
from epibatch.episodes import SingleAgentEpisode, VectorRecorder


def episode(length: int = 4, keep: int = 0, from_: int = 0, **overrides: Any) -> SingleAgentEpisode:
    columns = {
        "observations": list(range(length + 1)),
        "actions": [0] * length,
        "rewards": [1.0] * length,
        "extra_model_outputs": {"logits": [np.zeros(2)] * length} if length else {},
        **overrides,
    }
    whole = SingleAgentEpisode(id_="some_id", len_lookback_buffer=0, **columns)
    return whole.slice(slice(from_, None), len_lookback_buffer=keep) if from_ else whole


class Memory(RLModule):
    """A recurrent module."""

    def get_initial_state(self) -> Any:
        return {"h": np.zeros(2, np.float32)}


def train(views: Any, episodes: Any, **keywords: Any) -> Any:
    return LearnerConnectorPipeline(connectors=[TrajectoryViews(views=views, as_learner_connector=True)])(
        episodes=episodes, **keywords
    )


def act(views: Any, episodes: Any, **keywords: Any) -> Any:
    return EnvToModulePipeline(connectors=[TrajectoryViews(views=views)])(episodes=episodes, **keywords)


@pytest.mark.parametrize("run", [train, act])
@pytest.mark.parametrize("column", ["obs", "rewards", "actions", "logits"])
def test_history_that_was_lost_is_an_error(run: Any, column: str) -> None:
    length = 6 if run is train else 3
    chunk = episode(length, keep=1, from_=3)
    with pytest.raises(LookbackError, match=r"some_id[\s\S]*starts at t=3[\s\S]*lookback of 3[\s\S]*len_lookback_b"):
        run({"seen": View(column, "-3:-1")}, [chunk])
    assert run({"seen": View(column, -1)}, [chunk])


def test_a_recorder_that_kept_too_little_is_an_error() -> None:
    box = gym.spaces.Box(-1, 1, (2,))
    recorder = VectorRecorder(2, box, gym.spaces.Discrete(2))
    recorder.reset(np.zeros((2, 2), np.float32))
    none = np.zeros(2, bool)
    for _ in range(4):
        recorder.step(np.zeros(2, int), np.zeros(2), none, none, np.zeros((2, 2), np.float32))
        recorder.commit()
    recorder.harvest(1)
    for column in ("rewards", "obs"):
        with pytest.raises(LookbackError, match="lookback of 3"):
            act({"seen": View(column, "-3:-1")}, recorder.episodes)
    assert act({"seen": View("rewards", -1)}, recorder.episodes)


@pytest.mark.parametrize("run", [train, act])
def test_a_column_that_is_not_there(run: Any) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'rewards'"):
        run({"seen": View("reward", -1)}, [episode()])


@pytest.mark.parametrize("run", [train, act])
def test_a_leaf_that_is_not_there(run: Any) -> None:
    with pytest.raises(UnknownNameError, match=r"a part of 'obs'[\s\S]*not nested"):
        run({"seen": View("obs/camera", 0)}, [episode()])
    nested = episode(observations=[{"camera": 0}] * 5)
    with pytest.raises(UnknownNameError, match="did you mean 'camera'"):
        run({"seen": View("obs/camra", 0)}, [nested])


def test_nothing_says_what_an_output_is_like_before_the_first_step() -> None:
    with pytest.raises(ConfigError, match=r"the space of 'logits'[\s\S]*space=gymnasium.spaces.Box"):
        act({"seen": View("logits", -1)}, [episode(0)])
    for meant, column in {"reward": "rewards", "action": "actions"}.items():
        with pytest.raises(ConfigError, match=f"do: +write '{column}' if you mean that"):
            act({"seen": View(meant, -1)}, [episode(0)])
    space = gym.spaces.Box(-1, 1, (2,), np.float64)
    found = act({"seen": View("logits", "-2:-1", space=space, fill=1)}, [episode(0)])
    assert found["seen"][("some_id",)][0].tolist() == [[1, 1], [1, 1]]


def test_states_are_like_the_modules_initial_state_before_the_first_step() -> None:
    piece = TrajectoryViews(views={"seen": View("state_out", "-2:-1", per_sequence=True)})
    found = piece(batch={}, episodes=[episode(0)], rl_module=Memory())
    assert found["seen"][("some_id",)][0]["h"].tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("run", [train, act])
def test_rows_of_several_shapes(run: Any) -> None:
    chunks = [episode(observations=[np.zeros(size)] * 5) for size in (2, 3)]
    with pytest.raises(ColumnError, match=r"numbers of one shape[\s\S]*\(2,\)[\s\S]*\(3,\)"):
        run({"seen": View("obs", 0)}, chunks)


def test_a_fill_value_that_the_column_cannot_hold() -> None:
    images = episode(observations=[np.zeros(2, np.uint8)] * 5)
    with pytest.raises(ColumnError, match="-1"):
        train({"seen": View("obs", -1, fill=-1)}, [images])


@pytest.mark.parametrize("run", [train, act])
@pytest.mark.parametrize("shift", [-9, "-9:-1", [-9, -1]])
@pytest.mark.parametrize(
    ("column", "rows", "fill"), [("actions", [3, 4], 0.5), ("actions", [True, False], 2), ("rewards", [1, 2], -1.5)]
)
def test_a_fraction_among_integers_is_refused_on_both_sides(
    run: Any, shift: Any, column: str, rows: Any, fill: Any
) -> None:
    chunk = episode(2, **{column: rows})
    with pytest.raises(ColumnError, match=r"view 'seen'[\s\S]*column of (int64|bool) can hold[\s\S]*mask=True"):
        run({"seen": View(column, shift, fill=fill)}, [chunk])


def test_a_fraction_among_integer_observations_is_refused_when_the_space_is_asked_for() -> None:
    piece = TrajectoryViews(gym.spaces.Box(0, 9, (2,), np.uint8), views={"obs": View("obs", "-1:0", fill=0.5)})
    with pytest.raises(ColumnError, match=r"view of the observations[\s\S]*column of uint8 can hold"):
        piece.observation_space  # noqa: B018


def test_a_recorders_steps_are_filled_with_what_their_type_holds() -> None:
    recorder = VectorRecorder(2, gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2))
    recorder.reset(np.zeros((2, 2), np.float32))
    views = {"seen": View("actions", "-2:-1", fill=0.5, space=gym.spaces.Discrete(2))}
    for _ in range(2):
        with pytest.raises(ColumnError, match=r"view 'seen'[\s\S]*column of int64 can hold"):
            act(views, recorder.episodes)
        recorder.step(np.ones(2, int), np.zeros(2), *[np.zeros(2, bool)] * 2, np.zeros((2, 2), np.float32))
        recorder.commit()
    found = act(views, recorder.episodes)["seen"]
    assert [items[0].tolist() for items in found.values()] == [[1, 1], [1, 1]]


def test_the_type_that_has_to_hold_the_fill_value_is_that_of_all_chunks() -> None:
    whole, fractions = episode(2, rewards=[1, 2]), episode(2, rewards=[0.25, 2.0])
    for chunks in ([whole, fractions], [fractions, whole]):
        found = train({"seen": View("rewards", -1, fill=0.5)}, chunks)["seen"]
        first = [np.asarray(items[0])[0].item() for items in found.values()]
        assert first == [0.5, 0.5]
        assert sorted(np.asarray(items[0])[1].item() for items in found.values()) == [0.25, 1.0]


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        ({}, ["at least one view", 'View("rewards", shift=-1)']),
        ({"views": {"next": View("actions", 1)}}, ["batches to act on have", "next", "learner pipeline only"]),
        ({"views": {"seen": View("obs", train=False)}, "as_learner_connector": True}, ["train batches", "env-to-m"]),
        ({"views": {"rewards": View(shift=-1)}}, ["a column of its own", "'rewards'", "another name"]),
        ({"views": {"obs": View("rewards", -1)}}, ["expected: observations"]),
        ({"views": {"my_infos": View("infos")}}, ["under their own name", 'View("infos/speed"']),
        ({"per_module": {"a": {"x": {"column": "obs", "shift": "a"}}}}, ["'a'"]),
    ],
)
def test_pieces_that_cannot_be_meant(arguments: Any, texts: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        TrajectoryViews(**arguments)
    assert all(text in str(raised.value) for text in texts), str(raised.value)


def test_views_on_the_wrong_side_of_the_time_axis() -> None:
    cases = [
        ({"x": View("obs", -1)}, [1, 2, 0], "in front of"),
        ({"x": View("obs", -1, per_sequence=True)}, [0, 1, 2], "behind"),
    ]
    for views, order, side in cases:
        for learner in (True, False):
            kind = LearnerConnectorPipeline if learner else EnvToModulePipeline
            pieces = [
                TrajectoryViews(views=views, as_learner_connector=learner),
                AddObservationsFromEpisodesToBatch(as_learner_connector=learner),
                AddTimeDimToBatchAndZeroPad(as_learner_connector=learner),
            ]
            pipeline = kind(connectors=[pieces[i] for i in order])
            with pytest.raises(PipelineError, match=f"to stand {side} AddTimeDim"):
                pipeline(rl_module=Memory(model_config={"max_seq_len": 3}), episodes=[episode()])


def test_names_of_agents_where_there_is_one() -> None:
    with pytest.raises(EpibatchError, match="episodes of several agents"):
        train({"agent": View("agent_id")}, [episode()])
