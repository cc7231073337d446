"""The facts of how episodes became a batch: cells, what they see, pieces, chunks, and the page's safety."""

from __future__ import annotations

import base64
import json
import tracemalloc

import numpy as np
import pytest

from epibatch.connectors.authoring import ColumnTransform
from epibatch.connectors.common import FrameStacking
from epibatch.connectors.learner import LearnerConnectorPipeline
from epibatch.connectors.observations import Affine
from epibatch.connectors.replay import NStepReturns
from epibatch.core.errors import EpibatchWarning, PipelineError, StorageError
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


def shift(column):
    """A piece that moves the recorded values of a column by one step, within the episodes."""

    class Shift(UserPiece):
        def __call__(self, *, batch, episodes, **kwargs):
            for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
                get, set_ = (getattr(episode, f"{verb}_{column.partition('/')[0]}") for verb in ("get", "set"))
                if column == "rewards":
                    set_(new_data=np.concatenate([[0.0], get()[:-1]]))
                else:
                    rows = get("state_out")["h"]
                    set_(key="state_out", new_data={"h": np.concatenate([rows[:1], rows[:-1]])})
            return batch

    return Shift()


def states_of(inspection):
    return [state[1:] for state in grid_of(inspection)["states"]]


def test_a_state_of_another_step_is_named():
    """State h after step t is t + 0.25. Sequences of 4 begin at steps 0, 4 and 8 of a chunk, and at 2 of another."""
    chunks = [Lab.episode("a", 10, state=2), Lab.episode("b", 3, state=2, offset=100, t_started=2, lookback=1)]
    sound = learner(*Lab.defaults("learner")).inspect(chunks, Lab.module(2, 4))
    assert states_of(sound) == [[None, None], [3, 3], [7, 7], [1, 1]]
    assert sound.data["notes"] == [] and "4 of 4 sequences" in sound.data["compared"][0]

    stale = learner(shift("extra_model_outputs/state_out"), *Lab.defaults("learner"))
    inspection = stale.inspect(chunks, Lab.module(2, 4))
    assert states_of(inspection) == [[None, None], [2, 3], [6, 7], [1, 1]]
    (note,) = inspection.data["notes"]
    assert "2 of 4 sequences" in note and "row b=1" in note and "after step 2" in note and "after step 3" in note
    assert "Shift changed episode.state_out" in note
    assert "episode.state_out/h" in changed_columns(inspection, "Shift")


@pytest.mark.parametrize(
    ("value", "found"), [(0.0, "zeros"), (-1.0, None), (5.25, 5), (77.0, "?"), (np.nextafter(np.float32(3.25), 4), "?")]
)
def test_a_state_that_was_replaced_says_what_it_equals(value, found):
    def replace(batch, episodes):
        batch["state_in"]["h"][1] = float(value)

    pipeline = learner(*Lab.defaults("learner"), UserPiece(replace))
    inspection = pipeline.inspect([Lab.episode("a", 10, state=2)], Lab.module(2, 4))
    assert states_of(inspection) == [[None, None], [found, 3], [7, 7]]
    (note,) = inspection.data["notes"]
    text = {
        "zeros": "equals zeros",
        "?": "equals no recorded state of this episode",
        5: "after step 5",
        None: "the initial state",
    }
    assert text[found] in note and "UserPiece changed state_in" in note


def changed_columns(inspection, kind):
    pieces = [piece for lane in inspection.data["flow"] for piece in lane["pieces"] if piece["kind"] == kind]
    return {column["name"]: column["what"] for piece in pieces for column in piece["columns"] if column["what"]}


def test_rewards_that_differ_from_the_recorded_ones_are_counted():
    chunks = [Lab.episode("a", 6), Lab.episode("b", 3, offset=100)]
    inspection = learner(shift("rewards"), *Lab.defaults("learner")).inspect(chunks, Lab.module())
    line, equal = inspection.data["compared"]
    assert "rewards differ from the recorded ones in 9 of 9 rows" in line and "Shift changed episode.rewards" in line
    assert "as they were recorded: obs, actions, action_logp" in equal
    assert inspection.data["notes"] == [], "to shape rewards is no fault"
    (text,) = changed_columns(inspection, "Shift")["episode.rewards"]
    assert text == "100% of the values, for example 0.5 → 0.0"


