"""Behaviours of pieces and pipelines, stated one by one: helpers that users call, orders, layouts and types."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from oracle.libraries import BOTH
from oracle.makers import ACT, OBS, acting, both_spaces, chunk, config, learner, module, names, piece_class, run, user
from oracle.modules import LEARNER, PPO, TO_ENV, TO_MODULE, module_class, pieces_of
from oracle.probes import behaviour, by_library, in_lists


def of_an_agent(library):
    """A chunk of agent "left" of episode "m", whose module is "walker"."""
    return chunk(library, "x", multi_agent_episode_id="m", agent_id="left", module_id="walker")


def joined(items):
    """The items of one episode as arrays with the rows first, whether they are single rows or arrays of several."""
    tagged = isinstance(items[0], np.ndarray) and type(items[0]) is not np.ndarray
    return np.asarray(np.concatenate(items) if tagged else np.stack(items))


def refuses(call, *arguments):
    """True if a call raises a ValueError."""
    try:
        call(*arguments)
    except ValueError:
        return True
    return False


@behaviour("C32")
def test_keys_of_batches(library):
    batch, add = {}, library.ConnectorV2.add_batch_item
    for item, episode in ((1, chunk(library, "a")), (2, of_an_agent(library)), (3, chunk(library, "a"))):
        add(batch, "mine", item, episode)
    add(batch, "list", 1)
    library.ConnectorV2.add_n_batch_items(batch, "list", [2, 3], 2)
    assert batch == {"mine": {("a",): [1, 3], ("m", "left", "walker"): [2]}, "list": [1, 2, 3]}


@behaviour("C33")
def test_lists_are_single_rows_and_arrays_one_item_of_many(library):
    batch, episode, add = {}, chunk(library, "a"), library.ConnectorV2.add_n_batch_items
    add(batch, "list", [np.zeros(2), np.ones(2)], 2, episode)
    add(batch, "array", np.arange(6).reshape(3, 2), 3, episode)
    add(batch, "struct", {"x": np.arange(3)}, 3, episode)
    assert in_lists(batch["list"]["a",]) == [[0.0, 0.0], [1.0, 1.0]]
    (array,), (struct,) = batch["array"]["a",], batch["struct"]["a",]
    assert type(array).__name__ == type(struct["x"]).__name__ == "BatchedNdArray"
    assert in_lists(array) == [[0, 1], [2, 3], [4, 5]] and in_lists(struct) == {"x": [0, 1, 2]}
    batch = {"obs": {("a",): [np.zeros(2), np.zeros(2), np.zeros(2)]}, "array": batch["array"]}
    pipeline = library.learner.LearnerConnectorPipeline(OBS, ACT, connectors=[library.learner.BatchIndividualItems()])
    assert in_lists(run(pipeline, [episode], batch=batch)["array"]) == [[0, 1], [2, 3], [4, 5]]


@behaviour("C33")
def test_the_number_of_items_is_checked(library):
    add = library.ConnectorV2.add_n_batch_items
    with pytest.raises(ValueError, match=r"(?s)3.*2"):
        add({}, "mine", [1, 2], 3, chunk(library))
    refused = refuses(add, {}, "mine", np.arange(2), 3, chunk(library))
    assert refused is by_library("O10", library, rllib=False, epibatch=True)


@pytest.mark.parametrize("columns", [{"obs": [np.zeros(2)]}, {}])
@behaviour("C34")
def test_nothing_is_added_to_a_batch_that_is_mapped_to_modules(library, columns):
    batch = {"walker": columns, "other": {}}
    with pytest.raises(ValueError, match=r"(?i)module"):
        library.ConnectorV2.add_batch_item(batch, "mine", 1, of_an_agent(library))
    assert list(batch) == ["walker", "other"]


@behaviour("C34")
def test_an_episode_without_a_module_adds_nothing_to_such_a_batch_either(library):
    batch = {"walker": {"obs": [np.zeros(2)]}}
    refused = refuses(library.ConnectorV2.add_batch_item, batch, "mine", 1, chunk(library, "a"))
    assert refused is by_library("module-major-batch", library, rllib=False, epibatch=True)
    assert ("mine" in batch) is not refused


@behaviour("C35")
def test_a_function_changes_every_item_of_columns(library):
    change, seen = library.ConnectorV2.foreach_batch_item_change_in_place, []
    batch = {"mine": {("a",): [1, 2], ("m", "left", "walker"): [3]}, "other": {("a",): [9]}}

    def ten_times(item, episode_id, agent_id, module_id):
        seen.append((item, episode_id, agent_id, module_id))
        return 10 * item

    change(batch, "mine", ten_times)
    assert batch == {"mine": {("a",): [10, 20], ("m", "left", "walker"): [30]}, "other": {("a",): [9]}}
    assert seen == [(1, "a", None, None), (2, "a", None, None), (3, "m", "left", "walker")]
    batch = {"x": {("a",): [1, 2]}, "y": {("a",): [3, 4]}}
    change(batch, ["x", "y"], lambda items, *ids: (items[0] + items[1], None))
    assert batch == {"x": {("a",): [4, 6]}, "y": {("a",): [None, None]}}
    with pytest.raises(ValueError, match="mien"):
        change({"mine": [1]}, "mien", lambda item, *ids: item)


@pytest.mark.parametrize("library", BOTH, ids=str)
def test_episodes_go_with_a_list_of_items(library):
    episodes, pairs = [chunk(library, "a"), chunk(library, "b")], library.ConnectorV2.single_agent_episode_iterator
    found = list(pairs(episodes, zip_with_batch_column=["x", "y"]))
    assert found == [(episodes[0], "x"), (episodes[1], "y")]
    for wrong in (["x"], ["x", "y", "z"]):
        with pytest.raises(ValueError, match="zip_with_batch_column"):
            list(pairs(episodes, zip_with_batch_column=wrong))


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
    first, second = user(library), user(library)
    pipeline = library.env_to_module.EnvToModulePipeline(OBS, ACT, connectors=[first, second])
    call = {"rl_module": "module", "explore": True, "extra": {"of": "mine"}, "shared_data": shared}
    assert run(pipeline, [chunk(library, arrays=False)], **call) == {}
    given = first.keywords["shared_data"]
    assert isinstance(given, dict) and (shared is None or given is shared)
    for piece in (first, second):
        assert piece.keywords.pop("shared_data") is given
        known = {name: piece.keywords[name] for name in (*call, "metrics") if name != "shared_data"}
        assert known == {"rl_module": "module", "explore": True, "extra": {"of": "mine"}, "metrics": None}


def of_a_learner(library, settings):
    """The names in the pipeline that a PPO learner runs."""
    if library.name == "RLlib":
        return names(settings.build_learner(spaces={**both_spaces(), "default_policy": (OBS, ACT)})._learner_connector)
    pipeline = settings.build_learner_connector(OBS, ACT, device=None)
    settings.extend_learner_connector(pipeline)
    return names(pipeline)


@behaviour("C38")
def test_default_orders(library):
    to_module, to_env = acting(library)
    assert names(to_module) == [*TO_MODULE] and names(to_env) == [*TO_ENV]
    assert names(learner(library)) == [*LEARNER]
    assert of_a_learner(library, config(library)) == [*PPO]


PLACES = {"env_to_module": "env_runners", "module_to_env": "env_runners", "learner": "learners"}


def built(library, which, **settings):
    """The names of a pipeline with a user's pieces."""
    own = {f"{which}_connector": lambda *arguments: [user(library), user(library)], **settings}
    arguments = {"env": None, "spaces": both_spaces(), "device": None}
    if which == "learner":
        arguments = {"input_observation_space": OBS, "input_action_space": ACT, "device": None}
    elif which == "module_to_env":
        del arguments["device"]
    return names(getattr(getattr(config(library), PLACES[which])(**own), f"build_{which}_connector")(**arguments))


