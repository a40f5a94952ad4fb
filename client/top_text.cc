// SPDX-License-Identifier: Apache-2.0
#include "client/top_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <optional>
#include <string_view>
#include <vector>

namespace millrace::client {

namespace json = boost::json;

namespace {

constexpr int kFewestColumns = 40;
constexpr const char* kUnknown = "-";

std::optional<double> number(const json::object& object, const char* key) {
  const json::value* found = object.if_contains(key);
  if (found == nullptr || !found->is_number()) return std::nullopt;
  return found->to_number<double>();
}

std::string plain(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if ((static_cast<unsigned char>(c) & 0xc0) == 0x80) continue;  // not the first of a character
    out += c >= 0x20 && c < 0x7f ? c : '?';
  }
  return out;
}

std::string text(const json::object& object, const char* key) {
  const json::value* found = object.if_contains(key);
  return found != nullptr && found->is_string() ? plain(found->get_string()) : kUnknown;
}

bool is_set(const json::object& object, const char* key) {
  const json::value* found = object.if_contains(key);
  return found != nullptr && found->is_bool() && found->get_bool();
}

std::vector<const json::object*> entries(const json::object& object, const char* key) {
  std::vector<const json::object*> out;
  const json::value* found = object.if_contains(key);
  if (found == nullptr || !found->is_array()) return out;
  for (const json::value& entry : found->get_array()) {
    if (entry.is_object()) out.push_back(&entry.get_object());
  }
  return out;
}

// 131,072.
std::string count(std::optional<double> value) {
  if (!value) return kUnknown;
  std::string digits = fmt::format("{:.0f}", *value);
  for (auto at = static_cast<int>(digits.size()) - 3; at > (*value < 0 ? 1 : 0); at -= 3) {
    digits.insert(static_cast<size_t>(at), 1, ',');
  }
  return digits;
}

std::string share(std::optional<double> value) {
  return value ? fmt::format("{:.3f}", *value) : kUnknown;
}

std::string time(std::optional<double> value_s) {
  if (!value_s) return kUnknown;
  constexpr double kLongest = 1e9;
  const double s = std::clamp(*value_s, 0.0, kLongest);
  if (s < 10) return fmt::format("{:.1f}s", s);
  if (s < 60) return fmt::format("{:.0f}s", s);
  const auto minutes = static_cast<int64_t>(s / 60);
  if (minutes < 60) return fmt::format("{}m{:02d}", minutes, static_cast<int>(std::fmod(s, 60)));
  return fmt::format("{}h{:02d}", minutes / 60, minutes % 60);
}

// 64G: the fill of a pool needs no more digits.
std::string size(double bytes) {
  size_t unit = 0;
  for (; bytes >= 1024 && unit < 5; ++unit) bytes /= 1024;
  return fmt::format("{:.0f}{}", bytes, std::string_view("BKMGTP")[unit]);
}

std::string number_of(const json::object& overview, const char* key, const char* what) {
  const auto value = number(overview, key);
  return fmt::format("{} {}{}", count(value), what, value == 1.0 ? "" : "s");
}

// Cut where it does not fit.
std::string fit(const std::string& text, int width) {
  const auto most = static_cast<size_t>(std::max(width, 0));
  if (text.size() <= most) return text + std::string(most - text.size(), ' ');
  if (most <= 3) return text.substr(0, most);
  return text.substr(0, most - 2) + "..";
}

class Page {
 public:
  explicit Page(const TopLayout& layout)
      : columns_(std::max(layout.columns, kFewestColumns)),
        rows_(layout.rows),
        bold_(layout.bold) {}

  int columns() const { return columns_; }
  void line(const std::string& text) { add(text, /*bold=*/false); }
  // Set off from what is above by an empty line.
  void heading(const std::string& text) {
    if (num_lines_ > 0) line("");
    add(text, bold_);
  }
  // The first text takes all columns that the others, which are right-aligned in `widths`, leave.
  std::string row(const std::string& first, const std::vector<std::string>& others,
                  const std::vector<int>& widths) const {
    int left = columns_;
    std::string rest;
    for (size_t i = 0; i < others.size(); ++i) {
      rest += fmt::format(" {:>{}.{}}", others[i], widths[i], widths[i]);
      left -= widths[i] + 1;
    }
    return fit(first, left) + rest;
  }
  std::string take() { return std::move(text_); }

 private:
  void add(const std::string& text, bool bold) {
    if (rows_ > 0 && num_lines_ == rows_) return;
    ++num_lines_;
    std::string cut = text.substr(0, static_cast<size_t>(columns_));
    cut.erase(cut.find_last_not_of(' ') + 1);
    text_ += bold ? fmt::format("\x1b[1m{}\x1b[0m\n", cut) : cut + '\n';
  }

