// SPDX-License-Identifier: Apache-2.0
#include "bench/kvclient/rank_process.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>
#include <vector>

#include "comm/net/address_scheme.h"
#include "comm/tcp/tcp_transport.h"
#include "comm/ucx/ucx_transport.h"
#include "kernels/cuda/cuda_device.h"
#include "worker/store/device_tier.h"
#include "worker/store/kv_server.h"

namespace millrace::bench {

namespace {

template <typename T>
T must(Result<T> result) {
  MR_CHECK(result.ok(), "{}", result.error().to_string());
  return std::move(result).value();
}
void must(const Result<void>& result) {
  MR_CHECK(result.ok(), "{}", result.error().to_string());
}

// This is the first touch of new memory, which takes most of the time.
constexpr int kFillThreads = 4;

void fill_layers(kvstore::KvStore& store, const RankSettings& settings, int32_t first_layer) {
  const auto& geometry = settings.geometry;
  const std::vector<float> digest(static_cast<size_t>(geometry.head_dim), 1.0f);
  std::vector<std::byte> page(static_cast<size_t>(geometry.page_bytes()));
  const int64_t pages = settings.num_tokens / geometry.page_tokens;
  for (int32_t layer = first_layer; layer < geometry.num_layers; layer += kFillThreads) {
    for (int32_t h = 0; h < geometry.num_kv_heads; ++h) {
      for (int64_t number = 0; number < pages; ++number) {
        const kvstore::PageKey key{layer, geometry.first_kv_head + h, number};
        fill_page(key, page);
        must(store.write_page("r", key, page, {.min = digest, .max = digest, .radius = digest}));
      }
    }
  }
}

// `device`: null for none.
std::unique_ptr<kvstore::KvStore> filled_store(const RankSettings& settings,
                                               kernels::Device* device) {
  const auto& geometry = settings.geometry;
  const int64_t pages = settings.num_tokens / geometry.page_tokens;
  const int64_t all = pages * geometry.num_layers * geometry.num_kv_heads;
  const int64_t bytes = all * geometry.page_bytes();
  std::unique_ptr<kvstore::SlotMemory> device_memory;
  if (device != nullptr) {
    device_memory =
        must(worker::DeviceTier::create(*device, all, geometry.page_bytes(), /*shares=*/true));
  }
  // With a device pool there are records for as many pages again.
  const int64_t records = (device != nullptr ? 2 : 1) * all * geometry.record_bytes();
  auto store = must(kvstore::make_kv_store(
      {.device_bytes = device != nullptr ? bytes : 0,
       .host_bytes = (settings.on_disk ? 0 : bytes) + records,
       .disk_bytes = settings.on_disk ? bytes : 0,
       .disk_directory = settings.on_disk ? std::filesystem::temp_directory_path().string() : "",
       .shares_memory = true,
       .promotes = false,
       .geometry = geometry},
      Clock::steady(), std::move(device_memory)));
  std::vector<int64_t> numbers(static_cast<size_t>(pages));
  std::iota(numbers.begin(), numbers.end(), int64_t{0});
  must(store->begin_request("r", settings.num_tokens, numbers));
  std::vector<std::thread> threads;
  for (int32_t t = 0; t < kFillThreads; ++t) {
    threads.emplace_back([&, t] { fill_layers(*store, settings, t); });
  }
  for (auto& thread : threads) thread.join();
  must(store->seal("r", "l", std::chrono::hours(1)));
  return store;
}

}  // namespace

void fill_page(const kvstore::PageKey& key, std::span<std::byte> page) {
  const int64_t name = (int64_t{key.layer} * 1000 + key.kv_head) * 1'000'000 + key.page;
  for (size_t i = 0; i + 16 <= page.size(); i += 64) {
    page[i] = static_cast<std::byte>(i / 64 + static_cast<size_t>(key.page));
    std::memcpy(page.data() + i + 8, &name, sizeof(name));
  }
}

RankProcess::RankProcess(const RankSettings& settings) {
  std::array<int, 2> addresses_pipe{};
  MR_CHECK(::pipe(addresses_pipe.data()) == 0, "pipe");
  pid_ = ::fork();
  MR_CHECK(pid_ >= 0, "fork");
  if (pid_ == 0) {
    ::close(addresses_pipe[0]);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    serve(settings, addresses_pipe[1]);
  }
  ::close(addresses_pipe[1]);
  std::string address;
  for (char c = 0; ::read(addresses_pipe[0], &c, 1) == 1;) {
    if (c != '\n') {
      address += c;
      continue;
    }
    addresses_[must(comm::split_scheme(address)).scheme] = address;
    address.clear();
  }
  ::close(addresses_pipe[0]);
  MR_CHECK(addresses_.size() >= 2, "a rank did not start");
}

void RankProcess::serve(const RankSettings& settings, int addresses_pipe) {
  {
    const int threads = std::max(1, settings.server_threads);
    std::vector<std::unique_ptr<comm::Transport>> transports;
    transports.push_back(
        std::make_unique<comm::TcpTransport>(comm::TcpOptions{.server_threads = threads}));
    transports.push_back(must(comm::UcxTransport::create({.server_threads = threads})));
    if (!settings.tls.certificate.empty()) {
      transports.push_back(std::make_unique<comm::TcpTransport>(
          comm::TcpOptions{.server_threads = threads, .server_tls = settings.tls}));
    }
    const auto device = settings.from_device < 0
                            ? nullptr
                            : must(kernels::make_cuda_device({.index = settings.from_device}));
    const auto store = filled_store(settings, device.get());
    std::vector<std::unique_ptr<worker::KvServer>> servers;
    std::string addresses;
    for (const auto& transport : transports) {
      servers.push_back(must(worker::KvServer::start(*transport, *store, "e", "127.0.0.1", 0)));
      addresses += servers.back()->address() + '\n';
    }
    MR_CHECK(::write(addresses_pipe, addresses.data(), addresses.size()) > 0, "write");
    ::close(addresses_pipe);
    while (true) ::pause();
  }
}

RankProcess::~RankProcess() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

double RankProcess::cpu_s() const {
  std::ifstream stat(fmt::format("/proc/{}/stat", pid_));
  std::string word;
  double ticks = 0;
  for (int field = 1; field <= 15 && stat >> word; ++field) {
    if (field >= 14) ticks += std::stod(word);
  }
  return ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

}  // namespace millrace::bench
