/* SPDX-License-Identifier: Apache-2.0 */
/* The C interface of Millrace's KV client: pulls a KV cache that Millrace has prefilled from the
 * ranks that hold it into the paged blocks of a decode engine. docs/kv-client.md is its guide.
 *
 *   mkv_client_create              once a process: threads and connections
 *   mkv_manifest_parse             what the coordinator returned: where the cache is, and its shape
 *   mkv_pull_start                 layers and kv heads of it into paged blocks; returns at once
 *   mkv_pull_wait_layer, _wait     or poll with a timeout of 0
 *   mkv_pull_destroy, mkv_manifest_destroy, mkv_client_destroy
 *
 * Any process that can reach the ranks may pull with a manifest, not only the one that posted
 * the prompt. It may pull as often and in as many parts as it likes until the lease ends.
 *
 * Errors. Functions that can fail return an mkv_status: MKV_OK (0), MKV_PENDING (-1) if a wait
 * timed out, or a code that says what the caller can do. mkv_last_error() is the message of this
 * thread's last failed call. No C++ exception leaves the library, and only a bug in the library
 * makes it end the process.
 *
 * Threads. Every function may be called from any thread. Calls on one handle may run at the same
 * time, but none may run during or after its destroy function. Handles are independent: they may
 * be destroyed in any order. The library never calls back into the host. Create the client after
 * fork().
 *
 * Memory. Arguments (text, tables, structures) are copied before a call returns. The
 * destinations of a pull belong to it from mkv_pull_start until it has ended: until
 * mkv_pull_wait has returned anything but MKV_PENDING, or mkv_pull_destroy or mkv_client_destroy
 * has returned. After that nothing is written to them.
 *
 * Versions. A structure begins with `struct_bytes`; set it to its sizeof. Later versions add
 * fields at the end, so older callers keep working. The library sets no environment variables. */
#ifndef MILLRACE_KV_H
#define MILLRACE_KV_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define MKV_API __attribute__((visibility("default")))
#else
#define MKV_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header. The major number changes when callers must be recompiled. */
#define MKV_VERSION_MAJOR 1
#define MKV_VERSION_MINOR 7

/* The version of the library: major << 16 | minor. Do not go on if major is not
 * MKV_VERSION_MAJOR or minor is less than MKV_VERSION_MINOR. */
MKV_API uint32_t mkv_version(void);

/* ---- Errors ------------------------------------------------------------------------------ */

typedef int32_t mkv_status;
enum {
  MKV_PENDING = -1, /* not yet: the wait timed out */
  MKV_OK = 0,
  MKV_INVALID_ARGUMENT = 1, /* the call is wrong and will stay wrong */
  MKV_UNSUPPORTED = 2,      /* a manifest of a version, page layout or dtype unknown here */
  MKV_NOT_FOUND = 3,        /* the request is gone, the lease ended, or it is another request's */
  MKV_TOO_LARGE = 4,
  MKV_EXHAUSTED = 5,         /* full now; later may work */
  MKV_UNAVAILABLE = 6,       /* a page is not there yet */
  MKV_DEADLINE_EXCEEDED = 7, /* the pull's own deadline passed */
  MKV_CANCELLED = 8,
  MKV_PEER_LOST = 9, /* a rank died, went silent or cannot be reached */
  MKV_CORRUPT = 10,  /* bytes or text that are not what they claim to be */
  MKV_IO = 11,
  MKV_INTERNAL = 12,
  MKV_DENIED = 13 /* not for this caller */
};

/* "not_found"; "unknown" for other numbers. */
MKV_API const char* mkv_status_name(mkv_status status);
/* Why this thread's last failed call failed: what, where and the numbers. Valid until the
 * thread's next failed call; "" before the first. */
MKV_API const char* mkv_last_error(void);

/* ---- Manifest ----------------------------------------------------------------------------- */

typedef struct mkv_manifest mkv_manifest;

typedef int32_t mkv_dtype;
enum {
  MKV_FLOAT32 = 0,
  MKV_BFLOAT16 = 1,
  MKV_FLOAT16 = 2,
  /* From version 1.4 on: 8 bits without infinities (OCP), with scales (mkv_manifest_scales). */
  MKV_FLOAT8_E4M3 = 3
};

