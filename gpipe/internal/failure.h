// Failure: where in the pipeline a layer failed, and how that reaches the caller's exception.
#ifndef GPIPE_INTERNAL_FAILURE_H_
#define GPIPE_INTERNAL_FAILURE_H_

#include <exception>
#include <string>

namespace gpipe::internal {

// Rethrows `error` with `where` added to its message, keeping its type and, for exceptions of
// LibTorch, the very object. The standard library's own exception types are thrown again with the
// longer message; any other type cannot carry more text and is rethrown unchanged.
[[noreturn]] void rethrow_with(std::exception_ptr error, const std::string& where);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_FAILURE_H_
