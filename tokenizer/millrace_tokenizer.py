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


# The rules of this part are vLLM's (vllm/renderers/chat_utils.py and hf.py, 0.32): a router sends the same messages to vLLM afterwards, which must
# find the same prompt in them. docs/api.md has the table, tests/engines/rendering_test.py compares.

# Parts of a content that are text, and the field that has it.
TEXT_OF_PART = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"}
# Fields of parts that templates do not see; they do see others, such as cache_control.
FIELDS_OF_PARTS = {"audio_embeds", "audio_url", "closed", "data", "file", "image_embeds", "image_pil", "image_url", "input_audio", "name",
                   "prompt_cache_breakpoint", "refusal", "text", "thinking", "type", "uuid", "video_embeds", "video_url"}
# A line that Claude Code writes before its system prompt, different in each request.
BILLING_LINE = "x-anthropic-billing-header"


def is_variable(node, name):
    from jinja2 import nodes
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name


def is_part_of(node, variable, key=None):
    """Whether an expression is a variable, or its member `key`, perhaps filtered, tested or sliced."""
    from jinja2 import nodes
    while isinstance(node, (nodes.Filter, nodes.Test)) or (isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)):
        node = node.node
    if key is None:
        return is_variable(node, variable)
    if isinstance(node, nodes.Getitem):
        return is_variable(node.node, variable) and isinstance(node.arg, nodes.Const) and node.arg.value == key
    return isinstance(node, nodes.Getattr) and node.attr == key and is_variable(node.node, variable)


def name_of_target(target):
    """The variable that a loop or an assignment sets. ValueError where it sets several, or a member."""
    from jinja2 import nodes
    if not isinstance(target, nodes.Name):
        raise ValueError("more than a variable")
    return target.name


def variables_of_messages(tree):
    """The names under which a template has the list of messages."""
    from jinja2 import nodes
    names = ["messages"]
    for name in names:
        for node in tree.find_all(nodes.Assign):
            if is_part_of(node.node, name) and name_of_target(node.target) not in names:
                names.append(node.target.name)
    return names


def has_loop_over_content(tree):
    """Whether a template has a loop over the content of a message, or over what it calls content."""
    from jinja2 import nodes
    loops = list(tree.find_all(nodes.For))
    lists = variables_of_messages(tree)
    messages = [name_of_target(loop.target) for loop in loops if any(is_part_of(loop.iter, name) for name in lists)]

    def is_content(node):
        return any(is_part_of(node, name, "content") for name in messages)

    # By macro: the parameters that are given a content in some call.
    given, in_macro = {}, set()
    for macro in tree.find_all(nodes.Macro):
        names = [argument.name for argument in macro.args]
        contents = set()
        for call in tree.find_all(nodes.Call):
            if isinstance(call.node, nodes.Name) and call.node.name == macro.name:
                contents.update(name for name, value in zip(names, call.args) if is_content(value))
                contents.update(one.key for one in call.kwargs if one.key in names and is_content(one.value))
        for loop in macro.find_all(nodes.For):
            in_macro.add(id(loop))
            if contents:
                given[id(loop)] = contents
    for loop in loops:
        variable = loop.iter.name if isinstance(loop.iter, nodes.Name) else None
        if is_content(loop.iter) or variable in given.get(id(loop), ()) or (variable == "content" and id(loop) not in in_macro):
            name_of_target(loop.target)
            return True
    return False


def takes_parts(template):
    """Whether a chat template takes the content of a message as a list of parts. Others take it as text."""
    import jinja2
    import jinja2.ext

    class Generation(jinja2.ext.Extension):  # transformers' own statement
        tags = {"generation"}

        def parse(self, parser):
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    try:
        return has_loop_over_content(environment.parse(template))
    except (jinja2.TemplateError, ValueError):
        return False


def without_billing_line(part):
    """A part of a system message without that line; None if nothing is left."""
    text = part if isinstance(part, str) else part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
    if not isinstance(text, str) or not text.startswith(BILLING_LINE):
        return part
    rest = text.partition("\n")[2]
    if not rest:
        return None
    return rest if isinstance(part, str) else {**part, "text": rest}


def part_of(part):
    """(type, text, further fields) of a part; None for a text that is null."""
    if isinstance(part, str):
        return "text", part, {}
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    if isinstance(part, dict) and kind == "tool_reference" and isinstance(part.get("name"), str):
        return kind, part["name"], {}
    field = TEXT_OF_PART.get(kind) if isinstance(part, dict) and isinstance(kind, str) else None
    if field is None:
        raise Refused("invalid_argument", f"a message has content of type {kind!r:.80}; supported is text")
    if part.get(field) is None and kind in ("text", "refusal"):
        return None
    if not isinstance(part.get(field), str):
        raise Refused("invalid_argument", f"a message has content of type {kind!r} whose '{field}' is not text")
    return "text", part[field], {name: value for name, value in part.items() if name not in FIELDS_OF_PARTS}


