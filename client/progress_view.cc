// SPDX-License-Identifier: Apache-2.0
#include "client/progress_view.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <iostream>

#include "common/cli/text_bar.h"

namespace millrace::client {

namespace json = boost::json;

std::string ProgressView::bar(int64_t done, int64_t total, double mean_density, double elapsed_s) {
  return fmt::format("{} {:>3}/{} layers  density {:.3f}  {:.1f} s", text_bar(done, total), done,
                     total, mean_density, elapsed_s);
}

void ProgressView::show(const protocol::SseEvent& event) {
  if (event.name == "layer") return show_layer(event.data);
  if (event.name == "manifest") return;  // for clients that pull
  if (event.name == "queued" || event.name == "started") {
    std::cerr << fmt::format("{:.1f} s: {}\n", since_start_.elapsed_s(), event.name);
  } else if (terminal_) {
    std::cerr << '\n';
  }
}

void ProgressView::show_layer(const std::string& data) {
  boost::system::error_code ec;
  const json::value value = json::parse(data, ec);
  if (ec || !value.is_object()) return;
  const int64_t done = value.at("layer").to_number<int64_t>() + 1;
  const int64_t total = value.at("num_layers").to_number<int64_t>();
  density_sum_ += value.at("density").to_number<double>();
  const std::string text =
      bar(done, total, density_sum_ / static_cast<double>(done), since_start_.elapsed_s());
  if (terminal_) {
    std::cerr << '\r' << text << std::flush;
    return;
  }
  // A log needs no more than ten lines.
  const int64_t tenth = total > 0 ? 10 * done / total : 10;
  if (std::exchange(last_tenth_, tenth) != tenth) std::cerr << text << '\n';
}

}  // namespace millrace::client
