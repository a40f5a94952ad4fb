#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""python -m millrace_kv.openengine, asked by a gRPC client: sessions that lead to caches, errors, and prompts that are declined."""
import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import unittest
from unittest import mock

from service import SOURCE_DIR, Service, ServiceTestCase, make_prompt, tokens_for, wait_until

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join(SOURCE_DIR, "sdk/python")
sys.path.insert(0, PACKAGE)
PACKAGES = ""
if not importlib.util.find_spec("grpc_tools"):
    sys.path.insert(0, os.path.join(HERE, "..", "support"))
    import pypi
    try:
        PACKAGES = pypi.install(os.path.join(HERE, "openengine-requirements.txt"), os.path.join(HERE, "..", "..", "build", "openengine-packages"))
    except pypi.Unavailable as why:
        pypi.exit_unavailable(why)
    sys.path.append(PACKAGES)
    os.environ["PYTHONPATH"] = os.pathsep.join([PACKAGES, os.environ.get("PYTHONPATH", "")])  # for the compiler that millrace_kv.openengine runs
import asyncio  # noqa: E402

import grpc  # noqa: E402
from google.protobuf.json_format import MessageToDict  # noqa: E402

from millrace_kv import Coordinator, MillraceError  # noqa: E402
from millrace_kv import openengine  # noqa: E402
from millrace_kv.coordinator import prompt_digest  # noqa: E402

messages = openengine.messages
PROMPT = make_prompt(1024, seed=1)["prompt_token_ids"]
LONG, NEXT = (make_prompt(tokens_for(16384), seed)["prompt_token_ids"] for seed in (2, 3))  # too long to run between the layers of another


def ask(token_ids=(), **fields):
    return messages.GenerateRequest(request_id="doc-1", **({"token_ids": messages.TokenIds(ids=token_ids)} if token_ids else {}), **fields)


