// Trains a language model on a text, as a pipeline, and lets it write. README.md says how.
#include <ATen/Parallel.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "balance/balance.h"
#include "balance/explanation_text.h"
#include "command/files.h"
#include "command/interrupt.h"
#include "command/progress.h"
#include "command/wrong_value.h"
#include "diagnose/diagnose.h"
#include "diagnose/diagnosis_text.h"
#include "examples/common/modes.h"
#include "examples/common/pipeline_flags.h"
#include "examples/distributed/command.h"
#include "examples/distributed/layout.h"
#include "examples/language_model/bits.h"
#include "examples/language_model/documents.h"
#include "examples/language_model/network.h"
#include "examples/language_model/sample.h"
#include "examples/language_model/settings.h"
#include "examples/language_model/training.h"
#include "gpipe/gpipe.h"
#include "gpipe/resilient/resilient_run.h"
#include "gpipe/saving/saving.h"
#include "gpipe/timing.h"
#include "gpipe/zero_optimizer.h"
#include "machine/cores.h"
#include "models/transformer.h"

namespace language_model {
namespace {

namespace command = gpipe::command;
using Json = nlohmann::ordered_json;

constexpr char kUsage[] =
    "Trains a small language model on a text, byte by byte, as a pipeline, and lets it write.\n\n"
    "  tools/bazel run //examples/language_model -- --balance=best --json=run.json\n"
    "  tools/bazel run //examples/language_model -- --text=FILE --save=run/last\n"
    "  tools/bazel run //examples/language_model -- --text=FILE --resume=run/last --balance=4,7\n\n"
    "Over several processes it runs as any pipeline (docs/guide/24-processes.md).\n\n"
    "Exit codes: 0; 1 for an error while running; 2 for wrong usage; 130 after Ctrl-C, with the\n"
    "checkpoint written (--save) unless it ran over processes.";

// The output for people. Only one process writes it.
class Output {
 public:
  explicit Output(bool on) : on_(on) {}
  void line(const std::string& text) const {
    if (log_ != nullptr) {
      log_(text);
    } else if (on_) {
      std::cout << text << std::endl;
    }
  }
  bool on() const { return on_; }
  // From now on all processes give their lines to `log`.
  void give_to(std::function<void(const std::string& text)> log) { log_ = std::move(log); }

