"""The origin of each row of a train batch: every cell names the step whose values it holds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from epibatch.connectors.common import AgentToModuleMapping, FrameStacking, StackAgents
from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.connectors.learner import LearnerConnectorPipeline
from epibatch.connectors.replay import NStepReturns
from epibatch.connectors.sequences import JaggedSequences, PackSequences, RandomSubsequences
from epibatch.core.errors import PipelineError
from epibatch.core.rl_module import MultiRLModule, RLModuleSpec
from epibatch.episodes import MultiAgentEpisode
from epibatch.episodes.replay import EpisodeReplayBuffer
from fixture_pieces import Lab, UserPiece

BATCHES = 50
ENDS = ["pad", "drop", "truncate", "overlap", "continue"]


def leaves(columns, prefix=""):
    """Arrays by the path of their column."""
    found = {}
    for name, column in columns.items():
        path = f"{prefix}{name}"
        rows = column.data if isinstance(column, torch.nn.utils.rnn.PackedSequence) else column
        found |= leaves(rows, f"{path}/") if isinstance(rows, dict) else {path: np.asarray(rows)}
    return found


def traced(pipeline, episodes, module=None):
    """A trace with origins, whose other columns are those of a trace without, to the bit."""
    trace, plain = (pipeline.trace(episodes, module, origin=origin) for origin in (True, False))
    assert trace.error is None and plain.origin == {}
    left, right = leaves(trace.batch), leaves(plain.batch)
    assert list(left) == list(right)
    for name, column in left.items():
        assert column.dtype == right[name].dtype and column.tobytes() == right[name].tobytes(), name
    assert [piece.piece for piece in trace.pieces] == [piece.piece for piece in plain.pieces]
    return trace


def cells(trace, module_id="default_policy"):
    """(index in the columns, episode, step) of each row that is no padding, and the mask of padding."""
    chunk, step = trace.origin[module_id]
    places = [(where, trace.chunks[chunk[where]], int(step[where])) for where in np.ndindex(chunk.shape)]
    return [place for place, number in zip(places, chunk.ravel()) if number >= 0], chunk < 0


def check_values(columns, trace, module_id="default_policy", padding_is_zero=True):
    """Compare each cell with the recorded step that it names."""
    columns = leaves(columns)
    found, padding = cells(trace, module_id)
    assert found
    assert not padding_is_zero or not columns["obs"][padding].any()
    for where, episode, step in found:
        assert (columns["obs"][where] == episode.get_observations(step)).all()
        if step < len(episode):
            assert columns["actions"][where] == episode.get_actions(step)
            assert columns["rewards"][where] == episode.get_rewards(step)
        else:
            assert columns["rewards"][where] == 0 and not columns["loss_mask"][where]


def random_chunks(rng, state=0, least=1):
    """Chunks of several lengths, ends and beginnings; no two steps have one value."""
    return [
        Lab.episode(
            f"e{number}",
            int(rng.integers(1, 10)),
            t_started=(started := int(rng.integers(0, 4))),
            lookback=int(rng.integers(min(started, least), started + 1)),
            end=[None, "terminated", "truncated"][rng.integers(3)],
            offset=100 * number,
            state=state,
        )
        for number in range(int(rng.integers(1, 5)))
    ]


def test_sequences():
    rng = np.random.default_rng(0)
    for number in range(BATCHES):
        end, bootstraps = ENDS[number % len(ENDS)], bool(rng.integers(2))
        module = Lab.module(2, int(rng.integers(2, 6)), sequence_end=end)
        module.handles_resets = True
        pipeline = LearnerConnectorPipeline(connectors=Lab.defaults("learner", ppo=bootstraps))
        chunks = random_chunks(rng, state=2)
        if end in ("drop", "truncate"):
            chunks.append(Lab.episode("long", 12, offset=900, state=2))
        trace = traced(pipeline, chunks, module)
        check_values(trace.batch, trace)


@pytest.mark.parametrize("piece", [JaggedSequences, PackSequences, RandomSubsequences])
def test_sequences_that_are_laid_out_in_another_way(piece):
    rng = np.random.default_rng(1)
    for _ in range(4):
        pieces = Lab.defaults("learner")
        pieces.insert(0 if piece is RandomSubsequences else len(pieces), piece())
        trace = LearnerConnectorPipeline(connectors=pieces).trace(
            random_chunks(rng, state=2), Lab.module(2, 4), origin=True
        )
        check_values(trace.batch, trace)


def random_game(rng, number):
    """An episode of three agents that come and go; each value tells agent, episode and env step."""
    steps = int(rng.integers(2, 8))
    present = [sorted({"abc"[i] for i in rng.permutation(3)[: rng.integers(1, 4)]}) for _ in range(steps + 1)]

    def value(agent, t):
        return 1000.0 * number + 100.0 * "abc".index(agent) + t + 1

    return MultiAgentEpisode(
        id_=f"game{number}",
        observations=[{a: np.full(2, value(a, t), np.float32) for a in now} for t, now in enumerate(present)],
        actions=[{a: int(rng.integers(2)) for a in now} for now in present[:-1]],
        rewards=[{a: value(a, t) / 4 for a in now} for t, now in enumerate(present[:-1])],
        len_lookback_buffer=0,
        agent_to_module_mapping_fn=lambda agent, episode: "p" if agent == "a" else "q",
    )


def test_agents():
    rng = np.random.default_rng(2)
    for _ in range(BATCHES):
        state = int(rng.integers(2))
        spec = RLModuleSpec(
            module_class=type(Lab.module()),
            observation_space=Lab.obs_space,
            action_space=Lab.act_space,
            model_config={"state": 0, "max_seq_len": 3},
        )
        pieces = Lab.defaults("learner", ppo=bool(state))
        pieces.insert(-3 if state else -2, AgentToModuleMapping())
        module = MultiRLModule(rl_module_specs={"p": spec, "q": spec})
        games = [random_game(rng, number) for number in range(int(rng.integers(1, 4)))]
        trace = traced(LearnerConnectorPipeline(connectors=pieces), games, module)
        modules = {episode.module_id for game in games for episode in game.agent_episodes.values() if len(episode)}
        assert set(trace.origin) == modules
        for module_id in modules:
            check_values(trace.batch[module_id], trace, module_id)
            assert {episode.module_id for _, episode, _ in cells(trace, module_id)[0]} == {module_id}


def test_frame_stacks():
    rng = np.random.default_rng(3)
    for _ in range(BATCHES):
        frames = int(rng.integers(2, 5))
        pieces = Lab.defaults("learner", ppo=True)[:-1]  # values are of single frames
        pieces[1] = FrameStacking(num_frames=frames, new_axis=True, as_learner_connector=True)
        trace = traced(LearnerConnectorPipeline(connectors=pieces), random_chunks(rng, least=frames - 1), Lab.module())
        stacks = np.asarray(trace.batch["obs"])
        for where, episode, step in cells(trace)[0]:
            stack = stacks[where]
            for back in range(frames):
                at = step - back
                seen = at >= -episode.observations.lookback
                expected = episode.get_observations(at, neg_index_as_lookback=True) if seen else 0
                assert (stack[-1 - back] == expected).all()


def test_replay_draws_with_several_steps():
    rng = np.random.default_rng(4)
    for number in range(BATCHES):
        steps, gamma = int(rng.integers(1, 4)), 0.5
        whole = {
            f"e{i}": Lab.episode(f"e{i}", int(rng.integers(2, 9)), offset=100 * i, end="terminated") for i in range(3)
        }
        buffer = EpisodeReplayBuffer(capacity=100, seed=number)
        buffer.add(list(whole.values()))
        pieces = [NStepReturns(n_step=steps, gamma=gamma), *Lab.defaults("learner")]
        drawn = buffer.sample(12, batch_length_T=int(rng.integers(1, 3)))
        trace = traced(LearnerConnectorPipeline(connectors=pieces), drawn, Lab.module())
        found, padding = cells(trace)
        assert len(found) == len(trace.batch["obs"]) and not padding.any()
        for where, chunk, step in found:
            episode, t = whole[chunk.id_], chunk.t_started + step
            rewards = [episode.get_rewards(t + k) for k in range(steps) if t + k < len(episode)]
            assert (trace.batch["obs"][where].numpy() == episode.get_observations(t)).all()
            assert (trace.batch["new_obs"][where].numpy() == episode.get_observations(t + len(rewards))).all()
            assert trace.batch["rewards"][where] == sum(gamma**k * reward for k, reward in enumerate(rewards))


def test_a_cell_of_agents_of_one_env_step():
    spec = RLModuleSpec(module_class=type(Lab.module()), observation_space=Lab.obs_space, action_space=Lab.act_space)
    pieces = Lab.defaults("learner")
    pieces.insert(-2, AgentToModuleMapping())
    pieces.insert(-1, StackAgents(agent_ids=["a", "b", "c"], as_learner_connector=True))
    rng = np.random.default_rng(5)
    module = MultiRLModule(rl_module_specs={"p": spec, "q": spec})
    trace = LearnerConnectorPipeline(connectors=pieces).trace([random_game(rng, 0)], module, origin=True)
    for module_id, columns in trace.batch.items():
        assert columns["actions"].shape == trace.origin[module_id].step.shape == (len(columns["obs"]), 3)
        check_values(columns, trace, module_id, padding_is_zero=False)  # agents that have ended are shown


def test_a_piece_that_moves_rows_takes_the_names_along():
    def reversed_rows(batch, episodes):
        return {name: column.flip(0) for name, column in batch.items()}

    pipeline = LearnerConnectorPipeline(connectors=[*Lab.defaults("learner"), UserPiece(reversed_rows)])
    trace = pipeline.trace([Lab.episode("a", 5)], Lab.module(), origin=True)
    assert trace.origin["default_policy"].step.tolist() == [4, 3, 2, 1, 0]


def test_without_copies_there_is_no_place_for_the_numbers():
    pipeline = LearnerConnectorPipeline(connectors=Lab.defaults("learner"))
    with pytest.raises(PipelineError, match="copies=False"):
        pipeline.trace([Lab.episode()], Lab.module(), origin=True, copies=False)
    assert len(pipeline) == len(Lab.defaults("learner"))


def test_values_and_seconds_of_each_piece():
    pipeline = LearnerConnectorPipeline(connectors=[UserPiece(), *Lab.defaults("learner")])
    trace = pipeline.trace([Lab.episode("a", 5), Lab.episode("b", 4, offset=50)], Lab.module(), keep_rows=3)
    assert all(piece.seconds > 0 for piece in trace.pieces)
    stored = trace.pieces[0].values
    assert stored["episode.rewards"].tolist() == [0.5, 4.5, 53.5] and stored.keys() == trace.start_values.keys()
    for piece in trace.pieces[2:]:
        assert piece.values["rewards"].tolist() == [0.5, 4.5, 53.5]  # the first, middle and last of nine
        assert piece.values["obs"].shape == (3, 2)
    assert pipeline.trace([Lab.episode("a", 5)], Lab.module()).pieces[-1].values == {}


def test_an_acting_pipeline_has_no_rows_of_steps():
    pipeline = EnvToModulePipeline(connectors=Lab.defaults("env_to_module"))
    trace = pipeline.trace([Lab.episode()], Lab.module(), origin=True)
    assert trace.error is None and trace.origin == {} and list(trace.batch) == ["obs"]
