// SPDX-License-Identifier: Apache-2.0
/* Pulls the cache of the manifest on standard input into blocks of 16 tokens, [blocks, tokens, heads, dim], and
 * prints the FNV-1a hash of each layer's rows. The example of docs/kv-client.md. */
#include <inttypes.h>
#include <millrace/millrace_kv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_TOKENS 16

static void check(mkv_status status, const char* doing) {
  if (status == MKV_OK) return;
  fprintf(stderr, "%s: %s: %s\n", doing, mkv_status_name(status), mkv_last_error());
  exit(1);
}

static uint64_t hash_bytes(uint64_t hash, const unsigned char* bytes, int64_t count) {
  for (int64_t i = 0; i < count; ++i) hash = (hash ^ bytes[i]) * 1099511628211u;
  return hash;
}

int main(void) {
  static char json[1 << 20];
  if (fgets(json, sizeof json, stdin) == NULL) return 2;
  if (mkv_version() >> 16 != MKV_VERSION_MAJOR) return 2;

  /* [engine] */
  mkv_client* client = NULL;
  check(mkv_client_create(NULL, &client), "client");

  mkv_manifest* manifest = NULL;
  check(mkv_manifest_parse(json, strlen(json), &manifest), "manifest");
  mkv_manifest_info info = {.struct_bytes = sizeof info};
  check(mkv_manifest_get(manifest, &info), "manifest");

  int64_t num_blocks = (info.num_tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
  int64_t row = (int64_t)info.head_dim * info.dtype_bytes;
  int64_t block = BLOCK_TOKENS * info.num_kv_heads * row;
  int32_t* block_ids = malloc((size_t)num_blocks * sizeof *block_ids);
  for (int64_t i = 0; i < num_blocks; ++i) block_ids[i] = (int32_t)(num_blocks - 1 - i);
  mkv_layer_destination* layers = calloc((size_t)info.num_layers, sizeof *layers);
  for (int32_t i = 0; i < info.num_layers; ++i) {
    layers[i].k = malloc((size_t)(num_blocks * block));
    layers[i].v = malloc((size_t)(num_blocks * block));
    layers[i].block_stride = block;
    layers[i].token_stride = info.num_kv_heads * row;
    layers[i].head_stride = row;
  }

  mkv_pull_request request = {.struct_bytes = sizeof request,
                              .num_layers = info.num_layers,
                              .num_kv_heads = info.num_kv_heads,
                              .dtype = info.dtype,
                              .head_dim = info.head_dim,
                              .block_tokens = BLOCK_TOKENS,
                              .num_tokens = info.num_tokens,
                              .num_blocks = num_blocks,
                              .block_ids = block_ids,
                              .layers = layers,
                              .timeout_s = 60};
  mkv_pull* pull = NULL;
  check(mkv_pull_start(client, manifest, &request, &pull), "pull");
  for (int32_t layer = 0; layer < info.num_layers; ++layer) {
    mkv_status status;
    while ((status = mkv_pull_wait_layer(pull, layer, 0.1)) == MKV_PENDING) {
      /* the engine does something else */
    }
    check(status, "layer");
  }
  check(mkv_pull_wait(pull, 60), "pull");
  /* [engine] */

  mkv_pull_stats stats = {.struct_bytes = sizeof stats};
  check(mkv_pull_get_stats(pull, &stats), "stats");
  if (stats.pages_done != stats.pages_total || stats.bytes != stats.pages_total * info.page_bytes)
    return 3;

  for (int32_t layer = 0; layer < info.num_layers; ++layer) {
    uint64_t hash = 14695981039346656037u;
    for (int32_t head = 0; head < info.num_kv_heads; ++head) {
      for (int64_t token = 0; token < info.num_tokens; ++token) {
        int64_t at = block_ids[token / BLOCK_TOKENS] * block +
                     token % BLOCK_TOKENS * info.num_kv_heads * row + head * row;
        hash = hash_bytes(hash, (unsigned char*)layers[layer].k + at, row);
        hash = hash_bytes(hash, (unsigned char*)layers[layer].v + at, row);
      }
    }
    printf("%016" PRIx64 "\n", hash);
    free(layers[layer].k);
    free(layers[layer].v);
  }
  mkv_pull_destroy(pull);
  mkv_manifest_destroy(manifest);
  mkv_client_destroy(client);
  free(layers);
  free(block_ids);
  return 0;
}
