"""Hostile checkpoints, each opened with everything that opens one: `hostile.py HOW FOLDER`.

Each attack happens in a fork of this process, with limits on memory and time, and tells on one line of JSON how each
loader took it: "loaded", "named: CLASS", or "raw: CLASS: MESSAGE". The checksums are made right again first.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import math
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from typer.testing import CliRunner

from epibatch.algorithms import PPO, Policy, PPOConfig, RunFolder, TrainingRun
from epibatch.cli import app
from epibatch.core import load_state, save_state
from epibatch.core.errors import EpibatchError
from epibatch.core.rl_module import RLModule

CONFIG = """
algorithm: ppo
environment: {env: CartPole-v1}
env_runners: {num_envs_per_env_runner: 2}
training: {train_batch_size: 32, minibatch_size: 32, num_epochs: 1}
rl_module: {model_config: {fcnet_hiddens: [4]}}
env_to_module: [{piece: mean_std_filter}]
debugging: {seed: 1}
"""
MODULE = ("learner", "module", "default_policy")
ADAM = ("learner", "optimizers", "default_policy", "pi.net.0.weight")
HUGE = 10**30
VALUES: list[Any] = [
    None, True, -1, 10**9, 10**18, HUGE, -HUGE, 10**4000, 0.5, math.nan, math.inf, "", "os:system", "../../x",
    "x" * 10**5, b"\x80\x04.", [], {}, (), [[]], {"": {}}, {("a", 1): 2}, {1: 2}, [None] * 1000, np.array(0.5, "f4"),
    np.zeros(0), np.zeros((1, 1, 1), "f4"), np.zeros(10**6, "f4"), np.array(["a"]), np.array([1 + 2j]),
    np.full(4, np.nan, "f4"),
    np.zeros(5056, np.uint8), np.arange(256, dtype=np.uint8), np.array(math.inf), np.int64(-5), np.float32(math.nan),
    np.zeros(3, "f4,i4"), np.array("2020-01-01", "M8[D]"),
]  # fmt: skip


ASKED_FOR = {"rollout_fragment_length", "train_batch_size", "num_epochs", "evaluation_duration"}
"""How much a config lets train may be any amount, and take any time: SECURITY.md says so."""


def at(*keys: Any, to: Any) -> Callable[[Any], None]:
    """Put a value at a place of the state."""
    return place("state", *keys, to=to)


def place(*keys: Any, to: Any) -> Callable[[Any], None]:
    """Put a value at a place of a checkpoint's content; one that is called makes it of the old one."""

    def attack(content: Any) -> None:
        for key in keys[:-1]:
            content = content[key]
        content[keys[-1]] = to(content.get(keys[-1])) if callable(to) else to

    return attack


def in_networks(*keys: Any, to: Any) -> Callable[[Any], None]:
    """Put a value at a place of the network's settings: those of the config, and those of the module as it was."""

    def attack(content: Any) -> None:
        for network in NETWORKS:
            place(*network, *keys, to=to)(content)

    return attack


def every_average(name: str, value: Any) -> Callable[[Any], None]:
    def attack(content: Any) -> None:
        for own in content["state"]["learner"]["optimizers"]["default_policy"].values():
            own[name] = value

    return attack


def position(index: int, value: int, size: int) -> Callable[[Any], Any]:
    """Change a number in the bytes of a torch generator's state."""

    def change(state: Any) -> Any:
        state = state.copy()
        state[index : index + size] = np.frombuffer(value.to_bytes(size, "little"), np.uint8)
        return state

    return change


def mersenne(place_of: int) -> dict[str, Any]:
    state = np.random.MT19937(0).state
    state["state"]["pos"] = place_of
    return state


def pcg64(words: int) -> dict[str, Any]:
    state = np.random.PCG64(0).state
    state["state"]["state"] = words
    return state


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


