// SPDX-License-Identifier: Apache-2.0
// Pulls into the memory of a GPU from the device pool of another process, on the same GPU and on
// another one: the bytes, damage, and ranks that die.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <thread>

#include "comm/local/local_transport.h"
#include "comm/tcp/tcp_transport.h"
#include "kvclient/pull_client.h"
#include "tests/unit/kvclient/gpu_rank_cache.h"
#include "tests/unit/kvclient/paged_cache.h"
#include "tests/unit/kvclient/rank_process.h"

namespace millrace::kvclient {
namespace {

using test::FakeRanks;
using test::Layout;
using test::PagedCache;

// Only a bug reaches it.
Deadline ample() {
  return Deadline::after(std::chrono::seconds(100));
}

void must(cudaError_t status) {
  MR_CHECK(status == cudaSuccess, "{}", cudaGetErrorString(status));
}

struct RankSettings {
  int gpu = 0;
  int32_t num_layers = 2;
  int64_t num_tokens = 700;
  int64_t spare_slots = 0;
  int damaged_slot = -1;
};

class GpuRank {
 public:
  explicit GpuRank(const RankSettings& settings)
      : cache_(unused_, test::gpu_rank_cache(settings.num_layers, settings.num_tokens)),
        process_({MR_GPU_STORED_RANK, std::to_string(settings.gpu),
                  std::to_string(settings.num_layers), std::to_string(settings.num_tokens),
                  std::to_string(settings.spare_slots), std::to_string(settings.damaged_slot)}) {}

  const Manifest& manifest() const { return process_.manifest(); }
  const FakeRanks& cache() const { return cache_; }
  void kill() { process_.kill(); }

 private:
  comm::LocalTransport unused_;
  const FakeRanks cache_;
  test::RankProcess process_;
};

// A PagedCache in the memory of a GPU until fetch().
class GpuCache {
 public:
  GpuCache(const FakeRanks& ranks, const test::PagedShape& shape, int gpu)
      : cache_(ranks, shape), gpu_(gpu) {
    must(cudaSetDevice(gpu_));
    for (auto& layer : cache_.memory()) {
      void* memory = nullptr;
      must(cudaMalloc(&memory, layer.size()));
      must(cudaMemcpy(memory, layer.data(), layer.size(), cudaMemcpyHostToDevice));
      memory_.push_back(static_cast<std::byte*>(memory));
    }
  }
  GpuCache(const GpuCache&) = delete;
  GpuCache& operator=(const GpuCache&) = delete;
  ~GpuCache() {
    for (std::byte* memory : memory_) cudaFree(memory);
  }

  PullRequest request() {
    auto request = cache_.request();
    request.device = gpu_;
    for (size_t layer = 0; layer < memory_.size(); ++layer) {
      auto& to = request.layers[layer];
      to.v = memory_[layer] + (to.v - to.k);
      to.k = memory_[layer];
    }
    return request;
  }
  // What the GPU's memory holds now.
  const PagedCache& fetch() {
    must(cudaSetDevice(gpu_));
    for (size_t i = 0; i < memory_.size(); ++i) {
      auto& layer = cache_.memory()[i];
      must(cudaMemcpy(layer.data(), memory_[i], layer.size(), cudaMemcpyDeviceToHost));
    }
    return cache_;
  }

 private:
  PagedCache cache_;
  const int gpu_;
  std::vector<std::byte*> memory_;
};

class GpuPullTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cudaGetDeviceCount(&num_gpus_) != cudaSuccess || num_gpus_ == 0) {
      GTEST_SKIP() << "no GPU is there";
    }
  }
  static PullStats pull(PullClient& client, const GpuRank& rank, const test::PagedShape& shape,
                        int gpu) {
    GpuCache cache(rank.cache(), shape, gpu);
    const auto pull = *client.start(rank.manifest(), cache.request());
    const auto end = pull->wait(ample());
    EXPECT_TRUE(end && end->ok()) << (end ? end->error().to_string() : "late");
    EXPECT_EQ(cache.fetch().difference(), "");
    return pull->stats();
  }
  static size_t free_bytes(int gpu) {
    size_t free = 0, total = 0;
    must(cudaSetDevice(gpu));
    must(cudaMemGetInfo(&free, &total));
    return free;
  }

  int num_gpus_ = 0;
  comm::TcpTransport transport_{{}};
};

