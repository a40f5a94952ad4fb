# SPDX-License-Identifier: Apache-2.0
"""An OpenEngine server with the role of prefill in front of a coordinator: experimental, like that interface (docs/other-engines.md).

    python -m millrace_kv.openengine --coordinator host:8000 --listen 0.0.0.0:50051

It answers GetServerInfo and Generate. A prompt's stream has one message: PrefillReady, whose session's attributes are vLLM's kv_transfer_params,
or EngineError. What is wrong with a request is its gRPC status."""
import argparse
import asyncio
import logging
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from types import SimpleNamespace

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal import enum_type_wrapper
from google.protobuf.json_format import ParseDict

from ._library import MillraceError
from ._version import VERSION
from .complaints import Complaints
from .prefill_worker import DECLINED, SHORT, PrefillWorker, add_options

logger = logging.getLogger("millrace_kv.openengine")



def _compile():
    """The messages and enumerations of openengine.proto by name. A process of its own runs the compiler: its C++ protobuf and the one that
    libmillrace_kv.so uses share symbols, and a process with both may crash at its end."""
    with tempfile.TemporaryDirectory(prefix="millrace-openengine-") as folder:
        compiled = os.path.join(folder, "set")
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I", os.path.dirname(os.path.abspath(__file__)), "--include_imports",
                        "--descriptor_set_out", compiled, "openengine.proto"], check=True)
        with open(compiled, "rb") as file:
            files = descriptor_pb2.FileDescriptorSet.FromString(file.read()).file
    pool = descriptor_pool.DescriptorPool()
    for one in files:
        pool.Add(one)
    whole = pool.FindFileByName("openengine.proto")
    return SimpleNamespace(**{name: message_factory.GetMessageClass(found) for name, found in whole.message_types_by_name.items()},
                           **{name: enum_type_wrapper.EnumTypeWrapper(found) for name, found in whole.enum_types_by_name.items()})


messages = _compile()

_REVISION = 1
_RELEASE = "4def7c5"  # the commit of ai-dynamo/openengine that has it; there are no releases
_BACKEND = "millrace"
_PAGE_TOKENS = 64
# By code: OpenEngine's, and whether the same request may succeed later or elsewhere.
_ERRORS = {"invalid_argument": ("INVALID_ARGUMENT", False), "too_large": ("INVALID_ARGUMENT", False), "unsupported": ("UNSUPPORTED_FEATURE", False),
           "exhausted": ("OVERLOADED", True), "deadline_exceeded": ("OVERLOADED", True), "unavailable": ("DRAINING", True), "peer_lost": ("DRAINING", True),
           "not_found": ("KV_SESSION_NOT_FOUND", False), "cancelled": ("CANCELLED", False)}


class Control:
    def __init__(self, worker):
        self._worker = worker
        self._instance = uuid.uuid4().hex

    async def GetServerInfo(self, request, context):
        try:
            model = await asyncio.to_thread(self._worker.model)
        except MillraceError as why:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(why))
        return messages.ServerInfo(
            engine_name="millrace", engine_version=VERSION, engine_role=messages.EngineRole.Value("ENGINE_ROLE_PREFILL"), instance_id=self._instance,
            supported_models=[self._worker.served_name or model], schema_revision=_REVISION, minimum_client_revision=_REVISION, schema_release=_RELEASE,
            kv_connector=messages.KvConnectorInfo(enabled=True, transfer_backend=_BACKEND, supports_decode_pull=True),
            capacity=messages.DeploymentCapacity(kv_block_size=_PAGE_TOKENS))


