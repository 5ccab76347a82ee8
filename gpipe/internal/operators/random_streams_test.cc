#include "gpipe/internal/operators/random_streams.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/SequenceNumber.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_cudnn_rnn.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <thread>
#include <tuple>
#include <vector>

#include "gpipe/checkpoint.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/torch_seed.h"
#include "interception/interception.h"

namespace gpipe::internal {
namespace {

using ::testing::AllOf;
using testing::EqualsBitwise;
using ::testing::HasSubstr;

// The draw is so long that two streams never draw the same.
at::Tensor draw() { return torch::randn({16}, at::kDouble); }

class RandomStreamsTest : public ::testing::Test {
 protected:
  const InterceptionScope interception_;
  RandomStreams streams_;
};

TEST_F(RandomStreamsTest, DrawsDependOnEachPartOfTheirPlaceAndOnNothingElse) {
  const std::vector<std::function<void(RandomStreams&)>> places = {
      [](RandomStreams& s) { s.enter(5, 1, 2); },
      [](RandomStreams& s) { s.enter(6, 1, 2); },
      [](RandomStreams& s) { s.enter(5, 2, 2); },
      [](RandomStreams& s) { s.enter(5, 1, 3); },
      [](RandomStreams& s) { s.enter(5, 2, 1); },
      [](RandomStreams& s) { s.enter(5, 1, -1); },
      [](RandomStreams& s) { s.enter_backward(5, 1, 2, 0); },
      [](RandomStreams& s) { s.enter_backward(6, 1, 2, 0); },
      [](RandomStreams& s) { s.enter_backward(5, 2, 2, 0); },
      [](RandomStreams& s) { s.enter_backward(5, 1, 3, 0); },
      [](RandomStreams& s) { s.enter_backward(5, 1, 2, 1); },
  };
  std::vector<at::Tensor> drawn;
  for (const auto& enter : places) {
    const RandomStreamsScope scope(&streams_);
    enter(streams_);
    drawn.push_back(draw());
    drawn.push_back(draw());
  }
  for (size_t a = 0; a < drawn.size(); ++a) {
    for (size_t b = 0; b < a; ++b) EXPECT_FALSE(drawn[a].equal(drawn[b])) << a << ", " << b;
  }
  // The places come in the opposite order, in another object, after other draws from the process's
  // generator. Still each place draws what it drew before.
  (void)at::rand({3});
  RandomStreams others;
  const RandomStreamsScope scope(&others);
  for (size_t k = places.size(); k-- > 0;) {
    places[k](others);
    EXPECT_THAT(draw(), EqualsBitwise(drawn[2 * k])) << k;
    EXPECT_THAT(draw(), EqualsBitwise(drawn[2 * k + 1])) << k;
  }
}

// The draws of the first operator do not change those of the second.
TEST_F(RandomStreamsTest, EachDrawHasAStreamOfItsOwn) {
  const RandomStreamsScope scope(&streams_);
  streams_.enter(1, 2, 3);
  (void)torch::rand({1});
  const at::Tensor second = draw();
  streams_.enter(1, 2, 3);
  (void)torch::randperm(1000);
  EXPECT_THAT(draw(), EqualsBitwise(second));
}

TEST_F(RandomStreamsTest, TheGeneratorOfTheProcessIsLeftAlone) {
  const at::Tensor state = at::detail::getDefaultCPUGenerator().get_state();
  const RandomStreamsScope scope(&streams_);
  streams_.enter(1, 2, 3);
  (void)draw();
  (void)at::dropout(torch::ones({8}), 0.5, true);
  EXPECT_THAT(at::detail::getDefaultCPUGenerator().get_state(), EqualsBitwise(state));
}

TEST_F(RandomStreamsTest, AGivenGeneratorIsUsedAndIsNotADrawOfTheStream) {
  const auto seeded = [] { return at::detail::createCPUGenerator(42); };
  const at::Tensor expected = at::rand({8}, seeded());
  const RandomStreamsScope scope(&streams_);
  streams_.enter(1, 2, 3);
  const at::Tensor first = draw();
  streams_.enter(1, 2, 3);
  EXPECT_THAT(at::rand({8}, seeded()), EqualsBitwise(expected));
  EXPECT_THAT(draw(), EqualsBitwise(first));
}

TEST_F(RandomStreamsTest, ARecomputeDrawsAgainFromAGivenGeneratorAndLeavesItAlone) {
  at::Generator generator = at::detail::createCPUGenerator(42);
  GivenGenerators given;
  const RandomStreamsScope scope(&streams_, nullptr, &given);
  at::Tensor first, second;
  {
    const CheckpointPhaseScope phase(CheckpointPhase::kCheckpointing);
    first = at::rand({8}, generator);
    second = at::randperm(8, generator);
  }
  EXPECT_EQ(given.states.size(), 2u);
  const at::Tensor state = generator.get_state();
  for (int repeat = 0; repeat < 2; ++repeat) {  // a graph that is kept is recomputed twice
    const CheckpointPhaseScope phase(CheckpointPhase::kRecomputing);
    given.next = 0;
    EXPECT_THAT(at::rand({8}, generator), EqualsBitwise(first));
    EXPECT_THAT(at::randperm(8, generator), EqualsBitwise(second));
  }
  EXPECT_THAT(generator.get_state(), EqualsBitwise(state));
  // Outside of checkpointed cells, and in cells without a recompute, no state is kept, and the
  // generator goes on.
  EXPECT_FALSE(at::rand({8}, generator).equal(first));
  EXPECT_EQ(given.states.size(), 2u);
}

TEST_F(RandomStreamsTest, ARecurrentLayerWithADropoutOfItsOwnIsRefusedInACheckpointedCell) {
  const at::Tensor x = at::ones({2, 2, 2});
  const auto run = [&](double dropout, bool train) {
    (void)at::_cudnn_rnn(x, {x}, 4, {}, x, {}, 2, 2, 0, 1, false, dropout, train, false, {}, {});
  };
  const auto refused = ::testing::ThrowsMessage<c10::Error>(
      AllOf(HasSubstr("aten::_cudnn_rnn"), HasSubstr("Checkpoint::kNever")));
  // A call that this test lets pass reaches LibTorch, which has no such operator for the CPU.
  const auto passed = ::testing::ThrowsMessage<c10::Error>(HasSubstr("Could not run"));
  const RandomStreamsScope scope(&streams_);
  EXPECT_THAT([&] { run(0.5, true); }, passed);
  const CheckpointPhaseScope phase(CheckpointPhase::kCheckpointing);
  EXPECT_THAT([&] { run(0.5, true); }, refused);
  EXPECT_THAT([&] { run(0, true); }, passed);
  EXPECT_THAT([&] { run(0.5, false); }, passed);
}

// The kernels of these operators are for GPUs, so only their names are tested here. The test
// generators_test runs them where there are GPUs.
TEST_F(RandomStreamsTest, OperatorsThatDrawWithoutAGeneratorAreSeen) {
  const RandomStreamsScope scope(&streams_);
  const auto seen = [](const char* name) {
    return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").hasKernelForDispatchKey(
        kInterceptionKey);
  };
  for (const char* const name :
       {"aten::_scaled_dot_product_flash_attention",
        "aten::_scaled_dot_product_efficient_attention",
        "aten::_scaled_dot_product_cudnn_attention",
        "aten::_scaled_dot_product_fused_attention_overrideable", "aten::_flash_attention_forward",
        "aten::_efficient_attention_forward", "aten::_cudnn_attention_forward", "aten::_cudnn_rnn",
        "aten::miopen_rnn", "aten::_lstm_mps", "aten::native_dropout"}) {
    EXPECT_TRUE(seen(name)) << name;
  }
  // These operators draw nothing, or draw by operators that are seen.
  for (const char* const name :
       {"aten::scaled_dot_product_attention", "aten::_scaled_dot_product_attention_math",
        "aten::_scaled_dot_product_flash_attention_backward", "aten::_fused_sdp_choice",
        "aten::dropout", "aten::_cudnn_rnn_backward"}) {
    EXPECT_FALSE(seen(name)) << name;
  }
}

TEST_F(RandomStreamsTest, TheFusedDropoutDrawsFromTheStream) {
  const RandomStreamsScope scope(&streams_);
  const at::Tensor x = torch::rand({64}) + 1;
  streams_.enter(1, 2, 3);
  const auto [first, mask] = at::native_dropout(x, 0.75, true);
  const at::Tensor after = draw();
  (void)torch::rand({5});
  streams_.enter(1, 2, 3);
  EXPECT_THAT(std::get<0>(at::native_dropout(x, 0.75, true)), EqualsBitwise(first));
  EXPECT_THAT(draw(), EqualsBitwise(after));
  EXPECT_THAT(first, EqualsBitwise(x * mask * 4));
  EXPECT_TRUE(mask.any().item<bool>());
  EXPECT_FALSE(mask.all().item<bool>());
}

TEST_F(RandomStreamsTest, WithoutInterceptionOrScopeTheProcessDraws) {
  testing::manual_seed(1);
  const at::Tensor expected = draw();
  testing::manual_seed(1);
  EXPECT_EQ(RandomStreams::current(), nullptr);
  EXPECT_THAT(draw(), EqualsBitwise(expected));
  const RandomStreamsScope scope(&streams_);
  streams_.enter(1, 2, 3);
  testing::manual_seed(1);
  const InterceptionPause pause;
  EXPECT_THAT(draw(), EqualsBitwise(expected));
}

TEST_F(RandomStreamsTest, AScopeRestoresThePreviousOneAndItsLog) {
  const torch::NoGradGuard no_grad;
  RandomStreams other;
  std::vector<DrawRecord> log;
  {
    const RandomStreamsScope outer(&streams_, &log);
    EXPECT_EQ(RandomStreams::current(), &streams_);
    {
      const RandomStreamsScope inner(&other);
      EXPECT_EQ(RandomStreams::current(), &other);
      (void)draw();
    }
    EXPECT_EQ(RandomStreams::current(), &streams_);
    {
      const RandomStreamsScope unlogged(&streams_);
      (void)draw();
    }
    EXPECT_TRUE(log.empty());
    (void)draw();
    EXPECT_EQ(log.size(), 1u);
  }
  EXPECT_EQ(RandomStreams::current(), nullptr);
}

TEST_F(RandomStreamsTest, OnlyDrawsUnderNoGradAreRecorded) {
  std::vector<DrawRecord> log;
  const RandomStreamsScope scope(&streams_, &log);
  streams_.enter(1, 2, 3);
  (void)draw();
  EXPECT_TRUE(log.empty());
  const torch::NoGradGuard no_grad;
  (void)draw();
  streams_.enter(1, 2, 4);
  const uint64_t node = at::sequence_number::peek();
  (void)draw();
  ASSERT_EQ(log.size(), 2u);
  EXPECT_EQ(log[0].layer, 3);
  EXPECT_EQ(log[0].number, 1);
  EXPECT_EQ(log[1].layer, 4);
  EXPECT_EQ(log[1].number, 0);
  EXPECT_EQ(log[1].sequence_nr, node);
}

TEST_F(RandomStreamsTest, ARecordTellsWhereTheDrawsAreRepeated) {
  std::vector<DrawRecord> log;
  at::Tensor second, third;
  {
    const RandomStreamsScope scope(&streams_, &log);
    streams_.enter(1, 2, 3);
    (void)draw();
    const torch::NoGradGuard no_grad;
    second = draw();
    third = draw();
  }
  ASSERT_EQ(log.size(), 2u);
  RandomStreams others;
  const RandomStreamsScope scope(&others);
  others.enter(9, 9, 9);
  others.repeat(1, 2, log[0]);
  EXPECT_THAT(draw(), EqualsBitwise(second));
  EXPECT_THAT(draw(), EqualsBitwise(third));
  others.repeat(1, 3, log[0]);
  EXPECT_FALSE(draw().equal(second)) << "another micro-batch";
}

TEST_F(RandomStreamsTest, AGeneratorIsForTheNextDraw) {
  const RandomStreamsScope scope(&streams_);
  streams_.enter(1, 2, 3);
  const at::Tensor first = draw(), second = draw();
  streams_.enter(1, 2, 3);
  EXPECT_EQ(streams_.generator(c10::kCPU).device(), c10::Device(c10::kCPU));
  EXPECT_THAT(draw(), EqualsBitwise(second));
  streams_.enter(1, 2, 3);
  EXPECT_THAT(at::randn({16}, streams_.generator(c10::kCPU), at::kDouble), EqualsBitwise(first));
}

TEST_F(RandomStreamsTest, AnotherThreadDrawsFromItsOwn) {
  const RandomStreamsScope scope(&streams_);
  RandomStreams* seen = &streams_;
  std::thread([&] { seen = RandomStreams::current(); }).join();
  EXPECT_EQ(seen, nullptr);
}

// Autograd's engine starts a node on its own thread with the state of the thread that called
// backward. So draws there are those of the caller.
TEST_F(RandomStreamsTest, AThreadThatAutogradUsesDrawsForItsCaller) {
  auto on_thread = [](const at::ThreadLocalState& state) {
    RandomStreams* seen = nullptr;
    std::thread([&] {
      const at::ThreadLocalStateGuard guard(state);
      seen = RandomStreams::current();
    }).join();
    return seen;
  };
  RandomStreams inner;
  {
    const RandomStreamsScope unseen(&streams_);
    EXPECT_EQ(on_thread(at::ThreadLocalState()), nullptr) << "the scope did not ask for it";
  }
  {
    const RandomStreamsScope outer_scope(&streams_, nullptr, nullptr, /*on_autograd_threads=*/true);
    EXPECT_EQ(on_thread(at::ThreadLocalState()), &streams_);
    {
      const RandomStreamsScope inner_scope(&inner);
      EXPECT_EQ(on_thread(at::ThreadLocalState()), &inner);
    }
    EXPECT_EQ(on_thread(at::ThreadLocalState()), &streams_);
    std::thread([&, state = at::ThreadLocalState()] {
      const at::ThreadLocalStateGuard guard(state);
      const RandomStreamsScope own(&inner);
      EXPECT_EQ(RandomStreams::current(), &inner) << "the thread's own streams come first";
    }).join();
  }
  EXPECT_EQ(on_thread(at::ThreadLocalState()), nullptr);
}

TEST(DrawStepSeed, FollowsTheSeedOfTheProcess) {
  testing::manual_seed(1);
  const uint64_t first = draw_step_seed();
  const uint64_t second = draw_step_seed();
  EXPECT_NE(first, second);
  testing::manual_seed(1);
  EXPECT_EQ(draw_step_seed(), first);
  EXPECT_EQ(draw_step_seed(), second);
  testing::manual_seed(2);
  EXPECT_NE(draw_step_seed(), first);
}

// As for a graph, the draws are recorded once, and their generators are seeded for each replay.
// With the seeds of another micro-batch they draw what that micro-batch draws.
TEST_F(RandomStreamsTest, ARecorderTellsTheSeedsOfOtherMicroBatches) {
  const auto two_layers = [&](int64_t micro_batch) {
    streams_.enter(5, micro_batch, 0);
    std::vector<at::Tensor> drawn = {draw(), draw()};
    streams_.enter(5, micro_batch, 1);
    drawn.push_back(draw());
    return drawn;
  };
  const RandomStreamsScope scope(&streams_);
  const int64_t before = streams_.draws();
  const std::vector<at::Tensor> want = two_layers(3);
  ASSERT_EQ(streams_.draws() - before, 3);
  DrawRecorder recorder;
  for (int k = 0; k < 3; ++k) recorder.generators.push_back(at::detail::createCPUGenerator());
  streams_.record(&recorder);
  two_layers(0);
  EXPECT_THROW(draw(), c10::Error) << "more than were counted";
  streams_.record(nullptr);
  ASSERT_EQ(recorder.draws.size(), 3U);
  for (size_t k = 0; k < 3; ++k) {
    at::Generator& generator = recorder.generators[k];
    generator.set_current_seed(RandomStreams::seed_of_draw(5, 3, recorder.draws[k]));
    EXPECT_THAT(torch::randn({16}, generator, at::kDouble), EqualsBitwise(want[k])) << k;
  }
  EXPECT_THAT(two_layers(3)[2], EqualsBitwise(want[2])) << "as before";
}

// A draw from a generator of the layer's or the operator's own is refused in a recording, because a
// replay cannot seed that generator anew.
TEST_F(RandomStreamsTest, OtherGeneratorsCannotBeRecorded) {
  const auto refused = [](const char* what) {
    return ::testing::ThrowsMessage<c10::Error>(HasSubstr(what));
  };
  at::Generator generator = at::detail::createCPUGenerator(42);
  const at::Tensor x = at::ones({2, 2, 2});
  const auto recurrent = [&](double dropout) {
    (void)at::_cudnn_rnn(x, {x}, 4, {}, x, {}, 2, 2, 0, 1, false, dropout, true, false, {}, {});
  };
  const RandomStreamsScope scope(&streams_);
  DrawRecorder recorder;
  streams_.record(&recorder);
  EXPECT_THAT([&] { (void)at::rand({8}, generator); }, refused("of a layer's own"));
  EXPECT_THAT([&] { recurrent(0.5); }, refused("of the operator's own"));
  EXPECT_THAT([&] { recurrent(0); }, refused("Could not run"));
  streams_.record(nullptr);
  EXPECT_NO_THROW((void)at::rand({8}, generator));
}

}  // namespace
}  // namespace gpipe::internal
