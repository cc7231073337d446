"""Pipelines that a config builds: default orders, pieces of the user, functions and their signatures."""

from __future__ import annotations

import functools

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms import PPOConfig
from epibatch.connectors import ConnectorV2
from epibatch.connectors.learner import LearnerConnectorPipeline
from epibatch.core.errors import ConfigError, PieceError, PipelineError

BOX = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
ACT = gym.spaces.Discrete(2)
SPACES = {"__env__": (BOX, ACT), "__env_single__": (BOX, ACT)}

# The pieces' names in the pipelines of PPOConfig of ray[rllib] 2.60.0, in order; U is where the user's go.
ENV_TO_MODULE = [
    "U",
    "AddObservationsFromEpisodesToBatch",
    "AddTimeDimToBatchAndZeroPad",
    "AddStatesFromEpisodesToBatch",
    "BatchIndividualItems",
    "NumpyToTensor",
]
MODULE_TO_ENV = [
    "GetActions",
    "TensorToNumpy",
    "UnBatchToIndividualItems",
    "RemoveSingleTsTimeRankFromBatch",
    "U",
    "NormalizeAndClipActions",
    "ListifyDataForVectorEnv",
]
LEARNER = [
    "U",
    "AddObservationsFromEpisodesToBatch",
    "AddColumnsFromEpisodesToTrainBatch",
    "AddTimeDimToBatchAndZeroPad",
    "AddStatesFromEpisodesToBatch",
    "BatchIndividualItems",
    "NumpyToTensor",
]


class U(ConnectorV2):
    """Keeps what its function was called with."""

    def __init__(self, input_observation_space=None, input_action_space=None, *, seen=None, **kwargs):
        super().__init__(input_observation_space, input_action_space, **kwargs)
        self.seen = seen

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        return batch


def names(pipeline):
    return [type(piece).__name__ for piece in pipeline]


def build(config, which, env=None):
    if which == "env_to_module":
        return config.build_env_to_module_connector(env=env, spaces=SPACES, device="cpu")
    if which == "module_to_env":
        return config.build_module_to_env_connector(env=env, spaces=SPACES)
    return config.build_learner_connector(BOX, ACT, device="cpu")


def config_with(which, value, **settings):
    section = "learners" if which == "learner" else "env_runners"
    return getattr(PPOConfig(), section)(**{f"{which}_connector": value}, **settings)


WHICH = {"env_to_module": ENV_TO_MODULE, "module_to_env": MODULE_TO_ENV, "learner": LEARNER}


# After which piece several agents need another one.
MAPPED = {
    "env_to_module": ("BatchIndividualItems", "AgentToModuleMapping"),
    "module_to_env": ("RemoveSingleTsTimeRankFromBatch", "ModuleToAgentUnmapping"),
    "learner": ("BatchIndividualItems", "AgentToModuleMapping"),
}


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("which", WHICH)
@pytest.mark.parametrize("count", [0, 1, 2])
def test_orders(which, count, several):
    hook = (lambda env: U()) if count == 1 else (lambda env: [U() for _ in range(count)])
    config, expected = config_with(which, hook), list(WHICH[which])
    if several:
        config.multi_agent(policies=["main"])
        before, piece = MAPPED[which]
        expected.insert(expected.index(before), piece)
    place = expected.index("U")
    expected[place : place + 1] = ["U"] * count
    pipeline = build(config, which)
    assert names(pipeline) == expected
    if which == "learner":
        config.extend_learner_connector(pipeline)
        expected.insert(count, "AddOneTsToEpisodesAndTruncate")
        assert names(pipeline) == [*expected, "GeneralAdvantageEstimation"]


@pytest.mark.parametrize("which", WHICH)
def test_defaults_can_be_left_out(which):
    switch = {f"add_default_connectors_to_{which}_pipeline": False}
    config = config_with(which, lambda env: U(), **switch)
    pipeline = build(config, which)
    if which == "learner":
        config.extend_learner_connector(pipeline)
    assert names(pipeline) == ["U"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({"gamma": 0.5, "lambda_": 0.25}, (0.5, 0.25, True)), ({"standardize_advantages": False}, (0.99, 1.0, False))],
)
def test_settings_of_advantages_reach_their_piece(settings, expected):
    config = PPOConfig().training(**settings).multi_agent(policies=["a", "b"], policy_mapping_fn={"*": "a"})
    config.multi_agent(algorithm_config_overrides_per_module={"a": {"standardize_advantages": False}})
    pipeline = build(config, "learner")
    config.extend_learner_connector(pipeline)
    piece = pipeline[-1]
    assert (piece.gamma, piece.lambda_, piece.standardize_advantages) == expected
    assert piece.per_module == {"a": {"standardize_advantages": False}}


@pytest.mark.parametrize(
    ("which", "hook", "seen"),
    [
        ("env_to_module", lambda env, spaces, device: U(seen=(env, spaces, device)), ("E", SPACES, "cpu")),
        ("env_to_module", lambda env: U(seen=env), "E"),
        ("env_to_module", lambda *args: U(seen=args), ("E", SPACES, "cpu")),
        ("env_to_module", functools.partial(lambda a, env, **rest: U(seen=(a, env)), 1), (1, "E")),
        ("module_to_env", lambda env, spaces: U(seen=(env, spaces)), ("E", SPACES)),
        ("module_to_env", lambda env, spaces=None: U(seen=spaces), SPACES),
        ("module_to_env", lambda env: U(seen=env), "E"),
        ("learner", lambda obs_space, act_space: U(seen=(obs_space, act_space)), (BOX, ACT)),
        ("learner", lambda env: U(seen=env), None),
    ],
)
def test_functions_are_called_by_their_signature(which, hook, seen):
    (piece,) = (each for each in build(config_with(which, hook), which, env="E") if isinstance(each, U))
    assert piece.seen == seen