 private:
  bool on_;
  std::function<void(const std::string& text)> log_;
};

torch::nn::Sequential make_model(const Settings& settings) {
  // Each process makes the whole model, with the same values, and keeps its part.
  torch::manual_seed(settings.seed);
  return gpipe::models::transformer(settings.model);
}

// --- The cut

// A micro-batch with which the layers' times are measured.
gpipe::Tensors sample_of(const Settings& settings, PackedRows& rows) {
  const Batch batch = rows.training(0, std::max<int64_t>(settings.batch / settings.chunks, 1));
  return {batch.ids, batch.documents};
}

std::vector<int64_t> best_balance(const Settings& settings, const torch::nn::Sequential& model,
                                  PackedRows& rows, int64_t stages, const Output& out) {
  const int64_t threads = settings.threads > 0
                              ? settings.threads
                              : std::max<int64_t>(at::get_num_threads() / stages, 1);
  const gpipe::balance::Profile profile = gpipe::balance::profile(
      model, sample_of(settings, rows), gpipe::balance::ProfileOptions().cpu_threads(threads));
  gpipe::balance::ExplainOptions options;
  options.chunks = settings.chunks;
  options.checkpoint = settings.checkpoint;
  options.schedule = settings.schedule.make;
  options.cores = std::max<int64_t>(gpipe::machine::usable_cores() / threads, 1);
  options.param_scale = gpipe::balance::ParamScale::kAdam;
  const std::vector<int64_t> best = gpipe::balance::best_balance(profile, stages, options);
  out.line("\n" + to_text(gpipe::balance::explain(profile, best, options)));
  return best;
}

std::vector<int64_t> choose_balance(const Settings& settings, const torch::nn::Sequential& model,
                                    PackedRows& rows, const gpipe::World& world,
                                    const Output& out) {
  const auto layers = static_cast<int64_t>(model->size());
  if (settings.cut.empty()) return settings.balance;
  const int64_t stages = settings.stages.value_or(world.size() > 1 ? world.processes_each() : 2);
  if (settings.cut == "even") return distributed::even_balance(layers, stages);
  if (world.size() > 1) {
    throw command::wrong_value("balance", settings.cut,
                               "several processes would measure several cuts; run it in one "
                               "process, and give all of them the numbers that it prints");
  }
  if (settings.cut == "best") return best_balance(settings, model, rows, stages, out);
  return gpipe::balance::balance_by_time(
      stages, model, sample_of(settings, rows),
      gpipe::balance::TimeOptions()
          .cpu_threads(settings.threads)
          .recompute(settings.checkpoint != gpipe::Checkpoint::kNever));
}

gpipe::StepOptions step_options(const Settings& settings) {
  return gpipe::StepOptions().schedule(settings.schedule.make).weight(count_tokens);
}

void explain(const Settings& settings, const gpipe::GPipe& pipe, const gpipe::StepOptions& options,
             PackedRows& rows, const command::InterruptScope& interrupt, const Output& out,
             Json& json) {
  const Batch batch = rows.training(0, settings.batch);
  const c10::Device first = pipe->devices().front(), last = pipe->devices().back();
  std::optional<command::Progress> progress;
  const Autocast autocast(first.type(), settings.bfloat16);
  const gpipe::Diagnosis diagnosis = gpipe::diagnose(
      pipe, {batch.ids.to(first), batch.documents.to(first)}, {batch.targets.to(last)}, mean_loss,
      gpipe::DiagnoseOptions()
          .step(options)
          .param_scale(gpipe::balance::ParamScale::kAdam)
          .check([&] { interrupt.check(); })
          .progress([&](const std::string& what, int64_t done, int64_t all) {
            if (!progress) progress.emplace(interrupt, "why", all);
            progress->update(done, what);
          }));
  progress.reset();
  out.line("\n" + to_text(diagnosis));
  json["explanation"] = Json::parse(to_json(diagnosis));
}

// --- Training

using examples::KeepsGenerator;

// The mean loss over all tokens of the validation.
double validate(const Settings& settings, Network& network, const PackedRows& rows) {
  const int64_t all = std::min(settings.validation_rows, rows.validation_rows());
  double sum = 0, tokens = 0;
  const KeepsGenerator keeps;
  network.train(false);
  for (int64_t first = 0; first < all; first += settings.batch) {
    const Batch batch = rows.validation(first, std::min(settings.batch, all - first));
    sum += network.evaluate(batch) * static_cast<double>(batch.tokens);
    tokens += static_cast<double>(batch.tokens);
  }
  network.train(true);
  return sum / tokens;
}

std::vector<std::string> write(const Settings& settings, Network& network) {
  SampleOptions options = settings.sampling;
  options.seed = settings.seed;
  options.length = settings.length;
  const KeepsGenerator keeps;
  network.train(false);
  std::vector<std::string> texts = write_samples(network, options);
  network.train(true);
  return texts;
}

class Run {
 public:
  // `resilient`: makes the steps and the checkpoints, if it is not null; `on_phase`: is told of
  // updates, if it is not null.
  Run(const Settings& settings, const gpipe::World& world, gpipe::ResilientRun* resilient = nullptr,
      std::function<void(const char* phase)> on_phase = nullptr)
      : settings_(settings),
        world_(world),
        resilient_(resilient),
        on_phase_(std::move(on_phase)),
        out_(world.rank() == 0),
        rows_(settings.training, settings.length, settings.packed, settings.seed),
        held_out_(settings.validation, settings.length, settings.packed, settings.seed) {
    // Ctrl-C ends a single process after a whole step. Several processes would each stop after
    // another step, so there the first process that is interrupted ends the others.
    if (world.size() == 1 && resilient == nullptr) interrupt_.emplace();
  }