@behaviour("C39")
def test_where_a_users_pieces_come(library):
    own = [piece_class(library).__name__] * 2
    assert built(library, "env_to_module") == [*own, *TO_MODULE]
    assert built(library, "module_to_env") == [*TO_ENV[:4], *own, *TO_ENV[4:]]
    assert built(library, "learner") == [*own, *LEARNER]
    for which in PLACES:
        assert built(library, which, **{f"add_default_connectors_to_{which}_pipeline": False}) == own
    found = of_a_learner(library, config(library).learners(learner_connector=lambda *arguments: user(library)))
    first, bootstrap = own[0], "AddOneTsToEpisodesAndTruncate"
    order = by_library("ppo-order", library, rllib=[bootstrap, first], epibatch=[first, bootstrap])
    assert found == [*order, *LEARNER, "GeneralAdvantageEstimation"]


@pytest.mark.parametrize("arrays", [False, True], ids=["acting", "learning"])
@behaviour("C41")
def test_observations_that_a_piece_added_stay(library, arrays):
    own = [np.float32([7, 7]), np.float32([8, 8])][: 1 + arrays]

    def add(piece, batch, episodes):
        for item in own:
            piece.add_batch_item(batch, "obs", item, episodes[0])

    pipeline = learner(library) if arrays else acting(library)[0]
    pipeline.prepend(user(library, add))
    assert in_lists(run(pipeline, [chunk(library, "a", 2, arrays=arrays)])["obs"]) == in_lists(own)


