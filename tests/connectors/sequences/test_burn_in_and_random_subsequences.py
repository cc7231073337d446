"""States after rows that are there for them alone, and random sub-sequences: against stepping by hand."""

from __future__ import annotations

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.algorithms import PPOConfig
from epibatch.connectors import ConnectorV2, EpisodeColumn, Piece
from epibatch.connectors.common import (
    AddObservationsFromEpisodesToBatch,
    AddStatesFromEpisodesToBatch,
    AddTimeDimToBatchAndZeroPad,
    AgentToModuleMapping,
    BatchIndividualItems,
)
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    AddNextObservationsFromEpisodesToTrainBatch,
    LearnerConnectorPipeline,
)
from epibatch.connectors.sequences import BurnIn, RandomSubsequences
from epibatch.core.errors import ColumnError, ConfigError, EpisodeError, PipelineError
from epibatch.core.rl_module import DefaultActorCritic, MultiRLModule
from epibatch.core.sequence_ends import sequence_layout
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode
from epibatch.episodes.replay import EpisodeReplayBuffer

OBS, ACT = gym.spaces.Box(-9, 9, (4,), np.float32), gym.spaces.Discrete(2)


def recorded_before(episode, row, start):
    """The recorded state before a row; `start` where the episode begins."""
    if row == 0:
        return start
    return {name: torch.as_tensor(leaf) for name, leaf in episode.get_extra_model_outputs("state_out", row - 1).items()}


@pytest.mark.parametrize("end", ["pad", "drop", "overlap"])
@pytest.mark.parametrize(("steps", "burn_in"), [(4, 1), (4, 3), (20, 5)])
@pytest.mark.parametrize("ppo", [False, True])
def test_states_equal_a_manual_pass_with_the_weights_of_now(played, steps, burn_in, end, ppo):
    options = {"max_seq_len": steps, "burn_in": burn_in, "sequence_end": end}
    episodes = played.episodes(played.module(seed=0), [41, 3, 8, 1, 20])
    module = played.module(seed=1, **options)  # other weights than those that acted
    batch = played.batch(module, episodes, burn_in=True, ppo=ppo)
    counts = [len(episode) + ppo for episode in episodes]
    layout = sequence_layout(counts, steps, end=end, burn_in=burn_in, bootstrapped=ppo)
    assert batch["obs"].shape[:2] == (layout.num_sequences, steps - burn_in)
    for b, (chunk, row, burned) in enumerate(zip(layout.sequence_chunks, layout.offsets, layout.burn_in)):
        episode = episodes[chunk]
        state = recorded_before(episode, row, module.get_initial_state())
        if burned:
            obs = episode.get_observations(slice(int(row), int(row + burned)))
            state = played.states(module, obs, state)[-1]
        for name in ("h", "c"):
            np.testing.assert_allclose(batch["state_in"][name][b], state[name], rtol=1e-4, atol=1e-6)
    assert not batch["state_in"]["h"].requires_grad
    assert layout.burn_in.max() == burn_in


def test_states_of_next_observations_are_burned_in_with_these(played):
    module = played.module(burn_in=2)
    episodes = played.episodes(played.module(seed=4), [7])
    batch = played.batch(module, episodes, AddNextObservationsFromEpisodesToTrainBatch(), burn_in=True)
    obs = episodes[0].get_observations()
    state = recorded_before(episodes[0], 3, None)  # before the observation behind row 2, from which 2 rows are run
    expected = played.states(module, obs[3:5], state)[-1]
    layout = sequence_layout([7], 4, burn_in=2)
    assert layout.offsets.tolist() == [0, 0, 2, 4]
    np.testing.assert_allclose(batch["next_state_in"]["h"][2], expected["h"], rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(batch["new_obs"][2], obs[5:7])


def test_without_the_piece_rows_in_front_stay_and_carry_no_loss(played):
    module = played.module(burn_in=2)
    batch = played.batch(module, played.episodes(module, [6]))
    assert batch["obs"].shape == (3, 4, 3)
    front, behind = [True, True, False, False], [False, False, True, True]
    assert batch["loss_mask"].tolist() == [front, behind, behind]


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        (lambda obs: {"action_dist_inputs": obs}, "state_out"),
        (lambda obs: {"state_out": dict.fromkeys("hc", obs)}, r"state_out of shapes \[\[2, 5\], \[2, 5\]\]"),
    ],
)
def test_a_module_that_gives_no_state_is_named(played, outputs, words):
    module = played.module(burn_in=2)
    episodes = played.episodes(module, [6])
    module._forward_train = lambda batch, **kwargs: outputs(batch["obs"])
    with pytest.raises(ColumnError, match=words):
        played.batch(module, episodes, burn_in=True)


