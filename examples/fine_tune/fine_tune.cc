// Fine-tunes a language model from a Hugging Face folder, as a pipeline. README.md says how.
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <functional>
#include <iostream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "command/interrupt.h"
#include "examples/common/bits.h"
#include "examples/common/modes.h"
#include "examples/common/packed_rows.h"
#include "examples/common/pipeline_flags.h"
#include "examples/common/token_loss.h"
#include "examples/distributed/command.h"
#include "examples/distributed/layout.h"
#include "examples/fine_tune/average.h"
#include "examples/fine_tune/result.h"
#include "examples/fine_tune/settings.h"
#include "examples/fine_tune/tokenizer.h"
#include "gpipe/distributed/any_rank.h"
#include "gpipe/distributed/from_rank_0.h"
#include "gpipe/gpipe.h"
#include "gpipe/optim/fused.h"
#include "gpipe/saving/saving.h"
#include "gpipe/zero_optimizer.h"

namespace fine_tune {
namespace {

using examples::Batch;
using Json = nlohmann::ordered_json;

constexpr char kUsage[] =
    "Fine-tunes a language model from a Hugging Face folder: adapters, or all parameters.\n\n"
    "  python3 examples/fine_tune/prepare.py MODEL chats.jsonl chats.safetensors\n"
    "  tools/bazel run //examples/fine_tune -- --model=MODEL --data=chats.safetensors --run=run\n\n"
    "The same command goes on from run/last, if it is there. Over several processes it runs as "
    "any\n"
    "pipeline (docs/guide/24-processes.md). For all parameters (--nolora) take a tenth of the\n"
    "default --learning_rate.\n\n"
    "Exit codes: 0, also after SIGUSR1; 1 for an error while running; 2 for wrong usage; 130 "
    "after\n"
    "Ctrl-C. After a signal the checkpoint is written.";

volatile std::sig_atomic_t was_told = 0;  // 1 after SIGUSR1

// The best validation so far. A run that is resumed needs this beside its checkpoint's step and
// rows.
struct Best {
  double loss = std::numeric_limits<double>::infinity();
  int64_t step = -1;  // -1: none yet
  int64_t waits = 0;  // validations since the best one

  Json to_json() const {
    return {{"loss", step < 0 ? Json() : Json(loss)}, {"step", step}, {"waits", waits}};
  }
  static Best from_json(const Json& json) {
    Best best;
    best.step = json.at("step");
    best.waits = json.at("waits");
    if (best.step >= 0) best.loss = json.at("loss");
    return best;
  }
};

class Run {
 public:
  Run(const Settings& settings, const gpipe::World& world)
      : settings_(settings),
        world_(world),
        rows_(settings.training->rows(settings.length, settings.packed, settings.seed)) {
    if (settings.validation) {
      held_out_.emplace(settings.validation->rows(settings.length, settings.packed, settings.seed));
    }
    const torch::nn::Sequential model = make_model(settings, /*weights=*/true);
    int64_t all = 0, trained = 0;
    for (const at::Tensor& parameter : model->parameters()) {
      all += parameter.numel();
      if (parameter.requires_grad()) trained += parameter.numel();
    }
    std::vector<int64_t> balance = settings.balance;
    if (balance.empty()) {
      balance =
          distributed::even_balance(static_cast<int64_t>(model->size()), world.processes_each());
    }
    pipe_ = examples::make_pipeline(settings, model, balance, world);
    const auto make = [&settings](const std::vector<at::Tensor>& parameters) {
      examples::AdamWGroups adamw = examples::adamw_groups(parameters, settings.weight_decay);
      return std::make_unique<gpipe::FusedAdamW>(std::move(adamw.groups), adamw.defaults);
    };
    if (settings.zero) {
      optimizer_ = std::make_unique<gpipe::ZeroOptimizer>(pipe_, make);
    } else {
      optimizer_ = make(pipe_->local_parameters());
    }
    const c10::Device first = pipe_->devices().front();
    bits_ = bits_of(settings, first.is_cpu() ? pipe_->cpu_threads_per_stage() : 0);
    say(absl::StrFormat("model: %d parameters in %d layers, %d of them are trained", all,
                        model->size(), trained));
    describe("data", *settings.training);
    if (settings.validation) describe("validation", *settings.validation);
    say(absl::StrFormat("pipeline: --balance=%s, %d micro-batches, %s", absl::StrJoin(balance, ","),
                        settings.chunks, settings.schedule.name));
    for (const std::string& line : examples::idle_flags(settings, first)) say(line);
    check_resume();
  }

