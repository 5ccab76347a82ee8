// Skippable: a mix-in for layers that pass tensors to a much later layer.
#ifndef SKIP_SKIPPABLE_H_
#define SKIP_SKIPPABLE_H_

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "skip/namespace.h"
#include "skip/tracker.h"
#include "skip/verify.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace gpipe::skip {

// Mix-in for a layer that passes a tensor to a much later layer (stash), or takes one from a much
// earlier layer (pop), bypassing all layers between. Inherit from it publicly, beside
// torch::nn::Module.
//
// The same layers work in a plain torch::nn::Sequential::forward and in a pipeline, where a tensor
// goes straight from the stashing stage to the popping stage.
//
// Requirements: a skippable layer inside another layer must be one of its registered submodules, or
// the pipeline cannot see it. Only declared names may be used. In one call of a layer each declared
// name must be stashed, or popped, exactly once; a pipeline checks that (see call.h). Outside a
// pipeline nobody sees where a call begins: there, stashing a name again replaces the former
// tensor, and a name left out is noticed when the other end pops it. An undefined tensor is a legal
// payload and arrives as such.
//
// Thread-safety: `stash` and `pop` use the table that is current on the calling thread and change
// nothing in the layer, so one layer may run on several threads at once. `isolate` may not run at
// the same time.
//
// Example:
//   struct EncodeImpl : torch::nn::Module, gpipe::skip::Skippable {
//     EncodeImpl() : Skippable({"skip"}, {}) {}
//     torch::Tensor forward(torch::Tensor x) { stash("skip", x); return x; }
//   };
//   TORCH_MODULE(Encode);
class Skippable {
 public:
  virtual ~Skippable() = default;

  // Puts all names of this layer, or those in `only`, into `ns`; a later call overrides an earlier
  // one. Do it before the layer goes into a pipeline, which reads the namespaces when it is made.
  // Throws c10::ValueError if `only` has a name that this layer neither stashes nor pops.
  void isolate(const Namespace& ns);
  void isolate(const Namespace& ns, const std::vector<std::string>& only);

  // The declared names, in the order of declaration.
  const std::vector<std::string>& stashes() const { return stashes_; }
  const std::vector<std::string>& pops() const { return pops_; }

  // A declared name with its namespace. Throws c10::ValueError for an undeclared one.
  const Key& key(const std::string& name) const;

  // A text like "Skippable(stash: 'a'; pop: 'b')", which a layer's `pretty_print` may show.
  std::string to_text() const;

 protected:
  // Declares the names. Throws c10::ValueError if one is empty or occurs twice in one list.
  Skippable(std::vector<std::string> stashes, std::vector<std::string> pops);
  Skippable(const Skippable&) = default;
  Skippable& operator=(const Skippable&) = default;

  // Passes `tensor` to the layer that pops `name`. Throws c10::Error if this layer does not declare
  // the name, or has already stashed it in this call.
  void stash(const std::string& name, at::Tensor tensor);

  // Takes the tensor stashed as `name`. Throws c10::Error if this layer does not declare the name
  // or has already popped it in this call, or if it was not stashed.
  at::Tensor pop(const std::string& name);

 private:
  friend class CallPlan;
  friend class CallScope;

  std::vector<std::string> stashes_;
  std::vector<std::string> pops_;
  // [name] The keys of the names above, so that a call builds no strings.
  std::vector<Key> stash_keys_;
  std::vector<Key> pop_keys_;
};

// Isolates `layer` (a module holder or a shared_ptr of a Skippable) and returns it, for use where a
// layer is made.
//   model->push_back(skip::isolate(Encode(), inner));
template <typename Layer>
Layer isolate(Layer layer, const Namespace& ns) {
  (*layer).isolate(ns);
  return layer;
}
template <typename Layer>
Layer isolate(Layer layer, const Namespace& ns, const std::vector<std::string>& only) {
  (*layer).isolate(ns, only);
  return layer;
}

// The skippable layers of `layer`: the layer itself and those nested in it at any depth, parents
// before children, in the order of registration, each once. Throws c10::ValueError for a submodule
// that is a null pointer.
std::vector<Skippable*> skippables_of(torch::nn::Module& layer);
std::vector<const Skippable*> skippables_of(const torch::nn::Module& layer);

}  // namespace gpipe::skip

#endif  // SKIP_SKIPPABLE_H_
