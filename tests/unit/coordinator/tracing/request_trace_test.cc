// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tracing/request_trace.h"

#include <gmock/gmock.h>

namespace millrace::coordinator {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;
using tracing::Span;

const TimePoint kReceived{std::chrono::hours(1)};

TimePoint at(int64_t ms) {
  return kReceived + milliseconds(ms);
}

class RequestTraceTest : public ::testing::Test {
 protected:
  RequestTraceTest() {
    request_.id = "r1";
    request_.model = "tiny";
    request_.num_tokens = 8192;
    request_.queued_at = at(30);
    request_.num_layers = 2;
  }

  void begin(int64_t ms, const std::string& group = "group-0") {
    request_.state = RequestState::kRunning;
    request_.group_name = group;
    request_.started_at = at(ms);
    trace_.changed(request_, at(ms));
  }
  void layer(int64_t ms, double density) {
    request_.layer_density.push_back(density);
    trace_.changed(request_, at(ms));
  }
  void finish(int64_t ms, protocol::PrefillDone done = {}) {
    request_.state = RequestState::kDone;
    request_.ended_at = at(ms);
    request_.lease = LeaseState::kActive;
    request_.result = std::make_shared<const protocol::PrefillDone>(std::move(done));
    trace_.changed(request_, at(ms));
  }
  void fail(int64_t ms, Errc code) {
    request_.state = RequestState::kFailed;
    request_.ended_at = at(ms);
    request_.failure = Error(code, "token 5 of the text is 17");
    trace_.changed(request_, at(ms));
  }
  void end_lease(int64_t ms, LeaseState how) {
    request_.lease = how;
    trace_.changed(request_, at(ms));
  }
  // Takes what is complete.
  std::vector<std::string> take() {
    spans_ = trace_.take();
    std::vector<std::string> names;
    for (const Span& span : spans_) names.push_back(span.name);
    return names;
  }
  const Span& span(const std::string& name) const {
    const auto found = std::ranges::find(spans_, name, &Span::name);
    MR_CHECK(found != spans_.end(), "no span {}", name);
    return *found;
  }
  static void expect_times(const Span& span, int64_t begin_ms, int64_t end_ms) {
    EXPECT_EQ(span.begin, at(begin_ms)) << span.name;
    EXPECT_EQ(span.end, at(end_ms)) << span.name;
  }
  template <typename T>
  static T attribute(const Span& span, const std::string& name) {
    const auto found = std::ranges::find(span.attributes, name, &tracing::Attribute::name);
    MR_CHECK(found != span.attributes.end(), "no attribute {}", name);
    return std::get<T>(found->value);
  }
  static bool has(const Span& span, const std::string& name) {
    return std::ranges::count(span.attributes, name, &tracing::Attribute::name) > 0;
  }

