// Control messages: what the ranks of a run tell each other beside the tensors.
#ifndef GPIPE_DISTRIBUTED_CONTROL_CONTROL_MESSAGES_H_
#define GPIPE_DISTRIBUTED_CONTROL_CONTROL_MESSAGES_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gpipe/distributed/control/failure.h"
#include "gpipe/distributed/sockets/connection.h"

namespace gpipe::distributed {

enum class MessageType : uint8_t {
  kHello = 1,  // who connects says who it is
  kWelcome,    // and is told whom it has reached
  kBeat,       // nothing but that its sender lives
  kFault,      // what its sender knows of a failure
  kRecord,     // what all ranks throw
  kAgree,      // to rank 0: what its sender has to compare, or gives to all
  kVerdict,    // from rank 0
  kNext,       // its sender is ready for the next epoch
  kBye,        // its sender leaves
  kByeHeard,   // it may close its connection
  kGivenUp,    // its sender waited in a call, and makes it no more
};

struct Hello {
  std::string token;
  int64_t rank = 0;
  int64_t size = 0;
  std::string host;
};
struct Welcome {
  int64_t rank = 0;
  std::string host;
};
struct FaultMessage {
  Fault fault;
  // How long ago: clocks of machines differ.
  std::chrono::microseconds age{};
};
struct Agree {
  uint64_t number = 0;  // of the calls of this epoch
  std::string name;
  std::string value;
  bool is_collected = false;  // the value; else it is compared
  bool is_patient = false;    // the others come when their work is done, however long it takes
  uint64_t call = 0;          // the number of its sender's call that it belongs to
};
struct Verdict {
  uint64_t number = 0;
  std::string text;                 // empty: all have said the same
  std::vector<std::string> values;  // by rank, if they are collected and the text is empty
  uint64_t given_up = 0;            // see Agreement::given_up()
};
struct GivenUp {
  uint64_t call = 0;  // its number
  std::string text;   // what the sender throws
};
struct Bye {
  uint64_t calls = 0;   // that its sender has done
  uint64_t agrees = 0;  // in this epoch, and exchanges
};

Frame to_frame(const Hello& hello, uint32_t epoch);
Frame to_frame(const Welcome& welcome, uint32_t epoch);
Frame to_frame(const FaultMessage& message, uint32_t epoch);
Frame to_frame(const std::vector<Fault>& record, uint32_t epoch);
Frame to_frame(const Agree& agree, uint32_t epoch);
Frame to_frame(const Verdict& verdict, uint32_t epoch);
Frame to_frame(const Bye& bye, uint32_t epoch);
Frame to_frame(const GivenUp& given_up, uint32_t epoch);
// Of the types that say nothing else.
Frame to_frame(MessageType type, uint32_t epoch);

// How long the value of each of `size` ranks may be, so that a Verdict takes all of them to all.
std::size_t longest_collected(const std::string& name, int64_t size);

// Throw DamagedMessage (bytes.h). `size`: the number of ranks; a fault names one of them.
Hello to_hello(std::string_view body);
Welcome to_welcome(std::string_view body);
FaultMessage to_fault(std::string_view body, int64_t size);
std::vector<Fault> to_record(std::string_view body, int64_t size);
Agree to_agree(std::string_view body);
Verdict to_verdict(std::string_view body, int64_t size);
Bye to_bye(std::string_view body);
GivenUp to_given_up(std::string_view body);

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_CONTROL_CONTROL_MESSAGES_H_
