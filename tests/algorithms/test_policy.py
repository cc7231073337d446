"""Policies of one agent act as the runner does, on what an environment returns, alone and beside a training."""

from __future__ import annotations

import copy
import itertools
import pickle

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector.utils import batch_space, iterate
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch import Policy
from epibatch.algorithms import PolicyState, PPOConfig
from epibatch.connectors import ConnectorV2
from epibatch.connectors.env_to_module import EnvToModulePipeline, SingleAgentObservationPreprocessor
from epibatch.connectors.module_to_env import ModuleToEnvPipeline
from epibatch.core.errors import (
    ColumnError,
    ConfigError,
    EpisodeError,
    EpisodeStateError,
    PipelineError,
    SpaceError,
    UnknownNameError,
)
from epibatch.env_runner import environment_seeds, make_multi_agent, make_vector_env
from fixture_configs import cart_pole, same_weights, weights
from fixture_episodes import leaves, over

CASES = ("mlp", "lstm", "frames", "box", "nested", "previous", "reward", "mean")
FLAT = tuple(case for case in CASES if case != "nested")


def policies(algo, tmp_path):
    """The algorithm's own policy, and one that was loaded from its checkpoint and seeded like its runner."""
    live = algo.get_policy()
    algo.save_to_path(tmp_path / "checkpoint")
    loaded = Policy.from_checkpoint(tmp_path / "checkpoint", config=algo.config)
    loaded.seed(algo.config.seed)
    return {"live": live, "loaded": loaded}


def sampled_actions(algo, vector_steps, explore):
    """Per environment the actions that it got, as the runner's infos tell."""
    episodes = algo.env_runner.sample(num_timesteps=vector_steps * algo.env_runner.num_envs, explore=explore)
    got = [[] for _ in range(algo.env_runner.num_envs)]
    ends = [0] * len(got)
    for chunk, episode in zip(episodes.chunks, episodes):
        assert chunk.start >= ends[chunk.env]
        ends[chunk.env] = chunk.start
        got[chunk.env] += [info["got"] for info in episode.get_infos()[1:]]
    return got


def numbers(action):
    """The numbers of an action in one row, as the environment tells it."""
    return np.concatenate([np.ravel(leaf).astype(np.float64) for leaf in leaves(action)])


def logits(state):
    return state._outputs["action_dist_inputs"]


def acted_actions(policy, env, vector_steps, explore):
    """The same in a vector environment that somebody steps, and that resets a step after an end."""
    obs, _ = env.reset(seed=environment_seeds(3, env.num_envs))
    state, rewards = None, np.zeros(env.num_envs)
    starts = done = np.zeros(env.num_envs, bool)
    taken = [[] for _ in range(env.num_envs)]
    for _ in range(vector_steps):
        actions, state = policy.act(obs, state, explore=explore, reward=rewards, starts=starts)
        obs, rewards, terminated, truncated, _ = env.step(actions)
        for i in np.flatnonzero(~done):
            taken[i].append(numbers(over(lambda leaf, i=i: leaf[i], actions)))
        starts, done = done, terminated | truncated
    env.close()
    return taken