def test_sequences_of_somebody_elses_are_refused(played):
    module = played.module(burn_in=2)
    episodes = played.episodes(module, [6])
    batch = played.batch(module, episodes)
    fewer = {name: leaf[:2] if torch.is_tensor(leaf) else leaf for name, leaf in batch.items()}
    with pytest.raises(ColumnError, match="the pipeline that makes the sequences"):
        BurnIn()(rl_module=module, batch=fewer, episodes=episodes)
    with pytest.raises(ColumnError, match="loss_mask"):
        BurnIn()(rl_module=module, batch={"obs": batch["obs"], "seq_lens": batch["seq_lens"]}, episodes=episodes)


MODEL = {"use_lstm": True, "lstm_cell_size": 4, "fcnet_hiddens": [4], "max_seq_len": 6, "burn_in": 2}


def test_a_module_that_joins_later_is_burned_in_too():
    config = PPOConfig().environment("CartPole-v1").multi_agent(policies=["plain", "other"])
    config.multi_agent(policy_mapping_fn=lambda agent_id, episode, **kwargs: "plain")
    pipeline = config.build_learner_connector(*(gym.spaces.Dict(a=space) for space in (OBS, ACT)))
    assert "burn_in" not in pipeline.names
    other = {"other": {"model_config": MODEL}, "plain": {}}
    changed = config.copy().multi_agent(policies=other)
    for _ in range(2):  # it is put there once
        changed.update_modules(pipeline)
    assert pipeline.names[-2:] == ["numpy_to_tensor", "burn_in"]


@pytest.mark.parametrize(
    ("model", "words"),
    [({"burn_in": 6}, "max_seq_len - 1 = 5"), ({"sequence_end": "continue"}, "sequence_end 'continue'")],
)
def test_a_config_says_what_does_not_fit(model, words):
    with pytest.raises(ConfigError, match=words):
        PPOConfig().environment("CartPole-v1").rl_module(model_config={**MODEL, **model}).build_algo()


def piece_of(seed=0, **options):
    piece = RandomSubsequences(**options)
    piece.seed(seed)
    return piece


def start_in(episode, row):
    """Where in its episode an observation lies."""
    (found,) = np.flatnonzero((episode.get_observations() == row.numpy()).all(-1))
    return int(found)


def place_of(row, episodes):
    """The episode and step of an observation."""
    places = [np.flatnonzero((episode.get_observations() == row.numpy()).all(-1)) for episode in episodes]
    ((number, t),) = [(i, int(found[0])) for i, found in enumerate(places) if len(found)]
    return number, t


def by_step(batch, episodes):
    """The value targets of the steps with loss, by episode and step."""
    mask = batch["loss_mask"]
    rows = zip(batch["obs"][mask], batch["value_targets"][mask].tolist())
    return {place_of(row, episodes): value for row, value in rows}


def test_rows_follow_one_another_from_the_recorded_state(played):
    module = played.module()
    episodes = played.episodes(module, [12, 4, 9, 2, 30])
    batch = played.batch(module, episodes, piece_of())
    assert batch["seq_lens"].tolist() == [4, 4, 4, 2, 4]
    assert batch["loss_mask"].sum(1).tolist() == [4, 4, 4, 2, 4]
    starts = []
    for b, episode in enumerate(episodes):
        start = start_in(episode, batch["obs"][b, 0])
        steps = slice(start, start + int(batch["seq_lens"][b]))
        np.testing.assert_array_equal(batch["obs"][b][batch["loss_mask"][b]], episode.get_observations(steps))
        rewards = batch["rewards"][b][batch["loss_mask"][b]].numpy()
        np.testing.assert_array_equal(rewards, episode.get_rewards(steps).astype(np.float32))
        state = episode.get_extra_model_outputs("state_out", start - 1)["h"] if start else np.zeros(5)
        np.testing.assert_array_equal(batch["state_in"]["h"][b], state)
        starts.append(start)
    assert starts[1] == starts[3] == 0 and max(starts) > 0


