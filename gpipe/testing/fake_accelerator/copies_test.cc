#include "gpipe/testing/fake_accelerator/copies.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/fake_accelerator/backend.h"
#include "gpipe/testing/fake_accelerator/backend_fixture.h"
#include "gpipe/testing/fake_accelerator/gate.h"
#include "gpipe/testing/fake_accelerator/verdict.h"

namespace gpipe::testing::fake {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class CopiesTest : public BackendFixture {
 protected:
  static at::Tensor pinned(const at::Tensor& tensor) { return tensor.pin_memory(); }
};

TEST_F(CopiesTest, OfTypesAndStridesInAllDirections) {
  const at::Tensor x = at::arange(12.0).view({3, 4});
  for (const at::Tensor& from : {x, x.t(), x.slice(1, 1, 3), x.to(at::kInt), x[1].expand({5, 4})}) {
    const at::Tensor there = from.to(device(1));
    EXPECT_THAT(there.cpu(), EqualsBitwise(from));
    EXPECT_THAT(there.to(device(2)).cpu(), EqualsBitwise(from));
    EXPECT_THAT(there.clone().cpu(), EqualsBitwise(from));
    EXPECT_THAT(there.to(device(3), at::kDouble).cpu(), EqualsBitwise(from.to(at::kDouble)));
    EXPECT_THAT(there.to(c10::kCPU, at::kHalf), EqualsBitwise(from.to(at::kHalf)));
    at::Tensor target = at::zeros({from.size(1), from.size(0)}, device(2)).t();
    target.copy_(from);
    EXPECT_THAT(target.cpu(), EqualsBitwise(from.to(target.scalar_type())));
  }
  EXPECT_EQ(at::empty({0}).to(device(1)).cpu().numel(), 0);
  EXPECT_EQ(at::full({}, 3, device(1)).item<int64_t>(), 3);
}

// A lazy clone is copied where it is written first, by the allocator.
TEST_F(CopiesTest, OfLazyClones) {
  const at::Tensor x = at::arange(8.0);
  const at::Tensor there = x.to(device(1));
  const at::Tensor clone = at::_lazy_clone(there);
  clone.add_(1);
  there.mul_(2);
  EXPECT_THAT(clone.cpu(), EqualsBitwise(x + 1));
  EXPECT_THAT(there.cpu(), EqualsBitwise(x * 2));
}

// ---- Between devices

TEST_F(CopiesTest, BetweenDevicesWaitsForTheSourcesStreamAndTheTargetsStreamForIt) {
  const HostWaitScope nobody_waits(runtime(), HostWaits::kForbidden);
  const at::Tensor x = at::ones({8}, device(0)) + 1;
  at::Tensor y = x.to(device(1));
  x.add_(1);  // no race: on the source's stream, after the copy
  y.add_(1);  // no race: the target's stream waits for the copy
  EXPECT_THAT(complaints(runtime()), IsEmpty());
}

// The copy, on the source's stream, waits for the target's stream, which may still use the target's
// memory.
TEST_F(CopiesTest, BetweenDevicesWaitsForTheTargetsStream) {
  const at::Tensor x = at::ones({8}, device(0)), y = at::ones({8}, device(1));
  runtime().drain();
  Gate gate;
  runtime().launch({1, 0}, gate.task());
  const at::Tensor before = y + 1;
  y.copy_(x * 5);
  gate.open();
  EXPECT_THAT(before.cpu(), EqualsBitwise(at::full({8}, 2.0)));
  EXPECT_THAT(y.cpu(), EqualsBitwise(at::full({8}, 5.0)));
}

TEST_F(CopiesTest, BetweenDevicesOrdersTheCurrentStreamsAlone) {
  const at::Tensor x = at::ones({8}, device(0));
  const at::Tensor y = x.to(device(1));
  at::Tensor z;
  on_stream({1, 3}, [&] { z = y + 1; });
  EXPECT_THAT(complaints(runtime()),
              Contains(AllOf(HasSubstr("aten::add on fake:1/3"),
                             HasSubstr("copy between devices on fake:0/0"))));
}

TEST_F(CopiesTest, BetweenDevicesOnAnotherStreamNeedsAWait) {
  const at::Tensor x = at::ones({8}, device(0));
  at::Tensor y;
  on_stream({0, 3}, [&] { y = x.to(device(1)); });
  EXPECT_THAT(complaints(runtime()), Not(IsEmpty()));
  x.add_(1);
  runtime().wait({0, 3}, runtime().record({0, 0}));
  on_stream({0, 3}, [&] { y = x.to(device(1)); });
  runtime().wait({0, 0}, runtime().record({0, 3}));
  EXPECT_THAT(complaints(runtime()), IsEmpty());
}

TEST_F(CopiesTest, AFailedDeviceTakesNoCopies) {
  const at::Tensor x = at::ones({8}, device(0)), y = at::ones({8}, device(1));
  runtime().launch(
      {1, 0}, {"broken", Task::Kind::kKernel, {}, [] { throw std::runtime_error("bad"); }, {}});
  runtime().drain();
  EXPECT_THROW(y.copy_(x), DeviceError);
  EXPECT_THROW(y.cpu(), DeviceError);
  EXPECT_THAT(complaints(runtime()), ElementsAre(HasSubstr("broken")));
}

// ---- Between device and host

TEST_F(CopiesTest, TheHostWaitsForABlockingCopyAndForMemoryThatIsNotPinned) {
  const at::Tensor there = at::ones({4, 3}, device(1)), wide = at::ones({4, 6}, device(1));
  const at::Tensor here = pinned(at::ones({4, 3})), halves = pinned(at::ones({4, 3}, at::kHalf));
  const HostWaitScope nobody_waits(runtime(), HostWaits::kForbidden);
  here.copy_(there, /*non_blocking=*/true);
  there.copy_(here, /*non_blocking=*/true);
  here.copy_(wide.slice(1, 0, 3), /*non_blocking=*/true);  // the device makes the values contiguous
  wide.slice(1, 0, 3).copy_(here, /*non_blocking=*/true);  // the device applies the strides
  EXPECT_THAT(complaints(runtime()), IsEmpty());
  struct {
    const char* why;
    at::Tensor to, from;
    bool non_blocking;
  } cases[] = {
      {"to the host, blocking", here, there, false},
      {"from the host, blocking", there, here, false},
      {"to the host, of memory that is not pinned", at::ones({4, 3}), there, true},
      {"from the host, of memory that is not pinned", there, at::ones({4, 3}), true},
      // These copies go through temporary memory.
      {"to the host, of memory that is not pinned", halves, there, true},
      {"from the host, of memory that is not pinned", there, halves, true},
      {"from the host, of memory that is not pinned", there, pinned(at::ones({3, 4})).t(), true},
  };
  for (const auto& each : cases) {
    complaints(runtime());
    each.to.copy_(each.from, each.non_blocking);
    EXPECT_THAT(complaints(runtime()), ElementsAre(HasSubstr(each.why)));
  }
}

TEST_F(CopiesTest, TheHostGoesOnDuringAPinnedCopy) {
  const at::Tensor there = at::ones({4}, device(1)), here = pinned(at::zeros({4}));
  runtime().drain();
  Gate gate;
  runtime().launch({1, 0}, gate.task());
  here.copy_(there, /*non_blocking=*/true);
  EXPECT_THAT(here, EqualsBitwise(at::zeros({4}))) << "the copy is behind the shut gate";
  gate.open();
  runtime().drain();
  EXPECT_THAT(here, EqualsBitwise(at::ones({4})));
}

TEST_F(CopiesTest, PinnedMemoryIsKeptForACopy) {
  at::Tensor here = pinned(at::ones({100}));
  const void* memory = here.const_data_ptr();
  Gate gate;
  runtime().launch({1, 0}, gate.task());
  const at::Tensor there = here.to(device(1), /*non_blocking=*/true);
  here = at::Tensor();
  EXPECT_NE(pinned(at::zeros({100})).const_data_ptr(), memory);
  gate.open();
  EXPECT_THAT(there.cpu(), EqualsBitwise(at::ones({100})));
  EXPECT_EQ(pinned(at::zeros({100})).const_data_ptr(), memory);
}

// A copy from pinned memory must wait for the copy that fills it from another device. Without a
// wait this is a race.
TEST_F(CopiesTest, ThroughPinnedMemoryNeedsAWait) {
  const at::Tensor here = pinned(at::zeros({4}));
  at::Tensor there;
  here.copy_(at::ones({4}, device(0)), /*non_blocking=*/true);
  there = here.to(device(1), /*non_blocking=*/true);
  EXPECT_THAT(complaints(runtime()), ElementsAre(AllOf(HasSubstr("copy from the host on fake:1/0"),
                                                       HasSubstr("copy to the host on fake:0/0"))));
  here.copy_(at::ones({4}, device(0)), /*non_blocking=*/true);
  runtime().wait({1, 0}, runtime().record({0, 0}));
  there = here.to(device(1), /*non_blocking=*/true);
  EXPECT_THAT(there.cpu(), EqualsBitwise(at::ones({4})));
}

TEST_F(CopiesTest, CopiesAreCountedAndTakeTheirTime) {
  const Counters before = runtime().counters();
  const at::Tensor x = at::ones({4}, device(0));
  runtime().drain();
  runtime().set_durations({{}, std::chrono::milliseconds(30), {}});
  const auto begin = std::chrono::steady_clock::now();
  x.to(device(1)).cpu();
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(60));
  runtime().set_durations({});
  const Counters since = runtime().counters() - before;
  EXPECT_EQ(since.copies, 2);
  EXPECT_EQ(since.host_waits, 1);
}

}  // namespace
}  // namespace gpipe::testing::fake
