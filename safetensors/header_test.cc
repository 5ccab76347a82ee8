#include "safetensors/header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "text/shown.h"

namespace gpipe::safetensors {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const char* const kTwo =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
    R"("b":{"dtype":"U8","shape":[],"data_offsets":[24,25]}})";

TEST(Header, SaysWhatIsThere) {
  const Header header = parse_header(kTwo, 25);
  EXPECT_EQ(header.metadata.at("format"), "pt");
  ASSERT_EQ(header.tensors.size(), 2u);
  const Entry& a = header.tensors.at("a");
  EXPECT_EQ(a.type, "F32");
  EXPECT_THAT(a.shape, ElementsAre(2, 3));
  EXPECT_EQ(a.begin, 0);
  EXPECT_EQ(a.end, 24);
  EXPECT_THAT(header.tensors.at("b").shape, IsEmpty());
}

TEST(Header, IsWrittenAsItIsRead) {
  const std::string text = to_text(parse_header(kTwo, 25));
  EXPECT_EQ(text.size() % 8, 0u);
  EXPECT_EQ(text.substr(0, text.find_last_not_of(' ') + 1), kTwo);
  // These headers are valid, too: with spaces around and within, in another order, without tensors,
  // with empty tensors.
  for (
      const auto& [odd, bytes] : std::vector<std::pair<std::string, int64_t>>{
          {" {\n} ", 0},
          {R"({"__metadata__":null})", 0},
          {R"({"__metadata__":{}})", 0},
          {R"({"b":{"data_offsets":[4,5],"dtype":"I8","shape":[1]}, "a":{"shape":[1,1],"dtype":"U32","data_offsets":[0,4]}})",
           5},
          {R"({"e":{"dtype":"F64","shape":[0,9223372036854775],"data_offsets":[0,0]}})", 0},
          {R"({"e":{"dtype":"F64","shape":[0],"data_offsets":[8,8]},"f":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}})",
           8},
      }) {
    const std::string text = to_text(parse_header(odd, bytes));
    EXPECT_EQ(to_text(parse_header(text, bytes)), text);
  }
}

struct Damage {
  std::string text;
  int64_t bytes;
  std::string part;  // a part of the message that is expected
};

std::string tensor(const std::string& fields) { return R"({"x":{)" + fields + "}}"; }

TEST(Header, RefusesDamageWithTheReason) {
  const Damage all[] = {
      {"", 0, "not JSON at byte"},
      {"{", 0, "not JSON at byte"},
      {"{}{}", 0, "not JSON at byte"},
      {"{}x", 0, "not JSON at byte"},
      {std::string("{}\0", 3), 0, "a zero byte"},
      {"{\"\xff\":{}}", 0, "the header is not UTF-8: its byte 2 is \\xff,"},
      {"\xff", 0, "the header is not UTF-8: its byte 0 is \\xff,"},
      {"{\"\x1b[31m", 0, "not JSON at byte"},
      {R"({"a\u0000b\nc":{}})", 0, "tensor 'a\\x00b\\x0ac' has no dtype"},
      {R"({"\u001b[2J":{}})", 0, "tensor '\\x1b[2J' has no dtype"},
      {"[]", 0, "the header is a list, not an object"},
      {"null", 0, "the header is null, not an object"},
      {"7", 0, "the header is a number, not an object"},
      {R"("text")", 0, "the header is a text, not an object"},
      {R"({"__metadata__":[]})", 0, "__metadata__ is a list"},
      {R"({"__metadata__":{"a":1}})", 0, "__metadata__ has a number where a text belongs"},
      {R"({"__metadata__":{"a":{}}})", 0, "__metadata__ has an object where a text belongs"},
      {R"({"__metadata__":{"a":"b","a":"c"}})", 0, "__metadata__ has a key twice"},
      {R"({"__metadata__":{},"__metadata__":{}})", 0, "__metadata__ is there twice"},
      {R"({"x":null})", 0, "tensor 'x' is null, not an object"},
      {R"({"x":[]})", 0, "tensor 'x' is a list, not an object"},
      {R"({"x":{}})", 0, "tensor 'x' has no dtype"},
      {tensor(R"("dtype":"U8","shape":[1])"), 1, "has no data_offsets"},
      {tensor(R"("dtype":"U8","data_offsets":[0,1])"), 1, "has no shape"},
      {tensor(R"("dtype":"U8","dtype":"U8")"), 1, "has two dtype"},
      {tensor(R"("dtype":"U8","shape":[1],"data_offsets":[0,1],"stride":[1])"), 1,
       "has the field 'stride'"},
      {tensor(R"("dtype":8)"), 0, "a number as its dtype"},
      {tensor(R"("dtype":["U8"])"), 0, "a list as its dtype"},
      {tensor(R"("shape":{})"), 0, "an object in its shape"},
      {tensor(R"("shape":3)"), 0, "a number in its shape"},
      {tensor(R"("shape":[[1]])"), 0, "a list in its shape"},
      {tensor(R"("shape":[-1])"), 0, "a negative number in its shape"},
      {tensor(R"("shape":[1.0])"), 0, "not whole in its shape"},
      {tensor(R"("shape":[1e3])"), 0, "not whole in its shape"},
      {tensor(R"("shape":["1"])"), 0, "a text in its shape"},
      {tensor(R"("shape":[true])"), 0, "a truth value in its shape"},
      {tensor(R"("shape":[9223372036854775808])"), 0, "9223372036854775808, which is too large"},
      {tensor(R"("shape":[18446744073709551616])"), 0, "not whole in its shape"},
      {tensor(R"("data_offsets":[0])"), 0, "has 1 data_offsets instead of two"},
      {tensor(R"("data_offsets":[0,1,2])"), 0, "has 3 data_offsets instead of two"},
      {tensor(R"("dtype":"F4","shape":[2],"data_offsets":[0,1])"), 1,
       "the type 'F4' is not one of those that can be read: U64, "},
      {tensor(R"("dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3])"), 3, "type 'F6_E2M3'"},
      {tensor(R"("dtype":"f32","shape":[1],"data_offsets":[0,4])"), 4, "type 'f32'"},
      {tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), 4,
       "has 4 bytes, its type and shape ask for 8"},
      {tensor(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), 4, "before it begins"},
      {tensor(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])"), 0,
       "more elements than can be counted"},
      {tensor(R"("dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0])"), 0,
       "more elements than can be counted"},
      {tensor(R"("dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0])"), 0,
       "more elements than can be counted"},
      {tensor(R"("dtype":"U8","shape":[1],"data_offsets":[1,2])"), 2, "a hole that begins at 0"},
      {tensor(R"("dtype":"U8","shape":[1],"data_offsets":[0,1])"), 2,
       "the tensors are 1 bytes, the file has 2 behind its header: 1 trailing bytes"},
      {tensor(R"("dtype":"U8","shape":[3],"data_offsets":[0,3])"), 2,
       "the tensors are 3 bytes, the file has 2 behind its header: 1 are missing"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       3, "tensor 'b' begins at byte 1, within what ends at 2"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
       1, "within what ends at 1"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       2, "there are two tensors 'a'"},
  };
  for (const Damage& damage : all) {
    SCOPED_TRACE(damage.text);
    try {
      parse_header(damage.text, damage.bytes);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_THAT(error.what(), HasSubstr(damage.part));
      EXPECT_LT(std::string(error.what()).size(), 400u);
      EXPECT_EQ(text::shown(error.what()), error.what()) << "bytes that no terminal should get";
    }
  }
}

TEST(Header, IsReadToAnyDepthWithoutBuildingIt) {
  // A million lists within each other are refused. Built as values they would take gigabytes, or
  // overflow a stack.
  for (const std::string& start : {std::string(), std::string(R"({"x":{"shape":)")}) {
    const std::string text = start + std::string(1'000'000, '[');
    EXPECT_THROW(parse_header(text, 0), std::runtime_error);
  }
  // Messages shorten a long name.
  const std::string name(1'000'000, 'n');
  try {
    parse_header(R"({")" + name + R"(":{}})", 0);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_LT(std::string(error.what()).size(), 400u);
  }
}

TEST(Header, CountsBytes) {
  EXPECT_EQ(bytes_of("F32", {}), 4);
  EXPECT_EQ(bytes_of("BF16", {3, 5}), 30);
  EXPECT_EQ(bytes_of("BOOL", {3, 0, 5}), 0);
  EXPECT_THROW(bytes_of("F32", {-1}), std::runtime_error);
}

}  // namespace
}  // namespace gpipe::safetensors
