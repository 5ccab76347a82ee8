#include "gpipe/testing/programs/compare.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/utils.h>

#include <algorithm>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "gpipe/chunk_sizes.h"
#include "gpipe/gpipe.h"
#include "gpipe/placement.h"
#include "gpipe/testing/autocast_scope.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/plain_model.h"
#include "gpipe/testing/programs/asked.h"
#include "gpipe/testing/programs/side.h"
#include "gpipe/testing/watchdog.h"

namespace gpipe::testing::programs {
namespace {

using at::Tensor;

// The messages with which the pipeline may refuse a program that the plain model runs. The comment
// before each message gives the reason, which is documented.
const char* const kRefusals[] = {
    // An input of a checkpointed cell is changed in place, so the recompute would start from the
    // changed input.
    "changed an input of stage",
    // A tensor that other routes also carry past the cut is changed in place. The message names the
    // layer that changes it, or the stage that gets it afterwards.
    "changed a tensor in place that also went another way",
    "was changed in place by a layer of another stage",
    // An output does not have a row for each row of the micro-batch.
    "cannot be joined to a mini-batch",
    "dimension 0 of an output must be the batch",
    // A layer lets autocast keep casts of weights, which affects the whole process.
    "cache of cast weights is switched on",
    // A tensor belongs to layers of two processes.
    "put both partitions into one process",
};

// Makes the plain model's side, on one device. Moving the model keeps the tensor objects, so layers
// still share the tensors that they shared.
Side make_plain_side(const Program& program, bool copies_skips = false) {
  Side side = make_side(program, copies_skips);
  if (for_gpus()) side.model->to(device());
  return side;
}

// Whether layers of two stages have the same parameter or buffer.
bool shares_between_stages(const Program& program, torch::nn::Sequential& model) {
  std::map<const c10::TensorImpl*, size_t> stage_of;
  const auto layers = model->children();
  size_t layer = 0;
  for (size_t j = 0; j < program.balance.size(); ++j) {
    for (int64_t k = 0; k < program.balance[j]; ++k, ++layer) {
      std::vector<Tensor> tensors = layers[layer]->parameters();
      for (Tensor& buffer : layers[layer]->buffers()) tensors.push_back(std::move(buffer));
      for (const Tensor& tensor : tensors) {
        if (!tensor.defined()) continue;
        if (stage_of.emplace(tensor.unsafeGetTensorImpl(), j).first->second != j) return true;
      }
    }
  }
  return false;
}

bool has_any(const Program& program, std::initializer_list<const char*> words) {
  return std::any_of(program.layers.begin(), program.layers.end(), [&](const Layer& layer) {
    return std::any_of(words.begin(), words.end(), [&](const char* word) {
      return layer.text.find(word) != std::string::npos;
    });
  });
}

// The devices of the stages. If layers of two stages have registered the same tensor, all stages
// are on one device, as such tensors require (docs/guide/13-devices.md). Over processes each
// process has a device of its own.
std::vector<c10::Device> devices_of(const Program& program, const World& world, Side& side) {
  if (world.processes() != nullptr) {
    return std::vector<c10::Device>(program.balance.size(), device(world.rank()));
  }
  const bool on_one = !spreads(program) || shares_between_stages(program, side.model);
  const size_t stages = program.balance.size();
  return on_one ? std::vector<c10::Device>(stages, device())
                : devices(static_cast<int64_t>(stages));
}

// Whether a layer of the program makes LibTorch read a value in its forward, even on GPUs:
// attention asks whether query and key are equal, and batch norms may ask for the number of
// batches.
bool waits_for_device(const Program& program) {
  return has_any(program, {"EncoderLayer(", "Attention(", "momentum(c10::nullopt)"});
}

// The placement for several processes, to which workers are given out in turn. Empty if a process
// would have no worker.
std::optional<Placement> placement_of(const Program& program, const World& world) {
  const auto stages = static_cast<int64_t>(program.balance.size());
  Placement placement = Placement::one_each(stages);
  if (program.one_worker && world.processes() == nullptr && world.size() == 1) {
    return Placement::of(std::vector<int64_t>(program.balance.size(), 0));
  }
  if (program.entry == Entry::kStepTable && program.generator) {
    placement = *program.table().placement();
  } else if (program.entry == Entry::kStepTable) {
    const ChunkSizes sizes = chunk_sizes(program.rows, program.chunks);
    const Schedule table = program.table().schedule(sizes.micro_batches);
    for (const std::vector<Action>& worker : table.table()) {
      if (worker.empty()) return std::nullopt;
    }
    placement = table.placement();
  }
  if (placement.workers() < world.size()) return std::nullopt;
  if (world.size() == 1) return placement;
  std::vector<int64_t> processes;
  for (int64_t worker = 0; worker < placement.workers(); ++worker) {
    processes.push_back((worker + static_cast<int64_t>(program.seed)) % world.size());
  }
  return placement.processes(processes);
}

// Whether the pipeline is given a placement.
bool placed(const Program& program, const World& world) {
  return program.one_worker || world.processes() != nullptr ||
         (program.entry == Entry::kStepTable && program.generator);
}

StepResult run_pipe(const Program& program, GPipe& pipe, const Side& side, const Batch& batch,
                    const LossFn& loss) {
  const FloatSettings settings(program);
  const Tensors inputs = pipe->is_here(0) ? batch.tensors() : Tensors();
  const Tensors targets = pipe->is_here(-1) ? Tensors{batch.target} : Tensors();
  StepResult result;
  switch (program.entry) {
    case Entry::kForward: {
      {
        std::optional<AutocastScope> autocast;
        if (program.autocast) autocast.emplace(device().type(), at::kBFloat16);
        result.outputs = pipe->forward(inputs);
      }
      const Tensor value = loss(result.outputs, {batch.target});
      const Asked asked(program, side, batch);
      if (asked.some()) {
        asked.backward(value);
      } else {
        value.backward();
      }
      result.loss = value.item<double>();
      return result;
    }
    case Entry::kStep:
      return pipe->step(inputs, targets, loss, StepOptions().keep_outputs(true));
    case Entry::kStepGPipe:
      return pipe->step(inputs, targets, loss,
                        StepOptions().keep_outputs(true).schedule(Schedule::gpipe));
    case Entry::kStepTable:
      return pipe->step(
          inputs, targets, loss,
          StepOptions().keep_outputs(true).schedule([&](int64_t, int64_t micro_batches) {
            return program.table().schedule(micro_batches);
          }));
    case Entry::kNoGrad: {
      c10::NoGradGuard no_grad;
      return {0, pipe->forward(inputs)};
    }
    case Entry::kInference:
      break;
  }
  c10::InferenceMode inference;
  return {0, pipe->forward(inputs)};
}

// A copy of the tensor on the CPU, for comparisons, because the pipeline's tensors may be on
// several devices.
Tensor on_cpu(const Tensor& tensor) {
  return !tensor.defined() || tensor.is_cpu() ? tensor : tensor.detach().cpu();
}

// Compares tensors, and keeps the first difference of a call.
class Comparison {
 public:
  // `close`: the documented differences in the last bits are allowed.
  explicit Comparison(bool close) : close_(close) {}

