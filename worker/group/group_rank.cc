// SPDX-License-Identifier: Apache-2.0
#include "worker/group/group_rank.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "common/kv_scales.h"
#include "common/log.h"
#include "common/secret.h"
#include "common/units.h"
#include "engine/ranks/agreement.h"
#include "protocol/codec.h"
#include "worker/events/kept_prefixes.h"
#include "worker/store/rank_store.h"
#include "worker/sync/command_channel.h"

namespace millrace::worker {

namespace {

// For the log's first line. Scales that are missing from a checkpoint show as 1.
std::string scales_note(const KvScales* scales) {
  if (scales == nullptr) return "";
  const auto stated =
      std::ranges::count_if(scales->all(), [](const KvScale& s) { return s != KvScale(); });
  return fmt::format(", KV cache in 8-bit floats, scales other than 1 in {} of {} layers{}", stated,
                     scales->all().size(), scales->by_head() ? " and kv heads" : "");
}

}  // namespace

Result<std::unique_ptr<GroupRank>> GroupRank::start(std::unique_ptr<comm::Communicator> world,
                                                    const GroupRankOptions& options,
                                                    const RankContext& context) {
  std::unique_ptr<GroupRank> rank(new GroupRank(options, context));
  const auto assembled = rank->assemble(std::move(world));
  if (assembled.ok()) return rank;
  // The other ranks report the same error.
  if (context.watch != nullptr) context.watch->leave();
  return assembled.error();
}

Result<void> GroupRank::assemble(std::unique_ptr<comm::Communicator> world) {
  MR_ASSIGN_OR_RETURN(runtime_, engine::RankRuntime::create(std::move(world), options_.rank));
  const auto deadline = Deadline::after(options_.rank.startup_timeout);
  MR_RETURN_IF_ERROR(
      runtime_->check_head_plan(options_.group.head_plan, options_.group.min_recall));
  options_.pools.group_name = options_.group_name;
  if (options_.pools.kept_bytes > 0) options_.group.journal_path = journal_path(options_.pools);
  if (!runtime_->device().info().host_memory) {
    pool_locker_ = std::make_shared<PoolLocker>(runtime_->device(),
                                                PoolLocker::Options{.locks_while_busy = true});
  }
  MR_ASSIGN_OR_RETURN(
      store_, make_rank_store(options_.pools, *runtime_, context_.clock, pool_locker_, deadline));
  // Ranks that load kernels for the first time are further apart than a layer may take.
  const Duration startup = options_.rank.startup_timeout;
  MR_RETURN_IF_ERROR(runtime_->engine().warm_up(runtime_->limits().max_prompt_tokens, startup));
  if (engine::Lane* lane = runtime_->lane()) {
    MR_RETURN_IF_ERROR(lane->engine().warm_up(runtime_->side_by_side_tokens(), startup));
    MR_RETURN_IF_ERROR(connect_peers(deadline));
  }
  MR_RETURN_IF_ERROR(start_server(deadline));
  MR_RETURN_IF_ERROR(open_events(deadline));
  MR_RETURN_IF_ERROR(find_kept(deadline));
  tender_ = std::make_unique<StoreTender>(*store_);
  if (runtime_->grid().is_root()) {
    log_start();
    link_ = context_.connect(description(), board_);
  }
  service_ = std::make_unique<GroupService>(GroupResources{.runtime = *runtime_,
                                                           .store = *store_,
                                                           .server = *server_,
                                                           .link = link_.get(),
                                                           .board = board_,
                                                           .watch = context_.watch,
                                                           .pool_locker = pool_locker_.get(),
                                                           .peers = peers_.get(),
                                                           .cache = *cache_},
                                            options_.group, context_.clock);
  return {};
}

// If any rank cannot, lanes do without: each then begins prompts only with pages of its own ranks.
Result<void> GroupRank::connect_peers(Deadline deadline) {
  const auto& grid = runtime_->grid();
  auto peers = PeerPools::connect(grid.cp(), *store_, runtime_->device(), deadline);
  auto agreed = engine::all_agree(grid.world(), peers.status(), deadline);
  if (agreed.ok()) {
    peers_ = std::move(*peers);
    return {};
  }
  if (agreed.error().code != Errc::kUnsupported) return agreed;
  if (grid.is_root()) {
    log::info("prompts side by side begin with what their own ranks have cached: {}",
              agreed.error().message);
  }
  return {};
}

// Ranks of one host must not collide, so each has its own port; 0 lets the system choose.
Result<void> GroupRank::start_server(Deadline deadline) {
  auto& world = runtime_->grid().world();
  const int port = options_.kv_port == 0 ? 0 : options_.kv_port + world.rank();
  auto server =
      KvServer::start(context_.transport, *store_, options_.group.epoch, options_.kv_host, port);
  MR_RETURN_IF_ERROR(engine::all_agree(world, server.status(), deadline));
  server_ = std::move(*server);
  return {};
}

Result<void> GroupRank::open_events(Deadline deadline) {
  if (!context_.open_events) return {};
  Result<void> own;
  if (runtime_->grid().is_root()) {
    auto opened = context_.open_events();
    if (opened.ok()) {
      publisher_ = std::move(*opened);
    } else {
      own = opened.error();
    }
  }
  return engine::all_agree(runtime_->grid().world(), own, deadline);
}

// Before the coordinator is told of the group: it is told what was kept at once.
Result<void> GroupRank::find_kept(Deadline deadline) {
  const auto& grid = runtime_->grid();
  cache_ = std::make_unique<GroupCache>(*store_, grid.shape().tp, publisher_.get());
  if (options_.group.journal_path.empty()) return {};
  const bool reads = grid.is_root() && store_->keeps_prefixes();
  MR_ASSIGN_OR_RETURN(auto kept, find_kept_prefixes(
                                     grid.world(), grid.shape().tp,
                                     [this](std::span<const PageContentKey> pages) {
                                       return store_->find_cached(pages);
                                     },
                                     reads ? options_.group.journal_path : "", *cache_, deadline));
  board_.cache_changed(kept);
  return {};
}

void GroupRank::log_start() const {
  const auto shape = runtime_->grid().shape();
  const auto pools = store_->stats().tiers;
  const auto bytes_of = [&](Tier tier) {
    return format_bytes(pools[tier].slots_total * pools[tier].slot_bytes);
  };
  log::info(
      "group {} of {} ranks, tp {} x cp {}, {}, collectives by {}, prompts up to {} tokens, "
      "crossover {}{}; pools of each rank: device {}, host {}, disk {}",
      options_.group.epoch, shape.tp * shape.cp, shape.tp, shape.cp, runtime_->device().info().name,
      runtime_->engine().groups().transport, runtime_->limits().max_prompt_tokens,
      runtime_->crossover_tokens(), scales_note(runtime_->kv_scales().get()),
      bytes_of(Tier::kDevice), bytes_of(Tier::kHost), bytes_of(Tier::kDisk));
}

protocol::Register GroupRank::description() const {
  const auto& weights = runtime_->weights();
  const auto& config = weights.config;
  const auto shape = runtime_->grid().shape();
  const auto layer_timeout_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(options_.group.layer_timeout).count();
  protocol::Register description;
  description.set_protocol_version(protocol::kProtocolVersion);
  description.set_group_id(options_.group.epoch);
  description.set_group_name(options_.group_name);
  description.set_tp(static_cast<uint32_t>(shape.tp));
  description.set_cp(static_cast<uint32_t>(shape.cp));
  description.set_max_prompt_tokens(static_cast<uint64_t>(runtime_->limits().max_prompt_tokens));
  description.set_suspends(true);
  description.set_suspends_several(true);
  description.set_max_preempting_tokens(
      static_cast<uint64_t>(options_.group.max_preempting_tokens));
  description.set_max_side_by_side_tokens(static_cast<uint64_t>(runtime_->side_by_side_tokens()));
  if (peers_ != nullptr) {
    description.set_max_side_by_side_prompt_tokens(
        static_cast<uint64_t>(runtime_->lane_limits().max_prompt_tokens));
  }
  if (options_.group.max_preempting_tokens > 0) {
    description.set_max_preempting_prompt_tokens(
        static_cast<uint64_t>(runtime_->limits().max_prompt_tokens));
  }
  description.set_version(MILLRACE_VERSION);
  description.set_device(runtime_->device().info().name);
  description.set_layer_timeout_ms(static_cast<uint64_t>(layer_timeout_ms));
  auto& model = *description.mutable_model();
  model.set_name(config.name);
  model.set_vocab_size(static_cast<uint32_t>(config.vocab_size));
  model.set_num_layers(static_cast<uint32_t>(config.num_layers));
  model.set_num_query_heads(static_cast<uint32_t>(config.num_query_heads));
  model.set_num_kv_heads(static_cast<uint32_t>(config.num_kv_heads));
  model.set_head_dim(static_cast<uint32_t>(config.head_dim));
  model.set_max_position_embeddings(static_cast<uint64_t>(config.max_position_embeddings));
  model.set_dtype(std::string(dtype_name(weights.compute_dtype)));
  if (options_.rank.quantization != model::Quantization::kNone) {
    model.set_quantization(std::string(model::quantization_name(options_.rank.quantization)));
  }
  if (runtime_->kv_scales()) model.set_kv_cache_dtype(std::string(kFloat8KvName));
  return description;
}

void GroupRank::keep_prefixes() {
  if (!store_->keeps_prefixes()) return;
  if (context_.watch != nullptr) {
    context_.watch->expect_step("keeping cached prefixes",
                                options_.group.keep_timeout + kCommandTimeout);
  }
  const int64_t num_left = store_->keep_cached(options_.group.keep_timeout);
  const auto stats = store_->stats();
  const auto left = [&] {
    return fmt::format(", {} pages of {} are not: time was up after {:g} s (--keep-timeout-s)",
                       num_left, format_bytes(num_left * store_->geometry().page_bytes()),
                       std::chrono::duration<double>(options_.group.keep_timeout).count());
  };
  log::info("{} of cached prefixes are kept for the next start{}", format_bytes(stats.kept_bytes),
            num_left > 0 ? left() : "");
}

Result<void> GroupRank::serve(const std::atomic<bool>& stop) {
  auto ran = service_->run(stop);
  if (ran.ok()) keep_prefixes();
  const bool broken = !ran.ok() && ran.error().code == Errc::kPeerLost;
  if (broken) {
    log::error("{}", ran.error().to_string());
    link_.reset();  // sends what is still unsent
  }
  if (context_.watch == nullptr) return ran;
  broken ? context_.watch->give_up() : context_.watch->leave();
  return ran;
}

Result<std::string> draw_epoch(comm::Communicator& world) {
  std::string epoch = random_id();
  MR_RETURN_IF_ERROR(world.broadcast(std::as_writable_bytes(std::span(epoch)), /*root=*/0,
                                     Deadline::after(kCommandTimeout)));
  return epoch;
}

}  // namespace millrace::worker
