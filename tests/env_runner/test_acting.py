"""From a batch to actions, of one agent and of several: what the module and the pipeline give is checked first."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.algorithms import PPOConfig
from epibatch.connectors import ConnectorV2
from epibatch.core.errors import ColumnError, ConfigError
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule
from epibatch.env_runner import MultiAgentEnv, SingleAgentEnvRunner
from fixture_envs import ScriptedEnv


def said(raised):
    return " ".join([str(raised.value), *getattr(raised.value, "__notes__", ())])


class Look:
    """A forward pass that looks something up, and the table that it looks into."""

    table = {"a": 1}  # noqa: RUF012

    def __init__(self, look):
        self.look = look

    def __call__(self, batch, **kwargs):
        return self.look(batch)


@pytest.mark.parametrize(
    ("look", "error", "words"),
    [
        (lambda batch: Look.table["b"], KeyError, "Parity's forward pass, with obs [2, 2]"),
        (lambda batch: Look.table[3], KeyError, "Parity's forward pass, with obs [2, 2]"),
        (lambda batch: len(3), TypeError, "Parity's forward pass, with obs [2, 2]"),
        (lambda batch: batch["next_obs"], KeyError, "no column 'next_obs' at this place. Its columns: obs. Read what"),
        (lambda batch: dict(batch)["next_obs"], KeyError, "Its columns: obs. Read what is known in training alone"),
        (lambda batch: batch["obs"], ColumnError, "a dict of columns"),
    ],
)
def test_an_error_names_module_and_batch(toys, look, error, words):
    runner = toys.runner(2)
    runner.module.forward_exploration = Look(look)
    with pytest.raises(error) as raised:
        runner.sample(num_timesteps=2)
    assert type(raised.value) is error and words in said(raised)


def test_a_forward_method_without_keywords_is_told_what_to_write(toys):
    runner = toys.runner(2)
    runner.module.forward_exploration = lambda batch: {"actions": np.zeros(2)}
    with pytest.raises(ConfigError) as raised:
        runner.sample(num_timesteps=2)
    assert "unexpected keyword argument 't'" in raised.value.found
    assert raised.value.do == "write def _forward(self, batch, **kwargs)"


DISCRETE = gym.spaces.Discrete(2)
SHIFTED = gym.spaces.Discrete(3, start=5)
MANY = gym.spaces.MultiDiscrete([2, 4])
BITS = gym.spaces.MultiBinary(2)
PAIR = gym.spaces.Box(-1, 1, (2,))
NESTED = gym.spaces.Dict(a=DISCRETE, b=gym.spaces.Box(-1, 1, (1,)))


def runner_that_chooses(toys, space, actions):
    runner = toys.runner(2, env=toys.factory(action_space=space))
    runner.module.forward_exploration = lambda batch, **_: {"actions": actions}
    return runner


@pytest.mark.parametrize(
    ("space", "actions", "found"),
    [
        (DISCRETE, np.array([0, 7]), "7"),
        (DISCRETE, np.array([0, -1]), "-1"),
        (DISCRETE, np.array([1.0, 0.7]), "0.7"),
        (DISCRETE, torch.tensor([2, 0]), "2"),
        (DISCRETE, np.array([np.nan, 0.0]), "nan"),
        (DISCRETE, np.array(["0", "1"]), "'0', '1'"),
        (SHIFTED, np.array([4, 5]), "4"),
        (MANY, np.array([[0, 4], [0, 0]]), "4"),
        (MANY, np.array([[2, 3], [0, 0]]), "2"),
        (BITS, torch.tensor([[0, 2], [0, 1]]), "2"),
        (NESTED, {"a": np.array([3, 0]), "b": np.zeros((2, 1))}, "3"),
        (NESTED, {"a": np.array([1, 0]), "b": torch.tensor([[0.5], [np.nan]])}, "nan"),
        (PAIR, torch.zeros(2), "shape [2]"),
        (PAIR, np.zeros((2, 3)), "shape [2, 3]"),
    ],
)
def test_a_modules_own_actions_must_be_members_of_its_space(toys, space, actions, found):
    with pytest.raises(ColumnError) as raised:
        runner_that_chooses(toys, space, actions).sample(num_timesteps=2)
    message = str(raised.value)
    assert "column 'actions' of Parity's outputs" in message and f"found:    {found}\n" in message
    assert not any(env.actions for env in toys.envs)


@pytest.mark.parametrize(
    ("space", "actions", "expected"),
    [
        (DISCRETE, np.array([1.0, 0.0], np.float32), [1, 0]),
        (DISCRETE, torch.tensor([1.0, 0.0]), [1, 0]),
        (SHIFTED, np.array([5, 7]), [5, 7]),
        (MANY, torch.tensor([[1.0, 3.0], [0.0, 2.0]]), [[1, 3], [0, 2]]),
        (BITS, np.array([[True, False], [True, True]]), [[1, 0], [1, 1]]),
        (gym.spaces.Box(-1, 1, (1,)), np.array([[0.5], [-0.5]]), [[0.5], [-0.5]]),
        (gym.spaces.Box(-1, 1, (1,)), torch.tensor([0.5, -0.5]), [[0.5], [-0.5]]),
        (gym.spaces.Box(-1, 1, (1,)), [0.5, -0.5], [[0.5], [-0.5]]),
        (gym.spaces.Box(-1, 1, (2, 1)), np.array([[0.5, 1], [-0.5, 0]]), [[[0.5], [1]], [[-0.5], [0]]]),
    ],
)
def test_actions_of_another_type_or_without_an_axis_of_the_space_are_converted(toys, space, actions, expected):
    chunks = runner_that_chooses(toys, space, actions).sample(num_timesteps=2)
    kinds = "f" if isinstance(space, gym.spaces.Box) else "ib"
    assert [chunk.get_actions(0).tolist() for chunk in chunks] == expected
    assert [env.actions[0].tolist() for env in toys.envs] == expected
    assert all(own.dtype.kind in kinds for env in toys.envs for own in env.actions)


@pytest.mark.parametrize("kind", [torch.tensor, np.array, list])
def test_the_log_probability_of_a_modules_own_actions_is_added_whatever_holds_them(toys, kind):
    runner = toys.runner(2, env=toys.factory(action_space=DISCRETE))
    logits = torch.tensor([[0.0, 1.0], [0.0, 3.0]])
    runner.module.forward_exploration = lambda batch, **_: {"actions": kind([1, 0]), "action_dist_inputs": logits}
    stored = [chunk.get_extra_model_outputs("action_logp")[0] for chunk in runner.sample(num_timesteps=2)]
    assert np.allclose(np.exp(stored), [1 / (1 + np.exp(-1)), 1 / (1 + np.exp(3))])


class Ends(ConnectorV2):
    """The last piece: calls a function with the columns."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def __call__(self, *, batch, **kwargs):
        self.function(batch)
        return batch


