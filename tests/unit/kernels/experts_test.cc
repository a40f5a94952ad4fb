// SPDX-License-Identifier: Apache-2.0
#include "kernels/api/experts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/cpu/experts/expert_rows.h"
#include "kernels/cpu/experts/experts.h"
#include "kernels/cpu/runtime/operations.h"
#include "kernels/ref/operations.h"
#include "tests/support/compare.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/random_data.h"
#include "tests/unit/kernels/contexts.h"
#include "tests/unit/kernels/float8_mixture.h"
#include "tests/unit/kernels/naive_operations.h"

namespace millrace::kernels {
namespace {

using cpu::Context;
using test::as_good_as_naive;
using test::float32_rounding;
using test::GuardedBuffer;

struct Shape {
  int64_t rows = 0;
  int64_t hidden = 0;
  int64_t width = 0;
  int32_t num_experts = 0;
  int32_t experts_per_row = 0;
};

// Values are rounded to bfloat16 for both dtypes, so that one float32 copy serves the references of
// both. Rows of a are 5 elements apart.
struct Rows {
  explicit Rows(const Shape& shape)
      : stride(shape.hidden + 5),
        rows(shape.rows),
        hidden(shape.hidden),
        bf16(test::narrow(test::random_normals(1, rows * stride))),
        f32(test::widen(bf16)) {}

  ConstMatrix matrix(DType dtype) const {
    const void* data =
        dtype == DType::kFloat32 ? static_cast<const void*>(f32.data()) : bf16.data();
    return {data, dtype, rows, hidden, stride};
  }

  int64_t stride, rows, hidden;
  std::vector<BFloat16> bf16;
  std::vector<float> f32;
};

struct Choices {
  std::vector<int32_t> experts;
  std::vector<float> weights;

