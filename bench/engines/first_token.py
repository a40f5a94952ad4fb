#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Seconds to the first token of prompts by length: vLLM alone, and vLLM whose prompts a Millrace group prefills.

    bench/engines/first_token.py --bin build/release/bin [--group-gpus 0 --vllm-gpus 1] [--models fixture llama-3-8b] [--tokens 8192 32768 131072]
        [--fixture-tokens 4096 16384 65536] [--repeats 3] [--warm-ups 5] [--tp 1] [--cp 1] [--vllm-tp 1] [--head-plan auto] [--options "..."]
        [--connector '{}'] [--output FILE]

A coordinator, a group and vLLM's OpenAI server run as processes on this machine, on GPUs or on the CPU. One vLLM serves both columns: alone, requests
say `"millrace": false`. vLLM's prefix cache is off, and no prompt is sent twice but for the other column. Of each model and length, one prompt of
vLLM's own and --warm-ups prompts of Millrace's come before the clock: by then the coordinator's forecasts are learnt, and the connector leaves prompts to
vLLM that it computes sooner. With --connector '{"only_if_sooner": false}' it leaves none.

`fixture`: the model of the tests, and prompts whose answers are known: of both columns all must be right. `llama-3-8b`: an 8B shape with random
weights on both sides. --tokens are its lengths, --fixture-tokens the fixture's. --tp, --cp: the group's ranks. --options: more for vLLM's server.
--connector: options of the connector, as JSON.

Prints JSON, and appends a table to --output. `prefill`: the group's part, from the start of the prompt on the group to its end, as the coordinator
measured it. `beside it`: the rest, as a share of the whole: the prompt's way to the group, the last pages, and vLLM's step for the last token.
`prefilled by Millrace`: of how many prompts; the connector may have left some to vLLM. Exit status 1 for a wrong answer, and when vLLM computed more
than one token of a prompt that Millrace had prefilled. Needs the Python that has vLLM 0.26 or later, with millrace-kv installed, or its folder in
PYTHONPATH and MILLRACE_KV_LIBRARY."""
import argparse
import json
import os
import random
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import engine_gpus

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
DIGITS = 4
# Shapes of millrace-worker's synthetic models (model/synthetic/synthetic_model.cc) as vLLM reads them.
SHAPES = {"llama-3-8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
                         "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "rope_theta": 283461213.0}}


def write_shape(name, directory):
    """Makes a model folder without weights."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "max_position_embeddings": 1 << 20, "rms_norm_eps": 1e-5, "hidden_act": "silu",
              "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16", "attention_bias": False, "mlp_bias": False}
    with open(os.path.join(directory, "config.json"), "w") as file:
        json.dump({**config, **SHAPES[name]}, file)
    return directory


def random_prompt(vocabulary, num_tokens, seed):
    numbers = random.Random(f"{num_tokens} {seed}")
    return {"prompt_token_ids": [numbers.randrange(1000, vocabulary) for _ in range(num_tokens)]}


class Measurement:
    """Sends prompts to one vLLM both ways. `service` has a group of the same model."""

    def __init__(self, service, server, make_prompt):
        self._service, self._server, self._make_prompt = service, server, make_prompt

    def row(self, num_tokens, repeats, warm_ups):
        """Returns a row of the table."""
        from service import wait_until
        alone, together, prefills, computed, wrong, answers = [], [], [], 0, 0, 0
        before = self._server.counters()["computed"]
        for repeat in range(-warm_ups, repeats):
            prompt = self._make_prompt(num_tokens, seed=1000 + repeat)
            expected = prompt.get("answer_token_ids")
            columns = (alone, {"kv_transfer_params": {"millrace": False}}), (together, {})
            for column, extra in columns if repeat >= 0 or repeat == -warm_ups else columns[1:]:
                prefilled, brought = self._prefilled(), self._brought()
                seconds, tokens = self._server.stream(prompt["prompt_token_ids"], DIGITS if expected else 1, **extra)
                answers += expected is not None
                wrong += expected is not None and tokens != expected
                is_brought = self._brought() > brought
                computed += 1 if is_brought else num_tokens
                prefill = self._prefill_since(prefilled) if is_brought else None
                if repeat >= 0:
                    column.append(seconds)
                    if is_brought:
                        prefills.append(prefill)
        wait_until("vLLM at rest", self._server.at_rest, 60)
        too_many = self._server.counters()["computed"] - before - computed
        row = {"tokens": num_tokens, "vLLM alone, s": round(statistics.median(alone), 3), "vLLM and Millrace, s": round(statistics.median(together), 3),
               "prefilled by Millrace": f"{len(prefills)} of {repeats}", "prefill, s": "", "beside it": "",
               "times as fast": round(statistics.median(alone) / statistics.median(together), 2), "answers": answers, "wrong": wrong,
               "prompt tokens too many in vLLM": too_many, "alone": [round(one, 3) for one in alone], "together": [round(one, 3) for one in together]}
        if len(prefills) == repeats:
            prefill = statistics.median(prefills)
            row.update({"prefill, s": round(prefill, 3), "beside it": f"{100 * (1 - prefill / statistics.median(together)):.1f} %"})
        return row

    def _brought(self):
        """Prompt tokens that the connector has brought so far."""
        return self._server.counters().get("external_kv_transfer", 0)

    def _prefilled(self):
        """(number, seconds) of all prefills that are done."""
        text = self._service.get("/metrics")[2]
        values = [next((float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(f"millrace_prefill_seconds_{part}{{")
                        and 'outcome="done"' in line), 0.0) for part in ("count", "sum")]
        return tuple(values)

    def _prefill_since(self, began):
        """Seconds of the one prefill since then. It may end a moment after its last page has arrived."""
        from service import wait_until
        wait_until("the prefill's end", lambda: self._prefilled()[0] == began[0] + 1, 60)
        return self._prefilled()[1] - began[1]


