from __future__ import annotations

import itertools

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch import Policy
from epibatch.algorithms import PPOConfig
from epibatch.algorithms.policy import PolicyState
from epibatch.connectors import ConnectorV2
from epibatch.core.errors import (
    ColumnError,
    ConfigError,
    EpisodeError,
    EpisodeStateError,
    PipelineError,
    UnknownNameError,
)
from epibatch.core.structs import flatten, map_struct
from epibatch.env_runner import make_multi_agent, make_vector_env

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
    return np.concatenate([np.ravel(leaf).astype(np.float64) for leaf in flatten(action)[0]])


def acted_actions(policy, env, vector_steps, explore, seed):
    """The same in a vector environment that somebody steps, and that resets a step after an end."""
    obs, _ = env.reset(seed=seed)
    state, rewards = None, np.zeros(env.num_envs)
    starts = done = np.zeros(env.num_envs, bool)
    taken = [[] for _ in range(env.num_envs)]
    for _ in range(vector_steps):
        actions, state = policy.act(obs, state, explore=explore, reward=rewards, starts=starts)
        obs, rewards, terminated, truncated, _ = env.step(actions)
        for i in np.flatnonzero(~done):
            taken[i].append(numbers(map_struct(lambda leaf, i=i: leaf[i], actions)))
        starts, done = done, terminated | truncated
    env.close()
    return taken


