#include "experiments/rows/training_run.h"

#include <c10/util/Exception.h>
#include <torch/optim/sgd.h>

#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_format.h"
#include "command/progress.h"
#include "experiments/frame/stopwatch.h"
#include "experiments/frame/trace.h"
#include "experiments/rows/training_state.h"

namespace gpipe::experiments {
namespace {

// What a saved run records about itself.
struct History {
  int64_t planned = 0;  // the number of epochs that were planned
  std::vector<EpochResult> epochs;
};

std::string to_text(const History& history) {
  nlohmann::json list = nlohmann::json::array();
  for (const EpochResult& e : history.epochs) {
    list.push_back({e.lr, e.train_loss, e.seconds, e.throughput, e.valid_loss, e.accuracy});
  }
  return nlohmann::json({{"planned", history.planned}, {"epochs", list}}).dump();
}

History history_of(const std::string& text) {
  History history;
  // A loss that was not finite is stored as null.
  const auto number = [](const nlohmann::json& value) {
    return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
  };
  const nlohmann::json json = nlohmann::json::parse(text);
  history.planned = json.at("planned");
  for (const nlohmann::json& e : json.at("epochs")) {
    history.epochs.push_back({number(e.at(0)), number(e.at(1)), number(e.at(2)), number(e.at(3)),
                              number(e.at(4)), number(e.at(5))});
  }
  return history;
}

// The history of a saved run that `options` may resume. If the number of epochs is another one, the
// learning rates of the finished epochs must be the same.
History checked_history(const TrainingState& state, const TrainingOptions& options,
                        int64_t steps_per_epoch) {
  History history = history_of(state.history);
  const auto finished = static_cast<int64_t>(history.epochs.size());
  TORCH_CHECK_VALUE(finished == state.epochs, options.state, " is damaged: it has ", state.epochs,
                    " epochs, but ", finished, " results; begin anew with --overwrite");
  TORCH_CHECK_VALUE(finished <= options.epochs, "--epochs=", options.epochs, ": ", options.state,
                    " has ", finished,
                    " epochs already; give at least as many, or begin anew with --overwrite");
  if (history.planned == options.epochs) return history;
  for (int64_t step = 0; step < finished * steps_per_epoch; ++step) {
    TORCH_CHECK_VALUE(options.lr(step, history.planned) == options.lr(step, options.epochs),
                      "--epochs=", options.epochs, ": ", options.state, " belongs to a run of ",
                      history.planned, " epochs, whose learning rates differ from epoch ",
                      step / steps_per_epoch + 1, " on; resume with --epochs=", history.planned);
  }
  return history;
}

class TrainingRun {
 public:
  TrainingRun(Trainer& trainer, Loader& train, Loader& validation, const TrainingOptions& options,
              const RunContext& context)
      : trainer_(trainer),
        train_(train),
        validation_(validation),
        options_(options),
        context_(context),
        optimizer_(trainer.module().parameters(),
                   torch::optim::SGDOptions(options.lr(0, options.epochs))
                       .momentum(options.momentum)
                       .nesterov(options.nesterov)
                       .weight_decay(options.weight_decay)) {}

  TrainingResult run() {
    resume();
    while (static_cast<int64_t>(result_.epochs.size()) < options_.epochs) {
      EpochResult epoch;
      if (!train_epoch(epoch) || !validate(epoch)) {
        result_.interrupted = true;
        break;
      }
      result_.epochs.push_back(epoch);
      say(
          absl::StrFormat("%d/%d epoch | lr:%.5f | train loss:%.3f %.3f samples/sec | "
                          "valid loss:%.3f accuracy:%.3f",
                          result_.epochs.size(), options_.epochs, epoch.lr, epoch.train_loss,
                          epoch.throughput, epoch.valid_loss, epoch.accuracy));
      if (options_.on_epoch) options_.on_epoch(result_.epochs);
      if (!options_.state.empty()) {
        save_training_state(options_.state, trainer_.module(), optimizer_,
                            {static_cast<int64_t>(result_.epochs.size()), options_.config,
                             to_text(History{options_.epochs, result_.epochs})});
      }
    }
    result_.unreadable = train_.unreadable() + validation_.unreadable();
    trainer_.observe(nullptr);
    if (!options_.trace.empty()) {
      write_trace(options_.trace, options_.title, timeline_, trainer_.routes(), context_.out);
    }
    return result_;
  }

 private:
  void say(const std::string& line) {
    if (context_.out != nullptr) *context_.out << line << "\n" << std::flush;
  }

