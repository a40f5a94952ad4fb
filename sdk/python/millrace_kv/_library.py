# SPDX-License-Identifier: Apache-2.0
"""The C interface of sdk/include/millrace/millrace_kv.h through ctypes: the same names and structures, with errors as exceptions.

A call releases the interpreter's lock while it runs."""
import ctypes
import os
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_uint32, c_void_p

NAME = "libmillrace_kv.so"
VERSION_MAJOR, VERSION_MINOR = 1, 7

PENDING, OK, INVALID_ARGUMENT, UNSUPPORTED, NOT_FOUND, TOO_LARGE, EXHAUSTED, UNAVAILABLE = range(-1, 7)
DEADLINE_EXCEEDED, CANCELLED, PEER_LOST, CORRUPT, IO, INTERNAL, DENIED = range(7, 14)

DTYPES = {0: "float32", 1: "bfloat16", 2: "float16", 3: "float8_e4m3"}
TRANSPORTS = {"auto": 0, "shm": 1, "tcp": 2}


class MillraceError(RuntimeError):
    """`code` is a word of docs/errors.md, such as "not_found"; `status` is its number in the C interface."""

    def __init__(self, code, message, status=None):
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code
        self.message = message
        self.status = status


class Pending(MillraceError):
    """The awaited result is not there yet."""


class _Struct(ctypes.Structure):
    def __init__(self, **fields):
        super().__init__(struct_bytes=ctypes.sizeof(self), **fields)


class ManifestInfo(_Struct):
    _fields_ = [("struct_bytes", c_uint32), ("num_layers", c_int32), ("num_kv_heads", c_int32), ("head_dim", c_int32),
                ("dtype", c_int32), ("dtype_bytes", c_int32), ("page_tokens", c_int32), ("tp", c_int32), ("cp", c_int32),
                ("num_shards", c_int32), ("num_logprobs", c_int32), ("is_result", c_int32), ("first_token_id", c_int32),
                ("reserved", c_int32), ("num_tokens", c_int64), ("num_pages", c_int64), ("page_bytes", c_int64),
                ("lease_ms", c_int64), ("density", c_double), ("recall", c_double), ("request_id", c_char_p),
                ("lease_id", c_char_p), ("epoch", c_char_p), ("model", c_char_p), ("model_fingerprint", c_char_p),
                ("coordinator_instance", c_char_p)]


class ShardInfo(_Struct):
    _fields_ = [("struct_bytes", c_uint32), ("rank", c_int32), ("first_kv_head", c_int32), ("num_kv_heads", c_int32),
                ("num_tokens", c_int64), ("address", c_char_p)]


class ClientOptions(_Struct):
    _fields_ = [("struct_bytes", c_uint32), ("transport", c_int32), ("num_threads", c_int32), ("connections_per_rank", c_int32),
                ("pages_per_request", c_int32), ("max_refetches", c_int32), ("tls_ca", c_char_p), ("tls_cert", c_char_p),
                ("tls_key", c_char_p)]


class LayerDestination(ctypes.Structure):
    _fields_ = [("k", c_void_p), ("v", c_void_p), ("block_stride", c_int64), ("head_stride", c_int64), ("token_stride", c_int64)]


class PullRequest(_Struct):
    _fields_ = [("struct_bytes", c_uint32), ("first_layer", c_int32), ("num_layers", c_int32), ("first_kv_head", c_int32),
                ("num_kv_heads", c_int32), ("dtype", c_int32), ("head_dim", c_int32), ("block_tokens", c_int32),
                ("first_token", c_int64), ("num_tokens", c_int64), ("num_blocks", c_int64), ("block_ids", POINTER(c_int32)),
                ("layers", POINTER(LayerDestination)), ("timeout_s", c_double), ("priority", c_int32), ("ask_again", c_int32),
                ("feed", c_void_p), ("order", c_int32), ("memory", c_int32), ("hot_share", c_double), ("decode_float8", c_int32),
                ("takes_part", c_int32)]


class PullStats(_Struct):
    _fields_ = [("struct_bytes", c_uint32), ("status", c_int32), ("layers_done", c_int32), ("corrupt_pages", c_int32),
                ("pages_done", c_int64), ("pages_total", c_int64), ("bytes", c_int64), ("pages_device", c_int64),
                ("pages_host", c_int64), ("pages_disk", c_int64), ("bytes_shm", c_int64), ("bytes_tcp", c_int64),
                ("bytes_other", c_int64), ("seconds", c_double), ("waiting_seconds", c_double),
                ("hot_pages_done", c_int64), ("hot_pages_total", c_int64), ("score_bytes", c_int64),
                ("hot_layers_done", c_int32), ("reserved", c_int32), ("hot_seconds", c_double),
                ("bytes_same_host", c_int64), ("bytes_device_pool", c_int64)]


