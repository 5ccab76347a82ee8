// Settings: the settings that the program's flags ask for.
#ifndef FINE_TUNE_SETTINGS_H_
#define FINE_TUNE_SETTINGS_H_

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "command/flags.h"
#include "examples/common/pipeline_flags.h"
#include "examples/common/training_flags.h"
#include "examples/fine_tune/conversations.h"
#include "models/lora.h"
#include "models/transformer_options.h"

namespace fine_tune {

struct Settings : examples::PipelineSettings, examples::TrainingSettings {
  // The model that is read.
  std::string model;  // the folder
  gpipe::models::TransformerOptions options = gpipe::models::TransformerKind::kLlama;
  std::string data, validation_data;  // files
  std::optional<Conversations> training, validation;
  int64_t length = 1024;
  bool packed = true;

  // The parameters that train.
  bool has_adapters = true;
  // None: all parameters.
  std::optional<gpipe::models::LoraOptions> lora =
      gpipe::models::LoraOptions({"all-linear"}).rank(16).alpha(32);
  std::string type_name = "float32";
  c10::ScalarType type = c10::ScalarType::Float;

  // Training.
  double average = 0;
  int64_t patience = 0;  // 0: no early stop
  std::optional<int64_t> stages;
  std::vector<int64_t> balance;

  // The files that are written.
  std::string run;  // the folder of the checkpoints and the result
  bool merge = false;
  bool resume_anyway = false;

  Settings() {
    learning_rate = 2e-4;
    weight_decay = 0.01;
    warm_up = 20;
    validate_every = 50;
    save_every = 100;
  }
  std::string last() const { return run + "/last"; }
  std::string best() const { return run + "/best"; }
  std::string result() const { return run + (lora && !merge ? "/adapter" : "/model"); }
};

// Adds the flags, whose defaults are the values of `settings`.
void add_flags(Settings& settings, gpipe::command::FlagSet& flags);

// To be called when the flags are read: reads the files that they name. Throws
// std::invalid_argument or c10::ValueError, with the flag and its value, for wrong values and for
// flags that do not go together.
void settle(Settings& settings);

// The settings that the bits of a run depend on (examples/common/bits.h). The layout is not part of
// them. `threads`: the threads of each stage on the CPU; 0 if no stage is there.
std::string bits_of(const Settings& settings, int64_t threads);

// The flags that must be the same in all processes of a run, as text.
std::string shared_flags(const Settings& settings);

}  // namespace fine_tune

#endif  // FINE_TUNE_SETTINGS_H_
