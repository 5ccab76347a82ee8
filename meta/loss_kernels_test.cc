#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "meta/testing/same_on_meta.h"

namespace gpipe {
namespace {

using testing::Case;
using testing::expect_same_on_meta;
using testing::Trial;
using Tensors = std::vector<at::Tensor>;

TEST(LossKernels, AreAsOnTheCPU) {
  std::vector<Case> cases;
  for (const int64_t reduction : {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum}) {
    const std::string with = " with reduction " + std::to_string(reduction);
    const auto add = [&cases, &with](const std::string& name, testing::Computation computation) {
      cases.push_back({name + with, std::move(computation)});
    };
    for (const auto format : {c10::MemoryFormat::Contiguous, c10::MemoryFormat::ChannelsLast}) {
      const auto x = [format](Trial& trial) { return trial.leaf({2, 5, 3, 4}, format); };
      add("mse", [=](Trial& trial) -> Tensors {
        return {at::mse_loss(x(trial), trial.data({2, 5, 3, 4}), reduction)};
      });
      add("mse of two",
          [=](Trial& trial) -> Tensors { return {at::mse_loss(x(trial), x(trial), reduction)}; });
      add("l1", [=](Trial& trial) -> Tensors {
        return {at::l1_loss(x(trial), trial.data({2, 5, 3, 4}), reduction)};
      });
      add("smooth l1", [=](Trial& trial) -> Tensors {
        return {at::smooth_l1_loss(x(trial), x(trial), reduction, 1.0)};
      });
      add("huber", [=](Trial& trial) -> Tensors {
        return {at::huber_loss(x(trial), x(trial), reduction, 1.0)};
      });
      add("binary cross entropy", [=](Trial& trial) -> Tensors {
        return {at::binary_cross_entropy(x(trial), trial.data({2, 5, 3, 4}), {}, reduction)};
      });
      add("weighted binary cross entropy", [=](Trial& trial) -> Tensors {
        return {at::binary_cross_entropy(x(trial), trial.data({2, 5, 3, 4}),
                                         trial.data({2, 5, 3, 4}), reduction)};
      });
      add("binary cross entropy of logits", [=](Trial& trial) -> Tensors {
        return {at::binary_cross_entropy_with_logits(x(trial), trial.data({2, 5, 3, 4}),
                                                     trial.data({4}), trial.data({4}), reduction)};
      });
      add("kl", [=](Trial& trial) -> Tensors {
        return {at::kl_div(x(trial), trial.data({2, 5, 3, 4}), reduction)};
      });
      add("poisson", [=](Trial& trial) -> Tensors {
        return {
            at::poisson_nll_loss(x(trial), trial.data({2, 5, 3, 4}), true, true, 1e-8, reduction)};
      });
      add("soft margin", [=](Trial& trial) -> Tensors {
        return {at::soft_margin_loss(x(trial), trial.data({2, 5, 3, 4}), reduction)};
      });
      add("hinge embedding", [=](Trial& trial) -> Tensors {
        return {at::hinge_embedding_loss(x(trial), trial.data({2, 5, 3, 4}), 1.0, reduction)};
      });
      add("cross entropy of pixels", [=](Trial& trial) -> Tensors {
        return {at::cross_entropy_loss(x(trial), trial.integers(5, {2, 3, 4}), trial.data({5}),
                                       reduction)};
      });
    }
    for (const double smoothing : {0.0, 0.1}) {
      for (const bool weighted : {false, true}) {
        add(c10::str("cross entropy", smoothing, weighted), [=](Trial& trial) -> Tensors {
          return {at::cross_entropy_loss(trial.leaf({6, 5}), trial.integers(5, {6}),
                                         weighted ? trial.data({5}) : at::Tensor(), reduction, -100,
                                         smoothing)};
        });
      }
    }
    add("cross entropy of probabilities", [=](Trial& trial) -> Tensors {
      return {at::cross_entropy_loss(trial.leaf({6, 5}), trial.data({6, 5}), {}, reduction)};
    });
    add("cross entropy without batch", [=](Trial& trial) -> Tensors {
      return {at::cross_entropy_loss(trial.leaf({5}), trial.integers(5, {}), {}, reduction)};
    });
    add("cross entropy of sequences", [=](Trial& trial) -> Tensors {
      return {
          at::cross_entropy_loss(trial.leaf({6, 5, 7}), trial.integers(5, {6, 7}), {}, reduction)};
    });
    add("nll", [=](Trial& trial) -> Tensors {
      return {at::nll_loss(trial.leaf({6, 5}), trial.integers(5, {6}), {}, reduction)};
    });
    add("multi margin", [=](Trial& trial) -> Tensors {
      return {
          at::multi_margin_loss(trial.leaf({6, 5}), trial.integers(5, {6}), 1, 1, {}, reduction)};
    });
    add("multilabel margin", [=](Trial& trial) -> Tensors {
      return {at::multilabel_margin_loss(trial.leaf({6, 5}), trial.integers(5, {6, 5}), reduction)};
    });
    add("cosine embedding", [=](Trial& trial) -> Tensors {
      return {at::cosine_embedding_loss(trial.leaf({6, 5}), trial.leaf({6, 5}), trial.data({6}),
                                        0.0, reduction)};
    });
    add("margin ranking", [=](Trial& trial) -> Tensors {
      return {at::margin_ranking_loss(trial.leaf({6}), trial.leaf({6}), trial.data({6}), 0.0,
                                      reduction)};
    });
    add("triplet margin", [=](Trial& trial) -> Tensors {
      return {at::triplet_margin_loss(trial.leaf({6, 5}), trial.leaf({6, 5}), trial.leaf({6, 5}),
                                      1.0, 2.0, 1e-6, false, reduction)};
    });
  }
  // These cases call the operators themselves, to compare the tensors that are kept for the
  // backward.
  for (const int64_t reduction : {at::Reduction::None, at::Reduction::Mean}) {
    cases.push_back({"nll of pixels", [=](Trial& trial) -> Tensors {
                       const auto [loss, weight] = at::nll_loss2d_forward(
                           trial.leaf({2, 5, 3, 4}), trial.integers(5, {2, 3, 4}), {}, reduction,
                           -100);
                       return {loss, weight.detach()};
                     }});
    cases.push_back({"multilabel margin", [=](Trial& trial) -> Tensors {
                       const auto [loss, is_target] = at::multilabel_margin_loss_forward(
                           trial.leaf({6, 5}), trial.integers(5, {6, 5}), reduction);
                       return {loss, is_target.detach()};
                     }});
  }
  expect_same_on_meta(cases);
}

}  // namespace
}  // namespace gpipe
