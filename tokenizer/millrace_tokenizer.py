# SPDX-License-Identifier: Apache-2.0
"""Converts text to token ids and back for one model, on behalf of the program that started it.

    python3 millrace_tokenizer.py DIRECTORY MEMORY_BYTES PARENT_PID text|chat

DIRECTORY holds a Hugging Face tokenizer.json; for `chat` also the model's chat template. Standard input is one end of a socket: requests come in
and replies go out as frames (frame.h), one at a time. The first frame out says whether the tokenizer could be loaded. A text that breaks the
library ends this process at worst, and the parent starts another.

Needs the package tokenizers (PyPI), for `chat` transformers and jinja2 as well; with Python's standard library otherwise.
"""
import sys

# Modules in the folder that this was started from, or next to this file, must not be imported.
if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]

import array  # noqa: E402
import ctypes  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import resource  # noqa: E402
import signal  # noqa: E402
import socket  # noqa: E402
import struct  # noqa: E402

FRAME = struct.Struct("<II")  # bytes of the header, bytes of the body
# Requests come from the parent, which has limits of its own. A longer length is not a valid frame.
MAX_HEADER_BYTES = 1 << 20
MAX_BODY_BYTES = 256 << 20

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_NO_NEW_PRIVS = 38


class Refused(Exception):
    """What is wrong with a request, and the code of the parent's errors for it."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


def confine(memory_bytes, parent_pid):
    """Restricts this process: its memory, the files that it may write and the rights that it may gain. It ends when the parent ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_NAME, b"mr-tokenizer", 0, 0, 0)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        sys.exit(0)  # the parent died before the line above
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    # There is one request at a time, and other requests on the machine need the cores that the library's own threads would take.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


class Connection:
    def __init__(self, sock):
        self._socket = sock

    def receive(self):
        """Returns (header, body), or None once the parent has closed its end."""
        lengths = self._read(FRAME.size)
        if lengths is None:
            return None
        header_bytes, body_bytes = FRAME.unpack(lengths)
        if header_bytes > MAX_HEADER_BYTES or body_bytes > MAX_BODY_BYTES:
            sys.exit(f"frame of {header_bytes} and {body_bytes} bytes")
        header = self._read(header_bytes)
        body = self._read(body_bytes)
        return None if header is None or body is None else (json.loads(header.decode()), body)

    def send(self, header, body=b""):
        text = json.dumps(header).encode()
        self._socket.sendall(FRAME.pack(len(text), len(body)) + text)
        self._socket.sendall(body)

    def _read(self, count):
        data = bytearray(count)
        view = memoryview(data)
        while view:
            got = self._socket.recv_into(view)
            if got == 0:
                return None
            view = view[got:]
        return data


