"""IMPALA and APPO: their losses against loops in plain Python, and the queue of fragments as they come."""

from __future__ import annotations

import math
import random
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from fake_actors import FakeActors
from fixture_cases import slow_but

from epibatch.algorithms import AgentMapping, Algorithm, AlgorithmConfig, APPOConfig, IMPALAConfig, PolicySpec
from epibatch.connectors.authoring import episode_function
from epibatch.core.errors import ConfigError, EpibatchWarning, RunnerError
from epibatch.core.rl_module import DefaultActorCritic
from epibatch.env_runner import EnvRunnerGroup, MultiAgentEnv, make_multi_agent
from epibatch.episodes import SingleAgentEpisode
from fixture_envs import CountingEnv

BOTH = pytest.mark.parametrize("kind", [IMPALAConfig, APPOConfig])
ONE_AT_FIRST = pytest.mark.parametrize("kind", slow_but([IMPALAConfig], [IMPALAConfig, APPOConfig]))
SPACES = {"observation_space": gym.spaces.Box(-1, 1, (3,), np.float32), "action_space": gym.spaces.Discrete(3, start=1)}


def small(config, **training):
    return config.rl_module(model_config={"fcnet_hiddens": [8]}).debugging(seed=0).training(**training)


# -- losses --------------------------------------------------------------------------------------------


def network(seed, **options):
    torch.manual_seed(seed)
    return DefaultActorCritic(**SPACES, model_config={"fcnet_hiddens": [6], **options})


def minibatch(rng, sequences):
    """Rows, or sequences of which the ends are padding, some of them without loss."""
    shape = (4, 5) if sequences else (12,)
    batch = {
        "obs": rng.uniform(-1, 1, (*shape, 3)).astype(np.float32), "actions": rng.integers(1, 4, shape),
        "action_logp": np.log(rng.uniform(0.05, 1, shape)).astype(np.float32),
        "advantages": rng.normal(size=shape).astype(np.float32),
        "value_targets": rng.normal(size=shape).astype(np.float32), "loss_mask": rng.random(shape) < 0.7,
    }  # fmt: skip
    batch["loss_mask"].flat[0] = True
    if sequences:
        batch["seq_lens"] = rng.integers(1, 6, 4)
        padding = np.arange(5) >= batch["seq_lens"][:, None]
        batch["loss_mask"] &= ~padding
        batch["loss_mask"][0, 0] = True
        batch["actions"][padding] = 0
        batch["state_in"] = {name: rng.normal(size=(4, 4)).astype(np.float32) for name in ("h", "c")}
    return {
        name: {key: torch.from_numpy(leaf) for key, leaf in column.items()}
        if isinstance(column, dict)
        else torch.from_numpy(column)
        for name, column in batch.items()
    }


def rows_of(net, batch):
    """Log-probabilities of all actions, and values, of the rows with loss, as lists."""
    with torch.no_grad():
        logits = net.forward_train(batch)["action_dist_inputs"]
        values = net.compute_values(batch)
    mask = batch["loss_mask"]
    return logits[mask].double().log_softmax(-1).tolist(), values[mask].tolist()


def expected_loss(batch, net, target, settings, kl_coeff):
    """The loss by a loop over rows; of IMPALA without a target."""
    mask = batch["loss_mask"]
    names = ("actions", "action_logp", "advantages", "value_targets")
    actions, acted, advantages, goals = (batch[name][mask].tolist() for name in names)
    now, values = rows_of(net, batch)
    old = rows_of(target, batch)[0] if target is not None else now
    total = 0.0
    for i, action in enumerate(actions):
        logp, old_logp = now[i][action - 1], old[i][action - 1]
        if target is None:
            gain = logp * advantages[i]
        else:
            weight = min(settings.target_worker_clipping, math.exp(acted[i] - old_logp))
            ratio = weight * math.exp(logp - acted[i])
            low, high = 1 - settings.clip_param, 1 + settings.clip_param
            gain = min(ratio * advantages[i], min(max(ratio, low), high) * advantages[i])
            gain -= kl_coeff * sum(math.exp(p) * (p - q) for p, q in zip(old[i], now[i]))
        entropy = -sum(math.exp(p) * p for p in now[i])
        total += -gain + settings.vf_loss_coeff * 0.5 * (values[i] - goals[i]) ** 2 - 0.02 * entropy
    return total / len(actions)


