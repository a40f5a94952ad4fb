#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""POST /v1/completions as routers use it: a real coordinator, a group of two ranks, and decode nodes that get only kv_transfer_params."""
import hashlib
import http.client
import json
import os
import signal
import struct
import sys
import tempfile
import time
import unittest

from service import MODEL_DIR, PATIENCE_S, InBackground, Service, ServiceTestCase, make_prompt, tokens_for, wait_until

SHORT = make_prompt(1024, seed=1)
MEDIUM = make_prompt(tokens_for(4096), seed=2)
LONG = make_prompt(tokens_for(16384), seed=3)


def body_of(record, **fields):
    """A router's prefill request, with some fields of its client's request."""
    return {"model": "fixture", "prompt": record["prompt_token_ids"], "max_tokens": 1, "stream": False, "temperature": 0.7, "stop": ["\n"],
            "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
                                   "remote_host": None, "remote_port": None}, **fields}


def digest(record):
    tokens = record["prompt_token_ids"]
    return hashlib.sha256(struct.pack(f"<{len(tokens)}i", *tokens)).hexdigest()


class CompletionsTest(ServiceTestCase):
    """One service for all tests; none of them leaves it changed."""

    @classmethod
    def setUpClass(cls):
        cls.service = Service()
        cls.addClassCleanup(cls.service.close)
        cls.service.start_group()

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    def complete(self, record, request_id=None, **fields):
        """Returns (status, headers, body as text)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.service.http_port, timeout=PATIENCE_S)
        headers = {"Content-Type": "application/json", "Authorization": "Bearer none", **({"X-Request-Id": request_id} if request_id else {})}
        connection.request("POST", "/v1/completions", json.dumps(body_of(record, **fields)), headers)
        response = connection.getresponse()
        answer = response.status, response.headers, response.read().decode()
        connection.close()
        return answer

    def test_the_answers_parameters_lead_to_the_cache(self):
        status, headers, text = self.complete(SHORT, "router-1", millrace={"head_plan": "dense", "lease_ms": 30000, "cache": "off"})
        self.assertEqual(status, 200, text)
        answer = json.loads(text)
        self.assertEqual((headers["X-Request-Id"], answer["id"]), ("router-1", "cmpl-router-1"))
        (choice,) = answer["choices"]
        self.assertEqual(choice, {"index": 0, "text": "", "token_ids": SHORT["answer_token_ids"][:1], "logprobs": None, "finish_reason": "length"})
        self.assertEqual(answer["usage"], {"prompt_tokens": 1024, "completion_tokens": 1, "total_tokens": 1025,
                                           "prompt_tokens_details": {"cached_tokens": 0}})
        params = answer["kv_transfer_params"]["millrace"]
        status, _, state = self.service.get(f"/v1/prefill/{params['request_id']}")
        self.assertEqual((status, state["manifest"]["lease_id"]), (200, params["lease_id"]))
        self.assertEqual(params["prompt_sha256"], digest(SHORT))
        code, decoded = self.service.decode(state)
        self.assertEqual(code, 0, decoded)
        self.assertEqual(decoded["generated_token_ids"], SHORT["answer_token_ids"])
        path = f"/v1/prefill/{params['request_id']}/lease:release"
        self.assertEqual(self.service.request("POST", path, {"lease_id": params["lease_id"]})[0], 200)

    def test_it_is_the_prefill_that_the_other_route_runs(self):
        _, _, prefill = self.service.prefill(SHORT)
        _, _, text = self.complete(SHORT, logprobs=3)
        (choice,) = json.loads(text)["choices"]
        self.assertEqual(choice["token_ids"], [prefill["first_token_id"]])
        best = {f"token_id:{token['token_id']}": token["logprob"] for token in prefill["manifest"]["top_logprobs"][:3]}
        first = f"token_id:{prefill['first_token_id']}"
        self.assertEqual(choice["logprobs"]["tokens"], [first])
        self.assertEqual(list(choice["logprobs"]["top_logprobs"][0]), list(best))
        # One is written from a float, the other with as many digits as a float has.
        for name, logprob in best.items():
            self.assertAlmostEqual(choice["logprobs"]["top_logprobs"][0][name], logprob, delta=1e-6 * max(1, abs(logprob)))
        self.assertEqual(choice["logprobs"]["token_logprobs"], [choice["logprobs"]["top_logprobs"][0][first]])

    def test_a_stream_is_the_same_in_events(self):
        status, headers, text = self.complete(SHORT, stream=True, stream_options={"include_usage": True})
        self.assertEqual((status, headers["Content-Type"]), (200, "text/event-stream"))
        events = text.split("\n\n")
        self.assertEqual(events[2:], ["data: [DONE]", ""])
        token, usage = (json.loads(event.removeprefix("data: ")) for event in events[:2])
        self.assertEqual(token["choices"][0]["token_ids"], SHORT["answer_token_ids"][:1])
        self.assertEqual(token["kv_transfer_params"]["millrace"]["prompt_sha256"], digest(SHORT))
        self.assertEqual((token["usage"], usage["choices"], usage["usage"]["total_tokens"]), (None, [], 1025))
        self.assertEqual(token["id"], usage["id"])

    def test_generate_is_the_same_in_tokens(self):
        tokens = SHORT["prompt_token_ids"]
        # As llm-d's coordinator sends it.
        body = {"request_id": "generate-1", "model": "fixture", "token_ids": tokens, "stream": False, "return_token_ids": True,
                "sampling_params": {"max_tokens": 1, "extra_args": {"kv_transfer_params": {"do_remote_decode": True, "remote_host": None}}}}
        status, headers, answer = self.service.request("POST", "/inference/v1/generate", body)
        self.assertEqual((status, headers["X-Request-Id"], answer["request_id"]), (200, "generate-1", "generate-1"), answer)
        self.assertEqual(answer["choices"], [{"index": 0, "token_ids": SHORT["answer_token_ids"][:1], "logprobs": None, "finish_reason": "length"}])
        self.assertEqual((answer["prompt_token_ids"], answer["usage"]["total_tokens"]), (tokens, 1025))
        params = answer["kv_transfer_params"]
        self.assertEqual((params["prompt_token_ids"], params["millrace"]["prompt_sha256"]), (tokens, digest(SHORT)))
        code, decoded = self.service.decode(self.service.get("/v1/prefill/generate-1")[2])
        self.assertEqual((code, decoded["generated_token_ids"]), (0, SHORT["answer_token_ids"]))

    def test_progress_in_a_stream_grows_with_the_layers(self):
        _, _, text = self.complete(MEDIUM, stream=True, return_progress=True, millrace={"cache": "off"})
        events = [json.loads(event.removeprefix("data: ")) for event in text.split("\n\n") if event.startswith("data: {")]
        told, token = [event["prompt_progress"] for event in events[:-1]], events[-1]
        self.assertEqual(token["choices"][0]["token_ids"], MEDIUM["answer_token_ids"][:1])
        self.assertTrue(all(event["choices"] == [] for event in events[:-1]))
        self.assertEqual((told[0]["status"], told[0]["processed"]), ("queued", 0))
        processed = [progress["processed"] for progress in told]
        self.assertEqual(processed, sorted(processed))
        self.assertIn(len(MEDIUM["prompt_token_ids"]) * told[-1]["layers_done"] // told[-1]["num_layers"], processed)

    def test_completions_and_prefills_at_once_get_their_own_answers(self):
        prompts = [make_prompt(512 + 100 * i, seed=10 + i) for i in range(4)]
        completions = [InBackground(lambda prompt=prompt: self.complete(prompt)) for prompt in prompts]
        prefills = [InBackground(lambda prompt=prompt: self.service.prefill(prompt)) for prompt in prompts]
        for prompt, completion, prefill in zip(prompts, completions, prefills):
            status, _, text = completion.wait(PATIENCE_S)
            self.assertEqual(status, 200, text)
            answer = json.loads(text)
            self.assertEqual(answer["choices"][0]["token_ids"], prompt["answer_token_ids"][:1])
            self.assertEqual(answer["kv_transfer_params"]["millrace"]["prompt_sha256"], digest(prompt))
            self.assertEqual(prefill.wait(PATIENCE_S)[2]["first_token_id"], prompt["answer_token_ids"][0])

    def test_bad_input_is_refused_by_name(self):
        for fields, status, param, why in (({"prompt": "Tell me"}, 400, "prompt", "--tokenizer fixture=DIR"),
                                           ({"prompt": ["Tell me"]}, 400, "prompt", "--tokenizer fixture=DIR"),
                                           ({"prompt": [[1], [2]]}, 400, "prompt", "several prompts"), ({"prompt": []}, 400, "prompt", "empty"),
                                           ({"prompt": [2048]}, 400, "prompt", "vocabulary of 2048"), ({"max_tokens": 16}, 400, "max_tokens", "must be 1"),
                                           ({"n": 2}, 400, "n", "must be 1"), ({"echo": True}, 400, "echo", "must be false"),
                                           ({"suffix": "."}, 400, "suffix", "must be null"), ({"model": "gpt"}, 404, "model", "gpt"),
                                           ({"millrace": {"plan": "dense"}}, 400, "millrace.plan", "head_plan"),
                                           ({"millrace": {"head_plan": "/etc/passwd"}}, 400, "millrace.head_plan", "expected one of")):
            with self.subTest(fields=fields):
                answer_status, _, text = self.complete(SHORT, **fields)
                error = json.loads(text)["error"]
                self.assertEqual((answer_status, error["param"]), (status, param), text)
                self.assertIn(why, error["message"])
                self.assertLessEqual({"message", "type", "param", "code"}, set(error))

    def test_a_deadline_that_passes_has_its_status_in_a_stream_too(self):
        for stream in True, False:
            status, _, text = self.complete(MEDIUM, stream=stream, millrace={"deadline_ms": 1})
            self.assertEqual((status, json.loads(text)["error"]["type"]), (504, "deadline_exceeded"))

    def test_a_router_that_leaves_cancels(self):
        for stream in True, False:
            with self.subTest(stream=stream):
                request_id = f"left-{stream}"
                connection = http.client.HTTPConnection("127.0.0.1", self.service.http_port, timeout=PATIENCE_S)
                connection.request("POST", "/v1/completions", json.dumps(body_of(LONG, stream=stream)), {"X-Request-Id": request_id})
                self.service.wait_for_layers(request_id)
                connection.close()
                wait_until("the cancellation", lambda: self.service.get(f"/v1/prefill/{request_id}")[2]["status"] == "failed", 30)
                state = self.service.get(f"/v1/prefill/{request_id}")[2]
                self.assertEqual(state["error"]["type"], "cancelled")
        self.assertEqual(self.complete(SHORT)[0], 200)

    def test_models_are_listed_as_clients_of_openai_expect(self):
        _, _, models = self.service.get("/v1/models")
        (model,) = models["data"]
        self.assertEqual((models["object"], model["id"], model["object"], model["owned_by"]), ("list", "fixture", "model", "millrace"))
        self.assertLess(abs(model["created"] - time.time()), 60)
        self.assertIn(model["dtype"], ("float32", "bfloat16"))  # whichever is faster on this machine
        self.assertEqual([model[name] for name in ("quantization", "kv_cache_dtype", "num_kv_heads", "head_dim")], ["none", model["dtype"], 2, 128])

    def test_a_model_says_how_it_computes_and_what_its_pages_are(self):
        service = Service()
        self.addCleanup(service.close)
        service.start_group("--dtype", "bfloat16", "--quantization", "fp8", "--kv-cache-dtype", "fp8")
        (model,) = service.get("/v1/models")[2]["data"]
        self.assertEqual([model[name] for name in ("dtype", "quantization", "kv_cache_dtype")], ["bfloat16", "fp8", "float8_e4m3"])
        _, _, done = service.prefill(SHORT)
        self.assertEqual(done["manifest"]["layout"]["dtype"], model["kv_cache_dtype"])

    def test_calls_of_one_trace_have_ids_of_their_own(self):
        first, second = (self.complete(SHORT, "trace-1") for _ in range(2))
        self.assertEqual((first[0], first[1]["X-Request-Id"], first[1]["X-Client-Request-Id"]), (200, "trace-1", None))
        self.assertEqual((second[0], second[1]["X-Client-Request-Id"]), (200, "trace-1"), second[2])
        own = second[1]["X-Request-Id"]
        self.assertNotEqual(own, "trace-1")
        self.assertEqual(json.loads(second[2])["kv_transfer_params"]["millrace"]["request_id"], own)
        # Both caches are there, each under its id, and the log tells of both ids in one line.
        for request_id in "trace-1", own:
            self.assertEqual(self.service.get(f"/v1/prefill/{request_id}")[2]["lease"]["state"], "active")
        self.service.wait_for_log(f"{own}.*trace-1")


class UnreadTest(ServiceTestCase):
    def test_a_metric_tells_of_caches_that_nobody_has_read_from(self):
        service = Service()
        self.addCleanup(service.close)
        service.start_group()

        def unread_bytes():
            lines = [line for line in service.get("/metrics")[2].splitlines() if line.startswith("millrace_kv_unread_bytes{")]
            return float(lines[0].rpartition(" ")[2]) if lines else None
        self.assertEqual(unread_bytes() or 0, 0)
        _, _, done = service.prefill(SHORT, lease_ms=600000)
        layout = done["manifest"]["layout"]
        # K and V.
        values = 2 * 1024 * layout["num_layers"] * layout["num_kv_heads"] * layout["head_dim"]
        size = values * {"float32": 4, "bfloat16": 2}[layout["dtype"]]
        wait_until("a cache without a reader", lambda: unread_bytes() == size, PATIENCE_S)
        self.assertEqual(service.decode(done)[0], 0)
        wait_until("its reader", lambda: unread_bytes() == 0, PATIENCE_S)


class NamesTest(ServiceTestCase):
    def serve(self, *options):
        service = Service()
        self.addCleanup(service.close)
        service.start_group(*options)
        return service

    def test_a_model_has_the_name_that_an_option_gives_it(self):
        service = self.serve("--served-model-name", "org/name")
        status, _, done = service.request("POST", "/v1/prefill", {"model": "org/name", "prompt_token_ids": SHORT["prompt_token_ids"]})
        self.assertEqual((status, done["model"], done["manifest"]["model"]), (200, "org/name", "org/name"))
        (listed,) = service.get("/v1/models")[2]["data"]
        for path in "/v1/models/org/name", "/v1/models/org%2Fname":
            status, _, model = service.get(path)
            self.assertEqual((status, {**model, "created": 0}), (200, {**listed, "created": 0}))
        self.assertEqual(service.get("/v1/models/fixture")[0], 404)

    def test_a_snapshot_in_a_hugging_face_cache_has_the_name_of_its_repository(self):
        with tempfile.TemporaryDirectory(prefix="millrace-hub-") as hub:
            snapshot = os.path.join(hub, "models--org--model", "snapshots", "0123456789abcdef0123456789abcdef01234567")
            os.makedirs(snapshot)
            for name in "config.json", "model.safetensors":
                os.symlink(os.path.join(MODEL_DIR, name), os.path.join(snapshot, name))
            service = self.serve("--model", snapshot)
            self.assertEqual(service.get("/v1/models/org/model")[2]["id"], "org/model")

    def test_a_model_with_dual_chunks_says_up_to_which_length_it_is_plain(self):
        with tempfile.TemporaryDirectory(prefix="millrace-dual-") as folder:
            with open(os.path.join(MODEL_DIR, "config.json"), encoding="utf-8") as file:
                config = json.load(file)
            config["dual_chunk_attention_config"] = {"chunk_size": 512, "local_size": 256, "original_max_position_embeddings": 384}
            with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
                json.dump(config, file)
            os.symlink(os.path.join(MODEL_DIR, "model.safetensors"), os.path.join(folder, "model.safetensors"))
            service = self.serve("--model", folder, "--served-model-name", "dual")
            self.assertEqual(service.get("/v1/models/dual")[2]["max_prompt_tokens"], 384)
            status, _, refused = service.request("POST", "/v1/prefill", {"model": "dual", "prompt_token_ids": [0] * 385})
            self.assertEqual(status, 413, refused)
            self.assertIn("384", refused["error"]["message"])


class WithoutGroupsTest(ServiceTestCase):
    def test_a_router_is_told_when_to_try_again(self):
        service = Service()
        self.addCleanup(service.close)
        status, headers, body = service.request("POST", "/v1/completions", body_of(SHORT, stream=True))
        self.assertEqual((status, body["error"]["type"]), (503, "unavailable"))
        self.assertIn("Retry-After", headers)

    def test_a_router_that_hands_errors_on_gets_none(self):
        service = Service(coordinator_options=["--decline-after", "60"])
        self.addCleanup(service.close)
        for path, body in ("/v1/completions", body_of(SHORT)), ("/inference/v1/generate", {"model": "fixture", "token_ids": [0, 1]}):
            status, _, answer = service.request("POST", path, body)
            self.assertEqual((status, answer["kv_transfer_params"], answer["declined"]["type"]), (200, {"millrace": False}, "unavailable"))
            self.assertEqual(answer["choices"][0]["token_ids"], [])
        self.assertEqual(service.request("POST", "/v1/completions", body_of(SHORT, n=2))[0], 400)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    unittest.main(verbosity=2)
