"""Frame stacks on both sides."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.connectors.common import BatchIndividualItems, FrameStacking
from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.connectors.env_to_module.frame_stacking import FrameStackingEnvToModule
from epibatch.connectors.learner import LearnerConnectorPipeline
from epibatch.connectors.learner.frame_stacking import FrameStackingLearner
from epibatch.core.errors import ColumnError, EpibatchError, LookbackError
from epibatch.episodes import MultiAgentEpisode
from fixture_pieces import Lab, played

SPACE = gym.spaces.Box(-999, 999, (4, 4, 1), np.float32)


def frames(times):
    return [np.full((4, 4, 1), t, np.float32) for t in times]


def image_episode(id_, length, *, t_started=0, lookback=0, numpy=True):
    """A frame's every pixel is its absolute time plus one."""
    times = range(t_started - lookback + 1, t_started + length + 2)
    keywords = {"observations": frames(times), "observation_space": SPACE}
    return Lab.episode(id_, length, t_started=t_started, lookback=lookback, numpy=numpy, **keywords)


def env_stack(lab, episode, num_frames=3):
    spaces = (SPACE, lab.act_space)
    seen = lab.see("env_to_module", [FrameStacking(num_frames=num_frames)], [episode], spaces=spaces)
    return lab.rows(seen["obs"][(episode.id_,)])[0]


def learner_stacks(lab, episodes, num_frames=3):
    piece = FrameStacking(num_frames=num_frames, as_learner_connector=True)
    columns = lab.columns("learner", [piece], episodes, spaces=(SPACE, lab.act_space))
    return [columns["obs"][(episode.id_,)] for episode in episodes]


def test_learner_stacks_equal_the_env_side_stacks_of_every_step(lab):
    (stacks,) = learner_stacks(lab, [image_episode("a", 6)])
    assert stacks.shape == (6, 4, 4, 3)
    for t in range(6):
        assert np.array_equal(stacks[t], env_stack(lab, image_episode("a", t, numpy=False)))


def test_a_young_chunk_with_all_its_history_is_filled_with_zeros(lab):
    chunk = image_episode("a", 2, t_started=1, lookback=1)
    (stacks,) = learner_stacks(lab, [chunk])
    assert stacks[:, 0, 0].tolist() == [[0, 1, 2], [1, 2, 3]]


def test_history_that_a_chunk_does_not_carry_is_an_error(lab):
    chunk = image_episode("some_id", 3, t_started=10, lookback=1)
    with pytest.raises(LookbackError, match="some_id") as raised:
        learner_stacks(lab, [chunk])
    assert "2" in str(raised.value)
    with pytest.raises(LookbackError, match="other"):
        env_stack(lab, image_episode("other", 0, t_started=10, lookback=1, numpy=False))


def test_the_stack_is_what_later_pieces_use(lab):
    episodes = [image_episode("a", 3), image_episode("b", 2)]
    pieces = [FrameStacking(num_frames=2, as_learner_connector=True), *lab.defaults("learner")]
    batch = lab.run("learner", pieces, episodes, rl_module=lab.module(), spaces=(SPACE, lab.act_space))
    assert batch["obs"].shape == (5, 4, 4, 2)
    assert batch["obs"][:, 0, 0].tolist() == [[0, 1], [1, 2], [2, 3], [0, 1], [1, 2]]


def test_stacks_with_bootstrap_rows(lab):
    pieces = [*lab.defaults("learner", ppo=True)]
    pieces.insert(0, FrameStacking(num_frames=2, as_learner_connector=True))
    batch = lab.run(
        "learner",
        pieces[:-1],
        [image_episode("a", 3)],
        rl_module=lab.module(),
        spaces=(SPACE, lab.act_space),
    )
    assert batch["loss_mask"].tolist() == [True, True, True, False]
    # the bootstrap row is an observation that the episode has: its stack is a real one, or the last repeated
    assert batch["obs"][:3, 0, 0].tolist() == [[0, 1], [1, 2], [2, 3]]
    assert batch["obs"].shape[0] == 4


@pytest.mark.parametrize("given_at_construction", [True, False])
def test_output_space(given_at_construction):
    space = gym.spaces.Box(0, 255, (8, 6, 1), np.uint8)
    if given_at_construction:
        piece = FrameStacking(space, gym.spaces.Discrete(2), num_frames=4)
    else:
        piece = FrameStacking(num_frames=4)
        piece.input_action_space = gym.spaces.Discrete(2)
        piece.input_observation_space = space
    assert piece.observation_space == gym.spaces.Box(0, 255, (8, 6, 4), np.uint8)


