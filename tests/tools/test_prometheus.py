"""Metrics for Prometheus, as its own client exposes them and its own parser reads them."""
from __future__ import annotations

import os
import subprocess
import sys

import pytest
from c_table import ENVIRONMENT

pytest.importorskip("prometheus_client", reason="needs prometheus_client")

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

import xlogmem
from xlogmem import DeviceRuntime, PoolMemoryResource, StatisticsResourceAdaptor
from xlogmem.observe.prometheus import COUNTERS, Collector


class Scraped:
    """The samples of one scrape."""

    def __init__(self, tags: int = 10) -> None:
        registry = CollectorRegistry()
        registry.register(Collector(tags=tags))
        self.families = {family.name: family for family in parse(generate_latest(registry).decode())}
        self.samples = {(sample.name, tuple(sorted(sample.labels.items()))): sample.value
                        for family in self.families.values() for sample in family.samples}

    def of(self, runtime: DeviceRuntime, name: str, **labels: str) -> float | None:
        labels |= {"device": "0", "runtime": str(runtime._number)}
        return self.samples.get((name, tuple(sorted(labels.items()))))

    def tags(self, runtime: DeviceRuntime) -> dict[str, float]:
        number = str(runtime._number)
        return {dict(labels)["tag"]: value for (name, labels), value in self.samples.items()
                if name == "xlogmem_tag_bytes" and dict(labels)["runtime"] == number}


def busy_runtime() -> tuple[DeviceRuntime, list[object]]:
    runtime = DeviceRuntime(resource=StatisticsResourceAdaptor(PoolMemoryResource(initial_pool_size=1 << 20)))
    stream = runtime.acquire_stream()
    kept = [runtime.allocate(1000 * number, stream, tag=f"tag {number}") for number in range(1, 6)]
    kept.append(runtime.allocate(50, stream))
    runtime.allocate(7000, stream).free()
    with xlogmem.use(runtime.default_stream, read=kept):
        pass
    return runtime, kept


def test_the_figures_are_those_of_the_snapshot():
    runtime, kept = busy_runtime()
    seen, snapshot, counters = Scraped(), runtime.snapshot(), runtime.counters()
    pool, = snapshot.pools
    assert {name: seen.of(runtime, name) for name in (
        "xlogmem_live_bytes", "xlogmem_live_blocks", "xlogmem_pending_bytes", "xlogmem_peak_bytes")} == {
        "xlogmem_live_bytes": snapshot.live_bytes, "xlogmem_live_blocks": snapshot.live_blocks,
        "xlogmem_pending_bytes": snapshot.pending_bytes, "xlogmem_peak_bytes": snapshot.peak_bytes}
    assert [seen.of(runtime, f"xlogmem_pool_{name}_bytes", pool="0") for name in (
        "size", "free", "largest_free", "peak")] == [
        pool[name] for name in ("pool_size", "free_bytes", "largest_free_bytes", "peak_bytes")]
    assert seen.tags(runtime) == {tag or "": record.nbytes for tag, record in snapshot.by_tag().items()}
    assert {name: seen.of(runtime, f"xlogmem_{name}_total") for name in COUNTERS} == {
        name: counters[name] for name in COUNTERS}
    assert (counters["allocations"], counters["waits"], snapshot.peak_bytes) == (7, 1, 22_050)
    del kept


def test_names_types_and_units():
    runtime, kept = busy_runtime()
    families = Scraped().families
    assert {name: family.type for name, family in families.items()} == {
        name: "counter" if name in {f"xlogmem_{counter}" for counter in COUNTERS} else "gauge" for name in families}
    assert len(families) == 16
    assert all(family.documentation.endswith(".") for family in families.values())
    registry = CollectorRegistry()
    registry.register(Collector())
    assert len(list(parse_openmetrics(generate_openmetrics(registry).decode()))) == 16     # which is stricter
    del kept, runtime


def test_the_largest_tags_and_the_rest():
    runtime, kept = busy_runtime()
    assert Scraped(tags=2).tags(runtime) == {"tag 5": 5000, "tag 4": 4000, "other": 6050}
    assert Scraped(tags=0).tags(runtime) == {"other": 15_050}
    del kept


def test_tags_of_any_text_are_labels():
    runtime = DeviceRuntime()
    names = ['a "quoted"\\ \n line', "\ud800", "other", "", None]
    kept = [runtime.allocate(10 + number, tag=name) for number, name in enumerate(names)]
    kept += [runtime.allocate(1, tag="small"), runtime.allocate(2, tag="few")]
    assert Scraped(tags=5).tags(runtime) == {names[0]: 10, "?": 11, "other": 12 + 3, "": 13 + 14}
    del kept


def test_every_runtime_has_its_series_for_as_long_as_it_lives():
    first, second = DeviceRuntime(), DeviceRuntime()
    kept = first.allocate(64)
    seen = Scraped()
    assert (seen.of(first, "xlogmem_live_bytes"), seen.of(second, "xlogmem_live_bytes")) == (64, 0)
    count = len(Scraped().samples)
    del second
    assert len(Scraped().samples) < count
    kept.free()


@pytest.mark.simulator
def test_neither_registering_nor_a_scrape_calls_the_driver(driver):
    runtime = DeviceRuntime()
    driver.set_policy("min")
    runtime.allocate(64).free()
    before = driver.all_calls()
    assert Scraped().of(runtime, "xlogmem_pending_bytes") == 64
    assert driver.all_calls() == before


def test_a_second_one_is_refused_by_the_registry():
    registry = CollectorRegistry()
    registry.register(Collector())
    with pytest.raises(ValueError, match="xlogmem_live_bytes"):
        registry.register(Collector())


def test_registering_takes_no_snapshot():
    kept = DeviceRuntime().allocate(64)
    assert [family.samples for family in Collector().describe()] == [[]] * 16
    kept.free()


@pytest.mark.parametrize(("tags", "error"), [(-1, ValueError), (1 << 20, ValueError), ("ten", TypeError)])
def test_bad_arguments(tags, error):
    with pytest.raises(error, match="tags must be"):
        Collector(tags=tags)


def test_without_the_client_it_says_what_to_install():
    run = subprocess.run([sys.executable, "-c", "import sys; sys.modules['prometheus_client'] = None\n"
                          "import xlogmem.observe.prometheus"], capture_output=True, text=True, timeout=100,
                         env=os.environ | ENVIRONMENT)
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1] == (
        'ImportError: xlogmem.observe.prometheus needs prometheus_client: pip install prometheus-client')
