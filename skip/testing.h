// SkipLayer and other small skippable layers for tests.
#ifndef SKIP_TESTING_H_
#define SKIP_TESTING_H_

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <string>
#include <utility>
#include <vector>

#include "skip/skippable.h"

namespace gpipe::skip::testing {

using Names = std::vector<std::string>;

// Adds every defined tensor that it pops to its input, and stashes the sum under each of its names.
// The names that it really stashes and pops may differ from those that it declares.
struct SkipLayerImpl : torch::nn::Module, Skippable {
  SkipLayerImpl(Names stashes, Names pops)
      : Skippable(stashes, pops), to_stash(std::move(stashes)), to_pop(std::move(pops)) {}

  at::Tensor forward(at::Tensor x) {
    for (const auto& name : to_pop) {
      const at::Tensor popped = pop(name);
      if (popped.defined()) x = x + popped;
    }
    for (const auto& name : to_stash) stash(name, x);
    return x;
  }

  Names to_stash;
  Names to_pop;
};
TORCH_MODULE(SkipLayer);

inline SkipLayer stash_layer(Names names) { return SkipLayer(std::move(names), Names()); }
inline SkipLayer pop_layer(Names names) { return SkipLayer(Names(), std::move(names)); }
// A layer that neither stashes nor pops.
inline SkipLayer plain_layer() { return SkipLayer(Names(), Names()); }

// A layer that holds two layers and is not a Sequential. It calls the second before the first if
// `second_runs_first`.
struct PairImpl : torch::nn::Module {
  PairImpl(SkipLayer first, SkipLayer second, bool second_runs_first = false)
      : first(register_module("first", std::move(first))),
        second(register_module("second", std::move(second))),
        second_runs_first(second_runs_first) {}

  at::Tensor forward(at::Tensor x) {
    return second_runs_first ? first->forward(second->forward(x))
                             : second->forward(first->forward(x));
  }

  SkipLayer first, second;
  bool second_runs_first;
};
TORCH_MODULE(Pair);

// A torch::nn::Sequential cannot hold another Sequential (its forward is a template), but it can
// hold this one.
struct NestImpl : torch::nn::SequentialImpl {
  using torch::nn::SequentialImpl::SequentialImpl;
  at::Tensor forward(at::Tensor x) { return torch::nn::SequentialImpl::forward(std::move(x)); }
};
TORCH_MODULE(Nest);

}  // namespace gpipe::skip::testing

#endif  // SKIP_TESTING_H_
