// Tests what StageGraphs expects of a device's graphs: the fake accelerator's, and CUDA's.

#include "gpipe/internal/graphs/device_graph.h"

#include <ATen/Context.h>
#include <c10/core/Allocator.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#if GPIPE_TORCH_HAS_CUDA
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDACachingAllocator.h>
#endif

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/internal/tensors/transfer.h"
#include "gpipe/internal/threads/default_generators.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/torch_warnings.h"

namespace gpipe::internal {
namespace {

using testing::copy_on;
using testing::device;
using testing::EqualsBitwise;
using testing::on_host;

struct DeviceGraphs : testing::DeviceTest {
  void SetUp() override {
    testing::DeviceTest::SetUp();
    if (IsSkipped()) return;
    graphs = graph_device(device().type());
    ASSERT_NE(graphs, nullptr);
    side = c10::impl::VirtualGuardImpl(device().type()).getStreamFromGlobalPool(device());
    pool = graphs->make_pool(device());
    x = copy_on(device(), torch::arange(4).to(torch::kFloat));
  }

  std::unique_ptr<DeviceGraph> record(const std::function<void()>& body,
                                      std::vector<at::Generator> generators = {}) {
    auto graph = graphs->make_graph(device(), pool, std::move(generators));
    record_graph(*graph, *side, body);
    return graph;
  }

