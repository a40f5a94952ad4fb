// millrace-worker: one rank of a worker group behind a coordinator.
//   mpirun -n P millrace-worker --model DIR --coordinator HOST:PORT [--tp T --cp C] ...
// Exit status: 0 drained; 2 could not start, or the group broke (its supervisor starts it again),
// or the command line is wrong.

#include <csignal>
#include <cstdio>
#include <exception>

#include "comm/mpi/mpi_session.h"
#include "comm/ucx/ucx_transport.h"
#include "common/cli/help_formatter.h"
#include "common/cli/number_range.h"
#include "common/cli/parse.h"
#include "common/log.h"
#include "common/random_id.h"
#include "common/system/available_memory.h"
#include "common/units.h"
#include "protocol/codec.h"
#include "worker/cli/worker_options.h"
#include "worker/control/control_client.h"
#include "worker/group/group_service.h"
#include "worker/ranks/agreement.h"
#include "worker/ranks/command_channel.h"
#include "worker/store/device_tier.h"
#include "worker/store/store_pools.h"
#include "worker/watch/group_watch.h"
#include "worker/watch/rank_end.h"

namespace millrace::worker {

namespace {

// They sleep while no page is asked for; a page on disk then holds up some connections only.
constexpr int kKvServerThreads = 4;

std::atomic<bool> stop_requested = false;

// The device tier is in the device's memory where that is not the host's.
Result<std::unique_ptr<kvstore::KvStore>> make_store(const kvstore::KvStoreConfig& config,
                                                     kernels::Device& device) {
  std::unique_ptr<kvstore::SlotMemory> device_memory;
  if (!device.info().host_memory) {
    const int64_t page_bytes = config.geometry.page_bytes();
    MR_ASSIGN_OR_RETURN(device_memory,
                        DeviceTier::create(device, config.device_bytes / page_bytes, page_bytes));
  }
  return kvstore::make_kv_store(config, Clock::steady(), std::move(device_memory));
}

Result<PoolOptions> pool_options(const WorkerOptions& options, const RankRuntime& runtime,
                                 int rank) {
  PoolOptions pools{.device_bytes = runtime.device_pool_bytes()};
  if (!options.host_pool.empty()) {
    MR_ASSIGN_OR_RETURN(pools.host_bytes, parse_bytes(options.host_pool));
  }
  MR_ASSIGN_OR_RETURN(pools.disk_bytes, parse_bytes(options.disk_pool));
  if (!options.disk_directory.empty()) {
    pools.disk_directory = fmt::format("{}/rank-{}", options.disk_directory, rank);
  }
  return pools;
}

// A rank whose kv heads another stores has no pools.
Result<kvstore::KvStoreConfig> store_config(const PoolOptions& options, RankRuntime& runtime,
                                            MachineRoom room) {
  const auto& weights = runtime.weights();
  kvstore::KvStoreConfig config;
  if (weights.shard.kv_replica == 0) {
    room.device_is_host = runtime.device().info().host_memory;
    room.memory_bytes = available_memory_bytes();
    if (!options.disk_directory.empty()) {
      MR_ASSIGN_OR_RETURN(room.disk_bytes, free_disk_bytes(options.disk_directory));
    }
    MR_ASSIGN_OR_RETURN(config, pool_sizes(options, room));
  }
  config.geometry = {.num_layers = weights.config.num_layers,
                     .num_kv_heads = weights.shard.num_kv_heads,
                     .first_kv_head = weights.shard.first_kv_head,
                     .head_dim = weights.config.head_dim,
                     .dtype = weights.compute_dtype};
  return config;
}

struct Rank {
  std::unique_ptr<RankRuntime> runtime;
  std::unique_ptr<kvstore::KvStore> store;
};

Result<std::unique_ptr<kvstore::KvStore>> make_own_store(const PoolOptions& options,
                                                         RankRuntime& runtime,
                                                         const MachineRoom& room) {
  MR_ASSIGN_OR_RETURN(const auto config, store_config(options, runtime, room));
  return make_store(config, runtime.device());
}

// On all ranks or none.
Result<std::unique_ptr<kvstore::KvStore>> start_store(const WorkerOptions& options,
                                                      RankRuntime& runtime, Deadline deadline) {
  auto& world = runtime.grid().world();
  MR_ASSIGN_OR_RETURN(const auto pools, pool_options(options, runtime, world.rank()));
  const auto place = store_place(runtime.cores().first_rank,
                                 runtime.weights().shard.kv_replica == 0, pools.disk_directory);
  MR_ASSIGN_OR_RETURN(const auto room, count_neighbours(world, place, deadline));
  auto store = make_own_store(pools, runtime, room);
  MR_RETURN_IF_ERROR(agree(world, store.ok() ? Result<void>() : store.error(), deadline));
  return store;
}

// A group whose pools hold no prompt would refuse every request.
Result<void> limit_to_store(RankRuntime& runtime, const kvstore::KvStore& store,
                            Deadline deadline) {
  const auto stats = store.stats();
  MR_RETURN_IF_ERROR(runtime.limit_to_store(stats.pages_available, deadline));
  if (runtime.limits().max_prompt_tokens > 0) return {};
  return error(Errc::kInvalidArgument,
               "the pools have room for {} pages of {}, and the shortest prompt takes {} on a "
               "rank, of each layer and kv head one; see --device-pool, --host-pool, --disk-pool",
               stats.pages_available, format_bytes(stats.tiers[0].slot_bytes),
               runtime.weights().config.num_layers * runtime.weights().shard.num_kv_heads);
}

// On all ranks or none.
Result<Rank> start_rank(std::unique_ptr<comm::Communicator> world, const WorkerOptions& options) {
  Rank rank;
  MR_ASSIGN_OR_RETURN(rank.runtime, RankRuntime::create(std::move(world), options.rank));
  const auto deadline = Deadline::after(options.rank.startup_timeout);
  MR_RETURN_IF_ERROR(
      rank.runtime->check_head_plan(options.group.head_plan, options.group.min_recall));
  MR_ASSIGN_OR_RETURN(rank.store, start_store(options, *rank.runtime, deadline));
  MR_RETURN_IF_ERROR(limit_to_store(*rank.runtime, *rank.store, deadline));
  MR_RETURN_IF_ERROR(rank.runtime->engine().warm_up(rank.runtime->limits().max_prompt_tokens,
                                                    cli::from_seconds(options.layer_timeout_s)));
  return rank;
}

// Rank 0 draws the group's id; it is new at every start, so nothing of an earlier life is mistaken
// for this one's.
Result<std::string> share_epoch(comm::Communicator& world) {
  std::string epoch = random_id();
  MR_RETURN_IF_ERROR(world.broadcast(std::as_writable_bytes(std::span(epoch)), /*root=*/0,
                                     Deadline::after(kCommandTimeout)));
  return epoch;
}

Result<ControlOptions> control_options(const WorkerOptions& options, RankRuntime& runtime) {
  MR_ASSIGN_OR_RETURN(auto coordinator, parse_host_port(options.coordinator));
  ControlOptions control{.host = std::move(coordinator.host), .port = coordinator.port};
  const auto& weights = runtime.weights();
  const auto& config = weights.config;
  auto& description = control.description;
  description.set_protocol_version(protocol::kProtocolVersion);
  description.set_group_id(options.group.epoch);
  description.set_group_name(options.group_name);
  description.set_tp(static_cast<uint32_t>(options.rank.grid.tp));
  description.set_cp(static_cast<uint32_t>(options.rank.grid.cp));
  description.set_max_prompt_tokens(static_cast<uint64_t>(runtime.limits().max_prompt_tokens));
  description.set_version(MILLRACE_VERSION);
  description.set_device(runtime.device().info().name);
  description.set_layer_timeout_ms(static_cast<uint64_t>(options.layer_timeout_s * 1000));
  auto& model = *description.mutable_model();
  model.set_name(config.name);
  model.set_vocab_size(static_cast<uint32_t>(config.vocab_size));
  model.set_num_layers(static_cast<uint32_t>(config.num_layers));
  model.set_num_query_heads(static_cast<uint32_t>(config.num_query_heads));
  model.set_num_kv_heads(static_cast<uint32_t>(config.num_kv_heads));
  model.set_head_dim(static_cast<uint32_t>(config.head_dim));
  model.set_max_position_embeddings(static_cast<uint64_t>(config.max_position_embeddings));
  model.set_dtype(std::string(dtype_name(weights.compute_dtype)));
  return control;
}

// The group dies as a unit: a rank busy in a layer is of no use without the lost one, and ending at
// once is what tells the coordinator.
void end_process(const std::string& why) {
  end_rank(error(Errc::kPeerLost, "{}", why));
}

// What follows from options that are text or numbers without a unit.
Result<void> complete(WorkerOptions& options) {
  options.rank.device_pool_bytes = std::nullopt;
  if (!options.device_pool.empty()) {
    MR_ASSIGN_OR_RETURN(options.rank.device_pool_bytes, parse_bytes(options.device_pool));
  }
  options.group.layer_timeout = cli::from_seconds(options.layer_timeout_s);
  options.group.drain_timeout = cli::from_seconds(options.drain_timeout_s);
  return {};
}

// Rank 0's. The board outlives the client.
Result<std::unique_ptr<ControlClient>> connect_to_coordinator(const WorkerOptions& options,
                                                              RankRuntime& runtime,
                                                              ControlBoard& board) {
  spdlog::info(
      "group {} of {} ranks, tp {} x cp {}, {}, collectives by {}, prompts up to {} tokens, "
      "crossover {}",
      options.group.epoch, options.rank.grid.tp * options.rank.grid.cp, options.rank.grid.tp,
      options.rank.grid.cp, runtime.device().info().name, runtime.engine().groups().transport,
      runtime.limits().max_prompt_tokens, runtime.crossover_tokens());
  MR_ASSIGN_OR_RETURN(auto settings, control_options(options, runtime));
  return std::make_unique<ControlClient>(std::move(settings), board);
}

Result<void> serve(comm::MpiSession& session, WorkerOptions& options) {
  auto world = session.world();
  const int rank = world->rank();
  init_logging(fmt::format("worker/{}", rank));
  MR_ASSIGN_OR_RETURN(const auto transport,
                      comm::UcxTransport::create(
                          {.transports = options.transports, .server_threads = kKvServerThreads}));
  MR_RETURN_IF_ERROR(complete(options));
  MR_ASSIGN_OR_RETURN(options.group.epoch, share_epoch(*world));
  MR_ASSIGN_OR_RETURN(const auto watch,
                      GroupWatch::start(*world, options.kv_host, options.group.epoch, end_process,
                                        Deadline::after(kCommandTimeout)));
  auto created = or_end_rank([&] { return start_rank(std::move(world), options); });
  if (!created.ok()) {
    watch->leave();  // the others have the same error to report
    return created.error();
  }
  const auto [runtime, store] = *std::move(created);
  // Ranks of one host must not collide, so each has a port of its own; 0 leaves it to the system.
  const int port = options.kv_port == 0 ? 0 : options.kv_port + rank;
  MR_ASSIGN_OR_RETURN(const auto server, KvServer::start(*transport, *store, options.group.epoch,
                                                         options.kv_host, port));
  ControlBoard board;
  std::unique_ptr<ControlClient> control;
  if (rank == 0) {
    MR_ASSIGN_OR_RETURN(control, connect_to_coordinator(options, *runtime, board));
  }
  GroupService service(*runtime, *store, *server, control.get(), board, watch.get(), options.group);
  auto ran = or_end_rank([&] { return service.run(stop_requested); });
  if (!ran.ok() && ran.error().code == Errc::kPeerLost) {
    spdlog::error("{}", ran.error().to_string());
    control.reset();  // sends what it was given
    watch->give_up();
    end_process("the group is broken");
  }
  watch->leave();
  return ran;
}

}  // namespace

}  // namespace millrace::worker

