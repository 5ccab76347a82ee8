#include "gpipe/distributed/meet/meeting_messages.h"

#include "gpipe/distributed/sockets/bytes.h"

namespace gpipe::distributed {

std::string to_bytes(const Question& question) {
  ByteWriter writer;
  writer.text(question.secret);
  writer.number(question.number);
  writer.number(static_cast<int64_t>(question.first_limit.count()));
  writer.number(static_cast<int64_t>(question.limit.count()));
  writer.text(question.process);
  writer.number(question.multiple_of);
  for (const int64_t rank : question.silent) writer.number(rank);
  return writer.take();
}

Question to_question(const std::string& bytes) {
  ByteReader reader(bytes);
  Question question;
  question.secret = reader.text();
  question.number = reader.number<int64_t>();
  question.first_limit = std::chrono::milliseconds(reader.number<int64_t>());
  question.limit = std::chrono::milliseconds(reader.number<int64_t>());
  question.process = reader.text();
  question.multiple_of = reader.number<int64_t>();
  while (reader.left() > 0) question.silent.push_back(reader.number<int64_t>());
  return question;
}

std::string to_bytes(const PlannedWorld& world) {
  ByteWriter writer;
  writer.number(world.rank);
  writer.number(world.port);
  writer.number(world.local_rank);
  for (const int64_t rank : world.came_from) writer.number(rank);
  return writer.take();
}

PlannedWorld to_planned_world(const std::string& bytes) {
  ByteReader reader(bytes);
  PlannedWorld world;
  world.rank = reader.number<int64_t>();
  world.port = reader.number<int64_t>();
  world.local_rank = reader.number<int64_t>();
  while (reader.left() > 0) world.came_from.push_back(reader.number<int64_t>());
  world.size = static_cast<int64_t>(world.came_from.size());
  return world;
}

}  // namespace gpipe::distributed
