"""The first batch is compared with what pieces say of their columns; a difference names piece, column, both sides."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.connectors import ConnectorV2
from epibatch.connectors.authoring import ColumnTransform
from epibatch.connectors.columnar_piece import ColumnarPiece
from epibatch.connectors.common import AgentToModuleMapping
from epibatch.connectors.env_to_module import EnvToModulePipeline, MeanStdFilter
from epibatch.connectors.episode_column import EpisodeColumn
from epibatch.connectors.learner import LearnerConnectorPipeline
from epibatch.connectors.module_to_env import ModuleToEnvPipeline
from epibatch.connectors.space_check import SpaceCheck
from epibatch.core.errors import SpaceError
from epibatch.core.rl_module import MultiRLModule, RLModuleSpec, default_module_spec
from epibatch.core.structs import flatten, map_struct
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode, VectorRecorder

Box, Dict = gym.spaces.Box, gym.spaces.Dict


class Says(ColumnTransform):
    """Says one thing of a column, and makes another of it."""

    columns: str = "obs"
    shape: tuple = (3,)
    dtype: str = "float32"

    def transform(self, x):
        return np.concatenate([x, x], -1)[..., :3] if x.ndim > 1 else x.astype(np.float32)

    def output_space(self, space):
        return Box(-np.inf, np.inf, tuple(self.shape), np.dtype(self.dtype).type)


class Doubles(ColumnTransform):
    columns = ("rewards", "obs")

    def transform(self, x):
        return x + x


def learner(lab, *pieces, observation_space=None):
    space = observation_space or lab.obs_space
    return LearnerConnectorPipeline(space, lab.act_space, connectors=[*pieces, *lab.defaults("learner")])


def message(pipeline, lab, **call):
    call = {"episodes": [lab.episode("a", 4)], "rl_module": lab.module(), **call}
    with pytest.raises(SpaceError) as error:
        pipeline(**call)
    return str(error.value)


def test_another_shape_is_named(lab):
    text = message(learner(lab, Says(shape=(4,))), lab)
    assert text.splitlines() == [
        "in LearnerConnectorPipeline, piece 0 (Says):",
        "column 'obs'",
        "  expected: rows float32 [4], as Says says (recompute_column_spaces, by default from output_space or the"
        " observation space)",
        "  found:    rows float32 [3]",
        "  do:       let Says say what it gives, or give what it says",
    ]
    learner(lab, Says())(episodes=[lab.episode("a", 4)], rl_module=lab.module())


def test_another_type_is_named(lab):
    assert "rows float64 [3]" in message(learner(lab, Says(dtype="float64")), lab)
    text = message(learner(lab, Says(columns="rewards", shape=(), dtype="int64")), lab)
    assert "column 'rewards'" in text and "found:    rows float32 []" in text


class Loud(ColumnTransform):
    """Gives another type where values are large, and counts how often it is asked."""

    columns = "obs"
    asked = 0

    def transform(self, x):
        type(self).asked += 1
        return x.astype(np.float64 if (x > 1e6).any() else np.float32)


def test_a_transform_that_was_tried_is_not_tried_again(lab):
    pipeline = learner(lab, Loud())
    tried = pipeline.observation_space.shape and Loud.asked
    pipeline(episodes=[lab.episode("a", 4)], rl_module=lab.module())
    assert Loud.asked == tried + 1
    pipeline = learner(lab, Loud())
    text = message(pipeline, lab, episodes=[lab.episode("a", 4, offset=2_000_000)])
    assert "expected: rows float32 [2], as Loud made of samples of the observation space" in text
    assert "found:    rows float64 [2]" in text and "let Loud.transform give one shape and type" in text


def test_parts_of_a_nested_column(lab):
    observations = [{"near": np.ones(2, np.float32), "far": np.ones(2, np.float32)}] * 5
    episode = lab.episode("a", 4, observations=observations, observation_space=None)
    space = Dict(near=lab.obs_space, far=lab.obs_space)
    pipeline = learner(lab, Says(columns="obs/far", shape=(7,)), observation_space=space)
    assert "column 'obs/far'" in message(pipeline, lab, episodes=[episode])


class Widens(ColumnarPiece):
    """Changes a column without saying so."""

    pipelines = ("learner",)
    reads = ("obs",)

    def run(self, batch, call):
        column = batch["obs"]
        batch["obs"] = EpisodeColumn(np.concatenate([column.data] * 2, -1), column.counts)
        return batch


def test_a_column_that_a_piece_does_not_say_to_write(lab):
    pipeline = learner(lab, Says())
    pipeline.insert_after("add_observations_from_episodes_to_batch", Widens())
    if lab.plain:
        pipeline.insert_before(Widens, Keeps())  # behind which nothing is known
        assert pipeline(episodes=[lab.episode("a", 4)], rl_module=lab.module())["obs"].shape == (4, 6)
        return
    text = message(pipeline, lab)
    assert "piece 2 (Widens):\ncolumn 'obs'\n  expected: rows float32 [3], as" in text
    assert "found:    rows float32 [6]" in text and "'obs' to its `writes`" in text


def test_types_of_the_environment_are_taken_as_they_are(lab):
    """Float64 where the space says float32, whole rewards, and what transforms make of them."""
    episode = SingleAgentEpisode(
        observations=[np.ones(2)] * 4, actions=[0, 1, 0], rewards=[1, 2, 3], len_lookback_buffer=0
    )
    for pieces in ([], [Doubles()]):
        batch = learner(lab, *pieces)(episodes=[episode], rl_module=lab.module())
        assert batch["obs"].shape == (3, 2)
    vectors = SingleAgentEpisode(
        observations=[np.ones(2)] * 3, actions=[0, 1], rewards=[np.ones(2), np.ones(2)], len_lookback_buffer=0
    )
    assert learner(lab, Doubles())(episodes=[vectors], rl_module=lab.module())["rewards"].shape == (2, 2)
    mixed = SingleAgentEpisode(
        observations=[np.ones(2, np.float32)] * 2, actions=[0], rewards=[np.float32(1)], len_lookback_buffer=0
    )
    learner(lab, Doubles())(episodes=[episode, mixed], rl_module=lab.module())


class Whole(ColumnTransform):
    columns = "rewards"

    def transform(self, x):
        return x.astype(np.int64)


def test_whole_rewards_in_front_of_bootstrap_rows(lab):
    for pieces in ([], [Whole()], [Doubles()]):
        pipeline = LearnerConnectorPipeline(
            lab.obs_space, lab.act_space, connectors=[*pieces, *lab.defaults("learner", ppo=True)]
        )
        for reward in (1, 1.0):
            episode = lab.episode("a", 3)
            episode.set_rewards(new_data=[reward] * 3)
            pipeline.input_observation_space = lab.obs_space  # so that it is compared anew
            batch = pipeline(episodes=[episode], rl_module=lab.module())
            assert batch["rewards"].tolist() == [(1 + isinstance(pieces[0] if pieces else None, Doubles)) * 1.0] * 3 + [
                0
            ]


class Brings(ConnectorV2):
    """Puts a column of its own shape into the batch."""

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            self.add_n_batch_items(batch, "obs", np.ones((len(episode), 9)), len(episode), episode)
        return batch


def test_columns_that_somebody_brought_are_nobodys_word(lab):
    batch = learner(lab, Brings())(episodes=[lab.episode("a", 4)], rl_module=lab.module())
    assert batch["obs"].shape == (4, 9)
    given = {"obs": {("a",): [np.ones(9)] * 4}}
    assert learner(lab)(episodes=[lab.episode("a", 4)], rl_module=lab.module(), batch=given)["obs"].shape == (4, 9)


def test_observations_of_another_space_when_acting(lab):
    pipeline = EnvToModulePipeline(lab.obs_space, lab.act_space, connectors=lab.defaults("env_to_module"))
    episode = SingleAgentEpisode(observations=[np.ones(5, np.float32)])
    text = message(pipeline, lab, episodes=[episode])
    assert "column 'obs'" in text and "rows float32 [2], as the spaces that the pipeline was given say" in text
    assert "give the pipeline the spaces of these episodes" in text


@pytest.mark.parametrize(
    ("space", "given"),
    [
        (Box(0, 1, (2,), np.float16), torch.ones((1, 2))),
        (Box(-1, 1, (2,), np.float64), torch.ones((1, 2))),
        (gym.spaces.Tuple([Box(-128, 127, (), np.int8)]), (torch.ones(1, dtype=torch.int64),)),
    ],
    ids=str,
)
@pytest.mark.parametrize("state", [0, 2])
def test_actions_are_in_the_types_of_the_module(lab, space, given, state):
    """A module gives float32 and int64 whatever the space, with a time axis if it is recurrent."""
    module = lab.module(state=state)
    module.action_space = space
    actions = map_struct(lambda leaf: leaf[:, None] if state else leaf, given)
    episode = SingleAgentEpisode(observations=[np.ones(2, np.float32)], action_space=space)
    pieces, outputs = lab.defaults("module_to_env"), {"actions": actions}
    if state:
        outputs["state_out"] = {"h": torch.zeros(1, 2)}
    batch = lab.env_step([episode], outputs, pieces, rl_module=module, spaces=(lab.obs_space, space))
    shapes = [tuple(leaf.shape) for leaf in flatten(batch["actions_for_env"])[0]]
    assert shapes == [tuple(leaf.shape) for leaf in flatten(given)[0]]
    alone = ModuleToEnvPipeline(lab.obs_space, space, connectors=pieces)  # without what env_to_module said
    assert alone(episodes=[episode], rl_module=module, batch={"actions": actions}).keys() == {
        "actions",
        "actions_for_env",
    }


@pytest.mark.parametrize("recorded", [False, True])
def test_rewritten_observations(lab, recorded):
    pieces = [MeanStdFilter(), *lab.defaults("env_to_module")]
    pipeline = EnvToModulePipeline(lab.obs_space, lab.act_space, connectors=pieces)
    episodes = [SingleAgentEpisode(observations=[np.ones(2, np.float32)], observation_space=lab.obs_space)]
    if recorded:
        recorder = VectorRecorder(3, lab.obs_space, lab.act_space)
        recorder.reset(np.ones((3, 2), np.float32))
        episodes = recorder.episodes
    pipeline(episodes=episodes, rl_module=lab.module(state=2))
    if recorded:
        assert all(chunk.shown is None for chunk in recorder.episodes.chunks), "no episode object was made for it"


def test_several_agents(lab):
    def spec(space):
        return RLModuleSpec(module_class=type(lab.module()), observation_space=space, action_space=lab.act_space)

    episode = MultiAgentEpisode(agent_to_module_mapping_fn=lambda agent, *_, **__: "q" if agent == "z" else "p")
    rows = {"x": np.ones(2, np.float32), "z": np.ones(5, np.float32)}
    episode.add_env_reset(observations=rows)
    for _ in range(3):
        episode.add_env_step(rows, {"x": 0, "z": 0}, {"x": 1.0, "z": 1.0})
    spaces = Dict(x=Box(0, 1, (2,), np.float32), z=Box(0, 1, (5,), np.float32))
    module = MultiRLModule(rl_module_specs={"p": spec(spaces["x"]), "q": spec(spaces["z"])})
    pieces = lab.defaults("learner")
    pieces.insert(4, AgentToModuleMapping())
    actions = Dict(x=lab.act_space, z=lab.act_space)
    pipeline = LearnerConnectorPipeline(spaces, actions, connectors=[Doubles(), *pieces])
    pipeline(episodes=[episode], rl_module=module)
    pieces = lab.defaults("learner")
    pieces.insert(4, AgentToModuleMapping())
    wrong = LearnerConnectorPipeline(spaces, actions, connectors=[Says(columns="rewards", shape=(2,)), *pieces])
    assert "piece 0 (Says):\ncolumn 'rewards'" in message(wrong, lab, episodes=[episode], rl_module=module)


def test_only_the_first_batch_of_a_plan_is_compared(lab, monkeypatch):
    steps, stepped = [], SpaceCheck.stepped

    def noted(self, step, *rest):
        steps.append(step.name)
        stepped(self, step, *rest)

    monkeypatch.setattr(SpaceCheck, "stepped", noted)
    pipeline, call = learner(lab), {"rl_module": lab.module()}
    for _ in range(3):
        pipeline(episodes=[lab.episode("a", 3)], **call)
    assert steps == pipeline.names
    pipeline.append(Keeps())
    for _ in range(2):
        pipeline(episodes=[lab.episode("a", 3)], **call)
    assert steps == pipeline.names[:-1] + pipeline.names
    pipeline.input_observation_space = Box(-1, 1, (2,), np.float32)
    pipeline(episodes=[lab.episode("a", 3)], **call)
    assert pipeline.column_spaces == {} and pipeline.observation_space == Box(-1, 1, (2,), np.float32)
    pipeline(episodes=[lab.episode("a", 3)], **call)
    assert len(steps) == 3 * len(pipeline.names) - 1, "once more for the new space"


def test_calls_about_nothing_do_not_count(lab, monkeypatch):
    pipeline = EnvToModulePipeline(
        lab.obs_space, lab.act_space, connectors=[Says(shape=(4,)), *lab.defaults("env_to_module")]
    )
    pipeline(episodes=[], rl_module=lab.module())
    assert "rows float32 [4]" in message(pipeline, lab, episodes=[SingleAgentEpisode(observations=[np.ones(2)])])


class Keeps(ConnectorV2):
    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        return batch


class Raises(ColumnTransform):
    columns = "obs"

    def transform(self, x):
        return x

    def output_space(self, space):
        raise SpaceError("not this one")


def test_a_space_that_a_piece_makes_nothing_of_is_unknown(lab):
    pipeline = LearnerConnectorPipeline(connectors=lab.defaults("learner"))
    pipeline.connectors.insert(0, Raises())
    batch = pipeline(episodes=[lab.episode("a", 3)], rl_module=lab.module())
    assert batch["obs"].shape == (3, 2)


class Spectrum(ColumnTransform):
    columns: object = "obs"

    def transform(self, x):
        return np.fft.fft(x) if x.ndim > 1 else x * 1j


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("column", ["obs", "rewards"])
def test_of_types_that_have_no_box_nothing_is_compared(lab, column, known):
    spaces = (lab.obs_space, lab.act_space) if known else ()
    episode = lab.episode("a", 4)
    pipeline = LearnerConnectorPipeline(*spaces, connectors=[Spectrum(columns=column), Doubles()])
    expected = np.fft.fft(episode.get_observations(slice(0, 4))) if column == "obs" else episode.get_rewards() * 1j
    for _ in range(2):
        (rows,) = (np.asarray(items[0]) for items in pipeline(episodes=[episode])[column].values())
        assert rows.dtype.kind == "c" and np.allclose(rows, 2 * expected)
    assert column not in pipeline.column_spaces
    assert pipeline.observation_space == (lab.obs_space if known and column == "rewards" else None)


def test_nested_parts_and_agents_of_types_that_have_no_box(lab):
    nested = Dict(a=lab.obs_space, b=lab.obs_space)
    pieces = [Spectrum(columns="obs/a"), Spectrum(columns="obs/b")]
    one = EnvToModulePipeline(nested, lab.act_space, connectors=pieces)
    batch = one(
        episodes=[SingleAgentEpisode(observations=[{"a": np.ones(2, np.float32), "b": np.ones(2, np.float32)}])]
    )
    (items,) = batch["obs"].values()
    assert items[0]["a"].tolist() == items[0]["b"].tolist() == [2, 0]
    to_one = AgentToModuleMapping(agent_to_module_mapping_fn=lambda *_: "m", rl_module_specs=["m"])
    several = EnvToModulePipeline(nested, Dict(a=lab.act_space, b=lab.act_space), connectors=[Spectrum(), to_one])
    episode = MultiAgentEpisode(agent_to_module_mapping_fn=lambda *_: "m")
    episode.add_env_reset(observations={"a": np.ones(2, np.float32), "b": np.ones(2, np.float32)})
    assert [item.tolist() for item in several(episodes=[episode])["m"]["obs"]] == [[2, 0], [2, 0]]
    assert one.observation_space is None and several.observation_space is None


def test_no_default_module_is_built_for_what_has_no_space(lab):
    pipeline = EnvToModulePipeline(lab.obs_space, lab.act_space, connectors=[Spectrum()])
    with pytest.raises(SpaceError, match="without a space, of complex numbers, let it give real ones"):
        default_module_spec(pipeline.observation_space, lab.act_space, {}).build()
