#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares docs/openapi.yaml with the tables of the code, in both directions: anything that only one of them has is a failure.

    document_test.py build/release/bin/list_http_interface VERSION
"""

import json
import subprocess
import sys
import unittest

import openapi_document as openapi

PREFILL = ("POST", "/v1/prefill")
FORECAST = ("POST", "/v1/prefill:forecast")
COMPLETION = ("POST", "/v1/completions")
CHAT = ("POST", "/v1/chat/completions")
GENERATE = ("POST", "/inference/v1/generate")
LEASE = "/v1/prefill/{id}/lease:"


def null_members(node, where=""):
    """Finds members that are null, which YAML makes of a comma in an unquoted description."""
    if isinstance(node, dict):
        for name, value in node.items():
            yield from [f"{where}/{name}"] if value is None and name not in ("param", "default") else null_members(value, f"{where}/{name}")
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from null_members(value, f"{where}/{i}")


class DocumentTest(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.document = openapi.load()
        cls.code = json.loads(subprocess.run([LISTER], check=True, capture_output=True, timeout=60).stdout)

    def properties(self, schema):
        return openapi.resolve(self.document, schema)["properties"]

    def types(self, schemas):
        return {name: openapi.resolve(self.document, schema).get("type") for name, schema in schemas.items()}

    def test_is_of_this_version(self):
        self.assertEqual(self.document["info"]["version"], VERSION)

    def test_has_no_member_without_a_value(self):
        self.assertEqual(list(null_members(self.document)), [])

    def test_routes(self):
        self.assertEqual(set(openapi.operations(self.document)), {(route["method"], route["path"]) for route in self.code["routes"]})

    def test_operations_have_ids_summaries_and_tags(self):
        operations = openapi.operations(self.document)
        for route, operation in operations.items():
            self.assertLessEqual({"operationId", "summary", "tags"}, set(operation), route)
        self.assertEqual(len({operation["operationId"] for operation in operations.values()}), len(operations))

    def test_fields_of_a_prefill(self):
        self.assertEqual(self.types(self.properties(openapi.body_schema(self.document, *PREFILL))), self.code["prefill_fields"])

    def test_query_of_a_prefill(self):
        in_query = {entry["name"]: entry["schema"] for entry in openapi.parameters(self.document, *PREFILL) if entry["in"] == "query"}
        of_json = self.properties(openapi.body_schema(self.document, *PREFILL))
        self.assertEqual(in_query, {name: schema for name, schema in of_json.items() if name not in ("prompt_token_ids", "text")})

    def test_a_forecast_takes_what_a_prefill_takes(self):
        operations = openapi.operations(self.document)
        for part in "parameters", "requestBody":
            self.assertEqual(operations[FORECAST][part], operations[PREFILL][part])

    def type_or_value(self, schema):
        """The type or the only value of a schema, apart from null."""
        schema = openapi.resolve(self.document, schema)
        choices = schema.get("enum", schema.get("type"))
        if not isinstance(choices, list):
            return None if choices == "null" else choices
        kinds = [choice for choice in choices if choice not in (None, "null")]
        return kinds[0] if len(kinds) == 1 else kinds

    def test_fields_of_a_completion(self):
        properties = self.properties(openapi.body_schema(self.document, *COMPLETION))
        self.assertEqual({name: self.type_or_value(schema) for name, schema in properties.items()}, self.code["completion_fields"])
        of_millrace = properties["millrace"]["properties"]
        self.assertEqual(self.types(of_millrace), self.code["millrace_fields"])
        of_prefill = self.properties(openapi.body_schema(self.document, *PREFILL))
        for name, schema in of_millrace.items():
            if name != "decline_after_ms":
                self.assertEqual(schema, of_prefill[name])

    def test_fields_of_a_chat(self):
        properties = self.properties(openapi.body_schema(self.document, *CHAT))
        self.assertEqual({name: self.type_or_value(schema) if {"type", "enum"} & schema.keys() or "$ref" in schema else "any"
                          for name, schema in properties.items()}, self.code["chat_fields"])
        of_completion = self.properties(openapi.body_schema(self.document, *COMPLETION))
        for name in ("model", "request_id", "stream", "stream_options", "millrace", "max_tokens"):
            self.assertEqual(properties[name], of_completion[name])

    def test_fields_of_a_generate(self):
        properties = self.properties(openapi.body_schema(self.document, *GENERATE))
        self.assertEqual({name: self.type_or_value(schema) for name, schema in properties.items()}, self.code["generate_fields"])
        of_sampling = properties["sampling_params"]["properties"]
        self.assertEqual({name: self.type_or_value(schema) for name, schema in of_sampling.items()}, self.code["sampling_fields"])
        of_completion = self.properties(openapi.body_schema(self.document, *COMPLETION))
        for name in set(properties) & set(of_completion):
            self.assertEqual(properties[name], of_completion[name])

    def test_no_other_operation_has_a_query(self):
        for method, path in openapi.operations(self.document):
            if (method, path) not in (PREFILL, FORECAST):
                self.assertEqual([entry["name"] for entry in openapi.parameters(self.document, method, path) if entry["in"] == "query"], [])

    def test_fields_of_leases(self):
        for call, fields in ("renew", "renewal_fields"), ("release", "release_fields"):
            schema = openapi.body_schema(self.document, "POST", LEASE + call)
            self.assertEqual(set(schema["properties"]), set(self.code[fields]))
            self.assertEqual(set(schema["required"]), set(self.code[fields]))

    def test_errors(self):
        detail = self.properties(self.document["components"]["schemas"]["ErrorDetail"])
        self.assertEqual(set(detail["type"]["enum"]), set(self.code["errors"]))

    def test_a_prompt_can_end_with_any_error(self):
        statuses = {str(status) for status in self.code["errors"].values()}
        for operation in PREFILL, COMPLETION, CHAT, GENERATE:
            self.assertEqual(set(openapi.operations(self.document)[operation]["responses"]), statuses | {"200", "401", "415", "431"})

    def test_manifest(self):
        def fields_of(schema):
            schema = openapi.resolve(self.document, schema)
            schema = openapi.resolve(self.document, schema.get("items", schema))
            if "properties" not in schema:
                return None
            return {name: fields_of(inner) for name, inner in schema["properties"].items()}
        self.assertEqual(fields_of(self.document["components"]["schemas"]["Manifest"]), self.code["manifest"])


if __name__ == "__main__":
    LISTER, VERSION = sys.argv[1:]
    unittest.main(argv=sys.argv[:1])
