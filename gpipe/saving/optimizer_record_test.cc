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

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/testing/bitwise.h"
#include "safetensors/safetensors.h"

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

  // Makes a step with gradients that depend on `k`.
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

at::Tensor& tensor_of(OptimizerRecord& record, const std::string& name) {
  for (auto& [key, tensor] : record.tensors) {
    if (key == name) return tensor;
  }
  throw std::logic_error(name);
}

// Loads a record as it would come from a file: its text is written as JSON and read again.
void load(Training& run, OptimizerRecord record, int64_t part_bytes = 1000) {
  const auto text = nlohmann::json::parse(record.text.dump());
  TensorKinds kinds;
  for (const auto& [name, tensor] : record.tensors) {
    kinds[name] = kind_of(safetensors::type_name(tensor.scalar_type()), tensor.sizes());
  }
  check_record(*run.optimizer, run.names, text, kinds);
  const auto read = [&](const std::string& name) { return tensor_of(record, name).clone(); };
  restore(*run.optimizer, run.names, text, read, part_bytes);
}

void expect_same(const Training& reference, const Training& other) {
  const OptimizerRecord a = record_of(*reference.optimizer, reference.names);
  const OptimizerRecord b = record_of(*other.optimizer, other.names);
  EXPECT_EQ(a.text, b.text);
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    EXPECT_EQ(a.tensors[i].first, b.tensors[i].first);
    EXPECT_THAT(a.tensors[i].second, EqualsBitwise(b.tensors[i].second)) << a.tensors[i].first;
  }
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
      maker<Adam>(AdamOptions(0.1)),
      maker<Adam>(AdamOptions(0.1).amsgrad(true)),
      maker<AdamW>(AdamWOptions(0.1)),
      maker<RMSprop>(RMSpropOptions(0.1)),
      maker<RMSprop>(RMSpropOptions(0.1).momentum(0.5).centered(true)),
      maker<Adagrad>(AdagradOptions(0.1).lr_decay(0.1).initial_accumulator_value(0.2)),
  };
  for (const auto& make : makers) {
    Training run(make), resumed(make);
    for (const double k : {1.0, 0.5}) run.step(k);
    for (size_t i = 0; i < 2; ++i) {
      resumed.parameters[i].set_data(run.parameters[i].detach().clone());
    }
    load(resumed, record_of(*run.optimizer, run.names));
    expect_same(run, resumed);
    for (const double k : {2.0, 0.25}) {
      run.step(k);
      resumed.step(k);
    }
    EXPECT_THAT(resumed.parameters[0], EqualsBitwise(run.parameters[0]));
    EXPECT_THAT(resumed.parameters[1], EqualsBitwise(run.parameters[1]));
  }
}

// States are matched by the names of parameters, not by their order.
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
  const double infinity = std::numeric_limits<double>::infinity();
  const auto options_of = [](Training& run) -> AdamOptions& {
    return static_cast<AdamOptions&>(run.optimizer->param_groups()[0].options());
  };
  const auto make = maker<torch::optim::Adam>(AdamOptions(0.5));
  Training run(make), other(make);
  options_of(run).lr(-infinity).betas({0.3, 1.0 / 3}).weight_decay(infinity).amsgrad(true);
  options_of(run).eps(std::numeric_limits<double>::quiet_NaN());
  load(other, record_of(*run.optimizer, run.names));
  EXPECT_EQ(options_of(other).lr(), -infinity);
  EXPECT_EQ(options_of(other).betas(), std::make_tuple(0.3, 1.0 / 3));
  EXPECT_EQ(options_of(other).weight_decay(), infinity);
  EXPECT_TRUE(options_of(other).amsgrad());
  EXPECT_TRUE(std::isnan(options_of(other).eps()));
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
}

