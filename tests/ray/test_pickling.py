"""An error names the setting, and the part of it, that cannot be sent to another process."""

from __future__ import annotations

import functools
import threading

import pytest

from epibatch.cluster import check_picklable
from epibatch.core.errors import ConfigError


class Holder:
    def __init__(self, part):
        self.name, self.part = "holder", part

    def method(self):
        return self.part


LOCK = threading.Lock()


def uses_global(config):
    return LOCK


def with_default(config, lock=LOCK):
    return lock


def closed_over(part):
    return lambda config: part


def test_what_can_be_sent_passes():
    check_picklable({"a": closed_over(3), "b": Holder([1]), "c": {"d": (min, functools.partial(max, 1))}})


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (LOCK, "lock at environment.env "),
        (closed_over(LOCK), "lock at environment.env > variable part "),
        (closed_over({"files": [1, LOCK]}), r"lock at environment.env > variable part > \['files'\] > \[1\] "),
        (functools.partial(max, LOCK), r"lock at environment.env > arguments > \[0\] "),
        (Holder(LOCK).method, "lock at environment.env > object > part "),
        (with_default, "lock at environment.env > default "),
    ],
)
def test_the_smallest_part_is_named(value, path):
    uses_global.__module__ = "__main__"  # functions of a script are sent with the globals that they use
    with_default.__module__ = "__main__"
    with pytest.raises(ConfigError, match=f"found: +{path}") as raised:
        check_picklable({"environment.env_config": {}, "environment.env": value})
    assert raised.value.where == "environment.env"
    assert "TypeError: cannot pickle '_thread.lock' object" in raised.value.found


def test_open_files_are_named(tmp_path):
    with open(tmp_path / "log.txt", "w") as file, pytest.raises(ConfigError, match="TextIOWrapper at callbacks"):
        check_picklable({"callbacks.on_end": lambda: file.write("end")})


def test_functions_of_a_script_name_their_globals():
    uses_global.__module__ = "__main__"
    with pytest.raises(ConfigError, match="lock at env > global LOCK"):
        check_picklable({"env": uses_global})