typedef struct mkv_manifest_info {
  uint32_t struct_bytes;
  int32_t num_layers;
  int32_t num_kv_heads; /* of the model */
  int32_t head_dim;
  mkv_dtype dtype;
  int32_t dtype_bytes;
  int32_t page_tokens;
  int32_t tp; /* of the group that prefilled; the reader's may differ */
  int32_t cp;
  int32_t num_shards;
  int32_t num_logprobs;
  int32_t is_result;      /* 0: the prefill is still running, and first_token_id is not known yet */
  int32_t first_token_id; /* greedy token after the prompt */
  int32_t reserved;       /* 0 */
  int64_t num_tokens;     /* of the prompt */
  int64_t num_pages;      /* of one layer and kv head */
  int64_t page_bytes;     /* K and V */
  int64_t lease_ms;       /* from when the prefill ended */
  double density;         /* share of the causal pairs that was computed */
  double recall;
  const char* request_id; /* valid as long as the manifest */
  const char* lease_id;
  const char* epoch; /* of the group: ends with it */
  const char* model;
  const char* model_fingerprint; /* of its config and weights: of no use with another model */
  /* From version 1.7 on. Of the coordinator's process that handed the manifest out, as in the
   * header X-Millrace-Instance of its answers; "": none did. A call that only that process is to
   * answer has the same header. */
  const char* coordinator_instance;
} mkv_manifest_info;

/* What one rank serves: some kv heads of some of the tokens. */
typedef struct mkv_shard_info {
  uint32_t struct_bytes;
  int32_t rank;
  int32_t first_kv_head;
  int32_t num_kv_heads;
  int64_t num_tokens;
  /* "tcp://host:port", "tls://...", "ucx://..."; valid as long as the manifest. */
  const char* address;
} mkv_shard_info;

/* Reads and checks the answer of POST /v1/prefill, the data of an event `manifest` or `done`, or
 * a bare manifest. Errors: MKV_INVALID_ARGUMENT (no manifest, impossible numbers, or shards that
 * do not cover the cache), MKV_UNSUPPORTED. */
MKV_API mkv_status mkv_manifest_parse(const char* json, size_t json_bytes, mkv_manifest** out);
MKV_API void mkv_manifest_destroy(mkv_manifest* manifest);
MKV_API mkv_status mkv_manifest_get(const mkv_manifest* manifest, mkv_manifest_info* out);
MKV_API mkv_status mkv_manifest_shard(const mkv_manifest* manifest, int32_t index,
                                      mkv_shard_info* out);
/* Most likely tokens after the prompt, best first. */
MKV_API mkv_status mkv_manifest_logprob(const mkv_manifest* manifest, int32_t index,
                                        int32_t* token_id, float* logprob);
/* For a cache of MKV_FLOAT8_E4M3: an element of this layer is its code times the scale; K and V
 * have separate scales. 1 and 1 for any other dtype. MKV_UNSUPPORTED if each kv head has scales
 * of its own. */
MKV_API mkv_status mkv_manifest_scales(const mkv_manifest* manifest, int32_t layer, float* k,
                                       float* v);
/* From version 1.5 on. The same for one kv head, whether the scales are the layer's or its own. */
MKV_API mkv_status mkv_manifest_head_scales(const mkv_manifest* manifest, int32_t layer,
                                            int32_t kv_head, float* k, float* v);
/* From version 1.6 on. Whether the cache has this page: 1, unless its request dropped pages
 * (kv_budget). 0 for those, and for pages outside the cache. */
MKV_API int32_t mkv_manifest_has_page(const mkv_manifest* manifest, int32_t layer, int32_t kv_head,
                                      int64_t page);
/* The manifest as JSON, for another process to parse. Returns the length of the text; writes the
 * text and a terminating 0 as far as they fit `buffer_bytes`. */
MKV_API size_t mkv_manifest_json(const mkv_manifest* manifest, char* buffer, size_t buffer_bytes);

/* ---- Events of a prefill that goes on ------------------------------------------------------ */

/* What is known of a request during its prefill. Pulls with a feed take each layer as soon as it
 * is ready; several pulls may share one feed. */
typedef struct mkv_feed mkv_feed;

MKV_API mkv_status mkv_feed_create(mkv_feed** out);
/* Pulls that still wait for layers of this feed fail with MKV_CANCELLED. */
MKV_API void mkv_feed_destroy(mkv_feed* feed);
/* Takes the next bytes of one request's server-sent events, cut anywhere. An error is the
 * request's: that of its event `error`, or MKV_CORRUPT for events that cannot be understood. It
 * is returned from then on. MKV_OK otherwise, also for anything after the event `done`. */
