// WarningLog: warnings to the caller, through glog.
#ifndef GPIPE_RUNTIME_WARNING_LOG_H_
#define GPIPE_RUNTIME_WARNING_LOG_H_

#include <string>

namespace gpipe::internal {

// Logs nothing for an empty text.
void log_warning(const std::string& text);

}  // namespace gpipe::internal

#endif  // GPIPE_RUNTIME_WARNING_LOG_H_
