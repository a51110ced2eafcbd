"""A fixture for pytest, which only this module needs.

In the conftest.py of a service:

from delay_client.testing.pytest_fixture import delaywheel_cluster
"""

import pytest

from delay_client.testing.cluster import FakeCluster

__all__ = ["delaywheel_cluster"]


@pytest.fixture
def delaywheel_cluster() -> FakeCluster:
    """Return a cluster of the test's own."""
    return FakeCluster()