@pytest.mark.parametrize("column", ["actions", "rewards", "terminateds", "truncateds", "action_logp"])
@behaviour("C41")
def test_columns_that_a_piece_added_stay(library, column):
    seen = {}

    def add(piece, batch, episodes):
        piece.add_n_batch_items(batch, column, [7.0, 8.0], 2, episodes[0])

    # the bare id is the key in both libraries as long as nothing gives the chunk another one
    def watch(piece, batch, episodes):
        seen.update({name: in_lists(joined(items["a",])) for name, items in batch.items()})

    pieces = [user(library, add), library.learner.AddColumnsFromEpisodesToTrainBatch(), user(library, watch)]
    run(library.learner.LearnerConnectorPipeline(OBS, ACT, connectors=pieces), [chunk(library, "a", 2)])
    assert set(seen) == {"actions", "rewards", "terminateds", "truncateds", "action_logp"}
    assert seen[column] == [7.0, 8.0] and (column == "rewards" or seen["rewards"] == [0.5, 1.5])


def add_infos(piece, batch, episodes):
    for episode in episodes:
        count = len(episode)
        piece.add_n_batch_items(batch, "infos", episode.get_infos(slice(0, count)), count, episode)


@pytest.mark.parametrize("memory", [False, True], ids=["without memory", "with memory"])
@pytest.mark.parametrize("own", [False, True], ids=["built-in piece", "a user's piece"])
@behaviour("C42")
def test_infos_stay_a_list_of_dicts(library, memory, own):
    pipeline = learner(library)
    piece = user(library, add_infos) if own else library.learner.AddInfosFromEpisodesToTrainBatch()
    pipeline.insert_after("AddObservationsFromEpisodesToBatch", piece)
    episodes = [chunk(library, "a", 3, state=memory), chunk(library, "b", 1, state=memory)]
    batch = run(pipeline, episodes, rl_module=module(library, state=memory, multi=True))["default_policy"]
    assert batch["infos"] == [{"t": 0}, {"t": 1}, {"t": 2}, {"t": 0}]
    assert isinstance(batch["rewards"], torch.Tensor) and batch["rewards"].numel() == (8 if memory else 4)


@behaviour("C48")
def test_types_of_tensors(library):
    kinds = ("float64", "float32", "float16", "int64", "int32", "int16", "uint8", "bool")
    piece, rl_module = library.env_to_module.NumpyToTensor(), module(library)
    batch = {"nested": {kind: np.ones((2, 3), kind) for kind in kinds}}
    made = run(piece, [], rl_module=rl_module, batch=batch)["nested"]
    assert [str(own.dtype) for own in made.values()] == ["torch.float32", *(f"torch.{kind}" for kind in kinds[1:])]
    objects = np.array([{"a": 1}, None], object)
    batch = {"objects": objects, "text": np.array(["a", "b"]), "infos": [{"t": 0}]}
    made = run(library.env_to_module.NumpyToTensor(), [], rl_module=rl_module, batch=batch)
    assert made["objects"] is objects and in_lists(made["text"]) == ["a", "b"] and made["infos"] == [{"t": 0}]
    made = run(library.env_to_module.NumpyToTensor(), [], batch={"x": np.ones(2)})
    assert isinstance(made["x"], np.ndarray) and made["x"].dtype == np.float64, "no module, no tensors"


