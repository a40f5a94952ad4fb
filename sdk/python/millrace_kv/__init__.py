# SPDX-License-Identifier: Apache-2.0
"""Pulls KV caches that Millrace has prefilled. The connector for vLLM is millrace_kv.connector, which only vLLM loads."""
from ._library import MillraceError, Pending
from ._version import VERSION as __version__
from .client import Client, Feed, Manifest, Pull, Shard
from .coordinator import Coordinator, Prefill

__all__ = ["Client", "Coordinator", "Feed", "Manifest", "MillraceError", "Pending", "Prefill", "Pull", "Shard", "__version__"]
