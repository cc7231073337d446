"""Behaviours of pieces and pipelines, stated one by one: helpers that users call, orders, layouts and types."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from items.lab import (
    ACT,
    OBS,
    SPACES,
    acting,
    chunk,
    config,
    joined,
    learner,
    module,
    names,
    piece_class,
    run,
    user,
)
from oracle.behaviours import behaviour, listed, plain
from oracle.libraries import BOTH
from oracle.modules import LEARNER, PPO, TO_ENV, TO_MODULE, module_class, pieces_of


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


def of_a_learner(library, settings):
    """The names in the pipeline that a PPO learner runs."""
    if library.name == "RLlib":
        return names(settings.build_learner(spaces={**SPACES, "default_policy": (OBS, ACT)})._learner_connector)
    pipeline = settings.build_learner_connector(OBS, ACT, device=None)
    settings.extend_learner_connector(pipeline)
    return names(pipeline)


@behaviour("C38")
def test_default_orders(library):
    to_module, to_env = acting(library)
    assert names(to_module) == [*TO_MODULE] and names(to_env) == [*TO_ENV]
    assert names(learner(library)) == [*LEARNER]


@behaviour("C38")
def test_ppo_adds_a_piece_on_each_side(library):
    expected = [*PPO]
    assert of_a_learner(library, config(library)) == expected


@behaviour("C39")
def test_where_a_users_pieces_come(library):
    def two(*arguments):
        return [user(library), user(library)]

    settings = config(library).env_runners(env_to_module_connector=two, module_to_env_connector=two)
    settings = settings.learners(learner_connector=two)
    own = ["UserPiece", "UserPiece"]
    to_module = settings.build_env_to_module_connector(env=None, spaces=SPACES, device=None)
    assert names(to_module) == [*own, *TO_MODULE]
    to_env = settings.build_module_to_env_connector(env=None, spaces=SPACES)
    assert names(to_env) == [*TO_ENV[:4], *own, *TO_ENV[4:]]
    assert names(settings.build_learner_connector(OBS, ACT, device=None)) == [*own, *LEARNER]


@behaviour("C39")
def test_where_a_users_pieces_come_beside_those_of_ppo(library):
    found = of_a_learner(library, config(library).learners(learner_connector=lambda *arguments: user(library)))
    bootstrap = "AddOneTsToEpisodesAndTruncate"
    first = listed("ppo-order", library, rllib=[bootstrap, "UserPiece"], epibatch=["UserPiece", bootstrap])
    assert found == [*first, *LEARNER, "GeneralAdvantageEstimation"]


@pytest.mark.parametrize("which", ["env_to_module", "module_to_env", "learner"])
@behaviour("C39")
def test_without_the_default_pieces_there_are_only_the_users(library, which):
    own = {f"{which}_connector": lambda *arguments: user(library)}
    off = {f"add_default_connectors_to_{which}_pipeline": False}
    section = "learners" if which == "learner" else "env_runners"
    settings = getattr(config(library), section)(**own, **off)
    arguments = {
        "env_to_module": {"env": None, "spaces": SPACES, "device": None},
        "module_to_env": {"env": None, "spaces": SPACES},
        "learner": {"input_observation_space": OBS, "input_action_space": ACT, "device": None},
    }
    built = getattr(settings, f"build_{which}_connector")(**arguments[which])
    assert names(built) == ["UserPiece"] and isinstance(built[0], piece_class(library))


@pytest.mark.parametrize("arrays", [False, True], ids=["acting", "learning"])
@behaviour("C41")
def test_observations_that_a_piece_added_stay(library, arrays):
    episode = chunk(library, "a", 2, arrays=arrays)
    own = [np.float32([7, 7]), np.float32([8, 8])] if arrays else [np.float32([7, 7])]

    def add(batch, episodes):
        for item in own:
            library.ConnectorV2.add_batch_item(batch, "obs", item, episodes[0])

    pipeline = learner(library) if arrays else acting(library)[0]
    pipeline.prepend(user(library, add))
    batch = run(pipeline, [episode])
    assert plain(batch["obs"]) == plain(own)


@pytest.mark.parametrize("column", ["actions", "rewards", "terminateds", "truncateds", "action_logp"])
@behaviour("C41")
def test_columns_that_a_piece_added_stay(library, column):
    own = [7.0, 8.0]

    def add(batch, episodes):
        library.ConnectorV2.add_n_batch_items(batch, column, list(own), 2, episodes[0])

    # the bare id is the key in both libraries as long as nothing gives the chunk another one
    pieces = [user(library, add), library.learner.AddColumnsFromEpisodesToTrainBatch(), watch := user(library)]
    run(library.learner.LearnerConnectorPipeline(OBS, ACT, connectors=pieces), [chunk(library, "a", 2)])
    assert set(watch.batch) == {"actions", "rewards", "terminateds", "truncateds", "action_logp"}
    assert plain(joined(watch.batch[column]["a",])) == own
    if column != "rewards":
        assert plain(joined(watch.batch["rewards"]["a",])) == [0.5, 1.5]


def add_infos(library):
    """A piece of a user that adds every step's info."""

    def add(batch, episodes):
        for episode in episodes:
            count = len(episode)
            library.ConnectorV2.add_n_batch_items(batch, "infos", episode.get_infos(slice(0, count)), count, episode)

    return user(library, add)


