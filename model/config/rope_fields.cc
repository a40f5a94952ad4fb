// SPDX-License-Identifier: Apache-2.0
#include "model/config/rope_fields.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/value.hpp>
#include <cmath>

#include "model/config/config_limits.h"
#include "model/config/rope.h"

namespace millrace::model {

namespace {

constexpr double kMaxTheta = 1e12;
constexpr double kMaxFactor = 1e6;
constexpr std::string_view kSupported =
    "\"default\", \"linear\", \"llama3\", \"yarn\" or \"longrope\"";

// The rotary embedding's own fields, and those of the file around them.
class RopeReader {
 public:
  RopeReader(const JsonFields& fields, const JsonFields& rope, const Family& family,
             ModelConfig& config)
      : fields_(fields), rope_(rope), family_(family), config_(config) {}

  Result<void> read(std::string_view type_field, std::string_view type) {
    if (type == "default") return {};
    if (type == "linear") return linear();
    if (type == "llama3") return llama3();
    if (type == "yarn") return family_.yarn_is_longrope ? longrope() : yarn();
    if (type == "longrope" || type == "su") return longrope();
    return rope_.unsupported(type_field, kSupported);
  }

 private:
  Result<void> linear() {
    LinearRopeScaling scaling;
    MR_ASSIGN_OR_RETURN(scaling.factor, rope_.number("factor", 1, kMaxFactor));
    config_.rope_scaling = scaling;
    MR_ASSIGN_OR_RETURN(const auto original, original_positions());
    return stretch_positions(original * scaling.factor);
  }

  Result<void> llama3() {
    Llama3RopeScaling scaling;
    MR_ASSIGN_OR_RETURN(scaling.factor, rope_.number("factor", 1, kMaxFactor));
    MR_ASSIGN_OR_RETURN(scaling.low_freq_factor, rope_.number("low_freq_factor", 1e-6, kMaxFactor));
    MR_ASSIGN_OR_RETURN(scaling.high_freq_factor,
                        rope_.number("high_freq_factor", 1e-6, kMaxFactor));
    if (scaling.high_freq_factor <= scaling.low_freq_factor) {
      return rope_.invalid("high_freq_factor", fmt::format("more than low_freq_factor ({:g})",
                                                           scaling.low_freq_factor));
    }
    MR_ASSIGN_OR_RETURN(scaling.original_max_position_embeddings, original_positions());
    config_.rope_scaling = scaling;
    return {};
  }

  Result<void> yarn() {
    YarnRopeScaling scaling;
    MR_ASSIGN_OR_RETURN(scaling.original_max_position_embeddings, original_positions());
    MR_ASSIGN_OR_RETURN(scaling.factor, factor(scaling.original_max_position_embeddings));
    MR_ASSIGN_OR_RETURN(scaling.beta_fast, rope_.number_or("beta_fast", 32, 1e-6, kMaxFactor));
    MR_ASSIGN_OR_RETURN(scaling.beta_slow, rope_.number_or("beta_slow", 1, 1e-6, kMaxFactor));
    MR_ASSIGN_OR_RETURN(scaling.truncate, rope_.boolean_or("truncate", true));
    MR_ASSIGN_OR_RETURN(const auto mscale, rope_.number_or("mscale", 0, 0, kMaxFactor));
    MR_ASSIGN_OR_RETURN(const auto all_dim, rope_.number_or("mscale_all_dim", 0, 0, kMaxFactor));
    const auto of = [&](double weight) { return 0.1 * weight * std::log(scaling.factor) + 1; };
    const double own = mscale != 0 && all_dim != 0 ? of(mscale) / of(all_dim) : of(1);
    MR_ASSIGN_OR_RETURN(scaling.attention_factor,
                        rope_.number_or("attention_factor", own, 1e-6, kMaxFactor));
    config_.rope_scaling = scaling;
    return stretch_positions(scaling.original_max_position_embeddings * scaling.factor);
  }

