# SPDX-License-Identifier: Apache-2.0
"""The options in `kv_connector_extra_config` (docs/vllm.md)."""
from dataclasses import dataclass, fields

from ._library import TRANSPORTS

_ON_DISCONNECT = "cancel", "finish", "suspend"


@dataclass(frozen=True)
class Options:
    coordinator: str
    token_file: str = ""  # its first line is the token; "": the file that $MILLRACE_TOKEN_FILE names, or $MILLRACE_TOKEN
    ca_file: str = ""  # CAs of an https:// coordinator's certificate; "": the file that $MILLRACE_TLS_CA names, or those that the system trusts
    model: str = ""  # the coordinator's model; "": the name that vLLM serves the model under, or the coordinator's only model
    min_tokens: int = 2048  # a prompt with fewer tokens that vLLM does not have already is left to vLLM
    only_if_sooner: bool = True  # so is a longer one that vLLM should compute sooner
    head_plan: str = ""  # "": the group's
    min_recall: float = 0.0  # 0: the group's
    reuse: bool = False  # lets other requests reuse pulled blocks through vLLM's prefix cache
    transport: str = "auto"
    kv_tls_ca: str = ""  # CAs of the certificates of ranks at tls:// addresses; "": those that the system trusts
    kv_tls_cert: str = ""  # shown to ranks that ask for a certificate
    kv_tls_key: str = ""
    num_threads: int = 0  # of the library; 0: its default
    max_wait_s: float = 60.0  # how long to wait for the manifest, that is, for room at Millrace
    pull_timeout_s: float = 120.0  # from then on, for the whole cache
    retry_after_s: float = 5.0  # for how long a coordinator that could not be reached is left alone
    lease_ms: int = 120000
    on_disconnect: str = ""  # of a prefill whose connection ends early or whose deadline passes; "": the coordinator's
    connect_timeout_s: float = 2.0
    idle_ms: float = 10.0  # how long vLLM's loop rests when all requests wait for caches
    staging_bytes: int = 256 << 20  # pinned memory of a load that is not direct, on a GPU
    direct: bool = False  # on an NVIDIA GPU: whether the library copies straight into vLLM's blocks

    @staticmethod
    def parse(config):
        """Raises ValueError that names the wrong option."""
        known = {field.name: field.type for field in fields(Options)}
        unknown = sorted(set(config) - set(known))
        if unknown:
            raise ValueError(f"unknown {', '.join(unknown)}; known are {', '.join(known)}")
        if not config.get("coordinator"):
            raise ValueError('"coordinator" is missing: host:port or https://host:port of millrace-coordinator')
        values = {}
        for name, value in config.items():
            wanted = known[name]
            right = isinstance(value, (int, float) if wanted is float else wanted) and isinstance(value, bool) == (wanted is bool)
            if not right:
                raise ValueError(f"{name} is {value!r}; needed is {wanted.__name__}")
            values[name] = wanted(value)
        options = Options(**values)
        if options.transport not in TRANSPORTS:
            raise ValueError(f"transport is {options.transport!r}; known are {', '.join(TRANSPORTS)}")
        if options.on_disconnect and options.on_disconnect not in _ON_DISCONNECT:
            raise ValueError(f"on_disconnect is {options.on_disconnect!r}; known are {', '.join(_ON_DISCONNECT)}")
        for name in "max_wait_s", "pull_timeout_s", "connect_timeout_s", "lease_ms", "staging_bytes", "min_tokens":
            if getattr(options, name) <= 0:
                raise ValueError(f"{name} is {getattr(options, name)}; it must be positive")
        return options
