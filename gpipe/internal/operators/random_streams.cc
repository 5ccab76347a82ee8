#include "gpipe/internal/operators/random_streams.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/SequenceNumber.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>

#include "gpipe/checkpoint_phase.h"
#include "gpipe/internal/operators/carried_generators.h"
#include "gpipe/internal/threads/default_generators.h"
#include "interception/interception.h"

namespace gpipe::internal {
namespace {

// The layer number while leaves accumulate: leaves may belong to several layers, or to none.
constexpr int64_t kLeaves = -2;

thread_local RandomStreams* current_streams = nullptr;

// SplitMix64's finalizer (Steele, Lea, Flood 2014): neighboring inputs give unrelated seeds.
uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

uint64_t seed_of(uint64_t step_seed, int64_t micro_batch, int64_t layer) {
  return mix(mix(step_seed ^ mix(static_cast<uint64_t>(micro_batch))) ^
             (static_cast<uint64_t>(layer) + 0x5851F42D4C957F2Dull));
}

uint64_t seed_of_number(uint64_t seed_of_place, int64_t number) {
  return mix(seed_of_place ^ mix(static_cast<uint64_t>(number)));
}

// The device on which the operator will draw: that of its first tensor, or else its `device`
// argument.
c10::Device device_of(const std::vector<c10::Argument>& schema, c10::ArrayRef<c10::IValue> values) {
  for (const c10::IValue& value : values) {
    if (value.isTensor() && value.toTensor().defined()) return value.toTensor().device();
    if (value.isTensorList() && !value.toTensorList().empty()) {
      return value.toTensorList().get(0).device();
    }
  }
  for (size_t i = 0; i < schema.size(); ++i) {
    if (schema[i].name() == "device" && values[i].isDevice()) return values[i].toDevice();
  }
  return c10::Device(c10::kCPU);
}

bool has_generators(c10::Device device) {
  // A device from outside LibTorch draws from the generator that its hooks provide.
  if (device.is_privateuseone()) return at::isPrivateUse1HooksRegistered();
  return device.is_cpu() || device.is_cuda() || device.is_mps() || device.is_xpu();
}

// The mutex that is held while an operator draws from a generator that a layer gives.
std::mutex& given_generators_mutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

// Replaces every operator that has an argument `generator`. The replacement gives a generator to an
// operator that got none. In a recompute it replaces the generator that the layer gave.
void with_generator(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                    torch::jit::Stack* stack) {
  InterceptionPause pause;
  std::unique_lock<std::mutex> of_given(given_generators_mutex(), std::defer_lock);
  if (RandomStreams* streams = RandomStreams::current()) {
    const std::vector<c10::Argument>& schema = op.schema().arguments();
    const size_t base = stack->size() - schema.size();
    for (size_t i = 0; i < schema.size(); ++i) {
      c10::IValue& value = (*stack)[base + i];
      if (schema[i].name() != "generator") continue;
      if (!value.isNone()) {
        // The mutex is locked until the operator has drawn, because a stage that uses the same
        // generator must not draw in between.
        if (!of_given.owns_lock()) of_given.lock();
        value = c10::IValue(streams->given(value.toGenerator()));
        continue;
      }
      const c10::Device device =
          device_of(schema, c10::ArrayRef<c10::IValue>(stack->data() + base, schema.size()));
      if (has_generators(device)) value = c10::IValue(streams->generator(device));
    }
  }
  op.redispatchBoxed(after_interception(keys), stack);
}

// The fused dropout of GPUs takes no generator, so the unfused form is computed here.
std::tuple<at::Tensor, at::Tensor> native_dropout(c10::DispatchKeySet keys, const at::Tensor& input,
                                                  double p, std::optional<bool> train) {
  InterceptionPause pause;
  RandomStreams* streams = RandomStreams::current();
  if (streams == nullptr || !train.value_or(true) || p <= 0 || p >= 1 ||
      !has_generators(input.device())) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("aten::native_dropout", "")
                               .typed<std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, double,
                                                                         std::optional<bool>)>();
    return op.redispatch(after_interception(keys), input, p, train);
  }
  at::Tensor mask = at::empty_like(input, input.options().dtype(at::kBool).requires_grad(false));
  mask.bernoulli_(1 - p, streams->generator(input.device()));
  return {input.mul(mask).mul(1 / (1 - p)), mask};
}

c10::ArrayRef<c10::IValue> arguments_of(const c10::OperatorHandle& op,
                                        const torch::jit::Stack& stack) {
  const size_t count = op.schema().arguments().size();
  return c10::ArrayRef<c10::IValue>(stack.data() + (stack.size() - count), count);
}

