// SPDX-License-Identifier: Apache-2.0
// The program of a tokenizer process, and its start.
#pragma once

#include <sys/types.h>
#include <string_view>

#include "common/result.h"
#include "tokenizer/tokenizer_process.h"

namespace millrace::tokenizer {

// Its standard input is `socket`. Of this process it inherits only standard error, which is also
// its standard output: no other descriptor, no signal mask, no process group.
Result<pid_t> spawn_tokenizer(const ProcessOptions& options, int socket);

// The program, millrace_tokenizer.py, as text. So it always matches this build, and cannot be missing
// from the disk.
std::string_view tokenizer_script();

}  // namespace millrace::tokenizer
