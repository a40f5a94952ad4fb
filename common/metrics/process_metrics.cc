// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/process_metrics.h"

#include <unistd.h>

#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "common/logging/init_logging.h"

namespace millrace::metrics {

namespace {

double cpu_s() {
  timespec used{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

// 0 if /proc does not say.
double resident_bytes() {
  std::ifstream file("/proc/self/statm");
  double total_pages = 0;
  double resident_pages = 0;
  file >> total_pages >> resident_pages;
  return resident_pages * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

double num_descriptors() {
  std::error_code status;
  const std::filesystem::directory_iterator entries("/proc/self/fd", status);
  if (status) return 0;
  return static_cast<double>(std::distance(begin(entries), end(entries)) -
                             1);  // without the one that reads them
}

double unix_time_s() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

}  // namespace

ProcessMetrics::ProcessMetrics(Registry& registry)
    : cpu_seconds_(registry.counter("millrace_process_cpu_seconds_total",
                                    "Processor time of all threads, user and system")),
      log_lines_left_out_(registry.counter(
          "millrace_log_lines_left_out_total",
          "Log lines that were not written because nobody read the log fast enough")),
      resident_bytes_(registry.gauge("millrace_process_resident_memory_bytes", "Resident memory")),
      open_descriptors_(
          registry.gauge("millrace_process_open_descriptors", "Open file descriptors")) {
  registry
      .gauge("millrace_process_start_time_seconds",
             "Start time of the process, in seconds since the Unix epoch")
      .set(unix_time_s());
}

void ProcessMetrics::update() {
  const double cpu_now_s = cpu_s();
  cpu_seconds_.add(cpu_now_s - cpu_counted_s_);
  cpu_counted_s_ = cpu_now_s;
  const int64_t left_out = log_lines_left_out();
  log_lines_left_out_.add(static_cast<double>(left_out - std::exchange(lines_counted_, left_out)));
  resident_bytes_.set(resident_bytes());
  open_descriptors_.set(num_descriptors());
}

}  // namespace millrace::metrics
