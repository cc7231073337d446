"""Groups of actors: requests and answers, errors, losses, replacements, and the end of all processes."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial

import numpy as np
import pytest
from fixture_workers import Worker

from epibatch.cluster import ActorGroup
from epibatch.core.errors import ConfigError, EpibatchError, WorkerLostError


def workers(count=2, **settings):
    arguments = settings.pop("arguments", {})
    settings = {"name": "worker", "options": {"num_cpus": 1}, "max_restarts": 2, **settings}
    return ActorGroup(Worker, count=count, arguments=arguments, **settings)


@pytest.fixture(scope="module")
def group(cluster):
    made = workers()
    yield made
    made.stop()


def is_alive(pid):
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may end between the two
        return False


def gone(pids, seconds=10.0):
    end = time.monotonic() + seconds
    while any(map(is_alive, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(map(is_alive, pids))


def answer_of(group, index, method, *args):
    group.submit(index, method, *args)
    (answer,) = group.wait()
    return answer


def test_requests_are_answered_in_their_order(group):
    assert group.indexes == [1, 2] and group.call("is_one_thread") == {1: True, 2: True}
    for number in range(3):
        group.submit(2, "who", number)
        group.submit(1, "who", number, request=("request", number))
    assert group.in_flight() == 6 and group.in_flight(1) == 3
    assert group.requests(1) == [("request", number) for number in range(3)]
    answers = group.wait(at_least=6)
    assert [answer.value[::2] for answer in answers] == [(i, n) for i in (1, 2) for n in range(3)]
    assert [answer.request for answer in answers] == [("request", n) for n in range(3)] + ["who"] * 3
    assert group.wait() == [] and group.in_flight() == 0


def test_calls_leave_answers_of_other_requests_alone(group):
    group.submit(1, "who", "asked before")
    assert group.call("who", "called") == {i: (i, group.restarts_of(i), "called") for i in (1, 2)}
    assert [answer.value[2] for answer in group.wait()] == ["asked before"]


def test_what_cannot_be_sent_is_named(group):
    lock = threading.Lock()
    for ask in (partial(group.call, indexes=[1]), partial(group.submit, 1)):
        with pytest.raises(ConfigError, match=r"(?s)<lambda>.*lock at .*<lambda> > variable lock"):
            ask("work", lambda: lock)
    assert group.in_flight() == 0


def test_progress_is_told_while_a_request_runs(group):
    assert group.wait(timeout=0.0) == []
    group.submit(1, "work", 1.0)
    seen = []
    while not (answers := group.wait(timeout=0.05)):
        seen.append(group.progress([1], timeout=1.0)[1])
    assert seen == sorted(seen) and len(set(seen)) > 3
    assert answers[0].value >= seen[-1]


def test_arrays_are_read_only_views_both_ways(group):
    ref = group.put(np.zeros(100_000))
    assert not answer_of(group, 1, "is_writeable", ref).value
    array = answer_of(group, 1, "zeros", 100_000).value
    assert array.shape == (100_000,) and not array.flags.writeable


def test_errors_keep_their_class_cause_and_traceback(group):
    answer = answer_of(group, 2, "fail")
    assert isinstance(answer.error, KeyError) and answer.error.args == ("outer",) and not answer.died
    assert isinstance(answer.error.__cause__, ZeroDivisionError)
    (note,) = answer.error.__notes__
    assert note.startswith("Raised in worker 2 (process ") and note.count("Traceback") == 2 and "in fail" in note
    assert group.indexes == [1, 2]


def test_errors_that_cannot_be_sent_keep_their_text_and_flags(group):
    error = answer_of(group, 1, "fail_oddly").error
    assert type(error) is EpibatchError and str(error) == "NotSent: odd 3" and error.raised_by_environment
    assert "cannot pickle '_thread.lock'" in str(answer_of(group, 1, "lock").error)
    assert answer_of(group, 1, "who").error is None


def test_a_dead_process_answers_all_its_requests_and_is_replaced(group):
    pid, restarts = group.pids()[1], group.restarts_of(1)
    group.submit(1, "work", 30.0, request="first")
    group.submit(1, "who", request="second")
    group.submit(2, "work", 0.5)
    os.kill(pid, signal.SIGKILL)
    answers = group.wait(at_least=3)
    assert [(answer.index, answer.request, answer.died) for answer in answers] == [
        (1, "first", True),
        (1, "second", True),
        (2, "work", False),
    ]
    assert str(pid) in str(answers[0].error) and group.indexes == [2]
    with pytest.raises(WorkerLostError, match="worker 1"):
        group.submit(1, "who")
    assert group.replace(1) and group.indexes == [1, 2]
    assert answer_of(group, 1, "who").value == (1, restarts + 1)
    assert group.pids()[1] != pid and group.num_restarts == restarts + 1


def test_replacing_one_that_hangs_forgets_its_requests_and_the_budget_ends(group):
    pid = group.pids()[2]
    group.submit(2, "work", 60.0)
    assert group.replace(2) and group.in_flight() == 0 and gone([pid])
    assert group.progress([2], timeout=1.0)[2] < 0 or group.pids()
    assert answer_of(group, 2, "who").value == (2, 1)
    answer = answer_of(group, 2, "leave")
    assert answer.died and "exit code 3" in str(answer.error)
    assert group.call("who") == {1: (1, group.restarts_of(1))}
    assert group.replace(2) and group.replace(2) is False and group.indexes == [1]


def test_a_failing_constructor_is_raised_once_and_leaves_nothing(cluster):
    with pytest.raises(LookupError, match=r"no worker [23]") as raised:
        workers(3, arguments={"failing": (2, 3)}, options={"num_cpus": 0})
    assert str(raised.value.__notes__).count("Traceback") == 1
    import ray

    expected = ray.cluster_resources()["CPU"] - 1  # of the group that lives
    end = time.monotonic() + 10
    while ray.available_resources().get("CPU") != expected and time.monotonic() < end:  # Ray tells it a little later
        time.sleep(0.1)
    assert ray.available_resources().get("CPU") == expected


def test_no_room_is_a_named_error(cluster):
    with pytest.warns(UserWarning, match="100 asked"), pytest.raises(ConfigError, match="of 16 CPU"):
        workers(1, options={"num_cpus": 100}, start_timeout_s=1.0)
    with pytest.raises(
        ConfigError, match=r"2 nodes with .* 0 of 0 GPU free, where 1 of 1 processes have no room"
    ) as caught:
        workers(1, options={"num_cpus": 0, "num_gpus": 1}, start_timeout_s=1.0)
    assert caught.value.do.endswith("num_gpus_per_worker")
