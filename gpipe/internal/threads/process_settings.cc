#include "gpipe/internal/threads/process_settings.h"

#include <ATen/Context.h>
#include <c10/core/DefaultDtype.h>

#include <cstddef>
#include <type_traits>

namespace gpipe::internal {
namespace {

constexpr bool kOnlyCuda = true;
constexpr bool kOperatorsSet = true;

// Adds a setting of CUDA that not all versions of LibTorch have. `get` takes an at::Context.
template <typename Get>
void add_if_known(std::vector<ProcessSetting>& settings, const char* name, const Get& get) {
  if constexpr (std::is_invocable_v<Get, at::Context&>) {
    settings.push_back({name, static_cast<int64_t>(get(at::globalContext())), kOnlyCuda});
  }
}

}  // namespace

std::vector<ProcessSetting> process_settings() {
  at::Context& context = at::globalContext();
  constexpr const char* kPrecision = "setFloat32MatmulPrecision() or setFloat32Precision()";
  constexpr const char* kAttention = "setSDPUse...() (Python: sdpa_kernel())";
  constexpr const char* kReductions = "setAllow...()";
  std::vector<ProcessSetting> settings = {
      {"torch::set_default_dtype()", static_cast<int64_t>(c10::get_default_dtype_as_scalartype())},
      {"setDeterministicAlgorithms()", context.deterministicAlgorithms()},
      {"setUserEnabledMkldnn()", context.userEnabledMkldnn()},
      {"setDeterministicMkldnn()", context.deterministicMkldnn()},
      {"setUserEnabledNNPACK()", context.userEnabledNNPACK()},
      {"setUserEnabledCuDNN()", context.userEnabledCuDNN(), kOnlyCuda},
      {"setBenchmarkCuDNN()", context.benchmarkCuDNN(), kOnlyCuda},
      {"setBenchmarkLimitCuDNN()", context.benchmarkLimitCuDNN(), kOnlyCuda},
      {"setDeterministicCuDNN()", context.deterministicCuDNN(), kOnlyCuda},
      {kReductions, context.allowFP16AccumulationCuBLAS(), kOnlyCuda},
      {kReductions, context.allowFP16BF16ReductionMathSDP()},
      {kReductions, static_cast<int64_t>(context.allowFP16ReductionCuBLAS()), kOnlyCuda},
      {kReductions, static_cast<int64_t>(context.allowBF16ReductionCuBLAS()), kOnlyCuda},
      {kReductions, context.allowFP16ReductionCPU()},
      {kAttention, context.userEnabledFlashSDP()},
      {kAttention, context.userEnabledMemEfficientSDP(), kOnlyCuda},
      {kAttention, context.userEnabledMathSDP()},
      {kAttention, context.userEnabledCuDNNSDP(), kOnlyCuda},
      {kAttention, context.userEnabledOverrideableSDP()},
      {kAttention, context.userEnabledFA3SDP(), kOnlyCuda},
      {"setBlasPreferredBackend()", static_cast<int64_t>(context.blasPreferredBackend()),
       kOnlyCuda},
      {"setLinalgPreferredBackend()", static_cast<int64_t>(context.linalgPreferredBackend()),
       kOnlyCuda},
  };
  // On some GPUs the first attention of the process puts cuDNN's first.
  for (const at::SDPBackend backend : context.sDPPriorityOrder()) {
    settings.push_back({kAttention, static_cast<int64_t>(backend), kOnlyCuda, kOperatorsSet});
  }
  add_if_known(settings, kAttention,
               [](auto& of) -> decltype(of.userEnabledFA4SDP()) { return of.userEnabledFA4SDP(); });
  add_if_known(
      settings, "setCuDNNDepthwiseKernel()",
      [](auto& of) -> decltype(of.cudnnDepthwiseKernel()) { return of.cudnnDepthwiseKernel(); });
  add_if_known(settings, "setPreferCublasltGroupedGemm()",
               [](auto& of) -> decltype(of.preferCublasltGroupedGemm()) {
                 return of.preferCublasltGroupedGemm();
               });
  add_if_known(settings, "setAllowNativeAot()",
               [](auto& of) -> decltype(of.allowNativeAot()) { return of.allowNativeAot(); });
  // Any of these may turn TF32 on, or products in bfloat16.
  for (const at::Float32Backend backend : {at::Float32Backend::CUDA, at::Float32Backend::MKLDNN}) {
    for (const at::Float32Op op :
         {at::Float32Op::ALL, at::Float32Op::CONV, at::Float32Op::RNN, at::Float32Op::MATMUL}) {
      settings.push_back({kPrecision, static_cast<int64_t>(context.float32Precision(backend, op)),
                          backend == at::Float32Backend::CUDA});
    }
  }
  return settings;
}

void take_what_operators_set(std::vector<ProcessSetting>& settings) {
  const std::vector<ProcessSetting> now = process_settings();
  for (size_t k = 0; k < settings.size() && k < now.size(); ++k) {
    if (now[k].operators_set) settings[k].value = now[k].value;
  }
}

const char* first_change(const std::vector<ProcessSetting>& before,
                         const std::vector<ProcessSetting>& now, bool on_cuda) {
  for (size_t k = 0; k < before.size() && k < now.size(); ++k) {
    if (before[k].value != now[k].value && (on_cuda || !now[k].only_cuda)) return now[k].name;
  }
  return nullptr;
}

}  // namespace gpipe::internal
