#include "gpipe/distributed/control/control_messages.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "gpipe/runtime/bytes.h"

namespace gpipe::distributed {

using internal::ByteReader;
using internal::ByteWriter;
using internal::DamagedMessage;
using internal::from_bytes;
using internal::to_bytes;

// The members of the messages, in the order in which they are sent.
static auto fields(Hello& hello) {
  return std::tie(hello.token, hello.rank, hello.size, hello.host);
}
static auto fields(Welcome& welcome) { return std::tie(welcome.rank, welcome.host); }
static auto fields(Fault& fault) {
  return std::tie(fault.kind, fault.rank, fault.host, fault.stage, fault.micro_batch, fault.layer,
                  fault.text);
}
static auto fields(FaultMessage& message) { return std::tie(message.age, message.fault); }
static auto fields(Agree& agree) {
  Agreement::Words& words = agree.words;
  return std::tie(agree.number, words.name, words.value, words.call, words.is_collected,
                  words.is_patient);
}
static auto fields(Verdict& verdict) {
  return std::tie(verdict.number, verdict.text, verdict.values, verdict.given_up);
}
static auto fields(Bye& bye) { return std::tie(bye.calls, bye.agrees); }
static auto fields(GivenUp& given_up) { return std::tie(given_up.call, given_up.text); }

namespace {

// By this text a rank recognizes programs that are not ours, or that have another version of the
// protocol.
constexpr const char* kProtocol = "gpipe control 5";

template <typename... Values>
Frame frame_of(MessageType type, uint32_t epoch, const Values&... values) {
  return {static_cast<uint8_t>(type), epoch, to_bytes(values...)};
}

void check(const Fault& fault, int64_t size) {
  if (fault.kind > FaultKind::kSilence) {
    throw DamagedMessage("there is no fault of kind " +
                         std::to_string(static_cast<int>(fault.kind)));
  }
  if (fault.rank < 0 || fault.rank >= size) {
    throw DamagedMessage("there is no rank " + std::to_string(fault.rank));
  }
}

}  // namespace

Frame to_frame(const Hello& hello, uint32_t epoch) {
  return frame_of(MessageType::kHello, epoch, kProtocol, hello);
}

Frame to_frame(const Welcome& welcome, uint32_t epoch) {
  return frame_of(MessageType::kWelcome, epoch, welcome);
}

Frame to_frame(const FaultMessage& message, uint32_t epoch) {
  return frame_of(MessageType::kFault, epoch, message);
}

Frame to_frame(const std::vector<Fault>& record, uint32_t epoch) {
  return frame_of(MessageType::kRecord, epoch, record);
}

Frame to_frame(const Agree& agree, uint32_t epoch) {
  return frame_of(MessageType::kAgree, epoch, agree);
}

Frame to_frame(const Verdict& verdict, uint32_t epoch) {
  return frame_of(MessageType::kVerdict, epoch, verdict);
}

Frame to_frame(const Bye& bye, uint32_t epoch) { return frame_of(MessageType::kBye, epoch, bye); }

Frame to_frame(const GivenUp& given_up, uint32_t epoch) {
  return frame_of(MessageType::kGivenUp, epoch, given_up);
}

Frame to_frame(MessageType type, uint32_t epoch) { return frame_of(type, epoch); }

std::size_t longest_collected(const std::string& name, int64_t size) {
  // kAll is smaller than the largest message, because the other fields of a Verdict or an Agree
  // need room, too.
  constexpr std::size_t kAll = 1 << 20;
  const std::size_t each = (kAll - std::min(kAll, name.size())) / static_cast<std::size_t>(size);
  return each - std::min(each, sizeof(uint64_t));  // each value is preceded by its size
}

Hello to_hello(std::string_view body) {
  ByteReader reader(body);
  if (reader.get<std::string>() != kProtocol) {
    throw DamagedMessage("the other end speaks another protocol");
  }
  const auto hello = reader.get<Hello>();
  reader.end();
  return hello;
}

Welcome to_welcome(std::string_view body) { return from_bytes<Welcome>(body); }

FaultMessage to_fault(std::string_view body, int64_t size) {
  auto message = from_bytes<FaultMessage>(body);
  // No fault is half an hour old. A greater age is a damaged number, which could overflow a time.
  if (message.age.count() < 0 || message.age > std::chrono::minutes(30)) {
    throw DamagedMessage("a fault is " + std::to_string(message.age.count()) + " us old");
  }
  check(message.fault, size);
  return message;
}

std::vector<Fault> to_record(std::string_view body, int64_t size) {
  auto record = from_bytes<std::vector<Fault>>(body);
  if (record.empty()) throw DamagedMessage("a record of no fault");
  for (const Fault& fault : record) check(fault, size);
  return record;
}

Agree to_agree(std::string_view body) { return from_bytes<Agree>(body); }

Verdict to_verdict(std::string_view body, int64_t size) {
  auto verdict = from_bytes<Verdict>(body);
  const size_t count = verdict.values.size();
  if (count != 0 && (count != static_cast<uint64_t>(size) || !verdict.text.empty())) {
    throw DamagedMessage(std::to_string(count) + " values of " + std::to_string(size) + " ranks");
  }
  return verdict;
}

Bye to_bye(std::string_view body) { return from_bytes<Bye>(body); }

GivenUp to_given_up(std::string_view body) { return from_bytes<GivenUp>(body); }

}  // namespace gpipe::distributed
