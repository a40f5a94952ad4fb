// SPDX-License-Identifier: Apache-2.0
#include "model/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/object.hpp>
#include <cmath>
#include <filesystem>
#include <utility>

#include "common/check.h"
#include "common/checksum.h"
#include "model/checkpoint/mxfp4.h"
#include "model/checkpoint/tensor_digests.h"
#include "model/json/json_text.h"
#include "model/json/python_json.h"

namespace millrace::model {

namespace {

namespace json = boost::json;

// Llama 3.1 405B's index is 110 KB and names 191 files; those of models with hundreds of quantised
// experts in each layer take some 30 MB.
constexpr int64_t kMaxIndexBytes = 256 << 20;
constexpr int kMaxIndexDepth = 8;
constexpr std::size_t kMaxFiles = 4096;

// Whether it is a path of a file in the directory or below, as it is written.
bool leads_inside(std::string_view name) {
  constexpr std::size_t kMaxNameBytes = 4096;
  if (name.size() > kMaxNameBytes || !name.ends_with(".safetensors") ||
      name.find_first_of(std::string_view("\\\0", 2)) != std::string_view::npos) {
    return false;
  }
  for (std::size_t begin = 0; begin <= name.size();) {
    const auto end = std::min(name.find('/', begin), name.size());
    const auto part = name.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    begin = end + 1;
  }
  return true;
}

// Tensor name -> file name, checked.
using WeightMap = std::map<std::string, std::string, std::less<>>;

Result<WeightMap> read_weight_map(const std::string& path) {
  const auto parsed = read_python_json(path, kMaxIndexBytes, kMaxIndexDepth);
  if (!parsed.ok() && parsed.error().code == Errc::kInvalidArgument) {
    return Error(Errc::kCorrupt, parsed.error().message);
  }
  if (!parsed.ok()) return parsed.error();
  const auto* index = parsed->if_object();
  const auto* map_value = index != nullptr ? index->if_contains("weight_map") : nullptr;
  const auto* map = map_value != nullptr ? map_value->if_object() : nullptr;
  if (map == nullptr)
    return error(Errc::kCorrupt, "{}: 'weight_map' is missing or not an object", path);

  WeightMap files;
  for (const auto& member : *map) {
    const auto* file = member.value().if_string();
    if (file == nullptr || !leads_inside({file->data(), file->size()})) {
      return error(
          Errc::kCorrupt,
          "{}: weight_map names {}; expected a .safetensors file in the same directory or below",
          path, quote(member.value()));
    }
    files.emplace(std::string(member.key()), std::string(*file));
  }
  return files;
}

std::string_view type_name(const Tensor& tensor) {
  if (tensor.is_bytes) return "uint8";
  if (tensor.e8m0) return "float8_e8m0";
  return tensor.float8 ? "float8_e4m3" : dtype_name(tensor.dtype);
}

// OCP Microscaling Formats 1.0, section 5.4.1: 2^(byte - 127), and 255 is not a number.
std::vector<float> expand_e8m0(std::span<const std::byte> bytes) {
  std::vector<float> values;
  for (const auto byte : bytes) {
    const auto code = std::to_integer<int>(byte);
    values.push_back(code == 255 ? std::nanf("") : std::ldexp(1.0F, code - 127));
  }
  return values;
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const std::string& directory,
                                    std::optional<Float8Format> float8) {
  const std::string single = directory + "/model.safetensors";
  const std::string index = single + ".index.json";
  std::error_code ignored;
  const bool has_single = std::filesystem::exists(single, ignored);
  const bool has_index = std::filesystem::exists(index, ignored);
  if (has_single || has_index) {
    auto checkpoint = has_index ? open_indexed(directory, index) : open_single(single);
    if (!checkpoint.ok()) return checkpoint;
    const auto is_single = [&](const auto& file) { return file->file()->path() == single; };
    if (has_single && std::ranges::none_of(checkpoint->files_, is_single)) {
      checkpoint->warnings_.push_back(
          fmt::format("{} is not read: {} does not name it", single, index));
    }
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
  for (const auto& [name, tensor] : file->tensors()) {
    checkpoint.file_of_.emplace(name, Place{0, name});
  }
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
  // What an index forgets is there all the same, as in Transformers, which reads whole files.
  for (std::size_t i = 0; i < checkpoint.files_.size(); ++i) {
    for (const auto& [name, tensor] : checkpoint.files_[i]->tensors()) {
      checkpoint.file_of_.emplace(name, Place{i, name});
    }
  }
  return checkpoint;
}

// What stands before "layers.0." in the names of the text model: "model." as a rule; nothing if the
// model was saved without its last layer; "language_model.model." or "model.language_model." beside
// a model for images. If several models have layers, it is the one of most tensors.
std::string Checkpoint::text_prefix() const {
  constexpr std::string_view kFirst = "layers.0.input_layernorm.weight";
  std::string prefix = "model.";
  std::ptrdiff_t most = 0;
  for (const auto& [name, place] : file_of_) {
    if (!name.ends_with(kFirst)) continue;
    const auto candidate = name.substr(0, name.size() - kFirst.size());
    const auto count =
        std::ranges::count_if(file_of_, [layers = candidate + "layers."](const auto& other) {
          return other.first.starts_with(layers);
        });
    if (count > most) {
      prefix = candidate;
      most = count;
    }
  }
  return prefix;
}

void Checkpoint::rename_text_model() {
  constexpr std::string_view kHead = "lm_head.";
  const std::string prefix = text_prefix();
  for (const auto& [name, place] : std::exchange(file_of_, {})) {
    const auto head = name.find(kHead);
    std::string own = name;
    if (head != std::string::npos && prefix.starts_with(std::string_view(name).substr(0, head))) {
      own = name.substr(head);
    } else if (name.starts_with(prefix)) {
      own = fmt::format("model.{}", name.substr(prefix.size()));
    }
    file_of_.emplace(std::move(own), place);
  }
}

const std::string& Checkpoint::path_of(std::string_view name) const {
  return files_[file_of_.find(name)->second.file]->file()->path();
}

Result<Tensor> Checkpoint::stored(std::string_view name) const {
  const auto found = file_of_.find(name);
  if (found == file_of_.end()) {
    return error(Errc::kNotFound, "{}: no tensor {} of type {}", listing_, quote(name),
                 kTensorTypes);
  }
  const auto& [index, stored_name] = found->second;
  const auto& file = *files_[index];
  MR_ASSIGN_OR_RETURN(auto tensor, file.tensor(stored_name));
  tensor.memory = file.file();
  used_.emplace(name);
  return tensor;
}

Result<Tensor> Checkpoint::stored(std::string_view name, std::span<const int64_t> shape) const {
  MR_ASSIGN_OR_RETURN(auto tensor, stored(name));
  if (!std::ranges::equal(tensor.shape, shape)) {
    return error(Errc::kInvalidArgument, "{}: tensor {} has shape [{}], config.json asks for [{}]",
                 path_of(name), quote(name), fmt::join(tensor.shape, ", "), fmt::join(shape, ", "));
  }
  return tensor;
}

Result<Tensor> Checkpoint::find(std::string_view name, std::span<const int64_t> shape) const {
  MR_ASSIGN_OR_RETURN(auto tensor, stored(name, shape));
  if (tensor.is_bytes || tensor.e8m0) {
    return error(Errc::kNotFound, "{}: tensor {} is of type {}; supported: {}", path_of(name),
                 quote(name), type_name(tensor), kTensorTypes);
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
                 listing_, quote(std::string_view(blocks_name)), shape.back(), kMxfp4Block);
  }
  std::vector<int64_t> scales_shape(shape.begin(), shape.end());
  scales_shape.back() /= kMxfp4Block;
  auto blocks_shape = scales_shape;
  blocks_shape.push_back(kMxfp4BlockBytes);
  MR_ASSIGN_OR_RETURN(auto tensor, stored(blocks_name, blocks_shape));
  MR_ASSIGN_OR_RETURN(const auto scales, stored(scales_name, scales_shape));
  for (const auto* part : {&blocks_name, &scales_name}) {
    const auto& found = part == &blocks_name ? tensor : scales;
    if (found.is_bytes || (part == &scales_name && found.e8m0)) continue;
    return error(Errc::kUnsupported, "{}: tensor {} is of type {}; supported: U8", path_of(*part),
                 quote(std::string_view(*part)), type_name(found));
  }
  const auto largest = std::to_integer<int>(std::ranges::max(scales.bytes));
  if (largest > kMaxMxfp4Scale) {
    return error(Errc::kCorrupt, "{}: tensor {} has a scale of {}; at most {}",
                 path_of(scales_name), quote(std::string_view(scales_name)), largest,
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
                 path_of(name), quote(name), dtype_name(tensor.dtype), quote(scale_name));
  }
  if (!float8_) {
    return error(Errc::kUnsupported,
                 "{}: tensor {} is of type F8_E4M3; supported: where config.json has a "
                 "quantization_config that says how it is scaled",
                 path_of(name), quote(name));
  }
  if (tensor.shape.size() != 2) {
    return error(Errc::kUnsupported,
                 "{}: tensor {} of shape [{}] is of type F8_E4M3; supported: matrices",
                 path_of(name), quote(name), fmt::join(tensor.shape, ", "));
  }
  if (!has_scales) {
    return error(Errc::kNotFound,
                 "{}: tensor {} is of type F8_E4M3, and neither {} nor {} is there", path_of(name),
                 quote(name), quote(std::string_view(plain)), quote(std::string_view(inverse)));
  }
  MR_ASSIGN_OR_RETURN(const auto found, stored(scale_name));
  // Powers of two may be stored as bytes without a type, which only the config tells.
  const bool powers = found.e8m0 || (found.is_bytes && float8_->power_scales);
  if (found.float8 || (found.is_bytes && !powers)) {
    return error(Errc::kUnsupported,
                 "{}: scales {} are of type {}; supported: 16 and 32 bits, F8_E8M0, and U8 with "
                 "scale_fmt \"ue8m0\"",
                 path_of(scale_name), quote(scale_name), type_name(found));
  }
  const auto values = powers ? expand_e8m0(found.bytes) : std::vector<float>();
  auto scales = Float8Scales::create(*float8_, tensor.shape, found.shape, found.dtype,
                                     powers ? std::as_bytes(std::span(values)) : found.bytes);
  if (!scales.ok()) {
    return error(scales.error().code, "{}: scales {}: {}", path_of(scale_name), quote(scale_name),
                 scales.error().message);
  }
  tensor.scales = std::make_shared<const Float8Scales>(*std::move(scales));
  return {};
}

uint64_t Checkpoint::fingerprint(int num_threads) const {
  std::vector<std::optional<TensorDigests>> digests(files_.size());
  // Ranks of one machine take different files first.
  for (const bool waits : {false, true}) {
    for (std::size_t i = 0; i < files_.size(); ++i) {
      if (!digests[i]) digests[i] = tensor_digests(*files_[i], num_threads, waits);
    }
  }
  std::string facts;
  for (const auto& [name, place] : file_of_) {
    const auto& tensors = files_[place.file]->tensors();
    const auto found = tensors.find(place.name);
    if (found == tensors.end()) continue;  // only the index has it
    facts += fmt::format("{} {} [{}] {:016x} ", name, found->second.type,
                         fmt::join(found->second.shape, ","),
                         digests[place.file]->find(place.name)->second);
  }
  return checksum(std::as_bytes(std::span(facts)));
}

std::vector<std::string> Checkpoint::unused() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : file_of_) {
    if (!used_.contains(name)) names.push_back(name);
  }
  return names;
}

std::vector<std::string> Checkpoint::names(std::string_view prefix) const {
  std::vector<std::string> names;
  for (auto next = file_of_.lower_bound(prefix);
       next != file_of_.end() && next->first.starts_with(prefix); ++next) {
    names.push_back(next->first);
  }
  return names;
}

Result<void> Checkpoint::unchanged() const {
  for (const auto& file : files_) MR_RETURN_IF_ERROR(file->file()->unchanged());
  return {};
}

}  // namespace millrace::model
