// SPDX-License-Identifier: Apache-2.0
// A pull of a whole cache into blocks of one page each, laid out as pages travel: what benchmarks
// pull.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvclient/manifest/manifest.h"
#include "kvclient/pull_request.h"

namespace millrace::bench {

int64_t cache_bytes(const kvclient::Manifest& manifest);
// `memory`: [layers, pages, kv heads] pages, cache_bytes() in all, on the host or on one device.
kvclient::PullRequest whole_cache(const kvclient::Manifest& manifest, std::byte* memory);

}  // namespace millrace::bench
