// prepare_memory: a memory experiment, from its flags to the rows of its table.
#ifndef GPIPE_EXPERIMENTS_ROWS_MEMORY_EXPERIMENT_H_
#define GPIPE_EXPERIMENTS_ROWS_MEMORY_EXPERIMENT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "experiments/frame/program.h"
#include "experiments/frame/report.h"
#include "experiments/frame/scale.h"
#include "gpipe/checkpoint.h"

namespace gpipe::experiments {

// The memory of a Tesla P40, on which the tables were measured: 22,919 MiB.
inline constexpr int64_t kP40Bytes = int64_t{22919} << 20;

// A published run.
struct MemoryVariant {
  std::string name;
  std::string network;           // for models::model_by_name(): "unet:24,128"
  std::vector<int64_t> balance;  // empty: the plain network
  int64_t chunks = 1;
  Checkpoint checkpoint = Checkpoint::kExceptLast;  // if --checkpoint is not given
  std::string note;                                 // what a reader must know of this row
};

// A network of the same kind for a smaller scale.
struct SmallNetwork {
  std::string network;  // as in MemoryVariant
  int64_t image_size = 0;
  int64_t batch = 0;
};

struct MemoryExperiment {
  std::string name;     // the folder's name
  std::string edition;  // the table's edition, if there are several
  // The table's columns are memory_columns(), and its rows are named as the variants.
  PublishedTable table;
  std::vector<MemoryVariant> variants;
  int64_t batch = 0;
  std::string optimizer;  // for balance::parse_optimizer()
  // The column "Model memory" is this many times the memory of the parameters: 2 with gradients, 3
  // with an optimizer's state, too.
  int64_t copies = 2;
  std::function<SmallNetwork(const MemoryVariant& variant, Scale scale)> shrink;
  std::vector<std::string> remarks;
};

// "parameters", "model_memory", "activation_memory", "memory" (GiB), for PublishedTable::columns.
// Each is shown with the published figures of the sources named. Memory is compared with
// torchgpipe's if torchgpipe is among its sources.
std::vector<Column> memory_columns(const std::vector<std::string>& parameters,
                                   const std::vector<std::string>& model_and_activations,
                                   const std::vector<std::string>& memory);

// Divides both numbers of a network such as "unet:24,128". The results are rounded, and at least
// `least_first` and `least_second`. The first is a multiple of `least_first`, as AmoebaNet-D needs.
std::string divide(const std::string& network, int64_t first_by, int64_t second_by,
                   int64_t least_first, int64_t least_second);

// Reads the flags. Rows are planned, at full size and with the published settings, and measured, at
// --scale on the devices at hand. Throws std::invalid_argument for flags that do not fit.
ExperimentRun prepare_memory(const MemoryExperiment& experiment);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_ROWS_MEMORY_EXPERIMENT_H_
