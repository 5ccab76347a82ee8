// Reads thousands of damaged files, which are the same in each run. Each file must be read as its
// header says, or refused.

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/testing/seed.h"
#include "safetensors/safetensors.h"

namespace gpipe::safetensors {
namespace {

std::string file_of(const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                    const std::map<std::string, std::string>& metadata) {
  const std::string path = ::testing::TempDir() + "/whole.safetensors";
  write(path, tensors, metadata);
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// A file in memory. On a disk, each of thousands of files would be flushed.
class MemoryFile {
 public:
  MemoryFile() : descriptor_(memfd_create("damaged", MFD_CLOEXEC)) {}
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }
  void put(const std::string& text) const {
    ASSERT_EQ(ftruncate(descriptor_, 0), 0);
    ASSERT_EQ(pwrite(descriptor_, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  }

 private:
  int descriptor_;
};

// Damages a file: makes one to four changes of bytes, numbers, pieces of JSON or the length before
// the header.
class Mutator {
 public:
  explicit Mutator(std::mt19937_64 random) : random_(random) {}

  std::string operator()(std::string file) {
    for (uint64_t left = 1 + below(4); left > 0; --left) mutate(&file);
    return file;
  }

 private:
  uint64_t below(uint64_t end) { return random_() % end; }
  // A place to change: three times out of four one in the first 400 bytes, where the header is and
  // changes matter most.
  size_t place(const std::string& file) {
    if (file.empty()) return 0;
    return below(4) == 0 ? below(file.size()) : below(std::min<size_t>(file.size(), 400));
  }

  void mutate(std::string* file) {
    static const char* const kPieces[] = {"{",
                                          "}",
                                          "[",
                                          "]",
                                          ",",
                                          ":",
                                          "\"",
                                          "null",
                                          "-1",
                                          "1e9",
                                          "0",
                                          "true",
                                          "\\u0000",
                                          "\"x\":",
                                          "\"dtype\"",
                                          "[[[[",
                                          "18446744073709551616",
                                          "9223372036854775807",
                                          "\"F64\"",
                                          "\"BOOL\"",
                                          "\"__metadata__\"",
                                          "data_offsets",
                                          " ",
                                          "\xff",
                                          "\xed\xa0\x80"};
    const size_t position = place(*file);
    switch (below(8)) {
      case 0:
        if (position < file->size()) (*file)[position] = static_cast<char>(below(256));
        return;
      case 1:
        if (position < file->size())
          (*file)[position] = static_cast<char>((*file)[position] ^ (1 << below(8)));
        return;
      case 2:
        file->insert(position, kPieces[below(std::size(kPieces))]);
        return;
      case 3:
        file->erase(position, 1 + below(16));
        return;
      case 4:
        file->resize(position);
        return;
      case 5: {  // changes the length in front, by a little or to any number
        if (file->size() < 8) return;
        uint64_t length = below(2) == 0
                              ? random_() >> below(64)
                              : static_cast<unsigned char>((*file)[0]) +
                                    256 * static_cast<unsigned char>((*file)[1]) + below(17) - 8;
        for (int i = 0; i < 8; ++i, length >>= 8) (*file)[i] = static_cast<char>(length);
        return;
      }
      case 6: {  // changes a digit, so the length in front stays right
        const size_t digit = file->find_first_of("0123456789", position);
        if (digit == std::string::npos) return;
        (*file)[digit] = static_cast<char>('0' + below(10));
        return;
      }
      default: {  // inserts a copy of some bytes elsewhere
        const std::string piece = file->substr(position, 1 + below(80));
        file->insert(place(*file), piece);
      }
    }
  }

  std::mt19937_64 random_;
};

TEST(Fuzz, DamagedFilesAreReadAsTheySayOrRefused) {
  const std::vector<std::string> whole = {
      file_of({{"a", at::randn({3, 2})},
               {"b", at::ones({5}, at::kBool)},
               {"c", at::ones({}, at::kLong)}},
              {{"format", "pt"}}),
      file_of({{"only", at::zeros({0, 3})}}, {}),
      file_of({}, {{"a", "b"}, {"c", "d"}}),
  };
  Mutator mutate(gpipe::testing::test_random());
  const MemoryFile memory;
  constexpr int kFiles = 20'000;
  int read = 0;
  for (int i = 0; i < kFiles; ++i) {
    const std::string text = mutate(whole[i % whole.size()]);
    memory.put(text);
    try {
      const File file(memory.path());
      int64_t bytes = 0;
      for (const auto& [name, entry] : file.header().tensors) {
        const at::Tensor tensor = file.read(name);
        EXPECT_EQ(tensor.sizes(), at::IntArrayRef(entry.shape));
        EXPECT_EQ(type_name(tensor.scalar_type()), entry.type);
        bytes += static_cast<int64_t>(tensor.nbytes());
      }
      // The tensors must not have more bytes than the file.
      EXPECT_LE(bytes + 8, static_cast<int64_t>(text.size()));
      const Header again = parse_header(to_text(file.header()), bytes);
      EXPECT_EQ(to_text(again), to_text(file.header()));
      ++read;
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()), "");
      EXPECT_LT(std::string(error.what()).size(), 1000u);
    }
  }
  // Enough files are read and enough are refused to make the test meaningful.
  EXPECT_GT(read, kFiles / 100);
  EXPECT_LT(read, kFiles / 2);
}

}  // namespace
}  // namespace gpipe::safetensors
