// Plans of models whose base is frozen.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>

#include "balance/memory/memory_plan.h"
#include "balance/memory/optimizer_flag.h"
#include "meta/meta_scope.h"
#include "models/lora.h"
#include "models/transformer.h"

namespace gpipe::balance {
namespace {

MemoryPlan plan_of(bool adapters, bool dora = false) {
  const MetaScope meta;
  const auto options = models::TransformerOptions(models::TransformerKind::kLlama)
                           .vocab_size(64)
                           .num_layers(3)
                           .hidden_size(128)
                           .num_heads(4)
                           .intermediate_size(256);
  torch::nn::Sequential model = models::transformer(options);
  if (adapters) {
    models::add_lora(*model, options,
                     models::LoraOptions({"q_proj", "up_proj"}).rank(4).dora(dora));
  }
  const at::Tensor ids = at::empty({8, 32}, at::TensorOptions(at::kMeta).dtype(at::kLong));
  const auto loss = [](const Tensors& outputs, const Tensors& targets) {
    return at::cross_entropy_loss(outputs.at(0).flatten(0, 1), targets.at(0).flatten());
  };
  return memory_plan(model, {ids}, {ids}, loss,
                     MemoryPlanOptions({4, 5})
                         .chunks(4)
                         .checkpoint(Checkpoint::kNever)
                         .optimizer(parse_optimizer("adam")));
}

TEST(FrozenPlan, HasGradientsAndStatesOfWhatTrainsAlone) {
  for (const bool dora : {false, true}) {
    const MemoryPlan plan = plan_of(true, dora), full = plan_of(false);
    ASSERT_EQ(plan.devices.size(), 2);
    // q_proj has 4 * (128 + 128) and up_proj 4 * (128 + 256) numbers of four bytes; with DoRA also
    // one length for each row. The first stage has two attentions and the MLP between them, the
    // second stage has two MLPs and the attention between them.
    const int64_t queries = 4 * (4 * (128 + 128) + (dora ? 128 : 0)),
                  up = 4 * (4 * (128 + 256) + (dora ? 256 : 0));
    const int64_t trained[] = {2 * queries + up, queries + 2 * up};
    for (size_t k = 0; k < 2; ++k) {
      const DeviceMemory &device = plan.devices[k], &of_all = full.devices[k];
      EXPECT_EQ(device.gradients, trained[k]);
      EXPECT_EQ(device.optimizer_state, 2 * trained[k]);
      EXPECT_EQ(device.parameters, of_all.parameters + trained[k]);
      EXPECT_EQ(of_all.gradients, of_all.parameters);
      // Products with frozen weights do not keep their inputs, so activations take less memory than
      // in full training.
      if (!dora) {
        EXPECT_LT(device.peak.of(MemoryUse::kActivations), of_all.peak.of(MemoryUse::kActivations));
      }
    }
  }
}

}  // namespace
}  // namespace gpipe::balance
