#include "examples/common/bits.h"

#include <zlib.h>

#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "gpipe/distributed/wrong_usage.h"

namespace examples {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kSchedule[] = "schedule", kThreads[] = "threads";

// The value as a user writes it in a flag, which means without the quotes of JSON.
std::string value_text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string as_flag(const BitsDifference::Flag& flag) {
  // If the saved value stands for the content of a file (content_of), the user must give the same
  // file.
  if (absl::StrContains(flag.saved, ", CRC-32 ")) return "the same --" + flag.name;
  if (flag.name == kSchedule) return "a --schedule with the order of the checkpoint's";
  if (flag.name == "groups" && flag.saved == "none")
    return "no --groups and no --replicas, of which each is a group";
  if (flag.saved == "true") return "--" + flag.name;
  if (flag.saved == "false") return "--no" + flag.name;
  return "--" + flag.name + "=" + flag.saved;
}

bool is_same(const std::string& name, const Json& saved, const Json& now) {
  // A number of 0 means that the run has no stage on the CPU. On accelerators the number of threads
  // changes no bit.
  if (name == kThreads && (saved == 0 || now == 0)) return true;
  return saved == now;
}

}  // namespace

std::string content_of(const std::string& text) {
  const uLong checksum =
      crc32_z(crc32_z(0, nullptr, 0), reinterpret_cast<const Bytef*>(text.data()), text.size());
  return absl::StrFormat("%d bytes, CRC-32 %08x", text.size(), checksum);
}

BitsDifference compare_bits(const std::string& saved, const std::string& now) {
  const Json then = Json::parse(saved, nullptr, /*allow_exceptions=*/false);
  if (!then.is_object()) {
    throw std::runtime_error("the checkpoint's settings are not those of this program: " + saved);
  }
  const Json here = Json::parse(now);
  BitsDifference difference;
  for (const auto& [name, value] : here.items()) {
    const auto found = then.find(name);
    if (found == then.end()) {
      difference.unknown.push_back(name);
    } else if (!is_same(name, *found, value)) {
      difference.flags.push_back({name, value_text(*found), value_text(value)});
    }
  }
  for (const auto& [name, value] : then.items()) {
    if (!here.contains(name)) difference.unknown.push_back(name);
  }
  return difference;
}

std::string to_text(const BitsDifference& difference) {
  return absl::StrJoin(difference.flags, "\n", [](std::string* out, const auto& flag) {
    absl::StrAppendFormat(out, "  --%s: %s in the checkpoint, %s now", flag.name, flag.saved,
                          flag.now);
  });
}

std::string flags_of_saved(const BitsDifference& difference) {
  return absl::StrJoin(difference.flags, " ",
                       [](std::string* out, const auto& flag) { out->append(as_flag(flag)); });
}

std::string difference_of_ranks(const std::vector<std::string>& of_ranks) {
  std::set<std::string> said;
  std::vector<std::string> lines;
  for (size_t rank = 1; rank < of_ranks.size(); ++rank) {
    for (const auto& flag : compare_bits(of_ranks.front(), of_ranks[rank]).flags) {
      if (!said.insert(flag.name).second) continue;
      lines.push_back(
          absl::StrFormat("--%s must be the same on all ranks: rank 0 has %s, rank %d has %s",
                          flag.name, flag.saved, rank, flag.now));
    }
  }
  return absl::StrJoin(lines, "\n");
}

void expect_same_flags(const gpipe::World& processes, const std::string& flags) {
  const std::string difference =
      difference_of_ranks(gpipe::distributed::settings_of_ranks(processes, flags));
  if (!difference.empty()) throw std::invalid_argument(difference);
}

}  // namespace examples
