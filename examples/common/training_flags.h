// read_training_flags: reads the flags that say how a language model is trained.
//
// The flags are --batch, --steps, --stop_at, --learning_rate, --warm_up, --weight_decay, --clip,
// --seed, --bfloat16, --validate_every and --save_every.
#ifndef COMMON_TRAINING_FLAGS_H_
#define COMMON_TRAINING_FLAGS_H_

#include <cstdint>
#include <nlohmann/json.hpp>

namespace examples {

// The defaults of flags that do not have the same default in all programs.
struct TrainingDefaults {
  double learning_rate = 0, weight_decay = 0;
  int64_t warm_up = 0, validate_every = 0, save_every = 0;
};
// To be called once, before the command line is parsed.
void set_training_defaults(const TrainingDefaults& defaults);

struct TrainingSettings {
  int64_t batch = 0, steps = 0, stop_at = 0;
  double learning_rate = 0, weight_decay = 0;
  double clip = 0;  // 0: gradients are not clipped
  int64_t warm_up = 0;
  uint64_t seed = 0;
  bool bfloat16 = false;
  int64_t validate_every = 0, save_every = 0;
};

// Throws std::invalid_argument, with the flag and its value, for wrong values.
void read_training_flags(TrainingSettings& settings);

// The flags that a run's bits depend on (examples/common/bits.h).
nlohmann::ordered_json training_bits(const TrainingSettings& settings);

}  // namespace examples

#endif  // COMMON_TRAINING_FLAGS_H_
