"""Random adds and draws of RLlib's replay buffers and of those here, side by side.

Equal: constructors and arguments; counts of episodes and steps that are held, added, drawn and evicted, as long as
nothing is evicted; one-step episodes of n steps (observations, action, discounted sum, flags, start, infos, model
outputs, `n_step`, `weights`) of starts that have n steps left; the rows of sequences; priorities, and the ratios of
importance weights. Different, each with the test that holds it:

| what | RLlib 2.60 | here | test |
|---|---|---|---|
| eviction | whole episodes; the last one stays, whatever its length | the oldest steps of a lane, one by one; an episode of T steps takes T + 1 rows; episodes that run at the same time share the capacity in equal lanes | eviction |
| add while evicting | may raise IndexError or AssertionError | never | eviction |
| n steps, fewer left, uniform | `n_step` = n; flags False unless the start is exactly n before the end | `n_step` = steps left, flags as the episode's | ends_of_n_steps |
| n of 4 and more, many starts with fewer left, uniform | may not return: items near ends are counted as less than none | drawn | ends_of_n_steps |
| n steps, fewer left, prioritised | never drawn; does not return if all episodes are shorter | drawn, with a sum over the steps left | ends_of_n_steps |
| `n_step=(1, 3)` | 1 or 2 | 1, 2 or 3 | random_n |
| id of prioritised transitions | a new one | the episode's | one_step_episodes |
| model outputs of uniform transitions | those of the episode's first step | those of the start | one_step_episodes |
| `include_extra_model_outputs` | default False for transitions | default True | one_step_episodes |
| `include_infos` | False shows infos anyway (uniform) | False: none; True: the buffer was made with `keep_infos=True` | one_step_episodes |
| further column `discounts` | - | gamma^n_step | one_step_episodes |
| `lookback` of transitions | not kept | kept, so that frames can be stacked | lookback |
| `num_items` of sequences | steps, each sequence counting one more | sequences | sequences |
| `min_batch_length_T=m` | starts with more than m steps left | with m or more | sequences |
| `weights` | the highest of the buffer is 1 | the highest of the draw is 1 | weights |
| priorities | of the newest draw, once; below 1e-12 they are 1e-12 | of any draw; 0 is never drawn, negative ones are refused | weights |
| `sample_episodes` | default False, arrays that run over ends of episodes | True; False is an error | arguments |
| `batch_length_T` of the constructor | 64 (uniform) | 1 | arguments |
| metrics | per agent and module too, means over a window | sums of the buffer | counts |
"""  # noqa: E501 - a table

from __future__ import annotations

import inspect
import os
from collections import Counter, deque

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epibatch.core.errors import ReplayError
from epibatch.episodes import replay as here
from oracle.libraries import BOTH

rllib = pytest.importorskip("ray.rllib.utils.replay_buffers")
pytestmark = pytest.mark.filterwarnings("ignore")  # of RLlib, about its own future
CASES = settings(
    max_examples=int(os.environ.get("EPIBATCH_CASES", "4")), derandomize="EPIBATCH_CASES" not in os.environ,
    database=None, deadline=None, suppress_health_check=list(HealthCheck),
)  # fmt: skip
differences_met = Counter()


def random_cases(**strategies):
    return lambda test: CASES(given(**strategies)(test))


seeds = st.integers(0, 2**32 - 1)
KINDS = ("EpisodeReplayBuffer", "PrioritizedEpisodeReplayBuffer")
kinds = st.sampled_from(KINDS)


