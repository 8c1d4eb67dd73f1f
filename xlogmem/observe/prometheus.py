"""Metrics of a process's runtimes for Prometheus.

    from prometheus_client import REGISTRY, start_http_server
    from xlogmem.observe.prometheus import Collector

    REGISTRY.register(Collector())
    start_http_server(9090)

The only place that imports prometheus_client: ``pip install prometheus-client``.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import SupportsIndex

from xlogmem._base.texts import encodable
from xlogmem._base.units import parse_number
from xlogmem.observe.live.figures import RuntimeFigures, figures_of
from xlogmem.runtime import existing_runtimes

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector as BaseCollector
except ImportError as _error:
    raise ImportError(
        'xlogmem.observe.prometheus needs prometheus_client: pip install prometheus-client') from _error

__all__ = ["OTHER", "Collector"]

OTHER = "other"                             # the tags that are not among the largest
MOST_TAGS = 10_000
LABELS = ("device", "runtime")

GAUGES = {
    "xlogmem_live_bytes": "Bytes that are allocated and not freed.",
    "xlogmem_live_blocks": "Blocks that are allocated and not freed.",
    "xlogmem_pending_bytes": "Bytes that were freed, and that the host has not seen complete.",
    "xlogmem_peak_bytes": "Most bytes that were live at a time.",
}
TAG = ("xlogmem_tag_bytes", "Live bytes by tag; without a tag it is empty.")
POOL = {
    "xlogmem_pool_size_bytes": "Bytes of all chunks of a pool.",
    "xlogmem_pool_free_bytes": "Bytes of a pool that are free.",
    "xlogmem_pool_largest_free_bytes": "Bytes of the largest free span of a pool.",
    "xlogmem_pool_peak_bytes": "Most bytes that a pool has handed out at a time.",
}
COUNTERS = {
    "allocations": ("xlogmem_allocations", "Allocations."),
    "frees": ("xlogmem_frees", "Frees."),
    "uses": ("xlogmem_uses", "Launches in `use`, with what they use."),
    "waits": ("xlogmem_waits", "Waits of a stream for another that were queued on the device."),
    "host_waits": ("xlogmem_host_waits", "Waits of the host for a stream or a context."),
    "conflict_waits": ("xlogmem_conflict_waits", "Waits of the host for another use that was still open."),
    "conflicts": ("xlogmem_conflicts", "Launches that went beside a conflicting one, because they were to be counted."),
}


class Collector(BaseCollector):
    """Collects the figures of all runtimes of the process whenever a registry is scraped.

    Every metric has the labels ``device`` and ``runtime``: the number of the runtime in the process, from 1, because a
    device may have several.  Those of pools have ``pool``, its place among the pools of a runtime's stack of resources,
    from 0 at the top.

    Parameters
    ----------
    tags : int
        How many tags have a series of their own in ``xlogmem_tag_bytes``, 0 to 10,000: the largest at that moment.  The
        rest is the tag ``"other"``.  Tags that come and go make new series; keep this small.

    Raises
    ------
    TypeError, ValueError
        `tags` is not such a number.
    ImportError
        When the module is imported: prometheus_client is not installed.

    Notes
    -----
    Thread-safe.  A scrape costs a snapshot of each runtime (`DeviceRuntime.snapshot`) and makes no driver call.  To
    register it makes none either.  A counter starts at 0 with its runtime, and its series ends with it.

    Examples
    --------
    >>> from prometheus_client import CollectorRegistry, generate_latest
    >>> registry = CollectorRegistry()
    >>> registry.register(xlogmem.prometheus.Collector())
    >>> b"xlogmem_live_bytes" in generate_latest(registry)
    True
    """

    def __init__(self, *, tags: SupportsIndex = 10) -> None:
        self._tags = parse_number("tags", tags, 0, MOST_TAGS)

    def describe(self) -> Iterable[Metric]:
        """The metrics without samples: a registry looks for names that are taken."""
        return families([])

    def collect(self) -> Iterable[Metric]:
        """The metrics of this moment."""
        return families([figures_of(runtime, self._tags) for runtime in existing_runtimes()])


def families(runtimes: list[RuntimeFigures]) -> Iterator[Metric]:
    """All metrics, with the samples of these runtimes."""
    for name, text in GAUGES.items():
        gauge = GaugeMetricFamily(name, text, labels=LABELS)
        for runtime in runtimes:
            gauge.add_metric(labels_of(runtime), getattr(runtime, name.removeprefix("xlogmem_")))
        yield gauge
    by_tag = GaugeMetricFamily(*TAG, labels=(*LABELS, "tag"))
    for runtime in runtimes:
        for tag, nbytes in bytes_by_tag(runtime).items():
            by_tag.add_metric([*labels_of(runtime), tag], nbytes)
    yield by_tag
    for name, text in POOL.items():
        gauge = GaugeMetricFamily(name, text, labels=(*LABELS, "pool"))
        for runtime in runtimes:
            for place, pool in enumerate(runtime.pools):
                figure = getattr(pool, name.removeprefix("xlogmem_pool_").removesuffix("_bytes"))
                gauge.add_metric([*labels_of(runtime), str(place)], figure)
        yield gauge
    for counted, (name, text) in COUNTERS.items():
        counter = CounterMetricFamily(name, text, labels=LABELS)
        for runtime in runtimes:
            counter.add_metric(labels_of(runtime), runtime.counters[counted])
        yield counter


def labels_of(runtime: RuntimeFigures) -> list[str]:
    return [str(runtime.device), str(runtime.number)]


def bytes_by_tag(runtime: RuntimeFigures) -> dict[str, int]:
    """By label: a tag may be named as the rest is, and may be text that cannot be encoded."""
    found: dict[str, int] = {}
    for tag in runtime.tags:
        label = encodable(tag.name or "")
        found[label] = found.get(label, 0) + tag.nbytes
    if runtime.further_tags:
        found[OTHER] = found.get(OTHER, 0) + runtime.further.nbytes
    return found
