// add_training_flags, check_training: the flags that say how a language model is trained.
//
// The flags are --batch, --steps, --stop_at, --learning_rate, --warm_up, --weight_decay, --clip,
// --seed, --bfloat16, --validate_every and --save_every.
#ifndef COMMON_TRAINING_FLAGS_H_
#define COMMON_TRAINING_FLAGS_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "command/flags.h"

namespace examples {

// Fields without a value here have another default in each program.
struct TrainingSettings {
  int64_t batch = 16, steps = 500, stop_at = 0;
  std::optional<int64_t> stops;  // --stop_at, if it is given
  double learning_rate = 0, weight_decay = 0;
  double clip = 1;  // 0: gradients are not clipped
  int64_t warm_up = 0;
  uint64_t seed = 0;
  bool bfloat16 = false;
  int64_t validate_every = 1, save_every = 0;
};

// Adds the flags, whose defaults are the values of `settings`.
void add_training_flags(TrainingSettings& settings, gpipe::command::FlagSet& flags);

// To be called when the flags are read. Throws std::invalid_argument, with the flag and its value,
// for values that are wrong beside others.
void check_training(TrainingSettings& settings);

// The flags that a run's bits depend on (examples/common/bits.h).
nlohmann::ordered_json training_bits(const TrainingSettings& settings);

}  // namespace examples

#endif  // COMMON_TRAINING_FLAGS_H_
