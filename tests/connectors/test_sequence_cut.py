"""Sequences of a train batch in every way that a module's settings ask for, with the states they start from."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.connectors.columns import ConcatenateColumns
from epibatch.connectors.common import AgentToModuleMapping, BatchIndividualItems
from epibatch.connectors.learner import AddNextObservationsFromEpisodesToTrainBatch
from epibatch.core.errors import ColumnError, ConfigError, EpisodeError
from epibatch.core.padding import pad, unpad
from epibatch.core.rl_module import MultiRLModule, RLModuleSpec
from epibatch.core.sequence_ends import sequence_layout
from epibatch.core.structs import flatten
from epibatch.episodes import MultiAgentEpisode
from fixture_pieces import Lab

ENDS = [("pad", 0), ("drop", 0), ("truncate", 0), ("overlap", 0), ("continue", 0)]
BURNED = [("pad", 2), ("drop", 1), ("overlap", 2)]


def module_of(end, burn_in, max_seq_len=4, **config):
    module = Lab.module(2, max_seq_len, sequence_end=end, burn_in=burn_in, **config)
    module.handles_resets = True
    return module


def episodes_of():
    """Chunks of many lengths: whole episodes, and one that goes on at t = 5 with states from before."""
    return [
        Lab.episode("a", 9, state=2, end="terminated"),
        Lab.episode("b", 1, state=2, offset=100),
        Lab.episode("c", 3, state=2, offset=200, t_started=5, lookback=1),
        Lab.episode("d", 4, state=2, offset=300, end="truncated"),
    ]


def states_by_hand(episodes, sequences):
    """The recorded state before each (chunk, row); -1 where an episode begins."""
    states = []
    for chunk, row in sequences:
        t = episodes[chunk].t_started + row
        start = episodes[chunk].get_observations(0)[0] - t + row  # its offset
        states.append(np.full(2, -1.0 if t == 0 else start + t - 1 + 0.25, np.float32))
    return np.array(states, np.float32).reshape(len(states), 2)


@pytest.mark.parametrize("ppo", [False, True], ids=["rows", "bootstraps"])
@pytest.mark.parametrize(("end", "burn_in"), ENDS + BURNED)
def test_columns_lie_where_the_layout_says(lab, end, burn_in, ppo):
    episodes = episodes_of()
    module = module_of(end, burn_in)
    batch = lab.run("learner", lab.defaults("learner", ppo), episodes, rl_module=module)
    rows = lab.run("learner", lab.defaults("learner", ppo), episodes, rl_module=lab.module())  # without a state
    counts = [len(episode) + ppo for episode in episodes]
    layout = sequence_layout(counts, 4, end=end, burn_in=burn_in, bootstrapped=ppo)
    for name in ("obs", "actions", "rewards", "terminateds", "truncateds", "action_logp"):
        np.testing.assert_array_equal(batch[name].numpy(), pad(rows[name].numpy(), layout), err_msg=name)
        back = unpad(batch[name].numpy(), layout)
        assert back.tobytes() == rows[name].numpy()[layout.kept_rows].tobytes(), name
    real = rows["loss_mask"].numpy() if ppo else np.ones(sum(counts), bool)
    np.testing.assert_array_equal(batch["loss_mask"].numpy(), pad(real, layout) & layout.loss)
    ends = layout.offsets + layout.seq_lens == np.array(counts)[layout.sequence_chunks]
    less = ends & ppo if end != "continue" else 0
    assert batch["seq_lens"].tolist() == (layout.seq_lens - less).tolist()
    expected = states_by_hand(episodes, zip(layout.sequence_chunks, layout.offsets))
    np.testing.assert_array_equal(batch["state_in"]["h"].numpy(), expected)
    assert ("resets" in batch) == (end == "continue")


@pytest.mark.parametrize("end", ["overlap", "continue"])
def test_states_of_next_observations_are_one_step_later(lab, end):
    pieces = lab.defaults("learner")
    pieces.insert(2, AddNextObservationsFromEpisodesToTrainBatch())
    episodes = [lab.episode("a", 6, state=2), lab.episode("b", 3, state=2, offset=100)]
    batch = lab.run("learner", pieces, episodes, rl_module=module_of(end, 0))
    expected = {"overlap": [0.25, 2.25, 100.25], "continue": [0.25, 4.25, 102.25]}[end]
    assert batch["next_state_in"]["h"][:, 0].tolist() == expected
    if end == "continue":
        assert batch["next_reset_states"]["h"][:, :, 0].tolist() == [[0.0], [100.25], [0.0]]


@pytest.mark.parametrize(("burn_in", "lengths"), [(0, [3, 1, 2]), (1, [2, 1]), (0, [1, 2, 3] * 3)])
def test_chunks_that_are_all_too_short_are_an_error(lab, burn_in, lengths):
    module = module_of("drop", burn_in)
    chunks = [lab.episode(f"e{i}", length, state=2) for i, length in enumerate(lengths)]
    with pytest.raises(EpisodeError) as raised:
        lab.run("learner", lab.defaults("learner"), chunks, rl_module=module)
    texts = [
        f"a chunk of {4 - burn_in} steps or more (max_seq_len=4" + " less burn_in=1" * burn_in,
        f"{len(lengths)} chunks of at most {max(lengths)} steps: " + ", ".join(map(str, lengths[:8])),
        f"sequence_end='pad' or 'overlap' in the model_config, which keep short chunks; or a max_seq_len of at most "
        f"{max(lengths) + burn_in}; or longer chunks (a larger rollout_fragment_length",
    ]
    assert all(text in str(raised.value) for text in texts), str(raised.value)
    assert str(raised.value).count(", ...") == (len(lengths) > 8)


@pytest.mark.filterwarnings("ignore::epibatch.core.errors.EpibatchWarning")  # no states are stored
def test_advantages_need_every_row_and_sequences_of_the_modules_settings(lab):
    def longer(batch, episodes):
        return {name: torch.cat([leaf, leaf]) if torch.is_tensor(leaf) else leaf for name, leaf in batch.items()}

    bootstrap, *pieces, gae = lab.defaults("learner", True)
    mask = {"loss_mask": {("a",): [True] * 5}}
    with pytest.raises(ConfigError, match="AddOneTsToEpisodesAndTruncate"):
        lab.run("learner", [*pieces, gae], [lab.episode("a", 5)], rl_module=module_of("drop", 0), batch=mask)
    pieces = [bootstrap, *pieces, lab.user(longer), gae]
    with pytest.raises(ColumnError, match="the pipeline that makes the sequences"):
        lab.run("learner", pieces, [lab.episode("a", 5)], rl_module=lab.module(2))


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"sequence_end": "overlapp"}, "overlap"),
        ({"sequence_end": True}, "True"),
        ({"burn_in": 4}, "less than max_seq_len = 4"),
        ({"burn_in": "2"}, "'2'"),
        ({"burn_in": 2, "sequence_end": "truncate"}, "sequence_end 'truncate'"),
        ({"burn_in": 2, "sequence_end": "continue"}, "sequence_end 'continue'"),
        ({"sequence_end": "continue"}, "handles_resets"),
    ],
)
def test_settings_that_do_not_fit_are_named(lab, config, named):
    with pytest.raises(ConfigError, match=named) as raised:
        lab.run("learner", lab.defaults("learner"), [lab.episode("a", 3)], rl_module=lab.module(2, **config))
    assert "model_config of Module" in str(raised.value)


def team_batch(lab, end, burn_in, other):
    """The train batch of two agents of one module, whose observations come from two spaces if `other` says so."""
    box = gym.spaces.Box(-99, 99, (2,), np.float32)
    spaces = {"x": box, "y": gym.spaces.Box(-999, 999, (2,), np.float32) if other else box}
    episodes = []
    for number, length in enumerate((9, 3)):
        episode = MultiAgentEpisode(
            id_=str(number),
            observation_space=spaces,
            action_space=dict.fromkeys(spaces, lab.act_space),
            agent_to_module_mapping_fn=lambda agent_id, episode: "default_policy",
        )
        see = {agent: np.array([number, i], np.float32) for i, agent in enumerate(spaces)}
        episode.add_env_reset(observations=see)
        for t in range(length):
            see = {agent: np.array([10 * t + number, i], np.float32) for i, agent in enumerate(spaces)}
            state = {agent: {"state_out": {"h": np.full(2, 100 * i + t, np.float32)}} for i, agent in enumerate(spaces)}
            acted, rewards = dict.fromkeys(spaces, np.int64(t % 2)), dict.fromkeys(spaces, float(t))
            episode.add_env_step(see, acted, rewards, extra_model_outputs=state)
        episodes.append(episode)
    pieces = lab.defaults("learner", True)
    at = next(i for i, piece in enumerate(pieces) if isinstance(piece, BatchIndividualItems))
    pieces = [*pieces[:at], AgentToModuleMapping(), *pieces[at:]]
    spec = RLModuleSpec(
        module_class=type(lab.module()),
        observation_space=box,
        action_space=lab.act_space,
        model_config={"state": 2, "max_seq_len": 4, "sequence_end": end, "burn_in": burn_in},
    )
    module = MultiRLModule(rl_module_specs={"default_policy": spec})
    module["default_policy"].handles_resets = True
    spaces = gym.spaces.Dict(spaces), gym.spaces.Dict(dict.fromkeys(spaces, lab.act_space))
    return lab.run("learner", pieces, episodes, rl_module=module, spaces=spaces)["default_policy"]


@pytest.mark.parametrize(("end", "burn_in"), [*ENDS[:-1], *BURNED])
def test_agents_of_several_spaces_have_the_batch_of_agents_of_one(lab, end, burn_in):
    found, right = (team_batch(lab, end, burn_in, other) for other in (True, False))
    assert found.keys() == right.keys()
    for name, column in right.items():
        for ours, theirs in zip(flatten(found[name])[0], flatten(column)[0]):
            assert torch.equal(ours, theirs), name
    steps = {("drop", 0): 8, ("drop", 1): 9 + 3, ("truncate", 0): 4 + 3}.get((end, burn_in), 9 + 3)  # of each agent
    assert right["loss_mask"].sum() == 2 * steps


def test_agents_of_several_spaces_are_not_packed(lab):
    team_batch(lab, "continue", 0, other=False)
    with pytest.raises(ConfigError, match="different spaces"):
        team_batch(lab, "continue", 0, other=True)


@pytest.mark.parametrize("name", ["AddTimeDimToBatchAndZeroPad", "BatchIndividualItems"])
@pytest.mark.parametrize("end", ["pad", "overlap"])
def test_pieces_that_join_columns_leave_the_time_axis_where_it_is(lab, end, name):
    pieces = lab.defaults("learner")
    at = [type(piece).__name__ for piece in pieces].index(name)
    pieces.insert(at + 1, ConcatenateColumns(columns=["obs", "rewards"], to="features", keep=True))
    batch = lab.run("learner", pieces, episodes_of(), rl_module=module_of(end, 0))
    assert np.array_equal(batch["features"][..., -1], batch["rewards"])
    assert np.array_equal(batch["features"][..., :-1], batch["obs"].reshape(*batch["rewards"].shape, -1))
