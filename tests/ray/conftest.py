"""One cluster of two Ray nodes for all tests of a session, and nodes that a test may lose."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

STORE = 150_000_000  # bytes of each node's object store
FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.ray)
            item.add_marker(pytest.mark.filterwarnings("ignore:(?s)env runner .*; replaced, "))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """A cluster with a head and one more node, 8 cores each by name, to which this process is connected."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    quick = {"prestart_worker_first_driver": False, "health_check_period_ms": 500, "health_check_failure_threshold": 3}
    head = {"num_cpus": 8, "object_store_memory": STORE, "include_dashboard": False, "_system_config": quick}
    nodes = Cluster(initialize_head=True, head_node_args=head)
    nodes.add_node(num_cpus=8, object_store_memory=STORE)
    ray.init(address=nodes.address, logging_level=logging.ERROR, log_to_driver=False)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


@pytest.fixture
def add_node(cluster: Any) -> Iterator[Callable[..., Any]]:
    """Add a node to the cluster: `add_node(resources={"spare": 1})`; `cluster.remove_node(node)` takes it away."""
    added = []

    def add(**settings: Any) -> Any:
        added.append(cluster.add_node(**{"num_cpus": 0, "object_store_memory": STORE, **settings}))
        return added[-1]

    yield add
    for node in added:
        if node in cluster.worker_nodes:
            cluster.remove_node(node)
