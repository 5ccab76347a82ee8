#include "experiments/resnet101_accuracy/trainer.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/grad_mode.h>

#include "experiments/resnet101_accuracy/data_parallel.h"

namespace gpipe::experiments {
namespace {

at::Tensor loss_of(const at::Tensor& scores, const at::Tensor& labels) {
  return at::cross_entropy_loss(scores, labels);
}

class NaiveTrainer : public Trainer {
 public:
  NaiveTrainer(const MakeModel& make_model, c10::Device device)
      : model_(make_model()), device_(device) {
    model_->to(device);
  }

  double step(const at::Tensor& images, const at::Tensor& labels) override {
    const at::Tensor loss =
        loss_of(model_->forward(images.to(device_, true)), labels.to(device_, true));
    // Between forward and backward, as the published runs do.
    model_->zero_grad();
    loss.backward();
    return loss.item().toDouble();
  }

  at::Tensor predict(const at::Tensor& images) override {
    const torch::NoGradGuard no_grad;
    return model_->forward(images.to(device_, true));
  }

  torch::nn::Module& module() override { return *model_; }
  c10::Device first_device() const override { return device_; }

 private:
  torch::nn::Sequential model_;
  c10::Device device_;
};

class DataParallelTrainer : public Trainer {
 public:
  DataParallelTrainer(const MakeModel& make_model, const std::vector<c10::Device>& devices)
      : model_(make_model()),
        parallel_(model_, make_model, devices, loss_of),
        device_(devices.front()) {}

  double step(const at::Tensor& images, const at::Tensor& labels) override {
    return parallel_.step(images, labels);
  }

  // The first replica holds the running statistics; in evaluation the others would add nothing but
  // speed.
  at::Tensor predict(const at::Tensor& images) override {
    const torch::NoGradGuard no_grad;
    return model_->forward(images.to(device_, true));
  }

  torch::nn::Module& module() override { return *model_; }
  c10::Device first_device() const override { return device_; }

 private:
  torch::nn::Sequential model_;
  DataParallel parallel_;
  c10::Device device_;
};

ScheduleGenerator generator(const std::string& name) {
  if (name == "gpipe") return Schedule::gpipe;
  TORCH_CHECK_VALUE(name == "1f1b", "there is no schedule '", name, "'; give gpipe or 1f1b");
  return Schedule::one_f_one_b;
}

class PipelineTrainer : public Trainer {
 public:
  PipelineTrainer(const MakeModel& make_model, const GPipeOptions& options,
                  const std::string& schedule)
      : pipe_(make_model(), options) {
    step_options_.schedule(generator(schedule));
  }

  double step(const at::Tensor& images, const at::Tensor& labels) override {
    // Forward and backward overlap in a step: the gradients must be clear before.
    pipe_->zero_grad();
    const auto loss = [](const Tensors& outputs, const Tensors& targets) {
      return loss_of(outputs[0], targets[0]);
    };
    return pipe_
        ->step({images.to(pipe_->devices().front(), true)},
               {labels.to(pipe_->devices().back(), true)}, loss, step_options_)
        .loss;
  }

  at::Tensor predict(const at::Tensor& images) override {
    const torch::NoGradGuard no_grad;
    return pipe_->forward(images.to(pipe_->devices().front(), true));
  }

  torch::nn::Module& module() override { return *pipe_; }
  c10::Device first_device() const override { return pipe_->devices().front(); }

 private:
  GPipe pipe_;
  StepOptions step_options_;
};

}  // namespace

std::unique_ptr<Trainer> make_naive_trainer(const MakeModel& make_model, c10::Device device) {
  return std::make_unique<NaiveTrainer>(make_model, device);
}

std::unique_ptr<Trainer> make_data_parallel_trainer(const MakeModel& make_model,
                                                    const std::vector<c10::Device>& devices) {
  TORCH_CHECK_VALUE(!devices.empty(), "data parallelism needs a device at least");
  return std::make_unique<DataParallelTrainer>(make_model, devices);
}

std::unique_ptr<Trainer> make_pipeline_trainer(const MakeModel& make_model,
                                               const GPipeOptions& options,
                                               const std::string& schedule) {
  return std::make_unique<PipelineTrainer>(make_model, options, schedule);
}

}  // namespace gpipe::experiments