def byte_of_char():
    """{character: byte} for byte-level vocabularies, which write bytes as printable characters. This is GPT-2's table, as in the library."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in printable]
    table.update({chr(0x100 + i): byte for i, byte in enumerate(others)})
    return table


def kinds_of_decoder(node):
    """Names of the decoders in tokenizer.json, however they are nested."""
    if isinstance(node, dict):
        yield node.get("type")
        for inner in node.get("decoders", []):
            yield from kinds_of_decoder(inner)


class ModelTokenizer:
    def __init__(self, directory):
        try:
            import tokenizers
        except ImportError as why:
            raise Refused("unsupported", f"{sys.executable} cannot import tokenizers ({why}): install it there with "
                          "'pip install tokenizers', or name another Python") from why
        path = os.path.join(directory, "tokenizer.json")
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
            decoders = set(kinds_of_decoder(json.loads(text).get("decoder")))
            self._tokenizer = tokenizers.Tokenizer.from_str(text)
        except OSError as why:
            raise Refused("io", f"{path}: {why.strerror}") from why
        except Exception as why:
            raise Refused("corrupt", f"{path}: {why}") from why
        # A prompt is taken as it is; the service sets the limits.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._added = {token_id: token.content for token_id, token in self._tokenizer.get_added_tokens_decoder().items()}
        self._byte_of_char = byte_of_char() if "ByteLevel" in decoders else None
        self._byte_fallback = "ByteFallback" in decoders
        self.num_ids = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.library = f"tokenizers {tokenizers.__version__}"

    def encode(self, text, add_special_tokens):
        # This variant omits the tokens' offsets in the text, which take two thirds of the time.
        return self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def following(self, context, token_ids, skip_special_tokens):
        """The text that tokens add to that of the tokens before them. Whether a word begins with a blank depends on what it follows."""
        def text_of(ids):
            return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        # A character that the context has begun belongs to the token that ends it.
        if self._byte_fallback:
            # The library decodes all or none of the bytes in a row, so the context must begin with the first byte of a character.
            while context and self.is_continuation(context[0]):
                context = context[1:]
            known = context
            while known and text_of(known).endswith("\ufffd"):
                known = known[:-1]
            before = text_of(known)
        else:
            before = text_of(context).rstrip("\ufffd")
        whole = text_of([*context, *token_ids])
        return whole[len(before):] if whole.startswith(before) else text_of(token_ids)

    def is_continuation(self, token_id):
        own = self.bytes_of(token_id)
        return own is not None and len(own) == 1 and 0x80 <= own[0] < 0xC0

    def bytes_of(self, token_id):
        """The bytes of a token if the vocabulary gives them, else None."""
        if token_id in self._added:
            return self._added[token_id].encode()
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            return None
        if self._byte_of_char is not None and all(char in self._byte_of_char for char in token):
            return bytes(self._byte_of_char[char] for char in token)
        if self._byte_fallback and len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes([int(token[3:5], 16)])
        return None

    def is_whole(self, token_id, text):
        """Whether a text ends with a whole character, not within one that later tokens continue."""
        if not text.endswith("\ufffd"):
            return True
        own = self.bytes_of(token_id)
        return own is not None and own.endswith("\ufffd".encode())

    def text_after(self, context, token_ids):
        """The text of tokens as a client sees it. Special tokens have no text, and part of a character has none yet."""
        text = self.following(context, token_ids, skip_special_tokens=True)
        while token_ids and not self.is_whole(token_ids[-1], text):
            if not self._byte_fallback:
                return text.rstrip("\ufffd")
            token_ids = token_ids[:-1]
            text = self.following(context, token_ids, skip_special_tokens=True)
        return text if token_ids else ""

    def name_after(self, context, token_id):
        """A token in a list of log probabilities, as OpenAI writes it: its text, or its bytes where they are not text."""
        own = self.bytes_of(token_id)
        if own is None:
            return self.following(context, [token_id], skip_special_tokens=False)
        try:
            return own.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in own)


def text_of_content(content):
    """A message's content as templates take it: text parts are joined as the lines of one text, as vLLM does."""
    if not isinstance(content, list):
        return content
    texts = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and part.get("type") in ("text", "input_text", "output_text") and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise Refused("invalid_argument", f"a message has content of type {kind!r:.80}; supported is text")
    return "\n".join(texts)


