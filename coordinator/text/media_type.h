// SPDX-License-Identifier: Apache-2.0
// The media type in a Content-Type: "Text/Plain; charset=utf-8" is text/plain.
#pragma once

#include <string_view>

namespace millrace::coordinator {

// `type` in lower case, without parameters.
bool is_media_type(std::string_view content_type, std::string_view type);

}  // namespace millrace::coordinator
