#ifndef SKIP_CONTEXT_H_
#define SKIP_CONTEXT_H_

namespace gpipe::skip {
class CallScope;
class Tracker;
}  // namespace gpipe::skip

namespace gpipe::skip::internal {

// What a thread's skippable layers work with. Null: the thread's own tracker, no call observed.
struct Context {
  Tracker* tracker = nullptr;
  CallScope* call = nullptr;
};

Context& context();

}  // namespace gpipe::skip::internal

#endif  // SKIP_CONTEXT_H_
