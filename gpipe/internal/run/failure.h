// Failure: the place of an error in the pipeline, added to the caller's exception.
#ifndef GPIPE_INTERNAL_RUN_FAILURE_H_
#define GPIPE_INTERNAL_RUN_FAILURE_H_

#include <exception>
#include <string>

#include "gpipe/out_of_memory.h"

namespace gpipe::internal {

// Throws `error` with `where` added to its message, keeping its type: LibTorch's own exception
// types as a copy with more context, and the standard library's types with the longer message. Any
// other type, including a user's class derived from one of these, is rethrown unchanged. `error`
// itself is never changed by this function, because the user may keep it and throw it again; only a
// PlaceAdder may change it.
[[noreturn]] void rethrow_with(std::exception_ptr error, const std::string& where);

// A function that gets exceptions of other types, which another language may have made, and the
// place where they were thrown. It must not throw.
using PlaceAdder = void (*)(const std::exception& error, const std::string& where);

// Sets the adder of the whole process; null, the default: none. Thread-safe.
void set_place_adder(PlaceAdder adder);

// Throws an error of a backward into LibTorch's engine, which gives it to whoever has called the
// engine: as the translator throws it, or else as it is. Another language may need exceptions of
// its own there, because the engine's caller is LibTorch's code for that language.
[[noreturn]] void throw_into_engine(const std::exception_ptr& error);
using EngineTranslator = void (*)(const std::exception_ptr& error);
// Sets the translator of the whole process; null, the default: none. Thread-safe.
void set_engine_translator(EngineTranslator translator);

// Whether `error` is a c10::OutOfMemoryError.
bool is_out_of_memory(const std::exception_ptr& error);

// A text like "cuda:1 was asked for 3.50 GiB (3758096384 bytes); 512 bytes of 79.00 GiB
// (84825604096 bytes) were free".
std::string shortage_text(const OutOfMemory& memory);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_RUN_FAILURE_H_
