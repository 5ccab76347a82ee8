load("//third_party:system.bzl", "system_library")

def repo():
    system_library(
        name = "com_github_google_glog",
        build_file = Label("//third_party/com_github_google_glog:system.BUILD.bazel"),
        package = "libgoogle-glog-dev",
        probe = "include/glog/logging.h",
    )