  int run() {
    torch::manual_seed(settings_.seed);  // the seed of dropout; the seed of rank 0 counts
    resume();
    const bool told = train();
    say("parameters " + pipe_->parameter_hash());
    if (told || (step_ < settings_.steps && !is_over())) {
      say("the same command goes on after step " + std::to_string(step_));
      return interrupt_.requested() ? gpipe::command::kInterruptedExitCode : 0;
    }
    const std::string from = best_.step < 0 ? settings_.last() : settings_.best();
    const int64_t expected = best_.step < 0 ? step_ : best_.step;
    const int64_t found = gpipe::read_progress(from).step;
    if (found != expected) {
      throw std::runtime_error(absl::StrFormat(
          "%s has step %d, and step %d was the best of this run: another run wrote it, with other "
          "flags; take another --run",
          from, found, expected));
    }
    // Rank 0 writes, and the others wait.
    say("wrote " + gpipe::from_rank_0(world_, [&] {
          write_result(settings_, from);
          return settings_.result();
        }));
    if ((settings_.merge || !settings_.lora) && !has_tokenizer(settings_.model)) {
      say("it has no tokenizer, as --model=" + settings_.model + " has none: copy one into it");
    }
    return 0;
  }

 private:
  void say(const std::string& text) const {
    if (world_.rank() == 0) std::cout << text << std::endl;
  }

  void describe(const char* what, const Conversations& conversations) const {
    say(
        absl::StrFormat("%s: %d conversations with %d tokens of answers; %d are longer than "
                        "--length=%d, %d are left out, without an answer",
                        what, conversations.size(), conversations.answer_tokens(),
                        conversations.shortened(), settings_.length, conversations.left_out()));
    const int64_t positions = settings_.options.max_positions();
    const int64_t beyond = conversations.longer_than(positions);
    if (beyond == 0) return;
    say(
        absl::StrFormat("%s: %d conversations have more tokens than the model's %d positions "
                        "(max_position_embeddings). They are trained on as they are, at positions "
                        "that the model may not know; --length=%d cuts them",
                        what, beyond, positions, positions));
  }

  // --- Going on

  void check_resume() {
    if (!gpipe::has_checkpoint(settings_.last())) {
      if (settings_.resume_anyway) {
        say("--resume_anyway does nothing: there is no checkpoint in " + settings_.last());
      }
      return;
    }
    Json saved = Json::parse(gpipe::read_progress(settings_.last()).settings, nullptr,
                             /*allow_exceptions=*/false);
    if (!saved.is_object() || !saved.contains("best")) {
      throw std::invalid_argument("--run=" + settings_.run +
                                  ": the checkpoint in it is not one of this program; give another "
                                  "folder");
    }
    best_ = Best::from_json(saved["best"]);
    if (best_.step >= 0 && !gpipe::has_checkpoint(settings_.best())) {
      throw std::invalid_argument(
          absl::StrFormat("--run=%s: step %d was the best so far, and %s is missing; put it back, "
                          "or give another folder",
                          settings_.run, best_.step, settings_.best()));
    }
    saved.erase("best");
    const examples::BitsDifference difference = examples::compare_bits(saved.dump(), bits_);
    if (difference.flags.empty() && difference.unknown.empty()) return;
    std::string text = examples::to_text(difference);
    if (!difference.unknown.empty()) {
      text += (text.empty() ? "" : "\n") +
              ("  only one of them has --" + absl::StrJoin(difference.unknown, ", --"));
    }
    if (!settings_.resume_anyway) {
      throw std::invalid_argument(absl::StrFormat(
          "--run=%s: the run that is there would go on with other bits:\n%s\ngive %s; or another "
          "--run; or --resume_anyway",
          settings_.run, text, examples::flags_of_saved(difference)));
    }
    say("goes on with other bits than if it had not been stopped:\n" + text);
  }

  void resume() {
    if (!gpipe::has_checkpoint(settings_.last())) return;
    const gpipe::Progress progress = gpipe::load_checkpoint(pipe_, *optimizer_, settings_.last());
    step_ = saved_at_ = progress.step;
    row_ = progress.rows;
    say(absl::StrFormat("goes on after step %d, from %s", step_, settings_.last()));
  }

  void save(const std::string& path) {
    Json bits = Json::parse(bits_);
    bits["best"] = best_.to_json();
    gpipe::save_checkpoint(pipe_, *optimizer_, {step_, row_, {}, bits.dump()}, path);
  }

  void save_last() {
    if (saved_at_ != step_) save(settings_.last());
    saved_at_ = step_;
  }

  // --- Training

  // Returns the loss if it is finite. Otherwise throws, so that a run with lost parameters ends
  // before it saves them.
  double finite(double loss, const char* of) const {
    if (std::isfinite(loss)) return loss;
    throw std::runtime_error(absl::StrFormat(
        "the loss of the %s after step %d is %f, so this run cannot go on; %s. Take a lower "
        "--learning_rate or a longer --warm_up",
        of, step_, loss,
        saved_at_ < 0 ? "nothing is saved"
                      : absl::StrFormat("%s has step %d", settings_.last(), saved_at_)));
  }

  bool is_over() const { return settings_.patience > 0 && best_.waits >= settings_.patience; }

