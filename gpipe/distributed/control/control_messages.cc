#include "gpipe/distributed/control/control_messages.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "gpipe/distributed/sockets/bytes.h"

namespace gpipe::distributed {
namespace {

// By this text a rank recognizes programs that are not ours, or that have another version of the
// protocol.
constexpr const char* kProtocol = "gpipe control 4";

enum AgreeFlags : uint8_t { kCollected = 1, kPatient = 2 };

// Writes numbers and texts, one after the other.
template <typename... Values>
void write_all(ByteWriter& writer, const Values&... values) {
  const auto write = [&](const auto& value) {
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(value)>>) {
      writer.number(value);
    } else {
      writer.text(value);
    }
  };
  (write(values), ...);
}

void write(ByteWriter& writer, const Fault& fault) {
  write_all(writer, static_cast<uint8_t>(fault.kind), fault.rank, fault.host, fault.stage,
            fault.micro_batch, fault.layer, fault.text);
}

Frame frame_of(MessageType type, uint32_t epoch, ByteWriter writer) {
  return {static_cast<uint8_t>(type), epoch, writer.take()};
}

// The frame of a message that is only numbers and texts.
template <typename... Values>
Frame flat_frame(MessageType type, uint32_t epoch, const Values&... values) {
  ByteWriter writer;
  write_all(writer, values...);
  return frame_of(type, epoch, std::move(writer));
}

Fault read_fault(ByteReader& reader, int64_t size) {
  Fault fault;
  const auto kind = reader.number<uint8_t>();
  if (kind > static_cast<uint8_t>(FaultKind::kSilence)) {
    throw DamagedMessage("there is no fault of kind " + std::to_string(kind));
  }
  fault.kind = static_cast<FaultKind>(kind);
  fault.rank = reader.number<int64_t>();
  if (fault.rank < 0 || fault.rank >= size) {
    throw DamagedMessage("there is no rank " + std::to_string(fault.rank));
  }
  fault.host = reader.text();
  fault.stage = reader.number<int64_t>();
  fault.micro_batch = reader.number<int64_t>();
  fault.layer = reader.text();
  fault.text = reader.text();
  return fault;
}

// Calls `read` and checks that it has read the whole body.
template <typename Read>
auto read_all(std::string_view body, Read read) {
  ByteReader reader(body);
  auto result = read(reader);
  reader.end();
  return result;
}

}  // namespace

Frame to_frame(const Hello& hello, uint32_t epoch) {
  return flat_frame(MessageType::kHello, epoch, kProtocol, hello.token, hello.rank, hello.size,
                    hello.host);
}

Frame to_frame(const Welcome& welcome, uint32_t epoch) {
  return flat_frame(MessageType::kWelcome, epoch, welcome.rank, welcome.host);
}

Frame to_frame(const FaultMessage& message, uint32_t epoch) {
  ByteWriter writer;
  writer.number(static_cast<int64_t>(message.age.count()));
  write(writer, message.fault);
  return frame_of(MessageType::kFault, epoch, std::move(writer));
}

Frame to_frame(const std::vector<Fault>& record, uint32_t epoch) {
  ByteWriter writer;
  writer.number(static_cast<uint32_t>(record.size()));
  for (const Fault& fault : record) write(writer, fault);
  return frame_of(MessageType::kRecord, epoch, std::move(writer));
}

Frame to_frame(const Agree& agree, uint32_t epoch) {
  const auto flags = static_cast<uint8_t>((agree.is_collected ? kCollected : 0) |
                                          (agree.is_patient ? kPatient : 0));
  return flat_frame(MessageType::kAgree, epoch, agree.number, agree.name, agree.value, agree.call,
                    flags);
}

Frame to_frame(const Verdict& verdict, uint32_t epoch) {
  ByteWriter writer;
  writer.number(verdict.number);
  writer.text(verdict.text);
  writer.number(static_cast<uint64_t>(verdict.values.size()));
  for (const std::string& value : verdict.values) writer.text(value);
  writer.number(verdict.given_up);
  return frame_of(MessageType::kVerdict, epoch, std::move(writer));
}

Frame to_frame(const Bye& bye, uint32_t epoch) {
  return flat_frame(MessageType::kBye, epoch, bye.calls, bye.agrees);
}

