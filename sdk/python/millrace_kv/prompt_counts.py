# SPDX-License-Identifier: Apache-2.0
"""How many prompts Millrace prefilled and how many vLLM computed, and why, on vLLM's metrics: vllm:millrace_prompts_total by `outcome`."""
from dataclasses import dataclass

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats


@dataclass
class PromptCounts(KVConnectorStats):
    """`data` is {outcome: number of prompts} since the last time."""

    def reset(self):
        self.data = {}

    def aggregate(self, other):
        for outcome, number in other.data.items():
            self.data[outcome] = self.data.get(outcome, 0) + number
        return self

    def reduce(self):
        return {f"Millrace {outcome}": number for outcome, number in sorted(self.data.items())}

    def is_empty(self):
        return not self.data


class PromptMetrics(KVConnectorPromMetrics):
    def __init__(self, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._prompts = self._counter_cls(name="vllm:millrace_prompts", labelnames=[*labelnames, "outcome"],
                                          documentation="Prompts whose cache was pulled, and prompts that vLLM computed, by why")

    def observe(self, transfer_stats_data, engine_idx=0):
        for outcome, number in transfer_stats_data.items():
            self._prompts.labels(*self.per_engine_labelvalues[engine_idx], outcome).inc(number)
