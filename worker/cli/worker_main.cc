// SPDX-License-Identifier: Apache-2.0
// millrace-worker: one rank of a worker group behind a coordinator.
//   mpirun -n P millrace-worker --model DIR --coordinator HOST:PORT [--tp T --cp C] ...
// Exit status: 0 drained; 2 could not start, or the group broke (its supervisor starts it again),
// or the command line is wrong.

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <exception>

#include "comm/mpi/job_record.h"
#include "comm/mpi/mpi_session.h"
#include "comm/nccl/nccl_communicator.h"
#include "comm/tcp/tcp_transport.h"
#include "comm/ucx/ucx_transport.h"
#include "common/cli/help_formatter.h"
#include "common/cli/parse.h"
#include "common/host_port.h"
#include "common/log.h"
#include "common/logging/init_logging.h"
#include "common/system/cpu.h"
#include "common/system/file_descriptor.h"
#include "common/system/large_blocks.h"
#include "engine/ranks/rank_end.h"
#include "worker/cli/worker_options.h"
#include "worker/control/control_client.h"
#include "worker/events/zmq/zmq_publisher.h"
#include "worker/group/group_rank.h"
#include "worker/sync/command_channel.h"
#include "worker/sync/rank_watch.h"

namespace millrace::worker {

namespace {

// These threads sleep while no page is asked for. Pages that must be read are left to other
// threads. One thread sends some 3.7 GB/s over a Xeon's loopback; to a client of 8 threads, 4
// threads sent 14.3 GB/s and 8 sent 16.2.
int kv_server_threads() {
  return std::clamp(usable_cores(), 4, 8);
}

std::atomic<bool> stop_requested = false;

ConnectToCoordinator connect_to(const HostPort& coordinator, const TlsFiles& tls) {
  return [coordinator, tls](protocol::Register description, ControlBoard& board) {
    return std::make_unique<ControlClient>(ControlOptions{.host = coordinator.host,
                                                          .port = coordinator.port,
                                                          .tls = tls,
                                                          .description = std::move(description)},
                                           board);
  };
}

OpenEvents open_events(const ZmqPublisherOptions& options) {
  if (options.endpoint.empty()) return nullptr;
  return [options]() -> Result<std::unique_ptr<EventPublisher>> {
    MR_ASSIGN_OR_RETURN(auto publisher, ZmqPublisher::open(options));
    return std::unique_ptr<EventPublisher>(std::move(publisher));
  };
}

Result<std::unique_ptr<comm::Transport>> kv_transport(const WorkerOptions& options) {
  const int64_t descriptors = raise_descriptor_limit();
  if (options.kv_transport == KvTransport::kTcp) {
    const auto limits = comm::TcpLimits().within(descriptors);
    if (limits.max_clients < comm::TcpLimits().max_clients) {
      log::warn("the limit of {} open files is low: {} connections of decode nodes are taken",
                descriptors, limits.max_clients);
    }
    return std::unique_ptr<comm::Transport>(std::make_unique<comm::TcpTransport>(comm::TcpOptions{
        .server_threads = kv_server_threads(), .limits = limits, .server_tls = options.kv_tls}));
  }
  MR_ASSIGN_OR_RETURN(auto ucx,
                      comm::UcxTransport::create({.server_threads = kv_server_threads()}));
  return std::unique_ptr<comm::Transport>(std::move(ucx));
}

Result<void> serve(comm::MpiSession& session, const comm::JobRecord& record,
                   const WorkerOptions& options) {
  auto world = session.world();
  init_logging(fmt::format("worker/{}", world->rank()));
  MR_ASSIGN_OR_RETURN(const auto transport, kv_transport(options));
  MR_ASSIGN_OR_RETURN(auto settings, group_rank_options(options));
  MR_ASSIGN_OR_RETURN(const auto coordinator, HostPort::parse(options.coordinator));
  // Finds errors in the files before weights are read, rather than in a retry later.
  if (world->rank() == 0 && !options.group_tls.certificate.empty()) {
    if (const auto tls = make_client_tls(options.group_tls); !tls.ok())
      engine::end_rank(tls.error());
  }
  MR_ASSIGN_OR_RETURN(settings.group.epoch, draw_epoch(*world));
  settings.rank.engine.end_process = engine::end_rank;
  MR_ASSIGN_OR_RETURN(const auto watch,
                      RankWatch::start(*world, options.kv_host, settings.group.epoch,
                                       engine::end_rank, Deadline::after(kCommandTimeout)));
  const auto rank = engine::or_end_rank([&] {
    return GroupRank::start(std::move(world), settings,
                            {.transport = *transport,
                             .connect = connect_to(coordinator, options.group_tls),
                             .watch = watch.get(),
                             .open_events = open_events(options.kv_events)});
  });
  if (!rank.ok()) return rank.error();
  // Ranks of a killed mpirun that were still alive when this one began are gone by now.
  record.remove_dead_predecessors();
  auto served = engine::or_end_rank([&] { return (*rank)->serve(stop_requested); });
  if (!served.ok() && served.error().code == Errc::kPeerLost) {
    engine::end_rank(error(Errc::kPeerLost, "the group failed"));
  }
  return served;
}

}  // namespace

}  // namespace millrace::worker

int main(int argc, char** argv) {
  using namespace millrace;
  map_large_blocks();
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
  // Rank 0 turns a signal into a stop for all. SIGUSR1 is for mpirun, which forwards it at once; it
  // forwards a SIGTERM only after odls_base_sigkill_timeout, and kills after the same time again.
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    std::signal(signal, [](int) { worker::stop_requested.store(true); });
  }
  // A closed terminal ends no group; files of certificates are read again without being told.
  std::signal(SIGHUP, SIG_IGN);
  try {
    comm::prepare_nccl();
    init_logging("worker");  // until the rank is known
    const auto record = comm::JobRecord::of_this_process(options.group_name);
    record.remove_dead_predecessors();
    comm::MpiSession session(argc, argv);
    const auto served = worker::serve(session, record, options);
    if (served.ok()) return 0;
    log::error("{}", served.error().to_string());
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "millrace-worker: %s\n", e.what());
    return 2;
  }
}
