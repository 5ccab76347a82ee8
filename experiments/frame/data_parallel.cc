#include "experiments/frame/data_parallel.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "gpipe/internal/threads/cpu_threads.h"

namespace gpipe::experiments {

struct DataParallel::Replica {
  torch::nn::Sequential model;
  c10::Device device;
  std::vector<at::Tensor> parameters;
  // This replica's piece of the mini-batch in progress.
  at::Tensor input;
  at::Tensor target;
  double loss = 0;  // this replica's part of the mean
  std::exception_ptr error;
};

DataParallel::DataParallel(torch::nn::Sequential model,
                           const std::function<torch::nn::Sequential()>& make_model,
                           std::vector<c10::Device> devices, LossFn loss)
    : loss_(std::move(loss)) {
  TORCH_CHECK_VALUE(!devices.empty(), "data parallelism needs at least one device");
  for (const c10::Device& device : devices) {
    torch::nn::Sequential copy = replicas_.empty() ? model : make_model();
    copy->to(device);
    auto replica =
        std::make_unique<Replica>(Replica{copy, device, copy->parameters(), {}, {}, 0, {}});
    if (!replicas_.empty()) {
      const auto& first = replicas_.front()->parameters;
      const auto& other = replica->parameters;
      TORCH_CHECK_VALUE(std::equal(first.begin(), first.end(), other.begin(), other.end(),
                                   [](const at::Tensor& a, const at::Tensor& b) {
                                     return a.sizes() == b.sizes();
                                   }),
                        "make_model gives a network whose parameters are not those of the model");
    }
    replicas_.push_back(std::move(replica));
  }
  const auto on_cpu = std::count_if(devices.begin(), devices.end(),
                                    [](const c10::Device& device) { return device.is_cpu(); });
  const int64_t share = internal::share_of_cpu_threads(0, std::max<int64_t>(on_cpu, 1));
  const internal::DefaultThreadsScope of_the_caller;
  threads_ = std::make_unique<internal::WorkerPool>(
      static_cast<int64_t>(replicas_.size()),
      [share](int64_t) { internal::set_threads_of_this_thread(share); });
}

DataParallel::~DataParallel() = default;

double DataParallel::step(const at::Tensor& input, const at::Tensor& target) {
  const auto samples = static_cast<double>(input.size(0));
  // If the batch is short, there are fewer pieces than replicas, and the other replicas idle.
  const std::vector<at::Tensor> inputs = input.chunk(static_cast<int64_t>(replicas_.size()));
  const std::vector<at::Tensor> targets = target.chunk(static_cast<int64_t>(replicas_.size()));
  threads_->run([&](int64_t worker) {
    const auto i = static_cast<std::size_t>(worker);
    Replica& replica = *replicas_[i];
    replica.input = i < inputs.size() ? inputs[i] : at::Tensor();
    replica.target = i < targets.size() ? targets[i] : at::Tensor();
    try {
      run(replica, samples);
    } catch (...) {
      replica.error = std::current_exception();
    }
  });
  std::exception_ptr first;
  for (const auto& replica : replicas_) {
    const std::exception_ptr error = std::exchange(replica->error, nullptr);
    if (first == nullptr) first = error;
  }
  if (first != nullptr) std::rethrow_exception(first);
  const torch::NoGradGuard no_grad;
  double loss = 0;
  for (const auto& replica : replicas_) {
    loss += replica->loss;
    if (replica == replicas_.front()) continue;
    for (std::size_t p = 0; p < replica->parameters.size(); ++p) {
      const at::Tensor& gradient = replica->parameters[p].grad();
      at::Tensor& sum = replicas_.front()->parameters[p].mutable_grad();
      if (!gradient.defined()) continue;
      if (sum.defined()) {
        sum.add_(gradient.to(sum.device()));
      } else {
        sum = gradient.to(replicas_.front()->device);
      }
    }
  }
  return loss;
}

// Trains one replica on its piece of the mini-batch. Runs on the replica's thread.
void DataParallel::run(Replica& replica, double samples) {
  replica.loss = 0;
  const std::vector<at::Tensor>& source = replicas_.front()->parameters;
  if (&source != &replica.parameters) {
    const torch::NoGradGuard no_grad;
    for (std::size_t p = 0; p < source.size(); ++p) replica.parameters[p].copy_(source[p]);
  }
  const at::Tensor input = std::exchange(replica.input, {});
  const at::Tensor target = std::exchange(replica.target, {});
  at::Tensor loss;
  if (input.defined()) {
    const at::Tensor output = replica.model->forward(input.to(replica.device));
    // The loss is weighted by the replica's share of the samples, so that the sum over replicas is
    // the mini-batch's mean.
    const double share = static_cast<double>(input.size(0)) / samples;
    loss = loss_(output, target.to(replica.device)).mul(share);
  }
  for (at::Tensor& parameter : replica.parameters) parameter.mutable_grad().reset();
  if (!loss.defined()) return;
  loss.backward();
  replica.loss = loss.item().toDouble();
}

}  // namespace gpipe::experiments
