#include "gpipe/testing/fake_accelerator/kernels.h"

#include <ATen/core/Generator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/testing/fake_accelerator/backend.h"
#include "gpipe/testing/fake_accelerator/generator.h"
#include "gpipe/testing/fake_accelerator/tensors.h"
#include "interception/interception.h"

namespace gpipe::testing::fake {
namespace {

using torch::jit::Stack;

constexpr int kNoArgument = -1;

bool writes(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// If an operator returns several of its outputs by reference, LibTorch drops the arguments from the
// stack before it copies the referenced tensors (make_boxed_from_unboxed_functor.h). So the
// arguments must be kept alive here. The backtrace of an error is left out, because it shows a
// stream's thread.
void call(const CpuKernel& kernel, Stack& stack) {
  const Stack arguments = stack;
  try {
    kernel(stack);
  } catch (const c10::Error& error) {
    throw std::runtime_error(error.what_without_backtrace());
  }
}

void copy_values(const c10::IValue& from, const c10::IValue& to);

// The work that a stream runs: the kernel on CPU aliases of the arguments, and copies of the
// results to their places.
struct Run {
  CpuKernel kernel;
  Stack cpu;
  Stack result_targets;
  Stack output_targets;

  void operator()() {
    const Stack arguments = cpu;
    call(kernel, cpu);
    for (size_t r = 0; r < cpu.size(); ++r) copy_values(cpu[r], result_targets[r]);
    for (size_t i = 0; i < arguments.size(); ++i) copy_values(arguments[i], output_targets[i]);
  }
};

// How an operator draws random numbers.
struct Drawing {
  size_t argument;
  at::Generator generator;

  FakeGenerator& fake() const {
    return *static_cast<FakeGenerator*>(generator.unsafeGetGeneratorImpl());
  }
  // Draws as the kernel will draw later, with the arguments `dry` in place of its own. Returns the
  // generator as it was before, from which the kernel draws.
  at::Generator advance(const CpuKernel& kernel, Stack& dry) const {
    at::Generator own = generator;  // a copy, because mutex() is not const
    std::lock_guard<std::mutex> lock(own.mutex());
    at::Generator before = fake().on_cpu().clone();
    dry[argument] = fake().on_cpu();
    Stack results = dry;  // `dry` keeps the arguments, see call()
    kernel(results);
    dry = std::move(results);
    return before;
  }
};

// One call of an operator.
class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack args)
      : schema_(op.schema()), name_(op.operator_name().name), args_(std::move(args)) {}

  // The device that all tensors are on.
  c10::Device device() const;
  // Whether the host must know values before it can go on: the sizes of the results, or results
  // that are not tensors, depend on them.
  bool host_must_wait() const;
  // Both functions replace the arguments with the results.
  Stack run_later(c10::Device device, const CpuKernel& kernel);
  Stack run_now(c10::Device device, const CpuKernel& kernel);

 private:
  // The argument that is returned as result `result` because the operator writes to it; kNoArgument
  // if the result is new.
  int argument_of(size_t result) const;
  bool is_written(size_t argument) const;
  std::vector<Access> accesses() const;
  bool is_output(size_t argument) const;
  Stack on_cpu() const;
  Stack dry_run(c10::Device device, const CpuKernel& kernel);
  void resize_outputs(const Stack& computed);

