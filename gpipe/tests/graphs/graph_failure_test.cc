// Tests that failures of graphs lose nothing. If a recording fails, the stage must run without
// graphs. If a replay fails, the error must name its place, and the next step must work.

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/internal/graphs/device_graph.h"
#include "gpipe/internal/tensors/transfer.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/cpu_options.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/function_layer.h"
#include "gpipe/testing/graph_training.h"
#include "gpipe/testing/log_capture.h"
#include "gpipe/testing/torch_seed.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using internal::DeviceGraph;
using internal::GraphDevice;
using internal::GraphPool;
using testing::device;
using testing::devices;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::EqualsBitwise;
using testing::graphs_of;
using ::testing::HasSubstr;
using testing::on_host;
using testing::square_loss;
using ::testing::UnorderedElementsAre;

// Counters for the calls of a device's graphs. The call that finds the counter of its kind at 0
// fails. Other calls are those of the device's own graphs.
struct Countdown {
  std::atomic<int64_t> pool{-1};
  std::atomic<int64_t> begin{-1};
  std::atomic<int64_t> end{-1};
  std::atomic<int64_t> memory{-1};
  std::atomic<int64_t> replay{-1};
  std::atomic<int64_t> odd{-1};  // for a begin() that throws something other than a std::exception

  static void count(std::atomic<int64_t>& left, const char* what) {
    if (left >= 0 && left-- == 0) throw std::runtime_error(std::string("no ") + what);
  }
};

class FlakyGraph final : public DeviceGraph {
 public:
  FlakyGraph(std::unique_ptr<DeviceGraph> real, Countdown& left)
      : real_(std::move(real)), left_(left) {}
  void begin() override {
    Countdown::count(left_.begin, "begin");
    if (left_.odd >= 0 && left_.odd-- == 0) throw 7;
    real_->begin();
  }
  void end() override {
    real_->end();
    Countdown::count(left_.end, "end");
    // While `left_.memory` is 0, each recording fails.
    TORCH_CHECK_WITH(OutOfMemoryError, left_.memory != 0, "no memory");
    if (left_.memory > 0) --left_.memory;
  }
  void abort() noexcept override { real_->abort(); }
  void replay() override {
    Countdown::count(left_.replay, "replay");
    real_->replay();
  }

 private:
  const std::unique_ptr<DeviceGraph> real_;
  Countdown& left_;
};

class FlakyGraphs final : public GraphDevice {
 public:
  explicit FlakyGraphs(GraphDevice& real) : real_(real) {}
  std::shared_ptr<GraphPool> make_pool(c10::Device device) override {
    Countdown::count(left.pool, "pool");
    return real_.make_pool(device);
  }
  std::unique_ptr<DeviceGraph> make_graph(c10::Device device, std::shared_ptr<GraphPool> pool,
                                          std::vector<at::Generator> generators) override {
    return std::make_unique<FlakyGraph>(
        real_.make_graph(device, std::move(pool), std::move(generators)), left);
  }
  void prepare_stream() override { real_.prepare_stream(); }
  void release_cached_memory() override {
    real_.release_cached_memory();
    ++released;
    if (helps) left.memory = -1;
  }

  Countdown left;
  std::atomic<int64_t> released{0};
  bool helps = false;  // whether releasing memory lets the recording succeed

 private:
  GraphDevice& real_;
};

struct GraphFailure : testing::DeviceTest {
  void SetUp() override {
    testing::DeviceTest::SetUp();
    if (IsSkipped()) return;
    real = internal::graph_device(device().type());
    ASSERT_NE(real, nullptr);
    flaky = std::make_unique<FlakyGraphs>(*real);
    internal::register_graph_device(device().type(), flaky.get());
  }
  void TearDown() override {
    if (real != nullptr) internal::register_graph_device(device().type(), real);
  }

