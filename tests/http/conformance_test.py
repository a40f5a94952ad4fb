#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares a live coordinator with a group of two ranks with docs/openapi.yaml.

The document's examples are read and sent, every status that can be provoked here is provoked, and schemathesis makes valid and invalid requests
from the document. Status, headers and body of every answer must be as documented, with no member that the document does not have. Exit status 77
if schemathesis cannot be fetched from PyPI (tests/support/pypi.py). To search further than a test may:

    MILLRACE_HTTP_SEED=2 MILLRACE_HTTP_EXAMPLES=1000 conformance_test.py     with the environment that CMakeLists.txt has for it
"""

import copy
import http.client
import json
import os
import subprocess
import sys
import tempfile
import unittest

import openapi_document as openapi

sys.path[:0] = [os.path.join(openapi.ROOT, "tests", "e2e")]

from service import PATIENCE_S, SLOWDOWN, InBackground, Service, ServiceTestCase, make_prompt, tokens_for  # noqa: E402

SEED = int(os.environ.get("MILLRACE_HTTP_SEED", 15))
EXAMPLES = int(os.environ.get("MILLRACE_HTTP_EXAMPLES", 100))  # requests drawn per operation, in addition to those at the bounds of each field
JSON, BINARY = "application/json", "application/octet-stream"
PREFILL = ("POST", "/v1/prefill")
FORECAST = ("POST", "/v1/prefill:forecast")
COMPLETION = ("POST", "/v1/completions")
CHAT = ("POST", "/v1/chat/completions")
GENERATE = ("POST", "/inference/v1/generate")
# Only adaptive plans take min_recall; the group's own plan is adaptive too.
PLANS = ["", "adaptive", "adaptive:0.2,0.8,16"]

CONFIG = f"""
seed = {SEED}
request-timeout = {PATIENCE_S}
continue-on-failure = true

[generation]
database = "none"
max-examples = {max(5, int(EXAMPLES / SLOWDOWN))}
no-shrink = true

