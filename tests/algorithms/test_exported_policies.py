"""Exported policies act as `Policy.act` does, in torch and in ONNX Runtime, and files of others are refused."""

from __future__ import annotations

import copy
import json
import logging
import subprocess
import sys
import zipfile

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from torch.overrides import TorchFunctionMode

import epibatch
from epibatch import Policy
from epibatch.algorithms import load_exported
from epibatch.connectors import (
    ActionMask,
    Affine,
    Clip,
    ClipActions,
    ConnectorV2,
    DiscretizeActions,
    EpisodeColumn,
    EpsilonGreedy,
    FlattenObservations,
    FrameStacking,
    Grayscale,
    MeanStdFilter,
    Piece,
    PrevActionsPrevRewards,
    RandomCrop,
    RescaleActions,
    Resize,
    TimeMaxPool,
    ToCHWFloat,
    TrajectoryViews,
    WriteObservationsToEpisodes,
)
from epibatch.connectors.authoring import ColumnTransform
from epibatch.connectors.env_to_module import default_pipeline as env_to_module
from epibatch.connectors.module_to_env import default_pipeline as module_to_env
from epibatch.connectors.views import View
from epibatch.core.errors import CheckpointError, ConfigError, MissingExtraError, NotAvailableError, StorageError
from epibatch.core.rl_module import DefaultActorCritic, DefaultGRUActorCritic, DefaultLSTMActorCritic
from epibatch.core.rl_module.default_q_modules import DefaultQNetwork, DefaultSoftActorCritic
from epibatch.episodes import SingleAgentEpisode

