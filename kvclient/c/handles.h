// SPDX-License-Identifier: Apache-2.0
// What the handles of millrace_kv.h point to.
#pragma once

#include <millrace/millrace_kv.h>

#include <memory>
#include <mutex>

#include "comm/any/any_transport.h"
#include "kvclient/handover/handover_feed.h"
#include "kvclient/manifest/manifest.h"
#include "kvclient/pull_client.h"

struct mkv_manifest {
  std::shared_ptr<const millrace::kvclient::Manifest> manifest;
};

struct mkv_feed {
  std::shared_ptr<millrace::kvclient::HandoverFeed> feed =
      std::make_shared<millrace::kvclient::HandoverFeed>();
  std::mutex writing;
};

struct mkv_client {
  std::unique_ptr<millrace::comm::AnyTransport> transport;
  std::unique_ptr<millrace::kvclient::PullClient> client;  // ends before its transport
};

struct mkv_pull {
  std::unique_ptr<millrace::kvclient::Pull> pull;
};
