#include "balance/memory/plan_uncertainty.h"

#include <algorithm>
#include <utility>

namespace gpipe::balance {
namespace {

struct Known {
  c10::DeviceType device;
  // Beginnings of operators' names after "aten::", or "=" and a whole name; one match is enough.
  std::vector<std::string> beginnings;
  Uncertainty uncertainty;
};

const std::vector<Known>& known() {
  static const auto* const all = new std::vector<Known>{
      {c10::kCPU,
       {"convolution"},
       {"convolutions", MeasuredRange{1.00, 2.98},
        "oneDNN's copies while they run, which depend on the processor: most in small networks and "
        "Conv3d"}},
      {c10::kCPU,
       {"gru", "rnn_"},
       {"GRU and plain recurrent layers", MeasuredRange{0.91, 1.05},
        "temporary tensors of their steps"}},
      {c10::kCPU,
       {"lstm"},
       {"LSTM", MeasuredRange{0.85, 1.08},
        "oneDNN's copies of weights while it runs: fewest in small layers with few steps"}},
      {c10::kCPU,
       {"mkldnn_rnn_layer(bfloat16)"},
       {"LSTM in bfloat16", MeasuredRange{0.73, 1.23}, "oneDNN's buffers are planned as float32"}},
      {c10::kCPU,
       {"mm(", "addmm(", "bmm(", "baddbmm(", "mv(", "addmv("},
       {"products in lower precision", MeasuredRange{1.00, 1.65},
        "temporary memory of kernels, which depends on the processor: most in small layers "
        "and with inputs of three dimensions"}},
      {c10::kCPU,
       {"mkldnn_rnn_layer(float16)", "lstm(", "gru(", "rnn_tanh(", "rnn_relu(", "convolution("},
       {"convolutions and recurrent layers in lower precision", std::nullopt,
        "kernels for it copy their inputs and outputs"}},
      {c10::kCPU,
       {"upsample_"},
       {"upsampling", MeasuredRange{1.00, 1.48},
        "copies, and tables of weights, while it runs: most where sizes stay as they are"}},
      {c10::kCPU,
       {"_scaled_dot_product_flash_attention_for_cpu"},
       {"fused attention", std::nullopt, "a block of the weights for each thread while it runs"}},
      {c10::kCPU,
       {"=index", "=maximum", "=minimum", "=cummax", "=cummin", "=quantile",
        "=binary_cross_entropy_with_logits"},
       {"gradients of index, maximum, cummax, quantile, binary cross entropy of logits",
        MeasuredRange{0.58, 1.00}, "LibTorch makes more tensors for them on meta than on devices"}},
      {c10::kCPU,
       {"=amax", "=amin", "=kthvalue", "=prod", "=nan_to_num", "=binary_cross_entropy", "=im2col",
        "=col2im", "=_embedding_bag"},
       {"amax, kthvalue, prod, nan_to_num, binary cross entropy, Unfold, Fold, EmbeddingBag",
        MeasuredRange{1.00, 2.23}, "temporary memory of kernels: most in Unfold and Fold"}},
      {c10::kCUDA,
       {"convolution"},
       {"convolutions", MeasuredRange{0.93, 1.15},
        "workspaces of cuDNN; published tables of whole networks"}},
      {c10::kCUDA,
       {"lstm", "gru", "rnn_"},
       {"recurrent layers", std::nullopt,
        "cuDNN keeps one buffer for all gates, the plan every gate of every step"}},
      {c10::kCUDA,
       {"_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"},
       {"fused attention", std::nullopt,
        "planned for GPUs from the A100 on; temporary memory of kernels is estimated"}},
      {c10::kCUDA,
       {"_scaled_dot_product_attention_math"},
       {"attention that is not fused", std::nullopt,
        "other GPUs, or cuDNN, may fuse it and then keep no matrix of weights"}},
  };
  return *all;
}

bool runs(const std::set<std::string>& operators, const std::string& beginning) {
  if (beginning.front() == '=') return operators.count("aten::" + beginning.substr(1)) > 0;
  const std::string name = "aten::" + beginning;
  const auto first = operators.lower_bound(name);
  return first != operators.end() && first->compare(0, name.size(), name) == 0;
}

}  // namespace

std::vector<Uncertainty> uncertainties(const std::set<std::string>& operators,
                                       c10::DeviceType device) {
  std::vector<Uncertainty> result;
  for (const Known& each : known()) {
    const bool any =
        std::any_of(each.beginnings.begin(), each.beginnings.end(),
                    [&](const std::string& beginning) { return runs(operators, beginning); });
    if (each.device == device && any) result.push_back(each.uncertainty);
  }
  return result;
}

}  // namespace gpipe::balance
