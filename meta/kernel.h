// MetaKernel: an operator on meta tensors, as a function from its arguments to its results.
//
// A table of kernels is shorter than functions that list every argument of their operator, and
// compiles ten times as fast. Most kernels look at two or three arguments.
#ifndef META_KERNEL_H_
#define META_KERNEL_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>
#include <c10/core/SymInt.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <tuple>
#include <vector>

namespace c10 {
struct FunctionSchema;
}  // namespace c10

namespace gpipe::internal {

// The arguments of one call, by the names that LibTorch's schema of the operator gives them.
//
// Throws c10::Error where the schema has no argument of that name.
class Arguments {
 public:
  // `schema` and the values must outlive this object.
  Arguments(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> values)
      : schema_(schema), values_(values) {}

  const c10::IValue& operator[](const char* name) const;

  // Undefined if the argument was not given.
  at::Tensor tensor(const char* name) const;
  int64_t integer(const char* name) const { return (*this)[name].toInt(); }
  bool flag(const char* name) const { return (*this)[name].toBool(); }
  // Empty if the argument was not given.
  std::vector<int64_t> integers(const char* name) const;
  // One number for each of `count` dimensions. A single number counts for all of them. If the
  // argument was not given, it is `otherwise`.
  std::vector<int64_t> integers(const char* name, int64_t count,
                                const std::vector<int64_t>& otherwise = {}) const;
  // The entry of the argument `output_mask` for this output.
  bool wants(int64_t output) const { return (*this)["output_mask"].toBoolList().get(output); }

 private:
  const c10::FunctionSchema& schema_;
  c10::ArrayRef<c10::IValue> values_;
};

struct MetaKernel {
  // The operator's name as in native_functions.yaml, e.g. "where.self".
  const char* name;
  // Returns the results in the order of the schema. A gradient that is not wanted is an undefined
  // tensor.
  std::function<std::vector<at::Tensor>(const Arguments&)> run;
};

// The kernels by theme. Each function is in the .cc file of its name.
std::vector<MetaKernel> attention_kernels();
std::vector<MetaKernel> convolution_kernels();
std::vector<MetaKernel> index_kernels();
std::vector<MetaKernel> loss_kernels();
std::vector<MetaKernel> norm_kernels();
std::vector<MetaKernel> padding_kernels();
std::vector<MetaKernel> pointwise_kernels();
std::vector<MetaKernel> pool_kernels();
std::vector<MetaKernel> random_kernels();
std::vector<MetaKernel> recurrent_kernels();
std::vector<MetaKernel> reduction_kernels();

// The results of _scaled_dot_product_flash_attention. It is not a MetaKernel, because some of its
// results are numbers.
using FlashAttention = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt,
                                  c10::SymInt, at::Tensor, at::Tensor, at::Tensor>;
FlashAttention flash_attention_on_cuda(const at::Tensor& query, const at::Tensor& key,
                                       const at::Tensor& value, double dropout, bool is_causal,
                                       bool return_debug_mask, std::optional<double> scale);

// A tensor of these sizes, otherwise like `x`; contiguous by default.
at::Tensor made_like(const at::Tensor& x, at::IntArrayRef sizes,
                     c10::MemoryFormat format = c10::MemoryFormat::Contiguous);
at::Tensor made_like(const at::Tensor& x, at::IntArrayRef sizes, c10::ScalarType type);

// A tensor with the sizes and type of `x`, and with its strides if `x` has no gaps.
at::Tensor same_as(const at::Tensor& x);
at::Tensor same_as(const at::Tensor& x, c10::MemoryFormat format);

// The result of an operator that works element by element: inputs are broadcast, and strides follow
// them. Without `type`, the result has the inputs' common type. `out`, if defined, is resized and
// returned.
at::Tensor element_wise(const std::vector<at::Tensor>& inputs,
                        std::optional<c10::ScalarType> type = std::nullopt,
                        const at::Tensor& out = {});

// Kernels that return one tensor, with the sizes and type of the argument of this name. The result
// of like() has the argument's strides, if the argument has no gaps. The result of in_format_of()
// has the memory format that the argument suggests. The result of contiguous_like() is contiguous.
MetaKernel like(const char* name, const char* argument);
MetaKernel in_format_of(const char* name, const char* argument);
MetaKernel contiguous_like(const char* name, const char* argument);
// A kernel that returns element_wise() of the arguments of these names. `out`, if given, names the
// argument that gets the result.
MetaKernel broadcast(const char* name, std::vector<const char*> arguments,
                     const char* out = nullptr);

}  // namespace gpipe::internal

#endif  // META_KERNEL_H_