MKV_API mkv_status mkv_feed_write(mkv_feed* feed, const void* bytes, size_t num_bytes);
/* Instead of events, for a caller that learns of layers in another way: layers [0, num_layers)
 * are ready. The number never goes down. */
MKV_API mkv_status mkv_feed_set_layers_ready(mkv_feed* feed, int32_t num_layers);
/* No more events will come, for example because the stream broke off. Pulls that still wait for
 * layers fail with this error. Has no effect once the request is done. */
MKV_API mkv_status mkv_feed_fail(mkv_feed* feed, mkv_status code, const char* message);
/* The number of layers that are ready. */
MKV_API int32_t mkv_feed_layers_ready(const mkv_feed* feed);
/* The manifest to pull with, once an event has brought one; the caller destroys it. MKV_PENDING
 * after `timeout_s` seconds, at once for 0; or the request's error. */
MKV_API mkv_status mkv_feed_wait_manifest(mkv_feed* feed, double timeout_s, mkv_manifest** out);
/* The same for the manifest of the event `done`: that of the finished request, with its first
 * token. */
MKV_API mkv_status mkv_feed_wait_result(mkv_feed* feed, double timeout_s, mkv_manifest** out);

/* ---- Client ------------------------------------------------------------------------------- */

/* Threads that pull, and their connections to ranks, which are kept for the next pull. */
typedef struct mkv_client mkv_client;

typedef int32_t mkv_transport;
enum {
  /* If the ranks run on this host as the same user and offer it, this process copies pages from
   * their memory; else what their addresses say. */
  MKV_TRANSPORT_AUTO = 0,
  /* UCX's shared memory: only ucx:// addresses on this host. MKV_UNSUPPORTED in a library without
   * UCX. */
  MKV_TRANSPORT_SHM = 1,
  /* What the addresses say, without copies from the ranks' memory; ucx:// uses UCX over TCP. */
  MKV_TRANSPORT_TCP = 2
};

/* 0 in a field means its default. */
typedef struct mkv_client_options {
  uint32_t struct_bytes;
  mkv_transport transport;
  int32_t num_threads;          /* each has its own connection to every rank it pulls from */
  int32_t connections_per_rank; /* that pull from one rank at once, over all pulls */
  int32_t pages_per_request;
  int32_t max_refetches; /* of a page that arrived corrupt, before the pull fails; -1: none */
  /* From version 1.3 on, for ranks at tls:// addresses: PEM files, read again when they change.
   * NULL or "": none. */
  /* Who must have signed the ranks' certificates; else any that the system trusts. */
  const char* tls_ca;
  const char* tls_cert; /* of this process, for ranks that ask for one; needs tls_key */
  const char* tls_key;  /* without a passphrase */
} mkv_client_options;

/* `options` may be NULL. MKV_INVALID_ARGUMENT, MKV_IO: files named in the options cannot be
 * used. */
MKV_API mkv_status mkv_client_create(const mkv_client_options* options, mkv_client** out);
/* Cancels its pulls and waits until nothing more is written: usually at once, some seconds if
 * ranks went silent. The handles of its pulls stay valid. */
MKV_API void mkv_client_destroy(mkv_client* client);

/* ---- Scores and digests ------------------------------------------------------------------- */

/* What a rank knows of a page besides its bytes. These calls ask the ranks one after the other
 * and wait at most `timeout_s` seconds. Errors: those of a pull.
 *
 * Scores of all pages: [num_layers][num_kv_heads][num_pages] floats. A page's score is its share
 * of the attention mass of the prompt's last rows in that layer and kv head; the scores of a
 * head sum to 1. `num_scores`: the length of the array, which must be exactly that product. */
MKV_API mkv_status mkv_scores_get(mkv_client* client, const mkv_manifest* manifest,
                                  int32_t first_layer, int32_t num_layers, int32_t first_kv_head,
                                  int32_t num_kv_heads, float* scores, int64_t num_scores,
                                  double timeout_s);
/* Digests of pages [first_page, first_page + num_pages) of one layer and kv head: for each page
 * the minimum and maximum of its keys by channel, and their mean deviation from the middle:
 * [num_pages][3][head_dim] floats. `num_floats`: the length of the array, which must be exactly
 * that product. */
MKV_API mkv_status mkv_digests_get(mkv_client* client, const mkv_manifest* manifest, int32_t layer,
                                   int32_t kv_head, int64_t first_page, int64_t num_pages,
                                   float* digests, int64_t num_floats, double timeout_s);