  const c10::FunctionSchema& schema_;
  const std::string name_;
  Stack args_;
  Stack dry_;  // the arguments with ones and zeros in place of values
  std::optional<Drawing> drawing_;
};

c10::Device Call::device() const {
  c10::Device found(c10::kCPU);
  for (const c10::IValue& value : args_) {
    if (value.isDevice() && value.toDevice().is_privateuseone() && found.is_cpu()) {
      found = value.toDevice();
    }
    map_tensors(value, [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return tensor;
      const bool number = tensor.is_cpu() && tensor.dim() == 0;
      TORCH_CHECK(number || (is_fake(tensor) && (found.is_cpu() || found == tensor.device())),
                  "Expected all tensors to be on the same device, but found at least two devices, ",
                  found.is_cpu() ? "a fake one" : found.str(), " and ", tensor.device(), "! (",
                  name_, ")");
      if (is_fake(tensor)) found = tensor.device();
      return tensor;
    });
  }
  TORCH_CHECK(found.is_privateuseone(), name_, ": no tensor on a fake device");
  return found;
}

bool Call::host_must_wait() const {
  static const std::set<std::string> sized_by_values = {
      "aten::nonzero",    "aten::masked_select",      "aten::_unique",           "aten::_unique2",
      "aten::unique_dim", "aten::unique_consecutive", "aten::repeat_interleave", "aten::bincount",
  };
  if (sized_by_values.count(name_) > 0) return true;
  for (const c10::Argument& result : schema_.returns()) {
    const c10::TypeKind kind = result.type()->kind();
    if (kind != c10::TypeKind::TensorType && kind != c10::TypeKind::ListType) return true;
  }
  bool by_mask = false;
  if (name_ == "aten::index") {
    map_tensors(args_[1], [&](const at::Tensor& index) {
      by_mask = by_mask || (index.defined() &&
                            (index.scalar_type() == at::kBool || index.scalar_type() == at::kByte));
      return index;
    });
  }
  return by_mask;
}

int Call::argument_of(size_t result) const {
  const auto* alias = schema_.returns()[result].alias_info();
  if (alias == nullptr) return kNoArgument;
  TORCH_CHECK(alias->isWrite(), name_, " makes a view, and has no kernel for fake devices");
  for (size_t i = 0; i < args_.size(); ++i) {
    const auto* mine = schema_.arguments()[i].alias_info();
    if (mine != nullptr && mine->beforeSets() == alias->beforeSets()) return static_cast<int>(i);
  }
  return kNoArgument;
}

bool Call::is_written(size_t argument) const {
  // In training native_batch_norm writes the running statistics (arguments 3 and 4), which its
  // schema does not say.
  if (name_ == "aten::native_batch_norm" && (argument == 3 || argument == 4)) {
    return args_[5].toBool();
  }
  return writes(schema_.arguments()[argument]);
}

std::vector<Access> Call::accesses() const {
  std::vector<Access> all;
  for (size_t i = 0; i < args_.size(); ++i) {
    map_tensors(args_[i], [&](const at::Tensor& tensor) {
      if (is_fake(tensor)) all.push_back(access_of(tensor, is_written(i)));
      return tensor;
    });
  }
  return all;
}

// The tensor that a kernel gets for an argument. A tensor on the host is a number, and its current
// value is used.
at::Tensor tensor_on_cpu(const at::Tensor& tensor) {
  if (is_fake(tensor)) return alias_on_cpu(tensor);
  if (!tensor.defined()) return tensor;
  at::Tensor copy = tensor.clone();
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return copy;
}

// Whether the argument is an `out` tensor, which is written and not read.
bool Call::is_output(size_t argument) const {
  return schema_.arguments()[argument].is_out() && args_[argument].isTensor() &&
         is_fake(args_[argument].toTensor());
}

// The tensor that a kernel gets for an output. CPU kernels may use it for intermediate values of
// another size (mse_loss does), which an alias of the output's memory could not hold.
at::Tensor empty_output(const at::Tensor& output) {
  return at::empty({0}, output.options().device(c10::kCPU));
}

Stack Call::on_cpu() const {
  Stack mapped;
  for (size_t i = 0; i < args_.size(); ++i) {
    mapped.push_back(is_output(i) ? c10::IValue(empty_output(args_[i].toTensor()))
                                  : map_tensors(args_[i], tensor_on_cpu));
  }
  return mapped;
}

// Replaces a generator among the arguments by a copy in its present state, and advances the
// generator as the kernel will advance the copy.
Stack Call::dry_run(c10::Device device, const CpuKernel& kernel) {
  Stack dry;
  for (size_t i = 0; i < args_.size(); ++i) {
    if (is_output(i)) {
      dry.push_back(empty_output(args_[i].toTensor()));
      continue;
    }
    dry.push_back(map_tensors(args_[i], [](const at::Tensor& tensor) {
      if (!is_fake(tensor)) return tensor_on_cpu(tensor);
      at::Tensor stand_in =
          at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kCPU));
      // Ones and zeros are valid as indices, and as probabilities that are not all zero.
      stand_in.fill_(at::isFloatingType(tensor.scalar_type()) ? 1 : 0);
      if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
        stand_in.unsafeGetTensorImpl()->set_wrapped_number(true);
      }
      return stand_in;
    }));
  }
  for (size_t i = 0; i < args_.size(); ++i) {
    if (schema_.arguments()[i].name() != "generator") continue;
    drawing_ = {i, args_[i].isNone() ? default_generator(device.index()) : args_[i].toGenerator()};
    const c10::Device of_generator = drawing_->generator.device();
    TORCH_CHECK(of_generator == device, "Expected a '", device, "' generator but found '",
                of_generator, "'");
    TORCH_CHECK(drawing_->fake().is_recordable() || !runtime().is_recording(current_stream(device)),
                "a graph draws from a generator that was not registered for it (", name_, ")");
  }
  dry_ = dry;
  if (drawing_) {
    args_[drawing_->argument] = drawing_->advance(kernel, dry);
    resize_outputs(dry_);
    return dry;
  }
  Stack results = dry;  // `dry` keeps the arguments, see call()
  kernel(results);
  resize_outputs(dry);
  return results;
}

