#include "gpipe/distributed/meet/meeting_messages.h"

#include <tuple>

#include "gpipe/runtime/bytes.h"

namespace gpipe::distributed {

static auto fields(Question& question) {
  return std::tie(question.secret, question.number, question.first_limit, question.limit,
                  question.process, question.multiple_of, question.silent);
}
static auto fields(PlannedWorld& world) {
  return std::tie(world.rank, world.port, world.local_rank, world.came_from);
}

std::string to_bytes(const Question& question) { return internal::to_bytes(question); }
std::string to_bytes(const PlannedWorld& world) { return internal::to_bytes(world); }

Question to_question(const std::string& bytes) {
  return internal::from_bytes<Question>(bytes, "a question for the next world");
}

PlannedWorld to_planned_world(const std::string& bytes) {
  auto world = internal::from_bytes<PlannedWorld>(bytes, "the plan of a world");
  world.size = static_cast<int64_t>(world.came_from.size());
  return world;
}

}  // namespace gpipe::distributed
