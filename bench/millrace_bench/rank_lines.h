// What several ranks add to a row: phases over the ranks, links, balance, prediction, efficiency.
#pragma once

#include <string>

#include "bench/millrace_bench/prefill_row.h"

namespace millrace::bench {

std::string rank_lines(const PrefillRow& row, const PrefillContext& context);

}  // namespace millrace::bench