def vllm_version():
    return subprocess.run([sys.executable, "-c", "import vllm.version; print(vllm.version.__version__)"], check=True, capture_output=True,
                          text=True).stdout.split()[-1]


def passed(row):
    return row["wrong"] == 0 and row["prompt tokens too many in vLLM"] == 0


def table(model, rows, measured):
    columns = [name for name in rows[0] if name not in ("alone", "together")]
    text = "".join(f"- {name}: {value}\n" for name, value in measured.items()) + f"- model: {model}\n\n"
    text += "| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|\n"
    for row in rows:
        text += "| " + " | ".join(str(row[name]) for name in columns) + " |\n"
    return text + "\n"


def measure(arguments, model, directory):
    from openai_server import PATIENCE_S, OpenAIServer
    from service import MODEL_DIR, Service, free_ports, make_prompt, wait_until
    lengths = arguments.fixture_tokens if model == "fixture" else arguments.tokens
    vllm_options = ["--no-enable-prefix-caching", "--max-num-seqs", 8, *shlex.split(arguments.options)]
    if model == "fixture":
        vllm_model, group_model, make = MODEL_DIR, MODEL_DIR, make_prompt
    else:
        vllm_model, group_model = write_shape(model, directory), f"synthetic:{model}"
        vllm_options += ["--load-format", "dummy"]

        def make(num_tokens, seed):
            return random_prompt(SHAPES[model]["vocab_size"], num_tokens, seed)
    service = Service()
    server = None
    try:
        service.start_group(*engine_gpus.group_options(service, arguments), "--model", group_model, "--dtype", "bfloat16", "--head-plan", arguments.head_plan,
                            "--crossover-tokens", -1, tp=arguments.tp, cp=arguments.cp)
        server = OpenAIServer(vllm_model, f"127.0.0.1:{service.http_port}", free_ports(1), arguments.log, arguments.vllm_tp, arguments.connector, vllm_options,
                              gpus=arguments.vllm_gpus, max_model_len=max(lengths) + 64)
        wait_until("vLLM's server", server.ready, PATIENCE_S)
        measurement, rows = Measurement(service, server, make), []
        for num_tokens in lengths:
            rows.append(measurement.row(num_tokens, arguments.repeats, arguments.warm_ups))
            print(json.dumps({"model": model, **rows[-1]}), flush=True)
        return rows
    except BaseException:
        print(service.logs(), file=sys.stderr)
        raise
    finally:
        if server:
            server.close()
        service.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--models", nargs="+", default=["fixture", "llama-3-8b"], choices=["fixture", *SHAPES])
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 32768, 131072])
    parser.add_argument("--fixture-tokens", type=int, nargs="+", default=[4096, 16384, 65536])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--warm-ups", type=int, default=5)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--cp", type=int, default=1)
    parser.add_argument("--vllm-tp", type=int, default=1)
    parser.add_argument("--head-plan", default="auto")
    parser.add_argument("--options", default="")
    parser.add_argument("--connector", type=json.loads, default={})
    parser.add_argument("--commit", default="", help="what to state where git is not available")
    parser.add_argument("--log", default="/tmp/first_token.log", help="of vLLM")
    parser.add_argument("--output")
    engine_gpus.add_options(parser)
    arguments = parser.parse_args()
    os.environ["MILLRACE_SOURCE_DIR"], os.environ["MILLRACE_BIN_DIR"] = ROOT, os.path.abspath(arguments.bin)
    # Waiting threads must not spin on cores that others need.
    os.environ.update(GOMP_SPINCOUNT="1000", UCX_MEM_MMAP_HOOK_MODE="none")
    sys.path[:0] = [os.path.join(ROOT, "tests/e2e"), os.path.join(ROOT, "bench")]
    from measured_on import measured_on

    measured = {**measured_on(arguments.commit), "date": time.strftime("%Y-%m-%d", time.gmtime()), "vLLM": vllm_version(),
                **engine_gpus.measured_on(arguments)}
    good = True
    for model in arguments.models:
        with tempfile.TemporaryDirectory(prefix="millrace-shape-") as directory:
            rows = measure(arguments, model, directory)
        good = good and all(map(passed, rows))
        text = table(model, rows, measured)
        print(text, flush=True)
        if arguments.output:
            with open(arguments.output, "a") as file:
                file.write(text)
    return 0 if good else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
