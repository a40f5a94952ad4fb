# SPDX-License-Identifier: Apache-2.0
"""MillraceConnector lets Millrace prefill vLLM's long prompts, and pulls their KV cache into vLLM's own blocks (docs/vllm.md).

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "MillraceConnector", "kv_connector_module_path": "millrace_kv.connector",
        "kv_role": "kv_consumer", "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {"coordinator": "host:8000"}}'

vLLM creates one instance in its scheduler's process (scheduler_side.py) and one in each worker's (worker_side.py)."""
import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole, SupportsHMA
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.logger import init_logger

from ._version import VERSION
from .messages import LoadFailures, LoadMetadata
from .model_shape import ModelShape, why_left_to_vllm
from .options import Options
from .prompt_counts import PromptCounts, PromptMetrics
from .vllm_parts import why_unfit

logger = init_logger("vllm.millrace_kv")


class MillraceConnector(KVConnectorBase_V1, SupportsHMA):
    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        try:
            self.options = Options.parse(self._kv_transfer_config.kv_connector_extra_config)
        except ValueError as why:
            raise ValueError(f"kv_connector_extra_config of MillraceConnector: {why}") from None
        if why := why_unfit(MillraceConnector):
            raise RuntimeError(f"millrace-kv {VERSION} does not fit vLLM {vllm.__version__}: {why}. It is tested with vLLM 0.26, 0.29, 0.32 and 0.33")
        if not self._kv_transfer_config.is_kv_consumer:
            # Only for a consumer does vLLM ensure that blocks which a step may still write to are not loaded next.
            raise ValueError('MillraceConnector needs "kv_role": "kv_consumer"')
        # vLLM reads this after creating the connector. With vLLM's default a failed pull would fail the request.
        self._kv_transfer_config.kv_load_failure_policy = "recompute"
        self._scheduler = self._worker = None
        reason = why_left_to_vllm(vllm_config, kv_cache_config)
        if reason:
            if role == KVConnectorRole.SCHEDULER:
                logger.warning("MillraceConnector leaves all prompts to vLLM: %s", reason)
            return
        block_tokens = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
        if role == KVConnectorRole.SCHEDULER:
            from .scheduler_side import SchedulerSide
            self._scheduler = SchedulerSide(self.options, vllm_config, block_tokens)
        else:
            from .worker_side import WorkerSide
            self._worker = WorkerSide(self.options, ModelShape.of(vllm_config), block_tokens, get_tensor_model_parallel_world_size(),
                                      get_tensor_model_parallel_rank())

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config):
        """None, because pulls can write to any strides."""
        return None

    @property
    def requires_kv_delivery(self):
        return False  # nothing is passed on, whatever kv_role says

    # ---- in the scheduler process

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return self._scheduler.num_matched_tokens(request, num_computed_tokens) if self._scheduler else (0, False)

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        if self._scheduler:
            self._scheduler.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output):
        if not self._scheduler:
            return LoadMetadata()
        return self._scheduler.metadata(nothing_scheduled=scheduler_output.total_num_scheduled_tokens == 0)

    def update_connector_output(self, connector_output):
        if self._scheduler:
            failures = connector_output.kv_connector_worker_meta
            self._scheduler.failed(failures.reasons if failures else {})
            self._scheduler.received(connector_output.finished_recving or ())

    def request_finished(self, request, block_ids):
        if self._scheduler:
            self._scheduler.finished(request)
        return False, None

    def request_finished_all_groups(self, request, block_ids):
        return self.request_finished(request, block_ids)

    def get_kv_connector_stats(self):
        counts = self._scheduler.take_counts() if self._scheduler else None
        return PromptCounts(counts) if counts else None

    # ---- in a worker process

    def register_kv_caches(self, kv_caches):
        if self._worker:
            self._worker.register(kv_caches)

    def start_load_kv(self, forward_context, **kwargs):
        if self._worker:
            self._worker.start(self._get_connector_metadata())

    def get_finished(self, finished_req_ids):
        return None, (self._worker.take_finished() or None) if self._worker else None

    def get_block_ids_with_load_errors(self):
        return self._worker.take_bad_blocks() if self._worker else set()

    def build_connector_worker_meta(self):
        failures = self._worker.take_failures() if self._worker else None
        return LoadFailures(failures) if failures else None

    # Waiting for one request's layer would hold up the whole batch, so vLLM is told only of complete loads.
    def wait_for_layer_load(self, layer_name):
        pass

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        pass

    def wait_for_save(self):
        pass

    # ---- in the server's process

    @classmethod
    def build_kv_connector_stats(cls, data=None):
        return PromptCounts(data or {})

    @classmethod
    def build_prom_metrics(cls, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        return PromptMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    # ---- in both

    def shutdown(self):
        for side in self._scheduler, self._worker:
            if side:
                side.close()
