// SPDX-License-Identifier: Apache-2.0
#include "model/checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cstring>
#include <optional>
#include <utility>

#include "model/json/json_text.h"

namespace millrace::model {

namespace {

namespace json = boost::json;
using TensorMap = std::map<std::string, TensorInfo, std::less<>>;

constexpr int64_t kLengthBytes = 8;  // little-endian length of the header, before it
constexpr int kMaxHeaderDepth = 4;   // {name: {"shape": [n]}} needs 3
constexpr std::size_t kMaxRank = 8;

// Whether it is a dtype that models here have.
bool parse_dtype(std::string_view name, TensorInfo& info) {
  info.float8 = name == "F8_E4M3";
  info.is_bytes = name == "U8";
  info.e8m0 = name == "F8_E8M0";
  if (name == "BF16") {
    info.dtype = DType::kBFloat16;
  } else if (name == "F16") {
    info.dtype = DType::kFloat16;
  } else if (name != "F32" && info.element_bytes() != 1) {
    return false;
  }
  return true;
}

// Non-negative integers only.
std::optional<std::vector<int64_t>> integers(const json::value* value, std::size_t max_count) {
  const auto* array = value != nullptr ? value->if_array() : nullptr;
  if (array == nullptr || array->size() > max_count) return std::nullopt;
  std::vector<int64_t> result;
  for (const auto& element : *array) {
    const auto* integer = element.if_int64();
    if (integer == nullptr || *integer < 0) return std::nullopt;
    result.push_back(*integer);
  }
  return result;
}

// Empty when the product does not fit in 63 bits.
std::optional<int64_t> tensor_bytes(const TensorInfo& info) {
  // A zero anywhere makes the product zero, whatever the others are.
  if (std::find(info.shape.begin(), info.shape.end(), 0) != info.shape.end()) return 0;
  int64_t bytes = info.element_bytes();
  for (const int64_t extent : info.shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return bytes;
}

Result<TensorInfo> parse_entry(const json::value& value, int64_t data_bytes) {
  const auto* object = value.if_object();
  if (object == nullptr) return Error(Errc::kCorrupt, "not an object");
  const auto* dtype_value = object->if_contains("dtype");
  if (dtype_value == nullptr || !dtype_value->is_string()) {
    return Error(Errc::kCorrupt, "dtype is missing or not a string");
  }
  auto shape = integers(object->if_contains("shape"), kMaxRank);
  if (!shape) {
    return error(Errc::kCorrupt, "shape is missing or not a list of at most {} sizes", kMaxRank);
  }
  const auto offsets = integers(object->if_contains("data_offsets"), 2);
  if (!offsets || offsets->size() != 2) {
    return Error(Errc::kCorrupt, "data_offsets is missing or not two offsets");
  }

  TensorInfo info{.type = std::string(dtype_value->get_string()),
                  .shape = *std::move(shape),
                  .begin = (*offsets)[0],
                  .end = (*offsets)[1]};
  if (info.begin > info.end || info.end > data_bytes) {
    return error(Errc::kCorrupt, "data_offsets [{}, {}] outside the {} bytes of data", info.begin,
                 info.end, data_bytes);
  }
  info.known = parse_dtype(info.type, info);
  if (!info.known) return info;
  const auto bytes = tensor_bytes(info);
  if (!bytes || *bytes != info.end - info.begin) {
    return error(Errc::kCorrupt, "shape [{}] of {} is not {} bytes", fmt::join(info.shape, ", "),
                 info.type, info.end - info.begin);
  }
  return info;
}

struct NamedRange {
  int64_t begin;
  int64_t end;
  std::string_view name;
};

Result<void> refuse_overlaps(std::vector<NamedRange> ranges) {
  std::erase_if(ranges, [](const NamedRange& range) { return range.begin == range.end; });
  std::sort(ranges.begin(), ranges.end(),
            [](const NamedRange& a, const NamedRange& b) { return a.begin < b.begin; });
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].begin < ranges[i - 1].end) {
      return error(Errc::kCorrupt, "tensors {} and {} overlap in the data",
                   quote(ranges[i - 1].name), quote(ranges[i].name));
    }
  }
  return {};
}

