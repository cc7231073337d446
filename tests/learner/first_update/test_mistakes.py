"""Mistakes that the first-update check finds, and what it says of them."""

from __future__ import annotations

import re
import types
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from epibatch.algorithms import PPOConfig
from epibatch.connectors import ConnectorV2
from epibatch.connectors.authoring import ColumnTransform
from epibatch.connectors.env_to_module import MeanStdFilter
from epibatch.connectors.learner import default_pipeline
from epibatch.connectors.observations import Clip, TimeMaxPool
from epibatch.connectors.views import TrajectoryViews, View
from epibatch.core.errors import ConfigError, FirstUpdateError, FirstUpdateWarning
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule, ValueFunctionAPI
from epibatch.env_runner import make_multi_agent
from epibatch.episodes import SingleAgentEpisode
from epibatch.learner import Learner, LearnerSettings, PPOLoss

INPUTS, ACTIONS = (
    "the action_dist_inputs that forward_train gives",
    "the recorded actions have the recorded action_logp",
)


class PlainTanh(ConnectorV2):
    """In the style of RLlib's pieces."""

    def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, **kwargs: Any) -> Any:
        for episode in self.single_agent_episode_iterator(episodes):
            self.add_batch_item(batch, "obs", np.tanh(episode.get_observations(-1)), episode)
        return batch


class Halved(ConnectorV2):
    """Writes to `actions` in place of `actions_for_env`."""

    def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, **kwargs: Any) -> Any:
        self.foreach_batch_item_change_in_place(batch, "actions", lambda item, *_: 0.5 * item)
        return batch


class Turned(ColumnTransform):
    columns = "actions"

    def transform(self, x: Any) -> Any:
        return -x


class Other(Turned):
    def transform(self, x: Any) -> Any:
        return 1 - x


class Forgetful(TorchRLModule, ValueFunctionAPI):
    """A GRU that never uses `state_in`."""

    def setup(self) -> None:
        self.gru, self.pi = torch.nn.GRU(3, 8, batch_first=True), torch.nn.Linear(8, 4)

    def get_initial_state(self) -> Any:
        return {"h": torch.zeros(8)}

    def _forward(self, batch: Any, **kwargs: Any) -> Any:
        out, state = self.gru(batch["obs"])
        return {"action_dist_inputs": self.pi(out), "state_out": {"h": state[0]}}

    def compute_values(self, batch: Any, embeddings: Any = None) -> Any:
        return self.pi(self.gru(batch["obs"])[0])[..., 0]


class Layered(TorchRLModule, ValueFunctionAPI):
    """A network with the layer that `model_config` names."""

    def setup(self) -> None:
        layer = {"dropout": torch.nn.Dropout(0.5), "norm": torch.nn.BatchNorm1d(8)}[self.model_config["layer"]]
        self.net = torch.nn.Sequential(torch.nn.Linear(3, 8), layer, torch.nn.Linear(8, 4))

    def _forward(self, batch: Any, **kwargs: Any) -> Any:
        return {"action_dist_inputs": self.net(batch["obs"])}

    def compute_values(self, batch: Any, embeddings: Any = None) -> Any:
        return self.net(batch["obs"])[:, 0]


class Sized(TorchRLModule, ValueFunctionAPI):
    """A network whose outputs have about the size that `model_config` names."""

    def setup(self) -> None:
        self.net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))

    def _forward(self, batch: Any, **kwargs: Any) -> Any:
        return {"action_dist_inputs": self.model_config["size"] * self.net(batch["obs"])}

    def compute_values(self, batch: Any, embeddings: Any = None) -> Any:
        return self.net(batch["obs"])[:, 0]


def train(config: PPOConfig) -> list[FirstUpdateWarning]:
    """What one iteration warns of."""
    algo = config.build_algo()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        algo.train()
    algo.stop()
    assert all(isinstance(each.message, FirstUpdateWarning) for each in caught)
    return [each.message for each in caught]


def stack(**options: Any) -> dict[str, Any]:
    return {"piece": "frame_stacking", "num_frames": 2, "axis": -1, **options}


