#include "safetensors/safetensors.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/testing/bitwise.h"

namespace gpipe::safetensors {
namespace {

using gpipe::testing::EqualsBitwise;
using ::testing::HasSubstr;

namespace fs = std::filesystem;
using Named = std::vector<std::pair<std::string, at::Tensor>>;

// A new folder.
fs::path folder() {
  static int count = 0;
  const fs::path path = fs::path(::testing::TempDir()) / ("folder" + std::to_string(count++));
  fs::create_directories(path);
  return path;
}

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void put(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string with_length(uint64_t length, const std::string& rest) {
  std::string text(8, '\0');
  for (int i = 0; i < 8; ++i) text[i] = static_cast<char>(length >> (8 * i));
  return text + rest;
}

// The tensor's bits as an integer type that EqualsBitwise can compare, whatever the tensor's type.
at::Tensor bits(const at::Tensor& tensor) {
  return tensor.numel() == 0 ? tensor.to(at::kByte) : tensor.contiguous().flatten().view(at::kByte);
}

// The tensors that testdata/make_golden.py writes.
Named golden() {
  Named tensors;
  for (const ElementType& type : element_types()) {
    tensors.emplace_back(type.name, at::tensor({0, 1, 2, 1, 4, 0}, at::kFloat)
                                        .view({2, 3})
                                        .to(type_of(std::string(type.name))));
  }
  tensors.emplace_back("no dimensions", at::scalar_tensor(-2.5, at::kFloat));
  tensors.emplace_back("no elements", at::empty({2, 0, 3}, at::kShort));
  tensors.emplace_back("quoted \"name\", \\ and \n \u00fc", at::tensor({7}, at::kChar));
  return tensors;
}

const char* const kGolden = "safetensors/testdata/python.safetensors";

TEST(Safetensors, ReadsWhatPythonWrote) {
  const File file(kGolden);
  EXPECT_EQ(file.header().metadata.at("format"), "pt");
  EXPECT_EQ(file.header().tensors.size(), golden().size());
  for (const auto& [name, expected] : golden()) {
    const at::Tensor tensor = file.read(name);
    EXPECT_EQ(tensor.scalar_type(), expected.scalar_type()) << name;
    EXPECT_EQ(tensor.sizes(), expected.sizes()) << name;
    EXPECT_THAT(bits(tensor), EqualsBitwise(bits(expected))) << name;
  }
}

// The contents of a file with this header and these bytes.
std::string file_of(const std::string& header, const std::string& bytes) {
  return with_length(header.size(), header) + bytes;
}

// Files of other writers are read, too. Other writers do not align or sort tensors, and pad with
// anything that JSON skips.
TEST(Safetensors, ReadsWhatOtherWritersMake) {
  const fs::path path = folder() / "file.safetensors";
  const auto read = [&](const std::string& header, const std::string& bytes) {
    put(path, file_of(header, bytes));
    const File file(path);
    std::map<std::string, at::Tensor> tensors;
    for (const auto& [name, entry] : file.header().tensors) tensors[name] = file.read(name);
    return tensors;
  };
  EXPECT_TRUE(read("{}\r \t\n", "").empty());
  EXPECT_TRUE(read("\t\n{}\r ", "").empty());

  const float floats[] = {1.5f, -2.25f, 1e-40f};
  std::string bytes(reinterpret_cast<const char*>(floats), sizeof floats);
  bytes += std::string("\x00\x38", 2);
  std::string odd =
      R"({"w":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},"b":{"dtype":"F16","shape":[1],"data_offsets":[12,14]}})";
  if (odd.size() % 2 == 0) odd += ' ';
  auto tensors = read(odd, bytes);
  EXPECT_THAT(tensors.at("w"), EqualsBitwise(at::tensor({1.5f, -2.25f, 1e-40f})));
  EXPECT_THAT(tensors.at("b"), EqualsBitwise(at::tensor({0.5f}).to(at::kHalf)));

  const double number = 3.5;
  tensors = read(
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"F64","shape":[1],"data_offsets":[1,9]}})",
      "\x07" + std::string(reinterpret_cast<const char*>(&number), sizeof number));
  EXPECT_THAT(tensors.at("b"), EqualsBitwise(at::tensor({3.5}, at::kDouble)));

