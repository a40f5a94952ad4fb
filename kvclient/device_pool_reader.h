// SPDX-License-Identifier: Apache-2.0
// Has a device copy pages out of the device pools of ranks on its host, for one thread of a client.
// The device checks each page on the way, and writes none that is not what its rank wrote.
#pragma once

#include <span>
#include <vector>

#include "kvclient/page_pieces.h"
#include "kvclient/place_client.h"

namespace millrace::kvclient {

class DevicePoolReader {
 public:
  // Pages of the answer that lie in the rank's device pool go to `pieces`, in the memory of the
  // lane's device. Returns the other pages, and those that were corrupt. `sink`: the memory that
  // `pieces` uses for rows that nobody wants. An error is the device's.
  Result<std::vector<PlacedRun>> read(const PlaceClient::Answer& answer, const PagePieces& pieces,
                                      std::span<const std::byte> sink, DeviceLane& lane,
                                      PullOutcome& outcome);

 private:
  void add(const PlacedRun& placed, size_t index, const PagePieces& pieces,
           std::span<const std::byte> sink);

  std::vector<size_t> indices_;  // of pages_, in the run
  std::vector<PooledPage> pages_;
  std::vector<DevicePiece> pieces_;
  Pieces page_pieces_;
};

}  // namespace millrace::kvclient
