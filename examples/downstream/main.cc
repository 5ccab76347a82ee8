#include <cstdint>
#include <iostream>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "trainer.h"

ABSL_FLAG(int64_t, chunks, 4, "micro-batches of a mini-batch");
ABSL_FLAG(int64_t, steps, 50, "optimizer steps");

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  const std::vector<double> losses =
      train({2, 3}, absl::GetFlag(FLAGS_chunks), absl::GetFlag(FLAGS_steps));
  std::cout << "loss " << losses.front() << " -> " << losses.back() << "\n";
}