class Logging(ConnectorV2):
    def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, metrics: Any = None, **kwargs: Any) -> Any:
        metrics.log_value("calls", 1, reduce="sum")
        return batch


def sides(acting=(), training=()):
    """A config whose two sides have these pieces: functions of the fixture's parts, or pieces."""

    def made(pieces, parts):
        return lambda *_: [piece(parts) if isinstance(piece, types.FunctionType) else piece for piece in pieces]

    def change(config, parts):
        config.env_runners(env_to_module_connector=made(acting, parts))
        return config.learners(learner_connector=made(training, parts))

    return change


def tanh(parts):
    return parts.tanh()


def view(shift, **options):
    return TrajectoryViews(views={"obs": View("obs", shift)}, **options)


@pytest.mark.parametrize(
    ("change", "text", "do"),
    [
        (sides([PlainTanh()]), INPUTS, "into both pipelines"),
        (sides([tanh]), INPUTS, "into both pipelines"),
        (sides([], [tanh]), INPUTS, "training_only = True"),
        (sides([], [view(1, as_learner_connector=True)]), INPUTS, "into both pipelines"),
        (sides([view(-1)]), INPUTS, "into both pipelines"),
        (sides([lambda parts: parts.tanh(factor=2.0)], [tanh]), INPUTS, "into both pipelines"),
        (sides([tanh, Clip(low=-0.5, high=0.5)], [Clip(low=-0.5, high=0.5), tanh]), INPUTS, "into both pipelines"),
        (sides([stack()], [stack(padding="same")]), INPUTS, "into both pipelines"),
        (sides([TimeMaxPool(num_frames=2)]), INPUTS, "into both pipelines"),
        (sides([MeanStdFilter(), tanh]), INPUTS, "into both pipelines"),
        (sides([lambda parts: parts.frozen(0)], [lambda parts: parts.frozen(1)]), INPUTS, "into both pipelines"),
        (lambda c, p: c.env_runners(module_to_env_connector=lambda *_: Halved()), ACTIONS, "'actions_for_env'"),
        (lambda c, p: c.learners(learner_connector=lambda *_: Turned()), None, "out of the learner pipeline"),
        (lambda c, p: c.rl_module(rl_module_spec=p.spec(Forgetful, max_seq_len=5)), INPUTS, "batch['state_in']"),
        (lambda c, p: c.rl_module(rl_module_spec=p.spec(Layered, layer="dropout")), INPUTS, "take dropout out"),
        (lambda c, p: c.rl_module(rl_module_spec=p.spec(Layered, layer="norm")), INPUTS, "take batch norm"),
        (sides([], [Logging(), tanh]), INPUTS, "into both pipelines"),
        (sides([], [Logging(), lambda parts: parts.noise(), tanh]), INPUTS, "into both pipelines"),
    ],
)
def test_mistakes_are_found(first_update, change, text, do):
    config = first_update.config()
    change(config, first_update)
    found = train(config)
    for warning in found[-1:] if text is None else found:
        assert warning.where == "module 'default_policy', before its first gradient step"
        assert warning.expected.startswith(text or ACTIONS) and do in warning.do
        assert "check_first_update='off'" in warning.do
    assert len(found) == (1 if text else len(found)) and found


@pytest.mark.parametrize(
    ("change", "said", "entry"),
    [
        (sides([tanh]), ["Tanh() writes 'obs' in env_to_module, no such piece in learner"], (np.tanh, None)),
        (sides([], [tanh]), ["Tanh() writes 'obs' in learner, no such piece in env_to_module"], (None, np.tanh)),
        (
            sides([lambda parts: parts.tanh(factor=2.0)], [tanh]),
            ["Tanh(factor=2.0) writes 'obs' in env_to_module", "Tanh() writes 'obs' in learner"],
            (lambda x: np.tanh(2.0 * x), np.tanh),
        ),
        (
            sides([tanh, Clip(low=-0.5, high=0.5)], [Clip(low=-0.5, high=0.5), tanh]),
            ["in env_to_module, in learner in another order"],
            (lambda x: np.tanh(x).clip(-0.5, 0.5), lambda x: np.tanh(x.clip(-0.5, 0.5))),
        ),
    ],
)
def test_the_piece_and_the_entries_that_differ_are_named(first_update, change, said, entry):
    algo = change(first_update.config(), first_update).build_algo()
    episodes = list(algo.env_runner.sample(num_timesteps=40))
    raw = episodes[0].get_observations(0).astype(np.float64)
    acted, learned = (raw if function is None else function(raw) for function in entry)
    with pytest.warns(FirstUpdateWarning) as caught:
        algo.learner.update(episodes=episodes)
    found, worst = caught[0].message.found, int(np.abs(acted - learned).argmax())
    assert found.count(" writes 'obs' ") <= len(said) and all(text in found for text in said)
    assert f"obs[{worst}] is {acted[worst]:.3g} while acting, {learned[worst]:.3g} in training" in found
    algo.stop()


