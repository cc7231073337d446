"""Arguments of episodes: converted where they can be meant, refused where they cannot."""

from __future__ import annotations

import multiprocessing
import re
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.connectors import learner
from epibatch.connectors.env_to_module import EnvToModulePipeline, SingleAgentObservationPreprocessor
from epibatch.connectors.rewards import LineariseRewards
from epibatch.core.errors import CheckpointError, ColumnError, EpisodeError, EpisodeStateError, SpaceError
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode


def started():
    episode = SingleAgentEpisode("ep")
    episode.add_env_reset(np.zeros(2))
    return episode


@pytest.mark.parametrize("value", [True, 1, np.True_, np.array(True), np.array([True]), np.int64(1)])
def test_flags_that_are_meant(value):
    off = ~value if isinstance(value, np.ndarray) else type(value)(0)
    assert SingleAgentEpisode(terminated=off).is_terminated is False
    episode = started()
    episode.add_env_step(np.zeros(2), 0, 0.0, terminated=value)
    assert episode.is_terminated is True and episode.is_truncated is False


@pytest.mark.parametrize("value", ["no", "", None, 2, 1.0, float("nan"), np.array([True, False]), [True]])
@pytest.mark.parametrize("name", ["terminated", "truncated"])
def test_flags_that_are_none(name, value):
    episode = started()
    with pytest.raises(EpisodeError, match=f"episode ep, {name}\n  expected: True or False"):
        episode.add_env_step(np.zeros(2), 0, 0.0, **{name: value})
    assert len(episode) == 0 and not episode.is_done, "a refused step changes nothing"
    with pytest.raises(EpisodeError, match=name):
        SingleAgentEpisode("ep", **{name: value})


@pytest.mark.parametrize("info", ["x", 3, [1], [("a", 1)]])
def test_infos_that_are_none(info):
    episode = started()
    with pytest.raises(EpisodeError, match="episode ep, infos"):
        episode.add_env_step(np.zeros(2), 0, 0.0, info)
    with pytest.raises(EpisodeError, match="infos"):
        SingleAgentEpisode("ep").add_env_reset(0, infos=info)
    assert len(episode) == 0


@pytest.mark.parametrize("value", [-1, 1.5, "2", True])
@pytest.mark.parametrize("name", ["t_started", "len_lookback_buffer"])
def test_steps_that_are_none(name, value):
    with pytest.raises(EpisodeError, match=f"episode ep, {name}\n  expected: a number of steps from 0 on"):
        SingleAgentEpisode("ep", observations=[0, 1], actions=[0], rewards=[0.0], **{name: value})


def test_numpy_integers_are_steps():
    assert SingleAgentEpisode(t_started=np.int64(3)).t_started == 3
    assert started().cut(len_lookback_buffer=np.int32(1)).lookback == 0


@pytest.mark.parametrize("name", ["observation_space", "action_space"])
def test_spaces_that_are_none(name):
    with pytest.raises(SpaceError, match=f"episode ep, {name}"):
        SingleAgentEpisode("ep", **{name: gym.spaces.Discrete})


@pytest.mark.parametrize("state", [{}, 3, None, {"id_": "ep"}])
def test_states_that_are_none(state):
    with pytest.raises(CheckpointError, match="expected: the state of an episode"):
        SingleAgentEpisode.from_state(state)


@pytest.mark.parametrize("other", [3, None, "ep"])
def test_chunks_that_are_none(other):
    with pytest.raises(EpisodeError, match="concat_episode"):
        started().concat_episode(other)


def of_actions(space):
    episode = SingleAgentEpisode("ep", action_space=space)
    episode.add_env_reset(np.zeros(2))
    return episode


PARTS = gym.spaces.Dict(
    a=gym.spaces.Discrete(2), b=gym.spaces.Tuple([gym.spaces.MultiBinary(2), gym.spaces.Box(-1, 1)])
)


