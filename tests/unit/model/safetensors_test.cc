// SPDX-License-Identifier: Apache-2.0
#include "model/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/checkpoint_writer.h"
#include "tests/support/temp_directory.h"

namespace millrace::model {
namespace {

using test::CheckpointTensors;
using test::TempDirectory;
using testing::ElementsAre;
using testing::HasSubstr;

const CheckpointTensors& two_tensors() {
  static const CheckpointTensors tensors{
      {"a", {.shape = {2, 3}, .values = {1, -2, 3, 0.5f, -0.25f, 6}}},
      {"b", {.shape = {2}, .values = {8, -9}}},
  };
  return tensors;
}

std::string length_prefix(uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(length >> 8 * i));
  return bytes;
}

TEST(SafetensorsFile, HandsOutTensorsWithTheirShapeAndBytes) {
  TempDirectory directory;
  const auto path =
      directory.write("model.safetensors", test::safetensors_bytes(two_tensors(), DType::kFloat32));
  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok()) << file.error().to_string();
  EXPECT_THAT((*file)->names(), ElementsAre("a", "b"));
  const auto a = (*file)->tensor("a");
  ASSERT_TRUE(a.ok());
  EXPECT_EQ(a->dtype, DType::kFloat32);
  EXPECT_THAT(a->shape, ElementsAre(2, 3));
  std::vector<float> values(6);
  ASSERT_EQ(a->bytes.size(), values.size() * sizeof(float));
  std::memcpy(values.data(), a->bytes.data(), a->bytes.size());
  EXPECT_EQ(values, two_tensors().at("a").values);
}

TEST(SafetensorsFile, NamesFileAndTensorThatIsNotThere) {
  TempDirectory directory;
  const auto path = directory.write("model.safetensors",
                                    test::safetensors_bytes(two_tensors(), DType::kBFloat16));
  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok());
  const auto missing = (*file)->tensor("model.norm.weight");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, Errc::kNotFound);
  EXPECT_THAT(missing.error().message, HasSubstr(path));
  EXPECT_THAT(missing.error().message, HasSubstr("model.norm.weight"));
}

TEST(SafetensorsFile, RefusesAFileCutOffAtAnyByte) {
  TempDirectory directory;
  const auto whole = test::safetensors_bytes(two_tensors(), DType::kFloat16);
  for (size_t size = 0; size < whole.size(); ++size) {
    const auto path = directory.write("cut.safetensors", whole.substr(0, size));
    const auto file = SafetensorsFile::open(path);
    ASSERT_FALSE(file.ok()) << size << " of " << whole.size() << " bytes";
    EXPECT_EQ(file.error().code, Errc::kCorrupt);
    EXPECT_THAT(file.error().message, HasSubstr(path));
  }
}

TEST(SafetensorsFile, RefusesAHeaderLengthBeyondTheFileOrTheLimit) {
  TempDirectory directory;
  for (const uint64_t length :
       {uint64_t{3}, uint64_t{1} << 40, uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{7}}) {
    const auto path = directory.write("liar.safetensors", length_prefix(length) + "{}");
    const auto file = SafetensorsFile::open(path);
    ASSERT_FALSE(file.ok()) << length;
    EXPECT_EQ(file.error().code, Errc::kCorrupt);
    EXPECT_THAT(file.error().message, HasSubstr(std::to_string(length)));
  }
}

TEST(SafetensorsHeader, HasTensorsOfTypesThatAreNotReadButNotMetadata) {
  const auto tensors = parse_safetensors_header(
      R"({"__metadata__": {"format": "pt"},
          "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
          "mask": {"dtype": "BOOL", "shape": [4], "data_offsets": [8, 12]},
          "scalar": {"dtype": "BF16", "shape": [], "data_offsets": [12, 14]},
          "empty": {"dtype": "F16", "shape": [3, 0], "data_offsets": [14, 14]}}  )",
      14);
  ASSERT_TRUE(tensors.ok()) << tensors.error().to_string();
  EXPECT_EQ(tensors->size(), 4u);
  EXPECT_FALSE(tensors->at("mask").known);
  EXPECT_EQ(tensors->at("mask").type, "BOOL");
  EXPECT_TRUE(tensors->at("a").known);
  EXPECT_TRUE(tensors->contains("a"));
  EXPECT_TRUE(tensors->contains("scalar"));
  EXPECT_TRUE(tensors->contains("empty"));
}

TEST(SafetensorsHeader, RefusesEveryLieAndSaysWhichTensor) {
  const auto one = [](const std::string& body) { return "{\"t\": {" + body + "}}"; };
  // The data section has 1000 bytes.
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "JSON"},
      {"[]", "not a JSON object"},
      {"{\"t\": 7}", "\"t\": not an object"},
      {one(R"("shape": [1], "data_offsets": [0, 4])"), "dtype"},
      {one(R"("dtype": 7, "shape": [1], "data_offsets": [0, 4])"), "dtype"},
      {one(R"("dtype": "F32", "data_offsets": [0, 4])"), "shape"},
      {one(R"("dtype": "F32", "shape": [-1], "data_offsets": [0, 4])"), "shape"},
      {one(R"("dtype": "F32", "shape": [1.0], "data_offsets": [0, 4])"), "shape"},
      {one(R"("dtype": "F32", "shape": ["1"], "data_offsets": [0, 4])"), "shape"},
      {one(R"("dtype": "F32", "shape": [1,1,1,1,1,1,1,1,1], "data_offsets": [0, 4])"), "shape"},
      {one(R"("dtype": "F32", "shape": [1])"), "data_offsets"},
      {one(R"("dtype": "F32", "shape": [1], "data_offsets": [0])"), "data_offsets"},
      {one(R"("dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8])"), "data_offsets"},
      {one(R"("dtype": "F32", "shape": [1], "data_offsets": [-4, 0])"), "data_offsets"},
      {one(R"("dtype": "F32", "shape": [1], "data_offsets": [8, 4])"), "outside the 1000"},
      {one(R"("dtype": "F32", "shape": [1], "data_offsets": [998, 1002])"), "outside the 1000"},
      {one(R"("dtype": "U8", "shape": [4], "data_offsets": [998, 1002])"), "outside the 1000"},
      {one(R"("dtype": "F32", "shape": [1],
              "data_offsets": [18446744073709551612, 18446744073709551615])"),
       "data_offsets"},
      {one(R"("dtype": "F32", "shape": [2], "data_offsets": [0, 4])"), "is not 4 bytes"},
      {one(R"("dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 0])"),
       "is not 0 bytes"},
      {one(R"("dtype": "F32", "shape": [4611686018427387905], "data_offsets": [0, 4])"),
       "is not 4 bytes"},
      {R"({"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
           "u": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})",
       "overlap"},
      {R"({"t": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
           "t": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})",
       "duplicate key \"t\""},
      {R"({"t\n": {"dtype": 1}})", R"("t\n")"},
      {"{\"t\": " + std::string(100000, '['), "JSON"},
  };
  for (const auto& [header, because] : cases) {
    SCOPED_TRACE(header.substr(0, 120));
    const auto tensors = parse_safetensors_header(header, 1000);
    ASSERT_FALSE(tensors.ok());
    EXPECT_EQ(tensors.error().code, Errc::kCorrupt);
    EXPECT_THAT(tensors.error().message, HasSubstr(because));
  }
}

}  // namespace
}  // namespace millrace::model