BOX = {"type": "Box", "low": 0.0, "high": 1.0, "dtype": "float32"}
SPEC = ("description", "config", "rl_module", "rl_module_spec")
NETWORKS = [("description", "config", "rl_module", "model_config"), ("description", "modules", "model_config")]
REFERENCES = ("state", "env_runner", "env_to_module_connector", "mean_std_filter")
STATES: dict[str, Callable[[Any], None]] = {
    "averages of no axes": every_average("exp_avg", np.array(0.5, "f4")),
    "step nan": every_average("step", np.array(math.nan, "f4")),
    "an average turned round": at(*ADAM, "exp_avg", to=lambda old: np.zeros(old.shape[::-1] + (1,), "f4")),
    "squares below 0": at(*ADAM, "exp_avg_sq", to=lambda old: old - 1e9),
    "an average less": at(*ADAM, to={"step": np.array(1.0, "f4")}),
    "weights nan": at(*MODULE, "pi.net.0.weight", to=lambda old: old * math.nan),
    "weights ragged": at(*MODULE, "pi.net.0.weight", to=[[1.0], [1.0, 2.0]]),
    "weights missing": at(*MODULE, to={}),
    "another module": at("learner", "module", "../x", to={}),
    "numpy beyond its words": at("random", "numpy", "position", to=10**9),
    "numpy with few words": at("random", "numpy", "keys", to=np.zeros(3, np.uint32)),
    "numpy with words of 64 bits": at("random", "numpy", "keys", to=np.zeros(624, np.uint64)),
    "python beyond its words": at("random", "python", "words", to=lambda old: np.append(old[:-1], 10**9)),
    "torch beyond its words": at("random", "torch", to=position(16, 10**9, 8)),
    "torch with words left": at("random", "torch", to=position(8, 2**31 - 1, 4)),
    "cuda": at("random", "cuda", to=[np.zeros(3, np.uint8)]),
    "order of rows": at("learner", "generators", "default_policy", to=position(16, 10**12, 8)),
    "reset seeds of a Mersenne Twister": at("env_runner", "reset_seeds", to=mersenne(10**9)),
    "reset seeds of a generator beyond 128 bits": at("env_runner", "reset_seeds", to=pcg64(2**200)),
    "reset seeds huge": at("env_runner", "reset_seeds", "drawn", to=[HUGE]),
    "reset seeds of text": at("env_runner", "reset_seeds", "entropy", to="abc"),
    "reset seeds of one number": at("env_runner", "reset_seeds", "drawn", to=3),
    "reset seeds perhaps": at("env_runner", "reset_seeds", "pending", to="maybe"),
    "lookback of a trillion": at("env_runner", "required_lookback", to=10**12),
    "steps to learn of bytes": at("counters", "num_env_steps_to_learn", to=b"."),
    "steps of many digits": at("counters", "num_env_steps_sampled_lifetime", to=10**4200),
    "metrics of another kind": at("counters", "logged_metrics", to={"metrics": {("a",): {"settings": "abcde"}}}),
    "metric beside its parent": at("counters", "callback_metrics", to=lambda old: {"metrics": {
        key: {"settings": ("sum", None, None, False, False), "count": 1, "value": 1, "values": None}
        for key in (("a",), ("a", "b"))}}),
    "metric with a huge window": at("counters", "callback_metrics", to={"metrics": {("a",): {
        "settings": ("mean", HUGE, None, False, False), "count": 1, "value": 1, "values": []}}}),
    "episodes with one number": at("env_runner", "episode_metrics", "ended", to=np.zeros((3, 1))),
    "views of very many steps": at("added_views", to={"x": {"column": "obs", "shift": "-10000000000:0"}}),
    "filter infinite": place(*REFERENCES, "since", to={
        "count": 3, "mean": np.full(4, math.inf), "squares": np.ones(4)}),
    "a piece of another pipeline": at("env_runner", "env_to_module_connector", "os:system", to={"x": 1}),
    "parts that are lists": place("state", to=lambda old: {part: [] for part in old}),
    "nested a hundred deep": at("env_runner", "logged_metrics", to=nested(150)),
    "layers beyond memory": in_networks("fcnet_hiddens", to=[10**5, 10**5]),
    "very many layers": in_networks("fcnet_hiddens", to=[1] * 100_000),
    "an lstm beyond memory": in_networks(to={"use_lstm": True, "lstm_cell_size": 2**20}),
    "environments beyond memory": place("description", "config", "env_runners", "num_envs_per_env_runner", to=10**12),
    "an environment of code": place("description", "config", "environment", "env", to="os:system"),
    "an environment of code inside": place("description", "config", "environment", to={
        "env": "GymV21Environment-v0", "env_config": {"env_id": "os:system"}}),
    "a piece of code": place("description", "config", "env_to_module", to=[{"piece": "os:system"}]),
    "a module of code": place(*SPEC, to={"module_class": "os:system"}),
    "a module as it was, of code": place("description", "modules", "module_class", to="os:system"),
    "a space of the module beyond memory": place("description", "modules", "observation_space", to={
        **BOX, "shape": [10**5, 10**5]}),
    "a module beyond memory": place(*SPEC, to={
        "module_class": "DefaultActorCritic", "model_config": {"fcnet_hiddens": [10**5, 10**5]}}),
    "a state from elsewhere": place(*SPEC, to={"load_state_path": "/dev/zero"}),
    "a spec that is a list": place(*SPEC, to=[1]),
    "a space beyond memory": place("description", "spaces", 0, to={**BOX, "shape": [10**5, 10**5]}),
    "a space below 0": place("description", "spaces", 0, to={**BOX, "shape": [-1]}),
    "an action of very many": place("description", "spaces", 1, to={"type": "Discrete", "n": 10**15, "start": 0}),
    "a callback of code": place("description", "config", "callbacks", to={"on_episode_end": "os:system"}),
    "frames beyond memory": place("description", "config", "env_to_module", to=[
        {"piece": "mean_std_filter"}, {"piece": "frame_stacking", "num_frames": 10**9}]),
    "names that lead out": place("description", "config", "multi_agent", to={"policies": ["../../x"]}),
    "acting steps below 0": place("description", "lookback", to=-1),
}  # fmt: skip