PLAIN = Box(-3, 3, (4,))
SCREEN = Box(0, 255, (16, 16, 1), np.uint8)
NESTED = Dict(
    arm=Tuple([Box(-9, 9, (2, 2)), Discrete(3, start=1)]),
    code=MultiDiscrete([2, 4]),
    far=Box(-9, 9, (3,), np.float64),
    flags=MultiBinary(3),
)
MASKED = Dict(action_mask=MultiBinary(4), board=Box(-1, 1, (5,)))
SPEED = Box(np.float32([-2, 0]), np.float32([4, 1]))
ACTIONS = Dict(jump=Discrete(3, start=2), keys=MultiDiscrete([2, 3]), speed=SPEED, gear=Box(-2, 2, (1,), np.int64))
LSTM = {"use_lstm": True, "lstm_cell_size": 8, "use_prev_action": True, "use_prev_reward": True}


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Torch logs each step of a trace if there is a handler for it, which takes longer than the trace."""
    caplog.set_level(logging.WARNING, "torch.__trace")


def batched(space, rows, seed=0):
    """The space of rows of observations, seeded."""
    batch = gym.vector.utils.batch_space(space, rows)
    batch.seed(seed)
    return batch


def legal(obs):
    """Observations whose mask, if there is one, leaves action 1."""
    if isinstance(obs, dict) and "action_mask" in obs:
        obs["action_mask"][..., 1] = 1
    return obs


def parts(observations, actions, pieces=(), module=DefaultActorCritic, model_config=None, views=None, **to_env):
    """Module and pipelines of a policy with random weights, whose statistics are of 50 random observations."""
    torch.manual_seed(0)
    before = env_to_module(observations, actions, connectors=pieces, views=views)
    rows = gym.vector.utils.iterate(batch := batched(observations, 50), batch.sample())
    chunks = [SingleAgentEpisode(observations=[legal(row)], observation_space=observations) for row in rows]
    before(rl_module=None, batch={}, episodes=chunks)
    network = module(
        observation_space=before.observation_space,
        action_space=before.action_space,
        model_config={"fcnet_hiddens": [16], **(model_config or {})},
    )
    with torch.no_grad():
        for weights in network.parameters():
            weights += torch.randn_like(weights) * (0.1 if weights.ndim == 1 else 2 / weights[0].numel() ** 0.5)
    return network, before, module_to_env(observations, actions, **to_env)


def policy(*args, **kwargs):
    """A policy, with copies of what it is made of."""
    made = parts(*args, **kwargs)
    acting = Policy(*copy.deepcopy(made))
    made[1].freeze()
    acting.pieces_of_test = made
    return acting


def case(name):
    """A policy by the name of what is special about it."""
    mask = ActionMask(source="obs/action_mask", keep=False)
    views = {"prev_actions": View("actions", -1, mask=True), "prev_rewards": View("rewards", -1)}
    stacks = [FrameStacking(num_frames=3)]
    match name:
        case "mlp":
            return policy(PLAIN, Discrete(5))
        case "cnn":
            return policy(SCREEN, Discrete(5), stacks)
        case "lstm":
            return policy(PLAIN, Discrete(5), (), DefaultLSTMActorCritic, LSTM, views)
        case "normalised":
            return policy(NESTED, ACTIONS, [MeanStdFilter()])
        case "masked":
            return policy(MASKED, Discrete(4), [mask, MeanStdFilter()])
        case "gru":
            return policy(PLAIN, ACTIONS, [MeanStdFilter()], DefaultGRUActorCritic, {"lstm_cell_size": 8})
        case "sac":
            return policy(PLAIN, SPEED, [], DefaultSoftActorCritic)
        case "dqn":
            return policy(
                PLAIN, Discrete(5, start=3), [], DefaultQNetwork, {"noisy": True}, connectors=[EpsilonGreedy()]
            )
        case "flat":
            return policy(NESTED, SPEED, [FlattenObservations(keys_to_remove=["flags"])])
        case "clipped":
            return policy(PLAIN, SPEED, [Clip(low=-1, high=2), Affine(scale=[1, 2, 3, 4])], clip_actions=True)
        case "unscaled":
            return policy(PLAIN, SPEED, [], normalize_actions=False, clip_actions=True)
        case "previous":
            return policy(PLAIN, ACTIONS, [PrevActionsPrevRewards(n_prev_actions=2, n_prev_rewards=3)])
        case "pooled":
            same = FrameStacking(num_frames=3, axis=-1, max_pool=2, padding="same")
            return policy(Box(-1, 1, (9, 8, 3)), SPEED, [same])
        case "flicker":
            return policy(SCREEN, SPEED, [TimeMaxPool(), ToCHWFloat()], model_config={"conv_channels": "first"})
        case "resized":
            sizes = [Grayscale(), Resize(height=6, width=5), RandomCrop(height=5, width=4)]
            sizes += [WriteObservationsToEpisodes(), FrameStacking(num_frames=2)]
            return policy(Box(0, 255, (9, 8, 3), np.uint8), SPEED, sizes)
        case "views":
            shown = TrajectoryViews(views={"obs": {"column": "obs", "shift": [-3, 0], "fill": 7}})
            return policy(PLAIN, SPEED, [shown])
        case "rescaled":
            halved = Affine(columns="actions", scale=0.5)
            return policy(PLAIN, SPEED, [halved], connectors=[halved.undo()])
        case "stretched":
            limits = [ClipActions(low=-1.5, high=0.5), RescaleActions(low=-2, high=3)]
            return policy(PLAIN, SPEED, limits, connectors=[piece.undo() for piece in limits[::-1]])
        case "parts":
            one = RescaleActions(columns="actions/speed", low=0, high=0.5)
            return policy(PLAIN, ACTIONS, [one], connectors=[one.undo()])
    raise KeyError(name)


FIVE = ("mlp", "cnn", "lstm", "normalised", "masked")
OTHERS = (
    *("gru", "sac", "dqn", "flat", "clipped", "unscaled", "previous", "pooled", "flicker", "resized"),
    *("views", "rescaled", "stretched", "parts"),
)


class Torch:
    """A loaded .pt2 file as a function of arrays."""

    def __init__(self, path):
        self.loaded = load_exported(path)
        self.about = self.loaded.about

    def __call__(self, inputs, states):
        named = [{name: torch.as_tensor(array) for name, array in arrays.items()} for arrays in (inputs, states)]
        return [{name: tensor.numpy() for name, tensor in tensors.items()} for tensors in self.loaded.program(*named)]


class Runtime:
    """An .onnx file as a function of arrays."""

    def __init__(self, path):
        onnxruntime = pytest.importorskip("onnxruntime")
        self.session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        self.about = json.loads(self.session.get_modelmeta().custom_metadata_map["epibatch"])

    def __call__(self, inputs, states):
        names = [output.name for output in self.session.get_outputs()]
        out = dict(zip(names, self.session.run(None, {**inputs, **states})))
        return {name: out[name] for name in self.about["actions"]}, {name: out[f"next_{name}"] for name in states}


def named(struct, name):
    """The leaves of observations or actions by the names that files use."""
    if isinstance(struct, (dict, tuple)):
        parts = struct.items() if isinstance(struct, dict) else enumerate(struct)
        return {key: leaf for part, below in parts for key, leaf in named(below, f"{name}/{part}").items()}
    return {name: np.asarray(struct)}


def initial(about, rows):
    return {
        name: np.broadcast_to(np.array(state["initial"], state["dtype"]), (rows, *state["shape"][1:])).copy()
        for name, state in about["states"].items()
    }


class InDoubles(TorchFunctionMode):
    """Computes in float64 what is float32 elsewhere, without its rounding."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*doubled(args), **{name: doubled(value) for name, value in (kwargs or {}).items()})


