#include "gpipe/distributed/control/control_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "gpipe/runtime/bytes.h"
#include "gpipe/testing/seed.h"

namespace gpipe::distributed {
namespace {

using internal::DamagedMessage;
using ::testing::IsEmpty;

const Fault kFault{FaultKind::kLeft, 3, "host", 2, 1, "5 ('relu')", "text"};

TEST(ControlMessages, ArriveAsTheyWereSent) {
  const Frame hello = to_frame(Hello{"token", 2, 4, "host"}, 7);
  EXPECT_EQ(hello.type, 1);
  EXPECT_EQ(hello.epoch, 7);
  EXPECT_EQ(to_hello(hello.body).token, "token");
  EXPECT_EQ(to_hello(hello.body).rank, 2);
  EXPECT_EQ(to_hello(hello.body).size, 4);
  EXPECT_EQ(to_hello(hello.body).host, "host");
  const Welcome welcome = to_welcome(to_frame(Welcome{3, "h"}, 0).body);
  EXPECT_EQ(welcome.rank, 3);
  EXPECT_EQ(welcome.host, "h");
  const FaultMessage fault =
      to_fault(to_frame(FaultMessage{kFault, std::chrono::microseconds(9)}, 0).body, 4);
  EXPECT_EQ(fault.fault, kFault);
  EXPECT_EQ(fault.age.count(), 9);
  const std::vector<Fault> record{kFault, {}, kFault};
  std::vector<Fault> sent = record;
  sent[1].rank = 0;
  EXPECT_EQ(to_record(to_frame(sent, 0).body, 4), sent);
  const Agree agree = to_agree(to_frame(Agree{5, {"name", "value"}}, 0).body);
  EXPECT_EQ(agree.number, 5);
  EXPECT_EQ(agree.words.name, "name");
  EXPECT_EQ(agree.words.value, "value");
  EXPECT_FALSE(agree.words.is_collected);
  EXPECT_TRUE(to_agree(to_frame(Agree{5, {"name", "value", true}}, 0).body).words.is_collected);
  EXPECT_FALSE(to_agree(to_frame(Agree{5, {"name", "value", true}}, 0).body).words.is_patient);
  EXPECT_TRUE(to_agree(to_frame(Agree{5, {"name", "value", true, true}}, 0).body).words.is_patient);
  EXPECT_EQ(to_agree(to_frame(Agree{5, {"name", "value", true, true, 9}}, 0).body).words.call, 9);
  EXPECT_EQ(to_verdict(to_frame(Verdict{6, "text", {}, 9}, 0).body, 4).given_up, 9);
  const GivenUp given_up = to_given_up(to_frame(GivenUp{9, "why"}, 0).body);
  EXPECT_EQ(given_up.call, 9);
  EXPECT_EQ(given_up.text, "why");
  const Verdict verdict = to_verdict(to_frame(Verdict{6, "text", {}}, 0).body, 4);
  EXPECT_EQ(verdict.number, 6);
  EXPECT_EQ(verdict.text, "text");
  EXPECT_THAT(verdict.values, IsEmpty());
  const std::vector<std::string> values{"", "b", std::string("\0\xff\n", 3)};
  EXPECT_EQ(to_verdict(to_frame(Verdict{6, "", values}, 0).body, 3).values, values);
  const Bye bye = to_bye(to_frame(Bye{7, 8}, 0).body);
  EXPECT_EQ(bye.calls, 7);
  EXPECT_EQ(bye.agrees, 8);
}

TEST(ControlMessages, RefuseWhatNoRankSays) {
  const std::string fault = to_frame(FaultMessage{kFault, {}}, 0).body;
  EXPECT_THROW(to_fault(fault, 3), DamagedMessage);  // there is no rank 3
  EXPECT_THROW(to_fault(fault + "x", 4), DamagedMessage);
  EXPECT_THROW(to_record(to_frame(std::vector<Fault>{}, 0).body, 4), DamagedMessage);
  EXPECT_THROW(to_fault(to_frame(FaultMessage{kFault, std::chrono::microseconds(-1)}, 0).body, 4),
               DamagedMessage);
  EXPECT_THROW(to_fault(to_frame(FaultMessage{kFault, std::chrono::hours(1)}, 0).body, 4),
               DamagedMessage);
  std::string kind = fault;
  kind[8] = 4;
  EXPECT_THROW(to_fault(kind, 4), DamagedMessage);
  std::string protocol = to_frame(Hello{"t", 0, 1, "h"}, 0).body;
  protocol[8] = 'G';
  EXPECT_THROW(to_hello(protocol), DamagedMessage);
  // A verdict is refused if it has the values of too few or too many ranks, or has both values and
  // the text of a Disagreement.
  const std::string verdict = to_frame(Verdict{6, "", {"a", "b"}}, 0).body;
  EXPECT_THROW(to_verdict(verdict, 1), DamagedMessage);
  EXPECT_THROW(to_verdict(verdict, 3), DamagedMessage);
  EXPECT_THROW(to_verdict(verdict + "x", 2), DamagedMessage);
  EXPECT_THROW(to_verdict(to_frame(Verdict{6, "text", {"a", "b"}}, 0).body, 2), DamagedMessage);
  std::string agree = to_frame(Agree{5, {"name", "value"}}, 0).body;
  agree.back() = 4;
  EXPECT_THROW(to_agree(agree), DamagedMessage);
}

// The longest value must fit in both directions: in a rank's message to rank 0, and in the message
// with the values of all ranks. One byte more would not fit.
TEST(ControlMessages, TheLongestValuesFitIntoAFrame) {
  for (const int64_t size : {1, 2, 3, 4, 7, 512, 1000, 100000}) {
    for (const std::string& name : {std::string(), std::string(1000, 'n')}) {
      const std::string value(longest_collected(name, size), 'v');
      // All values together take a megabyte, as much as one value that is compared.
      const size_t with_one_byte_more = value.size() + 1 + sizeof(uint64_t);
      EXPECT_GT(name.size() + static_cast<size_t>(size) * with_one_byte_more, 1 << 20) << size;
      const std::vector<std::string> values(static_cast<size_t>(size), value);
      EXPECT_LE(to_frame(Verdict{6, "", values}, 0).body.size(), Connection::kGreatestBody) << size;
      EXPECT_LE(to_frame(Agree{6, {name, value, true}}, 0).body.size(), Connection::kGreatestBody);
    }
  }
  EXPECT_EQ(longest_collected(std::string(1 << 20, 'n'), 2), 0);
  EXPECT_EQ(longest_collected(std::string((1 << 20) + 1, 'n'), 2), 0);
}

// A body that is cut off anywhere is refused. A body that is changed at random is refused or read.
TEST(ControlMessages, DamagedOnesAreRefused) {
  const std::vector<std::pair<std::string, std::function<void(const std::string&)>>> readers = {
      {to_frame(Hello{"token", 2, 4, "host"}, 0).body, [](const auto& body) { to_hello(body); }},
      {to_frame(Welcome{3, "h"}, 0).body, [](const auto& body) { to_welcome(body); }},
      {to_frame(FaultMessage{kFault, {}}, 0).body, [](const auto& body) { to_fault(body, 4); }},
      {to_frame(std::vector<Fault>{kFault, kFault}, 0).body,
       [](const auto& body) { to_record(body, 4); }},
      {to_frame(Agree{5, {"name", "value"}}, 0).body, [](const auto& body) { to_agree(body); }},
      {to_frame(Agree{5, {"name", "value", true}}, 0).body,
       [](const auto& body) { to_agree(body); }},
      {to_frame(Verdict{6, "text", {}}, 0).body, [](const auto& body) { to_verdict(body, 3); }},
      {to_frame(Verdict{6, "", {"a", "", "c"}}, 0).body,
       [](const auto& body) { to_verdict(body, 3); }},
      {to_frame(Bye{7, 8}, 0).body, [](const auto& body) { to_bye(body); }},
      {to_frame(GivenUp{9, "why"}, 0).body, [](const auto& body) { to_given_up(body); }},
  };
  auto random = testing::test_random();
  int refused = 0;
  for (const auto& [body, read] : readers) {
    for (size_t size = 0; size < body.size(); ++size) {
      EXPECT_THROW(read(body.substr(0, size)), DamagedMessage) << size;
    }
    for (int round = 0; round < 5000; ++round) {
      std::string changed = body;
      for (uint64_t count = 1 + random() % 4; count > 0; --count) {
        changed[random() % changed.size()] = static_cast<char>(random());
      }
      try {
        read(changed);
      } catch (const DamagedMessage&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 5000);
}

}  // namespace
}  // namespace gpipe::distributed
