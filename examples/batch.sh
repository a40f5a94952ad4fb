#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A file of prompts without a service: two ranks compute each, generate four tokens, and write a line of results.
#   examples/batch.sh MODEL_DIR PROMPTS OUTPUT_DIR     PROMPTS: lines like {"id": "a", "prompt_token_ids": [1, 2], "max_tokens": 4}
set -euo pipefail
model=$1 prompts=$2 output=$3

# All options: millrace-batch --print-config.
options=$(mktemp)
trap 'rm -f "$options"' EXIT
cat >"$options" <<END
model = "$model"
input = "$prompts"
output = "$output"
cp = 2
END

root=()
if [[ $(id -u) == 0 ]]; then root=(--allow-run-as-root); fi
# What is done stays done: after a break, --resume goes on.
mpirun -n 2 "${root[@]}" --oversubscribe --bind-to none millrace-batch --config "$options"
python3 -c 'import json, sys
for line in open(sys.argv[1]):
    result = json.loads(line)
    print(result["id"], result["status"], result.get("generated_token_ids", result["error"]))' "$output/results.jsonl"
