#include "examples/fine_tune/result.h"

#include <c10/util/Exception.h>
#include <torch/utils.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <vector>

#include "absl/strings/str_join.h"
#include "command/wrong_value.h"
#include "examples/fine_tune/average.h"
#include "gpipe/gpipe.h"
#include "gpipe/saving/saving.h"
#include "models/hugging_face.h"
#include "models/lora.h"
#include "models/transformer.h"

namespace fine_tune {

namespace models = gpipe::models;
using gpipe::command::wrong_value;

torch::nn::Sequential make_model(const Settings& settings, bool weights) {
  // Each process makes the whole model, with the same values, and keeps its part.
  torch::manual_seed(settings.seed);
  torch::nn::Sequential model = models::transformer(settings.options);
  model->to(settings.type);
  if (weights) {
    try {
      models::load_hugging_face(settings.model, settings.options, *model);
    } catch (const std::runtime_error& error) {
      throw wrong_value("model", settings.model, error.what());
    }
  }
  if (settings.lora) {
    try {
      models::add_lora(*model, settings.options, *settings.lora);
    } catch (const c10::ValueError& error) {
      throw wrong_value("targets", absl::StrJoin(settings.lora->target_modules(), ","),
                        error.what_without_backtrace());
    }
  }
  if (settings.average > 0) add_averages(*model);
  return model;
}

void write_result(const Settings& settings, const std::string& checkpoint) {
  torch::nn::Sequential model = make_model(settings, /*weights=*/false);
  const std::vector<int64_t> all = {static_cast<int64_t>(model->size())};
  gpipe::GPipe pipe(model, gpipe::GPipeOptions(all).devices({c10::Device(c10::kCPU)}));
  gpipe::load_weights(pipe, checkpoint);
  std::optional<WithAverages> averages;
  if (settings.average > 0) averages.emplace(pipe);
  if (settings.lora && !settings.merge) {
    models::save_lora(settings.result(), *model, *settings.lora, settings.model);
    return;
  }
  if (settings.lora) models::merge_and_unload_lora(*model);
  models::save_hugging_face(settings.result(), settings.options, *model,
                            models::SaveHuggingFaceOptions().source(settings.model));
}

}  // namespace fine_tune
