// SPDX-License-Identifier: Apache-2.0
// Compares decoding with a share of each MLP's neurons with dense decoding:
//   mlp_share_bench --model DIR --predictor FILE --texts texts.jsonl [--prompt-tokens 256]
//     [--shares 0.75 0.5]
// The first tokens of a text are computed densely, as in a prefill. For the later tokens it prints
// the mean loss and how many choices equal those of dense decoding, always after the same tokens.
// Every layer but the first uses the neurons that are
//   predicted   chosen by decode/mlp
//   oracle      those with the greatest contribution, which is known only once all are computed
//   prompt      the same for all tokens: the most active over the prompt, as in GRIFFIN
//               (arXiv 2404.01365)
//   random      drawn anew for each token
// For times, dense and predicted tokens alternate in one run, so that other load on the machine
// affects both alike.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <memory>
#include <numeric>
#include <random>

#include "comm/local/local_group.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/logging/init_logging.h"
#include "common/system/cpu.h"
#include "decode/mlp/predicted_mlp.h"
#include "kernels/cpu/cpu_device.h"
#include "model/generator.h"

namespace millrace::bench {

namespace {

namespace json = boost::json;
using decode::PredictedMlp;
using decode::SparseMlp;

struct Options {
  std::string model, predictor, texts;
  int64_t prompt_tokens = 256;
  std::vector<double> shares = {0.75, 0.5};
};

template <typename T>
T must(Result<T> result) {
  MR_CHECK(result.ok(), "{}", result.error().to_string());
  return std::move(result).value();
}

std::vector<std::vector<int32_t>> read_texts(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::vector<int32_t>> texts;
  for (std::string line; std::getline(file, line);) {
    texts.push_back(json::value_to<std::vector<int32_t>>(json::parse(line).at("prompt_token_ids")));
  }
  MR_CHECK(!texts.empty(), "{}: no texts", path);
  return texts;
}

// Dense for the tokens of the prompt, then as the subclass says.
class PartialMlp : public model::TokenMlp {
 public:
  explicit PartialMlp(int64_t prompt_tokens) : prompt_tokens_(prompt_tokens) {}

  void begin_layer(int32_t layer, const float* hidden) final {
    if (layer == 0) ++token_;
    if (!dense()) begin(layer, hidden);
  }
  bool run(int32_t layer, const float* hidden, float* out) final {
    if (layer == 0) return false;
    if (!dense()) return compute(layer, hidden, out);
    see(layer, hidden);
    return false;
  }

 protected:
  int64_t token() const { return token_; }
  virtual bool dense() const { return token_ < prompt_tokens_; }
  virtual void begin(int32_t, const float*) {}
  virtual bool compute(int32_t layer, const float* hidden, float* out) = 0;
  virtual void see(int32_t, const float*) {}  // called for a layer that is computed densely

 private:
  const int64_t prompt_tokens_;
  int64_t token_ = -1;
};

class Predicted : public PartialMlp {
 public:
  Predicted(int64_t prompt_tokens, PredictedMlp& mlp) : PartialMlp(prompt_tokens), mlp_(mlp) {}

 protected:
  void begin(int32_t layer, const float* hidden) override { mlp_.begin_layer(layer, hidden); }
  bool compute(int32_t layer, const float* hidden, float* out) override {
    return mlp_.run(layer, hidden, out);
  }

 private:
  PredictedMlp& mlp_;
};

// Alternates: tokens with an even number are dense.
class ByTurns final : public Predicted {
 public:
  using Predicted::Predicted;

 protected:
  bool dense() const override { return Predicted::dense() || token() % 2 == 0; }
};

// What the other kinds have in common.
class Chosen : public PartialMlp {
 public:
  Chosen(int64_t prompt_tokens, SparseMlp& mlp, double share)
      : PartialMlp(prompt_tokens),
        mlp_(mlp),
        count_(std::llround(share * mlp.num_neurons())),
        all_(static_cast<size_t>(mlp.num_neurons())),
        activations_(all_.size()) {
    std::iota(all_.begin(), all_.end(), 0);
  }

 protected:
  std::span<const float> activate_all(int32_t layer, const float* hidden) {
    mlp_.activate(layer, hidden, all_, activations_);
    return activations_;
  }
  bool compute_chosen(int32_t layer, const float* hidden, float* out) {
    const auto activations = std::span(activations_).first(chosen_.size());
    mlp_.activate(layer, hidden, chosen_, activations);
    mlp_.project(layer, chosen_, activations, out);
    return true;
  }

