# SPDX-License-Identifier: Apache-2.0
"""The messages that the connector's two sides exchange through vLLM."""
from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata


@dataclass
class Load:
    """What a worker needs to pull one cache."""

    request_id: str
    millrace_id: str  # of the prefill to follow. If it joined another's prefill, the manifest has the other's id
    manifest: str  # JSON
    block_ids: list[int]  # vLLM's blocks for the tokens below
    first_token: int
    num_tokens: int
    trace_headers: dict[str, str] = field(default_factory=dict)


@dataclass
class LoadMetadata(KVConnectorMetadata):
    """Sent to all workers at each step."""

    loads: list[Load] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)


@dataclass
class LoadFailures(KVConnectorWorkerMetadata):
    """Sent by the workers: (code, why) by request id. All ranks may have failed, mostly for the same reason, so only the first is kept."""

    reasons: dict[str, tuple[str, str]]

    def aggregate(self, other):
        return LoadFailures({**other.reasons, **self.reasons})
