#include "gpipe/distributed/error_file.h"

#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>

namespace gpipe::distributed {

void ErrorFile::write(const std::string& text) noexcept {
  if (path_.empty()) return;
  try {
    const nlohmann::json record = {
        {"message",
         {{"message", text},
          {"extraInfo",
           {{"py_callstack", text}, {"timestamp", std::to_string(std::time(nullptr))}}}}}};
    // torchrun throws if it finds an incomplete record, so the file is renamed when it is complete.
    const std::string draft = path_ + "." + std::to_string(getpid());
    std::ofstream file(draft);
    // An exception's text may not be valid UTF-8, for which dump() throws by default.
    file << record.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    file.close();
    if (file.fail() || std::rename(draft.c_str(), path_.c_str()) != 0) {
      std::remove(draft.c_str());
    }
  } catch (const std::exception&) {
  }
}

void ErrorFile::forget() noexcept {
  if (!path_.empty()) std::remove(path_.c_str());
}

}  // namespace gpipe::distributed
