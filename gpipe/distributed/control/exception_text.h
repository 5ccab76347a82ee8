// text_of_current_exception: the text of an exception, for other processes.
#ifndef GPIPE_DISTRIBUTED_CONTROL_EXCEPTION_TEXT_H_
#define GPIPE_DISTRIBUTED_CONTROL_EXCEPTION_TEXT_H_

#include <exception>
#include <string>

namespace gpipe::distributed {

// The error's message, without the backtrace that LibTorch's messages have. c10d's own errors have
// one even in what_without_backtrace().
std::string text_of(const std::exception& error);
// text_of(), for the exception that is being handled.
std::string text_of_current_exception();

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_CONTROL_EXCEPTION_TEXT_H_
