"""What schemathesis cannot know from docs/openapi.yaml. It loads this as SCHEMATHESIS_HOOKS says."""

import os
import struct

import requests
import schemathesis
from hypothesis import strategies

VOCABULARY = int(os.environ["MILLRACE_VOCABULARY"])
# What conformance_test.py puts into the document for a prefill that is there.
HELD_ID, HELD_LEASE = "held", "the-lease-of-held"

# A prompt in bytes.
schemathesis.openapi.media_type(
    "application/octet-stream",
    strategies.lists(strategies.integers(0, VOCABULARY - 1), min_size=1, max_size=200).map(lambda tokens: struct.pack(f"<{len(tokens)}i", *tokens)))


def _without_fraction(value):
    if isinstance(value, dict):
        return {name: _without_fraction(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_fraction(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@schemathesis.hook
def map_body(context, body):
    """To JSON Schema 5.0 is an integer; the coordinator wants it written as 5."""
    return _without_fraction(body)


def _call(method, path, **arguments):
    return requests.request(method, os.environ["MILLRACE_URL"] + path, timeout=60, **arguments)


def _release_ids_of(case):
    """A prefill's id must not be in use; the same ones are drawn again and again."""
    for fields in case.body, case.query, case.headers:
        for name in "request_id", "X-Request-Id":
            request_id = fields.get(name) if hasattr(fields, "get") else None
            if isinstance(request_id, str) and request_id:
                _call("DELETE", "/v1/prefill/" + requests.utils.quote(request_id, safe=""))


def _put_lease_in(case):
    """A lease that can be renewed and released, in place of the document's."""
    if case.path_parameters.get("id") != HELD_ID or not isinstance(case.body, dict) or case.body.get("lease_id") != HELD_LEASE:
        return
    _call("DELETE", f"/v1/prefill/{HELD_ID}")
    done = _call("POST", "/v1/prefill", json={"model": os.environ["MILLRACE_MODEL"], "prompt_token_ids": [0], "request_id": HELD_ID})
    case.body["lease_id"] = done.json()["lease"]["lease_id"]


@schemathesis.hook
def before_call(context, case, kwargs):
    operation = case.operation.definition.raw.get("operationId")
    if operation == "prefill":
        _release_ids_of(case)
    elif operation in ("renewLease", "releaseLease"):
        _put_lease_in(case)
