"""Faults and differences on purpose of pipelines, of what every piece inherits, and of learners."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from epibatch.core.errors import BatchLayoutError, CheckpointError, ColumnError, NonFiniteLossError, UnknownNameError
from oracle.learners import SeveralModules, minibatches, net_spec, nets, ppo_batch
from oracle.libraries import RLLIB
from oracle.makers import ACT, OBS, chunk, names, run, settings, user
from oracle.modules import build_module
from oracle.probes import Raises, plain, probe, tried

PAIR, TWO = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(2)


def pieces_of(library: Any) -> tuple[type, type]:
    """A piece without state and one that counts."""

    class Marker(library.ConnectorV2):  # type: ignore[misc, name-defined]
        def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, **kwargs: Any) -> Any:
            batch["keywords"] = sorted(kwargs)
            return batch

    class Counter(Marker):
        count = 0

        def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> Any:
            return {"count": self.count}

        def set_state(self, state: Any) -> None:
            self.count = state["count"]

        def merge_states(self, states: Any) -> Any:
            return {"count": sum(state["count"] for state in states)}

    return Marker, Counter


def pipeline_of(library: Any, *classes: type) -> Any:
    return library.ConnectorPipelineV2(PAIR, ACT, connectors=[cls() for cls in classes])


@probe("O2", ours=[{"count": 5}], theirs=[{}])
def test_states_are_merged_behind_a_stateless_piece(library: Any) -> Any:
    pipeline = pipeline_of(library, *pieces_of(library))
    states = []
    for count in (2, 3):
        pipeline.connectors[1].count = count
        states.append(pipeline.get_state())
    return list(pipeline.merge_states(states).values())


@probe("O3", ours=[1, 2], theirs=[2, 2])
def test_two_pieces_of_a_class_keep_their_states(library: Any) -> Any:
    _, counter = pieces_of(library)
    pipeline, copy = pipeline_of(library, counter, counter), pipeline_of(library, counter, counter)
    for piece, count in zip(pipeline.connectors, (1, 2)):
        piece.count = count
    copy.set_state(pipeline.get_state())
    return [piece.count for piece in copy.connectors]


@probe(
    "O4",
    ours=[Raises(UnknownNameError, "'Countr'"), Raises(UnknownNameError, "'Countr'"), ["Marker", "Counter"]],
    theirs=["Counter", "Counter", ["Marker", "Marker", "Counter", "Marker"]],
)
def test_inserting_next_to_a_piece_that_is_not_there(library: Any) -> Any:
    marker, counter = pieces_of(library)
    pipeline = pipeline_of(library, marker, counter)
    before = tried(lambda: type(pipeline.insert_before("Countr", marker())).__name__)
    after = tried(lambda: type(pipeline.insert_after("Countr", marker())).__name__)
    return [before, after, names(pipeline)]


@probe("O5", ours="Counter", theirs=Raises(AttributeError, "no attribute 'name'", "__getitem__"))
def test_looking_up_by_class_name(library: Any) -> Any:
    return type(pipeline_of(library, *pieces_of(library))["Counter"]).__name__


NOT_ITERABLE = Raises(TypeError, "'NoneType' object is not iterable", "__init__")


@probe("O6", ours=[PAIR, ACT, 0], theirs=[None, None, NOT_ITERABLE])
def test_an_empty_pipeline_has_the_spaces_of_its_input(library: Any) -> Any:
    pipeline = pipeline_of(library)
    return [pipeline.observation_space, pipeline.action_space, tried(lambda: len(library.ConnectorPipelineV2()))]


IMAGE = gym.spaces.Box(0, 1, (4, 4, 1), np.float32)
SPACES = {"input_observation_space": PAIR, "input_action_space": ACT}


def lacks(name: str) -> Raises:
    return Raises(AttributeError, f"no attribute '{name}'")


@probe(
    "O7",
    ours=[(4, 4, 3), (2,), "Dict"],
    theirs=[lacks("_multi_agent"), lacks("clip_by_value"), lacks("_multi_agent")],
)
def test_pieces_take_spaces_in_their_constructors(library: Any) -> Any:
    stacking = library.module("connectors.env_to_module.frame_stacking").FrameStackingEnvToModule
    home = library.env_to_module
    return [
        tried(lambda: stacking(IMAGE, ACT, num_frames=3).observation_space.shape),
        tried(lambda: home.MeanStdFilter(**SPACES).observation_space.shape),
        tried(lambda: type(home.PrevActionsPrevRewards(**SPACES).observation_space).__name__),
    ]


@probe("O8", ours=[5, 3, 4], theirs=[5, None, 8])
def test_the_arguments_of_subclasses_are_recorded(library: Any) -> Any:
    """Of a class, of a subclass as it is, and of one whose constructor hands the double to its parent's."""
    marker, _ = pieces_of(library)

    class Repeat(marker):
        def __init__(self, observations: Any = None, actions: Any = None, *, times: int = 2, **kwargs: Any) -> None:
            super().__init__(observations, actions, **kwargs)
            self.times = times

    class Same(Repeat):
        pass

    class Twice(Repeat):
        def __init__(self, observations: Any = None, actions: Any = None, *, times: int = 2, **kwargs: Any) -> None:
            super().__init__(observations, actions, times=2 * times, **kwargs)

    pieces = (Repeat(times=5), Same(times=3), Twice(times=4))
    return [piece.get_ctor_args_and_kwargs()[1].get("times") for piece in pieces]


