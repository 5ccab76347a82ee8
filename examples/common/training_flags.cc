#include "examples/common/training_flags.h"

#include "absl/strings/str_cat.h"
#include "command/flag_values.h"
#include "command/wrong_value.h"

namespace examples {
namespace {

using gpipe::command::in_range;
using gpipe::command::kMostReal;
using gpipe::command::kNoMost;
using gpipe::command::wrong_value;

constexpr int64_t kMost = int64_t{1} << 30;
// The least value of --clip. If gradients were clipped to less, they would be lost in float32.
constexpr double kLeastClip = 1e-6;

}  // namespace

void add_training_flags(TrainingSettings& settings, gpipe::command::FlagSet& flags) {
  flags.add("batch", settings.batch, 1, kMost, "Rows of a mini-batch.");
  flags.add("steps", settings.steps, 0, kMost, "Steps of training; 0: none.");
  flags.add("stop_at", settings.stops,
            "End after this step, as after a signal: the same run can go on later.");
  flags.add("learning_rate", settings.learning_rate, 0, kMostReal,
            "The highest learning rate. It rises for --warm_up steps and falls as a cosine to a "
            "tenth at the end.");
  flags.add("warm_up", settings.warm_up, 0, kMost,
            "Steps in which the learning rate rises. With more than --steps it does not get to "
            "--learning_rate.");
  flags.add("weight_decay", settings.weight_decay, 0, kMostReal,
            "AdamW's weight decay of matrices. Norms and biases do not decay.");
  flags.add("clip", settings.clip, 0, kMostReal,
            "The most that the norm of all gradients may be; 0: gradients are not clipped.");
  flags.add("seed", settings.seed,
            "Seed of what is drawn: new parameters, the order of the data, dropout, samples.");
  flags.add("bfloat16", settings.bfloat16,
            "Products in bfloat16 (autocast). Parameters stay as they are.");
  flags.add("validate_every", settings.validate_every, 1, kNoMost,
            "Steps between two validations.");
  flags.add("save_every", settings.save_every, 0, kMost,
            "Steps between two checkpoints; 0: none on the way.");
}

void check_training(TrainingSettings& settings) {
  settings.stop_at =
      in_range("stop_at", settings.stops, 0, settings.steps).value_or(settings.steps);
  if (settings.learning_rate == 0) {
    throw wrong_value("learning_rate", 0, "nothing would be trained; give a number above 0");
  }
  // A step takes the share learning_rate * weight_decay away from a weight, so the product must be
  // below 1.
  if (settings.learning_rate * settings.weight_decay >= 1) {
    throw wrong_value("weight_decay", settings.weight_decay,
                      absl::StrCat("with --learning_rate=", settings.learning_rate,
                                   " a step would take all of a weight away; give less than ",
                                   1 / settings.learning_rate));
  }
  if (settings.clip > 0 && settings.clip < kLeastClip) {
    throw wrong_value(
        "clip", settings.clip,
        absl::StrCat("give a number from ", kLeastClip, ", or 0, which does not clip gradients"));
  }
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
