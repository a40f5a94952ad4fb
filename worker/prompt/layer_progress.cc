// SPDX-License-Identifier: Apache-2.0
#include "worker/prompt/layer_progress.h"

namespace millrace::worker {

void LayerProgress::report_until(int32_t end_layer) {
  for (; num_reported_ < end_layer; ++num_reported_) {
    protocol::LayerDone layer;
    layer.set_request_id(request_id_);
    layer.set_layer(static_cast<uint32_t>(num_reported_));
    layer.set_num_layers(static_cast<uint32_t>(num_layers_));
    layer.set_density(density_.at(static_cast<size_t>(num_reported_)));
    reporter_.layer_done(layer);
  }
}

}  // namespace millrace::worker
