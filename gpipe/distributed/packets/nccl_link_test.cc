// Tests of NCCL's links that need no GPU, and a test with two GPUs that bytes move.
#include "gpipe/distributed/packets/nccl_link.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

#include "gpipe/distributed/packets/device_links.h"
#include "gpipe/internal/tensors/transfer.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/device.h"

namespace gpipe::distributed {
namespace {

using testing::device;
using testing::EqualsBitwise;
using testing::gpu_count;
using ::testing::HasSubstr;
using testing::on_host;

// If LibTorch has NCCL, each function is found in the library that LibTorch has loaded, and that
// library's version is the header's.
TEST(NcclLinks, AreThereWhereLibTorchHasNccl) {
#if GPIPE_TORCH_HAS_CUDA && __has_include(<nccl.h>)
  EXPECT_NO_THROW(nccl_links().check_available());
  EXPECT_EQ(nccl_links().new_id().size(), 128);
#else
  EXPECT_THROW(nccl_links().check_available(), std::invalid_argument);
#endif
}

TEST(NcclLinks, WithoutAGpuSayWhy) {
  if (gpu_count() > 0) return;
  try {
    (void)nccl_links().connect(std::string(128, 'x'), LinkEnd(), c10::Device(c10::kCUDA, 0),
                               /*most_blocks=*/1);
    FAIL() << "it connected";
  } catch (const std::exception& error) {
    // The message may be NCCL's or LibTorch's, depending on which of the two looks for a GPU first.
    // So only its presence is checked.
    EXPECT_FALSE(std::string(error.what()).empty());
  }
}

// The buffers of NCCL 2.30: for each channel and peer 10 MiB at a receiver, 6 MiB at a sender.
TEST(NcclLinks, CostBuffersForEachPeerAndBlock) {
  const auto expect = [](const LinkEnd& end, int64_t most_blocks, int64_t blocks, int64_t mib) {
    const LinkCost cost = nccl_links().cost(end, most_blocks);
    EXPECT_EQ(cost.blocks, blocks);
    EXPECT_EQ(cost.bytes, mib << 20);
  };
  for (const char* const name : {"NCCL_MAX_CTAS", "NCCL_BUFFSIZE", "NCCL_LL_BUFFSIZE",
                                 "NCCL_LL128_BUFFSIZE", "NCCL_MIN_P2P_NCHANNELS"}) {
    unsetenv(name);
  }
  expect({/*member=*/0}, 4, 4, 24);
  expect({/*member=*/1}, 4, 4, 40);
  expect({/*member=*/1}, 1, 1, 10);
  expect({/*member=*/5, /*members=*/8, /*is_one_way=*/false}, 4, 4, 7 * 64);
  setenv("NCCL_MAX_CTAS", "3", /*overwrite=*/1);  // NCCL rounds it up
  expect({/*member=*/0}, 1, 4, 24);
  setenv("NCCL_BUFFSIZE", "1048576", /*overwrite=*/1);
  expect({/*member=*/0}, 1, 4, 8);
  setenv("NCCL_MAX_CTAS", "99999999999999", /*overwrite=*/1);
  expect({/*member=*/0}, 1, 64, 128);
  unsetenv("NCCL_MAX_CTAS");
  unsetenv("NCCL_BUFFSIZE");
}

TEST(NcclLinks, MoveBytesBetweenTwoGpus) {
  if (!testing::for_gpus()) return;
  if (gpu_count() < 2) GTEST_SKIP() << "this machine has fewer than two GPUs";
  constexpr Edge kEdge{0, 1};
  DeviceLinks sender(nccl_links(), device(0), [](const std::string& why) { FAIL() << why; });
  DeviceLinks receiver(nccl_links(), device(1), [](const std::string& why) { FAIL() << why; });
  const std::string id = nccl_links().new_id();
  sender.begin(kEdge, DeviceLink::End::kSends, id);
  receiver.begin(kEdge, DeviceLink::End::kReceives, id);
  while (true) {
    const bool one = sender.are_connected();
    if (receiver.are_connected() && one) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (int64_t k = 0; k < 20; ++k) {
    sender.send(kEdge, {at::full({1 << 20}, k, at::TensorOptions(device(0)).dtype(at::kByte))});
    at::Tensor room;
    {
      const internal::StreamScope scope(receiver.receiving_stream(kEdge));
      room = at::empty({1 << 20}, at::TensorOptions(device(1)).dtype(at::kByte));
      receiver.receive(kEdge, {room});
    }
    const c10::Stream here = internal::current_stream(device(1));
    receiver.let_follow(here);
    internal::use_on(room, here);
    EXPECT_THAT(on_host(room), EqualsBitwise(at::full({1 << 20}, k, at::kByte)));
  }
  // abort() ends a receive to which nothing is sent.
  {
    const internal::StreamScope scope(receiver.receiving_stream(kEdge));
    receiver.receive(kEdge, {at::empty({8}, at::TensorOptions(device(1)).dtype(at::kByte))});
  }
  receiver.let_follow(internal::current_stream(device(1)));
  const auto begin = std::chrono::steady_clock::now();
  receiver.abort();
  (void)on_host(at::ones({1}, at::TensorOptions(device(1))));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
  sender.abort();
}

}  // namespace
}  // namespace gpipe::distributed