def test_every_start_is_as_likely(played):
    module = played.module(max_seq_len=3)
    episodes = played.episodes(module, [9])
    piece, starts = piece_of(seed=2), []
    pipeline = played.pipeline(piece)
    for _ in range(350):
        batch = pipeline(rl_module=module, batch={}, episodes=episodes)
        starts.append(start_in(episodes[0], batch["obs"][0, 0]))
    counts = np.bincount(starts, minlength=7)
    assert len(counts) == 7
    assert ((counts - 50) ** 2 / 50).sum() < 22.5  # chi-squared, 6 degrees of freedom: one seed in 1,000 exceeds it


@pytest.mark.parametrize(("length", "expected"), [(None, [4, 4, 2]), (3, [3, 3, 2]), (7, [7, 4, 2]), (1, [1, 1, 1])])
def test_lengths(played, length, expected):
    module = played.module()
    batch = played.batch(module, played.episodes(module, [12, 4, 2]), piece_of(length=length))
    assert batch["seq_lens"].tolist() == expected
    assert batch["obs"].shape[1] == (length or 4)


def test_short_chunks_can_be_left_out(played):
    module = played.module()
    episodes = played.episodes(module, [12, 3, 4])
    batch = played.batch(module, episodes, piece_of(short="drop"))
    assert batch["seq_lens"].tolist() == [4, 4]
    assert start_in(episodes[2], batch["obs"][1, 0]) == 0
    with pytest.raises(EpisodeError, match=r"at most 3 steps: 3\n[\s\S]*RandomSubsequences\(short='pad'\)"):
        played.batch(module, episodes[1:2], piece_of(short="drop"))


def test_rows_to_burn_in_are_those_in_front(played):
    module = played.module(max_seq_len=6, burn_in=2)
    episodes = played.episodes(module, [30, 5, 3])
    firsts = set()
    for seed in range(20):
        batch = played.batch(module, episodes, piece_of(seed=seed), burn_in=True)
        assert batch["obs"].shape[:2] == (3, 4)
        assert batch["loss_mask"].sum(1).tolist() == [4, 4, 3]
        for b, episode in enumerate(episodes[:2]):
            start = start_in(episode, batch["obs"][b, 0])
            # These weights recorded the states, so the burned-in one is the recorded one.
            state = episode.get_extra_model_outputs("state_out", start - 1)["h"] if start else np.zeros(5)
            np.testing.assert_allclose(batch["state_in"]["h"][b], state, rtol=1e-4, atol=1e-6)
        firsts.add(start_in(episodes[1], batch["obs"][1, 0]))
    assert firsts == {0, 1}  # five rows hold four in two ways, and the first row can be learned from too


def test_a_seed_repeats_and_a_restored_stream_goes_on(played):
    module = played.module()
    episodes = played.episodes(module, [30, 25])

    def starts(pipeline, times):
        batches = [pipeline(rl_module=module, batch={}, episodes=episodes) for _ in range(times)]
        return [[start_in(own, batch["obs"][b, 0]) for b, own in enumerate(episodes)] for batch in batches]

    one, two = (played.pipeline(RandomSubsequences()) for _ in range(2))
    one.seed(5)
    two.seed(5)
    assert starts(one, 3) == starts(two, 3)
    state = copy.deepcopy(one.get_state())
    again = played.pipeline(RandomSubsequences())
    again.set_state(state)
    assert starts(one, 8) == starts(again, 8)
    assert RandomSubsequences().get_state() == {}
    assert len({tuple(own) for own in starts(one, 8)}) > 1


