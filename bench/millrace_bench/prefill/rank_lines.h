// SPDX-License-Identifier: Apache-2.0
// The lines after a row. With several ranks: phases over the ranks, links, balance, prediction and
// efficiency. If pages were stored: how many.
#pragma once

#include <string>

#include "bench/millrace_bench/prefill/prefill_row.h"

namespace millrace::bench {

std::string rank_lines(const PrefillRow& row, const PrefillContext& context);
// "  stored in host memory: 17.2 GB, 0.92 of it while later layers were computed\n", or nothing.
std::string stored_line(const PrefillRow& row);

}  // namespace millrace::bench
