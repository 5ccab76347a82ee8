// NodePtr, WeakNodePtr, make_node, has_names: the differences between the LibTorch versions that
// this repository supports (third_party/libtorch/versions.txt).
//
// The code finds out each difference from LibTorch's own declarations, not from its version number.
// So a version that is not in the list works if it declares the same. Only graphs/cuda_graph.cc
// uses the number, because it relies on what one version does inside.
#ifndef GPIPE_INTERNAL_LIBTORCH_VERSIONS_H_
#define GPIPE_INTERNAL_LIBTORCH_VERSIONS_H_

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

namespace gpipe::internal {

// The owner of a node of an autograd graph: std::shared_ptr until LibTorch 2.12, c10::intrusive_ptr
// in later versions.
using NodePtr = decltype(torch::autograd::Edge::function);

// Returns the owner of a new T, which is a torch::autograd::Node. LibTorch deletes a long chain of
// its own nodes without recursion. A node that is made here is deleted in the same way.
template <typename T, typename... Arguments>
auto make_node(Arguments&&... arguments) {
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<torch::autograd::Node>>) {
    // This calls torch::autograd::deleteNode, which is found by its argument, because later
    // versions do not declare it.
    return std::shared_ptr<T>(new T(std::forward<Arguments>(arguments)...),
                              [](auto* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<T>(std::forward<Arguments>(arguments)...);
  }
}

// The owner type that make_node<T> returns.
template <typename T>
using NodePtrTo =
    std::conditional_t<std::is_same_v<NodePtr, std::shared_ptr<torch::autograd::Node>>,
                       std::shared_ptr<T>, c10::intrusive_ptr<T>>;

// A reference to a node that does not own the node. It is made explicitly from an owner.
template <typename T>
using WeakNodePtrTo =
    std::conditional_t<std::is_same_v<NodePtr, std::shared_ptr<torch::autograd::Node>>,
                       std::weak_ptr<T>, c10::weak_intrusive_ptr<T>>;
using WeakNodePtr = WeakNodePtrTo<torch::autograd::Node>;

// Whether dimensions of the tensor have names. LibTorch has no named tensors since 2.13.
namespace versions {
template <typename Tensor>
auto has_names(const Tensor& tensor, int /*preferred*/) -> decltype(tensor.has_names()) {
  return tensor.has_names();
}
template <typename Tensor>
bool has_names(const Tensor& /*tensor*/, int64_t /*otherwise*/) {
  return false;
}
}  // namespace versions
template <typename Tensor>
bool has_names(const Tensor& tensor) {
  return versions::has_names(tensor, /*preferred=*/0);
}

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_LIBTORCH_VERSIONS_H_
