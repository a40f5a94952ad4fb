#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a chat becomes: the prompt that tokenizer/millrace_tokenizer.py renders is the one that vLLM renders from the same body, in this process."""
import glob
import importlib.util
import json
import logging
import os
import shutil
import sys
import tempfile
import types
import unittest

os.environ.update(VLLM_LOGGING_LEVEL="CRITICAL", VLLM_NO_USAGE_STATS="1", HF_HUB_OFFLINE="1")
SOURCE_DIR = os.environ["MILLRACE_SOURCE_DIR"]
FIXTURE = os.path.join(SOURCE_DIR, "tests/models/fixture")
SCRATCH = tempfile.TemporaryDirectory(prefix="millrace-rendering-")

from transformers import AutoTokenizer  # noqa: E402
from vllm import EngineArgs  # noqa: E402
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest  # noqa: E402
from vllm.exceptions import VLLMValidationError  # noqa: E402
from vllm.renderers import merge_kwargs  # noqa: E402
from vllm.renderers.hf import HfRenderer  # noqa: E402

# Everything that a template can see, as JSON, so that the order of fields shows as well.
SEEN = """{{ messages | tojson }}
{%- for name, value in (('tools', tools), ('documents', documents), ('effort', reasoning_effort), ('thinking', enable_thinking), ('word', word),
                        ('prompt', add_generation_prompt)) %}{% if value is defined %} {{ name }}={{ value | tojson }}{% endif %}{% endfor %}"""
TEMPLATES = {
    "text": SEEN,
    "parts": SEEN + "{% for m in messages %}{% for p in m['content'] %}{% endfor %}{% endfor %}",
    "parts by a macro": SEEN + """{% macro show(what) %}{% for p in what %}{{ p.type }}{% endfor %}{% endmacro %}
{%- for m in messages %}{{ show(m.content) }}{% endfor %}""",
    "parts by a variable": SEEN + "{% set rest = messages[1:] %}{% for m in rest %}{% for p in m.content | list %}{% endfor %}{% endfor %}",
    "parts by the name content": SEEN + "{% for m in messages %}{% set content = m.content %}{% for p in content %}{% endfor %}{% endfor %}",
    "a loop over something else": SEEN + "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.id }}{% endfor %}{% endfor %}",
    "a loop in another macro": SEEN + "{% macro show(content) %}{% for p in content %}{% endfor %}{% endmacro %}",
    "developers": SEEN + "{% if false %}'developer'{% endif %}",
    "developers and parts": SEEN + "{% if false %}'developer'{% endif %}{% for m in messages %}{% for p in m['content'] %}{% endfor %}{% endfor %}",
    "training": SEEN + "{% for m in messages %}{% generation %}{% for p in m.content %}{% endfor %}{% endgeneration %}{% endfor %}",
}
CONTINUED = "{% for m in messages %}{{ m.role + ': ' + m.content + '.' }}{% endfor %}"

USER = {"role": "user", "content": "hi"}
CALL = {"type": "function", "id": "c", "function": {"name": "f", "arguments": "{\"b\": 1, \"a\": [null]}"}}