  const tracing::TraceContext own_{.trace_id = "4bf92f3577b34da6a3ce929d0e0e4736",
                                   .span_id = "00f067aa0ba902b7",
                                   .sampled = true};
  RequestTrace trace_{{.own = own_,
                       .parent_id = "b7ad6b7169203331",
                       .method = "POST",
                       .path = "/v1/prefill",
                       .operation = "text_completion",
                       .received = kReceived}};
  Request request_;
  std::vector<Span> spans_;
};

TEST_F(RequestTraceTest, HasAPartForEachThingThatARequestWaitsFor) {
  trace_.tokenized(at(10), at(25));
  trace_.changed(request_, at(30));
  begin(100);
  layer(150, 0.5);
  layer(190, 0.25);
  finish(200);
  EXPECT_THAT(take(), ElementsAre());  // the answer is not sent yet
  trace_.answered(200, at(210));
  EXPECT_THAT(take(), UnorderedElementsAre("POST /v1/prefill", "tokenize", "queue", "prefill"));
  expect_times(span("POST /v1/prefill"), 0, 210);
  expect_times(span("tokenize"), 10, 25);
  expect_times(span("queue"), 30, 100);
  expect_times(span("prefill"), 100, 200);
  for (const Span& one : spans_) {
    const bool is_own = one.name == "POST /v1/prefill";
    EXPECT_EQ(one.trace_id, own_.trace_id);
    EXPECT_EQ(one.parent_id, is_own ? "b7ad6b7169203331" : own_.span_id);
    EXPECT_EQ(one.span_id == own_.span_id, is_own);
    EXPECT_EQ(one.kind, is_own ? Span::Kind::kServer : Span::Kind::kInternal);
    EXPECT_FALSE(one.failed);
  }
  const auto& layers = span("prefill").events;
  ASSERT_EQ(layers.size(), 2u);
  EXPECT_EQ(layers[1].name, "layer");
  EXPECT_EQ(layers[1].at, at(190));
  EXPECT_EQ(layers[1].attributes,
            (tracing::Attributes{{"millrace.layer", int64_t{1}}, {"millrace.density", 0.25}}));
}

TEST_F(RequestTraceTest, TheHandOverLastsUntilTheLeaseEnds) {
  begin(100);
  finish(200);
  trace_.answered(200, at(210));
  take();
  trace_.changed(request_, at(300));  // a renewal
  EXPECT_THAT(take(), ElementsAre());
  end_lease(450, LeaseState::kReleased);
  EXPECT_THAT(take(), ElementsAre("hand-over"));
  expect_times(span("hand-over"), 200, 450);
  EXPECT_EQ(span("hand-over").parent_id, own_.span_id);
  EXPECT_EQ(attribute<std::string>(span("hand-over"), "millrace.lease"), "released");
  trace_.changed(request_, at(500));
  EXPECT_THAT(take(), ElementsAre());
}

TEST_F(RequestTraceTest, AStreamingHandOverBeginsWhenPagesCanBePulled) {
  begin(100);
  request_.opened = std::make_shared<const protocol::Manifest>();
  trace_.changed(request_, at(110));
  layer(150, 0.5);
  finish(200);
  end_lease(230, LeaseState::kExpired);  // before the answer is sent
  trace_.answered(200, at(240));
  take();
  expect_times(span("hand-over"), 110, 230);
  EXPECT_FALSE(span("hand-over").failed);
}

TEST_F(RequestTraceTest, ALostLeaseIsAFailure) {
  begin(100);
  finish(200);
  trace_.answered(200, at(210));
  end_lease(230, LeaseState::kLost);
  take();
  EXPECT_TRUE(span("hand-over").failed);
  EXPECT_EQ(attribute<std::string>(span("hand-over"), "error.type"), "peer_lost");
}

TEST_F(RequestTraceTest, TheStagesOfItsGroupArePartsOfThePrefillUnderTheGroupsName) {
  protocol::PrefillDone done;
  const auto add = [&](const std::string& name, double time_s) {
    done.add_stages()->set_stage(name);
    done.mutable_stages()->rbegin()->set_seconds(time_s);
  };
  add("start", 0.01);
  add("layers", 0.06);
  add("made up", 0.01);
  add("tail", -1);
  add("tail", std::numeric_limits<double>::quiet_NaN());
  add("close", 1e300);  // longer than the whole prefill
  begin(100);
  finish(200, done);
  trace_.answered(200, at(210));
  EXPECT_THAT(take(), UnorderedElementsAre("POST /v1/prefill", "queue", "prefill", "start",
                                           "layers", "close"));
  expect_times(span("start"), 100, 110);
  expect_times(span("layers"), 110, 170);
  expect_times(span("close"), 170, 200);
  EXPECT_EQ(span("layers").parent_id, span("prefill").span_id);
  EXPECT_EQ(span("layers").service, "millrace-worker");
  EXPECT_EQ(span("layers").instance, "group-0");
  EXPECT_EQ(span("prefill").service, "");
}

TEST_F(RequestTraceTest, AttributesAreThoseOfTheConventionsAndOurOwn) {
  protocol::PrefillDone done;
  done.set_cached_tokens(4096);
  done.mutable_manifest()->set_density(0.3);
  done.mutable_manifest()->set_recall(0.99);
  done.mutable_manifest()->set_recall_p01(0.97);
  done.mutable_manifest()->set_cp(4);
  for (const auto& [name, pages] : {std::pair("device", 7), {"host", 5}, {"made up", 3}}) {
    auto& tier = *done.mutable_manifest()->add_tiers();
    tier.set_tier(name);
    tier.set_pages(static_cast<uint64_t>(pages));
  }
  done.add_phases()->set_phase("attention");
  done.mutable_phases(0)->set_seconds(0.05);
  done.add_phases()->set_phase("made up");
  request_.owner = "router";
  begin(100);
  finish(200, done);
  trace_.answered(200, at(210));
  take();
  const Span& own = span("POST /v1/prefill");
  EXPECT_EQ(attribute<std::string>(own, "gen_ai.operation.name"), "text_completion");
  EXPECT_EQ(attribute<std::string>(own, "gen_ai.provider.name"), "millrace");
  EXPECT_EQ(attribute<std::string>(own, "gen_ai.request.model"), "tiny");
  EXPECT_EQ(attribute<std::string>(own, "gen_ai.response.id"), "r1");
  EXPECT_EQ(attribute<int64_t>(own, "gen_ai.usage.input_tokens"), 8192);
  EXPECT_EQ(attribute<int64_t>(own, "gen_ai.usage.output_tokens"), 1);
  EXPECT_EQ(attribute<int64_t>(own, "gen_ai.usage.cache_read.input_tokens"), 4096);
  EXPECT_EQ(attribute<std::string>(own, "http.request.method"), "POST");
  EXPECT_EQ(attribute<std::string>(own, "http.route"), "/v1/prefill");
  EXPECT_EQ(attribute<int64_t>(own, "http.response.status_code"), 200);
  EXPECT_EQ(attribute<std::string>(own, "millrace.owner"), "router");
  const Span& prefill = span("prefill");
  EXPECT_EQ(attribute<std::string>(prefill, "millrace.group"), "group-0");
  EXPECT_EQ(attribute<int64_t>(prefill, "millrace.cached_tokens"), 4096);
  EXPECT_EQ(attribute<double>(prefill, "millrace.density"), 0.3);
  EXPECT_EQ(attribute<double>(prefill, "millrace.recall"), 0.99);
  EXPECT_EQ(attribute<double>(prefill, "millrace.recall_p01"), 0.97);
  EXPECT_EQ(attribute<int64_t>(prefill, "millrace.cp"), 4);
  EXPECT_EQ(attribute<double>(prefill, "millrace.phase.attention.seconds"), 0.05);
  EXPECT_FALSE(has(prefill, "millrace.phase.made up.seconds"));
  EXPECT_EQ(attribute<int64_t>(prefill, "millrace.pages.device"), 7);
  EXPECT_EQ(attribute<int64_t>(prefill, "millrace.pages.host"), 5);
  EXPECT_FALSE(has(prefill, "millrace.pages.made up"));
}

TEST_F(RequestTraceTest, AGroupThatGivesItBackHasItsOwnPrefill) {
  begin(100, "group-0");
  layer(150, 0.5);
  request_.state = RequestState::kQueued;
  request_.started_at.reset();
  request_.layer_density.clear();
  request_.group_name.clear();
  request_.given_back = Error(Errc::kIo, "disk full");
  trace_.changed(request_, at(160));
  begin(180, "group-1");
  finish(300);
  trace_.answered(200, at(310));
  EXPECT_THAT(take(), ElementsAre("queue", "prefill", "queue", "prefill", "POST /v1/prefill"));
  expect_times(spans_[0], 30, 100);
  expect_times(spans_[1], 100, 160);
  expect_times(spans_[2], 160, 180);
  expect_times(spans_[3], 180, 300);
  EXPECT_TRUE(spans_[1].failed);
  EXPECT_EQ(attribute<std::string>(spans_[1], "error.type"), "io");
  EXPECT_EQ(attribute<std::string>(spans_[1], "millrace.group"), "group-0");
  EXPECT_EQ(spans_[1].events.size(), 1u);
  EXPECT_FALSE(spans_[3].failed);
  EXPECT_EQ(attribute<std::string>(spans_[3], "millrace.group"), "group-1");
  EXPECT_EQ(spans_[3].events.size(), 0u);
  EXPECT_FALSE(spans_[4].failed);
}

TEST_F(RequestTraceTest, AFailureIsNamedByItsCodeAloneBecauseTextsMayQuotePrompts) {
  begin(100);
  fail(200, Errc::kInternal);
  trace_.answered(500, at(210));
  EXPECT_THAT(take(), UnorderedElementsAre("POST /v1/prefill", "queue", "prefill"));
  for (const char* name : {"POST /v1/prefill", "prefill"}) {
    EXPECT_TRUE(span(name).failed);
    EXPECT_EQ(attribute<std::string>(span(name), "error.type"), "internal");
  }
  for (const Span& one : spans_) {
    for (const auto& [name, value] : one.attributes) {
      const auto* text = std::get_if<std::string>(&value);
      EXPECT_TRUE(text == nullptr || text->find("token 5") == std::string::npos) << name;
    }
  }
}

TEST_F(RequestTraceTest, OneThatNeverRanHasOnlyAQueue) {
  trace_.changed(request_, at(30));
  fail(500, Errc::kDeadlineExceeded);
  trace_.answered(504, at(501));
  EXPECT_THAT(take(), UnorderedElementsAre("POST /v1/prefill", "queue"));
  expect_times(span("queue"), 30, 500);
}

TEST_F(RequestTraceTest, OneThatIsNotLetInHasOnlyItsOwnSpan) {
  trace_.answered(429, at(5));
  EXPECT_THAT(take(), ElementsAre("POST /v1/prefill"));
  EXPECT_FALSE(span("POST /v1/prefill").failed);  // the client's fault, say the conventions
  EXPECT_EQ(attribute<int64_t>(span("POST /v1/prefill"), "http.response.status_code"), 429);
}

TEST_F(RequestTraceTest, AnAnswerOfTheServersFaultIsAFailure) {
  trace_.answered(503, at(5));
  take();
  EXPECT_TRUE(span("POST /v1/prefill").failed);
  EXPECT_EQ(attribute<std::string>(span("POST /v1/prefill"), "error.type"), "503");
}

TEST_F(RequestTraceTest, AClientThatLeavesHasNoStatusAndItsSpansComeWithTheEnd) {
  begin(100);
  trace_.answered(0, at(150));
  EXPECT_THAT(take(), ElementsAre());
  fail(160, Errc::kCancelled);
  EXPECT_THAT(take(), UnorderedElementsAre("POST /v1/prefill", "queue", "prefill"));
  expect_times(span("POST /v1/prefill"), 0, 150);
  EXPECT_FALSE(has(span("POST /v1/prefill"), "http.response.status_code"));
  EXPECT_EQ(attribute<std::string>(span("POST /v1/prefill"), "error.type"), "cancelled");
}

TEST_F(RequestTraceTest, ARecordThatIsACopyUnderAnotherIdDoesNotCount) {
  begin(100);
  fail(160, Errc::kCancelled);
  Request copy = request_;
  copy.id = "r1-prefill";
  copy.state = RequestState::kDone;
  copy.lease = LeaseState::kReleased;
  trace_.changed(copy, at(200));
  trace_.answered(499, at(161));
  EXPECT_THAT(take(), UnorderedElementsAre("POST /v1/prefill", "queue", "prefill"));
}

}  // namespace
}  // namespace millrace::coordinator