def content_of(message, as_parts):
    """A message's content as templates take it: a list of parts, or one text whose lines they are."""
    content = message.get("content")
    if content is None:
        content = []
    elif isinstance(content, str):
        content = [content]
    elif not isinstance(content, list):
        raise Refused("invalid_argument", f"a message has content of type {type(content).__name__!r}; supported is text")
    if message["role"] == "system":
        content = [kept for kept in map(without_billing_line, content) if kept is not None]
    parts = [known for known in map(part_of, content) if known is not None]
    only_text = all(kind == "text" for kind, _, _ in parts)
    if as_parts and message["role"] == "tool" and only_text:
        return "\n".join(text for _, text, _ in parts)
    if as_parts:
        return [{"type": kind, "text" if kind == "text" else "name": text, **more} for kind, text, more in parts]
    return "\n".join(text for _, text, _ in parts if text)


def ordered(given, names):
    """Fields in the order of `names`, then all others: templates write objects as they come."""
    return {**{name: given[name] for name in names if name in given}, **{name: value for name, value in given.items() if name not in names}}


def arguments_of(function):
    """The arguments of an earlier tool call as an object. Clients send them as text. A model's mistake in them stays in the conversation: what is no
    object counts as an empty one."""
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = None
    return arguments if isinstance(arguments, dict) else {}


def call_of(call):
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or call.get("type", "function") != "function":
        raise Refused("invalid_argument", "each of a message's 'tool_calls' must be an object of type 'function' with a 'function'")
    function = {**function, "arguments": arguments_of(function)}
    return ordered({**call, "function": ordered(function, ("arguments", "name"))}, ("id", "function", "type"))


def developers_tool_of(tool):
    """A tool in a message: with all its fields, unlike those of the body."""
    if not isinstance(tool, dict) or not isinstance(tool.get("function"), dict):
        return tool
    function = ordered(tool["function"], ("name", "description", "parameters", "strict"))
    return ordered({**tool, "function": function}, ("function", "type"))


def message_of(message, as_parts):
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise Refused("invalid_argument", "each of 'messages' must be an object with a 'role'")
    role = message["role"]
    seen = {"role": role, "content": content_of(message, as_parts)}
    if role == "assistant":
        calls = message.get("tool_calls")
        if calls is not None and not isinstance(calls, list):
            raise Refused("invalid_argument", "'tool_calls' of a message must be a list")
        if calls:
            seen["tool_calls"] = [call_of(call) for call in calls]
        reasoning = message.get("reasoning")
        reasoning = message.get("reasoning_content") if reasoning is None else reasoning
        if reasoning is not None:
            seen["reasoning"] = seen["reasoning_content"] = reasoning
    elif role == "tool" and "tool_call_id" in message:
        seen["tool_call_id"] = message["tool_call_id"]
    for name in ("name", "task"):
        if isinstance(message.get(name), str):
            seen[name] = message[name]
    if role == "developer":
        tools = message.get("tools")
        seen["tools"] = [developers_tool_of(tool) for tool in tools] if isinstance(tools, list) else tools
    return seen


def text_of(content):
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content if "text" in part)


def with_one_system_message(messages):
    """For templates that know no developers: these speak as the system, and the system speaks once, at the beginning."""
    def speaks_as_system(message):
        return {name: value for name, value in {**message, "role": "system"}.items() if name != "tools"}

    changed = [speaks_as_system(message) if message["role"] == "developer" else message for message in messages]
    places = [place for place, message in enumerate(changed) if message["role"] == "system"]
    if places == [0]:
        return changed
    texts = [text_of(changed[place]["content"]) for place in places]
    merged = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [merged, *(message for message in changed if message["role"] != "system")]


def tool_of(tool):
    """A tool with the fields that templates see, in vLLM's order; those that are not given are null."""
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or tool.get("type", "function") != "function" or not isinstance(function.get("name"), str):
        raise Refused("invalid_argument", "each of 'tools' must be an object of type 'function' whose 'function' has a 'name'")
    description, parameters = function.get("description"), function.get("parameters")
    if not isinstance(description, (str, type(None))) or not isinstance(parameters, (dict, type(None))):
        raise Refused("invalid_argument", "of 'tools', a 'description' must be text and 'parameters' an object")
    seen = {"name": function["name"], "description": description, "parameters": parameters}
    if function.get("strict") is not None:
        seen["strict"] = function["strict"]
    deferred = tool.get("defer_loading")
    inner = deferred if function.get("defer_loading") is None else function["defer_loading"]
    if inner is not None:
        seen["defer_loading"] = inner
    return {"type": "function", "function": seen, **({} if deferred is None else {"defer_loading": deferred})}


