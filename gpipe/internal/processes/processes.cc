#include "gpipe/internal/processes/processes.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "gpipe/internal/threads/inside_pipeline.h"

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
  const uint64_t length = value.size();
  std::string first(reinterpret_cast<const char*>(&length), sizeof length);
  size_t sent = std::min(value.size(), piece - sizeof length);
  first.append(value, 0, sent);
  std::vector<std::string> values(count);
  std::vector<uint64_t> lengths(count);
  const std::vector<std::string> firsts = processes.exchange(name, first, is_patient);
  for (size_t rank = 0; rank < count; ++rank) {
    const std::string& message = firsts.at(rank);
    if (message.size() < sizeof length) {
      throw std::invalid_argument(name + ": the message of rank " + std::to_string(rank) +
                                  " has no length");
    }
    std::memcpy(&lengths[rank], message.data(), sizeof length);
    values[rank] = message.substr(sizeof length);
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