@BOTH
@pytest.mark.parametrize("sequences", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_losses_are_those_of_a_loop_over_rows(kind, sequences, seed):
    rng, options = np.random.default_rng(seed), {"use_lstm": True, "lstm_cell_size": 4} if sequences else {}
    net, target = network(seed, **options), network(seed + 100, **options)
    batch = minibatch(rng, sequences)
    training = {"entropy_coeff": [[0, 0.04], [100, 0.0]], "vf_loss_coeff": 0.3}
    if kind is APPOConfig:
        training |= {"clip_param": 0.2, "target_worker_clipping": 1.5, "use_kl_loss": seed % 2 == 0, "kl_coeff": 0.7}
    rule = kind.rule(kind().training(**training).settings.training)
    own = rule.make_own(net)
    if own is not None:
        own["target"].load_state_dict(target.state_dict())
    used = {**rule.initial_coefficients(), **rule.scheduled_coefficients(50)}
    made = rule.losses(batch, net, own, used)
    expected = expected_loss(batch, net, None if own is None else target, rule.settings, used.get("kl_coeff", 0.0))
    assert made.losses["total"].item() == pytest.approx(expected, abs=1e-6)
    made.losses["total"].backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in net.parameters())
    assert own is None or all(parameter.grad is None for parameter in own.parameters())


def test_the_weight_of_the_divergence_and_the_target_network_move():
    settings = {"use_kl_loss": True, "kl_target": 0.01, "kl_coeff": 2.0, "tau": 0.5}
    config = APPOConfig().training(
        circular_buffer_num_batches=2, circular_buffer_iterations_per_batch=3, target_network_update_freq=0.5,
        train_batch_size=100, minibatch_size=50, num_epochs=2, **settings,
    )  # fmt: skip
    rule = APPOConfig.rule(config.settings.training)
    for divergence, expected in ((0.03, 3.0), (0.01, 2.0), (0.001, 1.0)):
        assert rule.adapt({"kl_coeff": 2.0, "entropy_coeff": 0.0}, {"mean_kl": divergence}) == {"kl_coeff": expected}
    net, own = network(0), None
    own = rule.make_own(net)
    before = [parameter.clone() for parameter in own["target"].parameters()]
    for parameter in net.parameters():
        parameter.data += 1.0
    moved = []
    for step in range(1, 25):  # half of 2 * 3 updates with 4 gradient steps each
        rule.after_step(net, own, step)
        if not torch.equal(next(own["target"].parameters()), before[0]):
            moved.append(step)
            for old, new in zip(before, own["target"].parameters()):
                torch.testing.assert_close(new, old + 0.5)
                new.data.copy_(old)
    assert moved == [12, 24]


class Dropping(DefaultActorCritic):
    """Loses half of the outputs in training mode."""

    def forward_train(self, batch):
        made = super().forward_train(batch)
        logits = torch.nn.functional.dropout(made["action_dist_inputs"], 0.5, self.training)
        return {**made, "action_dist_inputs": logits}


def test_the_target_network_drops_no_outputs():
    torch.manual_seed(0)
    net, batch = Dropping(**SPACES, model_config={"fcnet_hiddens": [6]}), minibatch(np.random.default_rng(0), False)
    with torch.no_grad():
        logps = net.eval().forward_train(batch)["action_dist_inputs"].log_softmax(-1)
    batch["action_logp"] = logps.gather(-1, batch["actions"][:, None] - 1)[:, 0]
    rule = APPOConfig.rule(APPOConfig().settings.training)
    own = rule.make_own(net.train())
    made = rule.losses(batch, net, own, {"entropy_coeff": 0.0})
    assert made.metrics["mean_is_ratio"].item() == pytest.approx(1.0, abs=1e-6), "the target is what acted"


# -- the queue -------------------------------------------------------------------------------------------


