#include "examples/fine_tune/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "examples/common/bits.h"

namespace fine_tune {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Tokenizer, IsComparedByTheFilesThatBothSidesHave) {
  const std::string folder = ::testing::TempDir() + "/tokenizer";
  std::filesystem::create_directories(folder + "/vocab.json");  // not a file
  std::ofstream(folder + "/config.json") << "{}";
  EXPECT_FALSE(has_tokenizer(folder));
  EXPECT_FALSE(has_tokenizer(folder + "/none"));
  check_tokenizer({{"tokenizer.json", "1 bytes, CRC-32 0"}}, folder);

  std::ofstream(folder + "/tokenizer.json") << "{}";
  EXPECT_TRUE(has_tokenizer(folder));
  check_tokenizer({}, folder);
  check_tokenizer({{"format", "pt"}, {"tokenizer.model", "1 bytes, CRC-32 0"}}, folder);
  check_tokenizer({{"tokenizer.json", examples::content_of("{}")}}, folder);
  EXPECT_THAT(
      [&] {
        check_tokenizer({{"tokenizer.json", examples::content_of("{} ")}}, folder);
      },
      ThrowsMessage<std::runtime_error>(
          AllOf(HasSubstr("another tokenizer: tokenizer.json had 3 bytes"),
                HasSubstr("the one in " + folder + " has 2 bytes"))));
}

}  // namespace
}  // namespace fine_tune
