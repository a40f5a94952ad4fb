// SPDX-License-Identifier: Apache-2.0
// Metrics of one process, in Prometheus form. The owners of behaviour hold metrics (Counter, Gauge,
// Histogram) and call their methods. A Registry hands them out once, at construction, and renders
// them. No Prometheus type appears here, so nothing else compiles against one.
//
//   Registry registry;
//   Counter failures = registry.counter("millrace_failures_total", "Requests that failed",
//                                       {{"reason", "io"}});
//   failures.add();
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/metrics/sample.h"

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace millrace::metrics {

// Metrics are handles, cheap to copy, thread-safe, valid while their Registry lives.
class Counter {
 public:
  void add(double amount = 1);

 private:
  friend class Registry;
  explicit Counter(prometheus::Counter& counter) : counter_(&counter) {}
  prometheus::Counter* counter_;
};

class Gauge {
 public:
  void set(double value);
  void add(double amount);

 private:
  friend class Registry;
  explicit Gauge(prometheus::Gauge& gauge) : gauge_(&gauge) {}
  prometheus::Gauge* gauge_;
};

class Histogram {
 public:
  void observe(double value);

 private:
  friend class Registry;
  explicit Histogram(prometheus::Histogram& histogram) : histogram_(&histogram) {}
  prometheus::Histogram* histogram_;
};

// Upper bounds of histogram buckets: `count` of them, starting with `first`, each `factor` times
// the one before.
std::vector<double> exponential_buckets(double first, double factor, int count);

// Thread-safe. Asking twice for the same name and labels gives the same metric; a name that breaks
// the rules (sample.h) or changes its kind or help is a bug and aborts.
class Registry {
 public:
  Registry();
  ~Registry();

  Counter counter(const std::string& name, const std::string& help, const Labels& labels = {});
  Gauge gauge(const std::string& name, const std::string& help, const Labels& labels = {});
  Histogram histogram(const std::string& name, const std::string& help,
                      const std::vector<double>& upper_bounds, const Labels& labels = {});

  // Shows `samples` next to the registry's own metrics, with label `source_label`=`source`, in
  // place of what that source published before. Leaves out samples that break the rules, or whose
  // name is one of our own metrics or has another kind elsewhere; returns how many it left out.
  int publish(const std::string& source_label, const std::string& source,
              std::vector<Sample> samples);
  void retract(const std::string& source);

  // The registry's own metrics as samples, to be sent elsewhere. A histogram becomes two counters:
  // its sum and its number of observations (<name>_sum_total, <name>_observations_total).
  std::vector<Sample> samples() const;

  // Text exposition format 0.0.4.
  std::string text() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::metrics