  SparseMlp& mlp_;
  const int64_t count_;
  std::vector<int32_t> all_, chosen_;
  std::vector<float> activations_;
  decode::TopNeurons top_;
};

// Norms of the columns of the down projection, [layers, neurons].
std::vector<std::vector<float>> column_norms(const model::ModelWeights& weights) {
  std::vector<std::vector<float>> norms;
  for (const auto& layer : weights.layers) {
    const auto& down = layer.down;
    MR_CHECK(down.dtype == DType::kBFloat16, "weights are {}", dtype_name(down.dtype));
    auto& of = norms.emplace_back(static_cast<size_t>(down.cols));
    const auto* const data = static_cast<const BFloat16*>(down.data);
    for (int64_t row = 0; row < down.rows; ++row) {
      for (int64_t col = 0; col < down.cols; ++col) {
        const float x = to_float(data[row * down.row_stride + col]);
        of[static_cast<size_t>(col)] += x * x;
      }
    }
    for (float& norm : of) norm = std::sqrt(norm);
  }
  return norms;
}

class Oracle final : public Chosen {
 public:
  Oracle(int64_t prompt_tokens, SparseMlp& mlp, double share,
         const std::vector<std::vector<float>>& norms)
      : Chosen(prompt_tokens, mlp, share), norms_(norms) {}

 protected:
  bool compute(int32_t layer, const float* hidden, float* out) override {
    const auto activations = activate_all(layer, hidden);
    const auto& norms = norms_[static_cast<size_t>(layer)];
    contributions_.resize(norms.size());
    std::transform(activations.begin(), activations.end(), norms.begin(), contributions_.begin(),
                   [](float z, float norm) { return std::abs(z) * norm; });
    top_.choose(contributions_, count_, chosen_);
    return compute_chosen(layer, hidden, out);
  }

 private:
  const std::vector<std::vector<float>>& norms_;
  std::vector<float> contributions_;
};

class OfPrompt final : public Chosen {
 public:
  OfPrompt(int64_t prompt_tokens, SparseMlp& mlp, double share, int32_t num_layers)
      : Chosen(prompt_tokens, mlp, share),
        activity_(static_cast<size_t>(num_layers), std::vector<float>(all_.size())) {}

 protected:
  void see(int32_t layer, const float* hidden) override {
    const auto activations = activate_all(layer, hidden);
    float squares = 1e-20f;
    for (const float z : activations) squares += z * z;
    auto& activity = activity_[static_cast<size_t>(layer)];
    for (size_t i = 0; i < activity.size(); ++i)
      activity[i] += activations[i] * activations[i] / squares;
  }
  bool compute(int32_t layer, const float* hidden, float* out) override {
    top_.choose(activity_[static_cast<size_t>(layer)], count_, chosen_);
    return compute_chosen(layer, hidden, out);
  }

 private:
  std::vector<std::vector<float>> activity_;
};

class Random final : public Chosen {
 public:
  using Chosen::Chosen;

 protected:
  bool compute(int32_t layer, const float* hidden, float* out) override {
    chosen_.clear();
    std::sample(all_.begin(), all_.end(), std::back_inserter(chosen_), count_, random_);
    return compute_chosen(layer, hidden, out);
  }

 private:
  std::mt19937 random_{1};
};

double quantile(std::vector<double> values, double share) {
  MR_CHECK(!values.empty(), "no times");
  std::ranges::sort(values);
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

// CPU time of all threads of this process: other load on the cores does not count.
double processor_ms() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
}

struct TokenTimes {
  std::vector<double> wall_ms, processor_ms;

  json::object summary() const {
    return {{"tokens", wall_ms.size()},
            {"ms", quantile(wall_ms, 0.5)},
            {"fast_ms", quantile(wall_ms, 0.1)},
            {"processor_ms", quantile(processor_ms, 0.5)}};
  }
};

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        device_(kernels::make_cpu_device({.num_threads = usable_cores()})),
        weights_(must(model::load_model_weights(options.model, {}, DType::kBFloat16, *device_,
                                                usable_cores()))),
        sparse_(must(SparseMlp::create(*weights_, usable_cores()))),
        norms_(column_norms(*weights_)),
        texts_(read_texts(options.texts)) {}

  void run() {
    time_tokens();
    for (size_t i = 0; i < texts_.size(); ++i) judge(static_cast<int64_t>(i));
  }

 private:
  struct Pass {
    double nll = 0;               // mean over the judged tokens
    std::vector<int32_t> tokens;  // the choice after each judged token
    TokenTimes times;             // one for each judged token
  };

  std::unique_ptr<PredictedMlp> predicted(double share) const {
    return must(PredictedMlp::open({.predictor_path = options_.predictor, .share = share},
                                   *weights_, usable_cores()));
  }