@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("short", ["pad", "drop"])
@pytest.mark.parametrize("burn_in", [0, 1])
def test_advantages_are_those_of_whole_chunks(played, stateful, short, burn_in):
    lengths = [12, 4, 9, 2, 30]
    recurrent = played.module(burn_in=burn_in)
    module = recurrent if stateful else played.stateless()
    episodes = played.episodes(recurrent, lengths)
    options = {"ppo": True, "burn_in": bool(burn_in) and stateful}
    expected = by_step(played.batch(module, episodes, **options), episodes)
    own = 4 - burn_in * stateful  # steps with loss
    firsts = set()
    for seed in range(12):
        batch = played.batch(module, episodes, piece_of(seed, length=4, short=short), **options)
        found = by_step(batch, episodes)
        assert found.keys() <= expected.keys()
        assert {key: value for key, value in expected.items() if key in found} == pytest.approx(found, rel=1e-4)
        kept = [min(n, own) if short == "pad" or n >= own else 0 for n in lengths]
        rows = [sorted(t for e, t in found if e == number) for number in range(5)]
        assert [len(each) for each in rows] == kept
        assert all(each == list(range(each[0], each[0] + len(each))) for each in rows if each)
        firsts.add(rows[2][0])
        if stateful:
            for b in np.flatnonzero(batch["loss_mask"].any(1)):
                number, t = place_of(batch["obs"][b][batch["loss_mask"][b]][0], episodes)
                state = episodes[number].get_extra_model_outputs("state_out", t - 1)["h"] if t else np.zeros(5)
                np.testing.assert_allclose(batch["state_in"]["h"][b], state, rtol=1e-4, atol=1e-6)
    assert len(firsts) > 3


def test_every_start_is_as_likely_without_state(played):
    episodes, module = played.episodes(played.module(), [9, 5]), played.stateless()
    piece = piece_of(seed=3, length=3)
    pipeline = played.pipeline(piece)
    masks = [pipeline(rl_module=module, batch={}, episodes=episodes)["loss_mask"].numpy() for _ in range(350)]
    counts = np.bincount([int(mask.argmax()) for mask in masks], minlength=7)
    assert len(counts) == 7 and ((counts - 50) ** 2 / 50).sum() < 22.5  # chi-squared, 6 degrees of freedom
    assert {(mask[:9].sum(), mask[9:].sum()) for mask in masks} == {(3, 3)}


def test_a_mask_of_an_earlier_piece_applies_too(played):
    class Odd(ConnectorV2):
        def __call__(self, *, batch, episodes, **kwargs):
            for episode in self.single_agent_episode_iterator(episodes):
                mask = np.arange(len(episode)) % 2 == 1
                self.add_n_batch_items(batch, "loss_mask", mask, len(episode), episode)
            return batch

    episodes, module = played.episodes(played.module(), [9]), played.stateless()
    batch = played.batch(module, episodes, Odd(), piece_of(length=9))
    assert batch["loss_mask"].tolist() == [t % 2 == 1 for t in range(9)]


class OddRows(Piece):
    """Lets only every second row carry loss, on tensors."""

    pipelines = ("learner",)
    takes_tensors = True

    def run(self, columns, group):
        odd = torch.cat([torch.arange(int(count)) % 2 == 1 for count in group.counts])
        return {**columns, "loss_mask": EpisodeColumn(odd, group.counts, item_per_row=True)}


def test_a_mask_of_tensors_applies_too():
    space = gym.spaces.Box(-99, 99, (1,), np.float32)
    buffer = EpisodeReplayBuffer(capacity=100, device="cpu")
    observations = np.arange(41, dtype=np.float32)[:, None]
    buffer.add(
        SingleAgentEpisode(observations=observations, actions=[0] * 40, rewards=[1.0] * 40, len_lookback_buffer=0)
    )
    pieces = [OddRows(), RandomSubsequences(length=4, at="end")]
    pipeline = LearnerConnectorPipeline(input_observation_space=space, input_action_space=ACT, connectors=pieces)
    pipeline.append(AddObservationsFromEpisodesToBatch())
    pipeline.append(BatchIndividualItems())
    module = DefaultActorCritic(observation_space=space, action_space=ACT, model_config={})
    drawn = buffer.sample(6, batch_length_T=6)
    batch = pipeline(rl_module=module, batch={}, episodes=drawn)
    # The last four rows of a draw, and of those each second row of the draw; a draw ends with its episode.
    lengths = [len(episode) for episode in drawn]
    expected = [t >= length - 4 and t % 2 == 1 for length in lengths for t in range(length)]
    assert np.asarray(batch["loss_mask"]).tolist() == expected and any(expected)


