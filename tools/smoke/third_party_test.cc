// Tests that every library of //third_party compiles, links and runs, all in one program. A failure
// here is a fault of the machine's set-up, not of GPipe.

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <c10/core/Device.h>

#if GPIPE_TORCH_HAS_CUDA
#include <c10/cuda/CUDAStream.h>
#endif

#include <benchmark/benchmark.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <turbojpeg.h>
#include <zlib.h>

#include <nlohmann/json.hpp>
#include <string>

#include <glog/logging.h>

#include "absl/container/flat_hash_map.h"
#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

ABSL_FLAG(int, smoke, 7, "a flag");

namespace {

TEST(ThirdParty, TorchComputesAndTracksGradients) {
  at::Tensor x = at::ones({2, 3}).requires_grad_();
  x.mul(3).sum().backward();
  EXPECT_EQ(x.grad().sum().item<double>(), 18.0);
}

#if GPIPE_TORCH_HAS_CUDA
TEST(ThirdParty, CudaStreamCodeCompilesWithoutToolkit) {
  c10::cuda::CUDAStream (*current)(c10::DeviceIndex) = &c10::cuda::getCurrentCUDAStream;
  EXPECT_NE(current, nullptr);
}
#endif

TEST(ThirdParty, GlogMacrosWinOverTorchs) {
  CHECK_EQ(1, 1) << "glog";
  EXPECT_DEATH(CHECK_EQ(1, 2), "Check failed: 1 == 2");
}

TEST(ThirdParty, AbseilLinks) {
  absl::StatusOr<int> value = 3;
  ASSERT_TRUE(value.ok());
  absl::flat_hash_map<std::string, int> map = {{"three", *value}};
  absl::Mutex mutex;
  absl::MutexLock lock(&mutex);
  EXPECT_GT(absl::Now(), absl::UnixEpoch());
  EXPECT_EQ(absl::StrFormat("%d", map["three"]), "3");
  EXPECT_EQ(absl::GetFlag(FLAGS_smoke), 7);
}

TEST(ThirdParty, JsonParses) { EXPECT_EQ(nlohmann::json::parse("{\"a\": [1, 2]}")["a"][1], 2); }

TEST(ThirdParty, ZlibChecksums) {
  EXPECT_EQ(crc32(0, reinterpret_cast<const Bytef*>("123456789"), 9), 0xCBF43926u);
}

TEST(ThirdParty, TurboJpegStarts) {
  tjhandle handle = tjInitDecompress();
  ASSERT_NE(handle, nullptr);
  EXPECT_EQ(tjDestroy(handle), 0);
}

TEST(ThirdParty, GmockMatches) {
  EXPECT_THAT((std::vector<int>{1, 2}), testing::ElementsAre(1, testing::Gt(1)));
}

TEST(ThirdParty, BenchmarkLinks) {
  int x = 0;
  benchmark::DoNotOptimize(x);
  EXPECT_FALSE(benchmark::ReportUnrecognizedArguments(0, nullptr));
}

}  // namespace