uint64_t read_little_endian(std::span<const std::byte, kLengthBytes> bytes) {
  uint64_t value = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i)
    value |= std::to_integer<uint64_t>(bytes[i]) << 8 * i;
  return value;
}

}  // namespace

Result<TensorMap> parse_safetensors_header(std::string_view header_json, int64_t data_bytes) {
  auto parsed = parse_json(header_json, kMaxHeaderDepth);
  if (!parsed.ok()) return error(Errc::kCorrupt, "header: {}", parsed.error().message);
  const auto* header = parsed->if_object();
  if (header == nullptr) return Error(Errc::kCorrupt, "header: not a JSON object");

  TensorMap tensors;
  std::vector<NamedRange> ranges;
  for (const auto& member : *header) {
    const std::string_view name(member.key().data(), member.key().size());
    if (name == "__metadata__") continue;
    auto entry = parse_entry(member.value(), data_bytes);
    if (!entry.ok()) {
      return error(Errc::kCorrupt, "header: tensor {}: {}", quote(name), entry.error().message);
    }
    ranges.push_back({entry->begin, entry->end, name});
    tensors.emplace(name, *std::move(entry));
  }
  if (auto disjoint = refuse_overlaps(std::move(ranges)); !disjoint.ok()) {
    return error(Errc::kCorrupt, "header: {}", disjoint.error().message);
  }
  return tensors;
}

Result<std::unique_ptr<SafetensorsFile>> SafetensorsFile::open(const std::string& path) {
  MR_ASSIGN_OR_RETURN(auto mapped, MappedFile::open(path));
  const auto bytes = mapped.bytes();
  const auto file_bytes = static_cast<int64_t>(bytes.size());
  if (file_bytes < kLengthBytes) {
    return error(Errc::kCorrupt, "{}: {} bytes, too short for a safetensors file", path,
                 file_bytes);
  }
  const uint64_t header_bytes = read_little_endian(bytes.first<kLengthBytes>());
  if (header_bytes > static_cast<uint64_t>(file_bytes - kLengthBytes) ||
      header_bytes > static_cast<uint64_t>(kMaxSafetensorsHeaderBytes)) {
    return error(Errc::kCorrupt,
                 "{}: claims a header of {} bytes; the file has {} bytes, the limit is {}", path,
                 header_bytes, file_bytes, kMaxSafetensorsHeaderBytes);
  }

  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile);
  file->data_begin_ = kLengthBytes + static_cast<int64_t>(header_bytes);
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes,
                                header_bytes);
  auto tensors = parse_safetensors_header(header, file_bytes - file->data_begin_);
  if (!tensors.ok()) return error(tensors.error().code, "{}: {}", path, tensors.error().message);
  file->tensors_ = *std::move(tensors);
  file->file_ = std::make_shared<const MappedFile>(std::move(mapped));
  return file;
}

Result<Tensor> SafetensorsFile::tensor(std::string_view name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    return error(Errc::kNotFound, "{}: no tensor {} of type {}", file_->path(), quote(name),
                 kTensorTypes);
  }
  const auto& info = found->second;
  if (!info.known) {
    return error(Errc::kNotFound, "{}: tensor {} is of type {}; supported: {}", file_->path(),
                 quote(name), quote(std::string_view(info.type)), kTensorTypes);
  }
  return Tensor{.dtype = info.dtype,
                .float8 = info.float8,
                .is_bytes = info.is_bytes,
                .e8m0 = info.e8m0,
                .shape = info.shape,
                .bytes = bytes_of(info)};
}

std::span<const std::byte> SafetensorsFile::bytes_of(const TensorInfo& tensor) const {
  return file_->bytes().subspan(static_cast<std::size_t>(data_begin_ + tensor.begin),
                                static_cast<std::size_t>(tensor.end - tensor.begin));
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> names;
  for (const auto& [name, info] : tensors_) names.push_back(name);
  return names;
}

}  // namespace millrace::model