  void compare(const std::string& what, const std::string& name, const Tensor& want,
               const Tensor& have) {
    if (failed()) return;
    const std::string difference = bitwise_difference(on_cpu(want), on_cpu(have));
    if (difference.empty()) return;
    if (close_ && want.defined() && have.defined() && want.is_floating_point() &&
        want.scalar_type() == have.scalar_type() && want.sizes() == have.sizes()) {
      c10::NoGradGuard no_grad;
      if (at::allclose(on_cpu(want), on_cpu(have), 1e-8, 1e-10, /*equal_nan=*/true)) {
        only_close_ = true;
        return;
      }
    }
    category_ = what + (want.defined() && !have.defined()   ? ", missing"
                        : !want.defined() && have.defined() ? ", too much"
                                                            : "");
    what_ = what + " of " + name + ": " + difference;
  }

  bool failed() const { return !what_.empty(); }
  bool only_close() const { return only_close_; }
  const std::string& what() const { return what_; }
  const std::string& category() const { return category_; }

 private:
  bool close_;
  bool only_close_ = false;
  std::string what_;
  std::string category_;
};

Tensor gradient_of(const Tensor& tensor) {
  return tensor.requires_grad() ? tensor.grad() : Tensor();
}

// The strides as a tensor, for comparisons. The stride of a dimension of size 1 is arbitrary, so it
// becomes 0.
Tensor strides_of(const Tensor& tensor) {
  if (!tensor.defined()) return Tensor();
  std::vector<int64_t> strides = tensor.strides().vec();
  for (size_t d = 0; d < strides.size(); ++d) {
    if (tensor.size(static_cast<int64_t>(d)) == 1) strides[d] = 0;
  }
  return at::tensor(strides);
}
// Whether autograd would notice a change of the input. The number of changes is not compared: each
// side counts its micro-batches in its own way.
Tensor changed(const Given& given) {
  return at::full({}, given.leaf._version() != given.version, at::kBool);
}

bool needs_gradient(const Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); }

std::string message_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
}