Frame to_frame(const GivenUp& given_up, uint32_t epoch) {
  return flat_frame(MessageType::kGivenUp, epoch, given_up.call, given_up.text);
}

Frame to_frame(MessageType type, uint32_t epoch) { return frame_of(type, epoch, ByteWriter()); }

std::size_t longest_collected(const std::string& name, int64_t size) {
  // kAll is smaller than the largest message, because the other fields of a Verdict or an Agree
  // need room, too.
  constexpr std::size_t kAll = 1 << 20;
  const std::size_t each = (kAll - std::min(kAll, name.size())) / static_cast<std::size_t>(size);
  return each - std::min(each, sizeof(uint64_t));  // each value is preceded by its size
}

Hello to_hello(std::string_view body) {
  return read_all(body, [](ByteReader& reader) {
    if (reader.text() != kProtocol) throw DamagedMessage("the other end speaks another protocol");
    Hello hello;
    hello.token = reader.text();
    hello.rank = reader.number<int64_t>();
    hello.size = reader.number<int64_t>();
    hello.host = reader.text();
    return hello;
  });
}

Welcome to_welcome(std::string_view body) {
  return read_all(body, [](ByteReader& reader) {
    Welcome welcome;
    welcome.rank = reader.number<int64_t>();
    welcome.host = reader.text();
    return welcome;
  });
}

FaultMessage to_fault(std::string_view body, int64_t size) {
  return read_all(body, [&](ByteReader& reader) {
    FaultMessage message;
    message.age = std::chrono::microseconds(reader.number<int64_t>());
    // No fault is half an hour old. A greater age is a damaged number, which could overflow a time.
    if (message.age.count() < 0 || message.age > std::chrono::minutes(30)) {
      throw DamagedMessage("a fault is " + std::to_string(message.age.count()) + " us old");
    }
    message.fault = read_fault(reader, size);
    return message;
  });
}

std::vector<Fault> to_record(std::string_view body, int64_t size) {
  return read_all(body, [&](ByteReader& reader) {
    const auto count = reader.number<uint32_t>();
    // A fault takes more than one byte, so a record of more faults than bytes is damaged.
    if (count == 0 || count > reader.left()) {
      throw DamagedMessage("a record of " + std::to_string(count) + " faults in " +
                           std::to_string(reader.left()) + " bytes");
    }
    std::vector<Fault> record;
    for (uint32_t i = 0; i < count; ++i) record.push_back(read_fault(reader, size));
    return record;
  });
}

Agree to_agree(std::string_view body) {
  return read_all(body, [](ByteReader& reader) {
    Agree agree;
    agree.number = reader.number<uint64_t>();
    agree.name = reader.text();
    agree.value = reader.text();
    agree.call = reader.number<uint64_t>();
    const auto flags = reader.number<uint8_t>();
    if (flags > (kCollected | kPatient))
      throw DamagedMessage("a comparison has marks that do not exist");
    agree.is_collected = (flags & kCollected) != 0;
    agree.is_patient = (flags & kPatient) != 0;
    return agree;
  });
}

Verdict to_verdict(std::string_view body, int64_t size) {
  return read_all(body, [&](ByteReader& reader) {
    Verdict verdict;
    verdict.number = reader.number<uint64_t>();
    verdict.text = reader.text();
    const auto count = reader.number<uint64_t>();
    if (count != 0 && (count != static_cast<uint64_t>(size) || !verdict.text.empty())) {
      throw DamagedMessage(std::to_string(count) + " values of " + std::to_string(size) + " ranks");
    }
    for (uint64_t i = 0; i < count; ++i) verdict.values.push_back(reader.text());
    verdict.given_up = reader.number<uint64_t>();
    return verdict;
  });
}

Bye to_bye(std::string_view body) {
  return read_all(body, [](ByteReader& reader) {
    Bye bye;
    bye.calls = reader.number<uint64_t>();
    bye.agrees = reader.number<uint64_t>();
    return bye;
  });
}

GivenUp to_given_up(std::string_view body) {
  return read_all(body, [](ByteReader& reader) {
    GivenUp given_up;
    given_up.call = reader.number<uint64_t>();
    given_up.text = reader.text();
    return given_up;
  });
}

}  // namespace gpipe::distributed
