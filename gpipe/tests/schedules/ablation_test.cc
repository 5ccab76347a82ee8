// Tests GPipeOptions::ablation: the results stay the same, and the options do what they say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <algorithm>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/sample_models.h"
#include "gpipe/testing/seed.h"
#include "gpipe/testing/torch_seed.h"
#include "skip/testing.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using skip::testing::pop_layer;
using skip::testing::stash_layer;
using testing::EqualsBitwise;
using testing::SampleModel;

class AblationTest : public testing::DeviceTest {};

// Returns outputs, loss and gradients of a step, and the gradients of a forward and its backward.
Tensors results(const SampleModel& sample, const GPipeOptions& options,
                const ScheduleGenerator& schedule) {
  GPipe pipe(sample.make(), options);
  testing::manual_seed(3);  // for the random draws
  const StepResult result =
      pipe->step(testing::on(pipe->devices().front(), sample.inputs(7)),
                 testing::on(pipe->devices().back(), sample.targets(7)), sample.loss,
                 StepOptions().schedule(schedule).keep_outputs(true));
  Tensors all = result.outputs;
  all.push_back(torch::tensor(result.loss, torch::kDouble));
  for (const at::Tensor& parameter : pipe->parameters()) all.push_back(parameter.grad());
  // The gradients are computed by forward and backward, too.
  pipe->zero_grad();
  testing::manual_seed(3);
  const Tensors outputs = pipe->forward(testing::on(pipe->devices().front(), sample.inputs(7)));
  sample.loss(outputs, testing::on(pipe->devices().back(), sample.targets(7))).backward();
  for (const at::Tensor& parameter : pipe->parameters()) all.push_back(parameter.grad());
  for (at::Tensor& tensor : all) tensor = testing::on_host(tensor);
  return all;
}

TEST_F(AblationTest, ResultsStayBitwiseTheSame) {
  at::set_num_threads(1);
  std::mt19937_64 random = testing::test_random();
  for (const SampleModel& sample : testing::sample_models()) {
    for (const int64_t partitions : {int64_t{3}, std::min<int64_t>(sample.layers, 5)}) {
      std::vector<std::vector<int64_t>> balances = testing::all_balances(sample.layers, partitions);
      std::shuffle(balances.begin(), balances.end(), random);
      balances.resize(std::min<size_t>(balances.size(), 3));
      for (const std::vector<int64_t>& balance : balances) {
        for (const Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kExceptLast}) {
          const ScheduleGenerator schedule =
              random() % 2 == 0 ? Schedule::gpipe : Schedule::one_f_one_b;
          const GPipeOptions options = GPipeOptions(balance)
                                           .devices(testing::devices(partitions))
                                           .chunks(3)
                                           .checkpoint(mode);
          const Tensors expected = results(sample, options, schedule);
          for (const Ablation& ablation :
               {Ablation{false, true, false}, Ablation{false, false, false},
                Ablation{true, true, true}, Ablation{false, false, true}}) {
            SCOPED_TRACE(sample.name + " " + ::testing::PrintToString(balance) + " " +
                         to_text(mode));
            const Tensors actual =
                results(sample, GPipeOptions(options).ablation(ablation), schedule);
            ASSERT_EQ(actual.size(), expected.size());
            for (size_t k = 0; k < actual.size(); ++k) {
              ASSERT_EQ(actual[k].defined(), expected[k].defined());
              if (!actual[k].defined()) continue;
              EXPECT_THAT(actual[k], EqualsBitwise(expected[k]));
            }
          }
        }
      }
    }
  }
}

TEST_F(AblationTest, SkipsGoThroughEveryStage) {
  const auto routes = [](bool direct) {
    nn::Sequential model(stash_layer({"a"}), stash_layer({"b"}), nn::Linear(4, 4),
                         pop_layer({"a", "b"}));
    return GPipe(model, GPipeOptions({1, 1, 1, 1})
                            .devices(testing::devices(4))
                            .ablation({direct, true, false}))
        ->routes()
        .to_text();
  };
  EXPECT_EQ(routes(true),
            "0: 0 -> 1 activation\n1: 1 -> 2 activation\n2: 2 -> 3 activation\n"
            "3: 0 -> 3 'a'\n4: 1 -> 3 'b'\n");
  EXPECT_EQ(routes(false),
            "0: 0 -> 1 activation\n1: 1 -> 2 activation\n2: 2 -> 3 activation\n"
            "3: 0 -> 1 'a'\n4: 1 -> 2 'a'\n5: 2 -> 3 'a'\n6: 1 -> 2 'b'\n7: 2 -> 3 'b'\n");
}

