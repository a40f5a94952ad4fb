// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/runtime/matmul_cache.h"

#include <algorithm>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>
#include <vector>

#include "common/check.h"

namespace millrace::kernels::cpu {
namespace {

using dnnl::memory;

memory::data_type data_type(DType dtype) {
  MR_CHECK(dtype != DType::kFloat16, "gemm of float16");
  return dtype == DType::kFloat32 ? memory::data_type::f32 : memory::data_type::bf16;
}

// Without data handles, which are attached for each run.
struct MemoryDescriptors {
  memory::desc a;
  memory::desc b;
  memory::desc c;
  memory::desc bias;  // empty without one

  explicit MemoryDescriptors(const MatmulShape& s)
      : a({s.m, s.k}, data_type(s.dtype), memory::dims{s.a_stride, 1}),
        b({s.k, s.n}, data_type(s.dtype), memory::dims{1, s.b_stride}),
        c({s.m, s.n}, memory::data_type::f32, memory::dims{s.c_stride, 1}) {
    if (s.has_bias) bias = memory::desc({1, s.n}, memory::data_type::f32, memory::dims{s.n, 1});
  }
};

dnnl::matmul::primitive_desc describe(const MemoryDescriptors& mem, bool accumulate,
                                      const dnnl::engine& engine) {
  dnnl::primitive_attr attributes;
  if (accumulate) {
    dnnl::post_ops add_to_c;
    add_to_c.append_sum(1.0F);
    attributes.set_post_ops(add_to_c);
  }
#if DNNL_VERSION_MAJOR >= 3
  return {engine, mem.a, mem.b, mem.bias, mem.c, attributes};
#else
  return {dnnl::matmul::desc(mem.a, mem.b, mem.bias, mem.c), attributes, engine};
#endif
}

}  // namespace

struct MatmulCache::Entry {
  MatmulShape shape;
  std::unordered_map<int, memory> arguments;
  dnnl::matmul primitive;
};

struct MatmulCache::State {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::vector<Entry> entries;  // most recently used first
};

bool multiplies_in_tiles() {
#if defined(__x86_64__)
  // The number of an instruction set has the bits of all those that it includes.
  const auto tiles = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_amx);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & tiles) == tiles;
#else
  return false;
#endif
}

MatmulCache::MatmulCache(int capacity) : state_(std::make_unique<State>()), capacity_(capacity) {
  MR_CHECK(capacity >= 1, "matmul cache of {} entries", capacity);
}
MatmulCache::~MatmulCache() = default;

MatmulCache::Entry& MatmulCache::find_or_compile(const MatmulShape& shape) {
  auto& entries = state_->entries;
  const auto found = std::find_if(entries.begin(), entries.end(),
                                  [&](const Entry& entry) { return entry.shape == shape; });
  if (found != entries.end()) {
    std::rotate(entries.begin(), found, found + 1);
    return entries.front();
  }
  const MemoryDescriptors mem(shape);
  const auto& engine = state_->engine;
  std::unordered_map<int, memory> arguments = {{DNNL_ARG_SRC, memory(mem.a, engine, nullptr)},
                                               {DNNL_ARG_WEIGHTS, memory(mem.b, engine, nullptr)},
                                               {DNNL_ARG_DST, memory(mem.c, engine, nullptr)}};
  if (shape.has_bias) arguments.emplace(DNNL_ARG_BIAS, memory(mem.bias, engine, nullptr));
  if (static_cast<int>(entries.size()) == capacity_) entries.pop_back();
  entries.insert(entries.begin(), Entry{shape, std::move(arguments),
                                        dnnl::matmul(describe(mem, shape.accumulate, engine))});
  ++num_compiled_;
  return entries.front();
}

void MatmulCache::run(const MatmulShape& shape, const MatmulOperands& operands) {
  Entry& entry = find_or_compile(shape);
  // oneDNN's handles are not const; a, b and bias are only read.
  const auto attach = [&](int argument, const void* data) {
    entry.arguments.at(argument).set_data_handle(const_cast<void*>(data));
  };
  attach(DNNL_ARG_SRC, operands.a);
  attach(DNNL_ARG_WEIGHTS, operands.b);
  attach(DNNL_ARG_DST, operands.c);
  if (shape.has_bias) attach(DNNL_ARG_BIAS, operands.bias);
  entry.primitive.execute(state_->stream, entry.arguments);
  state_->stream.wait();
}

}  // namespace millrace::kernels::cpu
