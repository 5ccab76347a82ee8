#include <cstdint>
#include <iostream>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "plan.h"

ABSL_FLAG(int64_t, stages, 4, "partitions of the model");
ABSL_FLAG(int64_t, micro_batches, 8, "parts of a mini-batch");

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  const Plan p = plan(absl::GetFlag(FLAGS_stages), absl::GetFlag(FLAGS_micro_batches));
  std::cout << "micro-batches held at once: gpipe " << p.gpipe << ", 1f1b " << p.one_f_one_b
            << "\n";
}