  // Finds all mistakes in the settings, here and together with those of the other processes.
  void prepare() {
    describe();
    build();
    check_resume(settings_, bits_, out_.on());
  }

  // What a ResilientRun needs of `run`, which lives as long as these parts do.
  static gpipe::ResilientParts parts(const std::shared_ptr<Run>& run) {
    torch::manual_seed(run->settings_.seed);  // as in run()
    run->network_->train(true);
    run->out_.give_to([log = run->resilient_](const std::string& text) { log->log(text); });
    gpipe::ResilientParts parts;
    parts.pipe = run->pipe_;
    parts.optimizer = run->optimizer_;
    parts.keep = [run] { return run->kept(); };
    parts.put_back = [run](const std::string& kept) { run->put_back(kept); };
    return parts;
  }

  // Makes the step of this number, from 0.
  void make_step(int64_t step) {
    go_to(step);
    (void)train_step();
    if (is_due()) report();
  }

  void end(int64_t steps) {
    go_to(steps);
    finish();
  }

  int run() {
    if (settings_.explain) {
      explain(settings_, pipe_, step_options(settings_), rows_, *interrupt_, out_, json_);
    }
    torch::manual_seed(settings_.seed);  // the seed of dropout; the seed of rank 0 counts
    resume();
    train();
    finish();
    return interrupted() ? command::kInterruptedExitCode : 0;
  }

 private:
  bool interrupted() const { return interrupt_ && interrupt_->requested(); }

  void describe() {
    out_.line(absl::StrFormat("text: %s, %d bytes, %d documents, %d of them for the validation",
                              settings_.path, settings_.text.size(), settings_.documents.size(),
                              settings_.held_out));
    json_["text"] = {{"path", settings_.path},
                     {"bytes", settings_.text.size()},
                     {"documents", settings_.documents.size()},
                     {"length", settings_.length},
                     {"packed", settings_.packed}};
  }

  void build() {
    const torch::nn::Sequential model = make_model(settings_);
    int64_t parameters = 0;
    for (const at::Tensor& parameter : model->parameters()) parameters += parameter.numel();
    out_.line(absl::StrFormat("network: %s, %d blocks, %d wide, %d parameters in %d layers",
                              to_text(settings_.model.kind()), settings_.model.num_layers(),
                              settings_.model.hidden_size(), parameters, model->size()));
    json_["network"] = {{"kind", to_text(settings_.model.kind())},
                        {"blocks", settings_.model.num_layers()},
                        {"width", settings_.model.hidden_size()},
                        {"parameters", parameters}};
    json_["training"] = {
        {"steps", settings_.steps},           {"batch", settings_.batch},
        {"short_last", settings_.short_last}, {"learning_rate", settings_.learning_rate},
        {"bfloat16", settings_.bfloat16},     {"seed", settings_.seed}};
    if (settings_.plain) {
      if (world_.size() > 1) {
        throw std::invalid_argument(
            "--plain trains a whole model in each process; start no others");
      }
      out_.line(absl::StrFormat("no pipeline, %d threads", at::get_num_threads()));
      json_["pipeline"] = nullptr;
      network_ = make_plain(model, settings_.bfloat16);
    } else {
      build_pipeline(model);
    }
    const auto make = [this](const std::vector<at::Tensor>& parameters) {
      return make_optimizer(parameters, settings_.weight_decay);
    };
    if (settings_.zero) {
      optimizer_ = std::make_unique<gpipe::ZeroOptimizer>(pipe_, make);
    } else {
      optimizer_ = make(network_->parameters());
    }
  }

