#include "worker/group/lane_messages.h"

#include <string>

#include "worker/ranks/rank_values.h"

namespace millrace::worker {

Result<void> LaneMessages::send(const protocol::Envelope& envelope) {
  *report_.add_messages() = envelope;
  return {};
}

Result<std::vector<protocol::LaneReport>> gather_reports(comm::Communicator& world,
                                                         const protocol::LaneReport& own,
                                                         Deadline deadline) {
  const std::string bytes = own.SerializeAsString();
  MR_ASSIGN_OR_RETURN(const auto counts, gather_values(world, std::ssize(bytes), deadline));
  int64_t total = 0;
  for (const int64_t count : counts) total += count;
  std::string all(static_cast<size_t>(total), '\0');
  MR_RETURN_IF_ERROR(world.all_gather(std::as_bytes(std::span(bytes)),
                                      std::as_writable_bytes(std::span(all)), counts, deadline));
  std::vector<protocol::LaneReport> reports(counts.size());
  size_t first = 0;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const auto size = static_cast<size_t>(counts[rank]);
    if (!reports[rank].ParseFromString(all.substr(first, size))) {
      return error(Errc::kInternal, "what rank {} says of its lane cannot be read", rank);
    }
    first += size;
  }
  return reports;
}

}  // namespace millrace::worker
