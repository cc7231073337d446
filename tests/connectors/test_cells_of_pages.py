"""Random batches of all kinds: each cell in a page's data names the step whose values it holds, and what it sees."""

from __future__ import annotations

import json

import numpy as np
import pytest

from epibatch.connectors.common import AgentToModuleMapping, FrameStacking
from epibatch.connectors.learner import LearnerConnectorPipeline
from epibatch.connectors.replay import NStepReturns
from epibatch.core.rl_module import MultiRLModule, RLModuleSpec
from epibatch.episodes import MultiAgentEpisode
from epibatch.episodes.replay import EpisodeReplayBuffer
from fixture_pieces import Lab

GAMMA = 0.5
PADDING, BOOTSTRAP, REPEATED = 0, 2, 3


def data_of(pieces, episodes, module=None):
    """The data of the page, as the page reads it."""
    pipeline = LearnerConnectorPipeline(connectors=pieces)
    return json.loads(pipeline.inspect(episodes, Lab.module() if module is None else module).to_json())


def cells_of(data, module_id="default_policy"):
    """(values by column, chunk, step, kind, steps seen, rewards seen) of each cell that is no padding."""
    grid = data["grids"][module_id]
    assert len(grid["kind"]) == np.prod(grid["shape"])
    seen = grid["seen"]
    for cell, (number, step, kind) in enumerate(zip(grid["chunk"], grid["at"], grid["kind"])):
        values = {name: column[cell] for name, column in grid["columns"].items()}
        if kind == PADDING:
            assert number == step == -1 and not any(values.values())
        else:
            observations, rewards = (seen[what].get(str(cell), []) for what in ("obs", "rewards"))
            yield values, data["chunks"][number], step, kind, observations, rewards


def observation(offset, t):
    return [offset + t, 10 + offset + t]


def chunk_of(rng, number, state=0, lookback=0, steps=10):
    started = int(rng.integers(0, 4))
    return Lab.episode(
        f"e{number}",
        int(rng.integers(1, steps)),
        t_started=started,
        lookback=min(lookback, started),
        end=[None, "terminated", "truncated"][rng.integers(3)],
        offset=100 * number,
        state=state,
    )


def padded_sequences(rng):
    end = ["pad", "drop", "truncate", "overlap", "continue"][rng.integers(5)]
    module = Lab.module(2, int(rng.integers(2, 6)), sequence_end=end)
    module.handles_resets = True
    chunks = [chunk_of(rng, number, state=2, lookback=1) for number in range(int(rng.integers(1, 5)))]
    chunks.append(Lab.episode("e8", 11, offset=800, state=2))  # one is long enough for those that drop sequences
    ppo = bool(rng.integers(2))
    data = data_of(Lab.defaults("learner", ppo=ppo), chunks, module)
    by_name = {chunk.id_: chunk for chunk in chunks}
    for values, chunk, step, kind, sees, rewards in cells_of(data):
        recorded, offset = by_name[chunk["name"]], 100 * int(chunk["name"][1:])
        t = chunk["t0"] + step
        assert chunk["t0"] == recorded.t_started and chunk["n"] == len(recorded)
        assert [values["obs[0]"], values["obs[1]"]] == observation(offset, t)
        assert (kind == BOOTSTRAP) == (step == len(recorded))
        assert values["rewards"] == (0 if kind == BOOTSTRAP else offset + t + 0.5)
        assert sees == [step]
        later = [] if kind == REPEATED else list(range(step, len(recorded)))
        assert rewards == (later if ppo else [step])


def agents_that_come_and_go(rng):
    games, present = [], {}
    for number in range(int(rng.integers(1, 4))):
        steps = int(rng.integers(2, 8))
        now = [sorted({"abc"[i] for i in rng.permutation(3)[: rng.integers(1, 4)]}) for _ in range(steps + 1)]
        present[f"game{number}"] = number, now
        games.append(
            MultiAgentEpisode(
                id_=f"game{number}",
                observations=[
                    {a: np.array(observation(99 * number + 33 * "abc".index(a), t), np.float32) for a in who}
                    for t, who in enumerate(now)
                ],
                actions=[{a: int(rng.integers(2)) for a in who} for who in now[:-1]],
                rewards=[dict.fromkeys(who, t + 0.25) for t, who in enumerate(now[:-1])],
                len_lookback_buffer=0,
                agent_to_module_mapping_fn=lambda agent, episode: "p" if agent == "a" else "q",
            )
        )
    spec = RLModuleSpec(module_class=type(Lab.module()), observation_space=Lab.obs_space, action_space=Lab.act_space)
    pieces = Lab.defaults("learner")
    pieces.insert(-2, AgentToModuleMapping())
    data = data_of(pieces, games, MultiRLModule(rl_module_specs={"p": spec, "q": spec}))
    for module_id in data["grids"]:
        for values, chunk, step, _, sees, _ in cells_of(data, module_id):
            number, now = present[chunk["episode"]]
            times = [t for t, who in enumerate(now) if chunk["agent"] in who]
            offset = 99 * number + 33 * "abc".index(chunk["agent"])
            assert module_id == chunk["module"] == ("p" if chunk["agent"] == "a" else "q")
            assert [values["obs[0]"], values["obs[1]"]] == observation(offset, times[chunk["t0"] + step])
            assert sees == [step]