Outcome thrown(const std::string& message) {
  for (const char* refusal : kRefusals) {
    if (message.find(refusal) != std::string::npos) return {Outcome::kRefused, message, refusal};
  }
  return {Outcome::kThrows, message, "throws " + message.substr(0, 30)};
}

// Whether the tensor belongs to a layer of another process.
bool is_elsewhere(const Tensor& tensor) { return tensor.defined() && tensor.is_meta(); }

// The part of the pipeline that is in this process.
struct Here {
  bool first = true;
  bool last = true;
  bool whole = true;
  // Parameters that another process owns and that layers here use, too.
  std::set<const c10::TensorImpl*> copies;

  bool is_copy(const Tensor& parameter) const {
    return copies.count(parameter.unsafeGetTensorImpl()) != 0;
  }
};

Here here(const GPipe& pipeline) {
  Here result = {pipeline->is_here(0), pipeline->is_here(-1), true, {}};
  for (size_t k = 0; k < pipeline->size(); ++k) {
    result.whole = result.whole && pipeline->is_here(static_cast<int64_t>(k));
  }
  for (const Tensor& parameter : pipeline->parameters()) {
    if (!is_elsewhere(parameter)) result.copies.insert(parameter.unsafeGetTensorImpl());
  }
  for (const Tensor& own : pipeline->local_parameters()) {
    result.copies.erase(own.unsafeGetTensorImpl());
  }
  return result;
}

