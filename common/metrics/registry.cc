// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/registry.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <map>
#include <mutex>
#include <sstream>

namespace millrace::metrics {

namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

ClientMetric to_client_metric(const Sample& sample) {
  ClientMetric metric;
  for (const auto& [name, value] : sample.labels) metric.label.push_back({name, value});
  (sample.counter ? metric.counter.value : metric.gauge.value) = sample.value;
  return metric;
}

Sample to_sample(const MetricFamily& family, const ClientMetric& metric) {
  Sample sample;
  sample.name = family.name;
  sample.help = family.help;
  for (const auto& label : metric.label) sample.labels[label.name] = label.value;
  sample.counter = family.type == MetricType::Counter;
  sample.value = sample.counter ? metric.counter.value : metric.gauge.value;
  return sample;
}

void append_histogram(const MetricFamily& family, const ClientMetric& metric,
                      std::vector<Sample>& out) {
  Sample sum = to_sample(family, metric);
  sum.counter = true;
  Sample observations = sum;
  sum.name += "_sum_total";
  sum.help += " (sum)";
  sum.value = metric.histogram.sample_sum;
  observations.name += "_observations_total";
  observations.help += " (number of observations)";
  observations.value = static_cast<double>(metric.histogram.sample_count);
  out.push_back(std::move(sum));
  out.push_back(std::move(observations));
}

}  // namespace

void Counter::add(double amount) {
  counter_->Increment(amount);
}
void Gauge::set(double value) {
  gauge_->Set(value);
}
void Gauge::add(double amount) {
  gauge_->Increment(amount);
}
void Histogram::observe(double value) {
  histogram_->Observe(value);
}

std::vector<double> exponential_buckets(double first, double factor, int count) {
  MR_CHECK(first > 0 && factor > 1 && count > 0, "buckets {} * {}^{}", first, factor, count);
  std::vector<double> bounds;
  for (double bound = first; count > 0; --count, bound *= factor) bounds.push_back(bound);
  return bounds;
}

struct Registry::Impl {
  struct Source {
    std::string label;
    std::vector<Sample> samples;
  };

  // The kind of each name that any source has published, so that no name appears with two kinds.
  std::map<std::string, bool> foreign_kinds() const {
    std::map<std::string, bool> kinds;
    for (const auto& [source, published] : sources) {
      for (const Sample& sample : published.samples) kinds.emplace(sample.name, sample.counter);
    }
    return kinds;
  }

  prometheus::Registry own;
  mutable std::mutex mutex;  // guards the rest
  std::map<std::string, bool> own_names;
  std::map<std::string, Source> sources;
};

Registry::Registry() : impl_(std::make_unique<Impl>()) {}
Registry::~Registry() = default;

Counter Registry::counter(const std::string& name, const std::string& help, const Labels& labels) {
  const auto named = check_metric_name(name, /*counter=*/true);
  MR_CHECK(named.ok(), "{}", named.error().message);
  std::lock_guard lock(impl_->mutex);
  impl_->own_names.emplace(name, true);
  return Counter(prometheus::BuildCounter().Name(name).Help(help).Register(impl_->own).Add(labels));
}

Gauge Registry::gauge(const std::string& name, const std::string& help, const Labels& labels) {
  const auto named = check_metric_name(name, /*counter=*/false);
  MR_CHECK(named.ok(), "{}", named.error().message);
  std::lock_guard lock(impl_->mutex);
  impl_->own_names.emplace(name, false);
  return Gauge(prometheus::BuildGauge().Name(name).Help(help).Register(impl_->own).Add(labels));
}

Histogram Registry::histogram(const std::string& name, const std::string& help,
                              const std::vector<double>& upper_bounds, const Labels& labels) {
  const auto named = check_metric_name(name, /*counter=*/false);
  MR_CHECK(named.ok(), "{}", named.error().message);
  std::lock_guard lock(impl_->mutex);
  impl_->own_names.emplace(name, false);
  return Histogram(prometheus::BuildHistogram()
                       .Name(name)
                       .Help(help)
                       .Register(impl_->own)
                       .Add(labels, upper_bounds));
}

int Registry::publish(const std::string& source_label, const std::string& source,
                      std::vector<Sample> samples) {
  std::lock_guard lock(impl_->mutex);
  impl_->sources.erase(source);
  auto kinds = impl_->foreign_kinds();
  // A series that appears twice makes the whole exposition unreadable to Prometheus.
  std::map<std::pair<std::string, Labels>, bool> seen;
  Impl::Source accepted{source_label, {}};
  int refused = 0;
  for (Sample& sample : samples) {
    sample.labels[source_label] = source;
    const auto kind = kinds.emplace(sample.name, sample.counter).first;
    if (!check_sample(sample).ok() || kind->second != sample.counter ||
        impl_->own_names.count(sample.name) != 0 ||
        !seen.emplace(std::pair(sample.name, sample.labels), true).second) {
      ++refused;
      continue;
    }
    accepted.samples.push_back(std::move(sample));
  }
  impl_->sources.emplace(source, std::move(accepted));
  return refused;
}

void Registry::retract(const std::string& source) {
  std::lock_guard lock(impl_->mutex);
  impl_->sources.erase(source);
}

std::vector<Sample> Registry::samples() const {
  std::vector<Sample> out;
  for (const MetricFamily& family : impl_->own.Collect()) {
    for (const ClientMetric& metric : family.metric) {
      if (family.type == MetricType::Histogram) {
        append_histogram(family, metric, out);
      } else {
        out.push_back(to_sample(family, metric));
      }
    }
  }
  return out;
}

std::string Registry::text() const {
  std::vector<MetricFamily> families = impl_->own.Collect();
  std::map<std::string, MetricFamily> foreign;
  {
    std::lock_guard lock(impl_->mutex);
    for (const auto& [source, published] : impl_->sources) {
      for (const Sample& sample : published.samples) {
        const auto type = sample.counter ? MetricType::Counter : MetricType::Gauge;
        auto& family =
            foreign.emplace(sample.name, MetricFamily{sample.name, sample.help, type, {}})
                .first->second;
        family.metric.push_back(to_client_metric(sample));
      }
    }
  }
  for (auto& [name, family] : foreign) families.push_back(std::move(family));
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families);
  return out.str();
}

}  // namespace millrace::metrics
