// Tests that the pipeline computes the same as the plain model, bit for bit. The cases are every
// model × balance × number of chunks × checkpoint mode × entry, and for the last entry any schedule
// that can run.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <random>
#include <string>
#include <tuple>

#include "gpipe/gpipe.h"
#include "gpipe/schedule/random_schedule.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/plain_model.h"
#include "gpipe/testing/sample_models.h"
#include "gpipe/testing/seed.h"
#include "gpipe/testing/torch_seed.h"

namespace gpipe {
namespace {

using testing::BackwardOrder;
using testing::EqualsBitwise;
using testing::on_host;
using testing::PlainModel;
using testing::SampleModel;

enum class Entry { kForward, kStep1F1B, kStepGPipe, kStepRandom };

constexpr int64_t kRows = 7;  // 7 rows in 4 chunks give micro-batches of 2, 2, 2 and 1

void expect_same(const torch::OrderedDict<std::string, torch::Tensor>& expected,
                 const torch::OrderedDict<std::string, torch::Tensor>& actual,
                 const std::string& what) {
  ASSERT_EQ(expected.keys(), actual.keys());
  for (const auto& entry : expected) {
    EXPECT_THAT(on_host(actual[entry.key()]), EqualsBitwise(entry.value()))
        << what << " " << entry.key();
  }
}

void expect_same_gradients(const torch::nn::Module& expected, const torch::nn::Module& actual) {
  const auto parameters = actual.named_parameters();
  for (const auto& entry : expected.named_parameters()) {
    const torch::Tensor want = entry.value().grad();
    const torch::Tensor have = parameters[entry.key()].grad();
    ASSERT_EQ(want.defined(), have.defined()) << entry.key();
    if (want.defined()) {
      EXPECT_THAT(on_host(have), EqualsBitwise(want)) << "gradient of " << entry.key();
    }
  }
}

class Transparency
    : public ::testing::TestWithParam<std::tuple<size_t, int64_t, int64_t, Checkpoint, Entry>> {};

TEST_P(Transparency, EqualsPlainModelBitwise) {
  const auto [which, partitions, chunks, mode, entry] = GetParam();
  const SampleModel& sample = testing::sample_models()[which];
  at::set_num_threads(1);
  std::mt19937_64 random = testing::test_random();
  for (const std::vector<int64_t>& balance : testing::all_balances(sample.layers, partitions)) {
    SCOPED_TRACE(::testing::PrintToString(balance));
    auto plain_module = sample.make();
    PlainModel plain(plain_module, chunks);
    auto pipe_module = sample.make();
    GPipe pipe(pipe_module, GPipeOptions(balance)
                                .devices(testing::devices(partitions))
                                .chunks(chunks)
                                .checkpoint(mode));
    Tensors plain_inputs = sample.inputs(kRows);
    Tensors pipe_inputs = testing::on(testing::device(), sample.inputs(kRows));
    plain_inputs[0].requires_grad_();
    pipe_inputs[0].requires_grad_();
    const Tensors targets = sample.targets(kRows);
    const Tensors pipe_targets = testing::on(testing::device(partitions - 1), targets);
    // The test runs two rounds without zeroing the gradients, so that accumulation and running
    // statistics go on.
    for (int round = 0; round < 2; ++round) {
      StepResult expected;
      StepResult actual;
      std::string table;
      testing::manual_seed(100 + round);
      if (entry == Entry::kForward) {
        expected = plain.forward_backward(plain_inputs, targets, sample.loss);
        testing::manual_seed(100 + round);
        actual.outputs = pipe->forward(pipe_inputs);
        torch::Tensor loss = sample.loss(actual.outputs, pipe_targets);
        loss.backward();
        actual.loss = loss.item<double>();
      } else {
        const bool ascending = entry != Entry::kStepGPipe;
        expected = plain.step(plain_inputs, targets, sample.loss,
                              ascending ? BackwardOrder::kAscending : BackwardOrder::kDescending);
        testing::manual_seed(100 + round);
        StepOptions options;
        options.keep_outputs(true);
        if (!ascending) options.schedule(Schedule::gpipe);
        if (entry == Entry::kStepRandom) {
          options.schedule(testing::random_schedule(partitions, chunks,
                                                    testing::MicroBatchOrder::kAscending, random));
        }
        table = options.schedule_for(partitions, chunks).to_text();
        actual = pipe->step(pipe_inputs, pipe_targets, sample.loss, options);
      }
      SCOPED_TRACE(table);
      EXPECT_EQ(expected.loss, actual.loss);
      ASSERT_EQ(expected.outputs.size(), actual.outputs.size());
      for (size_t k = 0; k < expected.outputs.size(); ++k) {
        EXPECT_THAT(on_host(actual.outputs[k]), EqualsBitwise(expected.outputs[k]))
            << "output " << k;
      }
      expect_same_gradients(*plain_module, *pipe);
      expect_same(plain_module->named_buffers(), pipe->named_buffers(), "buffer");
      EXPECT_THAT(on_host(pipe_inputs[0].grad()), EqualsBitwise(plain_inputs[0].grad()));
    }
  }
}

std::string case_name(const ::testing::TestParamInfo<Transparency::ParamType>& info) {
  static const char* const kEntries[] = {"forward", "step_1f1b", "step_gpipe", "step_random"};
  return testing::sample_models()[std::get<0>(info.param)].name + "_p" +
         std::to_string(std::get<1>(info.param)) + "_c" + std::to_string(std::get<2>(info.param)) +
         "_" + to_text(std::get<3>(info.param)) + "_" +
         kEntries[static_cast<int>(std::get<4>(info.param))];
}

INSTANTIATE_TEST_SUITE_P(
    All, Transparency,
    ::testing::Combine(::testing::Range(size_t{0}, testing::sample_models().size()),
                       ::testing::Values(1, 2, 3), ::testing::Values(1, 4),
                       ::testing::Values(Checkpoint::kAlways, Checkpoint::kExceptLast,
                                         Checkpoint::kNever),
                       ::testing::Values(Entry::kForward, Entry::kStep1F1B, Entry::kStepGPipe,
                                         Entry::kStepRandom)),
    case_name);

}  // namespace
}  // namespace gpipe
