#include "examples/fine_tune/settings.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "command/balance_flag.h"
#include "command/files.h"
#include "command/flag_values.h"
#include "command/wrong_value.h"
#include "examples/common/bits.h"
#include "examples/distributed/layout.h"
#include "examples/fine_tune/tokenizer.h"
#include "gpipe/saving/saving.h"
#include "models/hugging_face.h"

ABSL_FLAG(std::string, model, "",
          "The model's folder, with config.json and model.safetensors (or its pieces), as Python's "
          "transformers writes it.");
ABSL_FLAG(std::string, data, "", "The conversations to learn from, as prepare.py writes them.");
ABSL_FLAG(std::string, validation, "",
          "Conversations to measure with. Default: none, and no best checkpoint.");
ABSL_FLAG(std::string, run, "",
          "The folder for what the run writes: last (a checkpoint, from which the same command "
          "goes on), best, and at the end adapter or model.");
ABSL_FLAG(int64_t, length, 1024,
          "Tokens of a row. Longer conversations are cut. The model's max_position_embeddings are "
          "the most that it knows.");
ABSL_FLAG(bool, packed, true,
          "Whether a row has several conversations, if they fit, which do not see each other.");

ABSL_FLAG(bool, lora, true, "Train low-rank adapters. With --nolora all parameters are trained.");
ABSL_FLAG(std::string, targets, "all-linear",
          "The layers that get adapters, such as q_proj,v_proj; all-linear: all but the head.");
ABSL_FLAG(int64_t, rank, 16, "The adapters' rank.");
ABSL_FLAG(double, alpha, 32, "What the adapters add is multiplied with alpha / rank.");
ABSL_FLAG(double, lora_dropout, 0, "The probability that an adapter's input is left out.");
ABSL_FLAG(bool, dora, false, "Train the lengths of the weights' rows, too (DoRA).");
ABSL_FLAG(bool, merge, false,
          "Write the whole model, with the adapters in its weights, to model; otherwise they are "
          "written to adapter.");
ABSL_FLAG(std::string, type, "float32",
          "The type of the model's parameters: float32, or bfloat16, for a base that adapters "
          "leave as it is.");
ABSL_FLAG(double, average, 0,
          "Also keep averages of what trains, which are validated and written: the share that an "
          "average keeps in a step, such as 0.99. Default: 0, none.");
ABSL_FLAG(int64_t, patience, 0,
          "End after this many validations in a row that were not the best. Default: 0, never.");
ABSL_FLAG(
    bool, resume_anyway, false,
    "Go on from --run's last checkpoint even with other flags than its own, and so with other "
    "bits than the run that was stopped would have had.");

ABSL_FLAG(std::optional<int64_t>, stages, std::nullopt,
          "Partitions of the pipeline. Default: one for each process of a replica.");
ABSL_FLAG(std::string, balance, "", "Layers of each partition, such as 30,37. Default: even.");