  RouteParams params(const Shape& shape, const ConstMatrix& a, const std::vector<float>& router,
                     ExpertWeighting weighting) {
    const auto count = static_cast<size_t>(a.rows * shape.experts_per_row);
    experts.assign(count, -1);
    weights.assign(count, -1);
    return {.a = a,
            .router = router.data(),
            .num_experts = shape.num_experts,
            .experts_per_row = shape.experts_per_row,
            .weighting = weighting,
            .experts = experts.data(),
            .weights = weights.data()};
  }
};

// Weights for the experts that the reference chose, from logits that are float32 sums in order.
std::vector<float> naive_weights(const RouteParams& p, const std::vector<int32_t>& chosen) {
  std::vector<float> weights;
  std::vector<float> logits(static_cast<size_t>(p.num_experts));
  for (int64_t row = 0; row < p.a.rows; ++row) {
    const float* x = static_cast<const float*>(p.a.data) + row * p.a.row_stride;
    for (size_t e = 0; e < logits.size(); ++e) {
      logits[e] = 0;
      const float* router = p.router + static_cast<int64_t>(e) * p.a.cols;
      for (int64_t i = 0; i < p.a.cols; ++i) logits[e] += x[i] * router[i];
      if (p.bias != nullptr) logits[e] += p.bias[e];
    }
    const auto* first = chosen.data() + row * p.experts_per_row;
    const std::span own(first, static_cast<size_t>(p.experts_per_row));
    const auto logit = [&](int32_t e) { return logits[static_cast<size_t>(e)]; };
    float sum = 0;
    if (p.weighting == ExpertWeighting::kSoftmax) {
      for (const float other : logits) sum += std::exp(other);
    } else {
      for (const int32_t e : own) sum += std::exp(logit(e));
    }
    for (const int32_t e : own) {
      weights.push_back(p.weighting == ExpertWeighting::kSigmoid ? 1 / (1 + std::exp(-logit(e)))
                                                                 : std::exp(logit(e)) / sum);
    }
  }
  return weights;
}

TEST(Route, ChoosesAndWeighsAsTheReference) {
  for (const Shape& shape :
       {Shape{33, 67, 0, 9, 3}, Shape{5, 2048, 0, 128, 8}, Shape{7, 64, 0, 4, 4},
        Shape{3, 16, 0, 1, 1}, Shape{300, 256, 0, 8, 1}}) {
    const Rows rows(shape);
    const auto router = test::random_normals(2, shape.num_experts * shape.hidden,
                                             2 / std::sqrt(static_cast<float>(shape.hidden)));
    for (const auto weighting :
         {ExpertWeighting::kSoftmax, ExpertWeighting::kChosenSoftmax, ExpertWeighting::kSigmoid}) {
      Choices expected;
      const auto params = expected.params(shape, rows.matrix(DType::kFloat32), router, weighting);
      ref::route(params);
      const auto naive = naive_weights(params, expected.experts);
      const double atol = float32_rounding(expected.weights);
      for (const Context& context : test::contexts()) {
        for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
          SCOPED_TRACE(fmt::format("{} experts, {}, {}", shape.num_experts, dtype_name(dtype),
                                   test::to_string(context)));
          Choices choices;
          cpu::route(choices.params(shape, rows.matrix(dtype), router, weighting), context);
          EXPECT_EQ(choices.experts, expected.experts);
          EXPECT_TRUE(as_good_as_naive(choices.weights, naive, expected.weights, atol));
        }
      }
    }
  }
}

TEST(Route, ABiasIsPartOfTheLogits) {
  const Shape shape{33, 67, 0, 9, 3};
  const Rows rows(shape);
  const auto router = test::random_normals(2, shape.num_experts * shape.hidden, 0.25F);
  const auto bias = test::random_normals(3, shape.num_experts);
  for (const auto weighting :
       {ExpertWeighting::kSoftmax, ExpertWeighting::kChosenSoftmax, ExpertWeighting::kSigmoid}) {
    Choices plain, expected;
    ref::route(plain.params(shape, rows.matrix(DType::kFloat32), router, weighting));
    auto params = expected.params(shape, rows.matrix(DType::kFloat32), router, weighting);
    params.bias = bias.data();
    ref::route(params);
    EXPECT_NE(expected.experts, plain.experts);
    const auto naive = naive_weights(params, expected.experts);
    for (const Context& context : test::contexts()) {
      Choices choices;
      auto own = choices.params(shape, rows.matrix(DType::kFloat32), router, weighting);
      own.bias = bias.data();
      cpu::route(own, context);
      EXPECT_EQ(choices.experts, expected.experts) << test::to_string(context);
      EXPECT_TRUE(as_good_as_naive(choices.weights, naive, expected.weights,
                                   float32_rounding(expected.weights)));
    }
  }
}

// GLM-4's correction decides which experts are chosen, and does not affect the weights.
TEST(Route, ACorrectionIsOfTheChoiceAlone) {
  const Shape shape{33, 67, 0, 9, 3};
  const Rows rows(shape);
  const auto router = test::random_normals(2, shape.num_experts * shape.hidden, 0.25F);
  const auto correction = test::random_normals(3, shape.num_experts, 0.5F);
  constexpr float kFactor = 1.75F;
  for (const auto weighting : {ExpertWeighting::kSigmoid, ExpertWeighting::kChosenSigmoid}) {
    Choices plain, expected;
    ref::route(plain.params(shape, rows.matrix(DType::kFloat32), router, weighting));
    auto params = expected.params(shape, rows.matrix(DType::kFloat32), router, weighting);
    params.correction = correction.data();
    params.factor = kFactor;
    ref::route(params);
    EXPECT_NE(expected.experts, plain.experts);
    if (weighting == ExpertWeighting::kChosenSigmoid) {
      EXPECT_NEAR(expected.weights[0] + expected.weights[1] + expected.weights[2], kFactor, 1e-5);
    }
    for (const Context& context : test::contexts()) {
      Choices choices;
      auto own = choices.params(shape, rows.matrix(DType::kFloat32), router, weighting);
      own.correction = correction.data();
      own.factor = kFactor;
      cpu::route(own, context);
      EXPECT_EQ(choices.experts, expected.experts) << test::to_string(context);
      // Sums of 67 products of some tenths in float32; the sigmoid's slope is at most 1/4.
      EXPECT_THAT(choices.weights, testing::Pointwise(testing::FloatNear(2e-6F), expected.weights));
    }
  }
}

TEST(Route, OfEqualLogitsTakesTheLowerIndexOnEveryDevice) {
  const Shape shape{4, 16, 0, 6, 3};
  const Rows rows(shape);
  const std::vector<float> router(static_cast<size_t>(shape.num_experts * shape.hidden), 0.5F);
  Choices choices;
  const auto expect_the_first = [&] {
    for (size_t i = 0; i < choices.experts.size(); ++i) {
      EXPECT_EQ(choices.experts[i], static_cast<int32_t>(i % 3));
      EXPECT_EQ(choices.weights[i], 1.0F / 3);
    }
  };
  const auto a = rows.matrix(DType::kFloat32);
  ref::route(choices.params(shape, a, router, ExpertWeighting::kChosenSoftmax));
  expect_the_first();
  for (const Context& context : test::contexts()) {
    cpu::route(choices.params(shape, a, router, ExpertWeighting::kChosenSoftmax), context);
    expect_the_first();
  }
}

// Context-parallel ranks rely on this, because the other rows next to a row differ between them.
TEST(Route, ARowsBitsDoNotDependOnTheRowsBesideIt) {
  const Shape shape{200, 300, 0, 16, 4};
  const Rows rows(shape);
  const auto router = test::random_normals(2, shape.num_experts * shape.hidden, 0.1F);
  for (const Context& context : test::contexts()) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      const auto all_rows = rows.matrix(dtype);
      Choices all;
      cpu::route(all.params(shape, all_rows, router, ExpertWeighting::kSoftmax), context);
      for (const int64_t row : {0, 77, 199}) {
        auto one_row = all_rows;
        one_row.rows = 1;
        one_row.data =
            static_cast<const std::byte*>(all_rows.data) + row * rows.stride * dtype_bytes(dtype);
        Choices one;
        cpu::route(one.params(shape, one_row, router, ExpertWeighting::kSoftmax), context);
        for (size_t n = 0; n < 4; ++n) {
          EXPECT_EQ(one.experts[n], all.experts[static_cast<size_t>(row * 4) + n]);
          EXPECT_EQ(one.weights[n], all.weights[static_cast<size_t>(row * 4) + n]);
        }
      }
    }
  }
}

