# SPDX-License-Identifier: Apache-2.0
"""Receives traces by OTLP over HTTP in JSON, and keeps their spans in memory. Standard library only."""
import http.server
import json
import threading
from dataclasses import dataclass, field


def _value(value):
    """The value of an attribute: OTLP wraps it into an object that names its type."""
    (kind, inner), = value.items()
    return int(inner) if kind == "intValue" else inner


def _attributes(listed):
    return {one["key"]: _value(one["value"]) for one in listed}


@dataclass
class Span:
    trace_id: str
    span_id: str
    parent_id: str
    name: str
    service: str
    begin_s: float  # Unix time
    end_s: float
    attributes: dict
    events: list = field(default_factory=list)  # (Unix time, name, attributes)
    failed: bool = False


def read_spans(body):
    """The spans of one request's body."""
    spans = []
    for resource in json.loads(body)["resourceSpans"]:
        service = _attributes(resource["resource"]["attributes"])["service.name"]
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                events = [(int(event["timeUnixNano"]) / 1e9, event["name"], _attributes(event.get("attributes", []))) for event in span.get("events", [])]
                spans.append(Span(span["traceId"], span["spanId"], span.get("parentSpanId", ""), span["name"], service,
                                  int(span["startTimeUnixNano"]) / 1e9, int(span["endTimeUnixNano"]) / 1e9, _attributes(span.get("attributes", [])),
                                  events, span.get("status", {}).get("code") == 2))
    return spans


class TraceReceiver:
    """Listens on 127.0.0.1. port 0: any free one."""

    def __init__(self, port=0):
        self._changed = threading.Condition()
        self._spans = []
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path != "/v1/traces" or self.headers["Content-Type"] != "application/json":
                    return self._answer(415)
                try:
                    receiver._take(read_spans(body))
                except (ValueError, KeyError, TypeError):
                    return self._answer(400)
                return self._answer(200)

            def _answer(self, status):
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def _take(self, spans):
        with self._changed:
            self._spans += spans
            self._changed.notify_all()

    def traces(self):
        """The spans of each trace, the first trace first."""
        with self._changed:
            traces = {}
            for span in self._spans:
                traces.setdefault(span.trace_id, []).append(span)
            return list(traces.values())

    def wait_for(self, condition, timeout_s):
        """The first true value of condition(spans of all traces), or None if there is none in time."""
        with self._changed:
            self._changed.wait_for(lambda: condition(self._spans), timeout_s)
            return condition(self._spans) or None

    def close(self):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
