"""The facts of how episodes became a batch: cells, what they see, pieces, chunks, and the page's safety."""

from __future__ import annotations

import json

import numpy as np
import pytest

from epibatch.connectors.common import FrameStacking
from epibatch.connectors.learner import LearnerConnectorPipeline
from epibatch.connectors.replay import NStepReturns
from epibatch.core.errors import EpibatchWarning, PipelineError
from epibatch.episodes import SingleAgentEpisode
from epibatch.episodes.replay import EpisodeReplayBuffer
from fixture_pieces import Lab, UserPiece


def learner(*pieces):
    return LearnerConnectorPipeline(connectors=list(pieces))


def grid_of(inspection, module_id="default_policy"):
    return inspection.data["grids"][module_id]


def test_each_cell_of_a_train_batch_names_its_step():
    chunks = [
        Lab.episode("a", 6, state=2, end="terminated"),
        Lab.episode("b", 3, state=2, offset=100, t_started=2, lookback=1),
    ]
    inspection = learner(*Lab.defaults("learner", ppo=True)).inspect(chunks, Lab.module(2, 4))
    grid, described = grid_of(inspection), inspection.data["chunks"]
    assert grid["shape"] == [3, 4]
    for cell, (chunk, step, kind) in enumerate(zip(grid["chunk"], grid["at"], grid["kind"])):
        values = {name: column[cell] for name, column in grid["columns"].items()}
        assert (kind == 0) == (chunk == -1) == (step == -1)
        if kind == 0:
            assert not any(values.values())
            continue
        episode = chunks[[one["name"] for one in described].index(described[chunk]["name"])]
        assert [values["obs[0]"], values["obs[1]"]] == episode.get_observations(step).tolist()
        assert kind == (2 if step == len(episode) else 1)
        assert values["rewards"] == (0 if kind == 2 else episode.get_rewards(step))
        assert described[chunk]["obs"][step + described[chunk]["look"]][0] == values["obs[0]"]
    # a sequence from the initial state of -1, one from the state after step 3, one from that before the chunk
    norms = [np.sqrt(2), 3.25 * np.sqrt(2), 101.25 * np.sqrt(2)]
    assert [state[1] for state in grid["states"][1:]] == [3, 1]
    np.testing.assert_allclose([state[0] for state in grid["states"]], norms, rtol=1e-4)
    assert grid["others"] == {"seq_lens": [3], "state_in/h": [3, 2]}


@pytest.mark.parametrize("frames", [1, 3])
def test_what_cells_see_is_what_the_pieces_read(frames):
    """A stack of frames sees as many steps, as far as the episode goes; a target adds up the later rewards."""
    chunks = [Lab.episode("a", 5, t_started=3, lookback=3), Lab.episode("b", 3, offset=100)]
    pieces = Lab.defaults("learner", ppo=True)
    if frames > 1:
        pieces[1:] = [FrameStacking(num_frames=frames, new_axis=True, as_learner_connector=True), *pieces[2:-1]]
    grid = grid_of(learner(*pieces).inspect(chunks, Lab.module()))
    assert sorted(set(grid["chunk"])) == [0, 1]
    for cell, (chunk, step) in enumerate(zip(grid["chunk"], grid["at"])):
        first, end = (-3, 5) if chunk == 0 else (0, 3)
        assert grid["seen"]["obs"][str(cell)] == list(range(max(first, step - frames + 1), step + 1))
        later = list(range(step, end)) if frames == 1 else [step][: step < end]
        assert grid["seen"]["rewards"].get(str(cell), []) == later


def test_chunks_are_shown_as_they_were_recorded():
    class Doubled(UserPiece):
        def __call__(self, *, batch, episodes, **kwargs):
            for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
                episode.set_rewards(new_data=2 * episode.get_rewards())
            return batch

    chunk = Lab.episode("a", 4)
    inspection = learner(Doubled(), *Lab.defaults("learner")).inspect([chunk], Lab.module())
    (shown,), rewards = inspection.data["chunks"], grid_of(inspection)["columns"]["rewards"]
    assert shown["rewards"] == chunk.get_rewards().tolist()
    assert rewards == (2 * chunk.get_rewards()).tolist()


def test_probes_are_at_most_64_and_it_is_said():
    chunks = [Lab.episode("a", 60)]
    inspection = learner(*Lab.defaults("learner")).inspect(chunks, Lab.module())
    seen = grid_of(inspection)["seen"]
    assert seen["obs"] == {str(t): [t] for t in range(32)} and seen["rewards"] == {str(t): [t] for t in range(31)}
    assert [note for note in inspection.data["notes"] if "64 times" in note and "121" in note]


def test_nothing_is_changed_by_it():
    calls = []
    pipeline = learner(UserPiece(lambda batch, episodes: calls.append(1)), *Lab.defaults("learner", ppo=True))
    chunks = [Lab.episode("a", 4)]
    before = chunks[0].get_state()
    state, names = np.random.get_state()[1].copy(), list(pipeline.names)
    pipeline.inspect(chunks, Lab.module())
    assert pipeline.names == names and pipeline.watches == []
    assert (np.random.get_state()[1] == state).all()
    np.testing.assert_equal(chunks[0].get_state(), before)