@pytest.mark.parametrize("explore", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_a_batch_acts_as_the_runner_does(algorithm, walk, tmp_path, case, explore):
    algo = algorithm(case, num_envs=3)
    env = make_vector_env(walk, 3, env_config=algo.config.env_config)
    taken = acted_actions(algo.get_policy(), env, 30, explore)
    sampled = sampled_actions(algo, 30, explore)
    for mine, theirs in zip(taken, sampled):
        assert len(mine) > 15  # several episodes of 3 to 9 steps
        np.testing.assert_array_equal(mine, theirs[: len(mine)])
    loaded = policies(algo, tmp_path)["loaded"]
    again = acted_actions(loaded, make_vector_env(walk, 3, env_config=algo.config.env_config), 30, explore)
    for mine, theirs in zip(again, taken):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("case", CASES)
def test_single_observations_over_whole_episodes(algorithm, walk, tmp_path, case):
    algo = algorithm(case)
    theirs = sampled_actions(algo, 30, False)[0]
    for policy in policies(algo, tmp_path).values():
        env, mine = walk(**algo.config.env_config), []
        obs, _ = env.reset(seed=environment_seeds(3, 1)[0])
        state = reward = None
        while len(mine) < len(theirs):
            action, state = policy.act(obs, state, reward=reward)
            obs, reward, terminated, _, _ = env.step(action)
            mine.append(numbers(action))
            if terminated:
                (obs, _), state = env.reset(), None
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("case", CASES)
def test_first_exploring_episode_of_single_observations(algorithm, walk, case):
    algo = algorithm(case)
    policy = algo.get_policy()
    env, mine, state, reward, terminated = walk(**algo.config.env_config), [], None, None, False
    obs, _ = env.reset(seed=environment_seeds(3, 1)[0])
    while not terminated:
        action, state = policy.act(obs, state, reward=reward, explore=True)
        obs, reward, terminated, _, _ = env.step(action)
        mine.append(numbers(action))
    (episode,) = algo.env_runner.sample(num_episodes=1, explore=True)
    np.testing.assert_array_equal(mine, [info["got"] for info in episode.get_infos()[1:]])


def test_actions_are_what_the_environment_takes(algorithm):
    policy = algorithm("box").get_policy()
    space = policy.action_space
    for explore in (False, True):
        one, _ = policy.act(np.ones(3), explore=explore)
        many, _ = policy.act(np.ones((5, 3)), explore=explore)
        assert space.contains(one)
        assert one.dtype == many.dtype == np.float32
        assert many.shape == (5, 2)
        assert all(space.contains(row) for row in many)
    discrete, _ = algorithm("mlp").get_policy().act(np.ones(3))
    assert isinstance(discrete, np.int64)


@pytest.mark.parametrize("case", FLAT)
def test_a_state_is_a_value(algorithm, case):
    policy = algorithm(case).get_policy()
    rng = np.random.default_rng(0)
    seen = rng.uniform(-5, 5, (8, 2, *policy.observation_space.shape)).astype(np.float32)
    reward, states, actions = np.array([1.0, -1.0]), [None], []
    for obs in seen:
        action, state = policy.act(obs, states[-1], reward=reward)
        states.append(state)
        actions.append(action.copy())
        action[...] = 0  # neither is what was handed out part of a state
    for t in (7, 3, 0, 3, 5):
        again, _ = policy.act(seen[t], states[t], reward=reward)
        np.testing.assert_array_equal(again, actions[t])


def test_what_came_before_matters(algorithm):
    """Without this the tests above could pass with a policy that forgets its state."""
    for case in ("lstm", "frames", "previous", "mean"):
        policy = algorithm(case).get_policy()
        shape = (64, *policy.observation_space.shape)
        obs, other = np.random.default_rng(1).uniform(-5, 5, (2, *shape)).astype(np.float32)
        _, state = policy.act(other)
        fresh, carried = policy.act(obs)[1], policy.act(obs, state, reward=np.ones(64))[1]
        assert not np.allclose(logits(fresh), logits(carried))


def test_rows_that_start_forget(algorithm):
    for case in ("lstm", "frames", "mean"):
        policy = algorithm(case).get_policy()
        one = np.ones(policy.observation_space.shape, np.float32)
        _, restarted = policy.act(one, policy.act(2 * one)[1], starts=True)
        np.testing.assert_array_equal(logits(restarted), logits(policy.act(one)[1]))
        obs = np.random.default_rng(2).uniform(-5, 5, (3, 4, *policy.observation_space.shape)).astype(np.float32)
        _, state = policy.act(obs[0])
        starts = np.array([False, True, False, True])
        _, state = policy.act(obs[1], state, starts=starts)
        _, later = policy.act(obs[2], state)
        _, fresh = policy.act(obs[2], policy.act(obs[1])[1])
        _, kept = policy.act(obs[2], policy.act(obs[1], policy.act(obs[0])[1])[1])
        for i, own in enumerate(logits(later)):
            expected = logits(fresh if starts[i] else kept)[i]
            np.testing.assert_array_equal(own, expected)


def test_all_rows_may_start_with_other_outputs(algorithm):
    """A module may give other columns when it explores; what is new from an episode's start on is no conflict."""
    policy = algorithm("mlp").get_policy()
    forward = policy.module.forward_exploration
    policy.module.forward_exploration = lambda batch, **kwargs: {**forward(batch, **kwargs), "own": batch["obs"]}
    _, state = policy.act(np.ones((2, 3)))
    with pytest.raises(EpisodeError, match="same `explore`"):
        policy.act(np.ones((2, 3)), policy.act(np.ones((2, 3)), state, explore=True)[1])
    _, state = policy.act(np.ones((2, 3)), state, explore=True, starts=np.ones(2, bool))
    policy.act(np.ones((2, 3)), state, explore=True)


def test_running_statistics_are_those_of_the_training_and_frozen(algorithm, tmp_path):
    algo = algorithm("filter")
    algo.train()
    algo.train()
    made = policies(algo, tmp_path)
    before = {name: policy._env_to_module.get_state() for name, policy in made.items()}
    assert before["live"]["mean_std_filter"]
    algo.env_runner.pipelines["env_to_module"].freeze()
    episodes = algo.env_runner.sample(num_episodes=5, explore=False)
    for name, policy in made.items():
        for episode in episodes:
            state, infos = None, episode.get_infos()
            for info, later in itertools.pairwise(infos):
                action, state = policy.act(info["raw"][0], state)
                np.testing.assert_array_equal(numbers(action), later["got"])
        if name == "loaded":
            after = policy._env_to_module.get_state()
            for key, value in before[name]["mean_std_filter"].items():
                np.testing.assert_equal(after["mean_std_filter"][key], value)
    plain = policies(algo, tmp_path)["loaded"]
    plain._env_to_module.reset_state()
    _, with_statistics = made["loaded"].act(infos[0]["raw"][0])
    _, without = plain.act(infos[0]["raw"][0])
    assert not np.allclose(logits(with_statistics), logits(without))


@pytest.mark.parametrize("restores", [False, True])
def test_a_seeded_policy_draws_from_streams_of_its_own_whatever_states_it_takes_over(algorithm, restores):
    algo = algorithm("box")
    algo.train()
    policy, own_states = algo.get_policy(), states(algo)
    draws = []
    for seed in (5, 5, 6):
        policy.seed(seed)
        if restores:
            policy.set_connector_states(*own_states)
        draws.append(np.array([policy.act(np.zeros(3), explore=True)[0] for _ in range(4)]))
    np.testing.assert_array_equal(draws[0], draws[1])
    assert not np.allclose(draws[0], draws[2]) and len(np.unique(draws[0], axis=0)) == 4


@pytest.mark.parametrize("seed", [-1, 0.5, True, None])
def test_seeds_that_are_none(seed):
    with pytest.raises(ConfigError, match=r"Policy\.seed"):
        policy_of(BOX).seed(seed)


def test_a_piece_that_reads_rewards_which_nobody_gave_is_named_before_the_module_runs(algorithm):
    for case, piece in (("reward", "LastReward"), ("previous", "PrevActionsPrevRewards")):
        policy = algorithm(case).get_policy()
        _, state = policy.act(np.ones(3))
        module, policy.module = policy.module, None  # whoever asked it for outputs would fail otherwise
        with pytest.raises(ColumnError) as caught:
            policy.act(np.ones(3), state)
        policy.module = module
        message = str(caught.value)
        assert "EnvToModulePipeline" in message and f"({piece})" in message
        assert message.endswith("do:       policy.act(obs, state, reward=reward)") and message.count("do:  ") == 1
        policy.act(np.ones(3), state, reward=1.0)


def test_a_number_as_action_is_an_array_of_no_axes_as_its_box_holds_it(built):
    class Throttle(gym.Env):
        observation_space = gym.spaces.Box(-1, 1, (3,))
        action_space = gym.spaces.Dict(gear=gym.spaces.Discrete(3, start=2), gas=gym.spaces.Box(-2, 5, ()))

    algo = built(cart_pole(lambda config: Throttle()))
    action, _ = algo.act(np.zeros(3), explore=True)
    assert algo.get_policy().action_space.contains(action)  # a warning here would be an error
    assert isinstance(action["gas"], np.ndarray) and isinstance(action["gear"], np.int64)
    actions, _ = algo.act(np.zeros((4, 3)), explore=True)
    assert (actions["gas"].shape, actions["gear"].shape) == ((4,), (4,))


# ------------------------------------------------------------------------------------ what act() is given


LEAVES = st.one_of(
    st.lists(st.integers(1, 3), max_size=3).map(lambda shape: gym.spaces.Box(-1, 1, tuple(shape))),
    st.lists(st.integers(1, 3), max_size=3).map(lambda shape: gym.spaces.Box(0, 255, tuple(shape), np.uint8)),
    st.integers(1, 4).map(lambda n: gym.spaces.Discrete(n, start=2)),
    st.integers(1, 3).map(lambda n: gym.spaces.MultiDiscrete([3] * n)),
    st.integers(1, 3).map(gym.spaces.MultiBinary),
)
SPACES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map(gym.spaces.Tuple)
        | st.dictionaries(st.sampled_from("abc"), inner, min_size=1).map(gym.spaces.Dict)
    ),
    max_leaves=5,
)
BOX, PIXELS = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Box(0, 255, (2,), np.uint8)
PIPELINES = (EnvToModulePipeline, ModuleToEnvPipeline)
BOTH = gym.spaces.Dict(a=BOX, b=BOX)


