// A program for launch_test. Two processes meet. Then process 0 meets again, and says that it has
// lost process 1 because of its silence. When the launcher has heard that, process 1 ends with 3.
//
//   launch --processes=2 -- silent_rank FILE

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <future>
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>

#include "gpipe/distributed/meet/meeting_client.h"

namespace gpipe::distributed {
namespace {

constexpr std::chrono::milliseconds kLimit = std::chrono::minutes(1);

int run(const std::string& file) {
  const char* const place = std::getenv(kMeetingPlaceVariable);
  Question question;
  question.number = std::atoi(std::getenv("RANK"));
  question.first_limit = question.limit = kLimit;
  {
    MeetingClient client(place, kLimit);
    (void)client.ask(question, 0);
    client.arrive();
  }
  if (question.number == 1) {
    while (access(file.c_str(), F_OK) != 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return 3;
  }
  question.silent = {1};
  MeetingClient first(place, kLimit), second(place, kLimit);
  const auto ask = [&](MeetingClient& client) {
    return std::async(std::launch::async, [&] { return client.ask(question, 1); });
  };
  // One of the two questions is refused, when the launcher has heard the other one.
  auto of_first = ask(first), of_second = ask(second);
  const auto is_told = [](const auto& future) {
    return future.wait_for(std::chrono::milliseconds(2)) == std::future_status::ready;
  };
  while (!is_told(of_first) && !is_told(of_second)) {
  }
  const bool is_first_refused = is_told(of_first);
  try {
    (void)(is_first_refused ? of_first : of_second).get();
    return 4;
  } catch (const std::runtime_error&) {
    std::ofstream(file) << "heard";
  }
  const auto alone = (is_first_refused ? of_second : of_first).get();
  (is_first_refused ? second : first).arrive();
  std::cout << "goes on with " << alone.plan.size << std::endl;
  return 0;
}

}  // namespace
}  // namespace gpipe::distributed

int main(int argc, char** argv) { return argc == 2 ? gpipe::distributed::run(argv[1]) : 2; }
