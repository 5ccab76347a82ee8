#include "examples/common/training_flags.h"

#include <optional>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "command/flag_values.h"
#include "command/wrong_value.h"

ABSL_FLAG(int64_t, batch, 16, "Rows of a mini-batch.");
ABSL_FLAG(int64_t, steps, 500, "Steps of training; 0: none.");
ABSL_FLAG(std::optional<int64_t>, stop_at, std::nullopt,
          "End after this step, as after a signal: the same run can go on later.");
ABSL_FLAG(
    double, learning_rate, 0,
    "The highest learning rate. It rises for --warm_up steps and falls as a cosine to a tenth "
    "at the end.");
ABSL_FLAG(int64_t, warm_up, 0,
          "Steps in which the learning rate rises. With more than --steps it does not get to "
          "--learning_rate.");
ABSL_FLAG(double, weight_decay, 0,
          "AdamW's weight decay of matrices. Norms and biases do not decay.");
ABSL_FLAG(double, clip, 1.0,
          "The most that the norm of all gradients may be; 0: gradients are not clipped.");
ABSL_FLAG(uint64_t, seed, 0,
          "Seed of what is drawn: new parameters, the order of the data, dropout, samples.");
ABSL_FLAG(bool, bfloat16, false, "Products in bfloat16 (autocast). Parameters stay as they are.");
ABSL_FLAG(int64_t, validate_every, 1, "Steps between two validations.");
ABSL_FLAG(int64_t, save_every, 0, "Steps between two checkpoints; 0: none on the way.");

namespace examples {
namespace {

using gpipe::command::at_least;
using gpipe::command::in_range;
using gpipe::command::wrong_value;

constexpr int64_t kMost = int64_t{1} << 30;
// The least value of --clip. If gradients were clipped to less, they would be lost in float32.
constexpr double kLeastClip = 1e-6;

}  // namespace

void set_training_defaults(const TrainingDefaults& defaults) {
  absl::SetFlag(&FLAGS_learning_rate, defaults.learning_rate);
  absl::SetFlag(&FLAGS_weight_decay, defaults.weight_decay);
  absl::SetFlag(&FLAGS_warm_up, defaults.warm_up);
  absl::SetFlag(&FLAGS_validate_every, defaults.validate_every);
  absl::SetFlag(&FLAGS_save_every, defaults.save_every);
}

void read_training_flags(TrainingSettings& settings) {
  settings.batch = in_range("batch", absl::GetFlag(FLAGS_batch), 1, kMost);
  settings.steps = in_range("steps", absl::GetFlag(FLAGS_steps), 0, kMost);
  settings.stop_at =
      in_range("stop_at", absl::GetFlag(FLAGS_stop_at), 0, settings.steps).value_or(settings.steps);
  settings.learning_rate = at_least("learning_rate", absl::GetFlag(FLAGS_learning_rate), 0);
  if (settings.learning_rate == 0) {
    throw wrong_value("learning_rate", 0, "nothing would be trained; give a number above 0");
  }
  settings.warm_up = in_range("warm_up", absl::GetFlag(FLAGS_warm_up), 0, kMost);
  settings.weight_decay = at_least("weight_decay", absl::GetFlag(FLAGS_weight_decay), 0);
  // A step takes the share learning_rate * weight_decay away from a weight, so the product must be
  // below 1.
  if (settings.learning_rate * settings.weight_decay >= 1) {
    throw wrong_value("weight_decay", settings.weight_decay,
                      absl::StrCat("with --learning_rate=", settings.learning_rate,
                                   " a step would take all of a weight away; give less than ",
                                   1 / settings.learning_rate));
  }
  settings.clip = at_least("clip", absl::GetFlag(FLAGS_clip), 0);
  if (settings.clip > 0 && settings.clip < kLeastClip) {
    throw wrong_value(
        "clip", settings.clip,
        absl::StrCat("give a number from ", kLeastClip, ", or 0, which does not clip gradients"));
  }
  settings.seed = absl::GetFlag(FLAGS_seed);
  settings.bfloat16 = absl::GetFlag(FLAGS_bfloat16);
  settings.validate_every = in_range("validate_every", absl::GetFlag(FLAGS_validate_every), 1);
  settings.save_every = in_range("save_every", absl::GetFlag(FLAGS_save_every), 0, kMost);
}

nlohmann::ordered_json training_bits(const TrainingSettings& settings) {
  nlohmann::ordered_json bits;
  bits["batch"] = settings.batch;
  bits["steps"] = settings.steps;
  bits["learning_rate"] = settings.learning_rate;
  bits["warm_up"] = settings.warm_up;
  bits["weight_decay"] = settings.weight_decay;
  bits["clip"] = settings.clip;
  bits["seed"] = settings.seed;
  bits["bfloat16"] = settings.bfloat16;
  return bits;
}

}  // namespace examples
