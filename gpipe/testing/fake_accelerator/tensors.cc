#include "gpipe/testing/fake_accelerator/tensors.h"

#include <ATen/ops/from_blob.h>

#include <optional>

namespace gpipe::testing::fake {

bool is_fake(const at::Tensor& tensor) { return tensor.defined() && tensor.is_privateuseone(); }

Access access_of(const at::Tensor& tensor, bool write) {
  if (tensor.numel() == 0) return {Footprint(), write};
  return {Footprint(tensor.const_data_ptr(), tensor.itemsize(), tensor.sizes().vec(),
                    tensor.strides().vec()),
          write};
}

at::Tensor alias_on_cpu(const at::Tensor& tensor) {
  // The constness is cast away, because at::from_blob() takes no const pointer, also for kernels
  // that only read.
  at::Tensor alias = at::from_blob(const_cast<void*>(tensor.const_data_ptr()), tensor.sizes(),
                                   tensor.strides(), at::TensorOptions().dtype(tensor.dtype()));
  // The alias of a number must count as a number, because type promotion treats numbers differently
  // from tensors.
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    alias.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return alias;
}

c10::IValue map_tensors(const c10::IValue& value,
                        const std::function<at::Tensor(const at::Tensor&)>& function) {
  if (value.isTensor()) return function(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> mapped;
    for (const at::Tensor& tensor : value.toTensorVector()) mapped.push_back(function(tensor));
    return mapped;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> mapped;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      mapped.push_back(tensor ? std::optional<at::Tensor>(function(*tensor)) : std::nullopt);
    }
    return mapped;
  }
  return value;
}

}  // namespace gpipe::testing::fake