@pytest.mark.parametrize(
    ("space", "action"),
    [
        (gym.spaces.Discrete(2), 7),
        (gym.spaces.Discrete(2), -1),
        (gym.spaces.Discrete(2, start=5), np.int8(1)),
        (gym.spaces.Discrete(2), 0.5),
        (gym.spaces.Discrete(2), np.nan),
        (gym.spaces.Discrete(2), "left"),
        (gym.spaces.Discrete(2), np.zeros(4, np.float32)),
        (gym.spaces.Discrete(2), torch.tensor(2)),
        (gym.spaces.MultiDiscrete([2, 3]), np.array([0, 3])),
        (gym.spaces.MultiDiscrete([2, 3], start=[5, 5]), np.array([5, 0])),
        (gym.spaces.MultiDiscrete([2, 3]), np.array([0])),
        (gym.spaces.MultiBinary(2), np.array([0, 2])),
        (PARTS, {"a": 2, "b": (np.ones(2, int), np.zeros(1))}),
        (PARTS, {"a": 1, "b": (np.full(2, 3), np.zeros(1))}),
        (PARTS, {"a": 1}),
        (PARTS, {"a": 1, "b": 0}),
    ],
)
def test_actions_outside_of_their_space_are_refused_and_change_nothing(space, action):
    episode, several = of_actions(space), MultiAgentEpisode("ep", action_space={"x": space})
    several.add_env_reset(observations={"x": np.zeros(2)})
    for _ in range(2):  # as the first action, and after one that fits
        before = episode[:], several[:]
        with pytest.raises(SpaceError, match=r"column 'actions' at t=\d[\s\S]*expected: an action in"):
            episode.add_env_step(np.zeros(2), action, 1.0)
        for seen in ({}, {"x": np.zeros(2)}):  # at once, though the step waits for an observation
            with pytest.raises(SpaceError, match=r"agent 'x' at env step \d:[\s\S]*an action in"):
                several.add_env_step(seen, {"x": action}, {"x": 1.0})
        assert episode.equals(before[0]) and several.equals(before[1])
        episode.add_env_step(np.zeros(2), space.sample(), 1.0)
        several.add_env_step({"x": np.zeros(2)}, {"x": space.sample()}, {"x": 1.0})


@pytest.mark.parametrize(
    ("space", "action", "stored"),
    [
        (gym.spaces.Discrete(3), 2.0, np.int64(2)),
        (gym.spaces.Discrete(3, start=-1), np.float32(-1), np.int64(-1)),
        (gym.spaces.MultiDiscrete([2, 3]), np.array([1.0, 2.0]), np.array([1, 2])),
        (gym.spaces.MultiBinary(2), np.array([True, False]), np.array([True, False])),
        (gym.spaces.Tuple([gym.spaces.Discrete(2), gym.spaces.Box(-1, 1)]), [1.0, np.ones(1)], (1, np.ones(1))),
        (
            gym.spaces.Box(-1, 1, (2,)),
            np.float32([5, -7]),
            np.float32([5, -7]),
        ),  # clipped on the way to the environment
    ],
)
def test_usable_actions_are_stored_as_the_space_has_them(space, action, stored):
    episode = of_actions(space)
    for _ in range(2):
        episode.add_env_step(np.zeros(2), action, 1.0)
    np.testing.assert_equal(episode.get_actions(-1), stored)
    kinds = [np.asarray(part).dtype.kind for part in (episode.get_actions(-1), stored) if not isinstance(part, tuple)]
    assert len(set(kinds)) <= 1


@pytest.mark.parametrize("space", [gym.spaces.Discrete(5, start=-2), gym.spaces.MultiDiscrete([2, 3]), PARTS], ids=str)
def test_actions_are_taken_if_gymnasium_finds_them_in_the_space(space):
    space.seed(1)
    wide = gym.spaces.Dict(a=gym.spaces.Discrete(3), b=PARTS["b"]) if space is PARTS else None
    rng, taken = np.random.default_rng(0), 0
    episode = of_actions(space)
    for step in range(60):
        if step == 30:
            episode = episode.cut()  # the chunk has to look as well
        if isinstance(space, gym.spaces.Discrete):
            action = int(rng.integers(-5, 6))
        else:
            action = wide.sample() if wide else rng.integers(-1, 4, 2)
        try:
            episode.add_env_step(np.zeros(2), action, 1.0)
        except SpaceError:
            assert not space.contains(action)
        else:
            assert space.contains(action)
            taken += 1
    assert 5 < taken < 55


def test_a_space_that_is_set_later_counts():
    episode = of_actions(gym.spaces.Discrete(9))
    episode.add_env_step(np.zeros(2), 7, 1.0)
    episode.action_space = gym.spaces.Discrete(2)
    with pytest.raises(SpaceError, match="Discrete\\(2\\)"):
        episode.add_env_step(np.zeros(2), 7, 1.0)


