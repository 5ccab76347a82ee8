#include "gpipe/internal/run/failure.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <typeinfo>
#include <vector>

namespace gpipe::internal {
namespace {

// The exception that rethrow_with() throws: its type, whether it is the same object, and its
// message.
struct Outcome {
  std::string type;
  bool same = false;
  std::string message;
};

Outcome rethrown(const std::exception_ptr& error, const std::string& where) {
  const void* before = nullptr;
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    before = &e;
  }
  try {
    rethrow_with(error, where);
  } catch (const c10::Error& e) {
    return {typeid(e).name(), &e == before, e.what_without_backtrace()};
  } catch (const std::exception& e) {
    return {typeid(e).name(), &e == before, e.what()};
  }
}

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  }
}

// An error as TORCH_CHECK makes it; some of the classes have no public constructor except this
// inherited one.
template <typename T>
std::exception_ptr torch_error() {
  return std::make_exception_ptr(T(c10::SourceLocation{"f", "file.cc", 1}, "trouble"));
}

template <typename T>
void expect_copied() {
  const std::exception_ptr error = torch_error<T>();
  const std::string before = message_of(error);
  for (const char* where : {"in stage 0", "in stage 1"}) {
    const Outcome outcome = rethrown(error, where);
    EXPECT_EQ(outcome.type, typeid(T).name());
    EXPECT_NE(outcome.message.find("trouble (" + std::string(where) + ")"), std::string::npos)
        << outcome.message;
  }
  EXPECT_EQ(message_of(error), before) << "the user's object was changed";
}

TEST(RethrowWith, LibTorchsErrorsAreCopiedWithMoreContext) {
  expect_copied<c10::Error>();
  expect_copied<c10::IndexError>();
  expect_copied<c10::ValueError>();
  expect_copied<c10::TypeError>();
  expect_copied<c10::NotImplementedError>();
  expect_copied<c10::BufferError>();
  expect_copied<c10::EnforceFiniteError>();
  expect_copied<c10::OnnxfiBackendSystemError>();
  expect_copied<c10::LinAlgError>();
  expect_copied<c10::OutOfMemoryError>();
  expect_copied<c10::SyntaxError>();
  expect_copied<c10::DistError>();
  expect_copied<c10::DistBackendError>();
  expect_copied<c10::DistStoreError>();
  expect_copied<c10::DistNetworkError>();
  expect_copied<c10::DistQueueEmptyError>();
}

TEST(RethrowWith, ACopyKeepsWhatItsTypeAdds) {
  const auto error = std::make_exception_ptr(
      c10::AcceleratorError(c10::SourceLocation{"f", "file.cc", 1}, 42, "trouble"));
  try {
    rethrow_with(error, "in stage 0");
  } catch (const c10::AcceleratorError& e) {
    EXPECT_EQ(e.get_error_code(), 42);
    EXPECT_EQ(e.context(), std::vector<std::string>{"in stage 0"});
  }
}

struct OwnTorchError : c10::ValueError {
  using c10::ValueError::ValueError;
};
struct OwnRuntimeError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

TEST(RethrowWith, AUsersOwnClassIsRethrownAsItIs) {
  for (const auto& error :
       {torch_error<OwnTorchError>(), std::make_exception_ptr(OwnRuntimeError("trouble"))}) {
    const std::string before = message_of(error);
    const Outcome outcome = rethrown(error, "in stage 0");
    EXPECT_TRUE(outcome.same);
    EXPECT_EQ(outcome.message.find("stage"), std::string::npos);
    EXPECT_EQ(message_of(error), before);
  }
  EXPECT_THROW(rethrow_with(std::make_exception_ptr(42), "in stage 0"), int);
}

TEST(RethrowWith, TheStandardLibrarysErrorsGetALongerMessage) {
  const auto error = std::make_exception_ptr(std::out_of_range("trouble"));
  for (const char* where : {"in stage 0", "in stage 1"}) {
    const Outcome outcome = rethrown(error, where);
    EXPECT_EQ(outcome.type, typeid(std::out_of_range).name());
    EXPECT_EQ(outcome.message, "trouble (" + std::string(where) + ")");
  }
}

TEST(RethrowWith, TheAdderGetsWhatIsOfNoKnownTypeAndItsPlace) {
  struct Foreign : std::exception {
    mutable std::string place;
  };
  set_place_adder([](const std::exception& error, const std::string& where) {
    if (const auto* foreign = dynamic_cast<const Foreign*>(&error)) foreign->place = where;
  });
  const auto foreign = std::make_exception_ptr(Foreign());
  const Outcome outcome = rethrown(foreign, "in stage 2");
  EXPECT_EQ(rethrown(std::make_exception_ptr(std::out_of_range("trouble")), "in stage 2").message,
            "trouble (in stage 2)");
  set_place_adder(nullptr);
  EXPECT_TRUE(outcome.same);
  try {
    rethrow_with(foreign, "in stage 3");  // no adder any more
  } catch (const Foreign& error) {
    EXPECT_EQ(error.place, "in stage 2");
  }
}

TEST(IsOutOfMemory, KnowsLibTorchsErrorAndWhatIsDerivedFromIt) {
  struct Own : c10::OutOfMemoryError {
    using c10::OutOfMemoryError::OutOfMemoryError;
  };
  EXPECT_TRUE(is_out_of_memory(torch_error<c10::OutOfMemoryError>()));
  EXPECT_TRUE(is_out_of_memory(torch_error<Own>()));
  EXPECT_FALSE(is_out_of_memory(torch_error<c10::Error>()));
  EXPECT_FALSE(is_out_of_memory(std::make_exception_ptr(std::bad_alloc())));
  EXPECT_FALSE(is_out_of_memory(std::make_exception_ptr(7)));
}

TEST(ShortageText, SaysWhatWasAskedForAndWhatThereWas) {
  EXPECT_EQ(shortage_text({c10::Device("cuda:1"), int64_t{7} << 29, 512, int64_t{79} << 30}),
            "cuda:1 was asked for 3.50 GiB (3758096384 bytes); 512 bytes of 79.00 GiB "
            "(84825604096 bytes) were free");
  EXPECT_EQ(shortage_text({c10::Device("cuda:0"), 1024, 0, int64_t{3} << 60}),
            "cuda:0 was asked for 1.00 KiB (1024 bytes); 0 bytes of 3.00 EiB (3458764513820540928 "
            "bytes) were free");
}

}  // namespace
}  // namespace gpipe::internal
