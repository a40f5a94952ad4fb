# SPDX-License-Identifier: Apache-2.0
"""A prefill worker for NVIDIA Dynamo in front of a coordinator; vLLM with MillraceConnector decodes (docs/other-engines.md).

    python -m millrace_kv.dynamo --model MODEL --coordinator host:8000

Dynamo's router sends each prompt here first, and passes what comes back on to a decode worker. It fails a request whose prefill fails. So every
prompt that Millrace does not take is declined: the decode worker computes it."""
import argparse
import asyncio
import logging

from dynamo.common.backend import EngineConfig, LLMEngine, LlmRegistration, WorkerConfig
from dynamo.common.backend.publisher import ZmqSource
from dynamo.common.backend.run import run
from dynamo.common.configuration.groups.runtime_args import DynamoRuntimeArgGroup, DynamoRuntimeConfig
from dynamo.common.constants import DisaggregationMode
from dynamo.common.utils.runtime import parse_endpoint
from dynamo.common.utils.token_ids import token_ids_to_list

from ._library import MillraceError
from .complaints import Complaints
from .prefill_worker import DECLINED, SHORT, PrefillWorker, add_options

logger = logging.getLogger("millrace_kv.dynamo")

_PAGE_TOKENS = 64  # the size of the blocks in KV cache events (docs/kv-events.md)


class MillraceEngine(LLMEngine):
    def __init__(self, options):
        self._options = options
        self._worker = PrefillWorker(options, options.served_model_name or options.model)
        self._complaints = Complaints(logger)

    @classmethod
    async def from_args(cls, argv=None):
        parser = argparse.ArgumentParser(prog="python -m millrace_kv.dynamo", description="A prefill worker for Dynamo in front of a coordinator.")
        DynamoRuntimeArgGroup().add_arguments(parser)
        add_options(parser)
        parser.add_argument("--model", required=True, help="folder or Hugging Face name of the model, for Dynamo's model card; as for the decode workers")
        parser.add_argument("--served-model-name", default="", help="as for the decode workers (default: --model)")
        parser.add_argument("--kv-events-endpoint", default="", metavar="tcp://HOST:PORT",
                            help="endpoint of the only group's KV cache events, for Dynamo's router")
        options = parser.parse_args(argv)
        runtime = DynamoRuntimeConfig.from_cli_args(options)
        runtime.validate()
        endpoint = runtime.endpoint or f"dyn://{runtime.namespace}.prefill.generate"
        runtime.namespace, runtime.component, runtime.endpoint = parse_endpoint(endpoint)
        engine = cls(options)
        return engine, WorkerConfig.from_runtime_config(runtime, model_name=options.model, served_model_name=engine._worker.served_name,
                                                        disaggregation_mode=DisaggregationMode.PREFILL)

    async def start(self, worker_id):
        try:
            logger.info("prompts go to model %r of coordinator %s", await asyncio.to_thread(self._worker.model), self._options.coordinator)
        except MillraceError as why:
            # The decode workers compute prompts until that changes.
            logger.warning("no prompts go to Millrace yet: %s", why)
        return EngineConfig(model=self._options.model, served_model_name=self._worker.served_name,
                            llm=LlmRegistration(kv_cache_block_size=_PAGE_TOKENS))

    async def kv_event_sources(self):
        return [ZmqSource(self._options.kv_events_endpoint)] if self._options.kv_events_endpoint else []

    async def generate(self, request, context):
        token_ids = token_ids_to_list(request["token_ids"])
        usage = {"prompt_tokens": len(token_ids), "completion_tokens": 0, "total_tokens": len(token_ids)}
        end = {"token_ids": [], "index": 0, "completion_usage": usage}
        prefill = asyncio.ensure_future(self._prefill(request, token_ids, context))
        stopped = asyncio.ensure_future(context.async_killed_or_stopped())
        try:
            await asyncio.wait({prefill, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if context.is_stopped():
                yield {**end, "finish_reason": "cancelled"}
                return
            params = prefill.result()
        except MillraceError as why:
            params = DECLINED
            if why.code != SHORT:
                self._complaints.say(why.code, f"prompt {context.id()} of {len(token_ids)} tokens is left to the decode worker: {why}")
        finally:
            prefill.cancel()
            stopped.cancel()
        # Any other reason than "length" would end the request here. The router wants no tokens, only the parameters.
        yield {**end, "finish_reason": "length", "disaggregated_params": {"kv_transfer_params": params}}

    async def _prefill(self, request, token_ids, context):
        routing = request.get("routing") or {}
        for name in "multi_modal_data", "prompt_embeds", "encoder_result", "lora_name":
            if request.get(name) or routing.get(name):
                raise MillraceError("unsupported", f"the request has {name}")
        # Dynamo takes higher priorities first, Millrace lower ones.
        return await self._worker.prefill(token_ids, priority=-int(routing.get("priority") or 0) or None, cache_salt=_cache_salt(request),
                                          trace_headers=context.trace_headers())

    async def is_quiescent(self):
        return self._worker.is_idle()

    async def cleanup(self):
        self._worker.close()


def _cache_salt(request):
    """Where Dynamo's vLLM worker finds it."""
    extra = request.get("extra_args")
    places = [request.get("nvext"), *([extra.get("nvext"), extra.get("vllm_tito")] if isinstance(extra, dict) else [])]
    return next((place["cache_salt"] for place in places if isinstance(place, dict) and place.get("cache_salt")), None)


def main():
    run(MillraceEngine)


if __name__ == "__main__":
    main()