  const int columns_;
  const int rows_;
  const bool bold_;
  int num_lines_ = 0;
  std::string text_;
};

// "12% of 64G"; "" where the group has no such pool.
std::string fill_of(const json::object& group, std::string_view name) {
  for (const json::object* tier : entries(group, "tiers")) {
    const auto capacity = number(*tier, "capacity_bytes");
    const auto used = number(*tier, "used_bytes");
    if (text(*tier, "tier") != name || !capacity || !used || *capacity <= 0) continue;
    return fmt::format("{:.0f}% of {}", 100 * *used / *capacity, size(*capacity));
  }
  return "";
}

void add_groups(const json::object& overview, Page& page) {
  const std::vector<int> widths = {7, 9, 11, 11, 11};
  page.heading(page.row("GROUP", {"TPxCP", "STATE", "DEVICE", "HOST", "DISK"}, widths));
  for (const json::object* group : entries(overview, "groups")) {
    const std::string grid =
        fmt::format("{}x{}", count(number(*group, "tp")), count(number(*group, "cp")));
    page.line(page.row(text(*group, "group") + "  " + text(*group, "model"),
                       {grid, text(*group, "state"), fill_of(*group, "device"),
                        fill_of(*group, "host"), fill_of(*group, "disk")},
                       widths));
  }
}

// "[#####.....] 12/32".
std::string layers_of(const json::object& request) {
  constexpr int kBar = 10;
  const double done = number(request, "layers_done").value_or(0);
  const double all = number(request, "num_layers").value_or(0);
  const double part = all > 0 ? std::clamp(done / all, 0.0, 1.0) : 0;
  const auto filled = static_cast<size_t>(part * kBar);
  return fmt::format("[{}{}] {}/{}", std::string(filled, '#'), std::string(kBar - filled, '.'),
                     count(number(request, "layers_done")), count(number(request, "num_layers")));
}

void add_running(const json::object& overview, Page& page) {
  const auto requests = entries(overview, "running");
  if (requests.empty()) return;
  const std::vector<int> widths = {10, 20, 8, 8};
  page.heading(page.row("RUNNING", {"TOKENS", "LAYERS", "LEFT", "DENSITY"}, widths));
  for (const json::object* request : requests) {
    const std::string left = is_set(*request, "cancelled") ? "cancel"
                             : is_set(*request, "set_aside")
                                 ? "aside"
                                 : time(number(*request, "seconds_left"));
    page.line(page.row(text(*request, "request_id"),
                       {count(number(*request, "num_tokens")), layers_of(*request), left,
                        share(number(*request, "density"))},
                       widths));
  }
}

void add_queued(const json::object& overview, Page& page) {
  const auto requests = entries(overview, "queued");
  if (requests.empty()) return;
  const std::vector<int> widths = {10, 8, 8, 8};
  page.heading(page.row(fmt::format("QUEUE {}", count(number(overview, "num_queued"))),
                        {"TOKENS", "WAITED", "PRIORITY", "DEADLINE"}, widths));
  for (const json::object* request : requests) {
    page.line(page.row(
        text(*request, "request_id"),
        {count(number(*request, "num_tokens")), time(number(*request, "queue_seconds")),
         count(number(*request, "priority")), time(number(*request, "deadline_in_seconds"))},
        widths));
  }
}

void add_ended(const json::object& overview, Page& page) {
  const auto requests = entries(overview, "ended");
  if (requests.empty()) return;
  const std::vector<int> widths = {10, 8, 8, 7, 7, 7};
  page.heading(page.row("ENDED", {"TOKENS", "WAITED", "TOOK", "DENSITY", "RECALL", "AGO"}, widths));
  for (const json::object* request : requests) {
    const std::string id = text(*request, "request_id");
    const bool failed = request->contains("error");
    page.line(
        page.row(failed ? fmt::format("{} {}", id, text(*request, "error")) : id,
                 {count(number(*request, "num_tokens")), time(number(*request, "queue_seconds")),
                  time(number(*request, "prefill_seconds")), share(number(*request, "density")),
                  share(number(*request, "recall")), time(number(*request, "ended_seconds_ago"))},
                 widths));
  }
}

}  // namespace

std::string top_text(const json::object& overview, const TopLayout& layout) {
  Page page(layout);
  double ranks = 0;
  for (const json::object* group : entries(overview, "groups")) {
    ranks += number(*group, "ranks").value_or(0);
  }
  page.heading(
      fmt::format("Millrace {}  {}, {} rank{}, {} running, {} queued", text(overview, "version"),
                  number_of(overview, "num_groups", "group"), count(ranks), ranks == 1 ? "" : "s",
                  count(number(overview, "num_running")), count(number(overview, "num_queued"))));
  add_groups(overview, page);
  add_running(overview, page);
  add_queued(overview, page);
  add_ended(overview, page);
  return page.take();
}

}  // namespace millrace::client
