// SPDX-License-Identifier: Apache-2.0
// The reference is protobuf's own mapping to JSON.
#include "coordinator/api/manifest_json.h"

#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <array>
#include <boost/json.hpp>
#include <limits>

namespace millrace::coordinator {
namespace {

namespace json = boost::json;
using google::protobuf::util::MessageDifferencer;

protocol::Manifest sample() {
  protocol::Manifest manifest;
  manifest.set_version(2);
  manifest.set_model("a \"model\" \u202e\n of 東京");
  manifest.set_num_tokens(std::numeric_limits<uint64_t>::max());
  manifest.set_first_token_id(-7);
  manifest.set_density(1.0 / 3);
  manifest.mutable_layout()->set_num_layers(5);
  for (int i = 0; i < 3; ++i) {
    auto& shard = *manifest.add_shards();
    shard.set_address("tcp://[::1]:7000");
    shard.add_token_ranges()->set_end(static_cast<uint64_t>(i));
  }
  auto& token = *manifest.add_top_logprobs();
  token.set_logprob(-0.1f);
  token.set_logit(1e-30f);
  manifest.add_tiers();
  return manifest;
}

std::string by_protobuf(const protocol::Manifest& manifest) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string text;
  EXPECT_TRUE(google::protobuf::util::MessageToJsonString(manifest, &text, options).ok());
  return text;
}

// Names and kinds of all values, and what is not a number.
void expect_alike(const json::value& a, const json::value& b, const std::string& where) {
  if (a.is_number() && b.is_number()) {
    EXPECT_FLOAT_EQ(a.to_number<float>(), b.to_number<float>()) << where;
    return;
  }
  ASSERT_EQ(a.kind(), b.kind()) << where;
  if (a.is_object()) {
    ASSERT_EQ(a.as_object().size(), b.as_object().size()) << where;
    for (const auto& [name, value] : a.as_object()) {
      const std::string key(name);
      ASSERT_TRUE(b.as_object().contains(key)) << where << "." << key;
      expect_alike(value, b.as_object().at(key), where + "." + key);
    }
  } else if (a.is_array()) {
    ASSERT_EQ(a.as_array().size(), b.as_array().size()) << where;
    for (size_t i = 0; i < a.as_array().size(); ++i) {
      expect_alike(a.as_array()[i], b.as_array()[i], where + "[]");
    }
  } else {
    EXPECT_EQ(a, b) << where;
  }
}

TEST(ManifestJson, IsWhatProtobufWrites) {
  for (const auto& manifest : {protocol::Manifest(), sample()}) {
    expect_alike(json::parse(manifest_json(manifest)), json::parse(by_protobuf(manifest)), "");
  }
}

TEST(ManifestJson, IsReadBackAsItWas) {
  for (size_t bytes = 0; bytes < 8; ++bytes) {
    protocol::Manifest manifest = sample();
    std::string bits;
    for (size_t i = 0; i < bytes; ++i) bits += static_cast<char>(251 * (i + 1));
    manifest.mutable_kept_pages();
    const auto* field = manifest.kept_pages().GetDescriptor();
    for (int i = 0; i < field->field_count(); ++i) {
      const auto& one = *field->field(i);
      if (one.type() != google::protobuf::FieldDescriptor::TYPE_BYTES) continue;
      auto* kept = manifest.mutable_kept_pages();
      if (one.is_repeated()) {
        kept->GetReflection()->AddString(kept, &one, bits);
      } else {
        kept->GetReflection()->SetString(kept, &one, bits);
      }
    }
    protocol::Manifest read;
    ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(manifest_json(manifest), &read).ok());
    EXPECT_TRUE(MessageDifferencer::Equals(read, manifest)) << bytes;
  }
}

TEST(ManifestJson, WhatIsNoNumberIsNull) {
  protocol::Manifest manifest;
  manifest.set_density(std::numeric_limits<double>::quiet_NaN());
  manifest.add_top_logprobs()->set_logprob(-std::numeric_limits<float>::infinity());
  const auto value = json::parse(manifest_json(manifest));
  EXPECT_TRUE(value.at("density").is_null());
  EXPECT_TRUE(value.at("top_logprobs").at(0).at("logprob").is_null());
}

TEST(ManifestJson, LeavesOutWhatIsNotKnownYet) {
  constexpr std::array<std::string_view, 2> kUnknown = {"density", "tiers"};
  const auto value = json::parse(manifest_json(sample(), kUnknown)).as_object();
  EXPECT_FALSE(value.contains("density"));
  EXPECT_FALSE(value.contains("tiers"));
  EXPECT_TRUE(value.contains("recall"));
}

}  // namespace
}  // namespace millrace::coordinator
