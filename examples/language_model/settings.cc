#include "examples/language_model/settings.h"

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "command/balance_flag.h"
#include "command/files.h"
#include "command/flag_values.h"
#include "command/wrong_value.h"
#include "examples/language_model/bible_data.h"
#include "gpipe/saving/saving.h"
#include "gpipe/world.h"

ABSL_FLAG(std::string, text, "",
          "The file to learn from, byte by byte. Default: the King James Bible of Debian's package "
          "bible-kjv-text.");
ABSL_FLAG(std::string, documents, "lines",
          "The parts of the text that are learned from their own beginning: lines (each line), "
          "paragraphs (separated by empty lines). Every 20th is for the validation.");
ABSL_FLAG(int64_t, length, 256, "Tokens of a row. Longer documents are cut into pieces.");
ABSL_FLAG(bool, packed, true,
          "Whether a row has several documents, if they fit, which do not see each other. With "
          "--nopacked it has one, and more padding.");

ABSL_FLAG(std::string, model, "llama", "The kind of the network: llama, gpt2.");
ABSL_FLAG(int64_t, blocks, 4, "Blocks of the network, each an attention layer and an MLP.");
ABSL_FLAG(int64_t, width, 128, "Numbers in the vector of a token.");
ABSL_FLAG(int64_t, heads, 4, "Heads of attention.");
ABSL_FLAG(double, dropout, 0, "The probability with which a value that a layer adds is left out.");

ABSL_FLAG(
    bool, tied, false,
    "Whether the head multiplies with the matrix of the embedding, as the head of GPT-2 does: "
    "a parameter that the first and the last partition share.");

ABSL_FLAG(
    bool, short_last, false,
    "Whether the last mini-batch of an epoch has only the rows that are left. Otherwise it is "
    "filled from the next epoch.");
ABSL_FLAG(int64_t, validation_rows, 128, "The most rows of a validation.");
ABSL_FLAG(bool, every_loss, false,
          "Print the loss of each step, with all its digits, to compare runs.");

ABSL_FLAG(
    std::optional<int64_t>, stages, std::nullopt,
    "Partitions of the pipeline. Default: as many as --balance has; otherwise 2, or one for each "
    "process of a replica.");
ABSL_FLAG(
    std::string, balance, "even",
    "Layers of each partition, such as 5,6; even: the same number for each; time: by measured "
    "times of the layers; best: the cut with the shortest predicted step.");
ABSL_FLAG(bool, plain, false,
          "The same network without a pipeline, on the CPU with all threads, to compare.");
ABSL_FLAG(bool, explain, false,
          "Before training, say where the time of a step goes, and what would make it faster.");

ABSL_FLAG(std::string, save, "", "The folder of the checkpoint, which is written at the end.");
ABSL_FLAG(std::string, resume, "",
          "Go on from the checkpoint in this folder, with the flags that were given then. Stages, "
          "schedule, replicas, processes, --checkpoint and devices may change.");
ABSL_FLAG(
    bool, resume_saved, false,
    "Go on from the checkpoint in --save, if there is one already, whatever --resume says: for "
    "launchers that start a run again when a process was lost.");
ABSL_FLAG(
    bool, resume_anyway, false,
    "With --resume: go on even with other flags than those of the checkpoint, and so with other "
    "bits than the run that was stopped would have had.");
ABSL_FLAG(
    bool, resilient, false,
    "Go on when processes die, from the memory of the others, or from the checkpoint in --save: "
    "under launch --restarts=N, which starts them again.");
ABSL_FLAG(
    int64_t, snapshot_every, 10,
    "With --resilient: steps between two copies of the state in the memory of two processes.");
ABSL_FLAG(std::string, phases, "",
          "With --resilient: a folder, in which each process keeps a file, named by the number of "
          "the process, with what it is doing: for tests that kill it.");
ABSL_FLAG(std::string, json, "", "Write settings and results as JSON to this file too.");