  GPipe make(bool graphs, Checkpoint mode) const {
    testing::manual_seed(1);
    const nn::Sequential model(nn::Linear(6, 8), nn::Dropout(0.4), nn::Tanh(), nn::Linear(8, 3));
    return GPipe(
        model, GPipeOptions({2, 2}).devices(devices(2)).chunks(4).checkpoint(mode).graphs(graphs));
  }

  // Runs one step and returns the gradients of the parameters.
  std::vector<at::Tensor> step(GPipe& pipe) const {
    testing::manual_seed(2);
    const at::Tensor x = testing::copy_on(device(0), torch::randn({8, 6}));
    const at::Tensor y = testing::copy_on(device(1), torch::randn({8, 3}));
    pipe->zero_grad();
    pipe->step({x}, {y}, &square_loss);
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : pipe->parameters()) {
      gradients.push_back(on_host(parameter.grad()));
    }
    return gradients;
  }

  void expect_as_without(GPipe& pipe, Checkpoint mode) const {
    GPipe plain = make(false, mode);
    const std::vector<at::Tensor> want = step(plain);
    const std::vector<at::Tensor> have = step(pipe);
    ASSERT_EQ(want.size(), have.size());
    for (size_t k = 0; k < want.size(); ++k) EXPECT_THAT(have[k], EqualsBitwise(want[k])) << k;
  }

  GraphDevice* real = nullptr;
  std::unique_ptr<FlakyGraphs> flaky;
};

constexpr Checkpoint kModes[] = {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever};

TEST_F(GraphFailure, ARecordingThatFailsLeavesTheStageWithout) {
  for (Checkpoint mode : kModes) {
    for (int64_t nth = 0; nth < 4; ++nth) {
      for (auto* left : {&flaky->left.begin, &flaky->left.end, &flaky->left.odd}) {
        SCOPED_TRACE(std::string(to_text(mode)) + " " + std::to_string(nth));
        *left = nth;
        GPipe pipe = make(true, mode);
        for (int k = 0; k < 4; ++k) expect_as_without(pipe, mode);
        EXPECT_LT(*left, 0) << "nothing failed";
        int64_t without = 0;
        for (const GraphUse& use : pipe->graph_use()) {
          if (use.reason.empty()) {
            EXPECT_GT(use.replayed, 0);
            continue;
          }
          ++without;
          EXPECT_THAT(use.reason, HasSubstr(left == &flaky->left.begin ? "no begin"
                                            : left == &flaky->left.end ? "no end"
                                                                       : "something else"));
        }
        EXPECT_EQ(without, 1);
      }
    }
  }
}

TEST_F(GraphFailure, SoDoesAPoolThatCannotBeMade) {
  flaky->left.pool = 0;
  GPipe pipe = make(true, Checkpoint::kNever);
  for (int k = 0; k < 4; ++k) expect_as_without(pipe, Checkpoint::kNever);
  EXPECT_LT(flaky->left.pool, 0);
  EXPECT_THAT(graphs_of(pipe->graph_use()),
              UnorderedElementsAre("left alone: it cannot be recorded: no pool", "replayed"));
}

