// SPDX-License-Identifier: Apache-2.0
#include "model/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "tests/support/checkpoint_writer.h"
#include "tests/support/temp_directory.h"

namespace millrace::model {
namespace {

using test::TempDirectory;
using testing::AllOf;
using testing::HasSubstr;

const std::vector<int64_t> kNormShape{64};

void write_index(const TempDirectory& directory, const std::string& weight_map) {
  directory.write("model.safetensors.index.json", "{\"weight_map\": " + weight_map + "}");
}

TEST(Checkpoint, FindsEveryTensorInOneFileAndInSeveral) {
  const auto config = test::tiny_model_config();
  for (const int num_files : {1, 3}) {
    TempDirectory directory;
    test::write_random_checkpoint(config, DType::kBFloat16, 1, directory.path(), num_files);
    const auto checkpoint = Checkpoint::open(directory.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().to_string();
    for (const auto& [name, tensor] : test::random_tensors(config, 1)) {
      EXPECT_TRUE(checkpoint->contains(name));
      const auto found = checkpoint->find(name, tensor.shape);
      ASSERT_TRUE(found.ok()) << found.error().to_string();
      EXPECT_EQ(found->bytes.size(), tensor.values.size() * 2);
    }
  }
}

TEST(Checkpoint, NamesTheTensorThatIsMissing) {
  const auto config = test::tiny_model_config();
  for (const int num_files : {1, 2}) {
    TempDirectory directory;
    auto tensors = test::random_tensors(config, 1);
    tensors.erase("model.norm.weight");
    test::write_checkpoint(config, tensors, DType::kFloat32, directory.path(), num_files);
    const auto checkpoint = Checkpoint::open(directory.path());
    ASSERT_TRUE(checkpoint.ok());
    EXPECT_FALSE(checkpoint->contains("model.norm.weight"));
    const auto found = checkpoint->find("model.norm.weight", kNormShape);
    ASSERT_FALSE(found.ok());
    EXPECT_EQ(found.error().code, Errc::kNotFound);
    EXPECT_THAT(found.error().message,
                AllOf(HasSubstr("model.norm.weight"), HasSubstr(directory.path())));
  }
}

TEST(Checkpoint, NamesBothShapesWhenTheyDiffer) {
  TempDirectory directory;
  test::write_random_checkpoint(test::tiny_model_config(), DType::kFloat32, 1, directory.path());
  const auto checkpoint = Checkpoint::open(directory.path());
  ASSERT_TRUE(checkpoint.ok());
  const auto found = checkpoint->find("model.embed_tokens.weight", std::array<int64_t, 2>{64, 101});
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().code, Errc::kInvalidArgument);
  EXPECT_THAT(found.error().message,
              AllOf(HasSubstr("[101, 64]"), HasSubstr("[64, 101]"), HasSubstr("embed_tokens")));
}

TEST(Checkpoint, RefusesAnIndexThatPointsOutsideTheDirectory) {
  for (const std::string name :
       {"\"../other.safetensors\"", "\"/etc/other.safetensors\"", "\"a/b.safetensors\"", "\"..\"",
        "\"\"", "\"weights.bin\"", "\"a\\u0000.safetensors\"", "7", "null"}) {
    TempDirectory directory;
    write_index(directory, "{\"model.norm.weight\": " + name + "}");
    const auto checkpoint = Checkpoint::open(directory.path());
    ASSERT_FALSE(checkpoint.ok()) << name;
    EXPECT_EQ(checkpoint.error().code, Errc::kCorrupt);
    EXPECT_THAT(checkpoint.error().message,
                AllOf(HasSubstr("model.safetensors.index.json"), HasSubstr(name)));
  }
}

TEST(Checkpoint, NamesAFileOfTheIndexThatIsMissing) {
  TempDirectory directory;
  write_index(directory, R"({"model.norm.weight": "gone.safetensors"})");
  const auto checkpoint = Checkpoint::open(directory.path());
  ASSERT_FALSE(checkpoint.ok());
  EXPECT_EQ(checkpoint.error().code, Errc::kNotFound);
  EXPECT_THAT(checkpoint.error().message, HasSubstr("gone.safetensors"));
}

TEST(Checkpoint, NamesTheFileThatLacksWhatTheIndexPromises) {
  TempDirectory directory;
  directory.write("part.safetensors", test::safetensors_bytes({}, DType::kFloat32));
  write_index(directory, R"({"model.norm.weight": "part.safetensors"})");
  const auto checkpoint = Checkpoint::open(directory.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().to_string();
  const auto found = checkpoint->find("model.norm.weight", kNormShape);
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().code, Errc::kNotFound);
  EXPECT_THAT(found.error().message, HasSubstr("part.safetensors"));
}

TEST(Checkpoint, RefusesAnIndexThatIsNotOne) {
  for (const std::string text : {"", "[]", "{}", "{\"weight_map\": []}", "{\"weight_map\": {}, "}) {
    TempDirectory directory;
    directory.write("model.safetensors.index.json", text);
    const auto checkpoint = Checkpoint::open(directory.path());
    ASSERT_FALSE(checkpoint.ok()) << text;
    EXPECT_EQ(checkpoint.error().code, Errc::kCorrupt);
  }
}

TEST(Checkpoint, SaysWhatItLookedForInADirectoryWithoutWeights) {
  TempDirectory directory;
  const auto checkpoint = Checkpoint::open(directory.path());
  ASSERT_FALSE(checkpoint.ok());
  EXPECT_EQ(checkpoint.error().code, Errc::kNotFound);
  EXPECT_THAT(checkpoint.error().message,
              AllOf(HasSubstr(directory.path()), HasSubstr("model.safetensors.index.json")));
}

}  // namespace
}  // namespace millrace::model
