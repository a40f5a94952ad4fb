#include "coordinator/exchange/manifest_writer.h"

#include <boost/asio/co_spawn.hpp>

#include "coordinator/api/request_json.h"

namespace millrace::coordinator {

awaitable<std::string> ManifestWriter::write_result(const Request& record) {
  if (!record.result) co_return std::string();
  // The manifest within its message, which lives as long.
  std::shared_ptr<const protocol::Manifest> manifest(record.result, &record.result->manifest());
  co_return co_await write(std::move(manifest), /*is_done=*/true);
}

awaitable<std::string> ManifestWriter::write_opened(const Request& record) {
  co_return co_await write(record.opened, /*is_done=*/false);
}

awaitable<std::string> ManifestWriter::write(std::shared_ptr<const protocol::Manifest> manifest,
                                             bool is_done) {
  auto work = [this, &manifest, is_done]() -> awaitable<std::string> {
    if (shared_.options.faults.writing) shared_.options.faults.writing();
    co_return manifest_text(*manifest, is_done);
  };
  co_return co_await asio::co_spawn(shared_.writers, work(), asio::use_awaitable);
}

}  // namespace millrace::coordinator
