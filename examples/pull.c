/* SPDX-License-Identifier: Apache-2.0 */
/* Pulls the KV cache of a response of POST /v1/prefill, on standard input, into blocks of an engine: [blocks, tokens,
 * kv heads, head dim] of K and of V for each layer.
 *   cc -std=c11 pull.c -o pull $(pkg-config --cflags --libs millrace-kv) && ./pull <response.json */
#include <millrace/millrace_kv.h>
#include <stdio.h>
#include <stdlib.h>

enum { BLOCK_TOKENS = 16 };

static void check(mkv_status status) {
  if (status == MKV_OK) return;
  fprintf(stderr, "%s: %s\n", mkv_status_name(status), mkv_last_error());
  exit(1);
}

int main(void) {
  static char json[1 << 24];
  const size_t length = fread(json, 1, sizeof json, stdin);
  mkv_manifest* manifest = NULL;
  check(mkv_manifest_parse(json, length, &manifest));
  mkv_manifest_info info = {.struct_bytes = sizeof info};
  check(mkv_manifest_get(manifest, &info));

  /* The engine's memory, and the blocks in it that the prompt gets: here all, in order. */
  const int64_t blocks = (info.num_tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
  const int64_t row = (int64_t)info.head_dim * info.dtype_bytes, token = info.num_kv_heads * row;
  int32_t* ids = malloc((size_t)blocks * sizeof *ids);
  for (int64_t i = 0; i < blocks; ++i) ids[i] = (int32_t)i;
  mkv_layer_destination* layers = calloc((size_t)info.num_layers, sizeof *layers);
  for (int32_t i = 0; i < info.num_layers; ++i) {
    layers[i] = (mkv_layer_destination){.k = malloc((size_t)(blocks * BLOCK_TOKENS * token)),
                                        .v = malloc((size_t)(blocks * BLOCK_TOKENS * token)),
                                        .block_stride = BLOCK_TOKENS * token,
                                        .head_stride = row,
                                        .token_stride = token};
  }
  const mkv_pull_request request = {.struct_bytes = sizeof request,
                                    .num_layers = info.num_layers,
                                    .num_kv_heads = info.num_kv_heads,
                                    .dtype = info.dtype,
                                    .head_dim = info.head_dim,
                                    .block_tokens = BLOCK_TOKENS,
                                    .num_tokens = info.num_tokens,
                                    .num_blocks = blocks,
                                    .block_ids = ids,
                                    .layers = layers,
                                    .timeout_s = 60};
  mkv_client* client = NULL;
  mkv_pull* pull = NULL;
  check(mkv_client_create(NULL, &client));
  check(mkv_pull_start(client, manifest, &request, &pull));
  check(mkv_pull_wait(pull, 60));

  mkv_pull_stats stats = {.struct_bytes = sizeof stats};
  check(mkv_pull_get_stats(pull, &stats));
  printf("%lld bytes of %d layers; the first token is %d\n", (long long)stats.bytes,
         info.num_layers, info.first_token_id);
}
