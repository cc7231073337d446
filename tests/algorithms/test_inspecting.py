"""The facts of an algorithm's three pipelines: where acting and learning part, in a run that does not change."""

from __future__ import annotations

import json

import gymnasium as gym
import numpy as np
import pytest
import torch
from fixture_cases import slow
from typer.testing import CliRunner

from epibatch.algorithms import Algorithm, BCConfig, DQNConfig
from epibatch.algorithms.ppo import PPOConfig
from epibatch.cli import app
from epibatch.connectors import ConnectorV2
from epibatch.connectors.observations import Affine
from epibatch.core.errors import ConfigError
from epibatch.env_runner import MultiAgentEnv
from epibatch.episodes import SingleAgentEpisode


class Halve(ConnectorV2):
    """A planted bug: it is in the acting pipeline only."""

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            row = episode.get_observations(-1) * np.float32([1, 0.5, 1, 1])
            self.add_batch_item(batch, "obs", row, episode)
        return batch


class Relay(MultiAgentEnv):
    """Agent `a` acts every step, `b` every second, `c` leaves early; an observation tells step and agent."""

    def __init__(self, config=None):
        super().__init__()
        self.possible_agents = list("abc")
        self.observation_spaces = {agent: gym.spaces.Box(-99, 99, (2,), np.float32) for agent in "abc"}
        self.action_spaces = {agent: gym.spaces.Discrete(2) for agent in "abc"}

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return {agent: self.view(agent) for agent in "abc"}, {}

    def view(self, agent):
        return np.array([self.t, "abc".index(agent)], np.float32)

    def step(self, actions):
        self.t += 1
        ends = self.t >= 9
        who = ["a", *("b" if self.t % 2 == 0 or ends else ""), *("c" if self.t <= 4 else "")]
        terminateds = {agent: ends or (agent == "c" and self.t == 4) for agent in who}
        return (
            {agent: self.view(agent) for agent in who},
            dict.fromkeys(who, 1.0),
            {**terminateds, "__all__": ends},
            {},
            {},
        )


def cartpole(**model):
    config = PPOConfig().environment("CartPole-v1").debugging(seed=3).training(train_batch_size=64, minibatch_size=64)
    return config.env_runners(num_envs_per_env_runner=2).rl_module(model_config={"fcnet_hiddens": [8], **model})


def inspected(config, **options):
    algo = config.build_algo()
    try:
        return algo.inspect(**options).data
    finally:
        algo.stop()


def test_acting_and_learning_agree_in_a_sound_run():
    data = inspected(cartpole(use_lstm=True, max_seq_len=8, lstm_cell_size=4), num_env_steps=40)
    assert [lane["key"] for lane in data["flow"]] == ["env_to_module", "module_to_env", "learner"]
    assert data["gap"][0] == 0 and data["gap"][1] < 1e-4
    (grid,) = data["grids"].values()
    for cell, (kind, pair) in enumerate(zip(grid["kind"], grid["pairs"])):
        assert (pair is None) == (kind in (0, 2))
        if pair is not None:
            chunk = data["chunks"][grid["chunk"][cell]]
            assert pair[0] == pair[1] == chunk["obs"][grid["at"][cell] + chunk["look"]]
            assert pair[3] == [grid["columns"][f"action_dist_inputs[{k}]"][cell] for k in range(2)]
    assert {chunk["env"] for chunk in data["chunks"]} == {0, 1}
    assert not [note for note in data["notes"] if "differ" in note]


def test_a_piece_on_one_side_is_found_and_named():
    config = cartpole().env_runners(env_to_module_connector=lambda env, spaces, device: Halve())
    data = inspected(config, num_env_steps=30)
    (grid,) = data["grids"].values()
    differences = [abs(pair[0][1] - pair[1][1]) for pair in grid["pairs"] if pair]
    assert data["gap"][0] == pytest.approx(max(differences), rel=1e-3)
    assert all(pair[0][1] == pytest.approx(pair[1][1] / 2, rel=1e-3) for pair in grid["pairs"] if pair)
    assert "Acting and learning differ" in data["notes"][0] and "Halve" in data["notes"][0]
    assert [piece["own"] for piece in data["flow"][0]["pieces"]].count(True) == 1