/* ---- Pulls -------------------------------------------------------------------------------- */

typedef struct mkv_pull mkv_pull;

/* Where an engine keeps one layer. The K of token t in block j of the table and kv head h
 * (counted from 0 among those pulled), head_dim contiguous elements, is at
 *     k + block_ids[j] * block_stride + h * head_stride + t * token_stride
 * and its V at the same offset from v. Strides are in bytes and may be negative.
 *   NHD [blocks, tokens, heads, dim]           token_stride = heads * head_stride
 *   HND [blocks, heads, tokens, dim]           head_stride = tokens * token_stride
 *   one tensor [2, blocks, ...]                v = k + the stride of its first dimension
 *   one tensor [blocks, heads, tokens, 2*dim]  v = k + dim * dtype_bytes
 * Memory in which a page lies as it travels (HND of one tensor: K of 64 tokens, then V) is
 * received into directly; everything else is copied once, while it is in the processor's cache. */
typedef struct mkv_layer_destination {
  void* k; /* of block 0, head 0, token 0 */
  void* v;
  int64_t block_stride;
  int64_t head_stride;
  int64_t token_stride;
} mkv_layer_destination;

/* The order in which the pages of a pull come. */
typedef int32_t mkv_order;
enum {
  MKV_ORDER_POSITION = 0, /* layer by layer, each by kv head and position */
  /* First each layer's hot list: per kv head, the fewest pages that, by their scores, carry
   * `hot_share` of the attention mass of what is pulled. Then all other pages. */
  MKV_ORDER_CRITICALITY = 1
};

/* Which memory the destinations of a pull are in. For a GPU they are addresses of its memory,
 * from cudaMalloc or the engine's allocator. The driver is looked for when the first such pull
 * runs, which ends with MKV_UNSUPPORTED if there is none. Copies run on the client's own
 * streams, unordered with the engine's. GPU work submitted earlier must be finished with the
 * destinations before the pull starts. Once the wait for a layer has returned MKV_OK, work
 * submitted to any stream can read the layer, without an event. The pull uses the device's
 * primary context, as the CUDA runtime does. */
typedef int32_t mkv_memory;
enum { MKV_MEMORY_HOST = 0, MKV_MEMORY_CUDA = 1 };

typedef struct mkv_pull_request {
  uint32_t struct_bytes;
  int32_t first_layer; /* of the model */
  int32_t num_layers;
  int32_t first_kv_head; /* of the model */
  int32_t num_kv_heads;
  /* Of the destination: MKV_UNSUPPORTED if the cache's differs, unless decode_float8 is set. An
   * engine that names MKV_FLOAT8_E4M3 must use the scales of the manifest. */
  mkv_dtype dtype;
  int32_t head_dim;     /* of the destination: MKV_INVALID_ARGUMENT if the cache's differs */
  int32_t block_tokens; /* 16, 32, 64 or 128 */
  int64_t first_token;  /* of the prompt, any: goes to token 0 of block_ids[0] */
  int64_t num_tokens;   /* any; the rest of the last block is left as it is */
  int64_t num_blocks;   /* in block_ids: ceil(num_tokens / block_tokens) or more */
  const int32_t* block_ids;
  const mkv_layer_destination* layers; /* [num_layers] */
  double timeout_s;                    /* for the whole pull. Must be positive */
  int32_t priority;                    /* pulls with a higher number go first */
  int32_t ask_again;                   /* without a feed: 1: pages that are not there yet are asked
                                          for again; 0: they are MKV_UNAVAILABLE */
  mkv_feed* feed;                      /* or NULL: pull without waiting for events */
  /* From version 1.1 on. */
  mkv_order order;
  /* From version 1.2 on, 0 before: MKV_MEMORY_CUDA + n if all destinations are in the memory of
   * CUDA device n, as this process counts devices. */
  mkv_memory memory;
  double hot_share; /* at most 1; 0: 0.95 */
  /* From version 1.4 on. 1: a cache of MKV_FLOAT8_E4M3 is decoded to `dtype`. */
  int32_t decode_float8;
  /* From version 1.6 on, 0 before. 1: a cache that is kept in part (kv_budget) is taken. The
   * places of pages that it has not are left as they are, and the engine must not attend to them
   * (mkv_manifest_has_page); all tokens must be pulled. */
  int32_t takes_part;
} mkv_pull_request;