def policy_of(space):
    """A policy without an environment."""
    spaces, config = {"__env_single__": (space, gym.spaces.Discrete(2))}, cart_pole()
    pipelines = [
        config.build_env_to_module_connector(spaces=spaces),
        config.build_module_to_env_connector(spaces=spaces),
    ]
    return Policy(config.get_rl_module_spec(spaces=spaces).build(), *pipelines)


@settings(max_examples=25)
@given(SPACES, st.integers(1, 3), st.integers(0, 99))
def test_every_space_tells_one_observation_from_a_batch(space, n, seed):
    policy, batch = policy_of(space), batch_space(space, n)
    batch.seed(seed)
    rows = batch.sample()
    actions, state = policy.act(rows)
    single = [policy.act(row) for row in iterate(batch, rows)]
    assert actions.shape == (n,) and all(isinstance(action, np.int64) for action, _ in single)
    np.testing.assert_allclose(np.concatenate([logits(own) for _, own in single]), logits(state), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("space", "obs", "expected"),
    [
        (BOX, [0.5, 1], np.array([[0.5, 1]], np.float32)),
        (BOX, np.array([1, 0]), np.array([[1, 0]], np.float32)),
        (BOX, torch.tensor([0.5, 1.0]), np.array([[0.5, 1]], np.float32)),
        (PIXELS, [3, 4], np.array([[3, 4]], np.uint8)),
        (gym.spaces.Discrete(3), 2, np.array([2])),
        (gym.spaces.Discrete(3), [2, 0], np.array([2, 0])),
    ],
)
def test_types_become_the_spaces(space, obs, expected):
    policy, seen = policy_of(space), []
    forward = policy.module.forward_inference
    policy.module.forward_inference = lambda batch, **keywords: seen.append(batch["obs"]) or forward(batch)
    policy.act(obs)
    assert seen[0].numpy().dtype == expected.dtype
    np.testing.assert_array_equal(seen[0], expected)


