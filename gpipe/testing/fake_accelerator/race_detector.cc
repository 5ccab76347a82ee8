#include "gpipe/testing/fake_accelerator/race_detector.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace gpipe::testing::fake {
namespace {

constexpr size_t kMostTexts = 100;

bool conflict(const Access& a, const Access& b) {
  return (a.write || b.write) && a.where.overlaps(b.where);
}

std::string bytes_of(const Access& access, const char* base) {
  return "bytes [" + std::to_string(access.where.begin() - base) + ", " +
         std::to_string(access.where.end() - base) + ")";
}

}  // namespace

void RaceDetector::add_block(const void* begin, size_t bytes, std::string name) {
  const auto* first = static_cast<const char*>(begin);
  blocks_[first] = {first, first + bytes, std::move(name), {}};
}

void RaceDetector::remove_block(const void* begin) {
  blocks_.erase(static_cast<const char*>(begin));
}

RaceDetector::Block* RaceDetector::find(const char* address) {
  auto next = blocks_.upper_bound(address);
  if (next == blocks_.begin()) return nullptr;
  Block& block = std::prev(next)->second;
  return address < block.end ? &block : nullptr;
}

void RaceDetector::access(const Actor& actor, const VectorClock& clock, const Access& access) {
  if (access.where.empty()) return;
  Block* block = find(access.where.begin());
  if (block == nullptr) return;
  std::vector<Past>& past = block->past;
  // An earlier access need not be kept if this access covers it and comes after it. A later access
  // that comes after this one also comes after the earlier one, and an access that conflicts with
  // the earlier one also conflicts with this one. A read cannot replace a write, because a write
  // conflicts with reads, too.
  past.erase(std::remove_if(past.begin(), past.end(),
                            [&](const Past& p) {
                              const bool before = p.actor.stream == actor.stream ||
                                                  clock.has_seen(p.actor.stream, p.actor.time);
                              if (!before) {
                                if (conflict(access, p.access)) {
                                  report(actor.what, access, p, *block);
                                }
                                return false;
                              }
                              return (access.write || !p.access.write) &&
                                     access.where.surely_covers(p.access.where);
                            }),
             past.end());
  past.push_back({actor, access});
}

void RaceDetector::host_access(const std::string& what, const VectorClock& clock,
                               const Access& access) {
  if (access.where.empty()) return;
  Block* block = find(access.where.begin());
  if (block == nullptr) return;
  for (const Past& p : block->past) {
    if (!clock.has_seen(p.actor.stream, p.actor.time) && conflict(access, p.access)) {
      report(what, access, p, *block);
    }
  }
}

void RaceDetector::forget(const void* block, const VectorClock& clock) {
  Block* found = find(static_cast<const char*>(block));
  if (found == nullptr) return;
  std::vector<Past>& past = found->past;
  past.erase(
      std::remove_if(past.begin(), past.end(),
                     [&](const Past& p) { return clock.has_seen(p.actor.stream, p.actor.time); }),
      past.end());
}

void RaceDetector::report(const std::string& what, const Access& access, const Past& past,
                          const Block& block) {
  const std::string text = what + (access.write ? ", writes " : ", reads ") +
                           bytes_of(access, block.begin) + " of a " + block.name +
                           "; nothing orders it after " + past.actor.what +
                           (past.access.write ? ", which writes " : ", which reads ") +
                           bytes_of(past.access, block.begin);
  if (races_.size() < kMostTexts || races_.count(text) > 0) ++races_[text];
}

std::vector<std::string> RaceDetector::take_races() {
  std::vector<std::string> texts;
  for (const auto& [text, times] : races_) {
    texts.push_back(times == 1 ? text : text + " (" + std::to_string(times) + " times)");
  }
  races_.clear();
  return texts;
}

}  // namespace gpipe::testing::fake
