#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds and runs examples/ against a real group, as their heads say. Those of vLLM and Transformers need packages of a gigabyte: tests/engines
runs them, and here they are compiled and what they import of this tree is there. EXAMPLES_PYTHON: a Python that has NumPy, torch, transformers
and vLLM, which runs all of them."""
import ast
import glob
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = os.environ["MILLRACE_SOURCE_DIR"]
sys.path += [os.path.join(ROOT, "tests", folder) for folder in ("e2e", "support")]
import pypi  # noqa: E402
from service import BIN_DIR, MODEL_DIR, PATIENCE_S, Service, ServiceTestCase, make_prompt  # noqa: E402

EXAMPLES = os.path.join(ROOT, "examples")
PACKAGE = os.path.join(ROOT, "sdk", "python")
ENGINES_PYTHON = os.environ.get("EXAMPLES_PYTHON")


class ExamplesTest(ServiceTestCase):
    @classmethod
    def setUpClass(cls):
        cls.service = Service()
        cls.addClassCleanup(cls.service.close)
        cls.service.start_group("--dtype", "float32", cp=2)
        cls.server = f"127.0.0.1:{cls.service.http_port}"
        directory = tempfile.TemporaryDirectory(prefix="millrace-examples-")
        cls.addClassCleanup(directory.cleanup)
        cls.directory = directory.name
        cls.prompt = make_prompt(2048, seed=1)
        cls.prompt_path = cls.path("prompt.json")
        with open(cls.prompt_path, "w") as file:
            json.dump(cls.prompt["prompt_token_ids"], file)
        cls.first_token = str(cls.prompt["answer_token_ids"][0])

    @classmethod
    def path(cls, name):
        return os.path.join(cls.directory, name)

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    def run_example(self, *command, stdin=None, **environment):
        path = os.pathsep.join([BIN_DIR, os.environ["PATH"]])
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE_S, stdin=stdin, cwd=self.directory,
                              env={**os.environ, "PATH": path, **environment})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def response(self):
        said = self.run_example(os.path.join(EXAMPLES, "prefill.sh"), self.server, "fixture", self.prompt_path, self.path("response.json"))
        return said, self.path("response.json")

    def test_curl(self):
        said, response = self.response()
        self.assertIn(f"first token:  {self.first_token}\n", said)
        give_back = re.search(r"give it back: (.*)", said)[1].split()
        self.run_example(*give_back, "--fail-with-body")
        with open(response) as file:
            request_id = json.load(file)["manifest"]["request_id"]
        self.assertEqual(self.service.get(f"/v1/prefill/{request_id}")[2]["lease"]["state"], "released")

    def test_c_and_cpp_against_the_installed_sdk(self):
        build = os.path.dirname(BIN_DIR)
        prefix = self.path("sdk")
        self.run_example("cmake", "--install", build, "--component", "sdk", "--prefix", prefix)
        packages = os.path.dirname(glob.glob(os.path.join(prefix, "**", "millrace-kv.pc"), recursive=True)[0])
        _, response = self.response()
        for name in "pull.c", "pull.cc":
            with self.subTest(name):
                path = os.path.join(EXAMPLES, name)
                with open(path) as file:
                    command = re.search(r"^ ?[*/]+ +(c\S+ -std=.*) && ", file.read(), re.M)[1]
                command = command.replace(f" {name} ", f" -Wall -Wextra -Werror {path} ")
                self.run_example("sh", "-c", command, PKG_CONFIG_PATH=packages)
                with open(response) as file:
                    said = self.run_example(self.path("pull"), stdin=file, LD_LIBRARY_PATH=os.path.dirname(packages))
                self.assertTrue(said.endswith(f"the first token is {self.first_token}\n"), said)

    def test_python(self):
        python, environment = ENGINES_PYTHON or sys.executable, {}
        if not ENGINES_PYTHON:
            try:
                numpy = pypi.install(os.path.join(ROOT, "tests", "examples", "requirements.txt"), os.path.join(ROOT, "build", "examples-packages"))
            except pypi.Unavailable as why:
                self.skipTest(str(why))
            environment["PYTHONPATH"] = os.pathsep.join([numpy, PACKAGE])
        said = self.run_example(python, os.path.join(EXAMPLES, "pull.py"), self.server, "fixture", self.prompt_path, **environment)
        self.assertIn("layer 4: the largest key is", said)
        self.assertIn(f"the first token is {self.first_token}\n", said)

    def test_batch(self):
        prompts = self.path("prompts.jsonl")
        with open(prompts, "w") as file:
            for name in "a", "b":
                file.write(json.dumps({"id": name, "max_tokens": 4, "prompt_token_ids": self.prompt["prompt_token_ids"]}) + "\n")
        said = self.run_example(os.path.join(EXAMPLES, "batch.sh"), MODEL_DIR, prompts, self.path("out"), GOMP_SPINCOUNT="1000",
                                OMPI_MCA_pml="ob1", OMPI_MCA_btl="self,vader,tcp")
        for name in "a", "b":
            self.assertIn(f"{name} ok {self.prompt['answer_token_ids']}\n", said)

    @unittest.skipUnless(ENGINES_PYTHON, "EXAMPLES_PYTHON names no Python with transformers (tests/engines/run does)")
    def test_transformers(self):
        said = self.run_example(ENGINES_PYTHON, os.path.join(EXAMPLES, "answer_transformers.py"), self.server, "fixture", MODEL_DIR, self.prompt_path)
        self.assertIn(f"answer: {self.prompt['answer_token_ids']}\n", said)

    @unittest.skipUnless(ENGINES_PYTHON, "EXAMPLES_PYTHON names no Python with vLLM (tests/engines/run does)")
    def test_vllm(self):
        service = Service()  # whose only group has vLLM's dtype
        self.addCleanup(service.close)
        service.start_group("--dtype", "bfloat16", cp=2)
        said = self.run_example(ENGINES_PYTHON, os.path.join(EXAMPLES, "answer_vllm.py"), f"127.0.0.1:{service.http_port}", MODEL_DIR, self.prompt_path,
                                VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_LOGGING_LEVEL="WARNING", VLLM_NO_USAGE_STATS="1",
                                VLLM_WORKER_MULTIPROC_METHOD="spawn")
        # It came from Millrace.
        self.assertTrue('millrace_prefill_requests_total{outcome="done",reason="ok"} 1\n' in service.get("/metrics")[2])
        self.assertIn(f"answer: {self.prompt['answer_token_ids']}\n", said)


class SourcesTest(unittest.TestCase):
    def test_what_python_examples_import_of_this_tree_is_there(self):
        sys.path.insert(0, PACKAGE)
        names = []
        for path in glob.glob(os.path.join(EXAMPLES, "*.py")):
            with open(path) as file:
                tree = ast.parse(file.read(), path)
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "millrace_kv":
                    names += [(node.module, alias.name) for alias in node.names]
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"millrace_kv\.\w+", node.value):
                    names.append((node.value, None))
        self.assertGreaterEqual(len(names), 4)
        for module, name in names:
            with self.subTest(module=module, name=name):
                path = os.path.join(PACKAGE, *module.split("."))
                if os.path.isdir(path):
                    self.assertTrue(hasattr(importlib.import_module(module), name))
                else:
                    with open(path + ".py") as file:  # it may need packages that are missing
                        defined = {node.name for node in ast.parse(file.read()).body if hasattr(node, "name")}
                    self.assertTrue(name is None or name in defined)

    def test_an_example_is_short(self):
        for path in glob.glob(os.path.join(EXAMPLES, "*")):
            with self.subTest(path=path), open(path) as file:
                self.assertLess(len(file.readlines()), 75)


if __name__ == "__main__":
    unittest.main(verbosity=2)