def test_a_piece_after_the_bootstrap_rows_is_named_too():
    pieces = Lab.defaults("learner", ppo=True)
    inspection = learner(pieces[0], shift("rewards"), *pieces[1:]).inspect([Lab.episode("a", 6)], Lab.module())
    assert "in 6 of 6 rows. Shift changed episode.rewards." in inspection.data["compared"][0]
    assert list(changed_columns(inspection, "Shift")) == ["episode.rewards"]


def test_rewards_of_several_steps_are_told_as_made_by_their_piece():
    pieces = [NStepReturns(n_step=2, gamma=1.0), *Lab.defaults("learner")]
    (line, _) = learner(*pieces).inspect([Lab.episode("a", 6, end="terminated")], Lab.module()).data["compared"]
    assert "rewards differ from the recorded ones in 5 of 6 rows. NStepReturns made rewards." in line


def test_a_mask_that_hides_steps_or_shows_padding_is_noted():
    def turn(batch, episodes):
        batch["loss_mask"][:, -1:].logical_not_()

    pieces = Lab.defaults("learner", ppo=True)
    chunks = [Lab.episode("a", 5, state=2)]  # five steps and the bootstrap row, in sequences of 4
    inspection = learner(*pieces[:-1], UserPiece(turn), pieces[-1]).inspect(chunks, Lab.module(2, 4))
    shown, hidden = inspection.data["notes"]
    assert "1 cells that are padding or bootstrap rows carry loss. UserPiece changed loss_mask." in shown
    assert "1 of 5 steps carry no loss. UserPiece changed loss_mask." in hidden
    assert learner(*pieces).inspect(chunks, Lab.module(2, 4)).data["notes"] == []


class Halves(ColumnTransform):
    columns = "obs"
    share: float = 0.5

    def transform(self, x):
        return x * self.share


def test_pieces_say_what_they_did_to_recorded_values():
    inspection = learner(Halves(), Affine(scale=4.0), *Lab.defaults("learner")).inspect(
        [Lab.episode("a", 4)], Lab.module()
    )
    own, built_in = inspection.data["flow"][0]["pieces"][:2]
    assert own["doc"] == "", "a signature is no description"
    assert built_in["doc"].startswith("Makes `x * scale + loc`")
    (added,) = (column for column in own["columns"] if column["name"] == "obs")
    assert added["before"] is None and added["what"][0] == "added"
    assert (added["recorded"]["max"], added["after"]["max"]) == (14.0, 6.5)  # the last observation has no row
    (changed,) = (column for column in built_in["columns"] if column["what"])
    assert (changed["before"]["max"], changed["after"]["max"], changed["recorded"]) == (6.5, 26.0, None)


def test_values_that_only_change_places_are_seen():
    def reverse(batch, episodes):
        batch["rewards"] = batch["rewards"].flip(0)

    pipeline = learner(*Lab.defaults("learner"), UserPiece(reverse))
    inspection = pipeline.inspect([Lab.episode("a", 4)], Lab.module())
    assert changed_columns(inspection, "UserPiece") == {"rewards": ["100% of the values, for example 0.5 → 3.5"]}
    assert "in 4 of 4 rows" in inspection.data["compared"][0]


def test_without_a_module_it_says_so():
    pieces = Lab.defaults("learner", ppo=True)
    inspection = learner(*pieces[:-1]).inspect([Lab.episode("a", 4)])
    assert "without a module" in repr(inspection) and inspection.data["facts"]["module"] == "none was given"
    assert "No module was given" in inspection.data["notes"][0]
    inspection = learner(*pieces, UserPiece()).inspect([Lab.episode("a", 4)])
    assert "error in GeneralAdvantageEstimation" in repr(inspection)
    failed, absent = inspection.data["notes"]
    assert "general_advantage_estimation raised" in failed and "Not run: UserPiece." in failed
    assert "No module was given" in absent