# -- files -------------------------------------------------------------------------------------------


def signed(folder: Path, name: str, content: bytes) -> None:
    """Put a content into a file, and its size and sum into the marker."""
    (folder / name).write_bytes(content)
    marked(folder, name, {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()})


def marked(folder: Path, name: str, sums: dict[str, Any]) -> None:
    marker = json.loads((folder / "COMPLETE").read_text())
    marker["files"][name] = sums
    (folder / "COMPLETE").write_text(json.dumps(marker))


def repacked(change: Callable[[list[tuple[str, bytes]]], Any], compression: int = 0) -> Callable[[Path], None]:
    """Pack the arrays of a checkpoint again, after a change of the list of names and contents."""

    def attack(folder: Path) -> None:
        with zipfile.ZipFile(folder / "arrays.npz") as archive:
            entries = [(name, archive.read(name)) for name in archive.namelist()]
        entries = change(entries) or entries
        packed = io.BytesIO()
        with warnings.catch_warnings(), zipfile.ZipFile(packed, "w", compression) as archive:
            warnings.simplefilter("ignore")
            for name, content in entries:
                archive.writestr(name, content)
        signed(folder, "arrays.npz", packed.getvalue())

    return attack


def array(value: Any, allow_pickle: bool = False) -> bytes:
    content = io.BytesIO()
    np.save(content, value, allow_pickle=allow_pickle)
    return content.getvalue()


def header(shape: str, descr: str = "'<f4'") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + bytes(64)


def first(content: bytes) -> Callable[[list[Any]], Any]:
    return lambda entries: entries.__setitem__(0, ("a0.npy", content))


def text(content: bytes) -> Callable[[Path], None]:
    return lambda folder: signed(folder, "state.json", content)


def sparse(folder: Path) -> None:
    size = 5 * 2**30
    os.truncate(folder / "state.json", size)
    marked(folder, "state.json", {"bytes": size, "sha256": "0" * 64})


def directory_of_very_many(folder: Path) -> None:
    content = (folder / "arrays.npz").read_bytes()
    record = content[content.index(b"PK\x01\x02") :]
    record = record[: 46 + int.from_bytes(record[28:30], "little") + int.from_bytes(record[30:32], "little")]
    signed(folder, "arrays.npz", content + record * 200_000)


def hole_beside(folder: Path) -> None:
    """A wide network, and a file without content, of terabytes, where the checkpoint before this one would be."""
    content = load_state(folder)
    in_networks("fcnet_hiddens", to=[10**4, 10**4])(content)
    save_state(folder, content)
    previous = folder.with_name(f".{folder.name}.previous")
    previous.mkdir()
    (previous / "arrays.npz").touch()
    os.truncate(previous / "arrays.npz", 2**42)


class Code:
    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["HOSTILE_PROOF"],)


