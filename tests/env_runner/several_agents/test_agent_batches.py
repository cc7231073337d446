"""Vector environments of several agents beside single environments that do the same."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode

from epibatch.algorithms import PPOConfig
from epibatch.connectors.images import VideoRecorder
from epibatch.core.errors import (
    ConfigError,
    EnvironmentContractError,
    EpibatchError,
    NotAvailableError,
    RunnerError,
    SpaceError,
)
from epibatch.env_runner import (
    MultiAgentEnv,
    MultiAgentEnvRunner,
    SingleAgentEnvRunner,
    TensorEnvRunner,
    VectorMultiAgentEnv,
)

AGENTS = ["red", "blue"]
SEEN, ACTS = Box(-99.0, 99.0, (4,), np.float32), Discrete(3, start=1)


class Game(MultiAgentEnv):
    """Lengths follow from the environment's number and the episode's; blue ends early in every second episode."""

    def __init__(self, env_config):
        super().__init__()
        self.agents = self.possible_agents = list(AGENTS)
        self.observation_spaces, self.action_spaces = dict.fromkeys(AGENTS, SEEN), dict.fromkeys(AGENTS, ACTS)
        self.number, self.episode = env_config.vector_index, -1

    def look(self):
        return {
            agent: np.array([self.t, self.number, i, self.sums[agent]], np.float32)
            for i, agent in enumerate(AGENTS)
            if agent in self.here
        }

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.episode = 0, self.episode + 1
        self.sums, self.here = dict.fromkeys(AGENTS, 0), list(AGENTS)
        return self.look(), {"red": {"begins": self.episode}}

    def step(self, actions):
        assert actions.keys() == set(self.here) and all(1 <= action <= 3 for action in actions.values())
        self.t += 1
        for agent, action in actions.items():
            self.sums[agent] += int(action)
        observations, rewards = self.look(), {agent: self.t + actions[agent] / 10 for agent in self.here}
        over = self.t == 3 + (self.number + self.episode) % 3
        flags = {"__all__": over}, {"__all__": False}
        if self.episode % 3 == 1:
            flags = flags[::-1]
        if self.episode % 2 and self.t == 2:
            flags[0]["blue"] = True
            self.here = ["red"]
        infos = {agent: {"sum": self.sums[agent]} for agent in observations} | {"__common__": {"t": self.t}}
        return observations, rewards, *flags, infos


class _Numbered(dict):
    def __init__(self, vector_index):
        self.vector_index = vector_index


class Games(gym.vector.VectorEnv):
    """N games with values [N, ...] of each agent; what an agent that ended shows is nan."""

    axis, tensors, mode = False, False, AutoresetMode.NEXT_STEP

    def __init__(self, num_envs):
        self.num_envs, self.metadata = num_envs, {"autoreset_mode": self.mode}
        self.games = [Game(_Numbered(i)) for i in range(num_envs)]
        self.possible_agents = list(AGENTS)
        spaces = (SEEN, ACTS) if self.axis else (Dict(dict.fromkeys(AGENTS, space)) for space in (SEEN, ACTS))
        self.single_observation_space, self.single_action_space = spaces
        self.ended = np.zeros(num_envs, bool)

    def joined(self, rows, missing=np.nan):
        """Rows by agent of all games as this environment returns them."""
        kind = torch.as_tensor if self.tensors else np.asarray
        fill = np.full_like(np.asarray(next(iter(rows[0].values()))), missing)
        columns = {agent: np.stack([row.get(agent, fill) for row in rows]) for agent in AGENTS}
        return kind(np.stack([*columns.values()], 1)) if self.axis else {a: kind(c) for a, c in columns.items()}

    def reset(self, *, seed=None, options=None):
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        assert seed is None or isinstance(seed, int)
        infos = [{}] * self.num_envs
        if not hasattr(self, "seen"):
            self.seen = [None] * self.num_envs
        for i in np.flatnonzero(mask):
            self.seen[i], infos[i] = self.games[i].reset(seed=seed)
        self.ended &= ~mask
        return self.joined(self.seen), {"env_infos": infos}

    def step(self, actions):
        assert self.mode != AutoresetMode.DISABLED or not self.ended.any()
        columns = {a: actions[:, i] if self.axis else actions[a] for i, a in enumerate(AGENTS)}
        paid, ends, infos = [], np.zeros((2, self.num_envs, 2), bool), []
        over = np.zeros((2, self.num_envs), bool)
        final, final_info = np.full(self.num_envs, None, object), np.full(self.num_envs, None, object)
        for i, game in enumerate(self.games):
            if self.ended[i]:
                self.seen[i], info = game.reset()
                paid.append(dict.fromkeys(AGENTS, 0.0))
            else:
                own = {agent: columns[agent][i] for agent in game.here}
                self.seen[i], rewards, *flags, info = game.step(own)
                paid.append(rewards)
                for k, kind in enumerate(flags):
                    over[k, i] = kind["__all__"]
                    ends[k, i] = [kind.get(agent, False) for agent in AGENTS]
                if over[:, i].any() and self.mode == AutoresetMode.SAME_STEP:
                    final_info[i] = info
                    row = self.seen[i]
                    final[i] = row if not self.axis else np.stack([row.get(a, np.zeros(4)) for a in AGENTS])
                    self.seen[i], info = game.reset()
            common = info.pop("__common__", {})
            infos.append({**info, **common})
        self.ended = over.any(0) if self.mode != AutoresetMode.SAME_STEP else self.ended
        kind = torch.as_tensor if self.tensors else np.asarray
        flags = [dict(zip(AGENTS, map(kind, e.T))) | {"__all__": kind(o)} for e, o in zip(ends, over)]
        vector_infos = {"env_infos": infos}
        if final_info.any():
            final_info = [
                info and {**{a: info[a] for a in AGENTS if a in info}, **info["__common__"]} for info in final_info
            ]
            vector_infos |= {"final_obs": final, "final_info": final_info}
        return self.joined(self.seen), self.joined(paid), *flags, vector_infos


def runner_of(env, **settings):
    config = (
        PPOConfig()
        .environment(env)
        .env_runners(num_envs_per_env_runner=3, explore=False, **settings)
        .multi_agent(policies={"red", "blue"}, policy_mapping_fn=lambda agent, episode: agent)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .debugging(seed=3)
    )
    torch.manual_seed(3)
    return MultiAgentEnvRunner(config=config)


def ended_of(runner, calls=4):
    """The episodes of each environment that ended, in order, as plain data; with the weights of one seed."""
    found = {0: [], 1: [], 2: []}
    parts = {}
    for _ in range(calls):
        for chunk in runner.sample(num_timesteps=30):
            env = runner.env_of(chunk)
            whole = parts.get(chunk.id_)
            if whole is None:
                parts[chunk.id_] = chunk
            else:
                whole.concat_episode(chunk)
            if parts[chunk.id_].is_done:
                found[env].append(parts[chunk.id_])
    runner.stop()
    return {env: [plain(episode) for episode in episodes] for env, episodes in found.items()}


def plain(episode):
    common = [info.get("t") for info in episode.get_infos().get("__common__", [])]
    out = {"done": (episode.is_terminated, episode.is_truncated), "common": common}
    for agent, single in episode.agent_episodes.items():
        out[agent] = {
            "obs": single.get_observations().tolist(),
            "actions": single.get_actions().tolist(),
            "rewards": np.round(single.get_rewards(), 5).tolist(),
            "infos": single.get_infos(),
            "done": (single.is_terminated, single.is_truncated),
        }
    return out


@pytest.fixture(scope="module")
def expected():
    return ended_of(runner_of(Game))


@pytest.mark.parametrize("mode", [*AutoresetMode])
@pytest.mark.parametrize("axis", [False, True])
@pytest.mark.parametrize("tensors", [False, True])
def test_episodes_are_those_of_single_environments(mode, axis, tensors, expected):
    kind = type("Native", (Games,), {"axis": axis, "tensors": tensors, "mode": mode})
    runner = runner_of(lambda num_envs: kind(num_envs), gym_env_vectorize_mode="vector_entry_point")
    found = ended_of(runner)
    for env in range(3):
        assert len(found[env]) > 5
        for left, right in zip(found[env], expected[env]):
            assert left == right


class Pairs(gym.vector.VectorEnv):
    """Agents along axis 1; all values of a kind are one for both. The actions are kept."""

    possible_agents = AGENTS
    single_observation_space, single_action_space = SEEN, Dict({"way": ACTS, "speed": Box(-1, 1, (2,))})

    def __init__(self, num_envs, wrong=None):
        self.num_envs, self.wrong, self.masks = num_envs, wrong or {}, []
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}

    def reset(self, *, seed=None, options=None):
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        self.masks.append(mask.tolist())
        self.t = np.where(mask, 0, getattr(self, "t", 0))
        return self.look(), {}

    def look(self):
        seen = np.zeros((self.num_envs, 2, 4), np.float32)
        seen[..., 0] = self.t[:, None]
        return seen

    def step(self, actions):
        self.actions, self.t = actions, self.t + 1
        result = {
            "obs": self.look(),
            "rewards": np.arange(self.num_envs) + 0.5,
            "terminateds": self.t == 4 + np.arange(self.num_envs),
            "truncateds": np.zeros(self.num_envs, bool),
        }
        return (*{**result, **self.wrong}.values(), {})


def pairs(**wrong):
    return runner_of(lambda num_envs: Pairs(num_envs, wrong), gym_env_vectorize_mode="vector_entry_point")


def test_one_reward_and_flag_is_that_of_all_agents_and_nested_actions_come_together():
    runner = pairs()
    episodes = runner.sample(num_episodes=6)
    env = runner.foreach_env(lambda env: env)[0]
    assert env.actions["way"].shape == (3, 2) and env.actions["speed"].shape == (3, 2, 2)
    assert {len(episode) - runner.env_of(episode) for episode in episodes} == {4}
    for episode in episodes:
        pay = runner.env_of(episode) + 0.5
        assert all(rewards.tolist() == [pay] * len(episode) for rewards in episode.get_rewards().values())
        assert list(episode.get_observations(-1)) == AGENTS and episode.is_terminated
    runner.stop()


def test_lists_of_rewards_and_of_infos():
    runner = pairs(rewards=[[1.0, 2.0]] * 3)
    env = runner.foreach_env(lambda env: env)[0]
    step = env.step
    env.step = lambda actions: (*step(actions)[:-1], [{"number": i} for i in range(3)])
    for chunk in runner.sample(num_timesteps=6):
        assert [r.tolist() for r in chunk.get_rewards().values()] == [[1.0] * len(chunk), [2.0] * len(chunk)]
        assert chunk.get_infos(-1)["__common__"] == {"number": runner.env_of(chunk)}
    runner.stop()


def test_some_are_reset_with_autoreset_mode_disabled():
    runner = pairs()
    runner.step()
    runner.reset(mask=[False, True, False])
    assert runner.foreach_env(lambda env: env.masks)[0] == [[True] * 3, [False, True, False]]
    assert [chunk.env_t for chunk in runner.step()] == [2, 1, 2]
    with pytest.raises(RunnerError, match="step of some environments"):
        runner.step(mask=[True, False, True])
    runner.stop()


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_other_modes_refuse_to_reset_some(mode):
    kind = type("Native", (Games,), {"mode": mode})
    runner = runner_of(lambda num_envs: kind(num_envs), gym_env_vectorize_mode="vector_entry_point")
    runner.step()
    with pytest.raises(RunnerError, match="reset of some environments"):
        runner.reset(mask=[False, True, False])
    runner.stop()


def test_single_agents_of_a_vector_environment_are_not_reset():
    """Not before the first sample either; the error changes nothing."""
    runner = pairs()
    for t in (1, 2):
        with pytest.raises(NotAvailableError, match=r"(?s)reset of single agents.*'red'.*'__all__'.*reset_agents"):
            runner.reset(mask={"red": [True, False, False]})
        assert [chunk.env_t for chunk in runner.step()] == [t] * 3
    with pytest.raises(NotAvailableError, match="reset_agents"):
        runner.env.reset(mask={"red": [True, False, False]})
    runner.reset(mask={"__all__": [False, True, False], "blue": [False, True, False]})
    assert [chunk.env_t for chunk in runner.step()] == [3, 1, 3]
    runner.stop()


MANY = np.zeros((3, 3, 4), np.float32)


@pytest.mark.parametrize(
    ("wrong", "parts"),
    [
        ({"obs": MANY}, ("observations", "shape [3, 2] + [...]", "shape [3, 3, 4]")),
        ({"obs": MANY[0]}, ("observations", "shape [3, 4]")),
        ({"obs": MANY[:, :2].tolist()}, ("observations", "shape [3, 2] + [...]", "list")),
        ({"rewards": None}, ("rewards", "shape [3, 2] + [...]")),
        ({"obs": MANY[:, :2, :3]}, ("SpaceError", "red", "(4,)")),
        ({"rewards": np.full(3, np.nan)}, ("rewards", "finite numbers")),
        ({"rewards": np.zeros(2)}, ("rewards", "[2]")),
        ({"rewards": np.zeros((3, 2, 2))}, ("rewards", "[3, 2]")),
        ({"terminateds": np.zeros((3, 3), bool)}, ("terminateds", "shape [3, 3]")),
        ({"truncateds": np.zeros(4, bool)}, ("truncateds", "shape [4]")),
    ],
)
def test_values_of_another_shape_are_named(wrong, parts):
    runner = pairs(**wrong)
    with pytest.raises(EpibatchError) as caught:
        runner.sample(num_timesteps=6)
    text = f"{type(caught.value).__name__} {caught.value}"
    assert all(part in text for part in parts), text
    runner.stop()


def test_a_single_space_with_the_axis_of_agents_is_named():
    class Whole(Pairs):
        single_observation_space = Box(-99.0, 99.0, (2, 4))

    runner = runner_of(lambda num_envs: Whole(num_envs), gym_env_vectorize_mode="vector_entry_point")
    with pytest.raises(
        SpaceError, match=r"(?s)single_observation_space\n.*without their axis.*set it to one of shape \[4\]"
    ):
        runner.sample(num_timesteps=6)
    runner.stop()


class Spaced(Pairs):
    """Has the spaces of N environments, too."""

    single_action_space = ACTS

    def __init__(self, num_envs, kind=np.asarray):
        super().__init__(num_envs)
        self.observation_space, self.action_space = (
            gym.vector.utils.batch_space(space, num_envs) for space in (SEEN, ACTS)
        )
        self.metadata, self.kind = {"autoreset_mode": AutoresetMode.SAME_STEP}, kind

    def look(self):
        return self.kind(super().look())


@pytest.mark.parametrize(
    ("runner", "make", "found"),
    [
        (SingleAgentEnvRunner, lambda num_envs: Pairs(num_envs), r"possible_agents = \['red', 'blue'\]"),
        (SingleAgentEnvRunner, lambda num_envs: Spaced(num_envs), r"\(2, 4\) per environment"),
        (TensorEnvRunner, lambda num_envs: Spaced(num_envs, torch.as_tensor), r"shape \[3, 2, 4\]"),
    ],
)
def test_without_policies_the_error_names_both_ways_for_several_agents(runner, make, found):
    config = PPOConfig().environment(make).env_runners(num_envs_per_env_runner=3)
    config.env_runners(gym_env_vectorize_mode="vector_entry_point")
    with pytest.raises(EpibatchError, match=rf"(?s)found: +.*{found}.*\.multi_agent\(.*AgentsAsEnvs\("):
        runner(config=config).sample(num_timesteps=6)


def test_an_unknown_agent_is_named():
    class Strange(Games):
        def joined(self, rows, missing=np.nan):
            columns = super().joined(rows, missing)
            return {"blu": columns["blue"], "red": columns["red"]}

    runner = runner_of(lambda num_envs: Strange(num_envs), gym_env_vectorize_mode="vector_entry_point")
    with pytest.raises(EnvironmentContractError, match=r"agent 'blu'\n.*did you mean 'blue'"):
        runner.sample(num_timesteps=6)
    runner.stop()


@pytest.mark.parametrize(
    ("maker", "match"),
    [
        (lambda num_envs: Pairs(num_envs + 1), "num_envs = 4"),
        (lambda num_envs: gym.make_vec("CartPole-v1", num_envs), "possible_agents"),
        (lambda num_envs: object(), "without reset"),
        ("CartPole-v1", "a class or function"),
    ],
)
def test_what_is_no_such_environment_is_refused(maker, match):
    with pytest.raises(ConfigError, match=match):
        runner_of(maker, gym_env_vectorize_mode="vector_entry_point")


@pytest.mark.parametrize("end", ["all", "any"])
def test_any_agent_may_end_the_episode(end):
    class One(Games):
        mode = AutoresetMode.DISABLED

    config = (
        PPOConfig()
        .environment(lambda num_envs: One(num_envs))
        .env_runners(num_envs_per_env_runner=3, gym_env_vectorize_mode="vector_entry_point")
        .multi_agent(policies={"p"}, policy_mapping_fn=lambda agent, episode: "p", episode_end=end)
        .training(train_batch_size=60, minibatch_size=30, num_epochs=1)
        .debugging(seed=0)
    )
    algo = config.build_algo()
    algo.train()
    odd = [e for e in algo.env_runner.sample(num_episodes=9) if e.get_infos(0)["red"].get("begins", 0) % 2]
    assert odd
    assert {len(episode) for episode in odd} == ({2} if end == "any" else {3, 4, 5}) or end == "all"
    algo.stop()


@pytest.mark.parametrize("mode", [*AutoresetMode])
def test_after_a_refused_step_environments_that_run_are_not_taken_for_reset_ones(mode):
    kind = type("Native", (Games,), {"mode": mode})
    envs = VectorMultiAgentEnv([lambda: kind(3)], mode="vector_entry_point")
    envs.reset(seed=1)
    act = [dict.fromkeys(AGENTS, 1)] * 3
    assert envs.step(act, mask=[False] * 3)[0] == [{}] * 3
    for mask in ([True, False, False], None):
        with pytest.raises(RunnerError, match="step of some environments"):
            envs.step(act, mask=mask)
    assert envs.reset()[0][0]["red"][0] == 0
    assert envs.step(act)[0][0]["red"][0] == 1
    envs.close()


def test_attributes_and_images_are_those_of_the_vector_environment():
    class Seen(Pairs):
        def render(self):
            return tuple(np.full((2, 2, 3), 10 * i + t, np.uint8) for i, t in enumerate(self.t))

    envs = VectorMultiAgentEnv([lambda: Seen(3)], mode="vector_entry_point")
    envs.reset()
    envs.step([{agent: {"way": 1, "speed": np.zeros(2, np.float32)} for agent in AGENTS}] * 3)
    assert envs.call("possible_agents") == (AGENTS,) * 3
    assert [image[0, 0, 0] for image in envs.render()] == [1, 11, 21]
    assert [type(env) for env in envs.envs] == [Seen]
    envs.close()


@pytest.mark.parametrize("mode", [*AutoresetMode])
def test_a_video_has_one_frame_for_each_step(mode):
    class Seen(Games):
        def render(self):
            return [np.full((2, 2, 3), 10 * game.episode + game.t, np.uint8) for game in self.games]

    kind = type("Native", (Seen,), {"mode": mode})
    recorder = {"env_to_module_connector": lambda env: VideoRecorder()}
    runner = runner_of(lambda num_envs: kind(num_envs), gym_env_vectorize_mode="vector_entry_point", **recorder)
    runner.sample(num_timesteps=24)
    (piece,) = [piece for piece in runner.pipelines["env_to_module"] if isinstance(piece, VideoRecorder)]
    shown = piece.dump()[:, 0, 0, 0].tolist()
    runner.stop()
    assert shown[:3] == [0, 1, 2] and len(shown) == len({*shown})