class Twins:
    """A buffer of each library, filled with the same random episodes and parts of them."""

    def __init__(self, seed, kind, capacity=2048, adds=5, **options):
        self.rng = np.random.default_rng(seed)
        self.kind = kind
        self.theirs = getattr(rllib, kind)(capacity, **options)
        self.theirs.rng = np.random.default_rng(seed)
        self.ours = getattr(here, kind)(capacity, seed=seed, keep_infos=True, **options)
        self.whole = {}  # id -> all steps so far
        self.running = deque()
        self.num_obs = 0
        for _ in range(adds):
            self.add()

    def add(self):
        """Add up to three parts of episodes in one call, new ones or such that go on."""
        parts = []
        for _ in range(int(self.rng.integers(1, 4))):
            goes_on = self.running and self.rng.random() < 0.5
            name = self.running.popleft() if goes_on else f"e{len(self.whole)}"
            parts.append(self._part(name))
        for library, buffer in zip(BOTH, (self.theirs, self.ours)):
            buffer.add([library.SingleAgentEpisode(**part) for part in parts])

    def _part(self, name):
        rng, steps = self.rng, int(self.rng.integers(1, 9))
        episode = self.whole.setdefault(name, {"obs": [self._obs()], "rows": [], "end": (False, False)})
        start = len(episode["rows"])
        for _ in range(steps):
            episode["rows"].append((int(rng.integers(9)), float(rng.integers(-4, 5)) / 2, float(rng.integers(99))))
            episode["obs"].append(self._obs())
        ending = rng.random()
        episode["end"] = bool(ending < 0.3), bool(0.3 < ending < 0.6)
        if not any(episode["end"]):
            self.running.append(name)
        rows = episode["rows"][start:]
        return {
            "id_": name, "t_started": start, "len_lookback_buffer": 0, "observations": episode["obs"][start:],
            "actions": [row[0] for row in rows], "rewards": [row[1] for row in rows],
            "infos": [{"obs": obs.tolist()} for obs in episode["obs"][start:]],
            "extra_model_outputs": {"logp": [row[2] for row in rows]},
            "terminated": episode["end"][0], "truncated": episode["end"][1],
        }  # fmt: skip

    def _obs(self):
        self.num_obs += 1
        return np.array([self.num_obs, self.rng.integers(9)], np.float32)

    def drawn(self, count, **options):
        """What each library draws, by id and start: the last one of each start."""
        first = {"sample_episodes": True} if self.kind == KINDS[0] else {}
        theirs = self.theirs.sample(num_items=count, **first, **options)
        ours = self.ours.sample(num_items=count, **options)
        return [dict(zip(self.keys(episodes), episodes)) for episodes in (theirs, ours)]

    def keys(self, episodes):
        """The id and the step at which each begins, found by its first observation: RLlib's may lack the id."""
        found = {obs[0]: (name, t) for name, e in self.whole.items() for t, obs in enumerate(e["obs"])}
        return [found[e.get_observations(0)[0]] for e in episodes]

    def rllib_returns(self, n):
        """False if a draw of n steps may never be complete: what RLlib counts as drawn can be negative near ends."""
        left = [self.left(key) for key in self.steps()]
        if self.kind == KINDS[1]:
            return max(left) >= n
        return np.mean([1 if k >= n - 1 else (k - n + 2) or 1 for k in left]) > 0.5

    def steps(self):
        return {(name, t) for name, episode in self.whole.items() for t in range(len(episode["rows"]))}

    def left(self, key):
        return len(self.whole[key[0]]["rows"]) - key[1]


class Near(float):
    """A number that equals those within 1e-5: sums of discounted rewards are added up in another order."""

    def __eq__(self, other):
        return abs(self - other) < 1e-5

    __hash__ = None


def facts(episode):
    return {
        "obs": np.asarray(episode.get_observations(slice(0, None))).tolist(),
        "actions": np.asarray(episode.get_actions(slice(0, None))).tolist(),
        "rewards": [Near(reward) for reward in episode.get_rewards(slice(0, None))],
        "flags": (bool(episode.is_terminated), bool(episode.is_truncated)),
        "length": len(episode),
        "infos": [dict(info) for info in episode.get_infos(slice(0, None))],
    }


def output(episode, name):
    return np.asarray(episode.get_extra_model_outputs(name, slice(0, None))).tolist()


@random_cases(seed=seeds, kind=kinds)
def test_counts(seed, kind):
    twins = Twins(seed, kind, adds=0)
    for _ in range(6):
        twins.add()
        if kind == KINDS[0] or twins.rng.random() < 0.5:
            twins.drawn(int(twins.rng.integers(1, 9)), n_step=1)
        for name in ("num_episodes", "num_timesteps", "added_timesteps", "sampled_timesteps", "num_episodes_evicted"):
            theirs, ours = (getattr(buffer, f"get_{name}") for buffer in (twins.theirs, twins.ours))
            assert theirs() == ours() == theirs(module_id="x") == ours(module_id="x"), name
        assert len(twins.theirs) == len(twins.ours) == len(twins.steps())
    theirs, ours = twins.theirs.get_metrics(), twins.ours.get_metrics()
    assert {*ours} <= {*theirs}
    for name, value in ours.items():
        metric = theirs[name]
        if not name.endswith("_stored"):  # means over a window there
            assert float(getattr(metric, "peek", lambda metric=metric: metric)()) == value, name


