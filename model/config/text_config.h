// SPDX-License-Identifier: Apache-2.0
// The text model of a checkpoint for images and text. Its config.json has the text model's fields
// in text_config, and the text model's tensors have a prefix (Checkpoint). Images are not
// supported.
#pragma once

#include <boost/json/object.hpp>
#include <string>

#include "common/result.h"

namespace millrace::model {

// What the text model's own config.json would say: text_config, with the architecture of its kind,
// and with quantization_config, eos_token_id and tie_word_embeddings from the surrounding file. Files of other
// architectures are returned unchanged. `path` is for messages. kInvalidArgument; kUnsupported (an
// unsupported kind of text model).
Result<boost::json::object> text_config(boost::json::object config, const std::string& path);

}  // namespace millrace::model
