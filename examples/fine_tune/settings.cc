#include "examples/fine_tune/settings.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "absl/flags/marshalling.h"
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

namespace fine_tune {
namespace {

namespace command = gpipe::command;
namespace fs = std::filesystem;
namespace models = gpipe::models;
using Json = nlohmann::ordered_json;

constexpr int64_t kMost = int64_t{1} << 30;

std::string needed_path(const char* flag, const std::string& value, const std::string& what) {
  if (value.empty()) {
    throw std::invalid_argument(absl::StrCat("--", flag, " is missing: give ", what));
  }
  return command::user_path(value);
}

// Refuses flags of adapters that have other values than by default, if there are no adapters.
void refuse_idle(const Settings& settings) {
  const Settings others;
  std::vector<std::string> given;
  const auto add = [&given](const char* name, const auto& value, const auto& otherwise) {
    if (value == otherwise) return;
    given.push_back(absl::StrCat("--", name, "=", absl::UnparseFlag(value)));
  };
  add("targets", absl::StrJoin(settings.lora->target_modules(), ","), "all-linear");
  add("rank", settings.lora->rank(), others.lora->rank());
  add("alpha", settings.lora->alpha(), others.lora->alpha());
  add("lora_dropout", settings.lora->dropout(), others.lora->dropout());
  add("dora", settings.lora->dora(), others.lora->dora());
  add("merge", settings.merge, others.merge);
  if (given.empty()) return;
  throw std::invalid_argument(
      absl::StrCat(absl::StrJoin(given, ", "),
                   ": with --nolora there are no adapters, and the whole model is written; leave ",
                   given.size() == 1 ? "it" : "them", " out, or --nolora"));
}

void read_model(Settings& settings) {
  settings.model = needed_path("model", settings.model, "the folder of a model");
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
  const std::string& type = settings.type_name;
  if (type != "float32" && type != "bfloat16") {
    throw command::wrong_value("type", type, "give float32 or bfloat16");
  }
  settings.type = type == "float32" ? c10::ScalarType::Float : c10::ScalarType::BFloat16;
  if (!settings.has_adapters) {
    refuse_idle(settings);
    settings.lora.reset();
  } else if (settings.lora->alpha() == 0) {
    throw command::wrong_value("alpha", 0, "adapters would add nothing; give a number above 0");
  } else if (settings.lora->target_modules().empty()) {
    throw command::wrong_value("targets", "", "give names such as q_proj,v_proj, or all-linear");
  }
  if (!settings.lora && settings.type != c10::ScalarType::Float) {
    throw command::wrong_value("type", type,
                               "steps of --nolora would be lost in its rounding; give float32, and "
                               "--bfloat16 for products in bfloat16");
  }
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
  if (settings.options.block().learned_positions() &&
      settings.length > settings.options.max_positions()) {
    throw command::wrong_value(
        "length", settings.length,
        absl::StrCat("the model has positions for ", settings.options.max_positions(),
                     " tokens; give at most as many"));
  }
  settings.data = needed_path("data", settings.data, "what prepare.py wrote");
  settings.training = read_conversations("data", settings.data, settings);
  if (!settings.validation_data.empty()) {
    settings.validation = read_conversations("validation", settings.validation_data, settings);
  }
}

void check_training(Settings& settings) {
  examples::check_training(settings);
  if (settings.patience > 0 && !settings.validation) {
    throw std::invalid_argument("--patience counts validations: give --validation=FILE, too");
  }
}

void read_cut(Settings& settings) {
  const int64_t layers = 2 * settings.options.num_layers() + 3;
  command::check_balance_sum(settings.balance, layers, absl::StrJoin(settings.balance, ","),
                             "the model");
  const auto stages = command::in_range("stages", settings.stages, 1, layers);
  if (!stages) return;
  if (!settings.balance.empty()) {
    throw command::wrong_value("stages", *stages,
                               "--balance says how many there are; leave it out");
  }
  settings.balance = distributed::even_balance(layers, *stages);
}

void read_run(Settings& settings) {
  settings.run = needed_path("run", settings.run, "a folder for what the run writes");
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
}

}  // namespace

void add_flags(Settings& settings, command::FlagSet& flags) {
  flags.add("model", settings.model,
            "The model's folder, with config.json and model.safetensors (or its pieces), as "
            "Python's transformers writes it.");
  flags.add("data", settings.data, "The conversations to learn from, as prepare.py writes them.");
  flags.add("validation", settings.validation_data,
            "Conversations to measure with. Default: none, and no best checkpoint.");
  flags.add("run", settings.run,
            "The folder for what the run writes: last (a checkpoint, from which the same command "
            "goes on), best, and at the end adapter or model.");
  flags.add("length", settings.length, 2, kMost,
            "Tokens of a row. Longer conversations are cut. The model's max_position_embeddings "
            "are the most that it knows.");
  flags.add("packed", settings.packed,
            "Whether a row has several conversations, if they fit, which do not see each other.");
  flags.add("lora", settings.has_adapters,
            "Train low-rank adapters. With --nolora all parameters are trained.");
  const auto names_of = [](const std::string& text) -> std::vector<std::string> {
    return absl::StrSplit(text, ',', absl::SkipEmpty());
  };
  flags.parsed("targets", settings.lora->target_modules(), names_of,
               "The layers that get adapters, such as q_proj,v_proj; all-linear: all but the head.",
               "all-linear");
  flags.add("rank", settings.lora->rank(), 1, kMost, "The adapters' rank.");
  flags.add("alpha", settings.lora->alpha(), 0, command::kMostReal,
            "What the adapters add is multiplied with alpha / rank.");
  flags.add("lora_dropout", settings.lora->dropout(), 0, 0.99,
            "The probability that an adapter's input is left out.");
  flags.add("dora", settings.lora->dora(), "Train the lengths of the weights' rows, too (DoRA).");
  flags.add("merge", settings.merge,
            "Write the whole model, with the adapters in its weights, to model; otherwise they are "
            "written to adapter.");
  flags.add("type", settings.type_name,
            "The type of the model's parameters: float32, or bfloat16, for a base that adapters "
            "leave as it is.");
  flags.add("average", settings.average, 0, 0.999999,
            "Also keep averages of what trains, which are validated and written: the share that an "
            "average keeps in a step, such as 0.99. Default: 0, none.");
  flags.add("patience", settings.patience, 0, kMost,
            "End after this many validations in a row that were not the best. Default: 0, never.");
  flags.add("resume_anyway", settings.resume_anyway,
            "Go on from --run's last checkpoint even with other flags than its own, and so with "
            "other bits than the run that was stopped would have had.");
  flags.add("stages", settings.stages,
            "Partitions of the pipeline. Default: one for each process of a replica.");
  flags.parsed("balance", settings.balance, command::parse_balance,
               "Layers of each partition, such as 30,37. Default: even.");
  examples::add_training_flags(settings, flags);
  examples::add_pipeline_flags(settings, flags);
}

void settle(Settings& settings) {
  read_model(settings);
  read_data(settings);
  check_training(settings);
  examples::check_pipeline(settings, settings.batch);
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
