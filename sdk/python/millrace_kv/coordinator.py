# SPDX-License-Identifier: Apache-2.0
"""The part of a coordinator's HTTP interface (docs/api.md) that a decode node needs. Standard library only."""
import array
import hashlib
import http.client
import json
import os
import socket
import ssl
import sys
import threading
import uuid
import weakref
from urllib.parse import quote, urlencode

from ._library import PEER_LOST, MillraceError
from .client import Feed

_PIECE_BYTES = 1 << 16
_ANSWER_S = 10.0  # for calls that are answered at once
_INSTANCE = "X-Millrace-Instance"


class CoordinatorLost(MillraceError):
    """The coordinator could not be reached, or the connection ended early."""

    def __init__(self, address, why):
        super().__init__("peer_lost", f"coordinator {address}: {why or type(why).__name__}")


def token_bytes(token_ids):
    """The token ids as sent: little-endian int32."""
    tokens = array.array("i", token_ids)
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens.tobytes()


def prompt_digest(token_ids):
    """Identifies a prompt: SHA-256 of its little-endian int32 token ids, in hexadecimal."""
    return hashlib.sha256(token_bytes(token_ids)).hexdigest()


def _prefill_query(model, head_plan=None, min_recall=None, deadline_ms=None, priority=None, cache_salt=None, on_disconnect=None, **others):
    """The query of a prompt that is posted as bytes."""
    fields = {"model": model, "head_plan": head_plan, "min_recall": min_recall, "deadline_ms": deadline_ms, "priority": priority,
              "on_disconnect": on_disconnect, "cache_salt": cache_salt and hashlib.sha256(cache_salt.encode()).hexdigest(), **others}
    return urlencode({name: value for name, value in fields.items() if value is not None})


def _refusal(status, text):
    try:
        error = json.loads(text)["error"]
        return MillraceError(error["type"], error["message"])
    except (ValueError, KeyError, TypeError):
        return MillraceError("unavailable", f"HTTP status {status}: {text[:300]!r}")


def _find_token(path):
    """The client's token: the first line of the file, else of the file $MILLRACE_TOKEN_FILE, else $MILLRACE_TOKEN, else None."""
    path = path or os.environ.get("MILLRACE_TOKEN_FILE")
    if path:
        try:
            with open(path) as file:
                token = file.readline().strip()
        except OSError as why:
            raise MillraceError("invalid_argument", f"token: {why}") from why
    else:
        token = os.environ.get("MILLRACE_TOKEN", "")
        if not token:
            return None
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise MillraceError("invalid_argument", f"{path or 'MILLRACE_TOKEN'} holds no token")
    return token


