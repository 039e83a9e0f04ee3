"""Numbers for Prometheus, in its text format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from platform.errors import printable
from platform.page.sheets import Gauge

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4


class _Once(Collector):
    """Hands out what was read for one answer."""

    def __init__(self, gauges: Sequence[Gauge]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Yield every number."""
        for gauge in self._gauges:
            family = GaugeMetricFamily(gauge.name, gauge.help, labels=gauge.labels)
            for labels, value in gauge.values:
                family.add_metric([printable(label) for label in labels], value)
            yield family


def exposition(gauges: Sequence[Gauge]) -> bytes:
    """Return the numbers as Prometheus reads them."""
    registry = CollectorRegistry()
    registry.register(_Once(gauges))
    return generate_latest(registry)
