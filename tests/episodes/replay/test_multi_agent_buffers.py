"""Replay of several agents that come and go, beside lists that are kept by hand and whole-episode pipelines."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from fixture_cases import slow_but
from gymnasium.spaces import Box, Discrete

from epibatch.connectors import ConnectorV2
from epibatch.connectors.common import AddOtherAgentsFromEpisodesToBatch
from epibatch.connectors.learner import AddNextObservationsFromEpisodesToTrainBatch, default_pipeline
from epibatch.connectors.replay import NStepReturns
from epibatch.core import load_state, save_state
from epibatch.core.errors import (
    BatchLayoutError,
    CheckpointError,
    ColumnError,
    ReplayError,
    SpaceError,
    UnknownNameError,
)
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode, VectorEpisodes
from epibatch.episodes.replay import MultiAgentEpisodeReplayBuffer, MultiAgentPrioritizedEpisodeReplayBuffer

MODULES = {"a": "one", "b": "one", "c": "two", "d": "three"}
COLUMNS = ("obs", "actions", "rewards", "new_obs", "terminateds", "truncateds")


def module_of(agent_id, episode=None, **_):
    return MODULES[agent_id]


class Agent:
    """One life of an agent, by hand."""

    def __init__(self, obs, env_t):
        self.obs, self.env_t, self.action, self.reward = obs, env_t, None, 0.0
        self.steps = []  # [env step, obs, action, reward, new_obs, terminated, truncated]

    def observe(self, obs, env_t):
        self.steps.append([self.env_t, self.obs, self.action, self.reward, obs, False, False])
        self.obs, self.env_t, self.action, self.reward = obs, env_t, None, 0.0

    def end(self, terminated, truncated):
        if self.action is not None:  # it ended without an observation, and has its last one again
            self.observe(self.obs, self.env_t)
        if self.steps:
            self.steps[-1][5:] = terminated, truncated


class Game:
    """A random episode of several agents: whole, in parts as runners deliver them, and by hand."""

    def __init__(self, rng, name):
        self.rng, self.name, self.live, self.lives, self.env_t, self.done = rng, name, {}, [], 0, False
        self.part = MultiAgentEpisode(id_=name, agent_to_module_mapping_fn=module_of)
        self.whole = MultiAgentEpisode(id_=name, agent_to_module_mapping_fn=module_of)
        obs = {agent: self.number() for agent in MODULES if rng.random() < 0.6} or {"a": self.number()}
        for episode in (self.part, self.whole):
            episode.add_env_reset(observations=obs)
        for agent, value in obs.items():
            self.begin(agent, value)

    def number(self):
        return float(self.rng.integers(10**9))

    def begin(self, agent, obs):
        self.live[agent] = Agent(obs, self.env_t)
        self.lives.append((MODULES[agent], self.live[agent]))

    def step(self):
        rng, before = self.rng, set(self.live)
        self.env_t += 1
        actions = {name: int(rng.integers(10**6)) for name, agent in self.live.items() if agent.action is None}
        end = rng.random() < 0.06
        terminated = bool(rng.random() < 0.5)
        observed = {name for name in self.live if rng.random() < 0.6 or (end and not terminated)}
        observed |= {name for name in MODULES if name not in self.live and rng.random() < 0.15}
        obs = {name: self.number() for name in MODULES if name in observed}
        rewards = {name: float(rng.integers(-9, 9)) for name in self.live if name in observed or rng.random() < 0.5}
        ends = {name: rng.random() for name in self.live if not end and rng.random() < 0.15}
        terminateds = {name: True for name, number in ends.items() if number < 0.5}
        truncateds = {name: True for name, number in ends.items() if number >= 0.5 and name in observed}
        if end:
            (terminateds if terminated else truncateds)["__all__"] = True
        for episode in (self.part, self.whole):
            episode.add_env_step(obs, actions, rewards, terminateds=terminateds, truncateds=truncateds)
        for name, agent in list(self.live.items()):
            agent.action = actions.get(name, agent.action)
            agent.reward += rewards.get(name, 0.0)
            if name in obs:
                agent.observe(obs[name], self.env_t)
            flags = name in terminateds, name in truncateds
            if any(flags) or end:
                agent.end(*(flags if any(flags) else (terminated, not terminated)))
                del self.live[name]
        for name in () if end else observed - before:
            self.begin(name, obs[name])
        self.done = self.whole.is_done

    def deliver(self):
        """The part since the last delivery."""
        part = self.part
        if not self.done:
            self.part = part.cut(len_lookback_buffer=int(self.rng.integers(0, 3)))
        return part

    def rows(self):
        """(module, env step) -> rows, of all complete steps."""
        for module, agent in self.lives:
            for env_t, *row in agent.steps:
                yield module, (self.name, env_t), tuple(row)


def play(rng, buffers, games=3, steps=25, source=0):
    """Let games go on in turns; their parts are added as they come. Returns all games."""
    number, running, played = 0, [], []
    for _ in range(int(rng.integers(3, steps))):
        while len(running) < games:
            running.append(Game(rng, f"{source}-{number}"))
            played.append(running[-1])
            number += 1
        delivered = []
        for game in running:
            for _ in range(int(rng.integers(1, 5))):
                if not game.done:
                    game.step()
            if rng.random() < 0.8 or game.done:
                delivered.append(game.deliver())
        running = [game for game in running if not game.done]
        for buffer in buffers:
            buffer.add(delivered, source=source)
    last = [game.deliver() for game in running]
    for buffer in buffers:
        buffer.add(last, source=source)
    return played


def rows_of(batch, names=COLUMNS):
    """The rows of a train batch by module: lists of tuples of numbers."""
    return {
        module: list(zip(*(np.asarray(columns[name]).tolist() for name in names))) for module, columns in batch.items()
    }


def learned(episodes, *pieces, names=COLUMNS):
    pieces = pieces or (AddNextObservationsFromEpisodesToTrainBatch(),)
    pipeline = default_pipeline(connectors=pieces, advantages=False, rl_module_specs=set(MODULES.values()))
    return rows_of(pipeline(rl_module=None, batch={}, episodes=episodes), names)


def by_module(games):
    found = {}
    for game in games:
        for module, _, row in game.rows():
            found.setdefault(module, []).append(row)
    return found


def check_draws(seed):
    """Independent draws have the rows that lists have, and that the pipeline makes of whole episodes."""
    rng = np.random.default_rng(seed)
    buffer = MultiAgentEpisodeReplayBuffer(2000, seed=seed)
    games = play(rng, [buffer], steps=10)
    expected = by_module(games)
    assert {module: buffer.get_num_timesteps(module) for module in buffer.get_module_ids()} == {
        module: len(rows) for module, rows in expected.items()
    }
    if not expected:
        return
    drawn = learned(buffer.sample(25 * max(map(len, expected.values()))))
    assert {module: set(rows) for module, rows in drawn.items()} == {m: set(rows) for m, rows in expected.items()}
    whole = [game.whole for game in games]
    assert {module: sorted(rows) for module, rows in learned(whole).items()} == {
        m: sorted(r) for m, r in expected.items()
    }


def check_env_steps(seed):
    """Synchronised draws have all steps that began in an env step, and no others."""
    rng = np.random.default_rng(seed)
    buffer = MultiAgentEpisodeReplayBuffer(2000, seed=seed)
    games = play(rng, [buffer], steps=10)
    modules = [m for m in buffer.get_module_ids() if rng.random() < 0.7] or buffer.get_module_ids()
    expected = {}
    for game in games:
        for module, at, row in game.rows():
            if module in modules:
                expected.setdefault(at, []).append((module, row))
    if not expected:
        return
    drawn = buffer.sample(60, replay_mode="synchronized", modules_to_sample=modules)
    found = {}
    for module, rows in learned(drawn).items():
        for draw, row in zip(drawn.draws[module].tolist(), rows, strict=True):
            found.setdefault(draw, []).append((module, row))
    assert sorted(found) == list(range(60))
    every = {tuple(sorted(rows)) for rows in expected.values()}
    assert {tuple(sorted(rows)) for rows in found.values()} <= every
    if len(expected) < 6:
        assert len({tuple(sorted(rows)) for rows in found.values()}) == len(every)


def check_n_steps(seed):
    """n-step returns of draws are those of whole episodes, in buffers that hold all and in small ones."""
    rng = np.random.default_rng(seed)
    capacity = int(rng.choice([2000, 60]))
    buffer = MultiAgentEpisodeReplayBuffer(capacity, seed=seed)
    games = play(rng, [buffer], games=2, steps=10)
    expected = by_module(games)
    if not expected:
        return
    count, names = int(rng.integers(1, 6)), (*COLUMNS, "n_step", "discounts")
    piece = NStepReturns(n_step=count, gamma=0.5)
    whole = learned([game.whole for game in games], piece, names=names)
    drawn = learned(buffer.sample(25 * max(map(len, expected.values()))), piece, names=names)
    for module, rows in drawn.items():
        assert set(rows) <= set(whole[module])
        assert len(set(rows)) == buffer.get_num_timesteps(module) <= capacity


@pytest.mark.parametrize("check", [check_draws, check_env_steps, check_n_steps])
@pytest.mark.parametrize("first", slow_but([80], range(0, 100, 20)))
def test_draws_have_the_rows_of_whole_episodes(check, first):
    for seed in range(first, first + 20):
        check(seed)


# -- what else a buffer does ---------------------------------------------------------------------------


def two_agents(id_="e", steps=3, obs_of=float, **options):
    """`a` of module `one` and `c` of module `two` act in every env step; observations count up."""
    numbers = [{"a": obs_of(10 * t), "c": obs_of(10 * t + 1)} for t in range(steps + 1)]
    return MultiAgentEpisode(
        id_=id_, observations=numbers, actions=[{"a": t, "c": t} for t in range(steps)],
        rewards=[{"a": 1.0, "c": 2.0}] * steps, terminateds=True, len_lookback_buffer=0,
        agent_to_module_mapping_fn=module_of, **options,
    )  # fmt: skip


class SeesEpisodes(ConnectorV2):
    """Doubles rewards as pieces of other libraries do, and keeps what it saw."""

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        self.seen = [(part.multi_agent_episode_id, part.agent_id, part.module_id) for part in episodes]
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            episode.set_rewards(new_data=[2 * float(r) for r in episode.get_rewards()])
            self.add_batch_item(batch, "start", item_to_add=episode.t_started, single_agent_episode=episode)
        return batch


def test_plain_pieces_see_single_agent_episodes_and_may_change_them():
    buffer = MultiAgentEpisodeReplayBuffer(100, seed=0)
    buffer.add([two_agents("e"), two_agents("f")])
    drawn, piece = buffer.sample(9), SeesEpisodes()
    batch = learned(drawn, piece, names=("obs", "rewards", "start"))
    assert {key[1:] for key in piece.seen} == {("a", "one"), ("c", "two")} and {k[0] for k in piece.seen} == {"e", "f"}
    assert len(piece.seen) == 18
    for module, reward in (("one", 2.0), ("two", 4.0)):
        starts = drawn.by_module[module].starts.tolist()
        assert batch[module] == [(10.0 * t + (module == "two"), reward, t) for t in starts]
    assert {float(r) for part in drawn for r in part.get_rewards()} == {1.0, 2.0}, "the buffer has what it had"


def test_pieces_that_need_other_agents_say_that_drawn_steps_have_none():
    buffer = MultiAgentEpisodeReplayBuffer(100, seed=0)
    buffer.add(two_agents(obs_of=lambda t: np.full(2, t, np.float32)))
    piece = AddOtherAgentsFromEpisodesToBatch(agent_ids=["a", "c"], as_learner_connector=True)
    with pytest.raises(BatchLayoutError, match="3 episodes of one agent each"):
        learned(buffer.sample(3), piece)


def test_sequences_of_an_agent_stop_where_its_episode_does():
    rng = np.random.default_rng(3)
    buffer = MultiAgentEpisodeReplayBuffer(2000, seed=3, batch_length_T=4)
    games = play(rng, [buffer], steps=12)
    after = {row[0]: row[3] for rows in by_module(games).values() for row in rows}
    every = {row[0]: row for rows in by_module(games).values() for row in rows}
    drawn = [*buffer.sample(150), *buffer.sample(50, replay_mode="synchronized")]
    assert max(map(len, drawn)) == 4
    for part in drawn:
        obs = part.get_observations().tolist()
        assert [after[o] for o in obs[:-1]] == obs[1:]
        last = every[obs[-2]]
        assert (part.is_terminated, part.is_truncated) == last[-2:]
        assert len(part) == 4 or part.is_done or obs[-1] not in every


@pytest.mark.parametrize("kind", [MultiAgentEpisodeReplayBuffer, MultiAgentPrioritizedEpisodeReplayBuffer])
def test_a_restored_buffer_goes_on_bit_for_bit(kind, tmp_path, shown):
    rng = np.random.default_rng(1)
    buffer, again = kind(80, seed=4), kind(80, seed=99)
    play(rng, [buffer], steps=8)
    drawn = buffer.sample(30)
    if kind is MultiAgentPrioritizedEpisodeReplayBuffer:
        buffer.update_priorities({name: rng.random(30) for name in drawn.by_module}, drawn=drawn)
    save_state(tmp_path / "buffer", buffer.get_state())
    again.set_state(load_state(tmp_path / "buffer"))
    play(rng, [buffer, again], steps=8, source=1)
    for mode in ("independent", "synchronized"):
        one, other = (each.sample(40, replay_mode=mode) for each in (buffer, again))
        assert one.by_module.keys() == other.by_module.keys()
        for module, chunks in one.by_module.items():
            assert chunks.drawn.tolist() == other.by_module[module].drawn.tolist()
            assert list(chunks.agents) == list(other.by_module[module].agents)
        assert one.ids == other.ids
    np.testing.assert_equal(shown(buffer.get_state()), shown(again.get_state()))
    before = shown(again.get_state())
    for spoil in (
        lambda s: s.pop("counts"),
        lambda s: s["modules"][0][1]["lanes"].pop("bounds"),
        lambda s: s["modules"].append(3),
        lambda s: s.update(running=[["0", "x", -1]]),
        lambda s: s.update(generator={}),
    ):
        state = buffer.get_state()
        spoil(state)
        with pytest.raises(CheckpointError):
            again.set_state(state)
        np.testing.assert_equal(shown(again.get_state()), before)


def test_priorities_are_each_modules_own():
    buffer = MultiAgentPrioritizedEpisodeReplayBuffer(100, alpha=1.0, seed=0)
    buffer.add(two_agents(steps=4))
    early = buffer.sample(60)
    late = buffer.sample(60, replay_mode="synchronized", beta=0.4)
    shares = {"one": [1.0, 0.0, 3.0, 0.0], "two": [0.0, 2.0, 0.0, 0.0]}
    buffer.update_priorities(np.zeros(60), "two")  # of the newest draw
    buffer.update_priorities({m: np.take(p, early.by_module[m].starts) for m, p in shares.items()}, drawn=early)
    assert late.by_module["one"].drawn.shape == (60,)
    drawn = buffer.sample(4000, beta=1.0)
    for module, chunks in drawn.by_module.items():
        found = np.bincount(chunks.starts, minlength=4) / 4000
        expected = np.array(shares[module]) / sum(shares[module])
        np.testing.assert_allclose(found, expected, atol=0.03)
        weights = np.where(expected > 0, 1 / np.maximum(expected, 0.1), 0)[chunks.starts]
        np.testing.assert_allclose(chunks.per_chunk["weights"], weights / weights.max(), rtol=1e-6)


def test_wrong_draws_and_priorities_are_named():
    buffer = MultiAgentPrioritizedEpisodeReplayBuffer(100, seed=0)
    with pytest.raises(ReplayError, match="an agent's step"):
        buffer.sample(1)
    with pytest.raises(ReplayError, match="priorities by module"):
        buffer.update_priorities({})
    buffer.add(two_agents())
    with pytest.raises(UnknownNameError, match="'one', 'two'"):
        buffer.sample(1, modules_to_sample=["one", "three"])
    with pytest.raises(ReplayError, match="'independent' or 'synchronized'"):
        buffer.sample(1, replay_mode="both")
    with pytest.raises(ReplayError):
        buffer.sample(1, replay_mode="synchronized", min_batch_length_T=9)
    with pytest.raises(UnknownNameError):
        buffer.get_num_timesteps("three")
    drawn = buffer.sample(3, modules_to_sample=["one"])
    before = buffer.get_state()
    for wrong in (
        {"two": np.ones(3)},
        {"one": np.ones(2)},
        {"one": [1.0, np.nan, 1.0]},
        {"one": np.ones(3), "two": np.ones(3)},
        np.ones(3),
    ):
        with pytest.raises(ReplayError):
            buffer.update_priorities(wrong, drawn=drawn)
    both = buffer.sample(3)
    with pytest.raises(ReplayError):
        buffer.update_priorities({"one": np.zeros(3), "two": -np.ones(3)}, drawn=both)
    after = buffer.get_state()
    for old, new in zip(before["modules"], after["modules"], strict=True):
        np.testing.assert_equal(old[1]["priorities"], new[1]["priorities"])


def with_space(space, agent):
    spaces = {agent: space}
    obs = {agent: space.sample()}
    return MultiAgentEpisode(
        observations=[obs, obs], actions=[{agent: 0}], rewards=[{agent: 0.0}], observation_space=spaces,
        action_space={agent: Discrete(2)}, len_lookback_buffer=0, agent_to_module_mapping_fn=module_of,
    )  # fmt: skip


def test_episodes_that_do_not_fit_are_named_and_leave_the_buffer_as_it_was(shown):
    buffer = MultiAgentEpisodeReplayBuffer(24, seed=0)
    single = SingleAgentEpisode(observations=[0, 1], actions=[0], rewards=[0.0], len_lookback_buffer=0)
    vector = VectorEpisodes.from_arrays(
        np.zeros((3, 2)), np.zeros((2, 2)), np.zeros((2, 2)), *np.zeros((2, 2, 2), bool)
    )
    good = two_agents("good")
    for wrong in (single, [single], [good, single], vector):
        with pytest.raises(ReplayError, match="multi-agent episodes"):
            buffer.add(wrong)
    assert len(buffer) == 0 and buffer.get_module_ids() == [] and buffer.get_num_episodes() == 0
    buffer.add(good)
    before = shown(buffer.get_state())
    other = MultiAgentEpisode(  # module `one` fits, module `two` does not
        observations=[{"a": 0.0, "c": [0.0]}, {"a": 1.0, "c": [1.0]}], actions=[{"a": 0, "c": 0}],
        rewards=[{"a": 1.0, "c": 1.0}], len_lookback_buffer=0, agent_to_module_mapping_fn=module_of,
    )  # fmt: skip
    with pytest.raises(ColumnError, match="obs"):
        buffer.add([two_agents("f"), other])
    for old, new in zip(before["modules"], shown(buffer.get_state())["modules"], strict=True):
        np.testing.assert_equal(old[1]["lanes"], new[1]["lanes"])
    assert buffer.get_added_timesteps() == 3 and buffer.get_num_episodes() == 1
    assert {part.multi_agent_episode_id for part in buffer.sample(20)} == {"good"}
    spaces = MultiAgentEpisodeReplayBuffer(24, seed=0)
    spaces.add(with_space(Box(-1, 1, (2,)), "a"))
    with pytest.raises(SpaceError, match="agent 'b'"):
        spaces.add(with_space(Box(-2, 2, (2,)), "b"))
    spaces.add([with_space(Box(-1, 1, (2,)), "b"), with_space(Box(-2, 2, (2,)), "c")])
    assert spaces.get_num_timesteps("one") == 2 and spaces.get_num_timesteps("two") == 1
    tiny = MultiAgentEpisodeReplayBuffer(4, seed=0)
    running = [with_space(Discrete(5), agent) for agent in "abab"]
    with pytest.raises(ReplayError, match="raise it"):
        tiny.add(running)
    with pytest.raises(ReplayError, match="at least 2"):
        MultiAgentEpisodeReplayBuffer(1)


def test_an_agent_that_ends_without_a_step_ends_its_newest_one():
    """The end arrives in a part of its own, in which nobody acted."""
    buffer = MultiAgentEpisodeReplayBuffer(100, seed=0)
    episode = MultiAgentEpisode(agent_to_module_mapping_fn=module_of)
    episode.add_env_reset(observations={"a": 0.0, "c": 1.0})
    episode.add_env_step({"a": 2.0, "c": 3.0}, {"a": 0, "c": 0}, {"a": 0.0, "c": 0.0})
    later = episode.cut()
    buffer.add(episode)
    assert not any(part.is_done for part in buffer.sample(2))
    later.truncate()
    buffer.add(later)
    assert all(part.is_truncated and not part.is_terminated for part in buffer.sample(2))


def test_draws_are_counted_by_module():
    buffer = MultiAgentEpisodeReplayBuffer(100, seed=0)
    buffer.add(two_agents())
    buffer.sample(5)
    buffer.sample(3, modules_to_sample=["one"])
    buffer.sample(4, replay_mode="synchronized")
    assert [buffer.get_sampled_timesteps(name) for name in ("one", "two", None)] == [12, 9, 12]


@pytest.mark.parametrize("mode", ["independent", "synchronized"])
def test_no_python_runs_for_each_drawn_row(mode):
    buffer = MultiAgentPrioritizedEpisodeReplayBuffer(1000, seed=0)
    buffer.add([two_agents(f"e{number}", steps=9) for number in range(20)])
    pieces = (NStepReturns(n_step=3, gamma=0.9),)
    pipeline = default_pipeline(connectors=pieces, advantages=False, rl_module_specs=set(MODULES.values()))

    def calls(count):
        found = []
        sys.setprofile(lambda frame, event, arg: found.append(event))
        drawn = buffer.sample(count, replay_mode=mode)
        pipeline(rl_module=None, batch={}, episodes=drawn)
        buffer.update_priorities({name: np.ones(len(rows)) for name, rows in drawn.by_module.items()})
        sys.setprofile(None)
        return len(found)

    calls(8)
    assert calls(900) < 1.1 * calls(30)


def test_a_refused_episode_leaves_all_modules_as_they_were(shown):
    buffer = MultiAgentEpisodeReplayBuffer(200, seed=0)
    buffer.add(two_agents("good"))
    lanes = {name: own.lanes.num_lanes for name, own in buffer.buffers.items()}
    before = shown(buffer.get_state())
    other = MultiAgentEpisode(  # module `one` fits, module `two` does not
        observations=[{"a": 0.0, "c": [0.0]}, {"a": 1.0, "c": [1.0]}], actions=[{"a": 0, "c": 0}],
        rewards=[{"a": 1.0, "c": 1.0}], len_lookback_buffer=0, agent_to_module_mapping_fn=module_of,
    )  # fmt: skip
    with pytest.raises(ColumnError, match="obs"):
        buffer.add([*(two_agents(f"new {i}") for i in range(5)), other])
    assert {name: own.lanes.num_lanes for name, own in buffer.buffers.items()} == lanes
    np.testing.assert_equal(shown(buffer.get_state()), before)


def test_new_steps_of_agents_have_the_highest_priority_so_far():
    buffer = MultiAgentPrioritizedEpisodeReplayBuffer(200, alpha=1.0, seed=0)
    buffer.add(two_agents("first"))
    drawn = buffer.sample(20)
    buffer.update_priorities({name: np.full(20, 100.0) for name in drawn.by_module}, drawn=drawn)
    buffer.add(two_agents("second"))
    for _, state in buffer.get_state()["modules"]:
        newest = np.sort(state["priorities"])[::-1]
        assert (newest[: len(newest) // 4] == 100).all()


@pytest.mark.parametrize(
    "options",
    [{"num_items": 3, "batch_size_B": 7}, {"num_items": -1}, {"replay_mode": "synchronized", "n_step": 3}],
    ids=["both", "negative", "another option"],
)
def test_arguments_of_draws_are_named(options):
    buffer = MultiAgentEpisodeReplayBuffer(200, seed=0)
    buffer.add(two_agents("good"))
    with pytest.raises(ReplayError, match=r"MultiAgentEpisodeReplayBuffer\.sample"):
        buffer.sample(**options)
