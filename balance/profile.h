// Profile: what each layer of a model costs, in time and in memory, as measured for one micro-batch
// on one device.
#ifndef BALANCE_PROFILE_H_
#define BALANCE_PROFILE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace gpipe::balance {

// The largest param_scale: what a parameter takes in training, in units of its own bytes. Beyond
// what any optimizer keeps; the bytes of parameters times it stay a number.
inline constexpr double kMostParamScale = 1e6;

// A value type.
struct LayerProfile {
  std::string name;  // its key in the Sequential

  // Seconds for one micro-batch; medians. 0 where times were not measured.
  double forward = 0;
  double backward = 0;

  // Bytes. Tied parameters count at the first layer that has them.
  int64_t parameters = 0;
  int64_t buffers = 0;
  // Of one micro-batch: what the layer keeps from its forward until its backward (without its
  // input, which is the output of the layer before), the most that its forward or its backward
  // holds beside that, and what it gives to the next layer.
  int64_t kept = 0;
  int64_t workspace = 0;
  int64_t output = 0;
};

// A tensor that a layer stashes and a later one pops.
struct SkipProfile {
  int64_t from = 0;  // layers, counted from 0
  int64_t to = 0;
  int64_t bytes = 0;  // of one micro-batch
};

struct Profile {
  std::string device;      // a name for people, e.g. "NVIDIA A100" or the processor's
  int64_t batch_rows = 0;  // rows of the micro-batch
  int64_t input = 0;       // bytes of the micro-batch that enters the first layer
  std::vector<LayerProfile> layers;
  std::vector<SkipProfile> skips;
};

}  // namespace gpipe::balance

#endif  // BALANCE_PROFILE_H_
