// Failure: the place of an error in the pipeline, added to the caller's exception.
#ifndef GPIPE_INTERNAL_FAILURE_H_
#define GPIPE_INTERNAL_FAILURE_H_

#include <exception>
#include <string>

namespace gpipe::internal {

// Throws `error` with `where` added to its message, keeping its type: LibTorch's own exception
// types as a copy with more context, those of the standard library with the longer message. Any
// other type, including a user's class derived from one of these, is rethrown unchanged. `error`
// itself is never changed: the user may keep it and throw it again.
[[noreturn]] void rethrow_with(std::exception_ptr error, const std::string& where);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_FAILURE_H_