void compare_call(const Program& program, const StepResult& want, const StepResult& have,
                  const Batch& plain_batch, const Batch& pipe_batch, const Side& plain,
                  const Side& pipe, const Here& here, Comparison& comparison) {
  if (here.last && want.outputs.size() != have.outputs.size()) {
    comparison.compare("number of outputs", "the model",
                       at::zeros(static_cast<int64_t>(want.outputs.size())),
                       at::zeros(static_cast<int64_t>(have.outputs.size())));
    return;
  }
  for (size_t k = 0; k < have.outputs.size(); ++k) {
    comparison.compare("output", std::to_string(k), want.outputs[k], have.outputs[k]);
    if (program.entry == Entry::kForward) {
      comparison.compare("requires_grad of output", std::to_string(k),
                         at::full({}, needs_gradient(want.outputs[k]), at::kBool),
                         at::full({}, needs_gradient(have.outputs[k]), at::kBool));
    }
  }
  comparison.compare("loss", "the mini-batch", at::full({}, want.loss, at::kDouble),
                     at::full({}, have.loss, at::kDouble));
  const auto plain_parameters = plain.model->named_parameters();
  const auto pipe_parameters = pipe.model->named_parameters();
  for (const auto& entry : plain_parameters) {
    const Tensor& parameter = pipe_parameters[entry.key()];
    if (is_elsewhere(parameter)) continue;
    // Only the parameter's owner has the gradient. A copy has none, but it must have the values of
    // the owner, which the call used (docs/guide/24-processes.md).
    const bool is_copy = here.is_copy(parameter);
    const Tensor want_gradient = is_copy ? Tensor() : gradient_of(entry.value());
    comparison.compare(is_copy ? "gradient of a copy" : "gradient", entry.key(), want_gradient,
                       gradient_of(parameter));
    comparison.compare("strides of gradient", entry.key(), strides_of(want_gradient),
                       strides_of(gradient_of(parameter)));
    if (is_copy) comparison.compare("copy", entry.key(), entry.value(), parameter);
  }
  for (size_t k = 0; k < plain_batch.inputs.size() && here.first; ++k) {
    comparison.compare("input gradient", std::to_string(k), gradient_of(plain_batch.inputs[k].leaf),
                       gradient_of(pipe_batch.inputs[k].leaf));
    // Changes of inputs in place are compared with a single stage only. The caller sees changes in
    // the first stage, but later stages change a copy (docs/guide/17-same-training.md).
    if (program.balance.size() > 1) continue;
    comparison.compare("input", std::to_string(k), plain_batch.inputs[k].leaf.detach(),
                       pipe_batch.inputs[k].leaf.detach());
    comparison.compare("change of input", std::to_string(k), changed(plain_batch.inputs[k]),
                       changed(pipe_batch.inputs[k]));
  }
  if (here.last) {
    comparison.compare("target gradient", "0", gradient_of(plain_batch.target),
                       gradient_of(pipe_batch.target));
  }
  if (!program.deferred_batch_norm) {
    const auto plain_buffers = plain.model->named_buffers();
    const auto pipe_buffers = pipe.model->named_buffers();
    for (const auto& entry : plain_buffers) {
      if (is_elsewhere(pipe_buffers[entry.key()])) continue;
      comparison.compare("buffer", entry.key(), entry.value(), pipe_buffers[entry.key()]);
    }
  }
  if (!here.whole) return;  // counts are compared only where all layers are
  // Counts of hooks are compared only if all gradients were asked for, because it is not specified
  // which hooks run for gradients that were not.
  if (program.asked != Ask::kAll) return;
  for (const auto& [number, count] : plain.workshop.counters) {
    const int64_t had = *pipe.workshop.counters.at(number);
    comparison.compare("count of hooks", std::to_string(number), at::full({}, count->load()),
                       at::full({}, had));
  }
}

void compare_parameters(const Side& plain, const Side& pipe, const Here& here,
                        Comparison& comparison) {
  const auto pipe_parameters = pipe.model->named_parameters();
  for (const auto& entry : plain.model->named_parameters()) {
    const Tensor& parameter = pipe_parameters[entry.key()];
    // A copy is left out, because it gets the new values only at the beginning of the next call.
    if (is_elsewhere(parameter) || here.is_copy(parameter)) continue;
    comparison.compare("parameter", entry.key(), entry.value(), parameter);
  }
}

StepResult run_asked_plain(const Program& program, PlainModel& plain, const Side& side,
                           const Batch& batch, const LossFn& loss) {
  const FloatSettings settings(program);
  Asked asked(program, side, batch);
  if (!asked.some()) return run_plain(program, plain, batch, loss);
  asked.begin_plain();
  StepResult result = run_plain(program, plain, batch, loss);
  asked.end_plain();
  return result;
}