@pytest.mark.parametrize(
    ("space", "obs", "found"),
    [
        (BOX, np.zeros(3), r"shape \(3,\)"),
        (BOX, np.zeros((2, 2, 2)), r"shape \(2, 2, 2\)"),
        (BOX, np.zeros((0, 2)), "no rows"),
        (BOX, np.zeros((0, 2), BOX.dtype), "no rows"),
        (BOX, 0.5, r"shape \(\)"),
        (BOX, ["a", "b"], "list of <U1"),
        (BOX, [[0.0], [0.0, 1.0]], "list that is no array"),
        (BOX, None, "NoneType of object"),
        (BOX, {"x": np.zeros(2)}, r"\{x: leaf\}"),
        (PIXELS, np.zeros(2), "ndarray of float64"),
        (PIXELS, [3, 256], "values that uint8 cannot hold"),
        (PIXELS, [-1, 3], "values that uint8 cannot hold"),
        (gym.spaces.Discrete(3), 1.0, "float of float64"),
        (BOTH, {"a": np.zeros((2, 2)), "b": np.zeros((3, 2))}, r"obs\['a'\] a batch of 2; obs\['b'\] a batch of 3"),
        (BOTH, {"a": np.zeros((2, 2)), "b": np.zeros(2)}, r"obs\['a'\] a batch of 2; obs\['b'\] single"),
        (BOTH, {"a": np.zeros(2), "b": np.zeros((2, 2))}, r"obs\['a'\] single; obs\['b'\] a batch of 2"),
        (BOTH, {"a": np.zeros(2)}, r"\{a: leaf\}.*as the space says"),
        (BOTH, [{"a": np.zeros(2)}], r"list, not nested.*\{key: rows of all\}"),
        (BOX, (np.zeros(2, np.float32), {}), r"apart: act\(obs, info=info\)"),
        (BOTH, (BOTH.sample(), {}), r"apart: act\(obs, info=info\)"),
    ],
)
def test_observations_that_do_not_fit(space, obs, found):
    with pytest.raises(SpaceError, match=rf"(?s)observation for Policy\.act.*{found}"):
        policy_of(space).act(obs)