def test_changes_of_drawn_chunks_are_seen():
    buffer = EpisodeReplayBuffer(capacity=50, seed=0)
    buffer.add([Lab.episode("a", 40, end="terminated")])

    class Adds(UserPiece):
        def __call__(self, *, batch, episodes, **kwargs):
            for episode in episodes:
                episode.set_rewards(new_data=episode.get_rewards() + 1)
            return batch

    pipeline = learner(Adds(), NStepReturns(n_step=2, gamma=1.0), *Lab.defaults("learner"))
    inspection = pipeline.inspect(buffer.sample(8), Lab.module())
    assert list(changed_columns(inspection, "Adds")) == ["episode.rewards"]
    assert "in 8 of 8 rows. Adds changed episode.rewards." in inspection.data["compared"][0]
    assert max(chunk["look"] for chunk in inspection.data["chunks"]) == 16, "not the whole episode is copied"


@pytest.mark.slow
def test_images_stay_bytes_while_it_is_found_what_cells_see():
    images = np.random.default_rng(0).integers(0, 255, (41, 256, 256, 4), dtype=np.uint8)
    actions, rewards = np.zeros(4, np.int64), np.zeros(4)
    chunks = [
        SingleAgentEpisode(observations=images[i : i + 5], actions=actions, rewards=rewards, len_lookback_buffer=0)
        for i in range(0, 40, 4)
    ]
    pipeline = learner(*Lab.defaults("learner"))
    pipeline.inspect(chunks[:1])
    tracemalloc.start()
    grid = grid_of(pipeline.inspect(chunks))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert grid["seen"]["obs"] == {str(cell): [cell % 4] for cell in range(40)}
    assert peak < 18 * images.nbytes  # with floats of 8 bytes it is 29 times as much


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
    assert columns["rewards"]["what"] == ["100% of the values, for example 0.5 → 1.0"]
    assert columns["holes"]["what"] == ["added"]
    rewards = columns["rewards"]["after"]
    assert (rewards["min"], rewards["mean"], rewards["max"], rewards["shape"]) == (1.0, 4.0, 7.0, [4])
    assert rewards["values"] == [1.0, 3.0, 5.0, 7.0] and not rewards["sampled"] and rewards["bytes"] == 32
    holes = columns["holes"]["after"]
    assert (holes["nan"], holes["zero"], holes["mean"], holes["values"]) == (0.5, 0.25, 2.0, [None, 0.0, None, 4.0])


@pytest.mark.parametrize("state", [0, 2], ids=["rows", "sequences"])
def test_images_have_a_picture_of_the_first(state):
    images = np.arange(3 * 5 * 6 * 2, dtype=np.uint8).reshape(3, 5, 6, 2)
    episode = SingleAgentEpisode(
        observations=images, actions=[0, 1], rewards=[0.0, 0.0], len_lookback_buffer=0, terminated=True
    )
    inspection = learner(*Lab.defaults("learner")).inspect([episode], Lab.module(state))
    columns = [column for piece in inspection.data["flow"][0]["pieces"] for column in piece["columns"]]
    thumbs = [column["after"]["thumb"] for column in columns if column["name"] == "obs" and column["what"]]
    assert len(thumbs) >= 2 and all(thumb["width"] == thumb["height"] == 5 for thumb in thumbs)
    planes = np.frombuffer(base64.b64decode(thumbs[-1]["planes"]), np.uint8).reshape(2, 5, 5)
    np.testing.assert_array_equal(planes, np.moveaxis(images[0], -1, 0)[:, :, [0, 1, 2, 3, 5]])


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


def test_a_place_that_cannot_be_written_to_is_named(tmp_path):
    inspection = learner(*Lab.defaults("learner")).inspect([Lab.episode("a", 3)], Lab.module())
    page = inspection.to_html(tmp_path / "new" / "page.html")
    with pytest.raises(StorageError, match=r"the inspector's page .*page\.html/other\.html"):
        inspection.to_html(page / "other.html")


def test_episodes_are_needed():
    with pytest.raises(PipelineError):
        learner(*Lab.defaults("learner")).inspect("text")
