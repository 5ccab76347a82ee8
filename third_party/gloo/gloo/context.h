// gloo::Context, as far as c10d's headers name it. Nothing here may be used.
#ifndef THIRD_PARTY_GLOO_GLOO_CONTEXT_H_
#define THIRD_PARTY_GLOO_GLOO_CONTEXT_H_

#include <chrono>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo

#endif  // THIRD_PARTY_GLOO_GLOO_CONTEXT_H_
