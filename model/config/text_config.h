// The text model of a checkpoint for images and text. Its config.json has the text model's fields in
// text_config, and that model's tensors have a prefix (Checkpoint). Images are not computed.
#pragma once

#include <boost/json/object.hpp>
#include <string>

#include "common/result.h"

namespace millrace::model {

// What the text model's own config.json would say: text_config with the architecture of its kind,
// and with what the file has around it of quantization_config and eos_token_id. Files of other
// architectures as they are. `path` is for messages. kInvalidArgument, kUnsupported (a kind of text
// model that is not computed).
Result<boost::json::object> text_config(boost::json::object config, const std::string& path);

}  // namespace millrace::model
