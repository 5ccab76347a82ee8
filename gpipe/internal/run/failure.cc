#include "gpipe/internal/run/failure.h"

#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <typeinfo>
#include <utility>

namespace gpipe::internal {
namespace {

std::atomic<PlaceAdder> place_adder{nullptr};
std::atomic<EngineTranslator> engine_translator{nullptr};

// Both functions throw only if `error` is exactly a T. If it is of a class derived from T, the new
// T would lose what the caller may want to catch. The error itself is not changed, because the user
// may keep it and throw it again.

template <typename T>
void rethrow_copy(const c10::Error& error, const std::string& where) {
  if (typeid(error) != typeid(T)) return;
  T copy(static_cast<const T&>(error));
  copy.add_context(where);
  throw T(std::move(copy));
}

template <typename T>
void rethrow_longer(const std::exception& error, const std::string& where) {
  if (typeid(error) == typeid(T)) throw T(std::string(error.what()) + " (" + where + ")");
}

template <typename... T>
void rethrow_copy_of_any(const c10::Error& error, const std::string& where) {
  (rethrow_copy<T>(error, where), ...);
}

template <typename... T>
void rethrow_longer_of_any(const std::exception& error, const std::string& where) {
  (rethrow_longer<T>(error, where), ...);
}

std::string size_text(int64_t bytes) {
  const std::string exact = std::to_string(bytes) + " bytes";
  auto size = static_cast<double>(bytes);
  if (size < 1024) return exact;
  const char* unit = nullptr;
  for (const char* const next : {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}) {
    if (size < 1024) break;
    size /= 1024;
    unit = next;
  }
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.2f %s", size, unit);
  return text.data() + (" (" + exact + ")");
}

}  // namespace

void rethrow_with(std::exception_ptr error, const std::string& where) {
  try {
    std::rethrow_exception(std::move(error));
  } catch (const c10::Error& e) {
    // All exception types of c10/util/Exception.h.
    rethrow_copy_of_any<c10::Error, c10::ErrorAlwaysShowCppStacktrace, c10::IndexError,
                        c10::ValueError, c10::TypeError, c10::NotImplementedError, c10::BufferError,
                        c10::EnforceFiniteError, c10::OnnxfiBackendSystemError, c10::LinAlgError,
                        c10::OutOfMemoryError, c10::SyntaxError, c10::AcceleratorError,
                        c10::DistError, c10::DistBackendError, c10::DistStoreError,
                        c10::DistNetworkError, c10::DistQueueEmptyError>(e, where);
    throw;
  } catch (const std::exception& e) {
    rethrow_longer_of_any<std::runtime_error, std::logic_error, std::invalid_argument,
                          std::domain_error, std::length_error, std::out_of_range, std::range_error,
                          std::overflow_error, std::underflow_error>(e, where);
    if (const PlaceAdder adder = place_adder) adder(e, where);
    throw;
  }
}

void set_place_adder(PlaceAdder adder) { place_adder = adder; }

void throw_into_engine(const std::exception_ptr& error) {
  if (const EngineTranslator translator = engine_translator) translator(error);
  std::rethrow_exception(error);
}

void set_engine_translator(EngineTranslator translator) { engine_translator = translator; }

bool is_out_of_memory(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::OutOfMemoryError&) {
    return true;
  } catch (...) {
    return false;
  }
}

std::string shortage_text(const OutOfMemory& memory) {
  return memory.device.str() + " was asked for " + size_text(memory.asked) + "; " +
         size_text(memory.free) + " of " + size_text(memory.total) + " were free";
}

}  // namespace gpipe::internal