FILES: dict[str, Callable[[Path], None]] = {
    "deflated": repacked(lambda entries: None, zipfile.ZIP_DEFLATED),
    "a deflated gigabyte": repacked(
        lambda entries: entries.append(("big.npy", array(np.zeros(2**26, "f4")))), zipfile.ZIP_DEFLATED),
    "an array too many": repacked(lambda entries: entries.append((f"a{len(entries)}.npy", array(np.zeros(3))))),
    "an array missing": repacked(lambda entries: entries[1:]),
    "a name that leads out": repacked(lambda entries: [(f"../{name}", content) for name, content in entries]),
    "an array of objects": repacked(first(array(np.array([Code()], object), allow_pickle=True))),
    "an array of terabytes": repacked(first(header("(1000000000000,)"))),
    "items without bytes": repacked(first(header("(1000000000000,)", "'|V0'"))),
    "a header of code": repacked(first(header("__import__('os').mkdir('x')"))),
    "a directory of very many": directory_of_very_many,
    "a pickle": lambda folder: signed(folder, "arrays.npz", __import__("pickle").dumps(Code())),
    "a state of gigabytes": sparse,
    "a wide network beside a hole": hole_beside,
    "lists in a list": text(b"[" + b"[]," * 5_000_000 + b"1]"),
    "deep lists": text(b"[" * 10**6),
    "dicts in a list": text(b"[" + b'{"a":1},' * 10**6 + b"1]"),
    "a number of many digits": text(b"1" * 10**6),
    "a marker of megabytes": lambda folder: (folder / "COMPLETE").write_bytes(b" " * 2**22 + b"{}"),
    "a marker with another path": lambda folder: (folder / "COMPLETE").write_text(
        '{"format": "epibatch-state", "version": 1, "files": {"../x": {}}}'),
}  # fmt: skip


# -- loaders -----------------------------------------------------------------------------------------


class Stage:
    """A trained algorithm, its checkpoint, and everything that opens one."""

    def __init__(self, root: Path) -> None:
        (root / "config.yaml").write_text(CONFIG)
        self.run = root / "run"
        session = TrainingRun.start(root / "config.yaml", self.run)
        with redirect_stdout(io.StringIO()):
            session.run(1)
        self.whole = Path(shutil.copytree(self.run, root / "whole"))
        self.checkpoint = self.run / "checkpoints" / "000001"
        self.content = load_state(self.checkpoint)
        self.algorithm = PPOConfig.from_yaml(root / "config.yaml").build_algo()
        self.algorithm.train()
        self.obs = np.zeros(4, np.float32)

    def again(self) -> None:
        """Put the run's folder back to what it was before it was attacked."""
        shutil.rmtree(self.run)
        shutil.copytree(self.whole, self.run)

    def loaders(self) -> dict[str, Callable[[], Any]]:
        path, algorithm = self.checkpoint, self.algorithm
        multi = algorithm.learner.module
        part = "state/learner/module"
        return {
            "load_state": lambda: load_state(path),
            "Policy": lambda: Policy.from_checkpoint(self.run).act(self.obs),
            "PPO": lambda: trained(PPO.from_checkpoint(path)),
            "restore_from_path": lambda: (algorithm.restore_from_path(path), algorithm.train()),
            "set_state": lambda: (algorithm.set_state(load_state(path).get("state")), algorithm.train()),
            "module": lambda: multi["default_policy"].restore_from_path(path, component=f"{part}/default_policy"),
            "MultiRLModule": lambda: multi.restore_from_path(path / "state" / "learner" / "module"),
            "RLModule": lambda: RLModule.from_checkpoint(path),
            "resume": lambda: resumed(self.run),
            "play": lambda: played(self.run),
        }


def trained(algorithm: Any) -> None:
    try:
        algorithm.train()
    finally:
        algorithm.stop()


def resumed(run: Path) -> None:
    session = TrainingRun.resume(run)
    with redirect_stderr(io.StringIO()) as said:
        code = session.run(1)
    if "Traceback" in said.getvalue():
        raise RuntimeError(said.getvalue()[-250:])
    if code == 3:
        raise EpibatchError("the run failed")


def played(run: Path) -> None:
    result = CliRunner().invoke(app, ["play", str(run), "--episodes", "1", "--seed", "0"])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    if result.exit_code:
        raise EpibatchError("the episode failed")


def outcome(load: Callable[[], Any]) -> str:
    try:
        with redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            load()
    except (EpibatchError, gym.error.Error) as error:
        return f"named: {type(error).__name__}"
    except BaseException as error:
        return f"raw: {type(error).__name__}: {error}"[:300]
    return "loaded"