  tensors = read(R"({"a\u0000b\nc":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "\x01");
  EXPECT_EQ(tensors.count(std::string("a\0b\nc", 5)), 1u);

  tensors = read(
      R"({"n":{"dtype":"F8_E4M3FNUZ","shape":[2],"data_offsets":[0,2]},"m":{"dtype":"F8_E5M2FNUZ","shape":[1],"data_offsets":[2,3]}})",
      "\x38\x40\x44");
  EXPECT_EQ(tensors.at("n").scalar_type(), at::kFloat8_e4m3fnuz);
  EXPECT_TRUE(tensors.at("n").to(at::kFloat).equal(at::tensor({0.5f, 1.0f})));
  EXPECT_TRUE(tensors.at("m").to(at::kFloat).equal(at::tensor({2.0f})));
}

TEST(Safetensors, WritesTheBytesThatPythonWrote) {
  const fs::path path = folder() / "file.safetensors";
  Named tensors = golden();
  std::swap(tensors.front(), tensors.back());  // the file's order does not depend on the caller's
  write(path, tensors, {{"format", "pt"}});
  EXPECT_EQ(contents(path), contents(kGolden));
}

TEST(Safetensors, TakesTensorsAsTheyAre) {
  const fs::path path = folder() / "file.safetensors";
  const at::Tensor matrix = at::randn({3, 4});
  const at::Tensor complex = at::randn({2}, at::kComplexFloat);
  write(path, {{"transposed", matrix.t()},
               {"part", matrix.slice(1, 1, 3)},
               {"expanded", matrix.select(0, 0).expand({2, 4})},
               {"parameter", matrix.clone().requires_grad_()},
               {"conjugated", complex.conj()},
               {"negated", at::_neg_view(matrix)}});
  const File file(path);
  EXPECT_THAT(file.read("transposed"), EqualsBitwise(matrix.t().contiguous()));
  EXPECT_THAT(file.read("part"), EqualsBitwise(matrix.slice(1, 1, 3).contiguous()));
  EXPECT_THAT(file.read("expanded"),
              EqualsBitwise(matrix.select(0, 0).expand({2, 4}).contiguous()));
  EXPECT_THAT(file.read("parameter"), EqualsBitwise(matrix));
  EXPECT_TRUE(file.read("conjugated").equal(complex.conj().resolve_conj()));
  EXPECT_THAT(file.read("negated"), EqualsBitwise(-matrix));
  EXPECT_TRUE(file.header().metadata.empty());
}

TEST(Safetensors, AFileWithoutTensorsIsAFile) {
  const fs::path path = folder() / "file.safetensors";
  write(path, {});
  EXPECT_TRUE(File(path).header().tensors.empty());
}

TEST(Safetensors, MistakesOfTheCallerAreNamed) {
  const fs::path path = folder() / "file.safetensors";
  const at::Tensor tensor = at::ones({1});
  for (const auto& [tensors, part] : std::vector<std::pair<Named, std::string>>{
           {{{"x", tensor}, {"x", tensor}}, "tensor 'x' is given twice"},
           {{{"__metadata__", tensor}}, "__metadata__"},
           {{{"x", at::Tensor()}}, "tensor 'x' is undefined"},
           {{{"x", at::ones({2, 2}).to_sparse()}}, "'x' must be dense, got Sparse"},
           {{{"x", at::empty({2}, at::kMeta)}}, "'x' is on meta"},
           {{{"x", at::empty({2}, at::kComplexDouble)}}, "no type for ComplexDouble (tensor 'x')"},
       }) {
    try {
      write(path, tensors);
      ADD_FAILURE() << "nothing was thrown: " << part;
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  }
  EXPECT_TRUE(fs::is_empty(path.parent_path()));
  write(path, {{"x", tensor}});
  EXPECT_THROW(File(path).read("y"), c10::ValueError);
  EXPECT_THROW(type_of("F4"), c10::ValueError);
}

void expect_unreadable(const fs::path& path, const std::string& part) {
  SCOPED_TRACE(part);
  try {
    const File file(path);
    for (const auto& [name, entry] : file.header().tensors) file.read(name);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr(path.string()));
    EXPECT_THAT(error.what(), HasSubstr(part));
  }
}

TEST(Safetensors, DamagedFilesAreRefusedWithTheReason) {
  const fs::path path = folder() / "file.safetensors";
  expect_unreadable(path, "No such file");
  expect_unreadable(path.parent_path(), "it is not a file");
  const std::string whole = contents(kGolden);
  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
           {"", "it has 0 bytes"},
           {"1234567", "it has 7 bytes"},
           {with_length(1, ""), "its header would be 1 bytes, it has only 0"},
           {with_length(100'000'001, "{}"), "more than the 100000000 that are allowed"},
           {with_length(std::numeric_limits<uint64_t>::max(), "{}"),
            "18446744073709551615 bytes, more than the 100000000"},
           {R"({"messages": []})", "it begins like text, not like safetensors"},
           {with_length(2, "[]"), "not an object"},
           {whole.substr(0, whole.size() - 1), "behind its header: 1 are missing"},
           {whole + std::string("\x09\x07\x2f\0", 4), "behind its header: 4 trailing bytes"},
           {file_of("\xff", ""), "the header is not UTF-8: its byte 0 is \\xff,"},
           {with_length(63, R"({"x":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}}        )") +
                std::string("\0\1\2", 3),
            "element 2 is 2, not a truth value"},
       }) {
    put(path, text);
    expect_unreadable(path, part);
  }
}

