// SPDX-License-Identifier: Apache-2.0
#include "model/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/checkpoint_writer.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/model/raw_tensors.h"

namespace millrace::model {
namespace {

using test::TempDirectory;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

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
       {"\"../other.safetensors\"", "\"/etc/other.safetensors\"", "\"a/../b.safetensors\"",
        "\"..\"", "\"\"", "\"./a.safetensors\"", "\"a//b.safetensors\"", "\"a\\\\b.safetensors\"",
        "\"weights.bin\"", "\"a\\u0000.safetensors\"", "7", "null"}) {
    TempDirectory directory;
    write_index(directory, "{\"model.norm.weight\": " + name + "}");
    const auto checkpoint = Checkpoint::open(directory.path());
    ASSERT_FALSE(checkpoint.ok()) << name;
    EXPECT_EQ(checkpoint.error().code, Errc::kCorrupt);
    EXPECT_THAT(checkpoint.error().message,
                AllOf(HasSubstr("model.safetensors.index.json"), HasSubstr(name)));
  }
}

TEST(Checkpoint, ReadsFilesInFoldersBelow) {
  TempDirectory directory;
  std::filesystem::create_directories(directory.file("a/b"));
  directory.write("a/b/part.safetensors",
                  test::safetensors_bytes({{"x", {{1}, {5}}}}, DType::kFloat32));
  write_index(directory, R"({"x": "a/b/part.safetensors"})");
  const auto checkpoint = Checkpoint::open(directory.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().to_string();
  EXPECT_TRUE(checkpoint->find("x", std::array<int64_t, 1>{1}).ok());
}

float only_value(const Checkpoint& checkpoint, std::string_view name) {
  const auto found = checkpoint.find(name, std::array<int64_t, 1>{1});
  float value = 0;
  if (found.ok()) std::memcpy(&value, found->bytes.data(), sizeof value);
  return value;
}

TEST(Checkpoint, AnIndexCountsMoreThanAFileThatItDoesNotName) {
  TempDirectory directory;
  const auto one = [](float value) {
    return test::safetensors_bytes({{"x", {{1}, {value}}}}, DType::kFloat32);
  };
  directory.write("model.safetensors", one(1));
  directory.write("part.safetensors", one(2));
  EXPECT_THAT(Checkpoint::open(directory.path())->warnings(), IsEmpty());
  write_index(directory, R"({"x": "part.safetensors"})");
  const auto checkpoint = Checkpoint::open(directory.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().to_string();
  EXPECT_EQ(only_value(*checkpoint, "x"), 2);
  EXPECT_THAT(checkpoint->warnings(), ElementsAre(HasSubstr("/model.safetensors is not read")));

  write_index(directory, R"({"x": "model.safetensors"})");
  const auto named = Checkpoint::open(directory.path());
  EXPECT_EQ(only_value(*named, "x"), 1);
  EXPECT_THAT(named->warnings(), IsEmpty());
}

TEST(Checkpoint, HasWhatItsFilesHaveAndTheIndexForgot) {
  TempDirectory directory;
  directory.write("a.safetensors",
                  test::safetensors_bytes({{"x", {{1}, {1}}}, {"y", {{1}, {2}}}}, DType::kFloat32));
  directory.write("b.safetensors", test::safetensors_bytes({{"x", {{1}, {3}}}}, DType::kFloat32));
  write_index(directory, R"({"x": "b.safetensors", "z": "a.safetensors"})");
  const auto checkpoint = Checkpoint::open(directory.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().to_string();
  EXPECT_EQ(only_value(*checkpoint, "y"), 2);
  EXPECT_EQ(only_value(*checkpoint, "x"), 3);  // of the file that the index names
}

TEST(Checkpoint, KnowsTheTextModelByItsLayersWhateverStandsBeforeThem) {
  struct Names {
    const char *layers, *head;
  };
  const auto config = test::tiny_model_config();
  for (const auto& [layers, head] :
       {Names{"model.", ""}, Names{"", ""}, Names{"language_model.model.", "language_model."},
        Names{"model.language_model.", ""}, Names{"language_model.", "language_model."},
        Names{"base_model.model.model.", "base_model.model."}}) {
    SCOPED_TRACE(layers);
    test::CheckpointTensors stored;
    for (const auto& [name, tensor] : test::random_tensors(config, 1)) {
      stored[name.starts_with("model.") ? layers + name.substr(6) : head + name] = tensor;
    }
    // A smaller model beside it, and one for images.
    stored["mtp.layers.0.input_layernorm.weight"] = {{1}, {1}};
    stored["vision_tower.layers.0.norm.weight"] = {{1}, {1}};
    TempDirectory directory;
    test::write_checkpoint(config, stored, DType::kFloat32, directory.path(), 1);
    const auto checkpoint = Checkpoint::open(directory.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().to_string();
    for (const auto& [name, tensor] : test::random_tensors(config, 1)) {
      EXPECT_TRUE(checkpoint->find(name, tensor.shape).ok()) << name;
    }
    EXPECT_EQ(checkpoint->unused().size(), 2u);
  }
}

TEST(Checkpoint, KnowsWhichTensorsNobodyAskedFor) {
  TempDirectory directory;
  directory.write("model.safetensors",
                  test::raw_safetensors({{"x", test::float32_tensor({1}, std::array{1.0F})},
                                         {"y", test::float32_tensor({1}, std::array{2.0F})},
                                         {"z", {"I64", {1}, std::string(8, '\0')}}}));
  const auto checkpoint = Checkpoint::open(directory.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().to_string();
  EXPECT_EQ(only_value(*checkpoint, "y"), 2);
  EXPECT_THAT(checkpoint->unused(), ElementsAre("x", "z"));
  EXPECT_TRUE(checkpoint->is_used("y"));
  const auto other = checkpoint->find("z", std::array<int64_t, 1>{1});
  ASSERT_FALSE(other.ok());
  EXPECT_THAT(other.error().message, HasSubstr("tensor \"z\" is of type \"I64\""));
}

TEST(Checkpoint, NoticesAFileThatIsWrittenOverCutShortOrReplaced) {
  const auto bytes =
      test::safetensors_bytes(test::random_tensors(test::tiny_model_config(), 1), DType::kFloat32);
  const auto changes = std::vector<std::function<void(const std::string&)>>{
      [](const auto& path) { std::filesystem::resize_file(path, 5000); },
      [&](const auto& path) {
        std::ofstream(path, std::ios::binary) << std::string(bytes.size(), '0');
      },
      [&](const auto& path) {
        std::ofstream(path + ".new", std::ios::binary) << bytes;
        std::filesystem::rename(path + ".new", path);
      },
      [](const auto& path) { std::filesystem::remove(path); }};
  for (const auto& change : changes) {
    TempDirectory directory;
    const auto path = directory.write("model.safetensors", bytes);
    const auto checkpoint = Checkpoint::open(directory.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().to_string();
    EXPECT_TRUE(checkpoint->unchanged().ok());
    change(path);
    // Reading goes on, whatever is there now.
    checkpoint->fingerprint(/*num_threads=*/2);
    const auto noticed = checkpoint->unchanged();
    ASSERT_FALSE(noticed.ok());
    EXPECT_EQ(noticed.error().code, Errc::kIo);
    EXPECT_THAT(noticed.error().message, HasSubstr(path + ": changed while it was read"));
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
