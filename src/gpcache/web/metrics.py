"""Counters of the server in the text format of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Histogram:
    """Counts of values up to each edge, and their sum."""

    def __init__(self, edges: Iterable[float]) -> None:
        self._edges = tuple(edges)
        self._counts = [0] * (len(self._edges) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._edges, value)] += 1
        self._sum += value

    def lines(self, name: str) -> Iterator[str]:
        """The lines of one histogram."""
        total = 0
        for edge, count in zip((*map(str, self._edges), "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{edge}"}} {total}'
        yield f"{name}_sum {self._sum:g}"
        yield f"{name}_count {total}"


class Metrics:
    """What the server has done since it started; used from its event loop alone."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._seconds = Histogram(SECONDS)
        self._batches = Histogram(SIZES)
        self._turned_away = 0

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """One request was answered; `route` is the pattern, as names have no end."""
        self._requests[method, route, status] += 1
        self._seconds.add(seconds)

    def batch(self, size: int) -> None:
        """The encoder got a batch."""
        self._batches.add(size)

    def turned_away(self) -> None:
        """A request found no place."""
        self._turned_away += 1

    def text(self, gauges: dict[str, tuple[str, float]]) -> str:
        """Everything, and gauges as {name: (help, value)}."""
        lines = [
            "# HELP gpcache_requests_total Requests answered.",
            "# TYPE gpcache_requests_total counter",
        ]
        for (method, route, status), count in sorted(self._requests.items()):
            labels = f'method="{method}",route="{route}",status="{status}"'
            lines.append(f"gpcache_requests_total{{{labels}}} {count}")
        lines += [
            "# HELP gpcache_turned_away_total Requests answered by 429.",
            "# TYPE gpcache_turned_away_total counter",
            f"gpcache_turned_away_total {self._turned_away}",
            "# HELP gpcache_request_seconds Time from the headers to the end of the answer.",
            "# TYPE gpcache_request_seconds histogram",
            *self._seconds.lines("gpcache_request_seconds"),
            "# HELP gpcache_batch_images Images that the encoder got at once.",
            "# TYPE gpcache_batch_images histogram",
            *self._batches.lines("gpcache_batch_images"),
        ]
        for name, (told, value) in gauges.items():
            lines += [f"# HELP {name} {told}", f"# TYPE {name} gauge", f"{name} {value:g}"]
        return "\n".join(lines) + "\n"