def doubled(value):
    if isinstance(value, (list, tuple)):
        return type(value)(map(doubled, value))
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def check(policy, exported, steps, rows=3, seed=0):
    """Compare actions over steps in which single rows begin new episodes.

    Choices are equal. Numbers are as near to those of float64 as those of `act`, which rounds them otherwise: 1e-6 of
    the largest, or five times as far as `act` itself, whichever is more.
    """
    space, rng = policy.observation_space, np.random.default_rng(seed)
    batches = batched(space, rows, seed)
    state, states, starts = None, initial(exported.about, rows), np.zeros(rows, bool)
    exact_state, seen, errors = None, set(), {}
    for _ in range(steps):
        obs, rewards = legal(batches.sample()), rng.normal(size=rows).astype(np.float32)
        actions, state = policy.act(obs, state, reward=rewards, starts=starts)
        with InDoubles(), np.errstate(over="ignore"):  # masked inputs are the least number
            truth, exact_state = policy.act(obs, exact_state, reward=rewards, starts=starts)
        for name, fresh in initial(exported.about, rows).items():
            states[name][starts] = fresh[starts]
        inputs = {**named(obs, "obs"), "reward": rewards}
        got, states = exported({name: inputs[name] for name in exported.about["inputs"]}, states)
        expected = named(actions, "actions")
        assert got.keys() == expected.keys()
        for name, leaf in expected.items():
            assert (got[name].dtype, got[name].shape) == (leaf.dtype, leaf.shape)
            if leaf.dtype.kind != "f":
                np.testing.assert_array_equal(got[name], leaf)
            else:
                true = named(truth, "actions")[name].astype(np.float64)
                largest = (np.abs(of.astype(np.float64) - true).max() for of in (got[name], leaf))
                errors.setdefault(name, []).append((*largest, np.abs(true).max()))
            seen.add(leaf.tobytes())
        states = {name: array.copy() for name, array in states.items()}
        starts = rng.random(rows) < 0.1
    assert len(seen) > 2
    for name, of_steps in errors.items():
        of_file, of_act, scale = np.max(of_steps, 0)
        assert of_act < 1e-4 * scale
        assert of_file <= max(1e-6 * scale, 5 * of_act), name


class Program:
    """The step that is exported, in place of what torch traces of it."""

    def __init__(self, step, *args, **kwargs):
        self.step = step

    def module(self):
        return self.step


@pytest.fixture
def untraced(monkeypatch, tmp_path):
    """A function that exports policies as they are: torch takes seconds to trace one."""
    saved = []

    def save(program, file):
        saved.append(program)
        zipfile.ZipFile(file, "w").close()

    monkeypatch.setattr(torch.export, "export", Program)
    monkeypatch.setattr(torch.export, "save", save)
    monkeypatch.setattr(torch.export, "load", lambda file: saved[-1])

    def exported(policy):
        policy.export(tmp_path / "policy.pt2")
        return Torch(tmp_path / "policy.pt2")

    return exported


@pytest.mark.parametrize("name", [*FIVE, *OTHERS])
def test_pieces_do_with_tensors_what_they_do_with_episodes(name, untraced):
    acting = case(name)
    check(acting, untraced(acting), 40)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FIVE, *OTHERS])
def test_both_kinds_of_files_act_like_the_policy(name, tmp_path):
    pytest.importorskip("onnxscript")
    acting = case(name)
    for kind, path in ((Torch, tmp_path / "policy.pt2"), (Runtime, tmp_path / "policy.onnx")):
        acting.export(path)
        exported = kind(path)
        for seed in range(3):
            check(acting, exported, 350 if name in FIVE else 60, 3, seed)  # 1,050 steps of the usual kinds
        check(acting, exported, 20, 1)


@pytest.mark.parametrize(
    ("name", "side", "piece"),
    [
        ("normalised", 1, "mean_std_filter"),
        ("gru", 1, "mean_std_filter"),
        ("clipped", 1, "clip"),
        ("clipped", 2, "normalize_and_clip_actions"),
        ("unscaled", 2, "normalize_and_clip_actions"),
        ("stretched", 2, "undo"),
    ],
)
def test_comparison_finds_a_piece_that_is_left_out(name, side, piece, untraced):
    acting = case(name)
    acting.pieces_of_test[side].remove(piece)
    exported = untraced(Policy(*acting.pieces_of_test))
    with pytest.raises(AssertionError):
        check(acting, exported, 50)


