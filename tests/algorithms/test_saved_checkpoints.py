"""A run's checkpoints: the newest whole one is found, whatever happened to the others."""

from __future__ import annotations

import logging
import shutil

import pytest

from epibatch.algorithms import PPO, PPOConfig
from epibatch.algorithms.checkpoint import read_checkpoint
from epibatch.algorithms.saved_checkpoints import SavedCheckpoints, newest_checkpoint
from epibatch.core import load_state, save_state
from epibatch.core.errors import CheckpointError


@pytest.fixture
def run(tmp_path):
    """The folder of a run with checkpoints after 2, 9 and 10 iterations."""
    for iteration in (2, 9, 10):
        save_state(tmp_path / "run" / "checkpoints" / f"{iteration:06d}", {"iteration": iteration})
    return tmp_path / "run"


def truncate(folder):
    (folder / "arrays.npz").write_bytes((folder / "arrays.npz").read_bytes()[:-5])


def flip_a_bit(folder):
    content = bytearray((folder / "state.json").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "state.json").write_bytes(bytes(content))


def half_copied(folder):
    (folder / "COMPLETE").unlink()
    (folder / "arrays.npz").unlink()


def emptied(folder):
    shutil.rmtree(folder)
    folder.mkdir()


DAMAGES = [
    (truncate, "arrays.npz has"),
    (flip_a_bit, "state.json was changed"),
    (half_copied, "no file"),
    (emptied, "no file"),
]


def test_numbers_are_iterations(run):
    checkpoints = SavedCheckpoints(run / "checkpoints")
    assert checkpoints.iterations() == [10, 9, 2]
    assert checkpoints.path_of(9) == run / "checkpoints" / "000009"
    (run / "checkpoints" / "notes").mkdir()
    (run / "checkpoints" / "000011").write_text("a file")
    (run / "checkpoints" / ".000012.saving-abc").mkdir()
    assert checkpoints.iterations() == [10, 9, 2]
    save_state(checkpoints.path_of(1_000_000), {})
    checkpoints.path_of(11_000_000).with_name(".11000000.previous").mkdir()
    assert checkpoints.iterations() == [11_000_000, 1_000_000, 10, 9, 2]
    assert SavedCheckpoints(run / "nowhere").iterations() == []


@pytest.mark.parametrize("name", ["12", "0000012", ".000012", "000012.previous", "000012.copy", "٠٠٠٠١٢"])
def test_folders_with_other_names_are_not_counted(run, name, caplog):
    """Pruning by them would keep none of the real ones."""
    own = run / "checkpoints" / name
    own.mkdir()
    checkpoints = SavedCheckpoints(run / "checkpoints")
    checkpoints.prune(1)
    assert checkpoints.iterations() == [10] and own.is_dir()
    assert checkpoints.newest() == checkpoints.path_of(10) and not caplog.records


@pytest.mark.parametrize("path", ["", "checkpoints", "checkpoints/000010"])
def test_run_folder_checkpoints_folder_and_checkpoint_mean_the_newest(run, path):
    assert newest_checkpoint(run / path) == run / "checkpoints" / "000010"


def test_a_checkpoint_that_is_named_is_taken(run):
    assert newest_checkpoint(str(run / "checkpoints" / "000002")) == run / "checkpoints" / "000002"


@pytest.mark.parametrize(("damage", "why"), DAMAGES)
def test_damaged_ones_are_passed_over_and_named(run, caplog, damage, why):
    damage(run / "checkpoints" / "000010")
    with caplog.at_level(logging.WARNING, "epibatch"):
        assert load_state(newest_checkpoint(run)) == {"iteration": 9}
    (record,) = caplog.records
    assert str(run / "checkpoints" / "000010") in record.message and why in record.message
    assert f"instead:  {run / 'checkpoints' / '000009'} is used" in record.message


@pytest.mark.parametrize(("damage", "why"), DAMAGES)
def test_a_named_one_is_refused_when_damaged(run, damage, why):
    damage(run / "checkpoints" / "000010")
    with pytest.raises(CheckpointError, match=why):
        newest_checkpoint(run / "checkpoints" / "000010")


def test_all_damaged_is_an_error_that_names_all(run):
    for iteration in (2, 9, 10):
        truncate(run / "checkpoints" / f"{iteration:06d}")
    with pytest.raises(CheckpointError, match=r"000010(.|\n)*000009(.|\n)*000002(.|\n)*restore one from a copy"):
        newest_checkpoint(run)


def test_a_run_without_checkpoints_says_so(tmp_path):
    (tmp_path / "config.yaml").write_text("algorithm: ppo\n")
    with pytest.raises(CheckpointError, match=r"found: +none"):
        newest_checkpoint(tmp_path)


def test_a_save_that_was_killed_while_it_replaced_one(run):
    """Between its two renames the old checkpoint has another name."""
    folder = run / "checkpoints"
    (folder / "000010").rename(folder / ".000010.previous")
    assert newest_checkpoint(run) == folder / "000010"
    assert load_state(newest_checkpoint(run)) == {"iteration": 10}


@pytest.mark.parametrize(
    ("keep", "left"), [(1, [10]), (2, [10, 9]), (3, [10, 9, 2]), (5, [10, 9, 2]), (None, [10, 9, 2])]
)
def test_the_oldest_go(run, keep, left):
    checkpoints = SavedCheckpoints(run / "checkpoints")
    checkpoints.prune(keep)
    assert checkpoints.iterations() == left


def test_going_on_clears_what_killed_saves_left(run):
    folder = run / "checkpoints"
    (folder / ".000011.saving-abc").mkdir()
    truncate(folder / "000010")
    (folder / "000010.damaged").mkdir()
    checkpoints = SavedCheckpoints(folder)
    assert checkpoints.discard_later(9) == [folder / "000010.damaged-1"]
    assert sorted(entry.name for entry in folder.iterdir()) == [
        "000002",
        "000009",
        "000010.damaged",
        "000010.damaged-1",
    ]
    assert checkpoints.iterations() == [9, 2]
    assert SavedCheckpoints(folder / "nowhere").discard_later(0) == []


def test_an_algorithm_is_loaded_from_a_run(tmp_path):
    algorithm = (
        PPOConfig()
        .environment("CartPole-v1")
        .training(train_batch_size=32, minibatch_size=32, num_epochs=1)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .build_algo()
    )
    checkpoints = SavedCheckpoints(tmp_path / "checkpoints")
    for _ in range(2):
        algorithm.train()
        algorithm.save_to_path(checkpoints.path_of(algorithm.training_iteration))
    algorithm.stop()
    assert read_checkpoint(tmp_path)[1]["counters"]["training_iteration"] == 2
    truncate(checkpoints.path_of(2))
    twin = PPO.from_checkpoint(tmp_path)
    assert twin.training_iteration == 1
    twin.restore_from_path(checkpoints.path_of(1))
    twin.stop()