// While any stage records, an allocator cannot release the memory that it keeps, so a stage that
// does not record may lack memory that is in fact free. It must release that memory after the
// recording and run the cell again, unless the cell has changed something.
TEST_F(GraphFailure, ACellThatLacksMemoryBecauseSomebodyRecordsRunsAgain) {
  enum class Case { kRecording, kGaveUp, kNobodyRecords, kHasChangedABuffer, kHasLoggedAnUpdate };
  const testing::HostWaitsAllowed waits;
  for (const Case c : {Case::kRecording, Case::kGaveUp, Case::kNobodyRecords,
                       Case::kHasChangedABuffer, Case::kHasLoggedAnUpdate}) {
    for (Checkpoint mode : kModes) {
      SCOPED_TRACE(std::string(to_text(mode)) + " " + std::to_string(static_cast<int>(c)));
      std::promise<void> begun, is_short;
      bool fails = false;
      struct Short : nn::Module {
        explicit Short(std::function<void()> f) : f(std::move(f)) {
          count = register_buffer("count", torch::zeros({1}));
        }
        at::Tensor forward(const at::Tensor& x) {
          if (changes) count.add_(1);
          if (asks) (void)x.sum().item<float>();  // this cannot be recorded
          f();
          return x * 2;
        }
        std::function<void()> f;
        at::Tensor count;
        bool changes = false;
        bool asks = false;
      };
      const auto layer = std::make_shared<Short>([&] {
        if (!std::exchange(fails, false)) return;
        is_short.set_value();
        TORCH_CHECK_WITH(OutOfMemoryError, false, "no memory");
      });
      layer->changes = c == Case::kHasChangedABuffer;
      layer->asks = c == Case::kGaveUp;
      const bool defers = c == Case::kHasLoggedAnUpdate;
      const auto make_pipe = [&](bool graphs) {
        testing::manual_seed(1);
        nn::Sequential model(nn::Linear(6, 8), nn::BatchNorm1d(8), nn::Dropout(0.4), layer,
                             nn::Linear(8, 3));
        if (!defers) model[1]->eval();
        return GPipe(model, GPipeOptions({4, 1})
                                .devices(devices(2))
                                .chunks(4)
                                .checkpoint(mode)
                                .deferred_batch_norm(defers)
                                .graphs(graphs));
      };
      GPipe pipe = make_pipe(true);
      if (c == Case::kGaveUp) {
        for (int k = 0; k < 4; ++k) step(pipe);
        ASSERT_NE(pipe->graph_use()[0].reason, "");
        ASSERT_EQ(pipe->graph_use()[1].reason, "");
      }
      flaky->released = 0;
      const auto graph = real->make_graph(device(0), real->make_pool(device(0)), {});
      const c10::Stream side = internal::take_stream_for_recordings(device(0));
      std::thread other;
      if (c != Case::kNobodyRecords) {
        other = std::thread([&] {
          internal::record_graph(*graph, side, [&] {
            begun.set_value();
            is_short.get_future().wait();
          });
        });
        begun.get_future().wait();
      }
      fails = true;
      if (c == Case::kRecording || c == Case::kGaveUp) {
        const std::vector<at::Tensor> have = step(pipe);
        EXPECT_EQ(flaky->released, 1);
        other.join();
        GPipe plain = make_pipe(false);
        const std::vector<at::Tensor> want = step(plain);
        ASSERT_EQ(want.size(), have.size());
        for (size_t k = 0; k < want.size(); ++k) EXPECT_THAT(have[k], EqualsBitwise(want[k])) << k;
      } else {
        EXPECT_THROW(step(pipe), c10::OutOfMemoryError);
        EXPECT_EQ(flaky->released, 0);
        if (other.joinable()) other.join();
      }
      internal::give_back_stream_for_recordings(side);
    }
  }
}

// While a graph is recorded, an allocator cannot release the memory that it keeps for later. So a
// recording that runs out of memory is tried once more after that memory was released.
TEST_F(GraphFailure, WhereMemoryIsShortAllOfItIsTriedOnce) {
  for (const bool helps : {true, false}) {
    for (Checkpoint mode : kModes) {
      for (int64_t nth = 0; nth < 4; ++nth) {
        SCOPED_TRACE(std::string(to_text(mode)) + " " + std::to_string(nth) +
                     (helps ? ", helps" : ", does not help"));
        flaky->left.memory = nth;
        flaky->released = 0;
        flaky->helps = helps;
        GPipe pipe = make(true, mode);
        for (int k = 0; k < 4; ++k) expect_as_without(pipe, mode);
        int64_t without = 0;
        for (const GraphUse& use : pipe->graph_use()) {
          if (use.reason.empty()) continue;
          ++without;
          EXPECT_THAT(use.reason, HasSubstr("no memory"));
        }
        if (helps) {
          EXPECT_GE(flaky->released, 1);
          EXPECT_LE(flaky->released, 2) << "once in each stage";
          EXPECT_EQ(without, 0);
        } else {
          EXPECT_EQ(flaky->released, without) << "once for each recording that failed";
          EXPECT_GT(without, 0);
        }
      }
    }
  }
  flaky->left.memory = -1;
}