  // max_position_embeddings is the stretched length here.
  Result<void> longrope() {
    LongRopeScaling scaling;
    MR_ASSIGN_OR_RETURN(scaling.short_factors, factors("short_factor"));
    MR_ASSIGN_OR_RETURN(scaling.long_factors, factors("long_factor"));
    MR_ASSIGN_OR_RETURN(scaling.original_max_position_embeddings, original_positions());
    const double original = scaling.original_max_position_embeddings;
    MR_ASSIGN_OR_RETURN(const auto stretched, factor(original));
    const double own = stretched <= 1 || original <= 1
                           ? 1
                           : std::sqrt(1 + std::log(stretched) / std::log(original));
    MR_ASSIGN_OR_RETURN(scaling.attention_factor,
                        rope_.number_or("attention_factor", own, 1e-6, kMaxFactor));
    config_.rope_scaling = std::move(scaling);
    return {};
  }

  // Phi-3 has the field outside, and its class assumes a value there, which counts more than one
  // inside. Where there is none, the file's length is the original one.
  Result<double> original_positions() const {
    constexpr std::string_view kName = "original_max_position_embeddings";
    if (fields_.find(kName) != nullptr) return fields_.number(kName, 1, kMaxPositions);
    if (const auto assumed = family_.assumed.original_positions; assumed != 0) return assumed;
    return rope_.number_or(kName, static_cast<double>(config_.max_position_embeddings), 1,
                           kMaxPositions);
  }

  Result<double> factor(double original) const {
    const double ratio = static_cast<double>(config_.max_position_embeddings) / original;
    return rope_.number_or("factor", std::max(ratio, 1.0), 1, kMaxFactor);
  }

  Result<std::vector<double>> factors(std::string_view name) const {
    const auto count = static_cast<size_t>(config_.num_turned() / 2);
    const auto* value = rope_.find(name);
    const auto expected = fmt::format("a list of {} numbers from 1e-06 to {:g}", count, kMaxFactor);
    if (value == nullptr || !value->is_array() || value->get_array().size() != count) {
      return rope_.invalid(name, expected);
    }
    std::vector<double> numbers;
    for (const auto& element : value->get_array()) {
      const double number = element.is_number() ? element.to_number<double>() : 0;
      if (number < 1e-6 || number > kMaxFactor) return rope_.invalid(name, expected);
      numbers.push_back(number);
    }
    return numbers;
  }

  // Some files give the length before scaling, some the length after it; Gemma's always do.
  Result<void> stretch_positions(double positions) {
    if (family_.local_rope_theta != 0) return {};
    config_.max_position_embeddings =
        std::max(config_.max_position_embeddings,
                 static_cast<int64_t>(std::min<double>(positions, kMaxPositions)));
    return {};
  }

