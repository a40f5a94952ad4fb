"""What the connector's two sides tell each other, through vLLM."""
from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata


@dataclass
class Load:
    """What a worker needs in order to pull."""

    request_id: str
    manifest: str  # JSON
    block_ids: list[int]  # of vLLM, for the tokens below
    first_token: int
    num_tokens: int


@dataclass
class LoadMetadata(KVConnectorMetadata):
    """To all workers, each step."""

    loads: list[Load] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)


@dataclass
class LoadFailures(KVConnectorWorkerMetadata):
    """From the workers: (code, why) by request id. All ranks may have failed, mostly for the same reason: the first is kept."""

    reasons: dict[str, tuple[str, str]]

    def aggregate(self, other):
        return LoadFailures({**other.reasons, **self.reasons})
