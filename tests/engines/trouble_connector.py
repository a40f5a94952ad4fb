# SPDX-License-Identifier: Apache-2.0
"""MillraceConnector with the trouble that a test requests by files in a folder, which worker processes see as well."""
import dataclasses
import json
import os
import time

from millrace_kv.connector import MillraceConnector
from vllm.distributed.device_communicators import shm_broadcast

# vLLM's ranks read their scheduler's queue in a loop that only yields, which is right if each has a core of its own. On two cores, two such
# ranks keep a group's ranks from running for tens of seconds (Linux 6.18).
shm_broadcast.sched_yield = lambda: time.sleep(0.0005)

DIRECTORY = os.environ["MILLRACE_TROUBLE_DIRECTORY"]


def path(name):
    return os.path.join(DIRECTORY, name)


def unscaled(manifest):
    """The manifest of a cache in 8-bit floats, changed as if its scales were 1."""
    fields = json.loads(manifest)
    for name in "k_scales", "v_scales":
        fields["layout"][name] = [1.0] * len(fields["layout"][name])
    return json.dumps(fields)


class TroubleConnector(MillraceConnector):
    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        if self._worker:
            self._pull, self._worker._load = self._worker._load, self._load

    def _load(self, load, state):
        while os.path.exists(path("hold")) and not state.cancelled:
            time.sleep(0.01)
        self._worker._layers.staged = os.path.exists(path("staged"))
        if os.path.exists(path("unscaled")):
            load = dataclasses.replace(load, manifest=unscaled(load.manifest))
        stats = self._pull(load, state)
        if os.path.exists(path("zero")):
            layers = self._worker._layers
            for layer, cache in enumerate(layers._caches):
                ids = layers.kernel_ids(load.block_ids, load.num_tokens)
                cache[ids] = 0
                layers.pack(layer, ids)
        return stats
