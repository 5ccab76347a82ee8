// MetaScope: modules built on the meta device, with shapes and types but without memory.
//
// A model of any size is built in milliseconds, to count what it holds or to see where its tensors
// would go. LibTorch's modules take no device; inside the scope an operator that makes a tensor
// from nothing (empty, empty_strided, zeros, ones, full, rand, randn, normal, arange, ...) and is
// not told a device makes it on the meta device.
//
// Requirements: the model's constructors neither read values (`item()`, `data_ptr<T>()`) nor need a
// device by name.
//
// Guarantees, while the scope lives:
// - Parameters and buffers of LibTorch's modules are meta tensors, with the sizes, strides, types
//   and names that they would have elsewhere; torch::nn::init and in-place operators leave them as
//   they are and cost no time that grows with the model.
// - No random number is drawn for what is made on meta: the generators stay as they were, and a
//   model built afterwards has the values that it would have had.
// - A device that is given is used, and so are the devices of `x.new_zeros`, `zeros_like(x)` and
//   `x.options()`. Tensors that exist already, and the results of operators on them, are as they
//   would be outside. So are tensors made from data: torch::tensor({1.0, 2.0}) fills its values in
//   on the CPU, torch::from_blob and from_file read memory, tril_indices and triu_indices have no
//   meta form.
//   (LibTorch moves no module to meta that has values: `module->to(at::kMeta)` throws then.)
// - Scopes nest. After the end of a scope everything is as before it.
//
// The scope is for building models. LibTorch's C++ has few of the operators that models run on
// meta; install_meta_kernels (meta/meta_kernels.h) adds others, and then models run and train
// there.
//
// Thread-safety: it holds for its own thread and for those on which LibTorch goes on with that
// thread's work (autograd's engine, c10::ThreadLocalState); others are unaffected. It may be active
// beside a pipeline's cells, also inside of one. A pipeline itself is called outside of it.
//
// Example:
//   torch::nn::Sequential model = [] {
//     gpipe::MetaScope meta;
//     return torch::nn::Sequential(torch::nn::Linear(1 << 20, 1 << 20), torch::nn::ReLU());
//   }();
//   model->parameters()[0].numel();  // 2^40, in no memory
//
// Errors are LibTorch's (c10::Error): "Cannot copy out of meta tensor; no data!" if values are
// wanted on another device; "... its data is not allocated yet" if they are accessed directly, also
// for at::tensor(values) without a device (torch::tensor works, and so does a given device);
// "... no fake impl or Meta kernel registered" for an operator without a meta form, such as item()
// (torch::nn::init::sparse_ calls it).
#ifndef META_META_SCOPE_H_
#define META_META_SCOPE_H_

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace gpipe {

class MetaScope {
 public:
  MetaScope();
  MetaScope(const MetaScope&) = delete;
  MetaScope& operator=(const MetaScope&) = delete;

 private:
  c10::impl::IncludeDispatchKeyGuard guard_;
};

}  // namespace gpipe

#endif  // META_META_SCOPE_H_