@probe("O9", ours=[], theirs=["data"])
def test_pieces_are_passed_the_batch_once(library: Any) -> Any:
    batch = run(pipeline_of(library, pieces_of(library)[0]), [])
    return [name for name in batch["keywords"] if name not in ("explore", "shared_data", "metrics")]


@probe("O10", ours=Raises(ColumnError, "7"), theirs={"x": {("e",): [[0.0, 0.0, 0.0]]}})
def test_the_number_of_items_is_checked(library: Any) -> Any:
    batch: Any = {}
    episode = library.SingleAgentEpisode(id_="e")
    return tried(lambda: library.ConnectorV2.add_n_batch_items(batch, "x", np.zeros(3), 7, episode)) or plain(batch)


@probe(
    "O10",
    ours=Raises(BatchLayoutError, "all its items added with an episode"),
    theirs=Raises(TypeError, "list indices must be integers or slices, not tuple"),
)
def test_items_with_and_without_an_episode(library: Any) -> Any:
    batch: Any = {}
    library.ConnectorV2.add_batch_item(batch, "x", 1)
    library.ConnectorV2.add_batch_item(batch, "x", 1, library.SingleAgentEpisode(id_="e"))
    return plain(batch)


ALGORITHMS = ("ppo", "marwil", "bc", "dqn", "sac", "cql", "iql")
WITHOUT_NEIGHBOUR = Raises(ValueError, "Can not find connector with name or type", "insert_after")
TWICE = "AddNextObservationsFromEpisodesToTrainBatch"


@probe(
    "O30",
    ours=[{}, {}],
    theirs=[{"cql": TWICE, "iql": TWICE}, {"sac": WITHOUT_NEIGHBOUR, "cql": WITHOUT_NEIGHBOUR}],
)
def test_learner_pipelines_of_algorithms(library: Any) -> Any:
    """The pieces that an algorithm adds twice, and the errors of those without the default pieces."""
    twice, failed = {}, {}
    for name in ALGORITHMS if library is RLLIB else ("ppo",):
        config = getattr(library.module(f"algorithms.{name}"), f"{name.upper()}Config")()
        (piece, count), *_ = Counter(names(config.build_learner_connector(PAIR, PAIR))).most_common(1)
        twice.update({name: piece} if count > 1 else {})
        config.learners(add_default_connectors_to_learner_pipeline=False)
        found = tried(lambda config=config: config.build_learner_connector(PAIR, PAIR))
        failed.update({name: found} if isinstance(found, Exception) else {})
    return [twice, failed]


