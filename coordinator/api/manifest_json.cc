// SPDX-License-Identifier: Apache-2.0
#include "coordinator/api/manifest_json.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <iterator>

#include "common/check.h"

namespace millrace::coordinator {

namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr int kSingle = -1;

void write_base64(const std::string& bytes, std::string& out) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto byte = [&](size_t at) -> unsigned {
    return at < bytes.size() ? static_cast<unsigned char>(bytes[at]) : 0;
  };
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const unsigned three = byte(i) << 16 | byte(i + 1) << 8 | byte(i + 2);
    for (size_t digit = 0; digit < 4; ++digit) {
      const bool padding = i + digit > bytes.size();
      out += padding ? '=' : kDigits[three >> (18 - 6 * digit) & 63];
    }
  }
}

template <typename Number>
void write_number(Number number, std::string& out) {
  if (std::isfinite(number)) {
    fmt::format_to(std::back_inserter(out), "{}", number);
  } else {
    out += "null";
  }
}

// Numbers of 64 bits are text: readers of JSON may take numbers for doubles.
template <typename Number>
void write_text_of(Number number, std::string& out) {
  fmt::format_to(std::back_inserter(out), "\"{}\"", number);
}

void write_message(const Message& message, std::span<const std::string_view> leaves_out,
                   std::string& out);

// The element `index` of a repeated field, or the value of another one.
void write_value(const Message& message, const FieldDescriptor& field, int index,
                 std::string& out) {
  const Reflection& in = *message.GetReflection();
  const bool single = index == kSingle;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      fmt::format_to(
          std::back_inserter(out), "{}",
          single ? in.GetInt32(message, &field) : in.GetRepeatedInt32(message, &field, index));
      return;
    case FieldDescriptor::CPPTYPE_UINT32:
      fmt::format_to(
          std::back_inserter(out), "{}",
          single ? in.GetUInt32(message, &field) : in.GetRepeatedUInt32(message, &field, index));
      return;
    case FieldDescriptor::CPPTYPE_INT64:
      return write_text_of(
          single ? in.GetInt64(message, &field) : in.GetRepeatedInt64(message, &field, index), out);
    case FieldDescriptor::CPPTYPE_UINT64:
      return write_text_of(
          single ? in.GetUInt64(message, &field) : in.GetRepeatedUInt64(message, &field, index),
          out);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return write_number(
          single ? in.GetFloat(message, &field) : in.GetRepeatedFloat(message, &field, index), out);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return write_number(
          single ? in.GetDouble(message, &field) : in.GetRepeatedDouble(message, &field, index),
          out);
    case FieldDescriptor::CPPTYPE_BOOL: {
      const bool value =
          single ? in.GetBool(message, &field) : in.GetRepeatedBool(message, &field, index);
      out += value ? "true" : "false";
      return;
    }
    case FieldDescriptor::CPPTYPE_ENUM: {
      const int number = single ? in.GetEnumValue(message, &field)
                                : in.GetRepeatedEnumValue(message, &field, index);
      const auto* value = field.enum_type()->FindValueByNumber(number);
      out += value != nullptr ? fmt::format("\"{}\"", value->name()) : fmt::format("{}", number);
      return;
    }
    case FieldDescriptor::CPPTYPE_STRING: {
      std::string room;
      const std::string& text = single
                                    ? in.GetStringReference(message, &field, &room)
                                    : in.GetRepeatedStringReference(message, &field, index, &room);
      if (field.type() == FieldDescriptor::TYPE_BYTES) {
        out += '"';
        write_base64(text, out);
        out += '"';
      } else {
        out += boost::json::serialize(boost::json::string_view(text.data(), text.size()));
      }
      return;
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return write_message(
          single ? in.GetMessage(message, &field) : in.GetRepeatedMessage(message, &field, index),
          {}, out);
  }
}

void write_message(const Message& message, std::span<const std::string_view> leaves_out,
                   std::string& out) {
  const Reflection& in = *message.GetReflection();
  const auto& type = *message.GetDescriptor();
  char before = '{';
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    MR_CHECK(!field.is_map(), "{} is a map", field.full_name());
    if (!field.is_repeated() && field.has_presence() && !in.HasField(message, &field)) continue;
    if (std::ranges::find(leaves_out, std::string_view(field.name())) != leaves_out.end()) continue;
    out += before;
    before = ',';
    out += '"';
    out += field.name();
    out += "\":";
    if (!field.is_repeated()) {
      write_value(message, field, kSingle, out);
      continue;
    }
    out += '[';
    for (int index = 0; index < in.FieldSize(message, &field); ++index) {
      if (index > 0) out += ',';
      write_value(message, field, index, out);
    }
    out += ']';
  }
  out += before == '{' ? "{}" : "}";
}

}  // namespace

std::string manifest_json(const protocol::Manifest& manifest,
                          std::span<const std::string_view> leaves_out) {
  std::string out;
  out.reserve(manifest.ByteSizeLong() * 3 / 2);  // what is large are bytes, written as base64
  write_message(manifest, leaves_out, out);
  return out;
}

}  // namespace millrace::coordinator
