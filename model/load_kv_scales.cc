#include "model/load_kv_scales.h"

#include <array>
#include <string_view>

#include "common/quoted.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/element_conversion.h"
#include "model/synthetic/synthetic_model.h"

namespace millrace::model {

namespace {

using Names = std::array<std::string_view, 3>;

constexpr Names kKeyNames{"k_scale", "attn.k_scale", "k_proj.k_scale"};
constexpr Names kValueNames{"v_scale", "attn.v_scale", "v_proj.v_scale"};

// A scalar may be stored with one dimension.
Result<Tensor> find_scalar(const Checkpoint& checkpoint, const std::string& name) {
  constexpr std::array<int64_t, 1> kOne{1};
  auto scalar = checkpoint.find(name, {});
  if (scalar.ok() || scalar.error().code != Errc::kInvalidArgument) return scalar;
  auto vector = checkpoint.find(name, kOne);
  if (vector.ok() || vector.error().code != Errc::kInvalidArgument) return vector;
  return error(Errc::kUnsupported, "{}; supported: one scale for K and one for V of a layer",
               vector.error().message);
}

Result<float> read_scale(const Checkpoint& checkpoint, const std::string& name) {
  MR_ASSIGN_OR_RETURN(const auto tensor, find_scalar(checkpoint, name));
  float scale = 0;
  convert_elements(tensor.bytes.data(), tensor.dtype, 1, reinterpret_cast<std::byte*>(&scale),
                   DType::kFloat32);
  if (is_kv_scale(scale)) return scale;
  return error(Errc::kInvalidArgument, "scale {} is {}; must be from 2^-60 to 2^60",
               quoted(std::string_view(name)), scale);
}

Result<float> find_scale(const Checkpoint& checkpoint, int32_t layer, const Names& names) {
  for (const auto name : names) {
    const auto full = fmt::format("model.layers.{}.self_attn.{}", layer, name);
    if (checkpoint.contains(full)) return read_scale(checkpoint, full);
  }
  return 1.0F;
}

}  // namespace

Result<KvScales> load_kv_scales(const std::string& model, const ModelConfig& config) {
  KvScales scales(static_cast<size_t>(config.num_layers));
  if (is_synthetic_model(model)) return scales;
  MR_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::open(model));
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    auto& scale = scales[static_cast<size_t>(layer)];
    MR_ASSIGN_OR_RETURN(scale.k, find_scale(checkpoint, layer, kKeyNames));
    MR_ASSIGN_OR_RETURN(scale.v, find_scale(checkpoint, layer, kValueNames));
  }
  return scales;
}

}  // namespace millrace::model
