#include "gpipe/testing/fake_accelerator/backend.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <set>
#include <thread>

#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/fake_accelerator/backend_fixture.h"
#include "gpipe/testing/fake_accelerator/gate.h"
#include "gpipe/testing/fake_accelerator/generator.h"
#include "gpipe/testing/fake_accelerator/verdict.h"

namespace gpipe::testing::fake {
namespace {

using c10::impl::VirtualGuardImpl;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class BackendTest : public BackendFixture {
 protected:
  const VirtualGuardImpl impl_{c10::kPrivateUse1};
};

TEST_F(BackendTest, IsTheAcceleratorOfTheProcess) {
  EXPECT_EQ(at::getAccelerator(), c10::kPrivateUse1);
  EXPECT_EQ(impl_.deviceCount(), kDevices);
  EXPECT_EQ(device(2).str(), "fake:2");
  EXPECT_EQ(c10::Device("fake:2"), device(2));
  EXPECT_THROW(device(kDevices), c10::Error);
  EXPECT_THROW(at::empty({1}, c10::Device(c10::kPrivateUse1, kDevices)), c10::Error);
}

TEST_F(BackendTest, TheCurrentDeviceAndStreamAreOfEachThread) {
  const c10::Stream stream = stream_of({1, 7});
  {
    const c10::DeviceGuard guard(device(3));
    EXPECT_EQ(impl_.getDevice(), device(3));
    EXPECT_EQ(at::empty({1}, c10::kPrivateUse1).device(), device(3));
    const c10::Stream former = impl_.exchangeStream(stream);
    EXPECT_EQ(former, impl_.getDefaultStream(device(1)));
    EXPECT_EQ(impl_.getStream(device(1)), stream);
    EXPECT_EQ(current_stream(device(1)), (StreamId{1, 7}));
    std::thread([&] {
      EXPECT_EQ(impl_.getDevice(), device(0));
      EXPECT_EQ(impl_.getStream(device(1)), impl_.getDefaultStream(device(1)));
    }).join();
    impl_.exchangeStream(former);
  }
  EXPECT_EQ(impl_.getDevice(), device(0));
  EXPECT_EQ(id_of(stream), (StreamId{1, 7}));
  EXPECT_THROW(id_of(c10::Stream(c10::Stream::DEFAULT, c10::kCPU)), c10::Error);
}

TEST_F(BackendTest, ThePoolHas32StreamsWithoutTheDefaultOne) {
  std::set<c10::StreamId> ids;
  for (int i = 0; i < 100; ++i) ids.insert(impl_.getStreamFromGlobalPool(device(1)).id());
  EXPECT_EQ(ids.size(), 32U);
  EXPECT_EQ(ids.count(impl_.getDefaultStream(device(1)).id()), 0U);
}

TEST_F(BackendTest, EventsOrderStreamsAndTellTheHost) {
  const c10::Stream first = stream_of({0, 1}), second = stream_of({2, 1});
  c10::Event event(c10::kPrivateUse1);
  event.block(second);  // the event was never recorded, so this does nothing
  Gate gate;
  runtime().launch(id_of(first), gate.task());
  event.record(first);
  event.block(second);
  EXPECT_FALSE(event.query());
  EXPECT_FALSE(second.query());
  gate.open();
  event.synchronize();
  EXPECT_TRUE(event.query());
  second.synchronize();
  EXPECT_TRUE(second.query());
}

TEST_F(BackendTest, SynchronizesADevice) {
  runtime().launch({1, 3},
                   {"busy", Task::Kind::kKernel, {}, nullptr, std::chrono::milliseconds(50)});
  impl_.synchronizeDevice(1);
  EXPECT_TRUE(stream_of({1, 3}).query());
}

TEST_F(BackendTest, AllocatesOnTheCurrentStreamAndReusesAtOnce) {
  at::Tensor tensor = at::empty({1000}, device(1));
  const void* memory = tensor.const_data_ptr();
  tensor = at::Tensor();
  {
    const c10::Stream former = impl_.exchangeStream(stream_of({1, 4}));
    EXPECT_NE(at::empty({1000}, device(1)).const_data_ptr(), memory);
    impl_.exchangeStream(former);
  }
  EXPECT_EQ(at::empty({1000}, device(1)).const_data_ptr(), memory);
  EXPECT_TRUE(at::empty({0}, device(1)).defined());
}

TEST_F(BackendTest, ARecordedTensorIsKeptForTheOtherStream) {
  at::Tensor tensor = at::empty({1000}, device(1));
  const void* memory = tensor.const_data_ptr();
  Gate gate;
  runtime().launch({1, 5}, gate.task());
  impl_.recordDataPtrOnStream(tensor.storage().data_ptr(), stream_of({1, 5}));
  tensor = at::Tensor();
  EXPECT_NE(at::empty({1000}, device(1)).const_data_ptr(), memory);
  gate.open();
  runtime().drain();
}

TEST_F(BackendTest, PinnedMemoryIsTheHostsAndKnown) {
  const at::Tensor pinned = at::empty({10}, at::TensorOptions().pinned_memory(true));
  EXPECT_TRUE(pinned.is_cpu());
  EXPECT_TRUE(pinned.is_pinned());
  EXPECT_TRUE(pinned.slice(0, 5).is_pinned());
  EXPECT_FALSE(at::empty({10}).is_pinned());
  EXPECT_TRUE(pinned.pin_memory().is_same(pinned)) << "as CUDA's: no copy";
  EXPECT_TRUE(at::ones({10}).pin_memory().is_pinned());
  EXPECT_THAT(at::ones({10}).pin_memory(), EqualsBitwise(at::ones({10})));
}

TEST_F(BackendTest, DrawsWhatACpuGeneratorOfTheSameSeedDraws) {
  at::manual_seed(7);
  const at::Tensor want = at::rand({100});
  at::manual_seed(7);
  const at::Tensor first = at::rand({100}, device(1)), again = at::rand({100}, device(1));
  EXPECT_THAT(first.cpu(), EqualsBitwise(want));
  EXPECT_THAT(again.cpu(), ::testing::Not(EqualsBitwise(want)));
  EXPECT_THAT(at::rand({100}, device(2)).cpu(), EqualsBitwise(want)) << "a generator each";
}

TEST_F(BackendTest, AGeneratorsCloneAndStateAreItsOwn) {
  at::Generator mine = at::globalContext().defaultGenerator(device(3)).clone();
  mine.set_current_seed(11);
  EXPECT_EQ(mine.current_seed(), 11U);
  EXPECT_EQ(mine.device(), device(3));
  const at::Tensor state = mine.get_state();
  const at::Tensor x = at::rand({50}, mine, at::TensorOptions().device(device(3)));
  mine.set_state(state);
  EXPECT_THAT(at::rand({50}, mine, at::TensorOptions().device(device(3))).cpu(),
              EqualsBitwise(x.cpu()));
  EXPECT_THROW(at::rand({50}, mine, at::TensorOptions().device(device(1))), c10::Error);
  EXPECT_NE(mine.seed(), 11U);
}

}  // namespace
}  // namespace gpipe::testing::fake
