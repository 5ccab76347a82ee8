#include "experiments/frame/trainer.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <stdexcept>

#include "experiments/frame/data_parallel.h"

namespace gpipe::experiments {
namespace {

// The bare network on one device; in data parallelism, the first replica. It holds the running
// statistics and evaluates alone: the other replicas would add only speed.
class BareTrainer : public Trainer {
 public:
  BareTrainer(const Task& task, c10::Device device) : model_(task.make_model()), device_(device) {}

  at::Tensor predict(const at::Tensor& input) override {
    const torch::NoGradGuard no_grad;
    return model_->forward(input.to(device_, true));
  }

  torch::nn::Module& module() override { return *model_; }
  c10::Device input_device() const override { return device_; }
  c10::Device target_device() const override { return device_; }

 protected:
  torch::nn::Sequential model_;
  c10::Device device_;
};

class NaiveTrainer : public BareTrainer {
 public:
  NaiveTrainer(const Task& task, c10::Device device) : BareTrainer(task, device), loss_(task.loss) {
    model_->to(device);
  }

  double step(const at::Tensor& input, const at::Tensor& target) override {
    const at::Tensor loss =
        loss_(model_->forward(input.to(device_, true)), target.to(device_, true));
    // Gradients are cleared between forward and backward, as in the published runs.
    model_->zero_grad();
    loss.backward();
    return loss.item().toDouble();
  }

 private:
  decltype(Task::loss) loss_;
};

class DataParallelTrainer : public BareTrainer {
 public:
  DataParallelTrainer(const Task& task, const std::vector<c10::Device>& devices)
      : BareTrainer(task, devices.front()),
        parallel_(model_, task.make_model, devices, task.loss) {}

  double step(const at::Tensor& input, const at::Tensor& target) override {
    return parallel_.step(input, target);
  }

 private:
  DataParallel parallel_;
};

class PipelineTrainer : public Trainer {
 public:
  PipelineTrainer(const Task& task, const GPipeOptions& options, const ScheduleGenerator& schedule)
      : pipe_(task.make_model(), options) {
    step_options_.schedule(schedule);
    loss_ = [loss = task.loss](const Tensors& outputs, const Tensors& targets) {
      return loss(outputs.at(0), targets.at(0));
    };
  }

  double step(const at::Tensor& input, const at::Tensor& target) override {
    // Forwards and backwards overlap in a step, so the gradients must be cleared before it.
    pipe_->zero_grad();
    return pipe_
        ->step({input.to(input_device(), true)}, {target.to(target_device(), true)}, loss_,
               step_options_)
        .loss;
  }

  at::Tensor predict(const at::Tensor& input) override {
    const torch::NoGradGuard no_grad;
    return pipe_->forward(input.to(input_device(), true));
  }

  void observe(const Observer& observer) override { step_options_.on_event(observer); }
  std::optional<Routes> routes() const override { return pipe_->routes(); }

  torch::nn::Module& module() override { return *pipe_; }
  c10::Device input_device() const override { return pipe_->devices().front(); }
  c10::Device target_device() const override { return pipe_->devices().back(); }

 private:
  GPipe pipe_;
  LossFn loss_;
  StepOptions step_options_;
};

}  // namespace

Task task_of(const models::NamedModel& model, uint64_t seed) {
  return {[make = model.make, seed] {
            at::manual_seed(seed);
            return make();
          },
          [loss = model.loss](const at::Tensor& output, const at::Tensor& target) {
            return models::loss_of(loss, output, target);
          }};
}

std::unique_ptr<Trainer> make_naive_trainer(const Task& task, c10::Device device) {
  return std::make_unique<NaiveTrainer>(task, device);
}

std::unique_ptr<Trainer> make_data_parallel_trainer(const Task& task,
                                                    const std::vector<c10::Device>& devices) {
  TORCH_CHECK_VALUE(!devices.empty(), "data parallelism needs at least one device");
  return std::make_unique<DataParallelTrainer>(task, devices);
}

std::unique_ptr<Trainer> make_pipeline_trainer(const Task& task, const GPipeOptions& options,
                                               const ScheduleGenerator& schedule) {
  return std::make_unique<PipelineTrainer>(task, options, schedule);
}

}  // namespace gpipe::experiments
