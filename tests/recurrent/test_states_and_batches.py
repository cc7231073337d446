"""States of any nesting and train batches of sequences, against stepping through every episode by hand."""

from __future__ import annotations

import copy
import itertools
import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch
from fixture_cases import slow, slow_but

from epibatch.algorithms import PPOConfig
from epibatch.connectors import env_to_module, learner
from epibatch.core import load_state, save_state
from epibatch.core.errors import EpibatchWarning
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule, ValueFunctionAPI, default_module_spec
from epibatch.core.structs import flatten, flatten_like, map_struct
from epibatch.env_runner.multi_agent_env import make_multi_agent
from epibatch.episodes import SingleAgentEpisode

FRAGMENTS = (1, 6, 15, 1, 24, 30)  # in vector steps


def whole_episodes(chunks):
    """Chunks of the same episode put together."""
    by_id = {}
    for chunk in chunks:
        if chunk.id_ in by_id:
            by_id[chunk.id_].concat_episode(chunk)
        else:
            by_id[chunk.id_] = chunk.slice(slice(None))
    return list(by_id.values())


def same_state(found, expected, exact):
    leaves, form = flatten(expected)
    for own, wanted in zip(flatten_like(form, found), leaves):
        assert own.shape == tuple(wanted.shape)
        assert np.dtype(own.dtype) == wanted.numpy().dtype
        if exact:
            np.testing.assert_array_equal(own, wanted.numpy())
        else:
            np.testing.assert_allclose(own, wanted.numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", slow("DISABLED")])
@pytest.mark.parametrize(("kind", "num_envs"), [slow("lstm", 1), slow("lstm", 3), ("gru", 1), ("exact", 3)])
def test_states_and_outputs_are_those_of_a_loop_by_hand(cart_pole, by_hand, mode, kind, num_envs):
    config = cart_pole.config(kind, num_envs=num_envs, max_seq_len=5)
    runner = cart_pole.runner(config, mode)
    chunks = [chunk for steps in FRAGMENTS for chunk in runner.sample(num_timesteps=steps * num_envs, explore=False)]
    found = whole_episodes(chunks)
    assert len({chunk.id_ for chunk in chunks}) < len(chunks) and any(chunk.t_started for chunk in chunks)
    loops = [by_hand(runner.module, number) for number in range(num_envs)]
    # Rows of a batch of one are computed as the loop computes them: bit by bit. Larger batches round differently.
    exact = kind == "exact" or num_envs == 1
    played = 0
    for loop in loops:
        while True:
            expected = loop.episode()
            own = [episode for episode in found if np.array_equal(episode.get_observations(0), expected.obs[0])]
            if not own:
                break
            (episode,), steps = own, len(own[0])
            assert steps <= len(expected.actions) and episode.is_done == (steps == len(expected.actions))
            assert episode.get_actions().tolist() == expected.actions[:steps]
            np.testing.assert_array_equal(episode.get_observations(), expected.obs[: steps + 1])
            for t in range(steps):
                same_state(episode.get_extra_model_outputs("state_out", t), expected.states[t], exact)
                logits = episode.get_extra_model_outputs("action_dist_inputs", t)
                np.testing.assert_allclose(logits, expected.logits[t].numpy(), rtol=0 if exact else 1e-6, atol=1e-6)
            played += steps
        loop.env.close()
    assert played == sum(map(len, chunks)) >= sum(FRAGMENTS) * num_envs
    runner.stop()


class ActionsAndLogp(TorchRLModule, ValueFunctionAPI):
    """Counts steps from a random number on."""

    def setup(self):
        self.noted = []
        self.policy = torch.nn.Linear(5, int(self.action_space.n))

    def get_initial_state(self):
        return {"x": torch.randn(1)}

    def features(self, batch):
        obs, start = batch["obs"], batch["state_in"]["x"]
        if obs.shape[1] == 1:
            self.noted.append(start[:, 0].tolist())
        count = start + torch.arange(obs.shape[1])
        return torch.cat([obs, count[..., None]], -1), {"x": start + obs.shape[1]}

    def _forward(self, batch, **kwargs):
        features, state = self.features(batch)
        return {"action_dist_inputs": self.policy(features), "state_out": state}

    def compute_values(self, batch, embeddings=None):
        return self.features(batch)[0].sum(-1)


def drawn_config(env, max_seq_len, num_envs):
    spec = RLModuleSpec(module_class=ActionsAndLogp, model_config={"max_seq_len": max_seq_len})
    config = PPOConfig().environment(env).rl_module(rl_module_spec=spec).debugging(seed=0)
    return config.env_runners(num_envs_per_env_runner=num_envs)


@pytest.mark.parametrize(
    ("max_seq_len", "num_envs", "agents"), [(4, 1, 0), (4, 3, 0), (50, 3, 0), (4, 1, 2), (4, 2, 2)]
)
def test_each_episode_starts_from_its_own_draw_and_training_starts_there_too(cart_pole, max_seq_len, num_envs, agents):
    config = drawn_config(cart_pole.make, max_seq_len, num_envs)
    if agents:
        game = make_multi_agent(cart_pole.make)
        config.environment(game, env_config={"num_agents": agents})
        config.multi_agent(policies=["p"], policy_mapping_fn=lambda agent_id, episode, **kwargs: "p")
    algo, name = config.build_algo(), "p" if agents else "default_policy"
    for _ in range(3):  # the later samples begin in the middle of episodes
        episodes = algo.env_runner.sample(num_timesteps=40)
        batch = algo.learner.connector(rl_module=algo.learner.module, batch={}, episodes=episodes)[name]
        module = algo.learner.module[name]
        with torch.no_grad():
            outputs = module.forward_train(batch)["action_dist_inputs"]
        mask = batch["loss_mask"]
        torch.testing.assert_close(outputs[mask], batch["action_dist_inputs"][mask])
    acting = algo.get_module(name)
    first = acting.noted[0]
    assert len(set(first)) == len(first) == num_envs * max(agents, 1)  # no two of them share a draw
    algo.stop()


def test_episodes_without_a_note_get_a_draw_each(cart_pole):
    algo = drawn_config(cart_pole.make, 50, 2).build_algo()
    episodes = [chunk for chunk in algo.env_runner.sample(num_timesteps=60) if not chunk.t_started]
    for episode in episodes:
        episode.custom_data.clear()
    batch = algo.learner.connector(rl_module=algo.learner.module, batch={}, episodes=episodes)["default_policy"]
    starts = batch["state_in"]["x"].ravel().tolist()
    assert len(set(starts)) == len(starts) >= 2
    algo.stop()


# -- in batches and files --------------------------------------------------------------------------

KINDS = ["gru", "exact"]


def shapes_and_types(struct):
    return map_struct(lambda leaf: (tuple(leaf.shape), str(leaf.dtype).removeprefix("torch.")), struct)


@pytest.fixture
def sampled(cart_pole):
    runners = []

    def make(kind, max_seq_len=4, num_envs=2):
        config = cart_pole.config(kind, num_envs=num_envs, max_seq_len=max_seq_len)
        runners.append(cart_pole.runner(config, "NEXT_STEP"))
        pipeline = config.build_learner_connector(*runners[-1].spaces["__env_single__"])
        chunks = [chunk for _ in range(3) for chunk in runners[-1].sample(num_timesteps=15)]
        return runners[-1].module, pipeline, chunks

    yield make
    for runner in runners:
        runner.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_episodes_and_batches_keep_structure_shapes_and_types(sampled, kind):
    module, pipeline, chunks = sampled(kind)
    expected = shapes_and_types(module.get_initial_state())
    batch = pipeline(rl_module=module, batch={}, episodes=chunks)
    assert shapes_and_types(map_struct(lambda leaf: leaf[0], batch["state_in"])) == expected
    for chunk in chunks:
        state = chunk.get_extra_model_outputs("state_out", -1)
        assert shapes_and_types(map_struct(np.asarray, state)) == expected


def test_a_chunk_is_saved_with_its_states(sampled, tmp_path):
    module, pipeline, chunks = sampled("exact")
    copies = []
    for number, chunk in enumerate(chunks):
        state = load_state(save_state(tmp_path / str(number), chunk.get_state()))
        copies.append(SingleAgentEpisode.from_state(state))
    one, other = (pipeline(rl_module=module, batch={}, episodes=episodes) for episodes in (chunks, copies))
    assert shapes_and_types(one["state_in"]) == shapes_and_types(other["state_in"])
    for a, b in zip(flatten(one)[0], flatten(other)[0]):
        np.testing.assert_array_equal(a, b)


def test_a_float64_state_becomes_float32_like_every_column(cart_pole):
    config = cart_pole.config("exact", num_envs=2, max_seq_len=4)
    runner = cart_pole.runner(config, "NEXT_STEP")
    state = runner.module.get_initial_state()
    state["parts"][1]["sum"] = state["parts"][1]["sum"].double()
    runner.module.get_initial_state = lambda: state
    chunk = runner.sample(num_timesteps=10)[0]
    assert chunk.get_extra_model_outputs("state_out", 0)["parts"][1]["sum"].dtype == np.float32
    runner.stop()


GAMMA, LAMBDA = 0.9, 0.8
STEPS = (7, 1, 26, 2, 40)  # in vector steps; an episode has 13 at most


class Stepper:
    """Every episode seen so far, put through the module one observation at a time from its very start."""

    def __init__(self, step, module):
        self.step, self.module, self.observations = step, module, {}

    def of(self, chunk):
        """Logits and values of the chunk's own observations, the last one included; both [len(chunk) + 1, ...]."""
        whole = [*self.observations.get(chunk.id_, [])[: chunk.t_started], *chunk.get_observations()]
        self.observations[chunk.id_] = whole
        state, logits, values = self.module.get_initial_state(), [], []
        for obs in whole:
            row, value, state = self.step(self.module, obs, state)
            logits.append(row)
            values.append(value)
        return torch.stack(logits[chunk.t_started :]), np.array(values[chunk.t_started :])


def slow_advantages(rewards, values, terminated):
    """Generalized advantage estimation from its definition, in double precision."""
    values = [*values[:-1], 0.0 if terminated else values[-1]]
    deltas = [reward + GAMMA * after - now for reward, now, after in zip(rewards, values, values[1:])]
    return [sum((GAMMA * LAMBDA) ** k * delta for k, delta in enumerate(deltas[t:])) for t in range(len(deltas))]


def rows_of(column, chunks, max_seq_len):
    """A padded column [B, T, ...] as one array per chunk, bootstrap row last; what is padding must be zero."""
    start = 0
    for chunk in chunks:
        count = -(-(len(chunk) + 1) // max_seq_len)
        rows = column[start : start + count].flatten(0, 1)
        yield rows[: len(chunk) + 1]
        start += count
    assert start == len(column)


CASES = [
    *itertools.product(["lstm"], ["NEXT_STEP"], [1, 13, 20]),
    *itertools.product(["lstm"], ["NEXT_STEP", "SAME_STEP", "DISABLED"], [4]),
    *(("gru", "SAME_STEP", 5), ("gru", "DISABLED", 20), ("exact", "NEXT_STEP", 3), ("exact", "SAME_STEP", 1)),
]


@pytest.mark.parametrize(
    ("kind", "mode", "max_seq_len"), slow_but([("lstm", "SAME_STEP", 4), ("exact", "NEXT_STEP", 3)], CASES)
)
def test_training_sees_what_acting_saw(cart_pole, step, kind, mode, max_seq_len):
    config = cart_pole.config(kind, num_envs=3, max_seq_len=max_seq_len).training(gamma=GAMMA, lambda_=LAMBDA)
    runner = cart_pole.runner(config, mode)
    module = runner.module
    pipeline = config.build_learner_connector(*runner.spaces["__env_single__"])
    config.extend_learner_connector(pipeline)
    stepper, lengths = Stepper(step, module), []
    for steps in STEPS:
        chunks = runner.sample(num_timesteps=3 * steps)
        batch = pipeline(rl_module=module, batch={}, episodes=chunks)
        outputs, values = module.forward_train(batch), module.compute_values(batch)
        logp = module.get_train_action_dist_cls().from_logits(outputs["action_dist_inputs"]).logp(batch["actions"])
        mask = batch["loss_mask"]
        assert int(mask.sum()) == int(batch["seq_lens"].sum()) == sum(map(len, chunks))
        torch.testing.assert_close(logp[mask], batch["action_logp"][mask], rtol=1e-5, atol=1e-5)

        columns = (outputs["action_dist_inputs"].detach(), values.detach(), batch["value_targets"], batch["advantages"])
        rows = zip(*(rows_of(column, chunks, max_seq_len) for column in columns))
        expected, found = [], []
        for chunk, (logits, own_values, targets, advantages) in zip(chunks, rows):
            right_logits, right_values = stepper.of(chunk)
            torch.testing.assert_close(logits, right_logits, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(own_values, right_values, rtol=1e-5, atol=1e-5)
            expected += slow_advantages(chunk.get_rewards().tolist(), right_values.tolist(), chunk.is_terminated)
            np.testing.assert_allclose(targets[:-1], right_values[:-1] + expected[-len(chunk) :], rtol=1e-4, atol=1e-4)
            found += advantages[:-1].tolist()
            lengths.append(len(chunk))
        expected = (np.array(expected) - np.mean(expected)) / np.std(expected)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert 1 in lengths and max(lengths) > 4  # some chunks have one step, some several sequences
    runner.stop()


@pytest.mark.parametrize(
    ("pipelines", "outputs"),
    [(env_to_module, {"action_logp": np.zeros(5, np.float32)}), (learner, {"action_logp": np.zeros(5)}), (learner, {})],
    ids=["acting", "learning", "data"],
)
def test_episodes_without_the_states_that_their_module_left_are_warned_of(pipelines, outputs):
    """A loop of one's own that keeps log-probabilities and forgets `state_out` trains a network without memory."""
    spaces = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2)
    network = {"use_lstm": True, "lstm_cell_size": 3, "max_seq_len": 4}
    module = default_module_spec(*spaces, network).build()
    episode = SingleAgentEpisode(
        observations=np.zeros((6, 4), np.float32),
        actions=[0] * 5,
        rewards=[1.0] * 5,
        extra_model_outputs=outputs,
        len_lookback_buffer=0,
    )
    pipeline = pipelines.default_pipeline(*spaces)
    with pytest.warns(EpibatchWarning, match=r"state_out.*\n.*episodes without it"):
        batch = pipeline(rl_module=module, batch={}, episodes=[episode], explore=True, shared_data={})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for count in (1, 2, 3):
            episodes = [copy.deepcopy(episode) for _ in range(count)]
            pipeline(rl_module=module, batch={}, episodes=episodes, explore=True, shared_data={})
    assert len(caught) == 1
    assert not batch["state_in"]["h"].any()
