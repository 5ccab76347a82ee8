// add_schedule: schedules as values of Python. What users call, with its texts, is in
// python/gpipe/schedule.py.
#ifndef PYTHON_EXTENSION_SCHEDULE_H_
#define PYTHON_EXTENSION_SCHEDULE_H_

#include <pybind11/pybind11.h>

namespace gpipe::python {

// Adds ScheduleTable, Comparison, compare_schedules and search_schedule to the extension.
void add_schedule(pybind11::module_& m);

}  // namespace gpipe::python

#endif  // PYTHON_EXTENSION_SCHEDULE_H_
