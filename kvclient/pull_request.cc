// SPDX-License-Identifier: Apache-2.0
#include "kvclient/pull_request.h"

#include <algorithm>

#include "common/units.h"

namespace millrace::kvclient {

namespace {

bool within(int64_t first, int64_t count, int64_t limit) {
  return first >= 0 && count > 0 && first < limit && count <= limit - first;
}

bool dtype_fits(const PullRequest& request, const Manifest& manifest) {
  if (manifest.is_float8()) return request.float8 != Float8Cache::kRefused;
  if (request.float8 == Float8Cache::kCodes) return false;
  return !request.pages.empty() || find_dtype(manifest.layout.dtype) == request.dtype;
}

// Nothing is interpreted as another format, and nothing is converted unless the request asks for
// it.
Result<void> check_dtype(const PullRequest& request, const Manifest& manifest) {
  if (dtype_fits(request, manifest)) return {};
  const bool wants_codes = request.float8 == Float8Cache::kCodes;
  return error(Errc::kUnsupported, "the cache is {}, its destination {}: {}", manifest.layout.dtype,
               wants_codes ? kFloat8KvName : dtype_name(request.dtype),
               manifest.is_float8() ? "nothing is decoded unless the request says so"
                                    : "nothing is converted");
}

Result<void> check_part(const PullRequest& request, const Manifest& manifest) {
  const auto& layout = manifest.layout;
  if (within(request.first_layer, std::ssize(request.layers), layout.num_layers) &&
      within(request.first_kv_head, request.num_kv_heads, layout.num_kv_heads) &&
      within(request.first_token, request.num_tokens, manifest.num_tokens)) {
    return {};
  }
  return error(Errc::kInvalidArgument,
               "layers {} + {}, kv heads {} + {}, tokens {} + {} are outside the manifest: {} "
               "layers, {} kv heads, {} tokens",
               request.first_layer, request.layers.size(), request.first_kv_head,
               request.num_kv_heads, request.first_token, request.num_tokens, layout.num_layers,
               layout.num_kv_heads, manifest.num_tokens);
}

Result<void> check_blocks(const PullRequest& request) {
  const int64_t tokens = request.block_tokens;
  if (tokens != 16 && tokens != 32 && tokens != 64 && tokens != 128) {
    return error(Errc::kUnsupported, "blocks of {} tokens; 16, 32, 64 and 128 are supported",
                 tokens);
  }
  const int64_t needed = ceil_div(request.num_tokens, tokens);
  if (std::ssize(request.block_ids) < needed) {
    return error(Errc::kInvalidArgument, "{} blocks of {} tokens for {} tokens",
                 request.block_ids.size(), tokens, request.num_tokens);
  }
  const auto negative = std::find_if(request.block_ids.begin(), request.block_ids.begin() + needed,
                                     [](int32_t id) { return id < 0; });
  if (negative != request.block_ids.begin() + needed) {
    return error(Errc::kInvalidArgument, "block {} has the id {}",
                 negative - request.block_ids.begin(), *negative);
  }
  return {};
}

Result<void> check_named(const PullRequest& request, const Manifest& manifest) {
  const auto& layout = manifest.layout;
  if (!request.layers.empty() || !request.block_ids.empty() || request.feed ||
      request.order != PullOrder::kPosition) {
    return Error(Errc::kInvalidArgument,
                 "pages by name have no layers, blocks, feed or order besides");
  }
  MR_RETURN_IF_ERROR(check_dtype(request, manifest));
  const PageName* before = nullptr;
  for (const auto& [name, to] : request.pages) {
    if (!within(name.layer, 1, layout.num_layers) ||
        !within(name.kv_head, 1, layout.num_kv_heads) ||
        !within(name.page, 1, manifest.num_pages())) {
      return error(Errc::kInvalidArgument,
                   "layer {}, kv head {}, page {} is outside the manifest: {} layers, {} kv heads, "
                   "{} pages",
                   name.layer, name.kv_head, name.page, layout.num_layers, layout.num_kv_heads,
                   manifest.num_pages());
    }
    if (!manifest.has_page(name.layer, name.kv_head, name.page)) {
      return error(Errc::kNotFound, "layer {}, kv head {}, page {} was dropped", name.layer,
                   name.kv_head, name.page);
    }
    if (to == nullptr) {
      return error(Errc::kInvalidArgument, "layer {}, kv head {}, page {} has no destination",
                   name.layer, name.kv_head, name.page);
    }
    if (before != nullptr && !(*before < name)) {
      return error(Errc::kInvalidArgument, "layer {}, kv head {}, page {} does not ascend",
                   name.layer, name.kv_head, name.page);
    }
    before = &name;
  }
  return {};
}

Result<void> check_transfer(const PullRequest& request) {
  if (request.device < kHostMemory) {
    return error(Errc::kInvalidArgument, "device {}", request.device);
  }
  if (request.timeout <= Duration::zero()) {
    return error(Errc::kInvalidArgument, "a timeout of {} s", seconds(request.timeout));
  }
  return {};
}

}  // namespace

Result<void> check_request(const PullRequest& request, const Manifest& manifest) {
  MR_RETURN_IF_ERROR(check_transfer(request));
  if (!request.pages.empty()) return check_named(request, manifest);
  if (manifest.kept_pages && !request.takes_part) {
    return error(Errc::kUnsupported,
                 "request '{}': its cache is kept in part (kv_budget), and is asked for as a whole",
                 manifest.request_id);
  }
  MR_RETURN_IF_ERROR(check_part(request, manifest));
  if (manifest.kept_pages && request.num_tokens != manifest.num_tokens) {
    return error(Errc::kInvalidArgument, "tokens {} + {} of {} of a cache that is kept in part",
                 request.first_token, request.num_tokens, manifest.num_tokens);
  }
  MR_RETURN_IF_ERROR(check_dtype(request, manifest));
  if (request.head_dim != manifest.layout.head_dim) {
    return error(Errc::kInvalidArgument, "the cache has head dim {}, its destination {}",
                 manifest.layout.head_dim, request.head_dim);
  }
  for (const auto& layer : request.layers) {
    if (layer.k == nullptr || layer.v == nullptr) {
      return error(Errc::kInvalidArgument, "layer {} has no destination",
                   request.first_layer + (&layer - request.layers.data()));
    }
  }
  if (!(request.hot_share > 0 && request.hot_share <= 1)) {
    return error(Errc::kInvalidArgument, "a hot list of {} of the mass; must be above 0, at most 1",
                 request.hot_share);
  }
  return check_blocks(request);
}

}  // namespace millrace::kvclient
