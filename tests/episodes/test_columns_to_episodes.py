"""Episodes of flat columns: the inverse of `episodes_to_columns`, other libraries' names, and faults of columns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.core.errors import ColumnError
from epibatch.episodes import SingleAgentEpisode, columns_to_episodes, episodes_to_columns
from fixture_episodes import joint_step, leaves_of, meeting


def episode_of(name, length, start, end, seed, nested):
    """An episode with random rows."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(length + 1, 2)).astype(np.float32)
    return SingleAgentEpisode(
        name,
        observations={"x": obs, "y": (rng.integers(0, 9, length + 1),)} if nested else obs,
        actions=rng.integers(0, 4, length),
        rewards=rng.normal(size=length),
        terminated=end == 1,
        truncated=end == 2,
        t_started=start,
        infos=[{"t": t} for t in range(length)] + [{}],
        extra_model_outputs={"logp": rng.normal(size=(length, 3)).astype(np.float16)},
        len_lookback_buffer=0,
    )


@st.composite
def several_episodes(draw):
    nested = draw(st.booleans())
    facts = st.tuples(st.integers(1, 5), st.integers(0, 9), st.integers(0, 2), st.integers(0, 99))
    return [episode_of(f"e{i}", *fact, nested) for i, fact in enumerate(draw(st.lists(facts, min_size=1, max_size=5)))]


def assert_equal(found, expected):
    assert len(found) == len(expected)
    for mine, right in zip(found, expected):
        assert mine.equals(right), (mine, right)
        for path, leaf in leaves_of(right.get_state()["observations"]).items():
            assert np.asarray(leaf).dtype == np.asarray(leaves_of(mine.get_state()["observations"])[path]).dtype


def rows_of(column, order):
    if isinstance(column, dict):
        return {key: rows_of(part, order) for key, part in column.items()}
    if isinstance(column, tuple):
        return tuple(rows_of(part, order) for part in column)
    return [column[i] for i in order] if isinstance(column, list) else column[order]


@settings(deadline=None, max_examples=60)
@given(several_episodes(), st.randoms(use_true_random=False))
def test_it_is_the_inverse_wherever_the_rows_lie(episodes, random):
    columns = episodes_to_columns(episodes)
    assert_equal(columns_to_episodes(columns), episodes)
    order = list(range(len(columns["t"])))
    random.shuffle(order)
    shuffled = {name: rows_of(column, np.array(order)) for name, column in columns.items()}
    assert_equal(sorted(columns_to_episodes(shuffled), key=lambda episode: episode.id_), episodes)


@settings(deadline=None, max_examples=30)
@given(several_episodes(), st.data())
def test_chunks_of_an_episode_become_one(episodes, data):
    cuts = [data.draw(st.integers(0, len(episode))) for episode in episodes]
    chunks = [part for episode, cut in zip(episodes, cuts) for part in (episode.slice(slice(0, cut)), episode[cut:])]
    assert_equal(columns_to_episodes(episodes_to_columns(chunks)), episodes)


def flat(**columns):
    """Columns of an episode of 3 steps that is terminated, and one of 2 steps that is truncated."""
    given = {
        "obs": [0, 1, 2, 10, 11],
        "actions": [5, 6, 7, 8, 9],
        "rewards": [1.0, 2.0, 3.0, 4.0, 5.0],
        "eps_id": ["a", "a", "a", "b", "b"],
        "t": [0, 1, 2, 4, 5],
        "terminateds": [0, 0, 1, 0, 0],
        "truncateds": [False, False, False, False, True],
        **columns,
    }
    return {name: column for name, column in given.items() if column is not None}


def facts_of(episodes):
    return [
        (e.id_, e.t_started, e.get_observations().tolist(), e.get_actions().tolist(), e.is_terminated, e.is_truncated)
        for e in episodes
    ]


EXPECTED = [("a", 0, [0, 1, 2, 3], [5, 6, 7], True, False), ("b", 4, [10, 11, 12], [8, 9], False, True)]
NUMBERED = [(name, start, *rest) for name, (_, start, *rest) in zip("01", EXPECTED)]
FROM_0 = [(name, 0, *rest) for name, (_, _, *rest) in zip("01", EXPECTED)]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (flat(new_obs=[1, 2, 3, 11, 12]), EXPECTED),
        (flat(obs=[0, 1, 2, 3, 10, 11, 12]), EXPECTED),
        (flat(obs=[0, 1, 2, 3, 10, 11, 12], eps_id=np.array(["a"] * 3 + ["b"] * 2, object)), EXPECTED),
        (flat(new_obs=[1, 2, 3, 11, 12], eps_id=[0, 0, 0, 1, 1]), NUMBERED),
        (flat(new_obs=[1, 2, 3, 11, 12], eps_id=[0.0, 0.0, 0.0, 1.0, 1.0]), NUMBERED),
        (flat(new_obs=[1, 2, 3, 11, 12], eps_id=None, t=None), FROM_0),
        (flat(new_obs=[1, 2, 3, 11, 12], eps_id=None, t=[0, 1, 2, 0, 1]), FROM_0),
        (flat(new_obs=[1, 2, 3, 11, 12], terminateds=None, dones=[0, 0, 1, 0, 1]), EXPECTED),
        ({"observations": [0, 1, 2, 10, 11], "actions": [5, 6, 7, 8, 9], "rewards": [[1.0]] * 5,
          "next_observations": [1, 2, 3, 11, 12], "terminals": [0, 0, 1, 0, 0], "timeouts": [0, 0, 0, 0, 1]}, FROM_0),
        ({"observation": [0, 1, 2, 3], "action": [5, 6, 7], "reward": [1, 2, 3]},
         [("0", 0, [0, 1, 2, 3], [5, 6, 7], False, False)]),
    ],
)  # fmt: skip
def test_other_names_ids_and_final_observations(columns, expected):
    assert facts_of(columns_to_episodes(columns)) == expected


