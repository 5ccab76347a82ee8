#include "gpipe/distributed/error_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <ctime>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

namespace gpipe::distributed {
namespace {

std::string content(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string new_path() {
  return ::testing::TempDir() + "/error" + std::to_string(getpid()) + ".json";
}

TEST(ErrorFile, HasWhatTorchrunReads) {
  const std::string path = new_path();
  ErrorFile file(path);
  const std::time_t before = std::time(nullptr);
  file.write("rank 1 (node1) threw in stage 1: \"boom\"\nalso: rank 2 is gone");
  const auto record = nlohmann::json::parse(content(path));
  const auto& message = record.at("message");
  EXPECT_EQ(message.at("message"),
            "rank 1 (node1) threw in stage 1: \"boom\"\nalso: rank 2 is gone");
  EXPECT_EQ(message.at("extraInfo").at("py_callstack"), message.at("message"));
  const auto timestamp = std::stoll(message.at("extraInfo").at("timestamp").get<std::string>());
  EXPECT_GE(timestamp, before);
  EXPECT_LE(timestamp, std::time(nullptr));
  file.write("\xff is not UTF-8");
  EXPECT_THAT(nlohmann::json::parse(content(path)).at("message").at("message").get<std::string>(),
              ::testing::EndsWith(" is not UTF-8"));
  file.forget();
  EXPECT_NE(access(path.c_str(), F_OK), 0);
}

TEST(ErrorFile, WhereNothingCanBeWrittenNothingHappens) {
  ErrorFile("").write("text");
  ErrorFile("/nonexistent/error.json").write("text");
  ErrorFile("/nonexistent/error.json").forget();
}

}  // namespace
}  // namespace gpipe::distributed