@probe(
    "O31",
    ours=[[[0] * 8], {"few": [[0, 1]], "many": [[0, 1], [2, 3], [4, 5]]}],
    theirs=["no columns", {"few": [[0, 1], [0, 1], [0, 1]], "many": [[0, 1], [2, 3], [4, 5]]}],
)
def test_long_sequences_and_modules_with_few_rows(library: Any) -> Any:
    """The first of two sequences of eight steps in minibatches of four; then modules with two and six rows."""
    batch = {"x": torch.tensor([[0] * 8, [1] * 8]), "seq_lens": torch.tensor([8, 8])}
    several = {"few": {"x": torch.arange(2)}, "many": {"x": torch.arange(6)}}
    return [minibatches(library, {"m": batch}, 4)["m"][0], minibatches(library, several, 2)]


def learner_with(library: Any, builder: Callable[..., Any]) -> tuple[Any, Any]:
    """PPO's Learner, and its pipeline, with the piece that a user's builder makes of the spaces it gets."""
    config = settings(library)
    if library is RLLIB:
        config.learners(learner_connector=builder)
        learner = config.build_learner(spaces={"default_policy": (OBS, TWO)})
        return learner, learner._learner_connector
    learner = config.training(learner_connector=builder).build_algo().learner
    return learner, learner.connector


def three_steps(library: Any, logp: float = -0.5) -> Any:
    """An episode with one of its log-probabilities to choose, as arrays."""
    outputs = {"action_logp": [np.float32(own) for own in (-0.5, logp, -0.5)]}
    outputs["action_dist_inputs"] = [np.zeros(2, np.float32)] * 3
    settings = {"rewards": [0.5] * 3, "actions": [0] * 3, "extra_model_outputs": outputs, "action_space": TWO}
    return chunk(library, "e", **settings)


@probe("ppo-order", ours=[3], theirs=[4])
def test_a_users_piece_sees_the_episode_as_it_happened(library: Any) -> Any:
    """Steps of an episode of three."""
    seen: list[int] = []
    piece = user(library, lambda piece, batch, episodes: seen.extend(map(len, episodes)))
    _, pipeline = learner_with(library, lambda *spaces: piece)
    module = build_module(library, OBS, TWO, multi=True)
    run(pipeline, [three_steps(library)], rl_module=module)
    return seen


@probe("obs-bootstrap-row", ours=Raises(ColumnError, "one per step and one for the last observation"), theirs=4)
def test_a_column_of_observations_with_one_row_per_step(library: Any) -> Any:
    """Rows of the batch."""

    def add(piece: Any, batch: Any, episodes: Any) -> None:
        for episode in piece.single_agent_episode_iterator(episodes):
            rows = np.stack([episode.get_observations(t) for t in range(len(episode))])
            piece.add_n_batch_items(batch, "obs", rows, len(rows), episode)

    _, pipeline = learner_with(library, lambda *spaces: user(library, add))
    module = build_module(library, OBS, TWO, multi=True)
    return len(run(pipeline, [three_steps(library)], rl_module=module)["default_policy"]["obs"])


@probe("non-finite-loss", ours=Raises(NonFiniteLossError, "total_loss=nan"), theirs="went on")
def test_a_loss_that_is_no_number(library: Any) -> Any:
    learner, _ = learner_with(library, lambda *spaces: user(library))
    required = {"timesteps": {"num_env_steps_sampled_lifetime": 3}, "num_epochs": 1, "minibatch_size": 3}
    learner.update(episodes=[three_steps(library, float("nan"))], **(required if library is RLLIB else {}))
    return "went on"


@probe("learner-input-space", ours=[OBS, TWO], theirs=[None, None])
def test_the_spaces_that_builders_of_learner_pieces_get(library: Any) -> Any:
    seen: list[Any] = []

    def build(*spaces: Any) -> Any:
        seen.extend(spaces)
        return user(library)

    learner_with(library, build)
    return seen


@probe("learner-state", ours=True, theirs=False)
def test_the_state_of_a_learner_piece_is_saved_with_the_learner(library: Any) -> Any:
    piece = user(library)
    type(piece).get_state = lambda self, *components, **kwargs: {"count": 987654}
    learner, _ = learner_with(library, lambda *spaces: piece)
    return "987654" in repr(learner.get_state())


