"""Any part of any column into any other: `columns` and `to`, functions as pieces, and values after a piece."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from epibatch.algorithms import DQNConfig
from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors.authoring import ColumnTransform
from epibatch.connectors.columns import CastColumns, HashColumns
from epibatch.connectors.common import AgentToModuleMapping, FrameStacking
from epibatch.connectors.connector_v2 import ConnectorV2
from epibatch.connectors.env_to_module import EnvToModulePipeline, FlattenObservations, MeanStdFilter
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    AddObservationsFromEpisodesToBatch,
    AddOneTsToEpisodesAndTruncate,
    BatchIndividualItems,
    LearnerConnectorPipeline,
    NumpyToTensor,
)
from epibatch.connectors.observations import GoalDistanceRewards
from epibatch.connectors.rewards import RewardSign
from epibatch.connectors.views import TrajectoryViews, View
from epibatch.core.errors import ColumnError, PieceError, PipelineError
from epibatch.core.registry import piece_to_dict
from epibatch.env_runner import SingleAgentEnvRunner
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode

IMAGE, POSE = Box(0.0, 9.0, (2, 2, 1), np.float32), Box(-9.0, 9.0, (2,), np.float32)
SPACE, CHOICE = gym.spaces.Dict(image=IMAGE, pose=POSE), Discrete(2)


class Times(ColumnTransform):
    """Multiplies."""

    columns = "rewards"
    takes_tensors = True
    factor: float = 10.0

    def transform(self, x):
        return x * self.factor


def row(t):
    return {"image": np.full((2, 2, 1), t, np.float32), "pose": np.float32([t, -t])}


def episode(steps=3, space=None, **more: Any) -> SingleAgentEpisode:
    return SingleAgentEpisode(
        id_="e",
        observations=[row(t) for t in range(steps + 1)],
        actions=[0] * steps,
        rewards=[t - 1.0 for t in range(steps)],
        infos=[{"speed": t / 2, "word": f"w{t % 2}", "extrinsic": 7.0 * t} for t in range(steps + 1)],
        extra_model_outputs={"bonus": [5.0 + t for t in range(steps)]},
        len_lookback_buffer=0,
        **more,
    )


def learner(*pieces: Any, first: Any = (), behind: Any = ()) -> LearnerConnectorPipeline:
    defaults = [AddObservationsFromEpisodesToBatch(), AddColumnsFromEpisodesToTrainBatch(), BatchIndividualItems()]
    return LearnerConnectorPipeline(SPACE, CHOICE, connectors=[*first, *pieces, *defaults, *behind])


def acting(*pieces: Any) -> EnvToModulePipeline:
    made = [*pieces, AddObservationsFromEpisodesToBatch(), BatchIndividualItems()]
    return EnvToModulePipeline(SPACE, CHOICE, connectors=made)


def test_results_become_columns_and_parts_beside_what_they_are_made_of():
    pieces = [
        FrameStacking(columns="obs/image", to="obs/stack", num_frames=2),
        FrameStacking(columns="obs/image", to="stack", num_frames=2),
        Times(columns="obs/pose", to="obs/large"),
        Times(columns=["obs/pose", "obs/large"], to=["large/one", "large/two"]),
    ]
    trained, newest = learner(*(piece.clone() for piece in pieces)), acting(*pieces)
    space = gym.spaces.Dict(
        image=IMAGE, pose=POSE, stack=Box(0.0, 9.0, (2, 2, 2), np.float32), large=Box(-np.inf, np.inf, (2,), np.float32)
    )
    assert trained.observation_space == newest.observation_space == space
    batch, last = trained(episodes=[episode()]), newest(episodes=[episode()])
    for t, found in [*((t, {k: batch[k] for k in last} | {"row": t}) for t in range(3)), (3, last | {"row": 0})]:
        at = found["row"]
        stack = np.stack([np.full((2, 2), max(t - 1, 0)), np.full((2, 2), t)], -1)
        assert (found["stack"][at] == stack).all() and (found["obs"]["stack"][at] == stack).all()
        assert found["obs"]["pose"][at].tolist() == [t, -t] and found["obs"]["large"][at].tolist() == [10 * t, -10 * t]
        assert found["large"]["two"][at].tolist() == [100 * t, -100 * t]
        assert (found["obs"]["image"][at] == t).all() and sorted(found["obs"]) == ["image", "large", "pose", "stack"]


def test_pieces_that_rewrite_observations_keep_what_they_filter_and_flatten():
    rewriters = [
        MeanStdFilter(columns="obs/pose", to="obs/standard", clip_by_value=None),
        FlattenObservations(columns="obs/image", to="obs/flat"),
    ]
    pipeline = acting(*rewriters)
    assert list(pipeline.observation_space.spaces) == ["flat", "image", "pose", "standard"]
    running = [SingleAgentEpisode(observations=[row(t)]) for t in (1, 2, 6)]
    batch = pipeline(episodes=running)
    values = np.array([1.0, 2.0, 6.0])
    standard = (values - 3.0) / values.std(ddof=1)
    assert batch["obs"]["standard"] == pytest.approx(np.stack([standard, -standard], 1), abs=1e-5)
    assert batch["obs"]["pose"].tolist() == [[1, -1], [2, -2], [6, -6]]
    assert batch["obs"]["flat"].tolist() == [[t] * 4 for t in (1, 2, 6)]
    assert sorted(running[2].get_observations(-1)) == ["flat", "image", "pose", "standard"]  # the learner finds them
    goal = GoalDistanceRewards(goal=[3.0, -3.0], columns="obs/pose", to="closer")
    batch = learner(goal)(episodes=[episode()])
    assert batch["closer"] == pytest.approx([2**0.5] * 3) and batch["rewards"].tolist() == [-1.0, 0.0, 1.0]


def test_columns_of_other_names_are_what_losses_read():
    """What a loss calls rewards or values may be any other column."""
    views = TrajectoryViews(views={"extrinsic": View("infos/extrinsic", shift=1)})
    named = [
        CastColumns(columns="extrinsic", to="rewards", dtype="float64"),
        Times(columns="bonus", to="vf_preds", factor=1.0),
    ]
    batch = learner(*named, first=[views, AddOneTsToEpisodesAndTruncate()])(episodes=[episode()])
    real = batch["loss_mask"]
    assert batch["rewards"][real].tolist() == [7.0, 14.0, 21.0] and batch["rewards"][~real].tolist() == [0.0]
    assert batch["vf_preds"][real].tolist() == [5.0, 6.0, 7.0]
    behind = learner(behind=[NumpyToTensor(), Times(to="tenfold")])(episodes=[episode()])
    assert behind["tenfold"].tolist() == [-10.0, 0.0, 10.0]
    assert behind["rewards"].tolist() == [-1.0, 0.0, 1.0]


class Slips(gym.Env):
    """Ends every 7 steps; the position that a step leads to is below 0 after every third one."""

    observation_space, action_space = Box(-9.0, 9.0, (1,), np.float32), Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.at += 1
        return np.float32([-self.at if self.at % 3 == 0 else self.at]), float(self.at), self.at == 7, False, {}


class Below(ColumnTransform):
    """True below 0."""

    columns = "reached"

    def transform(self, x):
        return x[:, 0] < 0


def ends_by_position(config: Any) -> tuple[Any, Any, dict[str, np.ndarray]]:
    """Return episodes, the module and the batch of a config whose column `terminateds` is a piece's."""
    pieces = [TrajectoryViews(views={"reached": View("obs", shift=1)}), Below(to="terminateds")]
    config.environment(Slips).env_runners(num_envs_per_env_runner=1, rollout_fragment_length=20)
    algo = config.training(learner_connector=lambda *_: pieces).build_algo()
    episodes, module = algo.env_runner.sample(num_timesteps=20), algo.learner.module["default_policy"]
    batch = algo.learner.connector(rl_module=algo.learner.module, batch={}, episodes=episodes)["default_policy"]
    algo.stop()
    assert sum(map(len, episodes)) == 20
    return episodes, module, {name: np.asarray(column) for name, column in batch.items()}


