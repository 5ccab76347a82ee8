// The program of meet_again_test: makes the same steps in each world of its run, and meets again
// after deaths.
//
//   launch --processes=4 --restarts=3 -- meet_again_program STOP_FILE [WHEN NUMBER]
//
// Each line that it writes has the form "KEY VALUE ...". It ends when there is a file STOP_FILE.
// WHEN is a time in ms: the process with that number kills itself so long after it begins to meet
// the others again. With "early" it does so when it starts, the first time, and the others do not
// begin to meet before it has started once more. With "waits" it does not end, and writes "waits"
// again and again. With "leaves" it ends with 0 in the first world.

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "gpipe/distributed/failure.h"
#include "gpipe/distributed/from_rank_0.h"
#include "gpipe/gpipe.h"
#include "gpipe/resilient/meet_again.h"

namespace {

constexpr int64_t kLayers = 8;

// Writes a whole line at once, with the time in milliseconds of a clock that all processes share.
void say(const std::string& text) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::printf(
      "%s at %lld\n", text.c_str(),
      static_cast<long long>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count()));
  std::fflush(stdout);
}

std::string in_world(const gpipe::Meeting& meeting) {
  return "generation " + std::to_string(meeting.generation) + " rank " +
         std::to_string(meeting.world.rank()) + " of " + std::to_string(meeting.world.size());
}

// Makes steps until the file `stop_file` exists, or until a failure is thrown.
void work(const gpipe::Meeting& meeting, const std::string& stop_file) {
  const gpipe::World& world = meeting.world;
  torch::manual_seed(1);
  torch::nn::Sequential model;
  for (int64_t layer = 0; layer < kLayers; ++layer) model->push_back(torch::nn::Linear(6, 6));
  std::vector<int64_t> balance(static_cast<std::size_t>(world.size()), kLayers / world.size());
  balance.back() += kLayers % world.size();
  gpipe::GPipe pipe(model,
                    gpipe::GPipeOptions(balance).chunks(4).cpu_threads_per_stage(1).world(world));
  const torch::Tensor rows = torch::linspace(-1, 1, 12 * 6).reshape({12, 6});
  for (bool is_first = true;; is_first = false) {
    const double loss =
        pipe->step({rows}, {rows},
                   [](const gpipe::Tensors& outputs, const gpipe::Tensors& targets) {
                     return torch::mse_loss(outputs[0], targets[0]);
                   })
            .loss;
    if (is_first) {
      char digits[40];
      std::snprintf(digits, sizeof digits, "%a", loss);
      say("step " + in_world(meeting) + " loss " + digits);
    }
    const std::string next = gpipe::from_rank_0(world, [&] {
      return std::string(access(stop_file.c_str(), F_OK) == 0 ? "stop" : "go on");
    });
    if (next == "stop") return;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void die_later(std::chrono::milliseconds wait) {
  std::thread([wait] {
    std::this_thread::sleep_for(wait);
    kill(getpid(), SIGKILL);
  }).detach();
}

void die_early(const std::string& base, bool is_it) {
  const std::string died = base + ".died", again = base + ".again";
  const auto exists = [](const std::string& path) { return access(path.c_str(), F_OK) == 0; };
  const auto touch = [](const std::string& path) {
    if (std::FILE* const file = std::fopen(path.c_str(), "w")) std::fclose(file);
  };
  if (is_it && !exists(died)) {
    touch(died);
    kill(getpid(), SIGKILL);
  }
  if (is_it) touch(again);
  while (!exists(again)) std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

void run(const std::string& stop_file, const std::string& when, const std::string& who_dies) {
  const std::string number = std::getenv("RANK") == nullptr ? "0" : std::getenv("RANK");
  say("process " + number + " pid " + std::to_string(getpid()));
  if (when == "early") die_early(stop_file, number == who_dies);
  gpipe::WorldOptions options;
  options.silence_limit = std::chrono::seconds(2);
  gpipe::MeetAgainOptions again;
  for (bool is_first = true;; is_first = false) {
    if (!is_first && number == who_dies && when != "early" && when != "waits") {
      die_later(std::chrono::milliseconds(std::stoll(when)));
    }
    const gpipe::Meeting meeting = gpipe::meet(options, again);
    std::string from;
    for (const int64_t rank : meeting.came_from) from += " " + std::to_string(rank);
    say("world " + in_world(meeting) + " from" + from + " local rank " +
        std::to_string(meeting.world.local_rank()));
    if (when == "leaves" && number == who_dies) return;
    try {
      return work(meeting, stop_file);
    } catch (const gpipe::distributed::DistributedFailure& failure) {
      again.faults = failure.faults();
      say("lost " + in_world(meeting) + ": " + failure.what());
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  torch::set_num_threads(1);
  try {
    const std::string when = argc > 3 ? argv[2] : "", who = argc > 3 ? argv[3] : "";
    run(argv[1], when, who);
    while (when == "waits" && std::getenv("RANK") == who) {
      say("waits");
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  } catch (const gpipe::WorldIsOver& over) {
    say(std::string("over: ") + over.what());
    return 3;
  } catch (const std::exception& error) {
    say(std::string("threw: ") + error.what());
    return 1;
  }
  return 0;
}
