// SPDX-License-Identifier: Apache-2.0
// One request for pages to the rank that serves them, and what its reply says.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/api/transport.h"
#include "common/result.h"
#include "kvclient/manifest/manifest.h"
#include "kvclient/order/page_run.h"

namespace millrace::kvclient {

// The header that asks for the pages, or for their digests.
std::string page_request(const Manifest& manifest, const PageRun& run, bool digests);

// What the rank at `address` said of each page, and the socket at which a process on its host may
// ask for places instead ("": none).
struct PageAnswer {
  std::vector<PulledPage> pages;
  std::string same_host_socket;
};
// The answer, or the rank's refusal. The payload must have filled `destination_bytes`.
Result<PageAnswer> read_page_reply(const comm::TransportConnection::Reply& reply,
                                   const std::string& address, const PageRun& run,
                                   int64_t destination_bytes);

// The header that asks a rank on this host where the pages lie in its memory, and in its GPU's
// memory if `device_places`.
std::string place_request(const Manifest& manifest, const PageRun& run, bool device_places);

// Where a page lies: at `offset` in pool number `pool` - 1 in host memory (0: in none), and at
// `device_offset` in the rank's device pool (-1: not there).
struct PlacedPage {
  PulledPage page;
  uint32_t pool = 0;
  uint64_t offset = 0;
  int64_t device_offset = -1;
};
// A place for each page of the run, or the rank's refusal.
struct PlaceAnswer {
  std::vector<PlacedPage> pages;
  int64_t device_pool_bytes = 0;  // 0: there is none, or it was not asked for
};
Result<PlaceAnswer> read_place_reply(const std::string& reply, const std::string& address,
                                     const PageRun& run);

// The header that asks for scores, and the check of its reply, which has filled `scores`: a score
// must be finite and not negative.
std::string score_request(const Manifest& manifest, const ScoreBlock& heads);
Result<void> check_score_reply(const comm::TransportConnection::Reply& reply,
                               const std::string& address, std::span<const float> scores);

// Adds the group's id to what a transport said: a rank that knows no such lease may be another
// group's, at the same address.
Error of_connection(const Manifest& manifest, const Error& why);

// Puts the request's name in front of an error: errors of ranks have it, those of transports do
// not.
Error of_request(const Manifest& manifest, const Error& why);

}  // namespace millrace::kvclient
