"""The server's counters for Prometheus, in a separate registry."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
LABELS = ("method", "route", "status")
# Clients could send any number of other methods, and each would be kept.
METHODS = {"GET", "POST", "PATCH", "DELETE", "HEAD", "OPTIONS", "PUT"}


class Metrics:
    """Counters since the start of the server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        counter = partial(Counter, registry=self._registry)
        histogram = partial(Histogram, registry=self._registry)
        self._requests = counter("gpcache_requests", "Requests answered.", LABELS)
        time = "Time from the headers to the end of the answer."
        self._seconds = histogram("gpcache_request_seconds", time, buckets=SECONDS)
        self.turned_away = counter("gpcache_turned_away", "Requests answered by 429.")
        sizes = "Images that the encoder got at once."
        self.batches = histogram("gpcache_batch_images", sizes, buckets=SIZES)

    def request(self, method: str, route: str | None, status: int, seconds: float) -> None:
        """Count an answer; `route` is the pattern of its path, None if there is no route."""
        method = method if method in METHODS else "other"
        self._requests.labels(method, route or "other", status).inc()
        self._seconds.observe(seconds)

    def add_gauge(self, name: str, description: str, value: Callable[[], float]) -> None:
        """Add a value that is computed when the metrics are requested."""
        Gauge(name, description, registry=self._registry).set_function(value)

    def text(self) -> bytes:
        """Everything, in the text format of Prometheus."""
        return generate_latest(self._registry)
