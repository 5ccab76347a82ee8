#include "gpipe/internal/cell/recompute_check.h"

#include "gpipe/internal/cell/late_checks.h"

namespace gpipe::internal {

std::vector<Fingerprint> fingerprints_of(const c10::SmallVector<Value, 1>& outputs) {
  std::vector<Fingerprint> fingerprints;
  for (const Value& output : outputs) {
    for (const at::Tensor& tensor : output.tensors) {
      if (tensor.defined() && tensor.requires_grad()) {
        fingerprints.push_back(Fingerprint::of(tensor));
      }
    }
  }
  return fingerprints;
}

bool is_same_recompute(const RunContext& run, int64_t stage, const std::vector<Fingerprint>& now,
                       const std::vector<Fingerprint>& in_forward) {
  bool same = now.size() == in_forward.size();
  at::Tensor differs;
  for (size_t k = 0; same && k < now.size(); ++k) {
    same = now[k].matches(in_forward[k]);
    const at::Tensor differs_here = now[k].differs(in_forward[k]);
    if (!differs_here.defined()) continue;
    // The results on one device are combined. If a layer has moved its output to another device,
    // the results on that device are checked separately.
    const bool first = !differs.defined() || differs.device() != differs_here.device();
    if (first && differs.defined()) run.late_checks.add(stage, differs, run.transfers);
    differs = first ? differs_here : differs.logical_or(differs_here);
  }
  if (differs.defined()) run.late_checks.add(stage, differs, run.transfers);
  return same;
}

}  // namespace gpipe::internal
