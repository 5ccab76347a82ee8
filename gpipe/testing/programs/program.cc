#include "gpipe/testing/programs/program.h"

#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <c10/core/GradMode.h>
#include <torch/utils.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "gpipe/internal/tensors/value.h"
#include "gpipe/testing/programs/catalog.h"
#include "skip/tracker.h"

namespace gpipe::testing::programs {
namespace {

using at::Tensor;

constexpr int64_t kTrialRows = 3;
constexpr int64_t kMostNumbers = 200;  // the most numbers in a row of the main value

bool allowed(const std::string& text, const std::vector<std::string>& without) {
  return std::none_of(without.begin(), without.end(), [&](const std::string& word) {
    return text.find(word) != std::string::npos;
  });
}

// Whether user code in the layer writes into the gradient of a value.
bool writes_gradients(const Layer& layer) {
  return !allowed(layer.text,
                  {"gradient_scaled_in_place", "ScaleGradientInPlace", "AddAndScaleInPlace"});
}

// Whether, for one row, a parameter of the layer may get a view of its result's gradient. LibTorch
// may use that memory for .grad, and user code may write into it later
// (docs/guide/17-same-training.md).
bool gives_views_of_gradients(const Layer& layer) {
  return !allowed(layer.text, {"{a, b}", "(a + b)", "(a - b)", "a.unsqueeze(0)", "b.unsqueeze(0)",
                               ").unsqueeze(0)"});
}

// Whether user code in the layer writes into a gradient that its input also gets. Such a layer is
// not combined with a skip: with a second route, the tensors that share the gradient's memory
// depend on which of its terms have already been added (docs/guide/17-same-training.md).
bool writes_gradient_of_input(const Layer& layer) {
  return !allowed(layer.text, {"x + with_gradient_scaled_in_place", "AddAndScaleInPlace"});
}
bool stashes(const Layer& layer) { return !allowed(layer.text, {"stash("}); }

Tensors clones(const Tensors& tensors) {
  Tensors result;
  for (const Tensor& tensor : tensors) result.push_back(tensor.defined() ? tensor.clone() : tensor);
  return result;
}

struct Trial {
  internal::Value value;
  bool has_parameters = false;
  bool trainable = false;
};

// Runs the layer on the trial model's values. Returns nullopt if the layer does not fit.
std::optional<Trial> tried(const Layer& layer, State& state) {
  try {
    torch::nn::AnyModule module = layer.make(state.workshop);
    internal::Value value = internal::from_any(
        module.any_forward(internal::to_any({state.kind, clones(state.values)})));
    const Tensor& main = value.tensors.at(0);
    const bool fits = main.defined() && main.scalar_type() == at::kFloat && main.dim() >= 2 &&
                      main.dim() <= 4 && main.size(0) == kTrialRows && main.numel() > 0 &&
                      main.numel() <= kTrialRows * kMostNumbers;
    if (fits) {
      Trial trial;
      trial.value = std::move(value);
      for (const Tensor& parameter : module.ptr()->parameters()) {
        trial.has_parameters = true;
        trial.trainable |= parameter.requires_grad();
      }
      return trial;
    }
  } catch (const std::exception&) {  // the layer does not fit
  }
  return std::nullopt;
}

void append(Program& program, State& state, Layer layer, Trial trial) {
  layer.in = state.kind;
  layer.out = trial.value.kind;
  state.kind = trial.value.kind;
  state.values = std::move(trial.value.tensors);
  state.trainable |= trial.trainable;
  state.fresh = layer.fresh;
  program.layers.push_back(std::move(layer));
}

using Drawer = std::optional<Draw> (*)(const State&, Random&);

bool append_one(Program& program, State& state, Random& random, Drawer drawer,
                const std::vector<std::string>& without) {
  std::optional<Draw> draw = drawer(state, random);
  if (!draw || !allowed(draw->layer.text, without)) return false;
  for (const Layer& layer : program.layers) {
    if (writes_gradients(layer) && gives_views_of_gradients(draw->layer)) return false;
    if (writes_gradients(draw->layer) && gives_views_of_gradients(layer)) return false;
    if (writes_gradient_of_input(layer) && stashes(draw->layer)) return false;
    if (writes_gradient_of_input(draw->layer) && stashes(layer)) return false;
  }
  std::optional<Trial> trial = tried(draw->layer, state);
  if (!trial) return false;
  const bool trainable = state.trainable;
  const bool has_parameters = trial->has_parameters;
  append(program, state, std::move(draw->layer), std::move(*trial));
  if (draw->taken) draw->taken(state);
  if (!has_parameters) return true;
  Layer& last = program.layers.back();
  if (once_in(random, 8) && allowed("frozen", without)) {
    last = with_frozen_parameters(last, once_in(random, 2));
    state.trainable = trainable;
  } else if (once_in(random, 8) && allowed("hook", without)) {
    const bool scale = once_in(random, 2);
    // Only hooks of modules' parameters may write in place, because the gradients of these
    // parameters have memory of their own.
    const bool in_place =
        scale && drawer == draw_module && once_in(random, 2) && allowed("halve in place", without);
    last = with_parameter_hooks(last, state.next_number++, scale, in_place);
  }
  return true;
}

std::optional<Draw> draw_in_place(const State& state, Random& random) {
  for (int tries = 0; tries < 30; ++tries) {
    std::optional<Draw> draw = (once_in(random, 2) ? draw_module : draw_function)(state, random);
    if (draw && draw->layer.in_place) return draw;
  }
  return std::nullopt;
}

Drawer pick_drawer(Random& random) {
  const int64_t number = pick(random, 0, 99);
  if (number < 42) return draw_module;
  if (number < 72) return draw_function;
  if (number < 85) return draw_values;
  if (number < 95) return draw_skip;
  return draw_shared_module;
}

void draw_inputs(Program& program, State& state, Random& random) {
  auto draw_float = [&] {
    Input input;
    const int64_t dimensions = pick(random, 1, 3);
    input.shape.push_back(2 * pick(random, 1, 3));
    for (int64_t k = 1; k < dimensions; ++k) input.shape.push_back(pick(random, 3, 6));
    input.requires_grad = once_in(random, 2);
    input.layout =
        once_in(random, 2) ? Layout::kContiguous : static_cast<Layout>(pick(random, 0, 4));
    if (input.layout == Layout::kExpanded) input.requires_grad = false;
    return input;
  };
  const bool only_integers = once_in(random, 12);
  if (!only_integers) program.inputs.push_back(draw_float());
  if (only_integers || once_in(random, 8)) {
    Input input;
    input.shape = {4};
    input.integer = true;
    program.inputs.push_back(input);
  }
  if (!only_integers && once_in(random, 8)) program.inputs.push_back(draw_float());
  state.kind = pick_kind(random, program.inputs.size());
  for (const Input& input : program.inputs) {
    std::vector<int64_t> shape = input.shape;
    shape.insert(shape.begin(), kTrialRows);
    state.values.push_back(input.integer ? at::randint(0, 7, shape, at::kLong) : at::randn(shape));
  }
  // The first layer may change the inputs in place only if autograd allows it. Autograd refuses
  // such changes of a leaf that requires a gradient, and of rows that share memory.
  state.fresh = std::none_of(program.inputs.begin(), program.inputs.end(), [](const Input& input) {
    return input.requires_grad || input.layout == Layout::kExpanded;
  });
  if (only_integers) {
    Draw draw = draw_embedding(random);
    append(program, state, draw.layer, *tried(draw.layer, state));
  }
}

void draw_layers(Program& program, State& state, Random& random,
                 const std::vector<std::string>& without) {
  const size_t length = static_cast<size_t>(pick(random, 2, 9));
  for (int tries = 0; program.layers.size() < length && tries < 300; ++tries) {
    append_one(program, state, random, pick_drawer(random), without);
    // After a layer whose values share memory, layers that work in place are drawn until one fits,
    // because chance would rarely bring the two together.
    if (!program.layers.empty() && program.layers.back().aliases && state.fresh &&
        once_in(random, 4)) {
      for (int k = 0; k < 30 && !program.layers.back().in_place; ++k) {
        append_one(program, state, random, draw_in_place, without);
      }
    }
  }
  // Later additions to this function draw from a generator of their own, so that the older draws do
  // not change.
  Random apart(program.seed + 1);
  while (once_in(apart, 6)) append_one(program, state, apart, draw_shared_gradients, without);
  // The program must have something to train.
  for (int tries = 0; !state.trainable && tries < 3000; ++tries) {
    append_one(program, state, random, draw_linear, without);
  }
  // The program must pop every skip.
  for (int tries = 0; !state.skips.empty() && tries < 300; ++tries) {
    if (state.kind != ValueKind::kTensor && state.kind != ValueKind::kTensors) {
      append_one(program, state, random, draw_use, without);
    } else {
      append_one(program, state, random, draw_pop, without);
    }
  }
  const bool several = once_in(random, 4);
  for (int tries = 0; !several && state.values.size() > 1 && tries < 300; ++tries) {
    append_one(program, state, random, draw_use, without);
  }
}

void draw_run(Program& program, Random& random, const std::vector<std::string>& without) {
  auto any = [&](auto flag) {
    return std::any_of(program.layers.begin(), program.layers.end(), flag);
  };
  const bool two_rows = any([](const Layer& layer) { return layer.needs_two_rows; });
  const bool batch_norm = any([](const Layer& layer) { return layer.batch_norm; });
  // A view of a tensor that is changed in place later counts as one more use of the tensor.
  // Autograd adds that use to the graph only when it is asked for, so the order of sums may differ.
  program.in_double = any([](const Layer& layer) { return layer.spreads; }) ||
                      (any([](const Layer& layer) { return layer.aliases; }) &&
                       any([](const Layer& layer) { return layer.in_place; }));

  const int64_t layers = static_cast<int64_t>(program.layers.size());
  const int64_t stages =
      once_in(random, 5) ? layers : std::min<int64_t>(pick(random, 1, 4), layers);
  program.balance.assign(stages, 1);
  for (int64_t k = stages; k < layers; ++k) ++program.balance[pick(random, 0, stages - 1)];
  program.checkpoints.assign(stages, static_cast<Checkpoint>(pick(random, 0, 2)));
  if (once_in(random, 3)) {
    for (Checkpoint& mode : program.checkpoints) mode = static_cast<Checkpoint>(pick(random, 0, 2));
  }

  const int64_t entry = pick(random, 0, 19);
  program.entry = entry < 8    ? Entry::kForward
                  : entry < 11 ? Entry::kStep
                  : entry < 13 ? Entry::kStepGPipe
                  : entry < 17 ? Entry::kStepTable
                  : entry < 19 ? Entry::kNoGrad
                               : Entry::kInference;
  // Gradients that wait (of split backwards) must not show what such layers write. kStepTable tests
  // this, so it is drawn more often for such layers.
  if (any(writes_gradients) && once_in(random, 2)) program.entry = Entry::kStepTable;
  // `generator` is computed from the seed and not drawn, so that the other draws do not change.
  program.generator = program.seed / 2 % 2 == 0 && allowed("generator", without);
  program.fails_first = program.seed / 4 % 3 == 0 && allowed("failure", without);
  program.train = !once_in(random, program.forward_only() ? 2 : 10);

  program.chunks = pick(random, 1, 5);
  switch (pick(random, 0, 3)) {
    case 0:
      program.rows = program.chunks;  // one row each
      break;
    case 1:
      program.rows = pick(random, 1, program.chunks);  // fewer rows than chunks
      break;
    case 2:
      // The micro-batches may be uneven.
      program.rows = pick(random, program.chunks, 4 * program.chunks);
      break;
    default:
      program.rows = program.chunks * pick(random, 2, 3);
  }
  if (two_rows) program.rows = program.chunks * pick(random, 2, 3);
  if (program.forward_only() && once_in(random, 15)) program.rows = 0;

  program.deferred_batch_norm = batch_norm && once_in(random, 4);
  program.autocast = program.entry == Entry::kForward && !program.in_double && once_in(random, 6) &&
                     allowed("autocast", without);
  program.target_requires_grad = once_in(random, 10) && allowed("target", without);
  program.loss = static_cast<Loss>(pick(random, 0, 3));
  if (program.loss == Loss::kCrossEntropy && program.target_requires_grad) {
    program.loss = Loss::kMse;
  }
  if (program.forward_only()) {
    program.calls = pick(random, 1, 2);
  } else {
    program.calls = pick(random, 1, 4);
    program.optimizer = static_cast<Optimizer>(pick(random, 0, 3));
    program.zero_grad = static_cast<ZeroGrad>(pick(random, 0, 2));
    // These programs have no Adam, because it divides by the gradient's size and would turn a
    // difference in the last bit into a large one.
    if (program.in_double && program.optimizer != Optimizer::kNone) {
      program.optimizer = Optimizer::kMomentum;
    }
  }
}

// Draws modes of the calling thread and of layers, and which gradients are asked for.
void draw_modes(Program& program, const std::vector<std::string>& without) {
  Random random(program.seed + 2);
  if (program.entry == Entry::kForward && once_in(random, 2) && allowed("asked", without)) {
    program.asked = once_in(random, 2) ? Ask::kGrad : Ask::kBackward;
    program.target_requires_grad = false;
  }
  const bool may_be_on_one =
      program.entry == Entry::kForward || program.entry == Entry::kStep || program.forward_only();
  program.one_worker = may_be_on_one && once_in(random, 3) && allowed("one worker", without);
  if (once_in(random, 4) && allowed("rounding", without)) {
    program.rounding = once_in(random, 2) ? Rounding::kUpward : Rounding::kTowardZero;
  }
  program.flush_denormals = once_in(random, 6) && allowed("denormals", without);
  for (Layer& layer : program.layers) {
    // Layers that stash or pop are left out, because a pipeline would not see what an inner layer
    // stashes and pops.
    if (!once_in(random, 8) || !allowed(layer.text, {"stash(", "pop("})) continue;
    const OwnState state = once_in(random, 2)   ? OwnState::kRoundsDownward
                           : once_in(random, 8) ? OwnState::kAutocastWithCache
                                                : OwnState::kAutocast;
    const Layer set = with_own_state(layer, state);
    if (allowed(set.text, without)) layer = set;
  }
}

const char* name(Layout layout) {
  const char* const names[] = {"contiguous", "at an offset", "every second row", "transposed",
                               "one row expanded"};
  return names[static_cast<int>(layout)];
}

}  // namespace

Program random_program(uint64_t seed, const std::vector<std::string>& without) {
  Random random(seed);
  c10::NoGradGuard no_grad;
  while (true) {
    Program program;
    program.seed = seed;
    torch::manual_seed(seed);
    skip::Scope skips;
    State state;
    draw_inputs(program, state, random);
    draw_layers(program, state, random, without);
    // If a layer works in place, no input has rows that share memory: a change of such rows would
    // reach the outputs of earlier micro-batches.
    const bool in_place = std::any_of(program.layers.begin(), program.layers.end(),
                                      [](const Layer& layer) { return layer.in_place; });
    for (Input& input : program.inputs) {
      if (in_place && input.layout == Layout::kExpanded) input.layout = Layout::kContiguous;
    }
    draw_run(program, random, without);
    draw_modes(program, without);
    if (state.skips.empty()) return program;  // otherwise a skip could not be popped: draws anew
  }
}

std::string to_text(const Program& program) {
  const std::string entries[] = {"forward, loss, backward",
                                 "step, 1F1B",
                                 "step, GPipe",
                                 "step, " + program.table().name(),
                                 "forward without gradients",
                                 "forward in inference mode"};
  const char* const losses[] = {"mse_loss(o[0], t)", "(o[0] * t).mean()", "smooth_l1_loss(o[0], t)",
                                "cross_entropy(o[0], t)"};
  const char* const optimizers[] = {"none", "SGD, momentum", "Adam", "AdamW"};
  const char* const zero_grads[] = {"to none", "to zero", "to none every second call"};
  std::string text = "seed " + std::to_string(program.seed) + "\n";
  size_t index = 0;
  for (size_t j = 0; j < program.balance.size(); ++j) {
    text += "  // stage " + std::to_string(j) + ", Checkpoint " + to_text(program.checkpoints[j]) +
            "\n";
    for (int64_t k = 0; k < program.balance[j]; ++k) {
      text += "  model->push_back(" + program.layers[index++].text + ");\n";
    }
  }
  for (const Input& input : program.inputs) {
    text += std::string("  input: ") + (input.integer ? "integers" : "floats") + " (" +
            std::to_string(program.rows) + " rows) x " + shape_text(input.shape) + ", " +
            name(input.layout) + (input.requires_grad ? ", requires_grad" : "") + "\n";
  }
  text += "  GPipeOptions(" + shape_text(program.balance) + ").chunks(" +
          std::to_string(program.chunks) + ")" +
          (program.deferred_batch_norm ? ".deferred_batch_norm(true)" : "") +
          (program.graphs ? ".graphs(true)" : "") + "; " + (program.train ? "train" : "eval") +
          "\n";
  text += "  " + entries[static_cast<int>(program.entry)] +
          (program.fails_first && program.is_step() ? ", after one that fails" : "") + "; loss " +
          losses[static_cast<int>(program.loss)] + " + 0.1 * other outputs' sines; " +
          std::to_string(program.calls) + " calls; optimizer " +
          optimizers[static_cast<int>(program.optimizer)] + "; zero_grad " +
          zero_grads[static_cast<int>(program.zero_grad)] +
          (program.autocast ? "; autocast to bfloat16 around forward" : "") +
          (program.target_requires_grad ? "; target requires_grad" : "") +
          (program.asked == Ask::kGrad       ? "; asked by autograd::grad"
           : program.asked == Ask::kBackward ? "; asked by backward(inputs)"
                                             : "") +
          (program.one_worker ? "; one worker" : "") +
          (program.rounding == Rounding::kUpward       ? "; the caller rounds upward"
           : program.rounding == Rounding::kTowardZero ? "; the caller rounds toward zero"
                                                       : "") +
          (program.flush_denormals ? "; the caller flushes denormals" : "") +
          (program.in_double ? "; in double" : "") + "\n";
  return text;
}

}  // namespace gpipe::testing::programs