  const torch::NoGradGuard no_grad;
  GraphDevice* graphs = nullptr;
  std::optional<c10::Stream> side;
  std::shared_ptr<GraphPool> pool;
  at::Tensor x;
};

at::Tensor drawn_with(uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(device()).clone();
  {
    std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_current_seed(seed);
  }
  at::Tensor drawn = torch::empty({100}, torch::device(device()));
  return on_host(drawn.uniform_(0, 1, generator));
}

struct RecordedDraw {
  at::Generator generator = at::globalContext().defaultGenerator(device()).clone();
  at::Tensor drawn;
  void operator()() {
    drawn = torch::empty({100}, torch::device(device()));
    drawn.uniform_(0, 1, generator);
  }
};

TEST_F(DeviceGraphs, AReplayReadsWhatIsThereNow) {
  at::Tensor y;
  const auto graph = record([&] { y = (x * 2).add_(1); });
  graph->replay();
  EXPECT_THAT(on_host(y), EqualsBitwise(torch::arange(4) * 2.f + 1));
  x.add_(10);
  graph->replay();
  EXPECT_THAT(on_host(y), EqualsBitwise((torch::arange(4) + 10) * 2.f + 1));
}

// Whether other threads may record and change default generators at this moment.
bool others_may() {
  bool may = false;
  std::thread([&] {
    may = default_generators_mutex().try_lock();
    if (may) default_generators_mutex().unlock();
  }).join();
  return may;
}

TEST_F(DeviceGraphs, NobodyElseChangesDefaultGeneratorsMeanwhile) {
  bool during = true;
  (void)record([&] { during = others_may(); });
  EXPECT_FALSE(during);
  EXPECT_TRUE(others_may());
}

TEST_F(DeviceGraphs, RecordingRunsNothing) {
  const auto graph = record([&] { x.add_(1); });
  EXPECT_THAT(on_host(x), EqualsBitwise(torch::arange(4).to(torch::kFloat)));
  graph->replay();
  graph->replay();
  EXPECT_THAT(on_host(x), EqualsBitwise(torch::arange(4).to(torch::kFloat) + 2));
}

// A second graph of the pool may take memory that the first one has freed, but no other code may.
TEST_F(DeviceGraphs, MemoryOfAPoolIsNotGivenToOthers) {
  at::Tensor y;
  const auto graph = record([&] { y = (x + 1) * 3 + (x + 2) * 5; });
  std::vector<at::Tensor> others;
  for (int k = 0; k < 20; ++k) others.push_back(torch::full({4}, -1.f, x.options()));
  graph->replay();
  EXPECT_THAT(on_host(y), EqualsBitwise(torch::arange(4) * 8.f + 13));
  for (const at::Tensor& other : others) {
    EXPECT_THAT(on_host(other), EqualsBitwise(torch::full({4}, -1.f)));
  }
}

// A GraphPool outlives its graphs. LibTorch's own pools do not, so a second recording would fail.
TEST_F(DeviceGraphs, APoolOutlivesItsGraphs) {
  for (int round = 0; round < 3; ++round) {
    at::Tensor y;
    const auto graph = record([&] { y = x * 2; });
    graph->replay();
    EXPECT_THAT(on_host(y), EqualsBitwise(torch::arange(4) * 2.f));
  }
}

// A recorded layer may drop the last reference to an earlier graph: it does so if it keeps an
// output of an earlier step until it runs again.
TEST_F(DeviceGraphs, AGraphMayGoWhileAnotherOneIsRecorded) {
  auto former = record([&] { x.add_(1); });
  const auto graph = record([&] {
    x.add_(1);
    former.reset();
  });
  graph->replay();
  EXPECT_THAT(on_host(x), EqualsBitwise(torch::arange(4).to(torch::kFloat) + 1));
}

TEST_F(DeviceGraphs, GraphsOfInferenceModeDoNotSpoilThoseAfter) {
  RecordedDraw draw;
  std::unique_ptr<DeviceGraph> first;
  {
    const c10::InferenceMode inference;
    first = record([&] { x * 2; });
    RecordedDraw inferred;
    const auto second = record(std::ref(inferred), {inferred.generator});
    second->replay();
  }
  const auto graph = record(std::ref(draw), {draw.generator});
  graph->replay();
  EXPECT_EQ(on_host(draw.drawn).numel(), 100);
}

TEST_F(DeviceGraphs, AReplayMayBeOnAnyStream) {
  at::Tensor y;
  const auto graph = record([&] { y = x * 2; });
  const testing::OtherStreamsScope others;
  const at::Tensor z = torch::full({4}, 3.f, x.options());
  x.copy_(z);
  graph->replay();
  EXPECT_THAT(on_host(y), EqualsBitwise(torch::full({4}, 6.f)));
}

// While a graph is recorded, LibTorch's allocator forgets every noted use of memory on another
// stream, whichever thread notes it. So use_on() waits until the recording has ended.
TEST_F(DeviceGraphs, AUseOnAnotherStreamIsNotForgottenBecauseSomebodyRecords) {
  constexpr int64_t kSize = int64_t{1} << 22;
  testing::slow_work(device());  // the first call may wait, so it is made outside of the recording
  on_host(x);
  const c10::Stream here = current_stream(device());
  const c10::Stream other =
      c10::impl::VirtualGuardImpl(device().type()).getStreamFromGlobalPool(device());
  at::Tensor out;
  std::thread user;
  std::promise<void> noted;
  const auto use = [&] {
    const torch::NoGradGuard no_grad_here;
    at::Tensor t = torch::full({kSize}, 1.f, x.options());
    {
      follow(other, here);
      const StreamScope scope(other);
      testing::slow_work(device());
      out = t.clone();
    }
    use_on(t, other);
    t.reset();
    noted.set_value();
  };
  (void)record([&] {
    user = std::thread(use);
    // use_on() may wait for the end of the recording, so this thread waits for it only so long.
    (void)noted.get_future().wait_for(std::chrono::milliseconds(500));
  });
  user.join();
  const at::Tensor next = torch::full({kSize}, 7.f, x.options());
  follow(here, other);
  EXPECT_THAT(on_host(out), EqualsBitwise(torch::full({kSize}, 1.f)));
  EXPECT_THAT(on_host(next), EqualsBitwise(torch::full({kSize}, 7.f)));
}

// A recording must not get memory that other tensors have. So the recording fails, and nothing else
// does.
TEST_F(DeviceGraphs, ARecordingThatLacksMemoryEndsWithNothingElse) {
  constexpr int64_t kTooMuch = int64_t{1} << 46;
  const at::Tensor kept = torch::full({1000}, 3.f, x.options());
  for (int round = 0; round < 2; ++round) {
    EXPECT_THROW(record([&] {
                   const at::Tensor y = x + 1;
                   (void)at::empty({kTooMuch}, x.options().dtype(at::kByte));
                   x.add_(y);
                 }),
                 c10::OutOfMemoryError);
    EXPECT_THAT(on_host(x), EqualsBitwise(torch::arange(4).to(torch::kFloat) + round));
    EXPECT_NO_THROW(on_host(torch::rand({3}, x.options())));
    const auto graph = record([&] { x.add_(1); });
    graph->replay();
    EXPECT_THAT(on_host(x), EqualsBitwise(torch::arange(4).to(torch::kFloat) + 1 + round));
  }
  EXPECT_THAT(on_host(kept), EqualsBitwise(torch::full({1000}, 3.f)));
}

#if GPIPE_TORCH_HAS_CUDA
// The memory share is used up, except for free blocks of another size. The allocator cannot release
// them while it records, but it can before the second attempt.
TEST_F(DeviceGraphs, MemoryThatLiesFreeIsUsedInASecondAttempt) {
  if (!device().is_cuda()) GTEST_SKIP() << "of CUDA's allocator";
  namespace allocator = c10::cuda::CUDACachingAllocator;
  constexpr int64_t kMiB = int64_t{1} << 20;
  const auto bytes = x.options().dtype(at::kByte);
  const c10::DeviceIndex index = device().index();
  on_host(x);
  allocator::emptyCache();
  const auto reserved = [&] { return allocator::getDeviceStats(index).reserved_bytes[0].current; };
  const int64_t before = reserved();
  const auto total = static_cast<double>(at::cuda::getDeviceProperties(index)->totalGlobalMem);
  allocator::setMemoryFraction(static_cast<double>(before + 400 * kMiB) / total, index);
  // Six free blocks of 50 MiB cannot be used as one block of 300 MiB.
  {
    std::vector<at::Tensor> blocks;
    for (int k = 0; k < 6; ++k) blocks.push_back(at::empty({50 * kMiB}, bytes));
  }
  int64_t attempts = 0;
  at::Tensor y;
  std::unique_ptr<DeviceGraph> graph;
  const auto recording = [&](int64_t size) {
    graph.reset();
    graph = record([&] {
      ++attempts;
      y = at::empty({size}, bytes);
      y.fill_(5);
    });
  };
  EXPECT_NO_THROW(record_with_all_memory(*graphs, [&] { recording(300 * kMiB); }));
  EXPECT_EQ(attempts, 2);
  graph->replay();
  EXPECT_EQ(on_host(y.narrow(0, 300 * kMiB - 1, 1)).item<uint8_t>(), 5);
  y.reset();
  graph.reset();
  attempts = 0;
  EXPECT_THROW(record_with_all_memory(*graphs, [&] { recording(500 * kMiB); }),
               c10::OutOfMemoryError);
  EXPECT_EQ(attempts, 2);
  allocator::setMemoryFraction(1.0, index);
  EXPECT_NO_THROW(recording(500 * kMiB));
}
#endif

// The test draws as StageGraphs does: with a generator for each draw, seeded before each replay.
TEST_F(DeviceGraphs, AReplayDrawsWhatTheSeedGives) {
  RecordedDraw draw;
  const auto graph = record(std::ref(draw), {draw.generator});
  for (const uint64_t seed : {5, 6, 5}) {
    {
      std::lock_guard<std::mutex> lock(draw.generator.mutex());
      draw.generator.set_current_seed(seed);
    }
    graph->replay();
    EXPECT_THAT(on_host(draw.drawn), EqualsBitwise(drawn_with(seed)));
  }
}

TEST_F(DeviceGraphs, WithoutASeedADrawGoesOn) {
  RecordedDraw draw;
  const auto graph = record(std::ref(draw), {draw.generator});
  graph->replay();
  const at::Tensor first = on_host(draw.drawn);
  graph->replay();
  EXPECT_FALSE(torch::equal(first, on_host(draw.drawn)));
}

TEST_F(DeviceGraphs, AfterAnErrorTheDeviceIsAsBefore) {
  EXPECT_THROW(record([&] {
                 x.add_(1);
                 throw std::runtime_error("a layer's");
               }),
               std::runtime_error);
  EXPECT_THAT(on_host(x), EqualsBitwise(torch::arange(4).to(torch::kFloat)));
  // LibTorch registers the default generator with each graph. It can be used again after the error.
  EXPECT_NO_THROW(on_host(torch::rand({3}, x.options())));
  const auto graph = record([&] { x.add_(1); });
  graph->replay();
  EXPECT_THAT(on_host(x), EqualsBitwise(torch::arange(4).to(torch::kFloat) + 1));
}

// begin() writes the seeds on the side stream. Tensors that get the seeds' memory afterwards must
// not find seeds there.
TEST_F(DeviceGraphs, ARecordingThatFailsWritesNothingAfterwards) {
  {
    const c10::OptionalStreamGuard on_side(*side);
    testing::slow_work(device());
  }
  const at::Generator generator = at::globalContext().defaultGenerator(device()).clone();
  EXPECT_THROW((void)record([] { throw std::runtime_error("of a layer"); }, {generator}),
               std::runtime_error);
  std::vector<at::Tensor> taken;
  for (int64_t k = 0; k < 64; ++k) taken.push_back(torch::full({1}, 7.0, x.options()));
  {
    const c10::OptionalStreamGuard on_side(*side);
    (void)on_host(x);  // waits until all is written
  }
  for (const at::Tensor& tensor : taken) EXPECT_EQ(on_host(tensor).item<float>(), 7);
}

// Calls `at_each` whenever this thread frees device memory.
struct FreesSeen : c10::MemoryReportingInfoBase {
  explicit FreesSeen(std::function<void()> at_each) : at_each(std::move(at_each)) {}
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device where) override {
    if (size < 0 && where == device()) at_each();
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::function<void()> at_each;
};

// A recording reads the generators' lists of graphs, and a destroyed graph leaves these lists. So
// no other thread may record at that moment, which is when the memory of the graph's seeds is
// freed.
TEST_F(DeviceGraphs, AGraphLeavesItsGeneratorsWhileNobodyRecords) {
  if (!device().is_cuda()) GTEST_SKIP() << "of LibTorch's generators for CUDA";
  RecordedDraw draw;
  auto graph = record(std::ref(draw), {draw.generator});
  std::vector<bool> others_may_record;
  {
    const c10::DebugInfoGuard guard(
        c10::DebugInfoKind::PROFILER_STATE,
        std::make_shared<FreesSeen>([&] { others_may_record.push_back(others_may()); }));
    graph.reset();
  }
  EXPECT_FALSE(others_may_record.empty());
  for (const bool may : others_may_record) EXPECT_FALSE(may);
}

// A wait ends the recording with an error, and nothing else. This is the last resort, because
// StageGraphs refuses operators that wait before they are launched.
TEST_F(DeviceGraphs, AWaitEndsARecordingAndNothingElse) {
  const testing::HostWaitsAllowed waits;
  EXPECT_ANY_THROW(record([&] { x.sum().item<float>(); }));
  EXPECT_NO_THROW(on_host(torch::rand({3}, x.options())));
  const auto graph = record([&] { x.add_(1); });
  graph->replay();
  EXPECT_THAT(on_host(x), EqualsBitwise(torch::arange(4).to(torch::kFloat) + 1));
}

// A stage that only makes views launches nothing, so its graph is empty. LibTorch's warning about
// that is left out, and no other one.
TEST_F(DeviceGraphs, AnEmptyOneIsNotAReasonToWarnAndHidesNoOtherWarning) {
  testing::TorchWarnings warnings;
  const auto graph = record([&] { TORCH_WARN("of a layer"); });
  graph->replay();
  TORCH_WARN("after it");
  EXPECT_EQ(warnings.texts, (std::vector<std::string>{"of a layer", "after it"}));
}

TEST(GraphDevice, TheHostHasNone) {
  EXPECT_EQ(graph_device(c10::kCPU), nullptr);
  EXPECT_EQ(why_no_graphs(c10::kCPU), "there are none on cpu");
}

}  // namespace
}  // namespace gpipe::internal
