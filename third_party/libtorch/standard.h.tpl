// Says it in one sentence if a source is compiled for an older C++ than LibTorch's headers need, before they fail in a
// hundred others. LibTorch's own header of this name, which nearly all others include first, follows.
#ifndef GPIPE_LIBTORCH_STANDARD_H_
#define GPIPE_LIBTORCH_STANDARD_H_

#if __cplusplus < %{cplusplus}
#error "LibTorch %{version} needs C++%{cxx}: compile with -std=c++%{cxx} (Bazel: build --cxxopt=-std=c++%{cxx} --host_cxxopt=-std=c++%{cxx} in .bazelrc), or choose a LibTorch that needs less (third_party/libtorch/versions.txt in GPipe for C++)."
// A header that is missing ends the compilation, which an #error does not: without it 1,722 more errors follow.
#include <compilation-ends-here>
#endif

#endif  // GPIPE_LIBTORCH_STANDARD_H_

#include_next <c10/macros/Export.h>
