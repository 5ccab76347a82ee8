// text_of_current_exception: the text of an exception, for other processes.
#ifndef GPIPE_DISTRIBUTED_CONTROL_EXCEPTION_TEXT_H_
#define GPIPE_DISTRIBUTED_CONTROL_EXCEPTION_TEXT_H_

#include <string>

namespace gpipe::distributed {

// The message of the exception that is being handled, without LibTorch's backtrace.
std::string text_of_current_exception();

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_CONTROL_EXCEPTION_TEXT_H_
