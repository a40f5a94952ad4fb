// Parts of models that a device does not compute: said by name, before the weights are read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "model/weights.h"
#include "tests/unit/model/memory_device.h"

namespace millrace::model {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(ModelWeights, RefusesPartsThatADeviceDoesNotCompute) {
  struct Case {
    const char* model;  // of tests/models/architectures
    const char* architecture;
    const char* what;
  };
  for (const auto& [model, architecture, what] :
       {Case{"gemma3", "Gemma3ForCausalLM", "SiLU only"},
        Case{"glm4", "Glm4ForCausalLM", "turn neighbours"},
        Case{"glm4-moe", "", "8 experts in a layer"},
        Case{"gpt-oss", "", "4 experts in a layer"}}) {
    SCOPED_TRACE(model);
    test::MemoryDevice device(1);
    const auto loaded = load_model_weights(
        std::string(MILLRACE_SOURCE_DIR) + "/tests/models/architectures/" + model, {0, 1},
        DType::kBFloat16, device);
    ASSERT_FALSE(loaded.ok());
    EXPECT_EQ(loaded.error().code, Errc::kUnsupported);
    EXPECT_THAT(loaded.error().message,
                AllOf(HasSubstr(architecture), HasSubstr(what), HasSubstr("--device cpu")));
  }
}

}  // namespace
}  // namespace millrace::model
