#include "gpipe/world.h"

#include <stdexcept>
#include <string>

#include "gpipe/chunk_sizes.h"
#include "text/counted.h"

namespace gpipe {

World World::grid(int64_t replicas, int64_t processes) const {
  const auto fits = [&] {
    return replicas >= 1 && processes >= 1 && size_ % replicas == 0 &&
           size_ / replicas == processes;
  };
  if (!fits()) {
    throw std::invalid_argument(
        "grid(" + std::to_string(replicas) + ", " + std::to_string(processes) + ") is for " +
        text::counted(replicas, "replica") + " of " +
        text::counted(processes, "process", "processes") + " each, and there " +
        (size_ == 1 ? "is " : "are ") + text::counted(size_, "process", "processes") + " in all; " +
        (processes_ != nullptr || size_ > 1
             ? "start as many as the product, or give other numbers"
             : "no launcher has started several: give one the program and as many processes as the "
               "product of two numbers from 1 on (docs/guide/32-running-processes.md)"));
  }
  World world = *this;
  world.replicas_ = replicas;
  return world;
}

RowRange World::rows(int64_t global_rows, int64_t chunks) const {
  if (global_rows < 0 || chunks < 1) {
    throw std::invalid_argument("rows(" + std::to_string(global_rows) + ", " +
                                std::to_string(chunks) +
                                "): a mini-batch has 0 rows or more, and at least 1 chunk");
  }
  if (chunks % replicas_ != 0) {
    throw std::invalid_argument(std::to_string(chunks) + " chunks cannot be shared by " +
                                std::to_string(replicas_) +
                                " replicas; give a multiple of them, which is that of the whole "
                                "mini-batch and not of a replica");
  }
  const int64_t rows = chunk_sizes(global_rows, chunks).rows;
  const int64_t each = chunks / replicas_;  // micro-batches of a replica
  const auto begin_of = [&](int64_t replica) {
    const int64_t first = replica * each;
    return rows == 0 || first > (global_rows - 1) / rows ? global_rows : first * rows;
  };
  return {begin_of(replica()), begin_of(replica() + 1)};
}

}  // namespace gpipe