_Handle = POINTER(c_void_p)
# Argument types of the functions that return an mkv_status, which is turned into an exception.
_CHECKED = {
    "mkv_manifest_parse": [c_char_p, c_size_t, _Handle],
    "mkv_manifest_get": [c_void_p, POINTER(ManifestInfo)],
    "mkv_manifest_shard": [c_void_p, c_int32, POINTER(ShardInfo)],
    "mkv_manifest_logprob": [c_void_p, c_int32, POINTER(c_int32), POINTER(c_float)],
    "mkv_manifest_scales": [c_void_p, c_int32, POINTER(c_float), POINTER(c_float)],
    "mkv_manifest_head_scales": [c_void_p, c_int32, c_int32, POINTER(c_float), POINTER(c_float)],
    "mkv_feed_create": [_Handle],
    "mkv_feed_write": [c_void_p, c_char_p, c_size_t],
    "mkv_feed_set_layers_ready": [c_void_p, c_int32],
    "mkv_feed_fail": [c_void_p, c_int32, c_char_p],
    "mkv_feed_wait_manifest": [c_void_p, c_double, _Handle],
    "mkv_feed_wait_result": [c_void_p, c_double, _Handle],
    "mkv_client_create": [POINTER(ClientOptions), _Handle],
    "mkv_pull_start": [c_void_p, c_void_p, POINTER(PullRequest), _Handle],
    "mkv_pull_wait": [c_void_p, c_double],
    "mkv_pull_wait_layer": [c_void_p, c_int32, c_double],
    "mkv_pull_get_stats": [c_void_p, POINTER(PullStats)],
}
_OTHERS = {
    "mkv_version": (c_uint32, []),
    "mkv_status_name": (c_char_p, [c_int32]),
    "mkv_last_error": (c_char_p, []),
    "mkv_manifest_destroy": (None, [c_void_p]),
    "mkv_manifest_json": (c_size_t, [c_void_p, c_char_p, c_size_t]),
    "mkv_feed_destroy": (None, [c_void_p]),
    "mkv_feed_layers_ready": (c_int32, [c_void_p]),
    "mkv_client_destroy": (None, [c_void_p]),
    "mkv_pull_cancel": (None, [c_void_p]),
    "mkv_pull_destroy": (None, [c_void_p]),
}


def candidates():
    """The paths where the library may be, in search order."""
    named = os.environ.get("MILLRACE_KV_LIBRARY")
    if named:
        return [named]
    return [os.path.join(os.path.dirname(os.path.abspath(__file__)), NAME), NAME]


class Library:
    """The library's functions as methods. Status codes other than MKV_OK are raised as MillraceError, MKV_PENDING as Pending."""

    def __init__(self, path=None):
        tried = []
        for candidate in [path] if path else candidates():
            try:
                self._dll = ctypes.CDLL(candidate)
                self.path = candidate
                break
            except OSError as why:
                tried.append(str(why))
        else:
            raise MillraceError("not_found", f"no {NAME}; MILLRACE_KV_LIBRARY may name it. Tried: {'; '.join(tried)}")
        for name, (result, arguments) in _OTHERS.items():
            function = self._function(name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        self._check_version()
        for name, arguments in _CHECKED.items():
            function = self._function(name)
            function.restype, function.argtypes = c_int32, arguments
            setattr(self, name, self._checked(function))

    def _function(self, name):
        try:
            return getattr(self._dll, name)
        except AttributeError:
            raise MillraceError("unsupported", f"{self.path} has no {name}: not a library of version {VERSION_MAJOR}") from None

    def _check_version(self):
        version = self.mkv_version()
        major, minor = version >> 16, version & 0xFFFF
        if major != VERSION_MAJOR or minor < VERSION_MINOR:
            raise MillraceError("unsupported", f"{self.path} is version {major}.{minor}; needed is {VERSION_MAJOR}.{VERSION_MINOR} or a "
                                f"later {VERSION_MAJOR}.x")

    def _checked(self, function):
        def call(*arguments):
            status = function(*arguments)
            if status == OK:
                return
            if status == PENDING:
                raise Pending("pending", "", status)
            raise MillraceError(self.mkv_status_name(status).decode(), self.mkv_last_error().decode(errors="replace"), status)
        return call

    def new(self, create, *arguments):
        """The handle that `create` writes into its last argument."""
        handle = c_void_p()
        create(*arguments, byref(handle))
        return handle


_loaded = None


def library():
    """The process's library, loaded by the first call."""
    global _loaded
    if _loaded is None:
        _loaded = Library()
    return _loaded
