"""Counts for Prometheus: requests, tokens, waiting, and what the engines say of themselves. Nothing of any content."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

SECONDS = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300)


class Metrics:
    """The counts of one server; `stats` gives what the engine of each loaded model says."""

    def __init__(self, stats: Callable[[], Mapping[str, Mapping[str, float]]]):
        self.registry = CollectorRegistry()
        self.registry.register(_Engines(stats))
        self.requests = Counter("minigrad_requests", "Requests by path and status", ["path", "status"],
                                registry=self.registry)
        self.seconds = Histogram("minigrad_request_seconds", "Time until a response has ended", ["path"],
                                 buckets=SECONDS, registry=self.registry)
        self.active = Gauge("minigrad_requests_active", "Requests that are being answered", registry=self.registry)
        self.tokens = Counter("minigrad_tokens", "Tokens of prompts, those found in a cache, and of answers", ["kind"],
                              registry=self.registry)

    def count_tokens(self, prompt: int, cached: int, completion: int) -> None:
        """Counts those of one request."""
        for kind, count in (("prompt", prompt), ("cached", cached), ("completion", completion)):
            self.tokens.labels(kind).inc(count)

    def text(self) -> bytes:
        """All of it, in Prometheus' form."""
        return generate_latest(self.registry)


class _Engines(Collector):
    def __init__(self, stats: Callable[[], Mapping[str, Mapping[str, float]]]):
        self.stats = stats

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return []

    def collect(self) -> Iterable[GaugeMetricFamily]:
        families: dict[str, GaugeMetricFamily] = {}
        for model, values in self.stats().items():
            for name, value in values.items():
                if name not in families:
                    families[name] = GaugeMetricFamily(f"minigrad_engine_{name}", f"The engine's {name}",
                                                       labels=["model"])
                families[name].add_metric([model], value)
        return families.values()
