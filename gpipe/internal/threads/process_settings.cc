#include "gpipe/internal/threads/process_settings.h"

#include <ATen/Context.h>
#include <c10/core/DefaultDtype.h>

#include <cstddef>

namespace gpipe::internal {

std::vector<ProcessSetting> process_settings() {
  at::Context& context = at::globalContext();
  constexpr const char* kPrecision = "setFloat32MatmulPrecision() or setFloat32Precision()";
  constexpr const char* kAttention = "setSDPUse...() (Python: sdpa_kernel())";
  constexpr const char* kReductions = "setAllow...()";
  constexpr bool kOnlyCuda = true;
  std::vector<ProcessSetting> settings = {
      {"torch::set_default_dtype()", static_cast<int64_t>(c10::get_default_dtype_as_scalartype())},
      {"setDeterministicAlgorithms()", context.deterministicAlgorithms()},
      {"setUserEnabledMkldnn()", context.userEnabledMkldnn()},
      {"setUserEnabledNNPACK()", context.userEnabledNNPACK()},
      {"setUserEnabledCuDNN()", context.userEnabledCuDNN(), kOnlyCuda},
      {"setBenchmarkCuDNN()", context.benchmarkCuDNN(), kOnlyCuda},
      {"setDeterministicCuDNN()", context.deterministicCuDNN(), kOnlyCuda},
      {kReductions, context.allowFP16AccumulationCuBLAS(), kOnlyCuda},
      {kReductions, context.allowFP16BF16ReductionMathSDP()},
      {kReductions, static_cast<int64_t>(context.allowFP16ReductionCuBLAS()), kOnlyCuda},
      {kReductions, static_cast<int64_t>(context.allowBF16ReductionCuBLAS()), kOnlyCuda},
      {kReductions, context.allowFP16ReductionCPU()},
      {kAttention, context.userEnabledFlashSDP()},
      {kAttention, context.userEnabledMemEfficientSDP()},
      {kAttention, context.userEnabledMathSDP()},
      {kAttention, context.userEnabledCuDNNSDP()},
      {kAttention, context.userEnabledOverrideableSDP()},
      {kAttention, context.userEnabledFA3SDP()},
      {"setBlasPreferredBackend()", static_cast<int64_t>(context.blasPreferredBackend())},
      {"setLinalgPreferredBackend()", static_cast<int64_t>(context.linalgPreferredBackend())},
  };
  for (const at::SDPBackend backend : context.sDPPriorityOrder()) {
    settings.push_back({kAttention, static_cast<int64_t>(backend)});
  }
  // Any of these may turn TF32 on, or products in bfloat16.
  for (const at::Float32Backend backend : {at::Float32Backend::CUDA, at::Float32Backend::MKLDNN}) {
    for (const at::Float32Op op :
         {at::Float32Op::ALL, at::Float32Op::CONV, at::Float32Op::RNN, at::Float32Op::MATMUL}) {
      settings.push_back({kPrecision, static_cast<int64_t>(context.float32Precision(backend, op))});
    }
  }
  return settings;
}

const char* first_change(const std::vector<ProcessSetting>& before,
                         const std::vector<ProcessSetting>& now, bool on_cuda) {
  for (size_t k = 0; k < before.size() && k < now.size(); ++k) {
    if (before[k].value != now[k].value && (on_cuda || !now[k].only_cuda)) return now[k].name;
  }
  return nullptr;
}

}  // namespace gpipe::internal
