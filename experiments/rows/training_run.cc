#include "experiments/rows/training_run.h"

#include <c10/util/Exception.h>
#include <torch/optim/sgd.h>

#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "command/progress.h"
#include "experiments/frame/stopwatch.h"
#include "experiments/frame/trace.h"
#include "gpipe/gpipe.h"
#include "gpipe/saving/saving.h"
#include "text/shown.h"

namespace gpipe::experiments {
namespace {

// What a saved run records about itself, in Progress::settings.
struct History {
  std::map<std::string, std::string> config;
  int64_t planned = 0;  // the number of epochs that were planned
  std::vector<EpochResult> epochs;
};

// The config without bytes that JSON cannot have.
std::map<std::string, std::string> shown(std::map<std::string, std::string> config) {
  for (auto& [key, value] : config) value = text::shown(value);
  return config;
}

std::string to_text(const History& history) {
  nlohmann::json list = nlohmann::json::array();
  for (const EpochResult& e : history.epochs) {
    list.push_back({e.lr, e.train_loss, e.seconds, e.throughput, e.valid_loss, e.accuracy});
  }
  return nlohmann::json(
             {{"config", history.config}, {"planned", history.planned}, {"epochs", list}})
      .dump();
}

History history_of(const std::string& path) {
  History history;
  // A loss that was not finite is stored as null.
  const auto number = [](const nlohmann::json& value) {
    return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
  };
  try {
    const nlohmann::json json = nlohmann::json::parse(read_progress(path).settings);
    history.config = json.at("config");
    history.planned = json.at("planned");
    for (const nlohmann::json& e : json.at("epochs")) {
      history.epochs.push_back({number(e.at(0)), number(e.at(1)), number(e.at(2)), number(e.at(3)),
                                number(e.at(4)), number(e.at(5))});
    }
  } catch (const nlohmann::json::exception&) {
    TORCH_CHECK_VALUE(false, path,
                      " is not a checkpoint of this program; begin anew in another folder");
  }
  return history;
}

std::string differences(const std::map<std::string, std::string>& saved,
                        const std::map<std::string, std::string>& now) {
  const auto value = [](const auto& config, const std::string& key) {
    const auto found = config.find(key);
    return found == config.end() ? "nothing" : found->second;
  };
  std::map<std::string, std::string> all = saved;
  all.insert(now.begin(), now.end());
  std::string text;
  for (const auto& [key, unused] : all) {
    const std::string before = value(saved, key), after = value(now, key);
    if (before != after) text += "\n  " + key + ": saved with " + before + ", now " + after;
  }
  return text;
}

// The history of a saved run that `options` may resume. If the number of epochs is another one, the
// learning rates of the finished epochs must be the same.
History checked_history(const TrainingOptions& options, int64_t steps_per_epoch) {
  History history = history_of(options.state);
  const std::string different = differences(history.config, shown(options.config));
  TORCH_CHECK_VALUE(
      different.empty(), options.state, " belongs to another run:", different,
      "\nResume with the same settings, or begin anew with --overwrite, or in another folder.");
  const auto finished = static_cast<int64_t>(history.epochs.size());
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

// The trainer's pipeline. The bare network of the other ways becomes one of a single stage, with
// the same parameters, because checkpoints are of pipelines.
GPipe pipeline_of(Trainer& trainer) {
  const std::shared_ptr<torch::nn::Module> module = trainer.module().shared_from_this();
  if (auto pipe = std::dynamic_pointer_cast<GPipeImpl>(module)) return GPipe(std::move(pipe));
  const torch::nn::Sequential network(std::dynamic_pointer_cast<torch::nn::SequentialImpl>(module));
  return GPipe(
      network,
      GPipeOptions({static_cast<int64_t>(network->size())}).devices({trainer.input_device()}));
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
        Progress progress;
        progress.step = static_cast<int64_t>(result_.epochs.size()) * train_.batches();
        progress.settings = to_text({shown(options_.config), options_.epochs, result_.epochs});
        GPipe pipe = pipeline_of(trainer_);
        save_checkpoint(pipe, optimizer_, progress, options_.state);
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
    if (!has_checkpoint(options_.state)) {
      say("nothing saved in " + options_.state + ": from the beginning");
      return;
    }
    result_.epochs = checked_history(options_, train_.batches()).epochs;
    GPipe pipe = pipeline_of(trainer_);
    load_checkpoint(pipe, optimizer_, options_.state);
    if (options_.on_epoch) options_.on_epoch(result_.epochs);
    say(absl::StrFormat("resumed after epoch %d of %d", result_.epochs.size(), options_.epochs));
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
  if (options.resume && has_checkpoint(options.state)) checked_history(options, steps_per_epoch);
}

TrainingResult run_training(Trainer& trainer, Loader& train, Loader& validation,
                            const TrainingOptions& options, const RunContext& context) {
  return TrainingRun(trainer, train, validation, options, context).run();
}

}  // namespace gpipe::experiments