class Scale(ConnectorV2):
    """A planted bug: in acting it multiplies the observations of steps from `start` on."""

    def __init__(self, *spaces, factor=2.0, start=0, **kwargs):
        super().__init__(*spaces, factor=factor, start=start, **kwargs)
        self.factor, self.start = factor, start

    def scaled(self, rows, first):
        late = np.arange(first, first + len(rows)) >= self.start
        return [row * np.float32(self.factor if scales else 1) for row, scales in zip(rows, late)]

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            if episode.agent_id is None or not episode.is_done:
                row = self.scaled([episode.get_observations(-1)], episode.t)[0]
                self.add_batch_item(batch, "obs", row, episode)
        return batch


class Learned(Scale):
    """The same while learning, under the same name."""

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            rows = self.scaled(episode.get_observations(slice(0, len(episode) + 1)), episode.t_started)
            self.add_n_batch_items(batch, "obs", rows, len(rows), episode)
        return batch


Learned.__name__ = "Scale"


@pytest.mark.parametrize(
    ("acting", "learning", "start"),
    [
        slow({"factor": 2.0}, {"factor": 3.0}, 0),
        ({"factor": 2.0, "start": 5}, {"factor": 2.0, "start": 7}, 5),
        ({"factor": 2.0, "start": 5}, None, 5),
        (None, {"factor": 2.0, "start": 3}, 3),
        slow({"factor": 2.0, "start": 4}, {"factor": 1.0}, 4),
    ],
)
def test_the_piece_after_which_both_sides_part_is_found_by_running_them(acting, learning, start):
    config = cartpole(use_lstm=True, max_seq_len=8, lstm_cell_size=4)
    if acting is not None:
        config.env_runners(env_to_module_connector=lambda *_: Scale(**acting))
    if learning is not None:
        config.learners(learner_connector=lambda *_: Learned(**learning))
    data = inspected(config, num_env_steps=40)
    parting, factors = data["parting"], [{"factor": 1.0, **(side or {})} for side in (acting, learning)]
    changes = [side["factor"] != 1 and side.get("start", 0) <= start for side in factors]
    assert [parting[side] for side in ("acting", "learning")] == ["scale" if change else None for change in changes]
    assert parting["text"] in data["notes"][0] and f"On step {start} of episode" in parting["text"]
    name = parting["text"].split()[5]
    chunk = next(one for one in data["chunks"] if one["episode"] == name and one["t0"] <= start < one["t0"] + one["n"])
    seen = chunk["obs"][start - chunk["t0"] + chunk["look"]]
    entry = int(np.argmax(np.abs(seen)))
    left, right = (seen[entry] * (side["factor"] if change else 1) for side, change in zip(factors, changes))
    found = parting["text"].split(f"obs[{entry}] is ")[1].replace(" while acting, ", " ").split()[:2]
    assert [float(value) for value in found] == pytest.approx([left, right], rel=0.01)


def test_the_parting_piece_of_one_of_several_agents():
    config = PPOConfig().environment(Relay).debugging(seed=0).training(train_batch_size=40, minibatch_size=40)
    config = config.multi_agent(policies={"p"}, policy_mapping_fn=lambda agent, episode: "p")
    data = inspected(
        config.env_runners(env_to_module_connector=lambda *_: Scale(factor=3.0, start=2)), num_env_steps=20
    )
    assert data["parting"]["acting"] == "scale" and data["parting"]["learning"] is None
    assert "On step 2 of" in data["parting"]["text"]


