#include "examples/fine_tune/conversations.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "safetensors/safetensors.h"

namespace fine_tune {
namespace {

using examples::Batch;
using examples::kIgnored;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Numbers = std::vector<int64_t>;

constexpr int64_t kWords = 20;

std::string file(const Numbers& ids, const Numbers& mask, const Numbers& offsets,
                 at::ScalarType of_mask = at::kByte) {
  static int count = 0;
  const std::string path =
      ::testing::TempDir() + "/chats" + std::to_string(count++) + ".safetensors";
  gpipe::safetensors::write(path, {{"ids", at::tensor(ids, at::kLong).to(at::kInt)},
                                   {"mask", at::tensor(mask, at::kLong).to(of_mask)},
                                   {"offsets", at::tensor(offsets, at::kLong)}});
  return path;
}

const Numbers kIds = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, kMask = {0, 0, 1, 1, 0, 1, 1, 1, 0, 0},
              kOffsets = {0, 4, 7, 10};

Numbers numbers(const at::Tensor& row) {
  const at::Tensor flat = row.contiguous();
  return {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
}

TEST(Conversations, AnswersAreLearnedBehindWhatStandsBeforeThem) {
  for (const at::ScalarType of_mask : {at::kByte, at::kBool, at::kInt, at::kLong}) {
    const Conversations read(file(kIds, kMask, kOffsets, of_mask), kWords, 8);
    // The last conversation is left out: its first token has nothing before it, and its other
    // tokens are not learned.
    EXPECT_EQ(read.size(), 2);
    EXPECT_EQ(read.left_out(), 1);
    EXPECT_EQ(read.shortened(), 0);
    EXPECT_EQ(read.answer_tokens(), 4);
    EXPECT_EQ(read.longer_than(2), 1);
    EXPECT_EQ(read.longer_than(3), 0);
    const Batch apart = read.rows(4, /*packed=*/false, 1).validation(0, 2);
    EXPECT_EQ(numbers(apart.ids), (Numbers{1, 2, 3, 0, 5, 6, 0, 0}));
    EXPECT_EQ(numbers(apart.targets),
              (Numbers{kIgnored, 3, 4, kIgnored, 6, 7, kIgnored, kIgnored}));
    EXPECT_EQ(numbers(apart.documents), (Numbers{0, 0, 0, 1, 0, 0, 1, 1}));
    EXPECT_EQ(apart.tokens, 4);
    const Batch packed = read.rows(6, /*packed=*/true, 1).validation(0, 1);
    EXPECT_EQ(numbers(packed.ids), (Numbers{1, 2, 3, 5, 6, 0}));
    EXPECT_EQ(numbers(packed.targets), (Numbers{kIgnored, 3, 4, 6, 7, kIgnored}));
    EXPECT_EQ(numbers(packed.documents), (Numbers{0, 0, 0, 1, 1, 2}));
  }
}

TEST(Conversations, ThatAreLongerAreCut) {
  const Conversations read(file(kIds, kMask, kOffsets), kWords, 2);
  EXPECT_EQ(read.shortened(), 1);
  EXPECT_EQ(read.size(), 2);
  EXPECT_EQ(read.answer_tokens(), 3);
  EXPECT_EQ(read.longer_than(2), 0);
  const Batch rows = read.rows(2, /*packed=*/false, 1).validation(0, 2);
  EXPECT_EQ(numbers(rows.ids), (Numbers{1, 2, 5, 6}));
  EXPECT_EQ(numbers(rows.targets), (Numbers{kIgnored, 3, 6, 7}));
}

TEST(Conversations, MistakesAreTold) {
  const auto expect = [](const std::string& path, const std::string& reason) {
    EXPECT_THAT([&] { Conversations(path, kWords, 8); },
                ThrowsMessage<std::runtime_error>(AllOf(HasSubstr(path), HasSubstr(reason))));
  };
  expect("/nowhere", "");
  expect(file(kIds, {1, 1}, kOffsets), "'ids' has 10 tokens and 'mask' 2;");
  expect(file(kIds, Numbers(10, 0), kOffsets), "there is no answer to learn: 'mask' is 0");
  expect(file(kIds, kMask, {0, 4, 7}), "end with the 10 tokens of 'ids', got 3 numbers, 0 to 7");
  expect(file(kIds, kMask, {1, 4, 10}), "got 3 numbers, 1 to 10");
  expect(file(kIds, kMask, {}), "got 0 numbers");
  expect(file(kIds, kMask, {0, 7, 4, 10}), "7 is followed by 4 (conversation 1)");
  expect(file(kIds, kMask, kOffsets, at::kFloat), "'mask' is of the type F32 and has 1 dimensions");
  Numbers beyond = kIds;
  beyond[3] = kWords;
  expect(file(beyond, kMask, kOffsets), "token 3 has the id 20, the model has 20 (vocab_size)");
  beyond[3] = -1;
  expect(file(beyond, kMask, kOffsets), "token 3 has the id -1");
}

}  // namespace
}  // namespace fine_tune