@pytest.mark.parametrize("name", ["lstm", "gru", "previous", "cnn"])
def test_comparison_finds_states_that_are_not_kept(name, untraced):
    acting = case(name)
    exported = untraced(acting)

    def forgetful(inputs, states):
        return exported(inputs, initial(exported.about, 3))

    forgetful.about = exported.about
    with pytest.raises(AssertionError):
        check(acting, forgetful, 50)


WITHOUT_LIBRARIES = """
import json, sys
import numpy as np, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
about = json.loads(session.get_modelmeta().custom_metadata_map["epibatch"])
inputs = {
    name: np.full([2, *kind["shape"][1:]], kind.get("initial", 0.5), kind["dtype"])
    for name, kind in {**about["inputs"], **about["states"]}.items()
}
out = dict(zip([output.name for output in session.get_outputs()], session.run(None, inputs)))
print(json.dumps([out["actions"].tolist(), [name for name in ("epibatch", "torch") if name in sys.modules]]))
"""


@pytest.mark.slow
def test_onnx_runs_in_a_process_without_epibatch_and_torch(tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    acting = case("lstm")
    acting.export(tmp_path / "policy.onnx")
    command = [sys.executable, "-I", "-c", f"import sys; sys.path[:] = {sys.path!r}\n{WITHOUT_LIBRARIES}"]
    done = subprocess.run([*command, str(tmp_path / "policy.onnx")], capture_output=True, text=True, check=True)
    actions, loaded = json.loads(done.stdout)
    assert actions == acting.act(np.full((2, 4), 0.5))[0].tolist()
    assert loaded == []


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A policy and its file."""
    acting, path = case("mlp"), tmp_path_factory.mktemp("exported") / "policy.pt2"
    before = acting.act(PLAIN.sample())[1]
    acting.export(path)
    acting.act(PLAIN.sample(), before)  # the policy goes on from a state of before
    return acting, path


def test_file_says_what_it_is(exported):
    about = load_exported(exported[1]).about
    assert about["format"] == 1 and about["version"] == epibatch.__version__
    assert about["inputs"] == {"obs": {"shape": ["batch", 4], "dtype": "float32"}}
    assert about["actions"] == {"actions": {"shape": ["batch"], "dtype": "int64"}}
    assert about["states"] == {}
    assert about["observation_space"]["shape"] == [4] and about["observation_space"]["low"] == -3.0
    assert about["action_space"]["n"] == 5


@pytest.mark.parametrize("rows", [1, 2, 33])
def test_batches_are_of_any_size(exported, rows):
    acting, path = exported
    check(acting, Torch(path), 20, rows)


def rewritten(path, target, change):
    """A copy of a file with one member of the archive changed, by name and content."""
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(target, "w") as out:
        for member in source.namelist():
            out.writestr(member, change(member, source.read(member)))
    return target


def other_version(member, content):
    return json.dumps({**json.loads(content), "format": 99}) if member.endswith("epibatch.json") else content


def other_start(member, content):
    return json.dumps({**json.loads(content), "states": {"t": {}}}) if member.endswith("epibatch.json") else content


def other_weights(member, content):
    return bytes(len(content)) if "/weights/" in member and not member.endswith(".json") else content


@pytest.mark.parametrize(
    ("change", "expected"), [(other_version, "format version 1"), (other_weights, "sum"), (other_start, "sum")]
)
def test_file_of_another_version_or_that_was_changed_is_refused(exported, tmp_path, change, expected):
    changed = rewritten(exported[1], tmp_path / "changed.pt2", change)
    with pytest.raises(CheckpointError) as error:
        load_exported(changed)
    assert str(changed) in error.value.where and expected in error.value.expected


def test_something_else_is_refused(tmp_path):
    path = tmp_path / "policy.pt2"
    with pytest.raises(CheckpointError):
        load_exported(path)
    path.write_bytes(b"no archive")
    with pytest.raises(CheckpointError, match=r"policy\.pt2"):
        load_exported(path)


class Plain(ConnectorV2):
    def __call__(self, *, batch, **kwargs):
        return batch


class Halved(ColumnTransform):
    columns = "obs"

    def transform(self, x):
        return x * 0.5


class HalvedTensors(Halved):
    takes_tensors = True


class LastRewards(Piece):
    """Adds the last two rewards, of which it keeps one itself for tensors, to each entry of the observations."""

    pipelines = ("env_to_module",)
    input_layouts = ("episodes",)
    writes = ("obs",)
    lookback = 2
    wrong = 0.0

    def run(self, columns, group):
        rows = [
            e.get_observations(-1) + self.wrong + sum(e.get_rewards([-2, -1], fill=0.0)) for e in group.plain_episodes()
        ]
        columns["obs"] = EpisodeColumn(np.stack(rows).astype(np.float32))
        return columns

    def run_tensors(self, columns, step):
        newest = step.window("rewards", 1)[0][:, 0]
        earlier = step.state("earlier", torch.zeros((), dtype=torch.float64))
        step.keep("earlier", newest)
        return {**columns, "obs": (step.obs + (newest + earlier)[:, None]).float()}


@pytest.mark.parametrize(
    ("pieces", "name"), [([Plain()], "Plain"), ([Halved()], "Halved"), ([DiscretizeActions()], "DiscretizeActions")]
)
def test_piece_that_cannot_is_named_with_the_remedy(pieces, name, tmp_path):
    bins = isinstance(pieces[0], DiscretizeActions)
    after = [pieces[0].undo()] if bins else []
    acting = Policy(*parts(PLAIN, SPEED if bins else Discrete(5), pieces, connectors=after))
    with pytest.raises(NotAvailableError) as error:
        acting.export(tmp_path / "policy.pt2")
    assert error.value.where == f"Policy.export, piece {name}"
    assert ("run_tensors" in error.value.do) == (name in ("Plain", "Halved"))
    assert not list(tmp_path.iterdir())


def test_transform_that_takes_tensors_and_piece_with_a_state_can(untraced):
    acting = policy(PLAIN, SPEED, [HalvedTensors()])
    check(acting, untraced(acting), 50)
    acting = policy(PLAIN, SPEED, [LastRewards()])
    space = acting.observation_space
    obs, rewards = batched(space, 3).sample(), np.float32([0.5, 1.0, -2.0])
    step, (_, state) = untraced(acting), acting.act(obs)
    _, states = step({"obs": obs, "reward": rewards}, initial(step.about, 3))
    for _ in range(4):
        actions, state = acting.act(obs, state, reward=rewards)
        got, states = step({"obs": obs, "reward": rewards}, states)
        np.testing.assert_allclose(got["actions"], actions, atol=4e-6)


def test_piece_that_acts_otherwise_with_tensors_is_found(untraced, tmp_path):
    class Wrong(LastRewards):
        wrong = 1.0

    with pytest.raises(NotAvailableError, match="the actions of Policy"):
        untraced(policy(PLAIN, SPEED, [Wrong()]))
    assert not list(tmp_path.iterdir())


def test_module_that_cannot_be_traced_is_named(tmp_path):
    class Branching(torch.nn.Module):
        def forward_inference(self, batch):
            first = batch["obs"][:, :2]
            return {"action_dist_inputs": first if first.sum() > 0 else -first}

    before, after = env_to_module(PLAIN, Discrete(2)), module_to_env(PLAIN, Discrete(2))
    with pytest.raises(NotAvailableError, match="Branching"):
        Policy(Branching(), before, after).export(tmp_path / "policy.pt2")


@pytest.mark.slow
def test_operator_that_onnx_lacks_is_named(tmp_path):
    class Bessel(torch.nn.Module):
        def forward_inference(self, batch):
            return {"action_dist_inputs": torch.special.bessel_j0(batch["obs"][:, :2])}

    pytest.importorskip("onnxscript")
    before, after = env_to_module(PLAIN, Discrete(2)), module_to_env(PLAIN, Discrete(2))
    with pytest.raises(NotAvailableError, match="bessel") as error:
        Policy(Bessel(), before, after).export(tmp_path / "policy.onnx")
    assert "policy.pt2" in error.value.do and not list(tmp_path.iterdir())


def test_folders_are_made_and_a_place_that_cannot_be_written_to_is_named(untraced, tmp_path):
    acting = case("mlp")
    untraced(acting)
    acting.export(tmp_path / "new" / "folder" / "policy.pt2")
    assert (tmp_path / "new" / "folder" / "policy.pt2").exists()
    with pytest.raises(StorageError, match=r"exported policy .*policy\.pt2/in_a_file\.pt2"):
        acting.export(tmp_path / "policy.pt2" / "in_a_file.pt2")


def test_other_endings_and_missing_packages_are_named(exported, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"\.onnx or \.pt2"):
        exported[0].export(tmp_path / "policy.txt")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'epibatch\[export\]'"):
        exported[0].export(tmp_path / "policy.onnx")
