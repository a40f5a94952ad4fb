// SPDX-License-Identifier: Apache-2.0
#include "tests/mp/mpi_test_main.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>

namespace millrace::comm {
namespace {

MpiSession* session = nullptr;

// Every rank runs every test; only rank 0 tells the whole story, the others their failures.
class FailuresOnly : public testing::EmptyTestEventListener {
 public:
  explicit FailuresOnly(int rank) : rank_(rank) {}

  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "rank %d: %s:%d: %s\n", rank_, result.file_name(), result.line_number(),
                 result.message());
  }

 private:
  const int rank_;
};

}  // namespace

MpiSession& test_session() {
  return *session;
}

}  // namespace millrace::comm

int main(int argc, char** argv) {
  using namespace millrace::comm;
  testing::InitGoogleTest(&argc, argv);
  MpiSession this_session(argc, argv);
  session = &this_session;
  const int rank = this_session.world()->rank();
  if (rank != 0) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailuresOnly(rank));
  }
  return RUN_ALL_TESTS();
}