def test_without_final_observations_they_are_placeholders():
    episodes = columns_to_episodes(flat())
    assert [episode.lacks_final_obs for episode in episodes] == [True, True]
    assert episodes_to_columns(episodes)["new_obs"].tolist() == [1, 2, 2, 11, 11]


def test_agents_have_episodes_of_their_own():
    game = meeting("p", "q", agent_module_ids={"p": "m", "q": "m"})
    for _ in range(2):
        game.add_env_step(**joint_step("p", "q"))
    game.add_env_step(**joint_step("q"))
    columns = episodes_to_columns([game], by="module_id")["m"]
    episodes = columns_to_episodes(columns)
    assert [(e.id_, e.agent_id, e.multi_agent_episode_id, len(e)) for e in episodes] == [
        ("game/p", "p", "game", 2),
        ("game/q", "q", "game", 3),
    ]
    for episode in episodes:
        own = game.agent_episodes[episode.agent_id]
        np.testing.assert_array_equal(episode.get_observations(), own.get_observations())


def test_names_map_columns_and_leave_them_out():
    columns = {**flat(new_obs=[1, 2, 3, 11, 12], obs=None), "x": [0, 1, 2, 10, 11], "words": list("abcde")}
    episodes = columns_to_episodes(columns, names={"x": "obs", "words": None})
    assert facts_of(episodes) == EXPECTED and not episodes[0].extra_model_outputs
    assert columns_to_episodes({"obs": [], "actions": [], "rewards": []}) == []


FAULTS = [
    (flat(rewards=None), "'rewards'"),
    (flat(rewards=[1.0] * 4), "4 rows"),
    (flat(obs=[0] * 6), "7 with final ones"),
    (flat(t=[0, 1, 3, 4, 5]), "'t' of episode a, step 3.*\n.*\n.*after a gap"),
    (flat(t=[0, 1, 1, 4, 5]), "episode a, step 1.*\n.*\n.*again"),
    (flat(t=[0, 1, 2, -1, 0]), "episode b, step -1"),
    (flat(t=[0.0, 1.0, 2.5, 4.0, 5.0]), "'t', row 2"),
    (flat(t=list("abcde")), "'t'"),
    (flat(terminateds=[0, 1, 0, 0, 0]), "'terminateds' of episode a, step 1"),
    (flat(terminateds=[0, 2, 0, 0, 0]), "'terminateds', row 1"),
    (flat(terminateds=["no"] * 5), "'terminateds'"),
    (flat(eps_id=[1, 1, 1, "b", "b"]), "'eps_id'.*\n.*\n.*int, str"),
    (flat(eps_id=[1.0, 1.0, np.nan, 2.0, 2.0]), "'eps_id', row 2"),
    (flat(eps_id=[None] * 5), "NoneType"),
    (flat(eps_id=["a"] * 4), "'eps_id'"),
    (flat(actions=np.array([5, 6, 7, 8, "x"], object)), "'actions'.*\n.*\n.*object"),
    (flat(actions=[[1], [1, 2], [1], [1], [1]]), "'actions'.*\n.*rows of one shape"),
    (flat(actions={}), "'actions'"),
    (flat(rewards=1.0), "'rewards'"),
    (flat(new_obs=[1, 9, 3, 11, 12]), "'new_obs' of episode a, step 1"),
    (flat(new_obs=[[1], [2], [3], [11], [12]]), "'new_obs'"),
    (flat(new_obs={"a": [1, 2, 3, 11, 12]}), "nest"),
    (flat(infos=[{}]), "'infos'"),
    (
        flat(obs=[0, 1, 2, 3, 10, 11, 12], eps_id=list("ababa"), t=None, terminateds=None),
        "in the order of their episodes",
    ),
    (flat(obs=None, observation=[0] * 5, state=[0] * 5), "'obs'.*\n.*one column"),
]


@pytest.mark.parametrize(("columns", "message"), FAULTS, ids=range(len(FAULTS)))
def test_columns_that_do_not_fit_are_named(columns, message):
    with pytest.raises(ColumnError, match=message):
        columns_to_episodes(columns)


def test_unknown_names_are_named():
    with pytest.raises(ColumnError, match="did you mean 'obs'"):
        columns_to_episodes(flat(), names={"obss": "obs"})


def test_a_list_of_dicts_is_refused_and_the_error_says_how_to_join_them():
    with pytest.raises(ColumnError, match=r"a dict with an array(.|\n)*a list(.|\n)*for step in steps"):
        columns_to_episodes([{"obs": 0.0, "action": 0, "reward": 1.0}])
