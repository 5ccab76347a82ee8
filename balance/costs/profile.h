// Profile: the measured costs of each layer of a model, in time and in memory, for one micro-batch
// on one device.
#ifndef BALANCE_COSTS_PROFILE_H_
#define BALANCE_COSTS_PROFILE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gpipe::balance {

// The largest param_scale: the bytes that training needs for each byte of a parameter. No optimizer
// keeps as much, and the product with the bytes of parameters stays in range.
inline constexpr double kMostParamScale = 1e6;

// A backward of one micro-batch, split in two halves.
struct SplitBackward {
  // Seconds of the gradients of the layer's inputs (I), which the stage before waits for, and of
  // the gradients of its weights (W). Together they usually take longer than a whole backward.
  double input = 0;
  double weight = 0;
  // Bytes that W frees: the activations and gradients that W needs, including the layer's input.
  int64_t waiting = 0;
};

// A value type.
struct LayerProfile {
  std::string name;  // the layer's key in the Sequential

  // Seconds for one micro-batch; medians. 0 if times were not measured.
  double forward = 0;
  double backward = 0;

  // Bytes. Tied parameters count at the first layer that has them.
  int64_t parameters = 0;
  int64_t buffers = 0;
  // Bytes of one micro-batch: what the layer keeps from its forward until its backward (without its
  // input, which is the output of the layer before); the most that its forward or its backward
  // holds beside that; and what it gives to the next layer.
  int64_t kept = 0;
  int64_t workspace = 0;
  int64_t output = 0;

  // None: not measured, as in older files. See split_backward().
  std::optional<SplitBackward> split = std::nullopt;
};

// The halves of a layer's backward. If they were not measured, each has half of the time, and W
// frees all that the layer keeps.
inline SplitBackward split_backward(const LayerProfile& layer) {
  return layer.split.value_or(SplitBackward{layer.backward / 2, layer.backward / 2, layer.kept});
}

// Multiplies every time of the layer by `factor`, also those of the halves. Bytes stay.
void scale_times(LayerProfile& layer, double factor);

// Adds the times of `other`. Bytes stay. The sum has measured halves only if both have.
void add_times(LayerProfile& layer, const LayerProfile& other);

// A skip: a tensor that a layer stashes and a later one pops.
struct SkipProfile {
  int64_t from = 0;  // layers, counted from 0
  int64_t to = 0;
  int64_t bytes = 0;  // bytes of one micro-batch
};

struct Profile {
  std::string device;  // a name for people, e.g. "NVIDIA A100" or that of the processor
  // The type that autocast cast to while the layers ran ("bfloat16", "float16"). Empty: autocast
  // was off. None: not known, as in older files.
  std::optional<std::string> autocast = std::string();
  // Whether batch norms were deferred (GPipeOptions::deferred_batch_norm), so that forwards also
  // gather moments. False for files that do not say it.
  bool deferred_batch_norm = false;
  int64_t batch_rows = 0;  // rows of the micro-batch
  // Bytes of the micro-batch that enters the first layer. Inputs that all micro-batches share
  // (ProfileOptions::shared_inputs) do not count: they exist once, however many micro-batches are
  // in flight.
  int64_t input = 0;
  std::vector<LayerProfile> layers;
  std::vector<SkipProfile> skips;
  // Indices of the inputs that all micro-batches share, ascending. None: not known, as in older
  // files.
  std::optional<std::vector<int64_t>> shared_inputs = std::nullopt;
};

// The same layers for a micro-batch of `rows` rows: times and bytes of a micro-batch grow in
// proportion, parameters and buffers stay. Throws std::invalid_argument for a profile without rows,
// and for `rows` below 0.
Profile in_proportion(const Profile& profile, int64_t rows);

// Interpolates linearly in the rows between two profiles of the same layers. Halves, the autocast
// guard and shared inputs are known in the result only if both profiles have them. Throws
// std::invalid_argument if the profiles differ in their layers, autocast guards, shared inputs or
// deferred batch norms, if `low` does not have fewer rows than `high`, and for `rows` below 0.
Profile between(const Profile& low, const Profile& high, int64_t rows);

}  // namespace gpipe::balance

#endif  // BALANCE_COSTS_PROFILE_H_
