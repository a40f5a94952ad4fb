// The reference of a cache that is kept in part: the prompt prefilled whole on one rank, pages chosen
// one by one, and a decode over the whole cache whose attention leaves the others out.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/pages/kept_pages.h"

namespace millrace::test {

class MaskedDecode {
 public:
  // Prefills; float32, one rank. `head_plan` as --head-plan.
  MaskedDecode(const std::string& model_directory, const std::vector<int32_t>& token_ids,
               const std::string& head_plan);
  ~MaskedDecode();

  // By the scores of this prefill.
  KeptPages choose(double budget) const;
  // Share of the mass that the pages have which are not kept: mean over layers and kv heads.
  double dropped_mass(const KeptPages& kept) const;
  // The first among them; through what ends a text.
  std::vector<int32_t> generate(const KeptPages& kept, int32_t max_tokens) const;
  // K and V of a page as it travels, rows behind the prompt's end 0.
  std::vector<float> page(int32_t layer, int32_t kv_head, int64_t page) const;

 private:
  struct Prefilled;
  std::unique_ptr<Prefilled> prefilled_;
};

}  // namespace millrace::test
