// SPDX-License-Identifier: Apache-2.0
// The Content-Security-Policy of a page whose style and script are in it: a browser runs only these,
// by their hashes, and asks only the page's own server for data. So text that comes as data and is
// taken for markup by mistake can neither run nor load anything. Pure.
#pragma once

#include <string>
#include <string_view>

namespace millrace::coordinator {

// `html` has at most one <style> and one <script>, both without attributes.
std::string content_policy(std::string_view html);

}  // namespace millrace::coordinator
