# SPDX-License-Identifier: Apache-2.0
"""Manifest, Feed, Client and Pull: the interface of sdk/include/millrace/millrace_kv.h, with memory as torch tensors or NumPy arrays.

    client = Client()
    manifest = Manifest(response)                       # what POST /v1/prefill answered: text, bytes or parsed
    k, v = ...                                          # [num_layers][blocks, kv heads, block tokens, head dim], views with any strides
    with client.pull(manifest, list(zip(k, v)), block_ids, timeout_s=60) as pull:
        pull.wait()

Objects may be used from any thread. A pull keeps the memory that it writes to alive."""
import ctypes
import json
import os
import threading
from collections import namedtuple
from ctypes import byref, c_float, c_int32
from math import prod

from ._library import (DTYPES, TRANSPORTS, ClientOptions, LayerDestination, ManifestInfo, MillraceError, Pending, PullRequest, PullStats,
                       ShardInfo, library)

_DTYPE_NUMBERS = {name: number for number, name in DTYPES.items()}

Shard = namedtuple("Shard", "rank address first_kv_head num_kv_heads num_tokens")


class _Owner:
    """Owns a handle, which is destroyed once: at close() or with the object."""

    _destroy = None

    def __init__(self, lib, handle):
        self._lib = lib
        self._handle = handle
        self._closing = threading.Lock()

    def close(self):
        with self._closing:
            handle, self._handle = self._handle, None
        if handle:
            getattr(self._lib, self._destroy)(handle)

    def __del__(self):
        if getattr(self, "_handle", None):
            self.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Manifest(_Owner):
    """The location and shape of a cache. Attributes: num_layers, num_kv_heads, head_dim, dtype, num_tokens, request_id, lease_id, ..."""

    _destroy = "mkv_manifest_destroy"

    def __init__(self, source, lib=None):
        lib = lib or library()
        if isinstance(source, dict):
            source = json.dumps(source)
        if isinstance(source, str):
            source = source.encode()
        if isinstance(source, bytes):
            source = lib.new(lib.mkv_manifest_parse, source, len(source))
        super().__init__(lib, source)
        info = ManifestInfo()
        lib.mkv_manifest_get(self._handle, byref(info))
        for name, _ in ManifestInfo._fields_:
            value = getattr(info, name)
            setattr(self, name, value.decode() if isinstance(value, bytes) else value)
        self.dtype = DTYPES.get(info.dtype, f"dtype {info.dtype}")
        self.is_result = bool(info.is_result)

    @property
    def is_partial(self):
        """Whether pages were dropped on request (kv_budget). A pull of such a cache is refused."""
        return "kept_pages" in json.loads(self.json())

    def scales(self):
        """The scales of a cache in float8_e4m3, by layer and kv head: (K's, V's)."""
        k, v = c_float(), c_float()

        def of_head(layer, head):
            self._lib.mkv_manifest_head_scales(self._handle, layer, head, byref(k), byref(v))
            return k.value, v.value
        return [[of_head(layer, head) for head in range(self.num_kv_heads)] for layer in range(self.num_layers)]

    def json(self):
        size = self._lib.mkv_manifest_json(self._handle, None, 0)
        text = ctypes.create_string_buffer(size + 1)
        self._lib.mkv_manifest_json(self._handle, text, size + 1)
        return text.value.decode()

    def shards(self):
        found = []
        for index in range(self.num_shards):
            info = ShardInfo()
            self._lib.mkv_manifest_shard(self._handle, index, byref(info))
            found.append(Shard(info.rank, info.address.decode(), info.first_kv_head, info.num_kv_heads, info.num_tokens))
        return found

    def logprobs(self):
        """The most likely tokens after the prompt, best first: (token id, log probability)."""
        found = []
        for index in range(self.num_logprobs):
            token, logprob = c_int32(), c_float()
            self._lib.mkv_manifest_logprob(self._handle, index, byref(token), byref(logprob))
            found.append((token.value, logprob.value))
        return found