[checks]
# A record outlives its DELETE, and a lease may end before it is asked for.
use_after_free.enabled = false
ensure_resource_availability.enabled = false
# 504: a deadline of a millisecond. 404: an id that does not exist.
positive_data_acceptance.expected-statuses = ["2xx", "404", "504"]
negative_data_rejection.expected-statuses = ["400", "404", "413"]
# Others are documented, but have no reason to come here.
not_a_server_error.expected-statuses = ["2xx", "4xx", "504"]
"""


def closed(node):
    """The document without room for undocumented members. The original allows them, because users may get more one day."""
    if isinstance(node, list):
        return [closed(value) for value in node]
    if not isinstance(node, dict):
        return node
    node = {name: closed(value) for name, value in node.items()}
    if node.get("type") == "object" and isinstance(node.get("properties"), dict):
        node.setdefault("additionalProperties", False)
    return node


def of_form(document, media_type, model):
    """The document for one form of a prefill, restricted to what is served here, which a document cannot say."""
    document = copy.deepcopy(document)
    schemas = document["components"]["schemas"]
    schemas["ModelName"]["enum"] = [model["id"]]
    schemas["HeadPlan"] = {"type": "string", "enum": PLANS}
    schemas["TokenIds"]["items"]["maximum"] = model["vocab_size"] - 1
    del schemas["TokenIds"]["maxItems"]  # nobody sends that many
    # There is no tokenizer here. tests/e2e/text_test.py has one, and tests/engines/chat_test.py has a chat template.
    del document["paths"]["/v1/chat/completions"]
    of_json = schemas["PrefillRequest"]
    del of_json["oneOf"], of_json["properties"]["text"], of_json["properties"]["add_special_tokens"]
    of_json["required"].append("prompt_token_ids")
    prompt = schemas["CompletionRequest"]["properties"]["prompt"]
    prompt.update(type="array", anyOf=[choice for choice in prompt["anyOf"] if "PromptText" not in json.dumps(choice)])
    for call in "renew", "release":  # client_hooks.py provides the leases
        document["paths"][f"/v1/prefill/{{id}}/lease:{call}"]["parameters"] = [
            {"name": "id", "in": "path", "required": True, "schema": {"enum": ["held"]}}]
    with_prompt = {path: document["paths"][path] for _, path in (PREFILL, FORECAST)}
    for prefill in (operations["post"] for operations in with_prompt.values()):
        prefill["requestBody"]["content"] = {media_type: prefill["requestBody"]["content"][media_type]}
        if media_type == JSON:
            prefill["parameters"] = [entry for entry in prefill["parameters"] if entry.get("in") != "query"]
        else:
            prefill["responses"]["200"].pop("links", None)
            prefill["parameters"] = [entry for entry in prefill["parameters"] if entry.get("name") != "kv_budget_tokens"]
            for entry in prefill["parameters"]:
                entry["required"] = entry.get("name") == "model"
    if media_type == BINARY:
        document["paths"] = with_prompt
        # These depend on other parameters.
        schemas["Handover"] = {"type": "string", "enum": ["at-end"]}
        schemas["Cache"] = {"type": "string", "enum": ["off", "read"]}
    return document


class ConformanceTest(ServiceTestCase):
    @classmethod
    def setUpClass(cls):
        cls.packages = openapi.packages()
        sys.path.append(cls.packages)
        cls.document = openapi.load()
        cls.closed = closed(cls.document)
        cls.service = Service()
        cls.addClassCleanup(cls.service.close)
        cls.without_groups = [(*route, cls.call(*route, body=body)) for route, body in
                              ((("GET", "/ready"), None), (PREFILL, {"model": "fixture", "prompt_token_ids": [0]}),
                               (COMPLETION, {"model": "fixture", "prompt": [0]}))]
        cls.service.start_group("--head-plan", "adaptive")
        cls.model = cls.service.get("/v1/models")[2]["data"][0]

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    @classmethod
    def call(cls, method, target, body=None, media_type=JSON, headers=None):
        """Returns (status, headers, body as bytes)."""
        connection = http.client.HTTPConnection("127.0.0.1", cls.service.http_port, timeout=PATIENCE_S)
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        connection.request(method, target, data, {"Content-Type": media_type, **(headers or {})})
        response = connection.getresponse()
        answer = response.status, response.headers, response.read()
        connection.close()
        return answer

    def assert_valid(self, schema, value, where):
        import jsonschema_rs
        try:
            jsonschema_rs.Draft202012Validator({**schema, "components": self.closed["components"]}).validate(value)
        except jsonschema_rs.ValidationError as wrong:
            self.fail(f"{where}: {wrong}")

    def assert_documented(self, method, path, answer):
        status, headers, body = answer
        responses = openapi.operations(self.closed)[method, path]["responses"]
        self.assertIn(str(status), responses, f"{method} {path}: {body}")
        response = openapi.resolve(self.closed, responses[str(status)])
        for name, header in response.get("headers", {}).items():
            self.assertTrue(name in headers or not openapi.resolve(self.closed, header).get("required"), f"{method} {path} {status}: {name}")
        self.assertIn(headers["Content-Type"], response["content"])
        if headers["Content-Type"] == JSON:
            self.assert_valid(response["content"][JSON]["schema"], json.loads(body), f"{method} {path} {status}")

    def assert_refused(self, method, path, status, *, target=None, **request):
        answer = self.call(method, target or path, **request)
        self.assertEqual(answer[0], status, answer[2])
        self.assert_documented(method, path, answer)

    def test_examples_of_responses_are_what_their_schemas_say(self):
        of_components = self.closed["components"]["responses"].items()
        of_operations = ((f"{method} {path} {status}", response) for (method, path), operation in openapi.operations(self.closed).items()
                         for status, response in operation["responses"].items())
        for where, response in [*of_components, *of_operations]:
            content = openapi.resolve(self.closed, response).get("content", {}).get(JSON, {})
            examples = [example["value"] for example in content.get("examples", {}).values()]
            for example in examples + ([content["example"]] if "example" in content else []):
                self.assert_valid(content["schema"], example, where)

    def test_examples_of_prompts_can_be_sent(self):
        for operation, ids in (PREFILL, ["doc-1", "doc-2"]), (COMPLETION, ["doc-3", "doc-4"]), (GENERATE, ["doc-6"]):
            content = openapi.operations(self.document)[operation]["requestBody"]["content"][JSON]
            self.assertEqual([example["value"]["request_id"] for example in content["examples"].values()], ids)
            for example in content["examples"].values():
                answer = self.call(*operation, body=example["value"])
                self.assertEqual(answer[0], 200, answer[2])
                self.assert_documented(*operation, answer)
                self.call("DELETE", f"/v1/prefill/{example['value']['request_id']}")

    def test_without_a_group(self):
        for method, path, answer in self.without_groups:
            self.assertEqual(answer[0], 503)
            self.assert_documented(method, path, answer)

    def test_what_is_too_large(self):
        for method, path in openapi.operations(self.document):
            target = path.replace("{id}", "r")
            self.assert_refused(method, path, 431, target=target, headers={"X-Long": "x" * 20000})
            if (method, path) not in (PREFILL, FORECAST, COMPLETION, CHAT, GENERATE):
                self.assert_refused(method, path, 413, target=target, body=b" " * 5000)
        prefill = {"model": self.model["id"], "prompt_token_ids": [0]}
        self.assert_refused(*PREFILL, 413, body={**prefill, "model": "m" * 257})
        self.assert_refused(*PREFILL, 413, body={**prefill, "prompt_token_ids": [0] * (self.model["max_prompt_tokens"] + 1)})

    def test_unknown_paths_and_methods(self):
        for method, target, status, allow in (("GET", "/v2/prefill", 404, None), ("GET", "/v1/prefill/a%2Fb", 404, None),
                                              ("PUT", "/v1/prefill/r", 405, "GET, HEAD, DELETE"), ("GET", "/v1/prefill", 405, "POST")):
            answer = self.call(method, target)
            self.assertEqual((answer[0], answer[1]["Allow"]), (status, allow))
            self.assert_valid({"$ref": "#/components/schemas/Error"}, json.loads(answer[2]), target)

    def test_head_is_get_without_a_body(self):
        for method, path in openapi.operations(self.document):
            if method == "GET":
                target = path.replace("{id}", "r")
                (status, headers, _), head = self.call("GET", target), self.call("HEAD", target)
                self.assertEqual((head[0], head[1]["Content-Type"], head[2]), (status, headers["Content-Type"], b""), path)

    def test_malformed_http(self):
        for method, path in openapi.operations(self.document):
            self.assert_refused(method, path, 400, target=path.replace("{id}", "r"), headers={"Transfer-Encoding": "nonsense"})

    def test_bytes_of_a_query_that_are_no_text(self):
        for name in openapi.body_schema(self.document, *PREFILL)["properties"]:
            for value in "%FF", "%ED%A0%80", "%C3", "a" * 39 + "%C3%A9", "%", "%00", "nan", "1e999":
                for query in f"model={self.model['id']}&{name}={value}", f"{name}{value}=1", f"{name}={value}&{'n' * 127}%C3%A9=1":
                    if "model=" not in query or name != "model":
                        answer = self.call("POST", f"/v1/prefill?{query}", body=b"\0\0\0\0", media_type=BINARY)
                        self.assertLess(answer[0], 500, query)
                        self.assert_documented(*PREFILL, answer)

    def test_a_forecast_says_what_a_prefill_would_and_leaves_nothing(self):
        prompt = make_prompt(tokens_for(1024), seed=3)
        body = self.service.prefill_body(prompt, request_id="foreseen")
        for kind, data in (JSON, body), (BINARY, b"".join(token.to_bytes(4, "little") for token in prompt["prompt_token_ids"])):
            query = "" if kind == JSON else f"?model={self.model['id']}"
            answer = self.call(*FORECAST[:1], FORECAST[1] + query, body=data, media_type=kind)
            self.assertEqual(answer[0], 200, answer[2])
            self.assert_documented(*FORECAST, answer)
            self.assertEqual(json.loads(answer[2])["num_tokens"], len(prompt["prompt_token_ids"]))
        self.assertEqual(self.service.get("/v1/prefill/foreseen")[0], 404)
        self.assert_refused(*FORECAST, 404, body={"model": "no-such", "prompt_token_ids": [0]})

    def test_unknown_models_and_ids(self):
        self.assert_refused(*PREFILL, 404, body={"model": "no-such", "prompt_token_ids": [0]})
        self.assert_refused(*COMPLETION, 404, body={"model": "no-such", "prompt": [0]})
        self.assert_refused(*GENERATE, 404, body={"model": "no-such", "token_ids": [0]})
        self.assert_refused("GET", "/v1/prefill/{id}", 404, target="/v1/prefill/no-such")
        self.assert_refused("DELETE", "/v1/prefill/{id}", 404, target="/v1/prefill/no-such")
        for call, fields in ("renew", {"lease_ms": 1}), ("release", {}):
            path = "/v1/prefill/{id}/lease:" + call
            self.assert_refused("POST", path, 404, target=path.replace("{id}", "no-such"), body={"lease_id": "l", **fields})

    def test_a_prefill_from_its_start_to_its_cancellation(self):
        prompt = make_prompt(tokens_for(4096), seed=2)
        body = self.service.prefill_body(prompt, request_id="unwanted")
        post = InBackground(lambda: self.call(*PREFILL, body=body))
        self.service.wait_for_layers("unwanted")
        for method in "GET", "DELETE", "GET":
            self.assert_documented(method, "/v1/prefill/{id}", self.call(method, "/v1/prefill/unwanted"))
        answer = post.wait(PATIENCE_S)
        self.assertEqual(answer[0], 499)
        self.assert_documented(*PREFILL, answer)

    def schemathesis(self, media_type):
        url = f"http://127.0.0.1:{self.service.http_port}"
        with tempfile.TemporaryDirectory() as directory:
            config, path = os.path.join(directory, "schemathesis.toml"), os.path.join(directory, "openapi.json")
            with open(config, "w") as file:
                file.write(CONFIG)
            with open(path, "w") as file:
                json.dump(of_form(self.closed, media_type, self.model), file)
            environment = dict(os.environ, PYTHONPATH=os.pathsep.join((self.packages, openapi.HERE)), SCHEMATHESIS_HOOKS="client_hooks",
                               MILLRACE_URL=url, MILLRACE_MODEL=self.model["id"], MILLRACE_VOCABULARY=str(self.model["vocab_size"]))
            done = subprocess.run([sys.executable, "-m", "schemathesis.cli", "--config-file", config, "run", path, "--url", url],
                                  env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=directory)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("passed", done.stdout)
        self.assertEqual(self.service.get("/ready")[0], 200)

    def test_requests_made_from_the_document_in_json(self):
        self.schemathesis(JSON)

    def test_requests_made_from_the_document_in_binary(self):
        self.schemathesis(BINARY)


if __name__ == "__main__":
    unittest.main(verbosity=2)
