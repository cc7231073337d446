"""Columns that nobody reads are found in the first update and not made again; everything else stays as it was."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from fixture_cases import slow

from epibatch.algorithms import PPOConfig
from epibatch.connectors import ConnectorV2
from epibatch.connectors.learner import AddInfosFromEpisodesToTrainBatch, AddNextObservationsFromEpisodesToTrainBatch
from epibatch.connectors.views import View
from epibatch.core.errors import ColumnError, ConfigError
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule, ValueFunctionAPI
from epibatch.env_runner.multi_agent_env import make_multi_agent
from epibatch.learner import PPOLoss, SymmetricPPOLoss, trace_columns

NOBODY = {"weights_seq_no", "next", "unread"}
"""Columns of these batches that PPO has no use for."""


def config(columns: str = "auto", **model_config: Any) -> PPOConfig:
    views = {"next": View("actions", 1), "unread": View("obs", "-9:-1")}
    made = PPOConfig().environment("CartPole-v1").debugging(seed=0).learners(columns=columns)
    made.training(train_batch_size=60, minibatch_size=20, num_epochs=2)
    return made.rl_module(model_config={"fcnet_hiddens": [8], **model_config}, view_requirements=views)


def trained(made: PPOConfig, iterations: int = 3) -> tuple[Any, list[Any]]:
    algo = made.build_algo()
    return algo, [algo.train()["learners"] for _ in range(iterations)]


@pytest.mark.parametrize("options", [{}, slow({"use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 5})])
def test_training_is_bit_by_bit_the_same(options: Any) -> None:
    (lean, results), (full, expected) = trained(config(**options)), trained(config("all", **options))
    for mine, theirs in zip(lean.get_module().parameters(), full.get_module().parameters()):
        assert torch.equal(mine, theirs)
    use = lean.learner.column_use["default_policy"]
    assert use.left_out == NOBODY and full.learner.column_use == {}
    for mine, theirs in zip(results, expected):
        assert {**mine["default_policy"]} == {**theirs["default_policy"]}
    assert [own["__all_modules__"]["bytes_left_out"] for own in results] == [0, use.bytes_saved, use.bytes_saved]
    assert "bytes_left_out" not in expected[0]["__all_modules__"]
    for algo in (lean, full):
        algo.stop()


def test_they_are_not_built_and_the_bytes_are_those_of_the_batch() -> None:
    algo, _ = trained(config(), 1)
    use = algo.learner.column_use["default_policy"]
    episodes = algo.env_runner.sample(num_timesteps=60)
    batches = {}
    for name, shared in {"full": {}, "lean": {"columns_left_out": {"default_policy": use.left_out}}}.items():
        with algo.pipelines["learner"].profile() as profile:
            batch = algo.pipelines["learner"](rl_module=algo.learner.module, episodes=episodes, shared_data=shared)
        batches[name] = batch["default_policy"], profile.rows()[-1].bytes
    full, lean = batches["full"], batches["lean"]
    assert set(full[0]) - set(lean[0]) == NOBODY
    gone = sum(full[0][name].nbytes for name in NOBODY)
    assert full[1] - lean[1] == gone > 0
    assert all(torch.equal(lean[0][name], full[0][name]) for name in lean[0] if name != "infos")
    assert {"rewards", "terminateds", "truncateds", "loss_mask"} <= set(lean[0])
    assert use.bytes_before > use.bytes_saved > 0
    algo.stop()


@pytest.mark.parametrize("piece", [AddNextObservationsFromEpisodesToTrainBatch, AddInfosFromEpisodesToTrainBatch])
def test_columns_of_other_pieces_go_as_well(piece: Any) -> None:
    algo, _ = trained(config().learners(learner_connector=lambda obs, act: [piece()]))
    (name,) = piece.writes
    assert algo.learner.column_use["default_policy"].left_out == NOBODY | {name}
    algo.stop()


class Reader(ConnectorV2):
    """A plain piece; what it reads cannot be known."""

    def __call__(self, *, batch: Any, **_: Any) -> Any:
        return batch


class Declared(Reader):
    """A piece that says what it reads."""

    reads = ("next",)
    pipelines = ("learner",)
    input_layouts = ("episodes",)


@pytest.mark.parametrize(
    ("piece", "left"), [(Reader, {"weights_seq_no"}), slow(Declared, {"unread", "weights_seq_no"}), slow(None, NOBODY)]
)
def test_pieces_count_as_readers(piece: Any, left: set[str]) -> None:
    """A plain one behind the views reads them all, for all that is known; it stands in front of the default pieces."""
    made = config() if piece is None else config().learners(learner_connector=lambda obs, act: [piece()])
    algo, _ = trained(made)
    assert algo.learner.column_use["default_policy"].left_out == left
    algo.stop()


class Moody(TorchRLModule, ValueFunctionAPI):
    """A module that starts to read a column later."""

    later: ClassVar[bool] = False

    def setup(self) -> None:
        self.pi = torch.nn.Linear(4, 2)

    def _forward(self, batch: Any, **kwargs: Any) -> Any:
        if self.later:
            batch.get("next")
        return {"action_dist_inputs": self.pi(batch["obs"])}

    def compute_values(self, batch: Any, embeddings: Any = None) -> Any:
        if "unread" in batch:
            return batch["unread"].sum((-1, -2))
        return self.pi(batch["obs"]).sum(-1)


def test_what_is_read_for_the_first_time_later_is_a_named_error(monkeypatch: pytest.MonkeyPatch) -> None:
    made = config().rl_module(rl_module_spec=RLModuleSpec(module_class=Moody))
    algo, _ = trained(made)
    assert algo.learner.column_use["default_policy"].left_out == NOBODY - {"unread"}
    monkeypatch.setattr(Moody, "later", True)
    with pytest.raises(ColumnError, match=r"'next'[\s\S]*columns='all'"):
        algo.train()
    algo.stop()


class Defaulting(Moody):
    """A module that has a stand-in for a column."""

    def _forward(self, batch: Any, **kwargs: Any) -> Any:
        given = batch.setdefault("next", torch.zeros(len(batch["obs"])))
        return {"action_dist_inputs": self.pi(batch["obs"]) + given[:, None]}


def test_a_column_with_a_stand_in_is_read_and_stays() -> None:
    made = {columns: config(columns) for columns in ("auto", "all")}
    for each in made.values():
        each.rl_module(rl_module_spec=RLModuleSpec(module_class=Defaulting)).debugging(check_first_update="off")
    (lean, results), (full, expected) = trained(made["auto"]), trained(made["all"])
    assert lean.learner.column_use["default_policy"].left_out == NOBODY - {"next", "unread"}
    for mine, theirs in zip(results, expected):
        assert mine["default_policy"] == theirs["default_policy"]
    for algo in (lean, full):
        algo.stop()


@pytest.mark.slow
def test_a_view_that_is_added_is_looked_at_anew() -> None:
    algo, _ = trained(config())
    algo.add_view("more", View("rewards", 1))
    assert algo.train()["learners"]["__all_modules__"]["bytes_left_out"] == 0
    assert algo.learner.column_use["default_policy"].left_out == NOBODY | {"more"}
    algo.stop()


@pytest.mark.slow
def test_modules_have_their_own() -> None:
    specs = {"red": None, "blue": RLModuleSpec(module_class=Moody)}
    made = config().environment(make_multi_agent("CartPole-v1"), env_config={"num_agents": 2})
    made.multi_agent(policies=specs, policy_mapping_fn={"0": "red", "1": "blue"})
    algo, results = trained(made)
    use = algo.learner.column_use
    assert use["red"].left_out == NOBODY and use["blue"].left_out == NOBODY - {"unread"}
    assert results[1]["__all_modules__"]["bytes_left_out"] > 0
    algo.add_module("green", new_agent_to_module_mapping_fn={"0": "green", "1": "blue"})
    for _ in range(3):
        algo.train()
    assert algo.learner.column_use["green"].left_out == NOBODY
    algo.stop()


def test_a_loop_of_ones_own() -> None:
    """A dummy batch through module and loss; random numbers and gradients stay as they are."""
    algo = config("all").build_algo()
    episodes = algo.env_runner.sample(num_timesteps=20)
    pipeline = algo.pipelines["learner"]
    batch = pipeline(rl_module=algo.learner.module, episodes=episodes)["default_policy"]
    before = torch.random.get_rng_state()
    use = trace_columns(algo.get_module(), algo.learner.loss_of("default_policy"), batch, pipeline)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in algo.get_module().parameters())
    assert use.left_out == NOBODY and {"obs", "actions", "advantages"} <= use.read
    shared = {"columns_left_out": {"default_policy": use.left_out}}
    lean = pipeline(rl_module=algo.learner.module, episodes=episodes, shared_data=shared)["default_policy"]
    assert set(batch) - set(lean) == NOBODY
    algo.stop()


def test_another_setting_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"learners.columns[\s\S]*'all' or 'auto'"):
        PPOConfig().learners(columns="automatic")


def test_what_may_be_left_out() -> None:
    class Constant(TorchRLModule):
        reads: ClassVar[tuple[str, ...]] = ("obs",)

        def _forward(self, batch: Any, **kwargs: Any) -> Any:
            return {"sums": sum(batch[name].sum() for name in self.reads)}

        def get_train_action_dist_cls(self) -> Any:
            return None

    names = (
        "obs",
        "rewards",
        "terminateds",
        "loss_mask",
        "state_in",
        "t",
        "new_obs",
        "next_state_in",
        "advantages",
        "x",
    )
    batch = {name: torch.ones(2) for name in (*names, "x")}
    pieces = [
        SimpleNamespace(reads=("x",), input_layouts=("episodes",), writes=("t",)),
        SimpleNamespace(reads=None, input_layouts=None, writes=()),
        SimpleNamespace(reads=(), input_layouts=("tensors",), writes=("advantages",)),
    ]
    pipeline = SimpleNamespace(pieces=lambda: pieces)
    use = trace_columns(Constant(), lambda batch, outputs, _: (outputs["sums"], {}), batch, pipeline)
    assert use.left_out == {"t", "new_obs", "next_state_in"} and use.bytes_saved == 3 * 2 * 4
    reading = trace_columns(
        Constant(), lambda batch, outputs, _: (outputs["sums"] + batch["t"].sum(), {}), batch, pipeline
    )
    assert "t" not in reading.left_out
    Constant.reads = ("obs", "next_state_in")
    use = trace_columns(Constant(), lambda batch, outputs, _: (outputs["sums"], {}), batch, pipeline)
    assert use.left_out == {"t"}


class Shifted(PPOLoss):
    """A loss that uses a column before the module gets the minibatch."""

    def augment(self, minibatch: dict[str, Any]) -> dict[str, Any]:
        return {**minibatch, "advantages": minibatch["advantages"] + 0 * minibatch["next"]}


class Mirrored(SymmetricPPOLoss):
    def __init__(self, settings: Any) -> None:
        super().__init__(settings, torch.neg, lambda actions: 1 - actions)


@pytest.mark.parametrize(("kind", "left_out"), [(Shifted, set()), slow(Mirrored, NOBODY)])
def test_a_loss_that_changes_minibatches_gets_its_columns(kind: Any, left_out: Any) -> None:
    algo, _ = trained(config().training(loss=kind))
    assert algo.learner.column_use["default_policy"].left_out == left_out
    episodes = algo.env_runner.sample(num_timesteps=20)
    batch = algo.pipelines["learner"](rl_module=algo.learner.module, episodes=episodes)["default_policy"]
    use = trace_columns(algo.get_module(), algo.learner.loss_of("default_policy"), batch)
    assert use.left_out == left_out
    algo.stop()