  void build_pipeline(const torch::nn::Sequential& model) {
    if (settings_.explain && !interrupt_) {
      throw std::invalid_argument("--explain measures within one process; start no others");
    }
    if (world_.size() > 1 && settings_.devices.size() > 1) {
      throw std::invalid_argument(
          absl::StrFormat("--devices: %d of them; several processes have one device each, such as "
                          "cuda",
                          settings_.devices.size()));
    }
    const std::vector<int64_t> balance = choose_balance(settings_, model, rows_, world_, out_);
    pipe_ = examples::make_pipeline(settings_, model, balance, world_);
    std::string replicas;
    if (world_.replicas() > 1) replicas += absl::StrFormat(", %d replicas", world_.replicas());
    if (settings_.groups > 0) replicas += absl::StrFormat(", --groups=%d", settings_.groups);
    out_.line(absl::StrFormat("pipeline: --balance=%s, %d micro-batches, %s, checkpoint %s%s",
                              absl::StrJoin(balance, ","), settings_.chunks,
                              settings_.schedule.name, to_text(settings_.checkpoint), replicas));
    for (const std::string& line : examples::idle_flags(settings_, pipe_->devices().front())) {
      out_.line(line);
    }
    json_["pipeline"] = {{"balance", balance},
                         {"chunks", settings_.chunks},
                         {"schedule", settings_.schedule.name},
                         {"checkpoint", to_text(settings_.checkpoint)},
                         {"processes", world_.size()},
                         {"replicas", world_.replicas()},
                         {"groups", settings_.groups},
                         {"zero", settings_.zero}};
    network_ = make_pipeline(pipe_, step_options(settings_), settings_.bfloat16);
    const std::vector<c10::Device>& devices = pipe_->devices();
    const bool on_cpu = std::any_of(devices.begin(), devices.end(),
                                    [](const c10::Device& device) { return device.is_cpu(); });
    bits_ = bits_of(settings_, on_cpu ? pipe_->cpu_threads_per_stage() : 0);
  }

  void resume() {
    if (settings_.resume.empty()) return;
    const gpipe::Progress progress = gpipe::load_checkpoint(pipe_, *optimizer_, settings_.resume);
    go_to(progress.step);
    if (step_ != progress.step || row_ != progress.rows) {
      throw std::invalid_argument(absl::StrFormat(
          "%s: after %d steps of another --batch, or with --short_last and without, %d rows",
          settings_.resume_as, progress.step, progress.rows));
    }
    begun_at_ = step_;
    out_.line(absl::StrFormat("resumed after step %d", step_));
    if (step_ >= settings_.stop_at) out_.line("no step is left to train");
  }

  void save() {
    if (settings_.save.empty() || resilient_ != nullptr) return;
    // If no step was made, the checkpoint is not written again: only its flags would differ, and
    // nothing was trained with these flags.
    if (step_ == begun_at_ && settings_.save == settings_.resume) return;
    const gpipe::Progress progress{step_, row_, {}, bits_};
    gpipe::save_checkpoint(pipe_, *optimizer_, progress, settings_.save);
  }

  // The number of rows of the next mini-batch.
  int64_t rows_of_batch() {
    return settings_.short_last ? std::min(settings_.batch, rows_.left_in_epoch(row_))
                                : settings_.batch;
  }

  // Sets the number of the next step, and its first row.
  void go_to(int64_t step) {
    if (step_ == step) return;
    for (step_ = row_ = 0; step_ < step; ++step_) row_ += rows_of_batch();
  }

  // What must not be lost with this process, beside the model and the optimizer: the same in all
  // processes, so without times.
  std::string kept() const {
    Json history = Json::array();
    for (Json part : json_.value("history", Json::array())) {
      part.erase("seconds");
      history.push_back(std::move(part));
    }
    return Json{{"bits", bits_},
                {"history", history},
                {"steps", part_.steps},
                {"tokens", part_.tokens},
                // A number of JSON can be neither infinite nor NaN.
                {"losses", absl::StrFormat("%a", part_.losses)}}
        .dump();
  }

