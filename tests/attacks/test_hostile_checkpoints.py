"""Whatever a stranger's checkpoint holds, opening it ends in a named error or does no harm, within bounded memory.

The attacks and the loaders are in `hostile.py`, which runs as another process: some attacks used to end it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks, limits and /proc")
SCRIPT = Path(__file__).with_name("hostile.py")
MEMORY = 64 * 2**20


def tell(how: str, folder: Path, *loaders: str) -> list[dict[str, Any]]:
    """Let the other process try its attacks; how each went."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HOSTILE_PROOF": str(folder / "proof")}
    command = [sys.executable, str(SCRIPT), how, str(folder), *loaders]
    process = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False, env=environment)
    assert process.returncode == 0, process.stderr[-2000:]
    assert not (folder / "proof").exists(), "code from a file was run"
    return [json.loads(line) for line in process.stdout.splitlines() if line.startswith('{"attack"')]


def faults(told: Iterable[dict[str, Any]]) -> list[str]:
    """What ended a process, and what raised an error that names nothing."""
    rows = [f"{row['attack']}: ended with {row['code']}" for row in told if row["code"]]
    for row in told:
        found = row.get("loaders", {}).items()
        rows += [f"{row['attack']}, {loader}: {how}" for loader, how in found if how.startswith("raw")]
    return rows


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return tell("table", tmp_path_factory.mktemp("hostile"))


@pytest.mark.slow
def test_what_is_no_attack_is_loaded(table):
    own = table[0]["loaders"]
    assert table[0]["attack"] == "none"
    assert {loader for loader, how in own.items() if how != "loaded"} == {"RLModule"}, "an algorithm's is no module's"


@pytest.mark.slow
def test_attacks_end_in_named_errors_or_do_no_harm(table):
    assert len(table) > 60 and len(table[0]["loaders"]) >= 10
    assert faults(table) == []


@pytest.mark.slow
def test_memory_is_bounded(table):
    """By what a load without an attack takes, the size of the files and 64 MiB."""
    usual = table[0]["memory"]
    above = {row["attack"]: (row["memory"] - usual - row["files"]) / 2**20 for row in table if "memory" in row}
    assert {attack: size for attack, size in above.items() if size > MEMORY / 2**20} == {}


REFUSED_BY_ALL = [
    "averages of no axes",
    "numpy beyond its words",
    "python beyond its words",
    "torch beyond its words",
    "order of rows",
    "reset seeds of a Mersenne Twister",
    "deflated",
    "an array too many",
    "an array of objects",
    "a pickle",
    "a state of gigabytes",
    "lists in a list",
]


@pytest.mark.slow
@pytest.mark.parametrize("attack", REFUSED_BY_ALL)
def test_the_algorithm_refuses(table, attack):
    """These would read or write beyond memory, run code, or take memory without end: going on is no answer."""
    row = next(row for row in table if row["attack"] == attack)
    loaders = {name: row["loaders"][name] for name in ("PPO", "restore_from_path", "set_state", "resume")}
    assert {name for name, how in loaders.items() if not how.startswith("named: ")} == set()


CODE = ["an environment of code", "an environment of code inside", "a piece of code", "a callback of code"]


@pytest.mark.slow
@pytest.mark.parametrize("attack", [*CODE, "a wide network beside a hole"])
def test_code_and_a_network_wider_than_the_file_are_refused(table, attack):
    row = next(row for row in table if row["attack"] == attack)
    assert row["loaders"]["PPO"] == "named: CheckpointError"


@pytest.mark.slow
@pytest.mark.parametrize(
    "attack",
    ["a wide network beside a hole", "a module as it was, of code", "a space of the module beyond memory"],
)
def test_a_policy_refuses_code_and_networks_wider_than_the_file(table, attack):
    row = next(row for row in table if row["attack"] == attack)
    assert row["loaders"]["Policy"] == "named: CheckpointError"


@pytest.mark.slow
def test_random_changes(tmp_path):
    assert faults(tell("0-12", tmp_path, "Policy", "set_state")) == []


@pytest.mark.slow
@pytest.mark.parametrize("seeds", ["1000-1400", "1400-1800"])
def test_many_random_changes(tmp_path, seeds):
    assert faults(tell(seeds, tmp_path, "Policy", "set_state", "PPO", "resume")) == []
