// SPDX-License-Identifier: Apache-2.0
#include "bench/millrace_bench/bench_device.h"

#include <fmt/chrono.h>

#include <array>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <thread>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cuda/cuda_device.h"

namespace millrace::bench {

namespace json = boost::json;

namespace {

// The first line that a command prints; empty when the command fails.
std::string first_line(const char* command) {
  std::FILE* pipe = popen(command, "r");
  if (pipe == nullptr) return "";
  std::array<char, 256> line = {};
  const bool read = std::fgets(line.data(), line.size(), pipe) != nullptr;
  const bool done = pclose(pipe) == 0;
  const std::string text = read && done ? line.data() : "";
  return text.substr(0, text.find('\n'));
}

}  // namespace

void add_device_options(CLI::App& app, DeviceOptions& options) {
  app.add_option("--device", options.kind, "cpu or cuda")->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--threads", options.num_threads, "CPU threads; 0: all cores")
      ->check(CLI::NonNegativeNumber);
}

Result<std::unique_ptr<kernels::Device>> make_device(const DeviceOptions& options) {
  if (options.kind == "cuda") return kernels::make_cuda_device({});
  const int cores = static_cast<int>(std::max(std::thread::hardware_concurrency(), 1U));
  return kernels::make_cpu_device(
      {.num_threads = options.num_threads > 0 ? options.num_threads : cores});
}

RunInfo run_info(const kernels::Device& device, std::string commit, int argc, char** argv) {
  if (commit.empty()) commit = first_line("git rev-parse --short HEAD 2>/dev/null");
  RunInfo info{.device = device.info().name, .commit = commit.empty() ? "unknown" : commit};
  for (int i = 0; i < argc; ++i) info.command += (i > 0 ? " " : "") + std::string(argv[i]);
  info.date = fmt::format("{:%Y-%m-%d %H:%M}", fmt::gmtime(std::time(nullptr)));
  return info;
}

json::object to_json(const RunInfo& info) {
  return {{"device", info.device},
          {"commit", info.commit},
          {"command", info.command},
          {"date", info.date}};
}

Result<void> write_json(const std::string& path, const json::object& document) {
  std::ofstream file(path);
  const char* separator = "{\n";
  for (const auto& member : document) {
    file << separator << json::serialize(member.key()) << ": ";
    separator = ",\n";
    const auto* list = member.value().if_array();
    if (list == nullptr) {
      file << json::serialize(member.value());
      continue;
    }
    const char* before = "[\n ";
    for (const auto& row : *list) {
      file << before << json::serialize(row);
      before = ",\n ";
    }
    file << (list->empty() ? "[]" : "\n]");
  }
  file << "\n}\n";
  file.close();
  if (!file) return error(Errc::kIo, "cannot write {}", path);
  return {};
}

}  // namespace millrace::bench