@pytest.mark.slow
def test_the_parting_piece_where_agents_have_modules_of_their_own():
    def named(agent, episode):
        return "q" if agent == "b" else "p"

    config = PPOConfig().environment(Relay).debugging(seed=0).training(train_batch_size=40, minibatch_size=40)
    config = config.multi_agent(policies={"p", "q"}, policy_mapping_fn=named)
    acting = config.copy().env_runners(env_to_module_connector=lambda *_: Affine(scale=3.0))
    learning = config.learners(learner_connector=lambda *_: Affine(scale=3.0))
    for edited, names in ((acting, ("affine", None)), (learning, (None, "affine"))):
        parting = inspected(edited, num_env_steps=20)["parting"]
        assert (parting["acting"], parting["learning"]) == names


class Whiten(ConnectorV2):
    """A planted bug: it divides by zero in every third row."""

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for columns in batch.values():
            columns["obs"] = columns["obs"].clone()
            columns["obs"][::3, 1] = float("nan")
        return batch


def test_values_that_are_not_finite_are_a_difference():
    config = DQNConfig().environment("CartPole-v1").debugging(seed=0)
    algo = config.rl_module(model_config={"fcnet_hiddens": [8]}).build_algo()
    algo.pipelines["learner"].append(Whiten())
    data = algo.inspect(num_env_steps=30).data
    algo.stop()
    (grid,) = data["grids"].values()
    wrong = [pair[2] == 1e308 for pair in grid["pairs"]]
    assert wrong == [row % 3 == 0 for row in range(30)] and data["gap"] == [1e308, None]
    differ, which = data["notes"]
    assert differ.startswith("Acting and learning differ: observations in values that are not finite. ")
    assert (data["parting"]["acting"], data["parting"]["learning"]) == (None, "whiten")
    assert which == "default_policy/obs: values are not finite from Whiten in learner on."


def test_observations_of_many_entries():
    class Wide(gym.Env):
        observation_space, action_space = gym.spaces.Box(-1, 1, (30,), np.float32), gym.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.zeros(30, np.float32), {}

        def step(self, action):
            return np.ones(30, np.float32), 1.0, True, False, {}

    config = PPOConfig().environment(Wide).training(train_batch_size=16, minibatch_size=16)
    data = inspected(config, num_env_steps=16)
    (grid,) = data["grids"].values()
    assert data["gap"][0] == 0 and grid["entries"] is None
    assert [pair[:3] for pair in grid["pairs"] if pair] == [[None, None, 0.0]] * 16


@pytest.mark.slow
def test_edits_of_the_acting_pipelines_are_shown():
    config = cartpole().env_runners(env_to_module_connector=lambda *_: Scale(factor=1.0))
    algo = config.build_algo()
    before = algo.inspect(num_env_steps=20).data
    algo.pipelines["env_to_module"]["scale"].factor = 3.0
    edited = algo.inspect(num_env_steps=20).data
    algo.pipelines["env_to_module"].prepend(Halve())
    algo.pipelines["env_to_module"].remove("scale")
    other = algo.inspect(num_env_steps=20).data
    algo.stop()
    assert before["gap"][0] == 0 and edited["parting"]["acting"] == "scale"
    assert other["parting"]["acting"] == "halve" and other["flow"][0]["pieces"][0]["kind"] == "Halve"


def test_a_piece_that_has_changed_since_is_not_named_and_it_is_said():
    class Beginning(Scale):
        calls = 0

        def scaled(self, rows, first):
            self.calls += 1
            return [row + np.float32(self.calls < 3) for row in rows]

    config = cartpole().env_runners(env_to_module_connector=lambda *_: Beginning())
    data = inspected(config, num_env_steps=20)
    assert data["gap"][0] == 1 and data["parting"]["acting"] is data["parting"]["learning"] is None
    assert "random numbers and state; Beginning" in data["notes"][0]