ONE, TWO = np.zeros(2), np.zeros((2, 2))


REWARD, STARTS = r"reward for Policy\.act", r"(?s)starts for Policy\.act.*2 booleans"


@pytest.mark.parametrize(
    ("obs", "keywords", "text"),
    [
        (ONE, {"reward": [1.0]}, REWARD),
        (ONE, {"reward": "a"}, REWARD),
        (TWO, {"reward": 1.0}, REWARD),
        (TWO, {"reward": [1, 2, 3]}, REWARD),
        (TWO, {"starts": [True]}, STARTS),
        (TWO, {"starts": True}, STARTS),
        (TWO, {"starts": [0, 1]}, STARTS),
        (TWO, {"info": [{}]}, r"info for Policy\.act"),
        ([[0, 0], [0, np.nan]], {}, r"observation of environment 1, .*\n(.*\n)*.*found:    NaN\n"),
    ],
)
def test_what_comes_with_observations_and_does_not_fit(obs, keywords, text):
    policy = policy_of(BOX)
    with pytest.raises(ColumnError, match=text):
        policy.act(obs, policy.act(np.zeros_like(obs))[1], **keywords)


def test_rewards_starts_and_infos_of_one_and_of_many():
    policy = policy_of(BOX)
    state, states = policy.act(ONE)[1], policy.act(TWO)[1]
    policy.act(ONE, state, reward=1, starts=np.True_, info={"a": 1})
    policy.act(TWO, states, reward=[1, 2], starts=[True, False], info={"a": [1]})
    assert repr(policy) == "Policy(DefaultActorCritic, Box(-1.0, 1.0, (2,), float32) -> Discrete(2))"
    assert isinstance(state, PolicyState) and repr(state) == "PolicyState(one environment)"


