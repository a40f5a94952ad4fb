// SPDX-License-Identifier: Apache-2.0
// Compiled without fused multiply-adds, so that the bytes are the same on every machine.
#include "kernels/cpu/estimation/adaptive/key_pages.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/units.h"
#include "kernels/api/estimation.h"
#include "kernels/cpu/rows/float_rows.h"
#include "kernels/cpu/runtime/parallel_ranges.h"
#include "kernels/index/tiling.h"

namespace millrace::kernels::cpu {

static_assert(kScanKeys == kPageTokens);

int64_t KeyPages::num_spans(int64_t num_pages) {
  return std::max<int64_t>(num_pages - 3, 0) / kSpanPages;
}

KeyPages::KeyPages(const KvSlab& kv, int32_t kv_head, const Context& context)
    : dim_(kv.head_dim),
      num_pages_(ceil_div(kv.num_tokens, kPageTokens)),
      moments_(num_pages_, dim_),
      span_moments_(num_spans(num_pages_), dim_),
      keys_(static_cast<size_t>(num_pages_ * kScanKeys * dim_)),
      sums_(static_cast<size_t>(num_pages_ * kScanKeys)) {
  const KeyRows rows(kv, kv_head, context);
  parallel_ranges(num_pages_, context.num_threads, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(static_cast<size_t>(kPageTokens * dim_));
    std::vector<float> residuals(scratch.size());
    for (int64_t page = begin; page < end; ++page) {
      const int64_t first = page * kPageTokens;
      const int64_t num_keys = std::min(kPageTokens, kv.num_tokens - first);
      set_page(page, rows.rows(first, num_keys, scratch.data()), num_keys, residuals);
    }
  });
  parallel_ranges(num_spans(num_pages_), context.num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t span = begin; span < end; ++span) set_span(span);
  });
}

void KeyPages::set_page(int64_t page, const float* keys, int64_t num_keys,
                        std::vector<float>& residuals) {
  const std::vector<float> centre = set_centre(page, keys, num_keys);
  for (int64_t key = 0; key < num_keys; ++key) {
    for (int64_t d = 0; d < dim_; ++d) {
      residuals[static_cast<size_t>(key * dim_ + d)] =
          keys[key * dim_ + d] - centre[static_cast<size_t>(d)];
    }
  }
  const Int8Steps steps = int8_steps(residuals.data(), num_keys * dim_);
  moments_.set_spread(page, set_keys(page, residuals.data(), num_keys, steps), steps.step);
}

// Returns C_P c8_P.
std::vector<float> KeyPages::set_centre(int64_t page, const float* keys, int64_t num_keys) {
  std::vector<float> mean(static_cast<size_t>(dim_));
  for (int64_t key = 0; key < num_keys; ++key) {
    for (int64_t d = 0; d < dim_; ++d) mean[static_cast<size_t>(d)] += keys[key * dim_ + d];
  }
  const float share = 1.0F / static_cast<float>(num_keys);
  for (float& x : mean) x *= share;
  moments_.set_mean(page, mean);
  for (int64_t d = 0; d < dim_; ++d) mean[static_cast<size_t>(d)] = moments_.centre(page, d);
  return mean;
}

// Returns the mean square of each channel, in steps. Sums of 64 squares are exact.
std::vector<float> KeyPages::set_keys(int64_t page, const float* residuals, int64_t num_keys,
                                      const Int8Steps& steps) {
  std::vector<float> squares(static_cast<size_t>(dim_));
  if (steps.inverse == 0) return squares;
  int8_t* bytes = keys_.data() + page * kScanKeys * dim_;
  int32_t* sums = sums_.data() + page * kScanKeys;
  std::vector<int8_t> row(static_cast<size_t>(dim_));
  for (int64_t key = 0; key < num_keys; ++key) {
    const float* values = residuals + key * dim_;
    int32_t sum = 0;
    for (int64_t d = 0; d < dim_; ++d) {
      const int8_t byte = steps.round(values[d]);
      row[static_cast<size_t>(d)] = byte;
      sum += byte;
      squares[static_cast<size_t>(d)] += static_cast<float>(byte * byte);
    }
    sums[key] = sum;
    for (int64_t d = 0; d < dim_; d += kScanChannels) {
      std::memcpy(bytes + scan_offset(key, d), row.data() + d, kScanChannels);
    }
  }
  const float share = 1.0F / static_cast<float>(num_keys);
  for (float& x : squares) x *= share;
  return squares;
}

// In double, because squares of float32 values may exceed its range.
void KeyPages::set_span(int64_t span) {
  const int64_t begin = 1 + span * kSpanPages;
  const int64_t end = begin + kSpanPages;
  std::vector<float> mean;
  for (int64_t d = 0; d < dim_; ++d) {
    double sum = 0;
    for (int64_t page = begin; page < end; ++page) sum += double{moments_.centre(page, d)};
    mean.push_back(static_cast<float>(sum / kSpanPages));
  }
  span_moments_.set_mean(span, mean);

  std::vector<double> variances;
  for (int64_t d = 0; d < dim_; ++d) {
    const double middle = double{span_moments_.centre(span, d)};
    double sum = 0;
    for (int64_t page = begin; page < end; ++page) {
      const double apart = double{moments_.centre(page, d)} - middle;
      sum += moments_.variance(page, d) + apart * apart;
    }
    variances.push_back(sum / kSpanPages);
  }
  const bool finite = std::ranges::all_of(variances, [](double x) { return std::isfinite(x); });
  const float step = finite ? static_cast<float>(std::sqrt(std::ranges::max(variances)) / 127)
                            : std::numeric_limits<float>::quiet_NaN();
  std::vector<float> spread;
  for (const double variance : variances) {
    const double in_steps = step > 0 ? variance / (double{step} * double{step}) : 0;
    spread.push_back(static_cast<float>(in_steps));
  }
  span_moments_.set_spread(span, spread, step);
}

}  // namespace millrace::kernels::cpu
