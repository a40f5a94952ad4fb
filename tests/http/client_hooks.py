# SPDX-License-Identifier: Apache-2.0
"""What schemathesis cannot know from docs/openapi.yaml. It loads this file because SCHEMATHESIS_HOOKS names it."""

import os
import struct

import requests
import schemathesis
from hypothesis import strategies

VOCABULARY = int(os.environ["MILLRACE_VOCABULARY"])
HELD_ID = "held"  # the id that conformance_test.py puts into the document for an existing prefill

# A prompt as bytes.
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
    """Writes 5.0 as 5: JSON Schema takes 5.0 for an integer, the coordinator does not."""
    return _without_fraction(body)


def _call(method, path, **arguments):
    return requests.request(method, os.environ["MILLRACE_URL"] + path, timeout=60, **arguments)


def _release_ids_of(case):
    """Frees the ids of a case: a prefill's id must not be in use, and the same ids are drawn again and again."""
    for fields in case.body, case.query, case.headers:
        for name in "request_id", "X-Request-Id":
            request_id = fields.get(name) if hasattr(fields, "get") else None
            if isinstance(request_id, str) and request_id:
                _call("DELETE", "/v1/prefill/" + requests.utils.quote(request_id, safe=""))


def _put_lease_in(case):
    """Replaces an invented lease by one that can be renewed and released."""
    if not isinstance(case.body, dict) or not isinstance(case.body.get("lease_id"), str):
        return
    path = f"/v1/prefill/{case.path_parameters.get('id')}"
    if case.path_parameters.get("id") == HELD_ID:
        _call("DELETE", path)
        _call("POST", "/v1/prefill", json={"model": os.environ["MILLRACE_MODEL"], "prompt_token_ids": [0], "request_id": HELD_ID})
    state = _call("GET", path).json()
    if "lease" in state:
        case.body["lease_id"] = state["lease"]["lease_id"]


@schemathesis.hook
def before_call(context, case, kwargs):
    operation = case.operation.definition.raw.get("operationId")
    if operation in ("prefill", "createCompletion", "generate"):
        _release_ids_of(case)
    elif operation in ("renewLease", "releaseLease"):
        _put_lease_in(case)