def test_ends_of_another_name_are_what_advantages_and_losses_read():
    """Any column may be `terminateds`, in the middle of episodes too."""
    config = PPOConfig().training(gamma=0.9, lambda_=0.8, train_batch_size=20, minibatch_size=20)
    episodes, module, batch = ends_by_position(config)
    targets = []
    for episode in episodes:
        rows, advantage, own = episode.get_observations(), 0.0, []
        values = module.compute_values({"obs": torch.from_numpy(rows)}).tolist()
        for t in reversed(range(len(episode))):
            alive = 0.9 * float(rows[t + 1, 0] >= 0)
            advantage = episode.get_rewards(t) + alive * values[t + 1] - values[t] + alive * 0.8 * advantage
            own.append(advantage + values[t])
        targets += own[::-1]
    assert batch["value_targets"][batch["loss_mask"]] == pytest.approx(targets, rel=1e-4)

    episodes, _, batch = ends_by_position(DQNConfig().training(gamma=0.9, n_step=2))
    expected = []
    for episode in episodes:
        rows, rewards = episode.get_observations(), episode.get_rewards()
        for t in range(len(episode)):
            steps = 1 if rows[t + 1, 0] < 0 or t + 1 == len(episode) else 2
            total = rewards[t] + (0.9 * rewards[t + 1] if steps == 2 else 0.0)
            expected.append((total, rows[t + steps, 0], rows[t + steps, 0] < 0, 0.9**steps))
    found = [batch["rewards"], batch["new_obs"][:, 0], batch["terminateds"], batch["discounts"]]
    np.testing.assert_allclose(np.stack(found, 1), expected, rtol=1e-5)


