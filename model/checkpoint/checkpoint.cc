// SPDX-License-Identifier: Apache-2.0
#include "model/checkpoint/checkpoint.h"

#include <algorithm>
#include <boost/json/object.hpp>
#include <filesystem>
#include <utility>

#include "common/check.h"
#include "common/checksum.h"
#include "model/checkpoint/mxfp4.h"
#include "model/config/json_text.h"

namespace millrace::model {

namespace {

namespace json = boost::json;

// Llama 3.1 405B's index is 110 KB and names 191 files.
constexpr int64_t kMaxIndexBytes = 16 << 20;
constexpr int kMaxIndexDepth = 8;
constexpr std::size_t kMaxFiles = 4096;

bool is_plain_file_name(std::string_view name) {
  constexpr std::size_t kMaxNameBytes = 255;
  return name.size() <= kMaxNameBytes && name.ends_with(".safetensors") &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

// Tensor name -> file name, checked.
using WeightMap = std::map<std::string, std::string, std::less<>>;

Result<WeightMap> read_weight_map(const std::string& path) {
  MR_ASSIGN_OR_RETURN(const auto text, read_text_file(path, kMaxIndexBytes));
  const auto parsed = parse_json(text, kMaxIndexDepth);
  if (!parsed.ok()) return error(Errc::kCorrupt, "{}: {}", path, parsed.error().message);
  const auto* index = parsed->if_object();
  const auto* map_value = index != nullptr ? index->if_contains("weight_map") : nullptr;
  const auto* map = map_value != nullptr ? map_value->if_object() : nullptr;
  if (map == nullptr)
    return error(Errc::kCorrupt, "{}: 'weight_map' is missing or not an object", path);

  WeightMap files;
  for (const auto& member : *map) {
    const auto* file = member.value().if_string();
    if (file == nullptr || !is_plain_file_name({file->data(), file->size()})) {
      return error(Errc::kCorrupt,
                   "{}: weight_map names {}; expected a .safetensors file in the same directory",
                   path, quoted(member.value()));
    }
    files.emplace(std::string(member.key()), std::string(*file));
  }
  return files;
}

std::string_view type_name(const Tensor& tensor) {
  if (tensor.is_bytes) return "uint8";
  return tensor.float8 ? "float8_e4m3" : dtype_name(tensor.dtype);
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const std::string& directory,
                                    std::optional<Float8Format> float8) {
  const std::string single = directory + "/model.safetensors";
  const std::string index = single + ".index.json";
  std::error_code ignored;
  const bool is_single = std::filesystem::exists(single, ignored);
  if (is_single || std::filesystem::exists(index, ignored)) {
    auto checkpoint = is_single ? open_single(single) : open_indexed(directory, index);
    if (!checkpoint.ok()) return checkpoint;
    checkpoint->float8_ = float8;
    checkpoint->rename_text_model();
    return checkpoint;
  }
  return error(Errc::kNotFound,
               "{}: has neither model.safetensors nor model.safetensors.index.json", directory);
}

Result<Checkpoint> Checkpoint::open_single(const std::string& path) {
  Checkpoint checkpoint;
  checkpoint.listing_ = path;
  MR_ASSIGN_OR_RETURN(auto file, SafetensorsFile::open(path));
  for (auto& name : file->names()) checkpoint.file_of_.emplace(name, Place{0, name});
  checkpoint.files_.push_back(std::move(file));
  return checkpoint;
}

Result<Checkpoint> Checkpoint::open_indexed(const std::string& directory,
                                            const std::string& index_path) {
  Checkpoint checkpoint;
  checkpoint.listing_ = index_path;
  MR_ASSIGN_OR_RETURN(const auto weight_map, read_weight_map(index_path));
  std::map<std::string, std::size_t> opened;
  for (const auto& [tensor, file_name] : weight_map) {
    const auto [place, is_new] = opened.emplace(file_name, checkpoint.files_.size());
    if (is_new) {
      if (opened.size() > kMaxFiles) {
        return error(Errc::kTooLarge, "{}: names more than {} files", index_path, kMaxFiles);
      }
      MR_ASSIGN_OR_RETURN(auto file,
                          SafetensorsFile::open(fmt::format("{}/{}", directory, file_name)));
      checkpoint.files_.push_back(std::move(file));
    }
    checkpoint.file_of_.emplace(tensor, Place{place->second, tensor});
  }
  return checkpoint;
}

void Checkpoint::rename_text_model() {
  constexpr std::string_view kOuter = "language_model.";        // prefix of all tensors
  constexpr std::string_view kInner = "model.language_model.";  // prefix of those named model.
  for (const auto& [name, place] : std::exchange(file_of_, {})) {
    std::string own = name;
    if (name.starts_with(kOuter)) own = name.substr(kOuter.size());
    if (name.starts_with(kInner)) own = fmt::format("model.{}", name.substr(kInner.size()));
    file_of_.emplace(std::move(own), place);
  }
}

const std::string& Checkpoint::path_of(std::string_view name) const {
  return files_[file_of_.find(name)->second.file]->file()->path();
}

Result<Tensor> Checkpoint::stored(std::string_view name) const {
  const auto found = file_of_.find(name);
  if (found == file_of_.end()) {
    return error(Errc::kNotFound, "{}: no tensor {} of type {}", listing_, quoted(name),
                 kTensorTypes);
  }
  const auto& [index, stored_name] = found->second;
  const auto& file = *files_[index];
  MR_ASSIGN_OR_RETURN(auto tensor, file.tensor(stored_name));
  tensor.memory = file.file();
  return tensor;
}

Result<Tensor> Checkpoint::stored(std::string_view name, std::span<const int64_t> shape) const {
  MR_ASSIGN_OR_RETURN(auto tensor, stored(name));
  if (!std::ranges::equal(tensor.shape, shape)) {
    return error(Errc::kInvalidArgument, "{}: tensor {} has shape [{}], config.json asks for [{}]",
                 path_of(name), quoted(name), fmt::join(tensor.shape, ", "),
                 fmt::join(shape, ", "));
  }
  return tensor;
}

Result<Tensor> Checkpoint::find(std::string_view name, std::span<const int64_t> shape) const {
  MR_ASSIGN_OR_RETURN(auto tensor, stored(name, shape));
  if (tensor.is_bytes) {
    return error(Errc::kNotFound, "{}: no tensor {} of type {}", path_of(name), quoted(name),
                 kTensorTypes);
  }
  MR_RETURN_IF_ERROR(find_scales(name, tensor));
  return tensor;
}

Result<Tensor> Checkpoint::find_mxfp4(std::string_view name, std::span<const int64_t> shape) const {
  const std::string blocks_name = fmt::format("{}_blocks", name);
  const std::string scales_name = fmt::format("{}_scales", name);
  MR_CHECK(!shape.empty(), "a scalar in MXFP4");
  if (shape.back() % kMxfp4Block != 0) {
    return error(Errc::kUnsupported, "{}: tensor {} has rows of {}; supported: multiples of {}",
                 listing_, quoted(std::string_view(blocks_name)), shape.back(), kMxfp4Block);
  }
  std::vector<int64_t> scales_shape(shape.begin(), shape.end());
  scales_shape.back() /= kMxfp4Block;
  auto blocks_shape = scales_shape;
  blocks_shape.push_back(kMxfp4BlockBytes);
  MR_ASSIGN_OR_RETURN(auto tensor, stored(blocks_name, blocks_shape));
  MR_ASSIGN_OR_RETURN(const auto scales, stored(scales_name, scales_shape));
  for (const auto* part : {&blocks_name, &scales_name}) {
    const auto& found = part == &blocks_name ? tensor : scales;
    if (found.is_bytes) continue;
    return error(Errc::kUnsupported, "{}: tensor {} is of type {}; supported: U8", path_of(*part),
                 quoted(std::string_view(*part)), type_name(found));
  }
  const auto largest = std::to_integer<int>(std::ranges::max(scales.bytes));
  if (largest > kMaxMxfp4Scale) {
    return error(Errc::kCorrupt, "{}: tensor {} has a scale of {}; at most {}",
                 path_of(scales_name), quoted(std::string_view(scales_name)), largest,
                 kMaxMxfp4Scale);
  }
  tensor.is_bytes = false;
  tensor.mxfp4 = true;
  tensor.dtype = DType::kBFloat16;  // in which its elements are exact
  tensor.shape.assign(shape.begin(), shape.end());
  tensor.block_scales = scales.bytes;
  return tensor;
}

Result<void> Checkpoint::find_scales(std::string_view name, Tensor& tensor) const {
  const std::string plain = fmt::format("{}_scale", name), inverse = plain + "_inv";
  const bool has_scales = contains(plain) || contains(inverse);
  const std::string_view scale_name = contains(plain) ? plain : inverse;
  if (!tensor.float8) {
    if (!has_scales) return {};
    return error(Errc::kUnsupported,
                 "{}: tensor {} is of type {} and has scales, {}; supported: F8_E4M3 with scales",
                 path_of(name), quoted(name), dtype_name(tensor.dtype), quoted(scale_name));
  }
  if (!float8_) {
    return error(Errc::kUnsupported,
                 "{}: tensor {} is of type F8_E4M3; supported: where config.json has a "
                 "quantization_config that says how it is scaled",
                 path_of(name), quoted(name));
  }
  if (tensor.shape.size() != 2) {
    return error(Errc::kUnsupported,
                 "{}: tensor {} of shape [{}] is of type F8_E4M3; supported: matrices",
                 path_of(name), quoted(name), fmt::join(tensor.shape, ", "));
  }
  if (!has_scales) {
    return error(Errc::kNotFound,
                 "{}: tensor {} is of type F8_E4M3, and neither {} nor {} is there", path_of(name),
                 quoted(name), quoted(std::string_view(plain)), quoted(std::string_view(inverse)));
  }
  MR_ASSIGN_OR_RETURN(const auto found, stored(scale_name));
  if (found.float8) {
    return error(Errc::kUnsupported, "{}: scales {} are of type F8_E4M3; supported: 16 and 32 bits",
                 path_of(scale_name), quoted(scale_name));
  }
  auto scales = Float8Scales::create(*float8_, tensor.shape, found.shape, found.dtype, found.bytes);
  if (!scales.ok()) {
    return error(scales.error().code, "{}: scales {}: {}", path_of(scale_name), quoted(scale_name),
                 scales.error().message);
  }
  tensor.scales = std::make_shared<const Float8Scales>(*std::move(scales));
  return {};
}

uint64_t Checkpoint::fingerprint() const {
  constexpr std::size_t kSampleBytes = 256;
  std::string facts;
  for (const auto& [name, place] : file_of_) {
    const auto tensor = files_[place.file]->tensor(place.name);
    if (!tensor.ok()) continue;  // a dtype that no model here reads
    facts += fmt::format("{} {} [{}] ", name, type_name(*tensor), fmt::join(tensor->shape, ","));
    const auto bytes = tensor->bytes;
    const std::size_t sample = std::min(kSampleBytes, bytes.size());
    for (const std::size_t first :
         {std::size_t{0}, (bytes.size() - sample) / 2, bytes.size() - sample}) {
      facts += fmt::format("{:016x} ", checksum(bytes.subspan(first, sample)));
    }
  }
  return checksum(std::as_bytes(std::span(facts)));
}

}  // namespace millrace::model
