// SPDX-License-Identifier: Apache-2.0
#include "model/checkpoint/tensor_digests.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "common/system/file_descriptor.h"
#include "common/system/file_identity.h"
#include "tests/support/temp_directory.h"

namespace millrace::model {
namespace {

using test::TempDirectory;

// A weight file that is just large enough for its digests to be kept: two tensors of bytes, nearly
// all of them holes.
class TensorDigestsTest : public testing::Test {
 protected:
  TensorDigestsTest() {
    const std::string header = fmt::format(
        R"({{"a": {{"dtype": "U8", "shape": [{0}], "data_offsets": [0, {0}]}},
             "b": {{"dtype": "U8", "shape": [1], "data_offsets": [{0}, {1}]}}}})",
        kLeastKeptFileBytes, kLeastKeptFileBytes + 1);
    std::string length;
    for (size_t i = 0; i < 8; ++i) length.push_back(static_cast<char>(header.size() >> 8 * i));
    data_begin_ = static_cast<int64_t>(length.size() + header.size());
    path_ = directory_.write("model.safetensors", length + header);
    std::filesystem::resize_file(path_,
                                 static_cast<uintmax_t>(data_begin_ + kLeastKeptFileBytes + 1));
  }

  std::unique_ptr<SafetensorsFile> file() const { return *SafetensorsFile::open(path_); }
  TensorDigests digests(int num_threads = 2) const {
    return *tensor_digests(*file(), num_threads, /*waits=*/true);
  }
  TensorDigests computed(int num_threads) const {
    std::filesystem::remove(kept());
    return digests(num_threads);
  }
  // Computes them until they are kept, which they are not while the file's times are too new.
  TensorDigests keep() const {
    while (!std::filesystem::exists(kept())) digests();
    return digests();
  }
  void write_byte(int64_t offset, char byte) const {
    std::fstream out(path_, std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(data_begin_ + offset);
    out.put(byte);
  }
  std::string kept() const { return path_ + ".millrace-digests"; }

  TempDirectory directory_;
  std::string path_;
  int64_t data_begin_ = 0;
};

TEST_F(TensorDigestsTest, AreOfEachByteOnAnyNumberOfThreads) {
  const auto before = computed(1);
  ASSERT_EQ(before.size(), 2u);
  EXPECT_EQ(computed(3), before);
  for (const int64_t offset : {int64_t{0}, int64_t{40'000'001}, kLeastKeptFileBytes - 1}) {
    write_byte(offset, 'x');
    const auto after = computed(2);
    EXPECT_NE(after.at("a"), before.at("a")) << offset;
    EXPECT_EQ(after.at("b"), before.at("b"));
    write_byte(offset, '\0');
    EXPECT_EQ(computed(2), before);
  }
}

TEST_F(TensorDigestsTest, AreKeptBesideTheFileUntilItChanges) {
  const auto before = keep();
  const auto first = file_identity(kept());
  ASSERT_TRUE(first.ok()) << first.error().to_string();
  EXPECT_EQ(digests(), before);
  EXPECT_EQ(*file_identity(kept()), *first);  // read, not computed and written again
  // Its times are another's even if its writer sets the one that can be set.
  const auto time = std::filesystem::last_write_time(path_);
  write_byte(7, 'x');
  std::filesystem::last_write_time(path_, time);
  EXPECT_NE(digests(), before);
}

TEST_F(TensorDigestsTest, AreComputedWhereWhatIsKeptIsDamaged) {
  const auto before = keep();
  std::string text;
  std::ifstream in(kept());
  std::getline(in, text);
  for (size_t i = 0; i < text.size(); i += 41) {
    auto damaged = text;
    damaged[i] = damaged[i] == '1' ? '2' : '1';
    std::ofstream(kept()) << damaged;
    EXPECT_EQ(digests(), before) << i;
    std::ofstream(kept()) << text.substr(0, i);
    EXPECT_EQ(digests(), before) << i;
  }
}

TEST_F(TensorDigestsTest, AreLeftToAnotherProcessThatIsAtTheFile) {
  const FileDescriptor other(::open(path_.c_str(), O_RDONLY));
  ASSERT_EQ(::flock(other.get(), LOCK_EX), 0);
  EXPECT_FALSE(tensor_digests(*file(), 1, /*waits=*/false));
  ASSERT_EQ(::flock(other.get(), LOCK_UN), 0);
  EXPECT_TRUE(tensor_digests(*file(), 1, /*waits=*/false));
  keep();
  // What is kept needs no lock.
  ASSERT_EQ(::flock(other.get(), LOCK_EX), 0);
  EXPECT_TRUE(tensor_digests(*file(), 1, /*waits=*/false));
}

}  // namespace
}  // namespace millrace::model
