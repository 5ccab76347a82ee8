// NDEBUG is set as in operator_census.cc, because a RecordFunction must have LibTorch's layout.
#ifndef NDEBUG
#define NDEBUG
#endif

#include "balance/memory/counted_step.h"

#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "balance/memory/memory_recorder.h"
#include "balance/memory/operator_census.h"
#include "balance/memory/optimizer_flag.h"
#include "interception/allocations.h"

namespace gpipe::balance {
namespace {

namespace nn = torch::nn;

std::set<std::string>& all_counted() {
  static auto* const names = new std::set<std::string>;
  return *names;
}

// The CPU's convolutions copy their arguments into layouts of their own and free the copies before
// they return. These copies are not the model's tensors, and a plan does not see them (nor cuDNN's
// workspaces). So blocks that live within one call are left out here.
class WithoutScratch final : public internal::AllocationObserver {
 public:
  explicit WithoutScratch(internal::AllocationObserver& observer)
      : observer_(observer),
        handle_(at::addGlobalCallback(
            at::RecordFunctionCallback(&WithoutScratch::enter, &WithoutScratch::leave)
                .scopes({at::RecordScope::FUNCTION}))) {
    current_ = this;
  }
  ~WithoutScratch() override { at::removeCallback(handle_); }

  void on_allocate(uint64_t id, c10::Device device, int64_t bytes) override {
    if (depth_ == 0) return observer_.on_allocate(id, device, bytes);
    held_.push_back({id, device, bytes});
  }
  void on_free(uint64_t id) override {
    const auto held =
        std::find_if(held_.begin(), held_.end(), [&](const Held& h) { return h.id == id; });
    if (held == held_.end()) return observer_.on_free(id);
    held_.erase(held);
  }

 private:
  struct Held {
    uint64_t id;
    c10::Device device;
    int64_t bytes;
  };

  static bool has_scratch(const at::RecordFunction& call) {
    return std::string(call.name()).find("convolution") != std::string::npos;
  }
  static std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& call) {
    if (has_scratch(call)) ++depth_;
    return nullptr;
  }
  static void leave(const at::RecordFunction& call, at::ObserverContext*) {
    if (!has_scratch(call) || --depth_ > 0) return;
    for (const Held& held : held_)
      current_->observer_.on_allocate(held.id, held.device, held.bytes);
    held_.clear();
  }

  static WithoutScratch* current_;
  static thread_local int depth_;
  static thread_local std::vector<Held> held_;
  internal::AllocationObserver& observer_;
  at::CallbackHandle handle_;
};
WithoutScratch* WithoutScratch::current_ = nullptr;
thread_local int WithoutScratch::depth_ = 0;
thread_local std::vector<WithoutScratch::Held> WithoutScratch::held_;

}  // namespace

at::Tensor squares(const Tensors& outputs, const Tensors& /*targets*/) {
  return outputs.at(0).square().mean();
}

const std::set<std::string>& counted_operators() { return all_counted(); }

MemoryTrace counted_on_cpu(const Case& c, const MemoryPlanOptions& options, bool all) {
  const nn::Sequential model = c.make();
  const auto stages = static_cast<int64_t>(c.balance.size());
  GPipe pipe(model, GPipeOptions(c.balance)
                        .devices(std::vector<c10::Device>(stages, c10::Device(c10::kCPU)))
                        .chunks(options.chunks())
                        .checkpoint(options.checkpoint())
                        .deferred_batch_norm(options.deferred_batch_norm())
                        .cpu_threads_per_stage(1));
  const Schedule schedule = options.schedule()(stages, options.chunks());
  MemoryRecorder recorder(c10::kCPU, schedule, std::vector<int32_t>(stages, 0));
  const at::Tensor input =
      c.words > 0 ? at::randint(c.words, c.input, at::kLong) : at::randn(c.input, c.type);
  for (const at::Tensor& p : model->parameters())
    recorder.add(static_cast<int64_t>(p.nbytes()), 0, MemoryUse::kParameters);
  for (const at::Tensor& b : model->buffers())
    recorder.add(static_cast<int64_t>(b.nbytes()), 0, MemoryUse::kBuffers);
  recorder.add(static_cast<int64_t>(input.nbytes()), 0, MemoryUse::kData);
  std::vector<at::Tensor> trained;
  for (const at::Tensor& p : model->parameters()) {
    if (p.requires_grad()) trained.push_back(p);
  }
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  {
    WithoutScratch without_scratch(recorder);
    const internal::AllocationScope scope(all ? static_cast<internal::AllocationObserver&>(recorder)
                                              : without_scratch);
    optimizer = options.optimizer()(trained);
    for (int k = 0; k < 2; ++k) {
      recorder.begin_step();
      pipe->step({input}, {}, &squares,
                 StepOptions().schedule(schedule).on_event(
                     [&](const Event& event) { recorder.on_event(event); }));
      recorder.begin_optimizer();
      optimizer->step();
      if (k == 0) optimizer->zero_grad();
    }
  }
  // The operators are recorded in a step of their own, because a census holds the inputs of
  // operators while they run and so would change the counted memory.
  const OperatorCensus census;
  pipe->step({input}, {}, &squares, StepOptions().schedule(schedule));
  optimizer->step();
  all_counted().merge(census.calls());
  return recorder.finish();
}

RealToPlanned compared(const std::function<nn::Sequential()>& make, std::vector<int64_t> input,
                       c10::ScalarType type, const ScheduleGenerator& schedule,
                       const std::string& optimizer) {
  // The plan counts the memory of one thread per operator.
  at::set_num_threads(1);
  const Case c{"",          make, std::move(input), {static_cast<int64_t>(make()->size())},
               /*words=*/0, type};
  const auto options = MemoryPlanOptions(c.balance)
                           .chunks(2)
                           .checkpoint(Checkpoint::kNever)
                           .schedule(schedule)
                           .device_type(c10::kCPU)
                           .optimizer(parse_optimizer(optimizer));
  const MemoryPlan plan =
      memory_plan(on_meta(c.make), {at::empty(c.input, on_meta(type))}, {}, &squares, options);
  const auto counted = static_cast<double>(peaks(counted_on_cpu(c, options, true))[0].bytes);
  RealToPlanned result;
  result.ratio = counted / static_cast<double>(plan.devices[0].peak.bytes);
  for (const Uncertainty& each : plan.uncertain) {
    result.measured = result.measured && each.range.has_value();
    if (!each.range) continue;
    result.said.low = std::min(result.said.low, each.range->low);
    result.said.high = std::max(result.said.high, each.range->high);
  }
  return result;
}

void expect_within_what_it_says(const RealToPlanned& result, const std::string& with) {
  EXPECT_TRUE(result.measured) << with;
  EXPECT_GE(result.ratio, result.said.low - 0.01) << with;
  EXPECT_LE(result.ratio, result.said.high + 0.01) << with;
}

}  // namespace gpipe::balance
