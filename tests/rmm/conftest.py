"""Fixtures that put RMM's map of devices back."""
from __future__ import annotations

import gc

import pytest
from rmm_if_installed import Source, rmm

import xlogmem
from xlogmem import launch
from xlogmem import runtime as runtimes


@pytest.fixture
def map_of_devices():
    """RMM's map is restored at the end."""
    before = rmm.mr.get_per_device_resource(0)
    yield
    rmm.mr.set_per_device_resource(0, before)


@pytest.fixture
def fresh(monkeypatch, map_of_devices):
    """No runtime was made for device 0, nothing was enabled, RMM's resource is a source of ours."""
    monkeypatch.setattr(runtimes, "_runtimes", [None] * runtimes.MAX_DEVICES)
    monkeypatch.setattr(xlogmem.rmm, "_wrapped", {})
    monkeypatch.setattr(launch, "explanations", [])
    gc.collect()
    source = Source()
    rmm.mr.set_per_device_resource(0, source.mr)
    return source


@pytest.fixture
def two(fresh):
    """Both devices have sources of ours, the first of which is `fresh`."""
    before, second = rmm.mr.get_per_device_resource(1), Source()
    rmm.mr.set_per_device_resource(1, second.mr)
    yield fresh, second
    xlogmem.rmm.disable()
    rmm.mr.set_per_device_resource(1, before)