class EventStream:
    """Reads the events of one request into a feed, on its own thread.

    `make_request` returns (method, target, body). `on_news` is called whenever something arrives and at the end. Both run on that thread.
    `headers` are sent besides."""

    def __init__(self, coordinator, make_request, on_news=None, headers=None):
        self.feed = Feed()
        self.error = None
        self.instance = None  # of the process that answers
        self.ended = threading.Event()
        self._coordinator = coordinator
        self._make_request = make_request
        self._headers = headers or {}
        self._on_news = on_news or (lambda: None)
        self._closing = threading.Lock()
        self._closed = False
        self._socket = None
        self._thread = threading.Thread(target=self._run, name="millrace-events", daemon=True)
        self._thread.start()

    def manifest(self, timeout_s=0.0):
        """The manifest, or None while there is none. Raises the request's error if it has failed."""
        return self._wait(self.feed.manifest, timeout_s)

    def result(self, timeout_s=0.0):
        return self._wait(self.feed.result, timeout_s)

    def result_so_far(self):
        """The result, or None: there is none, also after a failure."""
        try:
            return self.feed.result()
        except MillraceError:
            return None

    def check(self):
        """Raises the request's error if it has failed."""
        if self.error:
            raise self.error

    def _wait(self, wait, timeout_s):
        self.check()
        try:
            return wait(timeout_s)
        except MillraceError:
            self.check()  # if the request failed meanwhile, the feed has only the text of the error, self.error has its code
            raise

    def close(self):
        """Closes the connection. For a running request that this process posted it means that the client has left; a finished request is not
        affected."""
        with self._closing:
            self._closed = True
            if self._socket:
                try:
                    self._socket.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # the connection has ended already

    def _run(self):
        try:
            self._read()
        except MillraceError as why:
            self.error = why
        except (OSError, http.client.HTTPException) as why:
            self.error = MillraceError("cancelled", "closed here") if self._closed else \
                CoordinatorLost(self._coordinator.address, why)
        except Exception as why:  # a bug here; whoever waits must learn of it
            self.error = MillraceError("internal", f"{type(why).__name__}: {why}")
        if self.error:
            self.feed.fail(PEER_LOST, str(self.error))
        self.ended.set()
        self._on_news()

    def _read(self):
        method, target, body = self._make_request()
        connection = self._coordinator.connect()
        try:
            with self._closing:
                if self._closed:
                    raise MillraceError("cancelled", "closed here")
                self._socket = connection.sock
            headers = {"Content-Type": "application/octet-stream"} if body else {}
            connection.request(method, target, body, headers | self._headers | self._coordinator.credentials())
            response = connection.getresponse()
            self._coordinator.note_instance(response)
            self.instance = response.getheader(_INSTANCE)
            if response.status != 200:
                raise _refusal(response.status, response.read())
            while data := response.read1(_PIECE_BYTES):
                self.feed.write(data)
                self._on_news()
            if self.feed.result() is None:
                if self._closed:
                    raise MillraceError("cancelled", "closed here")
                raise CoordinatorLost(self._coordinator.address, "the events ended before the prefill was done")
        finally:
            with self._closing:
                self._socket = None
            connection.close()


class Prefill(EventStream):
    """A prompt that this process posted. `on_disconnect` says what becomes of the prefill when it is closed early, when this process ends, or
    when the deadline passes, and nobody else waits for it: "cancel", "finish" or "suspend"; None: what the coordinator's --on-disconnect says.
    Coordinator.end() cancels it in any case. `model` may be a function that returns the model's name.
    `cache_salt` is any text; only prompts with the same salt share cached pages. `before_post` is called with the model's name, on the stream's
    thread; if it raises a MillraceError, that is the stream's error and nothing is posted. `trace_headers`: `traceparent`, if the prefill is a part
    of a trace."""

    def __init__(self, coordinator, model, token_ids, *, request_id=None, lease_ms=60000, head_plan=None, min_recall=None,
                 deadline_ms=None, priority=None, cache_salt=None, on_disconnect=None, on_news=None, before_post=None, trace_headers=None):
        self.request_id = request_id or uuid.uuid4().hex

        def post():
            name = model() if callable(model) else model
            if before_post:
                before_post(name)
            query = _prefill_query(name, head_plan, min_recall, deadline_ms, priority, cache_salt, on_disconnect, request_id=self.request_id,
                                   stream="true", handover="streaming", lease_ms=lease_ms)
            return "POST", "/v1/prefill?" + query, token_bytes(token_ids)

        coordinator.note_prefill(self)
        super().__init__(coordinator, post, on_news, trace_headers)