class Runners:
    """A group of runners whose answers the test gives, lists of (runner, steps, version of the weights).

    An answer after "wait" is not there yet when it is asked for without waiting.
    """

    def __init__(self, *answers):
        self.answers, self.version, self.num_edits, self.requests = list(answers), 0, 0, []
        self.local_env_runner = self

    def get_state(self, names):
        return {"weights_seq_no": self.version}

    def request(self, *, each, new_weights):
        self.requests.append((each, new_weights))
        return each

    def ready(self, timeout=None):
        if not self.answers or (timeout == 0.0 and self.answers[0] == "wait"):
            return []
        if self.answers[0] == "wait":
            del self.answers[0]
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return [fragment(*part) for part in answer]


def fragment(runner, steps, version):
    columns = {"observations": np.arange(steps + 1.0), "actions": np.arange(steps), "rewards": np.full(steps, runner)}
    outputs = {"weights_seq_no": np.full(steps, version)}
    return runner, [SingleAgentEpisode(**columns, extra_model_outputs=outputs, len_lookback_buffer=0)]


def queue_of(kind, *answers, **training):
    config = kind().environment("CartPole-v1").env_runners(num_env_runners=2).debugging(seed=0)
    group = Runners(*answers)
    return config.training(train_batch_size=10, **training).make_source(group), group


def runners_of(episodes):
    return [int(episode.get_rewards(0)) for episode in episodes]


def test_batches_are_filled_as_fragments_come_and_the_oldest_is_dropped():
    first = [(1, 10, 0), (2, 10, 0), (3, 10, 0), (4, 6, 0)]
    queue, group = queue_of(IMPALAConfig, first, "wait", [(5, 6, 0)], [(6, 10, 1)], learner_queue_size=2)
    assert runners_of(queue.sample()) == [2], "runner 1's is the oldest of three"
    assert queue.num_env_steps == 36 and not queue.is_late
    assert queue.get_metrics()["queue"] == {
        "num_batches": 1, "num_env_steps_dropped": 10, "num_env_steps_dropped_lifetime": 10, "age_of_rows_mean": 0.0,
        "age_of_rows_max": 0,
    }  # fmt: skip
    group.version = 2
    assert runners_of(queue.sample()) == [3] and queue.is_late
    assert queue.num_env_steps == 0
    assert runners_of(queue.sample()) == [4, 5], "with 12 steps"
    assert queue.num_env_steps == 6
    group.version = 4
    assert runners_of(queue.sample()) == [6]
    metrics = queue.get_metrics()["queue"]
    assert metrics["age_of_rows_mean"] == (10 * 2 + 12 * 2 + 10 * 3) / 32 and metrics["age_of_rows_max"] == 3
    assert metrics["num_env_steps_dropped"] == 0 and metrics["num_env_steps_dropped_lifetime"] == 10


def test_a_circular_buffer_gives_each_batch_as_often_as_is_said():
    fragments = [(runner, 10, 0) for runner in range(1, 5)]
    settings = {"circular_buffer_num_batches": 4, "circular_buffer_iterations_per_batch": 3}
    orders = []
    for _ in range(2):
        queue, _ = queue_of(APPOConfig, fragments, **settings)
        orders.append([runners_of(queue.sample())[0] for _ in range(12)])
    assert sorted(orders[0]) == sorted([1, 2, 3, 4] * 3) != orders[0]
    assert orders[0] == orders[1], "the seed is the same"
    queue, _ = queue_of(APPOConfig, [(0, 10, 0), *fragments], **settings)
    assert 0 not in [runners_of(queue.sample())[0] for _ in range(12)]
    assert queue.get_metrics()["queue"]["num_env_steps_dropped"] == 10
    simple, _ = queue_of(APPOConfig, fragments, use_circular_buffer=False, simple_queue_size=3)
    assert [runners_of(simple.sample())[0] for _ in range(3)] == [2, 3, 4]


def test_weights_are_sent_after_as_many_updates_as_is_said():
    queue, group = queue_of(IMPALAConfig, *[[(1, 10, 0)]] * 6, broadcast_interval=3)
    for _ in range(6):
        queue.sample()
        group.version += 1
    assert group.requests == [(2, True), (2, False), (2, False), (2, True), (2, False), (2, False)]