def without_rows(batch):
    batch["actions"] = batch["actions"][:1]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda batch: batch.pop("actions"), "none"),
        (without_rows, r"\[1\]"),
        (lambda batch: batch.update(actions=np.float32(1)), "one"),
    ],
)
def test_actions_are_one_per_environment(toys, change, found):
    runner = toys.runner(2)
    runner.pipelines["module_to_env"].append(Ends(change))
    with pytest.raises(ColumnError, match=rf"2 rows, one per environment[\s\S]*{found}"):
        runner.sample(num_timesteps=2)


def test_a_module_without_an_action_space_is_believed(toys):
    runner = runner_that_chooses(toys, DISCRETE, np.array([1, 0]))
    runner.module.action_space = None
    assert [chunk.get_actions().tolist() for chunk in runner.sample(num_timesteps=2)] == [[1], [0]]


@pytest.mark.parametrize("words", ["NaN in the outputs", "something else"])
def test_other_errors_of_the_pipeline_stay_as_they_are(toys, words):
    def fail(batch):
        raise ColumnError(words)

    runner = toys.runner(2)
    runner.pipelines["module_to_env"].append(Ends(fail))
    with pytest.raises(ColumnError, match=words) as raised:
        runner.sample(num_timesteps=2)
    assert "of which the module made" not in str(raised.value)


def test_an_observation_that_is_nan_is_blamed():
    rows = np.array([0.0, np.nan, 0.0], np.float32), np.zeros(3, np.float32)
    made = [ScriptedEnv((row, 1.0, False, False, {})) for row in rows[::-1]]
    config = PPOConfig().environment(lambda config: made.pop(0)).env_runners(num_envs_per_env_runner=2)
    with pytest.raises(ColumnError, match="observation of environment 1, of which the module made its outputs"):
        SingleAgentEnvRunner(config=config).sample(num_timesteps=4)


# ------------------------------------------------------------------------------------ several agents


class Talk(MultiAgentEnv):
    """Agents a and b; b alone observes in the second environment, from the first step on. Writes into its actions."""

    made = 0

    def __init__(self, nan=False):
        super().__init__()
        self.possible_agents = self.agents = ["a", "b"]
        self.observation_space = gym.spaces.Box(-9, 9, (1,), np.float32)
        self.action_space = gym.spaces.Box(-1, 1, (2,), np.float32)
        self.nan, self.number = nan, Talk.made % 2
        Talk.made += 1

    def _observe(self, value=1.0):
        return {agent: np.full(1, value, np.float32) for agent in ("ab", "b")[self.number]}

    def reset(self, *, seed=None, options=None):
        return self._observe(), {}

    def step(self, action_dict):
        for action in action_dict.values():
            action[:] = 77.0
        value = np.nan if self.nan and self.number else 2.0
        return self._observe(value), dict.fromkeys(action_dict, 1.0), {"__all__": False}, {}, {}