TEST_F(GraphFailure, TheReasonIsLoggedOncePerStage) {
  const auto asks = [] {
    return testing::layer<at::Tensor, at::Tensor>(
        [](const at::Tensor& x) { return x * x.abs().max().item<float>(); });
  };
  const testing::HostWaitsAllowed waits;
  const testing::LogCapture log;
  GPipe pipe(nn::Sequential(asks(), nn::Tanh(), asks()),
             GPipeOptions({1, 1, 1}).devices(devices(3)).chunks(4).graphs(true));
  const at::Tensor x = testing::copy_on(device(0), torch::ones({8, 6})).requires_grad_();
  for (int k = 0; k < 5; ++k) pipe->forward(x).sum().backward();
  EXPECT_THAT(log.warnings(),
              UnorderedElementsAre(HasSubstr("stage 0 runs without graphs: layer 0"),
                                   HasSubstr("stage 2 runs without graphs: layer 2")));
  EXPECT_THAT(
      graphs_of(pipe->graph_use()),
      ElementsAre(HasSubstr("left alone: layer 0"), "replayed", HasSubstr("left alone: layer 2")));
}

TEST_F(GraphFailure, AReplayThatFailsIsToldWithItsPlace) {
  for (Checkpoint mode : kModes) {
    for (int64_t nth = 0; nth < 12; nth += 3) {
      SCOPED_TRACE(std::string(to_text(mode)) + " " + std::to_string(nth));
      GPipe pipe = make(true, mode);
      for (int k = 0; k < 3; ++k) expect_as_without(pipe, mode);
      flaky->left.replay = nth;
      try {
        step(pipe);
        ADD_FAILURE() << "nothing failed";
      } catch (const std::runtime_error& error) {
        const std::optional<Failure> failure = pipe->last_failure();
        ASSERT_TRUE(failure);
        EXPECT_EQ(failure->layer, "stage " + std::to_string(failure->stage));
        EXPECT_THAT(error.what(), HasSubstr("no replay"));
        EXPECT_THAT(error.what(),
                    HasSubstr(std::string(failure->recompute  ? "recompute"
                                          : failure->backward ? "backward"
                                                              : "forward") +
                              " of stage " + std::to_string(failure->stage) + ", micro-batch " +
                              std::to_string(failure->micro_batch)));
      }
      for (int k = 0; k < 3; ++k) expect_as_without(pipe, mode);
      int64_t without = 0;
      for (const GraphUse& use : pipe->graph_use()) without += use.reason.empty() ? 0 : 1;
      EXPECT_EQ(without, 1);
    }
  }
}

// With graphs as without, a backward is refused if a parameter that it needs was changed after the
// forward.
TEST_F(GraphFailure, ASavedWeightThatIsChangedIsRefused) {
  for (const bool graphs : {false, true}) {
    GPipe pipe = make(graphs, Checkpoint::kNever);
    for (int k = 0; k < 3; ++k) step(pipe);
    const at::Tensor x = testing::copy_on(device(0), torch::ones({8, 6}));
    const auto backward_after = [&](const std::string& name) {
      const at::Tensor output = pipe->forward(x);
      {
        const torch::NoGradGuard no_grad;
        pipe->named_parameters()[name].add_(1);
      }
      output.sum().backward();
    };
    for (int k = 0; k < 4; ++k) pipe->forward(x).sum().backward();
    EXPECT_NO_THROW(backward_after("3.bias"));
    try {
      backward_after("3.weight");
      ADD_FAILURE() << graphs;
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.what_without_backtrace(), HasSubstr("modified by an inplace operation"));
    }
    EXPECT_NO_THROW(pipe->forward(x).sum().backward());
    if (graphs) {
      EXPECT_THAT(graphs_of(pipe->graph_use()), Each("replayed"));
    }
  }
}

}  // namespace
}  // namespace gpipe