const c10::IValue* find_argument(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                                 const char* name) {
  const std::optional<int> index = op.schema().argumentIndexWithName(name);
  return index ? &arguments_of(op, stack)[*index] : nullptr;
}

// While the scope lives, the default generator of a device is in the state of another generator.
// Only one scope lives at a time. Code outside of pipelines that draws from the default generator
// meanwhile gets numbers of that other generator.
class DefaultGeneratorScope {
 public:
  explicit DefaultGeneratorScope(const at::Generator& state)
      : lock_(default_generators_mutex()),
        generator_(at::globalContext().defaultGenerator(state.device())) {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    former_ = generator_.get_state();
    generator_.set_state(state.get_state());
  }
  ~DefaultGeneratorScope() {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    generator_.set_state(former_);
  }
  DefaultGeneratorScope(const DefaultGeneratorScope&) = delete;
  DefaultGeneratorScope& operator=(const DefaultGeneratorScope&) = delete;

 private:
  const std::lock_guard<std::recursive_mutex> lock_;
  at::Generator generator_;
  at::Tensor former_;
};

// Fused attention draws its dropout from the default generator of its device, and cannot take
// another one. The kernel reads the generator when it is launched, so later changes of the
// generator do not matter.
void with_default_generator(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                            torch::jit::Stack* stack) {
  InterceptionPause pause;
  RandomStreams* const streams = RandomStreams::current();
  const c10::IValue* const p = find_argument(op, *stack, "dropout_p");
  std::optional<DefaultGeneratorScope> scope;
  if (streams != nullptr && p->toDouble() > 0) {
    const c10::Device device = device_of(op.schema().arguments(), arguments_of(op, *stack));
    streams->check_not_recording("a device's default generator");
    if (has_generators(device)) scope.emplace(streams->generator(device));
  }
  op.redispatchBoxed(after_interception(keys), stack);
}

// Recurrent layers of cuDNN, MIOpen and Metal keep a random state of their own for the dropout
// between their layers, and that state goes on from call to call. So a recompute or a replay would
// draw other numbers.
void without_repetition(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                        torch::jit::Stack* stack) {
  const bool drops = find_argument(op, *stack, "train")->toBool() &&
                     find_argument(op, *stack, "dropout")->toDouble() > 0;
  const RandomStreams* const streams = RandomStreams::current();
  if (drops && streams != nullptr) streams->check_not_recording("a state of the operator's own");
  TORCH_CHECK(!(drops && checkpoint_phase() == CheckpointPhase::kCheckpointing),
              op.operator_name().name,
              " draws its dropout from a state of its own, so the recompute of a checkpointed "
              "micro-batch could not drop the same and would give wrong gradients. Set the "
              "recurrent layer's dropout to 0 and put torch::nn::Dropout between single layers, or "
              "use Checkpoint::kNever for this partition (GPipeOptions::partition_checkpoints)");
  InterceptionPause pause;
  op.redispatchBoxed(after_interception(keys), stack);
}

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

// The operators of LibTorch that draw without an argument `generator` and that are not made of
// other operators that have this argument.
bool is_fused_attention(const std::string& name) {
  for (const char* const part : {"_backward", "_math", "_for_cpu", "_fused_sdp_choice"}) {
    if (contains(name, part)) return false;
  }
  for (const char* const part :
       {"aten::_scaled_dot_product_", "aten::_flash_attention_forward",
        "aten::_efficient_attention_forward", "aten::_cudnn_attention_forward"}) {
    if (contains(name, part)) return true;
  }
  return false;
}

bool keeps_its_own_state(const std::string& name) {
  return name == "aten::_cudnn_rnn" || name == "aten::miopen_rnn" || name == "aten::_lstm_mps";
}

bool has_generator(const c10::FunctionSchema& schema) {
  const std::vector<c10::Argument>& arguments = schema.arguments();
  return std::any_of(arguments.begin(), arguments.end(),
                     [](const c10::Argument& argument) { return argument.name() == "generator"; });
}

void intercept() {
  static const Interceptor interceptor([](torch::Library& aten) {
    for_each_aten_operator([&aten](const c10::OperatorHandle& op, const char* name) {
      const std::string& full_name = op.operator_name().name;
      if (has_generator(op.schema())) {
        aten.impl(name, torch::CppFunction::makeFromBoxedFunction<&with_generator>());
      } else if (is_fused_attention(full_name) && op.schema().argumentIndexWithName("dropout_p")) {
        aten.impl(name, torch::CppFunction::makeFromBoxedFunction<&with_default_generator>());
      } else if (keeps_its_own_state(full_name)) {
        aten.impl(name, torch::CppFunction::makeFromBoxedFunction<&without_repetition>());
      }
    });
    aten.impl("native_dropout", torch::CppFunction(native_dropout));
  });
}

}  // namespace