@pytest.mark.parametrize(
    ("obs", "state", "found"),
    [
        (TWO, lambda: policy_of(BOX).act(TWO)[1], "one of another policy"),
        (np.zeros((3, 2)), None, r"PolicyState\(2 rows\)"),
        (ONE, None, r"PolicyState\(2 rows\)"),
        (ONE, lambda: {"h": np.zeros(8)}, "dict"),
    ],
)
def test_states_that_do_not_fit(obs, state, found):
    policy = policy_of(BOX)
    state = policy.act(TWO)[1] if state is None else state()
    with pytest.raises(EpisodeStateError, match=rf"(?s)state for Policy.act.*found:    {found}"):
        policy.act(obs, state)


def test_spaces_and_pipelines_that_no_policy_can_have():
    with pytest.raises(SpaceError, match="leaves with a shape"):
        Policy(None, *(pipeline(gym.spaces.Text(5), gym.spaces.Discrete(2)) for pipeline in PIPELINES))
    with pytest.raises(ConfigError, match="input_observation_space="):
        Policy(None, *(pipeline() for pipeline in PIPELINES))


# ----------------------------------------------------------------------------------------- live policy


class Counted(ConnectorV2):
    """Puts how many observations it has seen into the observation, unless frozen."""

    seen, frozen = 0, False

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            self.seen += not self.frozen
            self.add_batch_item(batch, "obs", np.full(3, self.seen, np.float32), episode)
        return batch

    def get_state(self, components=None, *, not_components=None, **kwargs):
        return {"seen": self.seen}

    def set_state(self, state):
        self.seen = state["seen"]

    def freeze(self):
        self.frozen = True


def states(algo):
    return [pipeline.get_state() for pipeline in algo.env_runner.pipelines.values()]


def test_newest_weights_and_statistics(built, case_config):
    config = case_config("mlp").env_runners(env_to_module_connector=lambda env, spaces, device: [Counted()])
    algo = built(config.debugging(check_first_update="off"))  # the learner sees other observations
    policy = algo.get_policy()
    assert policy is algo.get_policy()
    for _ in range(3):
        seen = algo.env_runner.pipelines["env_to_module"]["counted"].seen
        with torch.no_grad():
            expected = algo.env_runner.module.forward_inference({"obs": torch.full((1, 3), float(seen))})
        _, state = policy.act(np.zeros(3))
        np.testing.assert_array_equal(logits(state), expected["action_dist_inputs"])
        assert policy.steps == algo.env_runner.num_env_steps_sampled_lifetime
        algo.train()


@pytest.mark.parametrize("use", ["get_policy", "evaluate"])
def test_pipelines_that_were_edited(algorithm, use):
    algo = algorithm("mlp")
    algo.env_runner.pipelines["env_to_module"].prepend(Counted())
    with pytest.raises(PipelineError, match=r"(?s)env_to_module.*that trains: counted, add_obs.*give the config"):
        getattr(algo, use)()


def test_a_restored_algorithm(built, case_config):
    algo = built(case_config("mlp").env_runners(env_to_module_connector=lambda env, spaces, device: [Counted()]))
    state = algo.get_state()
    state["env_runner"]["env_to_module_connector"] = {"counted": {"seen": 7}}
    _, before = algo.act(np.zeros(3))
    algo.set_state(state)
    _, after = algo.act(np.zeros(3))
    assert not np.array_equal(logits(before), logits(after))


def test_acting_does_not_change_the_training(built, case_config):
    results = []
    for acts in (False, True):
        algo = built(case_config("lstm", num_envs=2))
        for _ in range(3):
            for _ in range(20 * acts):
                algo.act(np.zeros((4, 3)), explore=True)
            algo.train()
        results.append((weights(algo), states(algo)[1]["get_actions"]["generator"]))
    (left, draws), (right, other_draws) = results
    assert same_weights(left, right)
    np.testing.assert_array_equal(draws, other_draws)