class Feed(_Owner):
    """The progress of a request during its prefill."""

    _destroy = "mkv_feed_destroy"

    def __init__(self, lib=None):
        lib = lib or library()
        super().__init__(lib, lib.new(lib.mkv_feed_create))

    def write(self, data):
        """Takes the next bytes of the request's server-sent events. Raises the request's error if it has failed."""
        self._lib.mkv_feed_write(self._handle, data, len(data))

    def set_layers_ready(self, num_layers):
        self._lib.mkv_feed_set_layers_ready(self._handle, num_layers)

    def fail(self, status, message):
        self._lib.mkv_feed_fail(self._handle, status, message.encode())

    @property
    def layers_ready(self):
        return self._lib.mkv_feed_layers_ready(self._handle)

    def manifest(self, timeout_s=0.0):
        """The manifest to pull by, or None if no event has brought it yet."""
        return self._wait(self._lib.mkv_feed_wait_manifest, timeout_s)

    def result(self, timeout_s=0.0):
        """The manifest of the finished request, or None while the request runs."""
        return self._wait(self._lib.mkv_feed_wait_result, timeout_s)

    def _wait(self, wait, timeout_s):
        try:
            return Manifest(self._lib.new(wait, self._handle, timeout_s), self._lib)
        except Pending:
            return None


def _memory(view):
    """(address, shape, strides in bytes, dtype) of a torch tensor or of an object with NumPy's array interface."""
    if hasattr(view, "data_ptr"):
        size = view.element_size()
        return view.data_ptr(), tuple(view.shape), tuple(stride * size for stride in view.stride()), str(view.dtype).removeprefix("torch.")
    interface = view.__array_interface__
    address, read_only = interface["data"]
    if read_only:
        raise MillraceError("invalid_argument", "a destination cannot be written to")
    shape, strides, kind = tuple(interface["shape"]), interface.get("strides"), interface["typestr"]
    if strides is None:
        strides = tuple(prod(shape[axis + 1:]) * int(kind[2:]) for axis in range(len(shape)))
    # NumPy has no bfloat16; packages that add one give its dtype a name but no type letter.
    name = {"<f4": "float32", "<f2": "float16"}.get(kind) or getattr(getattr(view, "dtype", None), "name", kind)
    return address, shape, tuple(strides), name


def _memory_number(view):
    """The mkv_memory of a tensor: the host's, or that of a CUDA device."""
    device = getattr(view, "device", None)
    kind = getattr(device, "type", "cpu")
    if kind not in ("cpu", "cuda"):
        raise MillraceError("unsupported", f"destination in the memory of {device}")
    return 1 + (device.index or 0) if kind == "cuda" else 0


def _destination(layer, k, v):
    address_k, shape, strides, dtype = _memory(k)
    address_v, shape_v, strides_v, dtype_v = _memory(v)
    if (shape, strides, dtype) != (shape_v, strides_v, dtype_v):
        raise MillraceError("invalid_argument", f"K and V of layer {layer} differ: {shape} {dtype} and {shape_v} {dtype_v}")
    if len(shape) != 4:
        raise MillraceError("invalid_argument", f"layer {layer} has shape {shape}; needed is [blocks, kv heads, block tokens, head dim]")
    dtype = {"float8_e4m3fn": "float8_e4m3"}.get(dtype, dtype)
    element = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3": 1}.get(dtype)
    if element is None:
        raise MillraceError("unsupported", f"destination of {dtype}; known are {', '.join(_DTYPE_NUMBERS)}")
    if shape[3] > 1 and strides[3] != element:
        raise MillraceError("invalid_argument", f"elements of a head lie {strides[3]} bytes apart in layer {layer}; they must lie side by side")
    return LayerDestination(address_k, address_v, *strides[:3]), shape, dtype


class Pull(_Owner):
    """A running pull. close() ends it, and returns once nothing writes to its destinations any more."""

    _destroy = "mkv_pull_destroy"

    def __init__(self, lib, handle, kept):
        super().__init__(lib, handle)
        self._kept = kept

    def wait(self, timeout_s=float("inf")):
        """Waits until the whole cache has arrived; raises Pending if that takes longer. The longest timeout is a day."""
        self._lib.mkv_pull_wait(self._handle, min(timeout_s, 86400.0))

    def wait_layer(self, layer, timeout_s=float("inf")):
        """Like wait(), for one layer of the model."""
        self._lib.mkv_pull_wait_layer(self._handle, layer, min(timeout_s, 86400.0))

    def cancel(self):
        """Asks the pull to end, and returns at once."""
        with self._closing:
            if self._handle:
                self._lib.mkv_pull_cancel(self._handle)

    def stats(self):
        """The statistics as a dictionary, with the names of mkv_pull_stats."""
        stats = PullStats()
        self._lib.mkv_pull_get_stats(self._handle, byref(stats))
        return {name: getattr(stats, name) for name, _ in PullStats._fields_[1:]}


