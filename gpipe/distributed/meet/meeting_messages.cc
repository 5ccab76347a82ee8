#include "gpipe/distributed/meet/meeting_messages.h"

#include <tuple>

#include "gpipe/runtime/bytes.h"

namespace gpipe::distributed {

static auto fields(Question& question) {
  return std::tie(question.secret, question.protocol, question.number, question.first_limit,
                  question.limit, question.process, question.multiple_of, question.silent);
}
static auto fields(PlannedWorld& world) {
  return std::tie(world.rank, world.port, world.local_rank, world.came_from);
}

std::string to_bytes(const Question& question) { return internal::to_bytes(question); }
std::string to_bytes(const PlannedWorld& world) { return internal::to_bytes(world); }

Question to_question(const std::string& bytes) {
  constexpr char kWhat[] = "a question for the next world";
  internal::ByteReader reader(bytes, kWhat);
  Question other;
  other.secret = reader.get<std::string>();
  try {
    other.protocol = reader.get<std::string>();
  } catch (const internal::DamagedMessage&) {
    other.protocol.clear();
  }
  if (other.protocol == kMeetingProtocol) return internal::from_bytes<Question>(bytes, kWhat);
  // Where newer forms have their name, the oldest one has a number.
  if (other.protocol.rfind("gpipe meeting ", 0) != 0) other.protocol.clear();
  return other;
}

PlannedWorld to_planned_world(const std::string& bytes) {
  auto world = internal::from_bytes<PlannedWorld>(bytes, "the plan of a world");
  world.size = static_cast<int64_t>(world.came_from.size());
  return world;
}

}  // namespace gpipe::distributed