  Pass pass(const std::vector<int32_t>& text, model::TokenMlp* mlp) const {
    const auto tp = std::move(comm::LocalGroup::create(1).front());
    const auto cp = std::move(comm::LocalGroup::create(1).front());
    const auto count = static_cast<int32_t>(text.size());
    auto generator = must(model::Generator::create(*device_, *weights_, *tp, *cp, count));
    const kernels::KvSlab empty{.dtype = DType::kFloat32,
                                .num_kv_heads = weights_->shard.num_kv_heads,
                                .head_dim = weights_->config.head_dim};
    const std::vector slabs(weights_->layers.size(), empty);
    Pass result;
    int64_t next = 1;
    const auto judged = [&] { return next > options_.prompt_tokens; };
    Stopwatch watch;
    double began_ms = processor_ms();
    const auto tokens = must(generator.generate(
        {.prompt = slabs,
         .mlp = mlp,
         .first_token = text.front(),
         .max_tokens = count,
         .ignore_eos = true,
         .follow = std::span(text).subspan(1),
         .on_token =
             [&] {
               if (judged()) {
                 result.times.wall_ms.push_back(1000 * watch.elapsed_s());
                 result.times.processor_ms.push_back(processor_ms() - began_ms);
               }
               watch = Stopwatch();
               began_ms = processor_ms();
               ++next;
             },
         .on_logits =
             [&](std::span<const float> logits) {
               if (!judged()) return;
               const float most = *std::ranges::max_element(logits);
               double sum = 0;
               for (const float x : logits) sum += std::exp(x - most);
               const auto token = static_cast<size_t>(text[static_cast<size_t>(next)]);
               result.nll += most + std::log(sum) - logits[token];
             }},
        [] { return Deadline::after(std::chrono::minutes(10)); }));
    result.tokens.assign(tokens.begin() + options_.prompt_tokens + 1, tokens.end());
    result.nll /= static_cast<double>(result.tokens.size());
    return result;
  }

  void judge(int64_t number) {
    const auto& text = texts_[static_cast<size_t>(number)];
    const auto dense = pass(text, nullptr);
    print(number, "dense", 1, dense, dense);
    const int64_t prompt = options_.prompt_tokens;
    for (const double share : options_.shares) {
      const auto mlp = predicted(share);
      Predicted by_predictor(prompt, *mlp);
      print(number, "predicted", share, pass(text, &by_predictor), dense);
      Oracle oracle(prompt, sparse_, share, norms_);
      print(number, "oracle", share, pass(text, &oracle), dense);
      OfPrompt of_prompt(prompt, sparse_, share, weights_->config.num_layers);
      print(number, "prompt", share, pass(text, &of_prompt), dense);
      Random random(prompt, sparse_, share);
      print(number, "random", share, pass(text, &random), dense);
    }
  }

  static void print(int64_t text, std::string_view kind, double share, const Pass& result,
                    const Pass& dense) {
    int64_t equal = 0;
    for (size_t i = 0; i < dense.tokens.size(); ++i) equal += result.tokens[i] == dense.tokens[i];
    put({{"text", text},
         {"kind", kind},
         {"share", share},
         {"nll", result.nll},
         {"equal", equal},
         {"tokens", dense.tokens.size()}});
  }

  void time_tokens() const {
    auto shares = options_.shares;
    shares.insert(shares.begin(), 1.0);  // all neurons, by other kernels
    for (const double share : shares) {
      const auto mlp = predicted(share);
      ByTurns by_turns(options_.prompt_tokens, *mlp);
      const auto times = pass(texts_.front(), &by_turns).times;
      TokenTimes dense, sparse;
      for (size_t i = 0; i < times.wall_ms.size(); ++i) {
        const bool even = (options_.prompt_tokens + static_cast<int64_t>(i)) % 2 == 0;
        TokenTimes& of = even ? dense : sparse;
        of.wall_ms.push_back(times.wall_ms[i]);
        of.processor_ms.push_back(times.processor_ms[i]);
      }
      const auto report = mlp->report();
      put({{"share", share},
           {"dense", dense.summary()},
           {"predicted", sparse.summary()},
           {"bytes_share", static_cast<double>(report.bytes_per_token) /
                               static_cast<double>(report.dense_bytes_per_token)}});
    }
  }

  static void put(const json::object& line) {
    std::puts(json::serialize(line).c_str());
    std::fflush(stdout);
  }

  const Options& options_;
  const std::unique_ptr<kernels::Device> device_;
  const std::unique_ptr<model::ModelWeights> weights_;
  SparseMlp sparse_;
  const std::vector<std::vector<float>> norms_;
  const std::vector<std::vector<int32_t>> texts_;
};

}  // namespace

}  // namespace millrace::bench

int main(int argc, char** argv) {
  millrace::bench::Options options;
  CLI::App app("Decoding with a share of each MLP's neurons beside dense decoding");
  app.add_option("--model", options.model, "Hugging Face directory")->required();
  app.add_option("--predictor", options.predictor, "of tools/calibrate/neurons")->required();
  app.add_option("--texts", options.texts, "prompt_token_ids, one JSON object a line")->required();
  app.add_option("--prompt-tokens", options.prompt_tokens, "of each text, computed densely");
  app.add_option("--shares", options.shares, "of the neurons of each layer");
  CLI11_PARSE(app, argc, argv);
  millrace::init_logging("bench");
  millrace::bench::Bench(options).run();
  return 0;
}
