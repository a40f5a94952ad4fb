# SPDX-License-Identifier: Apache-2.0
"""The connector in a worker process of vLLM (one per tensor-parallel rank): pulls this rank's heads into vLLM's blocks.

Each load runs on a thread: it follows the events of its prefill, pulls each layer as soon as it is ready, and is reported once. The library
decodes a cache in 8-bit floats as it arrives, in vLLM's blocks or in staging memory. With the option `direct` it also brings pages to an NVIDIA
GPU: those in the device pool of a rank on this host from there, all others through pinned memory of its own."""
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import torch
from vllm.logger import init_logger

from ._library import MillraceError, Pending
from .client import Client, Manifest
from .coordinator import Coordinator
from .tracing import record_pull
from .vllm_parts import pack_blocks

logger = init_logger("vllm.millrace_kv")

# A load that waits for its layers costs one thread and nothing else.
_MAX_LOADS = 64
# How soon a thread that waits for a layer notices a failure of the events or a cancellation, should the library not report it.
_LOOK_S = 0.5


# What carried a pull's bytes: names in the log, of fields of mkv_pull_stats. Of bytes_same_host, bytes_device_pool is a part.
_WAYS = {"device pools": "bytes_device_pool", "host memory of this host": "bytes_host_pool", "TCP": "bytes_tcp", "shared memory": "bytes_shm",
         "other transports": "bytes_other"}


def bytes_by_way(stats):
    """{way: bytes} of mkv_pull_stats, without what carried nothing."""
    counts = {**stats, "bytes_host_pool": stats["bytes_same_host"] - stats["bytes_device_pool"]}
    return {way: counts[field] for way, field in _WAYS.items() if counts[field]}


class _LoadState:
    """The state of a running load: the pulls that cancel() has to end."""

    def __init__(self, blocks_free):
        self.blocks_free = blocks_free  # on a GPU: the event after everything that vLLM still does to the blocks
        self._lock = threading.Lock()
        self._cancelled = False
        self._pulls = set()

    @property
    def cancelled(self):
        return self._cancelled

    def add(self, pull):
        with self._lock:
            self._pulls.add(pull)
            if self._cancelled:
                pull.cancel()
        return pull

    def remove(self, pull):
        with self._lock:
            self._pulls.discard(pull)

    def cancel(self):
        with self._lock:
            self._cancelled = True
            for pull in self._pulls:
                pull.cancel()


