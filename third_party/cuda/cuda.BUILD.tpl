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

filegroup(
    name = "nvcc",
    srcs = ["bin/nvcc"],
)
