#include "gpipe/internal/backward/node_kinds.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <cstring>
#include <initializer_list>
#include <string>
#include <typeinfo>

#include "absl/container/flat_hash_set.h"
#include "gpipe/internal/backward/gradient_sink.h"

namespace gpipe::internal {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Node;

template <size_t kSize>
bool starts_with(const char* text, const char (&start)[kSize]) {
  return std::strncmp(text, start, kSize - 1) == 0;
}

// Returns the mangled type names of these nodes of LibTorch's operators.
const absl::flat_hash_set<std::string>* mangled(std::initializer_list<std::string> names) {
  auto* result = new absl::flat_hash_set<std::string>();
  for (const std::string& name : names) {
    result->insert("N5torch8autograd9generated" + std::to_string(name.size()) + name + "E");
  }
  return result;
}

}  // namespace

NodeKind kind_of(const Node& node) {
  // Addresses are compared first, because a type usually has a single type_info object, and
  // comparing names is slower.
  const std::type_info& type = typeid(node);
  if (&type == &typeid(AccumulateGrad)) return NodeKind::kLeaf;
  const char* name = type.name();
  if (starts_with(name, "N5torch8autograd")) {
    if (type == typeid(AccumulateGrad)) return NodeKind::kLeaf;
    return is_custom_function(node) ? NodeKind::kOther : NodeKind::kOperator;
  }
  if (type == typeid(GradientSink)) return NodeKind::kSink;
  const bool ours = dynamic_cast<const OperatorNode*>(&node) != nullptr;
  return ours ? NodeKind::kOperator : NodeKind::kOther;
}

bool has_hooks(Node& node) {
  return !node.post_hooks().empty() || !node.tensor_pre_hooks().empty() ||
         !node.retains_grad_hooks().empty() || node.tensor_post_acc_grad_hooks() != nullptr;
}

bool is_custom_function(const Node& node) {
  const char* const name = typeid(node).name();
  return starts_with(name, "N5torch8autograd7CppNodeI") ||
         starts_with(name, "N5torch8autograd6PyNodeE");
}

bool may_write(Node& node) {
  return runs_users_code(node) || has_hooks(node) || !node.pre_hooks().empty();
}

bool is_product(const Node& node) {
  static const auto* const products =
      mangled({"AddbmmBackward0", "AddmmBackward0", "AddmvBackward0", "BaddbmmBackward0",
               "BmmBackward0", "ConvolutionBackward0", "ConvolutionBackward1", "LinearBackward0",
               "MmBackward0", "MvBackward0"});
  return products->contains(typeid(node).name());
}

bool computes_anew(const Node& node) {
  static const auto* const known =
      mangled({"CudnnBatchNormBackward0", "DivBackward0", "EmbeddingBackward0",
               "MiopenBatchNormBackward0", "MulBackward0", "NativeBatchNormBackward0",
               "NativeGroupNormBackward0", "NativeLayerNormBackward0"});
  return is_product(node) || known->contains(typeid(node).name());
}

}  // namespace gpipe::internal
