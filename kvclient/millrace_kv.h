/* The C interface of Millrace's KV client: pulls a KV cache that Millrace has prefilled, from the
 * ranks that hold it into the paged blocks of a decode engine. docs/kv-client.md is its guide.
 *
 *   mkv_client_create              once a process: threads and connections
 *   mkv_manifest_parse             what the coordinator returned: where the cache is, and its shape
 *   mkv_pull_start                 layers and kv heads of it into paged blocks; returns at once
 *   mkv_pull_wait_layer, _wait     or poll with a timeout of 0
 *   mkv_pull_destroy, mkv_manifest_destroy, mkv_client_destroy
 *
 * Any process that can reach the ranks may pull with a manifest, not only the one that posted the
 * prompt, as often as it likes and in as many parts, until the lease ends.
 *
 * Errors. Functions that can fail return an mkv_status: MKV_OK (0), MKV_PENDING (-1) where a wait
 * ended before what it waited for came, or a code that says what the caller can do. The message of
 * the last failed call of this thread is mkv_last_error(). No C++ exception leaves the library, and
 * it ends the process for its own bugs only.
 *
 * Threads. Every function may be called from any thread. Calls on one handle may run at the same
 * time, but none may run during or after its destroy function. Handles are independent: they may be
 * destroyed in any order. Nothing calls back into the host. Create the client after fork().
 *
 * Memory. What a call is given (text, tables, structures) is copied before it returns. The
 * destinations of a pull belong to it from mkv_pull_start until it has ended: until mkv_pull_wait
 * returned anything but MKV_PENDING, or mkv_pull_destroy or mkv_client_destroy returned. After that
 * nothing is written to them.
 *
 * Versions. A structure begins with `struct_bytes`, to be set to its sizeof; the fields that a later
 * version adds come last, so that older callers go on to work. The library sets no environment
 * variable of its process. */
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

/* Of this header; the major number changes when callers must be compiled anew. */
#define MKV_VERSION_MAJOR 1
#define MKV_VERSION_MINOR 5

/* Of the library: major << 16 | minor. Refuse to go on where major is not MKV_VERSION_MAJOR, or
 * minor is less than MKV_VERSION_MINOR. */
MKV_API uint32_t mkv_version(void);

/* ---- Errors ------------------------------------------------------------------------------ */

