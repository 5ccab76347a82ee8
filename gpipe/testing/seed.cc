#include "gpipe/testing/seed.h"

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace gpipe::testing {
namespace {

constexpr const char* kVariable = "GPIPE_TEST_SEED";
constexpr uint64_t kDefault = 20261121;

// The list is a function-local static, because static initializers of other files add to it.
std::vector<void (*)(uint64_t)>& functions() {
  static std::vector<void (*)(uint64_t)> all;
  return all;
}

class SeedListener : public ::testing::EmptyTestEventListener {
 public:
  explicit SeedListener(std::ostream& out) : out_(out) {}

  // SetUpTestSuite may draw, so the generators are also seeded before each suite.
  void OnTestSuiteStart(const ::testing::TestSuite& /*suite*/) override { seed(); }

  void OnTestStart(const ::testing::TestInfo& /*test*/) override {
    told_ = false;
    seed();
  }

  // The seed is printed immediately and not at the test's end, which a crash or a hang would never
  // reach.
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed() || told_) return;
    told_ = true;
    out_ << kVariable << "=" << test_seed() << std::endl;
  }

 private:
  static void seed() {
    for (auto* function : functions()) function(test_seed());
  }

  std::ostream& out_;
  bool told_ = false;
};

}  // namespace

uint64_t seed_from(const char* text) {
  if (text == nullptr || *text == '\0') return kDefault;
  uint64_t seed = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, seed);
  if (error != std::errc() || stop != end) {
    throw std::invalid_argument(std::string(kVariable) + " is a number from 0 to 2^64 - 1, not \"" +
                                text + "\"");
  }
  return seed;
}

uint64_t test_seed() {
  static const uint64_t seed = seed_from(std::getenv(kVariable));
  return seed;
}

std::mt19937_64 test_random(uint64_t stream) {
  const uint64_t seed = test_seed();
  std::seed_seq words{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32),
                      static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)};
  return std::mt19937_64(words);
}

bool before_each_test(void (*function)(uint64_t seed)) {
  functions().push_back(function);
  return true;
}

std::unique_ptr<::testing::TestEventListener> make_seed_listener(std::ostream& out) {
  return std::make_unique<SeedListener>(out);
}

}  // namespace gpipe::testing
