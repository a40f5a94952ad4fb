// SPDX-License-Identifier: Apache-2.0
// Writes a file that others see complete or not at all.
#pragma once

#include <string>
#include <string_view>

#include "common/result.h"

namespace millrace::calibrate {

// Whether `path` can be written, checked before the work whose result goes there: its directory
// accepts new files, and it is not a directory itself. kIo with the path.
Result<void> check_writable(const std::string& path);

// Writes to PATH.tmp next to it and renames: the old file stays until the new text is complete and
// on disk. kIo with the path; PATH.tmp is then removed.
Result<void> write_whole(const std::string& path, std::string_view text);

}  // namespace millrace::calibrate
