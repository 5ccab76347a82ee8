#include "skip/namespace.h"

#include <atomic>

namespace gpipe::skip {
namespace {

int64_t next_id() {
  static std::atomic<int64_t> last{0};
  return ++last;
}

}  // namespace

Namespace::Namespace() : id_(next_id()) {}

const Namespace& Namespace::common() {
  static const Namespace common(0);
  return common;
}

}  // namespace gpipe::skip