  const JsonFields& fields_;
  const JsonFields& rope_;
  const Family& family_;
  ModelConfig& config_;
};

// MiniMax's: the number of rotated elements itself.
Result<void> read_named_rotary_dim(const JsonFields& fields, ModelConfig& config) {
  MR_ASSIGN_OR_RETURN(const auto dim, fields.count("rotary_dim", config.head_dim));
  if (dim % 2 != 0) {
    return fields.unsupported(
        "rotary_dim", fmt::format("an even number of a head's {} elements", config.head_dim));
  }
  config.rotary_dim = dim == config.head_dim ? 0 : dim;
  return {};
}

Result<void> read_rotary_dim(const JsonFields& fields, const Family& family, ModelConfig& config) {
  const bool has_share = fields.find("partial_rotary_factor") != nullptr;
  if (family.rotary_dim_field && !has_share && fields.find("rotary_dim") != nullptr) {
    return read_named_rotary_dim(fields, config);
  }
  MR_ASSIGN_OR_RETURN(const auto share,
                      fields.number_or("partial_rotary_factor", family.rotary_share, 0, 1));
  if (share != 1 && !family.partial_rotary) return fields.unsupported("partial_rotary_factor", "1");
  const auto dim = static_cast<int32_t>(config.head_dim * share);
  if (dim < 2 || dim % 2 != 0) {
    return fields.unsupported(
        "partial_rotary_factor",
        fmt::format("an even number of at least 2 of a head's {} elements", config.head_dim));
  }
  config.rotary_dim = dim == config.head_dim ? 0 : dim;
  return {};
}

// Reads rope_scaling or rope_parameters, whose fields count more than those of `file`, the
// surrounding object.
Result<void> read_parameters(const JsonFields& file, const JsonFields& rope, const Family& family,
                             ModelConfig& config) {
  MR_ASSIGN_OR_RETURN(config.rope_theta,
                      rope.number_or("rope_theta", config.rope_theta, 1, kMaxTheta));
  if (rope.find("partial_rotary_factor")) {
    MR_RETURN_IF_ERROR(read_rotary_dim(rope, family, config));
  }
  // Files from before Transformers 4.43 say "type".
  const char* type_field = rope.find("rope_type") ? "rope_type" : "type";
  MR_ASSIGN_OR_RETURN(const auto type, rope.string_or(type_field, "default"));
  return RopeReader(file, rope, family, config).read(type_field, type);
}

// What gpt-oss's class assumes where a file has no scaling.
Result<void> assume_yarn(const JsonFields& file, const Family& family, ModelConfig& config) {
  const boost::json::object yarn = {
      {"rope_type", "yarn"}, {"factor", 32},      {"beta_fast", 32},
      {"beta_slow", 1},      {"truncate", false}, {"original_max_position_embeddings", 4096}};
  return read_parameters(file, JsonFields(yarn, "Transformers' GptOssConfig"), family, config);
}

// For layers with a window.
Result<void> read_local_rope(const JsonFields& rope, ModelConfig& config) {
  MR_ASSIGN_OR_RETURN(config.local_rope_theta,
                      rope.number_or("rope_theta", config.local_rope_theta, 1, kMaxTheta));
  MR_ASSIGN_OR_RETURN(const auto type, rope.string_or("rope_type", "default"));
  return type == "default" ? Result<void>() : rope.unsupported("rope_type", "\"default\"");
}

constexpr std::string_view kFullLayers = "full_attention";
constexpr std::string_view kSlidingLayers = "sliding_attention";

// rope_parameters for either kind of layers.
Result<void> read_both_kinds(const JsonFields& file, const JsonFields& rope, const Family& family,
                             ModelConfig& config) {
  if (family.local_rope_theta == 0) {
    return file.unsupported("rope_parameters",
                            fmt::format("the same for all layers in a {}", family.architecture));
  }
  if (rope.find(kSlidingLayers)) {
    MR_ASSIGN_OR_RETURN(const auto sliding, rope.object(kSlidingLayers));
    MR_RETURN_IF_ERROR(read_local_rope(sliding, config));
  }
  if (!rope.find(kFullLayers)) return {};
  MR_ASSIGN_OR_RETURN(const auto full, rope.object(kFullLayers));
  return read_parameters(file, full, family, config);
}

}  // namespace

Result<void> read_rope(const JsonFields& fields, const Family& family, ModelConfig& config) {
  MR_ASSIGN_OR_RETURN(config.rope_theta,
                      fields.number_or("rope_theta", family.rope_theta, 1, kMaxTheta));
  config.local_rope_theta = family.local_rope_theta;
  if (family.local_rope_theta != 0) {
    MR_ASSIGN_OR_RETURN(
        config.local_rope_theta,
        fields.number_or("rope_local_base_freq", family.local_rope_theta, 1, kMaxTheta));
  }
  MR_RETURN_IF_ERROR(read_rotary_dim(fields, family, config));
  const bool newer = fields.find("rope_parameters") != nullptr;
  const char* name = newer ? "rope_parameters" : "rope_scaling";
  if (fields.find(name) == nullptr) {
    return family.assumes_yarn ? assume_yarn(fields, family, config) : Result<void>();
  }
  if (newer && fields.find("rope_scaling")) {
    return fields.invalid("rope_scaling", "null beside rope_parameters");
  }
  MR_ASSIGN_OR_RETURN(const auto rope, fields.object(name));
  if (newer && (rope.find(kFullLayers) || rope.find(kSlidingLayers))) {
    return read_both_kinds(fields, rope, family, config);
  }
  return read_parameters(fields, rope, family, config);
}

}  // namespace millrace::model
