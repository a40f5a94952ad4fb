#include "common/head_pattern.h"

#include <array>
#include <charconv>
#include <optional>
#include <vector>

#include "common/quoted.h"

namespace millrace {

namespace {

constexpr std::string_view kForms =
    "dense, a-shape:S,W, vertical-slash:V,S, block-sparse:K, elastic:ALPHA,BETA, "
    "adaptive[:GAMMA[,ROWS,PAGES]], auto";

// Ranges. What a client may ask for bounds the memory of an index and the time to build it: lists
// of 64 K columns, slashes or pages a head are three times what any published plan asks for
// (22,032), and beyond a quarter of a tile's or page's members outliers cost more than they can
// save. Positions are int32.
constexpr int32_t kMaxSelected = 1 << 16;
constexpr int32_t kMaxTokens = 1 << 30;
constexpr int32_t kMaxOutliers = 16;

constexpr std::array kPatterns{Pattern::kDense,       Pattern::kAShape,  Pattern::kVerticalSlash,
                               Pattern::kBlockSparse, Pattern::kElastic, Pattern::kAdaptive};

std::optional<Pattern> pattern_of(std::string_view name) {
  for (const Pattern pattern : kPatterns) {
    if (pattern_name(pattern) == name) return pattern;
  }
  return std::nullopt;
}

// The numbers behind the colon, in order.
class Arguments {
 public:
  explicit Arguments(std::string_view text) {
    while (!text.empty()) {
      const auto comma = text.find(',');
      parts_.push_back(text.substr(0, comma));
      if (comma == std::string_view::npos) break;
      text.remove_prefix(comma + 1);
      if (text.empty()) parts_.push_back(text);
    }
  }

  std::size_t size() const { return parts_.size(); }

  // False when argument `i` is not a number of the type as a whole.
  template <typename Number>
  bool read(std::size_t i, Number& number) const {
    const char* end = parts_[i].data() + parts_[i].size();
    const auto [stop, status] = std::from_chars(parts_[i].data(), end, number);
    return status == std::errc() && stop == end;
  }

 private:
  std::vector<std::string_view> parts_;
};

// Fills the pattern's numbers; false when their count or spelling is wrong.
bool read_arguments(const Arguments& arguments, HeadPattern& head) {
  const std::size_t count = arguments.size();
  switch (head.pattern) {
    case Pattern::kDense:
      return count == 0;
    case Pattern::kAShape:
      return count == 2 && arguments.read(0, head.sink) && arguments.read(1, head.window);
    case Pattern::kVerticalSlash:
      return count == 2 && arguments.read(0, head.verticals) && arguments.read(1, head.slashes);
    case Pattern::kBlockSparse:
      return count == 1 && arguments.read(0, head.top_k);
    case Pattern::kElastic:
      return count == 2 && arguments.read(0, head.alpha) && arguments.read(1, head.beta);
    case Pattern::kAdaptive:
      if (count != 0 && count != 1 && count != 3) return false;
      return (count == 0 || arguments.read(0, head.gamma)) &&
             (count < 3 ||
              (arguments.read(1, head.row_outliers) && arguments.read(2, head.page_outliers)));
  }
  return false;
}

struct Bound {
  const char* name;
  double value;
  double min;
  double max;
};

std::vector<Bound> bounds_of(const HeadPattern& head) {
  switch (head.pattern) {
    case Pattern::kDense:
      return {};
    case Pattern::kAShape:
      return {{"sink", double(head.sink), 0, kMaxSelected},
              {"window", double(head.window), 1, kMaxTokens}};
    case Pattern::kVerticalSlash:
      return {{"verticals", double(head.verticals), 0, kMaxSelected},
              {"slashes", double(head.slashes), 0, kMaxSelected}};
    case Pattern::kBlockSparse:
      return {{"top_k", double(head.top_k), 1, kMaxSelected}};
    case Pattern::kElastic:
      return {{"alpha", double(head.alpha), -kMaxTokens, kMaxTokens}, {"beta", head.beta, 0, 1}};
    case Pattern::kAdaptive:
      // A share of less than a millionth is a slip; NaN fails every comparison.
      return {{"gamma", head.gamma, 1e-6F, 1},
              {"row outliers", double(head.row_outliers), 0, kMaxOutliers},
              {"page outliers", double(head.page_outliers), 0, kMaxOutliers}};
  }
  return {};
}

}  // namespace

std::string_view pattern_name(Pattern pattern) {
  switch (pattern) {
    case Pattern::kDense:
      return "dense";
    case Pattern::kAShape:
      return "a-shape";
    case Pattern::kVerticalSlash:
      return "vertical-slash";
    case Pattern::kBlockSparse:
      return "block-sparse";
    case Pattern::kElastic:
      return "elastic";
    case Pattern::kAdaptive:
      return "adaptive";
  }
  return "?";
}

Result<HeadPattern> parse_head_pattern(std::string_view text) {
  const auto colon = text.find(':');
  const auto pattern = pattern_of(text.substr(0, colon));
  HeadPattern head;
  if (pattern) {
    head.pattern = *pattern;
    const bool bare = colon == std::string_view::npos;
    const Arguments arguments(bare ? std::string_view() : text.substr(colon + 1));
    const bool dangling_colon = !bare && arguments.size() == 0;
    if (!dangling_colon && read_arguments(arguments, head)) return checked_head_pattern(head);
  }
  return error(Errc::kInvalidArgument, "head plan {}: expected one of {}", quoted(text), kForms);
}

std::string format_head_pattern(const HeadPattern& head) {
  const auto name = pattern_name(head.pattern);
  switch (head.pattern) {
    case Pattern::kDense:
      return std::string(name);
    case Pattern::kAShape:
      return fmt::format("{}:{},{}", name, head.sink, head.window);
    case Pattern::kVerticalSlash:
      return fmt::format("{}:{},{}", name, head.verticals, head.slashes);
    case Pattern::kBlockSparse:
      return fmt::format("{}:{}", name, head.top_k);
    case Pattern::kElastic:
      return fmt::format("{}:{},{}", name, head.alpha, head.beta);
    case Pattern::kAdaptive:
      return fmt::format("{}:{},{},{}", name, head.gamma, head.row_outliers, head.page_outliers);
  }
  return "?";
}

Result<HeadPattern> checked_head_pattern(HeadPattern head) {
  for (const auto& [name, value, min, max] : bounds_of(head)) {
    if (value >= min && value <= max) continue;
    return error(Errc::kInvalidArgument, "head plan {}: {} = {:g}, expected {:g} to {:g}",
                 pattern_name(head.pattern), name, value, min, max);
  }
  return head;
}

Result<void> check_plan_text(std::string_view text) {
  if (text == kAutoPlan) return {};
  MR_RETURN_IF_ERROR(parse_head_pattern(text));
  return {};
}

}  // namespace millrace
