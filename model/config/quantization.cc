// SPDX-License-Identifier: Apache-2.0
#include "model/config/quantization.h"

#include <boost/json/array.hpp>
#include <boost/json/value.hpp>
#include <string_view>

namespace millrace::model {

namespace {

constexpr std::string_view kMethods =
    "\"compressed-tensors\", \"fp8\", \"fbgemm_fp8\", \"modelopt\" of 8-bit floats";
constexpr int32_t kMaxBlock = 1 << 16;

Result<void> require(const JsonFields& fields, std::string_view name, std::string_view value) {
  MR_ASSIGN_OR_RETURN(const auto found, fields.string_or(name, value));
  if (found == value) return {};
  return fields.unsupported(name, fmt::format("\"{}\"", value));
}

Result<void> read_block(const JsonFields& fields, std::string_view name, Float8Format& format) {
  const auto* value = fields.find(name);
  const auto* sizes = value != nullptr ? value->if_array() : nullptr;
  const auto is_size = [](const boost::json::value& size) {
    const auto* integer = size.if_int64();
    return integer != nullptr && *integer >= 1 && *integer <= kMaxBlock;
  };
  if (sizes == nullptr || sizes->size() != 2 || !is_size((*sizes)[0]) || !is_size((*sizes)[1])) {
    return fields.invalid(name, fmt::format("[rows, columns] from 1 to {}", kMaxBlock));
  }
  const auto rows = static_cast<int32_t>((*sizes)[0].get_int64());
  const auto cols = static_cast<int32_t>((*sizes)[1].get_int64());
  if (format.block_rows != 0 && (format.block_rows != rows || format.block_cols != cols)) {
    return fields.unsupported(
        name, fmt::format("[{}, {}], as in other groups", format.block_rows, format.block_cols));
  }
  format.block_rows = rows;
  format.block_cols = cols;
  return {};
}

// What compressed-tensors says of one group's weights.
Result<void> read_group_weights(const JsonFields& weights, Float8Format& format) {
  MR_RETURN_IF_ERROR(require(weights, "type", "float"));
  MR_ASSIGN_OR_RETURN(const auto bits, weights.count("num_bits", kMaxBlock));
  if (bits != 8) return weights.unsupported("num_bits", "8");
  MR_ASSIGN_OR_RETURN(const auto symmetric, weights.boolean_or("symmetric", true));
  if (!symmetric) return weights.unsupported("symmetric", "true");
  MR_ASSIGN_OR_RETURN(const auto strategy, weights.string_or("strategy", "tensor"));
  if (strategy == "block") return read_block(weights, "block_structure", format);
  if (strategy != "tensor" && strategy != "channel") {
    return weights.unsupported("strategy", "\"tensor\", \"channel\" or \"block\"");
  }
  (strategy == "tensor" ? format.per_tensor : format.per_row) = true;
  return {};
}

// A field whose object, if present, must be empty: its contents would change the weights.
Result<void> require_empty(const JsonFields& fields, std::string_view name) {
  const auto* value = fields.find(name);
  if (value == nullptr || (value->is_object() && value->get_object().empty())) return {};
  return fields.unsupported(name, "null or {}");
}

Result<std::optional<Float8Format>> read_compressed_tensors(const JsonFields& fields) {
  MR_RETURN_IF_ERROR(require(fields, "format", "float-quantized"));
  MR_RETURN_IF_ERROR(require_empty(fields, "transform_config"));
  if (const auto* sparsity = fields.find("sparsity_config");
      sparsity != nullptr && !(sparsity->is_object() && sparsity->get_object().empty())) {
    MR_ASSIGN_OR_RETURN(const auto sparsity_fields, fields.object("sparsity_config"));
    MR_RETURN_IF_ERROR(require(sparsity_fields, "format", "dense"));
  }
  std::optional<Float8Format> format = Float8Format();
  MR_ASSIGN_OR_RETURN(const auto groups, fields.object("config_groups"));
  for (const auto& member : fields.find("config_groups")->get_object()) {
    MR_ASSIGN_OR_RETURN(const auto group,
                        groups.object({member.key().data(), member.key().size()}));
    MR_RETURN_IF_ERROR(require(group, "format", "float-quantized"));
    if (group.find("weights") == nullptr) continue;  // a group of activations only
    MR_ASSIGN_OR_RETURN(const auto weights, group.object("weights"));
    MR_RETURN_IF_ERROR(read_group_weights(weights, *format));
  }
  return format;
}

Result<std::optional<Float8Format>> read_fp8(const JsonFields& fields) {
  // MiniMax has PyTorch's name for it.
  MR_ASSIGN_OR_RETURN(const auto fmt, fields.string_or("fmt", "e4m3"));
  if (fmt != "e4m3" && fmt != "float8_e4m3fn") {
    return fields.unsupported("fmt", "\"e4m3\" or \"float8_e4m3fn\"");
  }
  std::optional<Float8Format> format = Float8Format();
  const auto* scales = fields.find("scale_fmt");
  format->power_scales = scales != nullptr && *scales == "ue8m0";
  if (fields.find("weight_block_size") == nullptr) {
    format->per_tensor = true;
  } else {
    MR_RETURN_IF_ERROR(read_block(fields, "weight_block_size", *format));
  }
  return format;
}

Result<std::optional<Float8Format>> read_modelopt(const JsonFields& fields) {
  MR_RETURN_IF_ERROR(require(fields, "quant_algo", "FP8"));
  return std::optional(Float8Format{.per_tensor = true});
}

}  // namespace

Result<std::optional<Float8Format>> read_float8_format(const JsonFields& config,
                                                       Family::Experts experts) {
  const bool old_name = !config.find("quantization_config") && config.find("compression_config");
  const std::string_view name = old_name ? "compression_config" : "quantization_config";
  if (config.find(name) == nullptr) return std::optional<Float8Format>();
  MR_ASSIGN_OR_RETURN(const auto fields, config.object(name));
  // Early exports of ModelOpt have no quant_method.
  const bool unnamed_modelopt = !fields.find("quant_method") && fields.find("quant_algo");
  MR_ASSIGN_OR_RETURN(const auto method,
                      fields.string_or("quant_method", unnamed_modelopt ? "modelopt" : ""));
  if (method == "mxfp4" && experts == Family::Experts::kGptOss) {
    return std::optional<Float8Format>();
  }
  if (method == "compressed-tensors") return read_compressed_tensors(fields);
  if (method == "fp8") return read_fp8(fields);
  if (method == "fbgemm_fp8") return std::optional(Float8Format{.per_row = true});
  if (method == "modelopt") return read_modelopt(fields);
  return fields.unsupported("quant_method", kMethods);
}

Result<std::optional<Float8Format>> read_modelopt_format(const JsonFields& file) {
  MR_ASSIGN_OR_RETURN(const auto fields, file.object("quantization"));
  if (fields.find("quant_algo") == nullptr)
    return std::optional<Float8Format>();  // the KV cache alone
  return read_modelopt(fields);
}

}  // namespace millrace::model
