#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A prompt by curl: prefills it, shows what came of it, and writes the response, by whose manifest a decode node pulls the cache.
#   examples/prefill.sh HOST:PORT MODEL PROMPT RESPONSE     PROMPT: a JSON list of token ids
set -euo pipefail
server=http://$1 model=$2 prompt=$3 response=$4

call() { curl -sS --fail-with-body -H 'Content-Type: application/json' "$@"; }
field() { python3 -c 'import json, sys
value = json.load(open(sys.argv[1]))
for name in sys.argv[2:]: value = value[name]
print(value)' "$response" "$@"; }

# The answer comes when the prefill has ended; the cache is kept for lease_ms more.
printf '{"model": "%s", "prompt_token_ids": %s, "lease_ms": 60000}' "$model" "$(<"$prompt")" |
  call "$server/v1/prefill" --data-binary @- >"$response"

echo "first token:  $(field first_token_id)"
echo "density:      $(field density)  (the share of attention that was computed)"
echo "cached:       $(field cached_tokens) of $(field num_tokens) tokens"
echo "seconds:      $(field prefill_seconds)"
echo "give it back: curl -X DELETE $server/v1/prefill/$(field manifest request_id)"
