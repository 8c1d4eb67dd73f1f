"""Workers of Dask that several tests share."""
from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def pair():
    """Two workers, without the plugin."""
    pytest.importorskip("distributed", reason="needs distributed")
    from dask_workers import Cluster, connected

    with Cluster() as cluster, connected(cluster) as client:
        yield client