TEST(Route, LogitsThatAreNoNumbersChooseExpertsThatExist) {
  const Shape shape{2, 16, 0, 5, 3};
  Rows rows(shape);
  rows.f32[3] = std::numeric_limits<float>::quiet_NaN();
  const auto router = test::random_normals(2, shape.num_experts * shape.hidden);
  Choices choices;
  cpu::route(choices.params(shape, rows.matrix(DType::kFloat32), router, ExpertWeighting::kSoftmax),
             {});
  for (const size_t first : {0, 3}) {
    std::vector<int32_t> own(choices.experts.begin() + static_cast<ptrdiff_t>(first),
                             choices.experts.begin() + static_cast<ptrdiff_t>(first) + 3);
    std::ranges::sort(own);
    EXPECT_GE(own.front(), 0);
    EXPECT_LT(own.back(), 5);
    EXPECT_EQ(std::ranges::adjacent_find(own), own.end());
  }
  EXPECT_TRUE(std::isnan(choices.weights[0]));
  EXPECT_FALSE(std::isnan(choices.weights[3]));
}

// The MLPs of a mixture, and their expected result.
class Mixture {
 public:
  Mixture(const Shape& shape, std::vector<int32_t> experts)
      : shape_(shape),
        rows_(shape),
        experts_(std::move(experts)),
        gate_up_bf16_(
            test::narrow(test::random_normals(3, shape.num_experts * 2 * shape.width * shape.hidden,
                                              1 / std::sqrt(static_cast<float>(shape.hidden))))),
        down_bf16_(
            test::narrow(test::random_normals(4, shape.num_experts * shape.hidden * shape.width,
                                              1 / std::sqrt(static_cast<float>(shape.width))))),
        gate_up_(test::widen(gate_up_bf16_)),
        down_(test::widen(down_bf16_)),
        before_(test::random_normals(6, shape.rows * shape.hidden)) {
    for (size_t i = 0; i < experts_.size(); ++i) weights_.push_back(test::random_uniform(5, i));
  }

  // Biases as in gpt-oss.
  Mixture& with_biases() {
    const auto& s = shape_;
    gate_up_bias_ = test::random_normals(7, s.num_experts * 2 * s.width);
    down_bias_ = test::random_normals(8, s.num_experts * s.hidden);
    activation_ = {Activation::Kind::kClamped, 1.702F, 1.5F};
    return *this;
  }

