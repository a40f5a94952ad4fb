#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One trace goes through a router, the coordinator, the ranks and a decode node. The test is the router and the collector. With TRACE_SVG it
draws that trace there."""
import json
import os
import subprocess
import sys
import time
import unittest
import uuid

from service import BIN_DIR, MODEL_DIR, PATIENCE_S, SOURCE_DIR, Service, ServiceTestCase, make_prompt, tokens_for

sys.path.insert(0, os.path.join(SOURCE_DIR, "deploy", "monitoring"))
from trace_receiver import Span, TraceReceiver  # noqa: E402
from trace_svg import draw  # noqa: E402

NUM_LAYERS = 5


class Router:
    """The trace's first span, and its calls: what a router with OpenTelemetry has."""

    def __init__(self):
        self.trace_id, self.span_id = uuid.uuid4().hex, uuid.uuid4().hex[:16]
        self._begin_s = time.time()

    def traceparent(self, sampled=True):
        return f"00-{self.trace_id}-{self.span_id}-{'01' if sampled else '00'}"

    def span(self):
        return Span(self.trace_id, self.span_id, "", "POST /v1/chat/completions", "router", self._begin_s, time.time(), {})


class TracingTest(ServiceTestCase):
    @classmethod
    def setUpClass(cls):
        cls.receiver = TraceReceiver()
        cls.addClassCleanup(cls.receiver.close)
        cls.endpoint = f"http://127.0.0.1:{cls.receiver.port}"
        cls.service = Service(["--otlp-endpoint", cls.endpoint, "--trace-sample-ratio", 0])
        cls.addClassCleanup(cls.service.close)
        cls.service.start_group()
        cls.prompt = make_prompt(tokens_for(2048), seed=1)

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    def run_program(self, name, *options, traceparent, stdin=None):
        done = subprocess.run([os.path.join(BIN_DIR, name), *options], capture_output=True, timeout=PATIENCE_S, text=True, input=stdin,
                              env={**os.environ, "TRACEPARENT": traceparent})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def prefill(self, traceparent):
        path = os.path.join(self.service.directory.name, "prompt.json")
        with open(path, "w") as file:
            json.dump(self.prompt["prompt_token_ids"], file)
        return self.run_program("millrace-client", "--server", f"127.0.0.1:{self.service.http_port}", "prefill", "--prompt", path,
                                "--model", "fixture", "--cache", "off", traceparent=traceparent)

    def spans_of(self, trace_id, names):
        """The trace's spans by name, once all of these have come."""
        def complete(spans):
            of_trace = {span.name: span for span in spans if span.trace_id == trace_id}
            return of_trace if set(names) <= set(of_trace) else None
        found = self.receiver.wait_for(complete, PATIENCE_S)
        self.assertIsNotNone(found, [span.name for spans in self.receiver.traces() for span in spans])
        return found

    def test_a_trace_goes_from_the_router_to_the_decode_node(self):
        router = Router()
        response = self.prefill(router.traceparent())
        path = os.path.join(self.service.directory.name, "response.json")
        with open(path, "w") as file:
            file.write(response)
        self.run_program("millrace-decode", "--manifest", path, "--model", MODEL_DIR, "--max-tokens", "4", "--otlp-endpoint", self.endpoint,
                         traceparent=router.traceparent())
        answer = json.loads(response)
        lease = {"lease_id": answer["manifest"]["lease_id"]}
        self.assertEqual(self.service.request("POST", f"/v1/prefill/{answer['request_id']}/lease:release", lease)[0], 200)
        ours = "POST /v1/prefill", "queue", "prefill", "hand-over"
        ranks = "start", "layers", "tail", "close"
        decode = "decode", "pull", "generate"
        spans = self.spans_of(router.trace_id, (*ours, *ranks, *decode))
        self.assertEqual(set(spans), {*ours, *ranks, *decode})
        for names, service in (ours, "millrace-coordinator"), (ranks, "millrace-worker"), (decode, "millrace-decode"):
            self.assertEqual({spans[name].service for name in names}, {service})
        parents = {"POST /v1/prefill": router.span_id, "decode": router.span_id,
                   **dict.fromkeys(("queue", "prefill", "hand-over"), spans["POST /v1/prefill"].span_id),
                   **dict.fromkeys(ranks, spans["prefill"].span_id), **dict.fromkeys(("pull", "generate"), spans["decode"].span_id)}
        self.assertEqual({name: span.parent_id for name, span in spans.items()}, parents)
        self.assertEqual([attributes["millrace.layer"] for _, _, attributes in spans["prefill"].events], list(range(NUM_LAYERS)))
        self.assertEqual(spans["pull"].attributes["millrace.pulled_bytes"], sum(int(tier["bytes"]) for tier in answer["manifest"]["tiers"]))
        self.assertEqual(spans["POST /v1/prefill"].attributes["gen_ai.usage.input_tokens"], len(self.prompt["prompt_token_ids"]))
        self.assertLessEqual(spans["hand-over"].begin_s, spans["pull"].begin_s)
        self.assertLessEqual(spans["pull"].end_s, spans["hand-over"].end_s)
        for end in "done on group", "done in":
            self.service.wait_for_log(f"request {answer['request_id']}: .*{end} .*, trace {router.trace_id}$")
        picture = draw([router.span(), *spans.values()])
        for name in ("router", *spans):
            self.assertIn(f">{name}</text>", picture)
        if "TRACE_SVG" in os.environ:
            with open(os.environ["TRACE_SVG"], "w") as file:
                file.write(picture)

    def test_what_the_router_does_not_sample_is_in_no_trace(self):
        unsampled, sampled = Router(), Router()
        self.prefill(unsampled.traceparent(sampled=False))
        status, _, response = self.service.prefill(self.prompt)  # without a trace; the ratio is 0
        self.assertEqual(status, 200, response)
        self.assertNotIn("trace", self.service.wait_for_log(f"request {response['request_id']}: .*done in"))
        self.prefill(sampled.traceparent())
        self.spans_of(sampled.trace_id, ["POST /v1/prefill"])  # those of the others would have come before
        traces = {spans[0].trace_id for spans in self.receiver.traces()}
        self.assertNotIn(unsampled.trace_id, traces)
        self.assertEqual(len([spans for spans in self.receiver.traces() if len(spans) > 0 and spans[0].trace_id == sampled.trace_id]), 1)
        self.assertLessEqual(len(traces), 2)  # this one, and that of the other test


if __name__ == "__main__":
    unittest.main(verbosity=2)