def talking(change=None, **env_config):
    Talk.made = 0
    config = PPOConfig().environment(Talk, env_config=env_config, normalize_actions=False).debugging(seed=0)
    config.multi_agent(policies=["p", "q"], policy_mapping_fn={"a": "p", "b": "q"})
    runner = config.env_runners(num_envs_per_env_runner=2).build_algo().env_runner
    if change is not None:
        runner.pipelines["module_to_env"].append(Ends(change))
    return runner


def test_environments_may_change_their_actions():
    for chunk in talking().sample(num_timesteps=6):
        for episode in chunk.agent_episodes.values():
            assert abs(episode.get_actions()).max() < 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda batch: batch.pop("actions"), r"one action for each agent to act\n.*no such column"),
        (
            lambda batch: batch.update(actions=batch["actions"][:1]),
            r"'actions'\n.*a list of 2 dicts by agent.*\n.*1 of",
        ),
        (lambda batch: batch.update(actions=np.zeros(2)), r"a list of 2 dicts by agent.*\n.*ndarray"),
        (lambda batch: batch.update(vf=[1.0, 2.0]), "'vf'"),
        (lambda batch: batch["actions"][0].pop("b"), r"for agents \['a', 'b'\]\n.*none for \['b'\] in environment 0"),
        (lambda batch: batch["actions"][1].update(c=1), r"some for \['c'\] too, who do not act in environment 1"),
        (lambda batch: batch.update(actions_for_env=[{}, {}]), r"'actions_for_env'[\s\S]*none for \['a', 'b'\]"),
    ],
)
def test_what_is_not_one_action_per_agent_is_named(change, message):
    with pytest.raises(ColumnError, match=message):
        talking(change).sample(num_timesteps=2)


def test_a_column_that_is_not_there_comes_with_those_of_all_modules():
    runner = talking()
    runner.module["q"].forward_exploration = runner.module["q"]._forward_exploration = Look(lambda batch: batch["new"])
    with pytest.raises(KeyError) as raised:
        runner.sample(num_timesteps=2)
    assert "no column 'new' at this place." in said(raised) and "obs" in said(raised)


def nan_outputs(batch, **kwargs):
    return {"action_dist_inputs": torch.full((len(batch["obs"]), 4), torch.nan)}


def make_rows_nan(batch):
    batch["q"]["obs"][:] = torch.nan


@pytest.mark.parametrize(
    ("nan", "front", "words"),
    [
        (True, None, "observation of agent 'b' in environment 1"),
        (False, make_rows_nan, "column 'obs', part of module 'q', row 0"),
        (False, None, "NaN"),
    ],
    ids=["environment", "piece", "module"],
)
def test_observations_that_are_nan_are_blamed(nan, front, words):
    runner = talking(nan=nan)
    if front is not None:
        runner.pipelines["env_to_module"].append(Ends(front))
    if not nan:
        runner.module["q"]._forward_exploration = nan_outputs
    with pytest.raises(ColumnError) as raised:
        runner.sample(num_timesteps=6)
    blamed = ("of which the module made its outputs", "NaN")
    assert words in str(raised.value) and (blamed[0] in str(raised.value)) == (nan or front is not None)


class Layers(TorchRLModule):
    """Hands states `[B, H]` to a layer of torch as they are."""

    def setup(self):
        self.lstm, self.pi = torch.nn.LSTM(4, 8, batch_first=True), torch.nn.Linear(8, 2)

    def get_initial_state(self):
        return {"h": np.zeros(8, np.float32), "c": np.zeros(8, np.float32)}

    def _forward(self, batch, **kwargs):
        rows, (h, c) = self.lstm(batch["obs"], (batch["state_in"]["h"], batch["state_in"]["c"]))
        return {"action_dist_inputs": self.pi(rows), "state_out": {"h": h[0], "c": c[0]}}


def test_a_state_that_torch_refuses_is_shown_with_the_shape_that_torch_takes():
    config = PPOConfig().environment("CartPole-v1").rl_module(rl_module_spec=RLModuleSpec(module_class=Layers))
    shown = (
        r"'h': \[1, 8\].* \(torch's recurrent layers take \[layers, B, H\], such as state\[None\] of a state \[B, H\]\)"
    )
    with pytest.raises(RuntimeError, match=shown):
        SingleAgentEnvRunner(config=config).sample(num_timesteps=2)
