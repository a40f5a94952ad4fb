// SPDX-License-Identifier: Apache-2.0
#include <google/protobuf/util/json_util.h>

#include <boost/json.hpp>

#include "common/system/mapped_file.h"
#include "kvclient/manifest/manifest.h"
#include "kvclient/manifest/manifest_proto.h"

namespace millrace::kvclient {

namespace {

constexpr int64_t kMaxManifestBytes = 64ll << 20;

// The manifest alone, where `json` may be a response that has one. Nothing else of the response stays
// in memory: a manifest of a million tokens takes tens of MiB as text, and several times that as a tree.
Result<std::string> manifest_text(std::string_view json, const std::string& source) {
  boost::json::error_code status;
  const auto value = boost::json::parse({json.data(), json.size()}, status);
  if (status) return error(Errc::kInvalidArgument, "{}: {}", source, status.message());
  const auto* object = value.if_object();
  const auto* inner = object == nullptr ? nullptr : object->if_contains("manifest");
  return inner == nullptr ? std::string(json) : boost::json::serialize(*inner);
}

}  // namespace

Result<Manifest> parse_manifest(std::string_view json, const std::string& source) {
  MR_ASSIGN_OR_RETURN(const std::string text, manifest_text(json, source));
  protocol::Manifest manifest;
  const auto parsed = google::protobuf::util::JsonStringToMessage(text, &manifest);
  if (!parsed.ok()) {
    return error(Errc::kInvalidArgument, "{}: not a manifest: {}", source, parsed.ToString());
  }
  return from_protocol(manifest);
}

Result<Manifest> read_manifest(const std::string& path) {
  MR_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMaxManifestBytes));
  return parse_manifest(text, path);
}

std::string to_json(const Manifest& manifest) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto written =
      google::protobuf::util::MessageToJsonString(to_protocol(manifest), &json, options);
  MR_CHECK(written.ok(), "a manifest as JSON: {}", written.ToString());
  return json;
}

}  // namespace millrace::kvclient
