// SPDX-License-Identifier: Apache-2.0
// Logging is spdlog. Libraries log through the default logger and never configure it; a program
// sets it up once (common/logging/init_logging.h).
#pragma once

#include <spdlog/spdlog.h>