@pytest.mark.parametrize("size", [1e-2, 1e-5, 1e-8])
def test_small_outputs_are_compared_by_their_size(first_update, size):
    """A network's first outputs may be of any size: a mistake is seen, rounding is not."""
    for acting in ((), (tanh,)):
        config = sides(acting)(first_update.config(), first_update)
        assert len(train(config.rl_module(rl_module_spec=first_update.spec(Sized, size=size)))) == len(acting)


def test_gap_and_place_are_those_of_the_rows(first_update):
    """Against the outputs of both passes, computed by hand for each episode."""
    algo = first_update.config().learners(learner_connector=lambda *_: first_update.tanh()).build_algo()
    episodes = list(algo.env_runner.sample(num_timesteps=40))
    module = algo.get_module()
    kind, gaps, changes = module.get_train_action_dist_cls(), [], []
    for episode in episodes:
        recorded = torch.from_numpy(episode.get_extra_model_outputs("action_dist_inputs"))
        with torch.no_grad():
            outputs = module.forward_train({"obs": torch.tanh(torch.from_numpy(episode.get_observations()[:-1]))})
        inputs = outputs["action_dist_inputs"]
        gaps.append((inputs - recorded).abs().max(1).values)
        logp = kind.from_logits(inputs).logp(torch.from_numpy(episode.get_actions()))
        changes.append((logp - torch.from_numpy(episode.get_extra_model_outputs("action_logp"))).abs())
    with pytest.warns(FirstUpdateWarning) as caught:
        algo.learner.update(episodes=episodes)
    found = caught[0].message.found
    assert f"by up to {float(torch.cat(gaps).max()):.3g}; " in found
    assert f"actions differ by up to {float(torch.cat(changes).max()):.3g}" in found
    assert found.splitlines()[0].endswith(f"the first is step 0 of episode {episodes[0].id_!r}")
    algo.stop()


class LateTanh(ColumnTransform):
    """Changes rows whose first number is large."""

    columns = "obs"
    above: float = 4.0

    def transform(self, x: Any) -> Any:
        return np.where(x[:, :1] > self.above, -x, x)


@pytest.mark.parametrize("network", [{}, {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4}])
def test_the_first_row_is_named(first_update, network):
    config = first_update.config().rl_module(model_config={"fcnet_hiddens": [8], **network})
    algo = config.learners(learner_connector=lambda *_: LateTanh()).build_algo()
    algo.env_runner.sample(num_timesteps=7)  # the chunks go on with episodes
    episodes = list(algo.env_runner.sample(num_timesteps=60))
    places = (
        (episode.t_started + int(step), episode.id_)
        for episode in episodes
        for step in np.flatnonzero(episode.get_observations()[:-1, 0] > 4.0)
    )
    with pytest.warns(FirstUpdateWarning, match="the first is step {} of episode '{}'".format(*next(places))):
        algo.learner.update(episodes=episodes)
    algo.stop()