class Client(_Owner):
    """The pulling threads and their connections; one client per process is enough. Create it after fork(). `tls_ca`, `tls_cert` and
    `tls_key` are PEM files for ranks at tls:// addresses: the CA that signs their certificates (else those that the system trusts), and the
    certificate and key to show to them."""

    _destroy = "mkv_client_destroy"

    def __init__(self, transport="auto", num_threads=0, connections_per_rank=0, lib=None, tls_ca="", tls_cert="", tls_key=""):
        lib = lib or library()
        if transport not in TRANSPORTS:
            raise MillraceError("invalid_argument", f"transport {transport!r}; known are {', '.join(TRANSPORTS)}")
        options = ClientOptions(transport=TRANSPORTS[transport], num_threads=num_threads, connections_per_rank=connections_per_rank,
                                tls_ca=os.fsencode(tls_ca), tls_cert=os.fsencode(tls_cert), tls_key=os.fsencode(tls_key))
        super().__init__(lib, lib.new(lib.mkv_client_create, byref(options)))

    def pull(self, manifest, layers, block_ids, *, timeout_s, first_layer=0, first_kv_head=0, first_token=0, num_tokens=None, feed=None,
             ask_again=False, priority=0, decode_float8=False):
        """Starts to pull into `layers`, a list of (K, V): views [blocks, kv heads, block tokens, head dim] of any strides, except that the
        elements of a head are contiguous; all in host memory, or all in that of one CUDA device. Token `first_token` of the prompt goes to
        token 0 of block_ids[0]. With a feed, each layer is pulled as soon as it is ready. A cache in float8_e4m3 is copied unchanged into
        views of torch.float8_e4m3fn; with `decode_float8` it is decoded into views of a wider type."""
        if num_tokens is None:
            num_tokens = manifest.num_tokens - first_token
        if not layers:
            raise MillraceError("invalid_argument", "no layers to pull into")
        memories = {_memory_number(view) for halves in layers for view in halves}
        if len(memories) > 1:
            raise MillraceError("invalid_argument", "the layers are in the memory of several devices")
        places, shape, dtype = [], None, None
        for layer, (k, v) in enumerate(layers):
            place, its_shape, its_dtype = _destination(layer, k, v)
            if shape is not None and (shape[1:], dtype) != (its_shape[1:], its_dtype):
                raise MillraceError("invalid_argument", f"layer {layer} is {its_shape} {its_dtype}, the first {shape} {dtype}")
            if len(block_ids) and not 0 <= min(block_ids) <= max(block_ids) < its_shape[0]:
                raise MillraceError("invalid_argument", f"block ids from {min(block_ids)} to {max(block_ids)} of {its_shape[0]} blocks")
            places.append(place)
            shape, dtype = its_shape, its_dtype
        ids = (c_int32 * len(block_ids))(*block_ids)
        table = (LayerDestination * len(places))(*places)
        request = PullRequest(first_layer=first_layer, num_layers=len(places), first_kv_head=first_kv_head, num_kv_heads=shape[1],
                              dtype=_DTYPE_NUMBERS[dtype], head_dim=shape[3], block_tokens=shape[2], first_token=first_token,
                              num_tokens=num_tokens, num_blocks=len(ids), block_ids=ids, layers=table, timeout_s=timeout_s,
                              priority=priority, ask_again=int(ask_again), feed=feed._handle if feed else None,
                              memory=memories.pop(), decode_float8=int(decode_float8))
        handle = self._lib.new(self._lib.mkv_pull_start, self._handle, manifest._handle, byref(request))
        return Pull(self._lib, handle, (layers, feed, self))
