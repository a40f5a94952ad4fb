// SPDX-License-Identifier: Apache-2.0
// The device that a benchmark runs on, and how its results describe the run.
#pragma once

#include <CLI/CLI.hpp>
#include <boost/json/object.hpp>
#include <memory>
#include <string>

#include "common/result.h"
#include "kernels/api/device.h"

namespace millrace::bench {

struct DeviceOptions {
  std::string kind = "cpu";
  int num_threads = 0;  // CPU only; 0: all cores
};

void add_device_options(CLI::App& app, DeviceOptions& options);
Result<std::unique_ptr<kernels::Device>> make_device(const DeviceOptions& options);

// What a result must state to be worth anything.
struct RunInfo {
  std::string device;
  std::string commit;
  std::string command;
  std::string date;  // UTC
};

// `commit` as given. If empty: that of the repository in the working directory, or "unknown"
// without one.
RunInfo run_info(const kernels::Device& device, std::string commit, int argc, char** argv);
boost::json::object to_json(const RunInfo& info);

// Writes `document` with each row of its lists on a new line, so that results can be compared line
// by line.
Result<void> write_json(const std::string& path, const boost::json::object& document);

}  // namespace millrace::bench