def test_of_equal_rows_the_place_is_the_one_in_their_order():
    """Two rows are recorded alike; the learner pipeline changes the observation of the second alone."""

    class Second(ConnectorV2):
        def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, **kwargs: Any) -> Any:
            for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
                rows = episode.get_observations(slice(0, len(episode) + 1)).copy()
                rows[1] += 1.0
                self.add_n_batch_items(batch, "obs", rows, len(rows), episode)
            return batch

    learner, episode = own_learner([Second()])
    with pytest.warns(FirstUpdateWarning, match=r"in 1 of 3 rows,.* step 1 of episode 'same'"):
        learner.update(episodes=[episode])


def own_learner(pieces: Any = (), **options: Any) -> tuple[Learner, SingleAgentEpisode]:
    """A learner of a loop of one's own, and an episode that its module acted in, with equal observations."""
    observations, actions = spaces.Box(-9.0, 9.0, (3,)), spaces.Discrete(2)
    spec = RLModuleSpec(observation_space=observations, action_space=actions, model_config={"fcnet_hiddens": [4]})
    module = spec.build()
    with torch.no_grad():
        inputs = module.forward_exploration({"obs": torch.ones(1, 3)})["action_dist_inputs"][0]
    episode = SingleAgentEpisode(id_="same")
    episode.add_env_reset(np.ones(3, np.float32))
    logp = inputs.log_softmax(0)[1].item()
    for _ in range(3):
        outputs = {"action_dist_inputs": inputs.numpy(), "action_logp": np.float32(logp)}
        episode.add_env_step(np.ones(3, np.float32), 1, 1.0, extra_model_outputs=outputs)
    connector = default_pipeline(observations, actions)
    for piece in pieces:
        connector.prepend(piece)
    learner = Learner(
        module=module.as_multi_rl_module(),
        connector=connector,
        settings=LearnerSettings(lr=0.1),
        loss=PPOLoss(),
        **options,
    )
    return learner, episode


def test_without_numbers_of_weights_only_the_very_first_update_is_checked(first_update):
    learner, episode = own_learner()
    for _ in range(2):
        learner.update(episodes=[episode])  # in the second, other weights acted
    learner.connector.prepend(first_update.tanh())
    learner.check_next_update()
    learner.update(episodes=[episode])
    wrong, episode = own_learner([Other()], check_first_update="error")
    with pytest.raises(FirstUpdateError, match="action_logp"):
        wrong.update(episodes=[episode])


def test_steps_of_earlier_weights_are_not_compared():
    learner, episode = own_learner([Other()], check_first_update="error")
    learner.check_next_update(False)
    for _ in range(2):
        learner.update(episodes=[episode])
    assert learner.get_state()["num_updates"] == 2


def test_as_an_error_nothing_is_updated(first_update):
    config = first_update.config(check_first_update="error").learners(learner_connector=lambda *_: first_update.tanh())
    algo = config.build_algo()
    before = {name: value.clone() for name, value in algo.get_module().state_dict().items()}
    for _ in range(2):
        with pytest.raises(FirstUpdateError, match=re.escape("expected: the action_dist_inputs")):
            algo.train()
    after = algo.get_module().state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert algo.learner.get_state()["num_gradient_steps"] == 0
    algo.pipelines["learner"].remove("Tanh")
    algo.train()
    algo.stop()
    config.debugging(check_first_update="off")
    assert train(config) == []
    for make in (first_update.config, own_learner):
        with pytest.raises(ConfigError, match="check_first_update"):
            make(check_first_update="sometimes")


def test_agents_are_named(first_update):
    config = first_update.config().environment(first_update.turns, env_config={})
    config.multi_agent(policies=["p", "q"], policy_mapping_fn={"a": "p", "*": "q"})
    found = sorted(
        train(config.learners(learner_connector=lambda *_: first_update.tanh())), key=lambda each: each.where
    )
    assert [each.where.split(",")[0] for each in found] == ["module 'p'", "module 'q'"]
    first, second = (each.found.splitlines()[0] for each in found)
    assert first.endswith("agent 'a'") and re.search("agent '[bc]'$", second)