class Turned(ConnectorV2):
    """A planted bug: what it makes of a column of a train batch with a time axis."""

    column, turn = "loss_mask", staticmethod(torch.logical_not)

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        columns = batch["default_policy"]
        found = columns[self.column]
        turned = (
            {name: self.turn(leaf) for name, leaf in found.items()} if isinstance(found, dict) else self.turn(found)
        )
        columns[self.column] = turned
        return batch


def test_a_wrong_loss_mask_and_states_of_other_steps_are_noted():
    config = cartpole().rl_module(model_config={"use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 8})
    for column, turn, expected in (
        ("loss_mask", torch.logical_not, ["no step carries loss", "bootstrap rows carry loss"]),
        ("state_in", lambda leaf: leaf.roll(1, 0) + 1, ["observations are equal", "recurrent states"]),
    ):
        algo = config.copy().build_algo()
        piece = Turned()
        piece.column, piece.turn = column, turn
        algo.learner.connector.insert_after("NumpyToTensor", piece)
        notes = "\n".join(algo.inspect(num_env_steps=60).data["notes"])
        algo.stop()
        assert all(text in notes for text in expected), notes


def test_agents_that_come_and_go():
    config = PPOConfig().environment(Relay).debugging(seed=0).training(train_batch_size=40, minibatch_size=40)
    config = config.multi_agent(
        policies={"runner", "helpers"}, policy_mapping_fn=lambda agent, episode: "runner" if agent == "a" else "helpers"
    )
    data = inspected(config, num_env_steps=20)
    assert set(data["grids"]) == {"runner", "helpers"} and data["gap"][0] == 0
    found = set()
    for module_id, grid in data["grids"].items():
        for cell, (number, step) in enumerate(zip(grid["chunk"], grid["at"])):
            chunk = data["chunks"][number]
            time, agent = grid["columns"]["obs[0]"][cell], "abc"[int(grid["columns"]["obs[1]"][cell])]
            assert chunk["agent"] == agent and chunk["module"] == module_id
            x = chunk["x"][step + chunk["look"]]
            found.add((chunk["episode"], x - time))
            assert grid["kind"][cell] == 2 or grid["pairs"][cell][0][0] == time
    assert len(found) == len({episode for episode, _ in found}), "agents of an env step lie at one time of their lane"


def test_replay_and_recorded_data():
    config = DQNConfig().environment("CartPole-v1").training(n_step=2).debugging(seed=1)
    data = inspected(config, num_env_steps=40)
    (grid,) = data["grids"].values()
    assert len(grid["kind"]) == 40 and grid["columns"]["n_step"].count(2.0) > 20
    for cell, (steps, total) in enumerate(zip(grid["columns"]["n_step"], grid["columns"]["rewards"])):
        assert grid["seen"]["obs"][str(cell)] == [0]
        assert len(grid["seen"]["rewards"][str(cell)]) == steps and total == pytest.approx(1 + 0.99 * (steps - 1))
    assert data["gap"][0] == 0 and data["facts"]["algorithm"] == "DQN"
    episode = SingleAgentEpisode(
        observations=[[0.0], [1.0], [2.0]], actions=[0, 1], rewards=[0.0, 0.0], len_lookback_buffer=0
    )
    config = BCConfig().offline_data(input_=[episode]).training(train_batch_size=8, minibatch_size=8)
    data = inspected(config, num_env_steps=8)
    assert [lane["key"] for lane in data["flow"]] == ["learner"] and data["facts"]["environment"] == "recorded data"
    (grid,) = data["grids"].values()
    assert grid["columns"]["obs"] == grid["at"] and set(grid["at"]) == {0, 1}
    assert [grid["seen"]["obs"][str(cell)] for cell in range(8)] == [[step] for step in grid["at"]]


def test_outputs_that_a_data_set_recorded_are_not_compared():
    algo = cartpole().build_algo()
    episodes = algo.env_runner.sample(num_episodes=4)
    algo.stop()
    config = BCConfig().offline_data(input_=episodes).training(train_batch_size=16, minibatch_size=16)
    data = inspected(config, num_env_steps=16)
    (grid,) = data["grids"].values()
    assert data["gap"] == [None, None] and set(grid["pairs"]) == {None} and data["parting"] is None
    assert not [note for note in data["notes"] if "differ" in note]
    by_id = {episode.id_: episode for episode in episodes}
    for cell, (number, step) in enumerate(zip(grid["chunk"], grid["at"])):
        recorded = by_id[data["chunks"][number]["name"]].get_observations(step)
        values = [grid["columns"][f"obs[{k}]"][cell] for k in range(4)]
        assert values == pytest.approx(recorded.tolist(), rel=1e-3, abs=1e-6)
        assert grid["seen"]["obs"].get(str(cell), [step]) == [step]


def state_of(algo):
    return json.dumps(algo.get_state(not_components=("counters", "env_runner")), default=str)


@pytest.mark.parametrize("config", [cartpole, lambda: DQNConfig().environment("CartPole-v1").debugging(seed=1)])
def test_the_run_does_not_change(config):
    results = []
    for inspects in (False, True):
        algo = config().build_algo()
        if inspects:
            before = state_of(algo), torch.get_rng_state()
            algo.inspect(num_env_steps=20)
            assert state_of(algo) == before[0] and torch.equal(torch.get_rng_state(), before[1])
        algo.train()
        results.append([weight.detach().clone() for weight in algo.get_module().parameters()])
        algo.stop()
    assert all(map(torch.equal, *results))


def test_no_step_is_an_error():
    algo = cartpole().build_algo()
    with pytest.raises(ConfigError, match="train_batch_size"):
        algo.inspect(num_env_steps=0)
    algo.stop()


CONFIG = """
algorithm: ppo
environment:
  env: CartPole-v1
training:
  train_batch_size: 40
  minibatch_size: 40
stop:
  training_iteration: 1
"""


def test_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(CONFIG)
    run = CliRunner().invoke
    done = run(app, ["inspect", "c.yaml", "--json", "--steps", "20"])
    assert done.exit_code == 0 and json.loads(done.stdout)["facts"]["environment"] == "CartPole-v1"
    assert run(app, ["train", "c.yaml", "--run", "run"]).exit_code == 0
    files = sorted(path.name for path in (tmp_path / "run").iterdir())
    done = run(app, ["inspect", "run", "-o", "page.html", "--steps", "20"])
    assert done.exit_code == 0 and "page: page.html" in done.stdout
    assert '"iteration":1' in (tmp_path / "page.html").read_text()
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == files
    assert done.stdout.splitlines()[0] == "Acting and learning agree."
    clip = "[{piece: clip, low: -0.01, high: 0.01}]"
    (tmp_path / "differ.yaml").write_text(f"{CONFIG}learners: {{learner_connector: {clip}}}\n")
    lines = run(app, ["inspect", "differ.yaml", "--steps", "20"]).stdout.splitlines()
    assert lines[0].startswith("Acting and learning differ") and not any("agree" in line for line in lines)
    (tmp_path / "wrong.yaml").write_text(CONFIG.replace("CartPole-v1", "NoSuchEnv-v0"))
    for wrong in ("nothing.yaml", str(tmp_path), "wrong.yaml"):
        assert run(app, ["inspect", wrong]).exit_code == 2


def test_the_command_without_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["inspect", "runs/nosuch"])
    assert done.exit_code == 2
    for word in ("runs/nosuch", "folder of a run", "a YAML file", "no file or folder of this name", "epibatch train"):
        assert word in done.output
    (tmp_path / "runs" / "nosuck").mkdir(parents=True)
    (tmp_path / "runs" / "nosuck" / "config.yaml").write_text(CONFIG)
    assert "did you mean 'runs/nosuck'?" in CliRunner().invoke(app, ["inspect", "runs/nosuch"]).output


class NextState(ConnectorV2):
    """A planted bug: the recorded states are those of one step later."""

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            rows = episode.get_extra_model_outputs("state_out")
            later = {name: np.concatenate([leaf[1:], leaf[-1:]]) for name, leaf in rows.items()}
            episode.set_extra_model_outputs(key="state_out", new_data=later)
        return batch


def test_states_of_other_steps_are_found_in_a_run():
    config = cartpole(use_lstm=True, max_seq_len=8, lstm_cell_size=8)
    data = inspected(config.copy().training(learner_connector=lambda *spaces: NextState()), num_env_steps=40)
    (grid,) = data["grids"].values()
    later = [state for state in grid["states"] if state[2] is not None]
    assert later and all(found == expected + 1 for _, found, expected in later if found != "?")
    assert any("NextState changed episode.state_out" in note for note in data["notes"])
    sound = inspected(config, num_env_steps=40)
    (grid,) = sound["grids"].values()
    assert all(found == expected for _, found, expected in grid["states"])
    # as many cells in a row as entries of the state: the last states are of rows all the same
    assert not any(name.startswith("forward_train/state_out") for name in grid["columns"])
    assert grid["others"]["forward_train/state_out/h"] == grid["others"]["state_in/h"] == [grid["shape"][0], 8]


class Forget(ConnectorV2):
    """A planted bug: while acting, the state stays as it was."""

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        def zeros(states):
            return [{name: 0 * leaf for name, leaf in state.items()} for state in states]

        batch["state_out"] = {key: zeros(states) for key, states in batch["state_out"].items()}
        return batch


def test_a_piece_that_keeps_the_state_as_it_was_while_acting_is_found():
    config = cartpole(use_lstm=True, max_seq_len=8, lstm_cell_size=4)
    data = inspected(config.env_runners(module_to_env_connector=lambda env, spaces: Forget()), num_env_steps=40)
    differ, same = data["notes"][:2]
    assert "Acting and learning differ" in differ and "Forget changed the module's state while acting" in differ
    chunks = len(data["chunks"])
    assert f"in {chunks} of {chunks} chunks the recorded state is the same after every step" in same


PIECE = """
import numpy as np
from epibatch.connectors import ConnectorV2

class Shift(ConnectorV2):
    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            self.add_batch_item(batch, "obs", episode.get_observations(-1) + np.float32(5), episode)
        return batch
"""


@pytest.mark.filterwarnings("always::epibatch.core.errors.FirstUpdateWarning")
@pytest.mark.parametrize("mode", ["warn", "error"])
def test_a_failing_first_update_check_writes_the_page_into_the_run_folder(mode, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shifting.py").write_text(PIECE)
    text = CONFIG + f"debugging:\n  check_first_update: {mode}\nenv_runners:\n  env_to_module_connector:\n"
    (tmp_path / "c.yaml").write_text(text + "    - piece: shifting:Shift\n")
    done = CliRunner().invoke(app, ["train", "c.yaml", "--run", "run", "--allow-imports"])
    assert done.exit_code == {"warn": 0, "error": 3}[mode]
    assert "inspect.html" in done.output
    assert "Acting and learning differ" in (tmp_path / "run" / "inspect.html").read_text()


@pytest.mark.filterwarnings("always::epibatch.core.errors.FirstUpdateWarning")
def test_a_page_that_cannot_be_made_is_tried_once_and_the_run_goes_on(tmp_path, monkeypatch):
    tried = []

    def inspect(self, path):
        tried.append(path)
        raise ValueError("no page")

    monkeypatch.setattr(Algorithm, "inspect", inspect)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shifting.py").write_text(PIECE)
    text = CONFIG.replace("training_iteration: 1", "training_iteration: 3")
    text += "env_runners:\n  env_to_module_connector:\n    - piece: shifting:Shift\n"
    (tmp_path / "c.yaml").write_text(text)
    done = CliRunner().invoke(app, ["train", "c.yaml", "--run", "run", "--allow-imports"])
    assert done.exit_code == 0 and done.output.count("no page of where acting and learning differ") == len(tried) == 1
