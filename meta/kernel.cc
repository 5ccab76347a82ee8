#include "meta/kernel.h"

#include <ATen/TensorIterator.h>
#include <ATen/core/function_schema.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>

#include <utility>

namespace gpipe::internal {

const c10::IValue& Arguments::operator[](const char* name) const {
  const std::optional<int> index = schema_.argumentIndexWithName(name);
  TORCH_INTERNAL_ASSERT(index, "meta kernel of ", schema_.name(), ": no argument ", name);
  return values_[*index];
}

at::Tensor Arguments::tensor(const char* name) const {
  const c10::IValue& value = (*this)[name];
  return value.isNone() ? at::Tensor() : value.toTensor();
}

std::vector<int64_t> Arguments::integers(const char* name) const {
  const c10::IValue& value = (*this)[name];
  if (value.isNone()) return {};
  if (value.isInt()) return {value.toInt()};
  return value.toIntVector();
}

std::vector<int64_t> Arguments::integers(const char* name, int64_t count,
                                         const std::vector<int64_t>& otherwise) const {
  std::vector<int64_t> values = integers(name);
  if (values.empty()) values = otherwise;
  if (values.size() == 1) values.resize(count, values[0]);
  TORCH_CHECK_VALUE(static_cast<int64_t>(values.size()) == count, schema_.name(), ": ", name,
                    " needs one number, or one for each of ", count, " dimensions, got ",
                    c10::IntArrayRef(values));
  return values;
}

at::Tensor made_like(const at::Tensor& x, at::IntArrayRef sizes, c10::MemoryFormat format) {
  return at::empty(sizes, x.options().memory_format(format));
}

at::Tensor made_like(const at::Tensor& x, at::IntArrayRef sizes, c10::ScalarType type) {
  return at::empty(sizes, x.options().dtype(type));
}

at::Tensor same_as(const at::Tensor& x) { return at::empty_like(x); }

at::Tensor same_as(const at::Tensor& x, c10::MemoryFormat format) {
  return made_like(x, x.sizes(), format);
}

at::Tensor element_wise(const std::vector<at::Tensor>& inputs, std::optional<c10::ScalarType> type,
                        const at::Tensor& out) {
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(false).check_all_same_dtype(false).allow_cpu_scalars(true);
  if (type) {
    config.declare_static_dtype(*type);
  } else {
    config.promote_inputs_to_common_dtype(true);
  }
  config.add_owned_output(out);
  for (const at::Tensor& input : inputs) config.add_owned_const_input(input);
  return config.build().output();
}

MetaKernel like(const char* name, const char* argument) {
  return {name, [argument](const Arguments& in) {
            return std::vector<at::Tensor>{same_as(in.tensor(argument))};
          }};
}

MetaKernel broadcast(const char* name, std::vector<const char*> arguments, const char* out) {
  return {name, [arguments = std::move(arguments), out](const Arguments& in) {
            std::vector<at::Tensor> inputs;
            for (const char* argument : arguments) inputs.push_back(in.tensor(argument));
            return std::vector<at::Tensor>{
                element_wise(inputs, std::nullopt, out != nullptr ? in.tensor(out) : at::Tensor())};
          }};
}

}  // namespace gpipe::internal
