#include "gpipe/saving/states_to_come.h"

#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <vector>

#include "gpipe/optim/muon.h"
#include "gpipe/saving/optimizer_record.h"
#include "safetensors/safetensors.h"

namespace gpipe::internal {
namespace {

using Parameters = std::vector<at::Tensor>;

int64_t file_bytes(const torch::optim::Optimizer& optimizer, const ParameterNames& names) {
  const OptimizerRecord record = record_of(optimizer, names);
  const safetensors::Image image =
      safetensors::image_of(record.tensors, {{"optimizer", record.text.dump()}});
  return static_cast<int64_t>(image.header.size()) + image.data_bytes;
}

TEST(BytesToCome, AreThoseByWhichTheFileGrows) {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace): five of its names
  const std::vector<std::function<std::unique_ptr<Optimizer>(Parameters)>> makers = {
      [](Parameters all) { return std::make_unique<SGD>(all, SGDOptions(0.1)); },
      [](Parameters all) { return std::make_unique<SGD>(all, SGDOptions(0.1).momentum(0.9)); },
      [](Parameters all) { return std::make_unique<Adam>(all, AdamOptions(0.1)); },
      [](Parameters all) { return std::make_unique<Adam>(all, AdamOptions(0.1).amsgrad(true)); },
      [](Parameters all) { return std::make_unique<AdamW>(all, AdamWOptions(0.1)); },
      [](Parameters all) { return std::make_unique<RMSprop>(all, RMSpropOptions(0.1)); },
      [](Parameters all) {
        return std::make_unique<RMSprop>(all, RMSpropOptions(0.1).momentum(0.5).centered(true));
      },
      [](Parameters all) { return std::make_unique<Adagrad>(all, AdagradOptions(0.1)); },
      [](Parameters all) { return std::make_unique<Muon>(all, MuonOptions(0.1)); },
      [](Parameters all) {
        return std::make_unique<Muon>(all, MuonOptions(0.1).kind(MuonKind::kAdamW));
      },
  };
  for (size_t k = 0; k < makers.size(); ++k) {
    Parameters parameters;
    ParameterNames names;
    for (const int64_t width : {20, 30}) {
      parameters.push_back(at::ones({width, 40}).set_requires_grad(true));
      parameters.back().mutable_grad() = at::ones({width, 40});
      names[parameters.back().unsafeGetTensorImpl()] = std::to_string(names.size()) + ".weight";
    }
    const auto optimizer = makers[k](parameters);
    const int64_t before = file_bytes(*optimizer, names) + bytes_to_come(*optimizer);
    optimizer->step();
    const int64_t after = file_bytes(*optimizer, names);
    EXPECT_EQ(bytes_to_come(*optimizer), 0);
    EXPECT_NEAR(static_cast<double>(before), static_cast<double>(after), 300) << k;
  }
}

}  // namespace
}  // namespace gpipe::internal
