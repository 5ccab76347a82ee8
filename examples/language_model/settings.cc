#include "examples/language_model/settings.h"

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_format.h"
#include "command/balance_flag.h"
#include "command/files.h"
#include "command/flag_values.h"
#include "command/wrong_value.h"
#include "examples/language_model/bible_data.h"
#include "gpipe/saving/saving.h"
#include "gpipe/world.h"

namespace language_model {
namespace {

namespace command = gpipe::command;
namespace models = gpipe::models;
constexpr int64_t kMost = int64_t{1} << 30;
constexpr size_t kHeldOut = 20;  // one of 20 documents is for validation

void read_text(Settings& settings, command::FileFlags& files) {
  settings.path = command::user_path(settings.path);
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
  std::vector<std::string_view> held_out, others;
  for (size_t k = 0; k < settings.documents.size(); ++k) {
    (k % kHeldOut == kHeldOut - 1 ? held_out : others).push_back(settings.documents[k]);
  }
  settings.held_out = static_cast<int64_t>(held_out.size());
  settings.training = cut(others, settings.length);
  settings.validation = cut(held_out, settings.length);
}

void read_model(Settings& settings) {
  const std::string& kind = settings.model_name;
  if (kind != "llama" && kind != "gpt2") {
    throw command::wrong_value("model", kind, "give llama or gpt2");
  }
  settings.model =
      kind == "llama" ? models::TransformerKind::kLlama : models::TransformerKind::kGPT2;
  settings.model.vocab_size(kVocabulary)
      .max_positions(settings.length)
      .num_layers(settings.blocks)
      .hidden_size(settings.width)
      .num_heads(settings.heads)
      .residual_dropout(settings.dropout)
      .tied(settings.tied)
      .packed(true)
      .fused_attention(true);
  // Llama's MLP has three matrices, GPT-2's has two, so Llama's are narrower: 8/3 of the width
  // instead of 4.
  if (kind == "llama")
    settings.model.intermediate_size(std::max<int64_t>(settings.width * 8 / 3, 1));
  models::check(settings.model);
}

void check_layers(const Settings& settings, const std::string& balance) {
  const int64_t blocks = settings.blocks, layers = 2 * blocks + 3;
  gpipe::command::check_balance_sum(settings.balance, layers, balance,
                                    absl::StrFormat("with --blocks=%d the network", blocks));
  if (settings.stages.value_or(1) > layers) {
    throw command::wrong_value(
        "stages", *settings.stages,
        absl::StrFormat("with --blocks=%d the network has %d layers", blocks, layers));
  }
}

void read_pipeline(Settings& settings) {
  const std::string balance = settings.cut;
  if (balance != "even" && balance != "time" && balance != "best") {
    settings.cut.clear();
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
  examples::check_pipeline(settings, settings.batch);
  if (settings.stages) (void)settings.schedule.placement(*settings.stages);
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
  settings.save = command::user_path(settings.save);
  settings.resume = command::user_path(settings.resume);
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
  if (settings.resume_saved) {
    if (settings.save.empty()) {
      throw std::invalid_argument("--resume_saved: say where, with --save=FOLDER");
    }
    if (gpipe::has_checkpoint(settings.save)) {
      settings.resume = settings.save;
      settings.resume_as = "--resume_saved, --save=" + settings.save;
    }
  }
  if (settings.resume_anyway && settings.resume.empty() && !settings.resume_saved) {
    throw std::invalid_argument("--resume_anyway: say from where, with --resume=FOLDER");
  }
  settings.json = files.output("json", settings.json);
}

void check_samples(const Settings& settings) {
  if (settings.plain || settings.sampling.samples <= settings.chunks / settings.replicas) return;
  if (settings.replicas == 1) {
    throw command::wrong_value(
        "samples", settings.sampling.samples,
        absl::StrFormat(
            "each is a micro-batch of its own; give at most --chunks=%d, or more chunks",
            settings.chunks));
  }
  throw command::wrong_value(
      "samples", settings.sampling.samples,
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
  settings.phases = command::user_path(settings.phases);
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

void add_flags(Settings& settings, command::FlagSet& flags) {
  examples::add_training_flags(settings, flags);
  examples::add_pipeline_flags(settings, flags);
  flags.add("text", settings.path,
            "The file to learn from, byte by byte. Default: the King James Bible of Debian's "
            "package bible-kjv-text.");
  flags.add("documents", settings.documents_are,
            "The parts of the text that are learned from their own beginning: lines (each line), "
            "paragraphs (separated by empty lines). Every 20th is for the validation.");
  flags.add("length", settings.length, 2, kMost,
            "Tokens of a row. Longer documents are cut into pieces.");
  flags.add("packed", settings.packed,
            "Whether a row has several documents, if they fit, which do not see each other. With "
            "--nopacked it has one, and more padding.");
  flags.add("model", settings.model_name, "The kind of the network: llama, gpt2.");
  flags.add("blocks", settings.blocks, 1, 1024,
            "Blocks of the network, each an attention layer and an MLP.");
  flags.add("width", settings.width, 1, 1 << 20, "Numbers in the vector of a token.");
  flags.add("heads", settings.heads, 1, 4096, "Heads of attention.");
  flags.add("dropout", settings.dropout, 0, 0.99,
            "The probability with which a value that a layer adds is left out.");
  flags.add("tied", settings.tied,
            "Whether the head multiplies with the matrix of the embedding, as the head of GPT-2 "
            "does: a parameter that the first and the last partition share.");
  flags.add("short_last", settings.short_last,
            "Whether the last mini-batch of an epoch has only the rows that are left. Otherwise it "
            "is filled from the next epoch.");
  flags.add("validation_rows", settings.validation_rows, 1, command::kNoMost,
            "The most rows of a validation.");
  flags.add("every_loss", settings.every_loss,
            "Print the loss of each step, with all its digits, to compare runs.");
  flags.add("stages", settings.stages, 1, kMost,
            "Partitions of the pipeline. Default: as many as --balance has; otherwise 2, or one "
            "for each process of a replica.");
  flags.add("balance", settings.cut,
            "Layers of each partition, such as 5,6; even: the same number for each; time: by "
            "measured times of the layers; best: the cut with the shortest predicted step.");
  flags.add("plain", settings.plain,
            "The same network without a pipeline, on the CPU with all threads, to compare.");
  flags.add("explain", settings.explain,
            "Before training, say where the time of a step goes, and what would make it faster.");
  flags.add("sample", settings.sampling.bytes, 0, kMost, "Bytes that the model writes at the end.");
  flags.add("samples", settings.sampling.samples, 1, kMost,
            "How many samples, written at the same time; with a pipeline at most --chunks.");
  flags.add("cache", settings.sampling.cache,
            "Whether samples keep keys and values of earlier bytes. Otherwise each byte takes a "
            "forward over all bytes before it.");
  flags.add("prompt", settings.sampling.prompt, "The text with which the samples begin.");
  flags.add("temperature", settings.sampling.temperature, 0, command::kMostReal,
            "How even the probabilities of the sample's bytes are: 1 as learned, 0 the most "
            "probable one.");
  flags.add("save", settings.save, "The folder of the checkpoint, which is written at the end.");
  flags.add("resume", settings.resume,
            "Go on from the checkpoint in this folder, with the flags that were given then. "
            "Stages, schedule, replicas, processes, --checkpoint and devices may change.");
  flags.add("resume_saved", settings.resume_saved,
            "Go on from the checkpoint in --save, if there is one already, whatever --resume says: "
            "for launchers that start a run again when a process was lost.");
  flags.add("resume_anyway", settings.resume_anyway,
            "With --resume: go on even with other flags than those of the checkpoint, and so with "
            "other bits than the run that was stopped would have had.");
  flags.add("resilient", settings.resilient,
            "Go on when processes die, from the memory of the others, or from the checkpoint in "
            "--save: under launch --restarts=N, which starts them again.");
  flags.add("snapshot_every", settings.snapshot_every, 1, kMost,
            "With --resilient: steps between two copies of the state in the memory of two "
            "processes.");
  flags.add("phases", settings.phases,
            "With --resilient: a folder, in which each process keeps a file, named by the number "
            "of the process, with what it is doing: for tests that kill it.");
  flags.add("json", settings.json, "Write settings and results as JSON to this file too.");
}

void settle(Settings& settings) {
  command::FileFlags files;
  read_text(settings, files);
  read_model(settings);
  examples::check_training(settings);
  read_pipeline(settings);
  read_files(settings, files);
  check_samples(settings);
  check_plain(settings);
  read_resilient(settings);
}

}  // namespace language_model