class Coordinator:
    """`address` is "host:port", or "https://host:port" if the coordinator encrypts. Its certificate must be signed by a CA in `ca_file`, or in
    the file that $MILLRACE_TLS_CA names, or by one that the system trusts. A stream that is silent for `silence_s` is lost; something comes
    every 10 s. The token is read from `token_file` for every call, so that a new one needs no restart. Without `token_file` it comes from
    the file that $MILLRACE_TOKEN_FILE names, or from $MILLRACE_TOKEN."""

    def __init__(self, address, connect_timeout_s=2.0, silence_s=30.0, token_file=None, ca_file=None):
        encrypted = address.startswith("https://")
        self.address = address.removeprefix("https://" if encrypted else "http://").rstrip("/")
        if "://" in self.address or not self.address:
            raise MillraceError("invalid_argument", f"coordinator {address!r}; needed is host:port or https://host:port")
        self._tls = None
        if encrypted:
            try:
                self._tls = ssl.create_default_context(cafile=ca_file or os.environ.get("MILLRACE_TLS_CA"))
            except OSError as why:
                raise MillraceError("invalid_argument", f"certificates of CAs: {why}") from why
            self._tls.minimum_version = ssl.TLSVersion.TLSv1_2
        self.connect_timeout_s = connect_timeout_s
        self.silence_s = silence_s
        self.token_file = token_file
        self.instance = None  # of the process that answered last: another one may take its address
        self._prefills = weakref.WeakValueDictionary()  # by request id, of this object

    def note_prefill(self, prefill):
        self._prefills[prefill.request_id] = prefill

    def note_instance(self, response):
        self.instance = response.getheader(_INSTANCE) or self.instance

    def credentials(self):
        """The headers that identify the client."""
        token = _find_token(self.token_file)
        return {"Authorization": "Bearer " + token} if token else {}

    def connect(self):
        if self._tls:
            connection = http.client.HTTPSConnection(self.address, timeout=self.connect_timeout_s, context=self._tls)
        else:
            connection = http.client.HTTPConnection(self.address, timeout=self.connect_timeout_s)
        connection.connect()
        connection.sock.settimeout(self.silence_s)
        return connection

    def call(self, method, path, body=None, instance=None):
        """The parsed answer. `body`: bytes, or what becomes JSON. Raises the coordinator's error if it refuses: with `instance`, also if another
        process than this one answers (not_found)."""
        is_binary = isinstance(body, bytes)
        headers = {"Content-Type": "application/octet-stream" if is_binary else "application/json"} | self.credentials()
        if instance:
            headers[_INSTANCE] = instance
        if body is not None and not is_binary:
            body = json.dumps(body)
        try:
            connection = self.connect()
            try:
                connection.sock.settimeout(_ANSWER_S)
                connection.request(method, path, body, headers)
                response = connection.getresponse()
                self.note_instance(response)
                text = response.read()
            finally:
                connection.close()
        except (OSError, http.client.HTTPException) as why:
            raise CoordinatorLost(self.address, why) from why
        if response.status != 200:
            raise _refusal(response.status, text)
        return json.loads(text)

    def models(self):
        """The entries of GET /v1/models by name."""
        return {model["id"]: model for model in self.call("GET", "/v1/models")["data"]}

    def forecast(self, model, token_ids, **options):
        """When a prompt that is posted now should be done: a dictionary with queue_seconds, prefill_seconds, cached_tokens and is_learnt. `options`
        are those of Prefill that say how it is computed."""
        return self.call("POST", "/v1/prefill:forecast?" + _prefill_query(model, **options), token_bytes(token_ids))

    def prefill(self, model, token_ids, **options):
        return Prefill(self, model, token_ids, **options)

    def follow(self, request_id, on_news=None):
        """The events of a request that another process posted. Closing the stream cancels nothing."""
        return EventStream(self, lambda: ("GET", f"/v1/prefill/{quote(request_id, safe='')}/events", None), on_news)

    # `instance`: Manifest.coordinator_instance, for calls that only the process that handed the manifest out is to answer. Without it they work
    # after a restart, too: groups keep their leases, and tell the new process of them.

    def end(self, request_id, instance=None):
        """Cancels a running request, or releases the lease of a finished one. An id alone may be another's by now: of a prefill of this object
        that is not done, only the process that took it is asked, and of one that is done, the lease is named, so that its end outlives a restart."""
        prefill = self._prefills.get(request_id)
        if prefill and not instance:
            result = prefill.result_so_far()
            if result:
                return self.release(request_id, result.lease_id)
            instance = prefill.instance
        self.call("DELETE", "/v1/prefill/" + quote(request_id, safe=""), instance=instance)

    def renew(self, request_id, lease_id, lease_ms, instance=None):
        """Makes the lease last for this long from now. Returns for how long it does, in milliseconds."""
        body = {"lease_id": lease_id, "lease_ms": lease_ms}
        return self.call("POST", f"/v1/prefill/{quote(request_id, safe='')}/lease:renew", body, instance)["lease"]["expires_in_ms"]

    def release(self, request_id, lease_id, instance=None):
        self.call("POST", f"/v1/prefill/{quote(request_id, safe='')}/lease:release", {"lease_id": lease_id}, instance)