# -- edits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("side", "sampled"), [("env_to_module", 0), ("env_to_module", 1), ("learner", 0)])
def test_an_edit_is_checked_whoever_samples_after_it(first_update, side, sampled):
    algo = first_update.config().build_algo()
    algo.train()
    algo.train()
    algo.pipelines[side].insert_before("AddObservationsFromEpisodesToBatch", first_update.tanh())
    algo.env_runner.sample(num_timesteps=sampled)
    with pytest.warns(FirstUpdateWarning):
        algo.train()
    algo.train()  # warned of once
    algo.pipelines[side].remove("Tanh")
    algo.train()
    algo.stop()


@pytest.mark.parametrize("batch", [3, 40])
def test_an_edit_of_both_sides_is_right_however_few_steps_follow(first_update, batch):
    """The first step after it was shown to the pipeline before."""
    config = first_update.config(check_first_update="error")
    algo = config.training(train_batch_size=batch, minibatch_size=batch).build_algo()
    for factor in (0.5, 2.0):
        for _ in range(3):
            algo.train()
        for side in ("env_to_module", "learner"):
            algo.pipelines[side].insert_before("AddObservationsFromEpisodesToBatch", first_update.tanh(factor=factor))
    for _ in range(3):
        algo.train()
    algo.stop()


def test_an_edit_while_sampling_is_checked(first_update):
    edited: list[Any] = []

    def edit(env_runner: Any, **kwargs: Any) -> None:
        if env_runner.num_env_steps_sampled_lifetime > 50 and not edited:
            edited.append(first_update.tanh())
            env_runner.pipelines["env_to_module"].prepend(edited[0])

    algo = first_update.config().callbacks(on_episode_step=edit).build_algo()
    algo.train()
    with pytest.warns(FirstUpdateWarning, match=r"of (1\d|2\d) rows"):
        algo.train()
    algo.stop()


# -- augmentation ----------------------------------------------------------------------------------


class AfterNoise(ConnectorV2):
    """Works where a piece for training alone went before it."""

    def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, shared_data: Any = None, **kwargs: Any) -> Any:
        if not shared_data["noisy"]:
            raise RuntimeError("no noise")
        return batch


class MarkingNoise(ConnectorV2):
    training_only = True

    def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, shared_data: Any = None, **kwargs: Any) -> Any:
        shared_data["noisy"] = True
        return batch


def test_a_comparison_that_cannot_be_made_is_said_once(first_update, caplog):
    algo = first_update.config().learners(learner_connector=lambda *_: [MarkingNoise(), AfterNoise()]).build_algo()
    for _ in range(2):
        algo.train()
    algo.stop()
    (record,) = [each for each in caplog.records if "no first-update check" in each.message]
    assert record.levelname == "WARNING" and "'noisy'" in record.message
    config = first_update.config(check_first_update="error")
    algo = config.learners(learner_connector=lambda *_: [MarkingNoise(), AfterNoise()]).build_algo()
    with pytest.raises(KeyError, match="first-update check"):
        algo.train()
    algo.stop()


@pytest.mark.parametrize("several", [False, True])
def test_steps_count_the_edits_that_they_follow(first_update, several):
    """The first step after an edit was shown to the pipeline before it, so the second is the first to count."""
    config = first_update.config().env_runners(num_envs_per_env_runner=1)
    if several:
        config.environment(make_multi_agent("CartPole-v1"), env_config={"num_agents": 1}).multi_agent(policies=["p"])
    runner = config.build_algo().env_runner

    def numbers() -> list[int]:
        chunks = runner.sample(num_timesteps=3)
        parts = [part for chunk in chunks for part in (chunk.agent_episodes.values() if several else [chunk])]
        return [number for part in parts for number in part.get_extra_model_outputs("weights_seq_no")]

    assert numbers() == [0, 0, 0]
    runner.pipelines["env_to_module"].insert_before("AddObservationsFromEpisodesToBatch", first_update.tanh())
    assert numbers() == [0, 1, 1] and runner.num_edits == 1
    runner.weights_updated()
    runner.pipelines["module_to_env"].append(PlainEnd())
    assert numbers() == [3, 3, 3] and runner.get_metrics()["weights_seq_no"] == 1
    runner.stop()


class PlainEnd(ConnectorV2):
    def __call__(self, *, batch: Any, **kwargs: Any) -> Any:
        return batch
