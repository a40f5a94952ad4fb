// SPDX-License-Identifier: Apache-2.0
// Pages that must be read from disk do not delay those in memory, over the real transport with one
// thread.
#include <gtest/gtest.h>

#include <future>

#include "comm/tcp/tcp_transport.h"
#include "comm/ucx/ucx_transport.h"
#include "kvstore/tiered_kv_store.h"
#include "protocol/kv_messages.pb.h"
#include "tests/unit/kvstore/faulty_memory.h"
#include "worker/store/kv_server.h"

namespace millrace::worker {
namespace {

const kvstore::KvGeometry kGeometry{.num_layers = 1, .num_kv_heads = 1, .head_dim = 64};
constexpr int64_t kHostSlots = 4;

Deadline ample() {
  return Deadline::after(std::chrono::seconds(60));
}

using MakeTransport = std::unique_ptr<comm::Transport> (*)();

std::unique_ptr<comm::Transport> make_tcp() {
  return std::make_unique<comm::TcpTransport>(
      comm::TcpOptions{.server_threads = 1, .reader_threads = 1});
}

std::unique_ptr<comm::Transport> make_ucx() {
  return *comm::UcxTransport::create({.server_threads = 1, .reader_threads = 1});
}

// Request "memory" fills the host's slots and is held there, so "disk" goes to where only a read
// can get it.
class KvServerReadersTest : public ::testing::TestWithParam<MakeTransport> {
 protected:
  void SetUp() override {
    disk_->addressable = false;
    kvstore::TierStorages tiers;
    auto& [device, host, disk] = tiers;
    device.memory = *kvstore::MemoryTier::allocate(0, kGeometry.page_bytes());
    host = {.memory = *kvstore::MemoryTier::allocate(kHostSlots, kGeometry.page_bytes()),
            .max_slots = kHostSlots};
    disk = {.memory = std::make_unique<kvstore::FaultyMemory>(
                *kvstore::MemoryTier::allocate(8, kGeometry.page_bytes()), disk_),
            .max_slots = 8};
    store_ = std::make_unique<kvstore::TieredKvStore>(kGeometry, std::move(tiers), Clock::steady());
    add("memory", kHostSlots);
    held_ = *store_->pin_pages("memory", "lease", 0, 0, kvstore::consecutive_pages(0, kHostSlots));
    add("disk", 3);
    server_ = *KvServer::start(*transport_, *store_, "epoch", "127.0.0.1", 0);
  }
  void add(const std::string& id, int64_t num_pages) {
    std::vector<int64_t> pages;
    for (int64_t page = 0; page < num_pages; ++page) pages.push_back(page);
    ASSERT_TRUE(store_->begin_request(id, 64 * num_pages, pages).ok());
    const std::vector<float> digest(64);
    for (const int64_t page : pages) {
      const std::vector<std::byte> bytes(static_cast<size_t>(kGeometry.page_bytes()),
                                         static_cast<std::byte>(id.size() * 16 + page));
      ASSERT_TRUE(store_
                      ->write_page(id, {.layer = 0, .kv_head = 0, .page = page}, bytes,
                                   {.min = digest, .max = digest, .radius = digest})
                      .ok());
    }
    ASSERT_TRUE(store_->seal(id, "lease", std::chrono::seconds(60)).ok());
  }
  struct Answer {
    protocol::PageReply reply;
    std::vector<std::byte> pages;
  };
  Answer ask(const std::string& id, uint32_t num_pages) {
    protocol::PageRequest request;
    request.set_request_id(id);
    request.set_lease_id("lease");
    request.set_epoch("epoch");
    request.set_num_pages(num_pages);
    Answer answer;
    answer.pages.resize(static_cast<size_t>(num_pages * kGeometry.page_bytes()));
    const auto connection = *transport_->connect(server_->address(), "lease", ample());
    const auto called = connection->call(request.SerializeAsString(), answer.pages, ample());
    EXPECT_TRUE(called.ok() && answer.reply.ParseFromString(called->header));
    return answer;
  }

