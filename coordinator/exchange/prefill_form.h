// SPDX-License-Identifier: Apache-2.0
// POST /v1/prefill: JSON, text or binary, answered with the manifest.
#pragma once

#include "coordinator/exchange/manifest_writer.h"
#include "coordinator/exchange/prompt_form.h"

namespace millrace::coordinator {

class PrefillForm : public PromptForm {
 public:
  explicit PrefillForm(HttpShared& shared) : limits_(shared.options.body), manifests_(shared) {}

  ParsedPrefillBody parse(const RequestReader::Request& request, const Route& route) override;
  void see_prompt(const std::vector<int32_t>&) override {}
  awaitable<HttpReply> reply(const Request& record) override;

 private:
  const PrefillBodyLimits& limits_;
  ManifestWriter manifests_;
};

}  // namespace millrace::coordinator
