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

namespace gpipe::testing::fake {
namespace {

using torch::jit::Stack;

constexpr int kNoArgument = -1;

bool writes(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// For dry runs and streams: what an operator warns of is how it is called here, mse_loss of the
// output that it resizes itself.
class Silence : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}
};

// Where an operator returns several of its outputs by reference, LibTorch drops the arguments from
// the stack before it copies what the references refer to (make_boxed_from_unboxed_functor.h): the
// tensors must live on. The backtrace of an error is that of a stream's thread, and tells nothing.
void call(const CpuKernel& kernel, Stack& stack) {
  const Stack arguments = stack;
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard guard(&silence);
  try {
    kernel(stack);
  } catch (const c10::Error& error) {
    throw std::runtime_error(error.what_without_backtrace());
  }
}

// One call of an operator.
class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack args)
      : schema_(op.schema()), name_(op.operator_name().name), args_(std::move(args)) {}

  // The one device of all tensors.
  c10::Device device() const;
  // Whether the results' sizes, or results that are no tensors, depend on values.
  bool host_must_wait() const;
  // Both leave the results in place of the arguments.
  Stack run_later(c10::Device device, const CpuKernel& kernel);
  Stack run_now(c10::Device device, const CpuKernel& kernel);

 private:
  // The argument that result `result` is, for operators that write to it; else kNoArgument.
  int argument_of(size_t result) const;
  bool is_written(size_t argument) const;
  std::vector<Access> accesses() const;
  Stack on_cpu() const;
  Stack dry_run(c10::Device device, const CpuKernel& kernel);
  void resize_outputs(const Stack& dry);

  const c10::FunctionSchema& schema_;
  const std::string name_;
  Stack args_;
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
  // In training it writes the running statistics, which its schema does not say.
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

// A number of the host is taken as it is now.
at::Tensor tensor_on_cpu(const at::Tensor& tensor) {
  if (is_fake(tensor)) return alias_on_cpu(tensor);
  if (!tensor.defined()) return tensor;
  at::Tensor copy = tensor.clone();
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return copy;
}

Stack Call::on_cpu() const {
  Stack mapped;
  for (const c10::IValue& value : args_) mapped.push_back(map_tensors(value, tensor_on_cpu));
  return mapped;
}

// Replaces a generator among the arguments by a copy in its present state, and moves the generator
// on as the kernel will move the copy.
Stack Call::dry_run(c10::Device device, const CpuKernel& kernel) {
  Stack dry;
  for (const c10::IValue& value : args_) {
    dry.push_back(map_tensors(value, [](const at::Tensor& tensor) {
      if (!is_fake(tensor)) return tensor_on_cpu(tensor);
      at::Tensor stand_in =
          at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kCPU));
      // Valid indices, and probabilities that do not all vanish.
      stand_in.fill_(at::isFloatingType(tensor.scalar_type()) ? 1 : 0);
      if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
        stand_in.unsafeGetTensorImpl()->set_wrapped_number(true);
      }
      return stand_in;
    }));
  }
  std::unique_lock<std::mutex> lock;
  for (size_t i = 0; i < args_.size(); ++i) {
    if (schema_.arguments()[i].name() != "generator") continue;
    at::Generator generator =
        args_[i].isNone() ? default_generator(device.index()) : args_[i].toGenerator();
    TORCH_CHECK(generator.device() == device, "Expected a '", device, "' generator but found '",
                generator.device(), "'");
    lock = std::unique_lock<std::mutex>(generator.mutex());
    at::Generator& cpu = static_cast<FakeGenerator*>(generator.unsafeGetGeneratorImpl())->on_cpu();
    args_[i] = cpu.clone();
    dry[i] = cpu;
  }
  Stack results = dry;  // `dry` keeps the arguments, see call()
  {
    Silence silence;
    const c10::WarningUtils::WarningHandlerGuard guard(&silence);
    kernel(results);
  }
  lock = {};
  resize_outputs(dry);
  return results;
}

// Outputs that the caller gives may be of another size than the result.
void Call::resize_outputs(const Stack& dry) {
  for (size_t i = 0; i < args_.size(); ++i) {
    if (!writes(schema_.arguments()[i]) || !args_[i].isTensor()) continue;
    const at::Tensor& mine = args_[i].toTensor();
    const at::Tensor& wanted = dry[i].toTensor();
    if (mine.sizes() != wanted.sizes()) mine.resize_(wanted.sizes());
  }
}