class Inference:
    def __init__(self, worker, decline):
        self._worker = worker
        self._decline = decline
        self._complaints = Complaints(logger)

    async def Generate(self, request, context):
        metadata = _metadata(context)
        if why := await self._why_refused(request, metadata):
            await context.abort(*why)
        token_ids = list(request.token_ids.ids)
        answer = messages.GenerateResponse(request_id=request.request_id,
                                           usage=messages.Usage(prompt_tokens=len(token_ids), total_tokens=len(token_ids)))
        try:
            # OpenEngine's higher priorities come first, Millrace's lower ones.
            params = await self._worker.prefill(token_ids, priority=-int(metadata.get("openengine-priority", ["0"])[0]) or None,
                                                cache_salt=request.kv.cache_salt or None,
                                                trace_headers={name: metadata[name][0] for name in ("traceparent", "tracestate") if name in metadata})
        except MillraceError as why:
            if why.code != SHORT:
                done = "left to the decode engine" if self._decline else "refused"
                self._complaints.say(why.code, f"prompt {request.request_id!r} of {len(token_ids)} tokens is {done}: {why}")
            if why.code != SHORT and not self._decline:
                name, retryable = _ERRORS.get(why.code, ("INTERNAL", False))
                answer.error.CopyFrom(messages.EngineError(code=messages.ErrorCode.Value("ERROR_CODE_" + name), message=str(why), retryable=retryable))
                yield answer
                return
            params = DECLINED
        session = answer.prefill_ready.kv_session
        session.session_id = params["millrace"]["request_id"] if params["millrace"] else uuid.uuid4().hex
        session.transfer_backend = _BACKEND
        ParseDict(params, session.attributes_struct)
        yield answer

    async def _why_refused(self, request, metadata):
        """(gRPC status, text), or None if the request can be accepted."""
        for name in "openengine-routing-key", "openengine-target-dp-rank", "openengine-priority":
            values = metadata.get(name, [])
            if len(values) > 1 or (values and name != "openengine-routing-key" and not values[0].removeprefix("-").isdecimal()):
                return grpc.StatusCode.INVALID_ARGUMENT, f"{name} is {', '.join(values)}"
        if request.HasField("kv") and request.kv.HasField("session"):
            return grpc.StatusCode.FAILED_PRECONDITION, "this server prefills; kv.session is for one that decodes"
        if not request.token_ids.ids:
            return grpc.StatusCode.INVALID_ARGUMENT, "token_ids is missing; a prompt as text is not supported"
        for name in "media", "lora_name":
            if getattr(request, name):
                return grpc.StatusCode.UNIMPLEMENTED, f"{name} is not supported"
        if request.response.return_prompt_logprobs:
            return grpc.StatusCode.UNIMPLEMENTED, "response.return_prompt_logprobs is not supported"
        try:
            model = await asyncio.to_thread(self._worker.model)
        except MillraceError as why:
            # Whatever else it is, the prefill has it too.
            return (grpc.StatusCode.NOT_FOUND, str(why)) if why.code == "not_found" and not self._decline else None
        if request.model and request.model not in (model, self._worker.served_name):
            return grpc.StatusCode.NOT_FOUND, f"no model {request.model!r}; this server has {self._worker.served_name or model!r}"
        return None


def _metadata(context):
    """{name: [values]} of the client's."""
    found = {}
    for name, value in context.invocation_metadata():
        found.setdefault(name, []).append(value)
    return found


async def serve(options, started=None):
    """Serves until SIGTERM or SIGINT. `started` is called with the port."""
    worker = PrefillWorker(options, options.served_model_name)
    server = grpc.aio.server()
    for service, name, make_handler, implementation, request in (
            ("Inference", "Generate", grpc.unary_stream_rpc_method_handler, Inference(worker, options.decline), messages.GenerateRequest),
            ("Control", "GetServerInfo", grpc.unary_unary_rpc_method_handler, Control(worker), messages.GetServerInfoRequest)):
        handler = make_handler(getattr(implementation, name), request.FromString, lambda answer: answer.SerializeToString())
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("openengine.v1." + service, {name: handler}),))
    port = server.add_insecure_port(options.listen)
    await server.start()
    logger.info("serves %s on port %d", options.coordinator, port)
    ended = asyncio.Event()
    for number in signal.SIGTERM, signal.SIGINT:
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    if started:
        started(port)
    await ended.wait()
    await server.stop(grace=options.max_wait)
    # Caches that are being pulled are completed.
    await asyncio.to_thread(worker.wait)


def main():
    parser = argparse.ArgumentParser(prog="python -m millrace_kv.openengine", description="An OpenEngine prefill server in front of a coordinator.")
    parser.add_argument("--listen", default="127.0.0.1:50051", metavar="HOST:PORT", help="without encryption or authentication (default: %(default)s)")
    parser.add_argument("--port-file", default="", help="the port is written to this file once prompts are served")
    parser.add_argument("--served-model-name", default="", help="the name in supported_models (default: the coordinator's)")
    parser.add_argument("--decline", action="store_true",
                        help="answer prompts that Millrace does not take with a session that lets the decode engine compute them, instead of an error")
    add_options(parser)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")

    def started(port):
        if options.port_file:
            with open(options.port_file + ".new", "w") as file:
                file.write(f"{port}\n")
            os.rename(options.port_file + ".new", options.port_file)

    asyncio.run(serve(options, started))


if __name__ == "__main__":
    main()
