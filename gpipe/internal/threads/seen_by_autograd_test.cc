#include "gpipe/internal/threads/seen_by_autograd.h"

#include <ATen/ThreadLocalState.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>

namespace gpipe::internal {
namespace {

c10::DebugInfoKind kind() { return c10::DebugInfoKind::TEST_INFO; }
using Scope = SeenByAutogradScope<kind, const int>;

// Returns what a thread of autograd's engine sees, which starts a node with the state of the thread
// that called backward.
const int* on_a_thread_of_autograd() {
  const int* seen = nullptr;
  std::thread([&seen, state = at::ThreadLocalState()] {
    const at::ThreadLocalStateGuard guard(state);
    seen = Scope::current();
  }).join();
  return seen;
}

TEST(SeenByAutogradScope, ShowsThePointerAsItIsNow) {
  const int first = 1;
  const int second = 2;
  const int* pointer = nullptr;
  EXPECT_EQ(on_a_thread_of_autograd(), nullptr);
  {
    const Scope scope(&pointer);
    EXPECT_EQ(on_a_thread_of_autograd(), nullptr);
    pointer = &first;
    EXPECT_EQ(on_a_thread_of_autograd(), &first);
    const int* inner_pointer = &second;
    std::optional<Scope> inner(&inner_pointer);
    EXPECT_EQ(on_a_thread_of_autograd(), &second);
    inner.reset();
    EXPECT_EQ(on_a_thread_of_autograd(), &first);
    std::thread([&] {
      EXPECT_EQ(Scope::current(), nullptr)
          << "a thread that autograd does not use for this caller sees no scope";
    }).join();
  }
  EXPECT_EQ(on_a_thread_of_autograd(), nullptr);
}

}  // namespace
}  // namespace gpipe::internal