  void resume() {
    if (!options_.resume) return;
    if (!std::filesystem::exists(options_.state)) {
      say("nothing saved in " + options_.state + ": from the beginning");
      return;
    }
    const TrainingState state =
        load_training_state(options_.state, trainer_.module(), optimizer_, options_.config);
    const History history = checked_history(state, options_, train_.batches());
    result_.epochs = history.epochs;
    if (options_.on_epoch) options_.on_epoch(result_.epochs);
    say(absl::StrFormat("resumed after epoch %d of %d", state.epochs, options_.epochs));
  }

  std::string label(const char* what) const {
    return absl::StrFormat("%s %s %d/%d", options_.title, what, result_.epochs.size() + 1,
                           options_.epochs);
  }

  void set_lr(double lr) {
    for (torch::optim::OptimizerParamGroup& group : optimizer_.param_groups()) {
      static_cast<torch::optim::SGDOptions&>(group.options()).lr(lr);
    }
  }

  // Trains for one epoch. Returns false if it was interrupted.
  bool train_epoch(EpochResult& epoch) {
    const auto number = static_cast<int64_t>(result_.epochs.size());
    trainer_.module().train();
    std::optional<command::Progress> bar;
    if (context_.progress != nullptr) {
      bar.emplace(*context_.progress, label("training"), train_.batches(),
                  context_.progress_options);
    }
    const bool traced = !options_.trace.empty() && number + 1 == options_.epochs;
    const Stopwatch stopwatch(trainer_.input_device());
    train_.start(number);
    int64_t steps = 0;
    int64_t images = 0;
    double loss_sum = 0;
    while (const std::optional<Batch> batch = train_.next()) {
      epoch.lr = options_.lr(number * train_.batches() + steps, options_.epochs);
      set_lr(epoch.lr);
      if (traced && steps + 1 == train_.batches()) trainer_.observe(timeline_.observer());
      const double loss = trainer_.step(batch->images, batch->labels);
      optimizer_.step();
      const int64_t size = batch->images.size(0);
      loss_sum += loss * static_cast<double>(size);
      images += size;
      ++steps;
      if (bar) bar->update(steps, absl::StrFormat("loss %.3f", loss));
      if (context_.is_interrupted()) {
        if (bar) bar->finish();
        say(absl::StrFormat("stopped in epoch %d of %d, after step %d of %d", number + 1,
                            options_.epochs, steps, train_.batches()));
        return false;
      }
    }
    epoch.seconds = stopwatch.seconds();
    epoch.train_loss = loss_sum / static_cast<double>(images);
    epoch.throughput = static_cast<double>(images) / epoch.seconds;
    return true;
  }

  // Validates after an epoch. Returns false if it was interrupted.
  bool validate(EpochResult& epoch) {
    trainer_.module().eval();
    std::optional<command::Progress> bar;
    if (context_.progress != nullptr) {
      bar.emplace(*context_.progress, label("validation"), validation_.batches(),
                  context_.progress_options);
    }
    validation_.start(0);
    int64_t batches = 0;
    int64_t images = 0;
    int64_t right = 0;
    double loss_sum = 0;
    while (const std::optional<Batch> batch = validation_.next()) {
      const at::Tensor scores = trainer_.predict(batch->images);
      const at::Tensor labels = batch->labels.to(scores.device());
      const int64_t size = labels.size(0);
      loss_sum += options_.loss(scores, labels).item().toDouble() * static_cast<double>(size);
      right += scores.argmax(1).eq(labels).sum().item().toLong();
      images += size;
      if (bar) bar->update(++batches);
      if (context_.is_interrupted()) {
        if (bar) bar->finish();
        say("stopped during the validation");
        return false;
      }
    }
    TORCH_CHECK_VALUE(images > 0,
                      "none of the validation images can be read; check the files of --data");
    epoch.valid_loss = loss_sum / static_cast<double>(images);
    epoch.accuracy = static_cast<double>(right) / static_cast<double>(images);
    return true;
  }

  Trainer& trainer_;
  Loader& train_;
  Loader& validation_;
  const TrainingOptions& options_;
  const RunContext& context_;
  torch::optim::SGD optimizer_;
  TrainingResult result_;
  Timeline timeline_;  // the timeline of the last step of training, if it is traced
};

}  // namespace

void check_resumable(const TrainingOptions& options, int64_t steps_per_epoch) {
  if (!options.resume || !std::filesystem::exists(options.state)) return;
  checked_history(read_training_state(options.state, options.config), options, steps_per_epoch);
}

TrainingResult run_training(Trainer& trainer, Loader& train, Loader& validation,
                            const TrainingOptions& options, const RunContext& context) {
  return TrainingRun(trainer, train, validation, options, context).run();
}

}  // namespace gpipe::experiments
