// SPDX-License-Identifier: Apache-2.0
#include "coordinator/groups/group_choice.h"

#include <gtest/gtest.h>

namespace millrace::coordinator {
namespace {

constexpr TimePoint kNow{};

class GroupChoiceTest : public ::testing::Test {
 protected:
  GroupChoiceTest() {
    for (const char* id : {"a", "b"}) {
      Group& group = id == std::string("a") ? a_ : b_;
      group.description.set_group_id(id);
      group.description.set_max_prompt_tokens(1000);
      group.description.mutable_model()->set_name("tiny");
    }
    request_.model = "tiny";
    request_.num_tokens = 100;
  }
  std::string chosen() {
    const Group* group = choose_group(groups_, request_, kNow);
    return group == nullptr ? "" : group->description.group_id();
  }

  Group a_;
  Group b_;
  std::vector<Group*> groups_ = {&a_, &b_};
  Request request_;
  std::shared_ptr<Request> other_ = std::make_shared<Request>();
};

TEST_F(GroupChoiceTest, TheGroupWithTheMostRoomGetsIt) {
  a_.free_tokens = 100;
  b_.free_tokens = 101;
  EXPECT_EQ(chosen(), "b");
}

TEST_F(GroupChoiceTest, NoGroupThatIsBusyDrainingTooSmallOrOfAnotherModel) {
  a_.running = other_;
  b_.draining = true;
  EXPECT_EQ(chosen(), "");
  b_.draining = false;
  b_.description.set_max_prompt_tokens(99);
  EXPECT_EQ(chosen(), "");
  b_.description.set_max_prompt_tokens(100);
  EXPECT_EQ(chosen(), "b");
  b_.description.mutable_model()->set_name("other");
  EXPECT_EQ(chosen(), "");
}

TEST_F(GroupChoiceTest, WhereNoneReportsRoomAnIdleOneIsAskedUnlessABusyOneWillDo) {
  a_.free_tokens = 10;
  b_.free_tokens = 20;
  EXPECT_EQ(chosen(), "b");
  b_.free_tokens = 200;
  b_.running = other_;
  EXPECT_EQ(chosen(), "");
}

TEST_F(GroupChoiceTest, AGroupThatRestsIsTheLastResort) {
  a_.health.failed(kNow);
  b_.free_tokens = 10;
  EXPECT_EQ(chosen(), "b");
  request_.refusals["b"] = 1;
  EXPECT_EQ(chosen(), "a");
}

TEST_F(GroupChoiceTest, AGroupThatFailedTheRequestOrRefusedItTwiceIsNotAskedAgain) {
  request_.failed_on.insert("a");
  request_.refusals["b"] = 1;
  EXPECT_EQ(chosen(), "b");  // it reports room
  request_.refusals["b"] = 2;
  EXPECT_EQ(chosen(), "");
  EXPECT_FALSE(has_untried_group(groups_, request_));
}

TEST_F(GroupChoiceTest, ABusyGroupIsWorthWaitingForWhateverRoomItHasNow) {
  request_.failed_on.insert("a");
  b_.running = other_;
  EXPECT_TRUE(has_untried_group(groups_, request_));
  b_.free_tokens = 10;
  EXPECT_TRUE(has_untried_group(groups_, request_));
  request_.refusals["b"] = 1;
  EXPECT_FALSE(has_untried_group(groups_, request_));
  EXPECT_TRUE(has_group_to_ask_again(groups_, request_));
  request_.refusals["b"] = 2;
  EXPECT_FALSE(has_group_to_ask_again(groups_, request_));
}

}  // namespace
}  // namespace millrace::coordinator
