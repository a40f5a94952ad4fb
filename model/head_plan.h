// A head plan: what each query head of each layer attends to, before any request is seen.
//
// Written as text on the command line and in requests:
//   dense | a-shape:S,W | vertical-slash:V,S | block-sparse:K | elastic:ALPHA,BETA |
//   adaptive[:GAMMA[,ROWS,PAGES]] | auto
// or as a JSON file: MInference's pattern files as they are (a list over layers of {"head":
// [pattern, p1, p2, score]}), or our own
//   {"default": "adaptive:0.8", "layers": [{"heads": {"0": "dense", "3": "a-shape:64,1024"}},
//   ...]}.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "model/config.h"

namespace millrace::model {

enum class Pattern : uint8_t {
  kDense,
  kAShape,         // sink columns and a window (StreamingLLM; MInference's A-shape)
  kVerticalSlash,  // MInference
  kBlockSparse,    // MInference
  kElastic,        // sink block and a window of alpha + beta * N tokens (MoA)
  kAdaptive,       // ours: representative mixture per row tile
};

std::string_view pattern_name(Pattern pattern);  // as in the text form

struct HeadPattern {
  Pattern pattern = Pattern::kDense;
  int32_t sink = 0;       // a-shape: leading columns
  int32_t window = 0;     // a-shape: offsets [0, window)
  int32_t verticals = 0;  // vertical-slash
  int32_t slashes = 0;    // vertical-slash
  int32_t top_k = 0;      // block-sparse: pages a row tile
  int32_t alpha = 0;      // elastic: tokens, may be negative
  float beta = 0;         // elastic: share of the prompt, [0, 1]
  float gamma = 0.8f;     // adaptive: mass to reach, (0, 1]
  // adaptive: 4 and 4 find what 8 and 4 find, within half a point, on a fifth fewer pages and at
  // half the cost of estimation; 4 and 2 lose two points
  // (bench/results/retrieval-outliers-2026-11-21.md)
  int32_t row_outliers = 4;
  int32_t page_outliers = 4;

  bool operator==(const HeadPattern&) const = default;
};

// Dimensions are those of a model: make_head_plan checks them.
class HeadPlan {
 public:
  HeadPlan(int32_t num_layers, int32_t num_heads, HeadPattern everywhere);

  int32_t num_layers() const { return num_layers_; }
  int32_t num_heads() const { return num_heads_; }
  const HeadPattern& at(int32_t layer, int32_t head) const;
  HeadPattern& at(int32_t layer, int32_t head);
  const std::string& name() const { return name_; }  // the text or file it came from
  void set_name(std::string name) { name_ = std::move(name); }

  bool operator==(const HeadPlan&) const = default;

 private:
  int32_t num_layers_;
  int32_t num_heads_;
  std::vector<HeadPattern> patterns_;
  std::string name_;
};

// One pattern from its text form. kInvalidArgument: says what is wrong and the forms that exist.
Result<HeadPattern> parse_head_pattern(std::string_view text);
// The text form; parse_head_pattern gives the same pattern back.
std::string format_head_pattern(const HeadPattern& pattern);
// kInvalidArgument when a number is outside its range: what plans from any source go through.
Result<HeadPattern> checked_head_pattern(HeadPattern pattern);

struct HeadPlanOptions {
  // Whether `spec` may be a path. Off for plans that come with a request: a client must not be able
  // to make a rank read files of its machine.
  bool allow_files = true;
};

// `spec` is the text form, a path of a JSON file, or "auto": dense when num_tokens is below
// `crossover_tokens`, else adaptive with its defaults. kInvalidArgument also when a file's layer or
// head count differs from the model's (both numbers).
Result<HeadPlan> make_head_plan(const std::string& spec, const ModelConfig& config,
                                int64_t num_tokens, int64_t crossover_tokens,
                                const HeadPlanOptions& options = {});

}  // namespace millrace::model
