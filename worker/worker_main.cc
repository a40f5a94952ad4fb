// millrace-worker: one rank of a worker group behind a coordinator.
//   mpirun -n P millrace-worker --model DIR --coordinator HOST:PORT [--tp T --cp C] ...
// Exit status: 0 drained; 2 could not start or the group broke (its supervisor starts it again).

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>

#include "comm/mpi/mpi_session.h"
#include "comm/ucx/ucx_transport.h"
#include "common/available_memory.h"
#include "common/cli/choice_option.h"
#include "common/cli/help_formatter.h"
#include "common/log.h"
#include "common/random_id.h"
#include "common/units.h"
#include "protocol/codec.h"
#include "worker/command_channel.h"
#include "worker/control_client.h"
#include "worker/device_tier.h"
#include "worker/group_service.h"
#include "worker/group_watch.h"
#include "worker/rank_cli.h"
#include "worker/rank_end.h"

namespace millrace::worker {

namespace {

std::atomic<bool> stop_requested = false;

struct Options {
  RankOptions rank;
  GroupOptions group;
  std::string coordinator = "127.0.0.1:8001";
  std::string group_name = "group-0";
  std::string kv_host = "127.0.0.1";
  int kv_port = 0;
  comm::UcxTransports transports = comm::UcxTransports::kAuto;
  std::string device_pool, host_pool;
  std::string disk_pool = "0";
  std::string disk_directory;
  double layer_timeout_s = 300;
  double drain_timeout_s = 30;
};

void add_options(CLI::App& app, Options& options) {
  add_rank_options(app, options.rank);
  app.add_option("--coordinator", options.coordinator, "the coordinator's group port")
      ->option_text("HOST:PORT")
      ->capture_default_str();
  app.add_option("--group-name", options.group_name, "label of this group in metrics")
      ->type_name("NAME")
      ->capture_default_str();
  app.add_option("--head-plan", options.group.head_plan, "for requests that name none")
      ->type_name("PLAN")
      ->capture_default_str();
  app.add_option("--kv-host", options.kv_host,
                 "address that decode nodes reach this host's KV servers at")
      ->type_name("HOST")
      ->capture_default_str();
  app.add_option("--kv-port", options.kv_port,
                 "port of rank 0's KV server, rank r takes N + r; 0: free ones")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  cli::add_choice<comm::UcxTransports>(app, "--kv-transport", options.transports,
                                       comm::ucx_transport_names(), "how pages reach decode nodes");
  app.add_option("--device-pool", options.device_pool,
                 "device memory of this rank for KV pages, as 256MiB")
      ->type_name("SIZE")
      ->default_str("1/16 of the free memory; on a GPU none");
  app.add_option("--host-pool", options.host_pool,
                 "host memory of this rank for KV pages, and for the digests of the pages of all "
                 "pools: a twentieth of 16-bit pages")
      ->type_name("SIZE")
      ->default_str("1/8 of the free memory; with a GPU 1/2");
  app.add_option("--disk-pool", options.disk_pool, "disk space of this rank for KV pages")
      ->type_name("SIZE")
      ->capture_default_str();
  app.add_option("--disk-directory", options.disk_directory, "where the disk pool's file lives")
      ->type_name("DIR");
  app.add_option("--layer-timeout-s", options.layer_timeout_s,
                 "seconds; a layer that takes longer means a rank is lost")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--drain-timeout-s", options.drain_timeout_s,
                 "seconds that leases are waited for when draining")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
}

Duration from_seconds(double value_s) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(value_s));
}

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

int64_t total_slots(const kvstore::KvStoreStats& stats) {
  int64_t slots = 0;
  for (const auto& tier : stats.tiers) slots += tier.slots_total;
  return slots;
}

Result<kvstore::KvStoreConfig> store_config(const Options& options, RankRuntime& runtime,
                                            int rank) {
  const auto& weights = runtime.weights();
  const int64_t free_bytes = available_memory_bytes() / runtime.cores().ranks_here;
  const bool host_device = runtime.device().info().host_memory;
  kvstore::KvStoreConfig config{.device_bytes = runtime.device_pool_bytes(),
                                .host_bytes = free_bytes / (host_device ? 8 : 2),
                                .promotes = host_device};
  if (!options.host_pool.empty()) {
    MR_ASSIGN_OR_RETURN(config.host_bytes, parse_bytes(options.host_pool));
  }
  MR_ASSIGN_OR_RETURN(config.disk_bytes, parse_bytes(options.disk_pool));
  if (!options.disk_directory.empty()) {
    config.disk_directory = fmt::format("{}/rank-{}", options.disk_directory, rank);
    std::error_code status;
    std::filesystem::create_directories(config.disk_directory, status);
    if (status) return error(Errc::kIo, "{}: {}", config.disk_directory, status.message());
  }
  config.geometry = {.num_layers = weights.config.num_layers,
                     .num_kv_heads = weights.shard.num_kv_heads,
                     .first_kv_head = weights.shard.first_kv_head,
                     .head_dim = weights.config.head_dim,
                     .dtype = weights.compute_dtype};
  return config;
}