def test_steps_count_also_if_the_runners_fail_later():
    queue, _ = queue_of(IMPALAConfig, [(1, 6, 0)], "wait", RunnerError("runners", found="none left"), [(2, 6, 0)])
    with pytest.raises(RunnerError, match="none left"):
        queue.sample()
    assert runners_of(queue.sample()) == [1, 2] and queue.num_env_steps == 12


def test_fragments_that_came_are_kept_if_the_next_request_fails():
    queue, group = queue_of(IMPALAConfig, "wait", [(1, 6, 0)], [(2, 6, 0)])
    request, errors = group.request, [RunnerError("runners", found="none left")]

    def fails_second(**arguments):
        if group.requests and errors:
            raise errors.pop()
        return request(**arguments)

    group.request = fails_second
    with pytest.raises(RunnerError, match="none left"):
        queue.sample()
    assert runners_of(queue.sample()) == [1, 2] and queue.num_env_steps == 12


def test_restored_weights_are_sent_although_their_number_is_lower():
    queue, group = queue_of(IMPALAConfig, *[[(1, 10, 0)]] * 3, broadcast_interval=2)
    group.version = 9
    queue.sample()
    queue.forget()
    group.version = 3
    queue.sample()
    assert group.requests == [(2, True), (2, True)]


def test_what_is_in_the_queue_is_dropped_with_the_running_episodes():
    queue, _ = queue_of(IMPALAConfig, [(1, 10, 0), (2, 10, 0), (3, 4, 0)])
    queue.sample()
    state = queue.get_state()
    queue.forget()
    assert queue.get_metrics()["queue"]["num_env_steps_dropped"] == 14
    queue.set_state(state)
    assert queue.get_state() == state
    assert queue.get_metrics()["queue"]["num_env_steps_dropped"] == 14, "a restored run lacks them as well"


def test_what_is_in_the_queue_of_a_run_that_takes_over_a_checkpoint_is_no_part_of_its_counts():
    saved, _ = queue_of(IMPALAConfig, [(1, 10, 0), (2, 10, 0), (3, 4, 0)])
    saved.sample()
    queue, _ = queue_of(IMPALAConfig, [(1, 10, 0), (2, 10, 0), (3, 10, 0)])
    queue.sample()
    queue.set_state(saved.get_state())
    queue.forget()
    assert queue.get_metrics()["queue"]["num_env_steps_dropped_lifetime"] == 14


@pytest.mark.parametrize(
    ("answers", "expected", "do"),
    [
        (lambda: ["wait", [(1, 10, 0)]], "train batches in the queue", "num_envs_per_env_runner"),
        (lambda: [[(1, 10, 0)] * 6], "a learner that is as fast", "lower num_env_runners"),
    ],
)
def test_a_queue_that_is_always_empty_or_overflows_is_warned_of_once(monkeypatch, answers, expected, do):
    queue, group = queue_of(IMPALAConfig)
    clock = iter(range(10**6))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    warned = []
    for update in range(1, 401):
        group.answers += answers()
        with pytest.warns(EpibatchWarning) if update == 200 else nullcontext() as found:
            queue.sample()
        if update == 200:
            warned = [str(warning.message) for warning in found]
    assert len(warned) == 1 and expected in warned[0] and do in warned[0]


def test_fragments_without_steps_end_in_an_error():
    queue, group = queue_of(IMPALAConfig)
    group.ready = lambda timeout=None: []
    with pytest.raises(RunnerError, match=r"found: +none in 1000 fragments"):
        queue.sample()


def test_agents_that_never_observe_again_end_in_an_error():
    class Silent(MultiAgentEnv):
        def __init__(self):
            super().__init__()
            self.agents = self.possible_agents = ["a"]
            self.observation_spaces = {"a": SPACES["observation_space"]}
            self.action_spaces = {"a": SPACES["action_space"]}

        def reset(self, *, seed=None, options=None):
            return {"a": np.zeros(3, np.float32)}, {}

        def step(self, actions):
            return {}, {}, {"__all__": False}, {"__all__": False}, {}

    config = small(IMPALAConfig().environment(lambda config: Silent()), train_batch_size=5)
    config.multi_agent(policies=["p"], policy_mapping_fn=AgentMapping({"a": "p"}))
    algo = config.env_runners(rollout_fragment_length=1).build_algo()
    with pytest.raises(RunnerError, match=r"agents that act[\s\S]*none in 1000 fragments[\s\S]*observations of agents"):
        algo.train()
    algo.stop()