def test_steps_infos_and_names_are_columns_of_whoever_reads_them():
    pieces = [Times(columns="t", to="late"), Times(columns="infos/speed", to="fast"), HashColumns(columns="infos/word")]
    batch = learner(*pieces)(episodes=[episode(t_started=4), episode()])
    assert batch["late"].tolist() == [40.0, 50.0, 60.0, 0.0, 10.0, 20.0] and batch["fast"][:3].tolist() == [
        0.0,
        5.0,
        10.0,
    ]
    assert len(set(batch["hash"].tolist())) == 2 and (batch["hash"][[0, 2]] == batch["hash"][2]).all()
    assert acting(Times(columns="t", to="late"))(episodes=[episode()])["late"].tolist() == [30.0]

    config = PPOConfig().environment("CartPole-v1").env_runners(num_envs_per_env_runner=3, rollout_fragment_length=20)
    seen = []

    def pieces_of(*_: Any) -> Any:
        return [
            Times(columns="env_index", to="env10"),
            lambda batch: seen.append(batch["env10"]) or batch,
            "time_max_pool",
        ]

    runner = SingleAgentEnvRunner(config=config.env_runners(env_to_module_connector=pieces_of))
    sampled = runner.sample(num_timesteps=150)
    assert [int(np.ravel(next(iter(rows)))[0]) for rows in seen[0].values()] == [0, 10, 20]
    names = {"env_index": View(), "agent_index": View(), "agent_id": View(), "module_id": View()}
    indices = LearnerConnectorPipeline(connectors=[TrajectoryViews(views=names), BatchIndividualItems()])
    batch = indices(episodes=sampled)
    assert batch["env_index"].tolist() == [env for part, env in zip(sampled, sampled.envs()) for _ in range(len(part))]
    assert {*batch["env_index"]} == {0, 1, 2} and not batch["agent_index"].any()
    assert {*batch["agent_id"]} == {"default_agent"} and {*batch["module_id"]} == {"default_policy"}
    runner.stop()

    both = MultiAgentEpisode(agent_to_module_mapping_fn=lambda agent_id, episode: f"m_{agent_id}")
    both.add_env_reset(observations={"b": 0.0})
    both.add_env_step({"a": 1.0, "b": 1.0}, {"b": 0}, {"b": 0.0})
    both.add_env_step({"a": 2.0, "b": 2.0}, {"a": 0, "b": 0}, {"a": 0.0, "b": 0.0})
    pieces = [HashColumns(columns="agent_index", to="h"), TrajectoryViews(views={"agent_index": View()})]
    batch = LearnerConnectorPipeline(connectors=[*pieces, AgentToModuleMapping(), BatchIndividualItems()])(
        episodes=[both]
    )
    assert batch["m_b"]["agent_index"].tolist() == [0, 0] and batch["m_a"]["agent_index"].tolist() == [1]


def test_a_function_is_a_piece_by_the_name_of_its_first_parameter():
    def doubled(rewards, factor: float = 2.0):
        return rewards * factor

    def shifted(episode):
        episode.set_rewards(new_data=episode.get_rewards() + 1.0)

    pipeline = learner(shifted, doubled, lambda obs: obs + 0, lambda batch: {"marks": {("e",): [1, 2, 3]}, **batch})
    assert pipeline.names[:4] == ["shifted", "doubled", "obs_function", "batch_function"]
    batch = pipeline(episodes=[episode()])
    assert batch["rewards"].tolist() == [0.0, 2.0, 4.0] and batch["marks"].tolist() == [1, 2, 3]
    with pytest.raises(PieceError, match=r"piece class row[\s\S]*a function of that name[\s\S]*@column_function"):
        piece_to_dict(learner(row)[0])


