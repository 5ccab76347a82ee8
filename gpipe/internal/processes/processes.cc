#include "gpipe/internal/processes/processes.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "gpipe/internal/threads/inside_pipeline.h"
#include "gpipe/runtime/bytes.h"

namespace gpipe::internal {
namespace {

constexpr size_t kLongestMessage = 500'000;  // bytes, of all processes together

}  // namespace

void check_outside_of_pipelines(const char* what) {
  TORCH_CHECK_VALUE(
      !inside_pipeline(), what,
      " was called from inside a layer of a pipeline, its loss function, a hook or an observer, in "
      "the middle of a run; call it before or after the step, forward or evaluate that runs there");
}

void found_by_all(const std::string& what) {
  std::exception_ptr error;
  try {
    TORCH_CHECK_VALUE(false, what);
  } catch (...) {
    error = std::current_exception();
  }
  throw FoundByAll{error};
}

std::vector<std::string> exchange_long(Processes& processes, const std::string& name,
                                       const std::string& value, bool is_patient) {
  const auto count = static_cast<size_t>(processes.size());
  const size_t piece = std::max<size_t>(kLongestMessage / count, 2 * sizeof(uint64_t));
  // The first message begins with the length of the whole, so all processes know how many messages
  // follow.
  const std::string length = to_bytes(uint64_t{value.size()});
  size_t sent = std::min(value.size(), piece - length.size());
  std::vector<std::string> values(count);
  std::vector<uint64_t> lengths(count);
  const std::vector<std::string> firsts =
      processes.exchange(name, length + value.substr(0, sent), is_patient);
  for (size_t rank = 0; rank < count; ++rank) {
    ByteReader message(firsts.at(rank), name + ", the message of rank " + std::to_string(rank));
    lengths[rank] = message.get<uint64_t>();
    values[rank] = firsts[rank].substr(length.size());
  }
  const auto is_whole = [&] {
    for (size_t rank = 0; rank < count; ++rank) {
      if (values[rank].size() < lengths[rank]) return false;
    }
    return true;
  };
  for (int64_t number = 2; !is_whole(); ++number) {
    const size_t next = std::min(value.size() - sent, piece);
    const std::vector<std::string> messages = processes.exchange(
        name + ", message " + std::to_string(number), value.substr(sent, next), is_patient);
    sent += next;
    for (size_t rank = 0; rank < count; ++rank) values[rank] += messages.at(rank);
  }
  return values;
}

}  // namespace gpipe::internal