  std::shared_ptr<kvstore::Faults> disk_ = std::make_shared<kvstore::Faults>();
  std::unique_ptr<kvstore::TieredKvStore> store_;
  std::unique_ptr<kvstore::PinnedPages> held_;
  const std::unique_ptr<comm::Transport> transport_ = GetParam()();
  std::unique_ptr<KvServer> server_;
};

TEST_P(KvServerReadersTest, PagesInMemoryOvertakePagesOfASlowDisk) {
  std::promise<void> reading, go_on;
  disk_->while_reading = [&] {
    reading.set_value();
    go_on.get_future().wait();
  };
  auto slow = std::async(std::launch::async, [&] { return ask("disk", 3); });
  reading.get_future().wait();
  for (int i = 0; i < 3; ++i) {
    const auto fast = ask("memory", 4);
    EXPECT_EQ(fast.reply.pages_size(), 4);
    EXPECT_EQ(fast.pages.back(), std::byte{6 * 16 + 3});
  }
  EXPECT_EQ(slow.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  go_on.set_value();
  const auto came = slow.get();
  ASSERT_EQ(came.reply.pages_size(), 3);
  EXPECT_EQ(came.reply.pages(2).tier(), static_cast<uint32_t>(Tier::kDisk));
  EXPECT_EQ(came.pages.back(), std::byte{4 * 16 + 2});
}

TEST_P(KvServerReadersTest, ALeaseThatEndsWhileItsPagesAreReadStillGetsThem) {
  std::promise<void> reading, go_on;
  disk_->while_reading = [&] {
    reading.set_value();
    go_on.get_future().wait();
  };
  auto slow = std::async(std::launch::async, [&] { return ask("disk", 3); });
  reading.get_future().wait();
  ASSERT_TRUE(store_->release_lease("disk", "lease").ok());
  go_on.set_value();
  EXPECT_EQ(slow.get().pages.back(), std::byte{4 * 16 + 2});
}

TEST_P(KvServerReadersTest, AFailedReadIsItsRequestsErrorAlone) {
  disk_->flip_read = true;
  EXPECT_EQ(ask("disk", 3).reply.error().code(), static_cast<int>(Errc::kCorrupt));
  EXPECT_EQ(ask("memory", 4).reply.pages_size(), 4);
}

// UCX lets everybody in; only each request is checked.
TEST_P(KvServerReadersTest, OnlyWhoKnowsALeaseGetsIn) {
  const bool asks = GetParam() == make_tcp;
  for (const std::string wrong : {"", "leasf", "lease ", "lea"}) {
    const auto stranger = transport_->connect(server_->address(), wrong, ample());
    ASSERT_EQ(stranger.ok(), !asks) << wrong;
    if (asks) {
      EXPECT_EQ(stranger.error().code, Errc::kNotFound) << stranger.error().to_string();
    }
  }
  const auto client = transport_->connect(server_->address(), "lease", ample());
  ASSERT_TRUE(client.ok()) << client.error().to_string();
  ASSERT_TRUE(store_->release_lease("memory", "lease").ok());
  ASSERT_TRUE(store_->release_lease("disk", "lease").ok());
  EXPECT_EQ(transport_->connect(server_->address(), "lease", ample()).ok(), !asks);
}

// The lease of a request that is still being written, whose pages can already be pulled.
TEST_P(KvServerReadersTest, TheLeaseOfAnOpenRequestLetsIn) {
  ASSERT_TRUE(store_->release_lease("memory", "lease").ok());
  ASSERT_TRUE(store_->begin_request("open", 64, kvstore::consecutive_pages(0, 1)).ok());
  EXPECT_EQ(transport_->connect(server_->address(), "early", ample()).ok(), GetParam() != make_tcp);
  ASSERT_TRUE(store_->open("open", "early").ok());
  EXPECT_TRUE(transport_->connect(server_->address(), "early", ample()).ok());
}

INSTANTIATE_TEST_SUITE_P(Transports, KvServerReadersTest, testing::Values(make_tcp, make_ucx),
                         [](const auto& param) { return param.param == make_tcp ? "Tcp" : "Ucx"; });

}  // namespace
}  // namespace millrace::worker
