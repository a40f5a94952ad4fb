// A file that others see whole or not at all.
#pragma once

#include <string>
#include <string_view>

#include "common/result.h"

namespace millrace::calibrate {

// Whether `path` can be written, found out before the work whose result goes there: its directory
// takes new files, and it is no directory itself. kIo with the path.
Result<void> check_writable(const std::string& path);

// Writes to PATH.tmp beside it and renames: what was there stays until the new text is whole and on
// the disk. kIo with the path; PATH.tmp is then gone.
Result<void> write_whole(const std::string& path, std::string_view text);

}  // namespace millrace::calibrate
