// SPDX-License-Identifier: Apache-2.0
#include "worker/cli/worker_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::worker {
namespace {

using ::testing::HasSubstr;

// The parser's complaint about a command line, or the complaint about the combination of its
// options.
std::string complaint(const std::vector<std::string>& more) {
  WorkerOptions options;
  CLI::App app;
  add_worker_options(app, options);
  std::vector<std::string> arguments = {"--model", "DIR"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes them
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& e) {
    return e.what();
  }
  const auto checked = check_together(options);
  return checked.ok() ? "" : checked.error().message;
}

TEST(WorkerOptions, TextsAndNumbersBecomeSizesAndTimes) {
  WorkerOptions options;
  options.host_pool = "1MiB";
  options.disk_pool = "2MiB";
  options.layer_timeout_s = 0.5;
  options.drain_timeout_s = 2;
  options.keep_timeout_s = 60;
  const auto made = group_rank_options(options);
  ASSERT_TRUE(made.ok()) << made.error().to_string();
  EXPECT_EQ(made->rank.device_pool_bytes, std::nullopt);
  EXPECT_FALSE(made->rank.device_pool_auto);
  EXPECT_EQ(made->pools.host_bytes, 1 << 20);
  EXPECT_EQ(made->pools.disk_bytes, 2 << 20);
  EXPECT_EQ(made->group.layer_timeout, std::chrono::milliseconds(500));
  EXPECT_EQ(made->group.drain_timeout, std::chrono::seconds(2));
  EXPECT_EQ(made->group.keep_timeout, std::chrono::seconds(60));
  options.device_pool = "0";
  EXPECT_EQ(group_rank_options(options)->rank.device_pool_bytes, 0);
  options.device_pool = "3MiB";
  EXPECT_EQ(group_rank_options(options)->rank.device_pool_bytes, 3 << 20);
  options.device_pool = "auto";
  EXPECT_EQ(group_rank_options(options)->rank.device_pool_bytes, std::nullopt);
  EXPECT_TRUE(group_rank_options(options)->rank.device_pool_auto);
  options.device_pool = "many";
  EXPECT_FALSE(group_rank_options(options).ok());
}

TEST(WorkerOptions, RightOnesAreTaken) {
  EXPECT_EQ(complaint({"--kv-cache-dtype", "fp8"}), "");
  EXPECT_EQ(complaint({"--device-pool", "auto"}), "");
  EXPECT_EQ(
      complaint({"--coordinator", "[::1]:8001", "--kv-host", "[::1]", "--kv-transport", "ucx"}),
      "");
  EXPECT_EQ(
      complaint({"--coordinator", "host:8001", "--group-name", "east 1", "--disk-pool", "1MiB",
                 "--disk-directory", "/d", "--layer-timeout-s", "0.5", "--kv-port", "65535"}),
      "");
}

TEST(WorkerOptions, WhatCannotWorkIsRefusedBeforeAnythingIsLoaded) {
  EXPECT_THAT(complaint({"--coordinator", "nocolon"}), HasSubstr("'nocolon' is not HOST:PORT"));
  EXPECT_THAT(complaint({"--coordinator", "host:0"}), HasSubstr("HOST:PORT"));
  EXPECT_THAT(complaint({"--coordinator", "host:80x"}), HasSubstr("HOST:PORT"));
  EXPECT_THAT(complaint({"--coordinator", ":8001"}), HasSubstr("HOST:PORT"));
  EXPECT_THAT(complaint({"--coordinator", "[::1]"}), HasSubstr("HOST:PORT"));
  EXPECT_THAT(complaint({"--group-name", "a\nb"}), HasSubstr("control characters"));
  EXPECT_THAT(complaint({"--group-name", "a\u202eb"}),
              HasSubstr(R"(control characters: a\u202eb)"));
  EXPECT_THAT(complaint({"--kv-transport", "ucx", "--kv-host", "192.0.2.1"}),
              HasSubstr("is for decode nodes on this host"));
  EXPECT_THAT(complaint({"--group-name", std::string(129, 'a')}), HasSubstr("not 129"));
  EXPECT_THAT(complaint({"--host-pool", "1QiB"}), HasSubstr("'1QiB': unknown unit"));
  EXPECT_THAT(complaint({"--kv-cache-dtype", "int8"}), HasSubstr("--kv-cache-dtype"));
  EXPECT_THAT(complaint({"--disk-pool", "64MiB"}),
              HasSubstr("--disk-pool 64MiB: needs --disk-directory"));
  EXPECT_THAT(complaint({"--prefix-disk", "64MiB"}),
              HasSubstr("--prefix-disk 64MiB: needs --disk-directory"));
  EXPECT_THAT(complaint({"--kv-port", "65535", "--tp", "2"}), HasSubstr("would use port 65536"));
}

TEST(WorkerOptions, AModelHasANameThatClientsCanAskFor) {
  EXPECT_EQ(complaint({"--served-model-name", "org/name"}), "");
  EXPECT_THAT(complaint({"--served-model-name", ""}), HasSubstr("1 to 256 characters"));
  EXPECT_THAT(complaint({"--served-model-name", std::string(257, 'a')}), HasSubstr("not 257"));
  for (const char* option : {"--served-model-name", "--group-name"}) {
    EXPECT_THAT(complaint({option, "a\nb"}), HasSubstr("control characters"));
    EXPECT_THAT(complaint({option, "a\xff"}), HasSubstr("not UTF-8"));
  }
  for (const char* directory : {"/", "/models/a\xff", "/models/a\nb"}) {
    WorkerOptions options;
    options.rank.model_directory = directory;
    const auto checked = check_together(options);
    ASSERT_FALSE(checked.ok()) << directory;
    EXPECT_THAT(checked.error().message, HasSubstr("--served-model-name"));
    options.rank.served_model_name = "name";
    EXPECT_TRUE(check_together(options).ok()) << directory;
  }
}

TEST(WorkerOptions, AnAddressThatNobodyCanReachIsNoKvHost) {
  for (const char* host : {"0.0.0.0", "::", "[::]", "0:0:0:0:0:0:0:0"}) {
    EXPECT_THAT(complaint({"--kv-host", host}),
                HasSubstr("not an address that decode nodes can reach"))
        << host;
  }
  for (const char* host : {"127.0.0.1", "10.0.0.0", "::1", "node7"}) {
    EXPECT_EQ(complaint({"--kv-host", host}), "") << host;
  }
}

TEST(WorkerOptions, EventsGoToEndpointsOfZeroMq) {
  const std::string endpoint = "--kv-events-endpoint";
  for (const char* right :
       {"tcp://*:5557", "tcp://127.0.0.1:5557", "tcp://[::1]:5557", "ipc:///run/events"}) {
    EXPECT_EQ(complaint({endpoint, right, "--kv-events-replay-endpoint", right}), "") << right;
  }
  for (const char* wrong :
       {"5557", "tcp://", "tcp://*", "tcp://*:0", "tcp://*:70000", "ipc://", "udp://a:1"}) {
    EXPECT_EQ(complaint({endpoint, wrong}),
              fmt::format("{}: '{}' is neither tcp://HOST:PORT nor ipc://PATH", endpoint, wrong));
  }
  EXPECT_THAT(complaint({"--kv-events-replay-endpoint", "tcp://*:1"}), HasSubstr(endpoint));
  EXPECT_THAT(complaint({"--kv-events-topic", "kv"}), HasSubstr(endpoint));
  EXPECT_THAT(complaint({endpoint, "tcp://*:1", "--kv-events-buffer-steps", "0"}),
              HasSubstr("from 1 to"));
}

TEST(WorkerOptions, NumbersOutOfRangeAreRefusedWithWhatTheyMayBe) {
  EXPECT_EQ(complaint({"--threads", "-1"}),
            "--threads: must be a whole number from 0 to 4096; not '-1'");
  EXPECT_EQ(complaint({"--layer-timeout-s", "0"}),
            "--layer-timeout-s: must be a number from 0.001 to 31536000; not '0'");
}

}  // namespace
}  // namespace millrace::worker