// Each group keeps its own parameters and options. A record with other groups than the optimizer's
// is refused.
TEST(OptimizerRecord, HasGroups) {
  using torch::optim::AdamOptions;
  const auto make = [](double first, double second, bool both = true) {
    return [=](const std::vector<at::Tensor>& parameters) {
      std::vector<torch::optim::OptimizerParamGroup> groups;
      groups.emplace_back(std::vector<at::Tensor>{parameters[0]},
                          std::make_unique<AdamOptions>(first));
      if (both) {
        groups.emplace_back(std::vector<at::Tensor>{parameters[1]},
                            std::make_unique<AdamOptions>(second));
      }
      return std::make_unique<torch::optim::Adam>(groups, AdamOptions(1));
    };
  };
  Training run(make(0.1, 0.01)), other(make(5, 6));
  run.step(1);
  load(other, record_of(*run.optimizer, run.names));
  expect_same(run, other);
  EXPECT_EQ(other.optimizer->param_groups()[1].options().get_lr(), 0.01);

  const auto flat = maker<torch::optim::Adam>(AdamOptions(0.1));
  Training one_group(flat);
  EXPECT_THAT([&] { load(one_group, record_of(*run.optimizer, run.names)); },
              ThrowsMessage<c10::ValueError>(HasSubstr("2 groups of parameters, this one has 1")));
  Training fewer(make(0.1, 0, false));
  EXPECT_THAT([&] { load(one_group, record_of(*fewer.optimizer, fewer.names)); },
              ThrowsMessage<c10::ValueError>(HasSubstr("'b' is 0 times in group 0")));
  EXPECT_THAT([&] { load(fewer, record_of(*one_group.optimizer, one_group.names)); },
              ThrowsMessage<c10::ValueError>(HasSubstr("'b' is 1 times in group 0")));
}

// LibTorch's parameters() lists a tied parameter once for each of its names, so the optimizer has
// it twice. The record has its states once.
TEST(OptimizerRecord, HasAParameterThatIsThereTwiceOnce) {
  const auto twice = [](std::vector<at::Tensor> parameters) {
    parameters.push_back(parameters[0]);
    return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(0.1));
  };
  Training run(twice), other(twice);
  run.step(1);
  const OptimizerRecord record = record_of(*run.optimizer, run.names);
  EXPECT_THAT(tensor_names(record), ::testing::UnorderedElementsAre("a/exp_avg", "a/exp_avg_sq",
                                                                    "b/exp_avg", "b/exp_avg_sq"));
  load(other, record);
  expect_same(run, other);
  Training once(maker<torch::optim::Adam>(torch::optim::AdamOptions(0.1)));
  EXPECT_THAT([&] { load(once, record); },
              ThrowsMessage<c10::ValueError>(HasSubstr("'a' is 2 times in group 0")));
}

TEST(OptimizerRecord, IsReadInParts) {
  const auto make = maker<torch::optim::Adam>(torch::optim::AdamOptions(0.1));
  Training run(make);
  run.step(1);
  for (const int64_t part_bytes : {1, 25, 1000}) {
    Training other(make);
    load(other, record_of(*run.optimizer, run.names), part_bytes);
    expect_same(run, other);
  }
}