  void put_back(const std::string& text) {
    const Json kept = Json::parse(text);
    const BitsDifference difference = compare_bits(kept.at("bits"), bits_);
    if (!difference.flags.empty()) {
      throw std::invalid_argument("--save=" + settings_.save +
                                  ": its run had other flags, and so other bits:\n" +
                                  to_text(difference));
    }
    json_["history"] = kept.at("history");
    part_ = {};
    part_.steps = kept.at("steps");
    part_.tokens = kept.at("tokens");
    part_.losses = std::strtod(kept.at("losses").get<std::string>().c_str(), nullptr);
  }

  void update(double learning_rate) {
    set_learning_rate(*optimizer_, learning_rate);
    if (on_phase_ != nullptr) on_phase_("update");
    optimizer_->step();
    if (on_phase_ != nullptr) on_phase_("step");
  }

  // Makes the next step. Returns its loss.
  double train_step() {
    const LearningRate rate{settings_.learning_rate, settings_.warm_up, settings_.steps};
    const double begin = gpipe::steady_seconds();
    const Batch batch = rows_.training(row_, rows_of_batch());
    network_->module().zero_grad();
    const double loss = network_->step(batch);
    if (settings_.clip > 0) network_->clip(settings_.clip);
    update(rate.at(step_));
    row_ += batch.ids.size(0);
    ++step_;
    validation_.reset();
    part_.add(loss, batch.tokens, gpipe::steady_seconds() - begin);
    if (settings_.every_loss) out_.line(absl::StrFormat("step %d loss %.17g", step_, loss));
    return loss;
  }

  // Whether a validation follows the step that was made.
  bool is_due() const {
    return step_ % settings_.validate_every == 0 || step_ == settings_.stop_at;
  }

  void report() {
    validate();
    tell(part_);
    part_ = {};
  }

  void train() {
    const int64_t first = step_;
    std::optional<command::Progress> progress;
    if (out_.on()) {
      progress.emplace(std::cerr, "training", settings_.stop_at - first,
                       command::terminal_options(STDERR_FILENO));
    }
    network_->train(true);
    while (step_ < settings_.stop_at && !interrupted()) {
      const double loss = train_step();
      if (progress) progress->update(step_ - first, absl::StrFormat("loss %.3f", loss));
      if (settings_.save_every > 0 && step_ % settings_.save_every == 0) save();
      if (!is_due()) continue;
      if (progress) progress->finish();
      report();
    }
  }

  void tell(const Part& part) {
    out_.line(absl::StrFormat(
        "step %5d: loss %.4f, validation %.4f (perplexity %.3f), %.0f tokens/s", step_, part.loss(),
        *validation_, std::exp(*validation_), part.tokens_a_second()));
    json_["history"].push_back({{"step", step_},
                                {"loss", part.loss()},
                                {"validation_loss", *validation_},
                                {"seconds", part.seconds},
                                {"tokens", part.tokens}});
  }

  void validate() { validation_ = language_model::validate(settings_, *network_, held_out_); }

  void finish() {
    save();
    if (!settings_.plain) {
      const std::string hash = pipe_->parameter_hash();
      out_.line("parameters " + hash);
      json_["parameter_hash"] = hash;
    }
    json_["step"] = step_;
    if (!validation_ && !interrupted()) {
      validate();
      out_.line(absl::StrFormat("validation %.4f (perplexity %.3f)", *validation_,
                                std::exp(*validation_)));
    }
    if (validation_) {
      json_["validation_loss"] = *validation_;
      json_["perplexity"] = std::exp(*validation_);
    }
    if (settings_.sampling.bytes > 0 && !interrupted()) {
      const double begin = gpipe::steady_seconds();
      const std::vector<std::string> samples = write(settings_, *network_);
      const double seconds = gpipe::steady_seconds() - begin;
      for (const std::string& sample : samples) out_.line("\n" + printable(sample));
      out_.line(absl::StrFormat(
          "\n%d bytes in %.2f s, %.0f bytes/s",
          settings_.sampling.bytes * settings_.sampling.samples, seconds,
          static_cast<double>(settings_.sampling.bytes * settings_.sampling.samples) / seconds));
      json_["samples"] = samples;
      json_["sample_seconds"] = seconds;
    }
    if (out_.on()) {
      const auto replace = nlohmann::ordered_json::error_handler_t::replace;
      command::write_result(settings_.json, json_.dump(1, ' ', false, replace) + "\n");
    }
    if (step_ < settings_.steps && !settings_.save.empty() && resilient_ == nullptr) {
      out_.line("go on with --resume=" + settings_.save);
    }
  }

