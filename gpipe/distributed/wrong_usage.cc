#include "gpipe/distributed/wrong_usage.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "gpipe/distributed/control/agreement.h"
#include "gpipe/distributed/error_file.h"
#include "gpipe/distributed/meet/environment.h"
#include "gpipe/internal/processes/processes.h"

namespace gpipe::distributed {

std::string wrong_usage_text(const std::vector<std::string>& of_ranks) {
  std::vector<std::pair<std::string, std::string>> texts;  // each text, and the ranks that have it
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    if (of_ranks[rank].empty()) continue;
    const auto same = [&](const auto& text) { return text.first == of_ranks[rank]; };
    const auto known = std::find_if(texts.begin(), texts.end(), same);
    if (known == texts.end()) {
      texts.emplace_back(of_ranks[rank], "rank " + std::to_string(rank));
    } else {
      known->second += ", " + std::to_string(rank);
    }
  }
  const bool all = std::all_of(of_ranks.begin(), of_ranks.end(),
                               [&](const std::string& text) { return text == of_ranks.front(); });
  if (texts.empty() || all) return of_ranks.front();
  std::string result;
  for (const auto& [text, ranks] : texts) {
    result += (result.empty() ? "" : "\n") + ranks + ": " + text;
  }
  return result;
}

std::vector<std::string> settings_of_ranks(const World& world, const std::string& own) {
  internal::Processes* const processes = world.processes().get();
  if (processes == nullptr) return {own};
  return internal::in_call(
      processes, [&] { return internal::exchange_long(*processes, "the settings", own); });
}

std::string wrong_usage(const World& world, const std::string& own) {
  internal::Processes* const processes = world.processes().get();
  if (processes == nullptr) return own;
  const auto compare = [&] {
    return wrong_usage_text(internal::in_call(processes, [&] {
      return internal::exchange_long(*processes, "what is wrong with the flags", own,
                                     /*is_patient=*/true);
    }));
  };
  std::string result;
  try {
    result = compare();
  } catch (const Disagreement&) {
    if (own.empty()) throw;
    // Some ranks were in another call, which has thrown the same Disagreement there. They call
    // wrong_usage() next, so this rank calls again, too.
    result = compare();
  }
  if (!result.empty()) ErrorFile(environment_of_this_process().error_file).write(result);
  return result;
}

}  // namespace gpipe::distributed