def call(arguments):
    return {"role": "assistant", "content": "a", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": arguments}}]}


def parts(*texts, role="user", **more):
    return {"role": role, "content": [{"type": "text", "text": text} for text in texts], **more}


def tool(**function):
    return {"type": "function", "function": function}


# Rows of the table in docs/api.md: what is sent, and bodies with it.
SENT = {
    "content that is null": [[USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}]],
    "no content": [[{"role": "assistant", "tool_calls": [CALL]}], [{"role": "user"}]],
    "fields of an answer that are null": [[{"role": "assistant", "content": "a", "tool_calls": None, "refusal": None, "audio": None,
                                            "function_call": None, "annotations": None}]],
    "no tool calls": [[{"role": "assistant", "content": "a", "tool_calls": []}]],
    "arguments": [[call("{\"b\": 1, \"a\": {}}")], [call("")], [call("{")], [call("[]")], [call("42")], [call("null")]],
    "further fields of a call": [[{"role": "assistant", "tool_calls": [
        {"index": 0, "more": 1, "id": "c", "type": "function", "function": {"more": 2, "name": "f", "arguments": "{}"}}]}]],
    "text parts": [[parts("x", "y")], [parts("", "x")], [parts("x")], [parts()], [parts("s", "t", role="system"), USER]],
    "further fields of a part": [[{"role": "user", "content": [
        {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}, "name": "y"}, "z"]}]],
    "refusals and thoughts as parts": [[{"role": "assistant", "content": [
        {"type": "thinking", "thinking": "x", "closed": True}, {"type": "refusal", "refusal": "y"}]}]],
    "answers of tools": [[{"role": "tool", "content": "5", "tool_call_id": "c"}], [parts("5", "6", role="tool", tool_call_id="c")],
                         [{"role": "tool", "content": "5", "name": "f"}], [{"role": "function", "content": None, "name": "f"}],
                         [{"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "x"}, {"type": "tool_reference", "name": "y"}]}]],
    "reasoning": [[{"role": "assistant", "content": "a", "reasoning_content": "r"}], [{"role": "assistant", "content": "a", "reasoning": "r"}],
                  [{"role": "assistant", "content": "a", "reasoning": "r", "reasoning_content": "s"}],
                  [{"role": "assistant", "content": "a", "reasoning_content": None}], [{**USER, "reasoning_content": "r"}]],
    "names": [[{**USER, "name": "n"}], [{"role": "assistant", "content": "a", "name": "n"}]],
    "further fields of a message": [[{**USER, "prefix": True, "thinking": "t", "tool_calls": [CALL], "tool_call_id": "c", "task": "k"}]],
    "developers": [[{"role": "developer", "content": "d"}, USER], [{"role": "system", "content": "s"}, USER, parts("d", "e", role="developer")],
                   [{"role": "developer", "content": "d", "name": "n", "tools": [{"more": 1, **tool(more=2, parameters={}, name="g")}]}, USER]],
    "several system messages": [[{"role": "system", "content": "s"}, USER, {"role": "system", "content": "t"}]],
    "Claude Code's billing line": [[{"role": "system", "content": "x-anthropic-billing-header: 1\ns"}, USER],
                                   [parts("x-anthropic-billing-header: 1", "s", role="system"), USER],
                                   [{"role": "user", "content": "x-anthropic-billing-header: 1\ns"}]],
    "tools": [{"tools": [tool(parameters={"z": 1, "a": 2}, name="g", more=1)]}, {"tools": [tool(name="g")], "tool_choice": "none"},
              {"tools": [{"function": {"name": "g", "description": "d", "strict": True}, "more": 1}], "tool_choice": "auto"},
              {"tools": [{**tool(name="g"), "defer_loading": True}]}, {"tools": None}],
    "documents": [{"documents": [{"title": "a", "text": "b"}]}, {"documents": []}],
    "reasoning_effort": [{"reasoning_effort": effort} for effort in ("none", "low", "high", None)],
    "chat_template_kwargs": [{"chat_template_kwargs": given} for given in (
        None, {}, {"word": 1}, {"word": None}, {"word": "auto"}, {"enable_thinking": False}, {"reasoning_effort": "high"},
        {"add_generation_prompt": False}, {"continue_final_message": True}, {"documents": [{"a": "b"}]}, {"tools": [{"a": "b"}]},
        {"padding": True, "truncation": True, "max_length": 1}, {"chat_template": None})],
    "reasoning_effort and enable_thinking": [{"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}}],
    "add_generation_prompt": [{"add_generation_prompt": False}, {"add_generation_prompt": True}],
    "older fields": [{"functions": [{"name": "g"}], "function_call": "auto", "audio": {"voice": "x"}, "modalities": ["text"]}],
}
# What vLLM refuses is refused here as well.
REFUSED = {
    "no messages": {"messages": []}, "a message that is no object": {"messages": ["x"]}, "no role": {"messages": [{"content": "x"}]},
    "content that is no text": {"messages": [{"role": "user", "content": 3}]},
    "files": {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "x"}}]}]},
    "parts without a type": {"messages": [{"role": "user", "content": [{"text": "x"}]}]},
    "calls of other types": {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "f", "input": "x"}}]}]},
    "an empty list of tools": {"tools": []}, "tools of other types": {"tools": [{"type": "web_search"}]}, "tools without a function": {"tools": [{"name": "g"}]},
    "tools without a name": {"tools": [tool(description="d")]}, "tools that are no list": {"tools": {}},
    "parameters that are no object": {"tools": [tool(name="g", parameters="x")]},
    "chat_template_kwargs that is no object": {"chat_template_kwargs": [1]}, "messages in chat_template_kwargs": {"chat_template_kwargs": {"messages": []}},
    "both ways to end": {"continue_final_message": True, "add_generation_prompt": True}, "an end that is no boolean": {"add_generation_prompt": "x"},
}


