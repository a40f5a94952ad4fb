// Metrics of one process, in Prometheus form. Owners of behaviour hold probes (Counter, Gauge,
// Histogram) and call their verbs; a Registry hands probes out once, at construction time, and
// renders them. No Prometheus type shows here, so nothing else compiles against one.
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

// Probes are handles, cheap to copy, thread-safe, valid while their Registry lives.
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

// Upper bounds of histogram buckets: `first`, and on by `factor`, `count` of them.
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

  // Shows `samples` next to the own metrics, with label `source_label`=`source`, in place of what
  // that source published before. Samples that break the rules, or whose name is one of our own
  // metrics or has another kind elsewhere, are left out; returns how many were.
  int publish(const std::string& source_label, const std::string& source,
              std::vector<Sample> samples);
  void retract(const std::string& source);

  // Own metrics as samples, to be sent elsewhere: a histogram becomes two counters of its sum and
  // its number of observations (<name>_sum_total, <name>_observations_total).
  std::vector<Sample> samples() const;

  // Text exposition format 0.0.4.
  std::string text() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::metrics
