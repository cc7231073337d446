"""Nodes that go away: their actors are lost with all that was not fetched, and are replaced where there is room."""

from __future__ import annotations

import pytest
from fixture_workers import Worker

from epibatch.cluster import ActorGroup
from epibatch.core.errors import ConfigError


def test_a_lost_node_loses_requests_and_values_and_the_group_moves_on(cluster, add_node):
    node = add_node(resources={"spare": 2})
    options = {"num_cpus": 0, "resources": {"spare": 1}}
    group = ActorGroup(Worker, count=2, arguments={}, name="worker", options=options, max_restarts=1)
    assert len(set(group.nodes().values())) == 1
    group.submit(1, "zeros", 1_000_000)
    group.submit(1, "work", 60.0)
    while group.progress([1], timeout=1.0)[1] == 0:  # its first value is made, and lies on its node
        pass
    cluster.remove_node(node)
    group.submit(2, "who")
    answers = group.wait(timeout=30.0, at_least=3)
    assert [(answer.index, answer.died) for answer in answers] == [(1, True), (1, True), (2, True)]
    assert group.indexes == [] and group.pids() == {}

    assert group.replace(1)
    group.submit(1, "who")
    assert group.wait(timeout=0.2) == [] and group.progress([1], timeout=1.0)[1] < 0
    add_node(resources={"spare": 2})
    assert [answer.value for answer in group.wait(timeout=60.0)] == [(1, 1)]
    group.submit(1, "work", 60.0)
    group.stop()
    assert group.indexes == [] and group.in_flight() == 0
    group.stop()


def test_one_that_does_not_start_in_time_is_lost(cluster):
    settings = {"name": "worker", "options": {"num_cpus": 0}, "max_restarts": 1, "start_timeout_s": 5.0}
    group = ActorGroup(Worker, count=1, arguments={"slow_restart_s": 60.0}, **settings)
    assert group.replace(1)
    group.submit(1, "who", request="asked")
    (answer,) = group.wait()
    assert answer.died and answer.request == "asked" and "no process that started within 5 s" in str(answer.error)
    group.stop()


@pytest.mark.parametrize(("strategy", "num_nodes"), [("SPREAD", 2), ("STRICT_PACK", 1)])
def test_placement_strategies_choose_nodes(cluster, strategy, num_nodes):
    settings = {"name": "worker", "options": {"num_cpus": 1}, "placement_strategy": strategy}
    group = ActorGroup(Worker, count=2, arguments={}, **settings)
    assert len(set(group.nodes().values())) == num_nodes
    group.stop()


def test_a_placement_that_no_cluster_has_is_a_named_error(cluster):
    settings = {"placement_strategy": "STRICT_SPREAD", "start_timeout_s": 1.0}
    with pytest.raises(ConfigError, match="room for 3 times 1 CPU with placement_strategy STRICT_SPREAD"):
        ActorGroup(Worker, count=3, arguments={}, name="worker", options={"num_cpus": 1}, **settings)
