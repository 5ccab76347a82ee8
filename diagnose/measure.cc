#include "diagnose/measure.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <set>
#include <utility>

#include "gpipe/runtime/observer.h"
#include "gpipe/timing.h"
#include "machine/cores.h"

namespace gpipe::diagnosis {
namespace {

constexpr size_t kLeastTurns = 3;

using Clock = std::chrono::steady_clock;
double since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void synchronize(const std::vector<c10::Device>& devices) {
  for (const c10::Device& device : devices) {
    if (device.is_cpu() || device.is_meta()) continue;
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  }
}

// Adds up how long the actions of all workers take. The beginning of each worker's action has a
// place of its own.
class BusyTime {
 public:
  explicit BusyTime(size_t workers) : begins_(workers), nanoseconds_(0) {}

  void operator()(const Event& event) {
    Clock::time_point& begin = begins_.at(static_cast<size_t>(event.worker));
    if (event.edge == Event::Edge::kBegin) {
      begin = event.time;
      return;
    }
    nanoseconds_ +=
        std::chrono::duration_cast<std::chrono::nanoseconds>(event.time - begin).count();
  }
  double seconds() const { return 1e-9 * static_cast<double>(nanoseconds_.load()); }

 private:
  std::vector<Clock::time_point> begins_;
  std::atomic<int64_t> nanoseconds_;
};

// Tensors with the same values, whose gradients do not reach the caller's tensors.
Tensors own(const Tensors& tensors) {
  Tensors result;
  for (const at::Tensor& tensor : tensors) {
    result.push_back(tensor.defined() ? tensor.detach() : tensor);
    if (tensor.defined() && tensor.requires_grad()) result.back().set_requires_grad(true);
  }
  return result;
}

}  // namespace

StepTimer::StepTimer(GPipe pipe, const Tensors& inputs, const Tensors& targets, LossFn loss_fn,
                     StepOptions options)
    : pipe_(std::move(pipe)),
      inputs_(own(inputs)),
      targets_(own(targets)),
      loss_fn_(std::move(loss_fn)),
      options_(std::move(options)) {}

void StepTimer::run(bool counts) {
  BusyTime busy(pipe_->devices().size());
  options_.on_event([&busy](const Event& event) { busy(event); });
  const Tensors inputs = own(inputs_);  // new leaves, which have no gradients yet
  const Tensors targets = own(targets_);
  const Clock::time_point begin = Clock::now();
  pipe_->step(inputs, targets, loss_fn_, options_);
  synchronize(pipe_->devices());
  const double step = since(begin);
  options_.on_event(nullptr);
  if (!counts) return;
  steps_.push_back(step);
  busy_.push_back(busy.seconds());
}

StepTimes StepTimer::times() const { return {median(steps_), median(busy_)}; }

void run_in_turns(const std::vector<StepTimer*>& timers, double seconds,
                  const std::function<void()>& check) {
  const Clock::time_point begin = Clock::now();
  const double all = seconds * static_cast<double>(timers.size());
  for (size_t turn = 0; turn < kLeastTurns || since(begin) < all; ++turn) {
    for (StepTimer* timer : timers) {
      for (const bool counts : {false, true, true}) {
        if (check) check();
        timer->run(counts);
      }
    }
  }
}

LossTimes measure_loss(const Tensors& outputs, const Tensors& targets, const LossFn& loss_fn) {
  const c10::AutoGradMode grad_mode(true);
  std::vector<c10::Device> devices;
  std::vector<double> forwards, backwards;
  for (size_t k = 0; k <= kLeastTurns; ++k) {
    Tensors leaves;
    Tensors wanted;
    for (const at::Tensor& output : outputs) {
      leaves.push_back(output.defined() ? output.detach() : output);
      if (!output.defined()) continue;
      devices.push_back(output.device());
      if (!at::isFloatingType(output.scalar_type()) && !at::isComplexType(output.scalar_type())) {
        continue;
      }
      leaves.back().set_requires_grad(true);
      wanted.push_back(leaves.back());
    }
    synchronize(devices);
    const Clock::time_point begin = Clock::now();
    const at::Tensor loss = loss_fn(leaves, own(targets));
    synchronize(devices);
    forwards.push_back(since(begin));
    if (!loss.defined() || !loss.requires_grad() || wanted.empty()) return {};
    const Clock::time_point middle = Clock::now();
    torch::autograd::grad({loss}, wanted, {}, /*retain_graph=*/std::nullopt, /*create_graph=*/false,
                          /*allow_unused=*/true);
    synchronize(devices);
    backwards.push_back(since(middle));
  }
  // The first run is left out, because it is slower.
  forwards.erase(forwards.begin());
  backwards.erase(backwards.begin());
  return {median(std::move(forwards)), median(std::move(backwards))};
}

Link measure_link(const std::vector<c10::Device>& devices) {
  const auto other = std::find_if(devices.begin(), devices.end(),
                                  [&](c10::Device d) { return d != devices.front(); });
  if (other == devices.end()) return {};
  const std::vector<c10::Device> both = {devices.front(), *other};
  const auto seconds_of = [&](int64_t bytes) {
    const at::Tensor source =
        at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(both[0]));
    std::vector<double> times;
    for (size_t k = 0; k <= kLeastTurns; ++k) {
      synchronize(both);
      const Clock::time_point begin = Clock::now();
      const at::Tensor destination = source.to(both[1]);
      synchronize(both);
      times.push_back(since(begin));
    }
    times.erase(times.begin());
    return median(std::move(times));
  };
  constexpr int64_t kMany = int64_t{1} << 24;
  Link link;
  link.latency = seconds_of(1);
  const double copy = seconds_of(kMany) - link.latency;
  if (copy > 0) link.bandwidth = static_cast<double>(kMany) / copy;
  return link;
}

int64_t partitions_at_once(const std::vector<c10::Device>& devices, int64_t cpu_threads,
                           int64_t cpu_cores) {
  if (cpu_cores <= 0) cpu_cores = machine::usable_cores();
  std::set<std::pair<c10::DeviceType, c10::DeviceIndex>> accelerators;
  int64_t on_cpu = 0;
  for (const c10::Device& device : devices) {
    if (device.is_cpu()) {
      ++on_cpu;
    } else {
      accelerators.insert({device.type(), device.index()});
    }
  }
  const int64_t room = std::max<int64_t>(1, cpu_cores / std::max<int64_t>(1, cpu_threads));
  return static_cast<int64_t>(accelerators.size()) + std::min(on_cpu, room);
}

}  // namespace gpipe::diagnosis
