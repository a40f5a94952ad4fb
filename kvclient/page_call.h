// One request for pages to the rank that serves them, and what its reply says.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/api/transport.h"
#include "common/result.h"
#include "kvclient/kv_client.h"
#include "kvclient/manifest/manifest.h"

namespace millrace::kvclient {

// Consecutive pages of one layer and kv head, all on one rank.
struct PageRun {
  int32_t layer = 0;
  int32_t kv_head = 0;  // of the model
  int64_t first_page = 0;
  int64_t num_pages = 0;
};

// The header that asks for the pages, or for their digests.
std::string page_request(const Manifest& manifest, const PageRun& run, bool digests);
// What the rank at `address` said of each page, or its refusal. The payload must have filled
// `destination_bytes`.
Result<std::vector<PulledPage>> read_page_reply(const comm::TransportConnection::Reply& reply,
                                                const std::string& address, const PageRun& run,
                                                int64_t destination_bytes);

// With the request's name in front: errors of ranks have it, those of transports do not.
Error of_request(const Manifest& manifest, const Error& why);

}  // namespace millrace::kvclient
