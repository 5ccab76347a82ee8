#include "meta/meta_kernels.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DispatchKey.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "meta/fused_operators.h"
#include "meta/kernel.h"

namespace gpipe {
namespace {

using internal::Arguments;
using internal::MetaKernel;

// The kernel that the dispatcher calls: takes the arguments from the stack and leaves the results
// there.
class Boxed final : public c10::OperatorKernel {
 public:
  explicit Boxed(MetaKernel kernel) : kernel_(std::move(kernel)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const c10::FunctionSchema& schema = op.schema();
    const size_t base = stack->size() - schema.arguments().size();
    const c10::ArrayRef<c10::IValue> values(stack->data() + base, schema.arguments().size());
    std::vector<at::Tensor> results = kernel_.run(Arguments(schema, values));
    TORCH_INTERNAL_ASSERT(results.size() == schema.returns().size(), "meta kernel of ",
                          kernel_.name, " has ", results.size(), " results");
    stack->resize(base);
    for (at::Tensor& result : results) stack->emplace_back(std::move(result));
  }

 private:
  MetaKernel kernel_;
};

// Whether two meta tensors are equal, which is known only if they have the same memory. Attention
// asks this, to find out whether it was given one tensor three times.
bool is_same(const at::Tensor& a, const at::Tensor& b) {
  return a.is_alias_of(b) && a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.storage_offset() == b.storage_offset() && a.scalar_type() == b.scalar_type();
}

bool is_missing(const char* operator_name) {
  std::string name = std::string("aten::") + operator_name, overload;
  if (const size_t dot = name.find('.'); dot != std::string::npos) {
    overload = name.substr(dot + 1);
    name.resize(dot);
  }
  const auto op = c10::Dispatcher::singleton().findSchema({name, overload});
  TORCH_INTERNAL_ASSERT(op, "this LibTorch has no operator ", name, ".", overload);
  return !op->hasKernelForDispatchKey(c10::DispatchKey::Meta);
}

bool install() {
  // The library is never unregistered, because threads may outlive static destruction.
  static auto* const library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__);
  for (auto* const kernels :
       {&internal::attention_kernels, &internal::convolution_kernels, &internal::index_kernels,
        &internal::loss_kernels, &internal::norm_kernels, &internal::padding_kernels,
        &internal::pointwise_kernels, &internal::pool_kernels, &internal::random_kernels,
        &internal::recurrent_kernels, &internal::reduction_kernels}) {
    for (MetaKernel& kernel : kernels()) {
      if (!is_missing(kernel.name)) continue;
      const char* const name = kernel.name;
      library->impl(name, torch::CppFunction::makeFromBoxedFunctor(
                              std::make_unique<Boxed>(std::move(kernel))));
    }
  }
  if (is_missing("equal")) library->impl("equal", &is_same);
  const char* const flash = "_scaled_dot_product_flash_attention";
  if (is_missing(flash)) library->impl(flash, &internal::flash_attention_on_cuda);
  internal::install_fused_operators();
  return true;
}

}  // namespace

void install_meta_kernels() { [[maybe_unused]] static const bool installed = install(); }

}  // namespace gpipe