@random_cases(seed=seeds, kind=kinds, n=st.integers(1, 4), gamma=st.sampled_from([0.5, 0.99, 1.0]))
def test_one_step_episodes(seed, kind, n, gamma):
    twins = Twins(seed, kind, adds=3)
    if not twins.rllib_returns(n):
        return
    options = {"n_step": n, "gamma": gamma, "include_infos": True, "include_extra_model_outputs": True}
    theirs, ours = twins.drawn(150, **options)
    for key in theirs.keys() & ours.keys():
        if twins.left(key) < n:
            continue
        assert facts(theirs[key]) == facts(ours[key]) and theirs[key].t_started == ours[key].t_started == key[1]
        assert ours[key].id_ == key[0] and (theirs[key].id_ == key[0]) == (kind == KINDS[0])
        assert output(theirs[key], "n_step") == output(ours[key], "n_step") == [n]
        assert output(theirs[key], "weights") == output(ours[key], "weights") == [1]
        at_start = twins.whole[key[0]]["rows"][key[1]][2]
        assert output(ours[key], "logp") == [at_start]
        if output(theirs[key], "logp") != [at_start]:
            differences_met["model outputs of uniform transitions"] += 1
            assert kind == KINDS[0] and output(theirs[key], "logp") == [twins.whole[key[0]]["rows"][0][2]]
        assert {*ours[key].extra_model_outputs} - {*theirs[key].extra_model_outputs} == {"discounts"}
        np.testing.assert_allclose(output(ours[key], "discounts"), [gamma**n], rtol=1e-6)
    _, ours = twins.drawn(5, n_step=n if kind == KINDS[0] else 1)
    assert all("logp" in e.extra_model_outputs and not any(e.get_infos()) for e in ours.values())


@random_cases(seed=seeds, kind=kinds, n=st.integers(2, 5))
def test_ends_of_n_steps(seed, kind, n):
    twins = Twins(seed, kind, adds=3)
    if not twins.rllib_returns(n):
        ours = twins.ours.sample(50, n_step=n, gamma=1.0)
        assert all(output(e, "n_step")[0] <= n for e in ours)
        return
    theirs, ours = twins.drawn(150, n_step=n, gamma=1.0)
    for key, episode in ours.items():
        left, rows = twins.left(key), twins.whole[key[0]]
        if left >= n:
            continue
        differences_met["ends of n steps"] += 1
        assert facts(episode)["flags"] == rows["end"] and output(episode, "n_step") == [left]
        assert facts(episode)["obs"] == [rows["obs"][key[1]].tolist(), rows["obs"][-1].tolist()]
        assert facts(episode)["rewards"] == [sum(row[1] for row in rows["rows"][key[1] :])]
        if kind == KINDS[1]:
            assert key not in theirs
        elif key in theirs:
            assert facts(theirs[key])["flags"] == (False, False) and output(theirs[key], "n_step") == [n]


@random_cases(seed=seeds, kind=kinds)
def test_random_n(seed, kind):
    twins = Twins(seed, kind, adds=3)
    if max(map(twins.left, twins.steps())) < 3:
        return
    theirs, ours = twins.drawn(150, n_step=(1, 3), gamma=0.9)
    numbers = [{output(e, "n_step")[0] for e in drawn.values()} for drawn in (theirs, ours)]
    assert numbers[0] <= {1, 2} and numbers[1] <= {1, 2, 3}
    differences_met["random n"] += 3 in numbers[1]


@random_cases(seed=seeds, length=st.integers(2, 6), shortest=st.integers(0, 3))
def test_sequences(seed, length, shortest):
    twins = Twins(seed, KINDS[0], adds=3)
    if max(map(twins.left, twins.steps())) <= shortest:
        return  # RLlib would not return
    options = {"batch_length_T": length, "n_step": 1, "min_batch_length_T": shortest, "include_infos": True}
    theirs, ours = twins.drawn(150, **options)
    for key in theirs.keys() & ours.keys():
        assert facts(theirs[key]) == facts(ours[key]), key
        assert output(theirs[key], "logp") == output(ours[key], "logp")
    assert {key for key in ours if twins.left(key) < shortest} == set()
    assert not shortest or {key for key in theirs if twins.left(key) <= shortest} == set()
    assert len(twins.ours.sample(7, **options)) == 7