# -- forks -------------------------------------------------------------------------------------------


def status(name: str) -> int:
    """Bytes of an entry of this process's status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


@contextmanager
def measured(told: dict[str, Any]) -> Iterator[None]:
    """The most memory that was taken inside."""
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    resource.setrlimit(resource.RLIMIT_AS, (status("VmSize") + 2 * 2**30, resource.RLIM_INFINITY))
    yield
    told["memory"] = status("VmHWM") - before


def in_a_fork(name: str, prepare: Callable[[], None], loaders: dict[str, Callable[[], Any]], folder: Path) -> None:
    """Try an attack in a copy of this process, and print how it went."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        told: dict[str, Any] = {}
        try:
            prepare()
            told["files"] = sum(os.stat(path).st_blocks * 512 for path in folder.iterdir())
            with measured(told):
                told["loaders"] = {key: outcome(load) for key, load in loaders.items()}
        except BaseException as error:
            told["loaders"] = {"preparation": f"raw: {type(error).__name__}: {error}"}
        os.write(writing, json.dumps(told).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        content = file.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print(json.dumps({"attack": name, "code": code, **(json.loads(content) if content else {})}), flush=True)


def saved(stage: Stage, change: Callable[[Any], Any]) -> Callable[[], None]:
    def prepare() -> None:
        change(stage.content)
        save_state(stage.checkpoint, stage.content)

    return prepare


def table(stage: Stage) -> None:
    """Every attack, and one that is none."""
    loaders = stage.loaders()
    for name, change in {"none": lambda content: None, **STATES}.items():
        in_a_fork(name, saved(stage, change), loaders, stage.checkpoint)
        stage.again()
    for name, damage in FILES.items():
        in_a_fork(name, lambda damage=damage: damage(stage.checkpoint), loaders, stage.checkpoint)
        stage.again()


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, own in items:
        yield from places(own, (*path, key))


def mutate(content: Any, draw: random.Random) -> None:
    """Change one to three places of a checkpoint to something else."""
    for _ in range(draw.randint(1, 3)):
        path = draw.choice([path for path in places(content) if path[-1] not in ASKED_FOR])
        parent = content
        for key in path[:-1]:
            parent = parent[key]
        how = draw.random()
        if how < 0.1 and isinstance(parent, dict):
            del parent[path[-1]]
        elif how < 0.2 and isinstance(parent, dict):
            parent[draw.choice(["x", "", "step", "__class__", "0"])] = copy.deepcopy(draw.choice(VALUES))
        elif how < 0.4 and isinstance(parent[path[-1]], np.ndarray) and parent[path[-1]].nbytes:
            own = bytearray(parent[path[-1]].tobytes())
            own[draw.randrange(len(own))] ^= 1 << draw.randrange(8)
            parent[path[-1]] = np.frombuffer(bytes(own), parent[path[-1]].dtype).reshape(parent[path[-1]].shape)
        else:
            parent[path[-1]] = copy.deepcopy(draw.choice(VALUES))


def mutations(stage: Stage, seeds: range, loaders: list[str]) -> None:
    """Random changes of the content, twenty in each fork, opened by the loaders that read all of it."""
    every = {key: load for key, load in stage.loaders().items() if key in loaders}

    def one(seed: int, load: Callable[[], Any]) -> Callable[[], Any]:
        def changed() -> Any:
            content = copy.deepcopy(stage.content)
            mutate(content, random.Random(seed))
            save_state(stage.checkpoint, content)
            return load()

        return changed

    for begin in range(seeds.start, seeds.stop, 20):
        several = {
            f"{seed} {key}": one(seed, load)
            for seed in range(begin, min(begin + 20, seeds.stop))
            for key, load in every.items()
        }
        in_a_fork(f"seeds from {begin}", lambda: None, several, stage.checkpoint)
        stage.again()


if __name__ == "__main__":
    RunFolder.draw_learning_curve = lambda self, *arguments, **options: self.curve_path  # drawing takes long
    how, where = sys.argv[1], Path(tempfile.mkdtemp(dir=sys.argv[2]))
    the_stage = Stage(where)
    if how == "table":
        table(the_stage)
    else:
        mutations(the_stage, range(*map(int, how.split("-"))), sys.argv[3:])