@probe("last-minibatch", ours=[[0, 1], [2, 3], [4]], theirs=[[0, 1], [2, 3], [4, 0]])
def test_the_last_minibatch(library: Any) -> Any:
    return minibatches(library, {"m": {"x": torch.arange(5)}}, 2)["m"]


@probe("sequence-minibatches", ours=[[0, 1, 2, 3], [4]], theirs=[[0, 1], [2, 3], [4, 0]])
def test_minibatches_of_sequences(library: Any) -> Any:
    """Four sequences of one step and one of four, in minibatches of four steps."""
    batch = {"x": torch.arange(5)[:, None].expand(5, 4).contiguous(), "seq_lens": torch.tensor([1, 1, 1, 1, 4])}
    return [[row[0] for row in rows] for rows in minibatches(library, {"m": batch}, 4)["m"]]


@probe("rows-without-loss", ours=[[0, 2], [3]], theirs=[[0, 1], [2, 3]])
def test_rows_without_loss(library: Any) -> Any:
    mask = torch.tensor([True, False, True, True])
    return minibatches(library, {"m": {"x": torch.arange(4), "loss_mask": mask}}, 2)["m"]


def two(rows: int = 8) -> dict[str, Any]:
    return {"red": ppo_batch(rows, 0), "blue": ppo_batch(rows, 1)}


@probe("module-minibatches", ours={"red": 2, "blue": 12}, theirs={"red": 2, "blue": 2})
def test_epochs_and_minibatches_of_a_module(library: Any) -> Any:
    """Minibatches that each module sees."""
    overrides = {"blue": {"num_epochs": 3, "minibatch_size": 2}}
    results = SeveralModules(library, overrides=overrides, minibatch_size=4, num_epochs=1).update(two())
    if library is not RLLIB:
        return {name: results[name]["num_minibatches"] for name in two()}
    steps, sizes = "num_module_steps_trained", "module_train_batch_size_mean"
    return {name: int(results[name][steps]) // int(results[name][sizes]) for name in two()}


@probe("module-without-loss", ours="none", theirs="nan")
def test_a_module_whose_rows_all_lack_loss(library: Any) -> Any:
    """Its loss among the results."""
    batches = two()
    batches["red"]["loss_mask"][:] = False
    return str(SeveralModules(library).update(batches)["red"].get("total_loss", "none"))


@probe("nothing-to-train", ours=["__all_modules__"], theirs=Raises(UnboundLocalError, "loss_per_module", "update"))
def test_a_batch_with_nothing_to_train(library: Any) -> Any:
    learner = SeveralModules(library, policies_to_train=["red"])
    return list(learner.update({"blue": ppo_batch(6, 0)}))


@probe("untrained-modules", ours=[False, False], theirs=[True, True])
def test_what_there_is_of_a_module_that_is_not_trained(library: Any) -> Any:
    """Whether there is an optimiser, and a result."""
    several = SeveralModules(library, policies_to_train=["red"])
    results = several.update(two())
    state = several.learner.get_state()
    optimizers = state["optimizer" if library is RLLIB else "optimizers"]
    return [any(name.startswith("blue") for name in optimizers), "blue" in results]


@probe(
    "unknown-module-states",
    ours=[Raises(CheckpointError, "states of blue"), Raises(UnknownNameError, "did you mean 'blue'")],
    theirs=[None, []],
)
def test_a_state_and_components_of_a_module_that_is_not_there(library: Any) -> Any:
    both = nets(library, "red", "blue")
    given = tried(lambda: nets(library, "red").set_state(both.get_state()))
    return [given, tried(lambda: list(both.get_state(components="bleu")))]


@probe("module-loading", ours=True, theirs=False)
def test_a_spec_with_a_state_to_load(library: Any, tmp_path: Any) -> Any:
    """Whether the module has the weights."""
    saved, spec = net_spec(library, 1).build(), net_spec(library, 2)
    spec.load_state_path = str(saved.save_to_path(str(tmp_path / "net")))
    return torch.equal(spec.build().pi.weight, saved.pi.weight)