def stack_of(offset, t, first, frames):
    """The frames up to step t, of which those before step `first` are zeros."""
    stack = []
    for at in range(t - frames + 1, t + 1):
        stack += observation(offset, at) if at >= first else [0, 0]
    return stack


def frame_stacks(rng):
    frames = int(rng.integers(2, 5))
    pieces = Lab.defaults("learner", ppo=True)[:-1]
    pieces[1] = FrameStacking(num_frames=frames, new_axis=True, as_learner_connector=True)
    chunks = [chunk_of(rng, number, lookback=frames - 1) for number in range(int(rng.integers(1, 5)))]
    by_name = {chunk.id_: chunk for chunk in chunks}
    for values, chunk, step, _, sees, _ in cells_of(data_of(pieces, chunks)):
        offset, t, begun = 100 * int(chunk["name"][1:]), chunk["t0"] + step, by_name[chunk["name"]]
        first = begun.t_started - begun.observations.lookback
        assert [values[f"obs[{k}]"] for k in range(2 * frames)] == stack_of(offset, t, first, frames)
        assert sees == [at - chunk["t0"] for at in range(max(first, t - frames + 1), t + 1)]


def buffer_of(rng, state=0):
    lengths = {f"e{i}": int(rng.integers(2, 9)) for i in range(3)}
    buffer = EpisodeReplayBuffer(capacity=100, seed=int(rng.integers(1000)))
    buffer.add(
        [Lab.episode(name, n, offset=100 * int(name[1:]), end="terminated", state=state) for name, n in lengths.items()]
    )
    return buffer, lengths


def draws_of_n_steps(rng):
    buffer, lengths = buffer_of(rng)
    n_step, of_buffer = int(rng.integers(1, 4)), bool(rng.integers(2))
    if of_buffer:
        data = data_of(Lab.defaults("learner"), buffer.sample(6, n_step=n_step, gamma=GAMMA))
    else:
        drawn = buffer.sample(6, batch_length_T=int(rng.integers(1, 4)))
        data = data_of([NStepReturns(n_step=n_step, gamma=GAMMA), *Lab.defaults("learner")], drawn)
    for values, chunk, step, _, sees, rewards in cells_of(data):
        offset, t = 100 * int(chunk["name"][1:]), chunk["t0"] + step
        summed = [offset + at + 0.5 for at in range(t, min(t + n_step, lengths[chunk["name"]]))]
        assert [values["obs[0]"], values["obs[1]"]] == observation(offset, t)
        assert values["n_step"] == len(summed) and sees == [step]
        assert values["rewards"] == pytest.approx(sum(GAMMA**k * reward for k, reward in enumerate(summed)), rel=1e-4)
        if not of_buffer:
            assert [values["new_obs[0]"], values["new_obs[1]"]] == observation(offset, t + len(summed))
        # of the rewards that a buffer has summed up, the parts cannot be told apart
        assert rewards == ([] if of_buffer else list(range(step, step + len(summed))))


def draws_of_frame_stacks(rng):
    buffer, lengths = buffer_of(rng)
    frames = int(rng.integers(2, 5))
    pieces = Lab.defaults("learner")
    pieces[0] = FrameStacking(num_frames=frames, new_axis=True, as_learner_connector=True)
    for values, chunk, step, _, sees, rewards in cells_of(data_of(pieces, buffer.sample(6, batch_length_T=2))):
        offset, t = 100 * int(chunk["name"][1:]), chunk["t0"] + step
        assert 0 <= t < lengths[chunk["name"]] and rewards == [step]
        assert [values[f"obs[{k}]"] for k in range(2 * frames)] == stack_of(offset, t, 0, frames)
        assert sees == [at - chunk["t0"] for at in range(max(0, t - frames + 1), t + 1)]


def draws_of_sequences(rng):
    buffer, lengths = buffer_of(rng, state=2)
    length = int(rng.integers(2, 5))
    drawn = buffer.sample(5, batch_length_T=length, burn_in=int(rng.integers(0, 2)))
    data = data_of(Lab.defaults("learner"), drawn, Lab.module(2, length + 1))
    count = 0
    for values, chunk, step, _, sees, rewards in cells_of(data):
        offset, t = 100 * int(chunk["name"][1:]), chunk["t0"] + step
        assert t < lengths[chunk["name"]] and sees == rewards == [step]
        assert [values["obs[0]"], values["obs[1]"]] == observation(offset, t)
        assert values["rewards"] == offset + t + 0.5
        count += 1
    assert count == sum(chunk["n"] for chunk in data["chunks"])


KINDS = [
    padded_sequences, agents_that_come_and_go, frame_stacks, draws_of_n_steps, draws_of_frame_stacks, draws_of_sequences
]  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_cells_of_a_few_batches(kind, seed):
    kind(np.random.default_rng(seed))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_cells_of_200_batches(kind):
    for seed in range(2, 36):
        kind(np.random.default_rng(seed))
