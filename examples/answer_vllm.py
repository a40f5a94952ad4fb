#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""vLLM generates from a cache that Millrace has prefilled: the prompt's KV cache arrives in vLLM's blocks, and vLLM computes one of its tokens.

    pip install vllm ./sdk/python
    examples/answer_vllm.py HOST:PORT DIR PROMPT     DIR: the model; PROMPT: a JSON list of token ids"""
import json
import sys

from vllm import LLM, SamplingParams


def main():
    address, directory, path = sys.argv[1:]
    with open(path) as file:
        tokens = json.load(file)

    # With `vllm serve`, the same JSON goes into --kv-transfer-config.
    connector = {"kv_connector": "MillraceConnector", "kv_connector_module_path": "millrace_kv.connector", "kv_role": "kv_consumer",
                 "kv_connector_extra_config": {"coordinator": address, "min_tokens": 512}}
    llm = LLM(directory, skip_tokenizer_init=True, enforce_eager=True, max_model_len=len(tokens) + 64, kv_transfer_config=connector)

    output, = llm.generate([{"prompt_token_ids": tokens}], SamplingParams(temperature=0, max_tokens=4, detokenize=False))
    print("answer:", list(output.outputs[0].token_ids))


# vLLM's processes import this file again.
if __name__ == "__main__":
    main()