typedef int32_t mkv_status;
enum {
  MKV_PENDING = -1, /* not yet: the time that the caller gave to a wait is over */
  MKV_OK = 0,
  MKV_INVALID_ARGUMENT = 1, /* the call is wrong and will stay wrong */
  MKV_UNSUPPORTED = 2,      /* a manifest of a version, page layout or dtype unknown here */
  MKV_NOT_FOUND = 3,        /* the request is gone, or the lease ended or is another's */
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
/* Why the last call of this thread that returned an error did: what, where and the numbers. Valid
 * until the thread's next failed call; "" before the first. */
MKV_API const char* mkv_last_error(void);

/* ---- Manifest ----------------------------------------------------------------------------- */

typedef struct mkv_manifest mkv_manifest;

typedef int32_t mkv_dtype;
enum {
  MKV_FLOAT32 = 0,
  MKV_BFLOAT16 = 1,
  MKV_FLOAT16 = 2,
  /* From version 1.4 on: 8 bits without infinities (OCP), under scales (mkv_manifest_scales). */
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
  int32_t tp; /* of the group that prefilled; a reader's own may be another */
  int32_t cp;
  int32_t num_shards;
  int32_t num_logprobs;
  int32_t is_result;      /* 0: of a prefill that goes on, and the next line is not known yet */
  int32_t first_token_id; /* greedy token after the prompt */
  int32_t reserved;       /* 0 */
  int64_t num_tokens;     /* of the prompt */
  int64_t num_pages;      /* of one layer and kv head */
  int64_t page_bytes;     /* K and V */
  int64_t lease_ms;       /* from when the prefill ended */
  double density;         /* computed share of the causal pairs */
  double recall;
  const char* request_id; /* valid as long as the manifest */
  const char* lease_id;
  const char* epoch; /* of the group: ends with it */
  const char* model;
  const char* model_fingerprint; /* of its config and weights: of use with no other model */
} mkv_manifest_info;

/* What one rank serves: some kv heads, of some of the tokens. */
typedef struct mkv_shard_info {
  uint32_t struct_bytes;
  int32_t rank;
  int32_t first_kv_head;
  int32_t num_kv_heads;
  int64_t num_tokens;
  const char*
      address; /* "tcp://host:port", "tls://...", "ucx://..."; valid as long as the manifest */
} mkv_shard_info;

/* Reads and checks what POST /v1/prefill answered, the data of an event `manifest` or `done`, or
 * the manifest alone. MKV_INVALID_ARGUMENT: no manifest, or one whose numbers are impossible or
 * whose shards do not cover the cache; MKV_UNSUPPORTED. */
MKV_API mkv_status mkv_manifest_parse(const char* json, size_t json_bytes, mkv_manifest** out);
MKV_API void mkv_manifest_destroy(mkv_manifest* manifest);
MKV_API mkv_status mkv_manifest_get(const mkv_manifest* manifest, mkv_manifest_info* out);
MKV_API mkv_status mkv_manifest_shard(const mkv_manifest* manifest, int32_t index,
                                      mkv_shard_info* out);
/* Most likely tokens after the prompt, best first. */
MKV_API mkv_status mkv_manifest_logprob(const mkv_manifest* manifest, int32_t index,
                                        int32_t* token_id, float* logprob);
/* Of a cache of MKV_FLOAT8_E4M3: an element of this layer is its code times the scale, K and V apart.
 * 1 and 1 of another. MKV_UNSUPPORTED where each kv head has scales of its own. */
MKV_API mkv_status mkv_manifest_scales(const mkv_manifest* manifest, int32_t layer, float* k,
                                       float* v);
/* From version 1.5 on. The same of a kv head, whether the layer's or its own. */
MKV_API mkv_status mkv_manifest_head_scales(const mkv_manifest* manifest, int32_t layer,
                                            int32_t kv_head, float* k, float* v);
/* The manifest as JSON, for another process to parse: a text of the length that is returned, and
 * a 0 behind it, as far as `buffer_bytes` goes. */
MKV_API size_t mkv_manifest_json(const mkv_manifest* manifest, char* buffer, size_t buffer_bytes);

/* ---- Events of a prefill that goes on ------------------------------------------------------ */

/* What is known of a request while it is prefilled. Pulls with a feed take each layer as soon as it
 * is there; several may share one. */
typedef struct mkv_feed mkv_feed;

MKV_API mkv_status mkv_feed_create(mkv_feed** out);
/* Pulls that still wait for layers by it fail with MKV_CANCELLED. */
MKV_API void mkv_feed_destroy(mkv_feed* feed);
/* The next bytes of the server-sent events of one request, cut anywhere. An error is that of the
 * request: of its event `error`, or MKV_CORRUPT for events that cannot be understood; it is returned
 * from then on. MKV_OK otherwise, also for what comes after the event `done`. */
MKV_API mkv_status mkv_feed_write(mkv_feed* feed, const void* bytes, size_t num_bytes);
/* Instead of events, for who hears of them in another way: layers [0, num_layers) are there. Never
 * goes back. */
MKV_API mkv_status mkv_feed_set_layers_ready(mkv_feed* feed, int32_t num_layers);
/* No more will come: the stream broke off, say. Pulls that still wait for layers fail with this.
 * Nothing changes for a request that is done. */
MKV_API mkv_status mkv_feed_fail(mkv_feed* feed, mkv_status code, const char* message);
/* Layers that are there. */
MKV_API int32_t mkv_feed_layers_ready(const mkv_feed* feed);
/* The manifest by which to pull, once an event brought one; destroy it. MKV_PENDING after
 * `timeout_s` seconds, at once for 0; or the request's error. */
MKV_API mkv_status mkv_feed_wait_manifest(mkv_feed* feed, double timeout_s, mkv_manifest** out);
/* The same for the manifest of `done`: of the finished request, with its first token. */
MKV_API mkv_status mkv_feed_wait_result(mkv_feed* feed, double timeout_s, mkv_manifest** out);

/* ---- Client ------------------------------------------------------------------------------- */

/* Threads that pull, and their connections to ranks, which are kept for the next pull. */
typedef struct mkv_client mkv_client;

typedef int32_t mkv_transport;
enum {
  MKV_TRANSPORT_AUTO =
      0, /* on one host, where the ranks are of the same user and offer it, this process
                             copies pages from their memory; else what their addresses say */
  MKV_TRANSPORT_SHM =
      1,                /* UCX's shared memory: ucx:// addresses on this host alone. MKV_UNSUPPORTED
                             in a library without UCX */
  MKV_TRANSPORT_TCP = 2 /* what the addresses say, nothing from memory; ucx:// by UCX over TCP */
};

/* 0 in a field is its default. */
typedef struct mkv_client_options {
  uint32_t struct_bytes;
  mkv_transport transport;
  int32_t num_threads;          /* each pulls over a connection of its own to any rank */
  int32_t connections_per_rank; /* that pull from one rank at the same time, over all pulls */
  int32_t pages_per_request;
  int32_t max_refetches; /* of a page that arrived wrong, before the pull fails; -1 for none */
  /* From version 1.3 on, for ranks at tls:// addresses: files in PEM, read again when they change. NULL
   * or "" for none. */
  const char*
      tls_ca; /* whom the ranks' certificates must be signed by; else those the system trusts */
  const char* tls_cert; /* of this process, for ranks that ask for one; needs tls_key */
  const char* tls_key;  /* without a passphrase */
} mkv_client_options;

/* `options` may be NULL. MKV_INVALID_ARGUMENT, MKV_IO: files of the options are no good. */
MKV_API mkv_status mkv_client_create(const mkv_client_options* options, mkv_client** out);
/* Cancels its pulls and waits until nothing is written any more: at once as a rule, some seconds where
 * ranks went silent. The handles of its pulls stay valid. */
MKV_API void mkv_client_destroy(mkv_client* client);

/* ---- Scores and digests ------------------------------------------------------------------- */

/* What a rank knows of a page besides its bytes. These calls wait for the ranks, one after the other,
 * at most `timeout_s` seconds. Errors: those of a pull.
 *
 * Scores of all pages: [num_layers][num_kv_heads][num_pages] floats. A page's score is its share of
 * the attention mass of the prompt's last rows in that layer and kv head: they sum to 1.
 * `num_scores`: of the array, exactly these. */
MKV_API mkv_status mkv_scores_get(mkv_client* client, const mkv_manifest* manifest,
                                  int32_t first_layer, int32_t num_layers, int32_t first_kv_head,
                                  int32_t num_kv_heads, float* scores, int64_t num_scores,
                                  double timeout_s);
/* Digests of pages [first_page, first_page + num_pages) of one layer and kv head: of each page the
 * least and the greatest of its keys by channel, and their mean deviation from the middle:
 * [num_pages][3][head_dim] floats. `num_floats`: of the array, exactly these. */
MKV_API mkv_status mkv_digests_get(mkv_client* client, const mkv_manifest* manifest, int32_t layer,
                                   int32_t kv_head, int64_t first_page, int64_t num_pages,
                                   float* digests, int64_t num_floats, double timeout_s);

/* ---- Pulls -------------------------------------------------------------------------------- */

typedef struct mkv_pull mkv_pull;

/* Where an engine keeps one layer. Token t of the table's block j and kv head h (from 0, of those
 * pulled) has its K, head_dim elements side by side, at
 *     k + block_ids[j] * block_stride + h * head_stride + t * token_stride
 * and its V at the same place from v. Strides are in bytes and may be negative.
 *   NHD [blocks, tokens, heads, dim]           token_stride = heads * head_stride
 *   HND [blocks, heads, tokens, dim]           head_stride = tokens * token_stride
 *   one tensor [2, blocks, ...]                v = k + the stride of its first dimension
 *   one tensor [blocks, heads, tokens, 2*dim]  v = k + dim * dtype_bytes
 * Runs of memory in which a page lies as it travels (HND of one tensor: K of 64 tokens, then V)
 * are received in place; all else is copied once, while it is in the cache. */
typedef struct mkv_layer_destination {
  void* k; /* of block 0, head 0, token 0 */
  void* v;
  int64_t block_stride;
  int64_t head_stride;
  int64_t token_stride;
} mkv_layer_destination;

/* In which order the pages of a pull come. */
typedef int32_t mkv_order;
enum {
  MKV_ORDER_POSITION = 0, /* layer by layer, each by kv head and position */
  /* First the hot list of each layer: by kv head, the fewest pages that carry `hot_share` of the
   * attention mass of what is pulled, by their scores. Then all other pages. */
  MKV_ORDER_CRITICALITY = 1
};

/* Where the places of a pull are. Those of a GPU are addresses of its memory, from cudaMalloc or what
 * the engine has for it; the driver is looked for when the first such pull runs, which ends with
 * MKV_UNSUPPORTED where there is none. Copies run on streams of the client's own, in no order with
 * the engine's: work that was given to the GPU before must have left the places when the pull
 * starts, and a layer whose wait has returned MKV_OK can be read by work that is given to any stream
 * from then on, without an event. The pull uses the device's primary context, as the CUDA runtime. */
typedef int32_t mkv_memory;
enum { MKV_MEMORY_HOST = 0, MKV_MEMORY_CUDA = 1 };

typedef struct mkv_pull_request {
  uint32_t struct_bytes;
  int32_t first_layer; /* of the model */
  int32_t num_layers;
  int32_t first_kv_head; /* of the model */
  int32_t num_kv_heads;
  /* Of the destination: MKV_UNSUPPORTED where the cache's is another, but for decode_float8. An
   * engine that names MKV_FLOAT8_E4M3 has the scales of the manifest. */
  mkv_dtype dtype;
  int32_t head_dim;     /* of the destination: MKV_INVALID_ARGUMENT where the cache's is another */
  int32_t block_tokens; /* 16, 32, 64 or 128 */
  int64_t first_token;  /* of the prompt: goes to token 0 of block_ids[0]. Any */
  int64_t num_tokens;   /* any; the tokens of the last block behind it are left as they are */
  int64_t num_blocks;   /* in block_ids: ceil(num_tokens / block_tokens) or more */
  const int32_t* block_ids;
  const mkv_layer_destination* layers; /* [num_layers] */
  double timeout_s;                    /* for all of it. Must be positive */
  int32_t priority;                    /* pulls of a higher one go first */
  int32_t ask_again;                   /* without a feed: 1: pages that are not there yet are asked
                                          for again; 0: they are MKV_UNAVAILABLE */
  mkv_feed* feed;                      /* or NULL: pull without waiting for events */
  /* From version 1.1 on. */
  mkv_order order;
  /* From version 1.2 on, 0 before: MKV_MEMORY_CUDA + n where all places are in the memory of CUDA
   * device n, as this process counts them. */
  mkv_memory memory;
  double hot_share; /* at most 1; 0: 0.95 */
  /* From version 1.4 on. 1: a cache of MKV_FLOAT8_E4M3 comes as what it stands for, in `dtype`. */
  int32_t decode_float8;
  int32_t reserved; /* 0 */
} mkv_pull_request;

/* Starts a pull and returns at once. MKV_INVALID_ARGUMENT, MKV_UNSUPPORTED: nothing was started. A
 * cache that is kept in part (kv_budget) is MKV_UNSUPPORTED: its blocks would have holes. */
MKV_API mkv_status mkv_pull_start(mkv_client* client, const mkv_manifest* manifest,
                                  const mkv_pull_request* request, mkv_pull** out);
/* Until all of it is there and checked. MKV_PENDING after `timeout_s` seconds, at once for 0. An
 * error is the pull's, which then has ended: what it has written is undefined, but for the layers
 * that are complete. */
MKV_API mkv_status mkv_pull_wait(mkv_pull* pull, double timeout_s);
/* The same for one layer of the model, whose heads and tokens are complete with MKV_OK. Layers come
 * in order, as a rule; by criticality, after the hot lists of all that are there. */
MKV_API mkv_status mkv_pull_wait_layer(mkv_pull* pull, int32_t layer, double timeout_s);
/* The same once the pages on the layer's hot list are there; by position, the whole layer. What the
 * destinations of its other pages hold is undefined until the layer is complete. */
MKV_API mkv_status mkv_pull_wait_hot_layer(mkv_pull* pull, int32_t layer, double timeout_s);
/* Asks it to end, with MKV_CANCELLED, and returns at once. What is on its way is given up; waits
 * return once the destinations are left alone. Nothing happens to a pull that has ended. */
MKV_API void mkv_pull_cancel(mkv_pull* pull);
/* Cancels, and waits until the destinations are left alone. */
MKV_API void mkv_pull_destroy(mkv_pull* pull);

typedef struct mkv_pull_stats {
  uint32_t struct_bytes;
  mkv_status status;     /* MKV_PENDING until the pull has ended */
  int32_t layers_done;   /* complete ones */
  int32_t corrupt_pages; /* arrived wrong and were fetched again */
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
  double waiting_seconds; /* of them, waiting for layers to be there, nothing being under way */
  /* From version 1.1 on. By position, all pages count as hot. */
  int64_t hot_pages_done;
  int64_t hot_pages_total; /* of the layers whose hot list is known */
  int64_t score_bytes;     /* received besides `bytes` */
  int32_t hot_layers_done;
  int32_t reserved;
  double
      hot_seconds; /* from mkv_pull_start until the hot lists of all layers were there; 0 before */
  int64_t
      bytes_same_host; /* of bytes: copied by this process, or its GPU, from the memory of ranks */
} mkv_pull_stats;

MKV_API mkv_status mkv_pull_get_stats(const mkv_pull* pull, mkv_pull_stats* out);

#ifdef __cplusplus
}
#endif

#endif /* MILLRACE_KV_H */
