// SPDX-License-Identifier: Apache-2.0
// A digest of each tensor of a weight file, over all of its bytes, so that ranks can tell whether
// they have the same weights. Reading a large file takes seconds, so its digests are kept beside
// it, in a file of its name and ".millrace-digests", and hold as long as the weight file has the
// same inode, size and times. Where they cannot be kept, each start computes them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "model/checkpoint/safetensors.h"

namespace millrace::model {

using TensorDigests = std::map<std::string, uint64_t, std::less<>>;  // by the name in the file

// Of files of less than this nothing is kept: they are read in milliseconds.
inline constexpr int64_t kLeastKeptFileBytes = 64 << 20;

// The same for any number of threads. Processes of one machine that are at the same file leave it
// to one of them. Unless `waits`, none is returned while another process is at it, so that the
// caller can go on to another file; otherwise this one waits, and after two minutes no longer.
std::optional<TensorDigests> tensor_digests(const SafetensorsFile& file, int num_threads,
                                            bool waits);

}  // namespace millrace::model