TEST(Safetensors, AFileThatShrinksIsNoticed) {
  const fs::path path = folder() / "file.safetensors";
  write(path, {{"x", at::ones({100})}});
  const File file(path);
  fs::resize_file(path, fs::file_size(path) - 1);
  try {
    file.read("x");
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("has become shorter"));
  }
}

// --- the old file or the new one

TEST(Safetensors, AFailureLeavesTheOldFileAndNothingElse) {
  const fs::path path = folder() / "file.safetensors";
  write(path, {{"x", at::ones({2})}});
  const std::string before = contents(path);
  // As on a full disk, writing fails: the limit lets no file grow beyond 4096 bytes.
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  rlimit small = old;
  small.rlim_cur = 4096;
  setrlimit(RLIMIT_FSIZE, &small);
  std::string message;
  try {
    write(path, {{"x", at::ones({5000})}});
  } catch (const std::runtime_error& error) {
    message = error.what();
  }
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(message, HasSubstr("cannot write " + path.string() + ": File too large"));
  EXPECT_EQ(contents(path), before);
  EXPECT_EQ(std::distance(fs::directory_iterator(path.parent_path()), fs::directory_iterator()), 1);
}

TEST(Safetensors, ReplacesWhatALinkLeadsToAndNoDevice) {
  const fs::path path = folder() / "file.safetensors";
  const fs::path link = path.parent_path() / "link";
  fs::create_symlink(path, link);
  write(link, {{"x", at::ones({2})}});
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(File(path).header().tensors.size(), 1u);
  EXPECT_THROW(write("/dev/null", {}), std::runtime_error);
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_THROW(write(path.parent_path(), {}), std::runtime_error);
  EXPECT_THROW(write(path.parent_path() / "no folder" / "file", {}), std::runtime_error);
}

TEST(Safetensors, ANameThatIsNotUtf8IsRefused) {
  const fs::path path = folder() / "file";
  for (const Named& tensors : {Named{{"w\xff", at::ones({1})}}, Named{{"\xc3", at::ones({1})}}}) {
    EXPECT_THAT([&] { write(path, tensors); },
                ::testing::ThrowsMessage<c10::ValueError>(HasSubstr("not UTF-8")));
  }
  EXPECT_THAT(
      [&] {
        write(path, {}, {{"key", "\xfe"}});
      },
      ::testing::ThrowsMessage<c10::ValueError>(HasSubstr("not UTF-8")));
  EXPECT_TRUE(fs::is_empty(path.parent_path()));
}

TEST(Safetensors, AReplacedFileKeepsItsAccessRights) {
  const fs::path path = folder() / "file";
  write(path, {{"w", at::ones({1})}});
  for (const auto rights : {fs::perms(0600), fs::perms(0640), fs::perms(0664)}) {
    fs::permissions(path, rights);
    write(path, {{"w", at::ones({2})}});
    EXPECT_EQ(fs::status(path).permissions(), rights);
  }
}

// Drafts of other processes stay as they are. They belong to a killed process, or to a process with
// the same number on another machine, which may still be writing.
TEST(Safetensors, DraftsOfOthersAreLeftAlone) {
  const fs::path place = folder() / "file";
  for (int k = 0; k < 2000; ++k) {
    put(place.string() + ".part" + std::to_string(getpid()) + "." + std::to_string(k), "theirs");
  }
  write(place, {{"w", at::ones({1})}});
  EXPECT_EQ(File(place).header().tensors.size(), 1u);
  int theirs = 0;
  for (const auto& entry : fs::directory_iterator(place.parent_path())) {
    if (entry.path() != place) theirs += contents(entry.path()) == "theirs" ? 1 : 0;
  }
  EXPECT_EQ(theirs, 2000);
}

TEST(Safetensors, APipeIsRefusedAndNotWaitedFor) {
  const fs::path path = folder() / "pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT([&] { File{path}; },
              ::testing::ThrowsMessage<std::runtime_error>(HasSubstr("it is not a file")));
}

TEST(Safetensors, AnOpenFileStaysTheOldOne) {
  const fs::path path = folder() / "file.safetensors";
  write(path, {{"x", at::zeros({2})}});
  const File old(path);
  write(path, {{"x", at::ones({2})}});
  EXPECT_THAT(old.read("x"), EqualsBitwise(at::zeros({2})));
  EXPECT_THAT(File(path).read("x"), EqualsBitwise(at::ones({2})));
}

}  // namespace
}  // namespace gpipe::safetensors