  // Without scratch.
  ExpertsParams params(DType dtype, bool accumulate, float* out) const {
    const bool f32 = dtype == DType::kFloat32;
    const auto& s = shape_;
    return {.a = rows_.matrix(dtype),
            .num_experts = s.num_experts,
            .experts_per_row = s.experts_per_row,
            .experts = experts_.data(),
            .weights = weights_.data(),
            .gate_up =
                dense_matrix(f32 ? static_cast<const void*>(gate_up_.data()) : gate_up_bf16_.data(),
                             dtype, s.num_experts * 2 * s.width, s.hidden),
            .down = dense_matrix(f32 ? static_cast<const void*>(down_.data()) : down_bf16_.data(),
                                 dtype, s.num_experts * s.hidden, s.width),
            .activation = activation_,
            .gate_up_bias = gate_up_bias_.empty() ? nullptr : gate_up_bias_.data(),
            .down_bias = down_bias_.empty() ? nullptr : down_bias_.data(),
            .out = out,
            .accumulate = accumulate};
  }

  std::vector<float> reference(bool accumulate) const {
    auto out = before_;
    ref::experts(params(DType::kFloat32, accumulate, out.data()));
    return out;
  }

  // One row and one expert at a time, in float32. The inputs of products are rounded to `dtype`.
  std::vector<float> naive(DType dtype, bool accumulate) const {
    const auto& s = shape_;
    auto out = before_;
    if (!accumulate) std::ranges::fill(out, 0.0F);
    std::vector<float> products(static_cast<size_t>(2 * s.width)), result(s.hidden);
    std::vector<float> activated(static_cast<size_t>(s.width));
    const auto row_of = [](float* data, int64_t cols) {
      return dense_matrix(data, DType::kFloat32, 1, cols);
    };
    const auto part_of = [](const std::vector<float>& weights, int64_t part, int64_t rows,
                            int64_t cols) {
      return dense_matrix(static_cast<const void*>(weights.data() + part * rows * cols),
                          DType::kFloat32, rows, cols);
    };
    const auto bias_of = [](const std::vector<float>& biases, int64_t part, int64_t count) {
      return biases.empty() ? nullptr : biases.data() + part * count;
    };
    for (size_t i = 0; i < experts_.size(); ++i) {
      const auto row = static_cast<int64_t>(i) / s.experts_per_row;
      auto a = rows_.matrix(DType::kFloat32);
      a.data = rows_.f32.data() + row * rows_.stride;
      a.rows = 1;
      naive::gemm({.a = a,
                   .b = part_of(gate_up_, experts_[i], 2 * s.width, s.hidden),
                   .bias = bias_of(gate_up_bias_, experts_[i], 2 * s.width),
                   .c = row_of(products.data(), 2 * s.width)});
      naive::activate({.gate_up = products.data(),
                       .activation = activation_,
                       .out = row_of(activated.data(), s.width)});
      if (dtype == DType::kBFloat16) activated = test::widen(test::narrow(activated));
      naive::gemm({.a = row_of(activated.data(), s.width),
                   .b = part_of(down_, experts_[i], s.hidden, s.width),
                   .bias = bias_of(down_bias_, experts_[i], s.hidden),
                   .c = row_of(result.data(), s.hidden)});
      for (int64_t c = 0; c < s.hidden; ++c) out[row * s.hidden + c] += weights_[i] * result[c];
    }
    return out;
  }