namespace fine_tune {
namespace {

namespace command = gpipe::command;
namespace fs = std::filesystem;
namespace models = gpipe::models;
using command::at_least;
using command::in_range;
using Json = nlohmann::ordered_json;

constexpr int64_t kMost = int64_t{1} << 30;

std::string needed_path(const char* flag, const std::string& value, const std::string& what) {
  if (value.empty()) {
    throw std::invalid_argument(absl::StrCat("--", flag, " is missing: give ", what));
  }
  return command::user_path(value);
}

// Refuses flags that would do nothing beside `chosen`, unless they have their default.
void refuse_idle(const char* chosen, const std::vector<const char*>& names, const char* why) {
  std::vector<std::string> given;
  for (const char* const name : names) {
    const absl::CommandLineFlag* const flag = absl::FindCommandLineFlag(name);
    if (flag->CurrentValue() == flag->DefaultValue()) continue;
    given.push_back(absl::StrCat("--", name, "=", flag->CurrentValue()));
  }
  if (given.empty()) return;
  throw std::invalid_argument(absl::StrCat(absl::StrJoin(given, ", "), ": with ", chosen, " ", why,
                                           "; leave ", given.size() == 1 ? "it" : "them",
                                           " out, or ", chosen));
}

void read_model(Settings& settings) {
  settings.model = needed_path("model", absl::GetFlag(FLAGS_model), "the folder of a model");
  if (!fs::is_directory(settings.model)) {
    throw command::wrong_value("model", settings.model, "there is no such folder");
  }
  try {
    settings.options = models::read_config(settings.model);
  } catch (const std::runtime_error& error) {
    throw command::wrong_value(
        "model", settings.model,
        absl::StrCat(error.what(),
                     "; give a folder with config.json and weights of a family that "
                     "models/families/families.h has"));
  }
  // LibTorch's own attention computes no soft cap, which Gemma 2 has.
  settings.options.packed(true).fused_attention(settings.options.block().attention_soft_cap() == 0);
  models::check(settings.options);
  const std::string type = absl::GetFlag(FLAGS_type);
  if (type != "float32" && type != "bfloat16") {
    throw command::wrong_value("type", type, "give float32 or bfloat16");
  }
  settings.type = type == "float32" ? c10::ScalarType::Float : c10::ScalarType::BFloat16;
  if (absl::GetFlag(FLAGS_lora)) {
    const std::vector<std::string> targets =
        absl::StrSplit(absl::GetFlag(FLAGS_targets), ',', absl::SkipEmpty());
    settings.lora =
        models::LoraOptions(targets)
            .rank(in_range("rank", absl::GetFlag(FLAGS_rank), 1, kMost))
            .alpha(at_least("alpha", absl::GetFlag(FLAGS_alpha), 0))
            .dropout(at_least("lora_dropout", absl::GetFlag(FLAGS_lora_dropout), 0, 0.99))
            .dora(absl::GetFlag(FLAGS_dora));
    if (settings.lora->alpha() == 0) {
      throw command::wrong_value("alpha", 0, "adapters would add nothing; give a number above 0");
    }
    if (targets.empty()) {
      throw command::wrong_value("targets", "", "give names such as q_proj,v_proj, or all-linear");
    }
  } else {
    refuse_idle("--nolora", {"targets", "rank", "alpha", "lora_dropout", "dora", "merge"},
                "there are no adapters, and the whole model is written");
  }
  if (!settings.lora && settings.type != c10::ScalarType::Float) {
    throw command::wrong_value("type", type,
                               "steps of --nolora would be lost in its rounding; give float32, and "
                               "--bfloat16 for products in bfloat16");
  }
  settings.merge = absl::GetFlag(FLAGS_merge);
}

std::optional<Conversations> read_conversations(const char* flag, const std::string& value,
                                                const Settings& settings) {
  const std::string path = command::user_path(value);
  try {
    Conversations read(path, settings.options.vocab_size(), settings.length);
    check_tokenizer(read.made_by(), settings.model);
    return read;
  } catch (const std::runtime_error& error) {
    throw command::wrong_value(flag, path, error.what());
  }
}

void read_data(Settings& settings) {
  settings.length = in_range("length", absl::GetFlag(FLAGS_length), 2, kMost);
  if (settings.options.block().learned_positions() &&
      settings.length > settings.options.max_positions()) {
    throw command::wrong_value(
        "length", settings.length,
        absl::StrCat("the model has positions for ", settings.options.max_positions(),
                     " tokens; give at most as many"));
  }
  settings.packed = absl::GetFlag(FLAGS_packed);
  const std::string data = needed_path("data", absl::GetFlag(FLAGS_data), "what prepare.py wrote");
  settings.training = read_conversations("data", data, settings);
  const std::string validation = absl::GetFlag(FLAGS_validation);
  if (!validation.empty()) {
    settings.validation = read_conversations("validation", validation, settings);
  }
}

void read_training(Settings& settings) {
  examples::read_training_flags(settings);
  settings.average = at_least("average", absl::GetFlag(FLAGS_average), 0, 0.999999);
  settings.patience = in_range("patience", absl::GetFlag(FLAGS_patience), 0, kMost);
  if (settings.patience > 0 && !settings.validation) {
    throw std::invalid_argument("--patience counts validations: give --validation=FILE, too");
  }
}

void read_cut(Settings& settings) {
  const int64_t layers = 2 * settings.options.num_layers() + 3;
  const std::string balance = absl::GetFlag(FLAGS_balance);
  settings.balance = command::parse_balance(balance);
  command::check_balance_sum(settings.balance, layers, balance, "the model");
  const auto stages = in_range("stages", absl::GetFlag(FLAGS_stages), 1, layers);
  if (!stages) return;
  if (!settings.balance.empty()) {
    throw command::wrong_value("stages", *stages,
                               "--balance says how many there are; leave it out");
  }
  settings.balance = distributed::even_balance(layers, *stages);
}

void read_run(Settings& settings) {
  settings.run = needed_path("run", absl::GetFlag(FLAGS_run), "a folder for what the run writes");
  command::check_writable_folder("--run", settings.run);
  for (const std::string& path : {settings.last(), settings.best()}) {
    try {
      gpipe::check_checkpoint_path(path);
    } catch (const c10::ValueError& error) {
      throw std::invalid_argument("--run: " + std::string(error.what_without_backtrace()));
    }
  }
  std::error_code missing;
  if (fs::equivalent(settings.result(), settings.model, missing)) {
    throw command::wrong_value(
        "run", settings.run,
        absl::StrCat("the result would replace --model=", settings.model, "; give another folder"));
  }
  settings.resume_anyway = absl::GetFlag(FLAGS_resume_anyway);
}

}  // namespace

void read_flags(Settings& settings) {
  read_model(settings);
  read_data(settings);
  read_training(settings);
  examples::read_pipeline_flags(settings, settings.batch);
  read_cut(settings);
  read_run(settings);
}

std::string bits_of(const Settings& settings, int64_t threads) {
  Json bits;
  // Of the model's folder only the config counts, because a checkpoint has all weights.
  bits["model"] = examples::content_of(command::read_file(settings.model + "/config.json"));
  bits["data"] = settings.training->content();
  bits["validation"] = settings.validation ? settings.validation->content() : "";
  bits["length"] = settings.length;
  bits["packed"] = settings.packed;
  bits["lora"] = settings.lora.has_value();
  if (settings.lora) {
    bits["targets"] = absl::StrJoin(settings.lora->target_modules(), ",");
    bits["rank"] = settings.lora->rank();
    bits["alpha"] = settings.lora->alpha();
    bits["lora_dropout"] = settings.lora->dropout();
    bits["dora"] = settings.lora->dora();
  }
  bits["type"] = settings.type == c10::ScalarType::Float ? "float32" : "bfloat16";
  bits.update(examples::training_bits(settings));
  bits["average"] = settings.average;
  bits["validate_every"] = settings.validate_every;
  bits["patience"] = settings.patience;
  bits.update(examples::pipeline_bits(settings, threads));
  return bits.dump();
}

std::string shared_flags(const Settings& settings) {
  Json flags = Json::parse(bits_of(settings, settings.threads));
  flags["schedule"] = settings.schedule.name;
  flags["replicas"] = settings.replicas;
  flags["zero"] = settings.zero;
  flags["stop_at"] = settings.stop_at;
  flags["save_every"] = settings.save_every;
  flags["merge"] = settings.merge;
  return flags.dump();
}

}  // namespace fine_tune
