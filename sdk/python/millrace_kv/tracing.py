# SPDX-License-Identifier: Apache-2.0
"""The connector's part of the traces of vLLM's requests.

vLLM sets OpenTelemetry up in all of its processes if it has --otlp-traces-endpoint; it passes `traceparent` on in `Request.trace_headers`. Without
OpenTelemetry nothing is recorded."""
try:
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    trace = None

_HEADERS = ("traceparent", "tracestate")


def trace_headers(request):
    """The headers that make a call a part of the request's trace; {} if it has none."""
    given = getattr(request, "trace_headers", None) or {}
    return {name: given[name] for name in _HEADERS if name in given}


def record_pull(headers, began_ns, ended_ns, attributes, failure=None):
    """Records a pull as a part of the trace that the headers name. `failure`: its code."""
    if trace is None or not headers:
        return
    context = TraceContextTextMapPropagator().extract(headers)
    span = trace.get_tracer("millrace_kv").start_span("millrace pull", context=context, start_time=began_ns, attributes=attributes)
    if failure:
        span.set_attribute("error.type", failure)
        span.set_status(trace.StatusCode.ERROR)
    span.end(ended_ns)