  // There are guards around the scratch, which holds exactly `rows` rows.
  void expect_as_good_as_naive(const Context& context, DType dtype, bool accumulate) const {
    SCOPED_TRACE(fmt::format("{} rows, {} of {} experts, {}, accumulate {}, {}", shape_.rows,
                             shape_.experts_per_row, shape_.num_experts, dtype_name(dtype),
                             accumulate, test::to_string(context)));
    const int64_t element = dtype_bytes(dtype);
    GuardedBuffer<std::byte> gathered(shape_.rows * shape_.hidden * element);
    GuardedBuffer<float> products(shape_.rows * 2 * shape_.width);
    GuardedBuffer<std::byte> activated(shape_.rows * shape_.width * element);
    GuardedBuffer<float> outputs(shape_.rows * shape_.hidden);
    GuardedBuffer<float> out(before_);
    auto p = params(dtype, accumulate, out.data());
    p.gathered = gathered.data();
    p.products = products.data();
    p.activated = activated.data();
    p.outputs = outputs.data();
    cpu::Gemm gemm(context);
    cpu::Float8Products float8_products(context, gemm);
    cpu::Experts(context, gemm, float8_products).run(p);
    const auto expected = reference(accumulate);
    EXPECT_TRUE(as_good_as_naive(out.span(), naive(dtype, accumulate), expected,
                                 float32_rounding(expected)));
    EXPECT_TRUE(gathered.guards_intact() && products.guards_intact() && out.guards_intact() &&
                activated.guards_intact() && outputs.guards_intact());
  }

  void expect_as_good_as_naive() const {
    for (const Context& context : test::contexts()) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        for (const bool accumulate : {false, true}) {
          expect_as_good_as_naive(context, dtype, accumulate);
        }
      }
    }
  }

 private:
  Shape shape_;
  Rows rows_;
  std::vector<int32_t> experts_;
  std::vector<float> weights_;
  std::vector<BFloat16> gate_up_bf16_, down_bf16_;
  std::vector<float> gate_up_, down_;
  std::vector<float> before_;  // in `out`
  Activation activation_;
  std::vector<float> gate_up_bias_, down_bias_;
};

// Row r gets experts r, r + step, ..., modulo their number.
std::vector<int32_t> even_choices(const Shape& shape, int32_t step) {
  std::vector<int32_t> experts;
  for (int64_t row = 0; row < shape.rows; ++row) {
    for (int32_t n = 0; n < shape.experts_per_row; ++n) {
      experts.push_back(static_cast<int32_t>((row + n * step) % shape.num_experts));
    }
  }
  return experts;
}

TEST(Experts, MatchReferenceWhereRowsSpreadEvenly) {
  const Shape shape{37, 48, 24, 5, 2};
  Mixture(shape, even_choices(shape, 3)).expect_as_good_as_naive();
}

TEST(Experts, MatchReferenceWhereARowHasOneOrAll) {
  const Shape one{11, 32, 16, 3, 1};
  Mixture(one, even_choices(one, 1)).expect_as_good_as_naive();
  const Shape all{11, 32, 16, 3, 3};
  Mixture(all, even_choices(all, 1)).expect_as_good_as_naive();
  const Shape single{1, 32, 16, 4, 4};
  Mixture(single, even_choices(single, 1)).expect_as_good_as_naive();
}

TEST(Experts, MatchReferenceWithBiasesAndAnotherActivation) {
  const Shape shape{37, 48, 24, 5, 2};
  Mixture(shape, even_choices(shape, 3)).with_biases().expect_as_good_as_naive();
}

// Expert 2 has all rows, which fills the scratch; 0 and 3 have none.
TEST(Experts, MatchReferenceWhereAllRowsChooseOneAndNoneAnother) {
  const Shape shape{29, 32, 40, 5, 2};
  std::vector<int32_t> experts;
  for (int64_t row = 0; row < shape.rows; ++row) {
    experts.push_back(2);
    experts.push_back(row % 7 == 0 ? 4 : 1);
  }
  Mixture(shape, experts).expect_as_good_as_naive();
}