ABSL_FLAG(int64_t, sample, 300, "Bytes that the model writes at the end.");
ABSL_FLAG(int64_t, samples, 1,
          "How many samples, written at the same time; with a pipeline at most --chunks.");
ABSL_FLAG(bool, cache, true,
          "Whether samples keep keys and values of earlier bytes. Otherwise each byte takes a "
          "forward over all bytes before it.");
ABSL_FLAG(std::string, prompt, "", "The text with which the samples begin.");
ABSL_FLAG(double, temperature, 0.8,
          "How even the probabilities of the sample's bytes are: 1 as learned, 0 the most probable "
          "one.");

namespace language_model {
namespace {

namespace command = gpipe::command;
namespace models = gpipe::models;
using command::at_least;
using command::in_range;

constexpr int64_t kMost = int64_t{1} << 30;
constexpr size_t kHeldOut = 20;  // one of 20 documents is for validation

void read_text(Settings& settings, command::FileFlags& files) {
  settings.path = command::user_path(absl::GetFlag(FLAGS_text));
  if (settings.path.empty()) {
    settings.path = kBibleData;
    if (!std::filesystem::exists(settings.path)) {
      throw std::invalid_argument(
          std::string("there is no ") + kBibleData +
          ": install Debian's package bible-kjv-text, or give a text of your own with --text=FILE");
    }
  }
  settings.text = files.contents("text", settings.path);
  try {
    if (is_bible_data(settings.text)) settings.text = decompress_bible(settings.text);
  } catch (const std::runtime_error& error) {
    throw std::invalid_argument(settings.path + ": " + error.what());
  }

  settings.documents_are = absl::GetFlag(FLAGS_documents);
  const std::string& documents = settings.documents_are;
  if (documents != "lines" && documents != "paragraphs") {
    throw command::wrong_value("documents", documents, "give lines or paragraphs");
  }
  settings.documents =
      split(settings.text, documents == "lines" ? Documents::kLines : Documents::kParagraphs);
  if (settings.documents.size() < kHeldOut) {
    throw std::invalid_argument(absl::StrFormat(
        "%s has %d documents (--documents=%s), and every %dth is for the validation: give a longer "
        "text",
        settings.path, settings.documents.size(), documents, kHeldOut));
  }
  settings.length = in_range("length", absl::GetFlag(FLAGS_length), 2, kMost);
  settings.packed = absl::GetFlag(FLAGS_packed);
  std::vector<std::string_view> held_out, others;
  for (size_t k = 0; k < settings.documents.size(); ++k) {
    (k % kHeldOut == kHeldOut - 1 ? held_out : others).push_back(settings.documents[k]);
  }
  settings.held_out = static_cast<int64_t>(held_out.size());
  settings.training = cut(others, settings.length);
  settings.validation = cut(held_out, settings.length);
}

void read_model(Settings& settings) {
  settings.model_name = absl::GetFlag(FLAGS_model);
  const std::string& kind = settings.model_name;
  if (kind != "llama" && kind != "gpt2") {
    throw command::wrong_value("model", kind, "give llama or gpt2");
  }
  const int64_t width = in_range("width", absl::GetFlag(FLAGS_width), 1, 1 << 20);
  settings.model =
      kind == "llama" ? models::TransformerKind::kLlama : models::TransformerKind::kGPT2;
  settings.model.vocab_size(kVocabulary)
      .max_positions(settings.length)
      .num_layers(in_range("blocks", absl::GetFlag(FLAGS_blocks), 1, 1024))
      .hidden_size(width)
      .num_heads(in_range("heads", absl::GetFlag(FLAGS_heads), 1, 4096))
      .residual_dropout(at_least("dropout", absl::GetFlag(FLAGS_dropout), 0, 0.99))
      .tied(absl::GetFlag(FLAGS_tied))
      .packed(true)
      .fused_attention(true);
  // Llama's MLP has three matrices, GPT-2's has two, so Llama's are narrower: 8/3 of the width
  // instead of 4.
  if (kind == "llama") settings.model.intermediate_size(std::max<int64_t>(width * 8 / 3, 1));
  models::check(settings.model);
}

void read_training(Settings& settings) {
  examples::read_training_flags(settings);
  settings.every_loss = absl::GetFlag(FLAGS_every_loss);
  settings.short_last = absl::GetFlag(FLAGS_short_last);
  settings.validation_rows = in_range("validation_rows", absl::GetFlag(FLAGS_validation_rows), 1);
  settings.sample = in_range("sample", absl::GetFlag(FLAGS_sample), 0, kMost);
  settings.samples = in_range("samples", absl::GetFlag(FLAGS_samples), 1, kMost);
  settings.cache = absl::GetFlag(FLAGS_cache);
  settings.prompt = absl::GetFlag(FLAGS_prompt);
  settings.temperature = at_least("temperature", absl::GetFlag(FLAGS_temperature), 0);
}

void check_layers(const Settings& settings, const std::string& balance) {
  const int64_t blocks = settings.model.num_layers(), layers = 2 * blocks + 3;
  gpipe::command::check_balance_sum(settings.balance, layers, balance,
                                    absl::StrFormat("with --blocks=%d the network", blocks));
  if (settings.stages.value_or(1) > layers) {
    throw command::wrong_value(
        "stages", *settings.stages,
        absl::StrFormat("with --blocks=%d the network has %d layers", blocks, layers));
  }
}

void read_pipeline(Settings& settings) {
  settings.plain = absl::GetFlag(FLAGS_plain);
  settings.stages = in_range("stages", absl::GetFlag(FLAGS_stages), 1, kMost);
  const std::string balance = absl::GetFlag(FLAGS_balance);
  if (balance == "even" || balance == "time" || balance == "best") {
    settings.cut = balance;
  } else {
    settings.balance = command::parse_balance(balance);
    if (settings.balance.empty()) {
      throw command::wrong_value("balance", "", "give numbers such as 5,6, or even, time or best");
    }
    const auto partitions = static_cast<int64_t>(settings.balance.size());
    if (settings.stages.value_or(partitions) != partitions) {
      throw command::wrong_value("stages", *settings.stages,
                                 absl::StrCat("--balance has ", partitions, " partitions"));
    }
    settings.stages = partitions;
  }
  check_layers(settings, balance);
  examples::read_pipeline_flags(settings, settings.batch);
  if (settings.stages) (void)settings.schedule.placement(*settings.stages);
  settings.explain = absl::GetFlag(FLAGS_explain);
}

// Refuses a path now that save_checkpoint would refuse only at the end of the training.
void check_save(const std::string& path) {
  try {
    gpipe::check_checkpoint_path(path);
  } catch (const c10::ValueError& error) {
    throw std::invalid_argument("--save: " + std::string(error.what_without_backtrace()));
  }
}

// Reads the flags that name files. Makes the parent of the checkpoint's folder if it does not
// exist.
void read_files(Settings& settings, command::FileFlags& files) {
  settings.save = command::user_path(absl::GetFlag(FLAGS_save));
  settings.resume = command::user_path(absl::GetFlag(FLAGS_resume));
  if (settings.save_every > 0 && settings.save.empty()) {
    throw std::invalid_argument("--save_every: say where, with --save=FOLDER");
  }
  if (!settings.save.empty()) {
    const std::string parent = std::filesystem::path(settings.save).parent_path().string();
    command::check_writable_folder("--save", parent.empty() ? "." : parent);
    check_save(settings.save);
  }
  if (!settings.resume.empty() && !std::filesystem::is_directory(settings.resume)) {
    throw command::wrong_value("resume", settings.resume, "there is no such folder");
  }
  if (!settings.resume.empty() &&
      !std::filesystem::exists(settings.resume + "/progress.safetensors")) {
    throw command::wrong_value("resume", settings.resume,
                               "there is no checkpoint in it: no progress.safetensors");
  }
  settings.resume_as = "--resume=" + settings.resume;
  if (absl::GetFlag(FLAGS_resume_saved)) {
    if (settings.save.empty()) {
      throw std::invalid_argument("--resume_saved: say where, with --save=FOLDER");
    }
    if (gpipe::has_checkpoint(settings.save)) {
      settings.resume = settings.save;
      settings.resume_as = "--resume_saved, --save=" + settings.save;
    }
  }
  settings.resume_anyway = absl::GetFlag(FLAGS_resume_anyway);
  if (settings.resume_anyway && settings.resume.empty() && !absl::GetFlag(FLAGS_resume_saved)) {
    throw std::invalid_argument("--resume_anyway: say from where, with --resume=FOLDER");
  }
  settings.json = files.output("json", absl::GetFlag(FLAGS_json));
}

void check_samples(const Settings& settings) {
  if (settings.plain || settings.samples <= settings.chunks / settings.replicas) return;
  if (settings.replicas == 1) {
    throw command::wrong_value(
        "samples", settings.samples,
        absl::StrFormat(
            "each is a micro-batch of its own; give at most --chunks=%d, or more chunks",
            settings.chunks));
  }
  throw command::wrong_value(
      "samples", settings.samples,
      absl::StrFormat("each is a micro-batch of its own, in the first of --replicas=%d, which has "
                      "%d of --chunks=%d; give at most so many samples, or more chunks",
                      settings.replicas, settings.chunks / settings.replicas, settings.chunks));
}

void check_plain(const Settings& settings) {
  if (!settings.plain) return;
  if (!settings.save.empty() || !settings.resume.empty() || settings.explain) {
    throw std::invalid_argument(
        "--plain is to compare, and has no pipeline: leave out --save, --resume and --explain");
  }
  if (settings.replicas > 1 || settings.groups > 0 || settings.zero) {
    throw std::invalid_argument(
        "--plain is to compare, and has no pipeline: leave out --replicas, --groups and --zero");
  }
}

// Another number of processes must not change the bits, nor must what is not repeated.
void read_resilient(Settings& settings) {
  settings.resilient = absl::GetFlag(FLAGS_resilient);
  settings.snapshot_every =
      in_range("snapshot_every", absl::GetFlag(FLAGS_snapshot_every), 1, kMost);
  settings.phases = command::user_path(absl::GetFlag(FLAGS_phases));
  if (!settings.phases.empty()) command::check_writable_folder("--phases", settings.phases);
  if (!settings.resilient) {
    if (!settings.phases.empty()) {
      throw std::invalid_argument("--phases is for --resilient: give both, or leave it out");
    }
    return;
  }
  if (settings.plain || settings.explain) {
    throw std::invalid_argument("--resilient trains a pipeline: leave out --plain and --explain");
  }
  if (!settings.resume.empty()) {
    throw std::invalid_argument(
        "--resilient goes on from the checkpoint in --save by itself, if there is one: leave out "
        "--resume and --resume_saved");
  }
  if (settings.threads == 0) {
    throw std::invalid_argument(
        "--resilient: the bits depend on the threads of a partition, and their default on how many "
        "partitions there are; give --threads=N");
  }
  if (settings.replicas > 1 && settings.groups == 0) {
    throw std::invalid_argument(
        absl::StrFormat("--resilient: the bits depend on the groups of micro-batches, and their "
                        "default on how many "
                        "replicas there are; give --groups=%d, or a multiple",
                        settings.replicas));
  }
}

}  // namespace

void read_flags(Settings& settings) {
  command::FileFlags files;
  read_text(settings, files);
  read_model(settings);
  read_training(settings);
  read_pipeline(settings);
  read_files(settings, files);
  check_samples(settings);
  check_plain(settings);
  read_resilient(settings);
}

}  // namespace language_model
