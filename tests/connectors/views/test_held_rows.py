"""Views that the episodes cannot answer."""

from __future__ import annotations

import warnings
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
from fixture_pieces import played


def episode(length: int = 4, keep: int = 0, from_: int = 0, **overrides: Any) -> SingleAgentEpisode:
    outputs = {"logits": [np.zeros(2)] * length} if length else {}
    columns = {"observations": range(length + 1), "extra_model_outputs": outputs, **overrides}
    whole = played(id_="some_id", **columns)
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


@pytest.mark.parametrize(
    ("view", "episodes", "error", "words"),
    [
        (View("reward", -1), lambda: [episode()], UnknownNameError, "did you mean 'rewards'"),
        (View("obs/camera", 0), lambda: [episode()], UnknownNameError, r"a part of 'obs'[\s\S]*not nested"),
        (View("obs/camra"), lambda: [episode(observations=[{"camera": 0}] * 5)], UnknownNameError, "mean 'camera'"),
        (
            View("obs", 0),
            lambda: [episode(observations=[np.zeros(size)] * 5) for size in (2, 3)],
            ColumnError,
            r"of shape \(2,\)[\s\S]*of shape \(3,\)",
        ),
        (View("obs", -9, fill=-1), lambda: [episode(observations=[np.zeros(2, np.uint8)] * 5)], ColumnError, "-1"),
        (View("env_index"), lambda: [episode()], EpibatchError, "a runner of one agent records environments"),
    ],
)
@pytest.mark.parametrize("run", [train, act])
def test_views_that_the_episodes_cannot_answer(run: Any, view: View, episodes: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        run({"seen": view}, episodes())


def test_a_misspelt_entry_of_infos_warns_with_the_one_that_is_there() -> None:
    with pytest.warns(UserWarning, match=r"view 'seen'[\s\S]*write \"infos/speed\" if you mean that"):
        train({"seen": View("infos/sped", 0)}, [episode(infos=[{"speed": 1.0, "lives": 3}] * 5)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for infos in ([{"lives": 3}] * 5, [{}, *[{"speed": 1.0}] * 4], [{"speed": 1.0}, *[{"sped": 1.0}] * 4]):
            train({"seen": View("infos/sped", 0)}, [episode(infos=infos)])


def test_nothing_says_what_an_output_is_like_before_the_first_step() -> None:
    with pytest.raises(ConfigError, match=r"the space of 'logits'[\s\S]*space=gymnasium.spaces.Box"):
        act({"seen": View("logits", -1)}, [episode(0)])
    for meant, column in {"reward": "rewards", "action": "actions", "observations": "obs"}.items():
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
@pytest.mark.parametrize("shift", [-9, "-9:-1", [-9, -1]])
@pytest.mark.parametrize(
    ("column", "rows", "fill"), [("actions", [3, 4], 0.5), ("actions", [True, False], 2), ("logits", [1, 2], -1.5)]
)
def test_a_fraction_among_integers_is_refused_on_both_sides(
    run: Any, shift: Any, column: str, rows: Any, fill: Any
) -> None:
    own = {"extra_model_outputs": {column: rows}} if column == "logits" else {column: rows}
    chunk = episode(2, **own)
    with pytest.raises(ColumnError, match=r"view 'seen'[\s\S]*column of (int64|bool) can hold[\s\S]*mask=True"):
        run({"seen": View(column, shift, fill=fill)}, [chunk])


@pytest.mark.parametrize("shift", [-1, "-3:-1"])
@pytest.mark.parametrize("rewards", [[1, 2, 3], [True, False, True], [0.5, 1, 2]])
def test_rewards_are_floats_at_every_step_on_both_sides(shift: Any, rewards: list[Any]) -> None:
    views = {"seen": View("rewards", shift, fill=-0.5)}
    trained = train(views, [episode(3, rewards=rewards)])["seen"]["some_id",][0]
    for t in range(3):
        acted = act(views, [episode(t, rewards=rewards[:t])])["seen"]["some_id",][0]
        expected = [-0.5, -0.5, -0.5, *rewards][t : t + 3][-1 if shift == -1 else 0 :]
        assert np.ravel(acted).tolist() == np.ravel(trained[t]).tolist() == expected
        assert np.asarray(acted).dtype == trained.dtype == np.float64


def test_a_reward_views_own_space_says_its_type() -> None:
    views = {"seen": View("rewards", -1, space=gym.spaces.Discrete(9))}
    for t in range(3):
        assert act(views, [episode(t, rewards=[4] * t)])["seen"]["some_id",][0].dtype == np.int64


def test_parts_of_nested_columns_that_a_recorder_has_no_row_of_yet() -> None:
    nested = gym.spaces.Dict(d=gym.spaces.Discrete(3), e=gym.spaces.Box(-1, 1, (2,)))
    recorder = VectorRecorder(2, gym.spaces.Box(-1, 1, (2,)), nested)
    recorder.reset(np.zeros((2, 2), np.float32))
    state = gym.spaces.Box(-1, 1, (2,))
    views = {
        "d": View("actions/d", -1, fill=2),
        "h": View("state/h", "-2:-1", space=state),
        "r": View("rewards", -1),
    }
    seen = []
    pipeline = EnvToModulePipeline(None, nested, connectors=[TrajectoryViews(views=views)])
    for t in range(3):
        found = pipeline(episodes=recorder.episodes)
        seen.append({name: [np.asarray(items[0]).tolist() for items in own.values()] for name, own in found.items()})
        assert {items[0].dtype for items in found["r"].values()} == {np.dtype(np.float64)}
        outputs = {"state": {"h": np.full((2, 2), t + 1, np.float32), "c": np.zeros(2)}}
        actions = {"d": np.array([t, 1]), "e": np.zeros((2, 2), np.float32)}
        recorder.step(actions, np.array([t, 5]), *[np.zeros(2, bool)] * 2, np.ones((2, 2), np.float32), extras=outputs)
        recorder.commit()
    assert [step["d"] for step in seen] == [[2, 2], [0, 1], [1, 1]]
    assert [step["r"] for step in seen] == [[0, 0], [0, 5], [1, 5]]
    assert [step["h"][0] for step in seen] == [[[0, 0], [0, 0]], [[0, 0], [1, 1]], [[1, 1], [2, 2]]]


def test_the_type_that_has_to_hold_the_fill_value_is_that_of_all_chunks() -> None:
    whole, fractions = episode(2, rewards=[1, 2]), episode(2, rewards=[0.25, 2.0])
    for chunks in ([whole, fractions], [fractions, whole]):
        found = train({"seen": View("rewards", -1, fill=0.5)}, chunks)["seen"]
        first = [np.asarray(items[0])[0].item() for items in found.values()]
        assert first == [0.5, 0.5]
        assert sorted(np.asarray(items[0])[1].item() for items in found.values()) == [0.25, 1.0]


def test_views_on_the_wrong_side_of_the_time_axis() -> None:
    cases = [
        ({"x": View("obs", -1)}, [1, 2, 0], "before"),
        ({"x": View("obs", -1, per_sequence=True)}, [0, 1, 2], "after"),
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


def with_infos(infos: list[Any], name: str = "some_id") -> SingleAgentEpisode:
    return played(range(len(infos)), id_=name, infos=infos)


def rows_of(batch: Any, name: str) -> list[Any]:
    return [np.asarray(items[0]).tolist() for items in batch[name].values()]


@pytest.mark.parametrize("shift", [0, -1, 1, "-2:1", [-3, 0]])
@pytest.mark.parametrize("run", [train, act])
def test_masks_of_entries_are_those_of_a_slow_loop(run: Any, shift: Any) -> None:
    if run is act and not View("infos/s", shift).act:
        pytest.skip("not known while acting")
    rng = np.random.default_rng(0)
    view = View("infos/s", shift, mask=True, fill=-7)
    for _ in range(20):
        lengths = rng.integers(0 if run is act else 1, 5, 3)
        infos = [[{"s": 1.0 * t} if rng.random() < 0.6 else {} for t in range(length + 1)] for length in lengths]
        found = run({"s": view}, [with_infos(own, f"e{i}") for i, own in enumerate(infos)])
        values, masks = [], []
        for own, length in zip(infos, lengths):
            ats = [length] if run is act else range(length)
            known = [[(own[at + k] if 0 <= at + k <= length else {}).get("s") for k in view.shifts] for at in ats]
            masks.append([[one is not None for one in row] for row in known])
            values.append([[-7 if one is None else one for one in row] for row in known])
        if view.is_single:
            values, masks = ([[row[0] for row in own] for own in of] for of in (values, masks))
        if run is act:
            values, masks = [own[0] for own in values], [own[0] for own in masks]
        assert (rows_of(found, "s"), rows_of(found, "s_mask")) == (values, masks)


@pytest.mark.parametrize("space", [None, gym.spaces.Box(-1, 1, (3,))])
@pytest.mark.parametrize("turned", [False, True])
def test_chunks_that_never_have_an_entry_are_filled_with_rows_like_the_others(space: Any, turned: bool) -> None:
    there, never = with_infos([{"pos": np.ones(3)}] * 3, "there"), with_infos([{}] * 3, "never")
    chunks = [never, there] if turned else [there, never]
    view = View("infos/pos", 0, space=space, fill=-7, mask=True)
    found, newest = train({"p": view}, chunks), act({"p": view}, chunks)
    order = (1, 0) if turned else (0, 1)
    assert rows_of(found, "p") == [[[[1] * 3] * 2, [[-7] * 3] * 2][i] for i in order]
    assert rows_of(newest, "p") == [[[1] * 3, [-7] * 3][i] for i in order]
    assert rows_of(found, "p_mask") == [[[True] * 2, [False] * 2][i] for i in order]


def test_entries_that_nobody_has_are_like_the_views_space() -> None:
    view = View("infos/pos", 0, space=gym.spaces.Box(-1, 1, (3,)), fill=-7, mask=True)
    found = train({"p": view}, [with_infos([{}] * 3)])
    assert (rows_of(found, "p"), rows_of(found, "p_mask")) == ([[[-7] * 3] * 2], [[False] * 2])
    assert rows_of(train({"p": View("infos/pos", 0)}, [with_infos([{}] * 3)]), "p") == [[0, 0]]


@pytest.mark.parametrize("bad", [[[1], [1, 2]], "x", {"a": 1}, [1.0, 2.0]])
def test_entries_of_several_kinds(bad: Any) -> None:
    good = with_infos([{"pos": np.ones(3)}] * 2, "good")
    for chunks in ([good, with_infos([{"pos": bad}] * 2)], [with_infos([{"pos": bad}] * 2), good]):
        with pytest.raises(ColumnError, match="numbers of one shape"):
            train({"p": View("infos/pos", 0)}, chunks)


@pytest.mark.parametrize("run", [train, act])
@pytest.mark.parametrize("own", [False, True])
def test_views_of_the_default_module_are_those_of_episodes_of_one_agent(run: Any, own: bool) -> None:
    per_module = {"default_policy": {"before": View("obs", -1)}, "other": {"after": View("t", 0)}}
    learns = run is train
    kind = LearnerConnectorPipeline if learns else EnvToModulePipeline
    arguments: dict[str, Any] = {"views": {"seen": View("t")}} if own else {}
    piece = TrajectoryViews(per_module=per_module, as_learner_connector=learns, **arguments)
    found = kind(connectors=[piece])(episodes=[episode(3)])
    assert list(found) == (["seen", "before"] if own else ["before"])
    assert rows_of(found, "before") == ([[0, 0, 1]] if learns else [2])
    alone = TrajectoryViews(per_module={"other": {"x": View("t")}}, as_learner_connector=learns, **arguments)
    with pytest.raises(ConfigError, match="'default_policy', the module of episodes of one agent"):
        kind(connectors=[alone])(episodes=[episode(3)])