@pytest.mark.parametrize("lstm", [False, True])
def test_ppo_learns_from_sub_sequences(lstm):
    model = {"fcnet_hiddens": [8], **({"use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 5} if lstm else {})}
    config = PPOConfig().environment("CartPole-v1").rl_module(model_config=model).debugging(seed=0)
    pieces = [{"piece": "random_subsequences", "length": 5}]
    algo = config.training(learner_connector=pieces, train_batch_size=200, minibatch_size=20, num_epochs=1).build_algo()
    for _ in range(2):
        algo.train()
    episodes = algo.env_runner.sample(num_episodes=4)
    batch = algo.learner.connector(rl_module=algo.learner.module, batch={}, episodes=episodes)["default_policy"]
    assert batch["loss_mask"].sum() == 5 * len(episodes)
    algo.stop()


@pytest.mark.parametrize(
    ("options", "model", "error", "words"),
    [
        ({"length": 0}, {}, ConfigError, "length"),
        ({"length": True}, {}, ConfigError, "True"),
        ({"short": "dropp"}, {}, ConfigError, "drop"),
        ({}, {"sequence_end": "overlap"}, ConfigError, "sequence_end 'pad'"),
        ({"length": 2}, {"burn_in": 3}, ConfigError, "less than max_seq_len = 2"),
        ({}, None, PipelineError, r"a length[\s\S]*DefaultActorCritic and length=None"),
    ],
)
def test_what_does_not_fit_is_named(played, options, model, error, words):
    episodes = played.episodes(played.module(), [6])
    module = DefaultActorCritic(observation_space=played.obs_space, action_space=played.act_space)
    with pytest.raises(error, match=words):
        played.batch(module if model is None else played.module(**model), episodes, piece_of(**options))


def test_agents_of_one_module_with_different_spaces_have_their_sub_sequences_in_front_of_the_mapping(played):
    module, boxes = played.module(), {agent: gym.spaces.Box(-high, high, (3,)) for agent, high in (("a", 9), ("b", 99))}
    spaces = gym.spaces.Dict(boxes), gym.spaces.Dict(dict.fromkeys(boxes, played.act_space))
    episodes = []
    for number in range(2):
        keywords = {"observation_space": spaces[0], "action_space": spaces[1]}
        episode = MultiAgentEpisode(str(number), agent_to_module_mapping_fn=lambda *_, **__: "one", **keywords)
        rows = [{agent: np.full(3, 20 * i + 40 * number + t, "f4") for i, agent in enumerate(boxes)} for t in range(13)]
        episode.add_env_reset(observations=rows[0])
        outputs = {"state_out": {"h": np.zeros(5, np.float32), "c": np.zeros(5, np.float32)}}
        step = dict.fromkeys(boxes, np.int64(0)), dict.fromkeys(boxes, 1.0)
        for row in rows[1:]:
            episode.add_env_step(row, *step, extra_model_outputs=dict.fromkeys(boxes, outputs))
        episodes.append(episode)
    piece = piece_of(length=3)
    pieces = [AddObservationsFromEpisodesToBatch(as_learner_connector=True), piece]
    pieces += [AgentToModuleMapping(as_learner_connector=True), AddColumnsFromEpisodesToTrainBatch()]
    pieces += [AddTimeDimToBatchAndZeroPad(as_learner_connector=True)]
    pieces += [AddStatesFromEpisodesToBatch(as_learner_connector=True), BatchIndividualItems()]
    modules = MultiRLModule()
    modules.add_module("one", module)
    pipeline = LearnerConnectorPipeline(*spaces, connectors=pieces)
    batch = pipeline(rl_module=modules, batch={}, episodes=episodes)["one"]
    assert batch["seq_lens"].tolist() == [3, 3, 3, 3]
    firsts = [0, 20, 40, 60]  # the agents' chunks, in the order of episodes and agents
    draws = np.random.default_rng(0).random(4)[[0, 2, 1, 3]]  # drawn for agent a in both episodes, then for b
    assert batch["obs"][:, 0, 0].tolist() == [first + int(draw * 10) for first, draw in zip(firsts, draws)]


def test_the_end_of_each_chunk_is_taken_with_the_rows_to_burn_in_before_it(played):
    episodes = played.episodes(played.module(), [9, 4, 2])
    batch = played.batch(played.module(max_seq_len=5, burn_in=2), episodes, RandomSubsequences(at="end"))
    for b, (rows, learned) in enumerate([(range(4, 9), range(6, 9)), (range(4), range(1, 4)), (range(2), range(2))]):
        obs = np.stack([episodes[b].get_observations(row) for row in rows])
        np.testing.assert_array_equal(batch["obs"][b, : len(rows)], obs)
        assert batch["loss_mask"][b].tolist() == [row in learned for row in rows] + [False] * (5 - len(rows))
