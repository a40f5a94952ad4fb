// SPDX-License-Identifier: Apache-2.0
// The exchange for a posted prompt, in either form: parses the body, submits the request, and
// answers with its result or with a stream of events. If the client leaves, the scheduler decides
// what becomes of its request. For a forecast it answers when the prompt should end, and queues nothing.
#pragma once

#include <memory>
#include <optional>

#include "common/net/net_stream.h"
#include "coordinator/exchange/prompt_form.h"
#include "coordinator/http/reply_writer.h"
#include "coordinator/http/request_gate.h"
#include "coordinator/http/request_reader.h"
#include "coordinator/net/notifier.h"
#include "coordinator/tracing/request_tracer.h"

namespace millrace::coordinator {

class DisconnectWatch;

class PrefillExchange {
 public:
  // All must outlive it. `stream`: to notice that the client leaves.
  PrefillExchange(HttpShared& shared, NetStream& stream, RequestGate& gate, ReplyWriter& writer,
                  PromptForm& form, const RequestTracer::Answering& answering);

  // True when the connection can take another request.
  awaitable<bool> run(RequestReader::Request& request, const Route& route);

 private:
  using Record = std::shared_ptr<const Request>;

  awaitable<ParsedPrefillBody> parse(const RequestReader::Request& request, const Route& route);
  // Sets the token ids, also of a text, and what follows from them. Leaves a text alone where its
  // model is not served.
  awaitable<std::optional<Refusal>> prepare(PrefillBody& body);
  // For a request that has the id of a header, and not of its body, if an earlier one has it too.
  void take_own_id(PrefillBody& body);
  awaitable<bool> forecast(PrefillBody& body);
  // The reason to decline a prompt that should take longer than its form allows, else nullopt.
  std::optional<Refusal> check_forecast(const PrefillBody& body) const;
  awaitable<bool> refuse(const Refusal& why);
  awaitable<bool> answer_at_end(Record record);
  awaitable<bool> answer_result(Record record);
  awaitable<bool> stream(Record record, bool tells_progress);
  awaitable<bool> answer_in_events(Record record);
  // Until the request has ended or the client is gone.
  awaitable<void> wait_for_end(Record record, Notifier& changed, const DisconnectWatch& client);

  HttpShared& shared_;
  NetStream& stream_;
  RequestGate& gate_;
  ReplyWriter& writer_;
  PromptForm& form_;
  const RequestTracer::Answering& answering_;
};

}  // namespace millrace::coordinator
