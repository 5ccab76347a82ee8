#include "experiments/resnet101_accuracy/run.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <c10/util/Exception.h>
#include <torch/cuda.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "experiments/common/checkpoint.h"

namespace gpipe::experiments {
namespace {

using Clock = std::chrono::steady_clock;

template <typename... Args>
std::string format(const char* pattern, Args... args) {
  char text[256];
  std::snprintf(text, sizeof text, pattern, args...);
  return text;
}

void synchronize(c10::Device device) {
  if (device.is_cuda()) torch::cuda::synchronize(device.index());
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::string to_history(const std::vector<EpochResult>& epochs) {
  nlohmann::json list = nlohmann::json::array();
  for (const EpochResult& e : epochs) {
    list.push_back({e.lr, e.train_loss, e.seconds, e.throughput, e.valid_loss, e.accuracy});
  }
  return list.dump();
}

std::vector<EpochResult> from_history(const std::string& text) {
  std::vector<EpochResult> epochs;
  // A loss that was not finite is stored as null.
  const auto number = [](const nlohmann::json& value) {
    return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
  };
  for (const nlohmann::json& e : nlohmann::json::parse(text)) {
    epochs.push_back(
        {number(e[0]), number(e[1]), number(e[2]), number(e[3]), number(e[4]), number(e[5])});
  }
  return epochs;
}

class Run {
 public:
  Run(Trainer& trainer, Loader& train, Loader& validation, const RunOptions& options)
      : trainer_(trainer),
        train_(train),
        validation_(validation),
        options_(options),
        optimizer_(trainer.module().parameters(), torch::optim::SGDOptions(options.schedule.at(0))
                                                      .momentum(0.9)
                                                      .nesterov(true)
                                                      .weight_decay(options.weight_decay)) {}

  RunResult run() {
    resume();
    while (static_cast<int64_t>(result_.epochs.size()) < options_.epochs) {
      EpochResult epoch;
      if (!train_epoch(epoch) || !validate(epoch)) {
        result_.interrupted = true;
        break;
      }
      result_.epochs.push_back(epoch);
      say(
          format("%zu/%lld epoch | lr:%.5f | train loss:%.3f %.3f samples/sec | "
                 "valid loss:%.3f accuracy:%.3f",
                 result_.epochs.size(), static_cast<long long>(options_.epochs), epoch.lr,
                 epoch.train_loss, epoch.throughput, epoch.valid_loss, epoch.accuracy));
      if (!options_.checkpoint.empty()) {
        save_checkpoint(options_.checkpoint, trainer_.module(), optimizer_,
                        {static_cast<int64_t>(result_.epochs.size()), options_.config,
                         to_history(result_.epochs)});
      }
    }
    result_.unreadable = train_.unreadable() + validation_.unreadable();
    return result_;
  }

 private:
  void say(const std::string& line) {
    if (options_.out != nullptr) *options_.out << line << "\n" << std::flush;
  }

  bool interrupted() const { return options_.interrupted && options_.interrupted(); }

  void resume() {
    if (!options_.resume) return;
    if (!std::filesystem::exists(options_.checkpoint)) {
      say("no checkpoint " + options_.checkpoint + ": from the beginning");
      return;
    }
    const TrainingState state =
        load_checkpoint(options_.checkpoint, trainer_.module(), optimizer_, options_.config);
    result_.epochs = from_history(state.history);
    TORCH_CHECK_VALUE(static_cast<int64_t>(result_.epochs.size()) == state.epochs,
                      options_.checkpoint, " contradicts itself: ", state.epochs, " epochs, but ",
                      result_.epochs.size(), " results");
    say(format("resumed after epoch %lld of %lld", static_cast<long long>(state.epochs),
               static_cast<long long>(options_.epochs)));
  }

  std::string label(const char* what) const {
    return format("%s %s %zu/%lld", options_.title.c_str(), what, result_.epochs.size() + 1,
                  static_cast<long long>(options_.epochs));
  }

  void set_lr(double lr) {
    for (torch::optim::OptimizerParamGroup& group : optimizer_.param_groups()) {
      static_cast<torch::optim::SGDOptions&>(group.options()).lr(lr);
    }
  }

  // False if interrupted.
  bool train_epoch(EpochResult& epoch) {
    const auto number = static_cast<int64_t>(result_.epochs.size());
    trainer_.module().train();
    std::optional<Progress> bar;
    if (options_.progress != nullptr) {
      bar.emplace(*options_.progress, label("training"), train_.batches(),
                  options_.progress_options);
    }
    synchronize(trainer_.first_device());
    const Clock::time_point begin = Clock::now();
    train_.start(number);
    int64_t steps = 0;
    int64_t images = 0;
    double loss_sum = 0;
    while (const std::optional<Batch> batch = train_.next()) {
      epoch.lr = options_.schedule.at(number * train_.batches() + steps);
      set_lr(epoch.lr);
      const double loss = trainer_.step(batch->images, batch->labels);
      optimizer_.step();
      const int64_t size = batch->images.size(0);
      loss_sum += loss * static_cast<double>(size);
      images += size;
      ++steps;
      if (bar) bar->update(steps, format("loss %.3f", loss));
      if (interrupted()) {
        if (bar) bar->finish();
        say(format("stopped in epoch %lld of %lld, after step %lld of %lld",
                   static_cast<long long>(number + 1), static_cast<long long>(options_.epochs),
                   static_cast<long long>(steps), static_cast<long long>(train_.batches())));
        return false;
      }
    }
    synchronize(trainer_.first_device());
    epoch.seconds = seconds_since(begin);
    epoch.train_loss = loss_sum / static_cast<double>(images);
    epoch.throughput = static_cast<double>(images) / epoch.seconds;
    return true;
  }

  // False if interrupted.
  bool validate(EpochResult& epoch) {
    trainer_.module().eval();
    std::optional<Progress> bar;
    if (options_.progress != nullptr) {
      bar.emplace(*options_.progress, label("validation"), validation_.batches(),
                  options_.progress_options);
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
      loss_sum +=
          at::cross_entropy_loss(scores, labels).item().toDouble() * static_cast<double>(size);
      right += scores.argmax(1).eq(labels).sum().item().toLong();
      images += size;
      if (bar) bar->update(++batches);
      if (interrupted()) {
        if (bar) bar->finish();
        say("stopped during the validation");
        return false;
      }
    }
    TORCH_CHECK_VALUE(images > 0, "not one validation image can be read");
    epoch.valid_loss = loss_sum / static_cast<double>(images);
    epoch.accuracy = static_cast<double>(right) / static_cast<double>(images);
    return true;
  }

  Trainer& trainer_;
  Loader& train_;
  Loader& validation_;
  const RunOptions& options_;
  torch::optim::SGD optimizer_;
  RunResult result_;
};

}  // namespace

RunResult run(Trainer& trainer, Loader& train, Loader& validation, const RunOptions& options) {
  return Run(trainer, train, validation, options).run();
}

}  // namespace gpipe::experiments
