// SPDX-License-Identifier: Apache-2.0
// All the pages that a request began with, pinned together.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "kvstore/kv_store.h"
#include "kvstore/pages/page_io.h"
#include "kvstore/pages/page_table.h"
#include "kvstore/pages/residency.h"

namespace millrace::kvstore {

class HeldColumns final : public HeldPrefix {
 public:
  // Called outside the store's lock, `mutex`, which is taken for one column at a time so that
  // others can write their pages meanwhile. All arguments but the table outlive it.
  HeldColumns(std::shared_ptr<PageTable> table, const PageIo& io, Residency& residency,
              std::mutex& mutex);
  ~HeldColumns() override;

  std::span<const PageCopy> copies() const override { return copies_; }

 private:
  Residency& residency_;
  std::mutex& mutex_;
  // Keeps the columns alive while they are held, even if the request is forgotten.
  const std::shared_ptr<PageTable> table_;
  std::span<const std::shared_ptr<PageColumn>> columns_;
  std::vector<PageCopy> copies_;
};

}  // namespace millrace::kvstore
