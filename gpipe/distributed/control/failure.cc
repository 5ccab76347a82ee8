#include "gpipe/distributed/control/failure.h"

#include <utility>

namespace gpipe::distributed {
namespace {

const char* verb(FaultKind kind) {
  switch (kind) {
    case FaultKind::kException:
      return " threw";
    case FaultKind::kDeath:
      return " is gone";
    case FaultKind::kLeft:
      return " left";
    case FaultKind::kSilence:
      return " is silent";
  }
  return " failed";
}

std::string to_text(const std::vector<Fault>& faults) {
  std::string text;
  for (const Fault& fault : faults) {
    text += (text.empty() ? "" : "\nalso: ") + to_text(fault);
  }
  return text;
}

}  // namespace

std::string to_text(const Fault& fault) {
  std::string text = "rank " + std::to_string(fault.rank);
  if (!fault.host.empty()) text += " (" + fault.host + ")";
  text += verb(fault.kind);
  const char* separator = " in ";
  const auto place = [&](const std::string& what) {
    text += std::exchange(separator, ", ") + what;
  };
  if (fault.stage >= 0) place("stage " + std::to_string(fault.stage));
  if (fault.micro_batch >= 0) place("micro-batch " + std::to_string(fault.micro_batch));
  if (!fault.layer.empty()) place(fault.layer);
  return text + ": " + fault.text;
}

std::ostream& operator<<(std::ostream& out, const Fault& fault) { return out << to_text(fault); }

DistributedFailure::DistributedFailure(std::vector<Fault> faults)
    : std::runtime_error(to_text(faults)), faults_(std::move(faults)) {}

}  // namespace gpipe::distributed