def test_values_after_a_piece_slices_and_the_place_of_a_piece():
    class Asks(ConnectorV2):
        def __call__(self, *, batch: Any, **_: Any) -> Any:
            pipeline, position = self.place()
            places.append((position, pipeline["times"].factor))
            return batch

    places: list[Any] = []
    pipeline = learner(RewardSign(), Times(factor=3.0), Asks())
    assert pipeline(episodes=[episode()])["rewards"].tolist() == [-3.0, 0.0, 3.0] and places == [(2, 3.0)]
    for piece in (0, "reward_sign", RewardSign, pipeline[0]):
        rows = pipeline.until(piece)(episodes=[episode()])
        assert [array.tolist() for array in rows["rewards"]["e",]] == [[-1.0, 0.0, 1.0]]
    part = pipeline[1:-1]
    assert type(part) is LearnerConnectorPipeline and part.names == pipeline.names[1:-1] and part[0] == pipeline[1]
    assert (
        part[0] is not pipeline[1] and pipeline[-1:](batch={"a": {("e",): [1, 2, 3]}}, episodes=[episode()])["a"].size
    )
    with pytest.raises(PieceError, match=r"Times.place\(\)\n  expected: a piece in a pipeline"):
        pipeline[1].clone().place()
    assert pipeline.trace([episode()]).error is None  # which runs copies
    copy.deepcopy(pipeline)(episodes=[episode()])
    assert places[1:] == places[:1] * 2

    by_keyword = LearnerConnectorPipeline(
        input_observation_space=SPACE, input_action_space=CHOICE, connectors=[*learner(), NumpyToTensor()][-2:]
    )
    assert by_keyword[:1].input_observation_space == SPACE
    last = by_keyword[1:]  # it begins with arrays, and so do its slices and clones
    for part in (last, last[:1], last.until(0), last.clone()):
        assert part(batch={"a": np.arange(3)}, episodes=[episode()])["a"].tolist() == [0, 1, 2]


def test_classes_of_users_keep_names_that_transforms_have_for_themselves():
    class Own(ColumnTransform):
        which: str = "rewards"
        to: float = 2.0  # a number, and so not the name of a column
        moves: int = 3
        calls: int = 0

        @property
        def columns(self):
            return self.which

        def transform(self, x):
            self.move = self.call = x  # almost parameters, in code of the class
            return x * self.to * self.moves

    pipeline = learner(Own(moves=2))
    for copied in (pipeline, pipeline.clone(), copy.deepcopy(pipeline)):
        assert copied(episodes=[episode()])["rewards"].tolist() == [-4.0, 0.0, 4.0]
    assert repr(pipeline[0]) == "Own(to=2.0, which='rewards', moves=2, calls=0)"
    with pytest.raises(PieceError, match="write moves"):
        pipeline[0].movse = 3

    class Both(FrameStacking):
        writes = ("obs", "frames")

        def run(self, columns, group):
            columns = super().run(columns, group)
            return {**columns, "frames": columns["obs"]}

    class Reads(Times):
        reads = columns = ("frames",)

    LearnerConnectorPipeline(IMAGE, CHOICE, connectors=[Both(num_frames=2), Reads()])  # not refused


@pytest.mark.parametrize("piece", [Times(to="marks"), FrameStacking(columns="obs/image", to="marks", num_frames=2)])
def test_a_name_that_a_piece_without_declarations_gave_is_not_given_again(piece: Any):
    class Marks(ConnectorV2):
        def __call__(self, *, batch: Any, **_: Any) -> Any:
            return {**batch, "marks": {("e",): [1, 2, 3]}}

    with pytest.raises(ColumnError, match=r"to\n  expected: a new name\n  found:    'marks', which the batch has"):
        learner(Marks(), piece.clone())(episodes=[episode()])


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: learner(Times(columns="obs/pos", to="x")), ColumnError, "did you mean 'pose'"),
        (lambda: learner(Times(columns="obs/pose", to="obs/image")), ColumnError, "one that is taken"),
        (
            lambda: learner(Times(to="x"), Times(columns="obs/pose", to="x")),
            PipelineError,
            r"'x', which .* \(Times\) writes",
        ),
        (
            lambda: learner(behind=[Times(columns="obs/pose", to="rewards")]),
            PipelineError,
            "give it another name in to=",
        ),
        (lambda: Times(columns=["rewards", "bonus"], to="x"), PieceError, "a new name for each of rewards, bonus"),
        (lambda: Times(to="rewards"), PieceError, "a new name for each of rewards"),
        (lambda: Times(to="obs/reward"), PieceError, "made of parts of 'obs' alone"),
        (lambda: MeanStdFilter(columns="obs/pose", to="standard"), PieceError, 'to="obs/standard"'),
        (lambda: learner(lambda x: x), PieceError, "name its first parameter rewards, obs"),
    ],
)
def test_what_cannot_work_is_named_when_it_is_built(make: Any, error: Any, words: str):
    with pytest.raises(error, match=words):
        make()
