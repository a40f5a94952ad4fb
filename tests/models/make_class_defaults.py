#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_class_defaults.py OUT: writes what Transformers' config classes assume where a config.json does not say, for each architecture of
model/config/family.cc, as a config.json that says all of it. Needs transformers; torch is not needed. Tests read class_defaults.json."""
import json
import sys

import transformers

ARCHITECTURES = {
    "gemma3_text": "Gemma3ForCausalLM", "glm4": "Glm4ForCausalLM", "glm4_moe": "Glm4MoeForCausalLM", "gpt_oss": "GptOssForCausalLM",
    "hy_v3": "HYV3ForCausalLM", "llama": "LlamaForCausalLM", "minimax_m2": "MiniMaxM2ForCausalLM", "ministral": "MinistralForCausalLM",
    "mistral": "MistralForCausalLM", "mixtral": "MixtralForCausalLM", "phi3": "Phi3ForCausalLM", "qwen2": "Qwen2ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM", "qwen3": "Qwen3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM", "seed_oss": "SeedOssForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
}


def fields(model_type):
    """Those of the class, without those that every class has and this one leaves as they are."""
    every = transformers.PreTrainedConfig().to_dict()
    own = transformers.CONFIG_MAPPING[model_type]().to_dict()
    kept = {"eos_token_id", "tie_word_embeddings"}
    return {name: value for name, value in own.items() if name in kept or name not in every or every[name] != value}


everything = {"transformers": transformers.__version__}
for model_type, architecture in ARCHITECTURES.items():
    everything[architecture] = {"architectures": [architecture], **fields(model_type)}
with open(sys.argv[1], "w") as file:
    file.write("{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in everything.items()) + "\n}\n")
