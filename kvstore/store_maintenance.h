// SPDX-License-Identifier: Apache-2.0
// What the owner of a KV store calls beside all requests, on threads of its own. Threads and errors:
// kvstore/kv_store.h.
#pragma once

#include "common/clock.h"
#include "common/system/prefault.h"

namespace millrace::kvstore {

class StoreMaintenance {
 public:
  virtual ~StoreMaintenance() = default;

  // Brings pages nearer to their readers, one page at a time: reads ahead of readers, moves the best
  // pages on disk into memory, where they take the places of pages worth much less, and while the
  // bus is idle pages that are pulled often to a GPU's memory, where they do so too. Then keeps
  // what is remembered and not yet kept, one page in all layers and heads at a time, and brings
  // what earlier processes kept into free memory.
  // A thread of the owner calls it over and over. Returns whether there was anything to do. If
  // there was not, or the disk for kept pages has not taken one, it returns at `deadline` at the
  // latest. If a read of kept pages does not return, it is waited for once, for a second.
  virtual bool tend(Deadline deadline) = 0;
  // Whether there ever is anything to do.
  virtual bool needs_tending() const = 0;

  // Called before the process ends in good order: writes pages that later processes may begin with
  // to where they outlive this one. Returns when `patience` is over, whatever the disk does: the
  // number of pages not written. A write that hangs then is abandoned, and does not hold up the
  // store's end.
  virtual int64_t keep_cached(Duration patience) = 0;
  virtual bool keeps_prefixes() const = 0;
  // Makes pools in host memory resident, on this many threads, while the pools are in use. Without
  // it, each system page becomes resident when it is first written. `then` is called for each piece
  // on these threads, and is destroyed before the pools are. Call once, before threads share the
  // store.
  virtual void prefault(int num_threads, const Prefault::Then& then = {}) = 0;
};

}  // namespace millrace::kvstore
