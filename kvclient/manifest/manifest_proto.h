// SPDX-License-Identifier: Apache-2.0
// Converts manifests between their plain form and the one on the wire.
#pragma once

#include "kvclient/manifest/manifest.h"
#include "protocol/manifest.pb.h"

namespace millrace::kvclient {

// Numbers too large for a plain manifest come out negative, which check_manifest refuses.
Manifest from_protocol(const protocol::Manifest& from);
protocol::Manifest to_protocol(const Manifest& from);

}  // namespace millrace::kvclient
