// SPDX-License-Identifier: Apache-2.0
// Starts the program of a tokenizer process.
#pragma once

#include <sys/types.h>

#include "common/result.h"
#include "tokenizer/tokenizer_process.h"

namespace millrace::tokenizer {

// Its standard input is `socket`. Of this process it inherits only standard error, which is also
// its standard output: no other descriptor, no signal mask, no process group.
Result<pid_t> spawn_tokenizer(const ProcessOptions& options, int socket);

}  // namespace millrace::tokenizer
