// SPDX-License-Identifier: Apache-2.0
// Manifests as JSON, in protobuf's mapping with the names of the .proto file, fields without a value
// included; numbers that JSON does not have are null. Written in one pass: protobuf's own writer
// builds a tree of all values first, which took 1.1 GB for a manifest of 34 MB. Pure.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "protocol/manifest.pb.h"

namespace millrace::coordinator {

// Without the fields of the manifest that `leaves_out` names.
std::string manifest_json(const protocol::Manifest& manifest,
                          std::span<const std::string_view> leaves_out = {});

}  // namespace millrace::coordinator