NAN = np.float32([1, np.nan])


def test_chunks_are_joined_where_an_observation_is_ragged():
    """Rows of a list in a list whose lengths differ are Python objects; numbers were before and are again later."""

    def begun():
        episode = SingleAgentEpisode(id_="a")
        episode.add_env_reset([1, 2])
        episode.add_env_step([[1], [2, 3]], 0, 1.0)
        return episode

    whole, other = begun(), begun()
    following = whole.cut()
    following.add_env_step([5], 0, 1.0)
    whole.concat_episode(following)
    assert [np.asarray(row, object).tolist() for row in whole.get_observations()] == [[1, 2], [[1], [2, 3]], [5]]
    stranger = SingleAgentEpisode(
        id_="a", observations=[[[1], [2, 4]], [3]], actions=[0], rewards=[1.0], t_started=1, len_lookback_buffer=0
    )
    with pytest.raises(EpisodeStateError, match="another first observation"):
        other.concat_episode(stranger)


@pytest.mark.parametrize(
    "obs",
    [np.nan, NAN, {"a": NAN, "b": (np.array("x"), np.nan)}, np.array(["nat"], "M8[s]"), NAN.astype(complex)],
    ids=["number", "array", "parts", "time", "complex"],
)
def test_chunks_are_joined_where_an_observation_has_nan(obs):
    episode, several = SingleAgentEpisode("ep"), MultiAgentEpisode("ep")
    episode.add_env_reset(obs)
    several.add_env_reset(observations={"a": obs})
    chunks = episode.cut(), several.cut()
    for t in range(2):
        chunks[0].add_env_step(obs, t, 1.0)
        chunks[1].add_env_step({"a": obs}, {"a": t}, {"a": 1.0})
    episode.concat_episode(chunks[0])
    several.concat_episode(chunks[1])
    assert episode.get_actions().tolist() == several.agent_episodes["a"].get_actions().tolist() == [0, 1]
    assert episode.equals(episode[:]) and several.equals(several[:])


@pytest.mark.parametrize(("first", "second"), [(NAN, NAN[::-1]), (NAN, NAN[:1]), (np.nan, 0.0), ({"a": NAN}, NAN)])
def test_chunks_are_not_joined_where_observations_differ(first, second):
    episode, other = SingleAgentEpisode("ep"), SingleAgentEpisode("ep")
    episode.add_env_reset(first)
    other.add_env_reset(second)
    with pytest.raises(EpisodeError, match="another first observation"):
        episode.concat_episode(other)


@pytest.mark.parametrize(("space", "error"), [(None, EpisodeError), (gym.spaces.Box(-9, 9, (4,)), SpaceError)])
def test_what_env_reset_returns_is_no_observation(space, error):
    episode = SingleAgentEpisode("ep", observation_space=space)
    with pytest.raises(error, match=r"episode ep, add_env_reset[\s\S]*apart: add_env_reset\(\*env\.reset\(\)\)"):
        episode.add_env_reset(gym.make("CartPole-v1").reset(seed=0))
    assert not episode.is_reset
    episode.add_env_reset(*gym.make("CartPole-v1").reset(seed=0))
    assert episode.is_reset


def test_what_the_reset_of_several_agents_returns_is_no_dict_of_observations():
    with pytest.raises(EpisodeError, match=r"observations[\s\S]*apart, as `observations, infos = env\.reset\(\)`"):
        MultiAgentEpisode().add_env_reset(observations=({"a": 1}, {"a": {}}))


def test_a_tuple_with_a_dict_is_an_observation_where_the_space_says_so():
    space = gym.spaces.Tuple((gym.spaces.Discrete(3), gym.spaces.Dict(a=gym.spaces.Discrete(2))))
    episode = SingleAgentEpisode(observation_space=space)
    episode.add_env_reset((1, {"a": 1}))
    episode.add_env_step((2, {"a": 0}), 0, 0.0)
    number, named = episode.get_observations()
    assert number.tolist() == [1, 2] and named["a"].tolist() == [1, 0]
    several = MultiAgentEpisode()  # its resets have another form: nothing to take it for
    several.add_env_reset(observations={"x": (1, {"a": 1})})
    assert several.get_observations(-1) == {"x": (1, {"a": 1})}