// Gives the outputs among the arguments the sizes that they have in `computed`, because the caller
// may have given outputs of other sizes.
void Call::resize_outputs(const Stack& computed) {
  for (size_t i = 0; i < args_.size(); ++i) {
    if (!writes(schema_.arguments()[i]) || !args_[i].isTensor()) continue;
    const at::Tensor& mine = args_[i].toTensor();
    const at::Tensor& wanted = computed[i].toTensor();
    if (mine.sizes() != wanted.sizes()) mine.resize_(wanted.sizes());
  }
}

// Copies a tensor, or a list of tensors, from `from` to the tensors that `to` has.
void copy_values(const c10::IValue& from, const c10::IValue& to) {
  if (to.isTensor() && to.toTensor().defined()) to.toTensor().copy_(from.toTensor());
  if (!to.isTensorList()) return;
  const std::vector<at::Tensor> targets = to.toTensorVector(), sources = from.toTensorVector();
  for (size_t k = 0; k < targets.size(); ++k) {
    if (targets[k].defined()) targets[k].copy_(sources[k]);
  }
}

Stack Call::run_later(c10::Device device, const CpuKernel& kernel) {
  const Stack dry_results = dry_run(device, kernel);
  std::vector<Access> touched = accesses();
  // The targets are CPU aliases to which the values are copied. A result that is an argument has no
  // target, and neither has an argument that is not an output.
  Stack results, result_targets, output_targets;
  for (size_t r = 0; r < dry_results.size(); ++r) {
    const int argument = argument_of(r);
    if (argument != kNoArgument) {
      results.push_back(args_[static_cast<size_t>(argument)]);
      result_targets.emplace_back();
      continue;
    }
    results.push_back(map_tensors(dry_results[r], [&](const at::Tensor& dry) {
      if (!dry.defined()) return dry;
      const auto options = at::TensorOptions().dtype(dry.dtype()).device(device);
      at::Tensor result = dry.is_non_overlapping_and_dense()
                              ? at::empty_strided(dry.sizes(), dry.strides(), options)
                              : at::empty(dry.sizes(), options);
      touched.push_back(access_of(result, /*write=*/true));
      return result;
    }));
    result_targets.push_back(map_tensors(results.back(), tensor_on_cpu));
  }
  for (size_t i = 0; i < args_.size(); ++i) {
    output_targets.push_back(is_output(i) ? map_tensors(args_[i], tensor_on_cpu) : c10::IValue());
  }
  Run run{kernel, on_cpu(), std::move(result_targets), std::move(output_targets)};
  Task task{name_, Task::Kind::kKernel, std::move(touched), run, {}};
  if (drawing_) {
    // Each replay draws anew, from the state that the generator has then.
    task.renew = [run, drawing = *drawing_, dry = dry_]() -> std::function<void()> {
      Run again = run;
      Stack arguments = dry;
      again.cpu[drawing.argument] = drawing.advance(again.kernel, arguments);
      return again;
    };
  }
  runtime().launch(current_stream(device), std::move(task));
  return results;
}