@pytest.mark.filterwarnings("ignore:(?s)env runner .*; replaced, ")
@pytest.mark.parametrize("seed", range(2))
@ONE_AT_FIRST
def test_each_delivered_step_is_learned_from_or_counted_as_dropped(kind, seed):
    rng, lost = random.Random(seed), []

    def scenario(actors, index, ran):
        if ran > 2 and rng.random() < 0.15:
            lost.append(index)
            return "die"
        return None

    config = small(kind().environment(CountingEnv, env_config={"length": 7}), train_batch_size=30, broadcast_interval=2)
    if kind is APPOConfig:
        config.training(circular_buffer_num_batches=2, circular_buffer_iterations_per_batch=1)
    else:
        config.training(learner_queue_size=2)
    config.env_runners(num_env_runners=3, num_envs_per_env_runner=2, rollout_fragment_length=5)
    make_actors = partial(FakeActors, order=rng, scenario=scenario)
    group = EnvRunnerGroup(config=config, make_actors=make_actors)
    queue, sampled, seen, oldest = config.make_source(group), 0, set(), []
    for updates in range(20):
        episodes = queue.sample()
        sampled += queue.num_env_steps
        steps = [(chunk.id_, t) for chunk in episodes for t in range(chunk.t_started, chunk.t)]
        assert len(set(steps)) == len(steps) and not seen & set(steps), "no step twice"
        seen.update(steps)
        versions = [chunk.get_extra_model_outputs("weights_seq_no") for chunk in episodes]
        oldest.append(updates - min(map(min, versions)))
        group.local_env_runner.weights_updated()
    assert queue.get_metrics()["queue"]["age_of_rows_max"] == max(oldest)
    queue.forget()
    dropped = queue.get_metrics()["queue"]["num_env_steps_dropped_lifetime"]
    group.stop()
    assert lost and len(seen) + dropped == sampled


# -- the algorithms --------------------------------------------------------------------------------------


@ONE_AT_FIRST
def test_an_iteration_reports_what_was_sampled_and_learned(kind):
    algo = small(kind().environment("CartPole-v1"), train_batch_size=100).build_algo()
    results = algo.train()
    assert results["num_env_steps_sampled_lifetime"] == results["env_runners"]["num_env_steps_sampled"] >= 1000
    everything = results["learners"]["__all_modules__"]
    uses = 1 if kind is IMPALAConfig else 2
    expected = 1000 * uses  # of the last batch of APPO one use may be left
    assert expected - 100 <= everything["num_gradient_steps"] * 100 <= expected + 300
    ages = results["queue"]["age_of_rows_mean"], results["queue"]["age_of_rows_max"]
    assert ages == (0.0, 0) if kind is IMPALAConfig else (0.4 < ages[0] < 0.6 and ages[1] == 1)
    assert results["queue"]["num_env_steps_dropped"] == 0 and "waiting" not in results
    algo.stop()


@pytest.mark.slow
def test_schedules_go_by_sampled_steps():
    config = small(APPOConfig().environment("CartPole-v1"), train_batch_size=100, lr=[[0, 1e-3], [2000, 0.0]])
    algo = config.build_algo()
    results = algo.train()
    sampled = results["num_env_steps_sampled_lifetime"]
    assert results["learners"]["default_policy"]["lr"] == pytest.approx(1e-3 * (1 - sampled / 2000), abs=1.1e-4)
    algo.stop()


@pytest.mark.slow
@BOTH
def test_learning_is_better_than_chance(kind):
    config = kind().environment("CartPole-v1").env_runners(num_envs_per_env_runner=8).debugging(seed=1)
    config.training(lr=4e-3, vf_loss_coeff=0.05, grad_clip=10.0, train_batch_size=200)
    if kind is APPOConfig:
        config.training(target_network_update_freq=0.125)
    algo = config.rl_module(model_config={"fcnet_hiddens": [32]}).build_algo()
    for _ in range(12):
        results = algo.train()
    assert results["env_runners"]["episode_return_mean"] > 40, "random actions give about 22"
    algo.stop()


