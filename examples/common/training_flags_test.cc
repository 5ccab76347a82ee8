#include "examples/common/training_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "command/flags.h"

namespace examples {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// The settings that these flags give, if all other flags have usual values.
TrainingSettings read(const std::vector<std::pair<std::string, std::string>>& flags) {
  TrainingSettings settings;
  settings.learning_rate = 2e-4;
  settings.weight_decay = 0.01;
  gpipe::command::FlagSet set;
  add_training_flags(settings, set);
  std::vector<std::string> words = {"program"};
  for (const auto& [name, value] : flags) words.push_back(absl::StrCat("--", name, "=", value));
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  std::ostringstream out;
  gpipe::command::read_flags(static_cast<int>(argv.size()), argv.data(), "", "", out, set);
  check_training(settings);
  return settings;
}

TEST(TrainingFlags, ValuesAtTheEdgesAreTakenOrRefusedWithAReason) {
  EXPECT_EQ(read({{"clip", "0"}}).clip, 0);
  EXPECT_EQ(read({{"clip", "1e-6"}}).clip, 1e-6);
  EXPECT_EQ(read({{"steps", "0"}}).steps, 0);
  EXPECT_EQ(read({{"warm_up", "0"}}).warm_up, 0);
  EXPECT_EQ(read({{"weight_decay", "4999"}}).weight_decay, 4999);
  const std::pair<const char*, const char*> refused[] = {
      {"batch", "0"},           {"batch", "-1"},          {"batch", "1099511627776"},
      {"steps", "-1"},          {"stop_at", "-1"},        {"stop_at", "501"},
      {"learning_rate", "0"},   {"learning_rate", "-1"},  {"learning_rate", "nan"},
      {"learning_rate", "inf"}, {"warm_up", "-1"},        {"weight_decay", "-1"},
      {"weight_decay", "nan"},  {"weight_decay", "5000"}, {"weight_decay", "1e300"},
      {"clip", "-1"},           {"clip", "nan"},          {"clip", "inf"},
      {"clip", "1e-7"},         {"validate_every", "0"},  {"validate_every", "-1"},
      {"save_every", "-1"},
  };
  for (const auto& [name, value] : refused) {
    const std::vector<std::pair<std::string, std::string>> flags = {{name, value}};
    EXPECT_THAT([&flags] { (void)read(flags); },
                ThrowsMessage<std::invalid_argument>(
                    AllOf(HasSubstr(absl::StrCat("--", name, "=")), HasSubstr("give "))))
        << name << " " << value;
  }
}

}  // namespace
}  // namespace examples
