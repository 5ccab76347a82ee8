#include "experiments/frame/edition.h"

#include "absl/flags/flag.h"
#include "command/wrong_value.h"

ABSL_FLAG(
    std::string, edition, "current",
    "The published table: current (v0.0.5), or 2019-06 (the older table, with older models).");

namespace gpipe::experiments {

Edition parse_edition(const std::string& text) {
  if (text == "current") return Edition::kCurrent;
  if (text == "2019-06") return Edition::kJune2019;
  throw command::wrong_value("edition", text, "give current or 2019-06");
}

std::string to_text(Edition edition) { return edition == Edition::kCurrent ? "" : "2019-06"; }

Edition edition_flag() { return parse_edition(absl::GetFlag(FLAGS_edition)); }

}  // namespace gpipe::experiments