class Layers:
    """vLLM's KV caches on this rank, by layer: [blocks, kv heads, tokens, 2 x head dim] of any strides, on a CPU or a GPU.

    vLLM's block ids are its scheduler's, for blocks of `block_tokens`. A kernel may divide such a block into several."""

    def __init__(self, caches, shape, num_kv_heads, block_tokens, direct):
        self._caches = caches
        self._head_dim = shape.head_dim
        for layer, cache in enumerate(caches):
            got = (tuple(cache.shape[1:2]), tuple(cache.shape[3:]), str(cache.dtype).removeprefix("torch.")) if cache.dim() == 4 else None
            if got != ((num_kv_heads,), (2 * shape.head_dim,), shape.dtype) or block_tokens % cache.shape[2]:
                raise MillraceError("unsupported", f"KV cache of layer {layer} is {tuple(cache.shape)} {cache.dtype}; known is [blocks, {num_kv_heads}, "
                                    f"tokens that divide {block_tokens}, {2 * shape.head_dim}] {shape.dtype}")
        self.kernel_tokens = caches[0].shape[2]
        self._ratio = block_tokens // self.kernel_tokens
        self.on_cpu = caches[0].device.type == "cpu"
        if direct and not self.on_cpu and (caches[0].device.type != "cuda" or torch.version.cuda is None):
            raise MillraceError("unsupported", f"\"direct\" needs an NVIDIA GPU; the KV cache is on {caches[0].device}")
        self.staged = not self.on_cpu and not direct  # whether pulls go through staging memory of this module

    def __len__(self):
        return len(self._caches)

    def kernel_ids(self, block_ids, num_tokens):
        ids = [block * self._ratio + part for block in block_ids for part in range(self._ratio)]
        return ids[:-(-num_tokens // self.kernel_tokens)]

    def views(self):
        """(K, V) of each layer."""
        return [self.halves(cache) for cache in self._caches]

    def halves(self, cache):
        return cache[..., :self._head_dim], cache[..., self._head_dim:]

    def pack(self, layer, ids):
        """Reorders blocks from the plain layout in which they were written into the one that the CPU's attention reads."""
        if self.on_cpu:
            pack_blocks(self._caches[layer], ids)

    def staging(self, num_blocks):
        return torch.empty((num_blocks, *self._caches[0].shape[1:]), dtype=self._caches[0].dtype, pin_memory=not self.on_cpu)

    def scatter(self, layer, staged, ids):
        """Copies from pinned memory into blocks on a GPU, on the current stream."""
        cache = self._caches[layer]
        index = torch.tensor(ids, dtype=torch.int64, pin_memory=not self.on_cpu).to(cache.device, non_blocking=True)
        cache.index_copy_(0, index, staged[:len(ids)].to(cache.device, non_blocking=True))

    def mark(self):
        """An event after everything that vLLM's stream still does to the blocks. Who waits for it sleeps."""
        return torch.cuda.current_stream(self.device).record_event(torch.cuda.Event(blocking=True))

    @property
    def block_bytes(self):
        cache = self._caches[0]
        return cache[0].numel() * cache.element_size()

    @property
    def device(self):
        return self._caches[0].device


class WorkerSide:
    def __init__(self, options, shape, block_tokens, tp_size, tp_rank):
        self._options = options
        self._shape = shape
        self._block_tokens = block_tokens
        self._num_heads = max(1, shape.num_kv_heads // tp_size)
        self._first_head = tp_rank * shape.num_kv_heads // tp_size
        self._coordinator = Coordinator(options.coordinator, options.connect_timeout_s, token_file=options.token_file,
                                        ca_file=options.ca_file)
        self._client = Client(options.transport, options.num_threads, tls_ca=options.kv_tls_ca, tls_cert=options.kv_tls_cert,
                              tls_key=options.kv_tls_key)
        self._threads = ThreadPoolExecutor(_MAX_LOADS, "millrace-load")
        self._lock = threading.Lock()
        self._running = {}
        self._finished = set()
        self._bad_blocks = set()
        self._failures = {}
        self._layers = None
        self._ways_told = set()  # sets of ways that the log has named

    def register(self, kv_caches):
        from vllm.model_executor.models.utils import extract_layer_index
        in_order = [cache for _, cache in sorted(kv_caches.items(), key=lambda item: extract_layer_index(item[0]))]
        if len(in_order) != self._shape.num_layers:
            raise MillraceError("unsupported", f"{len(in_order)} KV caches of a model of {self._shape.num_layers} layers")
        self._layers = Layers(in_order, self._shape, self._num_heads, self._block_tokens, self._options.direct)

    def start(self, metadata):
        for load in metadata.loads:
            state = _LoadState(None if self._layers.on_cpu else self._layers.mark())
            with self._lock:
                self._running[load.request_id] = state
            self._threads.submit(self._run, load, state)
        for request_id in metadata.cancelled:
            with self._lock:
                state = self._running.get(request_id)
            if state:
                state.cancel()

    def take_finished(self):
        with self._lock:
            finished, self._finished = self._finished, set()
        return finished

    def take_bad_blocks(self):
        with self._lock:
            bad, self._bad_blocks = self._bad_blocks, set()
        return bad

    def take_failures(self):
        with self._lock:
            failures, self._failures = self._failures, {}
        return failures

    def close(self):
        with self._lock:
            running = list(self._running.values())
        for state in running:
            state.cancel()
        self._threads.shutdown(wait=True)
        self._client.close()

    def _run(self, load, state):
        failure = None
        began_ns = time.time_ns()
        attributes = {"millrace.num_tokens": load.num_tokens}
        try:
            stats = self._load(load, state)
            attributes.update({f"millrace.{field}": count for field, count in stats.items() if field.startswith("bytes_") and count})
        except MillraceError as why:
            failure = why.code, str(why)
        except Exception as why:  # a bug or a lack of memory: vLLM has to learn of it too
            failure = "internal", f"{type(why).__name__}: {why}"
            logger.exception("pull of request %s", load.request_id)
        record_pull(load.trace_headers, began_ns, time.time_ns(), attributes, failure and failure[0])
        # vLLM asks for finished loads before it asks for bad blocks, so both are set together.
        with self._lock:
            del self._running[load.request_id]
            self._finished.add(load.request_id)
            if failure:
                self._bad_blocks.update(load.block_ids)
                self._failures[load.request_id] = failure

    def _load(self, load, state):
        deadline = time.monotonic() + self._options.pull_timeout_s
        manifest = Manifest(load.manifest)
        difference = self._shape.difference_to_manifest(manifest)
        if difference:
            raise MillraceError("unsupported", difference)
        ids = self._layers.kernel_ids(load.block_ids, load.num_tokens)
        events = self._coordinator.follow(load.millrace_id)
        try:
            pull = self._pull_staged if self._layers.staged else self._pull_in_place
            stats = pull(manifest, load, ids, events, state, deadline)
        finally:
            events.close()
        ways = bytes_by_way(stats)
        text = ", ".join(f"{count} from {way}" for way, count in ways.items())
        logger.debug("request %s: pulled %d bytes in %.3f s: %s", load.request_id, stats["bytes"], stats["seconds"], text)
        with self._lock:
            told = frozenset(ways) in self._ways_told
            self._ways_told.add(frozenset(ways))
        if not told:
            logger.info("bytes of the KV cache of request %s: %s (such a mixture is logged once)", load.request_id, text)
        return stats

    def _start(self, manifest, destinations, ids, events, state, deadline, **range_):
        left = max(deadline - time.monotonic(), 0.001)
        return state.add(self._client.pull(manifest, destinations, ids, timeout_s=left, first_kv_head=self._first_head, feed=events.feed,
                                           decode_float8=True, **range_))

    @staticmethod
    def _wait_layer(pull, layer, state, events):
        while True:
            try:
                return pull.wait_layer(layer, _LOOK_S)
            except Pending:
                if state.cancelled:
                    pull.cancel()
            except MillraceError:
                events.check()  # gives a better reason for the missing layers
                raise

    def _pull_in_place(self, manifest, load, ids, events, state, deadline):
        """Pulls straight into vLLM's blocks. The library's copies to a GPU are not ordered with vLLM's work, which must be done with them."""
        if state.blocks_free is not None:
            state.blocks_free.synchronize()
        pull = self._start(manifest, self._layers.views(), ids, events, state, deadline, first_token=load.first_token, num_tokens=load.num_tokens)
        try:
            for layer in range(len(self._layers)):
                self._wait_layer(pull, layer, state, events)
                self._layers.pack(layer, ids)
            pull.wait(self._options.pull_timeout_s)
            return pull.stats()
        finally:
            state.remove(pull)
            pull.close()

    def _pull_staged(self, manifest, load, ids, events, state, deadline):
        """Pulls through pinned memory, in pieces of some blocks of a layer, two at a time. Each is copied to the GPU while the model runs."""
        began = time.monotonic()
        blocks = max(1, min(len(ids), self._options.staging_bytes // 2 // self._layers.block_bytes))
        pieces = [(layer, at) for layer in range(len(self._layers)) for at in range(0, len(ids), blocks)]
        stream = None if self._layers.on_cpu else torch.cuda.Stream(self._layers.device)
        if stream is not None:
            stream.wait_event(state.blocks_free)
        free = [self._layers.staging(blocks) for _ in range(min(2, len(pieces)))]
        under_way, counts = [], Counter()
        try:
            while pieces or under_way:
                while pieces and free:
                    layer, at = pieces.pop(0)
                    staged, its_ids = free.pop(), ids[at:at + blocks]
                    first = at * self._layers.kernel_tokens
                    num_tokens = min(len(its_ids) * self._layers.kernel_tokens, load.num_tokens - first)
                    pull = self._start(manifest, [self._layers.halves(staged)], list(range(len(its_ids))), events, state, deadline,
                                       first_layer=layer, first_token=load.first_token + first, num_tokens=num_tokens)
                    under_way.append((pull, layer, staged, its_ids))
                pull, layer, staged, its_ids = under_way[0]
                self._wait_layer(pull, layer, state, events)
                counts.update({field: count for field, count in pull.stats().items() if field.startswith("bytes")})
                if stream is None:
                    self._layers.scatter(layer, staged, its_ids)
                    self._layers.pack(layer, its_ids)
                else:
                    with torch.cuda.stream(stream):
                        self._layers.scatter(layer, staged, its_ids)
                    stream.synchronize()
                under_way.pop(0)
                state.remove(pull)
                pull.close()
                free.append(staged)
            counts["seconds"] = time.monotonic() - began
            return counts
        finally:
            for pull, *_ in under_way:
                state.remove(pull)
                pull.close()
