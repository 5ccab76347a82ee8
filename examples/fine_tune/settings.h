// Settings: the settings that the program's flags ask for.
#ifndef FINE_TUNE_SETTINGS_H_
#define FINE_TUNE_SETTINGS_H_

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

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
  std::optional<Conversations> training, validation;
  int64_t length = 0;
  bool packed = true;

  // The parameters that train.
  std::optional<gpipe::models::LoraOptions> lora;  // none: all parameters
  c10::ScalarType type = c10::ScalarType::Float;

  // Training.
  double average = 0;
  int64_t patience = 0;  // 0: no early stop
  std::vector<int64_t> balance;

  // The files that are written.
  std::string run;  // the folder of the checkpoints and the result
  bool merge = false;
  bool resume_anyway = false;

  std::string last() const { return run + "/last"; }
  std::string best() const { return run + "/best"; }
  std::string result() const { return run + (lora && !merge ? "/adapter" : "/model"); }
};

// Reads the flags, and the files that they name. Throws std::invalid_argument or c10::ValueError,
// with the flag and its value, for wrong values and for flags that do not go together.
void read_flags(Settings& settings);

// The settings that the bits of a run depend on (examples/common/bits.h). The layout is not part of
// them. `threads`: the threads of each stage on the CPU; 0 if no stage is there.
std::string bits_of(const Settings& settings, int64_t threads);

// The flags that must be the same in all processes of a run, as text.
std::string shared_flags(const Settings& settings);

}  // namespace fine_tune

#endif  // FINE_TUNE_SETTINGS_H_
