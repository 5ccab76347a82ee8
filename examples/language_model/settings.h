// Settings: the settings that the program's flags ask for.
#ifndef LANGUAGE_MODEL_SETTINGS_H_
#define LANGUAGE_MODEL_SETTINGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "command/flags.h"
#include "examples/common/pipeline_flags.h"
#include "examples/common/training_flags.h"
#include "examples/language_model/documents.h"
#include "examples/language_model/sample.h"
#include "models/transformer_options.h"

namespace language_model {

struct Settings : examples::PipelineSettings, examples::TrainingSettings {
  // The text.
  std::string path, text;                   // the file, and what it holds
  std::vector<std::string_view> documents;  // in `text`
  std::vector<Piece> training, validation;
  int64_t held_out = 0;                 // the number of documents for the validation
  std::string documents_are = "lines";  // or "paragraphs"
  int64_t length = 256;
  bool packed = true;

  std::string model_name = "llama";
  int64_t blocks = 4, width = 128, heads = 4;
  double dropout = 0;
  bool tied = false;
  gpipe::models::TransformerOptions model = gpipe::models::TransformerKind::kLlama;

  // Training.
  bool every_loss = false;  // whether each step's loss is printed, with all its digits
  bool short_last = false;  // whether an epoch's last mini-batch may be short
  int64_t validation_rows = 128;

  // The pipeline.
  bool plain = false;
  std::string cut = "even";  // or "time", "best", or empty: `balance`
  std::vector<int64_t> balance;
  std::optional<int64_t> stages;
  bool explain = false;

  // Files, made absolute; empty: none.
  std::string save, resume, json;
  std::string resume_as;  // the flags that ask to resume, for messages
  bool resume_saved = false, resume_anyway = false;

  // Deaths.
  bool resilient = false;
  int64_t snapshot_every = 10;
  std::string phases;  // a folder

  SampleOptions sampling;  // without seed and length, which are those of the run

  Settings() {
    learning_rate = 3e-3;
    weight_decay = 0.1;
    warm_up = 50;
    validate_every = 100;
    sampling.temperature = 0.8;
  }
  // Settings cannot be copied, because documents and pieces point into the text.
  Settings(const Settings&) = delete;
  Settings& operator=(const Settings&) = delete;
};

// Adds the flags, whose defaults are the values of `settings`.
void add_flags(Settings& settings, gpipe::command::FlagSet& flags);

// To be called when the flags are read: reads the files that they name. Throws
// std::invalid_argument or c10::ValueError, with the flag and its value, for wrong values and for
// flags that do not go together.
void settle(Settings& settings);

using examples::adds_in_order;

}  // namespace language_model

#endif  // LANGUAGE_MODEL_SETTINGS_H_