@pytest.mark.parametrize(
    ("first", "other", "found"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, r"\{a: leaf\}"),
        ({"a": {"b": 1}}, {"a": 1}, r"\{a: leaf\}"),
        (np.zeros(2), (np.zeros(2), 1.0, False, False, {}), r"\(leaf, leaf, leaf, leaf, \{\}\)"),
    ],
)
@pytest.mark.parametrize("steps", [0, 2])
def test_an_observation_of_another_nesting_is_refused_by_the_step_that_brings_it(first, other, found, steps):
    episode = SingleAgentEpisode("ep")
    episode.add_env_reset(first)
    for _ in range(steps):
        episode.add_env_step(first, 0, 1.0)
    with pytest.raises(ColumnError, match=rf"episode ep, column 'obs' at t={1 + steps}\n[\s\S]*found: *.*{found}"):
        episode.add_env_step(other, 0, 1.0)
    assert len(episode) == steps
    episode.add_env_step(first, 1, 1.0)
    assert episode.get_actions().tolist() == [0] * steps + [1]


VARYING = [((1,), (1, 2, 3)), ((1, 2), ()), ({"a": 1}, {"a": 1, "b": 2}), ({"a": ()}, {"a": ({"b": 1},)})]


@pytest.mark.parametrize(("first", "other"), VARYING)
@pytest.mark.parametrize("space", [None, gym.spaces.Sequence(gym.spaces.Discrete(9))])
def test_observations_of_varying_length_or_with_more_keys_can_be_made_alike_by_pieces(first, other, space):
    class Count(SingleAgentObservationPreprocessor):
        def recompute_output_observation_space(self, input_observation_space, input_action_space):
            return gym.spaces.Discrete(9)

        def preprocess(self, observation, episode):
            return len(observation)

    pipeline = EnvToModulePipeline(space, None, connectors=[Count()])
    episode, given = SingleAgentEpisode(observation_space=space), [first, other, first, other]
    episode.add_env_reset(first)
    for observation in given[1:]:
        pipeline(episodes=[episode], rl_module=None, batch={})
        episode.add_env_step(observation, 0, 1.0)
    pipeline(episodes=[episode], rl_module=None, batch={})
    assert episode.get_observations().tolist() == [len(observation) for observation in given]


@pytest.mark.parametrize(("first", "other"), VARYING)
def test_observations_that_no_piece_made_alike_are_named_by_column_and_step(first, other):
    episode = SingleAgentEpisode("ep")
    episode.add_env_reset(first)
    episode.add_env_step(first, 0, 1.0)
    episode.add_env_step(other, 0, 1.0)
    with pytest.raises(ColumnError, match="episode ep, column 'obs' at t=2:"):
        episode.add_env_step(first, 0, 1.0)
    assert len(episode) == 2 and episode.get_observations(-1) == other


def test_an_observation_may_lack_keys_if_the_space_says_so():
    class Some(gym.Space):
        def contains(self, x):
            return isinstance(x, dict)

    episode = SingleAgentEpisode(observation_space=Some())
    episode.add_env_reset({"a": 1, "b": 2})
    episode.add_env_step({"a": 1}, 0, 1.0)
    assert episode.get_observations(-1) == {"a": 1}


def test_the_nesting_of_observations_is_that_of_the_reset_whatever_pieces_make_of_them():
    episode = SingleAgentEpisode()
    episode.add_env_reset({"a": 1, "b": 2})
    for t in range(3):
        episode.set_observations(new_data=np.full(2, t), at_indices=-1)
        episode = episode.cut() if t == 1 else episode
        if t == 2:
            with pytest.raises(ColumnError, match=r"\{a: leaf, b: leaf\}"):
                episode.add_env_step({"a": 1}, 0, 1.0)
        episode.add_env_step({"b": 2, "a": 1}, 0, 1.0)
    episode.set_observations(new_data=np.full(2, 3), at_indices=-1)
    assert episode.get_observations().tolist() == [[1, 1], [2, 2], [3, 3]]


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("actions", (1, 1.0, {"x": 1})),
        ("x", ({"a": 1}, 1.0, {"x": (1,)})),
    ],
)
def test_a_row_of_another_nesting_is_named_by_column_and_step(name, step):
    episode = started()
    episode.add_env_step(np.zeros(2), {"a": 1}, 1.0, extra_model_outputs={"x": 1})
    action, reward, outputs = step
    with pytest.raises(ColumnError, match=f"episode ep, column {name!r} at t=1"):
        episode.add_env_step(np.zeros(2), action, reward, extra_model_outputs=outputs)