Stack Call::run_later(c10::Device device, const CpuKernel& kernel) {
  const Stack dry_results = dry_run(device, kernel);
  std::vector<Access> touched = accesses();
  Stack results, targets;  // targets: where on the CPU the values go; none for a written argument
  for (size_t r = 0; r < dry_results.size(); ++r) {
    const int argument = argument_of(r);
    if (argument != kNoArgument) {
      results.push_back(args_[static_cast<size_t>(argument)]);
      targets.emplace_back();
      continue;
    }
    results.push_back(map_tensors(dry_results[r], [&](const at::Tensor& dry) {
      if (!dry.defined()) return dry;
      const auto options = at::TensorOptions().dtype(dry.dtype()).device(device);
      at::Tensor made = dry.is_non_overlapping_and_dense()
                            ? at::empty_strided(dry.sizes(), dry.strides(), options)
                            : at::empty(dry.sizes(), options);
      touched.push_back(access_of(made, /*write=*/true));
      return made;
    }));
    targets.push_back(map_tensors(results.back(), tensor_on_cpu));
  }
  const Stack cpu = on_cpu();
  std::vector<std::pair<at::Tensor, at::Tensor>> written;  // as the operator sees it, its memory
  for (size_t i = 0; i < args_.size(); ++i) {
    if (!is_written(i) || !args_[i].isTensor() || !is_fake(args_[i].toTensor())) continue;
    written.emplace_back(cpu[i].toTensor(), alias_on_cpu(args_[i].toTensor()));
  }
  auto run = [kernel, cpu = Stack(cpu), targets, written]() mutable {
    call(kernel, cpu);
    for (const auto& [seen, memory] : written) {
      if (seen.const_data_ptr() != memory.const_data_ptr()) memory.copy_(seen);
    }
    for (size_t r = 0; r < targets.size(); ++r) {
      if (targets[r].isTensor()) {
        if (targets[r].toTensor().defined()) targets[r].toTensor().copy_(cpu[r].toTensor());
      } else if (targets[r].isTensorList()) {
        const std::vector<at::Tensor> to = targets[r].toTensorVector();
        const std::vector<at::Tensor> from = cpu[r].toTensorVector();
        for (size_t k = 0; k < to.size(); ++k) {
          if (to[k].defined()) to[k].copy_(from[k]);
        }
      }
    }
  };
  runtime().launch(current_stream(device),
                   {name_, Task::Kind::kKernel, std::move(touched), std::move(run), {}});
  return results;
}

Stack Call::run_now(c10::Device device, const CpuKernel& kernel) {
  const StreamId stream = current_stream(device);
  runtime().launch(stream, {name_, Task::Kind::kKernel, accesses(), nullptr, {}});
  runtime().synchronize(stream, Wait::kImplied, name_ + ", whose result the host must know");
  Stack results = on_cpu();
  const Stack arguments = results;  // see call()
  kernel(results);
  for (c10::IValue& result : results) {
    result = map_tensors(result, [&](const at::Tensor& computed) {
      if (!computed.defined()) return computed;
      at::Tensor made =
          at::empty(computed.sizes(), at::TensorOptions().dtype(computed.dtype()).device(device));
      runtime().launch(stream, {name_,
                                Task::Kind::kKernel,
                                {access_of(made, /*write=*/true)},
                                [to = alias_on_cpu(made), computed] { to.copy_(computed); },
                                {}});
      return made;
    });
  }
  return results;
}

}  // namespace

void run_on_stream(const c10::OperatorHandle& op, Stack* stack, const CpuKernel& kernel) {
  const at::AutoDispatchBelowADInplaceOrView below;
  // The pipeline intercepts operators by this key (operator_mode.h). It has seen this one.
  const c10::impl::ExcludeDispatchKeyGuard once(c10::DispatchKey::TESTING_ONLY_GenericMode);
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
  run_on_stream(op, stack, [op](Stack& cpu) { op.callBoxed(cpu); });
}

}  // namespace gpipe::testing::fake
