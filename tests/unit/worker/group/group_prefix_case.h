// SPDX-License-Identifier: Apache-2.0
// Prompts that share their beginning, on a whole group.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kvclient/kv_client.h"
#include "kvclient/manifest/manifest_proto.h"
#include "tests/unit/worker/group/group_service_case.h"

namespace millrace::worker {

class GroupPrefixTest : public GroupServiceTest {
 protected:
  GroupPrefixTest() {
    options_.device_pages = 64;
    options_.host_pages = 448;
  }

  static constexpr int kShared = 320;

  // The first kShared tokens of all prompts are the same; the others depend on `variant`.
  protocol::Envelope request(const std::string& id, int num_tokens, int variant = 0,
                             protocol::CacheUse cache = protocol::CACHE_BOTH) const {
    auto envelope = prefill_request(id, num_tokens, plan_);
    std::vector<int32_t> tokens;
    for (int i = 0; i < num_tokens; ++i) {
      tokens.push_back((i * i % 89 + i * 7 + (i < kShared ? 0 : 1 + variant)) % 101);
    }
    auto& message = *envelope.mutable_prefill_request();
    message.set_prompt_token_ids(engine::encode_token_ids(tokens));
    message.mutable_options()->set_cache(cache);
    message.mutable_options()->set_min_recall(0);
    return envelope;
  }
  protocol::PrefillDone run(const protocol::Envelope& envelope) {
    link().push(envelope);
    return expect_done();
  }
  // All pages of all layers and heads, from the ranks that serve them. Each page is checked as it
  // is pulled.
  std::vector<float> pull(const protocol::Manifest& manifest) {
    kvclient::KvClient client(group().transport(), kvclient::from_protocol(manifest), {});
    std::vector<float> all;
    for (int32_t layer = 0; layer < 2; ++layer) {
      for (int32_t head = 0; head < 4; ++head) {
        std::vector<std::byte> pages(static_cast<size_t>(client.num_pages() * client.page_bytes()));
        const auto pulled = client.pull(layer, head, 0, client.num_pages(), pages,
                                        Deadline::after(std::chrono::seconds(60)));
        EXPECT_TRUE(pulled.ok()) << pulled.error().to_string();
        const size_t at = all.size();
        all.resize(at + pages.size() / sizeof(float));
        std::memcpy(all.data() + at, pages.data(), pages.size());
      }
    }
    return all;
  }
  void release_and_wait(const protocol::PrefillDone& done) {
    link().push(release(done.manifest()));
    expect_lease_reply();
  }
  // Products with different numbers of rows round differently in float32
  // (tests/unit/engine/prefix_test.cc).
  void expect_same(const protocol::PrefillDone& some, const protocol::PrefillDone& whole) {
    EXPECT_EQ(some.manifest().first_token_id(), whole.manifest().first_token_id());
    ASSERT_EQ(some.manifest().top_logprobs_size(), whole.manifest().top_logprobs_size());
    for (int i = 0; i < whole.manifest().top_logprobs_size(); ++i) {
      EXPECT_NEAR(some.manifest().top_logprobs(i).logit(), whole.manifest().top_logprobs(i).logit(),
                  1e-3);
    }
    const auto of_some = pull(some.manifest());
    const auto of_whole = pull(whole.manifest());
    ASSERT_EQ(of_some.size(), of_whole.size());
    float largest = 0;
    for (size_t i = 0; i < of_some.size(); ++i) {
      largest = std::max(largest, std::abs(of_some[i] - of_whole[i]));
    }
    EXPECT_LT(largest, 1e-3);
  }

  std::string plan_ = "dense";
};

}  // namespace millrace::worker