// A record is refused if its tensors are not those that its text lists, or do not fit the
// optimizer. The optimizer must be unchanged then.
TEST(OptimizerRecord, ThatIsNotWholeIsRefused) {
  const auto make = maker<torch::optim::Adam>(torch::optim::AdamOptions(0.1));
  Training run(make);
  run.step(1);
  const auto expect = [&](const std::function<void(OptimizerRecord&)>& change,
                          const std::string& text) {
    OptimizerRecord record = record_of(*run.optimizer, run.names);
    change(record);
    Training other(make), same(make);
    for (Training* training : {&other, &same}) {
      training->optimizer->param_groups()[0].options().set_lr(0.7);
      training->step(3);
    }
    EXPECT_THAT([&] { load(other, record, 1); }, ThrowsMessage<c10::ValueError>(HasSubstr(text)));
    expect_same(other, same);
  };
  expect([](OptimizerRecord& record) { record.tensors.erase(record.tensors.begin()); },
         "the checkpoint has no 'a/exp_avg'");
  expect([](OptimizerRecord& record) { record.tensors.emplace_back("a/more", at::ones({3})); },
         "'a/more', which is not a state");
  expect([](OptimizerRecord& record) { record.text["states"].erase("b"); },
         "'b/exp_avg', which is not a state");
  expect(
      [](OptimizerRecord& record) {
        record.text["states"]["c"] = {{"step", 1}};
      },
      "a state of 'c', which the optimizer does not have");
  expect([](OptimizerRecord& record) { tensor_of(record, "b/exp_avg") = at::ones({4}); },
         "'b/exp_avg' is F32 [4], it should be F32 [3]");
  expect(
      [](OptimizerRecord& record) { tensor_of(record, "b/exp_avg") = at::ones({3}, at::kDouble); },
      "'b/exp_avg' is F64 [3], it should be F32 [3]");
  expect(
      [](OptimizerRecord& record) {
        tensor_of(record, "b/exp_avg") = at::ones({4});
        record.text["states"]["b"]["exp_avg"] = {{"tensor", "F32 [4]"}};
      },
      "'b/exp_avg' is F32 [4], and the parameter [3]");
  // A number that is missing for "b" is found only by the optimizer, after the states of "a" have
  // been read.
  expect([](OptimizerRecord& record) { record.text["states"]["b"].erase("step"); },
         "torch::optim::Adam cannot read the checkpoint's states");
  const auto options = [](OptimizerRecord& record) -> nlohmann::json& {
    return record.text["groups"][0]["options"];
  };
  expect([&](OptimizerRecord& record) { options(record).erase("lr"); },
         "option 'lr' of group 0 is missing in the checkpoint, and 0.7 in the optimizer");
  expect([&](OptimizerRecord& record) { options(record)["more"] = 1; },
         "option 'more' of group 0 is 1 in the checkpoint, and missing in the optimizer");
  expect([&](OptimizerRecord& record) { options(record)["lr"] = 1; },
         "option 'lr' of group 0 is 1 in the checkpoint, and 0.7 in the optimizer");
}

TEST(OptimizerRecord, ThatCannotBeReadChangesNothing) {
  const auto make = maker<torch::optim::Adam>(torch::optim::AdamOptions(0.1));
  Training run(make), other(make), same(make);
  for (const double k : {1.0, 2.0}) run.step(k);
  for (Training* training : {&other, &same}) {
    training->optimizer->param_groups()[0].options().set_lr(0.7);
    training->step(3);
  }
  const OptimizerRecord record = record_of(*run.optimizer, run.names);
  EXPECT_THAT(
      [&] {
        restore(
            *other.optimizer, other.names, record.text,
            [](const std::string& name) {
              if (name == "b/exp_avg") throw std::runtime_error("the disk");
              return at::ones({3});
            },
            1);
      },
      ThrowsMessage<std::runtime_error>("the disk"));
  expect_same(other, same);
}

TEST(OptimizerRecord, SaysWhichOptimizersItCannotHold) {
  Training run(maker<torch::optim::LBFGS>(torch::optim::LBFGSOptions(0.1)));
  // LBFGS is refused before its first step, too, so a run does not fail after hours.
  EXPECT_THAT([&] { record_of(*run.optimizer, run.names); },
              ThrowsMessage<c10::NotImplementedError>(HasSubstr("LBFGS has states that LibTorch")));
}

TEST(OptimizerRecord, OfAParameterThatIsNotTheModelsIsRefused) {
  Training run(maker<torch::optim::SGD>(torch::optim::SGDOptions(0.1)));
  run.names.erase(run.parameters[1].unsafeGetTensorImpl());
  EXPECT_THAT([&] { record_of(*run.optimizer, run.names); },
              ThrowsMessage<c10::ValueError>(HasSubstr("shape [3]")));
}

}  // namespace
}  // namespace gpipe::internal
