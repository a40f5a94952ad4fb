// Starts the program of a tokenizer process.
#pragma once

#include <sys/types.h>

#include "common/result.h"
#include "tokenizer/tokenizer_process.h"

namespace millrace::tokenizer {

// Its standard input is `socket`, and it has nothing else of this process but standard error, which is
// its standard output too: no other descriptor, no signal mask, no process group.
Result<pid_t> spawn_tokenizer(const ProcessOptions& options, int socket);

}  // namespace millrace::tokenizer
