"""Views that modules and configs declare reach both pipelines; more can be added while an algorithm runs."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from ruamel.yaml import YAML

from epibatch.algorithms import Policy, PPOConfig
from epibatch.connectors import ConnectorV2
from epibatch.connectors.env_to_module import PrevActionsPrevRewards
from epibatch.connectors.views import View
from epibatch.core.errors import CheckpointError, ConfigError, UnknownNameError
from epibatch.core.rl_module import MultiRLModuleSpec, RLModuleSpec, TorchRLModule, ValueFunctionAPI
from epibatch.env_runner import make_multi_agent
from fixture_configs import cart_pole, learned


class Rewarded(TorchRLModule, ValueFunctionAPI):
    """Acts on the last four rewards and on nothing else."""

    view_requirements: ClassVar[Any] = {"rewards_before": View("rewards", "-4:-1")}

    def setup(self) -> None:
        self.pi = torch.nn.Linear(4, int(self.action_space.n))

    def _forward(self, batch: Any, **kwargs: Any) -> Any:
        return {"action_dist_inputs": self.pi(batch["rewards_before"])}

    def compute_values(self, batch: Any, embeddings: Any = None) -> Any:
        return batch["rewards_before"].sum(-1)


class Framed(Rewarded):
    """Sees three frames."""

    view_requirements: ClassVar[Any] = {**Rewarded.view_requirements, "obs": View(shift="-2:0")}

    def setup(self) -> None:
        assert self.observation_space.shape[0] == 3
        super().setup()

    def _forward(self, batch: Any, **kwargs: Any) -> Any:
        assert batch["obs"].shape[-2] == 3
        return super()._forward(batch, **kwargs)


def config_of(env: Any, cls: Any = None, **model_config: Any) -> PPOConfig:
    config = cart_pole(env, train_batch_size=48, minibatch_size=48).env_runners(num_envs_per_env_runner=2)
    if cls is not None:
        config.rl_module(rl_module_spec=RLModuleSpec(module_class=cls))
    return config.rl_module(model_config={"fcnet_hiddens": [8], **model_config})


def trained_on_what_was_acted_on(algo: Any, module_id: str = "default_policy") -> Any:
    """The train batch of a sample that goes on in the middle of episodes; logits are those of acting."""
    algo.env_runner.sample(num_timesteps=13)
    episodes = algo.env_runner.sample(num_timesteps=40)
    batch = algo.pipelines["learner"](rl_module=algo.learner.module, episodes=episodes)[module_id]
    with torch.no_grad():
        found = algo.get_module(module_id).forward_train(batch)["action_dist_inputs"]
    mask = batch["loss_mask"]
    assert 40 <= mask.sum() <= 42 or module_id != "default_policy"
    torch.testing.assert_close(found[mask], batch["action_dist_inputs"][mask])
    return batch


@pytest.mark.parametrize("cls", [Rewarded, Framed])
def test_what_a_modules_class_declares_is_in_both_pipelines(walk: Any, cls: Any, built: Any) -> None:
    algo = built(config_of(walk, cls))
    batch = trained_on_what_was_acted_on(algo)
    assert set(batch["rewards_before"].unique().tolist()) > {0.0}
    algo.train()
    algo.evaluate()
    assert algo.act(np.zeros(3, np.float32))[0] in (0, 1, 2)


@pytest.mark.parametrize("flags", [["use_prev_action"], ["use_prev_reward"], ["use_prev_action", "use_prev_reward"]])
@pytest.mark.parametrize("kind", ["choice", "nested"])
def test_the_default_lstm_gets_the_previous_action_and_reward(
    walk: Any, flags: list[str], kind: str, built: Any
) -> None:
    own = {"use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 5, **dict.fromkeys(flags, True)}
    config = config_of(walk, **own)
    if kind == "nested":
        box = gym.spaces.Box(-1, 1, (2,), np.float32)
        actions = gym.spaces.Tuple([box, gym.spaces.Dict(x=gym.spaces.Discrete(3, start=-1))])
        config.environment(env_config={"action_space": actions})
    algo = built(config)
    batch = trained_on_what_was_acted_on(algo)
    names = {
        flag.removeprefix("use_").replace("prev_action", "prev_actions").replace("prev_reward", "prev_rewards")
        for flag in flags
    }
    assert {name for name in batch if name.startswith("prev_") and not name.endswith("mask")} == names
    algo.train()


class Attention(TorchRLModule, ValueFunctionAPI):
    """Two layers, each with a memory of what it made of the last four steps."""

    view_requirements: ClassVar[Any] = {"memory": View("state_out", "-4:-1", per_sequence=True, mask=True)}

    def setup(self) -> None:
        self.embed = torch.nn.ModuleList([torch.nn.Linear(3, 6), torch.nn.Linear(6, 6)])
        self.pi = torch.nn.Linear(6, int(self.action_space.n))

    def get_initial_state(self) -> Any:
        return {"first": np.zeros(6, np.float32), "second": np.zeros(6, np.float32)}

    def _attend(self, batch: Any) -> Any:
        out, newest = batch["obs"], {}
        real = batch["memory_mask"]
        assert real.shape == (len(out), 4)
        for name, layer in zip(("first", "second"), self.embed):
            own = layer(out)
            assert batch["memory"][name].shape == (len(out), 4, 6)
            steps = torch.cat([batch["memory"][name], own], 1).unfold(1, 5, 1).movedim(-1, 2)
            there = torch.cat([real, torch.ones(own.shape[:2], dtype=torch.bool)], 1).unfold(1, 5, 1)
            scores = torch.einsum("btd,btkd->btk", own, steps).masked_fill(~there, -1e9)
            newest[name] = own[:, -1]
            out = torch.einsum("btk,btkd->btd", scores.softmax(-1), steps)
        return out, newest

    def _forward(self, batch: Any, **kwargs: Any) -> Any:
        out, newest = self._attend(batch)
        return {"action_dist_inputs": self.pi(out), "state_out": newest}

    def compute_values(self, batch: Any, embeddings: Any = None) -> Any:
        return self._attend(batch)[0].sum(-1)


@pytest.mark.parametrize("sequence_end", ["pad", "overlap"])
def test_memory_of_the_last_states_is_taken_at_the_start_of_each_sequence(
    walk: Any, sequence_end: str, built: Any
) -> None:
    config = config_of(walk, Attention, max_seq_len=3, sequence_end=sequence_end)
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=Attention))
    algo = built(config)
    batch = trained_on_what_was_acted_on(algo)
    assert len(batch["memory"]["first"]) == len(batch["obs"]) and batch["obs"].shape[1] == 3
    assert not batch["memory_mask"].all() and batch["memory_mask"].all(1).any()
    assert algo.pipelines["learner"].names[4] == "trajectory_views"
    algo.train()
    algo.evaluate()


@pytest.mark.parametrize("num_envs", [1, 2])
def test_a_config_declares_views_and_its_file_has_them(walk: Any, num_envs: int, built: Any) -> None:
    views = {"next_actions": View("actions", 1), "before": {"column": "obs", "shift": [-1, -2]}}
    config = PPOConfig().environment("CartPole-v1").rl_module(view_requirements=views)
    data = YAML(typ="safe").load(config.to_yaml())["rl_module"]["view_requirements"]
    assert data == {
        "next_actions": {"column": "actions", "shift": 1},
        "before": {"column": "obs", "shift": [-1, -2]},
    }
    config = config_of(walk).rl_module(view_requirements=data).env_runners(num_envs_per_env_runner=num_envs)
    algo = built(config)
    batch = trained_on_what_was_acted_on(algo)
    assert batch["before"].shape[1:] == (2, 3) and "next_actions" in batch
    (piece,) = [piece for piece in algo.pipelines["env_to_module"] if "Views" in type(piece).__name__]
    assert list(piece.views) == ["before"]


def test_the_learner_is_shown_the_rewards_that_the_module_was_shown(walk: Any, built: Any) -> None:
    """A piece that shapes rewards for training does not change what came before."""

    class Ten(ConnectorV2):
        def __call__(self, *, batch: Any, episodes: Any, **_: Any) -> Any:
            for episode in episodes:
                episode.set_rewards(new_data=np.full(len(episode), 10.0), at_indices=slice(0, len(episode)))
            return batch

    algo = built(config_of(walk, Rewarded).learners(learner_connector=lambda obs, act: [Ten()]))
    batch = trained_on_what_was_acted_on(algo)
    assert set(batch["rewards"][batch["loss_mask"]].tolist()) == {10.0}
    assert 10.0 not in batch["rewards_before"]


def test_a_view_is_added_while_an_algorithm_runs(walk: Any, built: Any) -> None:
    """It is in the next batch and in evaluations; running episodes that kept too little end."""
    algo = built(config_of(walk))
    algo.train()
    algo.act(np.zeros(3, np.float32))
    algo.add_view("next_actions", View("actions", shift=1))
    algo.add_view("last_rewards", {"column": "rewards", "shift": "-6:-1"})
    batch = trained_on_what_was_acted_on(algo)
    assert batch["last_rewards"].shape[1:] == (6,) and "next_actions" in batch
    algo.train()
    algo.evaluate()
    algo.act(np.zeros(3, np.float32), reward=0.0)


@pytest.fixture
def added(walk: Any, built: Any, tmp_path: Any) -> Any:
    """An algorithm that was given views, and a checkpoint of it in which the config is data."""
    algo = built(config_of(walk, Late))
    algo.add_view("next_actions", View("actions", shift=1))
    algo.add_view("rewards_before", {"column": "rewards", "shift": "-4:-1", "space": gym.spaces.Box(-9, 9, ())})
    algo.train()
    algo.save_to_path(tmp_path / "saved", end_episodes=True)
    return algo


class Late(Rewarded):
    """Acts on rewards once it has them."""

    view_requirements: ClassVar[Any] = {}

    def _forward(self, batch: Any, **kwargs: Any) -> Any:
        batch.setdefault("rewards_before", torch.zeros(*batch["obs"].shape[:-1], 4))
        return super()._forward(batch, **kwargs)

    def compute_values(self, batch: Any, embeddings: Any = None) -> Any:
        return batch["obs"].sum(-1)


@pytest.mark.parametrize("how", ["from_checkpoint", "from_checkpoint with the config", "restore_from_path"])
def test_added_views_are_restored_and_training_goes_on_alike(
    walk: Any, tmp_path: Any, how: str, built: Any, added: Any
) -> None:
    algo, saved = added, tmp_path / "saved"
    if how == "restore_from_path":
        other = built(config_of(walk, Late))
        other.restore_from_path(saved)
    else:
        config = config_of(walk, Late) if "config" in how else algo.config
        other = type(algo).from_checkpoint(saved, config=config)
    assert other.config.view_requirements == algo.config.view_requirements
    for name, pipeline in algo.pipelines.items():
        assert str(other.pipelines[name]) == str(pipeline)
    assert learned(other.train()) == learned(algo.train())
    assert other.get_state()["added_views"] == algo.get_state()["added_views"]


def test_views_that_were_added_after_the_checkpoint_are_gone_and_those_of_the_config_stay(
    walk: Any, tmp_path: Any, built: Any
) -> None:
    algo = built(config_of(walk).rl_module(view_requirements={"own": View("rewards", -1)}))
    algo.save_to_path(tmp_path / "before")
    algo.add_view("later", View("actions", -2))
    algo.save_to_path(tmp_path / "after")
    for name, views in {"before": ["own"], "after": ["own", "later"]}.items():
        algo.restore_from_path(tmp_path / name)
        assert list(algo.config.view_requirements) == list(algo.pipelines["learner"][0].views) == views
    state = algo.get_state()
    del state["added_views"]  # an earlier version's
    algo.set_state(state)
    assert list(algo.config.view_requirements) == ["own", "later"]


def test_another_view_by_the_name_of_one_that_was_added_is_refused(
    walk: Any, tmp_path: Any, built: Any, added: Any
) -> None:
    config = config_of(walk, Late).rl_module(view_requirements={"next_actions": View("actions", 2)})
    other = built(config)
    before = str(other.pipelines), other.get_state()["added_views"]
    for restore in (other.restore_from_path, lambda path: Policy.from_checkpoint(path, config=config)):
        with pytest.raises(CheckpointError, match=r"view 'next_actions'[\s\S]*another name"):
            restore(tmp_path / "saved")
    assert (str(other.pipelines), other.get_state()["added_views"]) == before
    bare = config_of(walk, Late).env_runners(add_default_connectors_to_env_to_module_pipeline=False)
    other = built(bare)
    with pytest.raises(ConfigError, match=r"the default pieces"):
        other.add_view("x", View("rewards", -1))


def test_a_policy_with_the_original_config_has_added_views(walk: Any, tmp_path: Any, added: Any) -> None:
    algo = added
    policy = Policy.from_checkpoint(tmp_path / "saved", config=config_of(walk, Late))
    state = own = None
    for step in range(5):
        observation = np.full(3, step, np.float32)
        action, state = policy.act(observation, state, reward=float(step))
        expected, own = algo.act(observation, own, reward=float(step))
        assert action == expected


@pytest.mark.parametrize(
    ("name", "view", "texts"),
    [
        ("seen", View("rewards", -1), ["seen", "a new name"]),
        ("obs", View(shift="-1:0"), ["which shapes the module", "view_requirements"]),
        ("x", {"column": "obs", "shit": 1}, ["did you mean 'shift'"]),
    ],
)
def test_views_that_cannot_be_added(walk: Any, name: str, view: Any, texts: list[str], built: Any) -> None:
    algo = built(config_of(walk).rl_module(view_requirements={"seen": View("rewards", -1)}))
    before = str(algo.pipelines)
    with pytest.raises(ConfigError) as raised:
        algo.add_view(name, view)
    assert all(text in str(raised.value) for text in texts), str(raised.value)
    assert str(algo.pipelines) == before and list(algo.config.view_requirements) == ["seen"]


def carts(**multi_agent: Any) -> PPOConfig:
    config = cart_pole(make_multi_agent("CartPole-v1"), train_batch_size=48, minibatch_size=24)
    return config.environment(env_config={"num_agents": 2}).multi_agent(**multi_agent)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (lambda: {"model_config": {"use_prev_reward": True}}, r"use_prev_reward[\s\S]*use_lstm"),
        (lambda: {"view_requirements": {"rewards_before": View("rewards", -1)}}, r"rewards_before[\s\S]*another name"),
        (
            lambda: {"view_requirements": {"x": {"column": "obs", "shft": 1}}},
            r"rl_module.view_requirements[\s\S]*did you mean 'shift'",
        ),
    ],
)
def test_settings_that_cannot_be(walk: Any, settings: Any, text: str) -> None:
    config = config_of(walk, Rewarded if "view_requirements" in settings() else None)
    with pytest.raises(ConfigError, match=text):
        config.rl_module(**settings()).build_algo()


def test_a_config_may_repeat_what_the_module_declares(walk: Any, built: Any) -> None:
    built(config_of(walk, Rewarded).rl_module(view_requirements=Rewarded.view_requirements))


def test_modules_of_several_agents_have_their_own_views(built: Any) -> None:
    specs = {"plain": RLModuleSpec(), "rewarded": RLModuleSpec(module_class=Rewarded)}
    config = carts(policies=list(specs), policy_mapping_fn={"0": "plain", "1": "rewarded"})
    config.rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs=specs), view_requirements={"t": View()})
    algo = built(config)
    algo.train()
    batch = trained_on_what_was_acted_on(algo, "rewarded")
    assert {"rewards_before", "t"} <= set(batch)
    plain = trained_on_what_was_acted_on(algo, "plain")
    assert "rewards_before" not in plain and "t" in plain
    mapping = {"0": "late", "1": "rewarded"}
    algo.add_module("late", RLModuleSpec(module_class=Rewarded), new_agent_to_module_mapping_fn=mapping)
    algo.train()
    algo.train()


def test_pieces_of_the_user_stand_behind_on_the_learners_side_and_in_front_while_acting(walk: Any, built: Any) -> None:
    config = config_of(walk, Rewarded)
    config.env_runners(env_to_module_connector=lambda env, spaces, device: [PrevActionsPrevRewards()])
    algo = built(config)
    assert algo.pipelines["env_to_module"].names[:2] == ["prev_actions_prev_rewards", "trajectory_views"]
    assert algo.pipelines["learner"].names[0] == "trajectory_views"
    trained_on_what_was_acted_on(algo)


class Listening(Rewarded):
    """Acts on what the other agent saw and did in the three env steps before."""

    view_requirements: ClassVar[Any] = {
        "seen": View("obs", "-3:0", agent="*"),
        "did": View("actions", "-3:-1", agent="*", mask=True),
    }

    def setup(self) -> None:
        self.pi = torch.nn.Linear(16 + 3 + 3, int(self.action_space.n))

    def _forward(self, batch: Any, **kwargs: Any) -> Any:
        parts = [batch[name].flatten(1).float() for name in ("seen", "did", "did_mask")]
        return {"action_dist_inputs": self.pi(torch.cat(parts, -1))}

    def compute_values(self, batch: Any, embeddings: Any = None) -> Any:
        return batch["seen"].sum((-1, -2, -3))


@pytest.mark.parametrize("num_envs", [1, 3])
def test_other_agents_are_the_same_in_acting_and_training_of_a_runner(built: Any, num_envs: int) -> None:
    config = carts(policies=["both"]).rl_module(rl_module_spec=RLModuleSpec(module_class=Listening))
    algo = built(config.env_runners(num_envs_per_env_runner=num_envs, rollout_fragment_length=7))
    for _ in range(3):
        batch = trained_on_what_was_acted_on(algo, "both")
    assert batch["did_mask"].any()
    algo.train()


# ------------------------------------- views that were given while an algorithm runs can be taken away


def with_own_view() -> Any:
    return cart_pole().rl_module(view_requirements={"own": View("rewards", -2)})


@pytest.mark.parametrize("trained", [False, True])
def test_an_algorithm_with_a_view_of_a_misspelt_column_can_be_repaired(built: Any, trained: bool) -> None:
    algo = built(with_own_view())
    before = str(algo.pipelines)
    if trained:
        algo.train()
    algo.add_view("x", View("rewrds", shift=-1))
    for _ in range(2):
        with pytest.raises((UnknownNameError, ConfigError), match=r"'rewards'[\s\S]*algo.remove_view\('x'\)"):
            algo.train()
    algo.remove_view("x")
    assert str(algo.pipelines) == before and list(algo.config.view_requirements) == ["own"]
    assert algo.get_state()["added_views"] == {}
    algo.train()
    algo.add_view("x", View("rewards", shift=-1))
    assert {"x", "own"} <= set(trained_on_what_was_acted_on(algo))


def test_only_what_add_view_gave_can_be_removed(built: Any) -> None:
    algo = built(with_own_view())
    algo.add_view("before", View("rewards", -1))
    for name, text in {"own": "views of the config and its modules stay", "befor": "did you mean 'before'"}.items():
        with pytest.raises(UnknownNameError, match=text):
            algo.remove_view(name)
    assert list(algo.config.view_requirements) == ["own", "before"]


def test_views_that_are_set_on_a_module_are_refused_by_name() -> None:
    class Late(Rewarded):
        def setup(self) -> None:
            self.view_requirements = {"next_actions": View("actions", 1)}

    spaces = {"observation_space": gym.spaces.Box(-1, 1, (2,)), "action_space": gym.spaces.Discrete(2)}
    with pytest.raises(ConfigError, match=r"Late.view_requirements[\s\S]*in its constructor or later[\s\S]*add_view"):
        Late(**spaces)
    live = Rewarded(**spaces)
    with pytest.raises(ConfigError, match=r"Rewarded.view_requirements"):
        live.view_requirements = {}
    assert set(live.view_requirements) == {"rewards_before"}
