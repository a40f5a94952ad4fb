// SPDX-License-Identifier: Apache-2.0
#include "worker/batch/kv_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cerrno>
#include <cstring>

#include "common/float8_array.h"

namespace millrace::worker {

namespace json = boost::json;

namespace {

// Large enough that the disk takes the time, not the number of calls.
constexpr int64_t kWindowBytes = 16 << 20;

// For copying one window from the device.
constexpr auto kCopyTimeout = std::chrono::seconds(60);

std::string_view safetensors_dtype(DType dtype) {
  return dtype == DType::kFloat32 ? "F32" : dtype == DType::kBFloat16 ? "BF16" : "F16";
}

// Header of a file with tensors in the order layers.0.k, layers.0.v, layers.1.k, ...
std::string safetensors_header(const model::ModelWeights& weights, int64_t num_rows, bool float8) {
  const int64_t kv_heads = weights.shard.num_kv_heads;
  const int64_t head_dim = weights.config.head_dim;
  const int64_t element_bytes =
      float8 ? int64_t{sizeof(Float8)} : dtype_bytes(weights.compute_dtype);
  const int64_t bytes = kv_heads * num_rows * head_dim * element_bytes;
  json::object header;
  int64_t begin = 0;
  for (int32_t layer = 0; layer < weights.config.num_layers; ++layer) {
    for (const char* kind : {"k", "v"}) {
      header[fmt::format("layers.{}.{}", layer, kind)] = {
          {"dtype", float8 ? "F8_E4M3" : safetensors_dtype(weights.compute_dtype)},
          {"shape", {kv_heads, num_rows, head_dim}},
          {"data_offsets", {begin, begin + bytes}}};
      begin += bytes;
    }
  }
  std::string text = json::serialize(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the format wants the data 8-byte aligned
  const auto size = static_cast<uint64_t>(text.size());
  return std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + text;
}

}  // namespace

Result<std::unique_ptr<KvFileSink>> KvFileSink::create(kernels::Device& device,
                                                       const std::string& path,
                                                       const model::ModelWeights& weights,
                                                       int64_t num_rows, const KvScales* float8) {
  MR_ASSIGN_OR_RETURN(auto window, kernels::HostWindow::create(device, kWindowBytes));
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor < 0) return error(Errc::kIo, "{}: open: {}", path, std::strerror(errno));
  std::unique_ptr<KvFileSink> sink(
      new KvFileSink(path, descriptor, std::move(window), float8, weights.shard.first_kv_head));
  const std::string header = safetensors_header(weights, num_rows, float8 != nullptr);
  MR_RETURN_IF_ERROR(sink->append(header.data(), static_cast<int64_t>(header.size())));
  return sink;
}

KvFileSink::~KvFileSink() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Result<void> KvFileSink::append(const void* data, int64_t bytes) {
  const auto* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor_, from, static_cast<size_t>(bytes));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      return error(Errc::kIo, "{}: write of {} bytes: {}", path_, bytes, std::strerror(errno));
    }
    from += written;
    bytes -= written;
  }
  return {};
}

Result<void> KvFileSink::append_rows(const std::byte* rows, int64_t bytes, DType dtype,
                                     float scale) {
  while (bytes > 0) {
    const int64_t part = std::min(bytes, kWindowBytes);
    MR_ASSIGN_OR_RETURN(const auto view, window_.read(rows, part, Deadline::after(kCopyTimeout)));
    if (float8_ != nullptr) {
      codes_.resize(static_cast<size_t>(part / dtype_bytes(dtype)));
      encode_float8(view.data(), dtype, std::ssize(codes_), scale, codes_.data());
      MR_RETURN_IF_ERROR(append(codes_.data(), std::ssize(codes_)));
    } else {
      MR_RETURN_IF_ERROR(append(view.data(), part));
    }
    rows += part;
    bytes -= part;
  }
  return {};
}

Result<void> KvFileSink::write_layer(const engine::LayerKv& kv) {
  const engine::LocalKv& local = kv.local;
  const int64_t head_bytes = local.num_rows * local.row_bytes();
  const bool by_head = float8_ != nullptr && float8_->by_head();
  const int32_t heads_together = by_head ? 1 : local.num_kv_heads;
  for (const auto& [data, side] :
       {std::pair(local.k, &KvScale::k), std::pair(local.v, &KvScale::v)}) {
    for (int32_t head = 0; head < local.num_kv_heads; head += heads_together) {
      const KvScale scale =
          float8_ != nullptr ? float8_->of(kv.layer, first_kv_head_ + head) : KvScale();
      MR_RETURN_IF_ERROR(append_rows(static_cast<const std::byte*>(data) + head * head_bytes,
                                     heads_together * head_bytes, local.dtype, scale.*side));
    }
  }
  return {};
}

Result<void> KvFileSink::close() {
  // Some file systems report a full disk only here.
  const int descriptor = std::exchange(descriptor_, -1);
  if (::close(descriptor) != 0) {
    return error(Errc::kIo, "{}: close: {}", path_, std::strerror(errno));
  }
  return {};
}

std::string kv_file_name(int rank) {
  return fmt::format("rank-{}.safetensors", rank);
}

Result<std::string> kv_manifest_json(const KvManifestFacts& facts, const model::ModelConfig& config,
                                     DType dtype, const engine::Partition& partition,
                                     engine::GridShape grid) {
  json::array files;
  for (int rank = 0; rank < grid.tp * grid.cp; ++rank) {
    MR_ASSIGN_OR_RETURN(const auto shard, model::shard_shape(config, {rank % grid.tp, grid.tp}));
    if (shard.kv_replica != 0) continue;
    json::array ranges;
    for (const auto& range : partition.ranges(rank / grid.tp)) {
      ranges.push_back({range.begin, range.end});
    }
    files.push_back({{"file", kv_file_name(rank)},
                     {"rank", rank},
                     {"first_kv_head", shard.first_kv_head},
                     {"num_kv_heads", shard.num_kv_heads},
                     {"token_ranges", std::move(ranges)}});
  }
  json::object manifest = {{"version", facts.float8 == nullptr   ? 1
                                       : facts.float8->by_head() ? 3
                                                                 : 2},
                           {"id", facts.id},
                           {"model", config.name},
                           {"num_tokens", facts.num_tokens},
                           {"num_layers", config.num_layers},
                           {"num_kv_heads", config.num_kv_heads},
                           {"head_dim", config.head_dim},
                           {"dtype", facts.float8 ? kFloat8KvName : dtype_name(dtype)},
                           {"tp", grid.tp},
                           {"cp", grid.cp},
                           {"first_token_id", facts.first_token},
                           {"density", facts.density},
                           {"files", std::move(files)}};
  if (facts.float8 != nullptr) {
    json::array k_scales, v_scales;
    for (const KvScale& scale : facts.float8->all()) {
      k_scales.push_back(scale.k);
      v_scales.push_back(scale.v);
    }
    manifest["k_scales"] = std::move(k_scales);
    manifest["v_scales"] = std::move(v_scales);
  }
  return json::serialize(manifest) + "\n";
}

}  // namespace millrace::worker