def arguments_of(call):
    """A tool call with its arguments as an object. Clients send the arguments as text; templates read the object."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError as why:
        raise Refused("invalid_argument", f"the arguments of a tool call are no JSON: {why}") from why
    return {**call, "function": {**function, "arguments": arguments}}


def message_of(message):
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise Refused("invalid_argument", "each of 'messages' must be an object with a 'role'")
    message = dict(message)
    if "content" in message:
        message["content"] = text_of_content(message["content"])
    if isinstance(message.get("tool_calls"), list):
        message["tool_calls"] = [arguments_of(call) for call in message["tool_calls"]]
    return message


class ChatTemplate:
    """The model's own chat template, rendered by transformers."""
    # Arguments of apply_chat_template that clients must not set through chat_template_kwargs.
    OWN = {"conversation", "messages", "tools", "documents", "chat_template", "tokenize", "add_generation_prompt", "continue_final_message",
           "padding", "truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs"}

    def __init__(self, directory):
        os.environ["HF_HUB_OFFLINE"] = "1"
        os.environ["TRANSFORMERS_VERBOSITY"] = "error"
        # transformers imports torch if it is installed. That takes six seconds and 370 MiB instead of two and 80, and torch wants to write files.
        sys.modules["torch"] = None
        try:
            import jinja2  # noqa: F401: transformers renders with it, but reports late that it is missing
            import transformers
        except ImportError as why:
            raise Refused("unsupported", f"{sys.executable} cannot render chat templates ({why}): install transformers and jinja2 there with "
                          "'pip install transformers jinja2', or name another Python") from why
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        except Exception as why:
            raise Refused("corrupt", f"{directory}: {type(why).__name__}: {why}") from why
        if not self._tokenizer.chat_template:
            raise Refused("unsupported", f"{directory} has no chat template, in tokenizer_config.json or chat_template.jinja")
        self.library = f"transformers {transformers.__version__}"

    def render(self, fields):
        """The prompt, as text, for the body of a chat completion."""
        messages = fields.get("messages")
        if not isinstance(messages, list) or not messages:
            raise Refused("invalid_argument", "'messages' must be a list of at least one message")
        more = fields.get("chat_template_kwargs") or {}
        if not isinstance(more, dict) or self.OWN & more.keys():
            raise Refused("invalid_argument", f"'chat_template_kwargs' must be an object without any of {', '.join(sorted(self.OWN))}")
        given = {"add_generation_prompt": True, "continue_final_message": False, **{name: fields[name] for name in (
            "add_generation_prompt", "continue_final_message", "tools", "documents", "reasoning_effort") if fields.get(name) is not None}}
        if "reasoning_effort" in given and "enable_thinking" not in more:
            given["enable_thinking"] = given["reasoning_effort"] != "none"
        try:
            return self._tokenizer.apply_chat_template([message_of(message) for message in messages], tokenize=False, **{**more, **given})
        except Refused:
            raise
        except Exception as why:  # templates raise errors for what they do not accept
            raise Refused("invalid_argument", f"the chat template: {type(why).__name__}: {why}") from why


def ids_of(body):
    ids = array.array("i")
    ids.frombytes(body)
    return ids.tolist()


def answer(tokenizer, template, header, body):
    """Returns (header, body) of the reply."""
    wanted = header["do"]
    if wanted == "chat":
        text = template.render(json.loads(body.decode()))
        # A template writes its special tokens itself.
        return {}, array.array("i", tokenizer.encode(text, header["add_special_tokens"])).tobytes()
    if wanted == "encode":
        try:
            text = body.decode()
        except UnicodeDecodeError as why:
            raise Refused("invalid_argument", f"the text is not UTF-8: byte {why.start}, {why.reason}") from why
        return {}, array.array("i", tokenizer.encode(text, header["add_special_tokens"])).tobytes()
    if wanted == "follow":
        context = ids_of(body)
        return {"text": tokenizer.text_after(context, header["token_ids"]),
                "names": [tokenizer.name_after(context, token_id) for token_id in header["listed"]]}, b""
    raise Refused("internal", f"unknown request {wanted!r}")


def serve(connection, tokenizer, template):
    while (request := connection.receive()) is not None:
        try:
            reply = answer(tokenizer, template, *request)
        except Refused as why:
            reply = {"error": {"code": why.code, "message": str(why)}}, b""
        except MemoryError:
            reply = {"error": {"code": "too_large", "message": "the text needs more memory than a tokenizer has"}}, b""
        except Exception as why:
            reply = {"error": {"code": "internal", "message": f"{type(why).__name__}: {why}"}}, b""
        del request
        connection.send(*reply)


def main():
    directory, memory_bytes, parent_pid, takes = sys.argv[1:]
    confine(int(memory_bytes), int(parent_pid))
    connection = Connection(socket.socket(fileno=0))
    try:
        tokenizer = ModelTokenizer(directory)
        template = ChatTemplate(directory) if takes == "chat" else None
    except Refused as why:
        connection.send({"error": {"code": why.code, "message": str(why)}})
        return
    libraries = [part.library for part in (tokenizer, template) if part is not None]
    connection.send({"num_ids": tokenizer.num_ids, "library": ", ".join(libraries)})
    serve(connection, tokenizer, template)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # from a terminal: the parent ends this process
    main()