def test_ids_and_options_that_are_none(algorithm, built):
    algo = algorithm("mlp")
    assert algo.get_policy("default_policy") is algo.get_policy()
    with pytest.raises(UnknownNameError, match=r"get_module\('default_policy'\)"):
        algo.get_policy("main")
    with pytest.raises(UnknownNameError, match="did you mean 'explore'"):
        algo.act(np.zeros(3), explor=True)
    config = PPOConfig().environment(make_multi_agent("CartPole-v1"), env_config={"num_agents": 2})
    algo = built(config.multi_agent(policies=["main"]))
    with pytest.raises(UnknownNameError, match=r"(?s)with the modules main.*found: +'main'.*get_module\('main'\)"):
        algo.get_policy("main")
    with pytest.raises(UnknownNameError, match="did you mean 'rewards'"):
        algo.act({0: np.zeros(4)}, reward={})


@pytest.mark.parametrize("index", [-1, slice(-1, None), [-1], None], ids=str)
def test_every_way_to_read_a_reward_that_was_not_given_is_an_error(index):
    class Reads(ConnectorV2):
        def __call__(self, *, rl_module, batch, episodes, **kwargs):
            for episode in self.single_agent_episode_iterator(episodes):
                if len(episode):
                    episode.get_rewards(index)
            return batch

    config = cart_pole().env_runners(env_to_module_connector=lambda env, spaces, device: Reads())
    policy = config.build_algo().get_policy()
    _, state = policy.act(np.zeros(4, np.float32))
    with pytest.raises(ColumnError) as caught:
        policy.act(np.zeros(4, np.float32), state)
    assert caught.value.do == "policy.act(obs, state, reward=reward)"


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda policy: pickle.loads(pickle.dumps(policy))])
def test_a_copy_of_an_algorithms_policy_keeps_the_weights_of_its_moment(copied):
    config = PPOConfig().environment("CartPole-v1").training(train_batch_size=32, minibatch_size=32, lr=0.1)
    algo = config.debugging(seed=0).build_algo()
    policy, obs = algo.get_policy(), np.full(4, 0.1, np.float32)
    policy.act(obs)
    copy_of_it, before = copied(policy), copy.deepcopy(algo.get_module().state_dict())
    algo.train()
    policy.act(obs)
    now, kept = policy.module.state_dict(), copy_of_it.module.state_dict()
    assert all(torch.equal(kept[name], value) for name, value in before.items())
    assert not all(torch.equal(now[name], value) for name, value in before.items())
    assert copy_of_it.act(obs)[0] in (0, 1)
    algo.stop()


class AddCount(SingleAgentObservationPreprocessor):
    """Adds the number of its calls for an episode, which the episode carries."""

    def preprocess(self, observation, episode):
        episode.custom_data["calls"] = episode.custom_data.get("calls", 0) + 1
        return observation + np.float32(episode.custom_data["calls"])


def test_a_stored_state_fits_its_policy_and_copies_of_it():
    """As in a server without sessions: the state goes out with the action and comes back with the next observation."""
    network = {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4}
    config = PPOConfig().environment("CartPole-v1").rl_module(model_config=network).debugging(seed=0)
    algo = config.env_runners(env_to_module_connector=lambda *_: AddCount()).build_algo()
    policy, obs = algo.get_policy(), np.full((3, 4), 0.1, np.float32)
    policies = policy, copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))
    for store in (lambda state: pickle.loads(pickle.dumps(state)), copy.deepcopy):
        states = [None] * 3
        for policy_seed in range(6):
            for one in policies:
                one.seed(policy_seed)
            drawn = [one.act(obs, state, explore=True) for one, state in zip(policies, states)]
            assert all(np.array_equal(actions, drawn[0][0]) for actions, _ in drawn)
            states = [drawn[0][1], *(store(state) for _, state in drawn[1:])]
    algo.stop()