@pytest.mark.parametrize("memory", [False, True], ids=["without memory", "with memory"])
@pytest.mark.parametrize("own", [False, True], ids=["built-in piece", "a user's piece"])
@behaviour("C42")
def test_infos_stay_a_list_of_dicts(library, memory, own):
    pipeline = learner(library)
    piece = add_infos(library) if own else library.learner.AddInfosFromEpisodesToTrainBatch()
    pipeline.insert_after("AddObservationsFromEpisodesToBatch", piece)
    episodes = [chunk(library, "a", 3, state=memory), chunk(library, "b", 1, state=memory)]
    batch = run(pipeline, episodes, rl_module=module(library, state=memory, multi=True))["default_policy"]
    assert batch["infos"] == [{"t": 0}, {"t": 1}, {"t": 2}, {"t": 0}]
    assert isinstance(batch["rewards"], torch.Tensor) and batch["rewards"].numel() == (8 if memory else 4)


def call(piece, batch, episodes=(), **keywords):
    """Call one piece by itself."""
    return piece(batch=batch, episodes=list(episodes), explore=True, shared_data={}, **{"rl_module": None, **keywords})


@behaviour("C48")
def test_types_of_tensors(library):
    kinds = ("float64", "float32", "float16", "int64", "int32", "int16", "uint8", "bool")
    batch = {"nested": {kind: np.ones((2, 3), kind) for kind in kinds}}
    made = call(library.env_to_module.NumpyToTensor(), batch, rl_module=module(library))["nested"]
    assert [str(own.dtype) for own in made.values()] == ["torch.float32", *(f"torch.{kind}" for kind in kinds[1:])]
    objects, text = np.array([{"a": 1}, None], object), np.array(["a", "b"])
    batch = {"objects": objects, "text": text, "infos": [{"t": 0}]}
    result = call(library.env_to_module.NumpyToTensor(), dict(batch), rl_module=module(library))
    assert result["objects"] is objects and plain(result["text"]) == ["a", "b"] and result["infos"] == [{"t": 0}]
    result = call(library.env_to_module.NumpyToTensor(), {"x": np.ones(2)})
    assert isinstance(result["x"], np.ndarray) and result["x"].dtype == np.float64, "no module, no tensors"


