// Profile: what each layer of a model costs, in time and in memory, as measured for one micro-batch
// on one device.
#ifndef BALANCE_COSTS_PROFILE_H_
#define BALANCE_COSTS_PROFILE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gpipe::balance {

// The largest param_scale: what a parameter takes in training, in units of its own bytes. Beyond
// what any optimizer keeps; the bytes of parameters times it stay a number.
inline constexpr double kMostParamScale = 1e6;

// A backward in two halves, of one micro-batch.
struct SplitBackward {
  // Seconds of the gradients of the layer's inputs (I), which the stage before waits for, and of
  // those of its weights (W). Together they take longer than a whole backward, as a rule.
  double input = 0;
  double weight = 0;
  // Bytes that W frees: activations, the layer's input among them, and gradients, as far as W needs
  // them.
  int64_t waiting = 0;
};

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

  // None: not measured, as in files that are older. See split_backward().
  std::optional<SplitBackward> split = std::nullopt;
};

// The halves of a layer's backward: as measured, or else half of its time each, with all that it
// keeps waiting.
inline SplitBackward split_backward(const LayerProfile& layer) {
  return layer.split.value_or(SplitBackward{layer.backward / 2, layer.backward / 2, layer.kept});
}

// Every time of the layer, those of the halves too, multiplied by `factor`. Bytes stay.
void scale_times(LayerProfile& layer, double factor);

// Adds the times of `other`. Bytes stay. The sum has measured halves only if both have.
void add_times(LayerProfile& layer, const LayerProfile& other);

// A tensor that a layer stashes and a later one pops.
struct SkipProfile {
  int64_t from = 0;  // layers, counted from 0
  int64_t to = 0;
  int64_t bytes = 0;  // of one micro-batch
};

struct Profile {
  std::string device;  // a name for people, e.g. "NVIDIA A100" or the processor's
  // What autocast casts to where the layers ran ("bfloat16", "float16"). Empty: it was not enabled.
  // None: not known, as in files that are older.
  std::optional<std::string> autocast = std::string();
  // Whether batch norms were deferred (GPipeOptions::deferred_batch_norm), as forwards then also
  // gather moments. They were not in files that do not say it.
  bool deferred_batch_norm = false;
  int64_t batch_rows = 0;  // rows of the micro-batch
  // Bytes of the micro-batch that enters the first layer. Inputs that all micro-batches share
  // (ProfileOptions::shared_inputs) are not in it: they are there once, however many are in flight.
  int64_t input = 0;
  std::vector<LayerProfile> layers;
  std::vector<SkipProfile> skips;
  // Numbers of the inputs that all micro-batches share, ascending. None: not known, as in files
  // that are older.
  std::optional<std::vector<int64_t>> shared_inputs = std::nullopt;
};

// The same layers for a micro-batch of `rows` rows: times and bytes of a micro-batch are in
// proportion, parameters and buffers stay. Throws std::invalid_argument for a profile without rows,
// and for less than 0 rows.
Profile in_proportion(const Profile& profile, int64_t rows);

// The same between two profiles of the same layers, linear in the rows. What one of them has no
// measured halves for has none, and a guard of autocast or shared inputs that one of them does not
// know are not known. Throws std::invalid_argument for profiles of other layers, of other guards of
// autocast or of other shared inputs, for one alone with deferred batch norms, unless low has fewer
// rows than high, and for less than 0 rows.
Profile between(const Profile& low, const Profile& high, int64_t rows);

}  // namespace gpipe::balance

#endif  // BALANCE_COSTS_PROFILE_H_