def test_partials_choose_the_side():
    assert FrameStackingEnvToModule(num_frames=2).num_frames == 2
    assert FrameStackingLearner(num_frames=2).num_frames == 2


@pytest.mark.parametrize("space", [gym.spaces.Box(0, 1, (4, 4, 3)), gym.spaces.Discrete(3)])
def test_only_spaces_with_one_channel_can_be_stacked(lab, space):
    piece = FrameStacking(num_frames=2, as_learner_connector=True)
    with pytest.raises(EpibatchError, match=r"frame_stacking|FrameStacking") as raised:
        lab.run("learner", [piece], [image_episode("a", 2)], spaces=(space, lab.act_space))
    assert str(space) in str(raised.value)


def random_chunks(rng, count, shape, dtype):
    """Chunks of random frames, cut from episodes with or without enough lookback for three frames."""
    chunks = []
    for i in range(count):
        total, keep = int(rng.integers(3, 9)), int(rng.integers(0, 4))
        rows = list(rng.integers(0, 99, (total + 1, *shape)).astype(dtype))
        episode = played(rows, id_=f"{i}")
        chunks.append(episode if keep < 2 else episode.slice(slice(keep, None), len_lookback_buffer=keep))
    return chunks


def slow_stack(episode, t, num_frames):
    """The stack that ends with observation t, frame by frame."""
    rows = [episode.get_observations(k, neg_index_as_lookback=True, fill=0) for k in range(t - num_frames + 1, t + 1)]
    return np.concatenate(rows, -1)


@pytest.mark.parametrize("as_learner_connector", [True, False])
def test_chunks_of_two_types_share_one_that_holds_both_and_of_two_shapes_are_an_error(as_learner_connector):
    rng = np.random.default_rng(0)
    chunks = [random_chunks(rng, 1, (3, 1), dtype)[0] for dtype in (np.uint8, np.int16, np.float32)]
    kind = LearnerConnectorPipeline if as_learner_connector else EnvToModulePipeline
    pieces = [FrameStacking(num_frames=2, as_learner_connector=as_learner_connector), BatchIndividualItems()]
    pipeline = kind(connectors=pieces)
    found = pipeline(episodes=chunks)["obs"]
    assert found.dtype == np.float32
    ends = np.cumsum([len(chunk) for chunk in chunks]) - 1 if as_learner_connector else range(3)
    for chunk, end in zip(chunks, ends):
        np.testing.assert_array_equal(found[end], slow_stack(chunk, len(chunk) - as_learner_connector, 2))
    chunks.append(random_chunks(rng, 1, (4, 1), np.uint8)[0])
    with pytest.raises(ColumnError, match=r"of shape \(3, 1\), as in[\s\S]*of shape \(4, 1\) in episode"):
        pipeline(episodes=chunks)


def test_slow_agents_keep_the_frames_that_a_cut_is_told_to_keep():
    def episode_of_two():
        episode = MultiAgentEpisode(id_="e")
        episode.add_env_reset(observations={"fast": np.full((1, 1), 0), "slow": np.full((1, 1), 100)})
        for t in range(1, 8):
            agents = {"fast": t, **({"slow": 100 + t} if t % 3 == 0 else {})}
            acting = [a for a in ("fast", "slow") if a == "fast" or (t - 1) % 3 == 0]
            observations = {agent: np.full((1, 1), value) for agent, value in agents.items()}
            episode.add_env_step(observations, dict.fromkeys(acting, 0), dict.fromkeys(acting, 0.0))
        return episode

    whole, piece = episode_of_two(), FrameStacking(num_frames=3)
    with pytest.raises(LookbackError, match="agent 'slow'"):
        piece(batch={}, episodes=[_and_on(whole.cut(2))])
    found = piece(batch={}, episodes=[_and_on(whole.cut(2, agent_steps=2))])["obs"]
    stacks = {key[1]: items[0][0].tolist() for key, items in found.items()}
    assert stacks == {"fast": [6, 7, 8], "slow": [103, 106, 108]}


def _and_on(chunk):
    last = {agent: np.full((1, 1), value) for agent, value in (("fast", 8), ("slow", 108))}
    chunk.add_env_step(last, {"fast": 0}, {"fast": 0.0})
    return chunk
