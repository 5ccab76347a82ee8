#include "gpipe/testing/log_capture.h"

// LibTorch has macros of the same names, so none of its headers may be included here.
#include <cstddef>
#include <mutex>

#include <glog/logging.h>

namespace gpipe::testing {

class LogCapture::Sink final : public google::LogSink {
 public:
  Sink() { google::AddLogSink(this); }
  ~Sink() override { google::RemoveLogSink(this); }
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;

  using google::LogSink::send;
  void send(google::LogSeverity severity, const char* /*full_filename*/,
            const char* /*base_filename*/, int /*line*/, const google::LogMessageTime& /*time*/,
            const char* message, size_t message_len) override {
    if (severity != google::GLOG_WARNING) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    warnings_.emplace_back(message, message_len);
  }

  std::vector<std::string> warnings() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return warnings_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> warnings_;
};

LogCapture::LogCapture() : sink_(std::make_unique<Sink>()) {}

LogCapture::~LogCapture() = default;

std::vector<std::string> LogCapture::warnings() const { return sink_->warnings(); }

}  // namespace gpipe::testing