@pytest.mark.parametrize("explore", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_a_batch_acts_as_the_runner_does(algorithm, walk, tmp_path, case, explore):
    algo = algorithm(case, num_envs=3)
    env = make_vector_env(walk, 3, env_config=algo.config.env_config)
    taken = acted_actions(algo.get_policy(), env, 60, explore, seed=3)
    sampled = sampled_actions(algo, 60, explore)
    for mine, theirs in zip(taken, sampled):
        assert len(mine) > 30  # a good many episodes of 3 to 9 steps
        np.testing.assert_array_equal(mine, theirs[: len(mine)])
    loaded = policies(algo, tmp_path)["loaded"]
    again = acted_actions(loaded, make_vector_env(walk, 3, env_config=algo.config.env_config), 60, explore, seed=3)
    for mine, theirs in zip(again, taken):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("case", CASES)
def test_single_observations_over_whole_episodes(algorithm, walk, tmp_path, case):
    algo = algorithm(case)
    theirs = sampled_actions(algo, 60, False)[0]
    for policy in policies(algo, tmp_path).values():
        env, mine = walk(**algo.config.env_config), []
        obs, _ = env.reset(seed=3)
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
    obs, _ = env.reset(seed=3)
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
        assert not np.allclose(fresh._outputs["action_dist_inputs"], carried._outputs["action_dist_inputs"])


def test_rows_that_start_forget(algorithm):
    for case in ("lstm", "frames", "mean"):
        policy = algorithm(case).get_policy()
        obs = np.random.default_rng(2).uniform(-5, 5, (3, 4, *policy.observation_space.shape)).astype(np.float32)
        _, state = policy.act(obs[0])
        starts = np.array([False, True, False, True])
        _, state = policy.act(obs[1], state, starts=starts)
        _, later = policy.act(obs[2], state)
        _, fresh = policy.act(obs[2], policy.act(obs[1])[1])
        _, kept = policy.act(obs[2], policy.act(obs[1], policy.act(obs[0])[1])[1])
        for i, own in enumerate(later._outputs["action_dist_inputs"]):
            expected = (fresh if starts[i] else kept)._outputs["action_dist_inputs"][i]
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


def test_a_single_row_can_start_too(algorithm):
    policy = algorithm("frames").get_policy()
    obs = np.ones(policy.observation_space.shape, np.float32)
    _, state = policy.act(2 * obs)
    _, restarted = policy.act(obs, state, starts=True)
    _, fresh = policy.act(obs)
    np.testing.assert_array_equal(restarted._outputs["action_dist_inputs"], fresh._outputs["action_dist_inputs"])


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
    assert not np.allclose(with_statistics._outputs["action_dist_inputs"], without._outputs["action_dist_inputs"])


def test_seeds(algorithm):
    policy = algorithm("box").get_policy()
    draws = []
    for seed in (5, 5, 6):
        policy.seed(seed)
        draws.append(np.array([policy.act(np.zeros(3), explore=True)[0] for _ in range(4)]))
    np.testing.assert_array_equal(draws[0], draws[1])
    assert not np.allclose(draws[0], draws[2])
    assert len(np.unique(draws[0])) == draws[0].size


def test_a_seeded_policy_draws_from_streams_of_its_own_whatever_states_it_takes_over(algorithm):
    algo = algorithm("box")
    policy, states = algo.get_policy(), [own.get_state() for own in algo.env_runner.pipelines.values()]
    draws = []
    for seed in (5, 6, 5):
        policy.seed(seed)
        policy.set_connector_states(*states)
        draws.append(policy.act(np.zeros(3), explore=True)[0].tolist())
    assert draws[0] == draws[2] != draws[1]


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


def test_observations_that_are_no_numbers(algorithm):
    policy = algorithm("mlp").get_policy()
    with pytest.raises(
        ColumnError, match=r"in Policy\.act:\nobservation of environment 1, .*\n(.*\n)*.*found:    NaN\n"
    ):
        policy.act(np.array([[0, 0, 0], [0, np.nan, 0]]))


@pytest.mark.parametrize("wrong", ["another policy", "another number", "single", "no state"])
def test_states_that_do_not_fit(algorithm, wrong):
    policy, other = algorithm("mlp").get_policy(), algorithm("mlp").get_policy()
    state = policy.act(np.ones((2, 3)))[1]
    call = {
        "another policy": lambda: other.act(np.ones((2, 3)), state),
        "another number": lambda: policy.act(np.ones((3, 3)), state),
        "single": lambda: policy.act(np.ones(3), state),
        "no state": lambda: policy.act(np.ones(3), {"h": np.zeros(8)}),
    }[wrong]
    found = {"another policy": "one of another policy", "no state": "dict"}.get(wrong, r"PolicyState\(2 rows\)")
    with pytest.raises(EpisodeStateError, match=rf"(?s)state for Policy.act.*found:    {found}"):
        call()


def test_seeds_that_are_none(algorithm):
    for wrong in (-1, 0.5, True, None):
        with pytest.raises(ConfigError, match=r"Policy\.seed"):
            algorithm("mlp").get_policy().seed(wrong)


def test_descriptions(algorithm):
    policy = algorithm("mlp").get_policy()
    assert repr(policy) == "Policy(DefaultActorCritic, Box(-5.0, 5.0, (3,), float32) -> Discrete(3))"
    assert isinstance(policy.act(np.ones(3))[1], PolicyState)
    assert repr(policy.act(np.ones(3))[1]) == "PolicyState(one environment)"


def test_pipelines_without_spaces(algorithm):
    algo = algorithm("mlp")
    empty = type(algo.env_runner.pipelines["env_to_module"])()
    with pytest.raises(ConfigError, match="input_observation_space="):
        Policy(algo.env_runner.module, empty, algo.env_runner.pipelines["module_to_env"])


def test_a_number_as_action_is_an_array_of_no_axes_as_its_box_holds_it():
    class Throttle(gym.Env):
        observation_space = gym.spaces.Box(-1, 1, (3,))
        action_space = gym.spaces.Dict(gear=gym.spaces.Discrete(3, start=2), gas=gym.spaces.Box(-2, 5, ()))

    algo = PPOConfig().environment(lambda config: Throttle()).build_algo()
    action, _ = algo.act(np.zeros(3), explore=True)
    assert algo.get_policy().action_space.contains(action)  # a warning here would be an error
    assert isinstance(action["gas"], np.ndarray) and isinstance(action["gear"], np.int64)
    actions, _ = algo.act(np.zeros((4, 3)), explore=True)
    assert (actions["gas"].shape, actions["gear"].shape) == ((4,), (4,))
    algo.stop()


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
    runner = algo.env_runner
    return [pipeline.get_state() for pipeline in runner.pipelines.values()]


def test_newest_weights_and_statistics(case_config):
    config = case_config("mlp").env_runners(env_to_module_connector=lambda env, spaces, device: [Counted()])
    algo = config.debugging(check_first_update="off").build_algo()  # the learner sees other observations
    policy = algo.get_policy()
    assert policy is algo.get_policy()
    for _ in range(3):
        seen = algo.env_runner.pipelines["env_to_module"]["counted"].seen
        with torch.no_grad():
            expected = algo.env_runner.module.forward_inference({"obs": torch.full((1, 3), float(seen))})
        _, state = policy.act(np.zeros(3))
        np.testing.assert_array_equal(state._outputs["action_dist_inputs"], expected["action_dist_inputs"])
        assert policy.steps == algo.env_runner.num_env_steps_sampled_lifetime
        algo.train()
    algo.stop()


@pytest.mark.parametrize("use", ["get_policy", "evaluate"])
def test_pipelines_that_were_edited(algorithm, use):
    algo = algorithm("mlp")
    algo.env_runner.pipelines["env_to_module"].prepend(Counted())
    with pytest.raises(PipelineError, match=r"(?s)env_to_module.*that trains: counted, add_obs.*give the config"):
        getattr(algo, use)()


def test_a_restored_algorithm(case_config, tmp_path):
    algo = case_config("mlp").env_runners(env_to_module_connector=lambda env, spaces, device: [Counted()]).build_algo()
    state = algo.get_state()
    state["env_runner"]["env_to_module_connector"] = {"counted": {"seen": 7}}
    _, before = algo.act(np.zeros(3))
    algo.set_state(state)
    _, after = algo.act(np.zeros(3))
    assert not np.array_equal(before._outputs["action_dist_inputs"], after._outputs["action_dist_inputs"])
    algo.stop()


def test_acting_does_not_change_the_training(case_config):
    results = []
    for acts in (False, True):
        algo = case_config("lstm", num_envs=2).build_algo()
        for _ in range(3):
            if acts:
                for _ in range(20):
                    algo.act(np.zeros((4, 3)), explore=True)
            algo.train()
        weights = algo.get_module().get_state()
        results.append((weights, states(algo)))
        algo.stop()
    (one, draws), (other, other_draws) = results
    assert all(np.array_equal(one[name], other[name]) for name in one)
    np.testing.assert_array_equal(draws[1]["get_actions"]["generator"], other_draws[1]["get_actions"]["generator"])


def test_a_seed_holds_until_the_statistics_change(algorithm):
    algo = algorithm("box")
    algo.train()
    policy = algo.get_policy()
    draws = []
    for _ in range(2):
        policy.seed(9)
        draws.append([policy.act(np.zeros(3), explore=True)[0] for _ in range(3)])
    np.testing.assert_array_equal(draws[0], draws[1])


def test_ids_and_options_that_are_none(case_config):
    algo = case_config("mlp").build_algo()
    assert algo.get_policy("default_policy") is algo.get_policy()
    with pytest.raises(UnknownNameError, match=r"get_module\('default_policy'\)"):
        algo.get_policy("main")
    with pytest.raises(UnknownNameError, match="did you mean 'explore'"):
        algo.act(np.zeros(3), explor=True)
    algo.stop()


def test_of_several_modules_one_policy_acts():
    config = PPOConfig().environment(make_multi_agent("CartPole-v1"), env_config={"num_agents": 2})
    algo = config.multi_agent(policies=["main"]).build_algo()
    with pytest.raises(UnknownNameError, match=r"(?s)with the modules main.*found: +'main'.*get_module\('main'\)"):
        algo.get_policy("main")
    with pytest.raises(UnknownNameError, match="did you mean 'rewards'"):
        algo.act({0: np.zeros(4)}, reward={})
    algo.stop()