// Rank 0 draws the group's id; it is new at every start, so nothing of an earlier life is mistaken
// for this one's.
Result<std::string> share_epoch(comm::Communicator& world) {
  std::string epoch = random_id();
  MR_RETURN_IF_ERROR(world.broadcast(std::as_writable_bytes(std::span(epoch)), /*root=*/0,
                                     Deadline::after(kCommandTimeout)));
  return epoch;
}

Result<ControlOptions> control_options(const Options& options, RankRuntime& runtime) {
  const size_t colon = options.coordinator.rfind(':');
  const int port =
      colon == std::string::npos ? 0 : std::atoi(options.coordinator.c_str() + colon + 1);
  if (port <= 0 || port > 65535) {
    return error(Errc::kInvalidArgument, "--coordinator '{}': write HOST:PORT",
                 options.coordinator);
  }
  ControlOptions control{.host = options.coordinator.substr(0, colon),
                         .port = static_cast<uint16_t>(port)};
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

// Ranks of one host must not collide, so each has a port of its own; 0 leaves it to the system.
Result<int> kv_port(const Options& options, const comm::Communicator& world) {
  if (options.kv_port == 0) return 0;
  const int last = options.kv_port + world.size() - 1;
  if (last > 65535) {
    return error(Errc::kInvalidArgument, "--kv-port {}: the last of {} ranks would have port {}",
                 options.kv_port, world.size(), last);
  }
  return options.kv_port + world.rank();
}

// The group dies as a unit: a rank busy in a layer is of no use without the lost one, and ending at
// once is what tells the coordinator.
void end_process(const std::string& why) {
  end_rank(error(Errc::kPeerLost, "{}", why));
}

// A GPU that failed (CudaError), or memory that ended where nothing is prepared for it: this rank
// is lost to the others, at once.
Result<void> run(GroupService& service) {
  try {
    return service.run(stop_requested);
  } catch (const std::exception& e) {
    end_rank(Error(Errc::kInternal, e.what()));
  }
}

Result<void> serve(comm::MpiSession& session, Options& options) {
  auto world = session.world();
  const int rank = world->rank();
  init_logging(fmt::format("worker/{}", rank));
  options.rank.device_pool_bytes = std::nullopt;
  if (!options.device_pool.empty()) {
    MR_ASSIGN_OR_RETURN(options.rank.device_pool_bytes, parse_bytes(options.device_pool));
  }
  MR_ASSIGN_OR_RETURN(options.group.epoch, share_epoch(*world));
  MR_ASSIGN_OR_RETURN(const auto watch,
                      GroupWatch::start(*world, options.kv_host, options.group.epoch, end_process,
                                        Deadline::after(kCommandTimeout)));
  auto created = RankRuntime::create(std::move(world), options.rank);
  if (!created.ok()) {
    watch->leave();  // the others have the same error to report
    return created.error();
  }
  const auto runtime = *std::move(created);
  options.group.layer_timeout = from_seconds(options.layer_timeout_s);
  options.group.drain_timeout = from_seconds(options.drain_timeout_s);

  MR_ASSIGN_OR_RETURN(const auto config, store_config(options, *runtime, rank));
  MR_ASSIGN_OR_RETURN(const auto store, make_store(config, runtime->device()));
  MR_RETURN_IF_ERROR(
      runtime->limit_to_store(total_slots(store->stats()), Deadline::after(kCommandTimeout)));
  MR_ASSIGN_OR_RETURN(const auto transport,
                      comm::UcxTransport::create({.transports = options.transports}));
  MR_ASSIGN_OR_RETURN(const int port, kv_port(options, runtime->grid().world()));
  MR_ASSIGN_OR_RETURN(const auto server, KvServer::start(*transport, *store, options.group.epoch,
                                                         options.kv_host, port));
  MetricsBoard board;
  std::unique_ptr<ControlClient> control;
  if (rank == 0) {
    spdlog::info("group {} of {} ranks, tp {} x cp {}, {}, prompts up to {} tokens, crossover {}",
                 options.group.epoch, options.rank.grid.tp * options.rank.grid.cp,
                 options.rank.grid.tp, options.rank.grid.cp, runtime->device().info().name,
                 runtime->limits().max_prompt_tokens, runtime->crossover_tokens());
    MR_ASSIGN_OR_RETURN(auto control_settings, control_options(options, *runtime));
    control = std::make_unique<ControlClient>(std::move(control_settings),
                                              [&board] { return board.read(); });
  }
  GroupService service(*runtime, *store, *server, control.get(), board, watch.get(), options.group);
  auto ran = run(service);
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
  worker::Options options;
  CLI::App app(
      "One rank of a worker group behind a coordinator:\n"
      "  mpirun -n 4 millrace-worker --model DIR --tp 2 --cp 2 --coordinator HOST:8001",
      "millrace-worker");
  app.formatter(std::make_shared<cli::HelpFormatter>());
  app.set_version_flag("--version", MILLRACE_VERSION);
  worker::add_options(app, options);
  CLI11_PARSE(app, argc, argv);
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
