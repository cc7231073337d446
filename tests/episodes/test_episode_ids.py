from __future__ import annotations

import multiprocessing
import re
import sys
from typing import Any

import pytest

from epibatch.episodes._parts.arguments import fresh_id


def test_names_are_hexadecimal_and_never_come_twice() -> None:
    names = [fresh_id() for _ in range(2000)]
    assert len(set(names)) == 2000
    assert all(re.fullmatch("[0-9a-f]{32}", name) for name in names)
    assert len({name[:8] for name in names}) == len({name[-8:] for name in names}) == 2000  # random all over


def _send(pipe: Any) -> None:
    pipe.send([fresh_id() for _ in range(300)])


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_forked_processes_do_not_use_the_names_of_their_parent() -> None:
    fresh_id()  # there are names left over now
    context = multiprocessing.get_context("fork")
    names: list[str] = []
    for _ in range(2):
        ours, theirs = context.Pipe()
        process = context.Process(target=_send, args=(theirs,))
        process.start()
        names += ours.recv()
        process.join()
    names += [fresh_id() for _ in range(300)]
    assert len(set(names)) == 900