@behaviour("C49")
def test_types_of_arrays(library):
    made = {"float64": "float32", "float32": "float32", "int32": "int32", "uint8": "uint8"}
    made["float16"] = listed("half-floats", library, rllib="float32", epibatch="float16")
    made["int64"] = listed("O42", library, rllib="int32", epibatch="int64")
    batch = {"nested": {kind: torch.ones(2, dtype=getattr(torch, kind)) for kind in made}, "one": torch.tensor(2.5)}
    result = call(library.module_to_env.TensorToNumpy(), batch, rl_module=module(library))
    assert {kind: str(own.dtype) for kind, own in result["nested"].items()} == made
    assert type(result["one"]) is listed("O42", library, rllib=float, epibatch=np.ndarray) and result["one"] == 2.5


@behaviour("C55")
def test_returns_to_go(library):
    piece = library.learner.ComputeReturnsToGo(gamma=0.5)
    episodes = [
        chunk(library, "a", 3, rewards=[1.0, 1.0, 1.0], end="terminated"),
        chunk(library, "b", 2, t_started=4, lookback=2, rewards=[9.0, 9.0, 2.0, 4.0]),
    ]
    batch = call(piece, {}, episodes)
    assert plain(joined(batch["returns_to_go"]["a",])) == [1.75, 1.5, 1.0]
    assert plain(joined(batch["returns_to_go"]["b",])) == [4.0, 4.0]


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
    assert episode.module_for("late") == "m_late"
    assert episode.agent_episodes["a"].module_id == "m_a"
    assert asked == ["a", "late"]
    assert episode.cut().module_for("late") == "m_late"
    assert episode_of(library, "a").module_for("a") == "default_policy"


def recurrent_chunk(library):
    """Agents `r` (recurrent) and `f`, of which one env step is the chunk and one its lookback."""
    episode = episode_of(library, "r", "f", agent_to_module_mapping_fn=lambda agent_id, *_, **__: agent_id)
    for t in (1.0, 2.0):
        episode.add_env_step(
            {"r": t, "f": t},
            {"r": 0, "f": 1},
            {"r": t, "f": t},
            extra_model_outputs={"r": {"state_out": {"h": np.float32([t, -t]), "c": np.float32([t, -t])}}},
        )
        if t == 1.0:
            episode = episode.cut(len_lookback_buffer=1)
    return episode.to_numpy()


def train_batch(library):
    """What default learner pieces make of that chunk."""
    space = gym.spaces.Box(-9, 9, ())
    specs = {
        name: library.RLModuleSpec(
            module_class=module_class(library),
            observation_space=space,
            action_space=gym.spaces.Discrete(2),
            model_config={"state": size, "max_seq_len": 3},
        )
        for name, size in (("r", 2), ("f", 0))
    }
    home = library.learner
    mapping = {"rl_module_specs": specs, "agent_to_module_mapping_fn": lambda agent_id, *_, **__: agent_id}
    pieces = pieces_of(library, "learner", *LEARNER[:4], "AgentToModuleMapping", AgentToModuleMapping=mapping)
    pieces.append(home.BatchIndividualItems(multi_agent=True))
    spaces = gym.spaces.Dict(r=space, f=space), gym.spaces.Dict(r=gym.spaces.Discrete(2), f=gym.spaces.Discrete(2))
    pipeline = home.LearnerConnectorPipeline(*spaces, connectors=pieces)
    whole = library.MultiRLModule(rl_module_specs=specs)
    return pipeline(rl_module=whole, batch={}, episodes=[recurrent_chunk(library)], shared_data={}, explore=False)


@behaviour("C45")
def test_a_later_chunk_of_an_agent_begins_with_the_state_of_its_lookback(library):
    found = train_batch(library)
    assert {key: plain(rows) for key, rows in found["r"]["state_in"].items()} == {"h": [[1, -1]], "c": [[1, -1]]}
    assert "state_in" not in found["f"]


@behaviour("C17", "C31")
def test_a_number_is_no_slice(library):
    several = episode_of(library, "a")
    several.add_env_step({"a": 1.0}, {"a": 1}, {"a": 0.0})
    for episode, wanted in ((chunk(library), 2), (several, 0), (several, slice(None, None, 2))):
        with pytest.raises(NotImplementedError):
            episode[wanted]
