// Small models of each family against what Python's transformers 5.24.0 computed:
// testdata/transformers/make_families.py. Live, with all published configs and changes of their
// fields: transformers_families.py.
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cctype>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/testing/bitwise.h"
#include "models/hash_fill.h"
#include "models/hugging_face.h"
#include "models/hugging_face_config.h"
#include "models/transformer.h"
#include "safetensors/safetensors.h"

namespace gpipe::models {
namespace {

using gpipe::testing::EqualsBitwise;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

nlohmann::json json_of(const std::string& name) {
  std::ifstream file("models/testdata/transformers/" + name);
  return nlohmann::json::parse(file);
}

fs::path scratch() {
  static int count = 0;
  const fs::path path = fs::path(::testing::TempDir()) / ("family" + std::to_string(count++));
  fs::create_directories(path);
  return path;
}

at::Tensor hashes(uint32_t k, int64_t count) {
  const at::Tensor values = at::empty({count}, at::kDouble);
  overwrite(values, [&](int64_t i) { return hash_value(k, static_cast<uint32_t>(i)); });
  return values;
}

// Tensors by the names that the parameters have in Hugging Face's files.
using Tensors = std::map<std::string, at::Tensor>;

Tensors saved(const TransformerOptions& options, const torch::nn::Sequential& model) {
  const fs::path folder = scratch();
  save_hugging_face(folder, options, *model);
  Tensors tensors;
  const safetensors::File file(folder / "model.safetensors");
  for (const auto& [name, entry] : file.header().tensors) tensors[name] = file.read(name);
  return tensors;
}

torch::nn::Sequential filled(const TransformerOptions& options) {
  torch::nn::Sequential model = transformer(options);
  Tensors tensors = saved(options, model);
  uint32_t k = 0;
  for (auto& [name, tensor] : tensors) {
    const at::Tensor values = hashes(k++, tensor.numel()).view(tensor.sizes());
    const double scale = std::sqrt(3 / static_cast<double>(tensor.size(-1)));
    tensor = (tensor.dim() > 1 ? scale * values : tensor + 0.3 * values).to(at::kFloat);
  }
  const fs::path folder = scratch();
  safetensors::write(folder / "model.safetensors", {tensors.begin(), tensors.end()});
  load_hugging_face(folder, options, *model);
  model->to(at::kDouble);
  model->eval();
  return model;
}

class Families : public ::testing::TestWithParam<nlohmann::json> {};
std::string name_of(const ::testing::TestParamInfo<nlohmann::json>& info) {
  std::string name = info.param["name"];
  for (char& each : name) {
    if (std::isalnum(static_cast<unsigned char>(each)) == 0) each = '_';
  }
  return name;
}
INSTANTIATE_TEST_SUITE_P(Small, Families, ::testing::ValuesIn(json_of("families.json")), name_of);

TEST_P(Families, LogitsAndGradientsAreThoseOfTransformers) {
  const TransformerOptions options = options_from_config(GetParam()["config"].dump());
  torch::nn::Sequential model = filled(options);
  const std::vector<double> want = GetParam()["logits"];
  const auto tokens = static_cast<int64_t>(want.size());
  const at::Tensor ids = at::arange(tokens).mul(7).remainder(29).unsqueeze(0);
  const at::Tensor sums = at::matmul(model->forward(ids)[0], hashes(1000, 29));
  // Each sum is over some thirty numbers of order one, in double precision.
  const at::Tensor apart = (sums - at::tensor(want, at::kDouble)).abs().max();
  EXPECT_LE(apart.item<double>(), 1e-12);
  (sums * hashes(2000, tokens)).sum().backward();
  {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : model->parameters()) parameter.copy_(parameter.grad());
  }
  double sum = 0;
  uint32_t k = 3000;
  for (const auto& [name, gradient] : saved(options, model)) {
    sum += gradient.flatten().dot(hashes(k++, gradient.numel())).item<double>();
  }
  // The sum is over a thousand numbers of order ten, so the bound is larger than above.
  EXPECT_NEAR(sum, GetParam()["gradient"].get<double>(), 1e-10);
}

TEST_P(Families, APipelineHasTheBitsOfThePlainModel) {
  const TransformerOptions options = options_from_config(GetParam()["config"].dump());
  const auto compute = [&](const auto& forward, const std::vector<at::Tensor>& parameters) {
    std::vector<at::Tensor> results = {forward(at::arange(22).remainder(29).view({2, 11}))};
    results[0].pow(2).sum().backward();
    for (const at::Tensor& parameter : parameters) results.push_back(parameter.grad());
    return results;
  };
  torch::nn::Sequential plain = filled(options);
  const auto want =
      compute([&](const at::Tensor& ids) { return plain->forward(ids); }, plain->parameters());
  const auto layers = static_cast<int64_t>(plain->size());
  GPipe pipe(filled(options), GPipeOptions({2, 2, layers - 4})
                                  .devices({3, c10::Device(c10::kCPU)})
                                  .cpu_threads_per_stage(at::get_num_threads()));
  pipe->eval();
  const auto have =
      compute([&](const at::Tensor& ids) { return pipe->forward(ids); }, pipe->parameters());
  EXPECT_THAT(have, EqualsBitwise(want));
}

TEST(PublishedConfigs, AreReadOrRefusedWithTheReason) {
  const std::map<std::string, std::string> refused = {
      {"clex-llama-7b-auto_map", "rotary positions of the type 'clex' are not computed here"},
      {"deepseek-v2-lite", "'deepseek_v2' is a mixture of experts (n_routed_experts)"},
      {"gpt-j", "got 'gptj'"},
      {"llama-2-13b-bnb4", "the model is quantized (quantization_config: bitsandbytes)"},
      {"llama-3.1-8b-bnb8-rope-linear", "the model is quantized"},
      {"phi-2", "got 'phi-msft', which is a class of the folder's own (auto_map)"}};
  size_t read = 0;
  const nlohmann::json published = json_of("published.json");
  for (const auto& [name, config] : published.items()) {
    SCOPED_TRACE(name);
    const auto expected = refused.find(name);
    try {
      const TransformerOptions options = options_from_config(config.dump());
      ++read;
      EXPECT_TRUE(expected == refused.end());
      // A config that is read, written and read again gives the same options, whether it is written
      // anew or on the basis of the text that was read.
      const std::string anew = config_from_options(options, c10::kFloat);
      EXPECT_EQ(config_from_options(options_from_config(anew), c10::kFloat), anew);
      EXPECT_EQ(nlohmann::json::parse(config_from_options(options, std::nullopt, config.dump())),
                config);
    } catch (const std::runtime_error& error) {
      ASSERT_TRUE(expected != refused.end()) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(expected->second));
    }
  }
  EXPECT_EQ(read, 44u);
}

}  // namespace
}  // namespace gpipe::models
