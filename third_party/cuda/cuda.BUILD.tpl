load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

cc_library(
    name = "cuda",
    hdrs = glob(["include/*.h", "include/*.hpp", "include/crt/**"], allow_empty = True),
    defines = ["GPIPE_HAS_CUDA_TOOLKIT=1"],
    includes = ["include"],
    linkopts = [
        "-L%{lib}",
        "-Wl,-rpath,%{lib}",
        "-lcudart",
    ],
)

# For kernels of our own. LibTorch brings a shared runtime, perhaps of another patch version; a static one does not get
# into its way, and both use the same context.
cc_library(
    name = "cudart_static",
    linkopts = [
        "-L%{lib}",
        "-lcudart_static",
        "-ldl",
        "-lrt",
        "-pthread",
    ],
)

filegroup(
    name = "nvcc",
    srcs = ["bin/nvcc"],
)