  // The rows of this replica, on the device of the pipeline's first or last stage.
  gpipe::Tensors own_rows(const gpipe::Tensors& of_all, const c10::Device& device) const {
    const gpipe::RowRange rows = world_.rows(of_all.at(0).size(0), settings_.chunks);
    gpipe::Tensors own;
    for (const at::Tensor& tensor : of_all) {
      own.push_back(tensor.narrow(0, rows.begin, rows.size()).to(device));
    }
    return own;
  }
  gpipe::Tensors inputs(const Batch& batch) const {
    return own_rows({batch.ids, batch.documents}, pipe_->devices().front());
  }
  gpipe::Tensors targets(const Batch& batch) const {
    return own_rows({batch.targets}, pipe_->devices().back());
  }
  gpipe::StepOptions step_options() const {
    return gpipe::StepOptions().schedule(settings_.schedule.make).weight(examples::count_tokens);
  }

  // Trains. Returns whether a signal, or --stop_at, has ended the training. Each rank acts only on
  // what all ranks know, so that all stop after the same step.
  bool train() {
    const examples::LearningRate rate{settings_.learning_rate, settings_.warm_up, settings_.steps};
    const gpipe::StepOptions options = step_options();
    double losses = 0;
    int64_t steps = 0;  // since the last line
    bool told = false;
    pipe_->train();
    while (step_ < settings_.stop_at && !is_over() && !told) {
      const Batch batch = rows_.training(row_, settings_.batch);
      pipe_->zero_grad();
      {
        const examples::Autocast autocast(pipe_->devices().front().type(), settings_.bfloat16);
        losses += finite(
            pipe_->step(inputs(batch), targets(batch), examples::mean_loss, options).loss, "step");
      }
      if (settings_.clip > 0) pipe_->clip_grad_norm_(settings_.clip);
      examples::set_learning_rate(*optimizer_, rate.at(step_));
      optimizer_->step();
      if (settings_.average > 0) update_averages(pipe_, settings_.average);
      row_ += settings_.batch;
      ++step_;
      ++steps;
      if (step_ % settings_.validate_every == 0 || step_ == settings_.steps) {
        std::string line =
            absl::StrFormat("step %d: loss %.4f", step_, losses / static_cast<double>(steps));
        losses = 0;
        steps = 0;
        if (held_out_) line += absl::StrFormat(", validation %.4f", validate());
        say(line + (best_.step == step_ ? ", the best" : ""));
      }
      told = gpipe::any_rank(world_, interrupt_.requested() || was_told != 0);
      if (settings_.save_every > 0 && step_ % settings_.save_every == 0) save_last();
    }
    if (is_over()) say(absl::StrFormat("ends early: step %d was the best", best_.step));
    save_last();
    return told;
  }

  // Returns the mean loss over the answers' tokens, and keeps the checkpoint if it is the best.
  double validate() {
    double sum = 0, tokens = 0;
    {
      const examples::KeepsGenerator keeps;
      const examples::Autocast autocast(pipe_->devices().front().type(), settings_.bfloat16);
      std::optional<WithAverages> averages;
      if (settings_.average > 0) averages.emplace(pipe_);
      pipe_->eval();
      const int64_t all = held_out_->validation_rows();
      for (int64_t first = 0; first < all; first += settings_.batch) {
        const Batch batch = held_out_->validation(first, std::min(settings_.batch, all - first));
        const double loss =
            pipe_->evaluate(inputs(batch), targets(batch), examples::mean_loss, step_options())
                .loss;
        sum += loss * static_cast<double>(batch.tokens);
        tokens += static_cast<double>(batch.tokens);
      }
      pipe_->train();
    }
    const double loss = finite(sum / tokens, "validation");
    if (loss < best_.loss) {
      best_ = {loss, step_, 0};
      save(settings_.best());
    } else {
      ++best_.waits;
    }
    return loss;
  }

  const Settings& settings_;
  gpipe::World world_;
  gpipe::command::InterruptScope interrupt_;
  examples::PackedRows rows_;
  std::optional<examples::PackedRows> held_out_;
  gpipe::GPipe pipe_{nullptr};
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::string bits_;
  Best best_;
  int64_t step_ = 0, saved_at_ = -1;
  int64_t row_ = 0;  // the first row of the next mini-batch: the cursor of the data
};

}  // namespace
}  // namespace fine_tune

int main(int argc, char** argv) {
  std::signal(SIGUSR1, [](int) { fine_tune::was_told = 1; });
  const auto settings = std::make_shared<fine_tune::Settings>();
  gpipe::command::FlagSet flags;
  fine_tune::add_flags(*settings, flags);
  return distributed::run_command(
      argc, argv, fine_tune::kUsage, [&] { fine_tune::settle(*settings); },
      [&](const gpipe::World& processes) -> std::function<int()> {
        examples::expect_same_flags(processes, fine_tune::shared_flags(*settings));
        const auto run = std::make_shared<fine_tune::Run>(
            *settings, distributed::world_of_replicas(processes, settings->replicas));
        return [settings, run] { return run->run(); };
      },
      flags);
}