WEATHER = tool(parameters={"type": "object", "properties": {"a": {"type": "integer", "description": "q"}}, "required": ["a"]}, name="f", description="d")
LONG_CALL = {"id": "callabcde", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1, \"b\": \"x\"}"}}
CONVERSATIONS = [
    {"messages": [{"role": "system", "content": "s"}, USER]}, {"messages": [USER, {"role": "assistant", "content": "a"}, parts("x", "y")]},
    {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [LONG_CALL]}, {"role": "tool", "tool_call_id": "callabcde", "content": "5"}],
     "tools": [WEATHER]},
    {"messages": [USER, {"role": "assistant", "tool_calls": [LONG_CALL]}, parts("5", "6", role="tool", tool_call_id="callabcde"), USER]},
    {"messages": [{"role": "developer", "content": "d"}, USER]},
    {"messages": [parts("s", role="system"), USER, {"role": "assistant", "content": "a", "reasoning_content": "r", "tool_calls": None}, USER],
     "reasoning_effort": "high"},
    {"messages": [USER], "tools": [WEATHER], "chat_template_kwargs": {"enable_thinking": False}},
    {"messages": [USER, {"role": "assistant", "content": "yes"}], "add_generation_prompt": False, "continue_final_message": True},
]


def module():
    spec = importlib.util.spec_from_file_location("millrace_tokenizer", os.path.join(SOURCE_DIR, "tokenizer/millrace_tokenizer.py"))
    made, path = importlib.util.module_from_spec(spec), list(sys.path)
    spec.loader.exec_module(made)
    sys.path[:] = path  # the program leaves out the folder of its script
    return made


OURS = module()


def directory_of(templates):
    path = tempfile.mkdtemp(dir=SCRATCH.name)
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(os.path.join(FIXTURE, name), path)
    with open(os.path.join(path, "tokenizer_config.json"), "w") as file:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>", "eos_token": "<eos>", "chat_template": templates}, file)
    return path


class Renderers:
    """Ours and vLLM's over the same folder."""
    model_config = None

    def __init__(self, templates):
        directory = directory_of(templates)
        if Renderers.model_config is None:
            Renderers.model_config = EngineArgs(model=directory).create_model_config()
        self._tokenizer = AutoTokenizer.from_pretrained(directory)
        self._ours = OURS.ChatTemplate(directory)

    def vllms(self, body):
        # As OnlineRenderer.render_chat and preprocess_chat do.
        request = ChatCompletionRequest(**{"model": "m", **json.loads(json.dumps(body))})
        tools = None if request.tools is None else [one.model_dump() for one in request.tools]
        params = request.build_chat_params(None, "auto").with_defaults(merge_kwargs(None, {"tools": tools, "tokenize": False}))
        renderer = types.SimpleNamespace(model_config=self.model_config, get_tokenizer=lambda: self._tokenizer, use_unified_vision_chunk=False)
        return HfRenderer.render_messages(renderer, request.messages, params)[1]["prompt"]

    def ours(self, body):
        return self._ours.render(json.loads(json.dumps(body)))


class RenderingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.renderers = {name: Renderers(template) for name, template in TEMPLATES.items()}

    def test_every_chat_is_rendered_as_vllm_renders_it(self):
        for name, renderers in self.renderers.items():
            for sent, bodies in SENT.items():
                for body in bodies:
                    body = {"messages": body} if isinstance(body, list) else {"messages": [USER], **body}
                    with self.subTest(template=name, sent=sent, body=body):
                        self.assertEqual(renderers.ours(body), renderers.vllms(body))

    def test_what_vllm_refuses_is_refused(self):
        renderers = self.renderers["text"]
        for sent, body in REFUSED.items():
            body = {"messages": [USER], **body}
            with self.subTest(sent=sent):
                self.assertRaises((VLLMValidationError, ValueError), renderers.vllms, body)  # the latter are pydantic's
                self.assertRaises(OURS.Refused, renderers.ours, body)

    @unittest.skipUnless("MILLRACE_TEMPLATES" in os.environ, "no folder of templates")
    def test_the_templates_of_a_folder(self):
        """For chat templates of published models: `pip download --no-deps trl axolotl`, unzipped, has a hundred of them."""
        def outcome(render, body):
            try:
                return render(body)
            except (VLLMValidationError, ValueError, OURS.Refused):  # raised by the template
                return None
        paths = glob.glob(os.path.join(os.environ["MILLRACE_TEMPLATES"], "**", "*.jinja"), recursive=True)
        self.assertTrue(paths)
        for path in paths:
            with open(path) as file:
                renderers = Renderers(file.read())
            for body in CONVERSATIONS:
                with self.subTest(path=path, body=body):
                    self.assertEqual(outcome(renderers.ours, body), outcome(renderers.vllms, body))

    def test_a_last_message_is_continued_as_vllm_continues_it(self):
        renderers = Renderers(CONTINUED)
        for text in ("yes", "yes ", ""):
            body = {"messages": [USER, {"role": "assistant", "content": text}], "continue_final_message": True, "add_generation_prompt": False}
            with self.subTest(text=text):
                self.assertEqual(renderers.ours(body), renderers.vllms(body))

    def test_a_template_of_its_own_for_tools_is_used_with_tools(self):
        renderers = Renderers([{"name": "default", "template": "plain " + TEMPLATES["text"]}, {"name": "tool_use", "template": "tools " + TEMPLATES["parts"]}])
        for body, begin in (({}, "plain "), ({"tools": [tool(name="g")]}, "tools ")):
            body = {"messages": [parts("x", "y")], **body}
            self.assertEqual(renderers.ours(body), renderers.vllms(body))
            self.assertTrue(renderers.ours(body).startswith(begin))

    def test_a_template_may_be_in_the_processors_file(self):
        directory = directory_of(None)
        with open(os.path.join(directory, "chat_template.json"), "w") as file:
            json.dump({"chat_template": "{{ messages[0].content }}!"}, file)
        self.assertEqual(OURS.ChatTemplate(directory).render({"messages": [USER]}), "hi!")

    def test_parts_go_to_templates_that_loop_over_them(self):
        body = {"messages": [parts("x", "y")]}
        as_parts = {name for name, renderers in self.renderers.items() if '"type": "text"' in renderers.vllms(body)}
        self.assertEqual(as_parts, {name for name in TEMPLATES if "parts" in name} | {"training"})


if __name__ == "__main__":
    logging.disable()  # vLLM's remarks on these chats
    unittest.main(verbosity=2)