def test_pieces_have_moments_of_their_columns():
    def doubles(batch, episodes):
        return {**batch, "rewards": batch["rewards"] * 2, "holes": np.array([np.nan, 0.0, np.inf, 4.0])}

    pieces = Lab.defaults("learner")
    inspection = learner(*pieces[:5], UserPiece(doubles), *pieces[5:]).inspect([Lab.episode("a", 4)], Lab.module())
    (lane,) = inspection.data["flow"]
    piece = next(piece for piece in lane["pieces"] if piece["kind"] == "UserPiece")
    assert lane["key"] == "learner" and piece["own"] and piece["us"] > 0 and piece["error"] is None
    columns = {column["name"]: column for column in piece["columns"]}
    assert columns["rewards"]["what"] == ["100% of the values"] and columns["holes"]["what"] == ["added"]
    rewards = columns["rewards"]["after"]
    assert (rewards["min"], rewards["mean"], rewards["max"], rewards["shape"]) == (1.0, 4.0, 7.0, [4])
    assert rewards["values"] == [1.0, 3.0, 5.0, 7.0] and not rewards["sampled"] and rewards["bytes"] == 32
    holes = columns["holes"]["after"]
    assert (holes["nan"], holes["zero"], holes["mean"], holes["values"]) == (0.5, 0.25, 2.0, [None, 0.0, None, 4.0])


def test_replay_draws_with_several_steps():
    whole = {name: Lab.episode(name, 6, offset=100 * i, end="terminated") for i, name in enumerate("ab")}
    buffer = EpisodeReplayBuffer(capacity=50, seed=0)
    buffer.add(list(whole.values()))
    pipeline = learner(NStepReturns(n_step=3, gamma=1.0), *Lab.defaults("learner"))
    inspection = pipeline.inspect(buffer.sample(20), Lab.module())
    grid, chunks = grid_of(inspection), inspection.data["chunks"]
    assert len(grid["chunk"]) == 20
    for cell, (number, step) in enumerate(zip(grid["chunk"], grid["at"])):
        chunk = chunks[number]
        rewards = whole[chunk["name"]].get_rewards().tolist()
        assert grid["columns"]["rewards"][cell] == sum(rewards[chunk["t0"] + step :][:3])
    assert inspection.data["notes"] == []
    places = {(chunk["name"], chunk["t0"]): chunk["x"] for chunk in chunks}
    begun = {name: {x[-2] - t for (owner, t), x in places.items() if owner == name} for name, _ in places}
    assert all(len(zeros) == 1 for zeros in begun.values()), "draws of one step lie at one time"


def test_a_batch_of_very_many_rows_is_sampled_and_it_is_said():
    count = 100_000
    rows = np.arange(count + 1, dtype=np.float32)
    episode = SingleAgentEpisode(
        observations=rows, actions=np.zeros(count, np.int64), rewards=rows[:-1], len_lookback_buffer=0
    )
    inspection = learner(*Lab.defaults("learner")).inspect([episode], Lab.module())
    grid = grid_of(inspection)
    assert grid["rows"] == count and grid["shape"] == [4096] and grid["at"] == list(range(4096))
    last = inspection.data["flow"][0]["pieces"][-1]["columns"][0]["after"]
    assert last["sampled"] and (last["rows"], last["min"], last["shape"]) == (1024, 0.0, [count])
    assert any("4096 of 100,000" in note for note in inspection.data["notes"])
    (chunk,) = inspection.data["chunks"]
    assert (chunk["n"], chunk["steps"], len(chunk["x"])) == (4096, count, 4097)
    assert len(inspection.to_json()) < 10**6


def test_columns_of_objects_and_a_piece_that_raises(tmp_path):
    def strange(batch, episodes):
        return {**batch, "</script><b>name": [object(), {"a": 1}, None, "text"], "names": np.array(["a"] * 4, object)}

    pieces = Lab.defaults("learner")
    inspection = learner(*pieces[:5], UserPiece(strange)).inspect([Lab.episode("a", 4)], Lab.module())
    assert "</script><b>name" in {column["name"] for column in inspection.data["flow"][0]["pieces"][-1]["columns"]}

    def fails(batch, episodes):
        raise ValueError("<img src=x onerror=alert(1)>")

    inspection = learner(*pieces[:5], UserPiece(fails)).inspect([Lab.episode("a", 4)], Lab.module())
    assert inspection.data["grids"] == {} and inspection.data["flow"][0]["pieces"][-1]["error"]
    assert "user_piece raised ValueError" in inspection.data["notes"][0]
    page = inspection.to_html(tmp_path / "page.html").read_text()
    assert "<img" not in page and page.count("<script") == page.count("</script")
    assert "\\u003cimg src=x onerror=alert(1)\\u003e" in page


def test_the_page_holds_the_data_and_json_is_strict(tmp_path):
    pipeline = learner(UserPiece(lambda batch, episodes: warn()), *Lab.defaults("learner"))
    inspection = pipeline.inspect([Lab.episode("\u2028&</script>", 3)], Lab.module())
    assert json.loads(inspection.to_json()) == inspection.data
    page = inspection.to_html(tmp_path / "page.html").read_text()
    assert "\u2028" not in page and "/*DATA*/null" not in page and "\\u2028\\u0026\\u003c/script\\u003e" in page
    assert any("look at this" in note for note in inspection.data["notes"])


def warn():
    import warnings

    warnings.warn("look at this", EpibatchWarning, stacklevel=2)


def test_episodes_are_needed():
    with pytest.raises(PipelineError):
        learner(*Lab.defaults("learner")).inspect("text")
