// message_of: the message of an exception, for people and for other processes.
#ifndef TEXT_EXCEPTION_TEXT_H_
#define TEXT_EXCEPTION_TEXT_H_

#include <exception>
#include <string>

namespace gpipe::text {

// The error's message, without the backtrace that LibTorch's messages have. c10d's own errors have
// one even in what_without_backtrace().
std::string message_of(const std::exception& error);
// message_of(), for the exception that is being handled.
std::string message_of_current_exception();

}  // namespace gpipe::text

#endif  // TEXT_EXCEPTION_TEXT_H_
