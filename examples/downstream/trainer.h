// train: trains one of GPipe's pipelines, as another team's code would.
#ifndef DOWNSTREAM_TRAINER_H_
#define DOWNSTREAM_TRAINER_H_

#include <cstdint>
#include <vector>

// Trains a small perceptron of 5 layers, cut according to `balance`, on a made-up task. Returns the
// loss of each step. The losses do not depend on the balance.
std::vector<double> train(const std::vector<int64_t>& balance, int64_t chunks, int64_t steps);

#endif  // DOWNSTREAM_TRAINER_H_