// The difference between two runs of the plain model. GPUs have kernels whose sums have no fixed
// order, and LibTorch does not refuse all of them (setDeterministicAlgorithms).
std::string difference_of_plain_runs(const Program& program) {
  Comparison comparison(/*close=*/false);
  const LossFn loss = make_loss(program);
  Side first = make_plain_side(program);
  Side second = make_plain_side(program);
  for (Side* side : {&first, &second}) make_optimizer(program, side->model->parameters(), *side);
  for (int64_t call = 0; call < program.calls && !comparison.failed(); ++call) {
    const Batch first_batch = make_batch(program, call, device(), device());
    const Batch second_batch = make_batch(program, call, device(), device());
    PlainModel first_model(first.model, program.chunks);
    PlainModel second_model(second.model, program.chunks);
    torch::manual_seed(call_seed(program, call));
    const StepResult want = run_asked_plain(program, first_model, first, first_batch, loss);
    torch::manual_seed(call_seed(program, call));
    const StepResult have = run_asked_plain(program, second_model, second, second_batch, loss);
    compare_call(program, want, have, first_batch, second_batch, first, second, Here(), comparison);
    end_call(program, call, first);
    end_call(program, call, second);
    compare_parameters(first, second, Here(), comparison);
  }
  return comparison.what();
}

int64_t replayed(const GPipe& pipeline) {
  int64_t count = 0;
  for (const GraphUse& use : pipeline->graph_use()) count += use.replayed;
  return count;
}

// Keeps the state before a failing step. restore() undoes the effects of that step, because the
// plain model does not run it.
class Before {
 public:
  explicit Before(const Side& side) : side_(side) {
    for (const Tensor& buffer : side.model->buffers()) buffers_.push_back(buffer.clone());
    for (const auto& [number, count] : side.workshop.counters) counts_[number] = *count;
    for (const Tensor& parameter : side.model->parameters()) {
      gradients_.push_back(parameter.grad());
    }
  }

  void restore() {
    const c10::NoGradGuard no_grad;
    std::vector<Tensor> buffers = side_.model->buffers();
    for (size_t k = 0; k < buffers.size(); ++k) buffers[k].copy_(buffers_[k]);
    for (const auto& [number, count] : side_.workshop.counters) *count = counts_[number];
    std::vector<Tensor> parameters = side_.model->parameters();
    for (size_t k = 0; k < parameters.size(); ++k) parameters[k].mutable_grad() = gradients_[k];
  }

 private:
  const Side& side_;
  std::vector<Tensor> buffers_;
  std::vector<Tensor> gradients_;
  std::map<int64_t, int64_t> counts_;
};

constexpr char kPlanned[] = "the loss function of this program throws";

// Runs a step of the pipeline whose loss function throws for one of the micro-batches. Throws if
// the step does not throw that error.
void fail(const Program& program, GPipe& pipe, const Side& side, const Batch& batch) {
  const ChunkSizes sizes = chunk_sizes(program.rows, program.chunks);
  Before before(side);
  const LossFn loss = make_loss(program);
  auto left = static_cast<int64_t>(program.seed / 12) % sizes.micro_batches;
  std::string message = "nothing";
  try {
    run_pipe(program, pipe, side, batch, [&](const Tensors& outputs, const Tensors& targets) {
      if (left-- == 0) throw std::runtime_error(kPlanned);
      return loss(outputs, targets);
    });
  } catch (const std::exception& error) {
    message = message_of(error);
    if (thrown(message).kind == Outcome::kRefused) throw;
  }
  before.restore();
  if (message.find(kPlanned) == std::string::npos) {
    throw std::runtime_error("of a step that should fail came: " + message);
  }
}

