// SPDX-License-Identifier: Apache-2.0
#include "model/checkpoint/unused_tensors.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "common/quote.h"

namespace millrace::model {

namespace {

constexpr std::size_t kMostKinds = 16;  // of tensors in a line

// Its numbers replaced by asterisks.
std::string kind_of(std::string_view name) {
  std::string kind;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool digit = std::isdigit(static_cast<unsigned char>(name[i])) != 0;
    // Digits of words stay: "w1".
    const bool number = digit && (i == 0 || name[i - 1] == '.' || kind.ends_with('*'));
    if (!number) {
      kind += name[i];
    } else if (!kind.ends_with('*')) {
      kind += '*';
    }
  }
  return kind;
}

// The tensor that was read of which this one is a part, by its name; empty if there is none.
std::string_view whole_of(std::string_view name, const TensorSource& tensors) {
  const auto leaf = name.rfind('.') == std::string_view::npos ? 0 : name.rfind('.') + 1;
  for (auto end = name.find('_', leaf); end != std::string_view::npos;
       end = name.find('_', end + 1)) {
    if (tensors.is_used(name.substr(0, end))) return name.substr(0, end);
  }
  return {};
}

}  // namespace

Result<std::vector<std::string>> report_unused(
    const TensorSource& tensors, const std::function<bool(std::string_view)>& read_elsewhere) {
  std::map<std::string, int64_t> kinds;
  for (const auto& name : tensors.unused()) {
    if (read_elsewhere(name)) continue;
    if (const auto whole = whole_of(name, tensors); !whole.empty()) {
      return error(Errc::kUnsupported,
                   "tensor {} belongs to {}, and is none that is read here; supported: F8_E4M3 "
                   "with one tensor of scales, and weights without scales",
                   quote(std::string_view(name)), quote(whole));
    }
    ++kinds[kind_of(name)];
  }
  if (kinds.empty()) return std::vector<std::string>();
  std::string line = "tensors that are not read: ";
  std::size_t shown = 0;
  for (const auto& [kind, count] : kinds) {
    if (shown == kMostKinds) break;
    line +=
        fmt::format("{}{} ({})", shown++ == 0 ? "" : ", ", quote(std::string_view(kind)), count);
  }
  if (kinds.size() > shown) line += fmt::format(" and {} other kinds", kinds.size() - shown);
  return std::vector{std::move(line)};
}

}  // namespace millrace::model
