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
#include <vector>

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

std::unique_ptr<kvstore::KvStore> filled_store(const RankSettings& settings) {
  const auto& geometry = settings.geometry;
  const int64_t pages = settings.num_tokens / geometry.page_tokens;
  const int64_t all = pages * geometry.num_layers * geometry.num_kv_heads;
  const int64_t bytes = all * geometry.page_bytes();
  auto store = must(kvstore::make_kv_store(
      {.host_bytes = (settings.on_disk ? 0 : bytes) + all * geometry.record_bytes(),
       .disk_bytes = settings.on_disk ? bytes : 0,
       .disk_directory = settings.on_disk ? std::filesystem::temp_directory_path().string() : "",
       .geometry = geometry},
      Clock::steady()));
  std::vector<int64_t> numbers(static_cast<size_t>(pages));
  std::iota(numbers.begin(), numbers.end(), int64_t{0});
  must(store->begin_request("r", settings.num_tokens, numbers));
  std::vector<float> digest(static_cast<size_t>(geometry.head_dim), 1.0f);
  std::vector<std::byte> page(static_cast<size_t>(geometry.page_bytes()));
  for (int32_t layer = 0; layer < geometry.num_layers; ++layer) {
    for (int32_t h = 0; h < geometry.num_kv_heads; ++h) {
      const int32_t head = geometry.first_kv_head + h;
      for (const int64_t number : numbers) {
        for (size_t i = 0; i < page.size(); i += 64)
          page[i] = static_cast<std::byte>(i / 64 + number);
        const int64_t key = (int64_t{layer} * 1000 + head) * 1'000'000 + number;
        std::memcpy(page.data() + 8, &key, sizeof(key));
        must(store->write_page("r", {layer, head, number}, page,
                               {.min = digest, .max = digest, .radius = digest}));
      }
    }
  }
  must(store->seal("r", "l", std::chrono::hours(1)));
  return store;
}

}  // namespace

RankProcess::RankProcess(const RankSettings& settings) {
  std::array<int, 2> told{};
  MR_CHECK(::pipe(told.data()) == 0, "pipe");
  pid_ = ::fork();
  MR_CHECK(pid_ >= 0, "fork");
  if (pid_ == 0) {
    ::close(told[0]);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    serve(settings, told[1]);
  }
  ::close(told[1]);
  char c = 0;
  while (::read(told[0], &c, 1) == 1) address_ += c;
  ::close(told[0]);
  MR_CHECK(!address_.empty(), "a rank did not start");
}

void RankProcess::serve(const RankSettings& settings, int told) {
  {
    const auto transport =
        must(comm::UcxTransport::create({.transports = settings.transports,
                                         .server_threads = std::max(1, settings.server_threads)}));
    const auto store = filled_store(settings);
    const auto server = must(worker::KvServer::start(*transport, *store, "e", "127.0.0.1", 0));
    const auto address = server->address();
    MR_CHECK(::write(told, address.data(), address.size()) > 0, "write");
    ::close(told);
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