// Runs the program in the plain model and in the pipeline, and compares the results.
// `copied_before`: see PlainModel.
Outcome run_both(const Program& program, const World& world,
                 const std::set<int64_t>& copied_before) {
  Comparison comparison(program.in_double);
  Side plain = make_plain_side(program, /*copies_skips=*/!copied_before.empty());
  const LossFn loss = make_loss(program);
  make_optimizer(program, plain.model->parameters(), plain);
  PlainModel plain_model(plain.model, program.chunks, copied_before);

  Side pipe = make_side(program);
  const std::vector<c10::Device> devices = devices_of(program, world, pipe);
  GPipe pipeline(nullptr);
  for (int64_t call = 0; call < program.calls; ++call) {
    Batch plain_batch = make_batch(program, call, device(), device());
    Batch pipe_batch = make_batch(program, call, devices.front(), devices.back());
    StepResult want;
    try {
      torch::manual_seed(call_seed(program, call));
      want = run_asked_plain(program, plain_model, plain, plain_batch, loss);
    } catch (const std::exception& error) {
      if (call > 0) break;
      return {Outcome::kInvalid, message_of(error), ""};
    }
    StepResult have;
    try {
      if (call == 0) {
        pipeline = GPipe(
            pipe.model,
            GPipeOptions(program.balance)
                .devices(devices)
                .chunks(program.chunks)
                .partition_checkpoints(program.checkpoints)
                .deferred_batch_norm(program.deferred_batch_norm)
                .graphs(program.graphs)
                .placement(placed(program, world) ? placement_of(program, world) : std::nullopt)
                .world(world));
        make_optimizer(program, pipeline->local_parameters(), pipe);
        if (program.fails_first && program.is_step() && world.processes() == nullptr) {
          torch::manual_seed(call_seed(program, call));
          fail(program, pipeline, pipe, make_batch(program, call, devices.front(), devices.back()));
        }
      }
      torch::manual_seed(call_seed(program, call));
      have = run_pipe(program, pipeline, pipe, pipe_batch, loss);
    } catch (const std::exception& error) {
      return thrown(message_of(error));
    }
    const Here in_here = here(pipeline);
    compare_call(program, want, have, plain_batch, pipe_batch, plain, pipe, in_here, comparison);
    end_call(program, call, plain);
    end_call(program, call, pipe);
    compare_parameters(plain, pipe, in_here, comparison);
    if (comparison.failed()) {
      return {Outcome::kDifferent, "call " + std::to_string(call) + ", " + comparison.what(),
              comparison.category()};
    }
  }
  Outcome outcome;
  if (comparison.only_close()) outcome.kind = Outcome::kEqualButSums;
  if (pipeline) outcome.replayed = replayed(pipeline);
  return outcome;
}

// The first layers of the stages that are on another device, or in another process, than the stage
// before. The packets to these stages are copied.
std::set<int64_t> cuts_between_devices(const Program& program, const World& world) {
  Side side = make_side(program);
  const std::vector<c10::Device> devices = devices_of(program, world, side);
  const std::optional<Placement> placement =
      world.processes() == nullptr ? std::nullopt : placement_of(program, world);
  std::set<int64_t> cuts;
  int64_t layer = 0;
  for (size_t j = 0; j < devices.size(); ++j) {
    const auto stage = static_cast<int64_t>(j);
    const bool far =
        j > 0 && placement && placement->worker_of(stage) != placement->worker_of(stage - 1);
    if (j > 0 && (far || devices[j] != devices[j - 1])) cuts.insert(layer);
    layer += program.balance[j];
  }
  return cuts;
}

}  // namespace

bool can_run(const Program& program, const World& world) {
  if (world.size() == 1 && world.processes() == nullptr) return true;
  if (program.entry == Entry::kForward) return false;
  return placement_of(program, world).has_value();
}

Outcome run(const Program& program, const World& world) {
  Watchdog watchdog(std::chrono::seconds(120), "this program hangs:\n" + to_text(program));
  std::optional<HostWaitsAllowed> waits;
  if (waits_for_device(program)) waits.emplace();

  const Outcome outcome = run_both(program, world, /*copied_before=*/{});
  if (outcome.kind != Outcome::kDifferent || !for_gpus()) return outcome;
  if (const std::set<int64_t> cuts = cuts_between_devices(program, world); !cuts.empty()) {
    Outcome again = run_both(program, world, cuts);
    if (again.kind == Outcome::kEqual) {
      again.kind = Outcome::kEqualButCopies;
      again.what = outcome.what;
      return again;
    }
  }
  // A difference on a GPU counts only if several runs of the plain model agree there.
  constexpr int kRuns = 3;
  for (int k = 0; k < kRuns && device().is_cuda(); ++k) {
    const std::string what = difference_of_plain_runs(program);
    if (!what.empty()) return {Outcome::kUnrepeatable, what, ""};
  }
  return outcome;
}

}  // namespace gpipe::testing::programs