@behaviour("C49")
def test_types_of_arrays(library):
    made = {"float64": "float32", "float32": "float32", "int32": "int32", "uint8": "uint8"}
    made["float16"] = by_library("half-floats", library, rllib="float32", epibatch="float16")
    made["int64"] = by_library("O42", library, rllib="int32", epibatch="int64")
    batch = {"nested": {kind: torch.ones(2, dtype=getattr(torch, kind)) for kind in made}, "one": torch.tensor(2.5)}
    result = run(library.module_to_env.TensorToNumpy(), [], rl_module=module(library), batch=batch)
    assert {kind: str(own.dtype) for kind, own in result["nested"].items()} == made
    assert type(result["one"]) is by_library("O42", library, rllib=float, epibatch=np.ndarray) and result["one"] == 2.5


@behaviour("C55")
def test_returns_to_go(library):
    episodes = [
        chunk(library, "a", 3, rewards=[1.0, 1.0, 1.0], end="terminated"),
        chunk(library, "b", 2, t_started=4, lookback=2, rewards=[9.0, 9.0, 2.0, 4.0]),
    ]
    batch = run(library.learner.ComputeReturnsToGo(gamma=0.5), episodes)["returns_to_go"]
    assert {key: in_lists(joined(items)) for key, items in batch.items()} == {
        ("a",): [1.75, 1.5, 1.0],
        ("b",): [4.0, 4.0],
    }


def episode_of(library, *agents, **settings):
    """An episode after a reset in which agents observe 0.0."""
    episode = library.MultiAgentEpisode(id_="game", **settings)
    episode.add_env_reset(observations=dict.fromkeys(agents, 0.0))
    return episode


@behaviour("C27")
def test_an_agent_is_mapped_once(library):
    asked = []

    def mapping(agent, episode):
        asked.append(agent)
        return f"m_{agent}"

    episode = episode_of(library, "a", agent_to_module_mapping_fn=mapping)
    episode.add_env_step({"a": 1.0}, {"a": 1}, {"a": 0.0})
    assert episode.module_for("late") == "m_late" and episode.agent_episodes["a"].module_id == "m_a"
    assert asked == ["a", "late"] and episode.cut().module_for("late") == "m_late"
    assert episode_of(library, "a").module_for("a") == "default_policy"


@behaviour("C45")
def test_a_later_chunk_of_an_agent_begins_with_the_state_of_its_lookback(library):
    """Agents `r` (recurrent) and `f`, of which one env step is the chunk and one its lookback."""
    mapping = {"agent_to_module_mapping_fn": lambda agent_id, *_, **__: agent_id}
    episode = episode_of(library, "r", "f", **mapping)
    for t in (1.0, 2.0):
        state = {"state_out": {name: np.float32([t, -t]) for name in "hc"}}
        rows = {"r": t, "f": t}
        episode.add_env_step(rows, {"r": 0, "f": 1}, rows, extra_model_outputs={"r": state})
        if t == 1.0:
            episode = episode.cut(len_lookback_buffer=1)
    box, two, cls = gym.spaces.Box(-9, 9, ()), gym.spaces.Discrete(2), module_class(library)
    spec, model = library.RLModuleSpec, {"max_seq_len": 3}
    spaces = {"module_class": cls, "observation_space": box, "action_space": two}
    specs = {name: spec(**spaces, model_config={**model, "state": size}) for name, size in (("r", 2), ("f", 0))}
    mapped = {**mapping, "rl_module_specs": specs}
    pieces = pieces_of(library, "learner", *LEARNER[:4], "AgentToModuleMapping", AgentToModuleMapping=mapped)
    pieces.append(library.learner.BatchIndividualItems(multi_agent=True))
    both = gym.spaces.Dict(r=box, f=box), gym.spaces.Dict(r=two, f=two)
    pipeline = library.learner.LearnerConnectorPipeline(*both, connectors=pieces)
    found = run(pipeline, [episode.to_numpy()], rl_module=library.MultiRLModule(rl_module_specs=specs))
    assert {key: in_lists(rows) for key, rows in found["r"]["state_in"].items()} == {"h": [[1, -1]], "c": [[1, -1]]}
    assert "state_in" not in found["f"]


@behaviour("C17", "C31")
def test_a_number_is_no_slice(library):
    several = episode_of(library, "a")
    several.add_env_step({"a": 1.0}, {"a": 1}, {"a": 0.0})
    for episode, wanted in ((chunk(library), 2), (several, 0), (several, slice(None, None, 2))):
        with pytest.raises(NotImplementedError):
            episode[wanted]
