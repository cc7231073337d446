"""Behaviours C32 to C37: the helpers that pieces of users call, and how a pipeline calls them."""

from __future__ import annotations

import numpy as np
import pytest

from items.behaviours import behaviour, listed, plain
from items.lab import ACT, OBS, chunk, run, user
from oracle.libraries import BOTH


def of_an_agent(library):
    """A chunk of agent "left" of episode "m", whose module is "walker"."""
    return chunk(library, "x", multi_agent_episode_id="m", agent_id="left", module_id="walker")


@behaviour("C32")
def test_keys_of_batches(library):
    batch = {}
    for item, episode in ((1, chunk(library, "a")), (2, of_an_agent(library)), (3, chunk(library, "a"))):
        library.ConnectorV2.add_batch_item(batch, "mine", item, episode)
    assert batch == {"mine": {("a",): [1, 3], ("m", "left", "walker"): [2]}}


@behaviour("C32")
def test_items_without_an_episode_are_a_list(library):
    batch = {}
    library.ConnectorV2.add_batch_item(batch, "mine", 1)
    library.ConnectorV2.add_n_batch_items(batch, "mine", [2, 3], 2)
    assert batch == {"mine": [1, 2, 3]}


@behaviour("C33")
def test_lists_are_single_rows_and_arrays_one_item_of_many(library):
    batch, episode = {}, chunk(library, "a")
    add = library.ConnectorV2.add_n_batch_items
    add(batch, "list", [np.zeros(2), np.ones(2)], 2, episode)
    add(batch, "array", np.arange(6).reshape(3, 2), 3, episode)
    add(batch, "struct", {"x": np.arange(3)}, 3, episode)
    assert plain(batch["list"]["a",]) == [[0.0, 0.0], [1.0, 1.0]]
    (array,), (struct,) = batch["array"]["a",], batch["struct"]["a",]
    assert type(array).__name__ == type(struct["x"]).__name__ == "BatchedNdArray"
    assert plain(array) == [[0, 1], [2, 3], [4, 5]] and plain(struct) == {"x": [0, 1, 2]}
    stacked = run(
        library.learner.LearnerConnectorPipeline(OBS, ACT, connectors=[library.learner.BatchIndividualItems()]),
        [episode],
        batch={"obs": {("a",): [np.zeros(2), np.zeros(2), np.zeros(2)]}, "array": batch["array"]},
    )
    assert plain(stacked["array"]) == [[0, 1], [2, 3], [4, 5]]


@behaviour("C33")
def test_the_number_of_a_lists_items_is_checked(library):
    with pytest.raises(ValueError, match=r"(?s)3.*2"):
        library.ConnectorV2.add_n_batch_items({}, "mine", [1, 2], 3, chunk(library))


@behaviour("C33")
def test_the_number_of_an_arrays_rows(library):
    try:
        library.ConnectorV2.add_n_batch_items({}, "mine", np.arange(2), 3, chunk(library))
        refused = False
    except ValueError:
        refused = True
    assert refused is listed("O10", library, rllib=False, epibatch=True)


@behaviour("C34")
@pytest.mark.parametrize("columns", [{"obs": [np.zeros(2)]}, {}])
def test_nothing_is_added_to_a_batch_that_is_mapped_to_modules(library, columns):
    batch = {"walker": columns, "other": {}}
    with pytest.raises(ValueError, match=r"(?i)module"):
        library.ConnectorV2.add_batch_item(batch, "mine", 1, of_an_agent(library))
    assert list(batch) == ["walker", "other"]


@pytest.mark.parametrize("library", BOTH, ids=str)
def test_episodes_go_with_a_list_of_items(library):
    episodes = [chunk(library, "a"), chunk(library, "b")]
    pairs = library.ConnectorV2.single_agent_episode_iterator(episodes, zip_with_batch_column=["x", "y"])
    assert list(pairs) == [(episodes[0], "x"), (episodes[1], "y")]
    for wrong in (["x"], ["x", "y", "z"]):
        with pytest.raises(ValueError, match="zip_with_batch_column"):
            list(library.ConnectorV2.single_agent_episode_iterator(episodes, zip_with_batch_column=wrong))


@behaviour("C34")
def test_an_episode_without_a_module_adds_nothing_to_such_a_batch_either(library):
    batch = {"walker": {"obs": [np.zeros(2)]}}
    try:
        library.ConnectorV2.add_batch_item(batch, "mine", 1, chunk(library, "a"))
        refused = False
    except ValueError:
        refused = True
    assert refused is listed("module-major-batch", library, rllib=False, epibatch=True)
    assert ("mine" in batch) is not refused


@behaviour("C35")
def test_a_function_changes_every_item_of_a_column(library):
    batch = {"mine": {("a",): [1, 2], ("m", "left", "walker"): [3]}, "other": {("a",): [9]}}
    seen = []

    def ten_times(item, episode_id, agent_id, module_id):
        seen.append((item, episode_id, agent_id, module_id))
        return 10 * item

    library.ConnectorV2.foreach_batch_item_change_in_place(batch, "mine", ten_times)
    assert batch == {"mine": {("a",): [10, 20], ("m", "left", "walker"): [30]}, "other": {("a",): [9]}}
    assert seen == [(1, "a", None, None), (2, "a", None, None), (3, "m", "left", "walker")]


@behaviour("C35")
def test_a_function_of_several_columns_gets_and_gives_tuples(library):
    batch = {"x": {("a",): [1, 2]}, "y": {("a",): [3, 4]}}
    change = library.ConnectorV2.foreach_batch_item_change_in_place
    change(batch, ["x", "y"], lambda items, *ids: (items[0] + items[1], None))
    assert batch == {"x": {("a",): [4, 6]}, "y": {("a",): [None, None]}}


@behaviour("C35")
def test_a_column_that_is_not_there_is_an_error(library):
    with pytest.raises(ValueError, match="mien"):
        library.ConnectorV2.foreach_batch_item_change_in_place({"mine": [1]}, "mien", lambda item, *ids: item)


@pytest.mark.parametrize("returned", [None, [1]], ids=["None", "list"])
@behaviour("C36")
def test_a_piece_that_returns_no_dict_is_named(library, returned):
    class Forgetful(library.ConnectorV2):
        def __call__(self, *, rl_module, batch, episodes, **kwargs):
            return returned

    pipeline = library.learner.LearnerConnectorPipeline(OBS, ACT, connectors=[user(library), Forgetful()])
    with pytest.raises(ValueError, match="Forgetful"):
        run(pipeline, [chunk(library)])


@pytest.mark.parametrize("shared", [None, {"mine": 1}], ids=["made", "given"])
@behaviour("C37")
def test_pieces_get_the_callers_keywords_and_one_shared_dict(library, shared):
    first, second = user(library, lambda batch, episodes: None), user(library)
    pipeline = library.env_to_module.EnvToModulePipeline(OBS, ACT, connectors=[first, second])
    batch, episodes = {}, [chunk(library, arrays=False)]
    result = pipeline(
        rl_module="module", batch=batch, episodes=episodes, explore=True, shared_data=shared, extra={"of": "mine"}
    )
    assert result == {} and first.episodes[0] is episodes[0]
    for piece in (first, second):
        assert piece.keywords["rl_module"] == "module" and piece.keywords["explore"] is True
        assert piece.keywords["extra"] == {"of": "mine"} and piece.keywords["metrics"] is None
    assert isinstance(first.keywords["shared_data"], dict)
    assert first.keywords["shared_data"] is second.keywords["shared_data"]
    assert shared is None or first.keywords["shared_data"] is shared
