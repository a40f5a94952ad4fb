// SPDX-License-Identifier: Apache-2.0
#include "coordinator/exchange/manifest_writer.h"

#include <boost/asio/co_spawn.hpp>

#include "coordinator/exchange/first_token.h"

namespace millrace::coordinator {

namespace {

// The result is useful without this text.
constexpr std::chrono::seconds kTextPatience{2};

}  // namespace

awaitable<ResultTexts> ManifestWriter::write_result(const Request& record) {
  ResultTexts texts;
  if (!record.result) co_return texts;
  // Points to the manifest inside its message, and keeps the message alive.
  std::shared_ptr<const protocol::Manifest> manifest(record.result, &record.result->manifest());
  if (has_tokenizer(shared_, record.model)) {
    const auto text = co_await read_first_token(shared_, record, {}, kTextPatience);
    texts.first_token_text.emplace();
    if (text.ok()) *texts.first_token_text = text->text;
  }
  texts.manifest = co_await write(std::move(manifest), /*is_done=*/true);
  co_return texts;
}

awaitable<std::string> ManifestWriter::write_opened(const Request& record) {
  co_return co_await write(record.opened, /*is_done=*/false);
}

awaitable<std::string> ManifestWriter::write(std::shared_ptr<const protocol::Manifest> manifest,
                                             bool is_done) {
  auto work = [this, &manifest, is_done]() -> awaitable<std::string> {
    if (shared_.options.faults.writing) shared_.options.faults.writing();
    co_return manifest_text(*manifest, shared_.instance, is_done);
  };
  co_return co_await asio::co_spawn(shared_.writers, work(), asio::use_awaitable);
}

}  // namespace millrace::coordinator
