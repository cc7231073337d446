"""Multi-agent environments that step together, beside a plain loop over them."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given
from hypothesis import strategies as st

from epibatch.core.errors import ConfigError, RunnerError, SpaceError
from epibatch.env_runner import MultiAgentEnv, VectorMultiAgentEnv

AGENTS = ["a", "b", "c", "d"]
ENVS = 3


class Village(MultiAgentEnv):
    """Agents are born, pause, are paid at odd times, end, and return; options say how often.

    Observations are [step, agent's number, a random number], all in one array that is written into again and again.
    """

    def __init__(self, number=0, fail_at=()):
        super().__init__()
        self.possible_agents = list(AGENTS)
        self.observation_spaces = {agent: Box(-np.inf, np.inf, (3,), np.float64) for agent in AGENTS}
        self.action_spaces = dict.fromkeys(AGENTS, Discrete(5))
        self.rows = np.zeros((len(AGENTS), 3))
        self.number, self.fail_at, self.render_mode = number, list(fail_at), None
        self.often = {"born": 0.5, "seen": 0.7, "paid": 0.6, "ends": 0.2, "over": 0.05}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.often = {**self.often, **(options or {})}
        self.time, self.agents = 0, [agent for agent in AGENTS if self.happens("born")]
        return {agent: self.look(agent) for agent in self.agents}, {agent: {"time": 0} for agent in self.agents[:1]}

    def step(self, action_dict):
        self.time += 1
        if self.time in self.fail_at[:1]:
            self.fail_at.pop(0)
            raise ConnectionError("simulator lost")
        self.agents += [agent for agent in AGENTS if agent not in self.agents and self.happens("born")]
        observations = {agent: self.look(agent) for agent in self.agents if self.happens("seen")}
        rewards = {agent: self.time + action / 10 for agent, action in action_dict.items()}
        rewards.update({agent: self.np_random.random() for agent in self.agents if self.happens("paid")})
        ended = [agent for agent in self.agents if self.happens("ends")]
        kinds = [self.np_random.integers(1, 4) for _ in ended]
        terminateds = {agent: bool(kind & 1) for agent, kind in zip(ended, kinds)}
        truncateds = {agent: bool(kind & 2) for agent, kind in zip(ended, kinds)}
        self.agents = [agent for agent in self.agents if agent not in ended]
        terminateds["__all__"], truncateds["__all__"] = self.happens("over"), self.happens("over")
        return observations, rewards, terminateds, truncateds, {agent: {"time": self.time} for agent in ended}

    def look(self, agent):
        number = AGENTS.index(agent)
        self.rows[number] = self.time, number, self.np_random.random()
        return self.rows[number]

    def happens(self, what):
        return bool(self.np_random.random() < self.often[what])

    def render(self):
        return f"village {self.number} at {self.time}"


def plain_loop(seed, often, steps, choose):
    """What each environment returns step by step, each on its own; copies as rows."""
    columns = []
    for number in range(ENVS):
        env, draw = Village(number), np.random.default_rng([seed, number])
        rows = [(*copied(env.reset(seed=seed + number, options=often)), None)]
        lives, over = dict.fromkeys(rows[0][0], True), False  # agents that were seen -> whether they live
        for _ in range(steps):
            actions = choose(draw, rows[-1][0])
            if over:
                rows.append((*copied(env.reset()), None))
                lives, over = dict.fromkeys(rows[-1][0], True), False
                continue
            step = copied(env.step(actions))
            rows.append(step)
            lives.update(dict.fromkeys(step[0], True))
            ended = [agent for flags in step[2:4] for agent, flag in flags.items() if flag]
            lives.update((agent, False) for agent in ended if agent in lives)
            over = "__all__" in ended or bool(ended and lives and not any(lives.values()))
        columns.append(rows)
    return columns


def together(envs, seed, often, steps, choose):
    """What the environments return as one, in the same form."""
    draws = [np.random.default_rng([seed, number]) for number in range(ENVS)]
    observations, infos = envs.reset(seed=seed, options=often)
    columns = [[(own, info, None)] for own, info in zip(observations, infos)]
    for _ in range(steps):
        actions = [choose(draw, rows[-1][0]) for draw, rows in zip(draws, columns)]
        fresh = envs.ended.copy()
        result = envs.step(actions)
        for number, rows in enumerate(columns):
            own = [column[number] for column in result]
            if fresh[number]:
                assert own[1:4] == [{}, {"__all__": False}, {"__all__": False}]
            rows.append((own[0], own[4], None) if fresh[number] else tuple(own))
    return columns


def choose(draw, agents):
    return {agent: int(draw.integers(5)) for agent in agents}


def copied(results):
    first = {agent: row.copy() for agent, row in results[0].items()}
    return (first, *results[1:])


def told(columns):
    """The same as text, which can be compared: repr of floats is exact."""
    return [repr([({k: v.tolist() for k, v in row[0].items()}, *row[1:]) for row in rows]) for rows in columns]


@pytest.fixture(scope="module")
def villages():
    """The same environments, once in this process and once each in its own."""
    made = {
        mode: VectorMultiAgentEnv(map(partial(partial, Village), range(ENVS)), mode=mode) for mode in ("sync", "async")
    }
    yield made
    for envs in made.values():
        envs.close()


def shares(*names):
    return st.fixed_dictionaries({name: st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]) for name in names})


@pytest.mark.slow
@given(seed=st.integers(0, 10_000), often=shares("born", "seen", "paid", "ends"), over=st.sampled_from([0.0, 0.1, 0.5]))
def test_together_as_one_by_one(villages, seed, often, over):
    often, steps = {**often, "over": over}, 12
    expected = told(plain_loop(seed, often, steps, choose))
    for envs in villages.values():
        assert told(together(envs, seed, often, steps, choose)) == expected


def test_some_are_reset_and_the_others_go_on(villages):
    often = {"born": 1.0, "seen": 1.0, "paid": 1.0, "ends": 0.0, "over": 0.0}
    for envs in villages.values():
        envs.reset(seed=5, options=often)
        envs.step([{}] * ENVS)
        observations, infos = envs.reset(seed=[None, 77, 88], indices=[2, 1])
        assert [list(infos[k]["a"].values()) for k in range(2)] == [[0], [0]]
        for number, seed in ((0, 88), (1, 77)):
            alone, _ = Village().reset(seed=seed, options=often)
            assert all((observations[number][agent] == alone[agent]).all() for agent in AGENTS)
        times = [own["a"][0] for own in envs.step([{}] * ENVS)[0]]
        assert times == [2.0, 1.0, 1.0]


def test_seeds_follow_one_another_or_are_given(villages):
    for envs in villages.values():
        for seed, each in ((7, [7, 8, 9]), ([3, 1, 2], [3, 1, 2]), (np.int64(7), [7, 8, 9])):
            observations, _ = envs.reset(seed=seed, options={"born": 1.0})
            alone = [Village().reset(seed=own, options={"born": 1.0})[0] for own in each]
            assert [own["d"].tolist() for own in observations] == [own["d"].tolist() for own in alone]


def test_spaces_and_methods(villages):
    for mode, envs in villages.items():
        envs.reset(seed=0)
        assert envs.num_envs == ENVS and envs.possible_agents == AGENTS and envs.mode == mode
        assert envs.single_observation_space["c"] == Box(-np.inf, np.inf, (3,), np.float64)
        assert envs.action_spaces == dict.fromkeys(AGENTS, Discrete(5)) == dict(envs.single_action_space.spaces)
        assert envs.render() == tuple(f"village {number} at 0" for number in range(ENVS))
        assert envs.call("number") == (0, 1, 2) and len(envs.envs) == (ENVS if mode == "sync" else 0)
        assert f"num_envs=3, mode='{mode}'" in repr(envs)
        assert len({id(space) for space in envs.observation_spaces.values()}) == 1  # equal ones are one object
        assert envs.unwrapped is envs
        assert envs.observation_space["c"].shape == (ENVS, 3) and envs.action_space["c"].shape == (ENVS,)


def test_a_failed_reset_is_done_again_by_the_next_step():
    class Late(Village):
        def reset(self, *, seed=None, options=None):
            if options == {"fail": self.number}:
                raise ConnectionError("not up yet")
            return super().reset(seed=seed)

    envs = VectorMultiAgentEnv([partial(Late, 0), partial(Late, 1)])
    with pytest.raises(ConnectionError, match=r"number 1 of 2, failed in reset\(\):\nnot up yet"):
        envs.reset(seed=0, options={"fail": 1})
    assert envs.ended.tolist() == [False, True]
    assert envs.try_step([{}] * 2).was_reset.tolist() == [False, True]


def test_interrupted_steps_are_none():
    class Interrupted(Village):
        def step(self, action_dict):
            if self.number == 1 and self.time == 1:
                raise KeyboardInterrupt
            return super().step(action_dict)

    envs = VectorMultiAgentEnv([partial(Interrupted, 0), partial(Interrupted, 1)])
    envs.reset(seed=0, options={"born": 1.0, "seen": 1.0, "ends": 0.0, "over": 0.0})
    envs.step([{}] * 2)
    with pytest.raises(KeyboardInterrupt):
        envs.step([{}] * 2)
    assert [own["a"][0] for own in envs.step([{}] * 2)[0]] == [0.0, 0.0]


class Other(Village):
    """An agent more, and another space for agent a."""

    def __init__(self, space=None):
        super().__init__()
        self.possible_agents = [*AGENTS, "e"]
        self.observation_spaces["e"], self.action_spaces["e"] = Discrete(2), Discrete(2)
        if space is not None:
            self.action_spaces["a"] = space


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_agents_of_all_environments_with_one_space_each(mode):
    envs = VectorMultiAgentEnv([Village, Other], mode=mode)
    assert envs.possible_agents == [*AGENTS, "e"]
    envs.close()
    with pytest.raises(SpaceError, match=r"number 1, agent 'a'\n.*action space[\s\S]*Discrete\(5\)\n.*Discrete\(2\)"):
        VectorMultiAgentEnv([Village, partial(Other, Discrete(2))], mode=mode)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_what_cannot_be_made_is_named(mode):
    with pytest.raises(ConfigError, match=r"made by <lambda>[\s\S]*None"):
        VectorMultiAgentEnv([Village, lambda: None], mode=mode)
    with pytest.raises(ConfigError, match="environments"):
        VectorMultiAgentEnv([], mode=mode)
    with pytest.raises(ConfigError, match="did you mean 'async'"):
        VectorMultiAgentEnv([Village], mode="asinc")


def test_without_copies_the_arrays_are_the_environments():
    own, lent = (VectorMultiAgentEnv([Village], copy=copy) for copy in (True, False))
    for envs, kept in ((own, 0.0), (lent, 1.0)):
        observations, _ = envs.reset(seed=0, options={"born": 1.0, "seen": 1.0, "ends": 0.0, "over": 0.0})
        envs.step([{}])
        assert observations[0]["a"][0] == kept


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_what_others_returned_is_kept_when_one_fails(mode):
    makers = [partial(Village, 0), partial(Village, 1, fail_at=[2, 1]), partial(Village, 2)]
    envs = VectorMultiAgentEnv(makers, mode=mode, name="village")
    often = {"born": 1.0, "seen": 1.0, "ends": 0.0, "over": 0.0}
    envs.reset(seed=0, options=often)
    assert envs.try_step([{}] * ENVS).failures == {}
    result = envs.try_step([{"a": 0}, {"b": 1, "c": 1}, {}])
    expected = (
        "environment 'village', number 1 of 3, 1 steps into its episode, failed in step() with actions "
        "{'b': 1, 'c': 1}:\nsimulator lost"
    )
    assert list(result.failures) == [1] and isinstance(result.failures[1], ConnectionError)
    assert str(result.failures[1]) == expected
    assert [own["a"][0] if own else None for own in result.observations] == [2.0, None, 2.0]
    assert (result.rewards[1], result.terminateds[1]) == ({}, {"__all__": False}) and not envs.broken
    assert envs.ended.tolist() == [False, True, False] and result.was_reset.tolist() == [False] * 3
    result = envs.try_step([{}] * ENVS)
    assert [own["a"][0] for own in result.observations] == [3.0, 0.0, 3.0] and result.was_reset.tolist() == [0, 1, 0]
    assert result.failures == {} and not envs.ended.any()
    with pytest.raises(ConnectionError, match=r"number 1 of 3, 0 steps into[\s\S]*simulator lost") as caught:
        envs.step([{}] * ENVS)
    if mode == "async":
        assert 'raise ConnectionError("simulator lost")' in "".join(caught.value.__notes__)
    assert envs.ended.tolist() == [False, True, False]
    envs.close()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda envs: envs.step([{}]), r"a list of 2 dicts, each from agent to action\n.*1: dict"),
        (lambda envs: envs.step([{}, 1]), "2: dict, int"),
        (lambda envs: envs.step({"a": 0}), "found: +dict"),
        (lambda envs: envs.step(None), "found: +NoneType"),
        (lambda envs: envs.reset(seed=[1]), r"one for each of 2[\s\S]*1 of them"),
        (lambda envs: envs.reset(indices=[]), r"from 0 to 1[\s\S]*\[\]"),
        (lambda envs: envs.reset(indices=[0, 2]), r"from 0 to 1[\s\S]*\[0, 2\]"),
        (lambda envs: envs.reset(indices=[1, 1]), "each once"),
        (lambda envs: envs.reset(indices=[-1]), "from 0 to 1"),
    ],
)
def test_arguments_that_do_not_fit(call, message):
    envs = VectorMultiAgentEnv([Village] * 2)
    envs.reset()
    with pytest.raises(RunnerError, match=message):
        call(envs)
