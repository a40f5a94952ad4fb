// SPDX-License-Identifier: Apache-2.0
// The pages of one request, and where they lie in the memory of a rank on this host.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kvclient/order/page_run.h"
#include "kvclient/ranks/page_call.h"

namespace millrace::kvclient {

struct PlacedRun {
  PageRun run;
  std::vector<PlacedPage> pages;  // of the run; empty: not known

  // Splits off the pages at these indices, which must ascend, into runs of the same kind.
  std::vector<PlacedRun> parts(std::span<const size_t> places) const;
};

}  // namespace millrace::kvclient