def tools_of(fields):
    tools = fields.get("tools")
    if tools is None:
        return None
    if not isinstance(tools, list) or not tools:
        raise Refused("invalid_argument", "'tools' must be a list of at least one tool")
    return [tool_of(tool) for tool in tools]


def template_of_processor(directory):
    """The template of a model for images and text that has it in a file of its own, where transformers' tokenizer does not look; None without."""
    try:
        with open(os.path.join(directory, "chat_template.json"), encoding="utf-8") as file:
            return json.load(file).get("chat_template")
    except (OSError, ValueError, AttributeError):
        return None


class ChatTemplate:
    """The model's own chat template, rendered by transformers."""
    # Arguments of apply_chat_template that chat_template_kwargs must not have, and those that change nothing or that the body's own fields set.
    REFUSED = {"self", "conversation", "messages", "chat_template", "tokenize", "return_assistant_tokens_mask"}
    DROPPED = {"add_generation_prompt", "continue_final_message", "padding", "truncation", "max_length", "return_tensors", "return_dict",
               "tokenizer_kwargs"}

    def __init__(self, directory):
        os.environ["HF_HUB_OFFLINE"] = "1"
        os.environ["TRANSFORMERS_VERBOSITY"] = "error"
        # transformers imports torch if it is installed. That takes six seconds and 370 MiB instead of two and 80, and torch wants to write files.
        # It is there already where a test compares with vLLM.
        sys.modules.setdefault("torch", None)
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
            self._tokenizer.chat_template = template_of_processor(directory)
        if not self._tokenizer.chat_template:
            raise Refused("unsupported", f"{directory} has no chat template, in tokenizer_config.json, chat_template.jinja or chat_template.json")
        self.library = f"transformers {transformers.__version__}"
        self._takes_parts = {}  # by template: a model may have one for chats with tools

    def render(self, fields):
        """The prompt, as text, for the body of a chat completion."""
        messages = fields.get("messages")
        if not isinstance(messages, list) or not messages:
            raise Refused("invalid_argument", "'messages' must be a list of at least one message")
        given = self.given(fields)
        template = self.template(given.get("tools"))
        if template not in self._takes_parts:
            self._takes_parts[template] = takes_parts(template)
        seen = [message_of(message, self._takes_parts[template]) for message in messages]
        knows_developers = "'developer'" in template or '"developer"' in template
        if not knows_developers and any(message["role"] == "developer" for message in seen):
            seen = with_one_system_message(seen)
        try:
            return self._tokenizer.apply_chat_template(seen, chat_template=template, tokenize=False, **given)
        except Exception as why:  # templates raise errors for what they do not accept
            raise Refused("invalid_argument", f"the chat template: {type(why).__name__}: {why}") from why

    def template(self, tools):
        try:
            return self._tokenizer.get_chat_template(None, tools=tools)
        except ValueError as why:  # several templates and none that is the default
            raise Refused("invalid_argument", f"the chat template: {why}") from why

    def given(self, fields):
        """The arguments of the template. The body's fields come before chat_template_kwargs, null and "auto" count as left out."""
        more = fields.get("chat_template_kwargs")
        more = {} if more is None else more
        if not isinstance(more, dict) or any(more.get(name) is not None for name in self.REFUSED):
            raise Refused("invalid_argument", f"'chat_template_kwargs' must be an object without any of {', '.join(sorted(self.REFUSED))}")
        own = {name: fields.get(name) for name in ("add_generation_prompt", "continue_final_message", "documents", "reasoning_effort")}
        for name in ("add_generation_prompt", "continue_final_message"):
            if own[name] not in (None, True, False):
                raise Refused("invalid_argument", f"'{name}' must be true or false")
        if own["reasoning_effort"] is not None and "enable_thinking" not in more:
            own["enable_thinking"] = own["reasoning_effort"] != "none"
        tools = tools_of(fields)
        given = {"add_generation_prompt": True, "continue_final_message": False, "tools": tools}
        for source in ({name: value for name, value in more.items() if name not in self.DROPPED}, own):
            given.update({name: value for name, value in source.items() if value is not None and value != "auto"})
        return given


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
