// SPDX-License-Identifier: Apache-2.0
// Prefills and the clients that wait for them. A request for a prompt that waits or runs already
// joins that prefill: it has a record, a deadline and a lease of its own, and no prefill of its own.
// A prefill ends early when the last of its clients has left, unless that one wanted it finished:
// then it goes on unattended, its result is held for a while, and the same prompt gets it. Or it is
// long and to be suspended: then its group stops after the current layer and goes on when the same
// prompt comes again. Owned by the scheduler; no sockets; one thread.
//
// The first request is both a client's and the prefill (RequestRole::kWhole). When its client leaves
// and the prefill goes on, a record of its own takes the prefill over (kPrefill), and the client's
// ends like any other. Groups know the prefill by its first id throughout (Request::id_at_group).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/groups/group_registry.h"
#include "coordinator/requests/request_tracker.h"
#include "coordinator/schedule/canceller.h"
#include "coordinator/schedule/leases.h"
#include "coordinator/schedule/scheduler_settings.h"

namespace millrace::coordinator {

class SharedPrefills {
 public:
  SharedPrefills(const SchedulerSettings& settings, RequestTracker& requests, GroupRegistry& groups,
                 Canceller& canceller, Leases& leases, const Clock& clock,
                 CoordinatorMetrics& metrics)
      : settings_(settings),
        requests_(requests),
        groups_(groups),
        canceller_(canceller),
        leases_(leases),
        clock_(clock),
        metrics_(metrics) {}

  // The prefill that can answer `request`, which is not among the requests yet. Null: none can.
  std::shared_ptr<Request> prefill_for(const Request& request) const;
  // The same prompt again under the same id, by the same owner: the newer call takes the place of
  // the older one.
  bool is_sent_again(const Request& request) const;
  // Joins `request` to the prefill that there is for it. If that is done, so is the request.
  void join(const std::shared_ptr<Request>& request);
  // Gives `request`, which is about to be queued, an id that no group knows for something else.
  void name(Request& request);
  // `request` has been queued, and others may join it.
  void open(const std::shared_ptr<Request>& request);

  // The client of a request is gone, or its deadline has passed. The request fails with `why`; the
  // prefill ends too, unless others wait for it or it is to be finished. A result that has not
  // reached its client is held, or its lease ends.
  void leave(const std::shared_ptr<Request>& request, Error why);
  // The same for a client that does not want its prefill any more.
  void cancel(const std::shared_ptr<Request>& request, Error why);
  // The last client that left the prefill, under this id, does not want it finished any more.
  void cancel_unattended(const std::string& id);
  // Ends all that no client waits for.
  void cancel_all_unattended();
  // Of the results that are held on this group and the suspended prefills, ends the one of least
  // worth, for a prompt that needs the room: what is cheap to compute again and has waited long.
  // False: there are none.
  bool make_room(const std::string& group_id);
  // Ends all of them.
  void give_up_on(const std::string& group_id);

  // To be called after every change of a request. Does for those that have joined it what has
  // happened to it.
  void follow(const Request& changed);
  void count() const;

 private:
  struct Shared {
    // Neither a client's own request nor awaited by another.
    bool attended() const { return prefill->role == RequestRole::kWhole || !joined.empty(); }

    std::shared_ptr<Request> prefill;
    std::vector<std::shared_ptr<Request>> joined;  // and not ended
    int leavers = 0;  // clients that have left, want it finished, and have not returned
    std::string last_to_leave;
    bool held = false;  // it is done, and its record has the lease for those that may return
  };

  Shared* find(const Request& request);
  const Shared* find(const Request& request) const;
  void detach(const std::shared_ptr<Request>& request, Error why, OnDisconnect policy);
  // Gives the prefill a record of its own.
  void hand_over(Shared& shared);
  static std::shared_ptr<Request> heir_of(const Request& request);
  bool may_outlive_clients(const Request& prefill, OnDisconnect policy);
  void set_unattended(const std::shared_ptr<Request>& prefill, OnDisconnect policy);
  // Ends the oldest results held for the owner, if that is what it takes.
  bool may_be_unattended(const Request& prefill);
  void answer(Request& joined, Request& prefill);
  static void mirror(Request& joined, const Request& prefill);
  void end(Shared shared);
  void hold(const std::shared_ptr<Request>& done, int leavers, std::string last_to_leave);
  void hold_again(const std::shared_ptr<Request>& request);
  // A client has got the result that was held.
  void returned(const Request& request);
  void release(const Request& done);
  // Whether it takes room on this group though no client waits.
  static bool is_kept_on(const std::string& group_id, const Shared& shared);
  double worth(const Request& kept) const;
  // Ends what no client waits for, of what is `wanted`.
  void drop(const std::function<bool(const Shared&)>& wanted, const Error& why);
  void drop(const std::shared_ptr<Request>& prefill, const Error& why);

  const SchedulerSettings& settings_;
  RequestTracker& requests_;
  GroupRegistry& groups_;
  Canceller& canceller_;
  Leases& leases_;
  const Clock& clock_;
  CoordinatorMetrics& metrics_;
  std::map<std::string, Shared> by_key_;
};

}  // namespace millrace::coordinator
