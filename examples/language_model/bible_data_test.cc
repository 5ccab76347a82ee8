#include "examples/language_model/bible_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

namespace language_model {
namespace {

using ::testing::HasSubstr;

// Test files: the first 6,000 bytes of the package's first window, and the text that its own reader
// makes of them.
std::string test_file(const std::string& name) {
  std::ifstream file("examples/language_model/testdata/" + name, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string error_of(const std::string& contents) {
  try {
    decompress_bible(contents);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(DecompressBible, GivesThePackagesText) {
  const std::string data = test_file("genesis.data");
  EXPECT_TRUE(is_bible_data(data));
  // These bytes have codes of 9 to 13 bits.
  EXPECT_EQ(decompress_bible(data), test_file("genesis.txt"));
}

TEST(DecompressBible, SeveralWindowsFollowEachOther) {
  const std::string data = test_file("genesis.data"), window = data.substr(99);
  // The header of a file with two windows has one number more, so the first window begins at byte
  // 100.
  std::string two = data.substr(0, 88);
  const auto add = [&](size_t number) {
    for (const int shift : {24, 16, 8, 0}) two.push_back(static_cast<char>(number >> shift));
  };
  add(2);
  add(100);
  add(100 + window.size());
  two += window + window;
  const std::string text = test_file("genesis.txt");
  EXPECT_EQ(decompress_bible(two), text + text);
}

TEST(DecompressBible, CodesAreForgottenAtAClear) {
  // The stream has the codes "a", "b", clear, "a", of 9 bits each. Behind the clear the rest of the
  // eight codes is skipped.
  std::string data = test_file("genesis.data").substr(0, 99);
  std::string stream(11, '\0');
  const auto put = [&](size_t bit, unsigned code) {
    for (size_t k = 0; k < 9; ++k) {
      if ((code >> k & 1U) != 0) stream[(bit + k) / 8] |= static_cast<char>(1U << (bit + k) % 8);
    }
  };
  put(0, 'a');
  put(9, 'b');
  put(18, 256);
  put(72, 'a');
  EXPECT_EQ(decompress_bible(data + stream), "aba");
}

TEST(DecompressBible, RefusesWhatIsDamaged) {
  const std::string data = test_file("genesis.data");
  EXPECT_FALSE(is_bible_data("In the beginning"));
  EXPECT_FALSE(is_bible_data(""));
  EXPECT_THAT(error_of("In the beginning"), HasSubstr("not a file of Debian's package"));
  EXPECT_THAT(error_of(data.substr(0, 90)), HasSubstr("ends within its header"));
  std::string wrong = data;
  wrong[93] = 1;  // the first window begins behind the end
  EXPECT_THAT(error_of(wrong), HasSubstr("a window is not within it"));
  wrong = data;
  wrong[100] = '\xff';  // the first code is above 256
  EXPECT_THAT(error_of(wrong), HasSubstr("a code for no word"));
  // Whatever the file contains, the result is a text or an error.
  for (size_t k = 84; k < data.size(); k += 7) {
    wrong = data;
    wrong[k] = static_cast<char>(wrong[k] ^ 0x55);
    error_of(wrong);
  }
}

}  // namespace
}  // namespace language_model
