"""The server's counters for Prometheus, in a registry of their own."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
# Clients can invent any number of others, and each label would be kept for ever.
METHODS = {"GET", "POST", "PATCH", "DELETE", "HEAD", "OPTIONS", "PUT"}


class Metrics:
    """What the server has done since it started."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "gpcache_requests",
            "Requests answered.",
            ["method", "route", "status"],
            registry=self._registry,
        )
        self._turned_away = Counter(
            "gpcache_turned_away", "Requests answered by 429.", registry=self._registry
        )
        self._seconds = Histogram(
            "gpcache_request_seconds",
            "Time from the headers to the end of the answer.",
            buckets=SECONDS,
            registry=self._registry,
        )
        self._batches = Histogram(
            "gpcache_batch_images",
            "Images that the encoder got at once.",
            buckets=SIZES,
            registry=self._registry,
        )

    def request(self, method: str, route: str | None, status: int, seconds: float) -> None:
        """Count an answer; `route` is the pattern of its path, None where no route was found."""
        method = method if method in METHODS else "other"
        self._requests.labels(method, route or "other", status).inc()
        self._seconds.observe(seconds)

    def batch(self, size: int) -> None:
        """Count a batch of the encoder."""
        self._batches.observe(size)

    def turned_away(self) -> None:
        """Count a request that found no place."""
        self._turned_away.inc()

    def add_gauge(self, name: str, description: str, value: Callable[[], float]) -> None:
        """Show a value that is asked for when the metrics are."""
        Gauge(name, description, registry=self._registry).set_function(value)

    def text(self) -> bytes:
        """Everything, in the text format of Prometheus."""
        return generate_latest(self._registry)