@random_cases(seed=seeds, lookback=st.integers(1, 4), n=st.integers(1, 3))
def test_lookback(seed, lookback, n):
    twins = Twins(seed, KINDS[0], adds=3)
    theirs, ours = twins.drawn(30, n_step=n, lookback=lookback)
    assert all(e.observations.lookback == 0 for e in theirs.values())
    for (name, t), episode in ours.items():
        before = np.asarray(episode.get_observations(slice(-min(lookback, t), 0), neg_index_as_lookback=True))
        assert episode.observations.lookback == min(lookback, t)
        assert before.tolist() == [obs.tolist() for obs in twins.whole[name]["obs"][max(t - lookback, 0) : t]]


@random_cases(seed=seeds, alpha=st.sampled_from([0.0, 0.6, 1.0]), beta=st.sampled_from([0.0, 0.4, 1.0]))
def test_weights(seed, alpha, beta):
    """After all steps got the same priorities in both; some of them late here."""
    twins = Twins(seed, KINDS[1], adds=2, alpha=alpha)
    priorities = {key: float(twins.rng.integers(1, 9)) for key in sorted(twins.steps())}
    known = [set(), set()]
    for _ in range(4):
        theirs = twins.theirs.sample(num_items=100, n_step=1)
        ours = [twins.ours.sample(num_items=100, n_step=1), twins.ours.sample(num_items=5)]
        twins.theirs.update_priorities(np.array([priorities[key] for key in twins.keys(theirs)]))
        for drawn in ours:
            twins.ours.update_priorities([priorities[key] for key in twins.keys(drawn)], drawn)
        for keys, drawn in zip(known, (theirs, ours[0])):
            keys.update(twins.keys(drawn))
    if not known[0] == known[1] == twins.steps():
        return
    for drawn in twins.drawn(40, n_step=1, beta=beta):
        weights = np.array([output(e, "weights")[0] for e in drawn.values()])
        expected = np.array([priorities[key] for key in drawn]) ** -(alpha * beta)
        np.testing.assert_allclose(weights / weights.max(), expected / expected.max(), rtol=1e-5)
    assert twins.ours.sample(40, beta=beta).per_chunk["weights"].max() == 1


@random_cases(seed=seeds, capacity=st.integers(10, 40))
def test_eviction(seed, capacity):
    """Both hold the newest; never more than the capacity here, which counts the last observations too."""
    twins = Twins(seed, KINDS[0], capacity, adds=0)
    for _ in range(8):
        try:
            twins.add()
        except (IndexError, AssertionError):  # of RLlib, before anything was added here
            differences_met["add while evicting"] += 1
            return
        ours = twins.ours
        assert len(ours) + 1 <= capacity
        assert len(ours) == ours.get_added_timesteps() - ours.get_metrics()["num_env_steps_evicted_lifetime"]
        assert ours.get_num_episodes() == len({*ours.sample(60 * capacity).ids})
        assert ours.get_num_episodes_evicted() >= len(twins.whole) - ours.get_num_episodes()
        differences_met["eviction"] += len(ours) != len(twins.theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_arguments(kind):
    """All of RLlib's arguments are taken, with the same defaults but those of the table."""
    for method in ("__init__", "sample", "add", "update_priorities"):
        if not hasattr(getattr(rllib, kind), method):
            continue
        theirs, ours = (inspect.signature(getattr(getattr(m, kind), method)).parameters for m in (rllib, here))
        inherited = inspect.signature(here.EpisodeReplayBuffer.__init__).parameters if "options" in ours else {}
        ours = {**inherited, **ours}
        missing = {n for n, p in theirs.items() if p.kind is not p.VAR_KEYWORD} - {*ours}
        assert not missing
        changed = {
            n for n, p in theirs.items() if n in ours and ours[n].default not in (p.default, inspect.Parameter.empty)
        }
        assert changed <= {"batch_length_T", "sample_episodes", "include_extra_model_outputs", "to_numpy"}, changed
    with pytest.raises(ReplayError, match="learner pipeline"):
        here.EpisodeReplayBuffer().sample(2, sample_episodes=False)
