// Namespace: keeps equal skip names apart.
#ifndef SKIP_NAMESPACE_H_
#define SKIP_NAMESPACE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

namespace gpipe::skip {

// An identity that keeps equal skip names apart: two pairs of layers may both call their tensor
// "skip" if each pair is isolated in a namespace of its own (`Skippable::isolate`).
//
// Guarantees: a copy equals its original; two namespaces made separately are never equal. The order
// between namespaces has no meaning, but is stable within one process: it is there for sorting.
//
// Thread-safety: several threads may make namespaces at once; a namespace is then a plain value.
//
// Example:
//   Namespace ns;
//   encoder->isolate(ns);
//   decoder->isolate(ns);
class Namespace {
 public:
  // A new identity, different from every other so far.
  Namespace();

  // The namespace of every name that was not isolated.
  static const Namespace& common();

  // The number of the namespace: 0 for the common one. It is unique in this process, but differs
  // from one run to the next.
  int64_t id() const { return id_; }

  friend bool operator==(const Namespace& a, const Namespace& b) { return a.id_ == b.id_; }
  friend bool operator!=(const Namespace& a, const Namespace& b) { return a.id_ != b.id_; }
  friend bool operator<(const Namespace& a, const Namespace& b) { return a.id_ < b.id_; }

  template <typename H>
  friend H AbslHashValue(H h, const Namespace& ns) {
    return H::combine(std::move(h), ns.id_);
  }

 private:
  explicit Namespace(int64_t id) : id_(id) {}

  int64_t id_;
};

}  // namespace gpipe::skip

namespace std {
template <>
struct hash<gpipe::skip::Namespace> {
  size_t operator()(const gpipe::skip::Namespace& ns) const { return hash<int64_t>()(ns.id()); }
};
}  // namespace std

#endif  // SKIP_NAMESPACE_H_
