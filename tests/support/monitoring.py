"""Reads the monitoring port of a server."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families


class Answer(NamedTuple):
    """The answer of the port."""

    status: int
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def free_port() -> int:
    """Returns a port of loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ask(port: int, path: str, method: str = "GET") -> Answer:
    """Asks the port for a path."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return Answer(response.status, response.read())
    finally:
        connection.close()


class Scrape:
    """The metrics of one scrape."""

    def __init__(self, port: int) -> None:
        answer = ask(port, "/metrics")
        assert answer.status == 200, answer
        families = list(text_string_to_metric_families(answer.body.decode()))
        self.names = {name for family in families for name in _names_of(family.name, family.type)}
        self._samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        """Returns the value of a sample; None if it does not exist."""
        return self._samples.get((name, frozenset(labels.items())))

    def labels(self, name: str) -> list[dict[str, str]]:
        """Returns the labels of all samples of a name."""
        return [dict(labels) for sample, labels in self._samples if sample == name]


def _names_of(name: str, kind: str) -> set[str]:
    if kind == "histogram":
        return {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
    return {f"{name}_total"} if kind == "counter" else {name}
