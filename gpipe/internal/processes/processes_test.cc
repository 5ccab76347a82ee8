#include "gpipe/internal/processes/processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/runtime/bytes.h"
#include "gpipe/testing/processes_of_two.h"

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;

// Two processes: this one, and another one whose messages the test chooses.
class FakeProcesses final : public testing::ProcessesOfTwo {
 public:
  explicit FakeProcesses(std::vector<std::string> others) : others_(std::move(others)) {}

  std::vector<std::string> exchange(const std::string& name, const std::string& value,
                                    bool /*is_patient*/) override {
    names.push_back(name);
    said.push_back(value);
    return {value, others_.at(said.size() - 1)};
  }

  std::vector<std::string> names;
  std::vector<std::string> said;

 private:
  std::vector<std::string> others_;
};

std::string with_length(uint64_t length, const std::string& text) {
  return to_bytes(length) + text;
}

TEST(Processes, AShortValueTakesOneMessage) {
  FakeProcesses processes({with_length(3, "two")});
  EXPECT_THAT(exchange_long(processes, "numbers", "one"), ElementsAre("one", "two"));
  EXPECT_THAT(processes.names, ElementsAre("numbers"));
}

TEST(Processes, ALongValueTakesAsManyAsTheLongestNeeds) {
  const std::string text(300'000, 'x');
  FakeProcesses longer({with_length(7, "ab"), "cde", "fg"});
  EXPECT_THAT(exchange_long(longer, "texts", text), ElementsAre(text, "abcdefg"));
  EXPECT_THAT(longer.names, ElementsAre("texts", "texts, message 2", "texts, message 3"));
  EXPECT_EQ(longer.said[0].size(), 250'000U);
  EXPECT_EQ(longer.said[1].size(), 50'008U);
  EXPECT_EQ(longer.said[2], "");
}

TEST(Processes, AMessageWithoutALengthIsRefused) {
  FakeProcesses processes({"short"});
  EXPECT_THROW((void)exchange_long(processes, "numbers", "one"), DamagedMessage);
}

}  // namespace
}  // namespace gpipe::internal