TEST_F(AblationTest, TheLastPartitionRecomputesBeforeItsFirstBackward) {
  for (const bool early : {false, true}) {
    std::vector<std::string> log;
    struct Logging : nn::Module {
      explicit Logging(std::vector<std::string>& log) : log(log) {}
      at::Tensor forward(const at::Tensor& x) {
        if (is_recomputing()) log.emplace_back("recompute");
        return x * 1;
      }
      std::vector<std::string>& log;
    };
    nn::Sequential model(nn::Linear(4, 4), std::make_shared<Logging>(log));
    GPipe pipe(model, GPipeOptions({1, 1})
                          .devices(testing::devices(2))
                          .chunks(3)
                          .checkpoint(Checkpoint::kAlways)
                          .ablation({true, true, early}));
    std::vector<bool> recomputed;
    pipe->step(
        {torch::rand({6, 4}, testing::device())}, {},
        [](const Tensors& outputs, const Tensors&) { return outputs[0].sum(); },
        StepOptions().schedule(Schedule::gpipe).on_event([&](const Event& event) {
          if (event.worker != 1 || event.action.kind != ActionKind::kBackward) return;
          if (event.edge == Event::Edge::kBegin) {
            log.push_back(event.action.to_text());
          } else {
            recomputed.push_back(event.recompute_begin < event.recompute_end);
          }
        }));
    if (early) {
      EXPECT_EQ(log, (std::vector<std::string>{"B1.2", "recompute", "recompute", "recompute",
                                               "B1.1", "B1.0"}));
      EXPECT_EQ(recomputed, (std::vector<bool>{true, false, false}));
    } else {
      EXPECT_EQ(log, (std::vector<std::string>{"B1.2", "recompute", "B1.1", "recompute", "B1.0",
                                               "recompute"}));
      EXPECT_EQ(recomputed, (std::vector<bool>{true, true, true}));
    }
  }
}

TEST_F(AblationTest, AnErrorNamesTheMicroBatchThatIsRecomputed) {
  bool fails = true;
  struct Failing : nn::Module {
    explicit Failing(bool& fails) : fails(fails) {}
    at::Tensor forward(const at::Tensor& x) {
      if (is_recomputing() && fails && ++recomputes == 2) throw std::runtime_error("broken");
      return x * 1;
    }
    bool& fails;
    int recomputes = 0;
  };
  nn::Sequential model(nn::Linear(4, 4), std::make_shared<Failing>(fails));
  GPipe pipe(model, GPipeOptions({1, 1})
                        .devices(testing::devices(2))
                        .chunks(3)
                        .checkpoint(Checkpoint::kAlways)
                        .ablation({true, true, true}));
  const auto step = [&] {
    pipe->step(
        {torch::rand({6, 4}, testing::device())}, {},
        [](const Tensors& outputs, const Tensors&) { return outputs[0].sum(); },
        StepOptions().schedule(Schedule::gpipe));
  };
  // All micro-batches are recomputed before the first backward, which is that of micro-batch 2. So
  // the second recompute, which fails, is that of micro-batch 1.
  EXPECT_THAT(step, ::testing::ThrowsMessage<std::runtime_error>(
                        ::testing::HasSubstr("stage 1, micro-batch 1, layer 1")));
  ASSERT_TRUE(pipe->last_failure().has_value());
  EXPECT_EQ(pipe->last_failure()->micro_batch, 1);
  EXPECT_EQ(pipe->last_failure()->layer, "layer 1 ('1')");
  fails = false;
  step();
  EXPECT_FALSE(pipe->last_failure().has_value());
}

TEST_F(AblationTest, AGraphThatIsKeptIsRecomputedAgain) {
  testing::manual_seed(4);
  nn::Sequential model(nn::Linear(4, 4), nn::Tanh());
  GPipe pipe(model, GPipeOptions({1, 1})
                        .devices(testing::devices(2))
                        .chunks(3)
                        .checkpoint(Checkpoint::kAlways)
                        .ablation({true, true, true}));
  const at::Tensor loss = pipe->forward(torch::rand({6, 4}, testing::device())).sum();
  loss.backward({}, /*retain_graph=*/true);
  const at::Tensor once = testing::on_host(pipe->parameters()[0].grad()).clone();
  pipe->zero_grad();
  loss.backward();
  EXPECT_THAT(testing::on_host(pipe->parameters()[0].grad()), EqualsBitwise(once));
}

}  // namespace
}  // namespace gpipe