void RandomStreams::enter(uint64_t step_seed, int64_t micro_batch, int64_t layer) {
  enter({seed_of(step_seed, micro_batch, layer), layer});
}

void RandomStreams::enter_backward(uint64_t step_seed, int64_t micro_batch, int64_t layer,
                                   uint64_t node) {
  enter({mix(~seed_of(step_seed, micro_batch, layer) ^ mix(node)), layer});
}

void RandomStreams::enter_leaf(uint64_t step_seed, int64_t micro_batch, uint64_t leaf) {
  enter_backward(step_seed, micro_batch, kLeaves, leaf);
}

void RandomStreams::repeat(uint64_t step_seed, int64_t micro_batch, const DrawRecord& record) {
  enter(step_seed, micro_batch, record.layer);
  place_.number = record.number;
}

const at::Generator& RandomStreams::generator(c10::Device device) {
  if (log_ != nullptr && !c10::GradMode::is_enabled()) {
    log_->push_back({at::sequence_number::peek(), place_.layer, place_.number});
  }
  ++draws_;
  if (recorder_ != nullptr) {
    const size_t drawn = recorder_->draws.size();
    TORCH_CHECK(drawn < recorder_->generators.size(),
                "more random numbers are drawn while a graph is recorded than in the runs before");
    const at::Generator& next = recorder_->generators[drawn];
    TORCH_CHECK(next.device() == device, "random numbers are drawn on ", device,
                " while a graph is recorded, but on ", next.device(), " in the runs before");
    recorder_->draws.push_back({place_.layer, place_.number++});
    return next;
  }
  Entry* found = nullptr;
  for (Entry& entry : entries_) {
    if (entry.device == device) found = &entry;
  }
  if (found == nullptr) {
    at::Generator generator = device.is_cpu()
                                  ? at::detail::createCPUGenerator()
                                  : at::globalContext().defaultGenerator(device).clone();
    entries_.push_back({device, std::move(generator)});
    found = &entries_.back();
  }
  std::lock_guard<std::mutex> lock(found->generator.mutex());
  found->generator.set_current_seed(seed_of_number(place_.seed, place_.number++));
  return found->generator;
}

uint64_t RandomStreams::seed_of_draw(uint64_t step_seed, int64_t micro_batch,
                                     const DrawRecorder::Draw& draw) {
  return seed_of_number(seed_of(step_seed, micro_batch, draw.layer), draw.number);
}

void RandomStreams::check_not_recording(const char* what) const {
  TORCH_CHECK(recorder_ == nullptr, "random numbers are drawn from ", what);
}

at::Generator RandomStreams::given(const at::Generator& generator) {
  check_not_recording("a generator of a layer's own");
  ++given_draws_;
  CarriedGenerators::see(generator, place_.layer);
  if (given_ == nullptr) return generator;
  if (checkpoint_phase() == CheckpointPhase::kCheckpointing) {
    at::Generator same = generator;  // another handle of the same generator
    const std::lock_guard<std::mutex> lock(same.mutex());
    given_->states.push_back(same.clone());
  } else if (checkpoint_phase() == CheckpointPhase::kRecomputing &&
             given_->next < given_->states.size()) {
    const at::Generator& state = given_->states[given_->next++];
    // The state is copied, because a graph that is kept is recomputed again.
    if (state.device() == generator.device()) return state.clone();
  }
  return generator;
}

RandomStreams* RandomStreams::current() {
  if (current_streams != nullptr) return current_streams;
  return SeenByAutogradScope<RandomStreamsScope::autograd_info, RandomStreams>::current();
}

RandomStreamsScope::RandomStreamsScope(RandomStreams* streams, std::vector<DrawRecord>* log,
                                       GivenGenerators* given, bool on_autograd_threads)
    : streams_(streams),
      former_(current_streams),
      former_log_(streams->log_),
      former_given_(streams->given_) {
  intercept();
  streams_->log_ = log;
  streams_->given_ = given;
  current_streams = streams;
  if (on_autograd_threads) for_autograd_.emplace(&current_streams);
}

RandomStreamsScope::~RandomStreamsScope() {
  current_streams = former_;
  streams_->log_ = former_log_;
  streams_->given_ = former_given_;
}

uint64_t draw_step_seed() {
  auto generator = at::detail::getDefaultCPUGenerator();
  std::lock_guard<std::mutex> lock(generator.mutex());
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

uint64_t process_seed() {
  auto generator = at::detail::getDefaultCPUGenerator();
  std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.current_seed();
}

}  // namespace gpipe::internal
