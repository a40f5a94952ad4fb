// SPDX-License-Identifier: Apache-2.0
// The reference for a cache of which only some pages are kept. One rank prefills the whole prompt,
// pages are chosen one by one, and decoding runs over the whole cache with attention that leaves
// out the other pages.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/kept_pages.h"

namespace millrace::test {

class MaskedDecode {
 public:
  // Prefills, in float32 and on one rank. `head_plan`: as --head-plan.
  MaskedDecode(const std::string& model_directory, const std::vector<int32_t>& token_ids,
               const std::string& head_plan);
  ~MaskedDecode();

  // Chooses by the scores of this prefill.
  KeptPages choose(double budget) const;
  // The share of the mass on pages that are not kept: the mean over layers and kv heads.
  double dropped_mass(const KeptPages& kept) const;
  // Includes the first token, and continues past an end-of-text token.
  std::vector<int32_t> generate(const KeptPages& kept, int32_t max_tokens) const;
  // K and V of a page as it travels; rows past the prompt's end are 0.
  std::vector<float> page(int32_t layer, int32_t kv_head, int64_t page) const;

 private:
  struct Prefilled;
  std::unique_ptr<Prefilled> prefilled_;
};

}  // namespace millrace::test