def test_functions_may_give_specs():
    spec = {"piece": "clip", "low": -1.0, "high": 1.0}
    pipeline = build(config_with("learner", lambda obs_space, act_space: [U(), spec]), "learner")
    assert [type(piece).__name__ for piece in pipeline][:2] == ["U", "Clip"] and pipeline[1].high == 1.0
    (first, *_) = build(config_with("env_to_module", lambda env: {"piece": "mean_std_filter"}), "env_to_module")
    assert type(first).__name__ == "MeanStdFilter"


def test_type_errors_inside_a_function_are_its_own():
    def hook(env, spaces, device):
        return U(seen=1 + "1")

    with pytest.raises(TypeError, match="unsupported operand"):
        build(config_with("env_to_module", hook), "env_to_module")


@pytest.mark.parametrize(
    ("which", "value", "message"),
    [
        ("env_to_module", lambda env, spaces: U(), r"a function of \(env, spaces, device\) or of \(env\)"),
        ("module_to_env", lambda: U(), r"a function of \(env, spaces\) or of \(env\)"),
        ("learner", lambda a, b, c: U(), r"a function of \(obs_space, act_space\) or of \(env\)"),
        ("env_to_module", U, "found the class U"),
        ("env_to_module", U(), "found a U object"),
        (
            "env_to_module",
            ["frame_stacking", U()],
            r"\[1\]: .*found a U object; a function .*lambda env, spaces, device",
        ),
        ("learner", [U], r"learner_connector\[0\]: .*found the class U; a function makes.*lambda obs_space, act_space"),
        ("learner", "frame_stacking", "found str"),
        ("learner", 3, r"learners\.learner_connector: expected a function or a list of piece specs, found int"),
    ],
)
def test_wrong_hooks_are_named_when_they_are_set(which, value, message):
    with pytest.raises(ConfigError, match=message):
        config_with(which, value)


@pytest.mark.parametrize("which", WHICH)
@pytest.mark.parametrize(
    ("made", "found"),
    [
        (None, r"NoneType None\n  do:       return the pieces"),
        (3, "int 3"),
        ([U(), 5], "int 5 in a list"),
        (U, r"the class U\n  do:       call it: U\(\.\.\.\)"),
        ([U(), U], r"the class U in a list\n  do:       call it: U\(\.\.\.\)"),
    ],
)
def test_functions_that_return_something_else(which, made, found):
    config = config_with(which, lambda env: made)
    with pytest.raises(PieceError, match=rf"{which}_connector, the function .*\n.*\n  found:    {found}"):
        build(config, which)


def test_pieces_as_data():
    config = PPOConfig().env_runners(env_to_module_connector=[{"piece": "frame_stacking", "num_frames": 3}])
    image = gym.spaces.Box(0, 255, (8, 8, 1), np.uint8)
    pipeline = config.build_env_to_module_connector(spaces={"__env_single__": (image, ACT)})
    assert names(pipeline)[0] == "FrameStacking"
    assert pipeline.observation_space.shape == (8, 8, 3)


def test_pieces_as_data_are_built_for_the_learners_side():
    config = PPOConfig().training(learner_connector=["frame_stacking", {"piece": "add_columns_from_episodes_to_batch"}])
    (stacking, columns) = config.user_pieces("learner", (BOX, ACT), None)
    assert LearnerConnectorPipeline(connectors=[stacking]).plan().steps[0].piece.trains is True
    assert type(columns).__name__ == "AddColumnsFromEpisodesToTrainBatch"


def test_every_build_makes_new_pieces():
    config = PPOConfig().env_runners(env_to_module_connector=[{"piece": "frame_stacking", "num_frames": 3}])
    first, second = (config.user_pieces("env_to_module", (None, None, None), None)[0] for _ in range(2))
    assert first is not second


def test_action_settings_reach_the_piece():
    pipeline = build(PPOConfig().environment(normalize_actions=False, clip_actions=True), "module_to_env")
    assert (pipeline[-2].normalize_actions, pipeline[-2].clip_actions) == (False, True)


def test_spaces_of_one_environment_of_the_vector_or_of_the_config():
    pipelines = [build(PPOConfig(), which) for which in WHICH]
    config = PPOConfig().environment(observation_space=BOX, action_space=ACT)
    for pipeline in [*pipelines, config.build_env_to_module_connector()]:
        assert (pipeline.input_observation_space, pipeline.input_action_space) == (BOX, ACT)
    env = gym.make_vec("CartPole-v1", num_envs=2)
    assert PPOConfig().build_env_to_module_connector(env=env).observation_space == env.single_observation_space
    env.close()
    with pytest.raises(PipelineError, match=r"an entry '__env_single__'.*\n  found:    the keys __env__"):
        PPOConfig().build_env_to_module_connector(spaces={"__env__": (BOX, ACT)})
