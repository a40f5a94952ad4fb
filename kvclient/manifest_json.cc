#include "kvclient/manifest_json.h"

#include <google/protobuf/util/json_util.h>

#include <boost/json.hpp>

#include "common/system/mapped_file.h"

namespace millrace::decode {

namespace {

constexpr int64_t kMaxManifestBytes = 64ll << 20;

}  // namespace

Result<protocol::Manifest> parse_manifest(std::string_view text, const std::string& source) {
  boost::json::error_code status;
  const auto value = boost::json::parse({text.data(), text.size()}, status);
  if (status) return error(Errc::kInvalidArgument, "{}: {}", source, status.message());
  const auto* object = value.if_object();
  const auto* inner = object == nullptr ? nullptr : object->if_contains("manifest");
  protocol::Manifest manifest;
  const auto parsed = google::protobuf::util::JsonStringToMessage(
      inner == nullptr ? std::string(text) : boost::json::serialize(*inner), &manifest);
  if (!parsed.ok()) {
    return error(Errc::kInvalidArgument, "{}: no manifest: {}", source, parsed.ToString());
  }
  return manifest;
}

Result<protocol::Manifest> read_manifest(const std::string& path) {
  MR_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMaxManifestBytes));
  return parse_manifest(text, path);
}

}  // namespace millrace::decode
