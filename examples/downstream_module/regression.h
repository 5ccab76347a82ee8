// fit_sine: fits a sine with one of GPipe's pipelines, as another team's code would.
#ifndef DOWNSTREAM_MODULE_REGRESSION_H_
#define DOWNSTREAM_MODULE_REGRESSION_H_

#include <cstdint>

// Trains a small perceptron for `steps` steps, in two stages that take about the same time. Returns
// the mean squared error after them.
double fit_sine(int64_t steps);

#endif  // DOWNSTREAM_MODULE_REGRESSION_H_
