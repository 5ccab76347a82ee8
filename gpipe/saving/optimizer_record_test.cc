#include "gpipe/saving/optimizer_record.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/testing/bitwise.h"

namespace gpipe::internal {
namespace {

using gpipe::testing::EqualsBitwise;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::optim::Optimizer;

// Two parameters "a" and "b", and an optimizer of them.
struct Training {
  std::vector<at::Tensor> parameters;
  ParameterNames names;
  std::unique_ptr<Optimizer> optimizer;

  explicit Training(
      const std::function<std::unique_ptr<Optimizer>(std::vector<at::Tensor>)>& make) {
    for (const char* name : {"a", "b"}) {
      parameters.push_back(at::linspace(1, 2, 3).set_requires_grad(true));
      names.emplace(parameters.back().unsafeGetTensorImpl(), name);
    }
    optimizer = make(parameters);
  }

  // `k` makes steps of their own.
  void step(double k) {
    for (const at::Tensor& parameter : parameters) {
      parameter.mutable_grad() = at::linspace(-k, 1.5 * k, 3);
    }
    optimizer->step();
  }
};

std::vector<std::string> tensor_names(const OptimizerRecord& record) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : record.tensors) names.push_back(name);
  return names;
}

void load(Training& run, const OptimizerRecord& record) {
  // As a file would have it.
  const auto text = nlohmann::json::parse(record.text.dump());
  check_record(*run.optimizer, run.names, text, tensor_names(record));
  restore(*run.optimizer, run.names, text, tensor_names(record), [&](const std::string& name) {
    for (const auto& [key, tensor] : record.tensors) {
      if (key == name) return tensor.clone();
    }
    throw std::logic_error(name);
  });
}

template <typename T, typename Options>
auto maker(Options options) {
  return [options](std::vector<at::Tensor> parameters) -> std::unique_ptr<Optimizer> {
    return std::make_unique<T>(std::move(parameters), options);
  };
}

TEST(OptimizerRecord, LetsEachOptimizerGoOn) {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace): five of its names
  const std::vector<std::function<std::unique_ptr<Optimizer>(std::vector<at::Tensor>)>> makers = {
      maker<SGD>(SGDOptions(0.1)),
      maker<SGD>(SGDOptions(0.1).momentum(0.9).nesterov(true)),
      maker<Adam>(AdamOptions(0.1).amsgrad(true)),
      maker<AdamW>(AdamWOptions(0.1)),
      maker<RMSprop>(RMSpropOptions(0.1).momentum(0.5).centered(true)),
      maker<Adagrad>(AdagradOptions(0.1)),
  };
  for (const auto& make : makers) {
    Training run(make), resumed(make);
    for (const double k : {1.0, 0.5}) run.step(k);
    for (size_t i = 0; i < 2; ++i) {
      resumed.parameters[i].set_data(run.parameters[i].detach().clone());
    }
    load(resumed, record_of(*run.optimizer, run.names));
    for (const double k : {2.0, 0.25}) {
      run.step(k);
      resumed.step(k);
    }
    EXPECT_THAT(resumed.parameters[0], EqualsBitwise(run.parameters[0]));
    EXPECT_THAT(resumed.parameters[1], EqualsBitwise(run.parameters[1]));
  }
}

// By name, not by place.
TEST(OptimizerRecord, IsReadInAnotherOrderOfParameters) {
  const auto make = maker<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9));
  Training run(make);
  run.parameters[0].mutable_grad() = at::full({3}, 5);
  run.optimizer->step();
  Training other([&](std::vector<at::Tensor> parameters) {
    std::swap(parameters[0], parameters[1]);
    return make(parameters);
  });
  load(other, record_of(*run.optimizer, run.names));
  const OptimizerRecord record = record_of(*other.optimizer, other.names);
  EXPECT_EQ(tensor_names(record), std::vector<std::string>{"a/momentum_buffer"});
  EXPECT_THAT(record.tensors[0].second, EqualsBitwise(at::full({3}, 5)));
}

TEST(OptimizerRecord, HasOptionsAsTheyAre) {
  using torch::optim::AdamOptions;
  Training run(maker<torch::optim::Adam>(
      AdamOptions(0.1).betas({0.3, 0.7}).weight_decay(std::numeric_limits<double>::infinity())));
  Training other(maker<torch::optim::Adam>(AdamOptions(0.5)));
  load(other, record_of(*run.optimizer, run.names));
  const auto& options =
      static_cast<const AdamOptions&>(other.optimizer->param_groups()[0].options());
  EXPECT_EQ(options.lr(), 0.1);
  EXPECT_EQ(options.betas(), std::make_tuple(0.3, 0.7));
  EXPECT_EQ(options.weight_decay(), std::numeric_limits<double>::infinity());
}

TEST(OptimizerRecord, RemovesStatesThatItDoesNotHave) {
  const auto make = maker<torch::optim::Adam>(torch::optim::AdamOptions(0.1));
  Training fresh(make), used(make);
  used.step(1);
  load(used, record_of(*fresh.optimizer, fresh.names));
  EXPECT_TRUE(used.optimizer->state().empty());
}

TEST(OptimizerRecord, OfAnotherOptimizerIsRefused) {
  Training adam(maker<torch::optim::Adam>(torch::optim::AdamOptions(0.1)));
  Training sgd(maker<torch::optim::SGD>(torch::optim::SGDOptions(0.1)));
  adam.step(1);
  const OptimizerRecord record = record_of(*adam.optimizer, adam.names);
  EXPECT_THAT(
      [&] { load(sgd, record); },
      ThrowsMessage<c10::ValueError>(HasSubstr("torch::optim::Adam, not of torch::optim::SGD")));

  Training fewer([](const std::vector<at::Tensor>& parameters) {
    return std::make_unique<torch::optim::Adam>(std::vector<at::Tensor>{parameters[0]},
                                                torch::optim::AdamOptions(0.1));
  });
  EXPECT_THAT([&] { load(fewer, record); }, ThrowsMessage<c10::ValueError>(HasSubstr("'b'")));

  OptimizerRecord torn = record;
  torn.text["values"].erase("b");
  EXPECT_THAT([&] { load(adam, torn); },
              ThrowsMessage<c10::ValueError>(HasSubstr("but no state of 'b'")));
}

TEST(OptimizerRecord, SaysWhichOptimizersItCannotHold) {
  Training run(maker<torch::optim::LBFGS>(torch::optim::LBFGSOptions(0.1).max_iter(3)));
  run.optimizer->step([&] {
    run.optimizer->zero_grad();
    const at::Tensor loss = run.parameters[0].pow(4).sum() + run.parameters[1].pow(2).sum();
    loss.backward();
    return loss;
  });
  EXPECT_THAT([&] { record_of(*run.optimizer, run.names); },
              ThrowsMessage<c10::NotImplementedError>(HasSubstr("the state of 'a'")));
}

TEST(OptimizerRecord, OfAParameterThatIsNotTheModelsIsRefused) {
  Training run(maker<torch::optim::SGD>(torch::optim::SGDOptions(0.1)));
  run.names.erase(run.parameters[1].unsafeGetTensorImpl());
  EXPECT_THAT([&] { record_of(*run.optimizer, run.names); },
              ThrowsMessage<c10::ValueError>(HasSubstr("shape [3]")));
}

}  // namespace
}  // namespace gpipe::internal
