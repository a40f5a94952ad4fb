// SPDX-License-Identifier: Apache-2.0
// Loads a checkpoint as a rank does. Measures the time and the memory, and in the same run the time
// to only read the files. Prints a line of JSON. bench/model/load makes checkpoints and runs it.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "common/check.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cuda/cuda_device.h"
#include "model/weights.h"

namespace millrace::bench {
namespace {

struct Options {
  std::string model;
  std::string device = "cpu";
  std::string dtype = "bfloat16";
  std::string quantization = "none";
  int threads = 1;
  int repeats = 3;
  bool cold = false;
};

template <typename T>
T must(Result<T> result) {
  MR_CHECK(result.ok(), "{}", result.error().to_string());
  return std::move(*result);
}

double seconds_of(const std::function<void()>& what) {
  const auto start = std::chrono::steady_clock::now();
  what();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::vector<std::string> weight_files(const std::string& directory) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  MR_CHECK(!files.empty(), "{}: no .safetensors", directory);
  return files;
}

class File {
 public:
  explicit File(const std::string& path) : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    MR_CHECK(descriptor_ >= 0, "{}: cannot be opened", path);
  }
  ~File() { ::close(descriptor_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int64_t read_all(std::vector<char>& buffer) const {
    int64_t bytes = 0;
    ssize_t got = 0;
    while ((got = ::read(descriptor_, buffer.data(), buffer.size())) > 0) bytes += got;
    MR_CHECK(got == 0, "read failed");
    return bytes;
  }
  // Takes the file out of the page cache, as far as it is written back.
  void forget() const {
    ::fdatasync(descriptor_);
    MR_CHECK(::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED) == 0, "fadvise failed");
  }

 private:
  int descriptor_;
};

void forget(const std::vector<std::string>& files) {
  for (const auto& path : files) File(path).forget();
}

int64_t read_files(const std::vector<std::string>& files) {
  std::vector<char> buffer(size_t{4} << 20);
  int64_t bytes = 0;
  for (const auto& path : files) bytes += File(path).read_all(buffer);
  return bytes;
}

// The value of a line of /proc/self/status, in bytes.
int64_t status_bytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1)) * 1024;
  }
  return 0;
}

// Resets VmHWM, which then is the peak from here on.
void reset_peak() {
  std::ofstream("/proc/self/clear_refs") << "5";
}

std::unique_ptr<kernels::Device> make_device(const Options& options) {
  if (options.device == "cpu") return kernels::make_cpu_device({.num_threads = options.threads});
  return must(kernels::make_cuda_device({}));
}

DType dtype_of(const std::string& name) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    if (dtype_name(dtype) == name) return dtype;
  }
  MR_CHECK(false, "--dtype {}", name);
}

model::Quantization quantization_of(const std::string& name) {
  using Q = model::Quantization;
  for (const Q one : {Q::kNone, Q::kFloat8, Q::kFloat8ExceptQkv}) {
    if (model::quantization_name(one) == name) return one;
  }
  MR_CHECK(false, "--quantization {}", name);
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void run(const Options& options) {
  const auto files = weight_files(options.model);
  const auto device = make_device(options);
  const model::Arithmetic arithmetic(dtype_of(options.dtype),
                                     quantization_of(options.quantization));
  const int64_t bytes = read_files(files);  // warms the page cache, until forget()
  std::vector<double> read_s, load_s;
  int64_t peak = 0, held = 0, on_device = 0;
  for (int i = 0; i < options.repeats; ++i) {
    if (options.cold) forget(files);
    read_s.push_back(seconds_of([&] { (void)read_files(files); }));
    if (options.cold) forget(files);
    const int64_t rss_before = status_bytes("VmRSS"), anon_before = status_bytes("RssAnon");
    const int64_t free_before = device->free_bytes();
    reset_peak();
    std::unique_ptr<model::ModelWeights> weights;
    load_s.push_back(seconds_of([&] {
      weights =
          must(model::load_model_weights(options.model, {}, arithmetic, *device, options.threads));
      const auto done = device->synchronize(Deadline::after(std::chrono::minutes(1)));
      MR_CHECK(done.ok(), "{}", done.error().to_string());
    }));
    peak = std::max(peak, status_bytes("VmHWM") - rss_before);
    held = status_bytes("RssAnon") - anon_before;
    if (!device->info().host_memory) on_device = free_before - device->free_bytes();
  }
  const double gigabytes = static_cast<double>(bytes) / 1e9;
  const boost::json::object line = {{"file_gb", gigabytes},
                                    {"read_s", median(read_s)},
                                    {"read_gb_s", gigabytes / median(read_s)},
                                    {"load_s", median(load_s)},
                                    {"load_gb_s", gigabytes / median(load_s)},
                                    {"peak_gb", static_cast<double>(peak) / 1e9},
                                    {"held_gb", static_cast<double>(held) / 1e9},
                                    {"device_gb", static_cast<double>(on_device) / 1e9},
                                    {"device", device->info().name}};
  std::puts(boost::json::serialize(line).c_str());
}

}  // namespace
}  // namespace millrace::bench

int main(int argc, char** argv) {
  CLI::App app("Loads a checkpoint, beside reading its files alone.");
  millrace::bench::Options options;
  app.add_option("--model", options.model, "directory")->required();
  app.add_option("--device", options.device, "cpu or cuda");
  app.add_option("--dtype", options.dtype, "float32, bfloat16 or float16");
  app.add_option("--quantization", options.quantization, "none, fp8 or fp8-except-qkv");
  app.add_option("--threads", options.threads, "that convert weights");
  app.add_option("--repeats", options.repeats, "the median counts")->check(CLI::PositiveNumber);
  app.add_flag("--cold", options.cold, "take the files out of the page cache before each pass");
  CLI11_PARSE(app, argc, argv);
  millrace::bench::run(options);
  return 0;
}