int main(int argc, char** argv) {
  using namespace millrace;
  worker::WorkerOptions options;
  CLI::App app(
      "One rank of a worker group behind a coordinator:\n"
      "  mpirun -n 4 millrace-worker --model DIR --tp 2 --cp 2 --coordinator HOST:8001",
      "millrace-worker");
  app.formatter(std::make_shared<cli::HelpFormatter>());
  app.set_version_flag("--version", MILLRACE_VERSION);
  worker::add_worker_options(app, options);
  if (const auto status = cli::parse(app, argc, argv)) return *status;
  if (const auto checked = worker::check_together(options); !checked.ok()) {
    std::fprintf(stderr, "millrace-worker: %s\n", checked.error().message.c_str());
    return cli::kUsageStatus;
  }
  // Rank 0 turns a signal into a stop for all. SIGUSR1 is for mpirun, which passes it on at once; a
  // SIGTERM it passes on only after odls_base_sigkill_timeout, and kills as long after that.
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    std::signal(signal, [](int) { worker::stop_requested.store(true); });
  }
  try {
    comm::MpiSession session(argc, argv);
    const auto served = worker::serve(session, options);
    if (served.ok()) return 0;
    spdlog::error("{}", served.error().to_string());
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "millrace-worker: %s\n", e.what());
    return 2;
  }
}
