// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#ifdef MILLRACE_SDK_UCX
#include "comm/ucx/any_ucx.h"
#endif
#include "kvclient/c/handles.h"
#include "kvclient/c/values.h"
#include "kvclient/kv_client.h"

using namespace millrace;
using namespace millrace::kvclient::c;

namespace {

std::string text_or_empty(const char* text) {
  return text == nullptr ? "" : text;
}

Result<std::unique_ptr<comm::AnyTransport>> transport_of(const mkv_client_options& options) {
  const TlsFiles tls{.certificate = text_or_empty(options.tls_cert),
                     .key = text_or_empty(options.tls_key),
                     .ca = text_or_empty(options.tls_ca)};
  std::optional<comm::TcpOptions> tcp;
  if (options.transport != MKV_TRANSPORT_SHM) tcp = comm::TcpOptions{.client_tls = tls};
  auto transport = std::make_unique<comm::AnyTransport>(tcp);
#ifdef MILLRACE_SDK_UCX
  add_ucx(*transport,
          {.transports = static_cast<comm::UcxTransports>(options.transport), .owns_log = false});
#else
  if (!tcp) return Error(Errc::kUnsupported, "this library was built without UCX");
#endif
  if (!tls.ca.empty() || !tls.certificate.empty() || !tls.key.empty()) {
    MR_RETURN_IF_ERROR(transport->check_tls());
  }
  return transport;
}

// Copies the values that `read` returns into an array of num_floats.
template <typename Read>
mkv_status read_floats(mkv_client* client, const mkv_manifest* manifest, float* to,
                       int64_t num_floats, Read read) {
  if (client == nullptr) return null_argument("client");
  if (manifest == nullptr) return null_argument("manifest");
  if (to == nullptr) return null_argument("array");
  return guarded([&]() -> mkv_status {
    kvclient::KvClient reader(*client->transport, *manifest->manifest, {});
    const auto values = read(reader);
    if (!values.ok()) return fail(values.error());
    if (std::ssize(*values) != num_floats) {
      return fail(error(Errc::kInvalidArgument, "{} floats for an array of {}", values->size(),
                        num_floats));
    }
    std::copy(values->begin(), values->end(), to);
    return MKV_OK;
  });
}

}  // namespace

extern "C" {

mkv_status mkv_client_create(const mkv_client_options* given, mkv_client** out) {
  if (out == nullptr) return null_argument("out");
  return guarded([&]() -> mkv_status {
    mkv_client_options options{};
    if (given != nullptr) {
      const auto read = read_struct(given, "mkv_client_options", options);
      if (read != MKV_OK) return read;
    }
    if (options.transport < MKV_TRANSPORT_AUTO || options.transport > MKV_TRANSPORT_TCP ||
        options.num_threads < 0 || options.num_threads > 1024 || options.connections_per_rank < 0 ||
        options.pages_per_request < 0) {
      return fail(MKV_INVALID_ARGUMENT, "mkv_client_options: a field has no such value");
    }
    auto transport = transport_of(options);
    if (!transport.ok()) return fail(transport.error());
    const int32_t refetches = options.max_refetches;
    auto client = std::make_unique<mkv_client>();
    client->transport = std::move(*transport);
    client->client = std::make_unique<kvclient::PullClient>(
        *client->transport,
        kvclient::PullClientOptions{.num_threads = options.num_threads,
                                    .connections_per_rank = options.connections_per_rank,
                                    .pages_per_request = options.pages_per_request,
                                    .max_refetches = refetches == 0 ? 2 : std::max(refetches, 0),
                                    .same_host = options.transport == MKV_TRANSPORT_AUTO});
    *out = client.release();
    return MKV_OK;
  });
}

void mkv_client_destroy(mkv_client* client) {
  delete client;
}

mkv_status mkv_scores_get(mkv_client* client, const mkv_manifest* manifest, int32_t first_layer,
                          int32_t num_layers, int32_t first_kv_head, int32_t num_kv_heads,
                          float* scores, int64_t num_scores, double timeout_s) {
  return read_floats(client, manifest, scores, num_scores, [&](kvclient::KvClient& reader) {
    return reader.pull_scores(first_layer, num_layers, first_kv_head, num_kv_heads,
                              Deadline::after(duration_of(timeout_s)));
  });
}

mkv_status mkv_digests_get(mkv_client* client, const mkv_manifest* manifest, int32_t layer,
                           int32_t kv_head, int64_t first_page, int64_t num_pages, float* digests,
                           int64_t num_floats, double timeout_s) {
  return read_floats(client, manifest, digests, num_floats, [&](kvclient::KvClient& reader) {
    return reader.pull_digests(layer, kv_head, first_page, num_pages,
                               Deadline::after(duration_of(timeout_s)));
  });
}

}  // extern "C"
