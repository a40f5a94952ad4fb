// Manifests as prefill responses and events carry them: proto3 JSON.
#pragma once

#include <string>
#include <string_view>

#include "common/result.h"
#include "protocol/manifest.pb.h"

namespace millrace::decode {

// Alone, or as the field "manifest" of an object. `source` names it in errors.
Result<protocol::Manifest> parse_manifest(std::string_view text, const std::string& source);
// The same from a file.
Result<protocol::Manifest> read_manifest(const std::string& path);

}  // namespace millrace::decode
