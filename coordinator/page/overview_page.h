// SPDX-License-Identifier: Apache-2.0
// The page that shows what GET /overview answers: HTML with its own style and script, which asks no
// other host for anything.
#pragma once

#include <string_view>

namespace millrace::coordinator {

std::string_view overview_page();

}  // namespace millrace::coordinator
