// Slurm lists: parses Slurm's lists of a step's hosts and of the number of tasks on each.
#ifndef GPIPE_DISTRIBUTED_MEET_SLURM_LISTS_H_
#define GPIPE_DISTRIBUTED_MEET_SLURM_LISTS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpipe::distributed {

// "gpu[03-05,7],login" is gpu03, gpu04, gpu05, gpu7, login. A name may have several brackets; the
// last one varies fastest. Throws std::invalid_argument that says what is wrong with the text (not
// which variable it was), also for more than 65,536 hosts.
std::vector<std::string> expand_host_list(std::string_view text);

// Expands "2(x3),1" to 2, 2, 2, 1. Throws as expand_host_list() does.
std::vector<int64_t> expand_tasks_per_node(std::string_view text);

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_MEET_SLURM_LISTS_H_