FORMS = [
    lambda reward: np.array([reward]),
    lambda reward: np.array([[reward]], np.float32),
    lambda reward: np.array(reward),
    lambda reward: np.float32(reward),
    lambda reward: [reward],
    lambda reward: torch.tensor([reward]),
    lambda reward: torch.tensor(reward, requires_grad=True),
]


class Critic(torch.nn.Linear):
    def compute_values(self, batch, embeddings=None):
        return self(batch["obs"]).squeeze(-1)


def stepped(rewards):
    episode = SingleAgentEpisode(id_="e")
    episode.add_env_reset(np.zeros(4, np.float32))
    for t, reward in enumerate(rewards):
        episode.add_env_step(np.zeros(4, np.float32), 0, reward, terminated=t == len(rewards) - 1)
    return episode


def given(rewards):
    count = len(rewards)
    columns = {"observations": np.zeros((count + 1, 4), np.float32), "actions": np.zeros(count, np.int64)}
    return SingleAgentEpisode(id_="e", **columns, rewards=rewards, terminated=True, len_lookback_buffer=0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("made", [stepped, given])
def test_a_reward_of_one_entry_is_a_number(made, form):
    plain = [1.0, 0.5, -2.0]
    episode = made([form(reward) for reward in plain])
    assert episode.get_rewards().tolist() == plain and episode.get_rewards(-1) == -2.0
    pipeline = learner.default_pipeline(gamma=0.9)
    found, expected = (pipeline(rl_module=Critic(4, 1), batch={}, episodes=[one]) for one in (episode, made(plain)))
    torch.testing.assert_close(found["rewards"], expected["rewards"])
    torch.testing.assert_close(found["advantages"].shape, expected["advantages"].shape)


def test_forms_may_change_from_step_to_step():
    assert stepped([form(float(i)) for i, form in enumerate(FORMS)]).get_rewards().tolist() == [*map(float, range(7))]


def test_a_column_array_of_one_entry_per_row_is_numbers():
    assert given(np.array([[1.0], [2.0]], np.float32)).get_rewards().tolist() == [1.0, 2.0]


def test_vectors_stay_vectors():
    for made in (stepped, given):
        episode = made([np.array([1.0, 2.0]), np.array([3.0, 4.0])])
        assert episode.get_rewards().tolist() == [[1.0, 2.0], [3.0, 4.0]]
        pipeline = learner.default_pipeline(connectors=[LineariseRewards(weights=[1.0, 0.5])], advantages=False)
        assert pipeline(rl_module=None, batch={}, episodes=[episode])["rewards"].tolist() == [2.0, 5.0]
    numbers = LineariseRewards(weights=[2.0]).transform(stepped([np.array([1.0]), np.array([3.0])]).get_rewards())
    assert numbers.tolist() == [2.0, 6.0]


def test_advantages_of_vectors_name_the_rewards():
    episode = stepped([np.array([1.0, 2.0])] * 2)
    with pytest.raises(ColumnError, match=r"column 'rewards'\n.*shape \[3\]\n.*shape \[3, 2\]\n.*LineariseRewards"):
        learner.default_pipeline()(rl_module=Critic(4, 1), batch={}, episodes=[episode])


TEXT = ["1.0", b"1", np.array(["2"]), np.str_("1.0"), np.array(["1", "2"])]
OTHERS = [None, {"a": 1.0}, [[1], [2, 3]], [None], object(), np.array([None]), 1j]


@pytest.mark.parametrize("wrong", [*TEXT, *OTHERS])
@pytest.mark.parametrize("made", [stepped, given])
def test_what_is_no_number_is_refused_where_it_is_given(made, wrong):
    with pytest.raises(ColumnError, match=r"a step's reward\n.*expected: a number"):
        made([1.0, wrong])


def test_a_tuple_of_numbers_is_a_vector():
    assert stepped([(1.0, 2.0), (3.0, 4.0)]).get_rewards().tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_a_refused_step_leaves_the_episode_as_it_was():
    episode = SingleAgentEpisode()
    episode.add_env_reset(0)
    with pytest.raises(ColumnError):
        episode.add_env_step(1, 0, "1.0")
    episode.add_env_step(1, 0, np.array([1.0]))
    assert episode.get_rewards().tolist() == [1.0] and len(episode) == 1


def test_agents_rewards_are_numbers_too():
    space = gym.spaces.Discrete(9)
    episode = MultiAgentEpisode(observation_space=gym.spaces.Dict(a=space, b=space))
    episode.add_env_reset(observations={"a": 0, "b": 0})
    episode.add_env_step({"a": 1}, {"a": 0, "b": 0}, {"a": np.array([1.0]), "b": np.array([0.5])})
    assert episode.pending_rewards == {"b": 0.5}
    episode.add_env_step({"a": 2, "b": 1}, {"a": 0}, {"a": np.array([2.0]), "b": np.array([0.5])})
    assert {agent: rewards.tolist() for agent, rewards in episode.get_rewards().items()} == {
        "a": [1.0, 2.0],
        "b": [1.0],
    }
    with pytest.raises(ColumnError, match="a step's reward"):
        episode.add_env_step({"a": 3}, {"a": 0}, {"a": "1.0"})


@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_advantages_that_are_no_numbers_name_the_step(standardize, wrong):
    episodes = [given([1.0, 1.0]), given([1.0, wrong, 0.0])]
    pipeline = learner.default_pipeline(standardize_advantages=standardize)
    with pytest.raises(ColumnError, match=rf"column 'rewards', .*chunk 1.*, step 1\n.*\n  found: +{wrong}"):
        pipeline(rl_module=Critic(4, 1), batch={}, episodes=episodes)
    critic = Critic(4, 1)
    torch.nn.init.constant_(critic.bias, float("nan"))
    with pytest.raises(ColumnError, match=r"Critic\.compute_values, .*chunk 0.*, step 0\n.*\n  found: +nan"):
        pipeline(rl_module=critic, batch={}, episodes=episodes[:1])


def test_advantages_whose_sum_is_too_large_are_numbers():
    critic = Critic(4, 1)
    torch.nn.init.zeros_(critic.bias)
    pipeline = learner.default_pipeline(gamma=0.0, standardize_advantages=False)
    batch = pipeline(rl_module=critic, batch={}, episodes=[given([3e38, 3e38, 3e38])])
    torch.testing.assert_close(batch["advantages"][:3], torch.full((3,), 3e38))


@pytest.mark.filterwarnings("ignore:overflow")
def test_returns_that_are_too_large_are_named():
    episodes = [given([1.0]), given([3e38, 3e38])]
    with pytest.raises(ColumnError, match=r"column 'value_targets', .*chunk 1.*, step 0\n.*\n  found: +inf"):
        learner.default_pipeline(gamma=1.0, lambda_=1.0)(rl_module=Critic(4, 1), batch={}, episodes=episodes)


def test_a_module_whose_name_has_rewards_in_it_is_named_with_its_value():
    class Seesrewards(Critic):
        pass

    critic = Seesrewards(4, 1)
    torch.nn.init.constant_(critic.bias, float("nan"))
    with pytest.raises(ColumnError, match=r"Seesrewards\.compute_values[\s\S]*found: +nan"):
        learner.default_pipeline()(rl_module=critic, batch={}, episodes=[given([1.0])])


def test_names_are_hexadecimal_and_never_come_twice() -> None:
    names = [SingleAgentEpisode().id_ for _ in range(2000)]
    assert len(set(names)) == 2000
    assert all(re.fullmatch("[0-9a-f]{32}", name) for name in names)
    assert len({name[:8] for name in names}) == len({name[-8:] for name in names}) == 2000  # random all over


def _send(pipe: Any) -> None:
    pipe.send([SingleAgentEpisode().id_ for _ in range(300)])


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_forked_processes_do_not_use_the_names_of_their_parent() -> None:
    SingleAgentEpisode()  # there are names left over now
    context = multiprocessing.get_context("fork")
    names: list[str] = []
    for _ in range(2):
        ours, theirs = context.Pipe()
        process = context.Process(target=_send, args=(theirs,))
        process.start()
        names += ours.recv()
        process.join()
    names += [SingleAgentEpisode().id_ for _ in range(300)]
    assert len(set(names)) == 900
