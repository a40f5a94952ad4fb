#!/usr/bin/env python3
"""A live coordinator with a group of two ranks against docs/openapi.yaml.

Its examples are sent, and then schemathesis makes requests from it, valid ones and others, and checks status, headers and body of every answer.
Exit status 77 where schemathesis cannot be fetched from PyPI (tests/support/pypi.py).
"""

import copy
import json
import os
import subprocess
import sys
import tempfile
import unittest

import openapi_document as openapi

sys.path[:0] = [os.path.join(openapi.ROOT, "tests", "e2e")]

from service import PATIENCE_S, SLOWDOWN, Service, ServiceTestCase  # noqa: E402

SEED = 15
EXAMPLES = int(os.environ.get("MILLRACE_HTTP_EXAMPLES", 60))  # an operation
JSON, BINARY = "application/json", "application/octet-stream"
# Only these take min_recall.
PLANS = ["adaptive", "adaptive:0.2,0.8,16"]

CONFIG = f"""
seed = {SEED}
request-timeout = {PATIENCE_S}
continue-on-failure = true

[generation]
database = "none"
max-examples = {{examples}}
no-shrink = true

[checks]
# A record outlives its DELETE.
use_after_free.enabled = false
# 504: a deadline of a millisecond. 404: an id or a lease that does not exist.
positive_data_acceptance.expected-statuses = ["2xx", "404", "504"]
negative_data_rejection.expected-statuses = ["400", "404", "413"]
# Others are documented, but have no reason to come here.
not_a_server_error.expected-statuses = ["2xx", "4xx", "504"]
"""


def closed(node):
    """Without room for members that the document does not have: for users there may be more one day."""
    if isinstance(node, list):
        return [closed(value) for value in node]
    if not isinstance(node, dict):
        return node
    node = {name: closed(value) for name, value in node.items()}
    if node.get("type") == "object" and isinstance(node.get("properties"), dict):
        node.setdefault("additionalProperties", False)
    return node


def of_form(document, media_type, model):
    """The document for one form of a prefill and for what is served here, which a document cannot say."""
    document = copy.deepcopy(document)
    schemas = document["components"]["schemas"]
    schemas["ModelName"]["enum"] = [model["id"]]
    schemas["HeadPlan"] = {"type": "string", "enum": PLANS}
    tokens = schemas["PrefillRequest"]["properties"]["prompt_token_ids"]
    tokens["items"]["maximum"] = model["vocab_size"] - 1
    del tokens["maxItems"]  # nobody sends that many
    for call in "renew", "release":  # client_hooks.py has them ready
        item = document["paths"][f"/v1/prefill/{{id}}/lease:{call}"]
        item["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": {"enum": ["held"]}}]
        fields = item["post"]["requestBody"]["content"][JSON]["schema"]["properties"]
        fields["lease_id"] = {"type": "string", "enum": ["the-lease-of-held"]}
    prefill = document["paths"]["/v1/prefill"]["post"]
    prefill["requestBody"]["content"] = {media_type: prefill["requestBody"]["content"][media_type]}
    if media_type == JSON:
        prefill["parameters"] = [entry for entry in prefill["parameters"] if entry.get("in") != "query"]
    else:
        document["paths"] = {"/v1/prefill": document["paths"]["/v1/prefill"]}
        del prefill["responses"]["200"]["links"]
        schemas["Handover"] = {"type": "string", "enum": ["at-end"]}  # streaming depends on another parameter
        for entry in prefill["parameters"]:
            entry["required"] = entry.get("name") == "model"
    return document


class ConformanceTest(ServiceTestCase):
    @classmethod
    def setUpClass(cls):
        cls.packages = openapi.packages()
        cls.document = openapi.load()
        cls.service = Service()
        cls.addClassCleanup(cls.service.close)
        cls.service.start_group("--head-plan", "adaptive")
        cls.model = cls.service.get("/v1/models")[2]["data"][0]

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    def schemathesis(self, document, examples):
        url = f"http://127.0.0.1:{self.service.http_port}"
        with tempfile.TemporaryDirectory() as directory:
            config, path = os.path.join(directory, "schemathesis.toml"), os.path.join(directory, "openapi.json")
            with open(config, "w") as file:
                file.write(CONFIG.format(examples=examples))
            with open(path, "w") as file:
                json.dump(document, file)
            environment = dict(os.environ, PYTHONPATH=os.pathsep.join((self.packages, openapi.HERE)), SCHEMATHESIS_HOOKS="client_hooks",
                               MILLRACE_URL=url, MILLRACE_MODEL=self.model["id"], MILLRACE_VOCABULARY=str(self.model["vocab_size"]))
            done = subprocess.run([sys.executable, "-m", "schemathesis.cli", "--config-file", config, "run", path, "--url", url],
                                  env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=directory)
        print(done.stdout, flush=True)
        self.assertEqual(done.returncode, 0)
        self.assertEqual(self.service.get("/ready")[0], 200)

    def test_json_form(self):
        self.schemathesis(closed(of_form(self.document, JSON, self.model)), int(EXAMPLES / SLOWDOWN))

    def test_binary_form(self):
        self.schemathesis(closed(of_form(self.document, BINARY, self.model)), int(EXAMPLES / SLOWDOWN))


if __name__ == "__main__":
    unittest.main(verbosity=2)