// There are guards around the scratch. Both sides round the activations to `dtype` and take the
// nearest codes. Sums that differ in float32's last bits put a few numbers on the other side of a
// border between two codes; one of thousands, off by an eighth at most, is 2e-3 in root mean
// square.
void expect_float8_mixture(test::Float8Mixture& mixture, DType dtype, bool accumulate,
                           const Context& context) {
  const auto& shape = mixture.shape;
  SCOPED_TRACE(fmt::format("{} rows, {} of {} experts of {}, {}, accumulate {}, {}", shape.rows,
                           shape.experts_per_row, shape.num_experts, shape.width, dtype_name(dtype),
                           accumulate, test::to_string(context)));
  GuardedBuffer<std::byte> gathered(shape.rows * shape.hidden * dtype_bytes(dtype));
  GuardedBuffer<float> products(shape.rows * 2 * shape.width);
  GuardedBuffer<std::byte> activated(shape.rows * shape.width * dtype_bytes(dtype));
  GuardedBuffer<Float8> quantized(shape.rows * shape.width);
  GuardedBuffer<float> row_scales(shape.rows), outputs(shape.rows * shape.hidden);
  GuardedBuffer<float> out(mixture.before);
  auto p = mixture.params(shape.rows, dtype, out.data(), accumulate);
  p.gathered = gathered.data();
  p.products = products.data();
  p.activated = activated.data();
  p.quantized = quantized.data();
  p.row_scales = row_scales.data();
  p.outputs = outputs.data();
  cpu::Gemm gemm(context);
  cpu::Float8Products float8_products(context, gemm);
  cpu::Experts(context, gemm, float8_products).run(p);
  const std::vector<float> actual(out.span().begin(), out.span().end());
  EXPECT_LT(test::relative_error(actual, mixture.reference(dtype, accumulate)), 2e-3);
  EXPECT_TRUE(gathered.guards_intact() && products.guards_intact() && activated.guards_intact() &&
              quantized.guards_intact() && row_scales.guards_intact() && outputs.guards_intact() &&
              out.guards_intact());
}

TEST(Float8Experts, AreTheReferences) {
  const Shape even{37, 48, 24, 5, 2}, one{11, 32, 16, 3, 1}, single{1, 32, 16, 4, 4};
  const Shape odd{29, 33, 17, 5, 2};
  for (const Shape& s : {even, one, single, odd}) {
    test::Float8Mixture mixture({s.rows, s.hidden, s.width, s.num_experts, s.experts_per_row},
                                even_choices(s, 1));
    for (const Context& context : test::contexts()) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        for (const bool accumulate : {false, true}) {
          expect_float8_mixture(mixture, dtype, accumulate, context);
        }
      }
    }
  }
}

TEST(ExpertRows, AreSortedByExpertAndRow) {
  cpu::ExpertRows rows;
  const std::vector<int32_t> experts = {3, 0, 0, 3, 1, 3};
  rows.sort(experts.data(), /*num_rows=*/3, /*experts_per_row=*/2, /*num_experts=*/4);
  const auto choices = [&](int32_t expert) {
    const auto found = rows.choices_of(expert);
    return std::vector<int64_t>(found.begin(), found.end());
  };
  EXPECT_EQ(choices(0), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(choices(1), (std::vector<int64_t>{4}));
  EXPECT_EQ(choices(2), std::vector<int64_t>());
  EXPECT_EQ(choices(3), (std::vector<int64_t>{0, 3, 5}));
}

TEST(ExpertRows, HeightsOfProductsAreFewAndNotMuchMoreThanTheRows) {
  int64_t num_heights = 0, last = 0;
  for (int64_t rows = 1; rows <= 1024; ++rows) {
    const int64_t height = expert_product_rows(rows, 1024);
    EXPECT_GE(height, rows);
    EXPECT_LE(height * 4, rows * 5);
    if (height != last) ++num_heights;
    last = height;
  }
  EXPECT_EQ(num_heights, 36);
  EXPECT_EQ(expert_product_rows(701, 701), 701);
}

TEST(ExpertRows, ScratchHasRoomWhereEveryExpertRoundsUp) {
  EXPECT_EQ(expert_scratch_rows(/*num_rows=*/10, /*num_experts=*/4, /*experts_per_row=*/2,
                                /*row_step=*/0),
            10);
  EXPECT_EQ(expert_scratch_rows(0, 4, 2, 128), 0);
  // One choice a row, of few of the experts.
  EXPECT_EQ(expert_scratch_rows(1, 64, 8, 128), 8 * 128);
  // 9, 9, 5 and 3 rows take 12, 12, 8 and 4.
  EXPECT_EQ(expert_scratch_rows(26, 4, 1, 4), 36);
  int64_t last = 0;
  for (int64_t rows = 0; rows < 100; ++rows) {
    const int64_t scratch = expert_scratch_rows(rows, 5, 3, 16);
    EXPECT_GE(scratch, last);
    EXPECT_EQ(scratch % 16, 0);
    last = scratch;
  }
}

}  // namespace
}  // namespace millrace::kernels