Stack Call::run_now(c10::Device device, const CpuKernel& kernel) {
  const StreamId stream = current_stream(device);
  runtime().launch(stream, {name_, Task::Kind::kKernel, accesses(), nullptr, {}});
  runtime().synchronize(stream, Wait::kImplied, name_ + ", whose result the host must know");
  Stack computed = on_cpu();
  const Stack arguments = computed;
  call(kernel, computed);
  resize_outputs(arguments);
  const auto bring = [&](const at::Tensor& from, const at::Tensor& to) {
    runtime().launch(stream, {name_,
                              Task::Kind::kKernel,
                              {access_of(to, /*write=*/true)},
                              [target = alias_on_cpu(to), from] { target.copy_(from); },
                              {}});
  };
  for (size_t i = 0; i < args_.size(); ++i) {
    if (is_output(i)) bring(arguments[i].toTensor(), args_[i].toTensor());
  }
  Stack results;
  for (size_t r = 0; r < computed.size(); ++r) {
    const int argument = argument_of(r);
    if (argument != kNoArgument) {
      results.push_back(args_[static_cast<size_t>(argument)]);
      continue;
    }
    results.push_back(map_tensors(computed[r], [&](const at::Tensor& value) {
      if (!value.defined()) return value;
      at::Tensor result =
          at::empty(value.sizes(), at::TensorOptions().dtype(value.dtype()).device(device));
      bring(value, result);
      return result;
    }));
  }
  return results;
}

}  // namespace

void run_on_stream(const c10::OperatorHandle& op, Stack* stack, const CpuKernel& kernel) {
  const at::AutoDispatchBelowADInplaceOrView below;
  // The pipeline intercepts operators with this key (interception.h). It has already seen this
  // operator.
  const c10::impl::ExcludeDispatchKeyGuard once(internal::kInterceptionKey);
  const size_t base = stack->size() - op.schema().arguments().size();
  Call call(op, Stack(stack->begin() + static_cast<std::ptrdiff_t>(base), stack->end()));
  const c10::Device device = call.device();
  const c10::DeviceGuard guard(device);
  runtime().throw_error(device.index());
  Stack results =
      call.host_must_wait() ? call.run_now(device, kernel) : call.run_later(device, kernel);
  stack->resize(base);
  for (c10::IValue& result : results) stack->push_back(std::move(result));
}

void run_cpu_operator(const c10::OperatorHandle& op, Stack* stack) {
  const std::string& name = op.schema().name();
  TORCH_CHECK_NOT_IMPLEMENTED(
      name.rfind("aten::", 0) == 0, name,
      " has no kernel for fake devices: it is not an operator of LibTorch, and the fake "
      "accelerator "
      "must not pass what a GPU would refuse. Register a kernel for PrivateUse1 in the test if "
      "there is one for CUDA");
  TORCH_CHECK_NOT_IMPLEMENTED(op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU), name,
                              " has no kernel for fake devices, because LibTorch has none of it "
                              "for the CPU");
  run_on_stream(op, stack, [op](Stack& cpu) { op.callBoxed(cpu); });
}

}  // namespace gpipe::testing::fake
