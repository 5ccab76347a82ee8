// expect_one_processs_bits: for tests, trains a sample model over processes with a device each, and
// in one process.
#ifndef GPIPE_TESTING_PROCESSES_WORLD_TRAINING_H_
#define GPIPE_TESTING_PROCESSES_WORLD_TRAINING_H_

#include <cstdint>
#include <string>

#include "gpipe/testing/processes/world_ranks.h"
#include "gpipe/testing/sample_models.h"

namespace gpipe::distributed {

// How a training is spread over processes.
struct Spread {
  std::string schedule = "1f1b";
  int64_t stages = 2;
  int64_t processes = 2;  // of each replica, on devices 1, 2, ...
  int64_t replicas = 1;
  std::string links = "host";  // GPIPE_DEVICE_LINKS: "host" or "sockets"
};

// Trains three steps, whose numbers of rows differ, each with clipping, and evaluates. Expects the
// losses, norms and parameter hash of one process on device 0, and that tensors between devices
// went by the requested links.
void expect_one_processs_bits(const testing::SampleModel& sample, const Spread& spread);

// Trains one step in two processes on devices 1 and 2. Expects that each makes only its own device
// current, because on CUDA a device that is made current gets a context.
void expect_only_own_devices_are_made_current(const std::string& links);

// Starts ranks with GPIPE_DEVICE_LINKS=`links`. From now on this process has that value, too.
WorldRanks ranks_with(const std::string& links, int64_t size, const WorldRanks::Main& main);

// A number's bits, as a text with a blank at the end.
std::string bits(double number);

}  // namespace gpipe::distributed

#endif  // GPIPE_TESTING_PROCESSES_WORLD_TRAINING_H_