  const Settings& settings_;
  gpipe::World world_;
  gpipe::ResilientRun* const resilient_;
  const std::function<void(const char* phase)> on_phase_;
  Output out_;
  std::optional<command::InterruptScope> interrupt_;
  PackedRows rows_, held_out_;
  gpipe::GPipe pipe_{nullptr};
  std::unique_ptr<Network> network_;
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  std::string bits_;  // the result of bits_of for this run
  Json json_;
  int64_t step_ = 0;
  int64_t begun_at_ = -1;  // the step of the checkpoint from which the run goes on
  int64_t row_ = 0;        // the first row of the next mini-batch
  Part part_;
  std::optional<double> validation_;  // the loss after step_
};

// Keeps in a file what this process is doing.
class PhaseFile {
 public:
  explicit PhaseFile(const std::string& folder)
      : file_(folder + "/" + std::to_string(getpid()), std::ios::trunc) {}
  void write(const char* phase) {
    file_.seekp(0);
    file_ << absl::StrFormat("%-9s\n", phase) << std::flush;
  }

 private:
  std::ofstream file_;
};

// Trains with the processes that are there, as often as some of them die.
int run_resiliently(const Settings& settings) {
  gpipe::ResilientOptions options;
  if (!settings.phases.empty()) {
    options.on_phase = [file = std::make_shared<PhaseFile>(settings.phases)](const char* phase) {
      file->write(phase);
    };
  }
  options.steps = settings.stop_at;
  options.snapshot_every = settings.snapshot_every;
  options.path = settings.save;
  if (settings.save_every > 0) options.save_every = settings.save_every;
  options.multiple_of = settings.replicas;
  gpipe::ResilientRun resilient(options);
  std::weak_ptr<Run> now;  // the parts of the ResilientRun own it, and end with each world
  resilient.run(
      [&](const gpipe::World& processes) {
        examples::expect_same_flags(processes, shared_flags(settings));
        const gpipe::World world = gpipe::as_replicas(processes, settings.replicas);
        if (world.replicas() != settings.replicas && world.rank() == 0) {
          std::cerr << absl::StrCat("language_model: --replicas=", settings.replicas, ", but ",
                                    world.size(), " processes are shared among ", world.replicas(),
                                    "\n");
        }
        const auto run = std::make_shared<Run>(settings, world, &resilient, options.on_phase);
        run->prepare();
        now = run;
        return Run::parts(run);
      },
      [&](gpipe::ResilientParts&, int64_t step) { now.lock()->make_step(step); },
      [&](gpipe::ResilientParts&, int64_t steps) { now.lock()->end(steps); });
  return 0;
}

}  // namespace
}  // namespace language_model

int main(int argc, char** argv) {
  const auto settings = std::make_shared<language_model::Settings>();
  gpipe::command::FlagSet flags;
  language_model::add_flags(*settings, flags);
  return distributed::run_command(
      argc, argv, language_model::kUsage, [&] { language_model::settle(*settings); },
      [&](const gpipe::World& processes) -> std::function<int()> {
        examples::expect_same_flags(processes, language_model::shared_flags(*settings));
        const auto run = std::make_shared<language_model::Run>(
            *settings, distributed::world_of_replicas(processes, settings->replicas));
        run->prepare();
        return [settings, run] { return run->run(); };
      },
      flags,
      [&]() -> std::function<int()> {
        if (!settings->resilient) return nullptr;
        return [settings] { return language_model::run_resiliently(*settings); };
      });
}