TEST_F(GpuPullTest, PagesInTheDevicePoolOfAnotherProcessAreReadFromThere) {
  for (int gpu = 0; gpu < std::min(num_gpus_, 2); ++gpu) {
    const GpuRank rank({.gpu = 0});
    PullClient client(transport_, {.num_threads = 2, .pages_per_request = 7});
    pull(client, rank, test::whole(rank.cache()), gpu);
    for (const Layout layout : {Layout::kNhdTwoTensors, Layout::kHndTwoTensors,
                                Layout::kHndKvSideBySide, Layout::kHndKvPages}) {
      for (const auto& [first, count] :
           {std::pair<int64_t, int64_t>{0, 700}, {63, 2}, {100, 333}, {699, 1}}) {
        SCOPED_TRACE(fmt::format("GPU 0 to {}, layout {}, tokens {} + {}", gpu,
                                 static_cast<int>(layout), first, count));
        auto shape = test::whole(rank.cache(), layout, 32);
        shape.first_token = first;
        shape.num_tokens = count;
        const auto stats = pull(client, rank, shape, gpu);
        EXPECT_EQ(stats.bytes_by_transport.at("device-pool"), stats.bytes);
        EXPECT_EQ(stats.corrupt_pages, 0);
      }
    }
  }
}

TEST_F(GpuPullTest, ADamagedPageIsFoundByTheGpuAndComesFromTheHost) {
  const GpuRank rank({.damaged_slot = 5});
  // The first pages come over the transport; the damaged one is not among them.
  PullClient client(transport_, {.num_threads = 1, .pages_per_request = 3});
  for (int i = 0; i < 2; ++i) {
    const auto stats = pull(client, rank, test::whole(rank.cache()), 0);
    EXPECT_EQ(stats.corrupt_pages, 1);
    EXPECT_EQ(stats.bytes_by_transport.at("same-host"), rank.manifest().page_bytes());
  }
}

TEST_F(GpuPullTest, ARankThatIsKilledWhileItsPoolIsReadIsLostAndItsMemoryIsFree) {
  constexpr int64_t kSpareSlots = 32768;  // 1 GiB
  const size_t free_before = free_bytes(0);
  GpuRank rank({.num_layers = 6, .spare_slots = kSpareSlots});
  PullClient client(transport_, {.num_threads = 2});
  pull(client, rank, test::whole(rank.cache()), 0);
  GpuCache cache(rank.cache(), test::whole(rank.cache()), 0);
  auto request = cache.request();
  request.feed = std::make_shared<HandoverFeed>();
  request.feed->set_layers_ready(3);
  const auto feed = request.feed;
  const auto pull = *client.start(rank.manifest(), std::move(request));
  for (int32_t layer = 0; layer < 3; ++layer) {
    ASSERT_TRUE(pull->wait_for_layer(layer, ample())->ok());
  }
  EXPECT_GT(pull->stats().bytes_by_transport.at("device-pool"), 0);
  rank.kill();
  feed->set_layers_ready(6);
  const auto end = pull->wait(ample());
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->error().code, Errc::kPeerLost) << end->error().to_string();
  const auto& fetched = cache.fetch();
  for (int32_t layer = 0; layer < 3; ++layer) EXPECT_EQ(fetched.difference_of_layer(layer), "");
  // The client lives on with its context and buffers. The pool alone takes more than these.
  const auto pool = static_cast<size_t>(kSpareSlots * rank.manifest().page_bytes());
  const Deadline deadline = ample();
  while (free_bytes(0) + pool < free_before && !deadline.passed()) std::this_thread::yield();
  EXPECT_GT(free_bytes(0) + pool, free_before);
}

}  // namespace
}  // namespace millrace::kvclient
