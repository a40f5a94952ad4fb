// SPDX-License-Identifier: Apache-2.0
#include "model/load_model_config.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace millrace::model {
namespace {

TEST(ModelName, IsTheLastPartOfTheDirectorysPath) {
  EXPECT_EQ(model_name("/models/llama-3.1-8b"), "llama-3.1-8b");
  EXPECT_EQ(model_name("/models/llama-3.1-8b/"), "llama-3.1-8b");
  EXPECT_EQ(model_name("/models/x/../llama"), "llama");
  EXPECT_EQ(model_name("."), std::filesystem::current_path().filename().string());
  EXPECT_EQ(model_name("/"), "");
}

// huggingface_hub names the folder of a repository "models--" and its id, with "--" for "/".
TEST(ModelName, OfASnapshotInAHuggingFaceCacheIsTheRepositorys) {
  constexpr const char* kCommit = "0123456789abcdef0123456789abcdef01234567";
  const auto of = [&](const std::string& folder) {
    return model_name("/root/.cache/huggingface/hub/" + folder + "/snapshots/" + kCommit);
  };
  EXPECT_EQ(of("models--org--model"), "org/model");
  EXPECT_EQ(of("models--Qwen--Qwen3-0.6B-FP8"), "Qwen/Qwen3-0.6B-FP8");
  EXPECT_EQ(of("models--gpt2"), "gpt2");
  EXPECT_EQ(model_name(std::string("/hub/models--a--b/snapshots/") + kCommit + "/"), "a/b");
}

TEST(ModelName, OtherFoldersKeepTheirName) {
  EXPECT_EQ(model_name("/data/snapshots/mine"), "mine");
  EXPECT_EQ(model_name("/hub/models--a--b/refs/main"), "main");
  EXPECT_EQ(model_name("/hub/models--a--b"), "models--a--b");
  EXPECT_EQ(model_name("/hub/models--/snapshots/mine"), "mine");
}

}  // namespace
}  // namespace millrace::model