/* Starts a pull and returns at once. MKV_INVALID_ARGUMENT, MKV_UNSUPPORTED: nothing was started. A
 * cache that is kept in part is MKV_UNSUPPORTED without takes_part: its blocks have holes. */
MKV_API mkv_status mkv_pull_start(mkv_client* client, const mkv_manifest* manifest,
                                  const mkv_pull_request* request, mkv_pull** out);

/* From version 1.6 on. A page and where it goes: K of its page_tokens tokens, then V, contiguous. */
typedef struct mkv_named_page {
  int32_t layer; /* of the model, as kv_head */
  int32_t kv_head;
  int64_t page;
  void* to;
} mkv_named_page;

/* Fields are those of mkv_pull_request. */
typedef struct mkv_page_request {
  uint32_t struct_bytes;
  mkv_dtype dtype;
  int64_t num_pages;
  const mkv_named_page* pages; /* each once, ascending by layer, kv_head and page */
  double timeout_s;
  int32_t priority;
  int32_t ask_again;
  mkv_memory memory;
  int32_t decode_float8;
} mkv_page_request;

/* As mkv_pull_start, for pages by name, of any layers and heads: for an engine that keeps part of
 * a cache and fetches the rest as it needs it. MKV_NOT_FOUND: the cache has not kept one. */
MKV_API mkv_status mkv_pull_start_pages(mkv_client* client, const mkv_manifest* manifest,
                                        const mkv_page_request* request, mkv_pull** out);
/* Waits until the whole pull has arrived and is checked. MKV_PENDING after `timeout_s` seconds,
 * at once for 0. An error means that the pull has failed and ended: what it has written is
 * undefined, except in layers that are complete. */
MKV_API mkv_status mkv_pull_wait(mkv_pull* pull, double timeout_s);
/* The same for one layer of the model: with MKV_OK all its heads and tokens are complete. Layers
 * usually come in order; with MKV_ORDER_CRITICALITY, after the hot lists of all layers that are
 * ready. */
MKV_API mkv_status mkv_pull_wait_layer(mkv_pull* pull, int32_t layer, double timeout_s);
/* The same for the pages on the layer's hot list; with MKV_ORDER_POSITION, the whole layer. The
 * destinations of its other pages are undefined until the layer is complete. */
MKV_API mkv_status mkv_pull_wait_hot_layer(mkv_pull* pull, int32_t layer, double timeout_s);
/* Asks the pull to end with MKV_CANCELLED, and returns at once. Transfers under way are given
 * up; waits return once nothing more is written to the destinations. Has no effect on a pull
 * that has ended. */
MKV_API void mkv_pull_cancel(mkv_pull* pull);
/* Cancels the pull, and waits until nothing more is written to its destinations. */
MKV_API void mkv_pull_destroy(mkv_pull* pull);

typedef struct mkv_pull_stats {
  uint32_t struct_bytes;
  mkv_status status;     /* MKV_PENDING until the pull has ended */
  int32_t layers_done;   /* complete ones */
  int32_t corrupt_pages; /* arrived corrupt and were fetched again */
  int64_t pages_done;
  int64_t pages_total;
  int64_t bytes;        /* received */
  int64_t pages_device; /* of pages_done, by where the ranks read them */
  int64_t pages_host;
  int64_t pages_disk;
  int64_t bytes_shm; /* of bytes, by what carried them */
  int64_t bytes_tcp;
  int64_t bytes_other;
  double seconds;         /* from mkv_pull_start to now or its end */
  double waiting_seconds; /* of these, with no transfer under way because layers were not ready */
  /* From version 1.1 on. With MKV_ORDER_POSITION, all pages count as hot. */
  int64_t hot_pages_done;
  int64_t hot_pages_total; /* of the layers whose hot list is known */
  int64_t score_bytes;     /* received besides `bytes` */
  int32_t hot_layers_done;
  int32_t reserved;
  /* From mkv_pull_start until the hot lists of all layers had arrived; 0 before. */
  double hot_seconds;
  /* Of `bytes`: copied from the ranks' memory by this process or its GPU. */
  int64_t bytes_same_host;
  /* From version 1.7 on. Of `bytes_same_host`: read by the GPU that the destinations are in from a
   * rank's device pool. */
  int64_t bytes_device_pool;
} mkv_pull_stats;

MKV_API mkv_status mkv_pull_get_stats(const mkv_pull* pull, mkv_pull_stats* out);

#ifdef __cplusplus
}
#endif

#endif /* MILLRACE_KV_H */