class OpenEngineTest(ServiceTestCase):
    def setUp(self):
        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    def start(self, *options, coordinator_options=(), group=True):
        """A service, and a server in front of it with a channel to it."""
        self.service = Service(coordinator_options)
        self.stack.callback(self.service.close)
        if group:
            self.service.start_group(cp=2)
        self.coordinator = Coordinator(f"127.0.0.1:{self.service.http_port}")
        port_file = os.path.join(self.service.directory.name, "openengine-port")
        log = self.stack.enter_context(open(os.path.join(self.service.directory.name, "openengine.log"), "w"))
        self.server = subprocess.Popen(
            [sys.executable, "-m", "millrace_kv.openengine", "--coordinator", self.coordinator.address, "--listen", "127.0.0.1:0",
             "--port-file", port_file, "--min-tokens", "512", *options], stdout=log, stderr=log,
            env=dict(os.environ, PYTHONPATH=os.pathsep.join([PACKAGE, os.environ.get("PYTHONPATH", "")])))
        self.stack.callback(self.server.wait, 60)
        self.stack.callback(self.server.kill)
        wait_until("the server's port", lambda: os.path.exists(port_file), 60)
        with open(port_file) as file:
            self.channel = self.stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{int(file.read())}"))
        self.generate_call = self.channel.unary_stream("/openengine.v1.Inference/Generate", lambda ask: ask.SerializeToString(),
                                                       messages.GenerateResponse.FromString)

    def generate(self, request, metadata=()):
        """The only message of the stream."""
        (answer,) = self.generate_call(request, metadata=metadata, timeout=120)
        self.assertEqual(answer.request_id, "doc-1")
        return answer

    def status(self, request, metadata=()):
        with self.assertRaises(grpc.RpcError) as raised:
            list(self.generate_call(request, metadata=metadata, timeout=120))
        return raised.exception.code()

    def busy(self):
        running = self.coordinator.prefill("fixture", LONG)
        self.stack.callback(running.close)
        self.service.wait_for_layers(running.request_id, 0)

    def queued(self):
        return self.service.get("/overview")[2]["queued"]

    def error(self, answer):
        self.assertEqual(answer.WhichOneof("event"), "error", answer)
        return messages.ErrorCode.Name(answer.error.code).removeprefix("ERROR_CODE_"), answer.error.retryable

    def declined(self, answer):
        self.assertEqual(answer.WhichOneof("event"), "prefill_ready", answer)
        self.assertTrue(answer.prefill_ready.kv_session.session_id)
        return MessageToDict(answer.prefill_ready.kv_session.attributes_struct) == {"millrace": False}

    def test_a_session_leads_to_the_cache(self):
        self.start("--served-model-name", "served")
        get_info = self.channel.unary_unary("/openengine.v1.Control/GetServerInfo", lambda ask: ask.SerializeToString(), messages.ServerInfo.FromString)
        info = get_info(messages.GetServerInfoRequest(), timeout=60)
        self.assertEqual((info.engine_name, info.engine_role, info.schema_revision, list(info.supported_models)),
                         ("millrace", messages.EngineRole.Value("ENGINE_ROLE_PREFILL"), 1, ["served"]))
        self.assertEqual(info.kv_connector.transfer_backend, "millrace")
        answer = self.generate(ask(PROMPT, model="served"), (("openengine-priority", "-3"), ("openengine-routing-key", "a")))
        session = answer.prefill_ready.kv_session
        params = MessageToDict(session.attributes_struct)["millrace"]
        self.assertEqual((params["request_id"], session.transfer_backend), (session.session_id, "millrace"))
        self.assertEqual(params["prompt_sha256"], prompt_digest(PROMPT))
        self.assertEqual(answer.usage.prompt_tokens, len(PROMPT))
        followed = self.coordinator.follow(params["request_id"])
        self.assertTrue(followed.ended.wait(120))
        self.assertEqual(followed.result().lease_id, params["lease_id"])
        self.assertTrue(self.declined(self.generate(ask(PROMPT[:511]))))
        # The lease of a prefill that had not ended could not be released. SIGTERM comes while one runs.
        answer = self.generate(ask(LONG))
        self.server.terminate()
        self.assertEqual(self.server.wait(120), 0)
        params = MessageToDict(answer.prefill_ready.kv_session.attributes_struct)["millrace"]
        self.coordinator.release(params["request_id"], params["lease_id"])

    def test_what_is_wrong_with_a_request_is_its_status(self):
        self.start()
        code = grpc.StatusCode
        self.assertEqual(self.status(ask(prompt="text")), code.INVALID_ARGUMENT)
        self.assertEqual(self.status(ask(PROMPT, model="other")), code.NOT_FOUND)
        self.assertEqual(self.status(ask(PROMPT, kv=messages.KvOptions(session=messages.KvSessionRef(session_id="a")))), code.FAILED_PRECONDITION)
        self.assertEqual(self.status(ask(PROMPT, lora_name="a")), code.UNIMPLEMENTED)
        self.assertEqual(self.status(ask(PROMPT, media=[messages.MediaItem()])), code.UNIMPLEMENTED)
        self.assertEqual(self.status(ask(PROMPT), [("openengine-priority", "high")]), code.INVALID_ARGUMENT)
        self.assertEqual(self.status(ask(PROMPT), [("openengine-routing-key", "a")] * 2), code.INVALID_ARGUMENT)
        self.assertEqual(self.error(self.generate(ask([*PROMPT, 1 << 20]))), ("INVALID_ARGUMENT", False))

    def test_a_full_queue_is_overload_and_a_cancelled_call_leaves_it(self):
        self.start(coordinator_options=["--queue-limit", 1])
        self.busy()
        waiting = self.generate_call(ask(NEXT))
        wait_until("a prompt that waits", self.queued, 60)
        self.assertEqual(self.error(self.generate(ask(NEXT[:-1]))), ("OVERLOADED", True))
        waiting.cancel()
        wait_until("an empty queue", lambda: not self.queued(), 10)

    def test_without_groups_it_is_draining(self):
        self.start(group=False)
        self.assertEqual(self.error(self.generate(ask(PROMPT))), ("DRAINING", True))
        self.service.coordinator.kill()
        self.service.coordinator.wait(20)
        self.assertEqual(self.error(self.generate(ask(PROMPT))), ("DRAINING", True))

    def test_prompts_can_be_declined(self):
        self.start("--decline", group=False)
        self.assertTrue(self.declined(self.generate(ask(PROMPT))))
        self.service.coordinator.kill()
        self.service.coordinator.wait(20)
        self.assertTrue(self.declined(self.generate(ask(PROMPT))))


class ErrorsTest(unittest.TestCase):
    def error_of(self, code):
        worker = mock.Mock(model=lambda: "fixture", served_name="", prefill=mock.AsyncMock(side_effect=MillraceError(code, "why")))

        async def answers():
            return [answer async for answer in openengine.Inference(worker, False).Generate(ask(PROMPT), mock.Mock(invocation_metadata=lambda: ()))]
        (answer,) = asyncio.run(answers())
        return messages.ErrorCode.Name(answer.error.code)

    def test_each_code_has_one(self):
        self.assertEqual([self.error_of(code) for code in ("not_found", "too_large", "unsupported", "peer_lost", "corrupt")],
                         ["ERROR_CODE_" + name for name in ("KV_SESSION_NOT_FOUND", "INVALID_ARGUMENT", "UNSUPPORTED_FEATURE", "DRAINING", "INTERNAL")])


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    unittest.main(verbosity=2)