@ONE_AT_FIRST
def test_recurrent_networks_learn_from_their_own_states(kind):
    config = small(kind().environment("CartPole-v1"), train_batch_size=100).env_runners(num_envs_per_env_runner=2)
    config.rl_module(model_config={"use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 7})
    algo = config.learners(columns="auto").debugging(check_first_update="error").build_algo()
    learned = algo.train()["learners"]["default_policy"]
    left_out = algo.learner.column_use["default_policy"].left_out
    assert "weights_seq_no" in left_out and not left_out & {"action_logp", "terminateds", "loss_mask"}
    assert learned["num_rows"] == 100 and all(map(math.isfinite, learned.values()))
    algo.stop()


@ONE_AT_FIRST
def test_agents_have_networks_and_settings_of_their_own(kind):
    config = small(kind().environment(make_multi_agent("CartPole-v1"), env_config={"num_agents": 2}))
    policies = {"left": PolicySpec(config={"gamma": 0.5, "lr": 0.0}), "right": None}
    config.multi_agent(policies=policies, policy_mapping_fn=AgentMapping({"0": "left", "1": "right"}))
    algo = config.training(train_batch_size=100).build_algo()
    before = {name: next(algo.get_module(name).parameters()).clone() for name in policies}
    results = algo.train()["learners"]
    assert results["left"]["num_rows"] > 50 and results["right"]["num_rows"] > 50
    same = {name: torch.equal(next(algo.get_module(name).parameters()), before[name]) for name in policies}
    assert same == {"left": True, "right": False}
    piece = algo.pipelines["learner"]["VTrace"]
    assert (piece.gamma, piece.per_module) == (0.99, {"left": {"gamma": 0.5}})
    algo.stop()


def test_pieces_that_may_change_episodes_are_warned_of_if_batches_are_used_again():
    def halve(episode):
        episode.set_rewards(new_data=episode.get_rewards() / 2)

    config = small(APPOConfig().environment("CartPole-v1")).learners(
        learner_connector=lambda *_, **__: [episode_function(halve)()]
    )
    with pytest.warns(EpibatchWarning, match=r"used 2 times[\s\S]*halve"):
        config.build_algo().stop()
    config.training(circular_buffer_iterations_per_batch=1).build_algo().stop()


@ONE_AT_FIRST
def test_a_saved_run_goes_on_exactly(kind, tmp_path):
    config = small(kind().environment("CartPole-v1"), train_batch_size=100)
    first = config.env_runners(num_envs_per_env_runner=3).build_algo()
    first.train()
    first.save_to_path(tmp_path, end_episodes=True)

    def goes_on(algo):
        found = [algo.train()["learners"]["default_policy"] for _ in range(2)]
        algo.stop()
        return found

    expected = goes_on(first)
    assert goes_on(Algorithm.from_checkpoint(tmp_path)) == expected


@BOTH
def test_the_example_files_are_configs_that_train(kind):
    name = kind.__name__.removesuffix("Config").lower()
    config = AlgorithmConfig.from_yaml(Path(__file__).parents[2] / "examples" / f"cartpole_{name}.yaml")
    assert type(config) is kind and type(config).from_yaml(config.to_yaml()).to_dict() == config.to_dict()
    algo = config.build_algo()
    assert algo.train()["learners"]["default_policy"]["num_rows"] >= 500
    algo.stop()


def test_the_checks_name_what_is_wrong():
    with pytest.raises(ConfigError, match="V-trace"):
        IMPALAConfig().training(vtrace=True)
    for wrong in ({"broadcast_interval": 0}, {"learner_queue_size": 0}, {"vtrace_clip_rho_threshold": -1.0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            IMPALAConfig().training(**wrong)
    with pytest.raises(ConfigError, match="learner_queue_size"):
        APPOConfig().training(learner_queue_size=3)
    for common in ("broadcast_interval", "circular_buffer_num_batches", "use_circular_buffer"):
        with pytest.raises(ConfigError, match=f"{common}: no setting of single modules"):
            APPOConfig().multi_agent(policies={"p": PolicySpec(config={common: 1})})
